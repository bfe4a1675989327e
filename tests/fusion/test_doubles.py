"""Nests that compute the same thing are one; buffers of which a part alone is the same are not."""

from __future__ import annotations

import pytest
import tcompile
import torch


@pytest.mark.parametrize("last", ["other", "same"])
def test_concatenations_that_begin_alike(last):
    def f(p, a, b):
        z = torch.zeros(3, 5)
        t = a * 2
        one = torch.cat([p.sin(), z, t * b], 1)
        two = torch.cat([p.sin(), z, t if last == "other" else t * b], 1)
        return one @ torch.ones(15, 2), two @ torch.ones(15, 2), two

    args = [torch.randn(3, 5, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    torch.testing.assert_close(tcompile.compile(f)(*args), f(*args))


def test_recurrent_cell_gradients():
    torch.manual_seed(0)
    cell = torch.nn.GRUCell(6, 5)
    x, h = torch.randn(3, 6), torch.randn(3, 5)

    def gradients(f):
        cell.zero_grad()
        a, b = x.clone().requires_grad_(), h.clone().requires_grad_()
        f(a, b).pow(2).sum().backward()
        return [a.grad, b.grad, *[p.grad.clone() for p in cell.parameters()]]

    torch.testing.assert_close(gradients(tcompile.compile(cell)), gradients(cell))
