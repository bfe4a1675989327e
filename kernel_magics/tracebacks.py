"""Tracebacks of cells: the user's frames and the libraries' they called, as without a compiler in between.

Frames of tcompile's own files, and of the entries that it wrote, are left out. An error that tcompile raises on purpose
is for the user and names the user's line: where no user's frame is on the way to it, the message stands alone.
"""

from __future__ import annotations

import contextlib
import os
from types import CodeType, TracebackType
from typing import Any

from ..compiler.base.labels import cell_name
from ..compiler.errors import InternalError, TCompileError

__all__ = ["own_traceback", "users_traceback", "render", "in_one_line", "text_of", "OwnLines"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The package may be a tree of links (an editable install): frames name files as they were found on sys.path.
_OURS = tuple({_PACKAGE, os.path.realpath(os.path.dirname(_PACKAGE)) + os.sep})

# Files of tcompile whose functions call the user's code; what others call (importlib, subprocess, torch.fx) is
# compilation.
_DISPATCH = tuple("engine.py hook.py frame_hook.py dispatch.py cell.py session.py module_wrapper.py api.py".split())


def _is_ours(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith("<tcompile ") or file.startswith(_OURS)


def own_traceback(tb: TracebackType | None, name: str, runners: tuple[CodeType, ...]) -> TracebackType | None:
    """The part of a traceback from the cell's first own frame on, or None where the cell has none. The shell's frame
    for the magic call may have the same file name `name`: what counts is what comes after a frame of `runners`, which
    run the cell's code. A cell that is run again as it was runs the code of its first time, under that number.
    """
    cell = cell_name(name)
    while tb is not None:
        if tb.tb_frame.f_code in runners:
            while tb is not None and cell_name(tb.tb_frame.f_code.co_filename) != cell:
                tb = tb.tb_next
            return tb
        tb = tb.tb_next
    return None


def users_traceback(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without tcompile's frames and without what these called for themselves; None where nothing is
    left.
    """
    links = []
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    ours = [i for i, link in enumerate(links) if _is_ours(link.tb_frame.f_code)]
    if ours and not _calls_users_code(links[ours[-1]].tb_frame.f_code):
        links = links[: ours[-1]]
    out: TracebackType | None = None
    for link in reversed(links):
        if not _is_ours(link.tb_frame.f_code):
            out = TracebackType(out, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return out


def text_of(e: BaseException) -> str:
    """What an exception says of itself; nothing where that raises."""
    try:
        return str(e)
    except Exception:
        return ""


def in_one_line(e: BaseException) -> str:
    """An error as one line."""
    first = next((line.strip() for line in text_of(e).splitlines() if line.strip()), "")
    return f"{type(e).__name__}: {first}" if first else type(e).__name__


def _entered(tb: TracebackType | None) -> bool:
    """Whether an entry was running."""
    while tb is not None and not tb.tb_frame.f_code.co_filename.startswith("<tcompile "):
        tb = tb.tb_next
    return tb is not None


def _calls_users_code(code: CodeType) -> bool:
    return code.co_filename.startswith("<tcompile ") or os.path.basename(code.co_filename) in _DISPATCH


def render(shell: Any, e: BaseException, tb: TracebackType | None) -> list[str]:
    """What the shell shows for `e`. `tb` is the traceback from the cell's own code on."""
    shown = users_traceback(tb)
    if shown is None and isinstance(e, KeyboardInterrupt):
        where = "in compiled code" if _entered(e.__traceback__) else "while compiling, before the code ran"
        return [f"KeyboardInterrupt: {text_of(e) or where}"]
    if shown is None and isinstance(e, TCompileError) and not isinstance(e, InternalError):
        return [f"{type(e).__name__}: {e}"]
    for linked in (e.__cause__, e.__context__):
        if linked is not None:
            linked.__traceback__ = users_traceback(linked.__traceback__)
    lines = shell.InteractiveTB.structured_traceback(type(e), e, shown or tb or e.__traceback__, tb_offset=0)
    # A break function holds only the locals that are still needed: its frame's parameters cannot all be told.
    return [line.replace("***failed resolving arguments***", "…") for line in lines]


class OwnLines:
    """Lets the traceback of what is raised in a with-block begin at the cell's own code, as if IPython had run it."""

    def __init__(self, shell: Any, name: str, runners: tuple[CodeType, ...]):
        self.shell, self.name, self.runners = shell, name, runners

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, e: BaseException | None, tb: TracebackType | None) -> None:
        if e is None:
            return
        own = own_traceback(tb, self.name, self.runners)

        def show() -> list[str]:
            return render(self.shell, e, own)

        if isinstance(e, BaseExceptionGroup):
            _trim(e, own)
        with contextlib.suppress(AttributeError, TypeError):  # an exception class with __slots__ shows all frames
            e._render_traceback_ = show  # type: ignore[attr-defined]


def _trim(e: BaseException, tb: TracebackType | None) -> None:
    """Of groups, IPython asks nobody how they are to be shown: their tracebacks themselves are to be without ours."""
    if isinstance(e, BaseExceptionGroup):
        e.__traceback__ = users_traceback(tb)
        for part in e.exceptions:
            _trim(part, part.__traceback__)
    elif (own := users_traceback(tb)) is not None:
        e.__traceback__ = own
