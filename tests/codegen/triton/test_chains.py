"""Chains of products (gradients of attention written out) are kernels whose inner products are never in memory:
interpreted, against float64.
"""

import math

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import Choices  # noqa: E402
from tcompile.compiler.codegen.triton.print_kernel import print_kernel  # noqa: E402
from tcompile.compiler.fusion.schedule import Extern, Launch  # noqa: E402
from tcompile.compiler.fusion.tiled.producers import Finder  # noqa: E402

from .as_gpu import as_gpu, train_as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

pytestmark = pytest.mark.slow

f16, f32 = torch.float16, torch.float32


def rand(*shape, dtype=f16):
    return torch.randn(shape).to(dtype)


def calls(g):
    return [
        s.kernel.name.split("_", 1)[1] if isinstance(s, Launch) else str(s.op)
        for s in g.schedule.steps
        if isinstance(s, (Launch, Extern))
    ]


def gradients(mask=None, mod=lambda s: s, slope=lambda s: 1.0):
    """Backward of attention from the row's logarithm of sums and the row's sum of result * gradient."""

    def backward(q, k, v, g, lse, delta):
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        s = q.to(wide) @ k.to(wide).mT / math.sqrt(q.shape[-1])
        y = mod(s)
        if mask is not None:
            y = torch.where(mask(s), y, -math.inf)
        p = torch.exp(y - lse[..., None])
        dv = p.to(v.dtype).mT @ g
        ds = p * (g.to(wide) @ v.to(wide).mT - delta[..., None]) * slope(s)
        if mask is not None:
            ds = torch.where(mask(s), ds, 0.0)
        ds = (ds / math.sqrt(q.shape[-1])).to(q.dtype)
        return ds @ k, ds.mT @ q, dv

    return backward


def causal(s):
    rows, keys = s.shape[-2:]
    return torch.arange(rows)[:, None] >= torch.arange(keys)[None, :]


def window(s):
    d = torch.arange(s.shape[-2])[:, None] - torch.arange(s.shape[-1])[None, :]
    return (d >= 0) & (d < 20)


def operands(b, h, rows, keys, inner, width=None, mask=None, mod=lambda s: s):
    width = width or inner
    q, k, v, g = rand(b, h, rows, inner), rand(b, h, keys, inner), rand(b, h, keys, width), rand(b, h, rows, width)
    s = mod(q.double() @ k.double().mT / math.sqrt(inner))
    s = torch.where(mask(s), s, -math.inf) if mask else s
    lse = torch.logsumexp(s, -1).to(f32)
    delta = ((torch.exp(s - lse[..., None]) @ v.double()) * g.double()).sum(-1).to(f32)
    return q, k, v, g, lse, delta


def check(fn, *args, kernels=("chain", "chain"), choices=Choices()):
    g = as_gpu(fn, *args)
    assert sorted(calls(g)) == sorted(kernels), calls(g)
    if choices != Choices():
        for k in g.kernels:
            k.source = print_kernel(k.kernel, g.target, choices, name=k.name)
    named = dict(zip(fn.__code__.co_varnames, args))
    got = run(g, [named[b.name] for b in g.schedule.inputs if getattr(b, "name", None) in named])
    for a, b in zip(got, fn(*(x.double() if x.is_floating_point() else x for x in args)), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-2, atol=1e-2)
    return g


@pytest.mark.parametrize(
    "shape", [(2, 3, 64, 64, 32), (1, 3, 40, 70, 24), (2, 1, 100, 33, 16, 48), (1, 1, 128, 128, 64)], ids=str
)
def test_lengths_and_head_sizes(shape):
    check(gradients(), *operands(*shape))


@pytest.mark.parametrize("mask", [causal, window])
@pytest.mark.parametrize("rows", [96, 100])
@pytest.mark.parametrize("choices", [Choices(), Choices(xblock=32, rblock=16)], ids=str)
def test_masks_bound_the_loops(mask, rows, choices):
    g = check(gradients(mask), *operands(2, 2, rows, rows, 32, mask=mask), choices=choices)
    assert all("first_row" in k.source.text for k in g.kernels)


def test_what_is_done_to_scores():
    mod, slope = (lambda s: torch.tanh(s / 5) * 5), (lambda s: 1 - torch.tanh(s / 5) ** 2)
    check(gradients(causal, mod, slope), *operands(2, 2, 50, 50, 32, mask=causal, mod=mod))


def test_what_two_chains_lead_to_is_in_neither():
    """(The gradient of what two products take: each kernel waited for the other's, and read memory that nobody
    wrote.)
    """
    given = [
        torch.randn(s, dtype=torch.bfloat16).mul(0.2).requires_grad_() for s in ((40, 32), (32, 64), (32, 64), (64, 32))
    ]

    def gated(x, w, v, u):
        return (torch.nn.functional.silu(x @ w) * (x @ v)) @ u

    p, forward, backward = train_as_gpu(gated, *given)
    assert [s.kernel.name for s in backward.schedule.steps if isinstance(s, Launch)][1:] == [
        "k3_chain",
        "k4_chain",
        "k5_add",
    ]
    want, grad = gated(*given), torch.randn(40, 32, dtype=torch.bfloat16)
    want.backward(grad)
    with torch.no_grad():
        named = dict(zip("xwvu", given))
        out, *kept = run(forward, [named[b.name] for b in forward.schedule.inputs])
        got = run(backward, [*(named[forward.schedule.inputs[i].name] for i in p.saved_inputs), *kept, grad])
    for a, b in zip((out, *got), (want, *(t.grad for t in given)), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)


def test_what_no_chain_is_made_of_is_not_written_out(monkeypatch):
    """A pad between two products changes the shape. Through several pads and windows an element takes long to write."""
    written = []
    scores = Finder.scores
    monkeypatch.setattr(Finder, "scores", lambda self, v, ranges: written.append(v) or scores(self, v, ranges))
    a, b, c = rand(4, 128, 16), rand(4, 16, 128), rand(4, 128, 32)
    padded = as_gpu(lambda a, b, c: torch.nn.functional.pad((a @ b) * 2, (1, 1)).transpose(1, 2) @ c, a, b, c)
    assert "chain" not in calls(padded) and not written
    chain = as_gpu(lambda a, b, c: ((a @ b) * 2) @ c, a, b, c)
    assert calls(chain) == ["chain"] and written
