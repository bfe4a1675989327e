"""torch.nn.attention.flex_attention on a GPU: one kernel, with what the program does to its scores inside."""
import pytest
import torch

import tcompile
from tcompile.compiler.fusion.schedule import Extern, Launch

from . import as_gpu as gpu
from .as_gpu import as_gpu
from .interpreter import run

flex = pytest.importorskip("torch.nn.attention.flex_attention")
torch.manual_seed(0)
BIAS, TABLE, DOCUMENT = torch.randn(4), torch.randn(4, 200), torch.randint(0, 3, (1, 80))


@pytest.mark.parametrize("score,mask,kernels", [
    (None, None, 1), (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), None, 1), (lambda s, b, h, i, j: s + 0.1 * (i - j), lambda b, h, i, j: i >= j, 1),
    (lambda s, b, h, i, j: s + BIAS[h], lambda b, h, i, j: (i >= j) & (i - j < 30), 1), (lambda s, b, h, i, j: s + TABLE[h, i - j + 90], None, 2),
    (None, lambda b, h, i, j: DOCUMENT[b, i] == DOCUMENT[b, j], 2)])
@pytest.mark.parametrize("laid,heads", [("bhsd", 4), ("bshd", 2)])
def test_one_kernel(score, mask, kernels, laid, heads):
    def made(h):
        x = torch.randn(1, h, 80, 32).half()
        return x if laid == "bhsd" else x.transpose(1, 2).contiguous().transpose(1, 2)
    q, k, v = made(4), made(heads), made(heads)
    block_mask = flex.create_block_mask(mask, None, None, 80, 80, device="cpu") if mask is not None else None

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=True)
    tcompile.reset()
    g = as_gpu(f, q, k, v)
    steps = [s for s in g.schedule.steps if isinstance(s, (Launch, Extern))]
    assert len(steps) == kernels and isinstance(steps[-1], Launch) and steps[-1].kernel.template is not None, [getattr(s, "op", s) for s in steps]
    known = {"q": q, "k": k, "v": v, "bias": BIAS, "table": TABLE, "document": DOCUMENT}
    given = [known[b.name] for b in g.schedule.inputs]
    (got,), want = run(g, given), f(q, k, v)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("score,mask", [(None, None), (lambda s, b, h, i, j: 3 * torch.tanh(s / 3), lambda b, h, i, j: i >= j)])
def test_forward_of_training_is_one_kernel_and_keeps_no_scores(score, mask, monkeypatch):
    monkeypatch.setattr(gpu, "InternalError", (gpu.InternalError, NotImplementedError))          # (eager has no gradients on a CPU)
    q, k, v = (torch.randn(1, 2, 64, 32).half().requires_grad_() for _ in range(3))
    block_mask = flex.create_block_mask(mask, None, None, 64, 64, device="cpu") if mask is not None else None
    tcompile.reset()
    part, forward, _ = gpu.train_as_gpu(lambda q, k, v: flex.flex_attention(q, k, v, score_mod=score, block_mask=block_mask), q, k, v)
    steps = [s for s in forward.schedule.steps if isinstance(s, (Launch, Extern))]
    assert len(steps) == 1 and steps[0].kernel.template is not None
    assert part.saved_bytes == 0, part.saved
