"""What a class or an object holds is exchanged between calls, for each kind of object that has a meaning of its own
there: the result is always eager's.
"""

from __future__ import annotations

import enum
import functools
import operator
import types
import weakref
from typing import Any, Callable

import pytest
import tcompile
import torch
import torch.nn.functional as F
from torch import nn

from .changing import run

x = torch.tensor([0.5, 1.5])


class Base:
    pass


class Holder(Base):
    def own(self) -> Any:
        return self.a  # type: ignore[attr-defined]

    def inherited(self) -> Any:
        return super().a  # type: ignore[misc]


class Returns:
    """Called, or asked as a descriptor, it gives a number."""

    def __init__(self, k: int):
        self.k = k

    def __call__(self, *args: Any) -> int:
        return self.k


class Descriptor(Returns):
    def __get__(self, obj: Any, cls: Any) -> int:
        return self.k


class Number(enum.IntEnum):
    TWO, THREE, FIVE = 2, 3, 5


kept = {k: Returns(k) for k in (2, 3, 5)}

KINDS: dict[str, Callable[[int], Any]] = {
    "int": lambda k: k,
    "str": lambda k: "a" * k,
    "tuple": lambda k: (k, 1),
    "list": lambda k: [k, 1],
    "none": lambda k: None if k == 2 else k,
    "enum": Number,
    "range": range,
    "slice": lambda k: slice(0, k),
    "namespace": lambda k: types.SimpleNamespace(v=k),
    "function": lambda k: lambda *args: k,
    "builtin": lambda k: {2: abs, 3: float, 5: hash}[k],
    "function of torch": lambda k: {2: torch.sin, 3: torch.cos, 5: torch.tan}[k],
    "method of Tensor": lambda k: {2: torch.Tensor.sin, 3: torch.Tensor.cos, 5: torch.Tensor.exp}[k],
    "functional": lambda k: {2: F.relu, 3: F.gelu, 5: F.silu}[k],
    "operator": lambda k: {2: torch.ops.aten.sin.default, 3: torch.ops.aten.cos.default, 5: torch.ops.aten.exp.default}[
        k
    ],
    "packet": lambda k: {2: torch.ops.aten.sin, 3: torch.ops.aten.cos, 5: torch.ops.aten.exp}[k],
    "partial": lambda k: functools.partial(lambda a, *b: a, k),
    "static": lambda k: staticmethod(lambda *args: k),
    "static native": lambda k: staticmethod({2: abs, 3: float, 5: hash}[k]),
    "class method": lambda k: classmethod(lambda c, *args: k),
    "property": lambda k: property(lambda s: k),
    "cached property": lambda k: functools.cached_property(lambda s: k),
    "descriptor": Descriptor,
    "callable": Returns,
    "bound": lambda k: Returns(k).__call__,
    "bound native": lambda k: ("a" * k).count,
    "cache": lambda k: functools.lru_cache(lambda *args: k),
    "compiled": lambda k: tcompile.compile(lambda *args: args[-1] * k),
    "class": lambda k: type("Made", (), {"v": k}),
    "weak reference": lambda k: weakref.ref(kept[k]),
    "module class": lambda k: {2: nn.ReLU, 3: nn.Sigmoid, 5: nn.Tanh}[k],
    "module": lambda k: {2: nn.ReLU(), 3: nn.Sigmoid(), 5: nn.Tanh()}[k],
    "tensor": lambda k: torch.full((2,), float(k)),
}


def use(v: Any) -> Any:
    """A number or tensor made of whatever it is."""
    if isinstance(v, torch.Tensor):
        return v.sum()
    if isinstance(v, (int, float)):
        return float(v)
    if isinstance(v, (str, range)):
        return float(len(v))
    if isinstance(v, (tuple, list)):
        return float(v[0])
    if v is None:
        return -1.0
    if isinstance(v, slice):
        return float(v.stop)
    if isinstance(v, types.SimpleNamespace):
        return float(v.v)
    if isinstance(v, weakref.ref):
        return float(v().k)
    if isinstance(v, type):
        return use(v()(x)) if issubclass(v, nn.Module) else use(v(2.5) if v is float else v().v)
    try:
        result = v(x)
    except TypeError:
        try:
            result = v("a")
        except TypeError:
            result = v(-2.5)
    return use(result)


holder = Holder()
ACCESS: dict[str, Callable[[torch.Tensor], Any]] = {
    "class": lambda x: x * use(Holder.a),
    "instance": lambda x: x * use(holder.a),
    "self": lambda x: x * use(holder.own()),  # type: ignore[attr-defined]
    "super": lambda x: x * use(holder.inherited()),
    "getattr": lambda x: x * use(getattr(holder, "a", 0)),
    "made": lambda x: x * use(Holder().a),  # type: ignore[attr-defined]
    "attrgetter": lambda x: x * use(operator.attrgetter("a")(holder)),
    "vars": lambda x: x * use(vars(Base)["a"]),
}


def outcome(f: Callable, make: Callable[[int], Any], k: int, own: bool) -> Any:
    """The value, or the type of the error. What is held is made anew, as a call may use it up."""
    vars(holder).pop("a", None)
    held = make(k)
    if own and k != 2:
        vars(holder)["a"] = held
    else:
        Base.a = held  # type: ignore[attr-defined]
        if isinstance(held, functools.cached_property):
            held.__set_name__(Base, "a")
    try:
        return f(x)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("kind", KINDS)
def test_like_eager(kind: str, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: [vars(holder).clear(), hasattr(Base, "a") and delattr(Base, "a")])
    for access, f in ACCESS.items():
        for own in (False, True) if access in ("instance", "self", "getattr", "attrgetter") else (False,):
            tcompile.reset()
            compiled = run(f)
            for k in (2, 3, 5, 2):
                got, expected = outcome(compiled, KINDS[kind], k, own), outcome(f, KINDS[kind], k, own)
                same = (
                    torch.equal(got, expected)
                    if isinstance(got, torch.Tensor) and isinstance(expected, torch.Tensor)
                    else got == expected
                )
                assert same, (access, own, k, got, expected)
