"""Dropout by bits: words drawn in kernels, through Triton's interpreter, against Philox as its authors state it."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.ops import mask_bits, keep_bits, philox
from tcompile.compiler import config
from tcompile.compiler.codegen.generate import generate_triton
from tcompile.compiler.config import Options
from tcompile.compiler.fusion.fuse import schedule
from tcompile.compiler.graph.aten import AtenGraph, GraphOutput
from tcompile.compiler.graph.meta import lookup
from tcompile.compiler.rewrite import fast_dropout
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.verify_loops import verify_lowered
from tcompile.compiler.runtime.gpu.cuda_graphs import why_not_captured

from .as_gpu import CUDA, as_gpu, train_as_gpu
from .interpreter import SMALL
from .test_philox import OFFSET, SEED, run


KEEP_BITS, UNPACK = keep_bits.KEEP_BITS, mask_bits.UNPACK


def words_of(n, p, offset=OFFSET):
    """The words of a draw, bit by bit: each step halves the probability so far and adds a half for a 1 of the fraction
    to keep.
    """
    ones = keep_bits.keep_fraction(p)
    out = []
    for i in range(n):
        r = 0
        for k in range(16):
            if k % 4 == 0:
                c, k0, k1 = (
                    [offset // 4 + k // 4 & 0xFFFFFFFF, offset // 4 + k // 4 >> 32, i, 0],
                    SEED & 0xFFFFFFFF,
                    SEED >> 32,
                )
                for _ in range(7):
                    a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
                    c = [b >> 32 ^ c[1] ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k1, a & 0xFFFFFFFF]
                    k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
            r = c[k % 4] | r if ones >> k & 1 else c[k % 4] & r
        out.append(r - (1 << 32) if r >> 31 else r)
    return torch.tensor(out, dtype=torch.int32)


def bits_of(words):
    """Element 32 i + k is bit k of word i."""
    return words[:, None] >> torch.arange(32, dtype=torch.int32) & 1


def generated(*draws):
    """Of a graph that draws: (words, p) each."""
    graph = torch.fx.Graph()
    nodes = [graph.call_function(KEEP_BITS, (n, p), {"device": CUDA}) for n, p in draws]
    for node in nodes:
        node.meta["val"] = lookup(KEEP_BITS)(*node.args, device=CUDA)
    graph.output(tuple(nodes))
    aten = AtenGraph(
        graph,
        [],
        [GraphOutput("buffer", k, node.meta["val"]) for k, node in enumerate(nodes)],
        [],
        None,
        {},
        [],
        "words",
    )
    lowered = lower(aten, Options())
    verify_lowered(lowered)
    return generate_triton(schedule(lowered, Options()), Options(), None, SMALL)


@pytest.mark.parametrize("n, p", [(1, 0.5), (777, 0.1), (2048, 0.9)])
def test_words(n, p):
    g = generated((n, p), (64, 0.3), (n, p))
    assert g.host.extern_calls == 1, g.host.source
    (first, between, last), offset = run(g)
    assert (
        torch.equal(first, words_of(n, p))
        and torch.equal(between, words_of(64, 0.3, OFFSET + 16))
        and torch.equal(last, words_of(n, p, OFFSET + 32))
    )
    assert offset == OFFSET + 48
    seed, at = torch.tensor(SEED - (1 << 64)), torch.arange(n)
    assert torch.equal(
        keep_bits.keep_words(seed, torch.tensor(OFFSET // 4), at, torch.tensor(keep_bits.keep_fraction(p))).int(), first
    )


def test_distribution():
    """Bits are 1 as often as said, whatever their place in a word, their word and the draw; neighbours in a word, words
    and draws know nothing of each other.
    """
    n, ones = 1 << 16, torch.tensor(keep_bits.keep_fraction(0.1))
    p = keep_bits.fraction(0.1) / 65536
    draws = [keep_bits.keep_words(torch.tensor(3), torch.tensor(4 * k), torch.arange(n), ones).int() for k in range(3)]
    kept = torch.stack([bits_of(words).float() for words in draws])
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * deviation / (3 * 32 * n) ** 0.5
    assert ((kept.mean((0, 1)) - (1 - p)).abs() < 5 * deviation / (3 * n) ** 0.5).all()
    c = (kept - (1 - p)) / deviation
    for a, b in (
        (c[..., 1:], c[..., :-1]),
        (c[:, 1:], c[:, :-1]),
        (c[1:], c[:-1]),
        (c[:, 1:, 0], c[:, :-1, 31]),
        (c[:, 32:], c[:, :-32]),
    ):
        assert abs((a * b).mean()) < 5 / a.numel() ** 0.5


def test_probabilities():
    """Drawn by as few words as leave the probability close; the scale is that of the probability drawn."""
    for p, words in ((0.1, 12), (0.5, 4), (0.25, 4), (0.3, 12), (1 / 1024, 12), (0.001, 16), (0.999, 16)):
        n = keep_bits.fraction(p)
        assert (
            abs(n / 65536 - p) <= max(2**-17, p * (1 - p) / 512)
            and keep_bits.scale(p) * keep_bits.keep_fraction(p) == 65536
        )
        assert n % (1 << 16 - words) == 0 and (words == 4 or n % (1 << 20 - words))
    for p in (0.0, 1.0, 1e-6, 1 - 1e-6, -0.5, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            keep_bits.keep_fraction(p)


def test_the_operator():
    torch.manual_seed(3)
    a, b = (KEEP_BITS(1000, 0.2, device=torch.device("cpu")) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(KEEP_BITS(1000, 0.2, device=torch.device("cpu")), a) and not torch.equal(a, b)
    assert a.dtype is torch.int32 and abs(bits_of(a).float().mean() - 0.8) < 0.02
    assert KEEP_BITS(0, 0.2, device=torch.device("cpu")).shape == (0,)
    assert philox.draws(KEEP_BITS, (4, 0.5), {})


# ---- in graphs
@pytest.fixture
def by_bits(monkeypatch):
    monkeypatch.setattr(fast_dropout, "DEVICE", "cpu")  # (what is recorded on the CPU is lowered as for a GPU)
    with config.patch(fast_dropout=True):
        yield


def mask_of(shape, p, offset=OFFSET):
    n = torch.Size(shape).numel()
    return bits_of(words_of(-(-n // 32), p, offset)).flatten()[:n].view(shape).bool()


@pytest.mark.parametrize(
    "shape, dtype",
    [
        ((16, 1024), torch.bfloat16),
        ((9, 1028), torch.bfloat16),
        ((9, 515), torch.float32),
        ((3, 8), torch.float16),
        ((1,), torch.float32),
    ],
)
def test_dropout(by_bits, shape, dtype):
    x = torch.randn(shape).to(dtype)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.1, True), x)
    assert g.host.extern_calls == 1 and len(g.kernels) == 2, g.host.source
    (y, mask), offset = run(g, x)
    assert torch.equal(mask, mask_of(shape, 0.1)) and offset == OFFSET + 16
    torch.testing.assert_close(y, (x.float() * 2 * mask * keep_bits.scale(0.1)).to(dtype))


def test_sizes_that_vary(by_bits):
    x = torch.randn(64, 70)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True), x, dynamic=True)
    assert g.schedule.symbols
    for rows in (64, 3, 40):
        x = torch.randn(rows, 70)
        (y, mask), _ = run(g, x)
        assert torch.equal(mask, mask_of(x.shape, 0.5)) and torch.equal(y, x * 2 * mask * 2)


def test_several_draws_and_torchs_between(by_bits):
    def f(x):
        a = torch.native_dropout(torch.sin(x), 0.5, True)[0]
        b = torch.randn_like(x)
        c = torch.native_dropout(a + 1, 0.1, True)[0]
        return c, torch.native_dropout(c + b, 0.1, True)[0]

    x = torch.randn(8, 64)
    g = as_gpu(f, x)
    lines = [line for line in g.host.source.splitlines() if "torch's kernel" in line]
    assert ["randn" in line for line in lines] == [False, True, False]
    (c, _), offset = run(g, x)
    assert offset == OFFSET + 48
    a = x.sin() * mask_of(x.shape, 0.5) * 2
    torch.testing.assert_close(c, (a + 1) * mask_of(x.shape, 0.1, OFFSET + 16) * keep_bits.scale(0.1))


def test_rows_that_lie_in_another_order(by_bits):
    """Attention's projection lies (length, batch, width): its bits do, too, and are read by eights."""
    h, x = torch.randn(12, 8, 256).bfloat16(), torch.randn(8, 12, 256)

    def f(h, x):
        d, mask = torch.native_dropout((h * 2).transpose(0, 1), 0.1, True)
        y = x + d
        return F.layer_norm(y, (256,)).bfloat16(), y, mask

    g = as_gpu(f, h, x)
    assert any("_from_bits(" in k.source.text for k in g.kernels)
    (n, y, mask), _ = run(g, h, x)
    assert torch.equal(mask, mask_of((12, 8, 256), 0.1).transpose(0, 1))
    torch.testing.assert_close(
        y, x + ((h * 2).transpose(0, 1).float() * mask * keep_bits.scale(0.1)).bfloat16(), rtol=1e-2, atol=1e-2
    )
    torch.testing.assert_close(n, F.layer_norm(y, (256,)).bfloat16(), atol=2e-2, rtol=2e-2)


def test_forward_and_backward(by_bits):
    """gelu and dropout are one kernel; backward unpacks the words where it reads them, in the kernel that sums the
    bias' gradient, too.
    """
    torch.manual_seed(0)
    x, b = torch.randn(64, 512).bfloat16().requires_grad_(), torch.randn(512).bfloat16().requires_grad_()
    p, f, g = train_as_gpu(lambda x, b: torch.native_dropout(F.gelu(x + b), 0.1, True)[0], x, b)
    assert [(v.kind, v.dtype) for v in p.saved] == [("random", "int32")]
    assert len(f.kernels) == 2 and len(g.kernels) == 1, g.host.source
    (y, words), _ = run(f, x.detach(), b.detach())
    keep = mask_of(x.shape, 0.1)
    want = (F.gelu(x + b).float() * keep * keep_bits.scale(0.1)).bfloat16()
    torch.testing.assert_close(y, want, atol=2e-2, rtol=2e-2)
    tangent = torch.randn(64, 512).bfloat16()
    values = {"saved_x": x.detach(), "saved_b": b.detach(), "saved_keep_bits": words, "tangent_0": tangent}
    got, _ = run(g, *(values[i.name] for i in p.backward.inputs))
    for ours, theirs in zip(got, torch.autograd.grad(want, (x, b), tangent)):
        assert (ours.float() - theirs.float()).norm() <= 1e-2 * theirs.float().norm()


def test_what_a_captured_graph_draws(by_bits):
    x = torch.randn(8, 64)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True)[0], x, options={"cudagraphs": True})
    assert g.host.extern_calls == 1 and why_not_captured(g.schedule, 0) is None


def test_graphs_of_a_torch_that_draws_otherwise(by_bits, monkeypatch):
    """There torch's kernels draw the random words."""
    monkeypatch.setattr(philox, "draws_in_graphs", lambda index: False)
    x = torch.randn(8, 64)
    g = as_gpu(lambda x: torch.native_dropout(x * 2, 0.5, True), x, options={"cudagraphs": True})
    assert "philox_state" not in g.host.source and "keep_bits_default(" in g.host.source


def test_behind_a_product(by_bits):
    """What follows a product's tile unpacks the words of its elements, forward and backward."""
    x, w, h = torch.randn(64, 128).bfloat16(), (torch.randn(128, 136) / 12).bfloat16(), torch.randn(64, 136).bfloat16()

    def f(x, w):
        return torch.native_dropout(F.relu(x @ w), 0.1, True)[0]

    g = as_gpu(f, x, w, options={"gpu_products": "generated", "fast_dropout": True})
    assert {k.source.choices["shape"] for k in g.kernels} == {"pointwise", "product"} and g.host.extern_calls == 1, (
        g.host.source
    )
    (y,), _ = run(g, x, w)
    keep = mask_of((64, 136), 0.1) * keep_bits.scale(0.1)
    torch.testing.assert_close(y, (F.relu(x @ w).float() * keep).bfloat16(), atol=2e-2, rtol=2e-2)

    def b(x, w, words, h):
        d = (x @ w).float() * torch.where(UNPACK(words, [64, 136], [0, 1]), 2.0, 0.0)
        return torch.ops.aten.threshold_backward(d.bfloat16(), h, 0)

    words = words_of(64 * 136 // 32, 0.1)
    g = as_gpu(b, x, w, words, h, options={"gpu_products": "generated"})
    assert [k.source.choices["shape"] for k in g.kernels] == ["product"]
    (d,), _ = run(g, x, w, words, h)
    torch.testing.assert_close(
        d, ((x @ w).float() * mask_of((64, 136), 0.1) * 2 * (h > 0)).bfloat16(), atol=2e-2, rtol=2e-2
    )


def test_what_products_read_is_kept(by_bits):
    """It lies in memory in any case: made again, it would be written once more. A residual sum reads it once: there the
    words are enough.
    """
    x, w, v = (
        torch.randn(256, 128).bfloat16().requires_grad_(),
        torch.randn(128, 512).bfloat16().requires_grad_(),
        torch.randn(512, 128).bfloat16().requires_grad_(),
    )
    p, _, g = train_as_gpu(
        lambda x, w, v: x + torch.native_dropout(torch.native_dropout(F.gelu(x @ w), 0.1, True)[0] @ v, 0.1, True)[0],
        x,
        w,
        v,
    )
    assert sorted((s.kind, s.shape) for s in p.saved) == [
        ("activation", (256, 512)),
        ("dear", (256, 512)),
        ("random", (1024,)),
        ("random", (4096,)),
    ]
    assert not any("erf_mul" in k.name for k in g.kernels)
