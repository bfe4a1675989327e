"""Iterators from outside: what they give, how far they are advanced, and how often that is compiled."""

from __future__ import annotations

import itertools

import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3) / 5
OF_TENSORS = [lambda: iter([X, X + 1, X + 2]), lambda: iter((X, X * 2)), lambda: iter([X]), lambda: iter([])]
OF_NUMBERS = [lambda: iter(range(5)), lambda: iter([1, 2, 3, 4]), lambda: iter(range(2, 9, 3))]
OF_C = [
    lambda: (i for i in range(4)),
    lambda: map(abs, [1, 2]),
    lambda: iter({1: 2}),
    lambda: itertools.count(3),
    lambda: reversed([1, 2, 3]),
    lambda: zip([1], [2]),
]


def outcome(fn, it):
    try:
        return fn(X, it)
    except StopIteration:
        return "stop"


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


def add_all(x, it):
    for y in it:
        x = x + y
    return x


def add_some(x, it):
    for y in it:
        x = x + y
        if len(x) == 2:
            break
    return x


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize(
    "fn, makers",
    [
        (lambda x, it: x + next(it), OF_TENSORS + OF_NUMBERS),
        (lambda x, it: (x, next(it, 0), next(it, None)), OF_TENSORS + OF_NUMBERS[:1]),
        (add_all, OF_TENSORS[:2] + OF_NUMBERS[:2]),
        (add_some, OF_TENSORS + OF_NUMBERS[:1]),
        (lambda x, it: (list(it), x + 1), OF_TENSORS),
        (lambda x, it: ([a * b for a, b in zip([x, x], it)], list(it)), OF_TENSORS),
        (lambda x, it: (x + 1, list(zip([1, 2], it))), OF_TENSORS),
        (lambda x, it: (iter(it) is it, x + 1, type(it).__name__, isinstance(it, list)), OF_TENSORS),
        (lambda x, it: (x + 1, next(it, "")), [lambda: iter("abc"), lambda: iter(b"abc")]),
        (lambda x, it: (x + 1, next(it, 3), [v for _, v in zip(range(2), it)]), OF_C),
    ],
    ids=range(10),
)
def test_results_and_places(fn, makers, fullgraph):
    for make in makers:
        compiled = tcompile.compile(fn, fullgraph=fullgraph, backend="eager")
        want, got = make(), make()
        for _ in range(3):
            same(outcome(fn, want), outcome(compiled, got))
        same(list(itertools.islice(want, 5)), list(itertools.islice(got, 5)))


def test_going_on_through_one_iterator_compiles_once():
    captured = []

    def backend(gm, inputs):
        captured.append(gm)
        return gm.forward

    compiled = tcompile.compile(lambda x, it: x + next(it), fullgraph=True, backend=backend)
    tensors = [X + i for i in range(20)]
    it = iter(tensors)
    for t in tensors:
        same(compiled(X, it), X + t)
    assert len(captured) == 1
    it = iter(range(20))
    for i in range(20):
        same(compiled(X, it), X + i)
    assert len(captured) <= 4


def test_one_iterator_by_two_names():
    def fn(x, a, b):
        return x + next(a) * 10 + next(b)

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for _ in range(2):
        it = iter([1, 2, 3, 4])
        same(compiled(X, it, it), X + 12)
        assert list(it) == [3, 4]
        same(compiled(X, iter([1, 2]), iter([1, 2])), X + 11)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_is_gone_through_changes(fullgraph):
    def fn(x, parts, it):
        a = next(it)
        parts[1] = x * 5
        parts.append(x)
        return a + next(it), list(it)

    compiled = tcompile.compile(fn, fullgraph=fullgraph, backend="eager")
    for _ in range(2):
        other, others = [X, X], [X, X]
        same(fn(X, other, iter([X, X + 1])), compiled(X, others, iter([X, X + 1])))
        want, got = [X, X + 1], [X, X + 1]
        same(fn(X, want, iter(want)), compiled(X, got, iter(got)))
        same([want, other], [got, others])


@pytest.mark.parametrize(
    "first, then", [(lambda: iter([X, X + 1]), lambda: (t for t in (X, X + 2))), (lambda: iter([X]), lambda: [X, X])]
)
def test_another_kind_of_iterator_than_the_one_before(first, then):
    """A failed guard was looked at to learn what varies, and asked a generator what only iterators of lists tell."""
    compiled = tcompile.compile(lambda x, it: [x * i + t for i, t in enumerate(it)], backend="eager")
    for make in (first, then, first):
        same(compiled(X, make()), [X * i + t for i, t in enumerate(make())])
