"""Attention in any spelling is one generated kernel on a GPU: interpreted, against float64, and compiled for GPUs that
are not here.
"""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.print_kernel import print_kernel  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.fusion.schedule import Extern, Launch  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .as_gpu import as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

aten = torch.ops.aten
f16, f32 = torch.float16, torch.float32


def rand(*shape, dtype=f16):
    return torch.randn(shape).to(dtype)


def qkv(*shape, keys=None, width=None, dtype=f16):
    *batch, rows, inner = shape
    return (
        rand(*shape, dtype=dtype),
        rand(*batch, keys or rows, inner, dtype=dtype),
        rand(*batch, keys or rows, width or inner, dtype=dtype),
    )


def calls(g):
    return [
        s.kernel.name if isinstance(s, Launch) else str(s.op)
        for s in g.schedule.steps
        if isinstance(s, (Launch, Extern))
    ]


def check(fn, *args, kernels=1, choices=Choices(), want=None, **options):
    """One kernel (or as many as said), whose result is that of `want` in float64."""
    g = as_gpu(fn, *args, **options)
    assert len(calls(g)) == kernels and "attention" in calls(g)[-1], calls(g)
    if choices != Choices():
        for k in g.kernels:
            k.source = print_kernel(k.kernel, g.target, choices, name=k.name)
    named = dict(zip(fn.__code__.co_varnames, args))
    (got,) = run(g, [named[b.name] for b in g.schedule.inputs if getattr(b, "name", None) in named])
    exact = (want or fn)(*(x.double() if x.is_floating_point() else x for x in args))
    half = args[0].dtype == f16
    torch.testing.assert_close(
        got.double(), exact, rtol=4e-3 if half else 1e-5, atol=4e-3 if half else 1e-5, equal_nan=True
    )
    return g


def plain(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def positions(q):
    i = torch.arange(q.shape[-2])
    return i[None, :] - i[:, None]


# ---- sizes
@pytest.mark.parametrize(
    "shape",
    [
        (2, 3, 37, 53, 80, 80),
        (1, 3, 40, 70, 20, 24),
        (0, 3, 33, 16, 16, 32),
        (0, 0, 50, 64, 48, 48),
        (0, 6, 100, 100, 48, 48),
    ],
    ids=str,
)
def test_lengths_and_head_sizes(shape):
    """Odd lengths, heads that are no power of two, values that are wider than keys; four, three and two dimensions."""
    b, h, rows, keys, inner, width = shape
    g = check(plain, *qkv(*(n for n in (b, h) if n), rows, inner, keys=keys, width=width))


def test_reads_outside_of_a_tensor_are_seen():
    """What all other tests here rely on: the interpreter refuses lanes that a mask should have left out."""
    q, k, v = qkv(2, 40, 32, keys=50)
    g = as_gpu(plain, q, k, v)
    source = g.kernels[0].source
    g.kernels[0].source = replace(source, text=source.text.replace(", smask, other=0.0", ""))
    with pytest.raises(AssertionError, match="outside of their tensors"):
        run(g, [q, k, v])


def test_float32_is_multiplied_in_full():
    g = check(plain, *qkv(2, 40, 32, keys=50, dtype=f32))
    assert 'input_precision="ieee"' in g.kernels[0].source.text


def test_few_rows_share_the_keys_among_programs():
    g = check(plain, *qkv(1, 2, 1, 24, keys=1500))
    assert g.kernels[0].source.phases == ["k0_attention_0", "k0_attention_1"]
    check(plain, *qkv(1, 2, 3, 24, keys=300), choices=Choices(split=8, rblock=32))


def test_sizes_that_vary():
    def f(x):
        q, k, v = x.view(x.shape[0], x.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
        return causal(q, k, v).transpose(1, 2).reshape(x.shape[0], x.shape[1], 64)

    g = as_gpu(f, rand(2, 41, 192), dynamic=True)
    (k,) = g.kernels
    assert calls(g) == ["k0_attention"] and k.source.limits and "//" not in str(k.kernel)
    for b, n in ((2, 41), (3, 90)):
        x = rand(b, n, 192)
        given = {"x": x, "s0": b, "s1": n}
        (got,) = run(g, [given[i.name] for i in g.schedule.inputs])
        torch.testing.assert_close(got.double(), f(x.double()), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("looks", ["at all", "back"])
def test_a_number_of_keys_that_is_a_sum(looks):
    def f(x):
        x = x[:, 1:]
        q, k, v = x.reshape(x.shape[0], x.shape[1], 3, 4, 16).permute(2, 0, 3, 1, 4)
        return (plain if looks == "at all" else causal)(q, k, v).transpose(1, 2).reshape(x.shape[0], x.shape[1], 64)

    g = as_gpu(f, rand(2, 41, 192), dynamic=True)
    assert "k0_attention" in calls(g) or "k1_attention" in calls(g)
    for b, n in ((2, 41), (2, 17), (3, 90)):
        x = rand(b, n, 192)
        given = {"x": x, "s0": b, "s1": n}
        (got,) = run(g, [given[i.name] for i in g.schedule.inputs])
        torch.testing.assert_close(got.double(), f(x.double()), rtol=4e-3, atol=4e-3)


# ---- what else is computed of rows
def by_logsumexp(q, k, v):
    s = (q @ k.mT).float() * 0.2
    return (torch.softmax(s, -1).to(v.dtype) @ v, torch.logsumexp(s, -1))


def by_parts(q, k, v):
    s = (q.float() @ k.mT.float()) * 0.2
    top = s.amax(-1, keepdim=True)
    e = torch.exp(s - top)
    total = e.sum(-1, keepdim=True)
    return ((e / total).to(v.dtype) @ v, (total.log() + top).squeeze(-1))


def by_powers_of_two(q, k, v):
    s = (q.float() @ k.mT.float()) * 0.2
    return (torch.softmax(s, -1).to(v.dtype) @ v, torch.logsumexp(s, -1) * math.log2(math.e), s.amax(-1))


def by_exponentials(q, k, v):
    s = (q.float() @ k.mT.float()) * 0.2
    lse = torch.logsumexp(s, -1, keepdim=True)
    return (torch.exp(s - lse).to(v.dtype) @ v, lse)


def by_exponentials_of_some(q, k, v):
    s = ((q.float() @ k.mT.float()) * 0.2).masked_fill(
        positions(q) % 3 == 0 if q.shape[-2] == k.shape[-2] else torch.arange(q.shape[-2])[:, None] % 3 == 1, -torch.inf
    )
    lse = torch.logsumexp(s, -1)
    return (torch.exp(s - torch.where(lse == -torch.inf, 0.0, lse)[..., None]).to(v.dtype) @ v, lse)


@pytest.mark.parametrize("fn", [by_logsumexp, by_parts, by_powers_of_two, by_exponentials, by_exponentials_of_some])
@pytest.mark.parametrize("shape,keys", [((2, 3, 40, 32), 50), ((40, 32), 50), ((1, 2, 1, 32), 1500)], ids=str)
def test_numbers_of_rows(fn, shape, keys):
    """The maximum and the sum of each row are in the kernel: what is computed of them is, too."""
    args = qkv(*shape, keys=keys)
    g = as_gpu(fn, *args)
    assert calls(g) == ["k0_attention"], calls(g)
    named = dict(zip("qkv", args))
    got = run(g, [named[b.name] for b in g.schedule.inputs])
    for a, b in zip(got, fn(*(x.double() for x in args)), strict=True):
        half = a.dtype == f16
        torch.testing.assert_close(a.double(), b.double(), rtol=4e-3 if half else 2e-3, atol=4e-3 if half else 2e-3)
        assert a.shape == b.shape


def test_what_is_subtracted_of_each_score_is_a_part_of_it():
    """exp(s - (log(sum(exp(s - c))) + c)) is the softmax of s - c."""

    def f(q, k, v, c):
        s = (q.float() @ k.mT.float()) * 0.2
        return torch.exp(s - (torch.exp(s - c).sum(-1, keepdim=True).log() + c)).to(v.dtype) @ v

    q, k, v = qkv(40, 32, keys=50)
    c = torch.randn(40, 50)
    g = as_gpu(f, q, k, v, c)
    named = {"q": q, "k": k, "v": v, "c": c}
    (got,) = run(g, [named[b.name] for b in g.schedule.inputs])
    torch.testing.assert_close(got.double(), f(*(x.double() for x in (q, k, v, c))).double(), rtol=4e-3, atol=4e-3)


def test_what_lacks_exponentials_is_no_softmax():
    """Scores less their greatest, divided by the sum of these or summed up, are attention but for one operator."""

    def linear(q, k, v):
        s = (q @ k.mT) * 0.2
        less = s - s.amax(-1, keepdim=True)
        return (less / less.sum(-1, keepdim=True)) @ v

    def beside(q, k, v):
        s = (q @ k.mT) * 0.2
        return torch.softmax(s, -1) @ v, (s - s.amax(-1, keepdim=True)).sum(-1)

    args = qkv(2, 40, 32, keys=50, dtype=f32)
    for f in (linear, beside):
        g = as_gpu(f, *args)
        named = dict(zip("qkv", args))
        out = f(*args)
        for a, b in zip(
            run(g, [named[b.name] for b in g.schedule.inputs]), out if f is beside else (out,), strict=True
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_infinities_and_nans_of_rows():
    """As torch.logsumexp and torch.amax have them: of nothing, of infinities, of NaN."""
    q, k, v = qkv(1, 40, 32, keys=50, dtype=f32)
    q[0, 3], k[0, 7] = torch.nan, 0.0
    added = torch.zeros(40, 50)
    added[5], added[6, 9], added[8, 2] = -torch.inf, torch.inf, torch.nan

    def f(q, k, v, added):
        s = q @ k.mT + added
        return torch._safe_softmax(s, -1) @ v, torch.logsumexp(s, -1), s.amax(-1)

    g = as_gpu(f, q, k, v, added, options={"attention": "generated"})
    assert calls(g) == ["k0_attention"], calls(g)
    named = {"q": q, "k": k, "v": v, "added": added}
    for a, b in zip(run(g, [named[b.name] for b in g.schedule.inputs]), f(q, k, v, added), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_sum_of_other_numbers_keeps_the_scores():
    """What no row of the kernel's knows is computed beside: the library's products stay."""

    def f(q, k, v):
        s = (q @ k.mT).float() * 0.2
        return torch.softmax(s, -1).to(v.dtype) @ v, torch.logsumexp(s * 2, -1)

    args = qkv(2, 40, 32, keys=50)
    assert "k0_attention" not in calls(as_gpu(f, *args))


# ---- scores
def causal(q, k, v):
    return torch.softmax((q @ k.mT * 0.2).masked_fill(positions(q) > 0, -torch.inf), -1) @ v


def lower_triangle(q, k, v):
    w = torch.einsum("bhqd,bhkd->bhqk", q, k) / 5
    w = w.masked_fill(torch.tril(torch.ones(q.shape[-2], q.shape[-2])) == 0, float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(w, -1), v)


def added_triangle(q, k, v):
    return torch.softmax(q @ k.mT * 0.2 + torch.full((q.shape[-2],) * 2, -torch.inf, dtype=q.dtype).triu(1), -1) @ v


def window(q, k, v):
    d = positions(q)
    return torch.softmax((q @ k.mT * 0.2).masked_fill(~((d <= 0) & (d > -20)), -torch.inf), -1) @ v


def outside(q, k, v):
    d = positions(q)
    return torch.softmax((q @ k.mT * 0.2 + d).masked_fill((d > 0) | (d <= -20), -torch.inf), -1) @ v


@pytest.mark.parametrize("f", [causal, lower_triangle, added_triangle, window, outside], ids=lambda f: f.__name__)
def test_masks_of_positions_leave_tiles_out(f):
    g = check(f, *qkv(1, 2, 200, 32), choices=Choices(rblock=32, xblock=32))
    text = g.kernels[0].source.text
    assert "end = tl.minimum(200, last_row + 1)" in text and ("begin = " in text) == (f in (window, outside))
    assert text.count("for roffset in") == (3 if f in (window, outside) else 2), (
        "tiles that all rows see whole have a loop without the comparison"
    )


def softcap(q, k, v):
    s = torch.tanh(q @ k.mT * 0.2 / 5) * 5
    return torch.softmax(s.masked_fill(positions(q) > 0, -torch.inf).float(), -1).to(q.dtype) @ v


def alibi(q, k, v, slopes):
    s = q @ k.mT * 0.2 + slopes[:, None, None] * positions(q)
    return torch.softmax(s.masked_fill(positions(q) > 0, -torch.inf), -1) @ v


def logit_scale(q, k, v, t):
    return torch.softmax(q @ k.mT * t.clamp(max=4.6).exp(), -1) @ v


def added(q, k, v, bias):
    return torch.softmax(q @ k.mT * 0.2 + bias, -1) @ v


def scaled_sum(q, k, v, bias):
    return torch.bmm(torch.softmax(torch.baddbmm(bias, q, k.mT, beta=0.5, alpha=0.3), -1), v)


SCORES = {
    "softcap": (softcap,),
    "alibi": (alibi, torch.rand(3)),
    "logit scale": (logit_scale, torch.rand(3, 1, 1) - 1),
    "bias": (added, rand(3, 70, 70)),
    "bias of keys": (added, rand(2, 1, 1, 70)),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_any_expression(name):
    f, *more = SCORES[name]
    check(f, *qkv(2, 3, 70, 32), *(x.to(f16) for x in more))


def test_baddbmm():
    check(scaled_sum, *qkv(3, 40, 32), rand(3, 40, 40))


def test_bias_that_is_gathered():
    def relative(q, k, v, table):
        b = table[positions(q).clamp(-8, 7) + 8].permute(2, 0, 1)
        return torch.softmax((q @ k.mT / 4 + b).float(), -1).type_as(q) @ v

    check(relative, *qkv(2, 3, 40, 32), rand(16, 3), kernels=2)


def test_softmax_written_out():
    def f(q, k, v):
        s = q @ k.mT * 0.2
        e = (s - s.amax(-1, keepdim=True)).exp()
        return (e / e.sum(-1, keepdim=True)) @ v

    check(f, *qkv(3, 40, 32, dtype=f32))


def test_rows_without_keys():
    """Softmax by hand gives NaN there, scaled_dot_product_attention 0."""
    m = torch.rand(2, 1, 37, 53) > 0.3
    m[0, 0, 5] = False

    def by_hand(q, k, v, m):
        return torch.softmax((q @ k.mT * 0.2).masked_fill(~m, -torch.inf), -1) @ v

    def safe(q, k, v, m):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, m)

    args = qkv(2, 3, 37, 32, keys=53)
    check(by_hand, *args, m)
    check(safe, *args, m)


# ---- operands and results
def test_a_merged_product_is_read_and_written_as_it_lies():
    def f(x):
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in x.chunk(3, -1))
        return causal(q, k, v).transpose(1, 2).reshape(2, 32, 64)

    g = check(f, rand(2, 32, 192))
    assert [tuple(b.shape) for b in g.kernels[0].kernel.inputs] == [(2, 32, 192)]


def test_heads_that_share_their_keys():
    def repeated(q, k, v):
        return plain(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    q, k, v = rand(2, 4, 40, 32), rand(2, 2, 50, 32), rand(2, 2, 50, 32)
    g = check(repeated, q, k, v)
    assert [b.shape for b in g.kernels[0].kernel.inputs] == [(2, 4, 40, 32), (2, 2, 50, 32), (2, 2, 50, 32)]


def test_what_follows_joins():
    def gated(q, k, v, g):
        return plain(q, k, v) * torch.sigmoid(g)

    check(gated, *qkv(2, 3, 40, 32), rand(2, 3, 40, 32))


def test_weights_that_are_returned_are_computed_as_they_are():
    def f(q, k, v):
        w = torch.softmax(q @ k.mT, -1)
        return w @ v, w

    assert not any("attention" in c for c in calls(as_gpu(f, *qkv(2, 40, 32))))


# ---- the library's calls
def flash(q, k, v):
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]


def efficient(q, k, v, mask):
    return aten._scaled_dot_product_efficient_attention(q, k, v, mask, False)[0]


def cudnn(q, k, v):
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, scale=0.3)[0]


def test_small_calls_of_a_library_are_generated():
    a = qkv(2, 3, 40, 32)
    check(flash, *a, want=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    check(efficient, *a, rand(2, 3, 40, 40), want=F.scaled_dot_product_attention)
    check(cudnn, *a, want=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3))
    shared = rand(2, 8, 3, 32), rand(2, 2, 90, 32), rand(2, 2, 90, 32)
    g = check(cudnn, *shared, want=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3, enable_gqa=True))
    assert [int(a.size) for a in g.kernels[0].kernel.template.rows] == [4, 3], (
        "heads that share their keys are rows of one tile"
    )


def test_large_calls_stay_the_librarys():
    q = torch.empty(8, 16, 2048, 64, dtype=f16)
    assert calls(as_gpu(cudnn, q, q, q)) == ["aten._scaled_dot_product_cudnn_attention.default"]
    assert calls(as_gpu(cudnn, q, q, q, options={"attention": "generated"})) == ["k0_attention"]
    small = torch.empty(1, 2, 64, 64, dtype=f16)
    assert calls(as_gpu(cudnn, small, small, small, options={"attention": "library"})) == [
        "aten._scaled_dot_product_cudnn_attention.default"
    ]


def test_attention_in_float32_is_ours_where_it_is_small():
    small, large = (torch.empty(2, 4, n, 64) for n in (100, 1024))
    assert calls(as_gpu(plain, small, small, small)) == ["k0_attention"]
    assert "k0_attention" not in calls(as_gpu(plain, large, large, large))
    assert calls(as_gpu(plain, large, large, large, options={"attention": "generated"})) == ["k0_attention"]


# ---- compiled
@pytest.mark.parametrize(
    "fn,rows,width", [(softcap, 1024, 64), (softcap, 1024, 128), (by_logsumexp, 1024, 64), (by_logsumexp, 1, 128)]
)
def test_kernels_compile_for_every_gpu(fn, rows, width):
    q, k = torch.empty(1, 32, rows, width, dtype=f16), torch.empty(1, 32, 1024 if rows > 1 else 4096, width, dtype=f16)
    for target in (GpuTarget("cuda", 80, 32, 108), GpuTarget("cuda", 90, 32, 132), GpuTarget("hip", "gfx942", 64, 304)):
        (kernel,) = as_gpu(fn, q, k, k, target=target).kernels
        for part in compile_all([Job(kernel.source, target)], Options())[0].parts:
            assert part.shared <= 160 * 1024


def test_attention_over_attention():
    """A kernel that stands in the place of a product is no product: its operands are not the scores' of what
    follows.
    """

    def twice(q, k, v, w):
        return torch.softmax(torch.softmax(q @ k.mT, -1) @ v * 3, -1) @ w

    q, k, v, w = (
        torch.randn(2, 40, 32).half() / 3,
        *(torch.randn(2, 48, 32).half() for _ in range(2)),
        torch.randn(2, 32, 24).half(),
    )
    g = as_gpu(twice, q, k, v, w)
    assert [x.source.choices["shape"] for x in g.kernels].count("attention") == 1
    named = {"q": q, "k": k, "v": v, "w": w}
    (got,) = run(g, [named[b.name] for b in g.schedule.inputs])
    torch.testing.assert_close(got.double(), twice(*(x.double() for x in (q, k, v, w))), rtol=4e-3, atol=4e-3)
