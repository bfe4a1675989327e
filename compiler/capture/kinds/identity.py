"""What an object's identity, or all that lives beside it, decides: id(), the text of objects that have none of their
own, the subclasses of a class.

Of an object from outside the address is a number like any other that the entry reads: guarded by its value, and a
symbol once it changed. Of an object made inside nobody knows it yet: a break.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...guards import source as S
from ..arrays.array_value import Array
from .inline_policy import is_trusted_module
from ..numbers.late_text import LateText, made_late
from ..machine.signals import Break
from ..tensors.tensor_subclasses import Subclassed
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ...guards.source import Source
    from ..machine.machine import Machine

__all__ = ["address", "address_hash", "default_text", "refuse_address", "TEXTS", "subclasses"]


def _source(machine: Machine, value: Any) -> tuple[Any, Source | None]:
    """(the object itself, how it is reached)"""
    if type(value) is Array:
        return value, value._source
    if type(value) is TraceTensor:
        value = machine.world.reals.get(id(value), value)
    return value, machine.world.source_of(value)


def address(machine: Machine, value: Any) -> Any:
    """`id(value)`"""
    real, source = _source(machine, value)
    if source is None or type(value) is Subclassed or id(value) in machine.world.originals:
        raise Break(
            "address", "the address of an object is read by id()", "compare by `is`, or key a dict by the object itself"
        )
    if source.root.kind == "const" and source.base is None:  # held by the entry
        return id(real)
    if type(value) is Array:
        raise Break("address")
    at = S.asked(source, id)
    if machine.world.opts.library is not None and machine.world.opts.dynamic is not False:
        # each run of a cell makes it anew
        machine.world.opts.dynamic_ints.add(at)
    return machine.world.load(id(real), at, "its id is read")


def address_hash(machine: Machine, value: Any) -> Any:
    """`hash(value)` of an object that has no hash of its own."""
    real, source = _source(machine, value)
    if source is None or id(value) in machine.world.originals:
        raise Break("address", "the hash of an object that has none of its own is its address")
    if source.root.kind == "const" and source.base is None:  # held by the entry
        return object.__hash__(real)
    return machine.world.load(object.__hash__(real), S.asked(source, object.__hash__), "its hash is read")


def refuse_address(machine: Machine, key: Any) -> None:
    """Break where an address that varies is looked up in a dict from outside: each run of a cell makes such objects
    anew, and no entry would serve the next one."""
    if isinstance(key, torch.SymInt) and _is_address(machine, key):
        raise Break("address")


def _is_address(machine: Machine, key: torch.SymInt) -> bool:
    expr = machine.env.to_expr(key)
    source = machine.env.sources.get(expr.name) if expr.op == "sym" else None
    return source is not None and source.kind == "asked" and source.key is id


def default_text(machine: Machine, value: Any) -> str | LateText:
    """What object.__repr__ says of an object."""
    if machine.world.source_of(value) is None or id(value) in machine.world.originals:
        raise Break("address", "an object's address is made into text")
    n = address(machine, value)
    kind = object.__repr__(value).rpartition(" at ")[0]
    late = made_late(machine, _with_address, (kind, n))
    return _with_address(kind, n) if late is None else late


def _function_text(machine: Machine, fn: types.FunctionType) -> str | LateText:
    if machine.world.source_of(fn) is None:
        raise Break("address", "an object's address is made into text")
    kind, n = f"<function {machine.getattr(fn, '__qualname__')}", address(machine, fn)
    late = made_late(machine, _with_address, (kind, n))
    return _with_address(kind, n) if late is None else late


# what makes the text of objects that have none of their own; objects/texts.py adds bound methods, which hold others
TEXTS: dict[type, Callable[[Any, Any], str | LateText]] = {types.FunctionType: _function_text}


def _with_address(kind: str, n: int) -> str:
    return f"{kind} at {n:#x}>"


def subclasses(machine: Machine, cls: type) -> list[type]:
    """`cls.__subclasses__()`: relied on, since every class statement may change it."""
    found = machine.native(cls.__subclasses__)
    if is_trusted_module(cls.__module__ or ""):
        return found
    source = S.asked(machine.world.source_of(cls) or machine.world.anchor(cls), type.__subclasses__)
    machine.world.guard(source, "LEN", len(found), "its subclasses are listed")
    return [machine.world.load(c, S.item(source, i), "subclass") for i, c in enumerate(found)]
