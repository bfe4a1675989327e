"""The guard program in Python: the same meaning as the C program, where the extension is not built.

Also what the explanation of a failure uses, and the reference that the C program is tested against.
"""

from __future__ import annotations

import builtins
import types
from typing import Any, Callable, Iterator, Sequence

import torch

from ..symbolic.env import INT_LIMIT
from ..symbolic.expr import is_signed
from .guard import Guard
from .guard_plan import Plan, make_plan
from .state import read_field
from .tensors import is_array, memory_range, tensor_mismatch
from .source_values import (
    Absent,
    Unreachable,
    class_holds,
    const_equal,
    dict_has,
    dict_keys,
    float_holds,
    key_equal,
    length,
    load_attr,
    same_code,
    step,
)
from .weak import present

__all__ = ["PythonGuardProgram", "evaluate_source", "no_overlap"]


def load_root(kind: str, key: Any, func: Any, args: Sequence[Any]) -> Any:
    """The value of a Source without a base. Raises Unreachable."""
    if kind == "local":
        if key >= len(args):
            raise Unreachable(key)
        return args[key]
    if kind == "const":
        return key
    if kind == "weak":
        found = key()
        if found is None:
            raise Unreachable("the object is gone")
        return found
    if kind == "function":
        return func
    if kind == "closure":
        cells = func.__closure__ or ()
        if key >= len(cells):
            raise Unreachable(key)
        return step("cell", cells[key], None)
    if kind == "global":
        return step("dict", func.__globals__, key)
    if kind == "builtin":
        if key in func.__globals__:  # the name resolves to a global now
            raise Unreachable(key)
        return step("dict", builtins.__dict__, key)
    raise Unreachable(kind)


def evaluate_source(source: Any, func: Any, args: Sequence[Any]) -> Any:
    """The value at a Source for one call. Raises Unreachable where there is none."""
    value: Any = None
    for s in source.path():
        if s.base is None:
            key = s.key[0] if s.kind in ("local", "closure") else s.key
            value = load_root(s.kind, key, func, args)
        else:
            value = step(s.kind, value, s.key)
    return value


def _has_attr(value: Any, expected: tuple[str, bool]) -> bool:
    try:
        load_attr(value, expected[0])
        return expected[1]
    except Absent:
        return not expected[1]


def _no_alias(values: list[Any]) -> bool:
    return len({id(value) for value in values}) == len(values)


def no_overlap(values: Sequence[Any], written: int | None = None) -> bool:
    """Whether the first `written` tensors share no memory with each other, nor with one of the rest."""
    spans = []
    for k, value in enumerate(values):
        if not isinstance(value, torch.Tensor) and not is_array(value):
            return False
        lo, hi = memory_range(value)
        if lo != hi:
            spans.append((lo, hi, written is None or k < written))
    end_of_all = end_of_written = 0
    for lo, hi, changes in sorted(spans):
        if lo < (end_of_all if changes else end_of_written):
            return False
        end_of_all = max(end_of_all, hi)
        if changes:
            end_of_written = max(end_of_written, hi)
    return True


class PythonGuardProgram:
    """`check(func, args) -> int`: -1 where all guards hold, else the index of the first that does not, in the order
    of the list the program was made from. `bindings` maps size symbols to the ints of the last check that passed
    their guards."""

    native = False

    def __init__(self, guards: Sequence[Guard], n_locals: int, plan: Plan | None = None) -> None:
        plan = plan or make_plan(guards, n_locals)
        self.guards = list(guards)
        self.n_locals = n_locals
        self._steps = [*plan.first, *plan.watched, *plan.last]
        self._n_slots = plan.n_slots
        self._needed_by = self._first_users()
        self.bindings: dict[str, int] = {}

    def _first_users(self) -> list[int]:
        """For each step, the guard that is blamed where it cannot be taken: the first check after it that needs it."""
        parents: dict[int, int] = {}
        blame: dict[int, int] = {}
        for s in self._steps:
            if s[0] == "load":
                parents[s[1]] = s[3]
                continue
            for slot in s[3] if isinstance(s[3], tuple) else (s[3],):
                while slot >= 0 and slot not in blame:
                    blame[slot] = s[1]
                    slot = parents[slot]
        return [blame.get(s[1], 0) if s[0] == "load" else s[1] for s in self._steps]

    def check(self, func: Callable, args: Sequence[Any]) -> int:
        return next(self._failures(func, args), -1)

    def unmet(self, func: Callable, args: Sequence[Any]) -> set[int]:
        """The indices of all guards that do not hold; `check` ends at the first."""
        return set(self._failures(func, args))

    def _failures(self, func: Callable, args: Sequence[Any]) -> Iterator[int]:
        slots: list[Any] = [None] * self._n_slots
        missing: set[int] = set()  # slots of what cannot be reached in this call
        failed = False
        bindings: dict[str, int] = {}
        self.bindings = bindings
        for n, s in enumerate(self._steps):
            where = s[3] if isinstance(s[3], tuple) else (s[3],)
            try:
                if not missing.isdisjoint(where):
                    raise Unreachable(s)
                if s[0] == "load":
                    _, slot, kind, base, key = s
                    slots[slot] = (
                        slots[base]
                        if kind == "pin"
                        else load_root(kind, key, func, args)
                        if base < 0
                        else step(kind, slots[base], key)
                    )
                    continue
                _, index, kind, at, payload = s
                value = [slots[i] for i in where] if isinstance(at, tuple) else slots[at] if at >= 0 else None
                if not _HOLDS[kind](value, payload, bindings, func):
                    failed = True
                    yield index
            except Unreachable:
                if s[0] == "load":
                    missing.add(s[1])
                failed = True
                yield self._needed_by[n]
            except KeyError:
                if not failed:
                    raise
                # (of a symbol that the guard which failed would have bound)


def _is_weakly(value: Any, expected: Any, bindings: dict[str, int], func: Any) -> bool:
    known = expected()
    return known is not None and value is known


def _has_keys(value: Any, expected: Any, bindings: dict[str, int], func: Any) -> bool:
    keys = dict_keys(value)
    return len(keys) == len(expected) and all(map(key_equal, keys, expected))


def _binds_int(value: Any, expected: Any, bindings: dict[str, int], func: Any) -> bool:
    name = expected[1]
    if type(value) is not int or not -INT_LIMIT <= value < INT_LIMIT:
        return False
    if name in bindings:
        return bindings[name] == value
    bindings[name] = value
    return value >= 2 or is_signed(name)


def _predicate_holds(value: Any, expected: Any, bindings: dict[str, int], func: Any) -> bool:
    try:
        return bool(expected.eval(bindings)) if hasattr(expected, "eval") else bool(expected)
    except ZeroDivisionError:
        return False


def _same_function(value: Any, expected: Any, bindings: dict[str, int], func: Any) -> bool:
    wanted = func.__globals__ if expected.globals is None else expected.globals
    same = type(value) is types.FunctionType and value.__globals__ is wanted
    return same and same_code(value.__code__, expected.code)


# kind of guard -> whether it holds: of the value, what is expected, the symbols bound so far, the function called
_HOLDS: dict[str, Callable[[Any, Any, dict[str, int], Any], bool]] = {
    "ID": lambda value, expected, bindings, func: value is expected,
    "WEAK_ID": _is_weakly,
    "TYPE": lambda value, expected, bindings, func: type(value) is present(expected),
    "EQUALS": lambda value, expected, bindings, func: const_equal(value, expected),
    "LEN": lambda value, expected, bindings, func: length(value) == expected,
    "DICT_KEYS": _has_keys,
    "LACKS": lambda value, expected, bindings, func: isinstance(value, dict) and not dict_has(value, expected),
    "HASATTR": lambda value, expected, bindings, func: _has_attr(value, expected),
    "TENSOR": lambda value, expected, bindings, func: tensor_mismatch(value, expected, bindings) is None,
    "SIZES": lambda value, expected, bindings, func: all(
        step(what, value, d) == e.eval(bindings) for what, d, e in expected
    ),
    "INT_SYMBOL": _binds_int,
    "FLOAT": lambda value, expected, bindings, func: float_holds(value, expected or ()),
    "PREDICATE": _predicate_holds,
    "ALIAS": lambda value, expected, bindings, func: value[0] is value[1],
    "NO_ALIAS": lambda value, expected, bindings, func: _no_alias(value),
    "NO_OVERLAP": lambda value, expected, bindings, func: no_overlap(value, expected),
    "STATE": lambda value, expected, bindings, func: all(read_field(key) == wanted for key, wanted in expected.items()),
    "FUNCTION": _same_function,
    "CLASS": lambda value, expected, bindings, func: class_holds(value, expected),
    "CODE": lambda value, expected, bindings, func: (
        type(value) is types.FunctionType and value.__code__ is present(expected)
    ),
}
