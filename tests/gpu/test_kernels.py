"""Kernels that the interpreter cannot judge: scans of long rows, additions by many threads, floats of eight bits as the
machine has them.
"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def check(f, *args, rtol=1e-4, atol=1e-4):
    with torch.no_grad():
        got, want = tcompile.compile(f)(*args), f(*args)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


@pytest.mark.parametrize(
    "shape,dim", [((300, 5000), 1), ((300, 5000), 0), ((7, 1000, 33), 1), ((40, 70000), 1), ((3, 5), 1)]
)
def test_scans(shape, dim):
    x = torch.randn(shape, device="cuda")
    x.view(-1)[5] = torch.nan
    check(lambda x: torch.cumsum(x.nan_to_num(0) * 2, dim) + 1, x, atol=1e-2)
    check(lambda x: (torch.cummax(x, dim), torch.cummin(x, dim)), x)
    check(lambda x: (torch.cumprod(x.sigmoid() + 0.5, dim), torch.logcumsumexp(x, dim)), x, rtol=1e-3)
    check(lambda x: torch.cumsum(x > 0, dim), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scans_against_float64(dtype):
    x = torch.rand(512, 8192, device="cuda").to(dtype)
    exact = torch.cumsum(x.double(), 1)
    got, eager = tcompile.compile(lambda x: torch.cumsum(x, 1))(x), torch.cumsum(x, 1)
    assert (got - exact).square().mean().sqrt() <= 2 * (eager - exact).square().mean().sqrt()


def test_many_threads_add_to_few_places():
    i, s = torch.randint(0, 5, (200_000,), device="cuda"), torch.randint(-3, 4, (200_000, 8), device="cuda").float()
    x = torch.zeros(5, 8, device="cuda")
    check(lambda x, i, s: x.index_add(0, i, s), x, i, s, rtol=0, atol=0)  # (whole numbers: every order gives the same)
    check(lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 8), s), x, i, s, rtol=0, atol=0)
    check(lambda x, i, s: x.double().index_put((i,), s.double(), accumulate=True), x, i, s, rtol=0, atol=0)
    check(lambda x, i, s: x.long().index_add(0, i, s.long()), x, i, s, rtol=0, atol=0)


def test_embeddings_train():
    e, ids = nn.Embedding(1000, 64, padding_idx=3).cuda(), torch.randint(0, 1000, (16, 200), device="cuda")
    c = tcompile.compile(lambda ids: e(ids).square().sum())
    c(ids).backward()
    got, e.weight.grad = e.weight.grad, None
    e(ids).square().sum().backward()
    torch.testing.assert_close(got, e.weight.grad, rtol=1e-4, atol=1e-4)


def test_deterministic_algorithms_give_the_same_bits():
    i, s = torch.randint(0, 50, (100_000,), device="cuda"), torch.randn(100_000, 8, device="cuda")
    c = tcompile.compile(lambda i, s: torch.zeros(50, 8, device="cuda").index_add(0, i, s))
    c(i, s)
    torch.use_deterministic_algorithms(True)
    try:
        first = c(i, s)
        assert all(torch.equal(c(i, s), first) for _ in range(5))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits(dtype):
    every = torch.arange(256, dtype=torch.uint8, device="cuda").view(dtype)
    check(lambda x: x.float() * 1, every, rtol=0, atol=0)
    near = every.float()
    x = torch.cat(
        [
            near,
            near * 1.0625,
            near * 0.9375,
            torch.randn(5000, device="cuda") * 100,
            torch.randn(5000, device="cuda") * 1e5,
        ]
    )
    got, want = tcompile.compile(lambda x: (x * 1).to(dtype))(x), x.to(dtype)
    both = got.float().isnan() & want.float().isnan()
    assert torch.equal(got.view(torch.uint8)[~both], want.view(torch.uint8)[~both])


@pytest.mark.parametrize("rows", [1, 2, 8])
def test_weights_of_few_bits(rows):
    x, s = torch.randn(rows, 1024, device="cuda").bfloat16(), torch.rand(768, 1, device="cuda").bfloat16() / 50
    w = torch.randint(-127, 128, (768, 1024), dtype=torch.int8, device="cuda")
    check(lambda x, w, s: x @ (w.to(x.dtype) * s).t(), x, w, s, rtol=3e-2, atol=0.3)
    f8 = w.float().div(100).to(torch.float8_e4m3fn)
    check(lambda x, w, s: F.linear(x, w.to(x.dtype)) * s[:, 0], x, f8, s, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_group_norms_between_convolutions(layout, dtype):
    m = nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1),
        nn.GroupNorm(8, 64),
        nn.SiLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.GroupNorm(4, 32),
    )
    m = m.to("cuda", dtype, memory_format=layout).eval()
    x = torch.randn(2, 32, 40, 24, device="cuda", dtype=dtype).to(memory_format=layout)
    tol = 2e-3 if dtype == torch.float32 else 3e-2
    check(m, x, rtol=tol, atol=tol)
    with torch.no_grad():
        assert tcompile.compile(m)(x).stride() == m(x).stride()


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_pads_and_resampling(mode):
    x = torch.randn(2, 8, 31, 50, device="cuda")
    check(lambda x: F.pad(F.relu(x), (3, 2, 1, 4), mode=mode) * 2, x)
    for how in ("bilinear", "bicubic"):
        check(lambda x: F.relu(F.interpolate(x, scale_factor=2, mode=how, align_corners=False)), x)
