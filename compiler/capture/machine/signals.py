"""Control signals inside capture. None of them derives from Exception, so user handlers that capture interprets
(`except Exception`) and native code that calls back into the interpreter never swallow one."""

from __future__ import annotations

from typing import Any

__all__ = ["Raised", "Break", "Plainly", "Skip", "CaptureBug", "Otherwise", "StateMade", "Unrebuildable"]


class Raised(BaseException):
    """The interpreted program raised `exc`, a real exception object."""

    def __init__(self, exc: BaseException):
        super().__init__(exc)
        self.exc = exc


class Break(BaseException):
    """Capture cannot go on past the current instruction. `kind` names rows of `breaks.CAUSES`."""

    def __init__(self, kind: str, reason: str = "", remedy: str = ""):
        super().__init__(kind, reason)
        self.kind, self.reason, self.remedy = kind, reason, remedy
        self.where: Any = None  # filled by the interpreter: list of frame positions, outermost first
        self.frames: Any = ()  # those that may be left there (nesting.py), the root first
        self.index: int | None = None  # the root frame's instruction to break at; None: the current one
        self.codes: list[Any] = []  # of the interpreted frames, outermost first


class Plainly(Break):
    """The frame that is captured is to run as plain Python, under the guards so far: what it does shows in the time at
    which it does it. The frames of its calls are looked at, where they are not part of that."""

    def __init__(self, kind: str, reason: str = "", remedy: str = "", calls_compiled: bool = True):
        super().__init__(kind, reason, remedy)
        self.calls_compiled = calls_compiled


class Skip(BaseException):
    """Give the frame up: it runs as it is, for good where it is `final`. Leaves capture as a SkipFrame."""

    def __init__(self, reason: str, quiet: bool = False, final: bool = False):
        super().__init__(reason)
        self.reason, self.quiet, self.final = reason, quiet, final
        self.codes: list[Any] = []  # of the interpreted frames, outermost first


class Otherwise(BaseException):
    """Capture begins again, and does what `key` names in another way."""

    def __init__(self, key: Any, way: int):
        super().__init__(key, way)
        self.key, self.way = key, way


class StateMade(BaseException):
    """An optimizer has its state now: an entry that was made for another one may serve this call."""


class CaptureBug(BaseException):
    """An error of capture's own, raised while native code was calling back; never visible to the user's handlers."""


class Unrebuildable(BaseException):
    """A value made during capture cannot be made again by the entry."""

    def __init__(self, value: Any, what: str):
        super().__init__(what)
        self.value, self.what = value, what
