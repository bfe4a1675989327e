"""Memory of large results is used again only where nothing can see it any more."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Callable, Iterator

import pytest
import torch

import tcompile
from tcompile.compiler.runtime import output_pool

N = output_pool.LEAST_BYTES // 4
BYTES = 4 * N


@pytest.fixture
def f() -> Iterator[Callable]:
    output_pool.clear()
    yield tcompile.compile(lambda x: x * 2 + 1, fullgraph=True, dynamic=False)
    tcompile.reset()
    assert output_pool.held() == 0


def test_memory_is_used_again(f: Callable) -> None:
    x = torch.ones(N)
    y = f(x)
    at = y.data_ptr()
    assert output_pool.held() == 0
    del y
    assert output_pool.held() == BYTES
    y = f(x + 1)
    assert y.data_ptr() == at and y[0] == 5 and y[-1] == 5 and output_pool.held() == 0


@pytest.mark.parametrize(
    "keep",
    (
        lambda y: y[5:9],
        lambda y: y.view(2, -1)[1],
        lambda y: y.detach(),
        lambda y: y.numpy(),
        lambda y: y.untyped_storage(),
        lambda y: memoryview(y.numpy()),
        lambda y: torch.utils.dlpack.to_dlpack(y),
        lambda y: [y][0],
        lambda y: y.as_strided((3,), (2,)),
        lambda y: torch.nn.Parameter(y),
        lambda y: y.view(torch.int32),
        lambda y: y.storage(),
    ),
)
def test_an_alias_keeps_it(f: Callable, keep: Callable) -> None:
    x = torch.ones(N)
    y = f(x)
    at = y.data_ptr()
    alias = keep(y)
    del y
    gc.collect()
    assert f(x).data_ptr() != at
    del alias
    gc.collect()


def test_saved_tensors_keep_it(f: Callable) -> None:
    x, w = torch.ones(N), torch.ones(N, requires_grad=True)
    loss = (w * f(x)).sum()
    f(x + 100)
    loss.backward()
    assert w.grad is not None and bool((w.grad == 3).all())


def test_a_result_looks_like_eagers(f: Callable) -> None:
    x = torch.ones(N)
    for _ in range(3):
        y = f(x)
        assert y._version == 0 and y._base is None and y.is_leaf and not y.requires_grad and y.storage_offset() == 0
        assert y.untyped_storage().nbytes() == BYTES and y.untyped_storage().resizable() and y.is_contiguous()
        del y
    with torch.inference_mode():
        y = f(x)
        assert y.is_inference() and y[0] == 3
    z = copy.deepcopy(f(x))
    assert torch.equal(pickle.loads(pickle.dumps(z[:4].clone())), torch.full((4,), 3.0))


def test_storages_that_changed_are_let_go(f: Callable) -> None:
    x = torch.ones(N)
    y = f(x)
    y.resize_(2 * N)
    del y
    assert f(x).shape == (N,)
    y = f(x)
    y.share_memory_()
    at = y.data_ptr()
    del y
    y = f(x)
    assert y.data_ptr() != at and not y.is_shared()


def test_the_pool_is_bounded() -> None:
    output_pool.clear()
    limit = 2 * BYTES
    f = tcompile.compile(lambda x: x + 1, fullgraph=True, options={"output_pool_mb": limit >> 20})
    kept = [f(torch.ones(N)) for _ in range(5)]
    assert len({y.data_ptr() for y in kept}) == 5
    kept.clear()
    assert output_pool.held() <= limit
    g = tcompile.compile(lambda x: x + 1, fullgraph=True, options={"output_pool_mb": 0})
    before = output_pool.held()
    g(torch.ones(N))
    assert output_pool.held() == before
    tcompile.reset()


def test_several_results(f: Callable) -> None:
    g = tcompile.compile(lambda x: (x + 1, x * 3, x.sum()), fullgraph=True, dynamic=False)
    x = torch.ones(N)
    for _ in range(3):
        a, b, s = g(x)
        assert a.data_ptr() != b.data_ptr() and a[7] == 2 and b[7] == 3 and s == N
        del a, b
