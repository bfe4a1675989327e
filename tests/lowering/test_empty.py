"""Operators over tensors without elements, and copies of views: nests alone, and no call of torch's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .helper import check

SHAPES = [(0, 6, 4), (3, 0, 4), (3, 6, 0)]
OVER_ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(1),
    "softmax to float": lambda x: x.softmax(-1, dtype=torch.float32),
    "logsumexp": lambda x: (x.logsumexp(-1), x.logsumexp((0, 1), keepdim=True)),
    "norms": lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, (0, 2)), torch.linalg.vector_norm(x, 3.0, -1, True)),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:], x.new_ones(x.shape[1:]), x.new_ones(x.shape[1:])),
    "rms norm": lambda x: F.rms_norm(x, x.shape[2:], x.new_ones(x.shape[2:])),
    "spread": lambda x: (*torch.var_mean(x, -1), x.std((0, 1)), x.mean(-1), x.mean()),
    "rounded": lambda x: (x.nan_to_num(), x.clamp(-1, 1), F.gelu(x), F.silu(x), F.elu(x), torch.lerp(x, x, 0.3)),
}
OVER_CHANNELS = {
    "group norm": lambda x: F.group_norm(x, 3, x.new_ones(x.shape[1]), x.new_ones(x.shape[1])),
    "batch norm": lambda x: F.batch_norm(x, x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OVER_ROWS)
def test_rows_without_elements(name, dtype):
    for shape in SHAPES:
        check(OVER_ROWS[name], torch.randn(shape).to(dtype), n_externs=0)


@pytest.mark.parametrize("name", OVER_CHANNELS)
def test_channels_without_elements(name):
    for shape in ((0, 6, 4), (3, 6, 0)) if name != "group norm" else ((0, 6, 4),):
        check(OVER_CHANNELS[name], torch.randn(shape), n_externs=0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_over_classes_of_no_samples(reduction):
    target = torch.empty(0, dtype=torch.int64)
    check(lambda x, t: F.nll_loss(x, t, reduction=reduction), torch.randn(0, 5), target, n_externs=0)
    check(
        lambda x, t: F.cross_entropy(x, t, x.new_ones(5), reduction=reduction), torch.randn(0, 5), target, n_externs=0
    )


def test_no_repetitions():
    for repeats in ((0, 1), (2, 0, 1), (0, 2, 3)):
        check(lambda x, repeats=repeats: x.repeat(repeats), torch.randn(2, 3), n_externs=0)


def test_copies_of_views():
    aten = torch.ops.aten

    def copies(x):
        return (
            *aten.split_copy(x, 2),
            *aten.split_with_sizes_copy(x, [1, 3]),
            *aten.unbind_copy(x),
            aten.as_strided_copy(x, [2, 2], [1, 1]),
            aten.squeeze_copy.dims(x[None], [0]),
        )

    check(copies, torch.randn(4, 6), n_externs=0)
