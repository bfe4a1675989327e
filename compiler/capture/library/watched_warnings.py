"""warnings.catch_warnings inside of a frame: the program looks for warnings where it keeps them in a list, or has them
raised. And warnings that torch's own Python functions give: capture hears of them, so that each call gives them.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable

import torch

from ...graph.tensor import TraceTensor
from ..machine.signals import Plainly

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["Warned", "fills_one_of", "keeps_warnings", "refuse_watched_operator", "unless_it_warns"]


class Warned(BaseException):
    """A function of torch's would give a warning. No `except Exception` of its own is to hold it."""


def unless_it_warns(fn: Callable, *args: Any) -> Any:
    """fn(*args), up to the first warning that Python code gives on the way: Warned is raised in its place. What is
    interpreted instead gives the warning at each call of the entry, from the program's own line."""
    given, thread, heard = warnings.warn, threading.get_ident(), True

    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
        if heard and threading.get_ident() == thread:
            raise Warned
        given(message, category, stacklevel + 1, source, **more)  # of another thread

    warnings.warn = warn  # type: ignore[assignment]
    try:
        return fn(*args)
    finally:
        heard = False  # for whoever took hold of it meanwhile
        if warnings.warn is warn:
            warnings.warn = given


def fills_one_of(values: Iterable[Any]) -> bool:
    """Whether warnings are kept in one of these lists: a frame that was split inside of catch_warnings(record=True) is
    handed the list, and an entry would give its warnings after it has read the length.
    """
    kept = getattr(getattr(warnings, "_showwarnmsg_impl", None), "__self__", None)
    return type(kept) is list and any(value is kept for value in values)


def keeps_warnings(machine: Machine) -> bool:
    """Whether the program is inside of catch_warnings(record=True)."""
    written = machine.world.pending.get(id(warnings.__dict__)) or {}
    changed = [written[n] is not vars(warnings)[n] for n in ("showwarning", "_showwarnmsg_impl") if n in written]
    return any(changed) or machine.given_warnings and not changed


# Operators of which torch's kernels for plain tensors of real numbers have no warning to give.
_SILENT = frozenset(
    "abs neg sign exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal sin cos tan asin acos atan sinh cosh"
    " tanh erf relu sigmoid floor ceil round trunc add sub mul truediv true_divide eq ne lt le gt ge maximum minimum"
    " matmul mm bmm clone detach".split()
)


def _is_silent(call: Callable | str, args: Iterable[Any], kwargs: dict) -> bool:
    name = call if isinstance(call, str) else getattr(call, "__name__", "")
    return (
        name in _SILENT
        and not kwargs
        and all(
            type(arg) in (int, float)
            or type(arg) is TraceTensor
            and arg.layout is torch.strided
            and not arg.is_complex()
            for arg in args
        )
    )


def refuse_watched_operator(
    machine: Machine, call: Callable | str = "", args: Iterable[Any] = (), kwargs: Any = None
) -> None:
    """An operator may give a warning, when it runs: the program is not to look for that where the graph has not run
    yet.
    """
    if _is_silent(call, args, kwargs or {}):
        return
    written = machine.world.pending.get(id(warnings.__dict__))
    if keeps_warnings(machine) or any(
        type(f) is tuple and f[0] == "error" and f not in warnings.filters for f in (written or {}).get("filters", ())
    ):
        raise Plainly(
            "c_call",
            "an operator runs where warnings are kept in a list, or raised, by warnings.catch_warnings",
            "look for warnings outside of the compiled region",
            calls_compiled=False,
        )
