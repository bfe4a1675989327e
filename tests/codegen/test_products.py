"""Matrix products as generated kernels: every layout, ragged sizes, epilogues, batches, attention; against torch."""

from __future__ import annotations

import math
from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F

import tcompile

R = torch.randn
SIZES = ((128, 64, 96), (37, 53, 29), (2, 8, 1024), (130, 1025, 33), (1, 100, 40))
OPTIONS = {"cpu_products": "generated"}


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def compiled(f: Callable, *args: torch.Tensor, **options: Any) -> tuple[torch.Tensor, Any]:
    with torch.no_grad(), tcompile.record() as r:
        out = tcompile.compile(f, fullgraph=True, options={**OPTIONS, **options})(*args)
    return out, r.report()


def check(f: Callable, *args: torch.Tensor, calls: int = 0, **options: Any) -> Any:
    with torch.no_grad():
        want = f(*args)
        exact = f(*(a.double() if a.is_floating_point() else a for a in args))
    got, report = compiled(f, *args, **options)
    assert got.stride() == want.stride()
    assert len(report.externs) == calls, [e.op for e in report.externs]
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4 * math.sqrt(max(args[0].shape)))
    rms = [(x.double() - exact).square().mean().sqrt().item() for x in (got, want)]
    assert rms[0] <= 2 * rms[1] + 1e-7
    return report


@pytest.mark.parametrize("m, k, n", SIZES)
def test_layouts(m: int, k: int, n: int) -> None:
    check(lambda x, w: x @ w, R(m, k), R(k, n))
    check(lambda x, w: x @ w.t(), R(m, k), R(n, k))
    check(lambda x, w: x.t() @ w.t(), R(k, m), R(n, k))
    check(lambda x, w: x[::2].t() @ w[:, 1::3], R(2 * k, m), R(k, 3 * n + 1))


@pytest.mark.parametrize("m, k, n", SIZES)
def test_epilogues_are_in_the_kernel(m: int, k: int, n: int) -> None:
    assert len(check(lambda x, w, b: F.gelu(F.linear(x, w, b)), R(m, k), R(n, k), R(n)).kernels) == 1
    assert len(check(lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2), R(m, k), R(k, n), R(m, n)).kernels) == 1
    assert len(check(lambda x, w, b, r: F.linear(x, w, b) + r, R(4, m, k), R(n, k), R(n), R(m, n)).kernels) == 1


def test_beta_0_does_not_look_at_the_bias() -> None:
    b = torch.full((40, 24), math.nan)
    check(lambda x, w, b: torch.addmm(b, x, w, beta=0), R(40, 50), R(50, 24), b)


def test_residual_and_norm() -> None:
    report = check(
        lambda x, w, b, r: F.layer_norm(F.linear(x, w, b) + r, (48,)), R(4, 37, 53), R(48, 53), R(48), R(4, 37, 48)
    )
    assert len(report.kernels) == 2


def test_epilogue_fusion_off() -> None:
    assert len(check(lambda x, w: torch.relu(x @ w), R(64, 64), R(64, 64), epilogue_fusion=False).kernels) == 2
    assert len(check(lambda x, w: torch.relu(x @ w), R(64, 64), R(64, 64), disable_fusion=True).kernels) == 2


@pytest.mark.parametrize("m, k, n", SIZES)
def test_batches(m: int, k: int, n: int) -> None:
    check(lambda q, x: torch.bmm(q, x.transpose(1, 2)), R(3, m, k), R(3, n, k))
    check(lambda q, x: q @ x.transpose(-2, -1) / 8, R(2, 3, m, k), R(2, 3, n, k))
    check(lambda c, q, x: torch.baddbmm(c, q, x, alpha=0.5), R(3, m, n), R(3, m, k), R(3, k, n))


def test_special_values_stay_where_they_are() -> None:
    x, w = R(40, 20), R(20, 30)
    x[3, 4], x[39, 0], w[0, 29] = math.inf, math.nan, -math.inf
    got, _ = compiled(lambda x, w: x @ w, x, w)
    torch.testing.assert_close(got, x @ w, equal_nan=True)


def test_symbolic_sizes() -> None:
    f = tcompile.compile(lambda x, w, b: torch.relu(F.linear(x, w, b)), fullgraph=True, dynamic=True, options=OPTIONS)
    for m, k, n in ((40, 50, 60), (41, 17, 33), (2, 300, 16), (300, 64, 64)):
        x, w, b = R(m, k), R(n, k), R(n)
        torch.testing.assert_close(f(x, w, b), torch.relu(F.linear(x, w, b)), rtol=1e-4, atol=1e-4)


def test_precision_is_the_librarys_on_request() -> None:
    x, w = R(64, 700), R(700, 64)
    got, report = compiled(lambda x, w: x @ w, x, w, emulate_precision=True)
    assert torch.equal(got, x @ w) and len(report.externs) == 1
    assert len(compiled(lambda x, w: x @ w, x, w, cpu_products="library")[1].externs) == 1


def test_other_dtypes_are_library_calls() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        x, w = R(32, 32).to(dtype), R(32, 32).to(dtype)
        got, report = compiled(lambda x, w: x @ w, x, w)
        assert torch.equal(got, x @ w) and len(report.externs) == 1


@pytest.mark.parametrize("b, h, n, s, d", ((2, 3, 33, 40, 16), (1, 4, 1, 64, 32), (2, 8, 128, 128, 64)))
def test_attention(b: int, h: int, n: int, s: int, d: int) -> None:
    q, k, v = R(b, h, n, d), R(b, h, s, d), R(b, h, s, d)
    attend = F.scaled_dot_product_attention
    check(lambda q, k, v: attend(q, k, v), q, k, v)
    check(lambda q, k, v: attend(q, k, v, is_causal=True), q, k, v)
    check(lambda q, k, v, m: attend(q, k, v, attn_mask=m, scale=0.3), q, k, v, R(b, 1, n, s))
    mask = torch.rand(b, 1, n, s) > 0.5
    mask[0, :, 0] = False  # a row that sees nothing gives 0
    got, report = compiled(lambda q, k, v, m: attend(q, k, v, attn_mask=m), q, k, v, mask)
    torch.testing.assert_close(got, attend(q, k, v, attn_mask=mask), rtol=1e-4, atol=1e-5)
    assert not report.externs
    heads_last = [R(b, x, h, d).transpose(1, 2) for x in (n, s, s)]
    check(lambda q, k, v: attend(q, k, v).transpose(1, 2).reshape(b, n, h * d) * 2, *heads_last)


def test_gradients_of_attention_and_linear() -> None:
    q, k, v = (R(2, 4, 32, 16, requires_grad=True) for _ in range(3))
    w = R(64, 64, requires_grad=True)

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (o.transpose(1, 2).reshape(2, 32, 64) @ w).square().sum()

    want = torch.autograd.grad(f(q, k, v, w), (q, k, v, w))
    got = torch.autograd.grad(tcompile.compile(f, fullgraph=True, options=OPTIONS)(q, k, v, w), (q, k, v, w))
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("b", (1, 2))
def test_rows_beyond_the_caches_are_packed_block_by_block(b: int) -> None:
    """As the gradient of a vocabulary's weights: many rows, a short sum. The rows are packed by the thread that
    multiplies them.
    """
    x, y = torch.randn(b, 250, 5003), torch.randn(b, 250, 70)

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x.transpose(1, 2) @ y)

    source = check(f, x, y).kernels[0].source
    assert "_pack(" not in source and "held_rows" in source
    row_major = x.transpose(1, 2).contiguous()
    assert "held_rows" in check(lambda a, b: a @ b, row_major, y).kernels[0].source
