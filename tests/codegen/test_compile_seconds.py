"""Small kernels that the C++ compiler took half a minute over."""
import time

import torch

import tcompile


def test_stores_lane_by_lane_of_many_lanes(tmp_path):
    x = torch.randn(3, 2, requires_grad=True)
    compiled = tcompile.compile(lambda x: x.unfold(-1, 2, 1).clone().mul_(2)[:, 1::1], options={"cache_dir": str(tmp_path)})
    before = time.perf_counter()
    compiled(x).sum().backward()
    assert time.perf_counter() - before < 15                     # (0.2 s; it was 30)
    assert torch.equal(x.grad, torch.zeros(3, 2))


def test_windows_read_lane_by_lane(tmp_path):
    """Means over windows of 32 elements that lie anywhere."""
    pool = torch.nn.AdaptiveAvgPool2d((2, 5))
    x = torch.randn(2, 4, 16, 16)
    compiled = tcompile.compile(pool, options={"cache_dir": str(tmp_path)})
    before = time.perf_counter()
    got = compiled(x)
    assert time.perf_counter() - before < 20                     # (2 s; it was 65)
    torch.testing.assert_close(got, pool(x))
