"""Gradients of parts and of rows: joined, or added where the other gradient lies, instead of summed as full tensors of
zeros.
"""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile


def backward_ops(f: Callable, *args: torch.Tensor, **options: Any) -> list[str]:
    """Compare values and gradients of a scalar function with eager's; the operators of its backward graph."""
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    with tcompile.record() as r:
        got = tcompile.compile(f, fullgraph=True, options=options)(*leaves)
        got.backward()
    want = f(*args)
    want.backward()
    torch.testing.assert_close(got, want)
    for x, y in zip(leaves, args):
        if y.requires_grad:
            assert x.grad.stride() == y.grad.stride()
            torch.testing.assert_close(x.grad, y.grad)
    graph = r.report().graphs[1]
    assert graph.name.endswith("_backward")
    return [n.op for n in graph.lowered.nodes()]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def test_selected_parts_are_joined() -> None:
    def f(x):
        q, k, v = x.unbind(0)
        return (torch.sin(q) * k + v).sum()

    ops = backward_ops(lambda x: (torch.sin(x[0]) * x[2] + x[1]).sum(), leaf(3, 4, 5))
    assert "aten.select_scatter.default" not in ops and "aten.add.Tensor" not in ops
    backward_ops(f, leaf(3, 4, 5))


@pytest.mark.parametrize("bounds", [((0, 3), (3, 7)), ((1, 3), (5, 6)), ((4, 7), (0, 2), (2, 4))])
def test_slices_are_joined(bounds) -> None:
    ops = backward_ops(lambda x: sum(torch.exp(x[:, a:b] * 0.1).sum() * (a + 1) for a, b in bounds), leaf(4, 7))
    assert "aten.slice_scatter.default" not in ops


def test_parts_that_overlap_add_up() -> None:
    backward_ops(lambda x: (x[:, :4].exp() * 2).sum() + x[:, 2:].sin().sum(), leaf(3, 6))
    backward_ops(lambda x: x[0].exp().sum() + x[0].sin().sum() + x[1].sum(), leaf(2, 6))


def test_parts_beside_other_uses() -> None:
    backward_ops(lambda x: x[:2].exp().sum() + (x * x).sum() + x[2:].sin().sum(), leaf(5, 3))


def test_parts_along_two_dimensions_stay() -> None:
    backward_ops(lambda x: x[:2].exp().sum() + x[:, 1:].sin().sum(), leaf(5, 3))


@pytest.mark.parametrize("padding", [None, 3])
def test_rows_of_a_tied_embedding(padding) -> None:
    ids = torch.randint(0, 50, (4, 6))
    ids[0, :3] = 3

    def f(w, b):
        h = torch.tanh(F.embedding(ids, w, padding_idx=padding))
        return F.cross_entropy((h @ w.t() + b).reshape(-1, 50), ids.reshape(-1))

    ops = backward_ops(f, leaf(50, 16), leaf(50))
    assert "aten.embedding_dense_backward.default" not in ops and "aten.index_put.default" in ops
    assert "aten.embedding_dense_backward.default" in backward_ops(
        f, leaf(50, 16), leaf(50), disabled_passes="sums_of_parts"
    )


def test_one_table_used_twice() -> None:
    a, b = torch.randint(0, 9, (5,)), torch.randint(0, 9, (2, 3))
    backward_ops(lambda w: F.embedding(a, w).exp().sum() + F.embedding(b, w).sin().sum(), leaf(9, 4))


def test_multi_head_attention() -> None:
    torch.manual_seed(0)
    m = nn.MultiheadAttention(16, 4, batch_first=True)
    x = torch.randn(2, 5, 16, requires_grad=True)
    w = torch.randn(2, 5, 16)
    backward_ops(lambda x: (m(x, x, x, need_weights=False)[0] * w).sum(), x)
