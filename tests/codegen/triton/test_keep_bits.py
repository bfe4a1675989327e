"""Dropout by bits: words drawn in kernels, through Triton's interpreter, against Philox as its authors state it."""
import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler import keep_bits, philox
from tcompile.compiler.codegen.triton.generate import generate_triton
from tcompile.compiler.config import Options
from tcompile.compiler.fusion.fuse import schedule
from tcompile.compiler.graph.aten import AtenGraph, GraphOutput
from tcompile.compiler.graph.meta import lookup
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.verify import verify_lowered

from .interpreter import SMALL
from .test_philox import OFFSET, SEED, run


KEEP_BITS = keep_bits.KEEP_BITS


def words_of(n, p, offset=OFFSET):
    """The words of a draw, bit by bit: each step halves the probability so far and adds a half for a 1 of the fraction to keep."""
    ones = (1 << 16) - round(p * (1 << 16))
    out = []
    for i in range(n):
        r = 0
        for k in range(16):
            if k % 4 == 0:
                c, k0, k1 = [offset // 4 + k // 4 & 0xFFFFFFFF, offset // 4 + k // 4 >> 32, i, 0], SEED & 0xFFFFFFFF, SEED >> 32
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
    graph, cuda = torch.fx.Graph(), torch.device("cuda", 0)
    nodes = [graph.call_function(KEEP_BITS, (n, p), {"device": cuda}) for n, p in draws]
    for node in nodes:
        node.meta["val"] = lookup(KEEP_BITS)(*node.args, device=cuda)
    graph.output(tuple(nodes))
    aten = AtenGraph(graph, [], [GraphOutput("buffer", k, node.meta["val"]) for k, node in enumerate(nodes)], [], None, {}, [], "words")
    lowered = lower(aten, Options())
    verify_lowered(lowered)
    return generate_triton(schedule(lowered, Options()), Options(), None, SMALL)


@pytest.mark.parametrize("n, p", [(1, 0.5), (777, 0.1), (2048, 0.9)])
def test_words(n, p):
    g = generated((n, p), (64, 0.3), (n, p))
    assert g.host.extern_calls == 1, g.host.source
    (first, between, last), offset = run(g)
    assert torch.equal(first, words_of(n, p)) and torch.equal(between, words_of(64, 0.3, OFFSET + 16)) and torch.equal(last, words_of(n, p, OFFSET + 32))
    assert offset == OFFSET + 48
    seed, at = torch.tensor(SEED - (1 << 64)), torch.arange(n)
    assert torch.equal(keep_bits.keep_words(seed, torch.tensor(OFFSET // 4), at, torch.tensor(keep_bits.keep_fraction(p))).int(), first)


def test_distribution():
    """Bits are 1 as often as said, whatever their place in a word, their word and the draw; neighbours in a word, words and draws know nothing of each other."""
    n, p = 1 << 16, 0.1
    ones = torch.tensor(keep_bits.keep_fraction(p))
    draws = [keep_bits.keep_words(torch.tensor(3), torch.tensor(4 * k), torch.arange(n), ones).int() for k in range(3)]
    kept = torch.stack([bits_of(words).float() for words in draws])
    deviation = (p * (1 - p)) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 5 * deviation / (3 * 32 * n) ** 0.5
    assert ((kept.mean((0, 1)) - (1 - p)).abs() < 5 * deviation / (3 * n) ** 0.5).all()
    c = (kept - (1 - p)) / deviation
    for a, b in ((c[..., 1:], c[..., :-1]), (c[:, 1:], c[:, :-1]), (c[1:], c[:-1]), (c[:, 1:, 0], c[:, :-1, 31]), (c[:, 32:], c[:, :-32])):
        assert abs((a * b).mean()) < 5 / a.numel() ** 0.5


def test_probabilities():
    for p in (0.1, 0.5, 1 / 1024, 0.999):
        assert abs(keep_bits.fraction(p) / 65536 - p) <= 2 ** -17 and keep_bits.scale(p) * keep_bits.keep_fraction(p) == 65536
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
