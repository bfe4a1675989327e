"""Tensors of wrapper subclasses (`__tensor_flatten__`, `__torch_dispatch__`) are captured down to their inner tensors:
the graph has operators on plain tensors alone. Values, classes of results and gradients are eager's.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import tcompile

from .wrapper_classes import Int8, Scaled, TwoTensor, compilations, gradients, report_of, same, two, whole


def test_a_function_of_wrappers():
    def f(x, y):
        z = (x * 2 + y).relu()
        return z, z.sum(0), z.shape, x.dim()

    whole(f, (two(3, 4), two(3, 4)), (two(3, 4), two(4)))
    report = report_of(f, two(3, 4), two(3, 4))
    assert len(report.graphs) == 1


def test_operators_become_kernels():
    report = report_of(lambda x: (x.exp() * 2 - 1).sigmoid(), two(64, 64))
    assert len(report.kernels) == 1  # both halves, each operator


def test_a_plain_tensor_and_a_wrapper():
    whole(lambda x, y: (x @ y, y + x), (torch.randn(4, 4), two(4, 4)))


def test_several_results():
    whole(lambda x: x.split(2) + (x.max(1),), (two(4, 6),))
    whole(lambda x: torch.cat([x, x.t()]), (two(3, 3),))


def quantised(m):
    for layer in m.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(Int8.of(layer.weight.detach()), requires_grad=False)
    return m


def mlp():
    return quantised(nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)))


def test_quantised_weights():
    m = mlp().eval()
    with torch.no_grad():
        whole(m, (torch.randn(5, 64),))
        report = report_of(m, torch.randn(5, 64))
        assert len(report.graphs) == 1


def test_quantised_weights_sizes_that_vary():
    m = mlp()
    compiled = tcompile.compile(m, fullgraph=True)
    with torch.no_grad():
        for n in (3, 5, 9, 17):
            x = torch.randn(n, 64)
            same(compiled(x), m(x))
        assert not compilations(compiled, torch.randn(21, 64))


def test_frozen_weights_train_what_is_around_them():
    m, x = mlp(), torch.randn(5, 64, requires_grad=True)
    grads = []
    for f in (m, tcompile.compile(m, fullgraph=True)):
        m.zero_grad()
        x.grad = None
        f(x).square().sum().backward()
        grads.append([x.grad, m[0].bias.grad, m[2].bias.grad, m[0].weight.grad])
    same(*grads)


@pytest.mark.parametrize("fresh", [False, True])
def test_sizes_that_vary(fresh):
    def f(x, y):
        z = x @ y.t()
        return z.softmax(-1), z.shape, x.view(-1)

    compiled = tcompile.compile(f, fullgraph=True, dynamic=True if fresh else None)
    for n in (3, 4, 6, 7):
        args = two(n, 8), two(n, 8)
        same(compiled(*args), f(*args))
    assert not compilations(compiled, two(9, 8), two(9, 8))


# --- nested
def test_nested():
    f = lambda x: ((x + 1) * x).sum(0)  # noqa: E731
    nest = lambda: TwoTensor(two(3, 4), two(3, 4))  # noqa: E731
    whole(f, (nest(),), (TwoTensor(two(3, 4), torch.randn(3, 4)),), (nest(),))
    x = nest()
    same(gradients(tcompile.compile(f, fullgraph=True), x), gradients(f, x))


def test_nested_with_sizes_that_vary():
    f = lambda x: x.cos() @ x.t()  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    for n in (3, 5, 6):
        x = TwoTensor(two(n, 4), two(n, 4))
        same(compiled(x), f(x))
    x = TwoTensor(two(7, 4), two(7, 4))
    assert not compilations(compiled, x)


# --- guards
def test_another_context_is_another_entry():
    f = lambda x: x + 1  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), torch.randn(3)
    for scale in (2.0, 3.0, -0.0, 0.0):
        same(compiled(Scaled(x, scale)), f(Scaled(x, scale)))
    assert not compilations(compiled, Scaled(x, 3.0))
    assert compilations(compiled, Scaled(x, 4.0))


class Factor:
    def __init__(self, factor):
        self.factor = factor


@dataclasses.dataclass
class Equal:
    factor: float


class Hashed(Factor):
    """Hashed by its value, and changed all the same."""

    def __eq__(self, other):
        return type(other) is Hashed and other.factor == self.factor

    def __hash__(self):
        return hash(self.factor)


@pytest.mark.parametrize("cls", [Factor, Equal, Hashed])
def test_a_context_that_is_changed(cls):
    f = lambda x: x + 1  # noqa: E731
    compiled, x, scale = tcompile.compile(f, fullgraph=True), torch.randn(3), cls(2.0)
    w = Scaled(x, scale)
    same(compiled(w).x, f(w).x)
    scale.factor = 5.0
    same(compiled(w).x, f(w).x)
    scale.factor = 2.0
    assert not compilations(compiled, w)


class Odd:
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = factor


def test_a_context_that_no_guard_can_tell():
    f = lambda x: x + 1  # noqa: E731
    w = Scaled(torch.randn(3), Odd(2.0))
    compiled = tcompile.compile(f)
    same(compiled(w).x, f(w).x)
    w.scale.factor = 3.0
    same(compiled(w).x, f(w).x)
    report = tcompile.explain(f)(w)
    assert not report.graphs and "Odd" in str(report)


def test_inner_tensors_are_exchanged():
    f = lambda x: x * 2  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), two(3, 4)
    for _ in range(2):
        same(compiled(x), f(x))
        x.a = torch.randn(3, 4)
    x.a, x.b = x.a.double(), x.b.double()
    with pytest.raises(AssertionError):
        same(x.dtype, x.a.dtype)
    assert compiled(x).a.dtype == torch.float64
    x.a = torch.randn(3, 4, dtype=torch.float64).t().contiguous().t()
    same(compiled(x).a, f(x).a)


def test_an_inner_tensor_becomes_a_wrapper():
    f = lambda x: x * 2  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), two(3, 4)
    same(compiled(x), f(x))
    x.a = two(3, 4)
    same(compiled(x), f(x))


def test_the_class_gets_another_method():
    class Mine(TwoTensor):
        pass

    f = lambda x: x * 2  # noqa: E731
    compiled, x = tcompile.compile(f), Mine(torch.ones(3), torch.ones(3))
    same(compiled(x), f(x))
    Mine.__torch_dispatch__ = classmethod(lambda cls, func, types, args=(), kwargs=None: torch.zeros(3))
    same(compiled(x), torch.zeros(3))


FACTOR = 2.0


@torch.library.custom_op("tc_wrappers::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@twice.register_torch_dispatch(TwoTensor)
def _(cls, func, types, args, kwargs):
    return TwoTensor(args[0].a * 2, args[0].b * 200)


def test_an_operator_with_a_rule_for_the_class():
    whole(lambda x: twice(x) + 1, (two(3),), (torch.randn(3),))


def factor():
    return FACTOR


class ReadsGlobals(TwoTensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        out = TwoTensor.__torch_dispatch__.__func__(cls, func, types, args, kwargs)
        return cls(out.a * factor(), out.b)


def test_globals_that_the_class_reads(monkeypatch):
    f = lambda x: x + 1  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), ReadsGlobals(torch.ones(3), torch.ones(3))
    for value in (2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", value)
        same(compiled(x), f(x))
    monkeypatch.setitem(globals(), "factor", lambda: 7.0)
    same(compiled(x), f(x))


def test_requires_grad_is_relied_on():
    f = lambda x: x * 2  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), two(3)
    assert not compiled(x).requires_grad
    x.requires_grad_()
    assert compiled(x).requires_grad


def test_parameter_or_not():
    f = lambda x: x + isinstance(x, nn.Parameter)  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), two(3)
    for t in (x, nn.Parameter(x, requires_grad=False), x):
        same(compiled(t), f(t))


# --- what the program does with them
def test_inner_tensors_are_read():
    def f(x):
        y = x * 2
        return y.a + x.b, type(y).__name__, y, x.a

    whole(f, (two(3, 4),))


def test_the_argument_is_a_result():
    f = lambda x, y: (x, y + 1, x)  # noqa: E731
    x, y = two(3), two(3)
    got = tcompile.compile(f, fullgraph=True)(x, y)
    assert got[0] is x and got[2] is x


def test_one_object_twice():
    f = lambda x, y: (x + y, x is y)  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), two(3)
    for y in (x, two(3), x):
        same(compiled(x, y), f(x, y))


def test_views_share_memory():
    f = lambda x: (x.view(-1), x + 1)  # noqa: E731
    x = two(3, 4)
    y = tcompile.compile(f, fullgraph=True)(x)[0]
    y.a.zero_()
    assert not x.a.any() and x.b.any()


def test_made_inside():
    def f(x, y):
        z = TwoTensor(x, y)
        return z * 2, z

    whole(f, (torch.randn(3), torch.randn(3)))
    whole(lambda x: Int8.of(x), (torch.randn(3, 4),))
    whole(lambda x, y: F.linear(x, Int8.of(y)), (torch.randn(2, 4), torch.randn(3, 4)))


def test_written_in_place():
    def f(x):
        y = x * 2
        x.add_(1)
        return y + x

    def run(f):
        torch.manual_seed(0)
        x = two(3)
        return f(x), x, f(x), x._version

    same(run(tcompile.compile(f)), run(f))


def test_values_that_the_class_reads():
    class Branching(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            return cls(out.a, out.b * 2) if out.a.sum().item() > 0 else out

    f = lambda x: x + 1  # noqa: E731
    compiled = tcompile.compile(f)
    for sign in (1, -1):
        x = Branching(torch.ones(3) * sign * 9, torch.ones(3))
        same(compiled(x), f(x))


def test_what_the_class_draws_and_makes_is_made_each_time():
    class Noisy(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            return cls(out.a + torch.rand(out.a.shape), out.b + torch.ones(3))

    f = lambda x: x + 1  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), Noisy(torch.zeros(3), torch.zeros(3))
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first.a, second.a) and torch.equal(first.b, second.b)
    runs = []
    for g in (compiled, f):
        torch.manual_seed(3)
        runs.append(g(x))
    same(*runs)


def test_an_operator_that_the_class_refuses():
    class Few(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.sin.default:
                raise NotImplementedError("no sines here")
            return super().__torch_dispatch__(func, types, args, kwargs)

    compiled = tcompile.compile(lambda x: x.sin())
    with pytest.raises(NotImplementedError, match="no sines"):
        compiled(Few(torch.ones(3), torch.ones(3)))


def test_gradients_of_another_class():
    """A weight whose gradient is a plain tensor: no graph of ours can hand that on, so eager autograd does."""

    class Plain(TwoTensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            out = super().__torch_dispatch__(func, types, args, kwargs)
            return out if func is torch.ops.aten.detach.default else out.a

    def run(f):
        torch.manual_seed(0)
        w = Plain(torch.randn(3), torch.randn(3)).requires_grad_()
        out = f(w)
        out.sum().backward()
        return out.detach(), w.grad

    f = lambda w: w * 2  # noqa: E731
    same(run(tcompile.compile(f)), run(f))


def test_an_operator_of_a_class_that_disables_torch_function():
    """`+` of a class with a `__repr__`, but no `__add__`, of its own."""

    class Quiet(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        def __repr__(self):
            return "quiet"

    x = torch.randn(3).as_subclass(Quiet)
    got, want = tcompile.compile(lambda x: x + 1)(x), x.as_subclass(torch.Tensor) + 1
    assert torch.equal(got, want)


# --- classes as they are written
def doubled(func, args, kwargs):
    return args[0].x * 2


TABLE = {torch.ops.aten.add.Tensor: doubled}


class ByTable(Scaled):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return TABLE[func](func, args, kwargs)


def test_a_table_of_operators(monkeypatch):
    f = lambda x: x + 1  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), ByTable(torch.ones(3), 1.0)
    same(compiled(x), f(x))
    assert not compilations(compiled, x)
    monkeypatch.setitem(TABLE, torch.ops.aten.add.Tensor, lambda func, args, kwargs: args[0].x * 5)
    same(compiled(x), f(x))
    monkeypatch.setitem(TABLE, torch.ops.aten.mul.Tensor, doubled)
    same(compiled(x), f(x))


class ByFunction(torch.Tensor):
    """`__torch_function__` does the linear layer, `__torch_dispatch__` the rest: the way of torchao."""

    __new__, __init__ = Int8.__new__, Int8.__init__
    __tensor_flatten__, full = Int8.__tensor_flatten__, Int8.full
    __tensor_unflatten__, __torch_dispatch__ = (
        classmethod(Int8.__dict__[name].__func__) for name in ("__tensor_unflatten__", "__torch_dispatch__")
    )

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, w, bias = args
            return (x @ w.bits.t().to(x.dtype)) * w.scale.t() + bias
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def test_torch_function_and_torch_dispatch():
    layer = nn.Linear(8, 4)
    w = Int8.of(layer.weight.detach())
    layer.weight = nn.Parameter(ByFunction(w.bits, w.scale), requires_grad=False)
    with torch.no_grad():
        whole(layer, (torch.randn(3, 8),))


def test_torchao():
    quantization = pytest.importorskip("torchao.quantization")
    for config in (quantization.Int8WeightOnlyConfig(), quantization.Int8DynamicActivationInt8WeightConfig()):
        m = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32)).eval()
        quantization.quantize_(m, config)
        with torch.no_grad():
            whole(m, (torch.randn(3, 64),), (torch.randn(5, 64),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends(backend):
    f = lambda x, w: (x @ w).tanh()  # noqa: E731
    x, w = two(3, 4), two(4, 4)
    same(gradients(tcompile.compile(f, backend=backend, fullgraph=True), x, w), gradients(f, x, w))


def test_the_reason_of_a_recompile():
    f, x = lambda x: x + 1, torch.randn(3)  # noqa: E731
    compiled = tcompile.compile(f)
    with tcompile.record() as recorded:
        compiled(Scaled(x, 2.0))
        compiled(Scaled(x, 3.0))
    (recompile,) = recorded.report().recompiles
    assert "flatten context" in str(recompile)


def test_the_gradient_of_a_plain_tensor_is_a_wrapper():
    def run(f):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        y = f(x, two(4, 4))
        y.sum().backward()
        return y.detach(), x.grad

    f = lambda x, w: x.sin() @ w  # noqa: E731
    same(run(tcompile.compile(f)), run(f))


def test_a_wrapper_is_put_into_another_one():
    f = lambda x: (TwoTensor(x, x + 1).sin(), (x * 2).a.b)  # noqa: E731
    whole(f, (TwoTensor(two(3), two(3)),))
    whole(lambda x: TwoTensor(x * 2, TwoTensor(x, x)) + 1, (torch.randn(3),))
    whole(lambda x: TwoTensor(x.exp(), x + 1) * 2, (two(3),))


def test_a_model_with_wrappers_in_a_checkpoint():
    m, x = mlp(), torch.randn(5, 64)
    f = lambda x: torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)  # noqa: E731
    grads = []
    for g in (f, tcompile.compile(f, fullgraph=True)):
        m.zero_grad()
        g(x).square().sum().backward()
        grads.append([p.grad for p in m.parameters()])
    same(*grads)


def test_training_in_one_function():
    def run(compile):
        torch.manual_seed(0)
        m = nn.Linear(4, 3)
        m.weight, m.bias = nn.Parameter(two(3, 4)), nn.Parameter(two(3))
        optimizer = torch.optim.SGD(m.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = m(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = tcompile.compile(step) if compile else step
        return [f(torch.ones(2, 4)) for _ in range(3)], m.weight.detach()

    same(run(True), run(False))


def test_a_write_beside_a_wrapper_that_requires_grad():
    def f(x, count):
        count.add_(1)
        return x * 2 + count

    def run(f, shared):
        torch.manual_seed(0)
        x, count = two(3).requires_grad_(), torch.zeros(3)
        y = f(x, x.a if shared else count)
        y.sum().backward()
        return y.detach(), x.a, count, x.grad

    compiled = tcompile.compile(f)
    for shared in (False, True, False):
        same(run(compiled, shared), run(f, shared))


def test_a_context_changed_after_another_tensor_was_captured():
    f = lambda x: x + 1  # noqa: E731
    compiled, x = tcompile.compile(f, fullgraph=True), torch.randn(3)
    first, second = Scaled(x, Equal(2.0)), Scaled(x, Equal(2.0))
    same(compiled(first).x, f(first).x)
    first.scale.factor = 5.0
    got = compiled(second)
    same(got, f(second))
    got.scale.factor = 9.0
    same(compiled(second), Scaled((x + 1) * second.scale.factor, second.scale))


class Slotted(TwoTensor):
    """A wrapper whose inner tensors are in slots, as a DTensor's is."""

    __slots__ = ("a", "b")


def test_inner_tensors_in_slots():
    """They are read of wrappers from outside, and those made inside have them in their slots alone."""

    def f(w):
        made = w + 1
        return made, made.a, w.a * 2

    compiled = tcompile.compile(f, fullgraph=True)
    with tcompile.record() as recorded:
        for _ in range(2):
            w = Slotted(torch.randn(3), torch.randn(3))
            made, a, twice = compiled(w)
            same(made, f(w)[0])
            same(twice, w.a * 2)
            assert made.a is a and "a" not in made.__dict__
    assert len(recorded.report().entries) == 1
    w.a = torch.ones(3)
    same(compiled(w), f(w))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.parametrize("make", [two, lambda n: torch.randn(n).as_subclass(Logged)], ids=["wrapper", "plain"])
def test_custom_functions_of_wrappers_have_a_history(make):
    """They part the graph: that their result required no grad was a wrong result without a word."""
    f = lambda x: Doubled.apply(x.sin()).sum()  # noqa: E731
    x = make(3)
    for got, want in zip(gradients(tcompile.compile(f), x), gradients(f, x)):
        same(got, want)


class Logged(torch.Tensor):
    pass


def test_whether_a_wrapper_is_a_view():
    """A graph's results are put together of inner tensors, and are no views: they were told to have no base."""

    def f(x):
        v = x[1:]
        return v, v._base is x, v._is_view(), x._is_view()

    for x in (two(4, 3), two(5, 3)[1:]):
        assert tcompile.compile(f)(x)[1:] == f(x)[1:]
