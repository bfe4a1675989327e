"""Option fast_dropout: dropout by bits. The pass is run on the CPU, where torch draws the random words
(compiler/ops/keep_bits.py).
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tcompile
from tcompile.compiler.ops import keep_bits
from tcompile.compiler.config import Options
from tcompile.compiler.rewrite import fast_dropout

ON = {"fast_dropout": True}


@pytest.fixture
def by_bits(monkeypatch):
    monkeypatch.setattr(fast_dropout, "DEVICE", "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 96), (7, 13), (1,), (3, 5, 33)])
def test_result_and_mask(by_bits, shape, dtype):
    x = torch.randn(shape).to(dtype)
    y, mask = tcompile.compile(lambda x: torch.native_dropout(x, 0.25, True), options=ON)(x)
    assert y.dtype is dtype and mask.dtype is torch.bool and y.stride() == x.stride() and mask.stride() == x.stride()
    assert torch.equal(y, (x.float() * (mask * torch.tensor(keep_bits.scale(0.25)))).to(dtype))


def test_distribution_and_seeds(by_bits):
    f = tcompile.compile(lambda x: torch.native_dropout(x, 0.1, True)[0], options=ON)
    x, kept = torch.ones(512, 1000), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        kept += [f(x) != 0, f(x) != 0]
    assert torch.equal(kept[0], kept[2]) and torch.equal(kept[1], kept[3])
    different = torch.stack([kept[0], kept[1], kept[4], kept[5]]).double()
    deviation = 0.3
    assert abs(different.mean() - 0.9) < 5 * deviation / different.numel() ** 0.5
    c = (different - 0.9) / deviation
    pairs = [(c[a], c[b]) for a in range(4) for b in range(a)] + [
        (c[:, 1:], c[:, :-1]),
        (c[:, :, 1:], c[:, :, :-1]),
        (c[:, :, 32:], c[:, :, :-32]),
    ]
    for a, b in pairs:  # draws, rows, neighbours, words
        assert abs((a * b).mean()) < 5 / a.numel() ** 0.5
    assert abs(f(x).mean() - 1) < 5 * deviation / 0.9 / x.numel() ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_same_mask(by_bits, dtype):
    w = torch.randn(48, 48).to(dtype)

    def f(x, b):
        y, mask = torch.native_dropout(F.gelu(x + b), 0.3, True)
        return y @ w, mask

    x, b = torch.randn(32, 48).to(dtype).requires_grad_(), torch.randn(48).to(dtype).requires_grad_()
    c = tcompile.compile(f, options=ON)
    for _ in range(2):
        x.grad = b.grad = None
        out, mask = c(x, b)
        out.square().sum().backward()
        u, v = x.detach().requires_grad_(), b.detach().requires_grad_()
        want = (F.gelu(u + v).float() * mask * keep_bits.scale(0.3)).to(dtype) @ w
        want.square().sum().backward()
        for got, like in ((out, want), (x.grad, u.grad), (b.grad, v.grad)):
            assert (got.float() - like.float()).norm() <= (
                1e-5 if dtype is torch.float32 else 1e-2
            ) * like.float().norm()


def test_layouts(by_bits):
    """Strides are eager's, whatever the layout; a bit lies where its element does."""
    base = torch.randn(4, 6, 8, 10)
    f = tcompile.compile(lambda x: torch.native_dropout(x, 0.5, True), options=ON)
    for x in (
        base.permute(0, 3, 1, 2),
        base.transpose(0, 1),
        base[:, :, ::2],
        base[:, 1:3],
        base[0, 0, 0].expand(5, 10),
        base[0, 0, 0, 0],
    ):
        y, mask = f(x)
        want = torch.native_dropout(x, 0.5, True)
        assert y.stride() == want[0].stride() and mask.stride() == want[1].stride()
        assert torch.equal(y, x * mask * 2) and (x.numel() < 50 or 0 < mask.float().mean() < 1)


def test_sizes_that_vary(by_bits):
    c = tcompile.compile(lambda x: torch.native_dropout(x * 2, 0.5, True), options=ON, dynamic=True)
    for rows in (64, 3, 40, 2):
        x = torch.randn(rows, 37)
        y, mask = c(x)
        assert torch.equal(y, x * 2 * mask * 2)
    assert tcompile.compile(lambda x: torch.native_dropout(x[2:], 0.5, True)[0], options=ON, dynamic=True)(
        torch.randn(2, 5)
    ).shape == (0, 5)


def test_checkpoints_recompute_with_the_same_bits(by_bits):
    def block(x):
        return torch.native_dropout(x.sin(), 0.5, True)[0].exp()

    def f(x):
        return checkpoint(block, x * 2, use_reentrant=False)

    c = tcompile.compile(f, options=ON, fullgraph=True)
    x = torch.randn(40, 50, requires_grad=True)
    for _ in range(2):
        y = c(x)
        kept = y.detach() != 1
        (gradient,) = torch.autograd.grad(y.sum(), x)
        want = torch.where(kept, (x * 2).cos() * 2 * 2 * y, 0).detach()
        torch.testing.assert_close(gradient, want)


def test_what_is_left_alone(by_bits):
    x = torch.randn(6, 4, 5, 5)

    def differs(fn, x=x, options=ON):
        out = []
        for c in (fn, tcompile.compile(fn, options=options)):
            torch.manual_seed(3)
            out.append(c(x))
        return not torch.equal(*out)

    assert differs(lambda x: torch.native_dropout(x, 0.5, True)[0])
    for fn in (
        lambda x: torch.native_dropout(x, 0.0005, True)[0],
        lambda x: torch.native_dropout(x, 1.0, True)[0],
        lambda x: torch.native_dropout(x, 0.0, True)[0],
        lambda x: torch.native_dropout(x, 0.5, False)[0],
        lambda x: torch.native_dropout(x.double(), 0.5, True)[0],
        lambda x: F.dropout2d(x, 0.5),
        lambda x: F.dropout3d(x, 0.5),
        lambda x: F.dropout1d(x[0], 0.5),
        lambda x: F.alpha_dropout(x, 0.5),
        lambda x: torch.bernoulli(x, 0.5),
        lambda x: torch.native_dropout(x[:0], 0.5, True)[0],
    ):
        assert not differs(fn)
    assert not differs(lambda x: torch.native_dropout(x, 0.5, True)[0], options={})
    assert not differs(lambda x: torch.native_dropout(x, 0.5, True)[0], options={"max_autotune": True})


def test_modes():
    """max-autotune draws so on a GPU alone, and not for who asks for eager's numbers."""
    for mode, given, on in (
        ("max-autotune", {}, True),
        ("max-autotune-no-cudagraphs", {}, True),
        ("reduce-overhead", {}, False),
        ("default", {}, False),
        ("max-autotune", {"fallback_random": True}, False),
        ("max-autotune", {"fast_dropout": False}, False),
        ("default", {"fast_dropout": True}, True),
        ("default", {"fast_dropout": True, "fallback_random": True}, True),
    ):
        assert keep_bits.wanted(Options(mode=mode, given=given)) is on
    assert not keep_bits.wanted(None)
    c = tcompile.compile(lambda x: torch.native_dropout(x, 0.5, True)[0], mode="max-autotune")
    x, out = torch.randn(100), []
    for f in (c, lambda x: torch.native_dropout(x, 0.5, True)[0]):
        torch.manual_seed(3)
        out.append(f(x))
    assert torch.equal(*out)
