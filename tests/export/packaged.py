"""Programs to put into packages, with arguments: of the example, and of other calls that have to fit."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

Pair = collections.namedtuple("Pair", "first second")


@dataclass
class Program:
    make: Callable[[], Any]  # a function or module
    args: Callable[[], tuple]
    others: Callable[[], list[tuple]] = lambda: []
    dynamic: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    flat: bool = True  # whether its arguments are those that C++ takes


class Counting(nn.Module):
    """A buffer that each call changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.seen += x.sum(0)
        return self.norm(x) + self.seen


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


class Last(nn.Module):
    """The end of a sequence."""

    def __init__(self, kind, **how):
        super().__init__()
        self.layers = kind(4, 5, 2, batch_first=True, **how)

    def forward(self, x):
        return self.layers(x)[0][:, -1]


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(4, 5), nn.GRUCell(5, 5)

    def forward(self, x):
        h = c = x.new_zeros(x.shape[0], 5)
        for _ in range(2):
            h, c = self.first(x, (h, c))
        return self.second(h, c)


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)).eval()


def several(x, y):
    values, places = torch.topk(x, 3, dim=-1)
    return {"values": values, "places": [places, x + y], "first": x, "size": x.shape[0], "none": None}


def gathered(table, at, weight):
    picked = table[at, :]
    return F.embedding(at, weight) + picked, torch.cumsum(picked, 0), *torch.sort(picked, descending=True)


def changed(x, y):
    x.mul_(2)
    y[0] = x.sum()
    return x + 1


def nested(pair, *, scale=2.0, flag=True):
    a, b = pair["a"], pair["b"][0]
    return Pair(a * scale, a @ b if flag else a)


def drawn(x):
    return F.dropout(x, 0.5, training=True) + torch.rand(4) + torch.randn_like(x)


def by_number(x, n: int):
    return torch.arange(n, device=x.device) * x.sum() + n


def views(x):
    y = x + 1
    return y, y.t(), y[1:]


def odd(x):
    return (
        torch.linalg.solve(x @ x.t() + torch.eye(4, device=x.device), x),
        torch.fft.rfft(x),
        x.to(torch.bfloat16).float().std(),
    )


def rows(*shape):
    return torch.randn(*shape)


PROGRAMS: dict[str, Program] = {
    "mlp": Program(mlp, lambda: (rows(5, 16),)),
    "any batch": Program(mlp, lambda: (rows(5, 16),), lambda: [(rows(2, 16),), (rows(31, 16),)], {"input": [0]}),
    "library products": Program(
        mlp, lambda: (rows(5, 16),), lambda: [(rows(9, 16),)], {"input": [0]}, {"cpu_products": "library"}
    ),
    "recurrent": Program(lambda: nn.LSTM(4, 5, 2), lambda: (rows(3, 2, 4),), lambda: [(rows(3, 2, 4),)]),
    "LSTM of any batch": Program(
        lambda: Last(nn.LSTM), lambda: (rows(3, 4, 4),), lambda: [(rows(2, 4, 4),), (rows(9, 4, 4),)], {"x": [0]}
    ),
    "GRU of any batch": Program(
        lambda: Last(nn.GRU, bidirectional=True), lambda: (rows(3, 4, 4),), lambda: [(rows(7, 4, 4),)], {"x": [0]}
    ),
    "LSTM in float64": Program(
        lambda: Last(nn.LSTM, bidirectional=True, bias=False).double(),
        lambda: (rows(3, 4, 4).double(),),
        lambda: [(rows(7, 4, 4).double(),)],
        {"x": [0]},
    ),
    "cells of any batch": Program(Cells, lambda: (rows(3, 4),), lambda: [(rows(6, 4),)], {"x": [0]}),
    "convolutions": Program(convolutions, lambda: (rows(2, 3, 8, 8),), lambda: [(rows(4, 3, 8, 8),)], {"input": [0]}),
    "attention": Program(Attention, lambda: (rows(2, 6, 16),), lambda: [(rows(2, 9, 16),)], {"x": [1]}),
    "library attention": Program(
        Attention, lambda: (rows(2, 6, 16),), options={"attention": "library", "cpu_products": "library"}
    ),
    "several results": Program(
        lambda: several, lambda: (rows(4, 6), rows(4, 6)), lambda: [(rows(3, 6), rows(3, 6))], {"x": [0], "y": [0]}
    ),
    "gathered": Program(lambda: gathered, lambda: (rows(7, 4), torch.tensor([1, 6, 0]), rows(7, 4))),
    "buffers": Program(Counting, lambda: (rows(6, 3),), lambda: [(rows(6, 3),), (rows(6, 3),)]),
    "changed arguments": Program(lambda: changed, lambda: (rows(3), rows(2))),
    "drawn": Program(lambda: drawn, lambda: (rows(3, 4),)),
    "a number": Program(lambda: by_number, lambda: (rows(3), 5), lambda: [(rows(3), 8)], dynamic=True),
    "views": Program(lambda: views, lambda: (rows(3, 4),)),
    "odd operators": Program(lambda: odd, lambda: (rows(4, 4),)),
    "nested": Program(lambda: nested, lambda: ({"a": rows(2, 3), "b": [rows(3, 2)]},), flat=False),
}


def leaves(x: Any) -> list[Any]:
    """The tensors and numbers of a result, in order."""
    if isinstance(x, dict):
        x = list(x.values())
    return [leaf for y in x for leaf in leaves(y)] if isinstance(x, (list, tuple)) else [x]
