"""Gradients of small programs that random programs found wrong: as eager's."""

from __future__ import annotations

import pytest
import torch

import tcompile


def results_of_one_input_that_save_different_things(x):
    """Each has a backward pass of its own; none reads what another one saved."""
    a = x.clone()
    b = a.cummax(0)[0].masked_fill(a > 0.3, 0.25)
    return a, b, x.gather(0, x.long().abs() % 2), torch.cdist(x, x), torch.atan2(x, x + 2)


def an_expanded_result(x):
    return (x * 2).sum(1, keepdim=True).expand(-1, 5), x[None].expand(3, -1, -1), (x * 3)[:1].expand(4, -1)


@pytest.mark.parametrize(
    "function", [results_of_one_input_that_save_different_things, an_expanded_result], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 3, 2, 1, 0)])
def test_one_by_one_and_together(function, order):
    seen = []
    for f in (function, tcompile.compile(function)):
        x = torch.arange(8.0).sin().view(4, 2).requires_grad_()
        results = f(x)
        for k in order:
            if k < len(results):
                (results[k] * results[k].detach().cos()).sum().backward()
        y = x.detach().clone().requires_grad_()
        sum((t * (k + 1)).sum() for k, t in enumerate(f(y))).backward()
        seen.append((x.grad, y.grad))
    torch.testing.assert_close(seen[1], seen[0])


def a_leaf_of_ones(x):
    w = torch.ones(3).requires_grad_()
    return w * 2, x * 3, w.is_leaf, w.grad_fn


def an_attribute_set(x):
    w = torch.zeros_like(x)
    w.requires_grad = True
    return (w + 1).exp(), w.view(3, 1).is_leaf


def the_leaf_itself(x):
    with torch.no_grad():
        w = torch.ones(3, requires_grad=True)
        v = torch.zeros(3).requires_grad_()
        return w, v.view(3, 1), (w + x).requires_grad


def a_gradient_by_it(x):
    w = x.detach().requires_grad_()
    return torch.autograd.grad((w * w * x).sum(), w)[0]


@pytest.mark.parametrize("of_leaf", [True, False])
@pytest.mark.parametrize(
    "program", [a_leaf_of_ones, an_attribute_set, the_leaf_itself, a_gradient_by_it], ids=lambda f: f.__name__
)
def test_leaves_that_the_graph_makes(program, of_leaf):
    x = torch.arange(3.0).requires_grad_(of_leaf)
    want, got = program(x), tcompile.compile(program, fullgraph=True)(x)
    for a, b in zip(want, got, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(b, a)
            assert (b.requires_grad, b.is_leaf) == (a.requires_grad, a.is_leaf)
        else:
            assert a == b


class OwnParameter(torch.nn.Parameter):
    """As libraries have them: geoopt's points of a manifold, quantised weights."""


def a_step(p, opt):
    def step(x):
        opt.zero_grad()
        (p * x).sum().backward()
        gradient = p.grad.clone()
        opt.step()
        return gradient

    return step


def a_step_that_clears_the_module(p, opt):
    module = torch.nn.Module()
    module.p = p

    def step(x):
        module.zero_grad()
        (p * x).sum().backward()
        opt.step()
        return p.grad.clone()

    return step


@pytest.mark.parametrize("make", [a_step, a_step_that_clears_the_module], ids=lambda f: f.__name__)
def test_gradients_of_parameters_of_a_class_of_the_programs_are_reset(make):
    """The graph has a plain tensor in such a parameter's place, whose gradient it would reset instead."""
    seen = []
    for compiled in (lambda f: f, lambda f: tcompile.compile(f, backend="eager")):
        p = OwnParameter(torch.ones(3))
        step = compiled(make(p, torch.optim.SGD([p], 0.1)))
        seen.append(([step(torch.arange(3.0) + k) for k in range(3)], p.detach()))
    torch.testing.assert_close(*seen)


class GivesWhatWasSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, same):
        ctx.save_for_backward(x)
        return y if same else y * 1

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return x, x.t(), None


@pytest.mark.parametrize("same", [False, True])
def test_a_gradient_that_is_an_input(same, monkeypatch):
    """Nothing in backward reads the input, and it is kept all the same."""
    monkeypatch.setenv("TCOMPILE_SUPPRESS_ERRORS", "0")
    seen = []
    for f in (GivesWhatWasSaved.apply, tcompile.compile(lambda *args: GivesWhatWasSaved.apply(*args))):
        x, y = (torch.arange(4.0).view(2, 2).add(k).requires_grad_() for k in range(2))
        (f(x, y, same) * 2).sum().backward()
        assert x.grad.data_ptr() != x.data_ptr()
        seen.append((x.grad, y.grad))
    torch.testing.assert_close(seen[1], seen[0])
