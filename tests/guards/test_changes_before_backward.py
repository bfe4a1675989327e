"""What a backward of the program's own reads, changed before forward or between forward and backward: the gradients are
eager's.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable

import pytest
import tcompile
import torch

scale = 1.0
settings = {"scale": 1.0}
factors = [1.0]
weight = torch.ones(3)


class Held:
    scale = 1.0


held = Held()


def helper(g: torch.Tensor) -> torch.Tensor:
    return g * scale


BACKWARDS: dict[str, Callable] = {
    "a global": lambda ctx, g: g * scale,
    "an item": lambda ctx, g: g * settings["scale"],
    "a list": lambda ctx, g: g * factors[0],
    "an attribute": lambda ctx, g: g * held.scale,
    "on ctx": lambda ctx, g: g * ctx.held.scale,
    "a tensor": lambda ctx, g: g * weight,
    "a helper": lambda ctx, g: helper(g),
    "nothing": lambda ctx, g: g * 3,
}
_numbers = itertools.count()


def change(value: float) -> None:
    global scale
    scale = settings["scale"] = factors[0] = held.scale = value
    weight.fill_(value)


def function(backward: Callable) -> Callable:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.held = held
            return x * 2

    Doubled.backward = staticmethod(backward)
    return lambda x: Doubled.apply(x) + 1


def operator(backward: Callable) -> Callable:
    @torch.library.custom_op(f"tcompile_stale::doubled_{next(_numbers)}", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(lambda x: torch.empty_like(x))
    keeps = (lambda ctx, inputs, output: setattr(ctx, "held", held)) if backward is BACKWARDS["on ctx"] else None
    doubled.register_autograd(backward, setup_context=keeps)
    return lambda x: doubled(x) + 1


@pytest.mark.parametrize("kind", [function, operator])
@pytest.mark.parametrize("reads", BACKWARDS)
def test_like_eager(kind: Callable, reads: str) -> None:
    def observed(wrap: Callable) -> list:
        f, gradients = wrap(program), []
        for before, between in ((1.0, 1.0), (3.0, 3.0), (3.0, 5.0), (5.0, 2.0)):
            change(before)
            x = torch.ones(3, requires_grad=True)
            y = f(x).sum()
            change(between)
            y.backward()
            gradients.append(x.grad.tolist())
        return gradients

    program = kind(BACKWARDS[reads])
    expected = observed(lambda f: f)
    assert observed(lambda f: tcompile.compile(f, backend="aot_eager")) == expected


def test_grad_mode_in_backward_is_that_of_backward() -> None:
    f = function(lambda ctx, g: g * (2.0 if torch.is_grad_enabled() else 3.0))
    for g in (f, tcompile.compile(f, backend="aot_eager")):
        x = torch.ones(3, requires_grad=True)
        assert torch.autograd.grad(g(x).sum(), x, create_graph=True)[0].tolist() == [2.0] * 3
        assert torch.autograd.grad(g(x).sum(), x)[0].tolist() == [3.0] * 3


@pytest.mark.parametrize("kind", [function, operator])
def test_under_fullgraph_a_number_is_what_forward_finds(kind: Callable) -> None:
    f = tcompile.compile(kind(BACKWARDS["a global"]), backend="aot_eager", fullgraph=True)
    for value in (1.0, 3.0, 1.0):
        change(value)
        x = torch.ones(3, requires_grad=True)
        f(x).sum().backward()
        assert x.grad.tolist() == [value] * 3


@pytest.mark.parametrize("kind", [function, operator])
def test_what_reads_nothing_is_one_graph(kind: Callable) -> None:
    f = tcompile.compile(kind(BACKWARDS["nothing"]), backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    f(x).sum().backward()
    assert x.grad.tolist() == [3.0] * 3
