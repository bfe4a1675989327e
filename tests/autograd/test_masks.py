"""Masks kept as bits in autograd's graph: every way through the bridge, by torch's own kernels, on the CPU, against
eager.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tcompile
from tcompile.compiler.ops import mask_bits
from tcompile.compiler.autograd import saved_masks


@pytest.fixture(autouse=True)
def anywhere(monkeypatch):
    monkeypatch.setattr(saved_masks, "DEVICES", ("cpu",))
    monkeypatch.setattr(saved_masks, "LEAST", 64)


@pytest.fixture
def packed(monkeypatch):
    """How many masks were packed."""
    count = []
    was = saved_masks.packed_nodes

    def counted(graph, found):
        found = list(found)
        count.extend(found)
        return was(graph, found)

    monkeypatch.setattr("tcompile.compiler.autograd.partition.packed_nodes", counted)
    return count


def leaves(*shapes):
    torch.manual_seed(0)
    return [torch.randn(*s).requires_grad_() for s in shapes]


def grads(fn, inputs, seed=4, twice=False):
    torch.manual_seed(seed)
    out = fn(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    total = sum((o * o).sum() for o in outs if o.is_floating_point())
    first = torch.autograd.grad(total, inputs, retain_graph=twice)
    if twice:
        for a, b in zip(first, torch.autograd.grad(total, inputs)):
            assert torch.equal(a, b)
    return [*(o.detach() for o in outs), *first]


def same(fn, inputs, **more):
    c = tcompile.compile(fn, backend="aot_eager")
    for a, b in zip(grads(c, inputs, **more), grads(fn, inputs, **more), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    return c


def block(x, w):
    return F.dropout(F.gelu(x @ w), 0.3)


def test_backward_passes(packed):
    inputs = leaves((24, 16), (16, 40))
    c = same(block, inputs, twice=True)
    assert len(packed) == 1
    inputs = leaves((9, 16), (16, 40))  # another size, then sizes that vary
    for a, b in zip(grads(c, inputs, twice=True), grads(block, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_comparisons_and_results(packed):
    def two(x, w):
        y = x @ w
        m = y > 0.1
        return torch.where(m, y * 2, -y).sum(0), torch.where(y < -1, y.detach(), 3 * y).sum(1)

    same(two, leaves((24, 16), (16, 40)))
    assert len(packed) == 2
    same(lambda x, w: (lambda y, m: (torch.where(m, y * 2, -y), m))(x @ w, x @ w > 0.1), leaves((24, 16), (16, 40)))
    assert len(packed) == 2, "what the caller gets is there anyway"
    same(lambda x, w: (lambda y: torch.where(y > 0.1, y * 2, -y).sum(0))(x @ w), leaves((24, 16), (16, 44)))
    assert len(packed) == 2, "rows that end within a byte"


def test_relu(packed):
    same(lambda x, w: F.relu(x @ w).sum(0), leaves((24, 16), (16, 40)), twice=True)
    assert len(packed) == 1
    same(lambda x, w, v: F.relu(x @ w) @ v, leaves((24, 16), (16, 40), (40, 8)))
    assert len(packed) == 1, "the product reads what relu gave"
    x = (
        torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 2.0])
        .repeat(24, 5)
        .requires_grad_()
    )

    def both(x):
        return F.relu(x * 1), F.relu(x * 2).sum(0)

    c = tcompile.compile(both, backend="aot_eager")
    for a, b in zip(grads(c, [x]), grads(both, [x]), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_parts_and_missing_tangents(packed):
    def two(x, y, w):
        return block(x, w), F.dropout(y.sin(), 0.5).cos()

    inputs = leaves((24, 16), (8, 64), (16, 40))
    c = tcompile.compile(two, backend="aot_eager")
    for k in (0, 1):
        found = []
        for fn in (c, two):
            torch.manual_seed(2)
            out = fn(*inputs)
            found.append(
                [
                    *torch.autograd.grad(out[k].sum(), inputs, allow_unused=True, retain_graph=True),
                    *torch.autograd.grad(out[1 - k].sum(), inputs, allow_unused=True),
                ]
            )
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert len(packed) == 2


def test_checkpoints_and_budgets(packed):
    def inner(x, w):
        return F.dropout(F.gelu(x @ w), 0.3).sin()

    same(lambda x, w: checkpoint(inner, x, w, use_reentrant=False), leaves((24, 16), (16, 40)))
    c = tcompile.compile(block, backend="aot_eager", options={"activation_memory_budget": 0.1})
    inputs = leaves((24, 16), (16, 40))
    for a, b in zip(grads(c, inputs), grads(block, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert packed


def test_batched_tangents():
    inputs = leaves((24, 16), (16, 40))
    found = []
    for fn in (
        tcompile.compile(lambda x, w: torch.where(x @ w > 0.1, x @ w, x.sum() * (x @ w)), backend="aot_eager"),
        lambda x, w: torch.where(x @ w > 0.1, x @ w, x.sum() * (x @ w)),
    ):
        out = fn(*inputs)
        found.append(
            torch.autograd.grad(out, inputs, torch.stack([torch.ones_like(out), out.detach()]), is_grads_batched=True)
        )
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_operators():
    mask = torch.rand(3, 5, 7) < 0.5
    kept = mask_bits.PACK(mask, [2, 0, 1])
    assert kept.numel() == mask_bits.bytes_for(mask.shape) == 16 and torch.equal(
        mask_bits.UNPACK(kept, [3, 5, 7], [2, 0, 1]), mask
    )
    assert kept[0].item() == sum(int(b) << k for k, b in enumerate(mask.permute(2, 0, 1).flatten()[:8]))
