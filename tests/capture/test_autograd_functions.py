"""`apply` of custom autograd functions by every way that leads to it. It is Python code up to torch 2.13 and native
from 2.14 on.
"""

import re

import pytest
import torch

import tcompile

from .test_higher_order import WithSetup, WrongSquare, agree
from .runner import Runner


def tensor(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).requires_grad_()


class Scaled(torch.autograd.Function):
    """With a setup_context, which sees forward's defaults."""

    @staticmethod
    def forward(x, scale=2.0, *more):
        return x * scale + len(more)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.scale, *more = inputs
        ctx.n = 2 + len(more)

    @staticmethod
    def backward(ctx, grad):
        return (grad * ctx.scale * 10, *[None] * (ctx.n - 1))


class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=2.0):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale * 10, None


class Checked(WrongSquare):
    """Comes to torch's `apply` by super()."""

    @classmethod
    def apply(cls, x, twice=False):
        y = super().apply(x)
        return super().apply(y) if twice else y


class ByArguments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad


bound = WrongSquare.apply


@pytest.mark.parametrize(
    "f",
    [
        lambda x: bound(x) + 1,
        lambda x, name="apply": getattr(WrongSquare, name)(x),
        lambda x: Checked.apply(x, twice=True) + Checked.apply(x),
        lambda x: sum(function.apply(x) for function in (WrongSquare, Checked, Plain)),
        lambda x: list(map(WrongSquare.apply, [x, x * 2]))[1],
        lambda x: WithSetup.apply(x, x) * Scaled.apply(x),
        lambda x: Scaled.apply(x, 3.0, 1, 2) + Scaled.apply(x, scale=5.0),
        lambda x: Plain.apply(x, scale=3.0) + Plain.apply(x) + Plain.apply(x=x, scale=1.0),
        lambda x: torch.autograd.Function.apply.__name__ and Plain.apply(x),
    ],
    ids=["bound", "getattr", "super", "loop", "map", "setup", "defaults", "keywords", "name"],
)
def test_every_way_to_apply_is_captured(f):
    try:
        f(tensor(4))
    except TypeError as error:  # older torch passes no keywords on
        with pytest.raises(TypeError, match=re.escape(str(error))):
            tcompile.compile(f, backend="eager")(tensor(4))
        return
    agree(f, tensor(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: WrongSquare.apply(),
        lambda x: WithSetup.apply(x),
        lambda x: torch.autograd.Function.apply(x),
        lambda x: ByArguments.apply(x=x),
    ],
    ids=["none", "too few", "base", "keyword only"],
)
def test_what_eager_refuses_is_refused(call):
    x = tensor(3)
    with pytest.raises(Exception) as eager:
        call(x)
    with pytest.raises(type(eager.value)) as ours:
        tcompile.compile(call, backend="eager")(x)
    assert str(ours.value) == str(eager.value)


def test_another_function_behind_the_same_name_is_seen():
    global bound
    runner, x = Runner(), tensor(3).detach()

    def f(x):
        return bound(x)

    try:
        for bound in (WrongSquare.apply, Plain.apply, WithSetup.apply.__self__ and WrongSquare.apply):
            torch.testing.assert_close(runner(f, x), bound(x))
    finally:
        bound = WrongSquare.apply


def test_a_backward_that_is_exchanged_is_seen():
    class Changing(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x * 1)
        backward = staticmethod(lambda ctx, grad: grad * 2)

    compiled = tcompile.compile(lambda x: Changing.apply(x), backend="aot_eager")
    for factor in (2, 3):
        Changing.backward = staticmethod(lambda ctx, grad, factor=factor: grad * factor)
        x = tensor(2)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((2,), float(factor)))


@pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "set_output_grad_dtype"), reason="from torch 2.14 on"
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, None])
def test_the_dtype_of_gradients_that_a_function_asks_for(dtype):
    class Typed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_output_grad_dtype(dtype)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return (grad * (2 if grad.dtype is torch.float32 else 3)).to(torch.float32)

    agree(lambda x: Typed.apply(x), tensor(4), fullgraph=dtype is not None)


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("refused")

    @staticmethod
    def backward(ctx, grad):
        return grad


@pytest.mark.parametrize("grad", [False, True])
def test_grad_mode_after_a_forward_that_raises(grad):
    """It stayed off, for the rest of the process, too."""

    def fn(x, w):
        try:
            Refusing.apply(x)
        except ValueError:
            x = x + 1
        return x * w, torch.is_grad_enabled()

    compiled, w = tcompile.compile(fn, backend="eager"), tensor(4)
    for _ in range(2):
        product, enabled = compiled(torch.ones(4, requires_grad=grad), w)
        assert product.requires_grad and enabled and torch.is_grad_enabled()


def test_a_function_that_a_module_of_torch_defines():
    """Its native `apply` was taken for an operator of torch's."""

    class Doubled(torch.autograd.Function):
        __module__ = "torch.of_a_test"
        forward = staticmethod(lambda ctx, x: x * 2)
        backward = staticmethod(lambda ctx, grad: grad * 5)

    agree(lambda x: Doubled.apply(x) + 1, tensor(4), fullgraph=True)
    with torch.no_grad():
        agree(lambda x: Doubled.apply(x) + 1, torch.ones(4), fullgraph=True)


class WritesItsOwn(torch.autograd.Function):
    """Its backward fills tensors that it makes, some in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cumsum(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out, total = torch.zeros_like(x), torch.zeros_like(x[0])
        for i in range(len(x) - 1, -1, -1):
            total += g[i]
            out[i] = total
        return out


class WritesToTheGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g.mul_(2)


def test_a_backward_that_writes_to_what_it_makes():
    f = lambda x: WritesItsOwn.apply(x.sin()).square()  # noqa: E731
    x, y = tensor(4, 3), tensor(4, 3)
    tcompile.compile(f, fullgraph=True)(x).sum().backward()
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_a_backward_that_writes_to_its_gradient():
    f = lambda x: WritesToTheGradient.apply(x.sin())  # noqa: E731
    with pytest.raises(tcompile.FullGraphError, match="writes to the gradient that it is given"):
        tcompile.compile(f, fullgraph=True)(tensor(3))
    x, y = tensor(4, 3), tensor(4, 3)
    tcompile.compile(f)(x).square().sum().backward()
    f(y).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


class Reversed(torch.autograd.Function):
    """Gives its input, or a view of it: what a gradient-reversal layer does."""

    @staticmethod
    def forward(ctx, x, part):
        ctx.shape, ctx.part = x.shape, part
        return x if part is None else x.view_as(x) if part == "all" else x[part]

    @staticmethod
    def backward(ctx, grad):
        given = grad.new_zeros(ctx.shape)
        (given if isinstance(ctx.part, str | None) else given[ctx.part]).copy_(-3 * grad)
        return given, None


class Filled(torch.autograd.Function):
    """Writes a value into scratch memory past autograd, as torchdiffeq's solvers do."""

    @staticmethod
    def forward(ctx, scratch, value, at):
        ctx.at = at
        scratch.data[at] = value
        return scratch

    @staticmethod
    def backward(ctx, grad):
        return grad, grad[ctx.at], None


class Both(torch.autograd.Function):
    """A result, and a view of it, with gradients of their own."""

    @staticmethod
    def forward(ctx, x):
        twice = x * 2
        return twice, twice.view_as(twice)

    @staticmethod
    def backward(ctx, grad, of_view):
        return grad + 9 * of_view


def both_and_a_view(x):
    twice, view = Both.apply(x)
    return view.t(), twice


def doubled_and_reversed(x):
    twice = x * 2
    return twice, Reversed.apply(twice, None), twice[0]


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: (Reversed.apply(x, None),),
        lambda x: (Reversed.apply(x, "all").t(), x),
        lambda x: (Reversed.apply(x[1], 0),),
        lambda x: (Filled.apply(x, x[..., 0].sin(), (..., 1)),),
        doubled_and_reversed,
        both_and_a_view,
    ],
)
def test_a_result_that_is_an_input_s_memory_has_the_gradient_of_its_own_backward(program, leaf):
    """It was taken for a view of the input, whose gradient goes there alone."""
    seen = []
    for call in (program, tcompile.compile(program)):
        start = torch.arange(6.0).reshape(3, 2).requires_grad_()
        given = start if leaf else start * 1.5
        results = call(given)
        gradients = [torch.autograd.grad(r.square().sum(), start, retain_graph=True)[0] for r in results]
        seen.append((results, gradients, [r.data_ptr() == given.data_ptr() for r in results]))
    torch.testing.assert_close(seen[0], seen[1])
