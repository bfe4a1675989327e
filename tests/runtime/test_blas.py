"""Small products by BLAS (native/blas.h) are torch's own to the bit, whatever the matrices' layouts."""

from __future__ import annotations

import pytest
import tcompile
import torch

from tcompile.compiler.native import native


def _laid(rows, columns, how, dtype):
    if how == "rows":
        return torch.randn(rows, columns, dtype=dtype)
    if how == "columns":
        return torch.randn(columns, rows, dtype=dtype).t()
    return torch.randn(2 * rows, 3 * columns, dtype=dtype)[::2, :columns]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("of_a", ["rows", "columns", "wide"])
@pytest.mark.parametrize("of_b", ["rows", "columns", "wide"])
def test_layouts(dtype, of_a, of_b):
    def f(a, b, c):
        return torch.mm(a, b), torch.addmm(c, a, b), torch.addmm(c[:1], a, b, beta=0.5, alpha=2), torch.mm(b.t(), a.t())

    compiled = tcompile.compile(f, options={"cpu_products": "library"})
    for m, k, n in ((3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (17, 33, 9)):
        args = _laid(m, k, of_a, dtype), _laid(k, n, of_b, dtype), torch.randn(m, n, dtype=dtype)
        torch.testing.assert_close(compiled(*args), f(*args), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0)])
def test_nothing_to_multiply(shape):
    def f(a, b, c):
        return torch.addmm(c, a, b, beta=2)

    m, k, n = shape
    args = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
    compiled = tcompile.compile(f, options={"cpu_products": "library"})
    torch.testing.assert_close(compiled(*args), f(*args), rtol=0, atol=0)


def test_nan_in_what_beta_leaves_out():
    def f(a, b, c):
        return torch.addmm(c, a, b, beta=0)

    args = torch.randn(3, 4), torch.randn(4, 5), torch.full((3, 5), float("nan"))
    assert not tcompile.compile(f, options={"cpu_products": "library"})(*args).isnan().any()


def test_fewer_bits_are_torchs_to_use():
    def f(a, b):
        return a @ b

    args = torch.randn(64, 64), torch.randn(64, 64)
    compiled = tcompile.compile(f, options={"cpu_products": "library"})
    compiled(*args)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.testing.assert_close(compiled(*args), f(*args), rtol=0, atol=0)
    finally:
        torch.set_float32_matmul_precision(before)


def test_calls_of_torch_leave_autograd_as_it_was():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
    compiled = tcompile.compile(net)
    keys = native.read_thread_state()
    with torch.no_grad():
        got = compiled(torch.randn(1, 3, 6, 6))
    got.mul_(2)
    assert native.read_thread_state() == keys and got._version == 1
    x = torch.randn(3, requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
