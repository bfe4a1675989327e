"""Distances by a matrix product, truth of whole tensors, weights of a magnitude and a direction: rules of our own."""

import subprocess
import sys

import pytest
import torch

import tcompile
from tcompile.compiler.graph.meta import TensorMeta, lookup

aten = torch.ops.aten


def described(t):
    return tuple(t.shape), tuple(t.stride()), t.dtype


def meta(t):
    return TensorMeta(tuple(t.shape), tuple(t.stride()), t.dtype, t.device, 0)


def like_eager(op, *args):
    """The rule's results beside those of the kernel."""
    got = lookup(op)(*[meta(a) if isinstance(a, torch.Tensor) else a for a in args])
    want = op(*args)
    got, want = (x if isinstance(x, (tuple, list)) else [x] for x in (got, want))
    assert [(g.shape, g.stride, g.dtype) for g in got] == [described(w) for w in want]


DISTANCES = [
    (torch.randn(60, 4), torch.randn(5, 4)),
    (torch.randn(4, 60).t(), torch.randn(10, 4)[::2]),
    (torch.randn(3, 7, 2).double(), torch.randn(3, 1, 2).double()),
    (torch.randn(0, 4), torch.randn(5, 4)),
    (torch.randn(2, 1, 7, 3), torch.randn(1, 4, 5, 3)),
    (torch.randn(2, 3, 0), torch.randn(2, 5, 0)),
]


@pytest.mark.parametrize("x, y", DISTANCES)
def test_metadata_of_distances(x, y):
    like_eager(aten._euclidean_dist.default, x, y)


def test_metadata_of_truth_and_refusals():
    for x in (torch.tensor(True), torch.ones(0, 2) > 0, torch.randn(3, 4) > 0):
        like_eager(aten._is_all_true.default, x)
        like_eager(aten._is_any_true.default, x)
    for op in (aten._is_all_true.default, aten._is_any_true.default):
        with pytest.raises(RuntimeError):
            op(torch.ones(3))
        with pytest.raises(RuntimeError):
            lookup(op)(meta(torch.ones(3)))


WEIGHTS = [
    (torch.randn(4, 3), torch.rand(4, 1), 0),
    (torch.randn(4, 3), torch.rand(1, 3), 1),
    (torch.randn(8, 3, 5), torch.rand(8, 1, 1), 0),
    (torch.randn(8, 3, 5).double(), torch.rand(1, 1, 5).double(), 2),
    (torch.randn(4, 3).bfloat16(), torch.rand(4, 1).bfloat16(), 0),
]


@pytest.mark.parametrize("v, g, dim", WEIGHTS)
def test_metadata_of_weights(v, g, dim):
    like_eager(aten._weight_norm_interface.default, v, g, dim)
    w, norms = aten._weight_norm_interface.default(v, g, dim)
    like_eager(aten._weight_norm_interface_backward.default, w, v, g, norms, dim)


def test_middle_dim_is_refused_like_eager():
    v, g = torch.randn(2, 3, 4), torch.rand(1, 3, 1)
    for call in (aten._weight_norm_interface.default, lambda *a: lookup(aten._weight_norm_interface.default)(*a)):
        with pytest.raises(RuntimeError, match="first or last dim"):
            call(*((v, g) if call is aten._weight_norm_interface.default else (meta(v), meta(g))), 1)


def test_results_and_gradients():
    scales = [torch.randn(v.shape).double() for v, _, _ in WEIGHTS]
    weights = [torch.nn.Parameter(t) for v, g, _ in WEIGHTS for t in (v, g)]

    def f(x, y, *parts):
        distances = torch.cdist(x, y)
        made = [torch._weight_norm(v, g, WEIGHTS[i][2]) for i, (v, g) in enumerate(zip(parts[::2], parts[1::2]))]
        total = sum((m.double() * scale).sum() for m, scale in zip(made, scales))
        return distances, distances.argmin(1), aten._is_all_true(x > -9), aten._is_any_true(y > 9), *made, total

    x, y = torch.randn(60, 4), torch.randn(5, 4)
    report = tcompile.explain(f)(x, y, *weights)
    torch.testing.assert_close(report.result, f(x, y, *weights))
    left = {e.op for e in report.externs}
    assert not any("weight_norm" in op or "_true" in op or "dist" in op for op in left), left
    compiled = tcompile.compile(f)
    got = torch.autograd.grad(compiled(x, y, *weights)[-1], weights)
    want = torch.autograd.grad(f(x, y, *weights)[-1], weights)
    torch.testing.assert_close(got, want)


ALONE = """
import sys, torch, tcompile
seed = torch.manual_seed
def f(x, c):
    return torch.cdist(x, c).argmin(1), torch.ops.aten._is_all_true(x > 0)
x, c = torch.randn(60, 4), torch.randn(5, 4)
got = tcompile.compile(f)(x, c)
torch.testing.assert_close(got, f(x, c))
print("torch._dynamo" in sys.modules, torch.manual_seed is seed)
"""


def test_stock_is_not_imported_for_distances():
    """Importing torch._dynamo exchanges functions of torch: what a cell's entries rely on would differ in its next
    run.
    """
    out = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "True"]


def test_gradients_of_distances_and_diagonals_are_kernels():
    """Rows that lie on each other have a gradient of zero."""
    x, y = torch.randn(6, 4), torch.randn(3, 4)
    y[0] = x[1]
    batches = torch.randn(2, 6, 4), torch.randn(1, 3, 4)  # (one for each, which torch's kernel makes of the second)

    def f(x, y, batched, others):
        near = torch.cdist(x, y) * 2 + torch.cdist(x, y, p=1.0)
        many = torch.cdist(batched, others, p=1.0).sum(0)
        return near + many + (x @ x.T).diagonal(1)[:3].sin()

    ours = [t.clone().requires_grad_() for t in (x, y, *batches)]
    theirs = [t.clone().requires_grad_() for t in (x, y, *batches)]
    with tcompile.record() as record:
        got = tcompile.compile(f, fullgraph=True)(*ours)
        got.square().sum().backward()
    want = f(*theirs)
    want.square().sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close([t.grad for t in ours], [t.grad for t in theirs])
    assert not record.report().fallbacks
