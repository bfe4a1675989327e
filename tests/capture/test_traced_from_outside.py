"""Compiled functions and modules under torch.fx.symbolic_trace and torch.jit.trace: these see what eager calls."""

from __future__ import annotations

import types
import warnings

import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3) / 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x).relu()


def fn(x, scale=2):
    return x.sin() * scale + 1


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("before", [False, True], ids=["not yet called", "called before"])
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_functions(backend, before):
    def compiled():
        made = tcompile.compile(fn, fullgraph=True, backend=backend)
        if before:
            made(X)
        return made

    c = compiled()
    traced = torch.fx.symbolic_trace(c)
    assert [n.op for n in traced.graph.nodes] == [n.op for n in torch.fx.symbolic_trace(fn).graph.nodes]
    torch.testing.assert_close(traced(X), fn(X))
    assert not isinstance(c, types.FunctionType) and c.__class__ is type(c)
    c = compiled()
    traced = torch.jit.trace(c, (X,))
    assert "aten::sin" in str(traced.graph)
    torch.testing.assert_close(traced(X * 3), fn(X * 3))
    torch.testing.assert_close(c(X * 3), fn(X * 3))


@pytest.mark.parametrize("before", [False, True], ids=["not yet called", "called before"])
def test_modules(before):
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.fn = tcompile.compile(Net(), backend="eager"), tcompile.compile(fn, backend="eager")

        def forward(self, x):
            return self.fn(self.net(x))

    for module in (tcompile.compile(Net(), backend="eager"), Outer()):
        if before:
            module(X)
        for traced in (torch.fx.symbolic_trace(module), torch.jit.trace(module, (X,))):
            torch.testing.assert_close(traced(X * 2), module(X * 2))


def test_arguments_of_all_kinds():
    def takes(x, y=2, *rest, **named):
        return x * y

    assert torch.fx.symbolic_trace(tcompile.compile(takes, backend="eager")).code == torch.fx.symbolic_trace(takes).code


def test_frames_of_the_hook():
    with tcompile.enable(backend="eager"):
        fn(X)
        fx, jit = torch.fx.symbolic_trace(fn), torch.jit.trace(fn, (X,))
    assert "sin" in fx.code and "aten::sin" in str(jit.graph)
    torch.testing.assert_close(jit(X * 3), fn(X * 3))


def test_class_of_a_compiled_function_is_not_set():
    with pytest.raises((AttributeError, TypeError)):
        tcompile.compile(fn, backend="eager").__class__ = types.FunctionType
