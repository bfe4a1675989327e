"""The program's Triton kernels on a device: one graph, no copies of what they fill, autotuned ones, CUDA graphs."""

import pytest
import torch

import tcompile

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

import triton
import triton.language as tl


@triton.jit
def rms_kernel(x_ptr, w_ptr, out_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + at, mask=at < columns, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    w = tl.load(w_ptr + at, mask=at < columns, other=0.0)
    tl.store(out_ptr + row * columns + at, x * scale * w, mask=at < columns)


@triton.autotune(configs=[triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((256, 2), (1024, 4))], key=["n"])
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=mask) + tl.load(y_ptr + at, mask=mask), mask=mask)


def rms_norm(x, w):
    out = torch.empty_like(x)
    rms_kernel[(x.numel() // x.shape[-1],)](
        x, w, out, x.shape[-1], 1e-6, BLOCK=triton.next_power_of_2(x.shape[-1]), num_warps=4
    )
    return out


def added(x, y):
    out = torch.empty_like(x)
    add_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, out, x.numel())
    return out


def between_products(x, a, w, b):
    return torch.nn.functional.gelu(rms_norm(x @ a, w) @ b)


def arguments(rows=64, width=512):
    def make(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / width**0.5

    return make(rows, width), make(width, width), make(width), make(width, width)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_norm_between_products(mode):
    compiled = tcompile.compile(between_products, fullgraph=True, mode=mode)
    for _ in range(4):
        args = arguments()
        torch.testing.assert_close(compiled(*args), between_products(*args), rtol=2e-2, atol=2e-2)


def test_what_it_fills_is_not_copied():
    args = arguments()
    report = tcompile.explain(between_products)(*args)
    called = [e.op for e in report.externs]
    assert "rms_kernel (Triton kernel)" in called and not any("clone" in op for op in called), called
    assert not report.graph_breaks


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_autotuned_kernel(dynamic):
    compiled = tcompile.compile(lambda x, y: added(x.sin(), y) * 2, fullgraph=True, dynamic=dynamic)
    for n in (1000, 5000, 70001):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        torch.testing.assert_close(compiled(x, y), (x.sin() + y) * 2)
