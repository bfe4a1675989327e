"""Attributes and the `__dict__` they lie in: deleters, descriptors that keep their value there, names that lead to the
dict itself, order.
"""

import pytest
import torch

import tcompile

X = torch.arange(3.0)


class Plain:
    pass


class Kept:
    """A data descriptor that keeps its value in the instance's dict, under its own name."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, owner):
        return obj.__dict__.get(self.name, 0)

    def __set__(self, obj, value):
        obj.__dict__[self.name] = value

    def __delete__(self, obj):
        del obj.__dict__[self.name]


class Described:
    kept = Kept()


class Deleter:
    def __init__(self):
        self.log = []

    @property
    def p(self):
        return self._p

    @p.setter
    def p(self, value):
        self._p = value

    @p.deleter
    def p(self):
        self.log.append("deleted")
        del self._p


class Watched:
    def __init__(self):
        self.log = []

    def __delattr__(self, name):
        self.log.append(name)
        object.__delattr__(self, name)


def set_by_descriptor(o, x):
    o.kept = x + 1
    return o.kept * 2, "kept" in o.__dict__


def deleted_descriptor(o, x):
    o.kept = x
    y = o.kept * 2
    del o.kept
    return y, o.kept


def deleted_property(o, x):
    o.p = x
    del o.p
    return x + 1, hasattr(o, "p"), hasattr(o, "_p"), len(o.log)


def own_delattr(o, x):
    o.z = x
    del o.z
    return x + 1, hasattr(o, "z")


def not_its_own(o, x):
    try:
        del o.log.nothing
    except AttributeError as e:
        return x + 1, type(e) is AttributeError


def order(o, x):
    o.a, o.b = 1, 2
    o.a, o.c = 3, 4
    return x + 1


def through_dict(o, x):
    o.__dict__["a"] = x + 1
    vars(o).update(b=2)
    return o.a * o.b, hasattr(o, "c")


@pytest.mark.parametrize(
    ("make", "f", "full"),
    [
        (Described, set_by_descriptor, True),
        (Described, deleted_descriptor, False),
        (Deleter, deleted_property, True),
        (Watched, own_delattr, True),
        (Watched, not_its_own, False),
        (Plain, order, True),
        (Plain, through_dict, True),
    ],
)
def test_attributes_in_their_dict(make, f, full):
    o, mine = make(), make()
    compiled = tcompile.compile(f, backend="eager", fullgraph=full)
    for _ in range(2):
        torch.testing.assert_close(compiled(mine, X), f(o, X))
        assert list(vars(mine)) == list(vars(o))


def written_then_read(o, d, x):
    d["q"] = x
    return x + 1, hasattr(o, "q"), o.q


def popped_then_read(o, d, x):
    d["q"] = x
    d.pop("q")
    return x + 1, hasattr(o, "q"), o.__dict__.get("q", 0)


def set_then_read(o, d, x):
    o.q = x + 1
    return d.get("q"), len(d)


def deleted_then_read(o, d, x):
    o.q = x + 1
    del o.q
    return d.get("q"), x + 1


@pytest.mark.parametrize("f", [written_then_read, popped_then_read, set_then_read, deleted_then_read])
def test_another_name_of_the_dict(f):
    """The dict comes as an argument of its own, so that nothing tells beforehand whose it is."""
    o, mine = Plain(), Plain()
    compiled = tcompile.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(mine, vars(mine), X), f(o, vars(o), X))
        assert list(vars(mine)) == list(vars(o))
