"""A global that a function reads which torch's own functions call for the program: changed between calls, the result is
eager's.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import pytest
import tcompile
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from tcompile.compiler import events
from torch import nn
from torch.utils.checkpoint import checkpoint

factor = 1.0


def multiplied(v: torch.Tensor) -> torch.Tensor:
    return v * factor


def energy(a: float, v: torch.Tensor) -> torch.Tensor:
    return (v**4).sum() * factor * a


class Energy(nn.Module):
    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return (v**4).sum() * factor


class Distance(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a - b).abs().sum(-1) * factor


hooked = nn.Linear(3, 3)
hooked.register_forward_hook(lambda m, inputs, out: out * factor)
layer = nn.TransformerEncoderLayer(4, 2, 8, activation=multiplied, dropout=0.0, batch_first=True)
functional = torch.autograd.functional

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "jacobian": lambda x: functional.jacobian(multiplied, x[0]),
    "jacobian of a module": lambda x: functional.jacobian(Energy(), x),
    "jacobian of a partial": lambda x: functional.jacobian(functools.partial(energy, 2.0), x),
    "hessian": lambda x: functional.hessian(lambda v: (v**4).sum() * factor, x[0]),
    "hessian of a module": lambda x: functional.hessian(Energy(), x[0]),
    "vjp of a method": lambda x: functional.vjp(Energy().forward, x)[1],
    "jvp": lambda x: functional.jvp(Energy(), x, torch.ones_like(x))[1],
    "hvp": lambda x: functional.hvp(Energy(), x, torch.ones_like(x))[1],
    "vhp": lambda x: functional.vhp(Energy(), x, torch.ones_like(x))[1],
    "a distance": lambda x: F.triplet_margin_with_distance_loss(
        x, x + 1, x - 1.5, distance_function=lambda a, b: (a - b).abs().sum(-1) * factor
    ),
    "a distance, a module": lambda x: F.triplet_margin_with_distance_loss(
        x, x + 1, x - 1.5, distance_function=Distance()
    ),
    "torch.func": lambda x: torch.func.jacrev(Energy())(x) + torch.vmap(torch.func.grad(Energy()))(x),
    "checkpoint": lambda x: checkpoint(multiplied, x, use_reentrant=False),
    "tree_map": lambda x: pytree.tree_map(multiplied, {"a": x})["a"],
    "a forward hook": lambda x: hooked(x),
    "an activation": lambda x: layer(x.reshape(1, 2, -1)[..., :4]),
    "apply_": lambda x: x.clone().apply_(lambda v: v * factor),
    "functional_call": lambda x: torch.func.functional_call(Energy(), {}, (x,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_like_eager(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 3) + 2
    compiled = tcompile.compile(CALLS[name], backend="aot_eager")
    for value in (1.5, 3.0, 1.5):
        monkeypatch.setitem(globals(), "factor", value)
        torch.testing.assert_close(compiled(x), CALLS[name](x), rtol=1e-4, atol=1e-4)


class Pair(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x)))


def test_functional_call_on_other_models() -> None:
    """Another model of the class is no other program, unless other parameters of it are one."""

    def f(net, weight, x):
        return torch.func.functional_call(net, {"a.weight": weight}, (x,))

    compiled, x = tcompile.compile(f, backend="aot_eager"), torch.randn(3, 4)
    made: list[object] = []
    with events.listen(lambda event: made.append(event) if event.kind == "entry" else None):
        for tied in (False, False, True, False, True):
            net, weight = Pair(tied), torch.randn(4, 4)
            torch.testing.assert_close(compiled(net, weight, x), f(net, weight, x))
        net = Pair(False)
        for _ in range(2):
            torch.testing.assert_close(compiled(net, weight, x), f(net, weight, x))
            net.b.weight = net.a.weight
    assert len(made) == 2
