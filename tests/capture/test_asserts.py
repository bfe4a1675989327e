"""Assertions on tensors: checked when the graph runs, with the program's own error. (PYTEST_DONT_REWRITE: the
statements below stay as they are.)
"""

from __future__ import annotations

import re

import pytest
import torch

import tcompile
from tcompile.compiler.report.builder import record

X = torch.arange(6.0).reshape(2, 3) / 5


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_assertions_on_tensors_are_checked_by_the_graph(backend):
    done = []

    def fn(x):
        assert x.sum() > 0, f"sum of {x.shape[0]} rows"
        assert not x.isnan().any()
        done.append(1)
        y = x * 2
        assert y[0, 0]
        return y

    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)
    for x in (X + 1, X + 2):
        torch.testing.assert_close(compiled(x), x * 2)
    for x, text, steps in ((-X - 1, "sum of 2 rows", 0), (X * float("nan") + 1, "", 0), (X, "", 1)):
        before = len(done)
        with pytest.raises(AssertionError) as got:
            compiled(x)
        assert (str(got.value), len(done) - before) == (text, steps) or "nan" in str(x)
        with pytest.raises(AssertionError):
            fn(x)
    torch.testing.assert_close(compiled(X + 1), (X + 1) * 2)


def _if_raises(x):
    if x * 2 > 0:
        raise ValueError("positive")
    return x + 1


def _unless_raises(x):
    if x * 2 > 0:
        return x + 1
    raise ValueError("not positive")


def _asserts(x):
    assert x * 2 > 0, "not positive"
    return x + 1


def _branches(x):
    if not x * 2 > 0:
        x = x - 1
    return x + 1


def _loops(x):
    while x < 4:
        x = x + 2
    return x


@pytest.mark.parametrize("fn", [_if_raises, _unless_raises, _asserts, _branches, _loops])
@pytest.mark.parametrize("x", [torch.ones(2), torch.ones(0), torch.ones(1), -torch.ones(1, 1), torch.tensor(0.5)])
def test_a_branch_asks_the_tensor_itself(fn, x):
    """What the graph cannot decide the branch's own instruction asks: no size but one element has an answer. (CPython
    3.13 takes an unasked tensor for a bool, and went either way.)"""
    want = error = None
    try:
        want = fn(x)
    except (RuntimeError, ValueError, AssertionError) as e:
        error = e
    compiled = tcompile.compile(fn, backend="eager")
    for _ in range(2):
        if error is None:
            torch.testing.assert_close(compiled(x), want)
        else:
            with pytest.raises(type(error), match=re.escape(str(error))):
                compiled(x)


def test_assertion_inside_try_reaches_its_handler():
    def fn(x):
        try:
            assert x.max() < 1, "large"
            return x + 1
        except AssertionError as error:
            return x - len(str(error))

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for x in (X / 10, X + 5, X / 10):
        torch.testing.assert_close(compiled(x), fn(x))


@pytest.mark.parametrize(
    "x,limit",
    [
        (torch.tensor([1, 4]), 5),
        (torch.tensor([1, 4]), 3),
        (torch.tensor([True, False]), 0),
        (torch.tensor([True]), 1),
        (torch.tensor([0.1]), 0.1),
        (torch.tensor([0.1], dtype=torch.float64), 0.1),
        (torch.tensor([2**24 + 1]), 2**24),
        (torch.tensor([float("nan")]), 1),
        (torch.tensor([3], dtype=torch.uint8), 255),
    ],
)
def test_numbers_that_an_assertion_reads(x, limit):
    def fn(x, y, limit=limit):
        assert x.max().item() <= limit, "too long"
        return y + x.shape[0]

    def outcome(fn):
        try:
            return fn(x, X).tolist()
        except AssertionError as error:
            return str(error)

    compiled = tcompile.compile(fn, backend="eager", fullgraph=True)
    assert outcome(compiled) == outcome(compiled) == outcome(fn)


def test_sizes_in_assertions_on_numbers():
    def fn(lengths, x):
        rows, n = x.shape
        assert lengths.max().item() <= n
        return x * lengths[:, None]

    compiled = tcompile.compile(fn, backend="eager", fullgraph=True)
    for n in (4, 5, 6, 7):
        lengths, x = torch.tensor([1, n]), torch.randn(2, n)
        torch.testing.assert_close(compiled(lengths, x), fn(lengths, x))
        with pytest.raises(AssertionError):
            compiled(lengths + 1, x)


def test_a_number_that_is_returned_at_once():
    fn = torch.Tensor.item
    compiled = tcompile.compile(lambda x: x.item(), backend="eager")
    assert compiled(X[0, 1]) == fn(X[0, 1]) == tcompile.compile(lambda x: fn(x), backend="eager")(X[0, 1])


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_a_branch_that_only_raises_is_an_assertion(backend):
    def checked(x, low):
        if torch.isnan(x).any():
            raise ValueError(f"nan in {x.shape[0]} of {type(x).__name__}")
        if not (x > low).all():
            raise RuntimeError("too small, " + ("all of them" if x.numel() == 1 else "some")) from KeyError("x")
        if x.max() < 100:
            y = x * 2
        else:
            raise IndexError(x.max().item())
        if x.min().item() == 7:
            raise AttributeError("seven")
        return y

    def outcome(fn, *args):
        try:
            return fn(*args).tolist()
        except Exception as error:
            return type(error), str(error), type(error.__cause__)

    compiled = tcompile.compile(checked, fullgraph=True, backend=backend)
    for x, low in ((X, -1), (X * float("nan"), -1), (X, 5), (X + 200, -1), (X * 0 + 7, -1), (X + 1, -1)):
        assert outcome(compiled, x, low) == outcome(checked, x, low)


def test_a_branch_that_may_raise_is_none():
    def fn(x, strict):
        if x.sum() < 0:
            if strict:
                raise ValueError("negative")
            return -x
        return x

    compiled = tcompile.compile(fn, backend="eager")
    for x, strict in ((X, True), (-X, False), (X, False)):
        torch.testing.assert_close(compiled(x, strict), fn(x, strict))
    with pytest.raises(ValueError, match="negative"):
        compiled(-X, True)


def test_distributions_check_their_arguments(monkeypatch):
    # stock torch.compile switches it off for the process
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def fn(mean, scale, x):
        return torch.distributions.Independent(torch.distributions.Normal(mean, scale), 1).log_prob(x)

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for scale in (X + 1, X + 2):
        torch.testing.assert_close(compiled(X, scale, X), fn(X, scale, X))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(X, X - 1, X)


def test_a_check_of_values_is_left_to_torch_by_choice():
    """The remedy for an assertion that breaks a graph is no fallback of lowering."""

    def fn(x):
        torch._assert_async((x > 0).all(), "not positive")
        return x + 1

    with record() as builder:
        tcompile.compile(fn, fullgraph=True)(X + 1)
    report = builder.report()
    assert [(e.op, e.reason) for e in report.externs] == [("aten._assert_async.msg", "check of values")]
    assert not [f for f in report.fallbacks if f.reason.startswith("eager kernel")]
