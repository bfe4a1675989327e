"""guard_filter_fn: which guards of a new entry stay is the program's choice, as in stock torch.compile.

The function gets a list of GuardFilterEntry, one a guard, and returns a list of bools: True keeps the guard. Names of
fields and of kinds of guards are stock's, so that torch.compiler's own filters (skip_guard_on_globals_unsafe and its
like) work as they are. What goes is counted, and the report shows it.

Kernels read memory by the dtypes, sizes and strides that guards hold. Such a guard never goes. Those of parameters and
buffers stay though the filter drops all guards of modules; for any other the filter is refused in words.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

import torch

from ...errors import OptionError
from ...guards.guard import Guard
from ...guards.python_program import evaluate_source
from ...guards.source import Source
from ...guards.source_values import Unreachable

__all__ = ["GuardFilterEntry", "OriginalGuard", "filtered"]

# Our kind -> stock's name of it, and of what it checks.
_STOCK_TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "TENSOR": ("TENSOR_MATCH", ("TENSOR_MATCH",)),
    "STATE": ("GLOBAL_STATE", ()),
    "PREDICATE": ("SHAPE_ENV", ()),
    "INT_SYMBOL": ("SHAPE_ENV", ("TYPE_MATCH",)),
    "FLOAT": ("SHAPE_ENV", ("TYPE_MATCH",)),
    "ID": ("ID_MATCH", ("ID_MATCH",)),
    "WEAK_ID": ("ID_MATCH", ("ID_MATCH", "WEAKREF_ALIVE")),
    "TYPE": ("TYPE_MATCH", ("TYPE_MATCH",)),
    "EQUALS": ("CONSTANT_MATCH", ("EQUALS_MATCH",)),
    "LEN": ("SEQUENCE_LENGTH", ("SEQUENCE_LENGTH",)),
    "DICT_KEYS": ("DICT_KEYS_MATCH", ("DICT_KEYS_MATCH",)),
    "LACKS": ("DICT_CONTAINS", ("DICT_CONTAINS",)),
    "HASATTR": ("HASATTR", ("HASATTR",)),
    "ALIAS": ("DUPLICATE_INPUT", ("DUPLICATE_INPUT",)),
    "NO_ALIAS": ("OBJECT_ALIASING", ()),
    "NO_OVERLAP": ("STORAGE_OVERLAPPING", ()),
    "CODE": ("CLOSURE_MATCH", ("ID_MATCH",)),
    "FUNCTION": ("CLOSURE_MATCH", ("ID_MATCH",)),
    "CLASS": ("CLASS_MATCH", ("ID_MATCH",)),
}
_MEMORY = ("TENSOR", "INT_SYMBOL", "FLOAT", "PREDICATE")  # what generated code takes for granted of its inputs
# Of the global state: under these a tensor is not what it seems, or somebody is to see every operator.
_LASTING_STATE = ("torch_function", "functorch", "tracing")
_NO_VALUE = object()


@dataclass(frozen=True)
class _SourceView:
    """What stock's filters ask of a guard's source."""

    source: Source | None
    module: Any  # the innermost nn.Module on the way to the value, or None

    def name(self) -> str:
        return self.source.name() if self.source is not None else ""

    def is_unspecialized_nn_module(self) -> bool:
        return self.module is not None

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return (type(self.module).__module__ or "").startswith(("torch.nn.", "torch.ao."))


@dataclass(frozen=True)
class OriginalGuard:
    """A guard as stock's filters look at it; `guard` is ours."""

    name: str
    source: _SourceView
    guard: Guard


@dataclass(frozen=True)
class GuardFilterEntry:
    """One guard, for a filter. `value` is what the guard looks at in this call, where `has_value`."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard


def filtered(
    choose: Callable[[list[GuardFilterEntry]], Sequence[bool]],
    guards: Sequence[Guard],
    inputs: Sequence[Source],
    func: Any,
    args: tuple,
) -> tuple[list[Guard], list[Guard]]:
    """The guards that stay, and those that go. `inputs` are the sources of the graph's inputs. Raises OptionError where
    the filter is at fault."""
    values = _Values(func, args)
    entries = [_entry(guard, values) for guard in guards]
    arrays = {source.base for source in inputs if source.kind == "array"}
    kept: list[Guard] = []
    dropped: list[Guard] = []
    refused: list[Guard] = []
    for guard, entry, stays in zip(guards, entries, _answers(choose, entries)):
        if stays:
            kept.append(guard)
        elif guard.kind == "STATE":
            kept.append(
                replace(guard, expected={key: value for key, value in guard.expected.items() if key in _LASTING_STATE})
            )
            dropped.append(
                replace(
                    guard, expected={key: value for key, value in guard.expected.items() if key not in _LASTING_STATE}
                )
            )
        elif guard.kind not in _MEMORY and not _is_of(guard.source, arrays):
            dropped.append(guard)
        elif guard.kind == "TENSOR" and entry.orig_guard.source.module is not None:
            kept.append(guard)
        else:
            refused.append(guard)
    if refused:
        raise OptionError(_refusal(refused))
    return kept, dropped


class _Values:
    """What sources give in the call that is compiled, each read once."""

    def __init__(self, func: Any, args: tuple):
        self._func, self._args = func, args
        self._known: dict[Source, Any] = {}

    def of(self, source: Source) -> Any:
        if source not in self._known:
            try:
                self._known[source] = evaluate_source(source, self._func, self._args)
            except Unreachable:  # such as what a guard says is not there
                self._known[source] = _NO_VALUE
        return self._known[source]


def _entry(guard: Guard, values: _Values) -> GuardFilterEntry:
    value = _NO_VALUE if guard.source is None else values.of(guard.source)
    kind, derived = _STOCK_TYPES[guard.kind]
    name = _name(guard)
    module = None
    for step in guard.source.path() if guard.source is not None else ():
        reached = values.of(step)
        module = reached if isinstance(reached, torch.nn.Module) else module
    return GuardFilterEntry(
        name,
        value is not _NO_VALUE,
        None if value is _NO_VALUE else value,
        kind,
        derived,
        _is_global(guard.source),
        OriginalGuard(name, _SourceView(guard.source, module), guard),
    )


def _is_global(source: Source | None) -> bool:
    """Whether the value is reached by a global's name, of the function's own module or of another one."""
    if source is None:
        return False
    root = source.root
    return root.kind in ("global", "builtin") or root.kind == "const" and isinstance(root.key, (types.ModuleType, dict))


def _is_of(source: Source | None, owners: set[Source | None]) -> bool:
    """Whether the source is one of these, or hangs from one."""
    return source is not None and not owners.isdisjoint(source.path())


def _answers(choose: Callable, entries: list[GuardFilterEntry]) -> list[bool]:
    try:
        found = list(choose(list(entries)))
    except Exception as e:
        raise OptionError(f"guard_filter_fn raised {type(e).__name__}: {e}") from e
    if len(found) != len(entries) or not all(type(x) is bool for x in found):
        bad = next((x for x in found if type(x) is not bool), None)
        what = f"{len(found)} answers" if len(found) != len(entries) else f"{bad!r} among the answers"
        raise OptionError(
            f"guard_filter_fn returns a list of True and False, one for each of the {len(entries)} guards that it is"
            f" given; got {what}"
        )
    return found


def _refusal(refused: list[Guard]) -> str:
    guard = refused[0]
    if guard.kind == "PREDICATE":
        what = f"on sizes ({guard.expected})"
    elif guard.kind == "TENSOR":
        what = f"on `{_name(guard)}`, a tensor that the graph reads"
    else:
        what = f"on `{_name(guard)}`, which the graph reads"
    more = f", and {len(refused) - 1} like it" if len(refused) > 1 else ""
    return (
        f"guard_filter_fn drops the guard {what}{more}. Kernels read memory by dtypes, sizes and strides, so that such"
        " guards stay.\nWhat to do: keep guards of guard_type 'TENSOR_MATCH' and 'SHAPE_ENV', and those of numpy arrays"
    )


def _name(guard: Guard) -> str:
    return guard.source.name() if guard.source is not None else ""
