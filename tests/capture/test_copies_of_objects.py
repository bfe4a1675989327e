"""copy.copy and copy.deepcopy of objects of Python's classes: in the graph, with what stands twice standing twice."""

import copy
import threading

import pytest
import torch

import tcompile

from ..fuzz.oracle import same


class Inner:
    def __init__(self):
        self.parts, self.number = [1, 2], 3


class Settings:
    shared = 5

    def __init__(self):
        self.size, self.inner = 2, Inner()
        self.listed, self.itself = [self.inner, {"it": self.inner}], self

    @property
    def double(self):
        return self.size * 2

    def __getattribute__(self, name):
        return object.__getattribute__(self, "size" if name == "alias" else name)


def deep(x, settings):
    own = copy.deepcopy(settings)
    own.size += 1
    own.inner.parts.append(7)
    alike = own.listed[0] is own.inner, own.listed[1]["it"] is own.inner, own.itself is own, own.inner is settings.inner
    return x * own.double + own.alias + sum(own.inner.parts) + own.shared, own, alike


def shallow(x, settings):
    own = copy.copy(settings)
    own.size += 1
    return x * own.double + own.alias, own.inner is settings.inner, own.itself is settings, vars(own).keys()


@pytest.mark.parametrize("program", [deep, shallow])
def test_as_in_eager(program):
    settings, x = Settings(), torch.randn(3)
    compiled = tcompile.compile(program, fullgraph=True)
    for turn in range(3):
        got, want = compiled(x, settings), program(x, settings)
        same(got[0], want[0])
        if program is deep:
            assert type(got[1]) is Settings and got[1].itself is got[1] and got[1].inner.parts == want[1].inner.parts
        assert list(got[2:]) == list(want[2:]) or program is deep and got[2] == want[2]
        assert settings.inner.parts == [1, 2, *range(turn)]
        settings.size += 1
        settings.inner.parts.append(turn)


class Own:
    def __init__(self):
        self.size = 2

    def __deepcopy__(self, memo):
        made = Own()
        made.size = 10
        return made


class Reduced(Settings):
    def __reduce__(self):
        return Settings, ()


class Stated(Inner):
    def __setstate__(self, state):
        self.number = 100


class Slotted:
    __slots__ = ("number", "__dict__")

    def __init__(self):
        self.number = 4


class Locked(Inner):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("made", [Own, Reduced, Stated, Slotted, Locked])
def test_classes_with_a_say(made):
    def program(x, value):
        own = copy.deepcopy(value)
        return x * getattr(own, "size", 1) + getattr(own, "number", 0), type(own).__name__

    value, x = made(), torch.randn(3)
    compiled = tcompile.compile(program)
    if made is Locked:
        for f in (program, compiled):
            with pytest.raises(TypeError, match="pickle"):
                f(x, value)
    else:
        same(compiled(x, value)[0], program(x, value)[0])
