# ruff: noqa: PLE0101, PLE0303, PLE0304, PLE0305, PLE0307, PLE0309
"""Objects that lie about themselves, answer wrongly or raise, and names of classes and functions that are set anew
between calls.
"""

from __future__ import annotations

import pytest
import torch

import tcompile

X = torch.ones(2)


def outcome(f, *args):
    try:
        r = f(*args)
    except Exception as e:
        return type(e), str(e)
    return [v.tolist() if isinstance(v, torch.Tensor) else v for v in (r if isinstance(r, tuple) else (r,))]


def check(f, *args, changes=()):
    c = tcompile.compile(f, backend="eager")
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            want = outcome(f, *args)
            assert outcome(c, *args) == want


class Liar:
    def __getattribute__(self, name):
        if name == "__class__":
            return int
        if name == "v":
            return 5
        if name == "boom":
            raise ValueError("boom")
        return object.__getattribute__(self, name)


class Never:
    def __getattribute__(self, name):
        raise TypeError("never: " + name)


class PretendsByProperty:
    @property
    def __class__(self):
        return float


class WithoutClass:
    @property
    def __class__(self):
        raise RuntimeError("no class")


class Unsure(type):
    def __instancecheck__(cls, o):
        return o == 7

    def __subclasscheck__(cls, c):
        return c is int


class Sevens(metaclass=Unsure):
    pass


class RaisingCheck(type):
    def __instancecheck__(cls, o):
        raise KeyError("check")


class Unchecked(metaclass=RaisingCheck):
    pass


class Generous(type):
    def __getattribute__(cls, name):
        return 42 if name == "q" else super().__getattribute__(name)

    def __getattr__(cls, name):
        return name


class Everything(metaclass=Generous):
    pass


@pytest.mark.parametrize(
    "f, o",
    [
        (
            lambda x, o: (
                x * o.v,
                isinstance(o, int),
                o.__class__ is int,
                type(o).__name__,
                hasattr(o, "zz"),
                getattr(o, "nope", 3),
            ),
            Liar(),
        ),
        (lambda x, o: x * o.boom, Liar()),
        (lambda x, o: (x * 2, type(o).__name__, isinstance(o, Never), isinstance(o, int)), Never()),
        (
            lambda x, o: (
                x * 2,
                isinstance(o, float),
                isinstance(o, PretendsByProperty),
                o.__class__.__name__,
                type(o).__name__,
            ),
            PretendsByProperty(),
        ),
        (lambda x, o: (x * 2, isinstance(o, WithoutClass)), WithoutClass()),
        (lambda x, o: (x * 2, isinstance(o, int)), WithoutClass()),
        (
            lambda x, o: (
                x * 2,
                isinstance(o, Sevens),
                isinstance(o, (str, Sevens)),
                issubclass(int, Sevens),
                issubclass(str, Sevens),
            ),
            7,
        ),
        (lambda x, o: (x * 2, isinstance(o, Unchecked)), 7),
        (lambda x, o: (x * o.q, o.other, hasattr(o, "zz"), o.__name__), Everything),
    ],
    ids=range(9),
)
def test_objects_that_lie(f, o):
    check(f, X, o)


class Wrong:
    """Special methods that answer with something of another type."""

    def __str__(self):
        return 5

    def __repr__(self):
        return None

    def __format__(self, spec):
        return 5

    def __hash__(self):
        return "x"

    def __len__(self):
        return "x"

    def __iter__(self):
        return 5

    def __contains__(self, o):
        return X

    def __index__(self):
        return "x"


class NegativeLength:
    def __len__(self):
        return -1


class WrongTruth:
    def __bool__(self):
        return 1


class MinusOne:
    def __hash__(self):
        return -1


class WrongInit:
    def __init__(self):
        return 5


class Raising:
    def __eq__(self, o):
        raise ValueError("eq")

    def __bool__(self):
        raise ValueError("bool")

    __hash__ = None


ANSWERS = {
    "str": str,
    "repr": repr,
    "f": lambda o: f"{o}",
    "hash": hash,
    "len": len,
    "iter": lambda o: [i for i in o],
    "bool": bool,
    "in": lambda o: 1 in o,
    "list": list,
    "key": lambda o: {o: 1},
    "index": lambda o: [1, 2][o],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_wrong_answers_of_special_methods(name):
    ask = ANSWERS[name]
    check(lambda x, o: (x * 2, ask(o)), X, Wrong())


@pytest.mark.parametrize(
    "f, o",
    [
        (lambda x, o: x * len(o), NegativeLength()),
        (lambda x, o: x if o else x * 2, NegativeLength()),
        (lambda x, o: x if o else x * 2, WrongTruth()),
        (lambda x, o: (x * 2, hash(o)), MinusOne()),
        (lambda x, o: (x * 2, WrongInit() and 1), 1),
        (lambda x, o: (x * 2, o == 1), Raising()),
        (lambda x, o: x * 2 if o else x, Raising()),
        (lambda x, o: x * 2 if o in [1] else x, Raising()),
        (lambda x, o: x * 2 if o in [o] else x, Raising()),
        (lambda x, o: (x * 2, {o: 1}), Raising()),
    ],
    ids=range(10),
)
def test_what_a_class_must_not_answer(f, o):
    check(f, X, o)


def test_descriptors_that_raise():
    class Descriptor:
        def __get__(self, o, t=None):
            raise AttributeError("get")

        def __set__(self, o, v):
            raise AttributeError("set")

    class Behind:
        d = Descriptor()

        def __getattr__(self, name):
            if name == "d":
                return 4
            raise AttributeError(name)

    class Bare:
        d = Descriptor()

    def sets(x, o):
        try:
            o.d = 1
        except AttributeError as e:
            return x * 2, str(e)

    check(lambda x, o: (x * o.d, hasattr(o, "d"), getattr(o, "q", 1)), X, Behind())
    check(lambda x, o: (x * 2, hasattr(o, "d"), getattr(o, "d", 7)), X, Bare())
    check(sets, X, Behind())


def test_a_slot_that_is_filled_later():
    class Slots:
        __slots__ = ("a", "b")

    s = Slots()
    s.a = 1
    check(
        lambda x: (x * s.a, hasattr(s, "b"), getattr(s, "b", None)),
        X,
        changes=[lambda: setattr(s, "b", 1), lambda: setattr(s, "a", 4), lambda: delattr(s, "b")],
    )


def test_words_of_a_class_that_are_set_anew():
    class C:
        """doc"""

        a: int = 1

        def m(self, x):
            return x

    def f(x, o):
        t = type(o)
        return (
            x * 2,
            t.__name__,
            t.__qualname__,
            t.__doc__,
            dict(t.__annotations__),
            o.__class__.__name__,
            o.m.__name__,
            t.__module__,
            o.__doc__,
            C.__name__,
        )

    check(
        f,
        X,
        C(),
        changes=[
            lambda: setattr(C, "__name__", "D"),
            lambda: setattr(C, "__qualname__", "Q"),
            lambda: setattr(C, "__doc__", "other"),
            lambda: setattr(C, "__annotations__", {"b": int}),
            lambda: C.__annotations__.update(q=str),
            lambda: setattr(C.m, "__name__", "n"),
            lambda: setattr(C, "__module__", "elsewhere"),
            lambda: setattr(C, "__name__", "C"),
        ],
    )


def test_what_a_function_is_made_of_that_is_set_anew():
    def helper(x, k=2, *, z=1):
        return x * k * z

    def other(x, k=2, *, z=1):
        return x * k * z + 100

    def f(x):
        return (
            helper(x),
            helper.__name__,
            helper.__qualname__,
            helper.__doc__,
            helper.__defaults__,
            helper.__kwdefaults__,
        )

    def root(x, k=2):
        return x * k

    check(
        f,
        X,
        changes=[
            lambda: setattr(helper, "__defaults__", (5,)),
            lambda: setattr(helper, "__kwdefaults__", {"z": 7}),
            lambda: setattr(helper, "__name__", "other"),
            lambda: setattr(helper, "__doc__", "docs"),
            lambda: setattr(helper, "__code__", other.__code__),
            lambda: helper.__kwdefaults__.update(z=9),
        ],
    )
    check(root, X, changes=[lambda: setattr(root, "__defaults__", (5,))])


class noted(property):
    """A property of a kind of its own, as torch.distributions has them."""


class Ranged:
    def __init__(self, n):
        self.n = n

    @noted
    def limits(self):
        return [0, self.n - 1]

    @limits.setter
    def limits(self, to):
        self.n = to[1] + 1


def test_a_subclass_of_property_is_read_and_set_as_one():
    r = Ranged(4)

    def f(x):
        before = r.limits
        if (x * before[1]).sum() > 100:  # a break between reading and reading again
            return x
        r.limits = [0, before[1]]
        return x + r.limits[1], r.limits

    check(f, X, changes=[lambda: setattr(r, "n", 7)])
