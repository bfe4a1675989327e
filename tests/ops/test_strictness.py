"""Bad input raises what eager raises, word for word; odd but good input gives what eager gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

from .test_ordered import same

BAD = [
    (lambda x: F.avg_pool2d(x, 9), torch.randn(1, 2, 4, 4)),
    (lambda x: F.pad(x, (5, 1), mode="reflect"), torch.randn(1, 2, 4)),
    (lambda x: F.interpolate(x, size=(0, 3)), torch.randn(1, 2, 4, 4)),
    (lambda x: F.unfold(x, 9), torch.randn(1, 2, 4, 4)),
    (lambda x: x.cumsum(5), torch.randn(3)),
    (lambda x: x.scatter(0, torch.zeros(2, 2, dtype=torch.int64), x), torch.randn(3)),
    (lambda x: x.scatter_add(0, torch.zeros(3, dtype=torch.int64), x.double()), torch.randn(3)),
    (lambda x: x.index_add(0, torch.zeros(2, dtype=torch.int64), x), torch.randn(3)),
    (lambda x: x.index_copy(0, torch.zeros(3, dtype=torch.int32), x), torch.randn(3)),
    (lambda x: torch.bucketize(x, x[None]), torch.randn(3)),
    (lambda x: x.put(torch.tensor([9]), x[:1]), torch.randn(3)),
    (lambda x: x.masked_scatter(x > -9, x[:1]), torch.randn(3)),
    (lambda x: F.max_pool2d(x, 2, padding=3), torch.randn(1, 2, 4, 4)),
    (lambda x: F.adaptive_avg_pool2d(x, (-1, 2)), torch.randn(1, 2, 4, 4)),
    (lambda x: torch.renorm(x, -1, 0, 1), torch.randn(3, 3)),
    (lambda x: torch.rot90(x, 1, [0, 0]), torch.randn(3, 3)),
    (lambda x: torch.polygamma(-1, x), torch.randn(3)),
    (lambda x: x.scatter_reduce(0, torch.zeros(3, dtype=torch.int64), x, "foo"), torch.randn(3)),
    (lambda x: F.fold(x, (4, 4), (3, 3)), torch.randn(1, 9, 5)),
    (lambda x: torch.cdist(x, x[:, :1]), torch.randn(3, 3)),
    (lambda x: x // 0, torch.arange(3)),
    (lambda x: x % torch.zeros(3, dtype=torch.int64), torch.arange(3)),
    (lambda x: torch.gcd(x, x), torch.randn(3)),
    (lambda x: x.pow(-1), torch.arange(3)),
    (lambda x: F.max_unpool2d(x, torch.full((1, 1, 2, 2), 99), 2), torch.randn(1, 1, 2, 2)),
    (lambda x: F.embedding(torch.tensor([7]), x), torch.randn(3, 3)),
    (lambda x: torch.linalg.vector_norm(x, float("inf")), torch.randn(0, 3)),
    (lambda x: torch.linalg.vector_norm(x, -1, dim=1), torch.randn(3, 0)),
    (torch.trace, torch.tensor(3.0)),
    (lambda x: x.roll(2, -1), torch.tensor(3.0)),
    (lambda x: x.roll((1, 2), (0,)), torch.randn(3, 3)),
    (lambda x: x.index_select(-1, torch.tensor([0, 0])), torch.tensor(3.0)),
    (lambda x: F.layer_norm(x, []), torch.tensor(3.0)),
    # a dimension of size 0 has no position that could be read before it is found to be wrong
    (lambda x: x.index_select(-1, torch.tensor([1, 0])), torch.randn(4, 0)),
    (lambda x: x.gather(1, torch.zeros(4, 2, dtype=torch.int64)), torch.randn(4, 0)),
    (lambda x: x.take(torch.tensor([0])), torch.randn(4, 0)),
    (lambda x: x.put(torch.tensor([1, 0]), torch.ones(2)), torch.randn(4, 0)),
    (lambda x: x.scatter_add(1, torch.zeros(4, 2, dtype=torch.int64), torch.ones(4, 2)), torch.randn(4, 0)),
    (lambda x: x.index_put((torch.tensor([0]),), x[:1]), torch.randn(0, 2)),
    (lambda x: F.embedding(torch.tensor([0]), x), torch.randn(0, 3)),
]


@pytest.mark.parametrize("case", range(len(BAD)))
@pytest.mark.parametrize("dynamic", [False, True])
def test_bad_input(case, dynamic):
    f, x = BAD[case]
    with pytest.raises(Exception) as want:
        f(x.clone())
    with pytest.raises(type(want.value)) as got:
        tcompile.compile(f, dynamic=dynamic)(x.clone())
    assert str(got.value) == str(want.value)


ODD = [
    (lambda x: F.avg_pool2d(x, 2), torch.randn(0, 3, 4, 4)),
    (lambda x: F.max_pool2d(x, 2), torch.randn(0, 3, 4, 4)),
    (lambda x: F.interpolate(x, scale_factor=2), torch.randn(0, 3, 4, 4)),
    (lambda x: F.pad(x, (1, 1), mode="reflect"), torch.randn(0, 3, 4)),
    (lambda x: x.cumsum(1), torch.randn(3, 0)),
    (lambda x: F.adaptive_avg_pool2d(x, 3), torch.randn(2, 3, 3, 3)),
    (lambda x: F.avg_pool2d(x, 2), torch.randn(3, 4, 4)),
    (lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True), torch.full((1, 1, 4, 4), float("-inf"))),
    (
        lambda x: F.max_pool2d(x, 3, 2, 1, 2, True, True),
        torch.where(torch.rand(2, 2, 11, 13) > 0.8, float("nan"), torch.randn(2, 2, 11, 13)),
    ),
    (lambda x: F.max_pool2d(x, 2, return_indices=True), torch.randint(-5, 5, (1, 2, 6, 6))),
    (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), torch.randn(2, 3, 9)),
    (lambda x: F.max_pool3d(x, 2, 1, 1, return_indices=True), torch.randn(1, 2, 4, 5, 6)),
    (
        lambda x: F.max_pool2d(x, (2, 3), return_indices=True),
        torch.randn(2, 3, 8, 9).to(memory_format=torch.channels_last),
    ),
    (lambda x: x.cummax(0), torch.tensor([1.0, float("nan"), 2.0, float("nan")])),
    (lambda x: torch.erfinv(x), torch.tensor([1.0, -1, 2, 0.0, -0.0, float("nan")])),
    (lambda x: x.cumsum(0), torch.tensor([127, 1, 1], dtype=torch.int8)),
    (lambda x: x.cumprod(0), torch.tensor([2.0**100] * 4)),
    (lambda x: x // torch.tensor(3, dtype=torch.uint8), torch.tensor([255, 7], dtype=torch.uint8)),
    (
        lambda x: x.index_put((torch.tensor([0, 0]),), torch.ones(2, dtype=torch.bool), accumulate=True),
        torch.tensor([False, True]),
    ),
    (lambda x: x[:, torch.zeros(0, dtype=torch.int64)], torch.randn(4, 0)),
    (lambda x: torch.isin(x, x.reshape(-1)[:2]), torch.randn(6, 4).mT),
]


@pytest.mark.parametrize("case", range(len(ODD)))
def test_odd_input(case):
    same(*ODD[case])


def test_too_many_indices():
    def f(x, i):
        return torch.ops.aten.index_put.default(x, [i, i], x)

    x, i = torch.randn(3), torch.tensor([0, 1, 2])
    with pytest.raises(IndexError, match="too many indices"):
        f(x, i)
    with pytest.raises(IndexError, match="too many indices"):
        tcompile.compile(f)(x, i)
