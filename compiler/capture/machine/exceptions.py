"""Where things happen in the interpreted program: the frames that its exceptions passed, so that an entry can make them
again with the traceback they would have, and the frames that its warnings and log records name."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Sequence

from ..entry.locations import Position

if TYPE_CHECKING:
    from .frame import Frame
    from .machine import Machine

__all__ = ["note_frame", "set_context", "traceback_at", "calling_code"]


def note_frame(machine: Machine, frame: Frame, ins: Any, exc: BaseException) -> None:
    """`exc` comes out of instruction `ins` of `frame`: one more entry of its traceback, unless it is only raised
    again.
    """
    if ins.op == "RERAISE" or (ins.op == "RAISE_VARARGS" and ins.arg == 0) or machine.world.is_outside(exc):
        return
    trail = machine.trails.get(id(exc))
    if trail is None:
        trail = machine.trails[id(exc)] = []
        machine.world.keep.append(exc)
        _use_eager_names(exc)
    trail.append(frame.position())


def set_context(machine: Machine, exc: BaseException) -> None:
    """What is handled where `exc` is raised is its context, whatever was before. A ring of contexts is opened."""
    handled = machine.handling()
    if handled is None or handled is exc:
        return
    seen, at = {id(handled)}, handled
    while (context := at.__context__) is not None and id(context) not in seen:
        if context is exc:
            if not machine.world.is_outside(at):
                at.__context__ = None
            break
        seen.add(id(context))
        at = context
    exc.__context__ = handled


_EAGER_NAMES = (("TraceTensor", "Tensor"), ("SymInt", "int"), ("SymFloat", "float"), ("SymBool", "bool"))


def _use_eager_names(exc: BaseException) -> None:
    """Native code names the classes of the stand-ins: 'SymInt' object is not callable."""
    if exc.args and isinstance(exc.args[0], str) and not isinstance(exc, KeyError):
        text = exc.args[0]
        for ours, eager in _EAGER_NAMES:
            text = text.replace(f"'{ours}'", f"'{eager}'")
        if text != exc.args[0]:
            exc.args = (text, *exc.args[1:])


def _stand_in() -> Any:
    yield


def _placed(code: types.CodeType, position: Position) -> types.CodeType:
    """The same code under the file, the line and columns, and the function's name of a position."""
    units = len(code.co_code) // 2
    lines, (kind, where) = b"", _columns(position)
    while units:  # line table: no change of line; at most eight instructions an entry
        lines += bytes([0x80 | kind << 3 | min(units, 8) - 1]) + where
        units -= min(units, 8)
    return code.replace(
        co_filename=position.file,
        co_firstlineno=position.line,
        co_linetable=lines,
        co_name=position.function.rpartition(".")[2],
        co_qualname=position.function,
    )


def _columns(position: Position) -> tuple[int, bytes]:
    """The kind of an entry of a line table, and its bytes: on the same line; where that ends, and the columns."""
    if None in (position.col, position.end_line, position.end_col) or position.end_line < position.line:
        return 13, b"\0"
    numbers = (0, position.end_line - position.line, position.col + 1, position.end_col + 1)
    return 14, b"".join(map(_varint, numbers))


def _varint(n: int) -> bytes:
    """Six bits a byte, the lowest first, with a mark on all but the last."""
    out = bytearray()
    while n >= 64:
        out.append(64 | n & 63)
        n >>= 6
    out.append(n)
    return bytes(out)


def traceback_at(trail: Sequence[Position]) -> types.TracebackType | None:
    """A traceback through these positions, innermost first. Its frames only name the file, the function, the
    line and its columns.
    """
    made: types.TracebackType | None = None
    for position in trail:
        made = types.TracebackType(
            made, types.FunctionType(_placed(_stand_in.__code__, position), {})().gi_frame, 0, position.line
        )
    return made


def _pass_on(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    return fn(*args, **kwargs)


def calling_code(position: Position) -> types.CodeType:
    """Of a function that calls its first argument with the others: to what it calls, its frame is the one at
    `position`.
    """
    return _placed(_pass_on.__code__, position)
