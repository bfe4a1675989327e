"""Python's max(), min() and `in` where tensors decide: one graph where that is exact, parted where it is not, never
another object than eager's.
"""

from __future__ import annotations

import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3) / 5
PAIRS = [(X, X + 1), (X - 1, X), (-X, -X - 1), (X * float("nan"), X), (X, X * float("nan")), (X, X)]


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b, equal_nan=True)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b or a != a


def check(fn, graphs=None, **options):
    """Under fullgraph, for each pair: results and arguments are eager's. `graphs`: how many there are."""
    made = []

    def backend(gm, inputs):
        made.append(gm)
        return gm.forward

    compiled = tcompile.compile(fn, fullgraph=True, backend=backend, **options)
    for x, y in PAIRS:
        want, got = [x.clone(), y.clone()], [x.clone(), y.clone()]
        same(fn(*want), compiled(*got))
        same(want, got)
    assert graphs is None or len(made) == graphs


def written_to(x, y):
    a, b = x.sum(), y.sum()
    m = max(a, b)
    m.add_(1)
    return a, b, m


def written_behind(x, y):
    a, b = x.sum(), y.sum()
    m = max(a, b)
    a.add_(1)
    return a, b, m


def inputs_written_to(x, y):
    m = max([x, y], key=lambda t: t.sum())
    m.mul_(2)
    return m, m is x, m is y


def given_as_out(x, y):
    m = max([x, y], key=torch.sum)
    torch.add(x, 1, out=m)
    return m, x, y


def step_by_step(x, y):
    best = x.sum()
    for i in range(3):
        best = max(best, y[0, i])
    return best, best * x


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: max(x.sum(), 0),
        lambda x, y: min(x.sum(), 0.5, y.sum()),
        lambda x, y: max(x.sum(), y.sum()) * x,
        lambda x, y: max(x.sum(), 0) * x,
        lambda x, y: max(map(lambda t: t.mean(), [x, y])),
        lambda x, y: min(t.mean() for t in (x, y, x - y)),
        lambda x, y: [max(x.sum(), i) for i in range(3)],
        lambda x, y: max(x.reshape(-1)[:1], y.reshape(-1)[:1]),
        lambda x, y: (max([], default=x), max(map(abs, [1, -2])), x + 1),
        lambda x, y: max([x, y], key=lambda t: t.sum()),
        lambda x, y: max(range(3), key=lambda i: x[0, i]),
        lambda x, y: (min([0.1, 0.2], key=lambda v: (x * v).sum()), x + 1),
        lambda x, y: max(x.long().sum(), 2) + x,
        lambda x, y: max(x.sum(), y.sum()).to(torch.float64) + x,
        step_by_step,
        lambda x, y: x + 1 if 1 in [x.sum(), y.sum(), 1] else x - 1,
        lambda x, y: (x.sum() in [y.sum(), 3], 3 not in [x.sum(), y.sum()]),
    ],
)
def test_one_graph(fn):
    check(fn, graphs=1)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: max(x.sum(), 0) * 2,
        lambda x, y: max(0, x.sum()) + y.long(),
        lambda x, y: isinstance(max(0, x.sum()), torch.Tensor),
        lambda x, y: max(x.long().sum(), 2.5),
        lambda x, y: max(["a", "b"], key=lambda name: {"a": x, "b": y}[name].sum()),
        lambda x, y: max([x, y], key=torch.sum) is x,
        lambda x, y: max([x, y], key=torch.sum).t(),
        written_to,
        written_behind,
        inputs_written_to,
        given_as_out,
    ],
)
def test_parted_where_the_object_matters(fn):
    check(fn)


@pytest.mark.parametrize("fn", [lambda x, y: max(x.sum(), x.shape[0]), lambda x, y: min(x.shape[1], x.sum()) * x])
def test_sizes_that_vary(fn):
    check(fn, dynamic=True)


def test_branches_on_what_is_unknown_still_break():
    def fn(x, y):
        return x + 1 if 3 in [x.sum(), y.sum()] else x - 1

    with pytest.raises(tcompile.FullGraphError):
        tcompile.compile(fn, fullgraph=True, backend="eager")(X, X)
    compiled = tcompile.compile(fn, backend="eager")
    for x, y in (X, X), (X, torch.ones(3)):
        same(fn(x, y), compiled(x, y))


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_gradients_go_to_what_was_chosen(backend):
    def fn(x, y):
        return max(x.sum(), y.sum() * 2)

    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)
    for shift in (-2.0, 2.0):
        x, y = X.clone().requires_grad_(), (X + shift).requires_grad_()
        chosen, other = (x, y) if shift < 0 else (y, x)
        compiled(x, y).backward()
        torch.testing.assert_close(chosen.grad, torch.full((2, 3), 1.0 if chosen is x else 2.0))
        assert other.grad is None or not other.grad.any()
