"""Every operator of single elements at the ends of every dtype against eager, in a few compiled programs: C++ for all,
Triton for a part.
"""

import math
import warnings
import pytest
import torch
import torch.nn.functional as F
import tcompile
from tests.ops.extremes import BINARY, FLOATS, INTEGERS, UNARY, difference, known, pairs, values


def applied(table, operands):
    """name -> eager's result, and name -> its error."""
    results, errors = {}, {}
    for name, f in table.items():
        try:
            results[name] = f(*operands)
        except Exception as e:
            errors[name] = type(e)
    return results, errors


def differing(table, dtype, operands, compile_all):
    """Names with operands and results of eager's and ours, for what differs and is not known to."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want, errors = applied(table, operands)
        functions = [table[name] for name in want]
        got = compile_all(lambda *xs: [f(*xs) for f in functions], operands)
    found = []
    for (name, w), g in zip(want.items(), got, strict=True):
        bad = difference(w, g)
        if bad.any() and not known(name, dtype):
            at = int(bad.nonzero()[0, 0])
            found.append((name, [x[at].item() for x in operands], w[at].item(), g[at].item()))
    return found, errors


def by_cpp(f, operands):
    return tcompile.compile(f, fullgraph=True)(*operands)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("table", [UNARY, BINARY], ids=["unary", "binary"])
def test_as_eager(table, dtype):
    operands = (values(dtype).repeat(4),) if table is UNARY else pairs(dtype)
    if table is BINARY and not dtype.is_floating_point and dtype is not torch.bool:
        a, b = operands  # (division by zero is an error, that of the least number by -1 ends the process in eager)
        fit = (b.long() != 0) & ~((a.long() == torch.iinfo(dtype).min) & (b.long() == -1))
        operands = a[fit], b[fit]
    found, _ = differing(table, dtype, operands, by_cpp)
    assert not found


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.bool, torch.int8, torch.float16], ids=str)
def test_what_eager_refuses_is_refused(dtype):
    for table, operands in ((UNARY, (values(dtype),)), (BINARY, pairs(dtype))):
        _, errors = applied(table, operands)
        for name, error in errors.items():
            with pytest.raises(error):
                tcompile.compile(table[name])(*operands)


def test_remainders_of_large_numbers():
    """They are exact: what C's fmod gives, and eager's own scalar code. (Eager's vectors give NaN.)"""
    a, b = torch.tensor([3.4e38, -3.4e38, 1e30, 3e38] * 8), torch.tensor([0.5, 3.0, -7.0, 1e-30] * 8)
    fmod, remainder = tcompile.compile(lambda a, b: (torch.fmod(a, b), torch.remainder(a, b)))(a, b)
    exact = torch.fmod(a.double(), b.double())
    assert torch.equal(fmod, torch.stack([torch.fmod(x, y) for x, y in zip(a, b)]))
    assert torch.equal(fmod.double(), exact.where(exact.isfinite(), fmod.double()))
    assert bool(((remainder == 0) | (remainder.signbit() == b.signbit())).all())


def test_gelu_of_infinity():
    x = torch.tensor([float("inf"), 3e38, -3e38] * 8)
    with torch.backends.mkldnn.flags(enabled=False):
        want = torch.nn.functional.gelu(x)
    assert torch.equal(tcompile.compile(torch.nn.functional.gelu)(x), want)


# by Triton's interpreter: what needs no functions that only a GPU's library has; numpy computes, so that only what is
# exact is compared
TRITON = {
    **{
        name: UNARY[name]
        for name in """
            abs ceil floor neg relu round sign signbit sqrt square trunc isinf isnan isfinite reciprocal frac hardtanh
            relu6 hardsigmoid leaky_relu clamp""".split()
    },
    "% 3": lambda x: x % 3,
    "1 -": UNARY["1 -"],
    "** 2": UNARY["** 2"],
}
TRITON_BINARY = {
    name: BINARY[name] for name in "add sub mul maximum minimum copysign eq ne lt le gt ge where heaviside".split()
}


def by_triton(f, operands):
    pytest.importorskip("triton")
    from tests.codegen.triton.interpreter import compile_fn, generate, run

    return run(generate(compile_fn(lambda *xs: tuple(f(*xs)), *operands)), operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
@pytest.mark.parametrize("table", [TRITON, TRITON_BINARY], ids=["unary", "binary"])
def test_triton_as_eager(table, dtype):
    operands = (values(dtype),) if table is TRITON else pairs(dtype)
    found, _ = differing(table, dtype, operands, by_triton)
    assert not found


ZEROS = {
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1),
    "nansum": lambda x: x.nansum(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "prod": lambda x: x.prod(-1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "max": lambda x: x.max(-1),
    "cummax": lambda x: x.cummax(-1),
    "argmax": lambda x: x.argmax(-1),
    "norm": lambda x: x.norm(dim=-1),
    "largest": lambda x: x.norm(math.inf, dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 1),
    "wide avg_pool": lambda x: F.avg_pool1d(x[None], 3, 1, 1),
    "max_pool": lambda x: F.max_pool1d(x[None], 1),
    "sum of zeros": lambda x: (x * -0.0).sum(-1),
    "where": lambda x: torch.where(x == 0, x, -x).sum(-1),
}
ROWS = ([-0.0], [0.0], [math.nan, 1.0], [math.inf, -math.inf], [math.inf], [-math.inf], [1e-40], [-1.0, -0.5, 0.25])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 17, 64, 65])
def test_reductions_of_special_values(dtype, n):
    """One element alone, vectors and the ends of rows. Rows with zeros of both signs are left out: which of them is a
    maximum differs between eager's vectors and its scalar code."""
    for rows in (ROWS, ROWS[:1]):
        x = torch.tensor([(row * n)[:n] for row in rows], dtype=torch.float64).to(dtype)
        want = [f(x) for f in ZEROS.values()]
        got = tcompile.compile(lambda x: [f(x) for f in ZEROS.values()], fullgraph=True)(x)
        for name, w, g in zip(ZEROS, want, got):
            for a, b in zip(*(([w], [g]) if isinstance(w, torch.Tensor) else (w, g))):
                assert not difference(a, b, 64).any(), (name, x, a, b)
