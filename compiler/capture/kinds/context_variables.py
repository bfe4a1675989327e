"""contextvars.ContextVar: what a variable is in the context of the call, read again at each call.

A variable that is set or reset parts the graph: Python does that itself, and what is read afterwards is read anew.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ...guards import source as S
from ..machine.signals import Raised

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["context_value"]


class _Unset:
    """Stands for the value of a variable that the context does not set."""


_UNSET = _Unset()


def _set_value(variable: Any) -> Any:
    """What the context sets the variable to; its default does not count."""
    return variable.get(_UNSET) if type(variable) is ContextVar else _UNSET


def _default_value(variable: Any) -> Any:
    """What a variable that is not set gives: its default; _UNSET without one."""
    try:
        return variable.get() if type(variable) is ContextVar else _UNSET
    except LookupError:
        return _UNSET


def context_value(machine: Machine, variable: ContextVar, args: list) -> Any:
    """`variable.get()` and `variable.get(default)`"""
    source = machine.world.source_of(variable) or machine.world.anchor(variable)
    value = _set_value(variable)
    if value is not _UNSET:
        return machine.world.load(value, S.asked(source, _set_value), "value of a context variable")
    machine.world.guard(S.asked(source, _set_value), "ID", _UNSET, "a context variable that is not set")
    if args:
        return args[0]
    value = _default_value(variable)
    if value is _UNSET:
        machine.world.guard(S.asked(source, _default_value), "ID", _UNSET, "a context variable without a default")
        raise Raised(LookupError(variable))
    return machine.world.load(value, S.asked(source, _default_value), "default of a context variable")
