"""x[..., n, ...] with an integer that varies: one entry for every n, eager's results and errors."""

from __future__ import annotations

import pytest
import torch

import tcompile


def column(x, n):
    return x[:, n] * 2


def row(x, n):
    return x[n] * n


def from_behind(x, n):
    return x[:, n : n + 1] * x[:, -n]


def between_tensors(x, n):
    i = torch.tensor([0, 2, 1])
    return x[i, n], x[None, n, [0, 2], None], x[i, None, n], x[..., n, :2]


def written(x, n):
    y, i = x.clone(), torch.tensor([0, 2, 1])
    y[i, n] = x[i, n] * 2
    y[n, i] = 7
    y[n] += 1
    y[..., n] *= 2
    y[n, n] = n
    return y


def key_value_cache(x, n):
    cache = torch.zeros(2, 12, 3)
    cache[:, n] = x[:2, :3]
    return cache[:, : n + 1].sum(1)


X = torch.randn(9, 9)


def outcome(fn, *args):
    try:
        return fn(*args)
    except (IndexError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("fn", [column, row, from_behind, between_tensors, written, key_value_cache])
@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_one_entry_serves_every_index(fn, backend):
    with tcompile.record() as recorded:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for n in (2, 3, 4, 5, 7, 6):
            torch.testing.assert_close(compiled(X, n), fn(X, n))
    assert len(recorded.report().entries) == 2  # the first index alone, and one that varies


@pytest.mark.parametrize("fn", [column, row, from_behind, between_tensors, written, key_value_cache])
def test_the_ends_and_what_is_beyond_them(fn):
    compiled = tcompile.compile(fn, backend="eager")
    for n in (4, 6, 8, 0, 1, -1, -9, 9, -10, 12):
        expected, got = outcome(fn, X, n), outcome(compiled, X, n)
        if isinstance(expected, str):
            assert got == expected
        else:
            torch.testing.assert_close(got, expected)


def test_comparisons_given_to_torch_functions():
    def fn(x, limit):
        return torch.full((x.shape[0],), x.shape[1] >= limit, dtype=torch.bool) | (x[:, 0] > 0)

    compiled = tcompile.compile(fn, fullgraph=True)
    for columns in (5, 6, 7, 2, 8, 3):
        torch.testing.assert_close(compiled(X[:, :columns], 4), fn(X[:, :columns], 4))
