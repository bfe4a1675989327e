"""From a list of guards to a flat plan: which values to load, which checks to make, in which order.

A plan has three lists of steps. `first` depends on the call alone (locals, cells, the function) and runs at each call.
`watched` reads what hangs from objects that are known beforehand (constants of the entry, globals, objects under an
identity guard) or that are parameters, through attributes and dicts. Its result holds until one of the dicts or types
it read changes. So the C program skips it while they have not changed and the same parameters come in. `last` is what
remains: metadata of parameters, contents of lists, predicates.

Steps are tuples:
  ("load", slot, kind, base slot or -1, key)     a Source's step; kinds of source.py, "weak" (a reference's object),
                                                 "pin"
                                                 (the base), "method" (getattr(base, key).__func__)
  ("check", guard index, kind, slot or -1, payload)

Sources share their prefixes: each distinct Source is loaded once. Within a list cheap checks come first, but no check
runs before the checks of a prefix of its source, so that the failing guard that is named is the outermost one.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any, Sequence

from .guard import KINDS, STATE_FIELDS, Guard, TensorSpec
from .source import Source
from .tensors import is_symbol
from .source_values import is_constant
from .weak import Weak

__all__ = ["Plan", "make_plan"]

_COST = {
    "STATE": 0,
    "ID": 1,
    "TYPE": 1,
    "WEAK_ID": 1,
    "CODE": 1,
    "FUNCTION": 1,
    "CLASS": 2,
    "INT_SYMBOL": 1,
    "FLOAT": 1,
    "EQUALS": 2,
    "LEN": 2,
    "HASATTR": 2,
    "DICT_KEYS": 2,
    "LACKS": 2,
    "TENSOR": 3,
    "SIZES": 4,
    "PREDICATE": 4,
    "ALIAS": 5,
    "NO_ALIAS": 5,
    "NO_OVERLAP": 5,
}
_WATCHED_STEPS = ("attr", "dict", "item", "type", "default", "kwdefault")
_PINNING = ("ID", "WEAK_ID")
_NEVER_WATCHED = ("TENSOR", "SIZES", "INT_SYMBOL", "FLOAT", "PREDICATE", "STATE", "NO_OVERLAP")


@dataclass
class Plan:
    first: list[tuple] = field(default_factory=list)
    watched: list[tuple] = field(default_factory=list)
    last: list[tuple] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    n_slots: int = 0

    def parts(self) -> tuple[list[tuple], list[tuple], list[tuple]]:
        return self.first, self.watched, self.last


@dataclass
class _Check:
    index: int
    kind: str
    sources: tuple[Source, ...]
    payload: Any
    cost: int = 0


def _validate(i: int, guard: Guard, n_locals: int) -> None:
    if guard.kind not in KINDS:
        raise ValueError(f"guard {i} has the unknown kind {guard.kind!r}; kinds are {', '.join(KINDS)}")
    if guard.source is None and guard.kind not in ("STATE", "PREDICATE", "NO_ALIAS", "NO_OVERLAP"):
        raise ValueError(f"guard {i} ({guard.kind}) needs a source")
    if guard.kind == "EQUALS" and not is_constant(guard.expected):
        raise ValueError(
            f"guard {i}: EQUALS holds immutable constants only, got {type(guard.expected).__name__} for "
            f"{guard.source.name() if guard.source else None}; guard its parts, or its identity"
        )
    if guard.kind == "TENSOR" and not isinstance(guard.expected, TensorSpec):
        raise ValueError(f"guard {i}: TENSOR expects a TensorSpec, got {type(guard.expected).__name__}")
    if guard.kind == "STATE":
        for name in guard.expected:
            if name not in STATE_FIELDS and "." not in name:
                raise ValueError(f"guard {i}: unknown state {name!r}; known are {', '.join(STATE_FIELDS)}")
    if guard.source is not None and guard.source.root.kind == "local" and not 0 <= guard.source.root.key[0] < n_locals:
        raise ValueError(
            f"guard {i}: {guard.source.name()} is local {guard.source.root.key[0]} of a frame with {n_locals}"
        )


def _symbol_of(i: int, guard: Guard) -> Any:
    if not is_symbol(guard.expected):
        raise ValueError(f"guard {i}: INT_SYMBOL expects a bare size symbol, got {guard.expected!r}")
    return guard.expected.name


def make_plan(guards: Sequence[Guard], n_locals: int) -> Plan:
    """Order and share. Raises ValueError for a guard that is malformed or reads a symbol that no guard binds."""
    plan, checks = Plan(), []
    symbols: dict[str, int] = {}

    def number(name: str) -> int:
        return symbols.setdefault(name, len(symbols))

    for i, guard in enumerate(guards):
        _validate(i, guard, n_locals)
        kind = guard.kind
        sources: tuple = (guard.source,) if guard.source is not None else ()
        payload = guard.expected
        if guard.kind in ("NO_ALIAS", "NO_OVERLAP"):
            sources, payload = tuple(guard.expected), guard.written
        elif guard.kind == "ALIAS":
            sources, payload = (guard.source, guard.expected), None
        elif guard.kind == "INT_SYMBOL":
            payload = (number(_symbol_of(i, guard)), guard.expected.name)
        elif guard.kind == "WEAK_ID":
            payload = _weak(payload)
            if not isinstance(payload, weakref.ref):
                kind = "ID"
        elif guard.kind == "ID" and type(payload) is Weak:
            kind = "WEAK_ID"
        elif guard.kind == "PREDICATE":
            sources = ()
        elif guard.kind == "TENSOR":
            spec = guard.expected
            for expr in (*spec.shape, *spec.stride):
                if is_symbol(expr):
                    number(expr.name)
            deferred = tuple(
                (what, dim, size)
                for what, sizes in (("size", spec.shape), ("stride", spec.stride))
                for dim, size in enumerate(sizes)
                if size is not None and not isinstance(size, int) and not is_symbol(size)
            )
            if deferred:
                checks.append(_Check(i, "SIZES", sources, deferred, _COST["SIZES"]))
        checks.append(_Check(i, kind, sources, payload, _COST[kind]))
    plan.symbols = list(symbols)
    for check in checks:
        exprs = (
            [check.payload]
            if check.kind == "PREDICATE"
            else [e for _, _, e in check.payload]
            if check.kind == "SIZES"
            else []
        )
        for expr in exprs:
            unbound: frozenset[str] = getattr(expr, "symbol_names", frozenset)() - symbols.keys()
            if unbound:
                raise ValueError(f"guard {check.index}: no guard binds the size symbols {sorted(unbound)} of {expr!r}")
    _emit(plan, checks)
    return plan


class _Placing:
    """Where each check runs: first, with what is watched, or last; and in which order."""

    def __init__(self, checks: list[_Check]):
        self.costs: dict[Source, int] = {}  # the highest cost of a check on the very source
        self.pins: dict[Source, tuple[str, Any]] = {}
        self.has_tensor: set[Source] = set()
        self.watched: dict[Source, bool] = {}
        self.highest: dict[tuple[Source, bool], int] = {}
        for check in checks:
            if len(check.sources) == 1:
                source = check.sources[0]
                self.costs[source] = max(self.costs.get(source, 0), check.cost)
                if check.kind in _PINNING:
                    self.pins.setdefault(source, ("const" if check.kind == "ID" else "weak", check.payload))
                if check.kind == "TENSOR":
                    self.has_tensor.add(source)

    def is_watched(self, source: Source) -> bool:
        known = self.watched.get(source)
        if known is None:
            if source.base is None:
                known = source.kind in ("const", "global", "builtin")
            else:
                fixed = source.base in self.pins or self.is_watched(source.base) or _is_root(source.base)
                known = fixed and source.base not in self.has_tensor and source.kind in _WATCHED_STEPS
            self.watched[source] = known
        return known

    def after_watched(self, source: Source | None) -> bool:
        """Whether loading `s` reads a slot of the watched list."""
        while source is not None:
            if self.is_watched(source):
                return True
            source = source.base
        return False

    def cost(self, c: _Check) -> int:
        """Its own, or that of a check on what its sources are reached from, which comes before it."""
        return max([c.cost, *(min(self.above(source.base, self.is_watched(source)), 3) for source in c.sources)])

    def above(self, source: Source | None, watched: bool) -> int:
        """The highest cost of a check on a source or on what it is reached from, of those that are watched or not."""
        if source is None:
            return 0
        known = self.highest.get((source, watched))
        if known is None:
            own = self.costs.get(source, 0) if self.is_watched(source) == watched else 0
            known = self.highest[source, watched] = max(own, self.above(source.base, watched))
        return known

    def place(self, c: _Check) -> int:
        if c.sources and all(self.is_watched(source) for source in c.sources) and c.kind not in _NEVER_WATCHED:
            return 1
        if c.cost >= 4 or any(self.after_watched(source) for source in c.sources):
            return 2
        return 0


def _is_root(source: Source) -> bool:
    """A parameter: what hangs from it is watched as long as the same object comes in."""
    return source.kind in ("local", "closure")


def _emit(plan: Plan, checks: list[_Check]) -> None:
    placing = _Placing(checks)
    is_watched, pins = placing.is_watched, placing.pins
    lists = (plan.first, plan.watched, plan.last)
    ordered = sorted(
        (placing.place(check), placing.cost(check), _depth(check), check.index, n) for n, check in enumerate(checks)
    )
    slots: dict[Any, int] = {}

    def new_slot(key: Any) -> int:
        slots[key] = plan.n_slots
        plan.n_slots += 1
        return slots[key]

    def load(source: Source, out: list[tuple]) -> int:
        found = slots.get(source)
        if found is not None:
            return found
        if is_watched(source) and out is not plan.watched:
            return load(source, plan.watched)  # the slot is filled before `last` runs
        base, kind, parent = -1, source.kind, source.base
        key = source.key[0] if kind in ("local", "closure") else source.key if kind != "const" else source.held
        if type(key) is Weak and kind == "const":
            kind = "weak"
        if kind == "attr" and key == "__func__" and parent is not None and parent.kind == "attr":
            kind, key, parent = "method", parent.key, parent.base  # obj.method.__func__: no bound method is made
        if parent is not None:
            if is_watched(source) and not is_watched(parent):
                base = slots[("pin", parent)] if ("pin", parent) in slots else -1
                if base < 0:
                    pin, obj = pins.get(parent, ("pin", None))
                    root = load(parent, plan.first) if pin == "pin" else -1
                    base = new_slot(("pin", parent))
                    plan.watched.append(("load", base, pin, root, obj))
            else:
                base = load(parent, out)
        slot = new_slot(source)
        out.append(("load", slot, kind, base, key))
        return slot

    for where, _, _, _, n in ordered:
        c, out = checks[n], lists[where]
        found = tuple(load(source, out) for source in c.sources)
        many = c.kind in ("ALIAS", "NO_ALIAS", "NO_OVERLAP")
        out.append(("check", c.index, c.kind, found if many else found[0] if found else -1, c.payload))


def _weak(expected: Any) -> Any:
    """WEAK_ID guards hold a weak reference; capture may also hand the object itself. An object that cannot be weakly
    referenced (ints, tuples, classes with __slots__) comes back as it is, and is guarded by ID."""
    if isinstance(expected, weakref.ref):
        return expected
    try:
        return weakref.ref(expected)
    except TypeError:
        return expected


def _depth(c: _Check) -> int:
    return max((len(source.path()) for source in c.sources), default=0)
