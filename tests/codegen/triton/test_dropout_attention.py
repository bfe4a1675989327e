"""Attention with dropout of our own as kernels: interpreted, against the operators' definition in float64 by autograd,
and compiled for sm_90.
"""

import math
import sys

import pytest
import torch

pytest.importorskip("triton")

import tcompile  # noqa: E402
from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.config import Options  # noqa: E402
from tcompile.compiler.ops.dropout_attention import ATTENTION, BACKWARD, keep_mask, words  # noqa: E402
from tcompile.compiler.fusion.schedule import Extern, Launch  # noqa: E402
from tcompile.compiler.rewrite import disabled_passes  # noqa: E402
from tcompile.compiler.ops.keep_bits import keep_fraction  # noqa: E402
from tcompile.compiler.lowering.templates import DropoutAttention  # noqa: E402
from tcompile.compiler.runtime.gpu.compile import Job, compile_all  # noqa: E402

from .as_gpu import as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402
from .test_compiled import usage  # noqa: E402

pytestmark = pytest.mark.slow

aten = torch.ops.aten
passes = sys.modules["tcompile.compiler.rewrite.attention_dropout"]
KEEP = keep_fraction(0.1) / 65536


def inputs(b, h, rows, keys, d, dtype, columns=None):
    q, k, v = (torch.randn(b, h, n, c).to(dtype) for n, c in ((rows, d), (keys, d), (keys, columns or d)))
    bits = torch.randint(-(2**31), 2**31, (2, words(b, h, rows, keys)), dtype=torch.int32)
    return q, k, v, bits[0] | bits[1]  # (three of four are kept)


def exact(q, k, v, bits, keep, causal, scale, grad):
    """(result, logarithms, gradients) by autograd."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    s = q @ k.mT * scale
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    out = torch.softmax(s, -1) * keep_mask(bits, *s.shape) / keep @ v
    return out, torch.logsumexp(s, -1) / math.log(2), torch.autograd.grad(out, (q, k, v), grad.double())


def close(got, want, dtype):
    assert (
        not got.isnan().any()
        and (got.double() - want).norm() <= (4e-3 if dtype == torch.float16 else 2e-2) * want.norm()
    )


@pytest.fixture(autouse=True)
def fresh():
    tcompile.reset()


def run_on(g, **named):
    assert [s.kernel.template is not None for s in g.schedule.steps if isinstance(s, (Launch, Extern))] == [True]
    return run(g, [named[b.name] for b in g.schedule.inputs if getattr(b, "name", None) in named])


@pytest.mark.parametrize(
    "b,h,rows,keys,d,dtype,causal",
    [
        (2, 3, 128, 128, 64, torch.bfloat16, False),
        (1, 2, 128, 128, 64, torch.float16, True),
        (1, 2, 77, 77, 32, torch.float16, False),
        (2, 1, 77, 77, 64, torch.bfloat16, True),
        (1, 2, 40, 100, 64, torch.float16, False),
        (1, 2, 100, 40, 48, torch.float16, True),
        (1, 1, 130, 200, 16, torch.bfloat16, True),
        (1, 1, 256, 33, 24, torch.float16, False),
        (1, 1, 16, 300, 64, torch.float16, True),
    ],
)
def test_forward_and_backward(b, h, rows, keys, d, dtype, causal):
    torch.manual_seed(rows + d)
    q, k, v, bits = inputs(b, h, rows, keys, d, dtype)
    scale, grad = 1.3 / math.sqrt(d), torch.randn(b, rows, h, d).to(dtype).transpose(1, 2)

    def forward(q, k, v, bits):
        return ATTENTION(q, k, v, bits, KEEP, causal, scale)

    def backward(grad, q, k, v, out, logarithm, bits):
        return BACKWARD(grad, q, k, v, out, logarithm, bits, KEEP, causal, scale)

    out, logarithm, gradients = exact(q, k, v, bits, KEEP, causal, scale, grad)
    got = run_on(as_gpu(forward, q, k, v, bits), q=q, k=k, v=v, bits=bits)
    close(got[0], out, dtype)
    torch.testing.assert_close(got[1].double(), logarithm, rtol=1e-4, atol=1e-4)
    named = dict(grad=grad, q=q, k=k, v=v, out=out.to(dtype).contiguous(), logarithm=logarithm.float(), bits=bits)
    for x, want in zip(run_on(as_gpu(backward, *named.values()), **named), gradients):
        close(x, want, dtype)
    eager = forward(q, k, v, bits)  # what the operators are, themselves
    close(eager[0], out, dtype)
    for x, want in zip(backward(*named.values()), gradients):
        close(x, want, dtype)


def test_parts_of_one_product():
    """Queries, keys and values that lie in one tensor are read where they are."""
    torch.manual_seed(5)
    qkv = torch.randn(2, 96, 3, 2, 32).half()
    *_, bits = inputs(2, 2, 96, 96, 32, torch.float16)

    def forward(qkv, bits):
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        return ATTENTION(q, k, v, bits, KEEP, False, 0.2)

    out, *_ = exact(*(x.transpose(1, 2) for x in qkv.unbind(2)), bits, KEEP, False, 0.2, torch.zeros(2, 2, 96, 32))
    g = as_gpu(forward, qkv, bits)
    assert len(g.kernels[0].kernel.inputs) == 2
    close(run_on(g, qkv=qkv, bits=bits)[0], out, torch.float16)


def test_gradients_lie_where_they_are_joined():
    torch.manual_seed(6)
    b, n, h, d = 2, 96, 2, 32
    qkv, grad = torch.randn(b, n, 3, h, d).half(), torch.randn(b, n, h * d).half()
    *_, bits = inputs(b, h, n, n, d, torch.float16)

    def backward(grad, qkv, out, logarithm, bits):
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        parts = BACKWARD(grad.view(b, n, h, d).transpose(1, 2), q, k, v, out, logarithm, bits, KEEP, False, 0.2)
        return torch.cat([x.transpose(1, 2).reshape(b, n, h * d) for x in parts], -1)

    out, logarithm, gradients = exact(
        *(x.transpose(1, 2) for x in qkv.unbind(2)), bits, KEEP, False, 0.2, grad.view(b, n, h, d).transpose(1, 2)
    )
    named = dict(grad=grad, qkv=qkv, out=out.half().contiguous(), logarithm=logarithm.float(), bits=bits)
    (got,) = run_on(as_gpu(backward, *named.values()), **named)  # (one kernel: no copies)
    close(got, torch.cat([x.transpose(1, 2).reshape(b, n, h * d) for x in gradients], -1), torch.float16)


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize(
    "b,n,h,d,causal", [(2, 96, 2, 32, False), (3, 200, 2, 64, True), (2, 70, 3, 24, False), (1, 64, 1, 16, False)]
)
def test_sums_of_joined_gradients(b, n, h, d, causal, dtype):
    """A bias's gradient is summed from where the gradients are joined; of bias and weights, as autograd asks for
    them.
    """
    torch.manual_seed(7)
    qkv, grad = torch.randn(b, n, 3, h, d).half(), torch.randn(b, n, h * d).half()
    *_, bits = inputs(b, h, n, n, d, torch.float16)

    def backward(grad, qkv, out, logarithm, bits):
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        parts = BACKWARD(grad.view(b, n, h, d).transpose(1, 2), q, k, v, out, logarithm, bits, KEEP, causal, 0.2)
        joined = torch.cat([x.transpose(1, 2).reshape(b, n, h * d) for x in parts], -1)
        return joined, joined.sum((0, 1), dtype=torch.float32) if dtype is None else joined.sum(
            (0, 1), dtype=torch.float32
        ).to(dtype).float()

    out, logarithm, gradients = exact(
        *(x.transpose(1, 2) for x in qkv.unbind(2)), bits, KEEP, causal, 0.2, grad.view(b, n, h, d).transpose(1, 2)
    )
    named = dict(grad=grad, qkv=qkv, out=out.half().contiguous(), logarithm=logarithm.float(), bits=bits)
    g = as_gpu(backward, *named.values())
    assert len(calls(g)) == 2, calls(g)
    got, sums = run(g, [named[x.name] for x in g.schedule.inputs if getattr(x, "name", None) in named])
    want = torch.cat([x.transpose(1, 2).reshape(b, n, h * d) for x in gradients], -1)
    close(got, want, torch.float16)
    close(sums, want.sum((0, 1)), torch.float16)


def test_columns_of_values_are_others():
    torch.manual_seed(3)
    q, k, v, bits = inputs(1, 2, 64, 96, 64, torch.float16, columns=32)
    out, *_ = exact(q, k, v, bits, KEEP, False, 0.1, torch.zeros(1, 2, 64, 32))
    got = run_on(
        as_gpu(lambda q, k, v, bits: ATTENTION(q, k, v, bits, KEEP, False, 0.1), q, k, v, bits),
        q=q,
        k=k,
        v=v,
        bits=bits,
    )
    close(got[0], out, torch.float16)


def test_dynamic_sizes():
    torch.manual_seed(4)
    q, k, v, bits = inputs(2, 2, 70, 90, 32, torch.float16)
    for x in (q, k, v):
        tcompile.mark_static(x, 3)
    g = as_gpu(lambda q, k, v, bits: ATTENTION(q, k, v, bits, KEEP, True, 0.2), q, k, v, bits, dynamic=True)
    assert g.kernels[0].kernel.sizes
    out, *_ = exact(q, k, v, bits, KEEP, True, 0.2, torch.zeros(2, 2, 70, 32))
    close(run_on(g, q=q, k=k, v=v, bits=bits)[0], out, torch.float16)


def calls(g):
    return [
        s.kernel.name.partition("_")[2] if isinstance(s, Launch) else str(s.op)
        for s in g.schedule.steps
        if isinstance(s, (Launch, Extern))
    ]


def by_bits(kernel):
    return isinstance(kernel.kernel.template, DropoutAttention)


@pytest.mark.parametrize(
    "forward,backward",
    [
        (
            lambda q, k, v, p, scale: aten._scaled_dot_product_cudnn_attention(
                q, k, v, None, True, p, True, False, scale=scale
            ),
            lambda g, q, k, v, r, p, scale: aten._scaled_dot_product_cudnn_attention_backward(
                g, q, k, v, r[0], r[1], r[6], r[7], None, r[2], r[3], r[4], r[5], p, True, scale=scale
            ),
        ),
        (
            lambda q, k, v, p, scale: aten._scaled_dot_product_flash_attention(q, k, v, p, True, False, scale=scale),
            lambda g, q, k, v, r, p, scale: aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, r[0], r[1], r[2], r[3], r[4], r[5], p, True, r[6], r[7], scale=scale
            ),
        ),
    ],
)
def test_instead_of_the_librarys(forward, backward, monkeypatch):
    """Forward and backward are replaced together, and draw once; what does not fit stays the library's."""
    q, k, v, _ = inputs(2, 2, 48, 48, 32, torch.float16)

    def step(grad, q, k, v):
        r = forward(q, k, v, 0.1, 0.2)
        return r[0], *backward(grad, q, k, v, r, 0.1, 0.2)

    assert not any(map(by_bits, as_gpu(step, v, q, k, v).kernels))  # (no GPU: nothing was measured)
    monkeypatch.setattr(passes, "here", lambda *what: True)
    tcompile.reset()
    g = as_gpu(step, v, q, k, v)
    found = calls(g)
    assert (
        sum(map(by_bits, g.kernels)) == 2
        and found.count("attention") == 2
        and found.count("tcompile.philox_state.default") == 1
        and not any("aten" in c for c in found)
    ), found
    for p, width, keys in ((0.0, 32, 48), (0.1, 128, 48), (1e-5, 32, 48), (0.1, 32, 64)):
        # (the last: libraries differ in where the diagonal begins)
        q, k, v, _ = inputs(1, 1, 48, keys, width, torch.float16)
        tcompile.reset()
        assert not any(map(by_bits, as_gpu(lambda q, k, v, p=p: forward(q, k, v, p, 0.2)[0], q, k, v).kernels))


@pytest.mark.parametrize(
    "option",
    [
        {"attention": "library"},
        {"emulate_precision": True},
        {"disable_fusion": True},
        {"fallback_random": True, "fast_dropout": False},
    ],
)
def test_options_that_keep_the_librarys(option):
    assert "dropout_attention" not in disabled_passes(Options.make(options={"fast_dropout": True}))
    assert "dropout_attention" in disabled_passes(Options.make(options={"fast_dropout": True, **option}))


def test_compiled_for_hopper(tmp_path):
    """No spills: tiles are chosen for the registers that there are."""
    grad = torch.zeros(2, 512, 16, 64, dtype=torch.bfloat16).transpose(1, 2)
    bits, logarithm = torch.zeros(words(2, 16, 512, 512), dtype=torch.int32), torch.zeros(2, 16, 512)

    for processors in (16, 132):
        target = GpuTarget("cuda", 90, 32, processors, True)
        kernels = [
            k
            for g in (
                as_gpu(
                    lambda q, k, v, bits: ATTENTION(q, k, v, bits, KEEP, False, 0.125),
                    grad,
                    grad + 1,
                    grad + 2,
                    bits,
                    target=target,
                ),
                as_gpu(
                    lambda g, q, k, v, out, log, bits: BACKWARD(g, q, k, v, out, log, bits, KEEP, False, 0.125),
                    grad,
                    grad + 1,
                    grad + 2,
                    grad + 3,
                    grad + 4,
                    logarithm,
                    bits,
                    target=target,
                ),
            )
            for k in g.kernels
        ]
        parts = [p for r in compile_all([Job(k.source, target) for k in kernels], Options()) for p in r.parts]
        used = [usage(p.code, tmp_path) for p in parts]
        assert len(parts) == 3 and not any(u["stack"] for u in used) and max(u["registers"] for u in used) < 255, used
        # (two programs at once)
        assert all(u["registers"] <= 128 for p, u in zip(parts, used) if p.threads == 256), used
