"""What attention's kernels add to their scores: they read rows in one piece, and others wrongly, without a word."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.fusion.schedule import Extern  # noqa: E402

from .as_gpu import as_gpu  # noqa: E402

aten = torch.ops.aten
KERNELS = {
    "efficient": lambda q, k, v, mask: aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0],
    "cudnn": lambda q, k, v, mask: aten._scaled_dot_product_cudnn_attention(q, k, v, mask, False)[0],
}
HEADS = 12


def _by_position(table, positions):
    """(1, heads, queries, keys), heads last in memory: T5's relative positions."""
    return table[positions].permute(2, 0, 1)[None]


MASKS = {
    "expanded": lambda x, keys: x.expand(4, HEADS, 64, keys),
    "computed": lambda x, keys: (x + x.new_ones(1, 1, 64, keys)).expand(4, HEADS, 64, keys),
    "padded and cut": lambda x, keys: F.pad(x, (0, 8))[..., :keys].expand(4, HEADS, 64, keys),
    "whole": lambda x, keys: x + x.new_ones(4, 1, 64, keys),
    "turned": lambda x, keys: (x + x.new_ones(4, 1, 64, keys)).contiguous().mT.contiguous().mT,
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("keys", [64, 61])
def test_rows_of_masks_lie_in_one_piece(kernel, mask, keys):
    def attend(q, k, v, table, positions):
        return KERNELS[kernel](q, k, v, MASKS[mask](_by_position(table, positions), keys))

    q, k, v = (torch.randn(4, HEADS, n, 32).half() for n in (64, keys, keys))
    g = as_gpu(
        attend,
        q,
        k,
        v,
        torch.randn(32, HEADS).half(),
        torch.randint(0, 32, (64, keys)),
        options={"attention": "library"},
    )
    (call,) = (s for s in g.schedule.steps if isinstance(s, Extern) and "attention" in str(s.op))
    given = call.args[3]
    assert given.stride[-1] == 1 and tuple(given.shape) == (4, HEADS, 64, keys)
    if mask in ("expanded", "computed", "turned") or keys % 8 == 0:
        assert all(int(st) % 8 == 0 for st in given.stride[:-1])
