"""Masks that forward keeps for backward as bits: through Triton's interpreter, against the same kept as bytes, and
against eager.
"""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.ops import mask_bits, philox
from tcompile.compiler.autograd import saved_masks
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.config import Options
from tcompile.compiler.fusion import column_sums
from ...oracles.loop_interpreter import run_schedule
from tcompile.compiler.graph.aten_interpreter import interpret
from tcompile.compiler.graph.meta.core import TensorMeta
from tcompile.compiler.runtime.gpu.compile import Job, compile_all

from .as_gpu import check_as_gpu, train_as_gpu
from .test_philox import MOST, run
from .test_sums import norm_backward

pytestmark = pytest.mark.slow

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(philox, "most_threads", lambda index: MOST)
    monkeypatch.setattr(saved_masks, "LEAST", 64)


def dropout(x, p=0.3):
    return torch.native_dropout(x, p, True)[0]


def gelu_dropout(x, b):
    return dropout(F.gelu(x + b))


def dropout_add_norm(x, r, w, b):
    return F.layer_norm(r + dropout(x).float(), w.shape, w, b)


def turned(x):
    """What backward reads along another axis than the mask."""
    return torch.sin(dropout(x)).t().contiguous()


def halves(x, w):
    """A mask of a comparison, and two dropouts."""
    y = torch.where(x * w > 0.1, x * 2, x.sin())
    return dropout(y) * dropout(y + 1)


def rand(*shape, dtype=bf16):
    return torch.randn(*shape, dtype=torch.float32).to(dtype)


CASES = {
    "behind gelu, with a sum over rows": (gelu_dropout, lambda: (rand(48, 512), rand(512))),
    "short rows": (gelu_dropout, lambda: (rand(40, 24), rand(24))),
    "before a norm": (
        dropout_add_norm,
        lambda: (
            rand(24, 512),
            rand(24, 512, dtype=torch.float32),
            rand(512, dtype=torch.float32),
            rand(512, dtype=torch.float32),
        ),
    ),
    "of rows that are no power of two": (
        dropout_add_norm,
        lambda: (
            rand(4, 5, 264),
            rand(4, 5, 264, dtype=torch.float32),
            *(rand(264, dtype=torch.float32) for _ in "wb"),
        ),
    ),
    "turned": (turned, lambda: (rand(96, 72),)),
    "float32": (gelu_dropout, lambda: (rand(16, 1032, dtype=torch.float32), rand(1032, dtype=torch.float32))),
    "several": (halves, lambda: (rand(32, 136), rand(32, 136))),
    "a comparison of a product": (
        lambda x, w: (lambda y: torch.where(y > 0.1, y * 2, -y))(x @ w).sum(0),
        lambda: (rand(32, 48), rand(48, 136)),
    ),
    "relu and dropout of a product": (lambda x, w: dropout(torch.relu(x @ w)), lambda: (rand(32, 48), rand(48, 136))),
    "three dimensions, channels last": (
        lambda x: dropout(x).sin(),
        lambda: (rand(2, 16, 6, 10, dtype=torch.float32).to(memory_format=torch.channels_last),),
    ),
}


def step(fn, inputs, names=None, least=64, monkeypatch=None, **more):
    """(partition, forward, backward, results of forward, gradients) by kernels."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    p, f, b = train_as_gpu(fn, *inputs, **more)
    return p, f, b, *results(fn, p, f, b, inputs)


def results(fn, p, f, b, inputs):
    plain = [x.detach() for x in inputs]
    sizes = {}
    given = [plain[i] for i in order_of(fn, p)]
    out, _ = run(f, *given)
    n = len(out) - len(p.saved)
    for node, x in zip(p.forward.placeholders, given):
        sizes |= {str(s): int(k) for s, k in zip(node.meta["val"].shape, x.shape)}
    torch.manual_seed(1)
    tangents = [torch.randn_like(x) for x in out[:n] if x.is_floating_point()]
    tangents = [
        torch.empty_strided(t.shape, [int(s) for s in x.stride()], dtype=t.dtype).copy_(t)
        for t, x in zip(tangents, out)
    ]
    grads, _ = run(b, *[given[i] for i in p.saved_inputs], *out[n:], *[sizes[s] for s in p.symbols], *tangents)
    return out, grads


def order_of(fn, p):
    names = list(fn.__code__.co_varnames)
    return [names.index(n.name) for n in p.forward.placeholders]


def kept(p):
    return [v for v in p.saved if v.dtype == "bool"]


@pytest.mark.parametrize("name", CASES)
def test_bits_are_what_bytes_are(name, monkeypatch):
    fn, make = CASES[name]
    torch.manual_seed(0)
    inputs = make()
    p, f, b, out, grads = step(fn, inputs)
    assert kept(p) and all(v.bytes * 8 < 1.1 * torch.Size(v.shape).numel() + 256 for v in kept(p))
    assert any(x.bits for k in f.kernels for x in k.kernel.outputs) and any(
        x.bits for k in b.kernels for x in k.kernel.inputs
    )
    monkeypatch.setattr(saved_masks, "LEAST", 1 << 60)
    q, *_, out_bytes, grads_bytes = step(fn, inputs)
    assert len(kept(q)) or name == "a comparison of a product"
    n = len(out) - len(p.saved)
    for a, c in zip((*out[:n], *grads), (*out_bytes[:n], *grads_bytes), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)
        assert a.stride() == c.stride()


def test_sizes_that_vary():
    def fn(x):
        return dropout(F.gelu(x[:, :, None] + torch.arange(512, dtype=bf16) / 256))

    p, f, b, out, grads = step(fn, [rand(4, 5)], dynamic=True)
    (v,) = kept(p)
    assert p.symbols and v.bytes == 4 * 5 * 512 // 8
    again = [rand(3, 7).requires_grad_()]
    out, grads = results(fn, p, f, b, again)
    q, *_, want, want_grads = step(fn, [x.detach() for x in again])
    for a, c in zip((out[0], *grads), (want[0], *want_grads), strict=True):
        torch.testing.assert_close(a, c)


def test_what_stays_bytes():
    def given(x):
        y, mask = torch.native_dropout(x, 0.3, True)
        return y.sin(), mask

    def reduced(x, w):
        y = x @ w
        m = y > 0.1
        return torch.where(m, y * 2, -y).sum(0) + m.any(0)

    for fn, inputs in (
        (given, (rand(32, 64),)),
        (gelu_dropout, (rand(40, 20), rand(20))),
        (reduced, (rand(32, 48), rand(48, 136))),
    ):
        p, f, b, out, grads = step(fn, inputs)
        assert not any(x.bits for g in (f, b) for k in g.kernels for x in (*k.kernel.inputs, *k.kernel.outputs)), fn
        assert all(v.bytes == torch.Size(v.shape).numel() for v in kept(p))


@pytest.mark.parametrize(
    "options", [{"emulate_precision": True}, {"disable_fusion": True}, {"max_fusion_size": 2}], ids=str
)
def test_options(options):
    inputs = rand(32, 136), rand(32, 136)
    *_, out, grads = step(halves, inputs, options=options)
    *_, want, want_grads = step(halves, inputs)
    for a, c in zip((out[0], *grads), (want[0], *want_grads), strict=True):
        torch.testing.assert_close(a, c, rtol=3e-2, atol=3e-2)


def test_loops_that_read_ahead_read_words(monkeypatch):
    for name, n in (("LEAST", 1), ("RUNS", 8), ("FEWEST_RUNS", 4), ("MOST_RUNS", 16)):
        monkeypatch.setattr(column_sums, name, n)

    def fn(g, x, w, res, kept):
        mask = torch.ops.tcompile.unpack_bits(kept, list(x.shape), [0, 1])
        return norm_backward(torch.ops.aten.native_dropout_backward(g, mask, 1.25), x, w, res)

    x, w, res = (rand(*shape, dtype=torch.float32) for shape in ((96, 512), (512,), (96, 512)))
    g = check_as_gpu(
        fn,
        rand(96, 512, dtype=torch.float32),
        x,
        w,
        res,
        torch.randint(0, 256, (96 * 64,), dtype=torch.uint8),
        rtol=1e-4,
        atol=1e-4,
    )
    k = g.kernels[0]
    assert k.source.choices["shape"] == "rows" and "tl.pointer_type(tl.int32)" in k.source.text
    target = GpuTarget("cuda", 90, 32, 132)
    text = compile_all([Job(k.source, target)], Options())[0].parts[0].assembly()
    assert not any(f"ld.global.{kind}" in text for kind in ("b8", "u8")), (
        "nothing is waited for in a step that the step before could have read"
    )


@pytest.mark.parametrize(
    "choices",
    [
        Choices(xblock=4),
        Choices(xblock=64),
        Choices(kind="looped", xblock=2, rblock=4),
        Choices(kind="looped", xblock=16, rblock=8),
        Choices(kind="split", xblock=32, rblock=4, split=2),
        Choices(kind="looped", xblock=32, rblock=4, stages=3),
    ],
    ids=str,
)
def test_tiles_that_a_search_tries(choices):
    """Where neighbours are in several tiles as well."""
    inputs = [rand(16, 64).requires_grad_(), rand(64).requires_grad_()]
    p, f, b = train_as_gpu(gelu_dropout, *inputs)
    want = results(gelu_dropout, p, f, b, inputs)
    apart = []
    for g in (f, b):
        for k in g.kernels:
            reduces = any(st.axes for st in k.kernel.stages)
            if any(x.bits for x in (*k.kernel.inputs, *k.kernel.outputs)) and reduces == (choices.kind is not None):
                k.source = print_kernel(k.kernel, g.target, choices, name=k.name)
                apart += [x in k.source.text for x in ("_put_bit", "& 7)")]
    assert any(apart) == (choices.xblock < 8), choices
    for a, c in zip(results(gelu_dropout, p, f, b, inputs), want, strict=True):
        for x, y in zip(a, c, strict=True):
            torch.testing.assert_close(x, y)


def test_by_torchs_kernels_and_by_the_loop_ir():
    torch.manual_seed(0)
    for laid in (torch.rand(7, 5, 24) < 0.5, (torch.rand(2, 8, 5, 3) < 0.5).to(memory_format=torch.channels_last)):
        order = saved_masks.order_in_memory(TensorMeta(tuple(laid.shape), laid.stride(), laid.dtype, laid.device))
        kept = mask_bits.PACK(laid, order)
        assert kept.numel() == mask_bits.bytes_for(laid.shape) and torch.equal(
            mask_bits.UNPACK(kept, list(laid.shape), order), laid
        )
    inputs = [rand(32, 48).requires_grad_(), rand(48, 136).requires_grad_()]
    fn = CASES["a comparison of a product"][0]
    p, f, b = train_as_gpu(fn, *inputs)
    (out, grads), x = results(fn, p, f, b, inputs), [t.detach() for t in inputs]
    for run_graph in (
        lambda g, s, *args: interpret(on_cpu(g), args),
        lambda g, s, *args: run_schedule(s.schedule, args),
    ):
        again = run_graph(p.forward, f, *x)
        assert torch.equal(again[-1], out[-1]) and again[-1].dtype is torch.uint8
        torch.manual_seed(1)
        back = run_graph(p.backward, b, *[x[i] for i in p.saved_inputs], *again[1:], torch.randn_like(out[0]))
        for a, c in zip(back, grads, strict=True):
            torch.testing.assert_close(a, c)


def on_cpu(g):
    for n in g.graph.nodes:
        if "device" in n.kwargs:
            n.kwargs = {**n.kwargs, "device": torch.device("cpu")}
    return g


def test_registers_hold_what_is_packed():
    """No thread needs another one's elements: no shared memory, one byte written and read beside eight elements."""
    target = GpuTarget("cuda", 90, 32, 132)
    p, f, b = train_as_gpu(gelu_dropout, rand(8192, 512).requires_grad_(), rand(512).requires_grad_(), target=target)
    (forward,) = (k for k in f.kernels if any(x.bits for x in k.kernel.outputs))
    (backward,) = (k for k in b.kernels if any(x.bits for x in k.kernel.inputs))
    made, read = compile_all([Job(k.source, target) for k in (forward, backward)], Options())
    assert made.parts[0].shared == 0 and made.parts[0].assembly().count("st.global.b8") == 1
    text = read.parts[0].assembly()
    assert sum(text.count(f"ld.global.{kind}") for kind in ("b8", "u8")) == 1, text


def test_words_of_bits():
    """Of words that are made in the same graph."""

    def fn(x, words):
        return torch.where(torch.ops.tcompile.unpack_bits(words ^ 7, [40, 64], [0, 1]), x, -x), words.sum()

    g = check_as_gpu(fn, rand(40, 64), torch.randint(-(2**31), 2**31, (80,), dtype=torch.int32))
    assert any(x.bits and x.dtype is torch.int32 for k in g.kernels for x in k.kernel.inputs)
