"""Matrix products as they are lowered on a GPU: vectors times matrices as sums over rows, products of one matrix
merged.
"""

import importlib

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.fusion.schedule import Alloc, Extern  # noqa: E402

# (the package names its function so)
merge_products = importlib.import_module("tcompile.compiler.rewrite.products.merge_products")

from .as_gpu import as_gpu, check_as_gpu, train_as_gpu  # noqa: E402
from .interpreter import run  # noqa: E402

f16, f32 = torch.float16, torch.float32


def products(g):
    return [str(s.op) for s in g.schedule.steps if isinstance(s, Extern)]


@pytest.mark.parametrize("dtype", [f32, f16])
def test_a_vector_times_a_matrix_is_a_sum_over_rows(dtype):
    x, w, b = torch.randn(1, 96, dtype=dtype), torch.randn(80, 96, dtype=dtype) / 10, torch.randn(80, dtype=dtype)
    tol = {"rtol": 2e-3, "atol": 2e-3} if dtype == f16 else {"rtol": 1e-5, "atol": 1e-5}
    g = check_as_gpu(lambda x, w: x @ w.t(), x, w, **tol)
    assert not products(g) and len(g.kernels) == 1
    g = check_as_gpu(lambda x, w, b: F.relu(F.linear(x, w, b)) + x[:, :80], x, w, b, **tol)
    assert not products(g) and len(g.kernels) == 1  # bias, activation and residual in the same kernel
    g = check_as_gpu(
        lambda x, w, v: F.silu(F.linear(x, w)) * F.linear(x, v), x, w, torch.randn(80, 96, dtype=dtype) / 10, **tol
    )
    assert not products(g) and len(g.kernels) == 1  # two products that read the same vector


def test_other_products_are_the_librarys():
    x, w = torch.randn(2, 96), torch.randn(80, 96)
    assert products(check_as_gpu(lambda x, w: x @ w.t(), x, w)) == ["aten.mm.default"]
    # columns in memory
    assert products(check_as_gpu(lambda x, w: x @ w, x[:1], torch.randn(96, 80))) == ["aten.mm.default"]


@pytest.mark.parametrize("bias", [False, True])
def test_products_of_one_matrix_are_merged(bias):
    x = torch.randn(64, 64, dtype=f16)
    ws = [torch.randn(n, 64, dtype=f16) / 8 for n in (64, 32, 32)]
    bs = [torch.randn(n, dtype=f16) for n in (64, 32, 32)]

    def f(x, *rest):
        return (
            tuple(F.linear(x, w, y) for w, y in zip(rest[::2], rest[1::2], strict=True))
            if bias
            else tuple(F.linear(x, w) for w in rest)
        )

    def g(x, *rest):
        q, k, v = f(x, *rest)
        return q * 2 + torch.cat([k, v], 1)

    for fn in (f, g):
        rest = [t for pair in zip(ws, bs, strict=True) for t in pair] if bias else ws
        out = check_as_gpu(fn, x, *rest, rtol=2e-3, atol=2e-3)
        # (results stay apart)
        assert products(out) == ["aten.addmm.default" if bias else "aten.mm.default"] * (3 if fn is f else 1)


def test_what_is_not_merged():
    x, w = torch.randn(64, 64, dtype=f16), torch.randn(64, 64, dtype=f16)
    # the graph computes a weight
    one = check_as_gpu(lambda x, w: (x @ w.t(), x @ (w * 2).t()), x, w, rtol=1e-2, atol=0.1)
    assert len(products(one)) == 2
    two = check_as_gpu(lambda x, w: (x.float() @ w.float().t(), x.float() @ w.float().t() + 1), x, w)
    assert len(products(two)) <= 2
    wide = torch.randn(256, 64, dtype=f16)
    old, merge_products.NARROW_US = merge_products.NARROW_US, 0.0
    try:
        # nothing to gain
        assert (
            len(products(check_as_gpu(lambda x, w, v: (x @ w.t(), x @ v.t()), x, wide, wide + 1, rtol=1e-2, atol=0.1)))
            == 2
        )
    finally:
        merge_products.NARROW_US = old


def test_what_is_padded_is_computed_where_it_is_padded():
    """The gradient of an odd number of logits, for a product that wants rows of whole 16 bytes: one kernel writes
    it.
    """
    x, top, go = torch.randn(12, 133), torch.randn(12, 1), torch.rand(12, 1)

    def f(x, top, go):
        e = torch.exp(x - top)
        return F.pad((torch.where(x > 0, e - 1, e) * go).view(3, 4, 133).view(12, 133), (0, 3)) @ torch.ones(136, 4)

    g = check_as_gpu(f, x, top, go)
    assert [len(k.kernel.outputs) for k in g.kernels][0] == 1 and len(g.kernels) <= 2, g


def test_a_bias_joins_the_product():
    x, w, b = torch.randn(6, 5, 16, dtype=f16), torch.randn(24, 16, dtype=f16) / 4, torch.randn(24, dtype=f16)
    tol = {"rtol": 5e-3, "atol": 5e-3}
    for f in (
        lambda x, w, b: (x.view(30, 16) @ w.t() + b) * 2,
        lambda x, w, b: (lambda y: b + y)((x.view(30, 16) @ w.t()).view(6, 5, 24)).relu(),
    ):
        assert products(check_as_gpu(f, x, w, b, **tol)) == ["aten.addmm.default"]
    for f in (
        lambda x, w, b: (x.view(30, 16) @ w.t() + b.float()) * 2,  # another dtype
        lambda x, w, b: (x.view(30, 16) @ w.t() + b.exp()) * 2,  # a vector that the graph computes
        lambda x, w, b: torch.add(x.view(30, 16) @ w.t(), b, alpha=2) * 2,
        lambda x, w, b: (x.view(30, 16) @ w.t()).view(6, 5, 24).view(6, 120) + b.repeat(5),
    ):
        assert products(check_as_gpu(f, x, w, b, rtol=1e-2, atol=1e-2)) == ["aten.mm.default"]

    def both(x, w, b):
        y = x.view(30, 16) @ w.t()
        return (y + b) * 2, y * 3  # the product is read besides

    assert products(check_as_gpu(both, x, w, b, **tol)) == ["aten.mm.default"]


def test_a_result_lies_where_its_product_was():
    """The kernel after a product writes over it: one buffer less, read from the cache."""
    g = check_as_gpu(lambda x, w: torch.sigmoid(x @ w) * 2, torch.randn(32, 64), torch.randn(64, 48))
    assert [step.reuse is not None for step in g.schedule.steps if isinstance(step, Alloc)] == [False, True]


def test_a_result_in_an_operand_s_memory_is_stored_after_the_last_pass_that_computes_from_the_operand():
    """The gradient of a layer norm's weight and the norm's own gradient come from one kernel of two passes: the second
    computes the activation again, from what the first must not have overwritten."""
    torch.manual_seed(3)
    x, y = torch.randn(16, 32), torch.randint(0, 8, (16,))
    w0, b0, w1, b1 = torch.randn(64, 32) / 6, torch.randn(64), torch.randn(64), torch.randn(64)
    w2, b2 = torch.randn(8, 64) / 8, torch.randn(8)
    names = dict(x=x, w0=w0, b0=b0, w1=w1, b1=b1, w2=w2, b2=b2, y=y)
    leaves = [p.requires_grad_() for p in (w0, b0, w1, b1, w2, b2)]

    def step(x, w0, b0, w1, b1, w2, b2, y):
        loss = F.cross_entropy(F.linear(F.layer_norm(F.gelu(F.linear(x, w0, b0)), (64,), w1, b1), w2, b2), y)
        return (loss, *torch.autograd.grad(loss, (w0, b0, w1, b1, w2, b2)))

    g = as_gpu(step, *names.values(), grad=True)
    want = step(*names.values())
    assert all(p.grad is None for p in leaves)
    with torch.no_grad():
        for got, expected in zip(run(g, [names[b.name].detach() for b in g.schedule.inputs]), want, strict=True):
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 16])
def test_weights_of_few_bits_are_read_as_they_are(rows):
    x, s = torch.randn(rows, 128).bfloat16(), torch.rand(96, 1).bfloat16() / 50
    w, u = torch.randint(-127, 128, (96, 128), dtype=torch.int8), torch.randint(0, 256, (96, 64), dtype=torch.uint8)

    def eight(x, w, s):
        return F.silu(x @ (w.to(x.dtype) * s).t())

    def four(x, u, s):
        v = torch.stack((u & 15, u >> 4), -1).view(96, 2, 64).to(x.dtype) - 8
        return F.linear(x, (v * s[:, None]).view(96, 128))

    for f, q in ((eight, w), (four, u)):
        g = check_as_gpu(f, x, q, s, rtol=5e-2, atol=0.2)  # (eager rounds each step to bfloat16)
        assert not [s for s in g.schedule.steps if hasattr(s, "op")]
        assert not [
            b for k in g.kernels for b in k.kernel.outputs if b.dtype.itemsize > 1 and 96 in b.shape and 128 in b.shape
        ]
    for f, q, most in ((eight, w, 64), (four, u, 16)):
        for n, library in ((most, []), (most + 1, [torch.ops.aten.mm.default])):
            many = as_gpu(f, torch.randn(n, 128).bfloat16(), q, s)
            assert [s.op for s in many.schedule.steps if hasattr(s, "op")] == library


def test_what_is_read_beside_a_product_is_made_in_its_kernel():
    """A dropout's mask reads nothing of the product; as a kernel of its own it would have taken what follows."""

    def backward(g, w, h, mask):
        return torch.ops.aten.gelu_backward(
            torch.ops.aten.native_dropout_backward((g @ w).view(4, 8, 64), mask, 1 / 0.9), h
        )

    given = (
        torch.randn(32, 48, dtype=f16),
        torch.randn(48, 64, dtype=f16) / 7,
        torch.randn(4, 8, 64, dtype=f16),
        torch.rand(4, 8, 64) < 0.9,
    )
    g = check_as_gpu(backward, *given, rtol=5e-3, atol=5e-3, options={"gpu_products": "generated"})
    assert len(g.kernels) == 1 and not products(g)


@pytest.mark.parametrize("options", [{"attention": "library"}, {"gpu_products": "generated"}])
def test_what_a_gate_computes_is_computed_where_it_is_read(options):
    """Of what is narrow in memory, although products lie between: silu, and in backward its derivative, in float32 went
    through memory.
    """
    given = [
        torch.randn(s, dtype=torch.bfloat16).mul(0.2).requires_grad_() for s in ((40, 32), (32, 64), (32, 64), (64, 32))
    ]

    def gated(x, w, v, u):
        return (F.silu(x @ w) * (x @ v)) @ u

    p, forward, backward = train_as_gpu(gated, *given, options=options)
    kernels = [[s.kernel for s in g.schedule.steps if hasattr(s, "kernel")] for g in (forward, backward)]
    assert not [b for ks in kernels for k in ks for b in k.outputs if b.dtype == torch.float32]
    if "attention" in options:
        assert [[(len(k.inputs), len(k.outputs)) for k in ks] for ks in kernels] == [[(2, 1)], [(2, 1), (3, 2), (2, 1)]]
        assert kernels[0][0].name == "k2_exp_mul"
    want, grad = gated(*given), torch.randn(40, 32, dtype=torch.bfloat16)
    want.backward(grad)
    with torch.no_grad():
        named = dict(zip("xwvu", given))
        out, *kept = run(forward, [named[b.name] for b in forward.schedule.inputs])
        got = run(backward, [*(named[forward.schedule.inputs[i].name] for i in p.saved_inputs), *kept, grad])
    for a, b in zip((out, *got), (want, *(t.grad for t in given)), strict=True):
        torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
