"""The words for failures: expected, got, the place, and what to write instead."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
import torch.nn as nn
from tcompile.compiler.guards import Guard, compile_guards, explain_failure, read_state
from tcompile.compiler.guards import source as S
from tcompile.compiler.guards.explain import nearest_first
from tcompile.compiler.symbolic.expr import lt, symbol

from .specs import X, Y, func, spec_of


def explain(guards, *args):
    """Explain the failure that the program itself names."""
    index = compile_guards(guards, len(args)).check(func, args)
    assert index >= 0
    return explain_failure(guards[index], func, args, guards=guards)


TENSOR = torch.randn(4, 3)
CASES = [
    (torch.randn(8, 3), "shape[0]", 8, "dynamic=True"),
    (torch.randn(1, 3), "shape[0]", 1, "0 and 1"),
    (torch.randn(4), "ndim", 1, "reshape"),
    (torch.randn(3, 4).t(), "stride[0]", 1, "contiguous"),
    (torch.randn(4, 3).double(), "dtype", torch.float64, "torch.float32"),
    (torch.empty(4, 3, device="meta"), "device", torch.device("meta"), "cpu"),
    (torch.randn(4, 3, requires_grad=True), "requires_grad", True, "detach"),
    (nn.Parameter(torch.randn(4, 3)), "type", "Parameter", "one kind"),
    (None, "type", "NoneType", "one kind"),
    (torch._efficientzerotensor((4, 3)), "dispatch keys", None, "plain dense"),
    (torch.randn(4, 3).to_sparse(), "layout", None, "to_dense"),
]


@pytest.mark.parametrize("value, detail, got, advice", CASES, ids=[c[1] + str(i) for i, c in enumerate(CASES)])
def test_tensors(value, detail, got, advice):
    f = explain([Guard(X, "TENSOR", spec_of(TENSOR), "user.py", 7, "argument")], value)
    assert f.detail == detail and advice in f.suggestion and "`x`" in f.expected_text and "`x`" in f.got_text
    assert got is None or f.got == got
    assert (f.guard.file, f.guard.line) == ("user.py", 7)


def test_the_nearest_entry_tells_the_reason():
    """The one of which fewest guards fail, whichever they check first; of equals the one that takes more sizes."""
    s = symbol("s0")
    scale = Guard(Y, "EQUALS", 1.0)
    fixed = [scale, Guard(X, "TENSOR", spec_of(torch.randn(4, 3)))]
    any_scale = [Guard(Y, "FLOAT", ()), fixed[1]]
    any_rows = [any_scale[0], Guard(X, "TENSOR", spec_of(torch.randn(4, 3), shape=(s, 3)))]

    def told(x, *entries):
        programs = [compile_guards(guards, 2) for guards in entries]
        misses = [(SimpleNamespace(program=p), p.check(func, (x, 0.7))) for p in programs]
        entry, index = nearest_first(misses, func, (x, 0.7))[0]
        return explain_failure(entry.program.guards[index], func, (x, 0.7), guards=entry.program.guards)

    assert told(torch.randn(5, 3), fixed, any_scale).detail == "shape[0]"
    assert told(torch.randn(5, 3), any_scale, fixed).detail == "shape[0]"
    assert told(torch.randn(4, 3), fixed).guard is scale
    assert told(torch.randn(5, 8), any_scale, any_rows).detail == "shape[1]"
    beyond = [*any_rows, Guard(None, "PREDICATE", lt(s, 10))]
    assert told(torch.randn(4), beyond, fixed).detail == "ndim", "what a symbol would have told follows from its tensor"


def test_sizes_and_predicates():
    s = symbol("s0")
    guards = [Guard(X, "TENSOR", spec_of(torch.randn(4, 3), shape=(s, 3))), Guard(None, "PREDICATE", lt(s, 10))]
    f = explain(guards, torch.randn(12, 3))
    assert "s0 = 12" in f.got_text and f.got == "s0 = 12"
    f = explain(guards, torch.randn(1, 3))
    assert f.detail == "shape[0]" and "0 and 1" in f.suggestion
    twice = [Guard(X, "TENSOR", spec_of(torch.randn(4, 8), shape=(s, s * 2), stride=(s * 2, 1)))]
    f = explain(twice, torch.randn(4, 9))
    assert f.detail == "shape[1]" and f.got == 9
    f = explain([Guard(X, "INT_SYMBOL", s)], 1)
    assert f.got == 1 and "2 or more" in f.expected_text


@pytest.mark.parametrize(
    "guard, value, expected, got, advice",
    [
        (Guard(X, "EQUALS", 3), 4, "was 3", "is 4", "torch.tensor(x)"),
        (Guard(X, "EQUALS", 1.5), 2.5, "was 1.5", "is 2.5", "torch.tensor(x)"),
        (Guard(X, "EQUALS", "relu"), "gelu", "'relu'", "'gelu'", "constant"),
        (Guard(X, "TYPE", int), 2.0, "was an int", "is a float", "one type"),
        (Guard(X, "ID", True), False, "was True", "is False", "entry"),
        (Guard(X, "LEN", 2), [1], "was 2", "is 1", "length"),
        (Guard(X, "DICT_KEYS", ("a",)), {"b": 1}, "('a',)", "('b',)", "order"),
        (Guard(X, "INT_SYMBOL", symbol("s0")), 1, "an int of 2 or more", "is 1", "0 and 1 are compiled apart"),
        (Guard(X, "INT_SYMBOL", symbol("s0")), -3, "an int of 2 or more", "is -3", "negative ints are compiled apart"),
        (Guard(X, "INT_SYMBOL", symbol("z0")), 1 << 70, "at most 62 bits", f"is {1 << 70}", "each longer int"),
        (Guard(X, "INT_SYMBOL", symbol("z0")), 2.0, "was an int", "is 2.0", "int(x)"),
        (Guard(X, "INT_SYMBOL", symbol("z0")), 2.5, "was an int", "is 2.5", "one type"),
        (Guard(X, "FLOAT", None), 1, "a float", "is 1", "float(x)"),
        (
            Guard(X, "HASATTR", ("bias", True)),
            func,
            "had attribute 'bias'",
            "has no attribute 'bias'",
            "before the first",
        ),
        (Guard(X, "CODE", (lambda: 0).__code__), func, "as captured", "has changed", "once"),
        (Guard(S.item(X, 2), "EQUALS", 1), [1], "is there", "not there", "keys and length"),
    ],
)
def test_plain_values(guard, value, expected, got, advice):
    f = explain([guard], value)
    assert expected in f.expected_text and got in f.got_text and advice in f.suggestion


def test_relations():
    a = torch.randn(6)
    assert "two objects" in explain([Guard(X, "ALIAS", Y)], a, a.clone()).got_text
    assert "`x` and `y` are one object" == explain([Guard(None, "NO_ALIAS", (X, Y))], a, a).got_text
    assert "share memory" in explain([Guard(None, "NO_OVERLAP", (X, Y))], a, a[1:]).got_text


def test_state():
    guards = [Guard(None, "STATE", read_state())]
    with torch.no_grad():
        f = explain(guards)
    assert (f.detail, f.expected_text, f.got_text) == (
        "grad_mode",
        "grad mode was on",
        "grad mode is off",
    ) and f.suggestion
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f = explain(guards)
    assert f.detail == "autocast" and "bfloat16" in f.got_text


def test_keeps_nothing_alive_and_runs_no_user_code():
    class Evil:
        def __repr__(self):
            raise AssertionError("ran __repr__")

        def __eq__(self, other):
            raise AssertionError("ran __eq__")

        def __getattr__(self, name):
            raise AssertionError("ran __getattr__")

    evil, tensor = Evil(), torch.randn(7)
    failures = [
        explain([Guard(X, "EQUALS", 3)], evil),
        explain([Guard(X, "ID", None)], evil),
        explain([Guard(X, "LEN", 3)], evil),
        explain([Guard(X, "EQUALS", 3)], tensor),
        explain([Guard(X, "TENSOR", spec_of(TENSOR))], tensor),
        explain([Guard(X, "ID", func)], evil),
    ]
    assert all("Evil" in f.got_text for f in failures[:2])
    gone = weakref.ref(evil), weakref.ref(tensor)
    del evil, tensor
    gc.collect()
    assert [g() for g in gone] == [None, None] and len(failures) == 6


def test_modules_that_went_away():
    m = nn.Linear(2, 2)
    guard = Guard(X, "WEAK_ID", weakref.ref(m))
    assert "another Linear" in explain([guard], nn.Linear(2, 2)).got_text
    del m
    gc.collect()
    assert "gone" in explain([guard], nn.Linear(2, 2)).expected_text
