"""How many items a container from outside has: a number of the entry's, or one that varies.

A list that the program adds to has another length in the next call, so that its length is a symbol at once. Of other
containers it is one after it was seen with two lengths (frontend/recompile.py), as an int argument is. Decisions about
it are guards like those about sizes; the items are known only where they are read.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch

from ...guards import source as S
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["outside_length", "known_index", "place_before_added", "places_of_slice", "refuse_unread"]

_LEAST_ADDRESS = 1 << 32  # of an object, as a rule
_MOST = 32  # items of a part of a list that are read one by one


def outside_length(machine: Machine, obj: Any, base: type, added: int) -> Any:
    """The length of a container as it came from outside, and `added` items more."""
    world, opts, n = machine.world, machine.world.opts, base.__len__(obj)
    source = world.sources[id(obj)]
    counted = S.count(source, obj)
    symbol: Any = n
    if counted is not None and (added and opts.dynamic is not False or counted in opts.dynamic_ints):
        symbol = machine.env.create_int(n, counted)
    if isinstance(symbol, int):
        world.guard(source, "LEN", n, "length")
    else:
        assert counted is not None
        world.loaded[counted] = symbol
        world.growing.add(source)
        world.guard(counted, "INT_SYMBOL", machine.env.to_expr(symbol), "length")
    return _with_room(machine, obj, symbol + added) if added and base is collections.deque else symbol + added


def _with_room(machine: Machine, obj: collections.deque, n: Any) -> Any:
    """How many items a deque holds that was given so many."""
    room = S.attr(machine.world.sources[id(obj)], "maxlen")
    machine.world.guard(room, "ID" if obj.maxlen is None else "EQUALS", obj.maxlen, "room of a deque")
    return n if obj.maxlen is None or not machine.truth(n > obj.maxlen) else obj.maxlen


def known_index(machine: Machine, obj: Any, key: Any) -> Any:
    """A key of a container as a plain one. Where it varies with the sequence's length it is the item's number from the
    end, as -1 is the last one."""
    if not isinstance(key, (torch.SymInt, torch.SymBool)):
        return key
    if isinstance(key, torch.SymInt) and isinstance(obj, (list, collections.deque)):
        counted = S.count(machine.world.sources[id(obj)], obj)
        length = machine.world.loaded.get(counted) if counted is not None else None
        shadow = machine.world.shadows.get(id(obj))
        added = 0 if shadow is None else shadow.count(list)
        if isinstance(length, torch.SymInt) and added is not None:
            distance = machine.env.to_expr(key - length - added)
            if distance.is_const and distance.value < 0 and machine.truth(key >= 0):
                return distance.value
        if not machine.world.opts.fullgraph and _hangs_on_growing(machine, key):
            raise Break(
                "unsupported",
                "an item is read at a place that hangs on the length of a list that grows",
                "no change is needed: the read runs as it is",
            )
    return int(key)


def _hangs_on_growing(machine: Machine, key: torch.SymInt) -> bool:
    sources = (machine.env.sources.get(name) for name in machine.env.to_expr(key).symbol_names())
    return any(
        source is not None and source.kind == "asked" and source.base in machine.world.growing for source in sources
    )


def place_before_added(machine: Machine, obj: Any, index: Any) -> int | None:
    """Where an item of a list lies that was there before the program added some; None where that hangs on the list's
    length, and for what is no list or no index."""
    if not isinstance(obj, list) or type(index) is not int:
        return None
    added = machine.world.shadows[id(obj)].count(list)
    if added is None or index >= list.__len__(obj) or 0 <= index + added < added:
        return None
    return index if index >= 0 else index + added


def places_of_slice(machine: Machine, obj: Any, key: Any) -> range | None:
    """The items of a part of a list of any length that is long enough, as numbers from its beginning or its end: of
    `[:3]` or `[-3:]`. None where the part hangs on the length, and for what is no such list or part."""
    if type(key) is not slice or type(obj) is not list or key.step not in (None, 1):
        return None
    shadow = machine.world.shadows.get(id(obj))
    added = 0 if shadow is None else shadow.count(list)
    ends = (key.start, key.stop)
    if added is None or not {*map(type, ends)} <= {int, type(None)} or ends == (None, None):
        return None
    from_end = key.stop is None or key.stop < 0
    first = key.start if key.start is not None else 0
    last = 0 if key.stop is None else key.stop
    if from_end != (first < 0) or last - first > _MOST:
        return None
    long_enough = outside_length(machine, obj, list, added) >= (-first if from_end else last)
    return range(first, last) if machine.truth(long_enough) else None


def refuse_unread(machine: Machine, source: S.Source, obj: Any) -> None:
    """Break where an entry would be for one length of a list that had many, for the values of one call, or for the
    keys of one run of a cell.
    """
    opts = machine.world.opts
    if (
        opts.unread
        and not opts.unread.isdisjoint((source, S.count(source, obj)))
        or opts.library is not None
        and not opts.fullgraph
        and _keyed_by_addresses(obj)
    ):
        raise Break(
            "unsupported",
            "a container is read as a whole that had many lengths or values, or addresses as its keys",
            "no change is needed: what reads it runs as it is; a tensor of its values would be compiled",
        )


def _keyed_by_addresses(obj: Any) -> bool:
    if not isinstance(obj, dict) or not dict.__len__(obj):
        return False
    return all(type(k) is int and k > _LEAST_ADDRESS for k in dict.__iter__(obj))
