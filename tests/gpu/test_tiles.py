"""Products in CUDA C++ (codegen/cuda) on the device: as near to float64 as eager is."""

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.ops import keep_bits
from tcompile.compiler.codegen import generate
from tcompile.compiler.codegen.cuda import product
from tcompile.compiler.codegen.triton import print_kernel as printer
from tcompile.compiler.codegen.triton.layout import Choices
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.codegen.triton.printer import without_locals

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="no GPU of the Hopper generation",
)
bf16, f16 = torch.bfloat16, torch.float16


@pytest.fixture(params=[256, 192, 128])
def printed(request, monkeypatch):
    """Every product is printed as tiles of so many columns; gives the names of those that were."""
    made: list[str] = []

    def tiles(kernel, target, choices=Choices(), *, name, **how):
        if choices.kind is not None or product.find_tiles(without_locals(kernel), target) is None or not how:
            return print_kernel(kernel, target, choices, name=name, **how)
        made.append(name)
        return print_kernel(
            kernel, target, Choices("tiles", xblock=request.param), name="k_" + "".join(c for c in name if c.isalnum())
        )

    monkeypatch.setattr(generate, "_printed", {})
    monkeypatch.setattr(printer, "print_kernel", tiles)
    return made


def near(fn, *inputs, mode=None):
    c = tcompile.compile(fn, options={"gpu_products": "generated", "cudagraphs": mode == "graphs"})
    with torch.no_grad():
        for _ in range(6 if mode == "graphs" else 2):
            got = c(*inputs)
        exact, eager = fn(*(t.double() if t.is_floating_point() else t for t in inputs)), fn(*inputs)
    for g, x, e in zip(*(o if isinstance(o, tuple) else (o,) for o in (got, exact, eager))):
        assert g.shape == e.shape and g.dtype == e.dtype and g.stride() == e.stride()
        assert (g.double() - x).abs().max() <= 2 * (e.double() - x).abs().max() + 1e-3
        assert (g.double() - x).norm() <= 1.5 * (e.double() - x).norm() + 1e-6


def randn(*shape, dtype=bf16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize(
    "m, k, n", [(4096, 512, 1024), (1000, 328, 776), (130, 128, 136), (128, 2048, 4096), (2049, 200, 520)]
)
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_what_follows_a_product(printed, m, k, n, dtype):
    x, w, b = randn(m, k, dtype=dtype), randn(k, n, dtype=dtype) / k**0.5, randn(n, dtype=dtype)
    near(lambda x, w, b: F.gelu(x @ w + b), x, w, b)
    v, r = w.t().contiguous(), randn(m, n, dtype=dtype)
    near(lambda x, v, b, r: F.linear(x, v, b) * 0.5 + r, x, v, b, r)
    near(lambda x, v, r: F.silu(F.linear(x, v)) * r, x, v, r)
    near(lambda x, v, b: F.gelu(F.linear(x, v, b), approximate="tanh"), x, v, b)
    near(lambda x, v, b: torch.relu(F.linear(x, v, b)).sigmoid().tanh(), x, v, b)
    assert len(printed) >= 5


def test_matrices_that_lie_by_columns_and_results_in_float32(printed):
    g, x = randn(1024, 520), randn(1024, 392)
    near(lambda g, x: (g.t() @ x).float(), g, x)
    near(lambda g, x: g.t() @ x, g, x)
    y, w = randn(700, 256), randn(256, 512) / 16
    near(lambda y, w: (lambda z: (z, F.gelu(z), z.float() * 2))(y @ w), y, w)
    assert len(printed) >= 3


def test_parts_of_tensors_and_addresses_that_change(printed):
    whole, w = randn(600, 1024), randn(512, 384) / 22
    near(lambda x, w: torch.relu(x[:, 256:768] @ w), whole, w)
    near(lambda x, w: torch.relu(x[100:356, 512:] @ w), whole, w)
    assert printed
    c = tcompile.compile(lambda x, w: torch.relu(x @ w), options={"gpu_products": "generated"})
    kept = []
    for i in range(6):
        x = randn(256, 512) * i
        kept.append((c(x, w), torch.relu(x @ w)))
    # no multiple of 16 bytes: a kernel of Triton's
    odd = torch.empty(256 * 512 + 1, device="cuda", dtype=bf16).normal_()[1:].view(256, 512)
    kept.append((c(odd, w), torch.relu(odd @ w)))
    for got, want in kept:
        torch.testing.assert_close(got, want, atol=0.05, rtol=0.02)


def test_batches_of_rows_and_graphs(printed):
    x, w, b = randn(8, 64, 256), randn(512, 256) / 16, randn(512)
    near(lambda x, w, b: F.gelu(F.linear(x, w, b)) + x.sum(-1, keepdim=True), x, w, b)
    near(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b, mode="graphs")
    assert printed


def test_nan_and_inf(printed):
    x, w, b = randn(256, 256), randn(256, 256) / 16, randn(256)
    x[3, 5], x[200, 255], x[17, 2], x[18, 2] = float("nan"), float("inf"), 1e30, -1e30
    for f in (
        lambda x, w, b: F.gelu(x @ w + b),
        lambda x, w, b: F.silu(x @ w + b),
        lambda x, w, b: torch.maximum(x @ w, b),
    ):
        got, want = tcompile.compile(f, options={"gpu_products": "generated"})(x, w, b), f(x, w, b)
        assert torch.equal(got[3].isnan(), want[3].isnan()) and got[3].isnan().all()
        torch.testing.assert_close(got[17:19], want[17:19], equal_nan=True)
        assert torch.equal(got[200] == float("inf"), want[200] == float("inf"))
    assert printed


def test_gelu_everywhere(printed):
    """All values of 16 bits, through a product with the unit matrix."""
    for dtype in (bf16, f16):
        x = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(dtype).view(-1, 256)
        x = torch.where(x.isfinite(), x, 0)
        got = tcompile.compile(lambda x, e: F.gelu(x @ e), options={"gpu_products": "generated"})
        exact = F.gelu(x.double())
        eager = F.gelu(x)
        with torch.no_grad():
            ours = got(x, torch.eye(256, device="cuda", dtype=dtype))
        assert (ours.double() - exact).abs().max() <= 1.1 * (eager.double() - exact).abs().max()
    assert len(printed) == 2


@pytest.mark.parametrize("m, k, n", [(4096, 512, 1024), (1000, 328, 776), (2049, 200, 520)])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_dropout_behind_gelu(printed, m, k, n, dtype):
    """All three results of an MLP's forward; the mask is eager's."""

    def forward(x, v, b):
        h = F.linear(x, v, b)
        return h, *torch.native_dropout(F.gelu(h), 0.1, True)

    x, v, b = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype) / k**0.5, randn(n, dtype=dtype)
    c = tcompile.compile(forward, options={"gpu_products": "generated"})
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            h, y, mask = c(x, v, b)
            torch.manual_seed(seed)
            eager, eager_y, eager_mask = forward(x, v, b)
            assert torch.equal(mask, eager_mask) and torch.equal(
                torch.rand(1, device="cuda"),
                (torch.manual_seed(seed), forward(x, v, b), torch.rand(1, device="cuda"))[2],
            )
            exact = F.linear(x.double(), v.double(), b.double())
            exact_y = F.gelu(exact) * mask / 0.9
            for got, other, want in ((h, eager, exact), (y, eager_y, exact_y)):
                # (the product is held rounded until its bias is added: that may round by the step of twice the result's
                # size, and the result once more)
                assert (got.double() - want).abs().max() <= 3 * (other.double() - want).abs().max() + 1e-3
                assert (got.double() - want).norm() <= 1.5 * (other.double() - want).norm()
    assert printed


@pytest.mark.parametrize("m, k, n", [(4096, 512, 1024), (1000, 328, 776), (2049, 200, 520)])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_backward_of_dropout_and_gelu(printed, m, k, n, dtype):
    mask = torch.rand(m, n, device="cuda") < 0.9
    g, w, h = randn(m, k, dtype=dtype), randn(k, n, dtype=dtype) / k**0.5, randn(m, n, dtype=dtype) * 2

    def backward(g, w, h):
        d = torch.ops.aten.gelu_backward(torch.ops.aten.native_dropout_backward(g @ w, mask, 1 / 0.9), h)
        return d, d.sum(0)

    near(backward, g, w, h)
    assert printed


def test_derivative_of_gelu_everywhere(printed):
    """All finite values of 16 bits, beside a product of ones."""
    for dtype in (bf16, f16):
        h = torch.arange(-(2**15), 2**15, device="cuda").to(torch.int16).view(dtype).view(-1, 256)
        h = torch.where(h.isfinite(), h, 0)
        x, e = torch.ones_like(h), torch.eye(256, device="cuda", dtype=dtype)
        slope = torch.ops.aten.gelu_backward
        with torch.no_grad():
            ours = tcompile.compile(lambda x, e, h: slope(x @ e, h), options={"gpu_products": "generated"})(x, e, h)
        eager, exact = slope(x, h), slope(x.double(), h.double())
        assert (ours.double() - exact).abs().max() <= 1.1 * (eager.double() - exact).abs().max()
    assert len(printed) == 2


@pytest.mark.parametrize("m, k, n", [(4096, 512, 1024), (1000, 328, 776), (2049, 200, 520)])
@pytest.mark.parametrize("dtype", [bf16, f16])
def test_dropout_by_bits_behind_gelu(printed, m, k, n, dtype):
    """The words of other numbers than eager's, which a kernel before has drawn, are unpacked; the mask is a result."""

    def forward(x, v, b):
        return torch.native_dropout(F.gelu(F.linear(x, v, b)), 0.1, True)

    x, v, b = randn(m, k, dtype=dtype), randn(n, k, dtype=dtype) / k**0.5, randn(n, dtype=dtype)
    c = tcompile.compile(forward, options={"gpu_products": "generated", "fast_dropout": True})
    with torch.no_grad():
        for seed in range(3):
            torch.manual_seed(seed)
            y, mask = c(x, v, b)
            assert abs(mask.float().mean() - 0.9) < 5 * 0.3 / mask.numel() ** 0.5
            exact, eager = (
                F.gelu(F.linear(*(t.to(d) for t in (x, v, b)))) * mask * keep_bits.scale(0.1)
                for d in (torch.float64, dtype)
            )
            assert (y.double() - exact).abs().max() <= 3 * (eager.double() - exact).abs().max() + 1e-3
            assert (y.double() - exact).norm() <= 1.5 * (eager.double() - exact).norm()
    assert printed
