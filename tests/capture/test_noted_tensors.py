"""Attributes that a program puts on tensors that it makes: they are there inside, and on what leaves the graph."""

from __future__ import annotations

import pytest
import tcompile
import torch
from torch.utils._pytree import tree_leaves


@torch._dynamo.disable
def pause():
    """Not compiled: what calls it is parted here."""


def one(x):
    y = x + 1
    y.note = 42
    return y, y.note, hasattr(y, "other"), getattr(y, "other", 3)


def set_twice(x):
    y = x + 1
    y.note = 1
    y.note = 2
    return [y, y]


def of_each_other(x):
    y = x + 1
    z = y * 2
    y.note, z.note = z, [y, "made"]
    return y


def of_itself(x):
    y = x + 1
    y.note = y
    return y


def of_a_loop(x):
    made = []
    for i in range(3):
        made.append(x * i)
        made[-1].place = i
    return made, sum(t.place for t in made)


def of_results_alone(x):
    y = x + 1
    y.note = 1
    return (y + 1), hasattr(y * 2, "note"), y.add_(1)


def of_views(x):
    y, d = x.t(), x.detach()
    y.note, d.note = 1, 2
    return y, d


def kept_elsewhere(x, held):
    y = x + 1
    y.note = 5
    held["y"] = y
    return x * 2


def notes(value):
    """What is noted on the tensors of a result, and on those that are noted there."""
    found, seen = [], set()
    todo = list(tree_leaves(value))
    while todo:
        t = todo.pop(0)
        if isinstance(t, torch.Tensor) and id(t) not in seen:
            seen.add(id(t))
            found.append({k: v if type(v) is int else type(v) for k, v in t.__dict__.items()})
            todo += tree_leaves(list(t.__dict__.values()))
        elif not isinstance(t, torch.Tensor):
            found.append(t)
    return found


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("program", [one, set_twice, of_each_other, of_itself, of_a_loop, of_results_alone, of_views])
def test_attributes_of_made_tensors(program, requires_grad):
    x = torch.randn(2, 2, requires_grad=requires_grad)
    fn = tcompile.compile(program, fullgraph=True)
    for _ in range(2):
        ours, theirs = fn(x), program(x)
        assert notes(ours) == notes(theirs)
        for a, b in zip(tree_leaves(ours), tree_leaves(theirs)):
            torch.testing.assert_close(a, b)


def test_attributes_of_what_is_kept_elsewhere():
    held = {}
    tcompile.compile(kept_elsewhere, fullgraph=True)(torch.ones(2), held)
    assert held["y"].note == 5


def test_attributes_are_there_after_a_break():
    def fn(x):
        y = x + 1
        y.note = 42
        pause()
        return y * 2, y.note

    out, note = tcompile.compile(fn)(torch.ones(2))
    torch.testing.assert_close(out, torch.full((2,), 4.0))
    assert note == 42
