"""Containers from outside: read under guards, past what subclasses override, changed through effects; displays that a
break cuts in two.
"""

import collections
import copy
import enum
import math
import operator
import random
from typing import TypeVar

import pytest
import tcompile
import torch

from .runner import Runner, same

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def check(fn, make, breaks=0):
    """Two calls on fresh arguments equal eager's, in value and in what is left of the arguments; the second call
    hits.
    """
    run = Runner()
    for _ in range(2):
        expected, given = make(), make()
        result = fn(*expected)
        same(run(fn, *given), result)
        for a, b in zip(given, expected):
            assert type(a) is type(b)
            same(_content(a), _content(b))
    assert not run.skips and len(run.breaks) == breaks, [str(s) for s in run.skips] + run.breaks
    return run


def _content(value):
    for base in (collections.OrderedDict, dict, list, tuple, set):
        if isinstance(value, base) and not isinstance(value, torch.Size):
            plain = base.copy(value) if base is not tuple else tuple(value)
            return dict(dict.items(plain)) if base in (dict, collections.OrderedDict) else base(base.__iter__(value))
    return value


# --- displays that are cut by a break
def long_tuple(x):
    return (
        x + 1,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        17,
        18,
        19,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        27,
        28,
        29,
        30,
        31,
        id([]) > 0,
        x * 2,
        "end",
    )


def long_list(x):
    return [
        x + 1,
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        17,
        18,
        19,
        20,
        21,
        22,
        23,
        24,
        25,
        26,
        27,
        28,
        29,
        30,
        31,
        *(id([]) > 0, x * 2),
        "end",
    ]


def spread_dict(x):
    return {"a": x + 1, **{"b": 2}, "c": id([]) > 0, **{"d": x * 2}, "e": 3}


def spread_set(x):
    return sorted({1, *(2, 3), id([]) > 0 and 4, *(5, 6)}), x + 1


def spread_call(x):
    return dict(a=x + 1, **{"b": 2}, c=id([]) > 0, **{"d": x * 2}), max(*[1, 2], id(x) > 0 and 7, *[3])


@pytest.mark.parametrize("fn", [long_tuple, long_list, spread_dict, spread_set, spread_call], ids=lambda f: f.__name__)
def test_a_display_goes_on_after_a_break(fn):
    run = Runner()
    for _ in range(3):
        same(run(fn, X.clone()), fn(X.clone()))
    assert run.breaks


# --- subclasses that override how they are read
class Doubling(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class DoublingOrdered(collections.OrderedDict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class DoublingList(list):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2

    def __len__(self):
        return 7


class DoublingTuple(tuple):
    def __getitem__(self, key):
        return tuple.__getitem__(self, key) * 2


class Renaming(dict):
    def keys(self):
        return ["a"]

    def __iter__(self):
        return iter(["b", "a"])

    def __missing__(self, key):
        return key * 3


class Rows(collections.OrderedDict):
    pass


def read_mapping(d):
    return d["a"] + 1, list(d), d.get("a"), len(d), list(d.values()), list(d.items()), [k for k in d], "a" in d


def read_sequence(s):
    return s[0] + 1, list(s), len(s), [v for v in s], s[-1]


def read_missing(d):
    return d["a"] + 1, d["zz"], list(d), {**d}


@pytest.mark.parametrize(
    "cls,fn",
    [(Doubling, read_mapping), (DoublingOrdered, read_mapping), (Rows, read_mapping), (Renaming, read_missing)],
    ids=lambda v: v.__name__,
)
def test_mappings_that_override(cls, fn):
    check(fn, lambda: (cls([("a", X.clone()), ("b", 2)]),))


@pytest.mark.parametrize("cls", [DoublingList, DoublingTuple], ids=lambda v: v.__name__)
def test_sequences_that_override(cls):
    check(read_sequence, lambda: (cls([X.clone(), X + 1]),))


# --- sets
def set_reads(x, s):
    return x + (1 if 3 in s else 0), len(s), sum(s), s | {50}, s & {3, 4}, sorted(s, reverse=True), [v for v in s]


def set_writes(x, s):
    s.add(5)
    s.discard(1)
    s |= {8, 9}
    s &= {5, 8, 3, 77}
    s -= {8}
    s ^= {3, 100}
    s.symmetric_difference_update([100, 101])
    return x + len(s), 5 in s


@pytest.mark.parametrize("fn", [set_reads, set_writes], ids=lambda f: f.__name__)
def test_sets_from_outside(fn):
    check(fn, lambda: (X.clone(), {1, 2, 3}))


def test_another_content_of_a_set_is_seen():
    run = Runner()
    for s in ({1, 2}, {1, 2, 3}, {1}, {True, 2}, {1.0, 2}, set(), {"a", 3}):
        same(run(set_membership, X, s), set_membership(X, s))


def set_membership(x, s):
    return x * len(s), 1 in s, "a" in s, [type(v).__name__ for v in s]


# --- lists
def list_in_place(x, values):
    values *= 2
    values[1:2] = [x, 7]
    values += (4, 5)
    del values[0]
    return x + len(values), values[0] + 1


def test_lists_repeated_in_place():
    check(list_in_place, lambda: (X.clone(), [1, 2, 3]))


def add_nothing_iterable(x, values):
    try:
        values += 3
    except TypeError as error:
        return x + 1, str(error)


def intersect_a_list(x, values):
    try:
        values &= [1]
    except TypeError as error:
        return x + 1, str(error)


@pytest.mark.parametrize("fn,value", [(add_nothing_iterable, [1]), (intersect_a_list, {1})], ids=["list", "set"])
def test_wrong_operands(fn, value):
    check(fn, lambda: (X.clone(), copy.copy(value)))


def tensor_of_a_list(x, values):
    values[1] = 9
    return (
        x + torch.tensor(values),
        torch.full((2,), values[0]),
        torch.zeros(values[:2]).shape,
        torch.arange(*values[:2]),
    )


def test_tensors_are_made_of_the_content_that_is():
    run = Runner()
    for content in ([2, 3, 1, 0], [2, 3, 1, 5], [1, 4, 1, 5]):
        same(run(tensor_of_a_list, X, list(content)), tensor_of_a_list(X, list(content)))
    assert len(run.captures) == 3 and not run.breaks


# --- messages of unpacking and spreading
def wrong_spreads(x):
    def f(**named):
        return named

    texts = []
    for bad in (
        lambda: f(**3),
        lambda: f(**{"a": 1}, **dict(a=2)),
        lambda: f(*3),
        lambda: [*3],
        lambda: {**3},
        lambda: f(**{1: 2}),
        lambda: {*3},
        lambda: two(3),
        lambda: two([1]),
        lambda: two([1, 2, 3]),
        lambda: first_of(4),
        lambda: first_of([]),
    ):
        try:
            bad()
        except (TypeError, ValueError) as error:
            texts.append((type(error).__name__, str(error)))
    return x + 1, texts


def two(value):
    a, b = value
    return a, b


def first_of(value):
    a, *_ = value
    return a


def test_messages_of_wrong_spreads():
    check(wrong_spreads, lambda: (X.clone(),))


def unpack_without_end(x):
    import itertools

    counter = itertools.count(3)
    try:
        a, b = counter
    except ValueError as error:
        return x + next(counter), str(error)


def test_unpacking_draws_one_element_too_many_at_most():
    check(unpack_without_end, lambda: (X.clone(),))


# --- objects that an entry cannot make
class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


def combined_flags(x):
    both = Access.READ | Access.WRITE
    return x + both.value, both, Access.READ in both, bool(both & Access.WRITE), ~Access.READ


def test_combined_flags():
    check(combined_flags, lambda: (X.clone(),))


def draws(x, generator):
    random.seed(3)
    a = random.random()
    y = x + a
    return y * generator.random(), random.randint(1, 100)


def test_random_generators_at_a_break():
    run = Runner()
    for _ in range(2):
        same(run(draws, X, random.Random(4)), draws(X, random.Random(4)))
    assert run.breaks


def test_native_functions_and_type_variables_as_keys():
    var = TypeVar("var")
    table = {torch.add: 1.0, torch.Tensor.mul: 2.0, operator.add: 3.0, len: 4.0, var: 5.0}
    chosen = frozenset([torch.add, len])

    def f(x):
        y = x * table[torch.add] + table[torch.Tensor.mul] + table[operator.add] + table[var]
        return (
            y,
            len in table,
            torch.mul in table,
            torch.add in chosen,
            torch.sin in chosen,
            table.get(torch.sub, 7),
            list(table.values()),
        )

    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    same(compiled(x), f(x))
    table[torch.add] = 10.0
    same(compiled(x), f(x))
    table[torch.sub] = 8.0
    same(compiled(x), f(x))
    del table[torch.sub]
    table[torch.mul] = 1.0
    same(compiled(x), f(x))


class Kind(enum.Enum):
    A = 1

    def __eq__(self, other):
        return isinstance(other, Kind) and self.value == other.value

    def __hash__(self):
        return 1


@pytest.mark.parametrize(
    "key",
    [lambda: 0, Kind, Kind.A, math, torch.float16, len],
    ids=["function", "class", "enum", "module", "dtype", "native"],
)
def test_a_key_that_a_dict_from_outside_lacked(key):
    """Guards hold functions, classes, modules and enums weakly: a dict that gets such a key has it."""
    table = {}

    def f(x):
        return x * table.get(key, 5.0) + (key in table)

    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    x = torch.ones(2)
    same(compiled(x), f(x))
    table[key] = 2.0
    same(compiled(x), f(x))
    del table[key]
    same(compiled(x), f(x))


KEYED = """
def key(x): return x
TABLE = {key: 2.0}
ELEMENTS = {key}
LIST = [key]
def get(x): return x * TABLE.get(key, 3.0)
def subscript(x): return x * (TABLE[key] if key in TABLE else 3.0)
def elements(x): return x + (key in ELEMENTS) + 2 * ELEMENTS.isdisjoint({key})
def counted(x): return x + LIST.count(key) + 2 * (key in LIST)
def inside(x):
    table = {LIST[0]: 2.0}
    return x * table.get(key, 3.0) + (key in {LIST[0]})
"""


@pytest.mark.parametrize("name", ["get", "subscript", "elements", "counted", "inside"])
def test_a_function_defined_anew_is_another_key(name):
    ns = {}
    exec(KEYED, ns)
    compiled = tcompile.compile(ns[name], backend="eager", fullgraph=True)
    x = torch.ones(2)
    same(compiled(x), ns[name](x))
    exec("\ndef key(x): return x", ns)  # the same code, at the same line
    same(compiled(x), ns[name](x))
