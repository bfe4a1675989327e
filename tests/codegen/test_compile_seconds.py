"""Small kernels that the C++ compiler took half a minute over."""

import time

import torch

import tcompile


def test_stores_lane_by_lane_of_many_lanes(tmp_path):
    x = torch.randn(3, 2, requires_grad=True)
    compiled = tcompile.compile(
        lambda x: x.unfold(-1, 2, 1).clone().mul_(2)[:, 1::1], options={"cache_dir": str(tmp_path)}
    )
    before = time.perf_counter()
    compiled(x).sum().backward()
    assert time.perf_counter() - before < 15  # (0.2 s; it was 30)
    assert torch.equal(x.grad, torch.zeros(3, 2))


def test_windows_read_lane_by_lane(tmp_path):
    """Means over windows of 32 elements that lie anywhere."""
    pool = torch.nn.AdaptiveAvgPool2d((2, 5))
    x = torch.randn(2, 4, 16, 16)
    compiled = tcompile.compile(pool, options={"cache_dir": str(tmp_path)})
    before = time.perf_counter()
    got = compiled(x)
    assert time.perf_counter() - before < 20  # (2 s; it was 65)
    torch.testing.assert_close(got, pool(x))


def test_reads_lane_by_lane_stand_in_the_source_once():
    """Several vectors side by side, which hide what arithmetic waits for, were four times as many reads and 12 s of
    compiling.
    """
    with tcompile.record() as r:
        tcompile.compile(torch.nn.AdaptiveAvgPool2d((7, 5)))(torch.randn(4, 8, 28, 28))
    (kernel,) = r.report().kernels
    assert 0 < kernel.source.count("tc::gather<") <= 4 * 7  # (one for each element of the widest window)
