"""Sums over rows as a GPU makes them: in the kernel that reduces the rows, in pieces that lie side by side, without
copies of what they read.
"""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.autograd.partition import partition
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget, runs_of
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.config import Options
from tcompile.compiler.fusion import column_sums
from ...oracles.loop_interpreter import run_schedule
from tcompile.compiler.fusion.schedule import Launch
from tcompile.compiler.graph.to_aten import record_function
from tcompile.compiler.runtime.gpu.compile import Job, compile_all
from tcompile.compiler.runtime.gpu.tune import candidates

from .as_gpu import as_gpu, check_as_gpu, turn
from .interpreter import run


def norm_backward(g, x, w, res):
    var, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    normed = (x - mean) * torch.rsqrt(var + 1e-5)
    gw = g.float() * w
    dx = res + (gw - gw.mean(-1, keepdim=True) - normed * (gw * normed).mean(-1, keepdim=True)) * torch.rsqrt(
        var + 1e-5
    )
    rows = tuple(range(g.ndim - 1))
    return dx, (g.float() * normed).sum(rows), g.float().sum(rows), dx.sum(rows)


def softmax_turned(x):
    """The result lies with its rows in another order than x's."""
    y = torch.softmax(x, -1).transpose(0, 1).reshape(-1, x.shape[-1])
    return y, y.sum(0)


@pytest.fixture
def small(monkeypatch):
    """Few programs are enough: the interpreter is slow."""
    for name, n in (("LEAST", 1), ("RUNS", 8), ("FEWEST_RUNS", 4), ("MOST_RUNS", 16)):
        monkeypatch.setattr(column_sums, name, n)


@pytest.mark.parametrize("shape", [(4, 16, 300), (2, 20, 257), (96, 512)], ids=str)
def test_norms_sum_columns_in_the_kernel_that_reduces_rows(shape, small):
    torch.manual_seed(0)
    args = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape)
    g = check_as_gpu(norm_backward, *args, rtol=1e-4, atol=1e-4)
    assert [k.source.choices["shape"] == "rows" for k in g.kernels] == [True, False], (
        "one kernel goes through the rows, one adds up its sums"
    )
    runs = runs_of(g.kernels[0].kernel)
    assert 4 <= runs <= 16 and g.kernels[0].source.functions[0].grid.value == runs
    names = ["g", "x", "w", "res"]
    given = [args[names.index(b.name)] for b in g.schedule.inputs]
    for a, b in zip(run_schedule(g.schedule, given), norm_backward(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_rows_in_another_order_are_the_same_rows(small):
    torch.manual_seed(0)
    g = check_as_gpu(softmax_turned, torch.randn(8, 4, 300), rtol=1e-4, atol=1e-4)
    assert [k.source.choices["shape"] == "rows" for k in g.kernels] == [True, False]


@pytest.mark.parametrize("shape", [(12, 300), (67, 300), (128, 64)], ids=str)
def test_sums_of_what_does_not_fit_stay_kernels_of_their_own(shape, small):
    """Few rows, rows in no equal runs, short ones."""
    torch.manual_seed(0)
    g = check_as_gpu(
        norm_backward,
        torch.randn(shape),
        torch.randn(shape),
        torch.randn(shape[-1]),
        torch.randn(shape),
        rtol=1e-4,
        atol=1e-3,
    )
    assert not any(k.source.choices["shape"] == "rows" for k in g.kernels)


def heads_backward(dq, dk, dv, x, w):
    """Backward of a product that makes queries, keys and values: (batch, steps, width) each, joined; the product's rows
    are (steps, batch).
    """
    b, s, e = dq.shape
    joined = torch.cat([t.transpose(0, 1)[None] for t in (dq, dk, dv)]).contiguous()
    grad = joined.permute(1, 2, 0, 3).reshape(s * b, 3 * e)
    return grad.t() @ x, grad @ w, grad.float().sum(0)


def test_what_is_copied_for_a_product_is_written_there():
    torch.manual_seed(0)
    b, s, e = 4, 16, 32
    args = (
        *(torch.randn(b, s, e, dtype=torch.bfloat16) for _ in range(3)),
        torch.randn(s * b, 64, dtype=torch.bfloat16),
        torch.randn(3 * e, 64, dtype=torch.bfloat16),
    )
    g = check_as_gpu(heads_backward, *args, rtol=2e-2, atol=2e-1)
    launches = [step for step in g.schedule.steps if isinstance(step, Launch)]
    assert {tuple(x.shape) for step in launches for x in step.outputs} == {(s * b, 3 * e), (3 * e,)}, (
        "the joined gradient lies in memory once"
    )


def products_of_both(a, x, w):
    m = a.transpose(0, 1).reshape(-1, a.shape[-1])
    return m.t() @ x, m @ w


def test_a_matrix_and_its_transpose_are_one_copy():
    torch.manual_seed(0)
    g = check_as_gpu(products_of_both, torch.randn(4, 16, 32), torch.randn(64, 8), torch.randn(32, 8))
    launches = [step for step in g.schedule.steps if isinstance(step, Launch)]
    assert sum(len(step.outputs) for step in launches) == 1


def batch_norm_backward(g, y, x, mean, inv):
    n = x.shape[0]
    v = torch.where(y <= 0, 0.0, g.float())
    d = x.float() - mean
    first, second = v.sum(0), (v * d).sum(0)
    return ((v - first / n) - d * (second / n * inv * inv)).to(x.dtype), first, second * inv


@pytest.mark.parametrize("shape", [(2048, 32), (1501, 37)], ids=str)
def test_partial_sums_are_folded_once_before_another_pass(shape):
    torch.manual_seed(0)
    c = shape[-1]
    g = check_as_gpu(
        batch_norm_backward,
        *(torch.randn(shape).bfloat16() for _ in range(3)),
        torch.randn(c),
        torch.rand(c) + 0.5,
        rtol=1e-2,
        atol=1e-2,
    )
    (kernel,) = (k for k in g.kernels if k.source.choices["shape"] == "split")
    passes, fold, again = kernel.source.text.split("@triton.jit")[-3:]
    assert "part" in fold and "whole" in fold and "tl.store(out" in fold, (
        "results that need no further pass are stored where the parts are folded"
    )
    assert "+ (piece * xnumel + xindex)" in passes and "tl.load(part" not in again and "tl.load(whole" in again


def mean_kept(g, x, mean):
    return ((x - mean[:, None]) * g).sum(0)


def test_numbers_of_rows_do_not_turn_a_sum_of_columns():
    g = as_gpu(mean_kept, torch.randn(8192, 256), torch.randn(8192, 256), torch.randn(8192))
    assert g.kernels[0].source.choices["shape"] == "split" and g.kernels[0].source.choices["xblock"] > 8


def test_a_residual_stream_is_not_made_again_from_its_beginning():
    """On a GPU each sum is kept: the products that it is made of are narrower, but all of them would be read before the
    first gradient.
    """

    def steps(x, tangent, *weights):
        kept = []
        for w in weights:
            kept.append(x)
            x = x + (x.bfloat16() @ w).float()
        grad = x * tangent
        for y in reversed(kept):
            grad = grad * torch.sin(y)
        return x, grad

    joint = record_function(
        steps,
        [torch.empty(64, 32), torch.empty(64, 32), *(torch.empty(32, 32, dtype=torch.bfloat16) for _ in range(6))],
    )
    # (the tangent comes last, as in a joint graph)
    first, tangent, *weights = joint.placeholders
    weights[-1].append(tangent)
    joint.inputs.append(joint.inputs.pop(1))
    on_cpu = partition(joint, 7, 1)
    assert any(v.dtype == "bfloat16" for v in on_cpu.saved)
    turn(joint)
    on_gpu = partition(joint, 7, 1)
    assert [v.dtype for v in on_gpu.saved].count("bfloat16") <= 1 and len(on_gpu.saved) <= 6, (
        "but the first, which takes an input"
    )
    assert sum("add" in v.op for v in on_gpu.recomputed) <= 1


@pytest.mark.parametrize("n", [2, 3, 5])
def test_sums_of_one_pass_are_folded_together(n):
    """The warps of a row meet once; what is no sum of float32 stays by itself."""
    x = torch.randn(3, 700)
    fn = {
        2: lambda x: (x.sum(-1), (x * x).sum(-1)),
        3: lambda x: (x.sum(-1), x.amax(-1), (x * x).sum(-1), x.abs().sum(-1), x.argmax(-1)),
        5: lambda x: tuple((x * k).sum(-1) for k in range(1, 6)),
    }[n]
    g = check_as_gpu(fn, x, rtol=1e-4, atol=1e-4)
    (text,) = (k.source.text for k in g.kernels)
    assert text.count(f"= _sum_{min(n, 4)}(") == 1 and text.count("tl.sum(") == (1 if n == 5 else 0), text


@pytest.mark.parametrize("by", [1024.0, 0.5, 3.0, -4.0, 2.0**120, float("inf"), float("nan"), 0.0])
def test_division_by_a_power_of_two_is_a_product(by):
    x = torch.cat(
        [torch.randn(500), torch.tensor([1e-45, 3e-44, -7e-42, 1e-38, 3e38, float("inf"), float("nan"), 0.0, -0.0])]
    )
    g = check_as_gpu(lambda x: (x.sum(), x / by)[1], x, rtol=0, atol=0)
    assert ("tl.div_rn" in g.kernels[0].source.text) == (by not in (1024.0, 0.5))


def test_loops_read_ahead():
    """As max-autotune has them tried: what a loop reads comes through shared memory, some passes before it is used."""
    x, y = torch.randn(300, 64).bfloat16(), torch.randn(300, 64).bfloat16()
    g = as_gpu(lambda x, y: (lambda d: (d, d.sum(0)))(x * y), x, y)
    (k,) = g.kernels
    for choices in (Choices(kind="looped", rblock=16, stages=3), Choices(kind="split", rblock=16, split=2, stages=3)):
        k.source = print_kernel(k.kernel, g.target, choices, name=k.name)
        assert "num_stages=3" in k.source.text and k.source.choices["stages"] == 3
        d, total = run(g, [x, y])
        torch.testing.assert_close(d, x * y)
        torch.testing.assert_close(total, (x.float() * y.float()).sum(0).bfloat16())
    target = GpuTarget("cuda", 90, 32, 132)
    assert any(
        c.stages == 3
        for c in candidates(replace(k, source=print_kernel(k.kernel, target, Choices(kind="split"))), target)
    )
    assert "cp.async" in compile_all([Job(k.source, target)], Options())[0].parts[0].assembly()
