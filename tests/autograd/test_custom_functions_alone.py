"""Custom autograd functions whose results, saved tensors or tangents are unlike those of most, against eager."""

from __future__ import annotations

import pytest
import tcompile
import torch
from torch.autograd import Function, forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, get_gradient_edge, saved_tensors_hooks


class OfNothing(Function):
    """Its result does not hang on its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return torch.tensor([2.0])

    @staticmethod
    def backward(ctx, grad):
        return grad.expand(ctx.shape)


def accumulated(x):
    OfNothing.apply(x * 2).backward()
    return x.grad


def asked_for(x):
    return torch.autograd.grad(OfNothing.apply(x).sin(), x)[0]


@pytest.mark.parametrize("program", [accumulated, asked_for])
def test_a_gradient_of_a_result_that_is_a_constant(program):
    x, twin = (torch.ones(3, requires_grad=True) for _ in range(2))
    fn = tcompile.compile(program, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(fn(x), program(twin))


class Scaled(Function):
    """Its jvp is not what its forward computes."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return x * y

    @staticmethod
    def jvp(ctx, x, y):
        return 3 * x * ctx.saved_tensors[0]

    @staticmethod
    def vjp(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0], None


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_custom_function_has_its_own_tangent(requires_grad):
    def fn(x, y):
        with forward_ad.dual_level():
            out = Scaled.apply(forward_ad.make_dual(x, torch.ones_like(x)), y)
            return [part.detach() for part in forward_ad.unpack_dual(out)]

    x, y = torch.randn(3, requires_grad=requires_grad), torch.randn(3)
    torch.testing.assert_close(tcompile.compile(fn)(x, y), fn(x, y))


class Noted(Function):
    seen: list = []

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        Noted.seen.append(ctx.saved_tensors[0] + 1)
        return grad * 2, None


def test_what_was_saved_is_unpacked_once():
    unpacked = []

    def unpack(t):
        unpacked.append(t.sum().item())
        return t

    x, y = torch.randn(3, requires_grad=True), torch.ones(3)
    with saved_tensors_hooks(lambda t: t, unpack):
        out = Noted.apply(x, y)
    tcompile.compile(lambda t: t.sum().backward())(out)
    assert unpacked == [3.0]
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0))
    torch.testing.assert_close(Noted.seen.pop(), y + 1)


def test_hooks_are_refused_while_some_are_set():
    def fn(x):
        with saved_tensors_hooks(lambda t: t, lambda t: t):
            try:
                with disable_saved_tensors_hooks("not now"):
                    return "allowed"
            except RuntimeError as e:
                return str(e)

    def refused(x):
        with disable_saved_tensors_hooks("not now"):
            return x.sin()

    x = torch.randn(3, requires_grad=True)
    assert tcompile.compile(fn)(x) == fn(x) == "not now"
    compiled = tcompile.compile(refused)
    torch.testing.assert_close(compiled(x), x.sin())
    with saved_tensors_hooks(lambda t: t, lambda t: t), pytest.raises(RuntimeError, match="not now"):
        compiled(x)
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()


def test_gradients_at_an_edge():
    def fn(x):
        middle = x.sin().cos().sum()
        edge = get_gradient_edge(middle)
        (grad,) = torch.autograd.grad(middle.exp(), (edge,))
        return torch.autograd.grad(edge, (x,), grad_outputs=(grad,))[0]

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(tcompile.compile(fn)(x), fn(x))
