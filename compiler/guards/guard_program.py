"""compile_guards: the guard program of an entry, in C where the extension is built."""

from __future__ import annotations

from typing import Any, Protocol, Sequence

from .. import events
from ..native import native, say_missing
from .guard import Guard
from . import probe
from .guard_code import Lowering, lower_plan
from .guard_plan import make_plan
from .held_places import HeldPlaces
from .python_program import PythonGuardProgram
from .watch_probe import every_write_is_heard

__all__ = ["GuardProgram", "compile_guards"]


class GuardProgram(Protocol):
    """What both programs offer."""

    guards: list[Guard]
    native: bool

    @property
    def bindings(self) -> dict[str, int]: ...

    def check(self, func: Any, args: Sequence[Any]) -> int: ...


def compile_guards(
    guards: Sequence[Guard], n_locals: int, *, places: HeldPlaces | None = None, force_python: bool = False
) -> GuardProgram:
    """The program that checks `guards` for calls of a frame with `n_locals` parameters (*args and **kwargs count).
    `places`: their plan, where it is known.

    `program.check(func, args) -> int`: -1 where all hold, else the index in `guards` of the first that does not hold.
    Raises ValueError for a malformed guard, or a size symbol that no guard binds.
    """
    plan = (places and places.plan) or make_plan(guards, n_locals)
    if native is None or force_python or not hasattr(native, "GuardProgram"):
        say_missing()
        return PythonGuardProgram(guards, n_locals, plan)
    _prepare()
    if places is None:
        return lower_plan(native, guards, n_locals, plan)
    if places.lowering is None:
        places.lowering = Lowering(native, n_locals, plan)
    return places.lowering.program(guards)


_listened = False


def _prepare() -> None:
    # What C programs build on is looked at once in a process: where torch keeps a tensor's metadata, and whether this
    # Python tells of every write that watched guards rely on.
    global _listened
    if not probe.prepare() or _listened:
        return
    _listened = True
    if not every_write_is_heard(compile_guards):
        native.set_watching(False)
        events.fallback(
            "watched guards", "this Python does not tell when objects change; all guards are evaluated at each call"
        )
