"""mode="reduce-overhead" on a GPU: replays give what eager gives, and what is not captured says why."""

import gc

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler.runtime.gpu import cuda_graphs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


@pytest.fixture(autouse=True)
def always_kept(monkeypatch):
    """Whether a replay pays off depends on the machine: these tests are about results."""
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")


def model(n=6):
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64))]).cuda().eval()


def live() -> list:
    return [o for o in gc.get_objects() if isinstance(o, cuda_graphs.CudaGraphs) and o.captured]


def test_replays_with_moving_inputs_and_results_that_stay():
    m = model()
    c = tcompile.compile(m, mode="reduce-overhead")
    before = len(live())
    kept = []
    with torch.no_grad():
        for i in range(12):
            x = torch.randn(16, 64, device="cuda")
            kept.append((c(x), m(x)))
    assert len(live()) > before
    for got, want in kept:  # every one is still what it was
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)


def test_parameters_that_move_or_change():
    m = model(2)
    c = tcompile.compile(m, mode="reduce-overhead")
    x = torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        for i in range(16):
            if i == 6:
                m[0].weight.add_(0.1)  # in place: the graph reads the new values
            if i == 8:
                m[0].weight.data = m[0].weight.data * 2 + 1  # another memory
            torch.testing.assert_close(c(x), m(x), atol=1e-4, rtol=1e-3)


def test_sizes_have_a_graph_each():
    m = model(2)
    c = tcompile.compile(m, mode="reduce-overhead", dynamic=True)
    with torch.no_grad():
        for i in range(24):
            x = torch.randn((5, 9, 33)[i % 3], 64, device="cuda")
            torch.testing.assert_close(c(x), m(x), atol=1e-5, rtol=1e-4)


def test_a_cache_that_is_made_anew_is_recorded_where_it_lies():
    def step(cache, at, new):
        cache.index_copy_(1, at, new)
        return torch.softmax(cache * 2, 1).sum(1)

    compiled = tcompile.compile(step, mode="reduce-overhead")
    others = live()
    kept = []  # nothing comes to lie where an earlier cache lay
    for _ in range(3):
        ours = torch.zeros(4, 64, 64, device="cuda")
        theirs = torch.zeros_like(ours)
        kept.append(ours)
        for k in range(cuda_graphs.PAID + 8):
            at, new = torch.tensor([k % 64], device="cuda"), torch.randn(4, 1, 64, device="cuda")
            torch.testing.assert_close(compiled(ours, at, new), step(theirs, at, new))
            torch.testing.assert_close(ours, theirs)
        (graphs,) = [o for o in live() if not any(o is x for x in others)]
        assert graphs.captured == 1 and not graphs.reasons


def test_inputs_that_are_written():
    state = torch.zeros(64, 64, device="cuda")
    other = torch.zeros(64, 64, device="cuda")

    def f(x, s):
        s.add_(x)
        return torch.sin(s) + 1

    c = tcompile.compile(f, mode="reduce-overhead")
    for i in range(8):
        x = torch.randn(64, 64, device="cuda")
        version = state._version
        torch.testing.assert_close(c(x, state), f(x, other))
        torch.testing.assert_close(state, other)
        assert state._version > version


def test_random_numbers_go_on_and_follow_the_seed():
    x = torch.ones(4096, device="cuda")
    c = tcompile.compile(lambda a: F.dropout(a * 1.0, 0.5, True) + 0.0, mode="reduce-overhead")
    outs = [c(x) for _ in range(6)]
    assert not any(torch.equal(a, b) for a, b in zip(outs, outs[1:]))
    torch.manual_seed(3)
    a = c(x)
    torch.manual_seed(3)
    assert torch.equal(a, c(x))


def test_two_models_share_a_pool_on_two_streams():
    a, b = model(3), model(4)
    ca, cb = tcompile.compile(a, mode="reduce-overhead"), tcompile.compile(b, mode="reduce-overhead")
    side = torch.cuda.Stream()
    x = torch.randn(256, 64, device="cuda")
    torch.cuda.synchronize()
    with torch.no_grad():
        for i in range(20):
            ya = ca(x)
            with torch.cuda.stream(side):
                yb = cb(x)
            torch.cuda.synchronize()
            torch.testing.assert_close(ya, a(x), atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(yb, b(x), atol=1e-5, rtol=1e-4)


def test_training_with_graphs():
    import copy

    m1 = model(2).train()
    m2 = copy.deepcopy(m1)
    c = tcompile.compile(m1, mode="reduce-overhead")
    o1, o2 = torch.optim.SGD(m1.parameters(), 0.05), torch.optim.SGD(m2.parameters(), 0.05)
    for i in range(8):
        x = torch.randn(32, 64, device="cuda")
        for m, o in ((c, o1), (m2, o2)):
            o.zero_grad()
            m(x).square().mean().backward()
            o.step()
    for p, q in zip(m1.parameters(), m2.parameters()):
        torch.testing.assert_close(p, q, atol=1e-4, rtol=1e-3)


def test_inside_of_a_capture_of_the_user():
    c = tcompile.compile(lambda a: torch.sin(a) * 2, mode="reduce-overhead")
    x = torch.randn(100, device="cuda")
    for _ in range(5):
        c(x)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = c(x)
    x.fill_(1.0)
    g.replay()
    torch.testing.assert_close(y, torch.sin(x) * 2)


def test_memory_after_many_calls():
    m = model(3)
    c = tcompile.compile(m, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(6):
            c(torch.randn(16, 64, device="cuda"))
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(1000):
            c(torch.randn(16, 64, device="cuda"))
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before


# ---- training: test_training_graphs.py has more
def steps(module, call, optimizer, inputs, amp=False):
    """The losses of training on these inputs, one after the other."""
    losses = []
    for i, x in enumerate(inputs):
        torch.manual_seed(i)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=amp):
            loss = call(x).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def trained(m, inputs, amp=False, **options):
    """Losses and parameters of the module compiled and eager, and what was captured meanwhile."""
    import copy

    m2 = copy.deepcopy(m)
    before = {id(o) for o in live()}
    got = steps(
        m, tcompile.compile(m, mode="reduce-overhead", **options), torch.optim.SGD(m.parameters(), 0.05), inputs, amp
    )
    made = [o for o in live() if id(o) not in before]
    want = steps(m2, m2, torch.optim.SGD(m2.parameters(), 0.05), inputs, amp)
    return got, want, list(zip(m.parameters(), m2.parameters())), made


def convolutions():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, 1, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()


def test_training_convolutions_under_autocast():
    got, want, parameters, made = trained(
        convolutions(), [torch.randn(16, 3, 64, 64, device="cuda") for _ in range(9)], amp=True
    )
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    forward, backward = sorted(made, key=lambda c: c.backward)
    g, b = next(iter(forward.entries.values())), next(iter(backward.entries.values()))
    assert g.held is not None and b.destroys and not forward.reasons and not backward.reasons


@pytest.mark.parametrize("in_attention", [0.0, 0.1])
def test_training_attention_with_dropout(in_attention):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.1, batch_first=True, norm_first=True, activation="gelu")
    layer.self_attn.dropout = in_attention  # where torch's kernels draw these numbers, they draw all of the graph's
    m = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda().train()
    got, want, parameters, made = trained(m, [torch.randn(4, 128, 256, device="cuda") for _ in range(9)], amp=True)
    torch.testing.assert_close(got, want, atol=3e-2, rtol=3e-2)
    assert len(made) == 2, [c.reasons for c in made]


def test_training_on_two_streams():
    m = model(3).train()
    inputs = [torch.randn(32, 64, device="cuda") for _ in range(12)]
    import copy

    m2 = copy.deepcopy(m)
    c, side = tcompile.compile(m, mode="reduce-overhead"), torch.cuda.Stream()
    for i, x in enumerate(inputs):
        with torch.cuda.stream(side if i % 2 else torch.cuda.current_stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream() if i % 2 else side)
            for call, p in ((c, m), (m2, m2)):
                call(x).square().mean().backward()
            torch.cuda.current_stream().synchronize()
        for p, q in zip(m.parameters(), m2.parameters()):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-4, rtol=1e-3)


def test_the_memory_of_training():
    """What is kept lies there once, what backward makes takes its place, and all of it goes with the function."""
    torch.manual_seed(0)

    def chain():
        return nn.Sequential(
            *[m for _ in range(24) for m in (nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU())], nn.Linear(256, 1)
        ).cuda()

    inputs = [torch.randn(1 << 15, 256, device="cuda")] * 8
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # torch's own: 32 MB for each thread and stream that it first multiplied on
    torch.cuda.empty_cache()
    floor = torch.cuda.memory_reserved()

    def peak(mode):
        tcompile.reset()
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        m = chain()
        c, o = tcompile.compile(m, mode=mode), torch.optim.SGD(m.parameters(), 0.01)
        steps(m, c, o, inputs[:4])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        steps(m, c, o, inputs[4:])
        most = torch.cuda.max_memory_reserved() - before
        del m, c, o
        return most

    plain, replayed = peak("default"), peak("reduce-overhead")
    assert replayed < 1.35 * plain, (plain >> 20, replayed >> 20)
    tcompile.reset()
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - floor < 0.1 * plain, (torch.cuda.memory_reserved() >> 20, floor >> 20)
