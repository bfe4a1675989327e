"""Programs of kinds that torch.compile captures whole: captured whole here, too, and right."""

from __future__ import annotations

import collections
import itertools
import operator
import sys
from enum import IntEnum

import pytest
import torch
from torch._higher_order_ops.wrap import wrap

import tcompile

X = torch.arange(6.0).reshape(2, 3) / 5


def check(fn, *args, **options):
    """Three calls with equal arguments, in one graph, with the results of eager."""
    compiled = tcompile.compile(fn, fullgraph=True, backend=options.pop("backend", "eager"), **options)
    for _ in range(2):
        want, got = fn(*args), compiled(*args)
        torch.testing.assert_close(got, want)


def test_operators_that_wrap_a_function():
    def fn(x, bias):
        return wrap(lambda a: wrap(lambda b: b + bias, a) * 2, x), wrap(lambda a, *, scale: a * scale, x, scale=3.0)

    check(fn, X, X + 1)


def test_cond_as_an_object():
    def fn(x):
        return torch.ops.higher_order.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))

    check(fn, X)
    check(fn, -X)


def test_operators_are_found_by_name_for_the_first_time():
    with torch.library._scoped_library("tcompile_found", "FRAGMENT") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        check(lambda x: torch.ops.tcompile_found.twice(x) + 1, X)


def test_arguments_named_by_a_keyword_of_python():
    bounds = {"from": -10, "to": 10}
    compiled = tcompile.compile(lambda x, b: x.clone().random_(**b) * 0 + x, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X, bounds), X)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="classmethods of properties are gone")
def test_property_of_a_class():
    class Column(IntEnum):
        _X = 0
        _Y = 1

        @classmethod
        @property
        def pair(cls):
            return slice(cls._X, cls._Y + 1)

    check(lambda x: x[..., Column.pair] + Column._Y, X)


@pytest.mark.parametrize("dynamic", [None, True])
def test_methods_of_floats_that_vary(dynamic):
    def fn(x, scale):
        return x * 2 if scale.is_integer() else x + len(scale.hex())

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager", dynamic=dynamic)
    for scale in (2.0, 3.0, 4.5, 5.0, 4.5, 0.1):
        torch.testing.assert_close(compiled(X, scale), fn(X, scale))


def test_methods_of_ints_that_vary():
    def fn(x, n):
        return x * n.bit_length() + n.real

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager", dynamic=True)
    for n in (2, 3, 4, 9):
        torch.testing.assert_close(compiled(X, n), fn(X, n))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_writes_through_data_are_no_change_to_autograd(backend):
    def fn(x):
        out = x.sin()
        x.data.mul_(2)
        return out

    grads = []
    for f in (fn, tcompile.compile(fn, backend=backend)):
        x = X.clone().requires_grad_()
        f(x).sum().backward()
        grads += [x.grad, x.detach()]
    torch.testing.assert_close(grads[:2], grads[2:])


def test_handlers_refuse_arguments_in_eagers_words():
    with pytest.raises(TypeError):
        tcompile.compile(
            lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a + 1, (x,), nonsense=1), backend="eager"
        )(X)


def test_frozensets_of_other_things_than_constants():
    class Thing:
        pass

    thing = Thing()
    thing.x = 0

    def fn(x, things, same):
        same.x += 1
        return x + 1, [t.x for t in things], torch.nn.Linear in kinds

    kinds = frozenset((torch.nn.Linear, int))
    got = tcompile.compile(fn, backend="eager")(X, frozenset((thing,)), thing)
    assert got[1] == [1] and got[2] is True and thing.x == 1
    check(lambda x, s: x + len(s) if torch.nn.ReLU in s else x - 1, X, kinds)


def test_small_things():
    sizes = {torch.Size([2, 3]): 5}
    check(lambda x: torch.tensor(range(3)) + x.type(torch.DoubleTensor), X)
    check(lambda x: x * torch.nn.init._calculate_correct_fan(x, "fan_in") + torch.nn.init.calculate_gain("relu"), X)
    compiled = tcompile.compile(lambda x: sizes[x.shape] * x, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(X), X * 5)
    sizes[torch.Size([2, 3])] = 6
    torch.testing.assert_close(compiled(X), X * 6)


def _iterators(x):
    parts = [x, x + 1, x * 2]
    first = map(lambda a: a.sum(), parts)
    return (
        next(first),
        first,
        filter(lambda n: n > 1, [1, 2, 3]),
        filter(None, [0, 4]),
        zip([1, 2], map(lambda n: n * 2, [3, 4])),
        itertools.repeat(7, 2),
        itertools.chain([1], (2, 3)),
        itertools.islice(itertools.count(3), 2),
        itertools.compress(parts, [1, 0, 1]),
        itertools.takewhile(lambda n: n < 3, [1, 2, 3]),
        itertools.zip_longest([1], [2, 3], fillvalue=0),
        itertools.product([1, 2], repeat=2),
        enumerate(parts, 1),
        x + 1,
    )


def test_iterators_are_results():
    compiled = tcompile.compile(_iterators, fullgraph=True, backend="eager")
    for _ in range(2):
        want, got = _iterators(X), compiled(X)
        assert [type(v) for v in got] == [type(v) for v in want]
        for a, b in zip(got, want):
            a, b = (a, b) if isinstance(a, torch.Tensor) else (list(a), list(b))
            assert str(a) == str(b)


def test_iterators_cross_breaks():
    def fn(x):
        it = map(lambda a: a * 2, [x, x + 1, x + 2])
        first = next(it)
        torch._dynamo.graph_break()
        return first + sum(it)

    torch.testing.assert_close(tcompile.compile(fn, backend="eager")(X), fn(X))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_an_instance_of_a_custom_function():
    check(lambda x: _Scaled().apply(x) + 1, X)


def test_descriptors_of_tensors():
    check(lambda x: torch.Tensor.shape.__get__(x)[0] * x, X)


class _WithHelper(torch.nn.Module):
    @torch.compiler.assume_constant_result
    def count(self, x):
        return int(torch.nonzero(x).shape[0]), torch.nonzero(x)

    def forward(self, x):
        n, where = self.count(x)
        return x[:1] * n + where.sum()


def test_functions_whose_results_are_taken_to_be_constant():
    check(_WithHelper(), X)

    @torch.compiler.assume_constant_result
    def helper(x, flags):
        return None if x.sum() > 100 else flags["a"].item()

    check(lambda x, flags: x + 1 if helper(x, flags) is None else x * helper(x, flags), X, {"a": torch.tensor(3)})


def test_fromkeys_with_a_named_value():
    check(lambda x: collections.OrderedDict.fromkeys(("a", "b"), value=x + 1)["b"] + dict.fromkeys(["c"], x)["c"], X)


def test_accumulated_totals_leave():
    def plain(a, b, c):
        return itertools.accumulate([a, b * 2, c])

    def with_options(a, b, c):
        return a + 1, itertools.accumulate((a, b, c), operator.mul, initial=a + 1)

    def begun(a, b, c):
        totals = itertools.accumulate([a, b, c], lambda x, y: x * 2 + y)
        return next(totals), totals

    def grows(a, b, c):
        items = [a, b, c]
        return a + 1, itertools.accumulate(items), items

    def says(a, b, c):
        return a + 1, itertools.accumulate([a, b, c], lambda x, y: seen.append(1) or x + y)

    def endless(a, b, c):
        return a + 1, itertools.accumulate(itertools.count())

    seen, x = [], (X, X + 1, X + 2)
    for fn in (plain, with_options, begun, grows, says, endless):
        c = tcompile.compile(fn, backend="eager", fullgraph=fn in (plain, with_options, begun, says))
        found = []
        for run in (fn, c, fn, c):
            results = run(*x)
            results = results if type(results) is tuple else (results,)
            assert not seen
            if len(results) == 3:
                results[2].append(X)
            found.append([list(itertools.islice(r, 5)) if type(r) is itertools.accumulate else r for r in results])
            seen.clear()
        torch.testing.assert_close(found[1], found[0])
        torch.testing.assert_close(found[3], found[2])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_operators_that_only_write_need_no_metadata(backend):
    with torch.library._scoped_library("tcompile_writes", "FRAGMENT") as lib:
        lib.define("into(Tensor x, Tensor(a!)? z, SymInt w) -> ()")

        def into(x, z, w):
            if z is not None:
                z.add_(x * w)

        lib.impl("into", into, "CPU")

        def fn(x, z):
            y = x + 1
            torch.ops.tcompile_writes.into(y, z, 2)
            return torch.ops.tcompile_writes.into(y, None, 2), z * 2

        c = tcompile.compile(fn, backend=backend, fullgraph=True)
        for overlap in (False, True, False):
            (x, z), (v, w) = ((t, t[:] if overlap else t.clone()) for t in (X.clone(), X.clone()))
            want, got = fn(x, z), c(v, w) if not overlap else tcompile.compile(fn, backend=backend)(v, w)
            torch.testing.assert_close((got, v, w), (want, x, z))


def test_functions_that_refer_to_themselves_leave():
    def one(x):
        def times(n):
            return x if n == 0 else times(n - 1) + 1

        return x * 2, times

    def two(x):
        def even(n):
            return x if n == 0 else odd(n - 1)

        def odd(n):
            return even(n - 1) + 1

        return x * 2, even, odd

    for fn in (one, two):
        c = tcompile.compile(fn, fullgraph=True, backend="eager")
        want, got = fn(X), c(X)
        torch.testing.assert_close(got[0], want[0])
        assert [[c.cell_contents in got for c in f.__closure__ if callable(c.cell_contents)] for f in got[1:]] == [
            [True]
        ] * len(got[1:])
        torch.testing.assert_close(got[1](4), want[1](4))


def test_a_distribution_of_a_class_of_the_programs():
    class Chosen(torch.distributions.Categorical):
        pass

    class Spread(torch.distributions.Normal):
        pass

    def fn(logits, cls, other):
        d = cls(logits=logits)
        return d.log_prob(torch.tensor(1)) + d.probs + d.logits, other(logits, 2.0).log_prob(logits * 2)

    check(fn, torch.arange(4.0), Chosen, Spread)


def test_hooks_for_saved_tensors_are_refused():
    graph, refused = torch.autograd.graph, torch._C._autograd._saved_tensors_hooks_get_disabled_error_message

    def fn(x):
        with graph.disable_saved_tensors_hooks("outer"):
            with graph.disable_saved_tensors_hooks("inner"):
                y, inner = x * 2, refused()
            return y, inner, refused()

    def broken(x):
        with graph.disable_saved_tensors_hooks("refused"):
            y = x + 1
            try:
                with graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                    y = y * 2
            except RuntimeError as error:
                return y, str(error)

    for f, whole in ((fn, True), (broken, False)):
        c = tcompile.compile(f, fullgraph=whole, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(c(X)[0], f(X)[0])
            assert c(X)[1:] == f(X)[1:] and refused() is None
            with graph.disable_saved_tensors_hooks("around"):
                assert c(X)[1:] == f(X)[1:] and refused() == "around"


def test_a_written_argument_that_is_left_out():
    with torch.library._scoped_library("stock_programs", "FRAGMENT") as library:

        def add(a, b):
            if b is not None:
                b.add_(a)

        library.define("maybe_add_(Tensor a, Tensor(b!)? b) -> ()")
        library.impl("maybe_add_", add, "CompositeExplicitAutograd")

        def fn(a, b):
            torch.ops.stock_programs.maybe_add_(a, b)
            return a + 1

        compiled = tcompile.compile(fn, options={"suppress_errors": False})
        b = X.clone()
        for given in (None, b, None):
            torch.testing.assert_close(compiled(X, given), X + 1)
        torch.testing.assert_close(b, X * 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_counts_whose_sum_is_given(dynamic):
    def fn(counts, y, z):
        return torch.repeat_interleave(y, counts, dim=0, output_size=z.shape[0]) + z

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager", dynamic=dynamic)
    counts, y, z = torch.tensor([2, 4, 6]), torch.randn(3, 2, requires_grad=True), torch.randn(12, 2)
    torch.testing.assert_close(compiled(counts, y, z), fn(counts, y, z))
    gradients = [torch.autograd.grad(f(counts, y, z).sum(), y) for f in (compiled, fn)]
    torch.testing.assert_close(*gradients)
    with pytest.raises(RuntimeError, match="allocated size does not match"):
        compiled(counts - 1, y, z)


@pytest.mark.parametrize("to", [torch.bool, torch.float32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32])
def test_conversions_of_prims(dtype, to):
    def fn(x):
        y = torch.ops.prims.convert_element_type.default(x, to)
        return y, torch.ops.prims.signbit.default(x.float())

    check(fn, torch.tensor([[0.0, 1.5, 3.0]]).to(dtype), backend="tcompile")


def test_an_operator_of_the_program_that_is_tagged_pointwise():
    with torch.library._scoped_library("stock_programs", "FRAGMENT") as library:
        library.define("positive(Tensor x) -> Tensor", tags=(torch.Tag.pointwise,))
        library.impl("positive", lambda x: x > 0, "CPU")
        library.impl("positive", lambda x: torch.empty_like(x, dtype=torch.bool), "Meta")

        def fn(x):
            return torch.where(torch.ops.stock_programs.positive(x), x, -x)

        check(fn, X - 0.5, backend="tcompile")


@pytest.mark.parametrize("pred", [torch.zeros(1), torch.tensor(3), torch.tensor(float("nan")), torch.tensor(False)])
def test_cond_takes_what_python_takes_for_true(pred):
    def fn(p, y, z):
        return torch.cond(p, lambda: y + 2, lambda: z + 1)

    compiled = tcompile.compile(fn, fullgraph=True, options={"suppress_errors": False})
    torch.testing.assert_close(compiled(pred, X, X), X + (2 if pred else 1))


def test_the_operator_of_map():
    def fn(x, y):
        return torch.ops.higher_order.map_impl(lambda a, b: (a.sin() + b, a), [x], [y])

    check(fn, X, X[0])


_WRITING = {  # of each operator that writes: its schema and its kernel
    "two": ("(Tensor(a!) x, Tensor[] y) -> (Tensor, Tensor)", lambda x, y: (x.add_(y[0]) * 2, y[1] + 1)),
    "one": ("(Tensor(a!) x, Tensor[] y) -> Tensor", lambda x, y: (x.add_(y[0]), y[1] * 3)[1]),
    "many": ("(Tensor(a!) x, Tensor[] y) -> Tensor[]", lambda x, y: (x.add_(y[0]), [y[0] + 1, y[1] * 2])[1]),
    "itself": ("(Tensor(a!) x, Tensor[] y) -> Tensor(a!)", lambda x, y: x.add_(y[0])),
    "nothing": ("(Tensor(a!) self, Tensor[] y) -> None", lambda self, y: [self.add_(y[0]), None][1]),
}


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("name", _WRITING)
def test_operators_that_write_and_give_results(name, backend):
    schema, kernel = _WRITING[name]
    with torch.library._scoped_library("stock_programs", "FRAGMENT") as library:
        library.define(name + schema)
        library.impl(name, kernel, "CompositeExplicitAutograd")

        def fn(x, y):
            out = getattr(torch.ops.stock_programs, name)(x, [y, y + 1])
            return out, x * 2

        compiled = tcompile.compile(fn, fullgraph=True, backend=backend, options={"suppress_errors": False})
        for _ in range(2):
            x, same = X.clone(), X.clone()
            torch.testing.assert_close(compiled(same, X), fn(x, X))
            torch.testing.assert_close(same, x)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("schema", ["(Tensor x) -> ()", "(Tensor x) -> None", "(Tensor(a!) x) -> ()"])
def test_operators_that_are_called_for_an_effect(schema, backend):
    """They run once a call, and not while the call is compiled."""
    seen = []
    with torch.library._scoped_library("stock_programs", "FRAGMENT") as library:
        library.define("note" + schema)
        library.impl("note", lambda x: seen.append(type(x)), "CompositeExplicitAutograd")

        def fn(x):
            y = x * 2
            torch.ops.stock_programs.note(y)
            return y + 1

        compiled = tcompile.compile(fn, fullgraph=True, backend=backend, options={"suppress_errors": False})
        for calls in (1, 2):
            torch.testing.assert_close(compiled(X), X * 2 + 1)
            assert seen == [torch.Tensor] * calls
