"""Floats that change from call to call: one entry serves them all, unless the program needs the number itself."""

import math

import pytest
import tcompile
import torch
from tcompile.compiler import events
from tcompile.compiler.guards import source as S

from .runner import Runner, same as same_values


def same(got, want):
    """As test_basics has it, and NaN is NaN in plain floats too."""

    def floats(v):
        return (
            torch.tensor(v, dtype=torch.float64)
            if type(v) is float
            else tuple(map(floats, v))
            if type(v) is tuple
            else v
        )

    same_values(floats(got), floats(want))


SOURCE = S.local(1, "s")
VALUES = [0.5, 0.25, 3.0, -0.0, float("nan"), float("inf"), 1e-3, 7.5]


def products(x, s):
    return x * s + 1, s * 2, x + s, s - x


def derived(x, s):
    return 1 - s, x * (1 - s), x / s, s / x, -s * x, x * (s * 2 - 1)


def named(x, s):
    return torch.add(x, s), x.mul(s), torch.div(x, s), x.sub(s)


def in_place(x, s):
    y = x.clone()
    y *= s
    y.add_(s)
    return y, f"{y.shape}"


def branches(x, s):
    return x * s if s > 0.4 else x - s


def needs_it(x, s):
    return x**s if s == s else x, torch.full((3,), s), math.floor(abs(s)) if math.isfinite(s) else 0


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("fn", [products, derived, named, branches])
def test_results_and_dtypes_are_eagers(fn, dtype):
    run = Runner(dynamic_floats={SOURCE})
    for x in (torch.arange(12).reshape(4, 3).sub(5).to(dtype), torch.tensor(3).to(dtype)):
        for value in VALUES:
            try:
                want = fn(x, value)
            except RuntimeError:
                continue  # bool tensors have no subtraction
            same(run(fn, x, value), want)


@pytest.mark.parametrize(("fn", "entries"), [(products, 1), (derived, 1), (named, 1), (in_place, 1), (branches, 2)])
def test_one_entry_serves_all_values(fn, entries):
    run = Runner(dynamic_floats={SOURCE})
    x = torch.randn(4, 3)
    for value in VALUES:
        same(run(fn, x, value), fn(x, value))
    assert len(run.captures) == entries


def test_what_needs_the_number_is_guarded_by_it():
    run = Runner(dynamic_floats={SOURCE})
    x = torch.rand(4, 3)
    for value in (0.5, 2.0, 0.5, -0.0, 0.0):
        same(run(needs_it, x, value), needs_it(x, value))
    assert len(run.captures) == 4
    g = next(g for g in run.captures[0].guards if g.source is SOURCE)
    assert g.kind == "EQUALS" and g.file == __file__ and g.line is not None


def test_an_int_or_a_tensor_in_its_place_is_noticed():
    run = Runner(dynamic_floats={SOURCE})
    x = torch.randn(4, 3)
    for value in (0.5, 2, torch.tensor(2.0), 1.5):
        same(run(named, x, value), named(x, value))
    assert len(run.captures) == 3


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_promotion_by_the_engine(backend):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.scale = torch.nn.Linear(3, 3), 1.0

        def forward(self, x):
            return self.lin(x) * self.scale

    m = Scaled()
    c = tcompile.compile(m, backend=backend)
    x = torch.randn(2, 3)
    for value in (1.0, 0.5, 0.25, 2.0, 3.0):
        m.scale = value
        want, got = m(x), c(x)
        torch.testing.assert_close(got, want)
    y = torch.randn(2, 3, requires_grad=True)
    c(y).sum().backward()
    grad, y.grad = y.grad, None
    m(y).sum().backward()
    torch.testing.assert_close(grad, y.grad)


def test_number_of_compilations():
    counted = []
    x = torch.randn(4, 3)
    with events.listen(lambda e: counted.append(e) if e.kind == "entry" else None):
        for dynamic, values, expected in ((None, VALUES, 2), (True, VALUES, 1), (False, VALUES[:4], 4)):
            c = tcompile.compile(products, backend="eager", dynamic=dynamic)
            counted.clear()
            for value in values:
                same(c(x, value), products(x, value))
            assert len(counted) == expected


EDGES = (1.5, 2.5, -0.0, 0.0, -3.5, float("inf"), float("-inf"), float("nan"), 1e300, -1e-320, 3.0)
USES = {
    "floor_division": lambda x, s: s // 2,
    "negative_divisor": lambda x, s: s // -2,
    "remainder": lambda x, s: s % -3.0,
    "divmod": lambda x, s: divmod(s, 2),
    "power": lambda x, s: s**-1,
    "base": lambda x, s: 2**s,
    "round": lambda x, s: (round(s, 1), round(s)),
    "int": lambda x, s: int(s),
    "math": lambda x, s: (math.copysign(1.0, s), math.floor(s)),
    "text": lambda x, s: f"{s} {s:.2f} {s!r}",
    "plus_zero": lambda x, s: (s + 0, 0 - s, -s, abs(s)),
    "truth": lambda x, s: (bool(s), s < 0, s == 0, s != s, min(s, 0.0), max(0.0, s)),
    "scale": lambda x, s: (x * s, s / x, x / s, torch.tensor([1, 2]) * s),
    "reciprocal": lambda x, s: x * (1 / s),
    "reciprocal_of": lambda x, s: x * (1 / (s - 1.5)),
    "floor_tensor": lambda x, s: (torch.tensor([5.0, -5.0]) // s, x % s),
    "fill": lambda x, s: (torch.full((2,), s, dtype=torch.float64), torch.where(x > 0, s, 0.0)),
}


def spelled(v):
    """A value as text that tells -0.0 from 0.0."""
    if isinstance(v, torch.Tensor):
        return str(v.dtype), spelled(v.reshape(-1).tolist())
    return [spelled(i) for i in v] if isinstance(v, (tuple, list)) else repr(v)


@pytest.mark.parametrize("name", USES)
def test_edges_of_a_float_that_varies(name):
    """Signs of zero, infinities, numbers that are too large for the tensor's type, and errors within the program's
    reach.
    """
    use = USES[name]

    def f(x, s):
        try:
            return use(x, s)
        except ArithmeticError as e:
            return type(e).__name__, str(e)

    c = tcompile.compile(f, backend="eager", options={"recompile_limit": 64})
    for s in EDGES:
        results = []
        for g in (f, c):
            try:
                results.append(spelled(g(torch.ones(2), s)))
            except Exception as e:
                results.append((type(e), str(e)))
        assert results[0] == results[1], s
