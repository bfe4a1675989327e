"""Arguments of a call to the parameters of a Python function, as CPython binds them."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from ...guards import source as S
from ..machine.signals import Raised
from ..machine.stack_values import ATOMS
from .inline_policy import is_trusted_module

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["bind", "interpret"]

_CO_VARARGS, _CO_VARKEYWORDS = 0x04, 0x08


def interpret(machine: Machine, fn: Any, args: list, kwargs: dict) -> Any:
    """Interpret a function of capture's own, or of a module that is taken to stay as it is: nothing is guarded."""
    return machine.call_code(fn.__code__, machine.scope_of(fn.__globals__), fn, bind(machine, fn, args, kwargs))


def _default(machine: Machine, fn: types.FunctionType, defaults: Any, key: int | str) -> Any:
    """Of a positional parameter by its index, of another by its name."""
    value = defaults[key]
    source = machine.world.source_of(fn)
    if source is None or (type(value) in ATOMS and is_trusted_module(fn.__module__ or "")):
        return value
    step = S.default(source, key) if isinstance(key, int) else S.kwdefault(source, key)
    return machine.world.load(value, step, "default argument")


def _too_many(fn: types.FunctionType, given: int, keyword_only: int) -> str:
    """CPython's message for too many positional arguments."""
    n, optional = fn.__code__.co_argcount, len(fn.__defaults__ or ())
    takes = f"from {n - optional} to {n}" if optional else str(n)
    also = (
        f" positional argument{'s' * (given != 1)} (and {keyword_only} keyword-only"
        f" argument{'s' * (keyword_only != 1)})"
        if keyword_only
        else ""
    )
    return (
        f"{fn.__qualname__}() takes {takes} positional argument{'s' * (optional > 0 or n != 1)} but {given}{also} "
        f"{'was' if given == 1 and not keyword_only else 'were'} given"
    )


def _unknown_keyword(fn: types.FunctionType, keyword: str, given: dict) -> str:
    """CPython's message for a keyword that no parameter takes."""
    code = fn.__code__
    by_position = [name for name in code.co_varnames[: code.co_posonlyargcount] if name in given]
    if by_position:
        return (
            f"{fn.__qualname__}() got some positional-only arguments passed as keyword arguments:"
            f" '{', '.join(by_position)}'"
        )
    return f"{fn.__qualname__}() got an unexpected keyword argument '{keyword}'"


def bind(machine: Machine, fn: types.FunctionType, args: list, kwargs: dict) -> dict[int, Any]:
    """Arguments to local slots, as CPython binds them. TypeError of the program where they do not fit."""
    code = fn.__code__
    n, nkw = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    slots: dict[int, Any] = {}
    given = len(args)
    flags = code.co_flags
    total = n + nkw
    for index in range(min(given, n)):
        slots[index] = args[index]
    if flags & _CO_VARARGS:
        slots[total] = tuple(args[n:])
    elif given > n:
        raise Raised(TypeError(_too_many(fn, given, sum(name in kwargs for name in names[n:total]))))
    extra: dict[str, Any] = {}
    if kwargs:
        posonly = code.co_posonlyargcount
        params = names[:total]
        for key, value in kwargs.items():
            try:
                index = params.index(key, posonly)
            except ValueError:
                if not flags & _CO_VARKEYWORDS:
                    raise Raised(TypeError(_unknown_keyword(fn, key, kwargs))) from None
                extra[key] = value
                continue
            if index in slots:
                raise Raised(TypeError(f"{fn.__qualname__}() got multiple values for argument '{key}'"))
            slots[index] = value
    if flags & _CO_VARKEYWORDS:
        slots[total + (1 if flags & _CO_VARARGS else 0)] = extra
    if len(slots) < total + bool(flags & _CO_VARARGS) + bool(flags & _CO_VARKEYWORDS):
        defaults = fn.__defaults__ or ()
        first = n - len(defaults)
        missing: list[str] = []
        missing_keywords: list[str] = []
        for index in range(n):
            if index not in slots:
                if index < first:
                    missing.append(names[index])
                else:
                    slots[index] = _default(machine, fn, fn.__defaults__, index - first)
        kwdefaults = fn.__kwdefaults__ or {}
        for index in range(n, total):
            if index not in slots:
                if names[index] in kwdefaults:
                    slots[index] = _default(machine, fn, fn.__kwdefaults__, names[index])
                else:
                    missing_keywords.append(names[index])
        for kind, absent in (("positional", missing), ("keyword-only", missing_keywords)):
            if absent:
                raise Raised(
                    TypeError(
                        f"{fn.__qualname__}() missing {len(absent)} required {kind}"
                        f" argument{'s' if len(absent) > 1 else ''}: " + _listed(absent)
                    )
                )
    return slots


def _listed(names: list[str]) -> str:
    """'a', 'b', and 'c', as CPython writes it."""
    quoted = [repr(name) for name in names]
    if len(quoted) <= 2:
        return " and ".join(quoted)
    return ", ".join(quoted[:-1]) + ", and " + quoted[-1]
