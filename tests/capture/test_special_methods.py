"""Special methods of user classes are called as often as eager calls them, in its order, and with its operands: each
call is logged.
"""

from __future__ import annotations

import bisect
import collections
import copy
import decimal
import fractions
import functools
import itertools
import math
import operator

import pytest
import torch

import tcompile

LOG: list = []


def logged(function):
    @functools.wraps(function)
    def method(self, *args):
        LOG.append((function.__name__, *(type(a).__name__ for a in args)))
        return function(self, *args)

    return method


class Number:
    """A number that has every special method."""

    def __init__(self, value):
        self.value = value


def value_of(x):
    return x.value if isinstance(x, Number) else x


def define(name, function):
    function.__name__ = name
    setattr(Number, name, logged(function))


def define_binary(name, op, make):
    define(
        name,
        lambda self, other: (
            make(op(self.value, value_of(other))) if isinstance(other, (int, float, Number)) else NotImplemented
        ),
    )
    define(
        "__r" + name[2:],
        lambda self, other: (
            make(op(value_of(other), self.value)) if isinstance(other, (int, float, Number)) else NotImplemented
        ),
    )


for _name in ("add", "sub", "mul", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift", "truediv"):
    define_binary(f"__{_name.strip('_')}__", getattr(operator, _name), Number)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    define(
        f"__{_name}__",
        lambda self, other, op=getattr(operator, _name): (
            op(self.value, value_of(other)) if isinstance(other, (int, float, Number)) else NotImplemented
        ),
    )
for _name, _function in {
    "hash": lambda s: hash(s.value),
    "bool": lambda s: bool(s.value),
    "len": lambda s: abs(int(s.value)),
    "index": lambda s: int(s.value),
    "int": lambda s: int(s.value),
    "float": lambda s: float(s.value),
    "iter": lambda s: iter(range(s.value)),
    "contains": lambda s, o: value_of(o) < s.value,
    "getitem": lambda s, i: (i, s.value),
    "setitem": lambda s, i, v: None,
    "delitem": lambda s, i: None,
    "call": lambda s: s.value,
    "neg": lambda s: Number(-s.value),
    "abs": lambda s: Number(abs(s.value)),
    "invert": lambda s: Number(~s.value),
    "round": lambda s, n=0: s.value,
    "trunc": lambda s: s.value,
    "floor": lambda s: s.value,
    "ceil": lambda s: s.value,
    "str": lambda s: f"N({s.value})",
    "repr": lambda s: f"<N {s.value}>",
    "format": lambda s, spec: f"[{s.value}:{spec}]",
    "bytes": lambda s: b"x",
    "reversed": lambda s: iter([1, 2]),
    "enter": lambda s: s,
    "exit": lambda s, *a: False,
    "divmod": lambda s, o: (s.value, value_of(o)),
    "length_hint": lambda s: 3,
    "copy": lambda s: Number(s.value),
    "deepcopy": lambda s, memo: Number(s.value),
}.items():
    define(f"__{_name}__", _function)


class Derived(Number):
    pass


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        LOG.append("iter")
        return self

    def __next__(self):
        LOG.append("next")
        self.n -= 1
        if self.n < 0:
            raise StopIteration
        return Number(self.n)


class Items:
    """A sequence by __getitem__ alone."""

    def __getitem__(self, i):
        LOG.append(("item", i))
        if i > 2:
            raise IndexError
        return i


def words(function):
    try:
        return function()
    except TypeError as e:
        return str(e)


def removed(values, value):
    values.remove(value)
    return values


def filled(a, b):
    d = {}
    d[a], d[b], d[Number(1)] = 1, 2, 3
    del d[b]
    d.update([(b, 4), (Number(1), 5)])
    return list(d.values()), d.setdefault(a, 7), d.pop(b)


def extended(b):
    values = []
    values.extend(b)
    values += b
    return values


def unpacked(b):
    x, y = b
    return x, y


def entered(a):
    with a as z:
        return z.value


def matched(a):
    match a:
        case 5:
            return 1
        case Number(value=2):
            return 2
        case Number():
            return 3


USES = {
    "equal": lambda a, b: (a == b, a != b, a == 1, 1 == a, a == "x", "x" == a, a != None),
    "order": lambda a, b: (a < b, 1 < a, 1 >= a, 0 < a < b),  # noqa: E711
    "arithmetic": lambda a, b: (a + b - 1 * 2 // 1, 1 + a, 7 // a, 2**a, 1 << a, 1 / a, operator.iadd(a, b)),
    "derived": lambda a, b: (a + Derived(2), Derived(2) + a, a == Derived(1), a < Derived(5)),
    "refused": lambda a, b: [
        words(f)
        for f in (
            lambda: a + "s",
            lambda: "s" + a,
            lambda: a < "s",
            lambda: [] + a,
            lambda: () + a,
            lambda: "s" * a,
            lambda: [1] * a,
            lambda: a * (1,),
            lambda: a + [1],
        )
    ],
    "percent": lambda a, b: ("%s" % a, "%r %s" % (a, b)),
    "truth": lambda a, b: (bool(a), not a, 1 if a else 2, a and 3, a or 4, any([a, b]), all([a, b])),
    "filter": lambda a, b: list(filter(None, [a, b])),
    "in": lambda a, b: (
        0 in b,
        b in [a, b],
        a in (1, 2),
        a in {1: 2},
        a in {1, 2},
        Number(1) in [1],
        1 in (b, a),
        a not in [b],
    ),
    "index": lambda a, b: (
        [1, 2, 3][a],
        [1, 2, 3][a:b],
        "abc"[a],
        range(5)[a],
        range(a, b),
        "abcdef"[a : Number(4) : b],
    ),
    "search": lambda a, b: ([3, b, a].index(a), [a, b, 1].count(a), removed([b, a], Number(1)), [b, a].index(1)),
    "hash": lambda a, b: (
        hash(a),
        {a: 1, b: 2}[a],
        {1: 1}.get(a),
        len({a, b, a}),
        len({a} | {b, Number(1)}),
        len(frozenset([a, b])),
        {a} == {b},
        len({a, b} & {Number(1)}),
    ),
    "keys": filled,
    "fromkeys": lambda a, b: len(dict.fromkeys([a, b])),
    "counter": lambda a, b: collections.Counter([a, b, a])[a],
    "dicts": lambda a, b: ({1: a} == {1: b}, {a: 1} == {Number(1): 1}, len({a: 1} | {b: 1})),
    "iterate": lambda a, b: (
        [x for x in b],
        list(b),
        tuple(b),
        [*b, *a],
        sum(b),
        list(zip(b, a)),
        list(enumerate(b)),
        list(map(abs, b)),
        sorted(set(b)),
    ),
    "star": lambda a, b: (lambda *x: x)(*b),
    "unpack": lambda a, b: unpacked(b),
    "extend": lambda a, b: extended(b),
    "extremes": lambda a, b: (max(a, b), min([a, b, Number(0)]), max([a, b], key=operator.neg), max(Countdown(3))),
    "sorted": lambda a, b: (sorted([b, a, Number(5), Number(0)]), sorted([b, a], reverse=True)),
    "sum": lambda a, b: (sum([a, b], Number(0)), sum([a, b])),
    "reversed": lambda a, b: list(reversed(a)),
    "iterator": lambda a, b: (
        [n for n in Countdown(3)],
        len(list(Countdown(3))),
        1 in Countdown(3),
        len(list(zip(Countdown(3), Countdown(2)))),
        any(Countdown(3)),
        unpacked(Countdown(2)),
    ),
    "items": lambda a, b: (
        list(Items()),
        2 in Items(),
        (lambda *x: x)(*Items()),
        [x for x in Items()],
        list(enumerate(Items(), 1)),
        tuple(Items()),
        sum(Items()),
    ),
    "itertools": lambda a, b: (
        list(itertools.chain(a, b)),
        list(itertools.islice(b, 1)),
        list(itertools.accumulate([a, b])),
        len(list(itertools.product(b, b))),
        functools.reduce(operator.add, [a, b]),
    ),
    "subscript": lambda a, b: (a[1], a[1:2], a["x"], a[1, 2], operator.setitem(a, 1, 2), operator.delitem(a, 1), a()),
    "unary": lambda a, b: (-a, abs(a), ~a, round(a), round(a, 2), math.floor(a), math.trunc(a)),
    "convert": lambda a, b: (
        int(a),
        float(a),
        math.sqrt(a),
        math.gcd(a, 2),
        chr(a),
        bin(a),
        bytes(a),
        bytes([a, b]),
        operator.index(a),
        operator.length_hint(a),
    ),
    "text": lambda a, b: (str(a), repr(a), f"{a}", f"{a!r}", f"{a:>5}", format(a, "x"), "{} {!r} {:x}".format(a, a, a)),
    "text_inside": lambda a, b: (str([a, b]), f"{ {1: a, a: (b,)} }", repr((a, [b]))),
    "with": lambda a, b: entered(a),
    "divmod": lambda a, b: divmod(a, b),
    "copy": lambda a, b: (copy.copy(a), copy.deepcopy([a])),
    "match": lambda a, b: matched(a),
    "sequences": lambda a, b: ((a, 1) == (b, 1), (a,) < (b,), [a] == [a], [a] == [1]),
    "bisect": lambda a, b: bisect.bisect([Number(0), b], a),
    "tensors": lambda a, b: (torch.zeros(a, b).shape, torch.arange(4)[a], words(lambda: torch.ones(2) + a)),
}


def plain(v):
    if isinstance(v, Number):
        return "Number", v.value
    if isinstance(v, torch.Tensor):
        return v.tolist()
    return [type(v).__name__, *map(plain, v)] if isinstance(v, (list, tuple)) else repr(v)


def observed(f, *args):
    LOG.clear()
    try:
        result = plain(f(*args))
    except Exception as e:
        result = type(e), str(e)
    return result, list(LOG)


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("name", USES)
def test_calls_of_special_methods(name, inside):
    use = USES[name]

    def made(x):
        y = x * 2
        return use(Number(1), Number(2)), y

    def given(x, a, b):
        y = x * 2
        return use(a, b), y

    f, args = (made, (torch.ones(2),)) if inside else (given, (torch.ones(2), Number(1), Number(2)))
    c = tcompile.compile(f, backend="eager")
    for _ in range(3):
        assert observed(c, *args) == observed(f, *args)


def test_reflected_method_of_the_same_class_is_not_asked():
    class A:
        def __add__(self, other):
            LOG.append("add")
            return NotImplemented

        def __radd__(self, other):
            LOG.append("radd")
            return NotImplemented

    def f(x, a):
        y = x * 2
        return words(lambda: a + a), y

    args = torch.ones(2), A()
    c = tcompile.compile(f, backend="eager")
    for _ in range(2):
        assert observed(c, *args) == observed(f, *args)


def test_text_of_what_a_container_holds_is_read_again():
    class A:
        def __init__(self, v):
            self.v = v

        def __repr__(self):
            return f"A{self.v}"

    def f(x, items):
        return x * 2, str(items), f"{items}"

    items = [A(1), {"k": A(2)}]
    c = tcompile.compile(f, backend="eager")
    for v in (1, 2, 3, 1):
        items[0].v = v
        assert c(torch.ones(2), items)[1:] == f(torch.ones(2), items)[1:]


class _Slotted:
    __slots__ = ("k",)

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("owner, name", [(_Slotted(), "k"), (decimal.Context(), "prec")])
def test_attributes_that_a_class_looks_up_in_its_own_way(owner, name):
    """No guard can read them: they are read at each call, at a break."""
    compiled = tcompile.compile(lambda x, c: x * getattr(c, name))
    for value in (3, 4, 5):
        setattr(owner, name, value)
        assert compiled(torch.ones(1), owner).item() == value


class Adds:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return NotImplemented

    def __radd__(self, other):
        return 5


class AddsInPlaceNever(Adds):
    __iadd__ = None


class AddsNever(Adds):
    __add__ = None


class AddedNever:
    __radd__ = None


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (AddsInPlaceNever(1), 1),
        (AddsNever(1), Adds(2)),
        (Adds(1), AddedNever()),
        (1, AddedNever()),
        ([1], AddedNever()),
        ([1], Adds(1)),
        (Adds(1), Adds(2)),
    ],
)
def test_methods_that_are_none_refuse_the_operator(a, b, in_place):
    def program(x):
        try:
            c = a
            if in_place:
                c += b
            else:
                c = c + b
        except TypeError as e:
            c = str(e)
        return x + 1, c

    x = torch.ones(2)
    assert tcompile.compile(program)(x)[1] == program(x)[1]


CALLS: list = []


class Asked:
    def __eq__(self, other):
        CALLS.append("Asked.__eq__")
        return NotImplemented

    __hash__ = object.__hash__


class AskedFirst(Asked):
    def __ne__(self, other):
        CALLS.append("AskedFirst.__ne__")
        return NotImplemented


class Other:
    def __eq__(self, other):
        CALLS.append("Other.__eq__")
        return NotImplemented

    def __ne__(self, other):
        CALLS.append("Other.__ne__")
        return NotImplemented

    __hash__ = object.__hash__


@pytest.mark.parametrize("compare", [operator.eq, operator.ne], ids=["==", "!="])
def test_who_is_asked_whether_things_are_equal(compare):
    def program(x, a, b):
        return x + 1, compare(a, b)

    values, x = [Asked(), AskedFirst(), Other(), 1], torch.ones(2)
    for a, b in itertools.product(values, values):
        CALLS.clear()
        want, asked = program(x, a, b)[1], list(CALLS)
        CALLS.clear()
        assert tcompile.compile(program)(x, a, b)[1] is want and asked == CALLS, (a, b)


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.ge])
def test_numbers_of_different_classes(compare):
    """Decimal's native code looks into a Fraction, whose own method does not know Decimals."""

    def program(x, a, b):
        return x + 1, compare(a, b)

    x = torch.ones(2)
    compiled = tcompile.compile(program)
    for a, b in itertools.permutations([1000, 1000.5, fractions.Fraction(1000), decimal.Decimal(1000)], 2):
        assert compiled(x, a, b)[1] is program(x, a, b)[1], (a, b)


class Plain:
    asked = property()


Plain.late = property()


class Both:
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls, *args, **kwargs)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Init:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def by_position(a=0, b=0, /, c=0):
    return a


def iter_nothing():
    yield from ()


REFUSED = {
    "arguments": lambda: Plain(42),
    "new": lambda: Plain.__new__(Plain, 42),
    "init": lambda: Plain().__init__(42),
    "object's new": lambda: object.__new__(Plain, 42),
    "object's init": lambda: object.__init__(Plain(), a=42),
    "both": lambda: Both(42),
    "both's new": lambda: object.__new__(Both, 42),
    "own init": lambda: Init(42),
    "own init later": lambda: Init().__init__(42),
    "getter": lambda: Plain().asked,
    "setter": lambda: setattr(Plain(), "asked", 1),
    "deleter": lambda: delattr(Plain(), "late"),
    "getter without a name": lambda: Plain().late,
    "none": lambda: Both(),
    "keywords by position": lambda: by_position(a=1, b=2, d=4),
    "a keyword": lambda: by_position(1, d=4),
    "the end of a generator": lambda: next(iter_nothing()),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_object_and_property_refuse(name):
    f = REFUSED[name]

    def program(x):
        try:
            said = type(f()).__name__
        except (TypeError, AttributeError, StopIteration) as e:
            said = repr(e)
        return x + 1, said

    x = torch.ones(2)
    assert tcompile.compile(program)(x)[1] == program(x)[1]


class Callable:
    def __call__(self, *args):
        LOG.append(args)


class Descriptor:
    def __get__(self, obj, owner=None):
        LOG.append("bound")
        return lambda *args: obj.__dict__.update(given=args)


def takes_two(self, a, b=1):
    self.__dict__.update(a=a, b=b)


def masked(self):
    raise AttributeError("not masked")


class ByPart:
    __init__ = functools.partialmethod(takes_two, 5)
    __setattr__ = functools.partialmethod(lambda self, k, name, value: LOG.append((k, name, value)), 7)
    __delattr__ = staticmethod(lambda name: LOG.append(name))


class ByObject:
    __init__ = Callable()
    __setattr__ = Callable()


class ByDescriptor:
    __init__ = Descriptor()


class ByStatic:
    __init__ = staticmethod(lambda *args: LOG.append(args))


class ByClass:
    __init__ = classmethod(lambda cls, *args: LOG.append((cls.__name__, args)))


class ByProperty:
    __init__ = property(masked)


class WithoutInit:
    __init__ = None


class Shape:
    """A factory: __new__ gives an instance of a subclass, whose own __init__ runs then."""

    def __new__(cls, kind=None, *args):
        if kind == "number":
            return 3
        return super().__new__({"round": Round, "square": Square}.get(kind, cls))


class Round(Shape):
    def __init__(self, kind, r):
        self.r = r


class Square(Shape):
    def __init__(self, kind, a):
        self.a = a * 2


class Record(dict):
    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__
    __delattr__ = dict.__delitem__


def by_another_name():
    made = Record(a=1)
    made.b = made.a + 1
    made.c = 3
    del made.c
    return dict(made), vars(made), made.b


def made_by_factory():
    kinds = [Shape("round", 2), Shape("square", 3), Shape()]
    return [(type(k).__name__, vars(k)) for k in kinds], Shape("number")


def by_part():
    made = ByPart(b=3)
    made.c = 4
    del made.a
    return vars(made)


def by_object():
    made = ByObject(1)
    made.c = 4
    return vars(made)


@pytest.mark.parametrize(
    "f",
    [
        by_another_name,
        made_by_factory,
        lambda: dict(1, 2),
        lambda: list([], 1),
        lambda: tuple((), 1),
        lambda: set((), 1),
        lambda: frozenset((), 1),
        by_part,
        by_object,
        lambda: vars(ByDescriptor(2)),
        lambda: vars(ByStatic(2)),
        lambda: vars(ByClass(3)),
        ByProperty,
        WithoutInit,
    ],
)
def test_special_methods_that_are_no_functions(f):
    """`__init__` and `__setattr__` of other kinds were left out."""

    def program(x):
        try:
            said = f()
        except (AttributeError, TypeError) as e:
            said = str(e)
        return x + 1, said

    seen = []
    for call in (program, compiled := tcompile.compile(program, backend="eager"), compiled):
        LOG.clear()
        seen.append((call(torch.ones(2))[1], list(LOG)))
    assert seen[0] == seen[1] == seen[2]


class Text(str):
    def __str__(self):
        return "text"

    def __len__(self):
        return 9


class Whole(int):
    def __int__(self):
        return 9


class Part(float):
    def __float__(self):
        return 9.0


class Octets(bytes):
    def __iter__(self):
        return iter((9,))


class Members(frozenset):
    def __iter__(self):
        return iter((9,))


def test_what_subclasses_hold_is_rebuilt_past_their_methods():
    def program(x):
        return x + 1, Text("A"), Whole(5), Part(2.5), Octets(b"q"), Members([1])

    for _ in range(2):
        _, text, whole, part, octets, members = tcompile.compile(program, backend="eager")(torch.ones(2))
        assert (ord(text), int.__add__(whole, 0), float.__add__(part, 0.0)) == (65, 5, 2.5)
        assert (bytes.__getitem__(octets, 0), frozenset.__contains__(members, 1)) == (113, True)
