"""Products of many batches by one matrix: one product over the rows as they lie."""

from __future__ import annotations

from typing import Callable

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

from ..codegen.triton.as_gpu import check_as_gpu

WEIGHT, BIAS = torch.randn(24, 16), torch.randn(24)


def operators(f: Callable, *args: torch.Tensor, dynamic: bool = False) -> list[str]:
    with torch.no_grad(), tcompile.record() as r:
        got = tcompile.compile(f, fullgraph=True, dynamic=dynamic)(*args)
        want = f(*args)
    for g, w in zip(*((o if isinstance(o, tuple) else (o,)) for o in (got, want))):
        torch.testing.assert_close(g, w)
        assert g.stride() == w.stride()
    return [n.op for n in r.report().graphs[0].lowered.nodes()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.linear(x.transpose(0, 1), WEIGHT, BIAS) * 2,
        lambda x: F.linear(x.transpose(0, 1), WEIGHT),
        lambda x: x.transpose(0, 1) @ WEIGHT.t(),
        lambda x: F.linear(x.transpose(0, 1), WEIGHT).transpose(0, 1),
        lambda x: (F.linear(x.transpose(0, 1), WEIGHT), F.linear(x.exp().transpose(0, 1), WEIGHT).view(-1, 8)),
        lambda x: F.linear(x.flip(0).transpose(0, 1)[1:], WEIGHT, BIAS),
    ],
)
def test_swapped_rows_are_one_product(f, dynamic) -> None:
    ops = operators(f, torch.randn(3, 10, 16), dynamic=dynamic)
    assert "aten.bmm.default" not in ops
    assert "aten.mm.default" in ops or "aten.addmm.default" in ops


def test_rows_in_another_order_of_four() -> None:
    ops = operators(lambda x: F.linear(x.permute(0, 2, 3, 1), WEIGHT, BIAS), torch.randn(2, 16, 5, 7))
    assert "aten.bmm.default" not in ops


def test_many_rows_that_would_be_copied_stay_a_batch() -> None:
    x, w = torch.randn(4, 16, 128), torch.randn(8, 16)
    assert "aten.bmm.default" in operators(lambda x: x.transpose(1, 2) @ w.t(), x)


@pytest.mark.parametrize("shape", [(1, 5, 16), (5, 1, 16), (1, 1, 16), (0, 5, 16), (5, 0, 16)])
def test_sizes_of_one_and_none(shape) -> None:
    operators(lambda x: F.linear(x.transpose(0, 1), WEIGHT, BIAS).relu(), torch.randn(shape))


def test_batches_of_different_matrices_are_left() -> None:
    w = torch.randn(10, 16, 24)
    assert "aten.bmm.default" in operators(lambda x: x.transpose(0, 1) @ w, torch.randn(3, 10, 16))


def test_attention_modules_in_either_order() -> None:
    for first in (False, True):
        m = nn.MultiheadAttention(16, 4, batch_first=first).eval()
        x = torch.randn(3, 10, 16)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                got = tcompile.compile(lambda x: m(x, x, x)[0], fullgraph=True)(x)
                torch.testing.assert_close(got, m(x, x, x)[0])


def test_on_a_gpu() -> None:
    def f(x, w, b):
        return F.linear(x.transpose(0, 1), w, b) * 2

    check_as_gpu(f, torch.randn(3, 10, 16), WEIGHT, BIAS, rtol=1e-4, atol=1e-4)
