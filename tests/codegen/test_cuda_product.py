"""Products in CUDA C++: which kernels are, what is printed, and (where there is a compiler for it) that it compiles
without spilling.
"""

import inspect
import shutil

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.cuda.product import find_tiles, product_choices  # noqa: E402
from tcompile.compiler.codegen.gelu import SHARE_BELOW  # noqa: E402
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.print_kernel import print_kernel  # noqa: E402
from tcompile.compiler.codegen.triton.printer import without_locals  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job  # noqa: E402

from ..compile_once import compile_once  # noqa: E402
from .triton.as_gpu import as_gpu  # noqa: E402

bf16, f16 = torch.bfloat16, torch.float16
H200, A100 = GpuTarget("cuda", 90, 32, 132), GpuTarget("cuda", 80, 32, 108)


def kernel_of(fn, *inputs):
    (kernel,) = (k.kernel for k in as_gpu(fn, *inputs, target=H200, options={"gpu_products": "generated"}).kernels)
    return kernel


def found(fn, *inputs):
    return find_tiles(without_locals(kernel_of(fn, *inputs)), H200)


def rand(*shape, dtype=bf16):
    return torch.randn(*shape, dtype=dtype)


def test_how_matrices_lie():
    x, w, v = rand(256, 192), rand(192, 384), rand(384, 192)
    t = found(lambda x, w: x @ w, x, w)
    assert (t.m, t.n, t.k, t.a_by_columns, t.b_by_rows) == (256, 384, 192, False, True)
    assert (t.a.length, t.a.lines, t.a.stride, t.b.length, t.b.lines, t.b.stride) == (192, 256, 192, 384, 192, 384)
    t = found(lambda x, v: F.linear(x[:, 64:], v[:, :128]), x, v)
    assert (t.a.length, t.a.stride, t.b.length, t.b.stride, t.b_by_rows) == (128, 192, 128, 192, False)
    t = found(lambda x, y: (x.t() @ y).float(), rand(512, 128), rand(512, 256))
    assert t.a_by_columns and t.b_by_rows and not t.outs and [s.buffer.dtype for s in t.stores] == [torch.float32]
    t = found(lambda x, v, b: (lambda y: (y, F.gelu(y)))(F.linear(x, v, b)), rand(4, 64, 192), v, rand(384))
    assert t.m == 256 and len(t.outs) == len(t.stores) == 2


def test_what_is_no_product_of_these_tiles():
    x, w = rand(256, 256), rand(256, 256)
    assert found(lambda x, w: torch.relu(x @ w), x, w) is not None
    assert find_tiles(without_locals(kernel_of(lambda x, w: torch.relu(x @ w), x, w)), A100) is None, (
        "another generation"
    )
    for fn, *inputs in (
        (lambda x, w: x @ w, rand(100, 256), w),  # too small
        (lambda x, w: x @ w, rand(256, 252), rand(252, 256)),  # lines that begin anywhere
        (lambda x, w: torch.bmm(x, w) * 2, rand(3, 256, 256), rand(3, 256, 256)),
        (lambda x, w: (x @ w).float().lgamma(), x, w),  # an epilogue without a form
        (lambda x, w: F.gelu((x @ w).float()), x, w),  # digits that a polynomial for 16 bits lacks
        (lambda x, w: (F.gelu((x @ w).float()) - w.float()).bfloat16(), x, w),
    ):
        assert found(fn, *inputs) is None


def test_the_tile_that_fills_the_device():
    def choices(m, n):
        k = kernel_of(lambda x, w: torch.relu(x @ w), torch.empty(m, 256, dtype=bf16), torch.empty(256, n, dtype=bf16))
        return product_choices(k, H200, {"yblock": 128})

    def columns(m, n):
        return choices(m, n)[-1].xblock

    assert len(choices(4096, 4096)) == 1 and len(choices(2048, 1024)) > 4, "small tiles of Triton's for few tiles alone"
    assert columns(4096, 4096) == 256
    assert columns(2048, 1024) == 128  # one round of tiles either way


EPILOGUES = {
    "gelu": lambda x, v, b: F.gelu(F.linear(x, v, b)),
    "tanh": lambda x, v, b: F.gelu(F.linear(x, v, b), approximate="tanh"),
    "silu, a matrix beside it": lambda x, v, r: F.silu(F.linear(x, v)) * r,
    "residual, clamp, where": lambda x, v, b, r: torch.where(r > 0, F.linear(x, v, b).clamp(-1, 3) + r, b),
    "dropout behind gelu": lambda x, v, b: (lambda h: (h, *torch.native_dropout(F.gelu(h), 0.1, True)))(
        F.linear(x, v, b)
    ),
    "backward of both": lambda x, v, r, mask: torch.ops.aten.gelu_backward(
        torch.ops.aten.native_dropout_backward(F.linear(x, v), mask, 1 / 0.9), r
    ),
    "two results, one in float32": lambda x, v, b: (lambda y: (y, torch.rsqrt(y.float().abs() + 1).exp()))(
        F.linear(x, v, b)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("dtype, m, columns", [(bf16, 300, 128), (f16, 300, 128), (bf16, 256, 256)])
def test_it_compiles(name, dtype, m, columns):
    n, k = (264, 192) if m == 300 else (512, 1024)
    given = {
        "x": rand(m, k, dtype=dtype),
        "v": rand(n, k, dtype=dtype),
        "b": rand(n, dtype=dtype),
        "r": rand(m, n, dtype=dtype),
        "mask": torch.rand(m, n) < 0.5,
    }
    kernel = kernel_of(EPILOGUES[name], *(given[p] for p in inspect.signature(EPILOGUES[name]).parameters))
    source = print_kernel(kernel, H200, Choices("tiles", xblock=columns), "k")
    assert (
        source.language == "cuda"
        and 'extern "C" __global__' in source.text
        and "test_cuda_product.py" in source.text.split("\n", 2)[1]
    )
    request = Job(source, H200).request()
    assert request["language"] == "cuda" and request["functions"] == [
        {"name": "k", "shared": source.shared, "threads": 384}
    ]
    if shutil.which("nvcc") is None:
        pytest.skip("no CUDA toolkit: the text alone was looked at")
    command = ("nvcc", "-cubin", "-gencode=arch=compute_90a,code=sm_90a", "-std=c++17", "-Xptxas", "-v")
    _, said = compile_once(command, source.text, ".cu", ".cubin")
    assert "0 bytes spill stores" in said and "warpgroup.wait is injected" not in said and "serializ" not in said


@pytest.mark.parametrize("dtype, error", [(bf16, 3.3e-4), (f16, 3.3e-6)])
def test_how_near_the_short_form_of_gelu_is(dtype, error):
    """What gelu.py says of its polynomials; and that all values of 16 bits come out as near as eager's, the infinite
    ones, too.
    """

    def share_below(a):
        p = torch.full_like(a, SHARE_BELOW[dtype][-1])
        for c in reversed(SHARE_BELOW[dtype][:-1]):
            p = p * a + c
        return torch.exp2(p)

    a = torch.linspace(0, 5.8, 20001, dtype=torch.float64)
    assert (share_below(a) / torch.special.ndtr(-a) - 1).abs().max() < error
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = x[~x.isnan()]
    a = x.float().abs().clamp(max=32)
    got = (x.float().clamp(min=0) - a * share_below(a)).to(dtype)
    exact, eager = F.gelu(x.double()), F.gelu(x)
    assert not got.isnan().any() and (got[x == float("inf")] == float("inf")).all()
    x, got, exact, eager = (t[x.isfinite()] for t in (x, got, exact, eager))
    assert (got.double() - exact).abs().max() <= 1.1 * (eager.double() - exact).abs().max()
    seen = exact.abs() > torch.finfo(dtype).tiny * 16 if dtype is f16 else exact.abs() > 1e-7
    assert ((got.double() - exact) / exact)[seen].abs().max() < (0.6 if dtype is bf16 else 0.51) * 2.0 ** (
        -7 if dtype is bf16 else -10
    )
