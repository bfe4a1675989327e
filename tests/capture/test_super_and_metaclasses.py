"""Properties by super(), classes with a metaclass made inside, and attributes that C refuses."""

from __future__ import annotations

import functools

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
