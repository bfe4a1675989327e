"""Leaving several frames at once: a graph break in a function that capture went through, within one or more calls.

Each frame is left by a break function of its own (resume.make_break), which calls the next one in the place of its call
instruction. So the one instruction runs under all its callers, with their tracebacks and handlers. What follows it need
not: a frame whose call lies under no handler gives `Suspended` in place of resuming, and its caller passes that on.
`link` makes one function of what is suspended: it calls the innermost resume function and hands each result to the
caller's, so that what follows the break in all these frames is captured as one."""

from __future__ import annotations

import functools
from types import CodeType, FunctionType
from typing import Any, Callable

from ...base.labels import REST
from .instructions import decode
from .memo import CodeMemo
from .splice import Param, Splice
from .version import NULL_FIRST

__all__ = ["Suspended", "suspend", "settle", "resuming", "link"]


class Suspended:
    """The rest of a frame: `function(*args)`. One of the arguments may be Suspended, for the result of the call that is
    still to go on.
    """

    __slots__ = ("function", "args")

    def __init__(self, function: FunctionType, args: tuple):
        self.function, self.args = function, args


def suspend(function: FunctionType, *args: Any) -> Suspended:
    """The dispatcher of break functions that leave resuming to their caller."""
    return Suspended(function, args)


def settle(dispatch: Callable[..., Any], value: Any) -> Any:
    """The result of a call: what is suspended goes on now."""
    if type(value) is not Suspended:
        return value
    function, args = link(value)
    return dispatch(function, *args)


def resuming(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A dispatcher of resume functions whose arguments may be Suspended."""
    return functools.partial(_go_on, dispatch)


def _go_on(dispatch: Callable[..., Any], function: FunctionType, *args: Any) -> Any:
    return settle(dispatch, Suspended(function, args))


_links: CodeMemo[dict[tuple, CodeType]] = CodeMemo()


def link(rest: Suspended) -> tuple[FunctionType, list[Any]]:
    """A function, and its arguments, that does what is suspended, innermost first. The same rest gives the same code
    object.
    """
    hole = next((i for i, value in enumerate(rest.args) if type(value) is Suspended), None)
    if hole is None:
        return rest.function, list(rest.args)
    inner, inner_args = link(rest.args[hole])
    outer = rest.function
    known = _links.setdefault(outer.__code__, {})
    key = hole, inner.__code__.co_argcount, id(inner.__code__)
    code = known.get(key)
    if code is None:
        code = known[key] = _link_code(outer.__code__, hole, inner.__code__)
    made = FunctionType(code, outer.__globals__, code.co_name)
    made.__qualname__ = code.co_qualname
    return made, [outer, *rest.args[:hole], *rest.args[hole + 1 :], inner, *inner_args]


def _rest_of(code: CodeType) -> str:
    """A parameter's name, which guards and their failures show."""
    return REST + code.co_name.strip("<>")


def _link_code(outer: CodeType, hole: int, inner: CodeType) -> CodeType:
    """`outer(..., inner(...), ...)`; name, file and line are the outer function's, where its call is."""
    names: dict[str, None] = {}

    def fresh(name: str) -> Param:
        while name in names:
            name += "_"
        names[name] = None
        return Param("linked", len(names) - 1, name)

    own = [
        fresh(_rest_of(outer)),
        *(fresh(name) for i, name in enumerate(outer.co_varnames[: outer.co_argcount]) if i != hole),
    ]
    within = [fresh(_rest_of(inner)), *(fresh(name) for name in inner.co_varnames[: inner.co_argcount])]
    bytecode = decode(outer)
    # from the restored state to what follows the call
    start = next(ins for ins in bytecode.instructions if ins.op == "JUMP")
    splice = Splice(bytecode, [*own, *within], (), start.positions)

    def push_function(param: Param) -> None:
        if NULL_FIRST:
            splice.emit("PUSH_NULL")
        splice.load_and_forget(param.number)
        if not NULL_FIRST:
            splice.emit("PUSH_NULL")

    push_function(own[0])
    for param in own[1 : hole + 1]:
        splice.load_and_forget(param.number)
    push_function(within[0])
    for param in within[1:]:
        splice.load_and_forget(param.number)
    splice.emit("CALL", len(within) - 1)
    for param in own[hole + 1 :]:
        splice.load_and_forget(param.number)
    splice.emit("CALL", len(own))
    splice.emit("RETURN_VALUE")
    return splice.finish()
