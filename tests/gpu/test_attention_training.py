"""Attention that is written by hand and trained, by the library and by our kernels, beside float64."""

import math

import pytest
import torch

import tcompile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def causal(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return (
        torch.softmax(s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).triu(1), -math.inf), -1)
        @ v
    )


def capped(q, k, v):
    s = torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 3) * 3
    return torch.softmax(s + (torch.arange(s.shape[-1], device=q.device) % 64 / 64).to(s.dtype), -1) @ v


def grouped(q, k, v):
    n = q.shape[1] // k.shape[1]
    return causal(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def heads_behind(q, k, v):
    return plain(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2)


def autocast(q, k, v):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=q.dtype != torch.float64):
        return plain(q, k, v)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("size", [(2, 4, 200, 48), (4, 8, 1024, 64), (2, 8, 1000, 128)], ids=str)
@pytest.mark.parametrize("fn", [plain, causal, capped, grouped, heads_behind, autocast])
def test_gradients(fn, size, mode):
    tcompile.reset()
    torch.manual_seed(0)
    b, h, n, d = size
    dtype = torch.float32 if fn is autocast else torch.bfloat16
    shapes = (
        [(b, n, h, d)] * 3 if fn is heads_behind else [(b, h, n, d), *[(b, h // 2 if fn is grouped else h, n, d)] * 2]
    )
    args = [torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shapes]
    compiled = tcompile.compile(fn, mode=mode)
    exact = [x.detach().double().requires_grad_() for x in args]
    want = fn(*exact)
    tangent = torch.randn_like(want)
    wanted = torch.autograd.grad(want, exact, tangent)
    for _ in range(3):
        out = compiled(*args)
        gradients = torch.autograd.grad(out, args, tangent.to(out.dtype))
        for x, w in zip((out, *gradients), (want, *wanted)):
            assert (x.double() - w).norm() <= 1.5e-2 * w.norm()


@pytest.mark.parametrize("size", [(2, 4, 200, 48), (4, 8, 1024, 64)], ids=str)
def test_dropout_draws_what_eager_draws(size):
    tcompile.reset()

    def fn(q, k, v):
        return torch.dropout(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1), 0.2, True) @ v

    args = [torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    tangent = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    compiled = tcompile.compile(fn)
    for seed in range(3):
        found = []
        for f in (fn, compiled):
            torch.manual_seed(seed)
            out = f(*args)
            found.append((out, *torch.autograd.grad(out, args, tangent)))
        for x, w in zip(*found):
            assert (x.double() - w.double()).norm() <= 2e-2 * w.double().norm()


def test_dropout_by_bits():
    """A step after another, in max-autotune's graphs: the rate holds, and no two steps leave out the same."""
    tcompile.reset()
    q, k = (torch.zeros(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    v = torch.ones(4, 8, 512, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def fn(q, k, v):
        return torch.dropout(torch.softmax(q @ k.mT, -1), 0.2, True) @ v

    compiled = tcompile.compile(fn, mode="max-autotune")
    seen = []
    for _ in range(4):
        out = compiled(q, k, v)
        (g,) = torch.autograd.grad(out.sum(), (v,))
        assert abs(out.float().mean().item() - 1) < 5e-3 and abs(g.float().mean().item() - 1) < 5e-3
        seen.append((out.float() - 1)[0, 0, :, 0].clone())
        rows = out.float()[..., 0].sum(-1) / g.float()[..., 0].sum(-1)  # (both count what was kept)
        assert (rows - 1).abs().max() < 2e-2
    assert all(torch.corrcoef(torch.stack([a, b]))[0, 1].abs() < 0.3 for a, b in zip(seen, seen[1:]))


def test_scores_are_never_in_memory():
    tcompile.reset()
    b, h, n, d = 4, 16, 2048, 64
    q, k, v = (torch.randn(b, h, n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    for fn in (plain, causal, capped):
        compiled = tcompile.compile(fn)
        compiled(q, k, v).sum().backward()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compiled(q, k, v).sum().backward()
        assert torch.cuda.max_memory_allocated() - before < b * h * n * n


@pytest.mark.parametrize("mask", [None, "causal", "documents"])
@pytest.mark.parametrize("heads", [8, 2])
def test_flex_attention(mask, heads):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tcompile.reset()
    torch.manual_seed(0)
    n = 500
    which = torch.arange(n, device="cuda") // 130
    masks = {"causal": lambda b, h, i, j: i >= j, "documents": lambda b, h, i, j: (which[i] == which[j]) & (i >= j)}
    block = create_block_mask(masks[mask], None, None, n, n, device="cuda") if mask else None
    q, k, v = (
        torch.randn(2, m, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for m in (8, heads, heads)
    )

    def fn(q, k, v):
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s + (j - i) * 0.01 * h, block_mask=block, enable_gqa=heads != 8
        )

    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    s = exact[0] @ exact[1].repeat_interleave(8 // heads, 1).mT / 8
    i, j = torch.arange(n, device="cuda")[:, None], torch.arange(n, device="cuda")
    s = s + (j - i) * 0.01 * torch.arange(8, device="cuda")[:, None, None]
    s = s if mask is None else s.masked_fill(~masks[mask](0, 0, i, j), -math.inf)
    want = torch.softmax(s, -1) @ exact[2].repeat_interleave(8 // heads, 1)
    tangent = torch.randn_like(want)
    wanted = torch.autograd.grad(want, exact, tangent)
    compiled = tcompile.compile(fn)
    for _ in range(2):
        out = compiled(q, k, v)
        for x, w in zip((out, *torch.autograd.grad(out, (q, k, v), tangent.to(out.dtype))), (want, *wanted)):
            assert (x.double() - w).norm() <= 1.5e-2 * w.norm()


@pytest.mark.parametrize("score", [None, lambda s, b, h, i, j: 5 * torch.tanh(s / 5)])
def test_flex_attention_gives_sums_of_rows(score):
    """In one kernel, with its gradient, of packed sequences that differ from batch to batch."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tcompile.reset()
    torch.manual_seed(0)
    n = 1000
    which = torch.randint(0, 5, (2, n), device="cuda").sort(-1)[0]

    def mask(b, h, i, j):
        return (which[b, i] == which[b, j]) & (i >= j)

    block = create_block_mask(mask, 2, None, n, n, device="cuda")
    args = [torch.randn(2, 4, n, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    compiled = tcompile.compile(
        lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=block, return_lse=True)
    )
    exact = [x.detach().double().requires_grad_() for x in args]
    s = exact[0] @ exact[1].mT / 8
    s = s if score is None else score(s, *[None] * 4)
    s = s.masked_fill(
        ~mask(
            torch.arange(2, device="cuda")[:, None, None, None],
            0,
            torch.arange(n, device="cuda")[:, None],
            torch.arange(n, device="cuda"),
        ),
        -math.inf,
    )
    want = torch.softmax(s, -1) @ exact[2], torch.logsumexp(s, -1)
    tangents = [torch.randn_like(x) for x in want]
    wanted = torch.autograd.grad(want, exact, tangents)
    with tcompile.record() as builder:
        out = compiled(*args)
    assert len(builder.report().graphs[0].kernels) == 1
    for _ in range(2):
        gradients = torch.autograd.grad(out, args, [t.to(x.dtype) for t, x in zip(tangents, out)])
        for x, w in zip((*out, *gradients), (*want, *wanted), strict=True):
            assert (x.double() - w).norm() <= 1.5e-2 * w.norm()
        assert (out[1].double() - want[1]).abs().max() < 1e-3
        out = compiled(*args)
