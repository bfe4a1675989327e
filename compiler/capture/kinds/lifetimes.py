"""When objects end: finalizers, callbacks of weak references, and what asks whether an object is still there.

An entry does what the program did to objects after the graph, and holds what it works with until it returns: an object
does not end where it would end in eager. Where the program could tell, the frame runs plainly, with what it calls
looked at frame by frame.
"""

from __future__ import annotations

import collections
import gc
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, Iterable

from ...guards.weak import Weak
from .callables import function
from .lookups import MISSING, found_in
from ..machine.signals import Plainly
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["refuse_finalizer", "refuse_reference", "release", "released_by"]

_REMEDY = "release what it holds in a with statement, or do this outside of the compiled region"
_DEPTH, _LOOK = 3, 64  # how deep and how far containers are looked into
_RELEASING = frozenset(
    """pop popitem popleft clear remove discard update __ior__ __iand__ __isub__ __ixor__ difference_update
    intersection_update symmetric_difference_update append appendleft extend __init__""".split()
)


def refuse_finalizer(cls: type) -> None:
    """An instance of the class is made: not by capture, if it has a finalizer."""
    raise Plainly(
        "lifetime", f"an instance of {cls.__name__} is made, and its __del__ runs when the last reference goes", _REMEDY
    )


def refuse_reference(what: str) -> None:
    raise Plainly(
        "lifetime",
        f"{what} is made: it notices when the object is freed, which a graph does not follow",
        "hold the object itself",
    )


def release(machine: Machine, values: Iterable[Any]) -> None:
    """References to objects from outside go, by a write that the entry does later."""
    for value in values:
        said = _who_hears(machine, value, 0)
        if said:
            raise Plainly("lifetime", said, _REMEDY)


def _who_hears(machine: Machine, value: Any, depth: int) -> str:
    """Who hears that the object, or one that it holds, ends; empty where nobody does. Notes weak references, which may
    be asked later.
    """
    cls = type(value)
    if cls in ATOMS or cls is TraceTensor or isinstance(value, (type, types.ModuleType, types.FunctionType)):
        return ""
    if isinstance(found_in(cls, "__del__"), types.FunctionType) and not _is_librarys(cls.__module__):
        return f"the last reference to a {cls.__name__} may go, which runs its __del__"
    if cls.__weakrefoffset__:
        for reference in weakref.getweakrefs(value):
            callback = reference.__callback__
            if callback is None:
                machine.referenced |= type(reference) is not Weak
            elif not _is_librarys(getattr(callback, "__module__", None)):
                return f"the last reference to a {cls.__name__} may go, which a weak reference shows"
    if depth < _DEPTH:
        for part in _parts(value):
            if said := _who_hears(machine, part, depth + 1):
                return said
    return ""


def _is_librarys(module: Any) -> bool:
    """Whether what hears is torch's or the compiler's own, whose books do not show in the program."""
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "tcompile")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return [
            v
            for v, _ in zip(
                value.__iter__() if type(value) in (list, tuple, set, frozenset, collections.deque) else (),
                range(_LOOK),
            )
        ]
    if type(value) is dict:
        return [item for item, _ in zip(value.values(), range(_LOOK))]
    own = getattr(value, "__dict__", None) if type(value).__flags__ & (1 << 9) else None
    return [v for v, _ in zip(own.values(), range(_LOOK))] if type(own) is dict else []


def released_by(obj: Any, name: str, args: list) -> list[Any]:
    """What a method of a container from outside may let go of."""
    if name in ("__setitem__", "__delitem__"):
        if isinstance(obj, dict):
            held = dict.get(obj, args[0], MISSING) if type(args[0]) in ATOMS else MISSING
            return [] if held is MISSING else [held]
        return (
            [obj[args[0]]]
            if type(args[0]) is int and isinstance(obj, (list, collections.deque)) and -len(obj) <= args[0] < len(obj)
            else _parts(obj)
        )
    bounded = isinstance(obj, collections.deque) and obj.maxlen is not None
    return _parts(obj) if name in _RELEASING and (bounded or name not in ("append", "appendleft", "extend")) else []


_ASKED = "put this line into a cell, or a function, of its own: what stands beside it is compiled then"


@function(sys.getrefcount, gc.get_referrers, gc.get_objects, weakref.getweakrefcount, weakref.getweakrefs)
def counted_(machine: Machine, *args: Any) -> Any:
    raise Plainly("lifetime", "the code asks who holds an object", _ASKED)
