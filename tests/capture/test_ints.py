"""Ints of the program that change from call to call, of any sign: eager's results, in two entries where nothing in the
code asks for more.
"""

from __future__ import annotations

import enum

import numpy
import pytest
import torch

import tcompile
from tcompile.compiler import events

X = torch.arange(24.0).reshape(4, 6)


def arithmetic(x, n):
    return x * n + n // 3 - n % 4, x.int() + n, (n // -3, n % -4, -n, n * n, n + 1, n & 7, n << 2, n >> 1)


def scalars(x, n):
    return (
        torch.full((3,), n),
        x.clamp(min=n),
        x > n,
        torch.add(x, x, alpha=n),
        x.roll(n, 1),
        x.triu(n),
        x.masked_fill(x > 3, n),
    )


def extremes(x, n):
    return x * abs(n) + max(n, n - 2)


def stored(x, n):
    y = x.clone()
    y[n % 4] = n
    y[1, n % 4] = 5
    return y


def accumulated(x, n):
    total = 0
    for i in range(5):
        total += n * i - 3
    return x + total


def as_truth(x, n):
    return x + bool(n) + (not n) if n else x * 2


def by_sign(x, n):
    if n > 0:
        return x + n
    return x - 1 if n == 0 else x * n


def slices(x, n):
    return x[:, n:] + 1, x[:, :n] * 2, x[::1, -2:n]


def sized(x, n):
    return torch.zeros(abs(n), 3) + x.sum(), x.expand(3, 4, 6)[:, :, max(n, 0) :], torch.arange(n, 9)


def elements(x, n):
    return x[n], x.select(1, n), [1, 2, 3, 4][n], (5, 6, 7, 8)[n]


def counted(x, n):
    for i in range(n):
        x = x + i
    return x, list(range(n, 3)), [x] * n, "ab" * n


def divided(x, n):
    return x % n, x // n, 7 // n, 7 % n


def bits(x, n):
    return (
        x + 2 ** abs(n) + (n | 4),
        x * (n ^ 5) + (n & 6) + ~n,
        (1 << abs(n)) // 3,
        (n ^ n - 1, n | 1, 100 >> abs(n)),
        torch.zeros(4 ** abs(n) | 8) + n,
    )


def texts(x, n):
    return x + 1, f"{n:03d}", str(n), n.bit_length(), type(n), isinstance(n, bool), {1: 2, 0: 3, -1: 5}.get(n)


SWEEPS = {
    "negative": (-3, -2, -1),
    "counter": (0, 1, 2, 3),
    "mixed": (3, -2, 0, 1, -3),
    "down": (2, 1, 0, -1, -2),
    "bools": (0, True, 2, False, 1, -1),
}
ONE_FOR_ALL = (arithmetic, scalars, extremes, stored, accumulated, bits)
OTHERS = (as_truth, by_sign, slices, sized, elements, counted, divided, texts)


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e), str(e)


def agrees(got, expected):
    assert type(got) is type(expected)
    if isinstance(got, torch.Tensor):
        torch.testing.assert_close(got, expected, equal_nan=True)
    elif isinstance(got, (tuple, list)):
        assert len(got) == len(expected)
        for g, e in zip(got, expected):
            agrees(g, e)
    else:
        assert got == expected


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("fn", [*ONE_FOR_ALL, *OTHERS])
def test_as_eager(fn, sweep):
    compiled = tcompile.compile(fn, backend="eager")
    for n in SWEEPS[sweep]:
        agrees(outcome(compiled, X, n), outcome(fn, X, n))
    if fn in ONE_FOR_ALL:
        assert len(compiled.cache.entries) <= (2 if sweep != "bools" else 5)  # a bool is no int


@pytest.mark.parametrize("fn", [arithmetic, scalars, accumulated, bits, by_sign, slices, sized, divided])
def test_kernels_as_eager(fn):
    compiled = tcompile.compile(fn)
    for n in SWEEPS["mixed"]:
        agrees(outcome(compiled, X, n), outcome(fn, X, n))


@pytest.mark.parametrize("first", [0, 1, -5, 4])
def test_dynamic_from_the_start(first):
    compiled = tcompile.compile(arithmetic, backend="eager", dynamic=True)
    for n in (first, 7, -2, 0, 1):
        agrees(compiled(X, n), arithmetic(X, n))
    assert len(compiled.cache.entries) <= 2


@pytest.mark.parametrize("n", [-1, 62, 63, 64, 200])
def test_shifts_beyond_64_bits_are_python_s(n):
    def shifts(x, n):
        return x + 1, 1 << n, 5 >> n, 2**n, (1 << n) % 7, n >> (abs(n) << 9), x * (n >> (abs(n) << 9))

    compiled = tcompile.compile(shifts, backend="eager")
    for k in (3, 4, 5, n, 6):
        agrees(outcome(compiled, X, k), outcome(shifts, X, k))


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * self.step


def test_a_counter_that_is_an_attribute():
    model = tcompile.compile(Counting(), backend="eager")
    with tcompile.record() as recorded:
        for n in range(1, 20):
            agrees(model(X), X * n)
    assert len(recorded.report().entries) == 2


STEP = 0


def by_global(x):
    return x * STEP + 1


def test_a_counter_that_is_a_global():
    global STEP
    compiled = tcompile.compile(by_global, backend="eager")
    for STEP in (0, -1, 1, 2, 9):
        agrees(compiled(X), X * STEP + 1)
    assert len(compiled.cache.entries) == 2


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_what_64_bits_do_not_hold(backend):
    def square(x, n):
        return x + n * n

    compiled = tcompile.compile(square, backend=backend)
    for n in (3, 5, 2**31, 2**40, -(2**35), 2**62, 2**63, 2**70, 6, -4):
        agrees(outcome(compiled, X, n), outcome(square, X, n))

    def wrapped(x, n):
        return x + n * n * n % 7

    compiled = tcompile.compile(wrapped, backend=backend)
    for n in (3, 5, 2**31 + 3, 2**40 + 1, -(2**35) - 1, 2**61 + 7, 6):
        agrees(compiled(X, n), wrapped(X, n))


def product(x, y):
    return x * y


def test_what_earlier_entries_expected_is_learned_from():
    """The entry that is nearest to a call was made for another type; sizes differ from those of an older one."""
    compiled = tcompile.compile(product, backend="eager")
    for n, number in ((2, None), (3, 3), (4, None), (5, 4), (6, None), (7, 5)):
        x = torch.randn(n)
        y = torch.randn(n) if number is None else number
        agrees(compiled(x, y), x * y)
    assert len(compiled.cache.entries) <= 4


LARGE = 1e300


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.full((3,), LARGE),
        lambda x: x.clamp(min=LARGE),
        lambda x: x.clone().clamp_(-LARGE, 1),
        lambda x: torch.full_like(x, LARGE),
        lambda x: x.masked_fill(x > 0, LARGE),
        lambda x: torch.add(x, x, alpha=LARGE),
        lambda x: torch.nn.functional.pad(x, (1, 1), value=LARGE),
        lambda x: x.addcmul(x, x, value=LARGE),
        lambda x: torch.nn.functional.leaky_relu(x, LARGE),
        lambda x: x.new_full((2,), -LARGE),
        lambda x: torch.full((2,), 300, dtype=torch.int8),
        lambda x: x.to(torch.uint8).clamp(max=-3),
        lambda x: torch.full((2,), 2**63),
        lambda x: x * LARGE,
        lambda x: LARGE - x,
        lambda x: x / LARGE,
        lambda x: x > LARGE,
        lambda x: x.clamp(max=float("inf")),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_numbers_that_the_type_does_not_hold(fn, dtype):
    agrees(outcome(tcompile.compile(fn), X.to(dtype)), outcome(fn, X.to(dtype)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x - True,
        lambda x: True - x,
        lambda x: torch.sub(x, False),
        lambda x: x - (x > 0),
        lambda x: (x > 0) - x,
        lambda x: (x > 0) - True,
        lambda x: (x > 0) - 1,
        lambda x: x + True,
        lambda x: torch.tensor(SCALAR),
        lambda x: torch.tensor([SCALAR, 1.0]),
        lambda x: x * SCALAR,
        lambda x: torch.tensor([[1, numpy.int32(3)]]) + x[0, 0],
    ],
)
def test_bools_and_numpy_numbers(fn):
    agrees(outcome(tcompile.compile(fn), X), outcome(fn, X))


SCALAR = numpy.float64(1.5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.view(-1, 70000) * 2,
        lambda x: x.reshape(-1, 140000) + 1,
        lambda x: x.narrow(1, 66000, 100) * 2,
        lambda x: x.new_zeros(70000) + x,
        lambda x: x[:1].expand(3, 70000) * 2,
        lambda x: x.roll(66000) * 2,
        lambda x: x.select(1, 66000) * 2,
        lambda x: x.to(torch.float8_e4m3fn).reshape(-1, 70000).float(),
    ],
)
def test_a_size_need_not_fit_the_elements_type(fn):
    x = torch.randn(2, 70000, dtype=torch.float16)
    torch.testing.assert_close(tcompile.compile(fn, fullgraph=True)(x), fn(x))


class Way(enum.Flag):
    A, B = 1, 2


class Count(enum.IntFlag):
    ONE, TWO = 1, 2


class Size(enum.IntEnum):
    SMALL, LARGE, HUGE = 1, 2, 4


def of_flags(x, way):
    return x * 3 if way & Way.B else x, way | Way.B, way ^ Way.A, ~way, way.value, Way.A in way


def of_int_flags(x, count):
    return x * count, count & Count.TWO, count | Count.ONE, count.value


def of_members(x, size):
    return x * size, x[: size.value], Size(size.value) is size, {Size.SMALL: 1, Size.LARGE: 2}.get(size)


def of_powers(x, n):
    with torch.set_grad_enabled(n > 2):
        return x * pow(n, 2, 5), torch.is_grad_enabled()


def of_truths(x, n):
    y = x[None, None]
    attention = torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=n > 2)
    return attention, x.sum(0, keepdim=n > 2), x.sort(descending=n > 2), x * (n > 2), x[n > 2], torch.tensor(n > 2)


@pytest.mark.parametrize(
    "fn, values",
    [
        (of_flags, [Way.A, Way.A | Way.B, Way(0), Way.B]),
        (of_int_flags, [Count.ONE, Count.TWO, Count.ONE | Count.TWO, Count(0)]),
        (of_members, [Size.SMALL, Size.LARGE, Size.HUGE]),
        (of_powers, [1, 2, 3, 4]),
        (of_truths, [1, 2, 3, 4]),
    ],
)
def test_numbers_that_something_has_to_know(fn, values):
    """Members of enums by their value, what the third argument of pow divides, a mode, a flag of an operator.

    The number is fixed, or its side of a comparison.
    """
    compiled = tcompile.compile(fn, backend="eager", fullgraph=True)
    with events.listen(lambda e: said.append(e) if e.kind in ("error", "fallback") else None):
        said = []
        for value in values:
            assert str(compiled(X, value)) == str(fn(X, value))
    assert not said


def test_broadcast_shapes():
    def fn(a, b, other):
        try:
            refused = torch.broadcast_shapes(a.shape, other)
        except RuntimeError as e:
            refused = str(e)
        shape = torch.broadcast_shapes(a.shape, b.shape, (1,), 1, [1, 1])
        return a.expand(shape) + b, type(shape), torch.broadcast_shapes(), torch.broadcast_shapes(3, (2, 1)), refused

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for n in (3, 4, 5):
        args = torch.ones(n, 3), torch.ones(1, 3), (7, 3)
        assert str(compiled(*args)) == str(fn(*args))
