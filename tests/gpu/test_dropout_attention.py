"""Attention with dropout of our own on the device: the masks that it drew, and gradients that fit them."""

import math

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler.ops.keep_bits import keep_fraction

hopper = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = pytest.mark.skipif(not hopper, reason="no GPU of the Hopper generation on this machine")
MODES = {
    "default": {"fast_dropout": True},
    "reduce-overhead": {"fast_dropout": True, "cudagraphs": True},
    "max-autotune": {"fast_dropout": True, "cudagraphs": True, "max_autotune": True},
}
FAST = MODES["default"]


def attention(q, k, v, causal=False, p=0.1):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)


def operands(b, h, rows, keys, d, dtype, columns=None):
    return [
        torch.randn(b, n, h, c, device="cuda", dtype=dtype).transpose(1, 2).requires_grad_()
        for n, c in ((rows, d), (keys, d), (keys, columns or d))
    ]


def scores(q, k, causal):
    s = q.double() @ k.double().mT / math.sqrt(q.shape[-1])
    return s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device="cuda").triu(1), -math.inf) if causal else s


@pytest.mark.parametrize(
    "b, h, rows, keys, d, dtype, causal, mode",
    [
        (2, 4, 512, 64, 64, torch.bfloat16, False, "default"),
        (3, 2, 200, 50, 64, torch.float16, False, "reduce-overhead"),
        (16, 16, 512, 64, 64, torch.bfloat16, False, "default"),
        (2, 3, 64, 64, 64, torch.float16, True, "reduce-overhead"),
        (2, 3, 333, 32, 32, torch.bfloat16, False, "default"),
    ],
)
def test_masks_and_gradients(b, h, rows, keys, d, dtype, causal, mode):
    """With the identity as values the result is the probabilities that were kept: from them the mask is known."""
    torch.manual_seed(0)
    q, k, _ = operands(b, h, rows, keys, d, dtype)
    v = torch.eye(keys, d, device="cuda", dtype=dtype).expand(b, h, keys, d).contiguous().requires_grad_()
    c = tcompile.compile(lambda q, k, v: attention(q, k, v, causal), options=MODES[mode])
    grad = torch.randn(b, rows, h, d, device="cuda", dtype=dtype).transpose(1, 2)
    masks = []
    for call in range(4):
        for x in (q, k, v):
            x.grad = None
        with tcompile.record() as r:
            out = c(q, k, v)
            out.backward(grad)
        assert call or sum("_kept" in x.source for x in r.report().kernels) >= 2, [x.name for x in r.report().kernels]
        p = torch.softmax(scores(q, k, causal), -1)
        mask = (out != 0)[..., :keys]
        masks.append(mask.clone())
        seen = torch.ones_like(p, dtype=torch.bool).tril() if causal else torch.ones_like(p, dtype=torch.bool)
        share = mask[seen].double().mean().item()
        assert abs(share - 0.9) < 5 * math.sqrt(0.09 / seen.sum().item()) + 1e-4
        ps = [x.detach().double().requires_grad_() for x in (q, k, v)]
        keep = keep_fraction(0.1) / 65536
        want = torch.softmax(scores(ps[0], ps[1], causal), -1) * mask / keep @ ps[2]
        wants = torch.autograd.grad(want, ps, grad.double())
        assert (out.double() - want).norm() <= 6e-3 * want.norm()
        for x, y in zip((q, k, v), wants):
            assert (x.grad.double() - y).norm() <= 1e-2 * y.norm()
    same = (masks[-1] == masks[-2])[seen].double().mean().item()
    assert abs(same - 0.82) < 0.02  # independent draws agree in 0.9^2 + 0.1^2 of places


def test_lengths_and_layouts():
    """Gradients fit the result: a directional derivative, with the bits of one seed."""
    for b, h, rows, keys, d, causal in (
        (2, 3, 77, 131, 64, False),
        (1, 2, 300, 300, 48, True),
        (4, 8, 1024, 1024, 64, True),
        (2, 2, 130, 65, 16, False),
    ):
        torch.manual_seed(1)
        q, k, v = operands(b, h, rows, keys, d, torch.bfloat16)
        c = tcompile.compile(lambda q, k, v, causal=causal: attention(q, k, v, causal), options=FAST)
        grad = torch.randn(b, h, rows, d, device="cuda", dtype=torch.bfloat16)
        torch.manual_seed(5)
        out = c(q, k, v)
        out.backward(grad)
        torch.manual_seed(5)
        again = c(q, k, v)
        assert torch.equal(out, again) and not out.isnan().any()
        change = torch.randn_like(v)
        torch.manual_seed(5)
        with torch.no_grad():
            moved = c(q, k, (v + change).to(v.dtype))
        got, want = (
            ((moved - out).double() * grad.double()).sum(),
            ((v + change).to(v.dtype).double() - v.double()).mul(v.grad.double()).sum(),
        )
        assert (
            abs(got - want)
            <= 2e-2 * (moved - out).double().norm() * grad.double().norm() / math.sqrt(grad.numel()) * 10
        ), (got, want)


def test_a_model_trains():
    """The losses of an encoder layer go down as with eager's numbers, in each mode."""
    for mode in ("default", "max-autotune"):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(128, 2, 256, dropout=0.1, batch_first=True, norm_first=True).cuda().train()
        start = {n: x.clone() for n, x in layer.state_dict().items()}
        x, y = torch.randn(8, 64, 128, device="cuda"), torch.randn(8, 64, 128, device="cuda")
        ends = []
        for f in (layer, tcompile.compile(layer, options=MODES[mode])):
            layer.load_state_dict(start)
            opt = torch.optim.AdamW(layer.parameters(), lr=1e-3)
            for _ in range(60):
                opt.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    loss = F.mse_loss(f(x), y)
                loss.backward()
                opt.step()
            ends.append(loss.item())
        assert abs(ends[0] - ends[1]) < 0.1 * ends[0], ends


def test_a_joined_projection():
    """The gradient of one projection's bias: that of the weights of an input that is 1."""
    torch.manual_seed(0)
    b, n, h, d = 4, 256, 4, 64
    linear = nn.Linear(h * d, 3 * h * d).cuda().to(torch.bfloat16)

    def f(x):
        q, k, v = (y.transpose(1, 2) for y in linear(x).view(b, n, 3, h, d).unbind(2))
        return attention(q, k, v).transpose(1, 2).reshape(b, n, h * d)

    c = tcompile.compile(f, options=FAST)
    x, grad = (torch.randn(b, n, h * d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x[..., 0] = 1
    for _ in range(3):
        linear.zero_grad()
        c(x).backward(grad)
        of_one, of_bias = linear.weight.grad[:, 0].double(), linear.bias.grad.double()
        assert (of_one - of_bias).norm() <= 1e-2 * of_one.norm()
