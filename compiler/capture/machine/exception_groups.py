"""Exception groups: what `except*` catches, and what it raises in the end."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ..kinds.lookups import class_attribute
from .signals import Break, Raised

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["split", "left_to_raise"]


def split(machine: Machine, exc: Any, wanted: Any) -> tuple[Any, Any]:
    """(rest, match) of an exception under `except* wanted`; None for what is empty."""
    classes = wanted if isinstance(wanted, tuple) else (wanted,)
    for cls in classes:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
        if issubclass(cls, BaseExceptionGroup):
            raise Raised(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead."))
    if exc is None:
        return None, None
    if isinstance(exc, classes):  # a single exception is wrapped
        return None, exc if isinstance(exc, BaseExceptionGroup) else machine.native(BaseExceptionGroup, "", [exc])
    if isinstance(exc, BaseExceptionGroup):
        if machine.world.is_outside(exc):
            raise Break("unsupported", "an exception group from outside is split, by what it holds")
        _check_native(exc)
        match, rest = machine.native(exc.split, wanted)
        for part in (match, rest):
            _passed_where(machine, part, exc)
        return rest, match
    return exc, None


def _passed_where(machine: Machine, part: Any, whole: BaseException) -> None:
    """A part of a group has the traceback that the group had when it was split."""
    if isinstance(part, BaseExceptionGroup) and part is not whole and id(whole) in machine.trails:
        machine.world.keep.append(part)
        machine.trails[id(part)] = list(machine.trails[id(whole)])
        for exception in part.exceptions:
            for w in whole.exceptions:
                if isinstance(w, BaseExceptionGroup) and set(map(id, _leaves(exception))) <= set(map(id, _leaves(w))):
                    _passed_where(machine, exception, w)


def _check_native(group: BaseExceptionGroup) -> None:
    """Splitting runs `derive`: it must not be the user's."""
    if isinstance(class_attribute(type(group), "derive"), types.FunctionType) or isinstance(
        class_attribute(type(group), "split"), types.FunctionType
    ):
        raise Break(
            "unsupported", f"an exception group of class {type(group).__name__}, which derives in its own way, is split"
        )
    for part in group.exceptions:
        if isinstance(part, BaseExceptionGroup):
            _check_native(part)


def left_to_raise(machine: Machine, original: BaseException, raised: list) -> Any:
    """What a try statement with `except*` raises when all clauses have run, or None. `raised` lists what each clause
    raised anew, then what none has matched."""
    if not raised:
        return None
    if not isinstance(original, BaseExceptionGroup):
        return raised[0]  # it was wrapped: one clause alone can have run
    new = [e for e in raised if e is not None and not _same_origin(e, original)]
    again = [e for e in raised if e is not None and _same_origin(e, original)]
    leaves = {id(leaf) for e in again for leaf in _leaves(e)}
    rest = machine.native(original.split, lambda e: id(e) in leaves)[0] if leaves else None
    if not new:
        return rest
    if rest is not None:
        new.append(rest)
    return new[0] if len(new) == 1 else machine.native(BaseExceptionGroup, "", new)


def _same_origin(error: BaseException, b: BaseException) -> bool:
    """Whether `error` is a part of `b` that was split off, not a group raised anew."""
    return (
        isinstance(error, BaseExceptionGroup)
        and isinstance(b, BaseExceptionGroup)
        and error.__cause__ is b.__cause__
        and error.__context__ is b.__context__
        and error.__traceback__ is b.__traceback__
        and getattr(error, "__notes__", None) is getattr(b, "__notes__", None)
    )


def _leaves(exc: BaseException) -> list[BaseException]:
    if not isinstance(exc, BaseExceptionGroup):
        return [exc]
    return [leaf for part in exc.exceptions for leaf in _leaves(part)]
