"""Methods of a container made inside, or of an immutable value: how their arguments are made ready for native code."""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING, Any

import torch

from ..callables import FUNCTIONS
from ..containers import as_mapping
from ..elements import as_index, as_key, items, search, settle_keys, spelled
from ...machine.stack_values import ATOMS
from ...numbers.late_text import hashed, made_late
from .method_cases import Case, Cases, NativeCall, bound

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["inside_method"]

_SETS = (set, frozenset)
_SEARCHED = ("index", "count", "remove", "__contains__")
_TAKES_KEY = frozenset(
    ("get", "pop", "setdefault", "__contains__", "__getitem__", "__setitem__", "add", "discard", "remove")
)
_TAKES_ITERABLE = tuple(
    """extend __iadd__ join union intersection difference issubset issuperset isdisjoint symmetric_difference
    difference_update intersection_update extendleft update""".split()
)


def inside_method(machine: Machine, call: NativeCall) -> Any:
    """A method of a container made inside, or of an immutable value."""
    if (late := _late_text(machine, call)) is not None:
        return late
    call = _with_settled_key(machine, call)
    answer = _ANSWERS.find(machine, call)
    if answer is not None:
        return answer.do(machine, call)
    preparation = _PREPARATIONS.find(machine, call)
    if preparation is not None:
        call = preparation.do(machine, call)
    call = _with_plain_numbers(machine, call)
    return machine.native(bound(call.fn, call.owner), *call.args, **call.kwargs)


def _late_text(machine: Machine, call: NativeCall) -> Any:
    """The text of str.format and str.join, where it holds numbers that vary; None where it holds none."""
    if call.name not in ("format", "join") or type(call.owner) is not str:
        return None
    return made_late(machine, getattr(str, call.name), (call.owner, *call.args), call.kwargs)


def _with_settled_key(machine: Machine, call: NativeCall) -> NativeCall:
    """The first argument of a method that looks for a key is hashed: it is known as what it is now."""
    if call.args and call.name in _TAKES_KEY and isinstance(call.owner, (dict, *_SETS)):
        args = [hashed(call.args[0]), *call.args[1:]]
        settle_keys(machine, args[:1], call.owner)
        return call._replace(args=args)
    return call


# --- methods that are done here
def _has_arguments(machine: Machine, call: NativeCall) -> bool:
    return bool(call.args)


def _get(machine: Machine, call: NativeCall) -> Any:
    """dict.get(key, default)"""
    owner, args = call.owner, call.args
    return owner[args[0]] if machine.native(lambda: args[0] in owner) else (args[1] if len(args) > 1 else None)


def _sort(machine: Machine, call: NativeCall) -> None:
    """list.sort(), which calls back for comparisons and keys."""
    call.owner[:] = FUNCTIONS[sorted](machine, call.owner, **call.kwargs)


def _search(machine: Machine, call: NativeCall) -> Any:
    """An element is looked for by ==, which the program may define."""
    return search(machine, call.owner, call.name, call.args)


def _format(machine: Machine, call: NativeCall) -> Any:
    """str.format(...)"""
    args, kwargs = call.args, call.kwargs
    return machine.native(
        bound(call.fn, call.owner),
        *[spelled(machine, arg) for arg in args],
        **{name: spelled(machine, value) for name, value in kwargs.items()},
    )


_ANSWERS = Cases(
    Case(_get, ("get",), dict, _has_arguments),
    Case(_sort, ("sort",), list),
    Case(_search, _SEARCHED, (list, tuple, collections.deque), _has_arguments),
    Case(_format, ("format",), str),
)


# --- arguments made ready, of the rest
def _as_pairs(machine: Machine, call: NativeCall) -> NativeCall:
    """A mapping, or pairs of keys and values."""
    value = machine.plain(call.args[0] if call.args else {})
    if not isinstance(value, dict):
        if hasattr(type(value), "keys"):
            value = as_mapping(machine, value)
        else:
            value = [tuple(machine.iterate(pair)) for pair in machine.iterate(value)]
            settle_keys(machine, [pair[0] for pair in value if pair], call.owner)
    return call._replace(args=[value])


def _as_they_are(machine: Machine, call: NativeCall) -> NativeCall:
    return call


def _iterables(machine: Machine, call: NativeCall) -> NativeCall:
    """Iterables, gone through by the interpreter."""
    args = [items(machine, arg) if not isinstance(arg, _SETS) else machine.plain(arg) for arg in call.args]
    if isinstance(call.owner, _SETS):
        for arg in args:
            settle_keys(machine, arg, call.owner)
    return call._replace(args=args)


def _lists(machine: Machine, call: NativeCall) -> NativeCall:
    """What a container's __init__ is given."""
    return call._replace(args=[list(machine.iterate(arg)) for arg in call.args])


def _plain_values(machine: Machine, call: NativeCall) -> NativeCall:
    """Values that native code compares."""
    return call._replace(args=[machine.deep_plain(arg) for arg in call.args])


def _callbacks(machine: Machine, call: NativeCall) -> NativeCall:
    """Values, and functions of the program that native code calls: re.sub(function, ...)."""

    def ready(a: Any) -> Any:
        return machine.callback(a) if callable(a) and type(a) not in ATOMS else machine.deep_plain(a)

    return call._replace(
        args=list(map(ready, call.args)), kwargs={name: ready(value) for name, value in call.kwargs.items()}
    )


# A dict's own methods come before those of the same name of other containers.
_PREPARATIONS = Cases(
    Case(_as_pairs, ("update", "__init__", "__ior__"), dict),
    Case(_as_they_are, (), dict),
    Case(_iterables, _TAKES_ITERABLE),
    Case(_lists, ("__init__",)),
    Case(_plain_values, (*_SEARCHED, "__eq__", "__ne__", "__add__", "__lt__")),
    Case(_callbacks, (), (str, bytes, re.Pattern)),
)


def _with_plain_numbers(machine: Machine, call: NativeCall) -> NativeCall:
    """Numbers that vary, and objects with __index__, as native code takes them: as indices, else as numbers."""
    fn, owner, name, args, kwargs = call
    if isinstance(owner, (str, bytes)) or name in ("insert", "pop", "rotate") and not isinstance(owner, (dict, set)):
        indices = 1 if name == "insert" else len(args)  # what is inserted stays
        args = [as_index(machine, arg) for arg in args[:indices]] + args[indices:]
    elif isinstance(owner, slice):
        owner, args = as_key(machine, owner), [as_index(machine, arg) for arg in args]
        fn = getattr(owner, name)
    if any(isinstance(arg, torch.SymInt) for arg in args) and not isinstance(
        owner, (list, dict, set, collections.deque)
    ):
        args = [int(arg) if isinstance(arg, torch.SymInt) else arg for arg in args]
    return NativeCall(fn, owner, name, args, kwargs)
