"""Every operator of single elements at the ends of every dtype against eager, in a few compiled programs: C++ for all,
Triton for a part.
"""

import warnings
import pytest
import torch
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
