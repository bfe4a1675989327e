"""Masks that forward keeps for backward as bits: through Triton's interpreter, against the same kept as bytes, and against eager."""
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler import bits, philox
from tcompile.compiler.autograd import masks
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget
from tcompile.compiler.codegen.triton.printer import print_kernel
from tcompile.compiler.config import Options
from tcompile.compiler.fusion import columns
from tcompile.compiler.fusion.interpret import run_schedule
from tcompile.compiler.graph.interpret import interpret
from tcompile.compiler.runtime.gpu.compile import Job, compile_all

from .as_gpu import train_as_gpu
from .test_philox import MOST, run

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(philox, "most_threads", lambda index: MOST)
    monkeypatch.setattr(masks, "LEAST", 64)


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
    "before a norm": (dropout_add_norm, lambda: (rand(24, 512), rand(24, 512, dtype=torch.float32), rand(512, dtype=torch.float32), rand(512, dtype=torch.float32))),
    "of rows that are no power of two": (dropout_add_norm, lambda: (rand(4, 5, 264), rand(4, 5, 264, dtype=torch.float32), *(rand(264, dtype=torch.float32) for _ in "wb"))),
    "turned": (turned, lambda: (rand(96, 72),)),
    "float32": (gelu_dropout, lambda: (rand(16, 1032, dtype=torch.float32), rand(1032, dtype=torch.float32))),
    "several": (halves, lambda: (rand(32, 136), rand(32, 136))),
    "a comparison of a product": (lambda x, w: (lambda y: torch.where(y > 0.1, y * 2, -y))(x @ w).sum(0), lambda: (rand(32, 48), rand(48, 136))),
    "three dimensions, channels last": (lambda x: dropout(x).sin(), lambda: (rand(2, 16, 6, 10, dtype=torch.float32).to(memory_format=torch.channels_last),)),
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
    tangents = [torch.empty_strided(t.shape, [int(s) for s in x.stride()], dtype=t.dtype).copy_(t) for t, x in zip(tangents, out)]
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
    assert any(x.bits for k in f.kernels for x in k.kernel.outputs) and any(x.bits for k in b.kernels for x in k.kernel.inputs)
    monkeypatch.setattr(masks, "LEAST", 1 << 60)
    q, *_, out_bytes, grads_bytes = step(fn, inputs)
    assert len(kept(q)) or name == "a comparison of a product"
    n = len(out) - len(p.saved)
    for a, c in zip((*out[:n], *grads), (*out_bytes[:n], *grads_bytes), strict=True):
        torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)
        assert a.stride() == c.stride()
