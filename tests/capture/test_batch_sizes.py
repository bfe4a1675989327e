"""Products, attention and layers over batches of every size: one entry for all of them, on every torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tcompile

torch.manual_seed(0)
W, V = torch.randn(10, 5), torch.randn(10)
PLAIN, BIASED, MHA = nn.Linear(10, 4, bias=False), nn.Linear(10, 4), nn.MultiheadAttention(10, 2, batch_first=True)
LAYER = nn.TransformerEncoderLayer(10, 2, 16, batch_first=True, dropout=0.0).eval()


def heads(x):
    return x.view(x.shape[0], 5, 2, 5).transpose(1, 2)


def by_hand(x):
    y = heads(x)
    return (y @ y.transpose(-1, -2) / 5**0.5).softmax(-1) @ y


PROGRAMS = {
    "matrix": lambda x: (x @ W).relu(),
    "vector": lambda x: torch.matmul(x, V),
    "from the left": lambda x: W.t() @ x.transpose(1, 2),
    "einsum": lambda x: torch.einsum("bik,kj->bij", x, W),
    "vector from the left": lambda x: V @ x.transpose(1, 2),
    "broadcast": lambda x: x[:, None] @ x.mT[None],
    "linear": lambda x: F.linear(x, W.t()),
    "layers": lambda x: PLAIN(x) + BIASED(x),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "heads": lambda x: F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True),
    "by hand": by_hand,
    "multihead": lambda x: MHA(x, x, x)[0],
    "batched": lambda x: x.bmm(x.mT) + torch.baddbmm(x[:, :, :5], x, x.mT),
    "encoder": lambda x: LAYER(x),
    "tensordot": lambda x: torch.tensordot(x, W, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_one_entry(name, grad):
    if grad and name in ("vector from the left", "broadcast", "batched", "tensordot", "einsum"):
        pytest.skip("no other products than those with gradients of the others")
    fn = PROGRAMS[name]
    with tcompile.record() as recorded, torch.set_grad_enabled(grad):
        compiled = tcompile.compile(fn, fullgraph=True)
        for b in (3, 4, 6, 5):
            x, y = (torch.linspace(-1, 1, b * 50).reshape(b, 5, 10).requires_grad_(grad) for _ in range(2))
            want, got = fn(x), compiled(y)
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            if grad:
                want.square().sum().backward()
                got.square().sum().backward()
                torch.testing.assert_close(y.grad, x.grad, rtol=1e-4, atol=1e-3)
    entries = recorded.report().entries
    assert len(entries) == 2, [e.source for e in entries]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x * 2).transpose(0, 1),
        lambda x: (x.permute(2, 0, 1) * 2).sin(),
        lambda x: (x[:, 1:] * 2).mT,
        lambda x: (x * 3).transpose(0, 2)[1:],
    ],
)
def test_gradients_of_results_that_lie_in_another_order(fn):
    compiled = tcompile.compile(fn, fullgraph=True, dynamic=True)
    for b in (3, 4, 6):
        x, y = (torch.linspace(-1, 1, b * 50).reshape(b, 5, 10).requires_grad_() for _ in range(2))
        for f, t in ((fn, x), (compiled, y)):
            out = f(t)
            weights = torch.arange(out.numel(), dtype=torch.float32).reshape(out.shape)
            (out.square() * weights).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.parametrize("shape", [(3, 5, 4), (2, 3, 5, 4)])
def test_circular_padding_of_sizes_that_vary(shape):
    def fn(x):
        return F.pad(x, (1, 2, 1, 1), mode="circular") * 1

    compiled = tcompile.compile(fn, dynamic=True)
    for rows in (5, 6, 7):
        x = torch.randn(*shape[:-2], rows, 4)
        torch.testing.assert_close(compiled(x), fn(x))
