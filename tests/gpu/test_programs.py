"""Programs on a GPU against eager: run where there is one, skipped elsewhere."""

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

from ..lowering.helper import UNARY

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
f32, f64, bf16, f16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


def randn(*shape, dtype=f32, **kw):
    return torch.randn(*shape, dtype=f32, device="cuda", **kw).to(dtype)


def check(fn, *args, atol=None, rtol=None, compiled=None, **kw):
    """Compiled equals eager, without a fallback; gives the report."""
    c = compiled or tcompile.compile(fn, **kw)
    with tcompile.record() as r:
        got = c(*args)
    want = fn(*args)
    flat_got, flat_want = (list(x) if isinstance(x, (tuple, list)) else [x] for x in (got, want))
    for a, b in zip(flat_got, flat_want):
        assert a.device == b.device and a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol, equal_nan=True)
    report = r.report()
    assert not [
        f for f in report.fallbacks if "kernels for the GPU" in f.reason or "torch's own kernels" in f.reason
    ], report.fallbacks
    return report


@pytest.mark.parametrize("n", [0, 1, 1000, 1 << 20, (1 << 22) + 3])
def test_pointwise(n):
    check(lambda a, b: torch.relu((a + b) * a - b) * 2 + torch.sin(a), randn(n), randn(n))


@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16])
def test_unary_functions(dtype):
    x = torch.cat(
        [
            randn(4000) * 3,
            torch.tensor(
                [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 0.5, 88.0, -100.0, 1e-40], device="cuda"
            ),
        ]
    ).to(dtype)
    for at in range(0, len(UNARY), 8):
        names = UNARY[at : at + 8]
        check(lambda a: tuple(getattr(torch, n)(a) for n in names), x)


def test_accuracy_against_float64():
    """The error is no more than eager's, twice."""
    x = randn(1 << 16) * 4
    for f in (
        torch.exp,
        torch.sin,
        torch.tanh,
        torch.erf,
        torch.log1p,
        lambda a: F.softmax(a.view(64, -1), -1),
        lambda a: F.gelu(a),
        lambda a: F.layer_norm(a.view(64, -1), (1024,)),
        lambda a: torch.sigmoid(a) / (a.abs() + 1),
    ):
        y = x.abs() if f is torch.log1p else x
        exact = f(y.double())
        ours = (tcompile.compile(f)(y).double() - exact).square().nanmean().sqrt()
        eager = (f(y).double() - exact).square().nanmean().sqrt()
        assert ours <= 2 * eager + 1e-12, (f, float(ours), float(eager))


@pytest.mark.parametrize("dtype", [f32, bf16, torch.int64, torch.int32])
@pytest.mark.parametrize("shape", [(7, 5), (3, 70000), (70000, 3), (513, 1025), (2, 1 << 20), (4096, 4096)])
def test_reductions(dtype, shape):
    x = (
        torch.randint(-50, 50, shape, device="cuda").to(dtype)
        if not dtype.is_floating_point
        else randn(*shape, dtype=dtype)
    )
    for dim in (0, 1, (0, 1)):

        def f(a):
            return a.sum(dim), a.amax(dim), a.amin(dim)

        check(f, x, atol=0.3 if dtype == bf16 else 2e-3, rtol=2e-2 if dtype == bf16 else 1e-4)
    y = torch.rand(shape, device="cuda") if dtype.is_floating_point else x
    check(lambda a: ((a > 0).any(1), (a > -60).all(0)), y)


def test_argmax_first_of_ties_and_nan():
    x = torch.randint(0, 30, (300, 3000), device="cuda").float()
    got = tcompile.compile(lambda a: (a.argmax(1), a.argmin(1), a.argmax()))(x)
    assert torch.equal(got[0], (x == x.amax(1, keepdim=True)).int().argmax(1)) or torch.equal(
        x.gather(1, got[0][:, None])[:, 0], x.amax(1)
    )
    assert float(x.flatten()[got[2]]) == float(x.max())
    x[3, 77] = torch.nan
    got = tcompile.compile(lambda a: (a.amax(1), a.argmax(1)))(x)
    assert bool(got[0][3].isnan()) and int(got[1][3]) == 77


@pytest.mark.parametrize("shape", [(4, 10), (300, 4096), (64, 50304), (8, 200_000), (5000, 33)])
@pytest.mark.parametrize("dtype", [f32, bf16])
def test_softmax_norms_losses(shape, dtype):
    x = randn(*shape, dtype=dtype)
    w, b = randn(shape[-1], dtype=dtype), randn(shape[-1], dtype=dtype)
    tol = dict(atol=5e-2, rtol=5e-2) if dtype == bf16 else dict(atol=2e-4, rtol=1e-3)
    check(lambda a: F.softmax(a, -1), x, **tol)
    check(lambda a: F.log_softmax(a, -1), x, **tol)
    check(lambda a, w, b: F.gelu(F.layer_norm(a + 1, (shape[-1],), w, b)), x, w, b, **tol)
    check(lambda a, w: F.rms_norm(a, (shape[-1],), w), x, w, **tol)
    t = torch.randint(0, shape[-1], (shape[0],), device="cuda")
    check(lambda a, t: F.cross_entropy(a, t), x, t, **tol)
    check(lambda a: a.softmax(0).sum(), x, **tol)


def test_softmax_of_infinite_rows():
    x = randn(64, 50304)
    x[0] = -torch.inf
    x[1, :1000] = -torch.inf
    x[2, 5] = torch.inf
    x[3, 7] = torch.nan
    check(lambda a: F.softmax(a, -1), x)
    check(lambda a: F.softmax(a, -1), x[:, :900].contiguous())


def test_layouts():
    x = randn(64, 33, 128)
    check(lambda a: a.transpose(1, 2).contiguous() + 1, x)
    check(lambda a: a.permute(2, 0, 1).contiguous() * 2, x)
    check(lambda a: a[::2, 1:, ::3] * 2, x)
    check(lambda a: a.expand(5, 64, 33, 128).sum(0), x)
    check(lambda a: F.pad(a, (1, 2, 3, 0)) + 1, x)
    check(lambda a: torch.cat([a, a * 2, a[:3]]), x)
    c = randn(8, 64, 14, 14).to(memory_format=torch.channels_last)
    check(lambda a: torch.relu(a * 2 + 1), c)
    check(lambda a: a.mean((2, 3)), c)
    check(lambda a: torch.var_mean(a, (0, 2, 3)), c, atol=1e-4, rtol=1e-4)


def test_indexing():
    w, ids = randn(1000, 64), torch.randint(0, 1000, (7, 30), device="cuda")
    check(lambda w, i: F.embedding(i, w) + 1, w, ids)
    check(lambda w, i: w[i] * 2, w, ids - 500)
    check(lambda w, i: w.gather(1, i.view(-1, 1) % 64), w[:210], ids)
    check(lambda w, i: w.index_select(0, i[0]), w, ids)


def test_unaligned_views():
    base = randn(4100)
    for at in (0, 1, 2, 3, 4):
        x = base[at : at + 4096]
        check(lambda a: torch.tanh(a) * 2, x)
    c = tcompile.compile(lambda a: a.exp() + 1)
    for at in (0, 1, 2, 0, 3):
        x = base[at : at + 4000]
        torch.testing.assert_close(c(x), x.exp() + 1)


def test_dynamic_shapes():
    c = tcompile.compile(lambda a: F.softmax(a * 2 + 1, -1).sum(0))
    for n, m in ((5, 30), (6, 30), (100, 30), (1000, 30), (7, 31), (2, 4096), (3, 100_000)):
        x = randn(n, m)
        torch.testing.assert_close(c(x), F.softmax(x * 2 + 1, -1).sum(0), atol=1e-5, rtol=1e-4)
    d = tcompile.compile(lambda a, b: (a + b).relu(), dynamic=True)
    for n in (1, 2, 3, 1000, 1 << 20):
        x, y = randn(n), randn(n)
        torch.testing.assert_close(d(x, y), (x + y).relu())


def test_streams():
    c = tcompile.compile(lambda a: torch.sin(a) + (a * a).sum())
    x = randn(1 << 20)
    want = torch.sin(x) + (x * x).sum()
    c(x)
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        y = randn(1 << 24).cumsum(0)  # keeps the stream busy
        z = x * 1
        got = c(z)
    torch.cuda.current_stream().wait_stream(s)
    torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-4)
    assert y.numel()


def test_threads():
    import threading

    c = tcompile.compile(lambda a: torch.exp(a) + 1)
    x = randn(1000)
    c(x)
    out = []
    ts = [threading.Thread(target=lambda: out.append(c(x))) for _ in range(4)]
    for t in ts:
        t.start()
    for t in ts:
        t.join()
    assert len(out) == 4
    for o in out:
        torch.testing.assert_close(o, torch.exp(x) + 1)


def test_mutation_and_aliases():
    def f(a, b):
        a.add_(b)
        b.mul_(2)
        return a.view(-1)[:3], a + b

    a, b = randn(40, 30), randn(40, 30)
    a2, b2 = a.clone(), b.clone()
    got = tcompile.compile(f)(a, b)
    want = f(a2, b2)
    for x, y in zip((*got, a, b), (*want, a2, b2)):
        torch.testing.assert_close(x, y)
    assert got[0].data_ptr() == a.data_ptr()


def test_mixed_devices_run_by_torch():
    scalar = torch.tensor(3.0)
    x = randn(100)
    c = tcompile.compile(lambda a, s: a * s + 1)
    torch.testing.assert_close(c(x, scalar), x * 3 + 1)
    scalar.fill_(5)
    torch.testing.assert_close(c(x, scalar), x * 5 + 1)


def test_device_moves():
    f = tcompile.compile(lambda a: torch.tanh(a) * 2)
    z = torch.randn(1000)
    for v in (z, z.cuda(), z):
        torch.testing.assert_close(f(v), torch.tanh(v) * 2)
    check(lambda a: a.cpu() + 1, randn(10))
    check(lambda a: a.to("cuda") + 1, torch.randn(10))


def test_matmul_with_epilogues():
    x, w, b = randn(128, 256, dtype=f16), randn(256, 512, dtype=f16), randn(512, dtype=f16)
    check(lambda x, w, b: F.gelu(x @ w + b), x, w, b, atol=6e-2, rtol=2e-2)
    check(lambda x, w, b: torch.relu(F.linear(x, w.t(), b)) + 1, x, w, b, atol=6e-2, rtol=2e-2)


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    ).cuda()


def test_inference_of_a_module():
    m = small_model().eval()
    c = tcompile.compile(m)
    with torch.no_grad():
        for n in (32, 32, 8):
            x = randn(n, 64)
            torch.testing.assert_close(c(x), m(x), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("amp", [False, True])
def test_training(amp):
    m1 = small_model()
    m2 = copy.deepcopy(m1)
    o1, o2 = (torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (m1, m2))
    c = tcompile.compile(m1)
    g = torch.Generator(device="cuda").manual_seed(1)
    for _ in range(5):
        x, y = torch.randn(32, 64, device="cuda", generator=g), torch.randint(0, 10, (32,), device="cuda", generator=g)
        losses = []
        for m, o in ((c, o1), (m2, o2)):
            o.zero_grad()
            with torch.autocast("cuda", dtype=bf16, enabled=amp):
                loss = F.cross_entropy(m(x), y)
            loss.backward()
            o.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], atol=2e-2 if amp else 1e-4, rtol=1e-2 if amp else 1e-4)
    for p, q in zip(m1.parameters(), m2.parameters()):
        torch.testing.assert_close(p, q, atol=5e-3 if amp else 1e-4, rtol=1e-2)


def test_backward_is_generated_while_forward_is_compiled(tmp_path):
    m = nn.Sequential(nn.Linear(37, 53), nn.GELU(), nn.LayerNorm(53), nn.Linear(53, 11)).cuda()
    x = torch.randn(29, 37, device="cuda")
    c = tcompile.compile(m, options={"cache_dir": str(tmp_path)})
    with tcompile.record() as recording:
        c(x).square().sum().backward()
        torch.cuda.synchronize()
    got = [p.grad.clone() for p in m.parameters()]
    m.zero_grad()
    m(x).square().sum().backward()
    for g, p in zip(got, m.parameters()):
        torch.testing.assert_close(g, p.grad, atol=1e-3, rtol=1e-3)
    report = recording.report()
    assert {s.parent: s.count for s in report.stages if s.name == "lowering"} == {"": 1, "runtime": 1}
    assert [g.name for g in report.graphs] == ["graph_0", "graph_0_backward"] and not report.fallbacks


def test_images_of_one_channel_are_copied_nowhere():
    """The library gives its results in the order that the plan says: torch's profiler sees no copy of torch's own."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.deep = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
            self.last = nn.Linear(64 * 12 * 12, 10)

        def forward(self, x):
            return self.last(F.max_pool2d(F.relu(self.deep(F.relu(self.conv(x)))), 2).flatten(1))

    m, x = Net().cuda().eval(), torch.randn(64, 1, 28, 28, device="cuda")
    c = tcompile.compile(m)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(c(x), m(x), atol=1e-2, rtol=1e-2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            c(x)
    copies = [e for e in seen.events() if e.name in ("aten::copy_", "aten::clone", "aten::contiguous")]
    assert not [e for e in copies if e.name == "aten::copy_"], [(e.name, e.input_shapes) for e in copies]


def test_convolution_network_trains():
    torch.manual_seed(0)
    m1 = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    ).cuda()
    m2 = copy.deepcopy(m1)
    c = tcompile.compile(m1)
    x = randn(4, 3, 16, 16)
    for _ in range(3):
        a, b = c(x), m2(x)
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
        a.square().sum().backward()
        b.square().sum().backward()
    for p, q in zip(m1.parameters(), m2.parameters()):
        torch.testing.assert_close(p.grad, q.grad, atol=5e-2, rtol=5e-2)
    for p, q in zip(m1.buffers(), m2.buffers()):
        torch.testing.assert_close(p, q, atol=1e-3, rtol=1e-3)


def test_dropout_follows_the_seed():
    c = tcompile.compile(lambda a: F.dropout(a, 0.5, True) * 2)
    x = torch.ones(10000, device="cuda")
    torch.manual_seed(5)
    a = c(x)
    torch.manual_seed(5)
    b = c(x)
    assert torch.equal(a, b) and 0.4 < float((a == 0).float().mean()) < 0.6


def test_memory_does_not_grow():
    c = tcompile.compile(lambda a: F.softmax(torch.sin(a) + 1, -1).sum(0))
    x = randn(512, 512)
    for _ in range(5):
        c(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        c(x)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_the_current_device_by_its_kind_alone():
    x = randn(300)
    report = check(lambda x: x * torch.arange(300, device="cuda") + torch.zeros(300, device=torch.device("cuda")), x)
    assert len(report.graphs) == 1 and not report.graph_breaks


def test_attention_by_hand():
    q, k, v = (randn(2, 8, 256, 64, dtype=bf16) for _ in range(3))

    def f(q, k, v):
        s = (q @ k.transpose(-2, -1)) / (q.shape[-1] ** 0.5)
        return torch.softmax(s.float(), -1).to(q.dtype) @ v

    report = check(f, q, k, v, atol=3e-2, rtol=3e-2)
    # small: launching it costs less than calling the library
    assert [k.name for k in report.kernels] == ["k0_attention"]
    report = check(f, *(randn(8, 16, 1024, 64, dtype=bf16) for _ in range(3)), atol=3e-2, rtol=3e-2)
    assert not report.kernels, [k.name for k in report.kernels]
    for n, d in ((100, 48), (33, 80), (161, 48), (100, 96), (57, 24)):
        check(f, *(randn(2, 3, n, d, dtype=f16) for _ in range(3)), atol=3e-3, rtol=3e-2)
    x, w = randn(4, 128, 256, dtype=f16), randn(768, 256, dtype=f16) * 0.05

    def g(x, w):
        q, k, v = F.linear(x, w).view(4, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)
        p = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.125, -1)
        return torch.matmul(p, v).transpose(1, 2).reshape(4, 128, 256)

    check(g, x, w, atol=2e-2, rtol=2e-2)


def test_library_attention():
    q, k, v = (randn(2, 4, 128, 64, dtype=f16).requires_grad_() for _ in range(3))
    q2, k2, v2 = (t.detach().clone().requires_grad_() for t in (q, k, v))

    def f(q, k, v):
        return F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True) + 1

    with torch.no_grad():
        check(f, q, k, v, atol=2e-2, rtol=2e-2)
    a, b = tcompile.compile(f)(q, k, v), f(q2, k2, v2)
    torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)
    a.square().sum().backward()
    b.square().sum().backward()
    for x, y in ((q, q2), (k, k2), (v, v2)):
        torch.testing.assert_close(x.grad, y.grad, atol=5e-2, rtol=5e-2)


def test_products_over_an_odd_vocabulary():
    w1 = (randn(50257, 128) * 0.05).requires_grad_()
    h1 = randn(2, 512, 128).requires_grad_()
    w2, h2 = (t.detach().clone().requires_grad_() for t in (w1, h1))
    t = torch.randint(0, 50257, (1024,), device="cuda")

    def f(h, w, t):
        with torch.autocast("cuda", torch.bfloat16):
            logits = F.linear(h, w)
        return F.cross_entropy(logits.float().view(-1, 50257), t), logits

    got, want = tcompile.compile(f)(h1, w1, t), f(h2, w2, t)
    for a, b in zip(got, want):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)
    got[0].backward()
    want[0].backward()
    torch.testing.assert_close(h1.grad, h2.grad, atol=1e-5, rtol=5e-2)
    torch.testing.assert_close(w1.grad, w2.grad, atol=1e-5, rtol=5e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs")
def test_another_current_device():
    def f(x):
        return torch.ones(3, device="cuda") * 2, x.to("cuda") + 1, x.cuda() * 3

    c, x = tcompile.compile(f), torch.randn(3)
    for index in (0, 1, 0):
        with torch.cuda.device(index):
            for a, b in zip(c(x), f(x), strict=True):
                assert a.device == b.device == torch.device("cuda", index)
                torch.testing.assert_close(a, b)


def test_autocast_is_in_the_graph_from_the_first_call_of_a_process():
    program = """
import torch, tcompile
from torch.nn.functional import linear

def f(x, w):
    major = torch.cuda.get_device_properties(x.device).major
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return linear(x, w) * major, torch.cuda.is_bf16_supported()

x, w = torch.randn(8, 64, device="cuda"), torch.randn(32, 64, device="cuda")
with tcompile.record() as recording:
    got, supported = tcompile.compile(f, fullgraph=True)(x, w)
report = recording.report()
assert len(report.graphs) == 1 and not report.graph_breaks, report
want, _ = f(x, w)
assert got.dtype == torch.bfloat16 and supported
torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "how", [dict(capturable=True), dict(fused=True), dict(foreach=False, capturable=True)], ids=str
)
@pytest.mark.parametrize("kind", ["AdamW", "Adam", "NAdam", "RMSprop"])
def test_a_training_step_with_its_optimizer_is_one_graph(kind, how):
    if "fused" in how and kind not in ("Adam", "AdamW"):
        pytest.skip("no fused form")
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 10)).cuda()
    x, y = randn(32, 64), torch.randint(0, 10, (32,), device="cuda")

    def trained(compiled):
        mine = copy.deepcopy(m)
        opt = getattr(torch.optim, kind)(mine.parameters(), lr=1e-2, **how)

        def step(x, y):
            opt.zero_grad()
            with torch.autocast("cuda", dtype=bf16, enabled=False):
                loss = F.cross_entropy(mine(x), y)
            loss.backward()
            opt.step()
            return loss

        run = tcompile.compile(step) if compiled else step
        with tcompile.record() as recording:
            losses = [run(x, y).item() for _ in range(5)]
        if compiled:
            report = recording.report()
            assert len(report.graphs) == 1 and not report.graph_breaks, report.graph_breaks
        return losses, [p.detach() for p in mine.parameters()], [opt.state[p] for p in mine.parameters()]

    for a, b in zip(trained(True), trained(False)):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)
