"""Generated Triton kernels, run by Triton's interpreter, against eager."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import Choices  # noqa: E402

from ...lowering.helper import UNARY  # noqa: E402
from .as_gpu import check_as_gpu  # noqa: E402
from .interpreter import check, compile_fn, generate, run  # noqa: E402

f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
LOOPED, SPLIT, PERSISTENT = Choices("looped", rblock=64), Choices("split", rblock=64, split=4), Choices("persistent")


@pytest.mark.parametrize("n", [1, 31, 128, 1000, 4096])
def test_pointwise_of_every_length(n):
    check(lambda a, b: torch.relu((a + b) * a - b) * 2 + 1, torch.randn(n), torch.randn(n), kinds={"pointwise"})


@pytest.mark.parametrize("dtype", [f32, f64, bf16])
def test_unary_functions(dtype):
    """All in one graph, so that a prelude of many helpers is tried as well."""
    x = torch.cat([torch.randn(60), torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 0.5])]).to(
        dtype
    )
    for at in range(0, len(UNARY), 10):
        names = UNARY[at : at + 10]
        check(lambda a: tuple(getattr(torch, n)(a) for n in names), x)


@pytest.mark.parametrize("dtype", [f32, torch.int64, torch.int32, torch.uint8, torch.bool])
def test_binary_functions(dtype):
    g = torch.Generator().manual_seed(3)
    a = torch.randint(0, 90, (200,), generator=g).to(dtype)
    b = torch.randint(1, 7, (200,), generator=g).to(dtype)
    if dtype.is_floating_point or dtype in (torch.int64, torch.int32):
        a, b = a - 40, torch.where(b > 3, b - 8, b)
    names = [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "maximum",
        "minimum",
        "mul",
        "add",
    ]
    if dtype != torch.bool:
        names += ["sub", "div", "fmod", "remainder", "floor_divide"]
    if dtype.is_floating_point:
        names += ["atan2", "hypot", "copysign", "nextafter", "fmax", "fmin"]
    elif dtype != torch.bool:
        names += ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"]
    check(lambda a, b: tuple(getattr(torch, n)(a, b) for n in names[:9]), a, b)
    check(lambda a, b: tuple(getattr(torch, n)(a, b) for n in names[9:]), a, b)


def test_powers():
    x = torch.rand(100) + 0.1
    check(lambda a: (a**2, a**3, a**0.5, a**-0.5, a**-1, a**-2, a**1.7, 2.5**a), x)
    i = torch.randint(-5, 6, (64,))
    check(lambda a: (a**2, a**3, a**5), i)


@pytest.mark.parametrize(
    "to", [f32, f64, bf16, f16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
)
def test_conversions(to):
    floats = torch.tensor([0.0, -0.0, 0.4, 1.5, -1.5, 2.5, 100.7, -100.7, 127.0])
    check(
        lambda a, b, c, d: (a.to(to), c.to(to), d.to(to), b.to(to) if to != torch.uint8 else b.abs().to(to)),
        floats,
        floats * 1.01,
        torch.tensor([0, 1, 2, 127, 255, 1000, -3]),
        torch.tensor([True, False]),
    )


def test_low_precision_rounds_like_eager():
    x, y = torch.randn(300).to(f16), torch.randn(300).to(f16)  # (the interpreter truncates to bfloat16)
    check(lambda a, b: (a * b + a, (a * b).float() + 1), x, y, emulate_precision=True, atol=0, rtol=0)


def test_broadcasts_strides_and_scalars():
    x, y, z = torch.randn(6, 1, 50), torch.randn(4, 1), torch.randn(())
    check(lambda a, b, c: (a + b) * c, x, y, z)
    check(lambda a: a[::2, 1:, :].transpose(0, 2) + 1, torch.randn(7, 5, 9))
    check(lambda a: a.expand(5, 3, 40) * 2, torch.randn(3, 1))


def test_transposes_go_by_tiles():
    check(lambda a: a.t().contiguous() + 1, torch.randn(70, 130), kinds={"tiled"})
    check(lambda a, b: (a.permute(0, 2, 3, 1) * b).contiguous(), torch.randn(2, 24, 9, 20), torch.randn(24))


@pytest.mark.parametrize(
    "choices", [Choices(), LOOPED, SPLIT, PERSISTENT], ids=["rule", "looped", "split", "persistent"]
)
@pytest.mark.parametrize("shape", [(3, 1), (5, 71), (2, 260)])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(choices, shape, dim):
    x = torch.randn(shape if dim else shape[::-1])

    def f(a):
        return (
            a.sum(dim),
            a.amax(dim),
            a.amin(dim),
            a.argmax(dim),
            a.argmin(dim),
            (1 + a / 100).prod(dim),
            (a > 0).any(dim),
            (a > -2).all(dim),
        )

    check(f, x, choices=choices)


@pytest.mark.parametrize("choices", [LOOPED, SPLIT, PERSISTENT], ids=["looped", "split", "persistent"])
def test_nan_wins_and_ties_give_the_first(choices):
    x = torch.randn(6, 130).round()
    x[2, 110] = x[2, 120] = torch.nan
    x[3] = -torch.inf
    x[4] = torch.inf
    check(lambda a: (a.amax(1), a.amin(1)), x, choices=choices)
    clean = torch.randn(6, 130).round()
    clean[3] = -torch.inf
    want = torch.stack(
        [(clean == clean.amax(1, keepdim=True)).int().argmax(1), (clean == clean.amin(1, keepdim=True)).int().argmax(1)]
    )
    got = run(generate(compile_fn(lambda a: (a.argmax(1), a.argmin(1)), clean), choices), (clean,))
    assert torch.equal(torch.stack(got), want)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8, f64, bf16])
@pytest.mark.parametrize("choices", [LOOPED, SPLIT], ids=["looped", "split"])
def test_reductions_of_dtypes(dtype, choices):
    x = torch.randint(0, 100, (2, 150)).to(dtype)
    check(lambda a: (a.sum(1), a.amax(1), a.amin(1), a.argmax(1)), x, choices=choices)


@pytest.mark.parametrize("n", [1, 100, 40_000])
def test_full_reductions(n):
    # (of one sign: a sum near zero says little about its error)
    check(lambda a: (a.sum(), a.amax(), a.mean()), torch.rand(n))


@pytest.mark.parametrize("choices", [Choices(), LOOPED, SPLIT], ids=["rule", "looped", "split"])
def test_softmax_and_norms(choices):
    x, w, b = torch.randn(5, 300), torch.randn(300), torch.randn(300)
    check(lambda a: F.softmax(a * 3, -1), x, choices=choices)
    check(lambda a: F.log_softmax(a, -1), x, choices=choices)
    check(lambda a, w, b: F.gelu(F.layer_norm(a, (300,), w, b)), x, w, b, choices=choices)
    check(
        lambda a, w: (a.float() * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(a.dtype) * w,
        x.to(bf16),
        w.to(bf16),
        choices=choices,
    )
    check(lambda a: a.var(-1), x, choices=choices)
    check(lambda a: F.softmax(a, 0), x, choices=choices)


def test_softmax_of_infinite_rows():
    x = torch.randn(4, 200)
    x[0] = -torch.inf
    x[1, :100] = -torch.inf
    x[2, 5] = torch.inf
    for choices in (PERSISTENT, LOOPED, SPLIT):
        check(lambda a: F.softmax(a, -1), x, choices=choices)


@pytest.mark.parametrize("choices", [Choices(), LOOPED], ids=["rule", "looped"])
def test_cross_entropy(choices):
    x, t = torch.randn(12, 301), torch.randint(0, 301, (12,))
    t[3] = -100
    check(lambda a, t: F.cross_entropy(a, t), x, t, choices=choices)


def test_gather_embedding_index():
    w, ids = torch.randn(40, 16), torch.randint(0, 40, (3, 7))
    check(lambda w, i: F.embedding(i, w) * 2, w, ids)
    check(lambda w, i: w[i[:, 0], i[:, 1] % 16], w, ids)
    check(lambda w, i: w.gather(1, i[:1] % 16), w, ids)


def test_index_out_of_range_fails():
    """As eager's: an assertion on the device."""
    w, good, bad = torch.randn(3, 4), torch.tensor([2, 0]), torch.tensor([2, 3])
    g = generate(compile_fn(lambda w, i: F.embedding(i, w), w, good))
    assert torch.equal(run(g, (w, good))[0], w[good])
    with pytest.raises(AssertionError, match="index out of range"):
        run(g, (w, bad))


def test_cat_and_pad():
    a, b = torch.randn(5, 8), torch.randn(3, 8)
    check(lambda a, b: torch.cat([a + 1, b * 2]), a, b)
    check(lambda a: F.pad(a, (1, 2, 3, 0), value=7.0) + 1, a)


def test_several_outputs_of_several_shapes():
    x = torch.randn(20, 64)
    check(lambda a: (a + 1, (a * 2).sum(-1), a.amax(-1, keepdim=True) - a), x)


def test_wide_indices():
    check(lambda a: F.softmax(a + 1, -1), torch.randn(9, 100), wide=True)
    check(lambda a: (a.sum(), a.argmax()), torch.randn(700), wide=True)
    check(lambda a: a.t().contiguous() * 2, torch.randn(40, 33), wide=True)


def test_masked_reads_stay_in_bounds():
    check(lambda a: F.pad(a, (3, 3))[:, 1:-1].sum(-1), torch.randn(4, 10))


def test_batch_norm_statistics():
    x = torch.randn(6, 5, 7, 7)
    check(lambda a: torch.var_mean(a, (0, 2, 3)), x)
    check(lambda a: torch.var_mean(a, (0, 2, 3)), x.to(memory_format=torch.channels_last))


def test_short_forms_where_results_are_rounded():
    """Values that are rounded to 16 bits anyway take short forms of functions: as close to float64 as eager is. (Not in
    bfloat16: the interpreter cuts that off where a GPU rounds.)"""
    x = torch.cat(
        [torch.linspace(-12, 11, 1500), torch.linspace(-0.1, 0.1, 500), torch.tensor([0.0, -0.0, torch.nan])]
    ).to(f16)
    for f in (
        F.gelu,
        lambda a: F.gelu(a, approximate="tanh"),
        torch.tanh,
        torch.sigmoid,
        F.silu,
        torch.exp,
        lambda a: 1 + torch.tanh(a),
        lambda a: a / (a * a + 2),
    ):
        g = generate(compile_fn(f, x))
        assert any(w in str(g) for w in ("_exp2(", "_reciprocal(", " / ")), str(g)
        ours, eager, exact = run(g, [x])[0].double(), f(x).double(), f(x.double())
        finite = exact.isfinite() & eager.isfinite()
        rms = [float((y - exact)[finite].square().mean().sqrt()) for y in (ours, eager)]
        assert rms[0] <= 1.05 * rms[1]
    far = torch.tensor([torch.inf, -torch.inf, 90, -90]).to(f16)
    check(
        lambda a: (torch.tanh(a), torch.sigmoid(a), torch.exp(a), 1 + torch.tanh(a), 1 + torch.erf(a)),
        far,
        rtol=2e-3,
        atol=1e-6,
    )


def test_exact_forms_where_bits_are_seen():
    x = torch.randn(300).to(bf16)
    for f in (
        lambda a: torch.tanh(a.float()),
        lambda a: (torch.sigmoid(a) > 0.5, torch.sigmoid(a)),
        lambda a: (torch.exp(a) * 100).to(torch.int32),
    ):
        assert "_exp2(" not in str(generate(compile_fn(f, x)))
    assert "_exp2(" not in str(generate(compile_fn(F.gelu, x), emulate_precision=True))


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize(
    "choices",
    [Choices("looped", rblock=32), Choices("split", rblock=32, split=4), Choices("split", rblock=16, split=16)],
)
@pytest.mark.parametrize("dims, shape", [((0, 2), (6, 5, 70)), ((0,), (300, 8)), ((1,), (5, 1000)), ((0,), (33, 8))])
def test_variances_in_one_pass(choices, shift, dims, shape):
    """The mean and the squares around it, however large the mean is."""
    x = torch.randn(shape) + shift

    def f(x):
        var, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
        return (x - mean) * torch.rsqrt(var + 1e-5), mean, var

    g = check(f, x, choices=choices, rtol=2e-5, atol=2e-3 if shift else 1e-5)
    assert "_squares" in str(g)


@pytest.mark.parametrize("dtype", [f32, f16])
def test_later_launches_read_what_earlier_ones_stored(dtype):
    a, b, c = (torch.randn(300, 8).to(dtype) for _ in range(3))

    def f(a, b, c):
        s = torch.relu(a + b) * c
        return s, s.float() - s.float().sum(0, keepdim=True) / 300

    tol = {"rtol": 2e-3, "atol": 2e-3} if dtype == f16 else {}
    g = check(f, a, b, c, choices=Choices("split", rblock=32, split=4), **tol)
    last = g.kernels[0].source.text.split("@triton.jit")[-1]
    assert "tl.load(out0" in last and "tl.load(in" not in last


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: ((x * 2).sum(0), x.sum(1)),
        lambda x: (x * 2).prod(0),
        lambda x: ((x > 0).any(0), (x > 0).all()),
        lambda x: (x.mean(0), x.var(0, correction=0)),
        lambda x: (x * 2).cumsum(0).sum(0),
        lambda x: x.view(4, 0, 16).sum(1),
        lambda x: torch.relu(x.t() @ x) + 1,
    ],
)
def test_no_elements_are_read_where_there_are_none(fn):
    """A block whose lanes are whole multiples of nothing read from address 0."""
    check_as_gpu(fn, torch.randn(0, 64))
