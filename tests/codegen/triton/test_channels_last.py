"""What lies channels last stays so on a GPU: group norms, what is made contiguous for eager's kernels alone, products. Interpreted, against eager."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytest.importorskip("triton")

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402


def image(*shape, shift=0.0):
    return (torch.randn(shape) + shift).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("shift", [0.0, 300.0])
def test_group_norm_reads_whole_lines(shift):
    w, b = torch.randn(48), torch.randn(48)
    g = check_as_gpu(lambda x, w, b: F.silu(F.group_norm(x.contiguous(), 4, w, b)), image(2, 48, 9, 7, shift=shift), w, b, rtol=1e-3, atol=1e-3)
    assert not [s for s in g.schedule.steps if hasattr(s, "op")]


def test_statistics_of_groups_are_made_of_those_of_columns():
    g = check_as_gpu(lambda x: torch.var_mean(x.view(2, 4, 12, 80, 6), (2, 3, 4), correction=0), image(2, 48, 80, 6), rtol=1e-3, atol=1e-4)
    assert len(g.kernels) == 2


def test_a_block_of_a_diffusion_network():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.conv, self.last = nn.GroupNorm(4, 32), nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)

        def forward(self, x):
            return self.last(F.silu(self.norm(self.conv(x).contiguous())))
    m, x = Block().to(memory_format=torch.channels_last).eval(), image(2, 32, 8, 8)
    for p in m.parameters():
        p.requires_grad_(False)
    g = as_gpu(m, x)
    assert [k.source.choices["shape"] for k in g.kernels].count("tiled") == 0          # (nothing is turned)


def test_products_read_pixels_where_they_lie():
    g = check_as_gpu(lambda x, w: torch.bmm((x * 2).contiguous().flatten(2).transpose(1, 2), w), image(2, 32, 4, 4), torch.randn(2, 32, 8), rtol=1e-4, atol=1e-4)
    assert len(g.kernels) == 1
