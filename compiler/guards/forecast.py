"""Would this call be compiled anew? Guards against a description of the arguments: nothing runs, no tensor is needed.

    would_recompile([e.program.guards for e in cache.entries], {"x": TensorDescription((32, 128)), "n": 4})

The keys are paths as messages name them: `x`, `self.scale`, `batch[0]`. What the description leaves out (other
arguments, the model, global state, fields of a TensorDescription that are None) is taken to be as each entry expects
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .explain import plain_failure, predicate_failure, tensor_failure
from ..symbolic.env import INT_LIMIT
from ..symbolic.expr import is_signed
from .guard import Guard, GuardFailure
from .tensors import is_symbol
from .source_values import Unreachable, const_equal, float_holds, length
from .weak import present

__all__ = ["TensorDescription", "Forecast", "describe", "would_recompile"]


@dataclass(frozen=True)
class TensorDescription:
    """What is known of a tensor. None: as the entry expects it. Strides left out are those of a contiguous tensor,
    where the sizes are given and the entry was made for one."""

    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | str | None = None
    requires_grad: bool | None = None
    stride: tuple[int, ...] | None = None


@dataclass
class Forecast:
    """recompiles   whether no entry would serve the call
    entry        index of the entry that would, or None
    failures     for each entry that would not, in order: the first guard that fails, with its words
    assumed      guards of that entry (or of the nearest one) that the description says nothing about
    """

    recompiles: bool
    entry: int | None
    failures: list[GuardFailure] = field(default_factory=list)
    assumed: int = 0

    @property
    def reason(self) -> GuardFailure | None:
        """Why a new entry would be made: what ended the entry that agrees longest."""
        return self.failures[-1] if self.recompiles and self.failures else None


def describe(value: Any) -> Any:
    """The description of a present argument: a tensor by its metadata, all else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunctionSubclass():
        return TensorDescription(tuple(value.shape), value.dtype, value.device, value.requires_grad, value.stride())


def would_recompile(entries: Sequence[Sequence[Guard]], described: Mapping[str, Any]) -> Forecast:
    """Whether a call with arguments as `described` (path -> TensorDescription, or a plain value) would find one of the
    entries, each given by its guards, most recently used first. Raises TypeError for a tensor: describe() it first."""
    for name, value in described.items():
        if isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is a tensor; pass describe({name}), or a TensorDescription")
    failures: list[tuple[int, int, GuardFailure]] = []
    fewest = 0
    for number, guards in enumerate(entries):
        place, failure, assumed = _first_failure(guards, described)
        if failure is None:
            return Forecast(False, number, [f for _, _, f in failures], assumed)
        failures.append((place, -number, failure))
        fewest = assumed
    failures.sort(key=lambda f: f[:2])
    return Forecast(True, None, [f for _, _, f in failures], fewest)


def _first_failure(guards: Sequence[Guard], described: Mapping[str, Any]) -> tuple[int, GuardFailure | None, int]:
    bindings: dict[str, int] = {}
    assumed = 0
    later: list[tuple[int, Guard]] = []
    for place, guard in enumerate(guards):
        name = guard.source.name() if guard.source is not None else ""
        if guard.kind == "PREDICATE":
            later.append((place, guard))
        elif name not in described or guard.kind not in _CHECKS:
            assumed += 1
        else:
            failure = _CHECKS[guard.kind](guard, name, described[name], bindings)
            if failure is not None:
                return place, failure, assumed
            if guard.kind == "TENSOR":
                later.append((place, guard))
    for place, guard in later:
        if guard.kind == "PREDICATE" or guard.source is None:
            failure = _predicate(guard, bindings)
        else:
            failure = _sizes(guard, described[guard.source.name()], bindings)
        if failure is not None:
            return place, failure, assumed
    return -1, None, assumed


def _bind(expr: Any, got: int, least: int, bindings: dict[str, int]) -> Any:
    """What a symbol should have been, or None where it fits."""
    if expr.name in bindings:
        return None if bindings[expr.name] == got else bindings[expr.name]
    if got < least:
        return f"{expr.name} >= {least}"
    bindings[expr.name] = got
    return None


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    stride: list[int] = []
    step = 1
    for size in reversed(shape):
        stride.append(step)
        step *= max(size, 1)
    return tuple(reversed(stride))


def _was_contiguous(spec: Any) -> bool:
    """Whether the entry was made for strides that a contiguous tensor of its sizes has."""
    hints = [size if isinstance(size, int) else 7 + 2 * i for i, size in enumerate(spec.shape)]
    symbols = {size.name: hint for size, hint in zip(spec.shape, hints) if is_symbol(size)}
    try:
        got = [stride if stride is None or isinstance(stride, int) else stride.eval(symbols) for stride in spec.stride]
    except KeyError:
        return False
    return all(e is None or e == w for e, w in zip(got, _contiguous(hints)))


def _tensor(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    spec = guard.expected
    if not isinstance(value, TensorDescription):
        return tensor_failure(guard, name, "type", spec.type, type(value))
    for detail in ("dtype", "device", "requires_grad"):
        got = getattr(value, detail)
        if got is not None and detail == "device":
            got = torch.device(got)
        if got is not None and got != getattr(spec, detail):
            return tensor_failure(guard, name, detail, getattr(spec, detail), got)
    if value.shape is None:
        return None
    if len(value.shape) != len(spec.shape):
        return tensor_failure(guard, name, "ndim", len(spec.shape), len(value.shape))
    for what, wanted, sizes, least in (
        ("shape", spec.shape, value.shape, 2),
        ("stride", spec.stride, _stride(spec, value), None),
    ):
        for d, (w, size) in enumerate(zip(wanted, sizes)):
            if is_symbol(w):
                w = _bind(w, size, size if least is None else least, bindings)
                if w is None:
                    continue
            elif not isinstance(w, int):
                continue
            if w != size:
                return tensor_failure(guard, name, f"{what}[{d}]", w, size)
    return None


def _stride(spec: Any, value: TensorDescription) -> tuple[int, ...]:
    """The strides to compare; none where they are not known."""
    if value.stride is not None:
        return value.stride
    return _contiguous(value.shape) if value.shape is not None and _was_contiguous(spec) else ()


def _sizes(guard: Guard, value: TensorDescription, bindings: dict[str, int]) -> GuardFailure | None:
    """Sizes and strides that are expressions, once all symbols are bound."""
    if value.shape is None:
        return None
    for what, wanted, sizes in (
        ("shape", guard.expected.shape, value.shape),
        ("stride", guard.expected.stride, _stride(guard.expected, value)),
    ):
        for d, (e, size) in enumerate(zip(wanted, sizes)):
            if (
                hasattr(e, "eval")
                and not is_symbol(e)
                and e.symbol_names() <= bindings.keys()
                and e.eval(bindings) != size
            ):
                name = guard.source.name()  # type: ignore[union-attr]
                return tensor_failure(guard, name, f"{what}[{d}]", e.eval(bindings), size)
    return None


def _predicate(guard: Guard, bindings: dict[str, int]) -> GuardFailure | None:
    expected = guard.expected
    if not hasattr(expected, "eval") or not expected.symbol_names() <= bindings.keys():
        return None
    try:
        return None if expected.eval(bindings) else predicate_failure(guard, bindings)
    except ZeroDivisionError:
        return predicate_failure(guard, bindings)


def _int_symbol(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    least = -INT_LIMIT if is_signed(guard.expected.name) else 2
    fits = type(value) is int and value < INT_LIMIT and _bind(guard.expected, value, least, bindings) is None
    return None if fits else plain_failure(guard, name, value)


def _equals(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    return None if const_equal(value, guard.expected) else plain_failure(guard, name, value)


def _identity(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    return None if value is present(guard.expected) else plain_failure(guard, name, value)


def _type(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    return None if type(value) is present(guard.expected) else plain_failure(guard, name, value)


def _float(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    return None if float_holds(value, guard.expected or ()) else plain_failure(guard, name, value)


def _len(guard: Guard, name: str, value: Any, bindings: dict[str, int]) -> GuardFailure | None:
    try:
        return None if length(value) == guard.expected else plain_failure(guard, name, value)
    except Unreachable:
        return plain_failure(guard, name, value)


_CHECKS = {
    "TENSOR": _tensor,
    "INT_SYMBOL": _int_symbol,
    "EQUALS": _equals,
    "ID": _identity,
    "TYPE": _type,
    "FLOAT": _float,
    "LEN": _len,
}
