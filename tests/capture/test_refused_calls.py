"""Calls that Python refuses, and exceptions of the program on their way through native code: eager's type and words, at
the program's own handlers.
"""

from __future__ import annotations

import collections
import collections.abc
import enum

import pytest
import torch

import tcompile


class Failing:
    """A mapping and an iterator that fail when they are asked for more."""

    def keys(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise LookupError("no more")

    def __getitem__(self, key):
        return key


class NoException(Exception):
    def __new__(cls):
        return 3


class Lost(enum.Flag, boundary=enum.EJECT):
    A = 1


class Choosy(type):
    """A class whose namespace refuses names."""

    class Names(dict):
        def __setitem__(self, name, value):
            if name == "refused":
                raise ValueError(f"not {name}")
            super().__setitem__(name, value)

    @classmethod
    def __prepare__(mcs, name, bases):
        return mcs.Names()


def fromkeys():
    return dict.fromkeys()


def getitem():
    return {}.__getitem__()


def get():
    return {}.get()


def chain():
    import itertools

    return list(itertools.chain.from_iterable())


def update_from_failing_keys():
    {}.update(Failing())


def unpack_failing_keys():
    return {**Failing()}


def reversed_failing():
    return sorted(Failing())


def any_of_a_failing_generator():
    return any(1 // k for k in (0, 1))


def thrown_into_a_generator():
    def numbers():
        try:
            yield 1
        except TypeError as e:
            yield str(e)

    g = numbers()
    next(g)
    return g.throw(NoException)


def refused_in_a_class_body():
    class C(metaclass=Choosy):
        taken = 1
        refused = 2

    return C.taken


def deleted_in_a_class_body():
    class C:
        del missing  # noqa: F821


def flag_that_gives_a_number():
    return Lost(8), type(Lost(8)) is int


class Both(collections.UserDict, collections.abc.Sequence):
    """A mapping to patterns: the first base says what it is."""


class Point:
    __match_args__ = ("x", "x")
    x = 1


class Listed:
    __match_args__ = ["x"]
    x = 1


class Number(int):
    pass


def mapping_and_sequence():
    match Both(a=1):
        case [*_]:
            return "sequence"
        case {"a": a}:
            return "mapping", a


def attribute_twice():
    match Point():
        case Point(a, b):
            return a, b


def match_args_in_a_list():
    match Listed():
        case Listed(a):
            return a


def too_many_parts():
    match Number(3):
        case Number(a, b):
            return a, b


def itself():
    match Number(3):
        case Number(a):
            return a


def key_twice():
    class K:
        a = "k"

    match {"k": 1}:
        case {K.a: _, "k": _}:
            return 1


def a_default_is_not_made():
    d = collections.defaultdict(list)
    match d:
        case {"k": v}:
            return v
    return dict(d)


def outcome(f, x):
    try:
        return f(), (x * 2).tolist()
    except Exception as e:
        return type(e), str(e), (x + 1).tolist()


CASES = (
    fromkeys,
    getitem,
    get,
    chain,
    update_from_failing_keys,
    unpack_failing_keys,
    reversed_failing,
    any_of_a_failing_generator,
    thrown_into_a_generator,
    refused_in_a_class_body,
    deleted_in_a_class_body,
    flag_that_gives_a_number,
    mapping_and_sequence,
    attribute_twice,
    match_args_in_a_list,
    too_many_parts,
    itself,
    key_twice,
    a_default_is_not_made,
)


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_as_eager(case):
    compiled = tcompile.compile(outcome, backend="eager")
    for _ in range(2):
        assert compiled(case, torch.arange(3.0)) == outcome(case, torch.arange(3.0))
