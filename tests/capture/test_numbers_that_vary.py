"""Where symbols stand for integers: as keys, as tensors, in branches on remainders, in sizes of resampling. Eager's
results, and no more entries than needed.
"""

from __future__ import annotations

import collections
import operator

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.capture.numbers.float_node import ratio_compared
from tcompile.compiler.symbolic.expr import integer, symbol

X = torch.randn(9, 9)
TABLE = {2: 1.5, 4: 2.5}


def parity(x, n):
    return x + 1 if n % 2 else x - n


def divisible(x, n):
    assert (n * 4) % 2 == 0
    return x[:, : n * 2 // 2].reshape(-1, n) if x[:, :n].shape[1] % 3 else x * 2


def member(x, n):
    return x * (n in (2, 4)) + (n in {2, 5}) + (n not in frozenset((4,)))


def tensors(x, n):
    return torch.tensor(n), torch.tensor([n, 3], dtype=torch.float32), torch.tensor((n, x.shape[0])) + x[0, 0].long()


def nested(x, n):
    return torch.tensor([[n]]), torch.tensor([[n, 2.5], (n + 1, 3)]) * 2, torch.as_tensor([[[n]], [[1]]])


def resampled(x, n):
    y = x[None, None, :, :n]
    return (
        F.interpolate(y, scale_factor=2.0),
        F.interpolate(y, size=(4, n), mode="bicubic", antialias=True),
        F.interpolate(y, size=x.shape, mode="bilinear"),
        F.interpolate(y, scale_factor=(1.5, 2), mode="bilinear"),
        F.interpolate(y[0], scale_factor=0.5, mode="linear", align_corners=False),
    )


def keys(x, n):
    counted, grouped, made = collections.Counter([n, n, 2]), collections.defaultdict(list), {n: 1, (n, "a"): 2}
    grouped[n // 2].append(n)
    made[n + 1] = 3
    kinds = {n, 3, 4}
    kinds.add(n)
    return x * TABLE.get(n, 0.5) * counted[n] + made[n] + len(kinds) + len(grouped) + {k: 1 for k in (n, 2)}[n], TABLE[
        n
    ] if n in TABLE else x


@pytest.mark.parametrize(
    "fn,entries", [(parity, 3), (divisible, 3), (member, 5), (tensors, 2), (nested, 2), (resampled, 2), (keys, 8)]
)
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_as_eager(fn, entries, backend):
    if backend == "tcompile" and fn is keys:
        pytest.skip("what the graph holds is the same as with eager")
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for n in (3, 5, 7, 8, 4, 6, 2):
            torch.testing.assert_close(compiled(X, n), fn(X, n), rtol=1e-5, atol=1e-5)
    assert len(recorded.report().entries) <= entries


def test_ragged_numbers_raise_as_in_eager():
    def fn(x, n):
        try:
            return torch.tensor([[n], [1, 2]])
        except ValueError as error:
            return x * len(str(error))

    compiled = tcompile.compile(fn)
    for n in (3, 5, 7):
        torch.testing.assert_close(compiled(X, n), fn(X, n))


def test_a_remainder_that_is_a_size():
    def fn(x, n):
        rest = x[: n % 4]
        return (rest + x[:1]).sum(0) if n % 4 == 1 else rest * 2 if n % 4 else rest.sum(0)

    compiled = tcompile.compile(fn, fullgraph=True)
    for n in (3, 6, 5, 9, 13, 4, 8, 12, 7):
        torch.testing.assert_close(compiled(X, n), fn(X, n))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, n, v: x.clone().index_put_((torch.tensor(n),), x.new_full((), v)),
        lambda x, n, v: x.clone().fill_(v),
        lambda x, n, v: torch.full((3,), v, dtype=x.dtype),
    ],
)
def test_what_a_type_does_not_hold_is_refused_as_in_eager(dtype, fn):
    def outcome(f, *args):
        try:
            return f(*args).tolist()
        except RuntimeError as error:
            return str(error)

    def written(x, n, v):
        y = x.clone()
        y[n] = v
        return y

    for program in (fn, written):
        compiled = tcompile.compile(program)
        for n, v in ((2, 3), (3, 4), (4, 5), (2, 300), (3, 70000), (2, -1), (3, 2**40)):
            x = torch.zeros(6, dtype=dtype)
            assert outcome(compiled, x, n, v) == outcome(program, x, n, v)


@pytest.mark.parametrize(
    "expression",
    [
        "torch.eye(n) + 1, torch.eye(n, 3), torch.eye(3, n, dtype=torch.int64)",
        "torch.where(x > 0, n, x), torch.where(x > 0, x, n)",
        "write(x.clone(), n), write(x.clone().long(), n), write(x > 0, n)",
        "divmod(n, 3), divmod(20, n), x * divmod(n, 2)[0]",
        "torch.arange(n, 0, -1), torch.arange(0, -n, -2), torch.arange(end=n), torch.arange(1, n, 3)",
    ],
)
def test_ints_in_operators(expression):
    scope: dict = {"torch": torch, "write": write}
    exec(f"def fn(x, n):\n    return {expression}", scope)
    fn = scope["fn"]
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, fullgraph=True)
        for n in (3, 5, 7, 8, 4, 6, 2):
            torch.testing.assert_close(compiled(X, n), fn(X, n))
    assert len(recorded.report().entries) <= 2


def write(y, n):
    y[1, 1] = n
    y[2:4] = n
    return y


@pytest.mark.parametrize(
    "quotient",
    [
        "min(1, (n + 1) / 5)",
        "1.0 if (n - 5) / 3 < 0.7 else 2.0",
        "1.0 if n / 7 <= 1 else 2.0",
        "1.0 if 0.2 < (n - 3) / 5 <= 0.8 else 2.0",
        "1.0 if (n + 1) / 5 == 1.2 else 2.0",
        "1.0 if (n + 1) / 5 != 1.2 else 2.0",
        "1.0 if (n + 1) / 5 in (0.6, 1.0) else 2.0",
        "1.0 if -n / 5 >= -1 else 2.0",
        "1.0 if (n - 5) / 5 else 2.0",
        "((n - 6) / 10) and 3.0",
        "min(1, 5 / (n + 1))",
        "1.0 if n / (n + 3) > 0.7 else 2.0",
        "sorted([(n + 1) / 5, 1])[0]",
        "1.0 if n / 5 < 1e300 else 2.0",
        "1.0 if n / -5 < -1 else 2.0",
        "1.0 if x.shape[0] / 5 > 1.5 else n / 3",
    ],
)
def test_a_quotient_that_is_compared(quotient):
    """A learning rate that grows for the first steps was wrong from the step on at which it should have stayed."""
    scope: dict = {}
    exec(f"def fn(x, n):\n    return x * ({quotient})", scope)
    fn = scope["fn"]
    compiled = tcompile.compile(fn)
    for n in (3, 2, 4, 5, 6, 7, 8, 9, 12, 5, 2):
        x = X[: n % 8 + 2]
        torch.testing.assert_close(compiled(x, n), fn(x, n), msg=f"{quotient}, n = {n}")


@pytest.mark.parametrize("divisor", [3, 5, 7, 10, 49, 1000, 10**9 + 7])
@pytest.mark.parametrize("c", [0.1, 1 / 3, 0.7, 1.0, 2.5, 1e6 + 0.1, -0.3])
def test_integers_stand_for_a_comparison_of_a_quotient(divisor, c):
    a, near = symbol("s0"), round(c * divisor)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        predicate = ratio_compared(name, a, integer(divisor), c)
        for n in (*range(near - 5, near + 6), 0, 10**15, -(10**15)):
            assert bool(predicate.eval({"s0": n})) is getattr(operator, name)(n / divisor, c), (name, n)
