"""What builtin containers do in C with their elements runs the elements' own methods: once, in order, with their
effects, and guarded.
"""

import collections
import math

import pytest
import torch

from .runner import Runner, same

X = torch.linspace(-2, 2, 12).reshape(3, 4)
CALLS = []


class Noted:
    """Writes down which of its methods were called."""

    def __init__(self, n):
        self.n = n

    def _note(name, result):
        def method(self, *args):
            CALLS.append(name)
            return result(self, *args)

        return method

    __lt__ = _note("lt", lambda self, other: self.n < other.n)
    __eq__ = _note("eq", lambda self, other: self.n == other.n)
    __index__ = _note("index", lambda self: self.n)
    __len__ = _note("len", lambda self: self.n)
    __iter__ = _note("iter", lambda self: iter([1, 2]))
    __str__ = _note("str", lambda self: "S")
    __float__ = _note("float", lambda self: 1.0)
    __format__ = _note("format", lambda self, spec: "F" + spec)
    __divmod__ = _note("divmod", lambda self, other: ("divmod", other))
    __rdivmod__ = _note("rdivmod", lambda self, other: ("rdivmod", other))
    __pow__ = _note("pow", lambda self, *others: ("pow", others))
    __hash__ = None
    del _note


NATIVE_USES = [
    lambda o: [5, 6, 7][o],
    lambda o: [5, 6, 7][o:],
    lambda o: "ab" * o,
    lambda o: [0] * o,
    lambda o: "ab"[o],
    lambda o: range(o),
    lambda o: list(o),
    lambda o: tuple(o),
    lambda o: [*o, *o],
    lambda o: set(o),
    lambda o: dict([o]),
    lambda o: f"{o}{o!s}{o:>3}",
    lambda o: "%s %d" % (o, o),
    lambda o: "{} {0!s:>3}".replace("{}", "-").format(o),
    lambda o: str([1]) + str(o),
    lambda o: sorted([Noted(2), o])[0].n,
    lambda o: max([o, Noted(5)]).n,
    lambda o: [o].index(o),
    lambda o: [o, Noted(3)].count(Noted(3)),
    lambda o: o in [Noted(1)],
    lambda o: [o] == [Noted(1)],
    lambda o: (o, 2) < (Noted(1), 3),
    lambda o: {"k": o} == {"k": Noted(1)},
    lambda o: collections.deque([Noted(0), o]).index(Noted(1)),
    lambda o: math.sqrt(o),
    lambda o: chr(o),
    lambda o: hex(o),
    lambda o: round(2.567, o),
    lambda o: [1, 2].insert(o, 3),
    lambda o: [1, 2].pop(o),
    lambda o: "a,b,c".split(",", o),
    lambda o: list(enumerate("ab", o)),
    lambda o: slice(o, 3).indices(5),
    lambda o: complex(o),
    lambda o: bool(o),
    lambda o: o or 1,
    lambda o: sum(o),
    lambda o: list(zip(o, o)),
    lambda o: list(filter(None, [o])) and 0,
    lambda o: divmod(o, 2),
    lambda o: divmod(2, o),
    lambda o: pow(o, 2, 5),
    lambda o: [Noted(3)] != [o],
    lambda o: [7, 1, 7, 1].index(1, o),
    lambda o: [7, 1, 7, 1].index(7, o, -1),
]


@pytest.mark.parametrize("use", NATIVE_USES, ids=range(len(NATIVE_USES)))
def test_methods_are_called_as_often_as_by_python(use):
    def fn(x):
        return x + 1, use(Noted(1))

    CALLS.clear()
    expected = fn(X)
    wanted = list(CALLS)
    run = Runner()
    for _ in range(2):
        CALLS.clear()
        result = run(fn, X)
        assert CALLS == wanted
        same(result, expected)
    assert not run.breaks and not run.skips


class Key:
    """Compared and hashed by what it holds."""

    def __init__(self, n):
        self.n = n

    def __hash__(self):
        return hash((type(self), self.n))

    def __eq__(self, other):
        return isinstance(other, Key) and self.n == other.n


def keyed(x, a, b):
    found = {a: 1, b: 2}
    return (
        x * len(found),
        found[Key(1)],
        Key(5) in found,
        len({a, b, Key(1)}),
        found.get(Key(9), "none"),
        (a, 1) in {(Key(1), 1)},
    )


def test_what_keys_read_is_guarded():
    run, a, b = Runner(), Key(1), Key(2)
    same(run(keyed, X, a, b), keyed(X, a, b))
    b.n = 1
    same(run(keyed, X, a, b), keyed(X, a, b))
    same(run(keyed, X, a, b), keyed(X, a, b))
    assert not run.breaks and len(run.captures) == 2


class CountingKey(Key):
    def __hash__(self):
        CALLS.append("hash")
        return hash(self.n)

    __eq__ = Key.__eq__


def counted(x):
    y = x + 1
    d = {CountingKey(1): y}
    return d[CountingKey(1)] * 2, CountingKey(3) in d


def test_keys_with_effects_break():
    CALLS.clear()
    expected = counted(X)
    wanted = list(CALLS)
    run = Runner()
    for _ in range(2):
        CALLS.clear()
        same(run(counted, X), expected)
        assert CALLS == wanted
    assert run.breaks


# --- which side answers first
class Left:
    def __init__(self, log):
        self.log = log

    def __add__(self, other):
        self.log.append("left add")
        return NotImplemented

    def __radd__(self, other):
        self.log.append("left radd")
        return 5

    def __lt__(self, other):
        self.log.append("left lt")
        return NotImplemented

    def __gt__(self, other):
        self.log.append("left gt")
        return True

    def __eq__(self, other):
        self.log.append("left eq")
        return NotImplemented


class Inheriting(Left):
    pass


class Overriding(Left):
    def __radd__(self, other):
        self.log.append("right radd")
        return 6

    def __eq__(self, other):
        self.log.append("right eq")
        return NotImplemented


def answers(x):
    log = []
    a, b, c = Left(log), Inheriting(log), Overriding(log)
    found = [a + b, a + c, 3 + a, a < b, a < c, a == b, a == c, a != c, c == a, a == 3]
    return x + 1, found, log


def test_the_side_that_answers_first():
    run = Runner()
    same(run(answers, X), answers(X))
    assert not run.breaks


def searches(x, values):
    out = [values.index(Key(2)), values.count(Key(1)), Key(9) in values]
    values.remove(Key(2))
    for bad in (lambda: values.remove(Key(2)), lambda: values.index(7), lambda: (1, 2).index(7)):
        try:
            bad()
        except ValueError as error:
            out.append(str(error)[-12:])
    return x + len(values), out


def test_searches_in_outside_lists():
    run = Runner()
    for _ in range(2):
        a, b = [Key(1), Key(2), Key(1)], [Key(1), Key(2), Key(1)]
        same(run(searches, X, a), searches(X, b))
        assert len(a) == len(b) == 2
    assert not run.breaks and len(run.captures) == 1


# --- views of dicts stay in step
def views(x, d):
    keys, items, ahead = d.keys(), d.items(), iter(d)
    first = next(ahead)
    d["new"] = d["more"] = x
    sizes = len(keys), len(items)
    del d["a"]
    d.update(b=5)
    try:
        next(ahead)
    except RuntimeError as error:
        text = str(error)
    return x + len(keys), first, sizes, list(keys), text, "a" in keys, keys == {"b", "new", "more"}


def grow_while_iterating(x, d):
    try:
        for key in d:
            d[key + "+"] = x
    except RuntimeError as error:
        return x + len(d), str(error)


def replace_while_iterating(x, d):
    for key in d:
        d[key] = x
    for key in list(d.keys()):
        d[key + "+"] = d.pop(key)
    return x + len(d), list(d)


@pytest.mark.parametrize("fn", [views, grow_while_iterating, replace_while_iterating], ids=lambda f: f.__name__)
def test_views_of_dicts_from_outside(fn):
    run = Runner()
    for _ in range(2):
        given, kept = {"a": 1, "b": 2}, {"a": 1, "b": 2}
        same(run(fn, X, given), fn(X, kept))
        same(given, kept)
    assert not run.breaks
