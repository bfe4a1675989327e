"""Products of tiles by tensor cores: what is computed before and after the sum, and where they are chosen."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import Choices  # noqa: E402
from tcompile.compiler.codegen.triton.product import product_choices  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu, kinds  # noqa: E402
from .interpreter import Interpreted, print_kernel, run  # noqa: E402

bf16, f16 = torch.bfloat16, torch.float16
OURS = {"gpu_products": "generated"}


def near(fn, *inputs, options=OURS):
    """As far from float64 as eager is, up to twice."""
    g = as_gpu(fn, *inputs, options=options)
    named = dict(zip(fn.__code__.co_varnames, inputs, strict=False))
    got = run(g, [named[b.name] for b in g.schedule.inputs])[0]
    exact, eager = fn(*(t.double() if t.is_floating_point() else t for t in inputs)), fn(*inputs)
    assert got.shape == eager.shape and got.dtype == eager.dtype and got.stride() == eager.stride()
    assert (got.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-3
    return g


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_what_follows_a_product_joins_it(dtype):
    x, w, b = torch.randn(70, 96, dtype=dtype), torch.randn(96, 80, dtype=dtype) / 10, torch.randn(80, dtype=dtype)
    assert kinds(near(lambda x, w, b: F.gelu(x @ w + b), x, w, b)) == ["product"]
    v = w.t().contiguous()
    assert kinds(near(lambda x, v: torch.relu(x @ v.t()), x, v)) == ["product"]
    assert kinds(near(lambda x, v, b: (F.linear(x, v, b) + x[:, :80]) * 0.5, x, v, b)) == ["product"]
    assert kinds(near(lambda x, w: (x @ w).float().sigmoid().to(x.dtype), x, w)) == ["product"]


@pytest.mark.parametrize("m, k, n", [(2, 16, 16), (17, 33, 100), (128, 64, 16), (5, 257, 31)])
def test_sizes_that_fill_no_tile(m, k, n):
    x, w = torch.randn(m, k, dtype=bf16), torch.randn(k, n, dtype=bf16) / k**0.5
    assert kinds(near(lambda x, w: x @ w, x, w)) == ["product"]


def test_operands_of_any_strides():
    x, w = torch.randn(96, 40, dtype=bf16).t(), torch.randn(50, 192, dtype=bf16)[:, ::2] / 10
    assert kinds(near(lambda x, w: x @ w.t(), x, w)) == ["product"]
    assert kinds(near(lambda x, w: (x @ w.t()).t() * 2, x, w)) == ["product"]


def test_batches():
    x, w = torch.randn(3, 40, 33, dtype=bf16), torch.randn(3, 33, 50, dtype=bf16) / 5
    assert kinds(near(lambda x, w: torch.bmm(x, w) * 2, x, w)) == ["product"]
    assert kinds(near(lambda x, w: torch.einsum("bmk,kn->bmn", x, w), x, w[0])) == ["product"]
    assert kinds(near(lambda x, w: torch.matmul(x, w.transpose(1, 2).contiguous().transpose(1, 2)).relu(), x, w)) == [
        "product"
    ]


def test_a_sum_of_products_of_sixteen_bits_is_one_too():
    """Whoever wrote it, products of two values of 16 bits are exact in float32."""
    x, w = torch.randn(40, 48, dtype=bf16), torch.randn(48, 32, dtype=bf16) / 7
    assert kinds(near(lambda x, w: (x.float()[:, :, None] * w.float()).sum(1), x, w, options=None)) == ["product"]
    # not in float32: tensor cores would round
    assert kinds(as_gpu(lambda x, w: (x[:, :, None] * w).sum(1), x.float(), w.float())) != ["product"]


def test_nan_and_inf_stay_in_their_rows():
    x, w = torch.randn(20, 37, dtype=bf16), torch.randn(37, 24, dtype=bf16)
    x[3, 5], x[7, 36], w[2, 11] = float("nan"), float("inf"), float("nan")
    g = as_gpu(lambda x, w: x @ w, x, w, options=OURS)
    assert kinds(g) == ["product"]
    torch.testing.assert_close(run(g, [x, w])[0].isnan(), (x @ w).isnan())
    torch.testing.assert_close(run(g, [x, w])[0].isinf(), (x @ w).isinf())


def eight(x, w, s):
    return F.silu(x @ (w.to(x.dtype) * s).t())


def four(x, u, s):
    v = torch.stack((u & 15, u >> 4), -1).view(96, 4, 32).to(x.dtype) - 8
    return F.linear(x, (v * s[:, :, None]).view(96, 128))


@pytest.mark.parametrize("rows", [3, 20])
def test_weights_of_few_bits_are_unpacked_inside_of_the_product(rows):
    x = torch.randn(rows, 128).to(bf16)
    s, w = torch.rand(96, 1).to(bf16) / 50, torch.randint(-127, 128, (96, 128), dtype=torch.int8)
    assert kinds(near(eight, x, w, s, options=None)) == ["product"]
    s, u = torch.rand(96, 4).to(bf16) / 5, torch.randint(0, 256, (96, 64), dtype=torch.uint8)
    g = near(four, x, u, s, options=None if rows <= 16 else OURS)  # (more rows unpack the same once for each tile)
    assert (
        kinds(g) == ["product"]
        and g.kernels[0].source.text.count("tl.dot(") == 2
        and " % 2" not in g.kernels[0].source.text
    )
    e = (torch.randn(96, 128) / 4).to(torch.float8_e4m3fn)
    assert kinds(check_as_gpu(lambda x, e: x @ e.to(x.dtype).t(), x, e, rtol=2e-2, atol=2e-2)) == ["product"]


def test_the_library_multiplies_where_nothing_says_otherwise():
    x, w = torch.randn(40, 64, dtype=bf16), torch.randn(64, 32, dtype=bf16)
    for options in (None, {"gpu_products": "library"}):
        assert "aten.mm.default" in kinds(as_gpu(lambda x, w: x @ w + 1, x, w, options=options))
    assert "aten.mm.default" in kinds(as_gpu(lambda x, w: x @ w + 1, x.float(), w.float(), options=OURS))
    assert "aten.mm.default" in kinds(as_gpu(lambda x, w: x @ w + 1, x, w, options={"emulate_precision": True, **OURS}))
    assert "aten.mm.default" in kinds(
        as_gpu(
            eight,
            x,
            torch.ones(48, 64, dtype=torch.int8),
            torch.ones(48, 1, dtype=bf16),
            options={"gpu_products": "library"},
        )
    )


def test_other_tiles_give_the_same():
    x, w = torch.randn(40, 70, dtype=bf16), torch.randn(70, 50, dtype=bf16) / 8
    g = as_gpu(lambda x, w: torch.tanh(x @ w), x, w, options=OURS)
    k, want = g.kernels[0], run(g, [x, w])[0]
    for c in (
        Choices(xblock=16, yblock=16, rblock=16),
        Choices(xblock=32, yblock=64, rblock=32, stages=2),
        *product_choices(k.source.choices)[:2],
    ):
        out = torch.empty_like(want)
        Interpreted(k, print_kernel(k.kernel, g.target, c))(x, w, out)
        torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)
