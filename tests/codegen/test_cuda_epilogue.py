"""What follows a product in CUDA C++, run on the CPU, against the loop IR: that draws the numbers that torch's kernels
draw (triton/test_philox.py).
"""

import shutil

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.ops import mask_bits, philox  # noqa: E402
from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402
from tcompile.compiler.codegen.triton.printer import without_locals  # noqa: E402
from ..oracles.loop_interpreter import run_kernel  # noqa: E402

from .cuda_on_host import run_on_host  # noqa: E402
from .triton.as_gpu import as_gpu  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ with C++20")]
bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
H200 = GpuTarget("cuda", 90, 32, 132)


@pytest.fixture(autouse=True)
def small_device(monkeypatch):
    monkeypatch.setattr(philox, "most_threads", lambda index: 512)  # few, so that small tensors take several turns


def rand(*shape, dtype=bf16):
    return torch.randn(*shape, dtype=f32).to(dtype)


def forward(x, v, b):
    h = F.linear(x, v, b)
    return h, *torch.native_dropout(F.gelu(h), 0.1, True)


def backward(g, w, h, mask):
    d = torch.ops.aten.native_dropout_backward(g @ w, mask, 1 / 0.9)
    return torch.ops.aten.gelu_backward(d, h)


def forward_bits(x, v, b):
    h = F.linear(x, v, b)
    y, mask = torch.native_dropout(F.gelu(h), 0.1, True)
    return h, y, torch.ops.tcompile.pack_bits(mask, [0, 1])


def backward_bits(g, w, h, kept):
    return backward(g, w, h, torch.ops.tcompile.unpack_bits(kept, list(h.shape), [0, 1]))


def by_words(y, words):
    """What dropout by bits is (rewrite/fast_dropout.py)."""
    keep = torch.ops.tcompile.unpack_bits(words, list(y.shape), [0, 1])
    return (y.float() * torch.where(keep, 1.125, 0.0)).to(y.dtype)


CASES = {
    "bias and relu": (lambda x, v, b: torch.relu(F.linear(x, v, b)), 3),
    "dropout behind gelu, three results": (forward, 3),
    "backward of both": (backward, 4),
    "dropout behind gelu, its mask as bits": (forward_bits, 3),
    "backward of bits": (backward_bits, 4),
    "dropout by words behind gelu": (lambda x, v, b, words: by_words(F.gelu(F.linear(x, v, b)), words), 4),
    "dropout by words and a residual": (lambda x, v, b, words, r: by_words(F.linear(x, v, b), words) + r.float(), 5),
    "backward of words": (lambda g, w, h, words: torch.ops.aten.gelu_backward(by_words(g @ w, words), h), 4),
    "dropout and a residual in float32": (
        lambda x, v, b, r: torch.native_dropout(F.linear(x, v, b), 0.2, True)[0] + r.float(),
        4,
    ),
    "truth values of pairs": (lambda x, v, b: (lambda y: (y, y > 0.5))(F.linear(x, v, b)), 3),
}


def inputs_of(name, m, n, k, dtype):
    x = rand(m, k, dtype=dtype)
    if name == "backward of both":
        return x, rand(k, n, dtype=dtype) / k**0.5, rand(m, n, dtype=dtype), torch.rand(m, n) < 0.9
    if name == "backward of bits":
        return (
            x,
            rand(k, n, dtype=dtype) / k**0.5,
            rand(m, n, dtype=dtype),
            torch.randint(0, 256, (mask_bits.bytes_for((m, n)),), dtype=torch.uint8),
        )
    words = (torch.randint(-1 << 31, 1 << 31, (-(-m * n // 32),), dtype=torch.int32),) * ("words" in name)
    if name == "backward of words":
        return x, rand(k, n, dtype=dtype) / k**0.5, rand(m, n, dtype=dtype), *words
    return (x, rand(n, k, dtype=dtype) / k**0.5, rand(n, dtype=dtype), *words, rand(m, n, dtype=dtype))[
        : CASES[name][1]
    ]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "m, n, k, columns, dtype", [(256, 256, 128, 256, bf16), (300, 264, 192, 128, bf16), (200, 392, 136, 192, f16)]
)
def test_what_follows_a_product(name, m, n, k, columns, dtype):
    torch.manual_seed(0)
    g = as_gpu(CASES[name][0], *inputs_of(name, m, n, k, dtype), target=H200, options={"gpu_products": "generated"})
    (kernel,) = (q.kernel for q in g.kernels)
    kernel = without_locals(kernel)
    given = []
    for b in kernel.inputs:
        shape = tuple(int(s) for s in b.shape)
        given.append(
            torch.tensor([0x9876543212345678 - (1 << 64), (1 << 32) - 5])
            if b.dtype is torch.int64
            else torch.rand(shape) < 0.9
            if b.dtype is torch.bool
            else torch.randint(torch.iinfo(b.dtype).min, torch.iinfo(b.dtype).max + 1, shape, dtype=b.dtype)
            if b.bits
            else rand(*shape, dtype=b.dtype) / (k**0.5 if len(given) == 1 else 1)
        )
    want, got = ([torch.full([int(s) for s in b.shape], 7, dtype=b.dtype) for b in kernel.outputs] for _ in range(2))
    run_kernel(kernel, given, want)
    run_on_host(kernel, [*given, *got], columns, H200)
    for a, b in zip(got, want, strict=True):
        if a.dtype in (torch.bool, torch.uint8) and name != "truth values of pairs":
            assert torch.equal(a, b)
        elif a.dtype is torch.bool:
            assert (a != b).float().mean() < 0.01, "(where the rounding decides)"
        else:
            # (the product is held rounded, the loop IR keeps it in float32)
            torch.testing.assert_close(a, b, rtol=2e-2 if dtype is bf16 else 2e-3, atol=3e-2 if dtype is bf16 else 4e-3)
