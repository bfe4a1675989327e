"""Modules that are made, filled and read in ways of their own, against eager. Each program runs eager and compiled, on
twins.
"""

from __future__ import annotations

import copy
import typing
from collections import OrderedDict

import pytest
import tcompile
import torch
import torch.nn as nn


@torch._dynamo.disable
def pause():
    """Not compiled: what calls it is parted here."""


def children(module):
    return {name: type(child).__name__ for name, child in module.named_children()}


def made_after_a_removal(parts):
    del parts["a"]
    made = nn.Sequential(parts)
    pause()
    return children(made)


def made_after_an_addition(parts):
    parts["c"] = nn.Tanh()
    made = nn.Sequential(parts)
    pause()
    return children(made)


def made_and_kept_by_a_closure(parts):
    held = nn.ModuleDict(parts)

    def look():
        return children(held), list(parts)

    pause()
    del parts["a"]
    held = nn.ModuleDict(nn.Sequential(parts).named_children())
    pause()
    return look()


@pytest.mark.parametrize("program", [made_after_a_removal, made_after_an_addition, made_and_kept_by_a_closure])
def test_a_sequential_is_made_of_a_dict_as_it_is_by_now(program):
    def parts():
        return OrderedDict(a=nn.ReLU(), b=nn.GELU())

    assert tcompile.compile(program)(parts()) == program(parts())


def test_a_dict_that_a_sequential_is_made_of_is_looked_at_again():
    parts = OrderedDict(a=nn.ReLU())
    x = torch.randn(4)
    fn = tcompile.compile(lambda x: nn.Sequential(parts)(x) + len(nn.ModuleList(None)))
    torch.testing.assert_close(fn(x), x.relu())
    parts["b"] = nn.Tanh()
    torch.testing.assert_close(fn(x), x.relu().tanh())


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("parted", [True, False])
def test_a_buffer_says_whether_it_is_persistent(first, parted):
    def fn(module):
        module.held = nn.Buffer(torch.ones(3), persistent=first)
        if parted:
            pause()
        module.held = nn.Buffer(torch.ones(3), persistent=not first)
        return list(module.state_dict()), len(list(module.buffers()))

    assert tcompile.compile(fn)(nn.Module()) == fn(nn.Module())


class OwnAccess(nn.Module):
    """All of its attributes are looked up by code of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.factor = 2.0

    def __getattribute__(self, name):
        return 5 if name == "five" else super().__getattribute__(name)

    def forward(self, x):
        return self.linear(x) * self.factor + self.shift + self.five


def test_a_module_with_a_getattribute_of_its_own_is_captured():
    module, x = OwnAccess(), torch.randn(2, 3)
    twin = copy.deepcopy(module)
    fn = tcompile.compile(module, fullgraph=True)
    torch.testing.assert_close(fn(x), twin(x))
    for change in (
        lambda m: setattr(m, "linear", nn.Tanh()),
        lambda m: setattr(m, "factor", 3.0),
        lambda m: m._buffers.update(linear=None),
        lambda m: m._buffers.pop("linear"),
        lambda m: m.__dict__.update(linear=nn.ReLU()),
    ):
        results = []
        for m, call in ((module, fn), (twin, twin)):
            change(m)
            try:
                results.append(call(x))
            except TypeError as e:
                results.append(str(e))
        assert type(results[0]) is type(results[1])
        if isinstance(results[0], torch.Tensor):
            torch.testing.assert_close(results[0], results[1])


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: int


class NotedPair(Pair):
    """Has attributes of its own, unlike a Pair."""


@pytest.mark.parametrize("parted", [True, False])
def test_a_named_tuple_keeps_what_is_noted_on_it(parted):
    def fn(x):
        pair = NotedPair(x + 1, 2)
        pair.note = [pair.a, "made"]
        if parted:
            pause()
        return pair

    x = torch.randn(3)
    ours, theirs = tcompile.compile(fn)(x), fn(x)
    assert type(ours) is NotedPair and ours.note[0] is ours.a and ours.note[1] == "made"
    torch.testing.assert_close(tuple(ours), tuple(theirs))
