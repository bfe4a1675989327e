"""Calls with gradients run in C, also where results are views or of several independent parts."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.autograd import bridge
from tcompile.compiler.native import autograd_node, native

needs_native = pytest.mark.skipif(native is None, reason="the C extension is not built")
WAYS = ["node", "function"]  # compiler/native/node.cpp, and torch's Function where that is not built


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "function":
        monkeypatch.setattr(bridge, "autograd_node", lambda: None)
    elif autograd_node() is None:
        pytest.skip("node.cpp was not built for this torch")
    return request.param


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
        for a, b in reversed(list(zip(got, want))):  # each by itself: none frees what another needs
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
def test_in_c(name: str, graphs: list, way: str) -> None:
    same_as_eager(
        CASES[name], torch.randn(4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True), graphs=graphs
    )


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
        (g,) = torch.autograd.grad(a.sum(), x)
        torch.testing.assert_close(g, x.exp() * n)
        (g,) = torch.autograd.grad(b.sum(), x)
        torch.testing.assert_close(g, x.cos())
    assert all(type(g.call).__name__ == "GradCall" for g in graphs)


@needs_native
def test_an_error_in_the_graph_of_several_parts_leaves_the_grad_mode(way: str) -> None:
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
def test_a_hook_for_saved_tensors_that_raises_ends_the_call(way: str) -> None:
    def pack(t: torch.Tensor) -> torch.Tensor:
        raise ValueError("no room")

    x = torch.randn(4, requires_grad=True)
    c = tcompile.compile(lambda x: (x.sin().exp(), x.cos().exp()))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), pytest.raises(ValueError, match="no room"):
        c(x)


def curved(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.exp()).tanh()


@needs_native
def test_what_autograd_is_told(way: str) -> None:
    x = torch.randn(6, requires_grad=True)
    c = tcompile.compile(curved, fullgraph=True)
    y = c(x)
    heard: list[str] = []
    assert isinstance(y.grad_fn, torch.autograd.graph.Node) and y.grad_fn.name() == "TCompiledBackward"
    assert y.grad_fn.next_functions[0][0].variable is x and not y.is_leaf
    y.grad_fn.register_prehook(lambda tangents: heard.append("before"))
    y.grad_fn.register_hook(lambda grads, tangents: heard.append("after"))
    y.sum().backward()
    (want,) = torch.autograd.grad(curved(x).sum(), x)
    torch.testing.assert_close(x.grad, want)
    assert heard == ["before", "after"]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()
    y = c(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@needs_native
def test_kept_tensors_go_through_hooks(way: str) -> None:
    x = torch.randn(6, requires_grad=True)
    packed: list[int] = []

    def pack(t: torch.Tensor) -> list:
        packed.append(t.numel())
        return t.tolist()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.tensor):
        y = tcompile.compile(curved)(x)
    assert packed
    (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got, torch.autograd.grad(curved(x).sum(), x)[0])


@needs_native
def test_a_long_chain_of_calls_is_freed(way: str) -> None:
    x = torch.ones(2, requires_grad=True)
    c = tcompile.compile(lambda t: t * 1.00001)
    z = x
    for _ in range(20000):
        z = c(z)
    z.sum().backward()
    assert abs(float(x.grad[0]) - 1.00001**20000) < 1e-2
    kept = weakref.ref(z)
    del z
    gc.collect()
    assert kept() is None


@needs_native
def test_calls_leave_nothing(way: str) -> None:
    c = tcompile.compile(curved)

    def once() -> weakref.ref:
        x = torch.randn(6, requires_grad=True)
        c(x).sum().backward()
        return weakref.ref(x)

    gone = [once() for _ in range(100)]
    gc.collect()
    assert all(r() is None for r in gone)


@needs_native
def test_an_error_in_backward_is_raised_as_it_is(way: str) -> None:
    x = torch.randn(6, requires_grad=True)

    def refuse(saved: Any) -> torch.Tensor:
        raise KeyError("gone")

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), refuse):
        y = tcompile.compile(curved)(x)
    with pytest.raises(KeyError, match="gone"):
        y.sum().backward()
