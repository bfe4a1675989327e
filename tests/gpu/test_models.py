"""What models lead to on a GPU: masks, merged products, vectors, batch norms, pooling, the search. Skipped where there
is no GPU.
"""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler.runtime.gpu import tune

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
f32, f16, bf16 = torch.float32, torch.float16, torch.bfloat16


def randn(*shape, dtype=f32):
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_a_causal_mask_of_positions(dtype):
    q, k, v = (randn(2, 4, 128, 64, dtype=dtype).requires_grad_() for _ in range(3))

    def f(q, k, v):
        at = torch.arange(128, device="cuda")
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=(at[:, None] >= at[None])[None, None].expand(2, 1, 128, 128)
        )

    out, want = tcompile.compile(f)(q, k, v), f(q, k, v)
    torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
    got = torch.autograd.grad(out.float().square().sum(), (q, k, v))
    torch.testing.assert_close(got, torch.autograd.grad(want.float().square().sum(), (q, k, v)), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("rows", [1, 64, 4096])
def test_products_that_share_an_operand(rows):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(256, 256), nn.Linear(256, 128), nn.Linear(256, 128)
            self.gate, self.rise, self.out = (
                nn.Linear(256, 512, bias=False),
                nn.Linear(256, 512, bias=False),
                nn.Linear(512, 256),
            )

        def forward(self, x):
            a = torch.cat([self.k(x), self.v(x)], -1) + self.q(x)
            return self.out(F.silu(self.gate(a)) * self.rise(a)) + x

    m = Block().cuda().half().eval()
    x = randn(rows, 256, dtype=f16)
    c = tcompile.compile(m)
    with torch.no_grad():
        torch.testing.assert_close(c(x), m(x), atol=2e-2, rtol=2e-2)
        m.k.weight.data.mul_(2)  # a write that nothing counts: weights are read in each call
        torch.testing.assert_close(c(x), m(x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_of_convolutions_trains(amp, channels_last):
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(32, 64, 3, 1, 1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    if channels_last:
        m = m.to(memory_format=torch.channels_last)
    other = copy.deepcopy(m)
    c = tcompile.compile(m, fullgraph=True)
    x, y = randn(16, 3, 64, 64), torch.randint(0, 10, (16,), device="cuda")
    for _ in range(3):
        for model, call in ((m, c), (other, other)):
            with torch.autocast("cuda", dtype=bf16, enabled=amp):
                loss = F.cross_entropy(call(x), y)
            model.zero_grad()
            loss.backward()
            for p in model.parameters():
                p.data.sub_(0.01 * p.grad)
    tol = {"atol": 5e-3, "rtol": 5e-2}
    for (name, a), b in zip(m.named_parameters(), other.parameters()):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}", **tol)
        assert a.grad.stride() == b.grad.stride()
    for a, b in zip(m.buffers(), other.buffers()):
        torch.testing.assert_close(a, b, **tol)


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_batch_statistics_in_one_pass(shift):
    for x in (
        randn(32, 64, 28, 28) + shift,
        (randn(32, 64, 28, 28) + shift).to(memory_format=torch.channels_last),
        randn(6, 200000) + shift,
    ):
        dims = (0, 2, 3) if x.ndim == 4 else (1,)
        var, mean = tcompile.compile(lambda x: torch.var_mean(x, dims))(x)
        want, middle = torch.var_mean(x.double(), dims)
        torch.testing.assert_close(var.double(), want, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mean.double(), middle, rtol=1e-5, atol=1e-5)


def test_dropout_of_our_own():
    x = torch.ones(1 << 20, device="cuda", requires_grad=True)
    c = tcompile.compile(lambda x: F.dropout(x * 2, 0.25, True), options={"fallback_random": False})
    torch.manual_seed(3)
    a = c(x)
    a.sum().backward()
    assert abs(float((a != 0).double().mean()) - 0.75) < 0.01
    torch.testing.assert_close(x.grad, a.detach())  # backward keeps what forward kept
    torch.manual_seed(3)
    assert torch.equal(c(x), a) and not torch.equal(c(x), a)


def test_odd_rows():
    x = randn(64, 1031, dtype=bf16).requires_grad_()
    w = randn(1031, 32, dtype=bf16)
    t = torch.randint(0, 1031, (64,), device="cuda")

    def f(x):
        return F.cross_entropy(x.float(), t) + (F.softmax(x, -1) @ w).float().mean()

    out, want = tcompile.compile(f)(x), f(x)
    torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(torch.autograd.grad(out, x), torch.autograd.grad(want, x), rtol=5e-2, atol=1e-3)


def test_the_search_and_memory_that_runs_out_in_its_middle(monkeypatch, tmp_path):
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path))
    x = randn(8192, 1000)

    def f(x):
        return (x * 2).sum(0), x.t().contiguous() + 1

    with tcompile.record() as r:
        got = tcompile.compile(f, mode="max-autotune-no-cudagraphs")(x)
    torch.testing.assert_close(got, f(x), rtol=1e-4, atol=1e-3)
    assert r.report().autotune

    def full(*args):
        raise torch.OutOfMemoryError("CUDA out of memory. (made up)")

    monkeypatch.setattr(tune, "arguments", full)
    with tcompile.record() as r:
        got = tcompile.compile(lambda x: (x * 3).sum(0), mode="max-autotune-no-cudagraphs")(x)
    torch.testing.assert_close(got, (x * 3).sum(0), rtol=1e-4, atol=1e-3)
    assert any("out of memory" in f.reason for f in r.report().fallbacks)
