"""Masks that forward keeps as bits on the device: eager's results, in every mode, and an eighth of the memory."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler.autograd import saved_masks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


class Block(nn.Module):
    def __init__(self, d, dtype):
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(d, 2 * d, dtype=dtype),
            nn.Linear(2 * d, d, dtype=dtype),
            nn.LayerNorm(d, dtype=torch.float32),
        )

    def forward(self, x):
        h = F.dropout(F.gelu(self.up(x)), 0.1)
        return self.norm(x.float() + F.dropout(self.down(h), 0.2).float())


def step(call, m, x, seed, twice=False):
    torch.manual_seed(seed)
    out = call(x)
    loss = (out * out.sin()).sum()
    wanted = [x, *m.parameters()]
    grads = torch.autograd.grad(loss, wanted, retain_graph=twice)
    if twice:
        for a, b in zip(grads, torch.autograd.grad(loss, wanted)):
            assert torch.equal(a, b)
    return [out.detach().clone(), *(g.clone() for g in grads)]


MODES = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"cudagraphs": True, "max_autotune": True, "fast_dropout": False},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype, d", [(torch.bfloat16, 1024), (torch.float32, 520)])
def test_gradients_are_eagers(mode, dtype, d, monkeypatch):
    monkeypatch.setattr(saved_masks, "LEAST", 1 << 16)
    torch.manual_seed(0)
    m = Block(d, dtype).cuda()
    c = tcompile.compile(m, options=MODES[mode])
    for rows in (512, 512, 512, 200):  # (captured at the third; another size then)
        x = torch.randn(rows, d, device="cuda", dtype=dtype, requires_grad=True)
        with tcompile.record() as r:
            got = step(c, m, x, rows, twice=rows == 200)
        for p in r.report().partitions:
            kept = [v for v in p.saved if v.dtype == "bool"]
            assert len(kept) == 2 and sum(v.bytes for v in kept) == 3 * rows * d // 8
        for a, b in zip(got, step(m, m, x, rows), strict=True):
            torch.testing.assert_close(
                a,
                b,
                rtol=2e-2 if dtype is torch.bfloat16 else 1e-3,
                atol=(2e-2 if dtype is torch.bfloat16 else 1e-3) * b.abs().max().item(),
            )
