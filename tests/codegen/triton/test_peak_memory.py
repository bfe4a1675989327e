"""What would lie in memory for long is not made early: parts of a large `cat`, results of a shared launch."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.fusion import shared_launches  # noqa: E402
from tcompile.compiler.fusion.schedule import Alloc, Launch  # noqa: E402

from .as_gpu import check_as_gpu  # noqa: E402


def dense_block(x, w):
    parts = [x + 1]
    for _ in range(7):
        parts.append(torch.linalg.inv(parts[-1] @ w))
    return torch.cat(parts, 1) @ torch.cat([w] * 8) + x


def test_a_part_of_a_large_cat_does_not_open_its_memory_early():
    w = torch.eye(64) + torch.randn(64, 64) / 40
    g = check_as_gpu(dense_block, torch.eye(64) * 2, w, rtol=1e-2, atol=1e-2)
    steps = g.schedule.steps
    whole = next(k for k, x in enumerate(steps) if isinstance(x, Alloc) and x.buffer.shape == (64, 512))
    first = next(k for k, x in enumerate(steps) if isinstance(x, Alloc) and x.buffer.shape == (64, 64))
    assert whole > first + 7


def late(a, wide, tall, last):
    return torch.exp(a) @ wide @ tall @ last.bfloat16().float()


def test_shared_launches_do_not_raise_the_peak(monkeypatch):
    args = torch.eye(32), torch.randn(32, 960), torch.randn(960, 32) / 30, torch.randn(32, 256)

    def results_of_the_first(slack):
        monkeypatch.setattr(shared_launches, "SMALL_BYTES", slack)
        steps = check_as_gpu(late, *args, rtol=1e-2, atol=1e-2).schedule.steps
        return next(len(x.outputs) for x in steps if isinstance(x, Launch))

    assert results_of_the_first(1 << 20) == 2, "both read inputs alone"
    assert results_of_the_first(0) == 1, "the second one's result would wait while the wide product lies in memory"
