"""torch.masked: reductions that leave out what a mask says, in one graph, with gradients."""

from __future__ import annotations

import pytest
import torch

import tcompile


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "argmin", "softmax", "var", "cumsum", "norm"])
def test_masked(name):
    fn = getattr(torch.masked, name)
    args = (2.0, 1) if name == "norm" else (1,)
    x, mask = torch.randn(4, 6), torch.rand(4, 6) > 0.3
    f = tcompile.compile(lambda x, m: fn(x, *args, mask=m), fullgraph=True)
    torch.testing.assert_close(f(x, mask), fn(x, *args, mask=mask))
    torch.testing.assert_close(tcompile.compile(lambda x: fn(x, *args), fullgraph=True)(x), fn(x, *args))
    if name in ("sum", "mean", "softmax"):
        grads = []
        for g in (f, lambda x, m: fn(x, *args, mask=m)):
            leaf = x.clone().requires_grad_()
            out = g(leaf, mask)
            out.sin().sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads, equal_nan=True)
