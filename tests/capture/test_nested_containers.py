"""What native code reads deep inside of containers of every class is guarded: a list in a deque, in a list of a
subclass, in a named tuple.
"""

from __future__ import annotations

import array
import collections
import contextlib
import copy
import functools
import io
import json
import math
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
    "deque": lambda v: collections.deque([v]),
    "OrderedDict": lambda v: collections.OrderedDict(a=v),
    "defaultdict": lambda v: collections.defaultdict(list, a=v),
    "Counter": lambda v: collections.Counter(a=v),
    "Pair": Pair,
    "OwnList": lambda v: OwnList([v]),
    "OwnDict": lambda v: OwnDict(a=v),
    "OwnTuple": lambda v: OwnTuple([v]),
    "Speaking": lambda v: Speaking([v]),
    "nested": lambda v: [{"a": (collections.deque([Pair(v)]),)}],
    "objects": lambda v: collections.deque([Shown(v)]),
    "errors": lambda v: [ValueError(v)],
    "partial": lambda v: functools.partial(len, v),
    "mappingproxy": lambda v: types.MappingProxyType({"a": v}),
    "values": lambda v: {"a": v}.values(),
}

READERS = {
    "str": str,
    "format": lambda v: f"{v} {v!r}",
    "percent": lambda v: "%s" % (v,),
    "json": json.dumps,
    "list": lambda v: str(list(v)),
    "dict": lambda v: dict(v),
    "print": lambda v: print(v),
    "in": lambda v: [1] in v,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "map": lambda v: list(map(str, v)),
}


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


def _last_is(values):
    match values:
        case [*_, last]:
            return last


@pytest.mark.parametrize(
    "read", [len, lambda v: list(reversed(v)), bytes, _last_is, lambda v: torch.full((len(v),), 2.0).shape]
)
@pytest.mark.parametrize("make", [lambda: array.array("i", [1]), lambda: bytearray([1])])
def test_arrays_of_python_grow_between_calls(make, read):
    value, compiled = make(), tcompile.compile(lambda x, v: (x + 1, read(v)), backend="eager")
    for step in range(3):
        assert compiled(torch.ones(1), value)[1] == read(value)
        value.append(step)


class Weighs:
    def __init__(self, weight):
        self.weight = weight

    def __float__(self):
        return float(self.weight)


def test_numbers_that_objects_are():
    things = [Weighs(1), Weighs(2)]
    compiled = tcompile.compile(lambda x, v: x + math.fsum(v), backend="eager")
    for weight in (1, 5, 7):
        things[0].weight = weight
        assert compiled(torch.zeros(1), things).item() == weight + 2


def test_a_list_in_the_dict_of_a_class():
    class Table:
        rows = [1]

    compiled = tcompile.compile(lambda x, c: (x + len(c.__dict__["rows"]), c.__dict__.get("rows")), backend="eager")
    for step in range(3):
        total, rows = compiled(torch.zeros(1), Table)
        assert total.item() == step + 1 and rows is Table.rows
        Table.rows.append(step)


class OwnSet(set):
    pass


def _doubled(v):
    v *= 2
    return v


def _extended(v):
    v += (7, 8)
    return v


def _united(v):
    v |= {5: 1} if isinstance(v, dict) else {5, 6}
    return v


def _shrunk(v):
    v -= {1}
    v ^= {2, 9}
    v &= {9, 3}
    return v


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: OwnList([3, 1]), _doubled),
        (lambda: OwnList([3, 1]), _extended),
        (lambda: Speaking([3]), _extended),
        (lambda: OwnDict(a=1), _united),
        (lambda: OwnSet({1, 2, 3}), _united),
        (lambda: OwnSet({1, 2, 3}), _shrunk),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_operators_in_place_change_the_object_itself(make, change, inside):
    def f(x, v):
        v = make() if inside else v
        alias = v
        return x + 1, change(v), alias

    compiled, mine, theirs = tcompile.compile(f, backend="eager"), make(), make()
    for _ in range(3):
        _, changed, alias = compiled(torch.ones(1), mine)
        want = f(torch.ones(1), theirs)[1]
        assert changed == want and type(changed) is type(want) and changed is alias and (inside or changed is mine)


def test_a_slice_of_a_dict():
    def f(x, d):
        try:
            return x, d[1:]
        except (TypeError, KeyError) as e:
            return x, str(e)

    assert tcompile.compile(f, backend="eager")(torch.ones(1), {"a": 1})[1] == f(torch.ones(1), {"a": 1})[1]


def test_a_list_that_holds_itself():
    def f(x, v):
        v.append(v)
        return x + 1, v[-1] is v, len(v)

    compiled, values = tcompile.compile(f, backend="eager"), [1]
    for n in range(2, 5):  # each call says how the list differs from the last one
        assert compiled(torch.ones(1), values)[1:] == (True, n)


GROWING = {
    "append": lambda x, kept: (kept.append(x.sum().item()), kept[-1] * 2),
    "append twice": lambda x, kept: (kept.append(1.5), kept.append(x * 2), kept[-2], kept[-1] + 1),
    "extend": lambda x, kept: (kept.extend((x, 3)), kept[-2] + kept[-1]),
    "in place": lambda x, kept: (kept.__iadd__([x, 4])[-1], kept[-2] * 2),
    "appended behind an extension": lambda x, kept: (kept.extend([x, 5]), kept.append(6), kept[-3] * kept[-1]),
}


@pytest.mark.parametrize("name", GROWING)
def test_the_end_of_a_list_that_grows(name):
    """A loop that looks at its last loss is one entry, however many there are."""
    program, lists = GROWING[name], ([], [])
    compiled = tcompile.compile(program)
    with tcompile.record() as record:
        for n in range(5):
            x = torch.randn(3)
            torch.testing.assert_close(compiled(x, lists[0])[-1], program(x, lists[1])[-1])
    torch.testing.assert_close(lists[0], lists[1])
    assert len(record.report().recompiles) <= (name == "append")  # (a float that varies)


@pytest.mark.parametrize("index", [-1, -2, -3, 0, 1])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_what_is_not_its_end_depends_on_its_length(index, before):
    def program(x, kept):
        kept.append(x * 2)
        try:
            return kept[index] + 1, len(kept), "an item"
        except IndexError as e:
            return x, len(kept), str(e)

    compiled, x = tcompile.compile(program), torch.randn(3)
    for length in (before, before + 1, before):
        ours, theirs = ([torch.full((3,), float(i)) for i in range(length)] for _ in range(2))
        got, want = compiled(x, ours), program(x, theirs)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
        torch.testing.assert_close(ours, theirs)
