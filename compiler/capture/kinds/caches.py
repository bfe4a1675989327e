"""functools.lru_cache and cache: what such a function gives is what its cache holds.

The entry asks the cache as often as the program does, before anything else, and runs plainly where it no longer gives
what capture relied on. Three things may be relied on:

* a constant: what the function computes. Capture asks for nothing;
* an object (a tensor, a list, an instance), which is one and the same for everybody who asks: it is one from outside,
  known by its identity, with guards on what is read of it. Where the cache lacks it, the function is followed to see
  that it has no effects, and capture asks;
* what a function makes of numbers that vary: lists and the like, which are compared with what following it foretold.
"""

from __future__ import annotations

import gc
import itertools
import types
import weakref
from typing import TYPE_CHECKING, Any, Sequence

import torch

from ...guards import source as S
from ...guards.source import Source
from ...guards.source_values import const_equal, plain_key
from . import builtin_calls
from .inline_policy import is_trusted_module
from ..numbers.late_text import hashed
from ..numbers.tensor_reads import is_read
from ..machine.signals import Break, Raised
from ..machine.stack_values import ATOMS, MISSING, has_owner, specialize

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["call_cached", "Asked", "Place"]

_LOGGED = object()  # the function prints or logs only: its call is an effect of the entry
_MOST_DEPTH = 12


class _Plain:
    """An instance that has nothing but its __dict__."""


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
    if any(map(_varies, (*args, *kwargs.values()))) and not machine.effects:
        value = _foretold(machine, fn, name, args, kwargs)
        if value is not MISSING:
            return value
    given = [_key(machine, arg) for arg in args], {key: _key(machine, item) for key, item in kwargs.items()}
    place = Place(fn)
    if place.has(*given):  # nothing runs, whatever the program has done so far
        return _known(machine, fn, name, given, place, False)
    late = bool(machine.effects or machine.graph.written) or len(machine.graph.scopes) > 1
    calls = machine.graph.calls
    value = specialize(_followed(machine, fn, name, args, kwargs))
    if value is _LOGGED:
        return None
    if machine.graph.calls > calls and type(value) not in ATOMS:
        if plain_key(key := place.key(*given)):  # once the cache has it, it is an input
            machine.opts.uncached.append((place.cache, key))
        raise Break("c_call", f"the cached function {name} makes tensors, which its cache is to hold")
    if late and not _alike(value, _without_effects(fn, name, *given)):
        raise Break("c_call", f"the cached function {name} is called after side effects that it sees")
    if type(value) in ATOMS:  # the entry asks, for its first run, too: cache_info() counts that
        machine.cached.append(Asked(fn, *given, value))
        return value
    return _known(machine, fn, name, given, place, True)


def _followed(machine: Machine, fn: Any, name: str, args: list, kwargs: dict) -> Any:
    """What the function itself gives. It is followed to see whether it has effects: whether and when those happen
    depends on its cache.
    """
    before, calls = len(machine.effects.entries), machine.graph.calls
    try:
        result = machine.call(fn.__wrapped__, args, kwargs)
    except Raised:
        raise Break("c_call", f"the cached function {name} raises") from None
    new = [entry for entry in machine.effects.entries[before:] if entry is not None]
    may_write = bool(machine.graph.written) and machine.graph.calls > calls
    if new and result is None and all(e.kind == "call" for e in new) and not may_write:
        del machine.effects.entries[before:]  # it only prints or logs: the cache decides, when the entry runs
        builtin_calls.log_effect(machine, fn, args, kwargs)
        return _LOGGED
    if new or may_write:
        raise Break("c_call", f"the cached function {name} has side effects: whether they happen depends on its cache")
    if fn.cache_parameters()["maxsize"] == 0:
        raise Break("c_call", f"the cached function {name} caches nothing")
    return result


def _value(machine: Machine, fn: Any, name: str, place: Place, given: tuple[list, dict]) -> tuple[Any, list]:
    """(what the cache has: the very object that everybody gets who asks; a list that holds it until the entry has run
    once, where capture made the cache have it: that run does not ask again)
    """
    key = place.key(*given)
    if place.has(*given):
        return place.value(fn, key), machine.opts.asked.get((fn, key), [])
    try:
        value = fn(*given[0], **given[1])
    except Exception:
        raise Break("c_call", f"the cached function {name} raises") from None
    return value, machine.opts.asked.setdefault((fn, key), [value])


def _known(machine: Machine, fn: Any, name: str, given: tuple[list, dict], place: Place, followed: bool) -> Any:
    """What the cache gives, as a value from outside that the entry relies on."""
    value, first = _value(machine, fn, name, place, given)
    known = value if type(value) in ATOMS else S.shared(value)
    machine.cached.append(Asked(fn, *given, known, None if followed else place, first))
    return machine.world.load(value, known, f"what the cache of {name} has") if type(known) is Source else value


def _without_effects(fn: Any, name: str, args: list, kwargs: dict) -> Any:
    """What a function of constants gives now, while effects of the program wait for the entry's end: the entry asks the
    cache before them.
    """
    try:
        return fn.__wrapped__(*args, **kwargs)
    except Exception:
        raise Break("c_call", f"the cached function {name} raises, though no side effect came before it") from None


def _alike(a: Any, b: Any, depth: int = 0) -> bool:
    """Whether two values are made of equal constants in the same way."""
    if const_equal(a, b):
        return True
    if type(a) is not type(b) or depth > _MOST_DEPTH:
        return False
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(_alike(x, y, depth + 1) for x, y in zip(a, b))
    if type(a) is dict:
        return len(a) == len(b) and all(_alike(x, y, depth + 1) for x, y in zip(a.items(), b.items()))
    fields = getattr(a, "__dict__", None)
    plain = type(a).__new__ is object.__new__ and type(a).__basicsize__ == _Plain.__basicsize__
    return plain and type(fields) is dict and _alike(fields, b.__dict__, depth + 1)


class Place:
    """Where a cache of functools keeps what it has: the dict in which it looks, and what its keys are made of.

    Nobody else says what a cache has without being asked, which it counts. So this reads what the collector of cycles
    sees: the class, key, result and class of each link of a cache that is bounded, the dict, the function, the mark
    before keywords.
    """

    def __init__(self, fn: Any) -> None:
        held = gc.get_referents(fn)
        at = next((i for i in range(len(held) - 2, 1, -1) if held[i] is fn.__wrapped__), 0)
        if type(held[at - 1]) is not dict or at % 3 != 2:
            raise Break(
                "c_call", f"the cache of {getattr(fn, '__qualname__', fn)} is kept in another way than functools'"
            )
        self.cache, self.mark, self.typed = held[at - 1], held[at + 1], fn.cache_parameters()["typed"]

    def value(self, fn: Any, key: Any) -> Any:
        """What it has for a key."""
        held = gc.get_referents(fn)
        links = next(i for i, part in enumerate(held) if part is self.cache) // 3
        return dict(zip(held[1 : 3 * links : 3], held[2 : 3 * links : 3]))[key] if links else self.cache[key]

    def key(self, args: Sequence[Any], kwargs: dict) -> Any:
        """The key of a call."""
        if len(args) == 1 and not kwargs and not self.typed and type(args[0]) in (int, str):
            return args[0]
        key = (*args, self.mark, *itertools.chain(*kwargs.items())) if kwargs else tuple(args)
        return (*key, *map(type, args), *map(type, kwargs.values())) if self.typed else key

    def has(self, args: Sequence[Any], kwargs: dict) -> bool:
        return self.key(args, kwargs) in self.cache


def _key(machine: Machine, value: Any, now: bool = False) -> Any:
    """An argument that the cache may look up: a constant, or an object from outside by its identity, which is relied
    on. `now`: numbers that vary are what they are in this call.
    """
    if type(value) in (tuple, torch.Size):
        return type(value)([_key(machine, item, now) for item in value])
    value = value.node.hint if now and isinstance(value, torch.SymInt) else hashed(value)
    if type(value) in ATOMS:
        return value
    if isinstance(value, type) or type(value) is types.BuiltinFunctionType and not has_owner(value):
        machine.world.anchor(value)
        return value
    source = machine.world.source_of(value)
    if source is not None and type(value).__hash__ is object.__hash__ and type(value).__weakrefoffset__:
        machine.world.guard(source, "WEAK_ID", weakref.ref(value), "argument of a cached function")
        return value
    raise Break("c_call", f"a cached function is called with a {type(value).__name__}")


def _varies(value: Any) -> bool:
    """Whether an argument is a number that varies, or a tuple that holds one."""
    if isinstance(value, torch.SymInt):
        return not is_read(value)
    return type(value) in (tuple, torch.Size) and any(map(_varies, value))


def _foretold(machine: Machine, fn: Any, name: str, args: list, kwargs: dict) -> Any:
    """What the function makes of numbers that vary, as its cache has it; MISSING where those are to be fixed."""
    place, given = Place(fn), _given_now(machine, args, kwargs)
    for asked in machine.cached:
        if (
            asked.source is not None
            and asked.fn is fn
            and place.key(*_given_now(machine, asked.args, asked.kwargs)) == place.key(*given)
            and _equal([*asked.args, *asked.kwargs.values()], [*args, *kwargs.values()])
        ):
            machine.cached.append(Asked(fn, args, kwargs, asked.source, None, asked.first))
            return machine.world.loaded[asked.source]
    result = _followed(machine, fn, name, args, kwargs)
    if result is _LOGGED:
        return None
    if type(result) in ATOMS or _varies(result):
        machine.cached.append(Asked(fn, args, kwargs, result))
        return result
    if not _is_plain(machine, result, {}):
        return MISSING
    value, first = _value(machine, fn, name, place, given)
    source = S.cached(len(machine.cached), name)
    if not _relate(machine, value, result, source):
        held = "another value than a call would give now, or an object that capture knows already"
        raise Break("c_call", f"the cache of {name} holds {held}")
    machine.cached.append(Asked(fn, args, kwargs, result, None, first, source))
    return value


def _given_now(machine: Machine, args: Sequence[Any], kwargs: dict) -> tuple[list, dict]:
    """Arguments as the cache looks them up in this call."""
    return [_key(machine, arg, True) for arg in args], {
        name: _key(machine, item, True) for name, item in kwargs.items()
    }


def _equal(these: Sequence[Any], those: Sequence[Any]) -> bool:
    """Whether arguments that have one key now are the same in each call: relied on, for numbers that vary."""
    return all(
        bool(a == b) if torch.SymInt in (type(a), type(b)) else type(a) not in (tuple, torch.Size) or _equal(a, b)
        for a, b in zip(these, those)
    )


def _is_plain(machine: Machine, value: Any, seen: dict) -> bool:
    """Whether a value is made of constants, numbers that vary, and lists, tuples and dicts of those, each once."""
    if type(value) in ATOMS or isinstance(value, torch.SymInt):
        return not is_read(value)
    if type(value) not in (list, tuple, dict) or seen.setdefault(id(value), len(seen)) < len(seen) - 1:
        return False
    if machine.world.is_outside(value):
        return True
    if type(value) is dict:
        return all(type(key) in ATOMS for key in value) and _is_plain(machine, list(value.values()), seen)
    return all(_is_plain(machine, item, seen) for item in value)


def _relate(machine: Machine, value: Any, result: Any, source: Source) -> bool:
    """Say of a value that the cache has, and of its parts, that they are reached by `source`, and that numbers in them
    are those of `result`, which was foretold. False where it is another value.
    """
    world = machine.world
    if isinstance(result, torch.SymInt):
        world.loaded[source] = result
        return type(value) is int and value == result.node.hint
    if type(result) in ATOMS or world.is_outside(result):
        world.loaded[source] = result
        return value is result or type(value) in ATOMS and const_equal(value, result)
    if type(value) is not type(result) or len(value) != len(result):
        return False
    if world.is_outside(value):
        return False
    world.register(value, source)
    world.loaded[source] = value
    if type(value) is dict:
        steps: Any = [(S.dict_value(source, key), value[key], result[key]) for key in result if key in value]
        return len(steps) == len(result) and all(_relate(machine, v, r, at) for at, v, r in steps)
    return all(_relate(machine, value[i], item, S.item(source, i)) for i, item in enumerate(result))


class Asked:
    """What the entry asks a cache for, and relies on.

    args, kwargs  of the call: constants, objects from outside, and numbers that vary
    known         what the cache is to give: a constant, the Source of an object, or what is made of numbers that vary
    place         where the cache must have it already: what the function does when it runs is not known
    first         holds what it gave, where capture asked for the entry's first run
    source        what it gives is reached by this, where it is made of numbers that vary
    """

    def __init__(
        self,
        fn: Any,
        args: Sequence[Any],
        kwargs: dict,
        known: Any,
        place: Place | None = None,
        first: list | None = None,
        source: Source | None = None,
    ) -> None:
        self.fn, self.args, self.kwargs, self.known = fn, args, kwargs, known
        self.place, self.first, self.source = place, first, source
