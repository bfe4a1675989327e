"""Programs that ask for a frame and look at its variables: their own, and their callers'. What tracebacks say."""

from __future__ import annotations

import inspect
import sys
import traceback

import pytest
import torch

import tcompile


def variables_later(x):
    frame = sys._getframe()
    a = x + 1
    return a, sorted(frame.f_locals)


def a_variable_that_changes(x):
    a = 1
    frame = inspect.currentframe()
    a = 2
    return x + a, frame.f_locals["a"], frame.f_lineno - frame.f_code.co_firstlineno


def _callers_variable():
    return sys._getframe(1).f_locals["a"]


def asked_by_a_callee(x):
    a = x + 1
    r = _callers_variable()
    return r * a


def further_in(x):
    b = x * 2
    return asked_by_a_callee(b) + b


def written(x):  # (takes effect from Python 3.13 on)
    a = 1
    sys._getframe().f_locals["a"] = 5
    return x * a


def _writes():
    variables = sys._getframe(1).f_locals
    variables["a"] = variables["a"] * 10


def written_by_a_callee(x):
    a = x + 1
    _writes()
    return a * 2


def only_the_name(x):
    y = x + 1
    return y * 2, sys._getframe().f_code.co_name


LOOKS = [
    variables_later,
    a_variable_that_changes,
    asked_by_a_callee,
    further_in,
    written,
    written_by_a_callee,
    only_the_name,
]


@pytest.mark.parametrize("f", LOOKS, ids=lambda f: f.__name__)
def test_as_in_eager(f):
    x = torch.ones(2)
    compiled = tcompile.compile(f, backend="eager")
    for _ in range(2):
        assert str(compiled(x)) == str(f(x))


def test_a_traceback_has_its_columns():
    def f(x):
        x = x + 1
        try:
            x = (x
                 .nothing_of_the_kind
                 + 1)  # fmt: skip
        except AttributeError as e:
            return x, e
        return x, None

    x = torch.ones(2)
    got, want = (
        traceback.extract_tb(g(x)[1].__traceback__)[-1]
        for g in (tcompile.compile(f, backend="eager", fullgraph=True), f)
    )
    assert (got.lineno, got.end_lineno, got.colno, got.end_colno) == (
        want.lineno,
        want.end_lineno,
        want.colno,
        want.end_colno,
    )
    assert got.colno is not None
