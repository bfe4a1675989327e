"""Calls with gradients run in C, also where results are views or of several independent parts."""
from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.autograd import bridge
from tcompile.compiler.native import native

needs_native = pytest.mark.skipif(native is None, reason="the C extension is not built")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list:
    """The GradGraphs made while the test runs."""
    made: list[Any] = []
    init = bridge.GradGraph.__init__

    def remember(self: Any, *args: Any) -> None:
        init(self, *args)
        made.append(self)
    monkeypatch.setattr(bridge.GradGraph, "__init__", remember)
    return made


def same_as_eager(f: Callable, *args: torch.Tensor, graphs: list) -> None:
    for _ in range(2):
        x, y = ([a.detach().clone().requires_grad_(a.requires_grad) for a in args] for _ in range(2))
        got, want = tcompile.compile(f, fullgraph=True)(*x), f(*y)
        got, want = (r if isinstance(r, tuple) else (r,) for r in (got, want))
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)
            assert (a.requires_grad, a.stride()) == (b.requires_grad, b.stride())
        for a, b in reversed(list(zip(got, want))):                    # each by itself: none frees what another needs
            if a.requires_grad:
                t = torch.randn_like(b)
                a.backward(t, retain_graph=True), b.backward(t, retain_graph=True)
        for a, b in zip(x, y):
            torch.testing.assert_close(a.grad, b.grad)
    assert [type(g.call).__name__ for g in graphs] == ["GradCall"] * len(graphs) and graphs


CASES: dict[str, Callable] = {
    "view": lambda x, y: (x @ y).view(2, 2, 6),
    "transposed": lambda x, y: (x @ y).t(),
    "part": lambda x, y: (x @ y)[:, 1:4],
    "halves": lambda x, y: (x @ y).chunk(2, -1),
    "two parts": lambda x, y: (x.sin(), y.cos()),
    "two parts, one a view": lambda x, y: (x.exp().view(-1), (y * 2).tanh()),
    "part and side": lambda x, y: (x.sin(), y.detach() + 1, y.exp().sum()),
    "many parts": lambda x, y: (x.sin(), x.cos(), x.exp(), y.sin(), y.cos(), y.exp()),
}


@needs_native
@pytest.mark.parametrize("name", CASES)
def test_in_c(name: str, graphs: list) -> None:
    same_as_eager(CASES[name], torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True), graphs=graphs)


@needs_native
def test_linear_on_three_dimensions(graphs: list) -> None:
    m = nn.Linear(5, 3)
    same_as_eager(lambda x: m(x), torch.randn(2, 4, 5, requires_grad=True), graphs=graphs)


@needs_native
def test_parts_with_sizes_that_change(graphs: list) -> None:
    f = tcompile.compile(lambda x: (x.exp() * x.shape[0], x.sin().view(-1)), dynamic=True)
    for n in (3, 5, 7):
        x = torch.randn(n, 4, requires_grad=True)
        a, b = f(x)
        g, = torch.autograd.grad(a.sum(), x)
        torch.testing.assert_close(g, x.exp() * n)
        g, = torch.autograd.grad(b.sum(), x)
        torch.testing.assert_close(g, x.cos())
    assert all(type(g.call).__name__ == "GradCall" for g in graphs)


@needs_native
def test_an_error_in_the_graph_of_several_parts_leaves_the_grad_mode() -> None:
    w = torch.randn(3, 2, requires_grad=True)

    def f(i: torch.Tensor, w: torch.Tensor) -> tuple:
        return torch.nn.functional.embedding(i, w).exp(), w.sin()
    c = tcompile.compile(f)
    c(torch.tensor([0, 2]), w)
    with pytest.raises(IndexError):
        c(torch.tensor([0, 7]), w)
    assert torch.is_grad_enabled()
    assert c(torch.tensor([1, 1]), w)[0].requires_grad


@needs_native
def test_a_hook_for_saved_tensors_that_raises_ends_the_call() -> None:
    def pack(t: torch.Tensor) -> torch.Tensor:
        raise ValueError("no room")
    x = torch.randn(4, requires_grad=True)
    c = tcompile.compile(lambda x: (x.sin().exp(), x.cos().exp()))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(ValueError, match="no room"):
        c(x)
