"""Sizes and ints as symbols: one capture serves many, predicates guard the branches taken."""

import pytest
import torch

import tcompile
from tcompile.compiler.guards import source as S

from .runner import Runner, same


def pointwise(x):
    return torch.relu(x * 2) + x.shape[0]


def reshaping(x):
    b, c = x.shape
    y = x.view(b * c).reshape(c, -1).T
    return y.sum(0), y.shape, x.size(0) // 2, b + c * 2


def factories(x):
    n = x.shape[0]
    return torch.arange(n) + x[:, 0], torch.zeros(n, 2), torch.ones((x.shape[1],), dtype=torch.int64), x.new_zeros(n)


def branching(x):
    if x.shape[0] > 5:
        return x + 1
    return x - 1


def ranged(x):
    for i in range(x.shape[0]):
        x = x + i
    return x


def mlp(x):
    w = torch.ones(3, x.shape[-1])
    y = torch.nn.functional.linear(x, w)
    return torch.softmax(y, -1) @ w, torch.cat([x, x]), x[1:], x[:-1].mean()


def ints(x, n):
    return x * n + n // 2, n + 1


SIZES = [(4, 3), (6, 3), (9, 5), (2, 2), (7, 8)]


@pytest.mark.parametrize("fn", [pointwise, reshaping, factories, mlp])
def test_all_dims_are_symbols(fn):
    run = Runner(dynamic=True)
    for shape in SIZES:
        x = torch.randn(shape)
        same(run(fn, x), fn(x))
    assert len(run.captures) <= 2, [g for g in run.captures[-1].guards if g.kind == "PREDICATE"]


@pytest.mark.parametrize("fn", [pointwise, reshaping, mlp, factories])
def test_zero_and_one_are_never_symbols(fn):
    run = Runner(dynamic=True)
    for shape in [(1, 3), (4, 3), (1, 3), (4, 1)]:
        x = torch.randn(shape)
        same(run(fn, x), fn(x))


def test_branches_on_sizes_are_predicates():
    run = Runner(dynamic=True)
    for n in (8, 3, 20, 2, 6):
        x = torch.randn(n, 3)
        same(run(branching, x), branching(x))
    assert len(run.captures) == 2
    g = next(g for g in run.captures[0].guards if g.kind == "PREDICATE")
    assert g.line is not None and g.file == __file__


def test_range_over_a_size_fixes_it():
    run = Runner(dynamic=True)
    for n in (4, 6, 4):
        x = torch.randn(n, 3)
        same(run(ranged, x), ranged(x))
    assert len(run.captures) == 2


def test_named_dims_only():
    x_source = S.local(0, "x")
    run = Runner(dynamic_dims={x_source: {0}})
    for shape in [(4, 3), (6, 3), (9, 3)]:
        same(run(pointwise, torch.ones(shape)), pointwise(torch.ones(shape)))
    assert len(run.captures) == 1
    same(run(pointwise, torch.ones(4, 5)), pointwise(torch.ones(4, 5)))
    assert len(run.captures) == 2


def test_ints_are_symbols():
    run = Runner(dynamic=True)
    x = torch.randn(4, 3)
    for n in (2, 7, 30):
        same(run(ints, x, n), ints(x, n))
    assert len(run.captures) == 1
    for n in (0, 1, -3):
        same(run(ints, x, n), ints(x, n))
    run = Runner(dynamic_ints={S.local(1, "n")})
    for n in (2, 7, 30):
        same(run(ints, x, n), ints(x, n))
    assert len(run.captures) == 1


def test_parameters_stay_static():
    lin = torch.nn.Linear(3, 5)
    run = Runner(dynamic=True)

    def fn(x):
        return lin(x)

    for n in (4, 9):
        x = torch.randn(n, 3)
        same(run(fn, x), fn(x))
    assert len(run.captures) == 1
    spec = {i.name: i.spec for i in run.graphs[0].inputs if i.kind == "tensor"}
    assert all(isinstance(d, int) for name, s in spec.items() if name != "x" for d in s.shape)


def test_a_size_that_leaves_over_a_break():
    def fn(x):
        n = x.shape[0] * 2
        y = x + 1
        print(y.sum() > -1e9 and "")
        return y * n

    run = Runner(dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, 2)
        same(run(fn, x), fn(x))


MADE: dict = {}


def hashed_shape(x):
    try:
        n = hash(x.shape) % 7 + hash((x.shape[0], "a")) % 5
    except TypeError:
        return x - 1
    MADE[x.shape] = n
    seen = {x.shape, (x.shape[0], 1)}
    return (
        x
        + n
        + (x.size() in seen)
        + len(seen)
        + {x.shape: 3}.get(tuple(x.shape), 5)
        + len(frozenset([x.shape, x.size()]))
    )


@pytest.mark.parametrize("dynamic", [None, True])
def test_shapes_as_keys(dynamic):
    import tcompile

    compiled = tcompile.compile(hashed_shape, backend="eager", dynamic=dynamic)
    for shape in ((3, 4), (5, 4), (4, 4), (1, 6), (3, 4)):
        x = torch.randn(shape)
        expected = hashed_shape(x)
        wanted = dict(MADE)
        MADE.clear()
        same(compiled(x), expected)
        assert MADE == {x.shape: wanted[x.shape]}
        MADE.clear()


def marked(n, **bounds):
    x = torch.randn(n, 3)
    tcompile.mark_dynamic(x, 0, **bounds)
    return x


def test_a_size_that_must_not_be_fixed():
    def fixes(x):
        return x * 2 if x.shape[0] == 5 else x + 1

    def broadcasts(x):
        return x + torch.ones(5, 3)

    for fn in (fixes, broadcasts):
        with pytest.raises(
            tcompile.ConstraintViolationError,
            match=r"x.shape\[0\] was marked as dynamic, but the program fixes it to 5 at .*test_dynamic.py",
        ):
            tcompile.compile(fn, backend="eager")(marked(5))
        wished = torch.randn(5, 3)
        tcompile.maybe_mark_dynamic(wished, 0)
        torch.testing.assert_close(tcompile.compile(fn, backend="eager")(wished), fn(wished))
    compiled = tcompile.compile(fixes, backend="eager")
    for n in (4, 6, 7, 1):
        x = marked(n)
        torch.testing.assert_close(compiled(x), fixes(x))


def test_marked_ranges():
    graphs = []
    compiled = tcompile.compile(lambda xs: xs[0] * 2, backend=lambda gm, ex: graphs.append(gm) or gm.forward)
    for n in (5, 6, 2, 8, 9, 10):
        x = marked(n, min=2, max=8) if n < 9 else torch.randn(n, 3)
        torch.testing.assert_close(compiled([x]), x * 2)
    assert len(graphs) == 3  # in the range; 9; 9 and 10
    with pytest.raises(tcompile.ConstraintViolationError, match="from 2 to 5, and is 8"):
        tcompile.compile(lambda x: x * 2, backend="eager")(marked(8, min=2, max=5))
