"""What would lie in memory for long is not made early: parts of a large `cat`, results of a shared launch."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.fusion import shared_launches  # noqa: E402
from tcompile.compiler.fusion.fuse import schedule  # noqa: E402
from tcompile.compiler.fusion.memory import lower_peak  # noqa: E402
from tcompile.compiler.fusion.memory.liveness import Liveness, sizes  # noqa: E402
from tcompile.compiler.fusion.schedule import Alloc, Extern, Launch  # noqa: E402
from tcompile.compiler.lowering.lower import lower  # noqa: E402
from tcompile.compiler.lowering.lowered import View  # noqa: E402

from .as_gpu import check_as_gpu, train_as_gpu  # noqa: E402


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


def with_a_shortcut(x, first, second, third, shortcut):
    conv, x = torch.nn.functional.conv2d, torch.relu(x)
    wide = conv(x, first)
    both = torch.cat([wide, torch.tanh(conv(wide, second))], 1)
    return conv(both, third) + conv(x, shortcut)


def test_a_call_that_frees_its_input_comes_before_the_peak(monkeypatch):
    monkeypatch.setattr(lower_peak, "NO_PEAK", 0)
    monkeypatch.setattr(lower_peak, "SMALL_BYTES", 1)
    shapes = (2, 4, 16, 16), (16, 4, 1, 1), (16, 16, 1, 1), (1, 32, 1, 1), (1, 4, 1, 1)
    args = [torch.randn(s) for s in shapes]

    def plan(rounds):
        monkeypatch.setattr(lower_peak, "ROUNDS", rounds)
        return check_as_gpu(with_a_shortcut, *args, rtol=1e-3, atol=1e-3).schedule

    as_written, better = plan(0), plan(64)
    assert better.peak_bytes < as_written.peak_bytes

    def channels(s):
        return [x.args[1].shape[0] for x in s.steps if isinstance(x, Extern)]

    assert channels(as_written) == [16, 16, 1, 1]
    at_peak = next(k for k, x in enumerate(better.steps) if isinstance(x, Alloc) and x.buffer.shape == (2, 32, 16, 16))
    small = next(k for k, x in enumerate(better.steps) if isinstance(x, Extern) and x.args[1].shape == (1, 4, 1, 1))
    assert small < at_peak


def test_what_forward_keeps_counts_until_backward_has_read_it():
    def f(x, a, b, c):
        conv = torch.nn.functional.conv2d
        return torch.tanh(conv(torch.tanh(conv(torch.tanh(conv(x, a)), b)), c)).sum()

    shapes = (2, 4, 8, 8), (16, 4, 1, 1), (16, 16, 1, 1), (16, 16, 1, 1)
    p, _, _ = train_as_gpu(f, *(torch.randn(s).requires_grad_() for s in shapes))
    lowered = lower(p.backward, Options())
    assert {b.name for b in lowered.given} == {f"saved_{v.name}" for v in p.saved}
    steps = [s for s in schedule(lowered, Options()).steps if isinstance(s, (Launch, Extern, View))]
    live = Liveness(steps, lowered)
    alive = live.bytes_alive(sizes({}))
    assert alive[0] >= p.saved_bytes >= 3 * 2 * 16 * 8 * 8 * 4
    assert alive[-1] < p.saved_bytes, "it is freed after its last use"
    lowered.given.clear()
    assert Liveness(steps, lowered).bytes_alive(sizes({}))[0] == alive[0] - p.saved_bytes
