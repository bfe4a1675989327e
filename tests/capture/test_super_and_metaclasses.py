"""Properties by super(), classes with a metaclass made inside, and attributes that C refuses."""

from __future__ import annotations

import functools
import pickle

import torch

import tcompile

LOG: list = []


class Descriptor:
    def __get__(self, obj, owner=None):
        LOG.append("bound")
        return lambda *args: obj.__dict__.update(given=args)


class Asked:
    prop = property(lambda self: "asked")
    late = Descriptor()


class Asking(Asked):
    @classmethod
    def of_class(cls):
        return super().prop

    def of_instance(self):
        return super().prop


class Prepared(type):
    @classmethod
    def __prepare__(cls, name, bases, **kwargs):
        LOG.append(name)
        return {}

    def __new__(cls, name, bases, namespace, **kwargs):
        return super().__new__(cls, name, bases, namespace)

    def __init__(cls, name, bases, namespace, **kwargs):
        LOG.append(sorted(kwargs))


def plain_function():
    pass


def written_by_c():
    method, part, error = plain_function.__get__(1), functools.partial(len), ValueError(1)
    for obj, name in ((method, "__func__"), (part, "func"), (error, "__cause__"), (slice(1), "start")):
        try:
            setattr(obj, name, 3)
        except (AttributeError, TypeError) as e:
            yield str(e)
    try:
        plain_function.__name__ = 3
    except TypeError as e:
        yield str(e)


def test_properties_of_super_metaclasses_and_values_that_c_refuses():
    def properties(x):
        return x + 1, Asking.of_class() is Asked.prop, Asking().of_instance()

    def classes(x):
        class First(metaclass=Prepared):
            pass

        class Second(First, late=True):
            pass

        return x + 1, type(First), type(Second)

    def refused(x):
        return x + 1, list(written_by_c())

    for program in (properties, classes, refused):
        seen = []
        for call in (program, compiled := tcompile.compile(program, backend="eager"), compiled):
            LOG.clear()
            seen.append((call(torch.ones(2))[1:], list(LOG)))
        assert seen[0] == seen[1] == seen[2]


def across_a_break(value):
    return pickle.loads(pickle.dumps(value))  # capture ends at it


class Counted(type):
    def __call__(cls, *args):
        return super().__call__(*args)


class Scaling(metaclass=Counted):
    def __init__(self, x):
        self.x = x + across_a_break(1)

    def __call__(self, factor):
        return self.x * factor


class Doubling(list):
    def append(self, value):
        super().append(across_a_break(value) * 2)


class Raised(dict):
    def __getitem__(self, key):
        return super().__getitem__(across_a_break(key)) + 1


def test_what_super_found_is_the_same_after_a_break():
    """The entry asked the object for it by its name, and got the override, or what a class declares for instances."""

    def program(x):
        many, named = Doubling(), Raised(a=1)
        many.append(3)
        return Scaling(x)(5) + many[0] + named["a"]

    compiled = tcompile.compile(program, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))
