"""functools.lru_cache and cache: what such a function gives is what its cache holds.

A value that never changes is what the function computes; each call of the entry asks the cache for it, and runs plainly
where that has another. What may change (a tensor, a list, an object) is one and the same for everybody who asks: the
function is called where it stands.
"""

from __future__ import annotations

import enum
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from ...guards import source as S
from ...guards.source import UnlikeNumber
from ...guards.source_values import const_equal, is_constant
from . import builtin_calls
from .inline_policy import is_trusted_module
from .operators import hashed
from ..machine.signals import Break, Raised
from ..machine.stack_values import ATOMS, constant_only, specialize

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["call_cached", "asked_again"]

_SHARED = (torch.Tensor, list, dict, set)  # one and the same for everybody who asks


def call_cached(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """fn(*args, **kwargs) of a functools.lru_cache."""
    inner = fn.__wrapped__
    if builtin_calls.is_logging(inner):
        machine.world.anchor(fn)
        return builtin_calls.log_effect(machine, fn, args, kwargs)
    source = machine.world.source_of(fn) or machine.world.anchor(fn)
    if is_trusted_module(getattr(inner, "__module__", None) or ""):
        # what torch and the standard library cache are functions of their arguments
        if isinstance(inner, types.FunctionType) and machine.world.source_of(inner) is None:
            machine.world.register(inner, S.attr(source, "__wrapped__"))
        return machine.call(inner, args, kwargs)
    machine.world.guard(source, "ID", fn, "cached function")
    if isinstance(inner, types.FunctionType) and machine.world.source_of(inner) is None:
        machine.world.register(inner, S.attr(source, "__wrapped__"))
    return _ask(machine, fn, getattr(inner, "__qualname__", repr(inner)), args, kwargs)


def _ask(machine: Machine, fn: Any, name: str, args: list, kwargs: dict) -> Any:
    """The value that the cache has, or gets now."""
    given = [_key(machine, arg) for arg in args], {key: _key(machine, item) for key, item in kwargs.items()}
    late = bool(machine.effects or machine.graph.written)
    if len(machine.graph.scopes) > 1 or late and not constant_only((*given[0], *given[1].values())):
        raise Break("c_call", f"the cached function {name} is called after side effects that it may see")
    before, calls = len(machine.effects.entries), machine.graph.calls
    try:
        # to see whether it has effects: whether and when those happen depends on its cache
        result = machine.call(fn.__wrapped__, args, kwargs)
    except Raised:
        raise Break("c_call", f"the cached function {name} raises") from None
    new = [entry for entry in machine.effects.entries[before:] if entry is not None]
    may_write = bool(machine.graph.written) and machine.graph.calls > calls
    if new and result is None and all(e.kind == "call" for e in new) and not may_write:
        del machine.effects.entries[before:]  # it only prints or logs: the cache decides, when the entry runs
        return builtin_calls.log_effect(machine, fn, args, kwargs)
    if new or may_write:
        raise Break("c_call", f"the cached function {name} has side effects: whether they happen depends on its cache")
    if fn.cache_parameters()["maxsize"] == 0:
        raise Break("c_call", f"the cached function {name} caches nothing")
    value = specialize(result)
    if late and not const_equal(value, _without_effects(fn, name, args, kwargs)):
        raise Break("c_call", f"the cached function {name} is called after side effects that it sees")
    if type(value) not in ATOMS and not isinstance(value, _SHARED):
        # It is told by its identity: the cache is asked now. An atom waits for the entry, which asks as often as the
        # program does: cache_info() counts that.
        try:
            value = fn(*given[0], **given[1])
        except Exception:
            raise Break("c_call", f"the cached function {name} raises") from None
    if not is_constant(value):
        raise Break(
            "c_call",
            f"the cached function {name} gives a {type(value).__name__}, which its cache holds and others may change",
            "call it before the compiled region, and pass what it gives",
        )
    machine.cached.append((fn, *given, value))
    if isinstance(value, (tuple, type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
        machine.world.anchor(value)
    return value


def _without_effects(fn: Any, name: str, args: list, kwargs: dict) -> Any:
    """What a function of constants gives now, while effects of the program wait for the entry's end: the entry asks the
    cache before them.
    """
    try:
        return fn.__wrapped__(*args, **kwargs)
    except Exception:
        raise Break("c_call", f"the cached function {name} raises, though no side effect came before it") from None


def _key(machine: Machine, value: Any) -> Any:
    """An argument that the cache may look up: a constant, or an object from outside by its identity, which is relied
    on.
    """
    value = hashed(value)
    if type(value) in ATOMS or type(value) is tuple and constant_only(value):
        return value
    if isinstance(value, type):
        machine.world.anchor(value)
        return value
    source = machine.world.source_of(value)
    if source is not None and type(value).__hash__ is object.__hash__ and type(value).__weakrefoffset__:
        machine.world.guard(source, "WEAK_ID", weakref.ref(value), "argument of a cached function")
        return value
    raise Break("c_call", f"a cached function is called with a {type(value).__name__}")


def asked_again(fn: Any, known: Any, /, *args: Any, **kwargs: Any) -> None:
    """Ask a cache for what was relied on. Raises UnlikeNumber where it gives something else by now."""
    value = fn(*args, **kwargs)
    if value is not known and not const_equal(value, known):
        raise UnlikeNumber("the cache of a function no longer gives what it gave")
