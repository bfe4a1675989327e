"""Exceptions of the interpreted program: the frames they passed, so that an entry can make them again with the traceback they would have."""
from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Sequence

from .locations import Position

if TYPE_CHECKING:
    from .frame import Frame
    from .machine import Machine

__all__ = ["note_frame", "traceback_at"]


def note_frame(m: Machine, frame: Frame, ins: Any, exc: BaseException) -> None:
    """`exc` comes out of instruction `ins` of `frame`: one more entry of its traceback, unless it is only raised again."""
    if ins.op == "RERAISE" or (ins.op == "RAISE_VARARGS" and ins.arg == 0) or m.world.is_outside(exc):
        return
    trail = m.trails.get(id(exc))
    if trail is None:
        trail = m.trails[id(exc)] = []
        m.world.keep.append(exc)
        _use_eager_names(exc)
    trail.append(frame.position())


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


def traceback_at(trail: Sequence[Position]) -> types.TracebackType | None:
    """A traceback through these positions, innermost first. Its frames only name the file, the function and the line."""
    made: types.TracebackType | None = None
    for position in trail:
        code = _stand_in.__code__
        units = len(code.co_code) // 2
        lines = b""
        while units:                               # line table: no columns, no change of line; at most eight instructions an entry
            lines += bytes([0x80 | 13 << 3 | min(units, 8) - 1, 0])
            units -= min(units, 8)
        code = code.replace(co_filename=position.file, co_firstlineno=position.line, co_linetable=lines,
                            co_name=position.function.rpartition(".")[2], co_qualname=position.function)
        made = types.TracebackType(made, types.FunctionType(code, {})().gi_frame, 0, position.line)
    return made
