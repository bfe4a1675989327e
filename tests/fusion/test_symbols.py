"""Sizes that are symbols: the same kernels as with numbers, and right at any size."""

import pytest
import torch

from ..oracles.loop_interpreter import run_schedule
from tcompile.compiler.symbolic.expr import symbol

from ..lowering.helper import Builder, kernels

aten = torch.ops.aten
n, m = symbol("s0"), symbol("s1")


@pytest.mark.parametrize("size", [2, 7])
def test_pointwise_is_one_axis(size):
    b = Builder(s0=4)
    x, y = b.input((n, 8)), b.input((n, 8))
    s = b.schedule(b.call(aten.mul.Tensor, b.call(aten.add.Tensor, x, y, shape=(n, 8)), 2, shape=(n, 8)))
    (k,) = kernels(s)
    assert len(k.outer) == 1 and str(k.outer[0].size) == "8*n0"
    xs = torch.randn(size, 8), torch.randn(size, 8)
    torch.testing.assert_close(run_schedule(s, xs)[0], (xs[0] + xs[1]) * 2)


@pytest.mark.parametrize("shape", [(n, m), (n, 16), (6, m)])
def test_softmax_is_one_kernel(shape):
    b = Builder(s0=6, s1=16)
    x = b.input(shape)
    mx = b.call(aten.amax.default, x, [1], True, shape=(shape[0], 1))
    e = b.call(aten.exp.default, b.call(aten.sub.Tensor, x, mx, shape=shape), shape=shape)
    t = b.call(aten.sum.dim_IntList, e, [1], True, shape=(shape[0], 1))
    s = b.schedule(b.call(aten.div.Tensor, e, t, shape=shape))
    (k,) = kernels(s)
    assert len(k.locals) == 1
    xs = torch.randn(6, 16)
    torch.testing.assert_close(run_schedule(s, [xs])[0], torch.softmax(xs, 1))


def test_mean_divides_by_the_symbol():
    b = Builder(s0=6)
    x = b.input((4, n))
    s = b.schedule(b.call(aten.mean.dim, x, [1], shape=(4,)))
    xs = torch.randn(4, 9)
    torch.testing.assert_close(run_schedule(s, [xs])[0], xs.mean(1))


def test_reshapes_of_symbolic_sizes_stay_affine():
    b = Builder(s0=3)
    x = b.input((n, 4, 8))
    v = b.call(aten.view.default, x, (n * 4, 8), shape=(n * 4, 8))
    y = b.call(aten.relu.default, v, shape=(n * 4, 8))
    z = b.call(aten.view.default, y, (n, 4, 8), shape=(n, 4, 8))
    p = b.call(aten.permute.default, z, [1, 0, 2], shape=(4, n, 8), stride=(8, 32, 1))
    s = b.schedule(b.call(aten.clone.default, p, shape=(4, n, 8)), b.call(aten.sum.dim_IntList, z, [2], shape=(n, 4)))
    assert "//" not in "".join(map(str, kernels(s))) and "%" not in "".join(map(str, kernels(s)))
    xs = torch.randn(3, 4, 8)
    got = run_schedule(s, [xs])
    torch.testing.assert_close(got[0], xs.relu().permute(1, 0, 2))
    torch.testing.assert_close(got[1], xs.relu().sum(2))


def test_slices_and_arange_of_symbols():
    b = Builder(s0=6)
    x = b.input((n, 8))
    tail = b.call(aten.slice.Tensor, x, 0, 1, n, shape=(n - 1, 8))
    head = b.call(aten.slice.Tensor, x, 0, 0, n - 1, shape=(n - 1, 8))
    d = b.call(aten.sub.Tensor, tail, head, shape=(n - 1, 8))
    i = b.call(aten.arange.start_step, 0, n - 1, 1, shape=(n - 1,), dtype=torch.int64)
    i = b.call(aten.unsqueeze.default, i, 1, shape=(n - 1, 1), dtype=torch.int64)
    s = b.schedule(b.call(aten.mul.Tensor, d, i, shape=(n - 1, 8)))
    assert len(kernels(s)) == 1
    xs = torch.randn(5, 8)
    torch.testing.assert_close(run_schedule(s, [xs])[0], (xs[1:] - xs[:-1]) * torch.arange(4)[:, None])


def test_a_size_that_is_an_input_of_its_own():
    b = Builder(s0=6)
    k = b.scalar(n)
    x = b.input((4,))
    s = b.schedule(b.call(aten.mul.Tensor, x, k, shape=(4,)))
    assert kernels(s)[0].sizes
    xs = torch.randn(4)
    torch.testing.assert_close(run_schedule(s, [7, xs])[0], xs * 7)


def test_a_float_input_is_a_parameter_of_the_kernel():
    b = Builder()
    x, p = b.input((4,), torch.bfloat16), b.scalar(0.5)
    s = b.schedule(b.call(aten.mul.Tensor, x, p, shape=(4,), dtype=torch.bfloat16))
    assert kernels(s)[0].params
    xs = torch.randn(4).bfloat16()
    torch.testing.assert_close(run_schedule(s, [xs, 0.25])[0], xs * 0.25)
