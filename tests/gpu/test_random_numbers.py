"""Random numbers inside of kernels on a GPU are those that eager draws, bit for bit, and leave the generator where
eager leaves it.
"""

import gc

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tcompile
from tcompile.compiler.ops import philox
from tcompile.compiler.runtime.gpu import cuda_graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
f32, bf16, f16 = torch.float32, torch.bfloat16, torch.float16


def offset():
    return torch.cuda.default_generators[0].get_offset()


def randn(*shape, dtype=f32):
    return torch.randn(*shape, device="cuda").to(dtype)


def both(f, c, *args, seed=7):
    """(results and the generator's offset of the compiled, of eager)."""
    out = []
    for g in (c, f):
        torch.manual_seed(seed)
        r = g(*args)
        out.append((list(r) if isinstance(r, (tuple, list)) else [r], offset()))
    return out


def check(f, *args, ours=True, calls=3, close=False, **kw):
    """Compiled draws as eager, call after call; `ours`: in kernels of ours."""
    c = tcompile.compile(f, options={"emulate_precision": True}, **kw)  # (eager's roundings, too)
    with tcompile.record() as r:
        for k in range(calls):
            (got, at), (want, there) = both(f, c, *args, seed=k)
            assert at == there
            for a, b in zip(got, want):
                assert a.stride() == b.stride() and a.dtype == b.dtype
                torch.testing.assert_close(a, b) if close else torch.testing.assert_close(a, b, rtol=0, atol=0)
    sources = "".join(k.source for k in r.report().kernels)
    assert ("_philox" in sources) == ours, sources
    return c


def test_torch_draws_as_stated():
    assert philox.plain(0) and all(philox.neighbours(d, 0) for d in (f32, bf16, f16))


SHAPES = [
    (1,),
    (7,),
    (8, 12),
    (33, 1024),
    (515, 1023),
    (64, 4096),
    (1024, 4098),
    (4096, 1000),
    (2049, 1023),
    (8192, 1028),
]


@pytest.mark.parametrize(
    "shape, dtype", [*((s, f32) for s in SHAPES), *((s, bf16) for s in SHAPES), ((33, 1024), f16), ((515, 1023), f16)]
)
def test_dropout(shape, dtype):
    n = torch.Size(shape).numel()
    odd = n % 4 and n > 1 << 20
    check(lambda x: torch.native_dropout(x + 1, 0.3, True), randn(*shape, dtype=dtype), ours=not odd)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1e-4, 1.0])
def test_probabilities(p):
    check(lambda x: F.dropout(x * 2, p, True) + 1, randn(257, 1024, dtype=bf16), ours=0 < p < 1)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 2),
        lambda x: x.permute(0, 2, 1),
        lambda x: x[:, ::2],
        lambda x: x[1:],
        lambda x: x[:, :, 4:].contiguous(),
        lambda x: x.flatten()[8:],
        lambda x: x.flatten()[4:-4],
        lambda x: x.flatten()[2:-6],
        lambda x: x.flatten()[1:-7],
    ],
)
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_layouts(view, dtype):
    check(lambda x: torch.native_dropout(view(x + 1), 0.5, True), randn(16, 24, 64, dtype=dtype))


def test_inputs_lie_where_they_lie():
    """torch's kernel looks at an input's address: the compiled entry serves others, too."""
    f = lambda x: F.dropout(x, 0.5, True) * 2  # noqa: E731
    base = randn(40000, dtype=bf16)
    c = check(f, base[:32768])
    for begin in (8, 4, 2, 1, 0):
        (got, at), (want, there) = both(f, c, base[begin : begin + 32768])
        assert torch.equal(got[0], want[0]) and at == there


def test_more_than_one_turn():
    x = randn(1 << 25).to(bf16)
    check(lambda x: F.dropout(x * 2, 0.1, True) + x, x, close=True, calls=1)


def test_others_draw():
    def f(x):
        return (
            torch.rand(1000, device="cuda"),
            torch.rand_like(x),
            torch.bernoulli(x, 0.25),
            torch.rand(77, device="cuda", dtype=bf16),
            torch.empty_like(x).bernoulli_(0.9),
            F.alpha_dropout(x, 0.3, True),
            F.dropout2d(x.view(8, -1, 4, 4), 0.5, True),
        )

    check(f, torch.rand(128 * 128, device="cuda"), close=True)
    check(lambda x: torch.rand_like(x) + 0, randn(1 << 20))
    check(lambda x: torch.rand_like(x) + 0, randn(1 << 22), ours=False)


def test_what_torch_draws_between():
    def f(x):
        a = F.dropout(x * 2, 0.5, True)
        b = torch.randn_like(a)
        c = F.dropout(a + 1, 0.2, True)
        return (
            a,
            b,
            c,
            torch.randint(0, 9, (10,), device="cuda"),
            F.dropout(c + 1, 0.1, True),
            torch.randn(3, device="cuda"),
        )

    check(f, randn(300, 512))


@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}])
def test_training_with_attention(options, monkeypatch):
    """Attention's dropout is torch's, between our own; gradients are those of eager's masks."""
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")
    torch.manual_seed(0)
    m = (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.2, activation="gelu", batch_first=True, norm_first=True),
            2,
            enable_nested_tensor=False,
        )
        .cuda()
        .train()
    )
    x = randn(4, 32, 64)
    c = tcompile.compile(m, **options)
    for k in range(6):
        out = []
        for g in (c, m):
            torch.manual_seed(k)
            m.zero_grad()
            y = g(x)
            y.square().mean().backward()
            out.append((y.detach(), [p.grad.clone() for p in m.parameters()], offset()))
        assert out[0][2] == out[1][2]
        torch.testing.assert_close(out[0][0], out[1][0], atol=2e-4, rtol=2e-3)
        for a, b in zip(out[0][1], out[1][1]):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-2)


def test_gradients():
    def f(x):
        y = F.dropout(F.gelu(x), 0.3, True).sum(-1)
        return torch.autograd.grad(y.square().sum(), x)[0]

    x = randn(64, 512).requires_grad_()
    c = tcompile.compile(lambda x: F.dropout(F.gelu(x), 0.3, True).sum(-1))
    for k in range(3):
        torch.manual_seed(k)
        (got,) = torch.autograd.grad(c(x).square().sum(), x)
        torch.manual_seed(k)
        torch.testing.assert_close(got, f(x), atol=1e-4, rtol=1e-4)


def test_checkpointed():
    w = randn(64, 64).requires_grad_()

    def f(x):
        return checkpoint(lambda a: F.dropout(torch.tanh(a @ w), 0.5, True) @ w, x, use_reentrant=False).square().sum()

    x = randn(32, 64).requires_grad_()
    c = tcompile.compile(f)
    for k in range(3):
        out = []
        for g in (c, f):
            torch.manual_seed(k)
            y = g(x)
            out.append((y.detach(), *torch.autograd.grad(y, (x, w)), torch.rand(2, device="cuda")))
        for a, b in zip(*out):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_seeds_and_forks():
    f = lambda x: F.dropout(x + 1, 0.5, True)  # noqa: E731
    x = torch.ones(4096, device="cuda")
    c = tcompile.compile(f)
    for seed in (0, 1, 2**40 + 3, 2**64 - 5):
        (got, _), (want, _) = both(f, c, x, seed=seed)
        assert torch.equal(got[0], want[0])
    torch.manual_seed(1)
    with torch.random.fork_rng([0]):
        a = c(x)
    assert torch.equal(f(x), a)
    torch.cuda.default_generators[0].set_offset((1 << 34) - 4)
    a = c(x), c(x)
    torch.cuda.default_generators[0].set_offset((1 << 34) - 4)
    assert all(torch.equal(p, q) for p, q in zip(a, (f(x), f(x))))


def test_replayed_graphs(monkeypatch):
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")
    f = lambda x: (F.dropout(x * 2, 0.5, True) + torch.rand_like(x), F.dropout(x + 1, 0.1, True))  # noqa: E731
    x = randn(256, 512)
    c = tcompile.compile(f, mode="reduce-overhead")
    for k in range(8):
        (got, at), (want, there) = both(f, c, x if k % 2 else x.clone(), seed=k // 3)
        assert at == there and all(torch.equal(a, b) for a, b in zip(got, want))
    torch.manual_seed(11)
    a = [c(x) for _ in range(4)]
    torch.manual_seed(11)
    assert all(torch.equal(p, q) for r in a for p, q in zip(r, f(x)))


def captured(but=()):
    return [
        o
        for o in gc.get_objects()
        if isinstance(o, cuda_graphs.CudaGraphs) and o.captured and not any(o is x for x in but)
    ]


def test_that_graphs_draw_here():
    assert philox.draws_in_graphs(0)


def test_replayed_beside_torch(monkeypatch):
    """Between our draws in a graph torch's kernels draw: each has its place."""
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")

    def f(x):
        a = F.dropout(x * 2, 0.5, True) + torch.rand_like(x)
        b = torch.randn_like(x)
        c = F.dropout(a + b, 0.1, True)
        return a, b, c, torch.randn_like(x), F.dropout(c, 0.3, True)

    x = randn(256, 512)
    before, c = captured(), tcompile.compile(f, mode="reduce-overhead")
    for k in range(8):
        (got, at), (want, there) = both(f, c, x, seed=k // 3)
        assert at == there
        for p, q in zip(got, want):
            torch.testing.assert_close(p, q)
    assert len(captured(before)) == 1


@pytest.mark.parametrize("options", [{"cudagraphs": True}, {"cudagraphs": True, "max_autotune": True}])
def test_training_by_replays_beside_attention(options):
    """A transformer's step, in which attention draws by torch's kernels: the numbers and gradients of default mode."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        128, 2, 512, dropout=0.2, activation="gelu", batch_first=True, norm_first=True
    )
    m = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().train()
    x = randn(8, 128, 128)
    before, plain, replayed = captured(), tcompile.compile(m), tcompile.compile(m, options=options)
    for k in range(6):
        out = []
        for g in (plain, replayed):
            torch.manual_seed(k // 2)
            for _ in range(1 + k % 2):
                m.zero_grad()
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    y = g(x)
                y.float().square().mean().backward()
            out.append((y.detach(), [p.grad.clone() for p in m.parameters()], offset()))
        assert out[0][2] == out[1][2]
        torch.testing.assert_close(out[0][0], out[1][0], atol=4e-2, rtol=4e-2)
        for a, b in zip(out[0][1], out[1][1]):
            assert (a - b).norm() <= 2e-2 * a.norm() + 1e-6
    assert len(captured(before)) == 2


def graph_of_the_program(c, x):
    """A CUDA graph that the program itself captures of a call, and its result."""
    c(x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        c(x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = c(x)
    return graph, y


def test_in_a_graph_of_the_programs_own():
    """A program that captures a compiled function itself: torch's kernels draw, whose numbers go on from replay to
    replay.
    """
    f = lambda x: F.dropout(x + 1, 0.5, True)  # noqa: E731
    x = torch.ones(4096, device="cuda")
    c = tcompile.compile(f)
    graph, y = graph_of_the_program(c, x)
    torch.manual_seed(3)
    out = []
    for _ in range(3):
        graph.replay()
        out.append(y.clone())
    torch.manual_seed(3)
    assert all(torch.equal(a, f(x)) for a in out)
