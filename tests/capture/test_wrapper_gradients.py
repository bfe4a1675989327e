"""Tensors of wrapper subclasses under autograd: gradients, backward passes of every kind, and writes between them."""

from __future__ import annotations


import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import tcompile

from .wrapper_classes import TwoTensor, gradients, same, two


@pytest.mark.parametrize(
    "f",
    [
        lambda x, w: (x @ w).tanh(),
        lambda x, w: F.layer_norm(x, (4,)) * w.sum(),
        lambda x, w: F.linear(x, w, w[0]).softmax(-1)[:, 1:],
        lambda x, w: (x.exp() * w[:3]).view(-1),
    ],
)
def test_gradients_of_wrappers(f):
    x, w = two(3, 4), two(4, 4)
    same(gradients(tcompile.compile(f, fullgraph=True), x, w), gradients(f, x, w))


def test_gradients_with_sizes_that_vary():
    f = lambda x, w: (x @ w).gelu() if hasattr(x, "gelu") else F.gelu(x @ w)  # noqa: E731
    compiled = tcompile.compile(f)
    for n in (3, 5, 6):
        x, w = two(n, 4), two(4, 4)
        same(gradients(compiled, x, w), gradients(f, x, w))


def test_a_plain_input_and_a_wrapped_parameter_train():
    def run(compile):
        torch.manual_seed(0)
        m = nn.Linear(4, 3)
        m.weight = nn.Parameter(two(3, 4))
        m.bias = nn.Parameter(two(3))
        f = tcompile.compile(m, fullgraph=True) if compile else m
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = f(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, m.weight.detach(), m.weight.grad

    same(run(True), run(False))


def test_hooks_and_accumulation():
    def run(f):
        torch.manual_seed(0)
        x, heard = two(3, 4).requires_grad_(), []
        x.register_hook(lambda g: heard.append(type(g)))
        for _ in range(2):
            f(x).sum().backward()
        return heard, x.grad

    f = lambda x: (x * x).sin()  # noqa: E731
    same(run(tcompile.compile(f, fullgraph=True)), run(f))


def test_no_grad_and_inference_mode():
    f = lambda x: (x * 2).relu()  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    x = two(3, 4).requires_grad_()
    with torch.no_grad():
        same(compiled(x), f(x))
    same(compiled(x).detach(), f(x).detach())
    with torch.inference_mode():
        same(compiled(two(2, 2)).shape, torch.Size([2, 2]))


def test_grad_mode_switched_inside():
    def f(x):
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = x * 3
        return y, z

    compiled, x = tcompile.compile(f, fullgraph=True), two(3, 4).requires_grad_()
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            got, want = compiled(x), f(x)
            assert [t.requires_grad for t in got] == [t.requires_grad for t in want]
            same([t.detach() for t in got], [t.detach() for t in want])


# --- writes, and backward passes of every kind
def inplace(x):
    y = x * 2
    y.add_(1).mul_(3)
    y[0] = 5.0
    return y


def argument(x):
    x.add_(1)
    y = x * 2
    x.mul_(y)
    return y


def view_of_argument(x):
    x.view(-1)[1:].add_(1)
    return x * 2


@pytest.mark.parametrize("f", [inplace, argument, view_of_argument])
def test_writes(f):
    def run(f):
        torch.manual_seed(0)
        x = two(3, 4)
        return f(x), x

    same(run(tcompile.compile(f, fullgraph=True)), run(f))


def test_writes_into_what_shares_an_inner_tensor():
    def f(x, a):
        x.add_(1)
        return a * 2

    x, y = two(3), two(3)
    compiled = tcompile.compile(f)
    for given in (x.b, x.a, torch.randn(3)):
        y.a, y.b = x.a.clone(), x.b.clone()
        other = y.a if given is x.a else y.b if given is x.b else given.clone()
        same((compiled(x, given), x), (f(y, other), y))


def test_a_leaf_that_requires_grad_is_written():
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        tcompile.compile(lambda x: x.add_(1))(two(3).requires_grad_())


class Swapping(TwoTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.add_.Tensor:
            args[0].a = args[0].a + args[1]
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_inner_tensors_are_exchanged_by_the_class():
    def f(x):
        x.add_(1)
        return x * 2

    def run(f):
        x = Swapping(torch.ones(3), torch.ones(3))
        return f(x), x

    same(run(tcompile.compile(f)), run(f))


class Observing(TwoTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mul.Tensor:
            args[0].b.add_(1)
            return args[0].a * args[1]
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_the_class_counts_in_an_inner_tensor():
    f = lambda x: x * 2 + x.b  # noqa: E731

    def run(f):
        x = Observing(torch.ones(3), torch.ones(3))
        return f(x), f(x), x

    same(run(tcompile.compile(f, fullgraph=True)), run(f))


def test_random_operators():
    f = lambda x: F.dropout(x) + torch.rand_like(x)  # noqa: E731
    runs = []
    for g in (tcompile.compile(f, fullgraph=True), f):
        torch.manual_seed(1)
        runs.append(g(TwoTensor(torch.ones(3), torch.ones(3))))
    same(*runs)


def test_gradients_of_gradients():
    def run(f):
        torch.manual_seed(0)
        x = two(3, 4).requires_grad_()
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (g * g).sum().backward()
        return g.detach(), x.grad

    f = lambda x: x.sin() * x  # noqa: E731
    same(run(tcompile.compile(f)), run(f))


def test_gradients_that_the_function_asks_for():
    def f(x, w):
        (g,) = torch.autograd.grad((x**3 * w).sum(), x, create_graph=True)
        h, v = torch.autograd.grad(g.sum(), (x, w))
        return g, h, v

    for compiled in (tcompile.compile(f, fullgraph=True), f):
        torch.manual_seed(0)
        x, w = two(3, 4).requires_grad_(), two(3, 4).requires_grad_()
        found = compiled(x, w)
        if compiled is not f:
            first = found
    same(first, found)


def test_one_result_of_two_has_a_gradient():
    def run(f):
        torch.manual_seed(0)
        x = two(3, 4).requires_grad_()
        a, b = f(x * 3)
        b.sum().backward(retain_graph=True)
        b.sum().backward()
        return x.grad

    f = lambda x: (x * 2, x.sin())  # noqa: E731
    same(run(tcompile.compile(f, fullgraph=True)), run(f))


def test_a_gradient_of_another_context():
    class Marked(TwoTensor):
        mark = 0

        def __tensor_flatten__(self):
            return ["a", "b"], self.mark

        @classmethod
        def __tensor_unflatten__(cls, inner, context, outer_size, outer_stride):
            made = cls(inner["a"], inner["b"], outer_size, outer_stride)
            made.mark = context
            return made

    x = Marked(torch.randn(3), torch.randn(3)).requires_grad_()
    y = tcompile.compile(lambda x: x * 2, fullgraph=True)(x)
    wrong = Marked(torch.ones(3), torch.ones(3))
    wrong.mark = 7
    with pytest.raises(RuntimeError, match="another flatten context"):
        y.backward(wrong)


class Other(TwoTensor):
    """Its results want gradients of another context."""

    wanted = False

    def __tensor_flatten__(self):
        return ["a", "b"], self.wanted

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        made = Other(inner["a"], inner["b"], outer_size, outer_stride)
        made.wanted = context
        return made

    def __coerce_tangent_metadata__(self):
        return Other.__tensor_unflatten__({"a": self.a, "b": self.b}, True, None, None)

    def __coerce_same_metadata_as_tangent__(self, context, expected_type=None):
        return Other.__tensor_unflatten__({"a": self.a, "b": self.b}, context, None, None)


def test_a_result_whose_gradient_is_of_another_form():
    def run(f):
        torch.manual_seed(0)
        x = Other(torch.randn(3), torch.randn(3)).requires_grad_()
        f(x).backward(Other(torch.ones(3), torch.ones(3)))
        return x.grad.a, x.grad.b

    f = lambda x: (x * 2).sin()  # noqa: E731
    same(run(tcompile.compile(f, fullgraph=True)), run(f))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_a_gradient_over_collectives_that_are_under_way():
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    x = two(3).requires_grad_()
    gradient = two(3)
    given = TwoTensor(AsyncCollectiveTensor(gradient.a), AsyncCollectiveTensor(gradient.b))
    tcompile.compile(lambda x: x * 2, fullgraph=True)(x).backward(given)
    same(x.grad, gradient * 2)


def test_values_are_read():
    f = lambda x: x + 1 if x.sum() > 0 else x - 1  # noqa: E731
    for sign in (1, -1):
        x = TwoTensor(torch.ones(3) * sign, torch.ones(3) * sign)
        same(tcompile.compile(f)(x), f(x))
        assert tcompile.compile(lambda x: x.sum().item())(x) == 3 * sign


def whole_steps(compile, optimizer=None, hooks=False, rates=(0.1,) * 3, to_none=True):
    """Losses that are wrappers, of parameters that are: what three steps leave."""
    torch.manual_seed(0)
    m = nn.Linear(4, 3)
    m.weight, m.bias = nn.Parameter(two(3, 4)), nn.Parameter(two(3))
    heard = []
    if hooks:
        m.weight.register_hook(lambda g: heard.append(type(g).__name__))
    update = None if optimizer is None else optimizer(m.parameters())

    def step(x):
        if update is not None:
            update.zero_grad(set_to_none=to_none)
        loss = m(x).square().mean()
        loss.backward()
        if update is not None:
            update.step()
        return loss.detach(), m.weight.detach() * 2

    f, losses = compile(step), []
    for n, rate in enumerate(rates):
        if update is not None:
            update.param_groups[0]["lr"] = rate
        losses.append(f(torch.full((2, 4), float(n))))
    state = [] if update is None else [list(of_one.values()) for of_one in update.state.values()]
    versions = [p._version for p in m.parameters()]
    return losses, m.weight.detach(), m.bias.detach(), m.weight.grad, m.bias.grad, heard, state, versions


OPTIMIZERS = {
    "none": None,
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, 0.1),
    "Adam": lambda p: torch.optim.Adam(p, 0.1, amsgrad=True),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_over_wrappers_is_one_graph(name):
    with tcompile.record() as record:
        got = whole_steps(lambda f: tcompile.compile(f, fullgraph=True), OPTIMIZERS[name])
    same(got, whole_steps(lambda f: f, OPTIMIZERS[name]))
    assert not record.report().fallbacks


def test_operators_on_lists_run_as_they_are():
    foreach = lambda p: torch.optim.Adam(p, 0.1, foreach=True)  # noqa: E731
    same(whole_steps(tcompile.compile, foreach), whole_steps(lambda f: f, foreach))


@pytest.mark.parametrize("options", [{"rates": (0.1, 0.1, 0.05, 0.02, 0.5)}, {"to_none": False}])
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_schedules_and_gradients_that_stay(name, options):
    """A rate is a number to the class's code: a graph has the one that it was made with."""
    same(
        whole_steps(tcompile.compile, OPTIMIZERS[name], **options),
        whole_steps(lambda f: f, OPTIMIZERS[name], **options),
    )


def test_an_optimizer_of_wrappers_that_share_memory():
    def run(compile):
        torch.manual_seed(0)
        p = nn.Parameter(two(3, 4))
        q = nn.Parameter(TwoTensor(p.a.detach(), p.b.detach()))
        plain = nn.Parameter(torch.randn(4))
        update = torch.optim.AdamW([p, q, plain], 0.1)

        def step(x):
            loss = (p * x).square().sum() + (q.sin() * plain).sum()
            loss.backward()
            update.step()
            update.zero_grad()

        f = compile(step)
        for n in range(3):
            f(torch.full((4,), n + 1.0))
        return p.detach(), q.detach(), plain.detach(), p._version, q._version

    same(run(tcompile.compile), run(lambda f: f))


def test_an_optimizer_alone():
    def run(compile):
        p = nn.Parameter(two(3, 4))
        update = torch.optim.AdamW([p], 0.1)
        step = compile(lambda: update.step())
        for n in range(3):
            update.zero_grad()
            (p * (n + 1)).square().sum().backward()
            step()
        return p.detach(), p.grad

    torch.manual_seed(0)
    got = run(tcompile.compile)
    torch.manual_seed(0)
    same(got, run(lambda f: f))


def test_hooks_of_wrappers_run_as_they_are():
    same(whole_steps(tcompile.compile, hooks=True), whole_steps(lambda f: f, hooks=True))


LINEAR = nn.Linear(4, 4, bias=False)


def _loss(t):
    return (t.sin() * t).sum()


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y, p: torch.func.grad(_loss)(x),
        lambda x, y, p: torch.func.grad_and_value(_loss)(x),
        lambda x, y, p: torch.func.grad(lambda t: torch.func.grad(_loss)(t).sum())(x),
        lambda x, y, p: torch.func.vjp(torch.sin, x)[1](y)[0],
        lambda x, y, p: torch.func.jvp(torch.sin, (x,), (y,)),
        lambda x, y, p: torch.func.vmap(lambda t: t.sin() * 2)(x),
        lambda x, y, p: torch.func.vmap(torch.func.grad(_loss))(x),
        lambda x, y, p: torch.func.jacrev(torch.sin)(x[0]),
        lambda x, y, p: torch.func.jacfwd(torch.sin)(x[0]),
        # what the function reads of the world around it
        lambda x, y, p: torch.func.grad(lambda t: (t.sin() * x).sum())(p),
        lambda x, y, p: torch.func.grad(lambda t: ((x * 2).sin() * t).sum())(y),
        lambda x, y, p: torch.func.vmap(lambda t, u: (t + u * x[0]).tanh() * (y[0] * 2))(x, p),
        lambda x, y, p: torch.func.grad(lambda w: torch.func.functional_call(LINEAR, {"weight": w}, (x,)).sum())(y),
        # a class of the program's is a plain tensor inside of a transform
        lambda x, y, p: torch.func.grad(lambda t: t.sum() * (2 if isinstance(t, TwoTensor) else 3))(x),
    ],
)
def test_transforms_of_wrappers(f):
    given = two(4, 4), two(4, 4), torch.randn(4, 4)
    same(tcompile.compile(f, fullgraph=True)(*given), f(*given))


def test_a_checkpointed_function_of_wrappers():
    def f(x, w):
        return torch.utils.checkpoint.checkpoint(lambda t: (t @ w).sin() + t, x, use_reentrant=False)

    x, w = two(4, 4), two(4, 4)
    same(gradients(tcompile.compile(f, fullgraph=True), x, w), gradients(f, x, w))


def test_a_function_called_by_a_class_inside_of_a_transform():
    """Forward mode is on, and autograd is off below it: torch can't say whether a tensor has a tangent."""
    inner = tcompile.compile(lambda a: a * 3, fullgraph=True)

    class Tripled(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            return Tripled(inner(out.a), out.b) if func is torch.ops.aten.sin.default else out

    x = Tripled(torch.randn(3), torch.randn(3))
    got = torch.func.jvp(torch.sin, (x,), (Tripled(torch.ones(3), torch.ones(3)),))[0]
    torch.testing.assert_close(got.a, x.a.sin() * 3)
