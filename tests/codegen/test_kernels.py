"""Shapes of loops: hand-built kernels against eager."""

import pytest
import torch

from tcompile.compiler.codegen.cpp.layout import Choices
from tcompile.compiler.lowering.ir import (
    Acc,
    Axis,
    Kernel,
    Stage,
    Store,
    acc,
    cast,
    check_index,
    const,
    index,
    indirect_symbol,
    load,
    param,
    prim,
)
from tcompile.compiler.symbolic.expr import as_expr

from .helper import SIMD, buffer, compile_kernel, i0, i1, n0, n1, pointwise, r0, r1

f32, f64, i64 = torch.float32, torch.float64, torch.int64
SIZES = [0, 1, 17, 64, 5000]


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("n", SIZES)
def test_pointwise_of_every_length(n, simd):
    x, y = torch.randn(n), torch.randn(n)
    got = pointwise(lambda a, b: prim("add", prim("mul", a, b), const(2.0, f32)), x, y, out=f32, simd=simd)
    assert torch.equal(got, x * y + 2)


def rows_kernel(op: str, dtype: torch.dtype, rows: int, n: int, out: torch.dtype) -> Kernel:
    a, o = buffer("in0", dtype, (rows, n)), buffer("out0", out, (rows,), kind="output")
    return Kernel(
        "rows",
        (Axis(i0, rows),),
        [
            Stage((Axis(r0, n),), [Acc("acc0", op, out, load(a, i0 * n + r0))]),
            Stage((), [], [Store(o, i0, acc("acc0", out))]),
        ],
        [a],
        [o],
    )


def columns_kernel(op: str, dtype: torch.dtype, rows: int, n: int, out: torch.dtype) -> Kernel:
    a, o = buffer("in0", dtype, (rows, n)), buffer("out0", out, (n,), kind="output")
    return Kernel(
        "columns",
        (Axis(i0, n),),
        [
            Stage((Axis(r0, rows),), [Acc("acc0", op, out, load(a, r0 * n + i0))]),
            Stage((), [], [Store(o, i0, acc("acc0", out))]),
        ],
        [a],
        [o],
    )


REFERENCE = {
    "sum": torch.sum,
    "max": torch.amax,
    "min": torch.amin,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "prod": torch.prod,
    "any": torch.any,
    "all": torch.all,
}


@pytest.mark.parametrize("simd", SIMD[:2])
@pytest.mark.parametrize("shape", [(3, 1), (5, 71), (2, 20000)])
@pytest.mark.parametrize("op", ["sum", "max", "min", "argmax", "argmin", "prod"])
@pytest.mark.parametrize("build, dim", [(rows_kernel, 1), (columns_kernel, 0)])
def test_reductions(op, shape, build, dim, simd):
    x = torch.randn(shape).round(decimals=1) if op.startswith("arg") else torch.rand(shape) + 0.5
    if op == "prod":
        x = 1 + (x - 1) / shape[dim]
    out = i64 if op.startswith("arg") else f32
    got = torch.empty(shape[1 - dim], dtype=out)
    compile_kernel(build(op, f32, *shape, out), simd)(x, got)
    want = REFERENCE[op](x, dim) if op.startswith("arg") else REFERENCE[op](x.double(), dim).float()
    if op.startswith("arg"):  # the first of equal values
        want = (x == REFERENCE["max" if op == "argmax" else "min"](x, dim, keepdim=True)).int().argmax(dim)
        assert torch.equal(got, want)
    else:
        torch.testing.assert_close(got, want, rtol=1e-3 if op == "prod" else 2e-6, atol=0)


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("build, dim", [(rows_kernel, 1), (columns_kernel, 0)])
def test_nan_wins(op, build, dim):
    x = torch.randn(40, 40)
    x[7, 3] = x[7, 30] = x[30, 3] = torch.nan
    x[9] = -torch.inf if "max" in op else torch.inf
    out = i64 if op.startswith("arg") else f32
    got = torch.empty(40, dtype=out)
    compile_kernel(build(op, f32, 40, 40, out))(x, got)
    torch.testing.assert_close(got, REFERENCE[op](x, dim), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", ["any", "all"])
@pytest.mark.parametrize("build, dim", [(rows_kernel, 1), (columns_kernel, 0)])
def test_any_and_all(op, build, dim):
    x = torch.rand(9, 75) > (0.97 if op == "any" else 0.03)
    got = torch.empty(x.shape[1 - dim], dtype=torch.bool)
    compile_kernel(build(op, torch.bool, 9, 75, torch.bool))(x, got)
    assert torch.equal(got, REFERENCE[op](x, dim))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_integer_reductions(dtype):
    x = torch.randint(0, 100, (6, 333)).to(dtype)
    for op, want in (("max", x.amax(1)), ("min", x.amin(1))):
        got = torch.empty(6, dtype=dtype)
        compile_kernel(rows_kernel(op, dtype, 6, 333, dtype))(x, got)
        assert torch.equal(got, want)


@pytest.mark.parametrize("n", [1, 100, 8192, 8193, 100_000, 1 << 20])
def test_full_reductions(n):
    x = torch.randn(n)
    a, o = buffer("in0", f32, (n,)), buffer("out0", f32, (), kind="output")
    p, q = buffer("out1", i64, (), kind="output"), buffer("out2", f32, (n,), kind="output")
    v = load(a, r0)
    stages = [
        Stage((Axis(r0, n),), [Acc("acc0", "sum", f32, v), Acc("acc1", "argmax", i64, v)]),
        Stage((), [], [Store(o, as_expr(0), acc("acc0", f32)), Store(p, as_expr(0), acc("acc1", i64))]),
        Stage((Axis(r0, n),), [], [Store(q, r0, prim("sub", v, acc("acc0", f32)))]),
    ]
    run = compile_kernel(Kernel("full", (), stages, [a], [o, p, q]))
    total, at, rest = torch.empty(()), torch.empty((), dtype=i64), torch.empty(n)
    run(x, total, at, rest)
    torch.testing.assert_close(total.double(), x.double().sum(), rtol=1e-5, atol=1e-6 * n**0.5)
    assert at == x.argmax() and torch.equal(rest, x - total)
    again = torch.empty(())
    for threads in (1, 2, 5):  # the same bits whatever the number of threads
        run.call.threads = threads
        run(x, again, at, rest)
        assert torch.equal(again, total)


def softmax_kernel(rows: int, n: int, local: bool) -> Kernel:
    a, o = buffer("in0", f32, (rows, n)), buffer("out0", f32, (rows, n), kind="output")
    tmp = buffer("tmp0", f32, (n,), kind="local")
    x = load(a, i0 * n + r0)
    e = prim("exp", prim("sub", x, acc("acc0", f32)))
    axes = (Axis(r0, n),)
    kept = load(tmp, r0) if local else e
    return Kernel(
        "softmax",
        (Axis(i0, rows),),
        [
            Stage(axes, [Acc("acc0", "max", f32, x)]),
            Stage(axes, [Acc("acc1", "sum", f32, e)], [Store(tmp, r0, e)] if local else []),
            Stage(axes, [], [Store(o, i0 * n + r0, prim("div", kept, acc("acc1", f32)))]),
        ],
        [a],
        [o],
        [tmp] if local else [],
    )


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (5, 33), (64, 256), (3, 40000)])
def test_softmax(shape, local, simd):
    x = torch.randn(shape)
    got = torch.empty(shape)
    compile_kernel(softmax_kernel(*shape, local), simd)(x, got)
    torch.testing.assert_close(got, torch.softmax(x, 1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("local", [False, True])
def test_softmax_over_the_leading_axis(local):
    rows, n = 30, 77
    a, o = buffer("in0", f32, (rows, n)), buffer("out0", f32, (rows, n), kind="output")
    tmp = buffer("tmp0", f32, (rows,), kind="local")
    x = load(a, r0 * n + i0)
    e = prim("exp", prim("sub", x, acc("acc0", f32)))
    axes = (Axis(r0, rows),)
    kept = load(tmp, r0) if local else e
    k = Kernel(
        "columns",
        (Axis(i0, n),),
        [
            Stage(axes, [Acc("acc0", "max", f32, x)]),
            Stage(axes, [Acc("acc1", "sum", f32, e)], [Store(tmp, r0, e)] if local else []),
            Stage(axes, [], [Store(o, r0 * n + i0, prim("div", kept, acc("acc1", f32)))]),
        ],
        [a],
        [o],
        [tmp] if local else [],
    )
    x = torch.randn(rows, n)
    got = torch.empty(rows, n)
    compile_kernel(k)(x, got)
    torch.testing.assert_close(got, torch.softmax(x, 0), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("simd", SIMD)
def test_transposed_and_broadcast_operands(simd):
    n, m = 37, 50
    a, b, c = buffer("in0", f32, (n, m)), buffer("in1", f32, (m, n)), buffer("in2", f32, (n,))
    o = buffer("out0", f32, (n, m), kind="output")
    v = prim("add", prim("mul", load(a, i0 * m + i1), load(b, i1 * n + i0)), load(c, i0))
    k = Kernel("mixed", (Axis(i0, n), Axis(i1, m)), [Stage((), [], [Store(o, i0 * m + i1, v)])], [a, b, c], [o])
    x, y, z, got = torch.randn(n, m), torch.randn(m, n), torch.randn(n), torch.empty(n, m)
    compile_kernel(k, simd)(x, y, z, got)
    assert torch.equal(got, x * y.T + z[:, None])


def test_contiguous_axes_become_one_loop():
    shape = (4, 5, 6, 7)
    axes, flat = [], as_expr(0)
    for name, size in zip(("i0", "i1", "i2", "i3"), shape):
        from tcompile.compiler.symbolic.expr import symbol

        axes.append(Axis(symbol(name), size))
        flat = flat * size + symbol(name)
    a, o = buffer("in0", f32, shape), buffer("out0", f32, shape, kind="output")
    run = compile_kernel(
        Kernel("copy", tuple(axes), [Stage((), [], [Store(o, flat, prim("neg", load(a, flat)))])], [a], [o])
    )
    x, got = torch.randn(shape), torch.empty(shape)
    run(x, got)
    assert torch.equal(got, -x) and "840" in run.text and "rest" not in run.text


@pytest.mark.parametrize("sizes", [(3, 5), (1, 40), (20, 1000), (0, 4)])
def test_symbolic_sizes(sizes):
    a, o = buffer("in0", f32, (n0, n1)), buffer("out0", f32, (n0,), kind="output")
    k = Kernel(
        "sums",
        (Axis(i0, n0),),
        [
            Stage((Axis(r0, n1),), [Acc("acc0", "sum", f32, load(a, i0 * n1 + r0))]),
            Stage((), [], [Store(o, i0, prim("div", acc("acc0", f32), cast(index(n1), f32)))]),
        ],
        [a],
        [o],
        sizes=[n0, n1],
        hints={"n0": 20, "n1": 100},
    )
    x, got = torch.randn(sizes), torch.empty(sizes[0])
    compile_kernel(k)(x, got, *sizes)
    torch.testing.assert_close(got, x.mean(1), rtol=1e-5, atol=1e-6)


def test_scalar_parameters():
    n = 70
    a, o = buffer("in0", f32, (n,)), buffer("out0", f32, (n,), kind="output")
    v = prim("add", prim("mul", load(a, i0), param("p0", f32)), cast(param("p1", i64), f32))
    k = Kernel(
        "scaled", (Axis(i0, n),), [Stage((), [], [Store(o, i0, v)])], [a], [o], params=[("p0", f32), ("p1", i64)]
    )
    x, got = torch.randn(n), torch.empty(n)
    compile_kernel(k)(x, got, 0.5, 3)
    assert torch.equal(got, x * 0.5 + 3)


@pytest.mark.parametrize("simd", SIMD)
def test_gather_with_checked_index(simd):
    rows, n, m = 10, 33, 6
    table, ids, o = buffer("in0", f32, (rows, n)), buffer("in1", i64, (m,)), buffer("out0", f32, (m, n), kind="output")
    where = check_index(load(ids, i0), const(rows, i64), "IndexError: index out of range in self")
    v = load(table, indirect_symbol(where) * n + i1)
    k = Kernel(
        "embedding",
        (Axis(i0, m), Axis(i1, n)),
        [Stage((), [], [Store(o, i0 * n + i1, v)])],
        [table, ids],
        [o],
        checks=["IndexError: index out of range in self"],
    )
    t, got = torch.randn(rows, n), torch.empty(m, n)
    run = compile_kernel(k, simd)
    good = torch.tensor([0, 9, 3, 3, 1, 5])
    run(t, good, got)
    assert torch.equal(got, t[good])
    for bad in (10, -1):
        with pytest.raises(IndexError, match="index out of range in self"):
            run(t, torch.tensor([0, 9, bad, 3, 1, 5]), got)


@pytest.mark.parametrize("simd", SIMD)
def test_gather_along_the_vector_axis(simd):
    n = 100
    a, ids, o = buffer("in0", f32, (n,)), buffer("in1", i64, (n,)), buffer("out0", f32, (n,), kind="output")
    where = check_index(load(ids, i0), const(n, i64), "IndexError: out of bounds")
    k = Kernel(
        "take",
        (Axis(i0, n),),
        [Stage((), [], [Store(o, i0, load(a, indirect_symbol(where)))])],
        [a, ids],
        [o],
        checks=["IndexError: out of bounds"],
    )
    x, at, got = torch.randn(n), torch.randperm(n), torch.empty(n)
    run = compile_kernel(k, simd)
    run(x, at, got)
    assert torch.equal(got, x[at])
    at[99] = 100  # in the tail
    with pytest.raises(IndexError, match="out of bounds"):
        run(x, at, got)


def test_scatter_add():
    n, m = 500, 7
    a, ids, o = buffer("in0", f32, (n,)), buffer("in1", i64, (n,)), buffer("out0", f32, (m,), kind="output")
    k = Kernel(
        "add",
        (Axis(i0, n),),
        [Stage((), [], [Store(o, indirect_symbol(load(ids, i0)), load(a, i0), "add")])],
        [a, ids],
        [o],
    )
    x, at, got = torch.randn(n), torch.randint(0, m, (n,)), torch.zeros(m)
    compile_kernel(k)(x, at, got)
    torch.testing.assert_close(got, torch.zeros(m).index_add(0, at, x))


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("n", [5, 16, 100])
def test_masked_loads_stay_inside(n, simd):
    """Zero padding on the left: in0[i - 3] is read only where i >= 3."""
    a, o = buffer("in0", f32, (n,)), buffer("out0", f32, (n + 3,), kind="output")
    inside = prim("ge", index(i0), const(3, i64))
    v = prim("masked", inside, prim("exp", load(a, i0 - 3)), const(0.0, f32))
    k = Kernel("pad", (Axis(i0, n + 3),), [Stage((), [], [Store(o, i0, v)])], [a], [o])
    page = torch.zeros(n + 3)
    x, got = page[3:].normal_(), torch.empty(n + 3)
    page[:3] = torch.nan
    compile_kernel(k, simd)(x, got)
    assert torch.equal(got[:3], torch.zeros(3))
    torch.testing.assert_close(got[3:], x.exp())


@pytest.mark.parametrize("simd", SIMD)
def test_mixed_dtypes(simd):
    n = 99
    x, y = torch.randn(n, dtype=f64), torch.randint(-100, 100, (n,), dtype=torch.int8)
    z, w = torch.rand(n) > 0.5, torch.randn(n).bfloat16()
    got = pointwise(
        lambda a, b, c, d: prim("where", c, prim("mul", a, cast(b, f64)), cast(d, f64)), x, y, z, w, out=f64, simd=simd
    )
    assert torch.equal(got, torch.where(z, x * y, w.double()))
    flags = pointwise(
        lambda a, b: prim("logical_and", prim("gt", a, const(0.0, f64)), prim("lt", cast(b, f64), a)),
        x,
        y,
        out=torch.bool,
        simd=simd,
    )
    assert torch.equal(flags, (x > 0) & (y < x))


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integer_arithmetic_wraps(dtype, simd):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.min, info.max, 0, 1, -1 % (info.max + 1) if info.min == 0 else -1, 7] * 11, dtype=dtype)
    y = torch.tensor([info.max, info.max, 3, info.min, 2, 5] * 11, dtype=dtype)
    for name, f in (
        ("add", torch.add),
        ("sub", torch.sub),
        ("mul", torch.mul),
        ("maximum", torch.maximum),
        ("bitwise_xor", torch.bitwise_xor),
    ):
        assert torch.equal(pointwise(lambda a, b: prim(name, a, b), x, y, out=dtype, simd=simd), f(x, y)), name
    d = torch.where(y == 0, torch.ones_like(y), y)
    for name, f in (("div_floor", torch.floor_divide), ("remainder", torch.remainder), ("fmod", torch.fmod)):
        assert torch.equal(pointwise(lambda a, b: prim(name, a, b), x, d, out=dtype, simd=simd), f(x, d)), name
    s = torch.tensor([0, 1, 3, 7, 2, 4] * 11, dtype=dtype)
    for name, f in (
        ("bitwise_left_shift", torch.bitwise_left_shift),
        ("bitwise_right_shift", torch.bitwise_right_shift),
    ):
        assert torch.equal(pointwise(lambda a, b: prim(name, a, b), x, s, out=dtype, simd=simd), f(x, s)), name


@pytest.mark.parametrize(
    "name",
    ["fmod", "remainder", "div_floor", "div_trunc", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign"],
)
def test_float_pairs(name):
    special = torch.tensor([0.0, -0.0, 1.0, -1.5, 7.25, torch.inf, -torch.inf, torch.nan, 1e-30, 3e38])
    x = torch.cat([torch.randn(200) * 10, special.repeat_interleave(10)])
    y = torch.cat([torch.randn(200) * 3, special.repeat(10)])
    if name in ("fmod", "remainder"):  # eager's vector form gives NaN where the quotient is beyond float's digits
        few = (x / y).abs() < 1e7
        x, y = torch.where(few, x, 1.0), torch.where(few, y, 2.0)
    reference = {
        "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "div_trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    }
    want = reference.get(name, getattr(torch, name, None))(x, y)
    got = pointwise(lambda a, b: prim(name, a, b), x, y, out=f32)
    torch.testing.assert_close(got, want, rtol=3e-7, atol=1e-44, equal_nan=True)


@pytest.mark.parametrize("length", [1, 150, 1000])
def test_long_chains_are_not_contracted(length):
    def chain(a):
        for _ in range(length):
            a = prim("add", a, const(1.0, f32))
        return a

    x = torch.randn(1000)
    want = x
    for _ in range(length):
        want = want + 1
    assert torch.equal(pointwise(chain, x, out=f32), want)


@pytest.mark.parametrize(
    "choices",
    [
        Choices(mode="inner"),
        Choices(mode="outer"),
        Choices(unroll=1),
        Choices(unroll=8),
        Choices(block=64),
        Choices(lanes=4),
    ],
)
def test_choices_change_nothing_but_speed(choices):
    x, got = torch.randn(20, 90), torch.empty(20)
    compile_kernel(rows_kernel("sum", f32, 20, 90, f32), choices=choices)(x, got)
    torch.testing.assert_close(got, x.sum(1), rtol=1e-5, atol=1e-5)
    got = torch.empty(90)
    compile_kernel(columns_kernel("max", f32, 20, 90, f32), choices=choices)(x, got)
    assert torch.equal(got, x.amax(0))


def test_source_is_self_contained_and_deterministic():
    texts = [compile_kernel(softmax_kernel(5, 33, False)).text for _ in range(2)]
    assert texts[0] == texts[1] and "#include" not in texts[0]


def test_two_reduced_axes():
    b, m, n = 6, 5, 40
    a, o = buffer("in0", f32, (m, b, n)), buffer("out0", f32, (b,), kind="output")
    v = load(a, (r0 * b + i0) * n + r1)
    k = Kernel(
        "two",
        (Axis(i0, b),),
        [
            Stage((Axis(r0, m), Axis(r1, n)), [Acc("acc0", "sum", f32, v), Acc("acc1", "argmax", i64, v)]),
            Stage((), [], [Store(o, i0, prim("add", acc("acc0", f32), cast(acc("acc1", i64), f32)))]),
        ],
        [a],
        [o],
    )
    x, got = torch.randn(m, b, n), torch.empty(b)
    compile_kernel(k)(x, got)
    flat = x.permute(1, 0, 2).reshape(b, -1)
    torch.testing.assert_close(got, flat.sum(1) + flat.argmax(1), rtol=1e-5, atol=1e-5)


def test_in_place():
    n = 1000
    a, o = buffer("in0", f32, (n,)), buffer("out0", f32, (n,), kind="output")
    k = Kernel(
        "twice", (Axis(i0, n),), [Stage((), [], [Store(o, i0, prim("add", load(a, i0), load(a, i0)))])], [a], [o]
    )
    x = torch.randn(n)
    want = x + x
    compile_kernel(k)(x, x)
    assert torch.equal(x, want)


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("dtype", [f32, f64])
def test_remainders_are_exact(dtype, simd):
    g = torch.Generator().manual_seed(3)
    x = (torch.randn(4000, generator=g, dtype=f64) * torch.logspace(-3, 6, 4000, dtype=f64)).to(dtype)
    y = (torch.randn(4000, generator=g, dtype=f64) * 3).to(dtype)
    x[:500] = (torch.arange(500) * 0.1).to(dtype)
    y[:500] = 0.1
    x[500:600], y[600:700], x[700:710] = 0.0, torch.inf, torch.inf
    import math

    exact = torch.tensor(
        [math.fmod(a, b) if math.isfinite(a) else math.nan for a, b in zip(x.tolist(), y.tolist())], dtype=dtype
    )
    got = pointwise(lambda a, b: prim("fmod", a, b), x, y, out=dtype, simd=simd)
    torch.testing.assert_close(got, exact, rtol=0, atol=0, equal_nan=True)
    wrapped = torch.where((exact != 0) & ((y < 0) != (exact < 0)), exact + y, exact)
    got = pointwise(lambda a, b: prim("remainder", a, b), x, y, out=dtype, simd=simd)
    torch.testing.assert_close(got, wrapped, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("width", [64, 32])
def test_text_for_clang_names_no_instruction_of_gcc(width):
    """Target without features: what target.py chooses where clang compiles. GCC compiles it as well."""
    from tcompile.compiler.codegen.cpp.printer import print_kernel
    from tcompile.compiler.codegen.cpp.support import Target

    text = print_kernel(softmax_kernel(5, 33, False), Target(width, frozenset())).text
    assert "__builtin_ia32" not in text


@pytest.mark.parametrize("simd", SIMD)
def test_values_that_are_the_same_in_all_lanes_do_not_halve_the_vectors(simd):
    """A row's class beside float32 elements: one int64 a row, and positions that are compared as int32."""
    from tcompile.compiler.lowering.ir import index

    m, n = 7, 100
    x, t, o = buffer("in0", f32, (m, n)), buffer("in1", i64, (m,)), buffer("out0", f32, (m, n), kind="output")
    hit = prim("eq", cast(load(t, i0), torch.int32), cast(index(i1), torch.int32))
    v = prim("where", hit, const(1.0, f32), load(x, i0 * n + i1))
    k = Kernel("hits", (Axis(i0, m), Axis(i1, n)), [Stage((), [], [Store(o, i0 * n + i1, v)])], [x, t], [o])
    data, classes, got = torch.randn(m, n), torch.tensor([0, 99, 5, 16, 31, 63, -1]), torch.empty(m, n)
    run = compile_kernel(k, simd)
    run(data, classes, got)
    want = data.clone()
    for row, c in enumerate(classes.tolist()):
        if c >= 0:
            want[row, c] = 1.0
    assert torch.equal(got, want)
    from tcompile.compiler.codegen.target import host_target
    from tcompile.compiler.config import Options

    assert run.source.choices["lanes"] == host_target(Options.make(options={"simd": simd})).width // 4
