"""Attention written by hand, in training: neither pass has scores in memory. Interpreted, against autograd in
float64.
"""

import math
import sys

import pytest
import torch
import torch.utils.checkpoint

pytest.importorskip("triton")

import tcompile  # noqa: E402
from tcompile.compiler.ops import keep_bits  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.rewrite import disabled_passes  # noqa: E402

from .as_gpu import train_as_gpu  # noqa: E402
from .test_bits import order_of, step  # noqa: E402
from .test_chains import calls  # noqa: E402

pytestmark = pytest.mark.slow

attention_calls = sys.modules["tcompile.compiler.rewrite.attention_training"]
f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def fresh():
    tcompile.reset()


def rand(*shape, dtype=f16):
    return torch.randn(shape).to(dtype)


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def scaled_before(q, k, v):
    return (
        torch.softmax(
            (q * q.shape[-1] ** -0.5) @ k.mT, -1, dtype=torch.float32 if q.dtype != torch.float64 else None
        ).to(q.dtype)
        @ v
    )


def causal(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf), -1) @ v


def capped(q, k, v):
    s = torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 3) * 3
    return torch.softmax(s + (torch.arange(s.shape[-1]) * 0.01).to(s.dtype), -1) @ v


def grouped(q, k, v):
    n = q.shape[1] // k.shape[1]
    return plain(q, k.repeat_interleave(n, 1), v.repeat_interleave(n, 1))


def heads_behind(q, k, v):
    return plain(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2).flatten(2)


def autocast(q, k, v):
    with torch.autocast("cpu", dtype=bf16, enabled=q.dtype == f32):
        return plain(q, k, v)


def qkv(*shape, keys=None, width=None, shared=None, dtype=f16):
    b, h, rows, inner = shape
    return (
        rand(b, h, rows, inner, dtype=dtype),
        rand(b, shared or h, keys or rows, inner, dtype=dtype),
        rand(b, shared or h, keys or rows, width or inner, dtype=dtype),
    )


CASES = {
    "plain": (plain, lambda: qkv(2, 3, 64, 32)),
    "odd lengths": (plain, lambda: qkv(1, 2, 37, 24, keys=70, width=40)),
    "bfloat16": (plain, lambda: qkv(2, 2, 48, 64, dtype=bf16)),
    "scaled before": (scaled_before, lambda: qkv(2, 2, 48, 32)),
    "causal": (causal, lambda: qkv(2, 2, 100, 32)),
    "capped, with a bias": (capped, lambda: qkv(2, 2, 50, 32)),
    "heads that share keys": (grouped, lambda: qkv(2, 4, 40, 32, shared=2)),
    "heads behind rows": (heads_behind, lambda: tuple(x.transpose(1, 2).contiguous() for x in qkv(2, 2, 40, 32))),
    "autocast": (autocast, lambda: qkv(2, 2, 64, 32, dtype=f32)),
    "capped and causal": (lambda q, k, v: capped_causal(q, k, v), lambda: qkv(2, 2, 100, 32)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    torch.manual_seed(0)
    fn, make = CASES[name]
    args = make()
    p, f, b, out, grads = step(fn, args)
    assert calls(b).count("chain") == 2 and not any("bmm" in c for c in calls(b)), calls(b)
    rows, keys = (
        (args[0].shape[2], args[1].shape[2]) if fn is not heads_behind else (args[0].shape[1], args[1].shape[1])
    )
    assert not any(
        rows * keys <= math.prod(s.shape) // max(1, args[0].shape[0]) and s.shape[-1] == keys and s.shape[-2] == rows
        for s in p.saved
    ), p.saved
    exact = [x.detach().double().requires_grad_() for x in args]
    want = fn(*exact)
    torch.manual_seed(1)
    tangent = torch.randn_like(out[0])
    torch.testing.assert_close(out[0].double(), want, rtol=2e-2, atol=2e-2)
    gradients = torch.autograd.grad(want, [exact[i] for i in order_of(fn, p)], tangent.double())
    tolerance = 3e-2 if bf16 in (args[0].dtype, out[0].dtype) else 6e-3
    for a, w in zip(grads, gradients, strict=True):
        assert (a.double() - w).norm() <= tolerance * w.norm()


def learned(q, k, v, bias):
    return torch.softmax(q @ k.mT + bias, -1) @ v


def also_returned(q, k, v):
    p = torch.softmax(q @ k.mT, -1)
    return p @ v, p


@pytest.mark.parametrize(
    "fn,more",
    [(learned, lambda: (rand(40, 40),)), (also_returned, tuple)],
    ids=["a bias that is learned", "what is returned as well"],
)
def test_scores_that_something_else_needs_are_made(fn, more):
    p, f, b, out, grads = step(fn, (*qkv(2, 2, 40, 32), *more()))
    assert "chain" not in calls(b)


def capped_causal(q, k, v):
    s = torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]) / 3) * 3
    return torch.softmax(s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf), -1) @ v


@pytest.mark.parametrize("name", ["capped", "dropout", "plain"])
def test_a_causal_mask_bounds_the_loops_of_backward(name):
    fn = {"capped": capped_causal, "dropout": dropped_causal, "plain": causal}[name]
    _, f, b = train_as_gpu(fn, *[x.requires_grad_() for x in qkv(2, 2, 128, 32)])
    kernels = [k for g in (f, b) for k in g.kernels if "attention" in k.name or "chain" in k.name]
    assert len(kernels) == 3 and all("first_row" in k.source.text for k in kernels)


CALLS = {
    "plain": 1,
    "odd lengths": 0,
    "bfloat16": 1,
    "scaled before": 1,
    "causal": 1,
    "capped, with a bias": 0,
    "heads that share keys": 1,
    "heads behind rows": 1,
    "autocast": 1,
    "capped and causal": 0,
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_library_has_kernels_for_is_its_own_where_it_is_large(name, monkeypatch):
    monkeypatch.setattr(attention_calls, "FEW_FLOPS", 0)
    fn, make = CASES[name]
    args = [x.requires_grad_() for x in make()]
    p, f, b = train_as_gpu(fn, *args)
    found = [c for g in (f, b) for c in calls(g) if c.startswith("aten") or "chain" in c]
    assert (
        [
            "aten._scaled_dot_product_flash_attention.default",
            "aten._scaled_dot_product_flash_attention_backward.default",
        ]
        == found
    ) == bool(CALLS[name]), found
    causal_at = {n.target: n for n in p.forward.graph.nodes if "attention" in str(n.target)}
    assert all(n.args[4] is (name == "causal") for n in causal_at.values())


def half_of_the_scores_gradient(q, k, v):
    s = q @ k.mT
    s.register_hook(lambda g: g / 2)
    return torch.softmax(s, -1) @ v


def blocked_at_random(q, k, v):
    s = q @ k.mT
    return torch.softmax(s.masked_fill(s > 1, -math.inf), -1) @ v


@pytest.mark.parametrize("fn", [half_of_the_scores_gradient, blocked_at_random])
def test_what_is_no_more_than_alike_is_not_the_librarys(fn, monkeypatch):
    monkeypatch.setattr(attention_calls, "FEW_FLOPS", 0)
    _, f, b = train_as_gpu(fn, *[x.requires_grad_() for x in qkv(2, 2, 48, 32)])
    assert not any("flash" in c for c in calls(f) + calls(b))


def test_the_gradient_of_keys_lies_as_they_do():
    """Autograd's formula makes that of k.mT, whose rows are columns of k."""
    p, _, b = train_as_gpu(plain, *[x.requires_grad_() for x in qkv(2, 2, 48, 32)])
    gradients = [o.meta.stride for o in p.backward.plan]
    assert gradients == [(2 * 48 * 32, 48 * 32, 32, 1)] * 3


def test_under_deterministic_algorithms_ours_serve(monkeypatch):
    monkeypatch.setattr(attention_calls, "FEW_FLOPS", 0)
    torch.use_deterministic_algorithms(True)
    try:
        _, f, b = train_as_gpu(plain, *[x.requires_grad_() for x in qkv(2, 2, 48, 32)])
    finally:
        torch.use_deterministic_algorithms(False)
    assert not any("flash" in c for c in calls(f)) and calls(b).count("chain") == 2


def dropped(q, k, v):
    return torch.native_dropout(torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1), 0.25, True)[0] @ v


def dropped_causal(q, k, v):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    p = torch.softmax(s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf), -1)
    return torch.native_dropout(p, 0.25, True)[0] @ v


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("fn", [dropped, dropped_causal])
@pytest.mark.parametrize("shape", [(2, 2, 48, 32), (1, 1, 264, 16), (1, 1, 50, 16)], ids=str)
def test_dropout_of_what_softmax_gives(fn, shape, fast, monkeypatch):
    """The numbers are drawn once, as eager draws them or as bits of our own; backward reads which were kept."""
    # (what is recorded on the CPU is lowered as for a GPU)
    monkeypatch.setattr(sys.modules["tcompile.compiler.rewrite.fast_dropout"], "DEVICE", "cpu")
    torch.manual_seed(0)
    args = qkv(*shape)
    p, f, b, out, grads = step(fn, args, options={"fast_dropout": fast})
    assert (
        calls(b).count("chain") == 2
        and any("attention" in c for c in calls(f))
        and not any("aten.bmm" in c for c in calls(f) + calls(b))
    ), (calls(f), calls(b))
    (at,) = (k for k, s in enumerate(p.saved) if s.dtype in ("bool", "uint8", "int32"))
    kept = out[len(out) - len(p.saved) + at]
    q, k, v = (x.detach().double().requires_grad_() for x in args)
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if kept.shape != s.shape:
        kept = (
            torch.stack([kept.view(torch.uint8).flatten() >> i & 1 for i in range(8)], -1)
            .flatten()[: s.numel()]
            .view(s.shape)
            .bool()
        )
    assert 0.6 < kept.double().mean() < 0.9
    if fn is dropped_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    scale = keep_bits.scale(0.25) if fast else 1 / 0.75
    want = torch.softmax(s, -1) * kept * scale @ v
    torch.manual_seed(1)
    tangent = torch.randn_like(out[0])
    assert (out[0].double() - want).norm() <= 3e-3 * want.norm()
    for a, w in zip(
        grads, torch.autograd.grad(want, [(q, k, v)[i] for i in order_of(fn, p)], tangent.double()), strict=True
    ):
        assert (a.double() - w).norm() <= 6e-3 * w.norm()


def projected(x, w):
    q, k, v = (x @ w).view(2, 64, 3, 2, 32).permute(2, 0, 3, 1, 4).unbind(0)
    return plain(q, k, v).transpose(1, 2).reshape(2, 64, 64)


def checkpointed(x, w):
    return torch.utils.checkpoint.checkpoint(projected, x, w, use_reentrant=False) * 2


def test_a_checkpoint_keeps_no_more_than_its_inputs():
    x, w = rand(2, 64, 64), rand(64, 192) / 8
    p, f, b, out, grads = step(checkpointed, (x, w))
    assert not p.saved and calls(b).count("chain") == 2
    exact = [t.double().requires_grad_() for t in (x, w)]
    want = checkpointed(*exact)
    torch.manual_seed(1)
    for a, g in zip(
        grads,
        torch.autograd.grad(want, [exact[i] for i in order_of(checkpointed, p)], torch.randn_like(out[0]).double()),
    ):
        assert (a.double() - g).norm() <= 6e-3 * g.norm()


def test_options_say_whose_kernels_serve():
    """`attention`: "generated" has no calls of the library's, "library" no kernels of ours."""
    ours, calls_of = "attention_gradients", "attention_calls"
    for option, off in (("auto", set()), ("generated", {calls_of}), ("library", {ours})):
        assert {ours, calls_of} & disabled_passes(Options.make(options={"attention": option})) == off
    assert {ours, calls_of} <= disabled_passes(Options.make(options={"emulate_precision": True}))


def as_many_rows_as_heads(q, k, v):
    return plain(q, k, v).transpose(1, 2).contiguous()


@pytest.mark.parametrize("fn", [plain, as_many_rows_as_heads])
def test_what_the_library_made_and_what_the_caller_gets_are_apart(fn, monkeypatch):
    """The caller may change what it gets, as in eager; and a transposed copy of the same sizes is another result."""
    monkeypatch.setattr(attention_calls, "FEW_FLOPS", 0)
    p, f, b = train_as_gpu(fn, *[x.requires_grad_() for x in qkv(2, 32, 32, 32)])
    assert any("flash" in c for c in calls(f)) and not any(s.kind == "result" for s in p.saved)
    first = p.forward.graph.output_node().args[0][0]
    assert (
        fn is plain
        or "permute" in str(first.args[0].target)
        or any("permute" in str(n.target) for n in first.all_input_nodes)
    )


@pytest.mark.parametrize("fn", [plain, lambda q, k, v: torch.bmm(torch.softmax(torch.bmm(q, k.mT), -1), v)])
def test_what_the_caller_gets_is_not_what_is_kept(fn):
    args = qkv(2, 2, 48, 32) if fn is plain else [x[0] for x in qkv(1, 4, 48, 32)]
    p, _, b = train_as_gpu(fn, *[x.requires_grad_() for x in args])
    assert calls(b).count("chain") == 2
    assert not any(s.kind == "result" for s in p.saved)
