"""Products of 16 bits whose only reader is a cast to float32 are written in float32; interpreted, against eager."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from . import wide_products  # noqa: E402, F401
from .as_gpu import as_gpu, check_as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

bf16, f16 = torch.bfloat16, torch.float16
TOLERANCE = dict(rtol=2e-2, atol=0.2)  # (eager rounds the product)


def calls(g):
    return [str(s.op) for s in g.schedule.steps if hasattr(s, "op")]


def operands(m=24, k=40, n=16, dtype=bf16):
    torch.manual_seed(0)
    return torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)


@pytest.mark.parametrize("dtype", [bf16, f16])
@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (a @ b).float(),
        lambda a, b: (a @ b).t().float(),
        lambda a, b: (a @ b).t().contiguous().float(),
        lambda a, b: (a @ b).float().view(2, 12, 4, 4),
        lambda a, b: (a @ b).view(2, 12, 4, 4).float(),
        lambda a, b: (a @ b).reshape(24, 16, 1, 1).float(),
        lambda a, b: (a @ b).float().t().contiguous().view(4, 4, 24),
        lambda a, b: (a.t().contiguous().t() @ b.t().contiguous().t()).t().float().contiguous(),
    ],
)
def test_a_cast_is_the_product_s(fn, dtype):
    g = check_as_gpu(fn, *operands(dtype=dtype), **TOLERANCE)
    assert calls(g) == ["aten.mm.dtype"] and not [k for k in g.kernels if "to_copy" in k.kernel.name], g.host.source


def test_nothing_is_rounded_on_the_way():
    a, b = operands(8, 64, 8)
    g = as_gpu(lambda a, b: (a @ b).float(), a, b)
    (got,) = run(g, [a, b])
    torch.testing.assert_close(got, a.float() @ b.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (lambda p: (p, p.float()))(a @ b),  # the product is a result
        lambda a, b: (lambda p: (p.float(), p.view(-1)[::2]))(a @ b),  # (through a view)
        lambda a, b: (a @ b)[:, :8].float(),  # a part of it
        lambda a, b: (a @ b).double(),
        lambda a, b: (a @ b).float() * 2,  # more than a cast: half the bytes to read
        lambda a, b: (a.float() @ b.float()).to(bf16),
        lambda a, b: (lambda p: (p, (p.sum(0) + 1)))(
            (a @ b).view(2, 12, 4, 4).float()
        ),  # read in another shape than the product's
        lambda a, b: torch.cat([(a @ b).float(), torch.ones(2, 16)]),
        lambda a, b: (a @ b).view(2, 12, 16).transpose(0, 1).contiguous().float(),
    ],
)
def test_other_products_stay_as_they_are(fn):
    g = check_as_gpu(fn, *operands(), **TOLERANCE)
    assert calls(g) == ["aten.mm.default"]


@pytest.mark.parametrize(
    "options",
    [{"emulate_precision": True}, {"epilogue_fusion": False}, {"disable_fusion": True}, {"force_split": "mm:to_copy"}],
)
def test_options_keep_the_rounding(options):
    g = check_as_gpu(lambda a, b: (a @ b).float(), *operands(), options=options, rtol=1e-6, atol=1e-6)
    assert calls(g) == ["aten.mm.default"]


def test_what_a_kernel_writes_in_an_input_is_a_kernel_s():
    a, b = operands()

    def f(a, b, c):
        c.copy_((a @ b).float())
        return c + 1

    c = torch.zeros(24, 16)
    g = as_gpu(f, a, b, c)
    assert calls(g) == ["aten.mm.default"]


def test_gradients_of_weights_under_autocast():
    torch.manual_seed(1)
    x, y = torch.randn(24, 32), torch.randn(24, 8)
    w0, b0, w1, conv = torch.randn(64, 32) / 6, torch.randn(64), torch.randn(8, 64) / 8, torch.randn(8, 8, 1, 1) / 3
    names = dict(x=x, w0=w0, b0=b0, w1=w1, conv=conv, y=y)
    for p in (w0, b0, w1, conv):
        p.requires_grad_()

    def step(x, w0, b0, w1, conv, y):
        with torch.autocast("cpu", bf16):
            h = F.linear(F.gelu(F.linear(x, w0, b0)), w1)
            loss = F.mse_loss(F.linear(h, conv.flatten(1)), y)
        return torch.autograd.grad(loss, (w0, b0, w1, conv))

    g = as_gpu(step, *names.values(), grad=True)
    assert calls(g).count("aten.mm.dtype") == 3, g.host.source
    with torch.no_grad():
        for got, expected in zip(
            run(g, [names[b.name].detach() for b in g.schedule.inputs]), step_with_grad(step, names), strict=True
        ):
            assert got.dtype == torch.float32 and got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-3)


def step_with_grad(step, names):
    with torch.enable_grad():
        return step(*names.values())
