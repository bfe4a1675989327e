"""Rows that are made in another order than they are reduced in share a kernel on a GPU."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from ..codegen.triton.as_gpu import check_as_gpu


def test_a_normalisation_of_what_lies_by_columns():
    """Attention's projection lies (length, batch, width); the residual and its normalisation go (batch, length,
    width).
    """

    def f(h, x):
        a = torch.tanh(h * 2) + torch.sin(h)  # (too much to be computed again: made as it lies)
        y = x + a.transpose(0, 1)
        return F.layer_norm(y, (64,)), y, a

    g = check_as_gpu(f, torch.randn(12, 8, 64), torch.randn(8, 12, 64), atol=1e-4, rtol=1e-4)
    assert len(g.kernels) == 1, g.host.source


def test_a_position_in_two_reduced_dimensions_keeps_its_order():
    def f(h, x):
        a = torch.tanh(h * 2) + torch.sin(h)
        y = x + a.permute(1, 2, 0, 3)
        return y.flatten(2).argmax(-1), y.sum((2, 3)), a

    check_as_gpu(f, torch.randn(5, 4, 6, 16), torch.randn(4, 6, 5, 16), atol=1e-4, rtol=1e-4)


def test_a_piece_of_what_a_group_reads_is_not_in_its_space():
    """Both go through the buffer from its first element on, one of them not to its end."""
    x = torch.randn(64, 33, 16)
    check_as_gpu(lambda a: torch.cat([a, a * 2, a[:3]]), x)
    check_as_gpu(lambda a: (a * 2, a[:3] * 3, a[5:].transpose(0, 1) + 1), x)
    check_as_gpu(lambda a: (a[:32] * 2, a * 3), x)
