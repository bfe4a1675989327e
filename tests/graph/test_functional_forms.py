"""Operators of the program's that write their arguments: captured, each called on memory of the plan."""

import pytest
import torch

import tcompile
from tcompile.compiler import events


@torch.library.custom_op("tc_written::scale_into", mutates_args=("out",))
def scale_into(x: torch.Tensor, out: torch.Tensor, by: float = 2.0) -> None:
    out.add_(x * by)


@torch.library.custom_op("tc_written::split", mutates_args=("low", "high"))
def split(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    low.copy_(x.clamp(max=0))
    high.copy_(x.clamp(min=0))
    return x.abs()


@split.register_fake
def _(x, low, high):
    return torch.empty_like(x)


def count(x, *, total):
    total.add_(x.numel())


library = torch.library.Library("tc_written", "FRAGMENT")
library.define("double_(Tensor(a!) x) -> Tensor(a!)")
library.impl("double_", lambda x: x.mul_(2), "CompositeExplicitAutograd")
library.define("count(Tensor x, *, Tensor(a!) total) -> ()")
library.impl("count", count, "CompositeExplicitAutograd")


library.define("parts(Tensor x, *, Tensor(a!)[] out, Tensor(b!) total) -> Tensor")
for key in ("CPU", "Meta"):

    @torch.library.impl(library, "parts", key)
    def parts(x, out, total):
        for i, t in enumerate(out):
            t.copy_(x * (i + 1))
        total.add_(len(out))
        return x.abs()


library.define("lists(Tensor x, Tensor[] ys, Tensor(a!) total, Tensor(b!)[] out) -> (Tensor, Tensor[], Tensor)")
library.define("one_list(Tensor(a!)[] xs) -> Tensor[]")
for key in ("CPU", "Meta"):

    @torch.library.impl(library, "lists", key)
    def lists(x, ys, total, out):
        total.add_(len(ys))
        for t, y in zip(out, ys):
            t.copy_(y * 2)
        return x.abs(), [y + 1 for y in ys], x - 1

    @torch.library.impl(library, "one_list", key)
    def one_list(xs):
        for t in xs:
            t.mul_(2)
        return [t + 1 for t in xs]


library.define("left_out(Tensor x, Tensor(a!)? out=None, *, Tensor(b!)? total=None) -> Tensor")
for key in ("CPU", "Meta"):

    @torch.library.impl(library, "left_out", key)
    def left_out(x, out=None, *, total=None):
        if out is not None:
            out.copy_(x)
        if total is not None:
            total.add_(1)
        return x + 1


def into_fresh(x):
    out = torch.empty_like(x)
    out.zero_()
    scale_into(x * 3, out)
    return out + 1


def into_input(x, y):
    scale_into(x, y, 0.5)
    return y * 2


def into_view(x):
    out = torch.zeros(x.shape[0], x.shape[1], 2)
    scale_into(x, out[:, :, 1])
    return out.sum(-1), out


def twice_the_same(x):
    y = x * 1
    scale_into(y, y)
    return y


def read_before_and_after(x):
    out = x + 1
    before = out * 2
    scale_into(x, out)
    return before, out, out.sum()


def with_results(x):
    low, high = torch.empty_like(x), torch.zeros_like(x)
    size = split(x.sin(), low, high)
    return low, high.relu(), size


def returns_what_it_writes(x):
    y = x + 1
    z = torch.ops.tc_written.double_(y)
    return z + 1, y


def keyword_only(x):
    total = torch.zeros((), dtype=torch.int64)
    torch.ops.tc_written.count(x, total=total)
    torch.ops.tc_written.count(x, total=total)
    return total * 2


def into_a_list(x):
    out, total = [torch.empty_like(x), torch.zeros(*x.shape, 2)], torch.zeros(())
    result = torch.ops.tc_written.parts(x, out=[out[0], out[1][..., 1]], total=total)
    return result + out[0], out[1] * 2, total


def results_are_lists(x):
    ys, total, out = [x.sin(), x[:1] * 2], torch.zeros(()), [torch.empty_like(x)]
    a, bs, c = torch.ops.tc_written.lists(x, ys, total, out)
    (d,), none = torch.ops.tc_written.one_list([a]), torch.ops.tc_written.lists(c, [], total, [])[1]
    return a, bs[0] * bs[1], c, d, out, total, len(none)


def into_what_may_be_left_out(x):
    call, out, total = torch.ops.tc_written.left_out, torch.empty_like(x), torch.zeros(())
    return call(x), call(x * 2, out), call(x, total=total) + call(x, None, total=total), out * 2, total


def result_unread(x):
    scale_into(x, torch.zeros_like(x))
    return x.cos()


ONE = [
    into_fresh,
    into_view,
    twice_the_same,
    read_before_and_after,
    with_results,
    returns_what_it_writes,
    keyword_only,
    into_a_list,
    results_are_lists,
    into_what_may_be_left_out,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", [*ONE, result_unread], ids=lambda f: f.__name__)
def test_what_is_written_is_in_the_graph(fn, dynamic):
    compiled = tcompile.compile(fn, fullgraph=True, dynamic=dynamic, options={"recompile_limit": 20})
    for shape in ((4, 5), (7, 5), (1, 3), (0, 2))[: 4 if dynamic else 2]:
        for x in (torch.randn(shape), torch.randn(shape[::-1]).t(), torch.randn(shape)[:, ::2]):
            seen = []
            with events.listen(seen.append):
                got = compiled(x)
            torch.testing.assert_close(got, fn(x))
            assert not [e for e in seen if e.kind == "fallback" and e.what == "graph"], seen


@pytest.mark.parametrize("layout", ["same", "other strides", "a part"])
def test_an_input_is_written(layout):
    compiled = tcompile.compile(into_input, fullgraph=True)
    for _ in range(3):
        x = torch.randn(6, 8)
        y = {"same": torch.randn(6, 8), "other strides": torch.randn(8, 6).t(), "a part": torch.randn(6, 20)[:, 3:11]}[
            layout
        ]
        expected = y.clone(memory_format=torch.preserve_format)
        version = y._version
        want = into_input(x, expected)
        torch.testing.assert_close(compiled(x, y), want, rtol=0, atol=0)
        torch.testing.assert_close(y, expected, rtol=0, atol=0)
        assert y._version > version


def test_with_gradients_around_it():
    def fn(x, w):
        kept = torch.zeros(x.shape)
        h = (x * w).tanh()
        scale_into(h.detach(), kept)
        return (h * kept).sum()

    a = [torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)]
    b = [t.detach().clone().requires_grad_() for t in a]
    fn(*a).backward()
    tcompile.compile(fn, fullgraph=True)(*b).backward()
    for s, t in zip(a, b):
        torch.testing.assert_close(s.grad, t.grad)


def test_what_the_operator_raises_is_raised():
    def fn(x):
        out = torch.zeros(3)
        scale_into(x, out)
        return out

    compiled = tcompile.compile(fn)
    torch.testing.assert_close(compiled(torch.ones(3)), fn(torch.ones(3)))
    with pytest.raises(RuntimeError, match="shape|size|broadcast"):
        compiled(torch.ones(4, 5))


def test_a_call_by_names_alone_is_no_product():
    """The GPU's runtime asks every call that is given its memory whether it is one."""
    from tcompile.compiler.lowering.lowered import Extern
    from tcompile.compiler.runtime.native_program import gemm_of

    op = torch.ops.tc_written.scale_into.default
    assert gemm_of(Extern(op, (), {"by": 2.0}, [], op, ("out",))) == ()


@torch.library.custom_op("tc_written::run_on", mutates_args=("out",))
def run_on(x: torch.Tensor, out: torch.Tensor) -> None:
    """Reads through one argument what it has written through the other."""
    for i in range(1, len(out)):
        out[i] = x[i - 1] + 1


def over_itself(x):
    y = x * 1
    run_on(y, y)
    return y


def over_a_view(x):
    y = x * 1
    run_on(y.view(-1), y)
    return y


def over_a_part(x):
    y = x * 1
    run_on(y[:-1], y[1:])
    return y


def beside_a_part(x):
    y = torch.cat([x, x])
    run_on(y[: len(x)], y[len(x) :])
    return y


@pytest.mark.parametrize(
    "fn", [twice_the_same, over_itself, over_a_view, over_a_part, beside_a_part], ids=lambda f: f.__name__
)
def test_memory_in_two_arguments(fn):
    x = torch.arange(6.0)
    torch.testing.assert_close(tcompile.compile(fn)(x), fn(x))


@torch.library.custom_op("tc_written::both", mutates_args=("a", "b"))
def both(a: torch.Tensor, scale: float, b: torch.Tensor, *, more: int = 1) -> torch.Tensor:
    a.mul_(scale)
    b.add_(more)
    return a + b


@both.register_fake
def _(a, scale, b, *, more=1):
    return torch.empty_like(a)


def over_itself_twice(x):
    y = x * 1
    z = both(y, 3.0, y, more=2)
    return y, z


def over_equal_views(x):
    y = x * 1
    run_on(y[1:], y[1:])
    return y


@pytest.mark.parametrize("fn", [over_itself, over_itself_twice, over_equal_views], ids=lambda f: f.__name__)
def test_the_same_tensor_in_two_arguments_stays_in_the_graph(fn):
    x, seen = torch.arange(6.0), []
    with events.listen(seen.append):
        got = tcompile.compile(fn, fullgraph=True)(x)
    torch.testing.assert_close(got, fn(x))
    assert not [e for e in seen if e.kind == "fallback" and e.what == "graph"], seen


def test_an_operator_that_is_defined_again():
    """As in a notebook's cell."""
    for by in (2, 3):
        with torch.library._scoped_library("tc_again", "DEF") as scoped:
            scoped.define("grow_(Tensor(a!) x) -> ()")
            scoped.impl("grow_", lambda x, by=by: [x.mul_(by)] and None, "CompositeExplicitAutograd")
            operator = torch.ops.tc_again.grow_.default

            def fn(x):
                y = x + 1
                operator(y)
                return y

            x = torch.randn(4)
            torch.testing.assert_close(tcompile.compile(fn, fullgraph=True)(x), (x + 1) * by)


@torch.library.custom_op("tc_written::double_into", mutates_args=("out",))
def double_into(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


@pytest.mark.parametrize("make, kernels", [(torch.empty_like, 1), (torch.zeros_like, 2)])
def test_memory_without_contents_is_not_filled_for_the_operator_that_writes_it(make, kernels):
    def fn(x):
        out = make(x)
        double_into(x, out)
        return out + 1

    x = torch.randn(64)
    report = tcompile.explain(fn)(x)
    torch.testing.assert_close(report.result, fn(x), rtol=0, atol=0)
    assert len(report.kernels) == kernels, [k.origins for k in report.kernels]


def test_zeros_that_are_added_to_stay_apart_from_memory_without_contents():
    def fn(x):
        out, total = torch.empty_like(x), torch.zeros_like(x)
        double_into(x, out)
        scale_into(x, total)
        return out + 1, total

    x = torch.randn(64)
    torch.testing.assert_close(tcompile.compile(fn, fullgraph=True)(x), fn(x), rtol=0, atol=0)


library.define("rows(Tensor(a) x) -> Tensor(a)[]")
library.define("repeated(Tensor x, int n) -> Tensor")
library.impl("rows", lambda x: list(x.unbind(0)), "CompositeExplicitAutograd")
library.impl("repeated", lambda x, n: x.repeat(n, 1), "CPU")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: torch.ops.tc_written.rows(x)[0].add_(1), "tc_written::rows gives a view of what it is given"),
        (lambda x: torch.ops.tc_written.repeated(x, 2), "torch.ops.tc_written.repeated() has no fake kernel"),
    ],
)
def test_operators_that_end_the_graph(call, words):
    def f(x):
        y = call(x * 1)
        return y * 2, x

    x = torch.ones(3, 2)
    torch.testing.assert_close(tcompile.compile(f)(x), f(x))
    (graph_break,) = tcompile.explain(f)(x).graph_breaks
    assert words.lower() in graph_break.reason.lower()
