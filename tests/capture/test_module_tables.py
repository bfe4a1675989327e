"""Buffers, parameters and submodules that forward itself exchanges, by every way that reaches them, read again in the
same call.
"""

from __future__ import annotations

import pytest
import tcompile
import torch
import torch.nn as nn

from .runner import same

X = torch.ones(3, 4)


class Holder(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.register_buffer("none", None)
        self.w = nn.Parameter(torch.ones(4))
        self.part = nn.ReLU()
        self.body = forward
        self.other = nn.BatchNorm1d(4)
        self.other.b = nn.Buffer(torch.full((4,), 5.0))

    def forward(self, x):
        return self.body(self, x)


def set_and_named(s, x):
    s.b = s.b + 1
    return s._buffers["b"] + x, dict(s.named_buffers())


def set_and_listed(s, x):
    s.b = x.sum(0)
    return [b + 0 for b in s.buffers()]


def table_and_attribute(s, x):
    s._buffers["b"] = x.sum(0)
    return s.b + 1, [name for name, _ in s.named_buffers()]


def registered_again(s, x):
    s.register_buffer("b", x.sum(0))
    return s.b + 1, list(s._buffers)


def registered(s, x):
    s.register_buffer("late", x.sum(0), persistent=False)
    return s.late + 1, list(s._buffers), list(s.state_dict())


def none_becomes_a_tensor(s, x):
    s.none = x.sum(0)
    s.fresh = x * 2
    return s.none + 1, s.fresh, list(s._buffers)


def past_setattr(s, x):
    object.__setattr__(s, "b", x.sum(0))
    return s.b + 1, s._buffers["b"] + 0


def through_dict(s, x):
    s.__dict__["_buffers"]["b"] = x.sum(0)
    return s.b + 0, s.b + 1


def table_replaced(s, x):
    s._buffers = {**s._buffers, "b": x.sum(0)}
    return s.b + 0


def table_of_another(s, x):
    s._buffers = s.other._buffers
    return s.b + x


def popped(s, x):
    old = s._buffers.pop("b", None)
    s.b = x.sum(0) + (0 if old is None else old)
    return s.b + 0, "b" in s.__dict__


def default_and_in_place(s, x):
    s._buffers.setdefault("q", x.sum(0))
    s.q.add_(1)
    return s.q + 0, s.q is s._buffers["q"]


def updated(s, x):
    s._buffers.update(none=x * 3)
    return s.none + 0, [n for n, _ in s.named_buffers(recurse=False)]


def part_added(s, x):
    s.add_module("second", nn.Tanh())
    s._modules["part"] = nn.Sigmoid()
    return s.second(s.part(x)), [type(child).__name__ for child in s.children()]


def parameter_replaced(s, x):
    s.w = nn.Parameter(s.w.detach() * 2)
    return s.w * x


def dict_read_before(s, x):
    d = s.__dict__
    s.k = x.sum(0)
    return d["k"] + 1, "k" in d, "none such" in d, d.get("k") * 2


def dict_listed(s, x):
    d = vars(s)
    s.k = 3
    return sorted(name for name in d if not name.startswith("_")), x + d["k"]


def dict_and_deleted(s, x):
    s.k = 3
    del s.k
    return "k" in vars(s), x + 1


PROGRAMS = [
    set_and_named,
    set_and_listed,
    table_and_attribute,
    registered_again,
    registered,
    none_becomes_a_tensor,
    past_setattr,
    through_dict,
    table_replaced,
    table_of_another,
    popped,
    default_and_in_place,
    updated,
    part_added,
    parameter_replaced,
    dict_read_before,
    dict_listed,
    dict_and_deleted,
]


def state(m):
    return [
        (table, {n: v if isinstance(v, torch.Tensor) else type(v).__name__ for n, v in getattr(m, table).items()})
        for table in ("_buffers", "_parameters", "_modules")
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_reads_see_the_writes(program):
    plain, module = Holder(program), Holder(program)
    compiled = tcompile.compile(module, backend="eager")
    for factor in (1, 2, 3):
        same(compiled(X * factor), plain(X * factor))
        same(state(module), state(plain))


@pytest.mark.parametrize(
    "program",
    [
        set_and_named,
        table_and_attribute,
        registered_again,
        none_becomes_a_tensor,
        through_dict,
        table_replaced,
        default_and_in_place,
        updated,
        part_added,
        dict_read_before,
    ],
    ids=lambda p: p.__name__,
)
def test_in_one_graph(program):
    plain, module = Holder(program), Holder(program)
    compiled = tcompile.compile(module, backend="eager", fullgraph=True)
    for factor in (1, 2):
        same(compiled(X * factor), plain(X * factor))


def test_hooks_on_registration_are_called():
    heard = []
    plain, module = Holder(set_and_named), Holder(set_and_named)
    compiled = tcompile.compile(module, backend="eager")
    same(compiled(X), plain(X))
    handle = nn.modules.module.register_module_buffer_registration_hook(lambda m, name, buffer: heard.append(name))
    try:
        same(compiled(X), plain(X))
    finally:
        handle.remove()
    assert heard == ["b", "b"]
