"""What a written program finds in its globals: the functions and classes that its statements use."""

from __future__ import annotations

import collections
import dataclasses

_FOR_RARE_STATEMENTS = '''
class Quiet:
    """Swallows Problem; keeps a diary."""
    def __init__(self, notes, name):
        self.notes, self.name = notes, name
    def __enter__(self):
        self.notes.append("enter " + self.name)
        return self
    def __exit__(self, kind, exc, tb):
        self.notes.append(("exit " + self.name, kind and kind.__name__))
        return kind is Problem
@contextlib.contextmanager
def managed(notes, x):
    notes.append("open")
    try:
        yield x * 2
    except Problem:
        notes.append("problem")
    finally:
        notes.append("close")
def risky(x, k):
    """Breaks, and fails for some k."""
    y = torch.tanh(x)
    if y.sum() > 1e9:
        return y
    if k == 2:
        raise Problem("risky", k)
    return y + k
def branchy(x):
    y = x * 0.5
    if y.mean() > 0:
        y = y + 1
    return torch.sin(y)
def counted(x, notes):
    notes.append(round(float(x.detach().abs().clamp(max=3).mean()), 2))
    return x * 2
def produce(x, k, notes):
    try:
        for q in range(k):
            got = yield x * q
            if got is not None:
                x = x + got
        return k
    finally:
        notes.append("closed")
def delegate(x, k, notes):
    last = yield from produce(x, k, notes)
    yield x + last
class Meter:
    total = 0
    def __init__(self):
        self.history = []
    def __enter__(self):
        self.history.append("in")
        return self
    def __exit__(self, *exc):
        self.history.append("out")
    def update(self, x):
        Meter.total += 1
        self.history.append(Meter.total)
        self.last = x
        return x + len(self.history)
    def __getattr__(self, name):
        if name.startswith("x_"):
            return len(name)
        raise AttributeError(name)
    def __eq__(self, other):
        return isinstance(other, Meter) and self.history == other.history
    __hash__ = None
'''

PRELUDE = (
    """
import collections, contextlib, dataclasses, functools, itertools, operator
import torch
STATE = {}
COUNTS = [0]
COUNT = 0
def region():
    return torch.autocast("cpu", enabled=False)
class Problem(Exception):
    pass
class Shape:
    def __init__(self, x, k):
        self.x, self.k = x, k
    @property
    def double(self):
        return self.x * 2
    @property
    def half(self):
        return self.x / 2
    def __len__(self):
        return self.x.shape[0]
    def __getitem__(self, i):
        return self.x[i]
def bump(k):
    global COUNT
    COUNT += k % 2
def gather(*ts, k=1, last=None, **more):
    out = sum(ts) * k
    return out if last is None else out - last
def steps(x, k):
    for i in range(k):
        yield x * i
        x = x + 1
class Box:
    def __init__(self, x):
        self.x, self.count = x, 0
    def scaled(self, k):
        self.count += 1
        return self.x * k
class Child(Box):
    offset = 2
    def scaled(self, k):
        return super().scaled(k) + self.offset
    @classmethod
    def kind(cls, x):
        return x * cls.offset
    @staticmethod
    def other(x):
        return x
class Note:
    def __init__(self, notes):
        self.notes = notes
    def __enter__(self):
        self.notes.append("in")
    def __exit__(self, *exc):
        self.notes.append("out")
"""
    + _FOR_RARE_STATEMENTS
)

_PRELUDE = compile(PRELUDE, "<fuzz prelude>", "exec")


class Pair(collections.namedtuple("Pair", "x k")):
    __slots__ = ()


@dataclasses.dataclass
class Data:
    x: object
    k: int = 1


def namespace() -> dict:
    """The globals of a program: PRELUDE's functions and classes, made anew."""
    ns = {"__name__": "fuzz", "Pair": Pair, "Data": Data}
    exec(_PRELUDE, ns)
    return ns
