"""Option fast_dropout on a GPU: the words that kernels draw, and what is made of them, against the arithmetic of
compiler/ops/keep_bits.py.
"""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tcompile
from tcompile.compiler.ops import keep_bits
from tcompile.compiler.runtime.gpu import cuda_graphs

from .test_random_numbers import graph_of_the_program

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16
ON = {"fast_dropout": True}


def mask_of(shape, p, seed, offset):
    """What is kept by the draw that begins at an offset of the generator."""
    n = torch.Size(shape).numel()
    words = keep_bits.keep_words(
        torch.tensor(seed),
        torch.tensor(offset // 4),
        torch.arange(-(-n // 32)),
        torch.tensor(keep_bits.keep_fraction(p)),
    )
    return (words[:, None] >> torch.arange(32) & 1).flatten()[:n].view(shape).bool().cuda()


def offset():
    return torch.cuda.default_generators[0].get_offset()


def no_fallback(r):
    assert not [e for e in r.report().fallbacks], r.report().fallbacks


@pytest.mark.parametrize(
    "shape, dtype",
    [((1,), f32), ((33, 1023), f32), ((515, 1024), bf16), ((64, 4098), f16), ((4096, 4096), bf16), ((7, 5, 3), bf16)],
)
def test_forward(shape, dtype):
    x = torch.randn(shape, device="cuda").to(dtype)
    c = tcompile.compile(lambda x: torch.native_dropout(x * 2, 0.1, True), options=ON)
    torch.manual_seed(11)
    for k in range(3):
        y, mask = c(x)
        assert offset() == 16 * (k + 1) and torch.equal(mask, mask_of(shape, 0.1, 11, 16 * k))
        torch.testing.assert_close(y, ((x * 2).float() * mask * keep_bits.scale(0.1)).to(dtype))


def test_sizes_that_vary():
    c = tcompile.compile(lambda x: F.dropout(x + 1, 0.5), options=ON, dynamic=True)
    for n in (1000, 33, 4096):
        x = torch.zeros(n, 70, device="cuda")
        torch.manual_seed(3)
        assert torch.equal(c(x), mask_of(x.shape, 0.5, 3, 0) * 2.0)


def test_distribution():
    c = tcompile.compile(lambda x: F.dropout(x, 0.1), options=ON)
    torch.manual_seed(5)
    x = torch.ones(4096, 4096, device="cuda")
    kept = torch.stack([c(x) != 0 for _ in range(4)])
    assert abs(kept.double().mean().item() - 0.9) < 5 * 0.3 / kept.numel() ** 0.5
    z = (kept.float() - 0.9) / 0.3
    for a, b in (
        (z[1:], z[:-1]),
        (z[:, 1:], z[:, :-1]),
        (z[..., 1:], z[..., :-1]),
        (z[..., 32:], z[..., :-32]),
        (z[..., 4:], z[..., :-4]),
    ):
        assert abs((a * b).mean(dtype=torch.float64).item()) < 5 / a.numel() ** 0.5


@pytest.mark.parametrize("dtype", [f32, bf16])
@pytest.mark.parametrize("mode", ["max-autotune-no-cudagraphs", "max-autotune"])
def test_training(dtype, mode):
    """gelu, dropout, product, dropout, residual, norm: gradients are those of the same masks; each call draws anew."""
    torch.manual_seed(0)
    m = (
        nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.2), nn.Linear(512, 256), nn.Dropout(0.1))
        .cuda()
        .to(dtype)
        .train()
    )
    norm = nn.LayerNorm(256).cuda().to(dtype)
    c = tcompile.compile(lambda x: norm(x + m(x)), mode=mode)
    x = torch.randn(1024, 256, device="cuda").to(dtype).requires_grad_()
    leaves, tangent = [x, *m.parameters(), *norm.parameters()], torch.randn_like(x)
    with tcompile.record() as r:
        for k in range(6):
            torch.manual_seed(k // 2)
            for step in range(1 + k % 2):
                y = got = a = None  # (gradients that are held would be copied from then on)
                y = c(x)
                got = torch.autograd.grad(y, leaves, tangent)
            first, second = (
                mask_of(shape, p, k // 2, 32 * step + 16 * i)
                for i, (shape, p) in enumerate((((1024, 512), 0.2), ((1024, 256), 0.1)))
            )
            h = (F.gelu(m[0](x)).float() * first * keep_bits.scale(0.2)).to(dtype)
            want = norm(x + (m[3](h).float() * second * keep_bits.scale(0.1)).to(dtype))
            like = torch.autograd.grad(want, leaves, tangent)
            for a, b in zip((y, *got), (want, *like), strict=True):
                assert (a.float() - b.float()).norm() <= (1e-4 if dtype is f32 else 5e-2) * b.float().norm() + 1e-6
    no_fallback(r)


def test_checkpoints():
    def f(x):
        return checkpoint(lambda x: F.dropout(x.sin(), 0.5).exp(), x * 2, use_reentrant=False)

    c = tcompile.compile(f, options=ON)
    x = torch.randn(400, 500, device="cuda", requires_grad=True)
    for k in range(3):
        torch.manual_seed(k)
        y = c(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        keep = mask_of(x.shape, 0.5, k, 0)
        torch.testing.assert_close(gradient, torch.where(keep, (x * 2).cos() * 4 * y, 0).detach())


def test_replayed_beside_torch(monkeypatch):
    """Between our draws in a graph torch's kernels draw: each has its place."""
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")

    def f(x):
        a = F.dropout(x + 1, 0.5)
        return a, torch.randn_like(x), F.dropout(a + 1, 0.1)

    x = torch.zeros(256, 512, device="cuda")
    c = tcompile.compile(f, options={**ON, "cudagraphs": True})
    for k in range(8):
        torch.manual_seed(k // 3)
        a, b, d = c(x)
        end = offset()
        first, second = mask_of(x.shape, 0.5, k // 3, 0), mask_of(x.shape, 0.1, k // 3, end - 16)
        assert torch.equal(a, first * 2.0)
        torch.testing.assert_close(d, (a + 1) * second * keep_bits.scale(0.1))
        torch.manual_seed(k // 3)
        torch.cuda.default_generators[0].set_offset(16)
        assert torch.equal(b, torch.randn_like(x)) and offset() == end - 16
        torch.cuda.default_generators[0].set_offset(end)


def test_in_a_graph_of_the_programs_own():
    """A program that captures a compiled function itself: torch's kernels draw the random words, which go on from
    replay to replay.
    """
    x = torch.ones(4096, device="cuda")
    c = tcompile.compile(lambda x: F.dropout(x + 1, 0.5), options=ON)
    graph, y = graph_of_the_program(c, x)
    out = []
    for _ in range(3):
        graph.replay()
        out.append((y != 0).clone())
    assert (
        all(0.4 < k.float().mean() < 0.6 for k in out)
        and not torch.equal(out[0], out[1])
        and not torch.equal(out[1], out[2])
    )
