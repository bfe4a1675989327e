"""The gradients of RMS norm as the operator that DTensor calls on a GPU: torch has no kernel of it for the CPU, so the
oracle is autograd's way through `rms_norm`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.events import listen


@pytest.mark.parametrize("shape, normalized", [((4, 6, 32), (32,)), ((3, 4, 8), (4, 8)), ((5, 1), (1,))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weighted", [True, False])
def test_as_autograd_s(shape, normalized, dtype, weighted):
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    w = torch.randn(normalized, dtype=dtype, requires_grad=True) if weighted else None
    g, inner = torch.randn(shape, dtype=dtype), tuple(range(-len(normalized), 0))
    want = torch.autograd.grad(F.rms_norm(x, normalized, w, 1e-6), [x, w] if weighted else [x], g)

    def fn(g, x, w):
        rstd = (x.float().square().mean(inner, keepdim=True) + 1e-6).rsqrt()
        return torch.ops.aten._fused_rms_norm_backward(g, x, normalized, rstd, w, [True, weighted])

    fallbacks = []
    with listen(lambda e: fallbacks.append(e) if e.kind == "fallback" else None):
        got = tcompile.compile(fn, fullgraph=True)(g, x.detach(), w.detach() if weighted else None)
    tolerance = dict(atol=0.05, rtol=0.02) if dtype is torch.bfloat16 else dict(atol=1e-5, rtol=1e-4)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, **tolerance)
    assert not fallbacks
