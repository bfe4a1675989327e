"""Whatever is done to a compiled module, or called on it, is as on the module: `forward`, other methods, hooks that
come and go, replaced parts.
"""

from __future__ import annotations

import abc
import inspect

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler import events


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.scale = 2

    def forward(self, x, *, shift=0):
        return self.linear(x).relu() * self.scale + shift

    def other(self, x):
        return self.linear(x).tanh()

    @torch.no_grad()
    def generate(self, x):
        return self.forward(x) + self(x)


class Derived(Base):
    def forward(self, x, *, shift=0):
        return super().forward(x, shift=shift) + 1


class OwnCall(Derived):
    def __call__(self, x, **kwargs):
        return super().__call__(x, **kwargs) * 10


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def graphs(f):
    seen = []
    with events.listen(lambda e: seen.append(e.kind) if e.kind == "graph" else None):
        f()
    return len(seen)


@pytest.mark.parametrize("cls", [Base, Derived, OwnCall])
def test_everything_done_to_it_is_seen(cls):
    m = cls()
    c = tcompile.compile(m, backend="eager", options={"recompile_limit": 64})

    def same():
        for f, g in ((m, c), (m.forward, c.forward), (m.other, c.other), (m.generate, c.generate)):
            torch.testing.assert_close(g(X), f(X))
        torch.testing.assert_close(c.forward(X, shift=1), m.forward(X, shift=1))

    same()
    for module in (m, c):
        for add in (
            lambda: module.register_forward_hook(lambda mod, i, o: o * 3),
            lambda: module.register_forward_pre_hook(lambda mod, i: (i[0] + 1,)),
            lambda: m.linear.register_forward_hook(lambda mod, i, o: o - 5),
            lambda: nn.modules.module.register_module_forward_hook(lambda mod, i, o: o + 7),
        ):
            handle = add()
            same()
            handle.remove()
            same()
        module.scale += 3
        same()
        module.forward = lambda x, shift=0: x * 100 + shift
        same()
        del module.forward
        same()
    with torch.no_grad():
        m.linear.weight.mul_(2)
    same()
    m.linear = nn.Linear(3, 3)
    same()
    kept = cls.forward
    cls.forward = lambda self, x, shift=0: x + 1000 + shift
    try:
        same()
    finally:
        cls.forward = kept
    same()
    assert c._orig_mod is m and list(c.state_dict()) == list(m.state_dict()) and isinstance(c, cls)
    assert inspect.signature(c.forward) == inspect.signature(m.forward)


def test_forward_is_compiled():
    m = Base()
    c = tcompile.compile(m, backend="eager")
    assert graphs(lambda: c.forward(X)) == 1
    assert graphs(lambda: c.forward(X)) == 0 and graphs(lambda: c(X)) == 0


def test_compiled_modules_inside_of_others():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tcompile.compile(Base(), backend="eager")

        def forward(self, x):
            return self.inner(x) + self.inner.other(x) + self.inner.forward(x) + self.inner._orig_mod.scale

    m = Outer()
    c = tcompile.compile(m, backend="eager", fullgraph=True)
    inner = m.inner._orig_mod
    for step in (
        lambda: None,
        lambda: setattr(inner, "scale", 5),
        lambda: setattr(inner, "forward", lambda x: x * 7),
        lambda: delattr(inner, "forward"),
    ):
        step()
        want = inner(X) + inner.other(X) + inner.forward(X) + inner.scale
        torch.testing.assert_close(m(X), want)
        torch.testing.assert_close(c(X), want)


class Registering(type(nn.Module)):
    made = []

    def __init__(cls, name, bases, namespace, *, key):
        super().__init__(name, bases, namespace)
        Registering.made.append((name, key))

    def __new__(mcs, name, bases, namespace, *, key):
        return super().__new__(mcs, name, bases, namespace)


class Registered(nn.Module, metaclass=Registering, key=1):
    def forward(self, x):
        return x + 1


class Family(nn.Module, abc.ABC):
    known = []

    def __init_subclass__(cls, *, kind, **kwargs):
        super().__init_subclass__(**kwargs)
        Family.known.append((cls.__name__, kind))

    @abc.abstractmethod
    def forward(self, x): ...


class Member(Family, kind="member"):
    __slots__ = ()

    def forward(self, x):
        return x * 2


class Slotted(nn.Module):
    __slots__ = ("extra",)

    def forward(self, x):
        return x - 1


@pytest.mark.parametrize("cls", [Registered, Member, Slotted])
def test_classes_do_not_hear_that_their_modules_are_compiled(cls):
    before = list(Registering.made), list(Family.known)
    module = cls()
    compiled = tcompile.compile(module, backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x), module(x)) and isinstance(compiled, cls) and isinstance(module, cls)
    assert (
        not isinstance(module, type(compiled))
        and type(compiled).__mro__[1] is cls
        and compiled.state_dict().keys() == module.state_dict().keys()
    )
    assert (Registering.made, Family.known) == before
