"""Eager raises whether or not anybody reads what an operator would have given, and whichever part of it is read: so
does compiled code.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import tensor as T

import tcompile

GOOD, BAD = T([0, 1, 1]), T([0, 1, 9])

OPERATORS = {
    "index": lambda x, i: x[i],
    "index_second": lambda x, i: x[:, i],
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "index_select_negative": lambda x, i: torch.index_select(x, 0, 1 - i),
    "gather": lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 3)),
    "take": lambda x, i: torch.take(x, i + 6),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_negative": lambda x, i: F.embedding(1 - i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "one_hot": lambda x, i: F.one_hot(i, 5),
    "one_hot_negative": lambda x, i: F.one_hot(1 - i, 5),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(3, 1)),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(3, 3)),
    "index_add_negative": lambda x, i: x.index_add(0, 1 - i, torch.ones(3, 3)),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(3, 3)),
    "index_put": lambda x, i: x.index_put((i,), T(1.0)),
    "setitem": lambda x, i: x.clone().__setitem__(i, 1.0),
    "nll_loss": lambda x, i: F.nll_loss(x[:3], i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:3], i, label_smoothing=0.1),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x + i.max() * 0.1, x),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x[:3], i),
    "cholesky": lambda x, i: torch.linalg.cholesky(torch.eye(3) * (5 - i)),
    "solve": lambda x, i: torch.linalg.solve(torch.diag((i - 9).float()), x[:3]),
    "multinomial": lambda x, i: torch.multinomial(x[0] * (2 - i[2]), 1),
    "floor_divide": lambda x, i: 5 // (i - 9),
    "remainder": lambda x, i: 5 % (i - 9),
    "max_unpool": lambda x, i: F.max_unpool1d(x[None, :1, :3], i[None, None], 2),
    "assert_async": lambda x, i: torch._assert_async(i.max() < 5),
}
PARTS = {
    "slice": lambda x, i: x[i][:2] + 1,
    "scaled": lambda x, i: (x[i] * 2)[0] + 1,
    "index_of_index": lambda x, i: x[i][T([0, 1])],
    "cut": lambda x, i: F.pad(x[i], (0, 0, 0, -1)),
    "padded": lambda x, i: F.pad(x[i], (1, 0, 0, 1)),
    "where": lambda x, i: torch.where((i < 5)[:, None], x[i], 0),
    "cat": lambda x, i: torch.cat([x[i], x])[:2],
    "sum": lambda x, i: x[i][:1].sum(),
    "nothing": lambda x, i: x[i][None].expand(4, 3, 3)[:0] + 1,
    "shape": lambda x, i: x + x[i].shape[0],
    "like": lambda x, i: x[i].new_zeros(3),
    "chain": lambda x, i: x[x.long()[i, 0]][:1] + 1,
    "stack": lambda x, i: torch.stack([x[i][k] for k in range(2)]),
    "overwritten": lambda x, i: x[i].fill_(2.0).mul_(2),
    "copied_over": lambda x, i: x[i].copy_(x[:3]),
    "gather": lambda x, i: torch.gather(x, 0, i[:, None].expand(-1, 3))[:2] * 2,
    "one_hot": lambda x, i: F.one_hot(i, 5).float()[:2] @ x,
    "loss": lambda x, i: F.nll_loss(x[:3], i, reduction="none")[:2],
    "transposed": lambda x, i: x[i].t().contiguous() + 1,
}


def outcome(f, *args):
    torch.manual_seed(0)
    try:
        return f(*args)
    except Exception as e:
        return type(e), str(e)


def check(f, backend, grad=False):
    c = tcompile.compile(f, backend=backend)
    kinds = []
    for i in (GOOD, BAD, GOOD):
        x = torch.linspace(0.0, 0.9, 15).reshape(5, 3).requires_grad_(grad)
        want, got = outcome(f, x, i), outcome(c, x, i)
        kinds.append(isinstance(want, tuple) and isinstance(want[0], type))
        if kinds[-1]:
            assert got == want
        else:
            torch.testing.assert_close(got, want)
    assert kinds == [False, True, False]


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("name", OPERATORS)
def test_unread_result_raises(name, backend):
    operator = OPERATORS[name]

    def f(x, i):
        operator(x, i)
        return x + 1

    check(f, backend)


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", PARTS)
def test_part_that_is_not_read_raises(name, grad):
    operator = PARTS[name]
    check(lambda x, i: (operator(x, i), x + 1), "tcompile", grad)


@pytest.mark.parametrize(
    "name",
    [
        "index_select_negative",
        "embedding_negative",
        "one_hot",
        "one_hot_negative",
        "index_add_negative",
        "binary_cross_entropy",
        "setitem",
    ],
)
def test_read_result_raises(name):
    operator = OPERATORS[name]
    check(lambda x, i: (operator(x, i), x + 1)[1], "tcompile")
    if name != "setitem":
        check(lambda x, i: (operator(x, i), x + 1), "tcompile")


def test_what_cannot_fail_is_dropped():
    """Division by a number, powers, norms: nothing of them is left where nobody reads them."""

    def f(x):
        n = torch.arange(3)
        n // 2, n % 3, n**2, x / x, torch.linalg.vector_norm(x), x.float() % x
        return x + 1

    report = tcompile.explain(f)(torch.ones(3))
    assert str(report.graphs[0].aten).count("aten.") == 1
