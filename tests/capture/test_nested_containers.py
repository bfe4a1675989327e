"""What native code reads deep inside of containers of every class is guarded: a list in a deque, in a list of a subclass, in a named tuple."""
from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import json
import types

import pytest
import torch

import tcompile

Pair = collections.namedtuple("Pair", "v")


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value})"


class OwnList(list):
    pass


class OwnDict(dict):
    pass


class OwnTuple(tuple):
    pass


class Speaking(list):
    def __repr__(self):
        return f"speaks {list(self)}"


HOLDERS = {
    "deque": lambda v: collections.deque([v]), "OrderedDict": lambda v: collections.OrderedDict(a=v), "defaultdict": lambda v: collections.defaultdict(list, a=v),
    "Counter": lambda v: collections.Counter(a=v), "Pair": Pair, "OwnList": lambda v: OwnList([v]), "OwnDict": lambda v: OwnDict(a=v),
    "OwnTuple": lambda v: OwnTuple([v]), "Speaking": lambda v: Speaking([v]), "nested": lambda v: [{"a": (collections.deque([Pair(v)]),)}],
    "objects": lambda v: collections.deque([Shown(v)]), "errors": lambda v: [ValueError(v)], "partial": lambda v: functools.partial(len, v),
    "mappingproxy": lambda v: types.MappingProxyType({"a": v}), "values": lambda v: {"a": v}.values()}

READERS = {
    "str": str, "format": lambda v: f"{v} {v!r}", "percent": lambda v: "%s" % (v,), "json": json.dumps, "list": lambda v: str(list(v)), "dict": lambda v: dict(v),
    "print": lambda v: print(v), "in": lambda v: [1] in v, "copy": copy.copy, "deepcopy": copy.deepcopy, "map": lambda v: list(map(str, v))}


def _said(function, *args):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            value = function(*args)[1]
            return type(value).__name__, repr(value), out.getvalue()
        except (TypeError, ValueError) as e:
            return type(e).__name__, str(e), out.getvalue()


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("hold", HOLDERS)
def test_a_list_deep_inside_changes_between_calls(hold, read):
    inner = [1]
    value, reader = HOLDERS[hold](inner), READERS[read]

    def f(x, v):
        return x + 1, reader(v)
    compiled, x = tcompile.compile(f, backend="eager"), torch.ones(1)
    for step in range(3):
        assert _said(compiled, x, value) == _said(f, x, value)
        inner.append(step)


@pytest.mark.parametrize("container", [{"a": 1}, {1, 2}, collections.OrderedDict(a=1)])
def test_what_has_no_hash_is_in_no_dict(container):
    def f(x, c):
        try:
            return x, [1] in c
        except TypeError as e:
            return x, str(e)
    compiled = tcompile.compile(f, backend="eager")
    assert compiled(torch.ones(1), container)[1] == f(torch.ones(1), container)[1]
