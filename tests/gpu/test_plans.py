"""Plans that run in C on a GPU: products by cuBLASLt, attention, memory of other dtypes, errors, threads, streams;
whole training steps.
"""

import gc
import threading

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events
from tcompile.compiler.fusion.schedule import Extern
from tcompile.compiler.lowering.ir import Buffer
from tcompile.compiler.native import native
from tcompile.compiler.runtime.gpu import algorithms, cuda_graphs
from tcompile.compiler.runtime.gpu.device import why_not
from tcompile.compiler.runtime.native_program import gemm_of, one_product

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
TOLERANCE = {torch.float32: 2e-3, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def like_eager(fn, *inputs, calls=3):
    c = tcompile.compile(fn)
    with torch.no_grad():
        for _ in range(calls):
            got, want = c(*inputs), fn(*inputs)
            for a, b in zip(
                got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True
            ):
                assert a.dtype == b.dtype and a.stride() == b.stride()
                torch.testing.assert_close(a, b, atol=TOLERANCE.get(a.dtype, 1e-4), rtol=TOLERANCE.get(a.dtype, 1e-4))
    return c


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("m, k, n", [(128, 768, 2304), (17, 33, 65), (2, 2, 2), (256, 64, 1000), (3, 4096, 8)])
def test_products_in_every_layout(dtype, m, k, n):
    torch.manual_seed(0)
    x, w, bias = (
        torch.randn(m, k, device="cuda", dtype=dtype),
        torch.randn(k, n, device="cuda", dtype=dtype) / k**0.5,
        torch.randn(n, device="cuda", dtype=dtype),
    )
    xt, wt = x.t().contiguous(), w.t().contiguous()
    like_eager(lambda x, w, b: torch.relu(torch.addmm(b, x, w)), x, w, bias)
    like_eager(lambda x, wt, b: torch.tanh(F.linear(x, wt, b)), x, wt, bias)
    like_eager(lambda xt, w: (xt.t() @ w) * 2, xt, w)
    like_eager(lambda xt, wt: (xt.t() @ wt.t()) + 1, xt, wt)
    like_eager(lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2.0).sin(), x, w, bias)
    like_eager(
        lambda x, w, c: torch.addmm(c, x, w, beta=0.5, alpha=2.0).sin(),
        x,
        w,
        torch.randn(m, n, device="cuda", dtype=dtype),
    )


def test_operands_that_move_and_lie_oddly():
    """The library's choice depends on how pointers are aligned; it is made again for those that are less so."""
    f = lambda x, w, b: torch.relu(F.linear(x, w, b))
    c = tcompile.compile(f, dynamic=False)
    w, b = torch.randn(96, 64, device="cuda", dtype=torch.float16), torch.randn(96, device="cuda", dtype=torch.float16)
    memory = torch.randn(40 * 64 + 16, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for offset in (0, 8, 1, 0, 4, 3):
            x = memory[offset : offset + 40 * 64].view(40, 64)
            torch.testing.assert_close(c(x, w, b), f(x, w, b), atol=2e-2, rtol=2e-2)


def test_tf32_follows_its_flag():
    x, w = torch.randn(256, 512, device="cuda"), torch.randn(512, 256, device="cuda")
    c = tcompile.compile(lambda x, w: (x @ w) * 1.0 + 0.5)
    want = x.double() @ w.double() + 0.5
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        error = {}
        for flag in (True, False, True):
            torch.backends.cuda.matmul.allow_tf32 = flag
            error[flag] = float((c(x, w) - want).abs().max())
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert error[False] < 2e-4 and error[True] > 4 * error[False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_attention_by_every_library(dtype):
    q, k, v = (torch.randn(2, 4, 64, 64, device="cuda", dtype=dtype) for _ in range(3))
    mask = torch.rand(2, 1, 64, 64, device="cuda") > 0.2
    for backend in (
        torch.nn.attention.SDPBackend.FLASH_ATTENTION,
        torch.nn.attention.SDPBackend.CUDNN_ATTENTION,
        torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION,
    ):
        if dtype == torch.float32 and backend is not torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION:
            continue
        with torch.nn.attention.sdpa_kernel(backend):
            like_eager(lambda q, k, v: F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True) + 1, q, k, v)
            like_eager(
                lambda q, k, v: (
                    F.scaled_dot_product_attention(
                        (q + 1).transpose(1, 2).contiguous().transpose(1, 2), k, v, scale=0.3
                    )
                    * 2
                ),
                q,
                k,
                v,
            )
            if backend is not torch.nn.attention.SDPBackend.FLASH_ATTENTION:
                like_eager(
                    lambda q, k, v, m: F.scaled_dot_product_attention(q.sin(), k, v, attn_mask=m) + 1, q, k, v, mask
                )


def test_temporaries_of_several_dtypes_share_memory():
    """Memory goes from one dtype to another; what torch's kernels are handed is of the planned one."""
    conv = nn.Conv2d(8, 8, 3, padding=1).cuda()

    def f(x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = conv(torch.relu(x.float() + 1))
            y = conv((y.float() * 2).to(torch.bfloat16).sin())
            return (conv(y.float().cos().to(torch.bfloat16)).float() + 1).to(torch.bfloat16)

    like_eager(f, torch.randn(4, 8, 16, 16, device="cuda"))


def test_memory_that_runs_out_is_torch_s_error_and_the_next_call_works():
    f = lambda x, w: ((x @ w).sin() @ w).cos()
    c = tcompile.compile(f, dynamic=True)
    w = torch.randn(1024, 1024, device="cuda")
    with torch.no_grad():
        small = torch.randn(64, 1024, device="cuda")
        torch.testing.assert_close(c(small, w), f(small, w), atol=1e-3, rtol=1e-3)
        c(torch.randn(65, 1024, device="cuda"), w)
        torch.cuda.empty_cache()
        # for this process alone: others on the device are not to notice
        room = torch.cuda.memory_reserved() + (1 << 30)
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
        try:
            large = torch.zeros((600 << 20) // 4096, 1024, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                c(large, w)
            del large
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        torch.testing.assert_close(c(small, w), f(small, w), atol=1e-3, rtol=1e-3)


def test_threads_and_streams_share_a_program():
    m = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).cuda().half().eval()
    c = tcompile.compile(m)
    wrong = []
    with torch.no_grad():
        c(torch.randn(8, 64, device="cuda", dtype=torch.float16))

    def work(seed):
        g = torch.Generator("cuda").manual_seed(seed)
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(100):
                x = torch.randn(8, 64, device="cuda", dtype=torch.float16, generator=g)
                if not torch.allclose(c(x), m(x), atol=1e-2, rtol=1e-2):
                    wrong.append(seed)
        stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_a_thousand_calls_keep_no_memory():
    m = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.LayerNorm(64)).cuda()
    c = tcompile.compile(m)

    def calls(n):
        for i in range(n):
            c(torch.randn(16, 64, device="cuda")).square().mean().backward()
            m.zero_grad(set_to_none=True)
            with torch.no_grad():
                c(torch.randn(16 + i % 3, 64, device="cuda"))
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = calls(20)
    assert calls(1000) <= before + 1024


def test_results_own_their_memory():
    """What a plan returns is overwritten by no later call, whatever the block of temporaries does."""
    f = lambda x, w: ((x @ w).relu() @ w, (x @ w).sum(0), x.t() @ x)
    c = tcompile.compile(f)
    w = torch.randn(64, 64, device="cuda")
    kept = []
    with torch.no_grad():
        for _ in range(20):
            x = torch.randn(32, 64, device="cuda")
            kept.append((c(x, w), f(x, w)))
    for got, want in kept:
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b, atol=5e-2, rtol=5e-3)


def test_the_backend_cudagraphs(monkeypatch):
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_worth_it", lambda *a: "")
    m = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64)).cuda().eval()
    c = tcompile.compile(m, backend="cudagraphs")
    before = sum(isinstance(o, cuda_graphs.CudaGraphs) and bool(o.captured) for o in gc.get_objects())
    with torch.no_grad():
        for n in (16, 16, 16, 16, 8, 8, 8, 8, 16):
            x = torch.randn(n, 64, device="cuda")
            torch.testing.assert_close(c(x), m(x), atol=1e-3, rtol=1e-3)
    assert sum(isinstance(o, cuda_graphs.CudaGraphs) and bool(o.captured) for o in gc.get_objects()) > before


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_whole_training_steps(optimizer, mode):
    def run(compiled):
        torch.manual_seed(3)
        m = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
        o = getattr(torch.optim, optimizer)(m.parameters(), lr=1e-2)

        def step(x, y):
            o.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            o.step()
            return loss

        f = tcompile.compile(step, mode=mode) if compiled else step
        g = torch.Generator("cuda").manual_seed(5)
        losses = []
        for _ in range(8):
            x, y = (
                torch.randn(16, 32, device="cuda", generator=g),
                torch.randint(0, 8, (16,), device="cuda", generator=g),
            )
            losses.append(float(f(x, y).detach()))
        return losses, [p.detach().clone() for p in m.parameters()]

    want, got = run(False), run(True)
    torch.testing.assert_close(got[0], want[0], atol=2e-4, rtol=2e-4)
    for a, b in zip(got[1], want[1]):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)


def test_scans_and_writes_at_positions():
    torch.manual_seed(0)
    x, i = torch.randn(64, 1000, device="cuda"), torch.randint(0, 64, (200,), device="cuda")
    like_eager(lambda x: torch.cumsum(x.double() * 2, 1).float() + 1, x)
    like_eager(lambda x: torch.cumprod(torch.sigmoid(x.double()), 0).float() * 3, x)
    like_eager(
        lambda x, i: (
            torch.zeros(64, 1000, device="cuda", dtype=torch.float64).index_add(
                0, i, x[:1].expand(200, 1000).double() * 2
            )
            + 1
        ),
        x,
        i,
    )
    like_eager(
        lambda x, i: (
            x.double().index_put((i,), torch.ones(1000, device="cuda", dtype=torch.float64), accumulate=True) * 2
        ),
        x,
        i,
    )
    like_eager(lambda x: torch.logcumsumexp(x.double(), 1).float() - 1, x)


def test_fp8_storage():
    x, s = torch.randn(256, 128, device="cuda"), torch.tensor(0.5, device="cuda")
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        like_eager(lambda x, s: (x * s).to(dtype).to(torch.float32) * 2 + 1, x, s)
        like_eager(lambda y, s: y.to(torch.bfloat16) * s, x.to(dtype), s.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "how",
    [
        dict(),
        dict(stride=2, bias=False),
        dict(groups=16),
        dict(transposed=True, output_padding=1, stride=2),
        dict(first=3, kernel_size=7, stride=2, bias=False),
    ],
    ids=str,
)
def test_convolutions_forward_and_backward(how, dtype):
    torch.manual_seed(0)
    how = {"kernel_size": 3, "padding": 1, "first": 16, "transposed": False, **how}
    first, transposed = how.pop("first"), how.pop("transposed")
    m, same = (
        (nn.ConvTranspose2d if transposed else nn.Conv2d)(first, 16, device="cuda", dtype=dtype, **how)
        for _ in range(2)
    )
    same.load_state_dict(m.state_dict())
    c = tcompile.compile(lambda x: torch.tanh(m(x.sin()) * 2))
    tolerance = TOLERANCE[dtype]
    for _ in range(3):
        x = torch.randn(4, first, 20, 20, device="cuda", dtype=dtype)
        x, y = x.clone().requires_grad_(), x.clone().requires_grad_()
        got, want = c(x), torch.tanh(same(y.sin()) * 2)
        assert got.stride() == want.stride()
        weight = torch.randn_like(want)
        (got * weight).sum().backward()
        (want * weight).sum().backward()
        for a, b in zip(
            (got, x.grad, *(p.grad for p in m.parameters())),
            (want, y.grad, *(p.grad for p in same.parameters())),
            strict=True,
        ):
            torch.testing.assert_close(a, b, atol=tolerance * float(b.detach().abs().max()), rtol=tolerance)


@pytest.mark.parametrize("backend", ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"])
def test_gradients_of_attention_by_every_library(backend):
    f = lambda q, k, v: F.scaled_dot_product_attention(q * 1.5, k, v, is_causal=True) + 1
    c = tcompile.compile(f, options={"attention": "library"})
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
        for _ in range(3):
            given = [torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
            same = [t.detach().clone().requires_grad_() for t in given]
            got, want = c(*given), f(*same)
            weight = torch.randn_like(want)
            (got * weight).sum().backward()
            (want * weight).sum().backward()
            for a, b in zip((got, *(t.grad for t in given)), (want, *(t.grad for t in same)), strict=True):
                torch.testing.assert_close(a, b, atol=3e-2, rtol=3e-2)


def test_dropout_of_the_library_draws_as_eager_does():
    f = lambda x: F.dropout(x.sin(), 0.3) * 2
    c = tcompile.compile(f)
    x = torch.randn(64, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for seed in range(3):
        torch.manual_seed(seed)
        got = c(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(got, f(x), atol=2e-2, rtol=2e-2)


def _product(m, k, n, transposed_a, transposed_b, bias, dtype, widens=False):
    def matrix(name, rows, columns, by_columns=False):
        return Buffer(name, dtype, (rows, columns), (1, rows) if by_columns else (columns, 1))

    a, b, out = matrix("a", m, k, transposed_a), matrix("b", k, n, transposed_b), matrix("out", m, n)
    args = (Buffer("c", dtype, (n,), (1,)), a, b) if bias else (a, b)
    op = torch.ops.aten.addmm if bias else torch.ops.aten.mm
    if widens and not bias:
        out.dtype = torch.float32
        return Extern(op.dtype, (*args, torch.float32), {}, [out], op.dtype_out, ("out",))
    return Extern(op.default, args, {}, [out], op.out, ("out",))


@pytest.mark.parametrize("widens", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", [(0, 0, 0), (0, 1, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0)], ids=str)
def test_every_algorithm_that_the_library_proposes_computes_the_product(layout, dtype, widens):
    assert why_not() is None
    tolerance = 1e-5 if widens and not layout[2] else TOLERANCE[dtype]
    for m, k, n in ((32, 4096, 512), (256, 512, 1024)):
        step = _product(m, k, n, *layout, dtype, widens)
        out, *given = algorithms._operands(step, 0)[0]
        for t in given:
            t.normal_(std=k**-0.25)
        want = (given[-2].double() @ given[-1].double()) + (given[0].double() if layout[2] else 0)
        rows = native.gemm_algorithms(0, gemm_of(step), 8)
        assert len(rows) > 1
        for row in [(), *(r[:2] for r in rows)]:
            out.zero_()
            one_product(step, 0, row)(out, *given)
            torch.testing.assert_close(out.double(), want, atol=tolerance * float(want.abs().max()), rtol=tolerance)


def test_products_that_torch_runs_are_written_in_float32_too():
    x, w = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((64, 96), (96, 32)))
    f = lambda x, w: (x @ w).float()
    want = x.double() @ w.double()
    for deterministic in (False, True):
        torch.use_deterministic_algorithms(deterministic)  # (cuBLASLt is not asked then)
        try:
            got = tcompile.compile(f)(x, w)
        finally:
            torch.use_deterministic_algorithms(False)
        torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("mode", ["default", "max-autotune"])
def test_gradients_of_a_block_under_autocast(mode):
    torch.manual_seed(0)
    m, same = (
        nn.Sequential(nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda() for _ in range(2)
    )
    same.load_state_dict(m.state_dict())
    c = tcompile.compile(m, mode=mode)
    for _ in range(3):
        x = torch.randn(512, 256, device="cuda")
        for model, call in ((m, c), (same, same)):
            model.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                y = call(x)
            y.float().square().mean().backward()
        for p, q in zip(m.parameters(), same.parameters(), strict=True):
            assert p.grad.dtype == torch.float32 and p.grad.stride() == q.grad.stride()
            torch.testing.assert_close(p.grad, q.grad, rtol=3e-2, atol=2e-2 * float(q.grad.abs().max()))


def test_max_autotune_tries_the_librarys_algorithms():
    f = lambda x, w: x @ w
    x, w = (
        torch.randn(32, 4096, device="cuda", dtype=torch.float16),
        torch.randn(4096, 2048, device="cuda", dtype=torch.float16),
    )
    heard = []
    with events.listen(heard.append), torch.no_grad():
        c = tcompile.compile(
            f, dynamic=False, options={"max_autotune": True, "gpu_products": "library", "cache": False}
        )
        torch.testing.assert_close(c(x, w), f(x, w), atol=0.2, rtol=2e-2)
        memory = torch.randn(32 * 4096 + 1, device="cuda", dtype=torch.float16)
        odd = memory[1:].view(32, 4096)  # less aligned than the algorithm was measured for
        torch.testing.assert_close(c(odd, w), f(odd, w), atol=0.2, rtol=2e-2)
    (trials,) = (e.trials for e in heard if e.kind == "autotune")
    assert len(trials) > 1 and sum(t["kept"] for t in trials) == 1


@pytest.mark.parametrize("cudagraphs", [False, True])
def test_kernels_that_are_launched_while_the_one_before_ends(cudagraphs):
    """Each reads what the one before wrote, some are torch's; a kernel that did not wait would read what was there."""

    def f(x, w):
        for i in range(6):
            x = torch.softmax(x.float() * 3, -1).to(x.dtype) + i
            x = (x @ w).sin()
            x = x + x.float().sum(0).to(x.dtype) * 1e-3
        return x

    c = tcompile.compile(f, dynamic=False, options={"early_launch": True, "cudagraphs": cudagraphs})
    plain = tcompile.compile(f, dynamic=False, options={"early_launch": False})
    w = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) / 20
    with torch.no_grad():
        for _ in range(60):
            x = torch.randn(256, 512, device="cuda", dtype=torch.bfloat16)
            torch.testing.assert_close(c(x, w), plain(x, w), atol=1e-2, rtol=1e-2)
