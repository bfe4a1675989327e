"""Generators whose frames are interpreted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

from .exceptions import set_context
from .signals import Break, CaptureBug, Raised

if TYPE_CHECKING:
    from .frame import Frame
    from .machine import Machine

__all__ = ["InlineGenerator", "PythonIterator", "natively"]


def natively(machine: Machine, step: Callable, *args: Any) -> Any:
    """Call the interpreter from native code: exceptions of the program leave as themselves, raised outside of every
    handler, so that none of capture's own becomes their context. The interpreter knows them again (`Machine.run`)."""
    try:
        return step(*args)
    except Raised as raised:
        error = raised.exc
    except StopIteration:
        raise
    except Exception as exc:
        raise CaptureBug(f"{type(exc).__name__}: {exc}") from exc
    machine.escaped = error
    raise error


class InlineGenerator:
    """Stands for a generator object. It is a native iterator, so that native code (list, zip, any, sum) can drive it;
    exceptions of the interpreted body leave `__next__` as themselves. `origin` is the instruction of the root frame
    that made it: a break that would have to carry it over goes there instead. `measured` is what len() is asked of
    where list() asks for the length.
    """

    __slots__ = ("machine", "frame", "started", "finished", "running", "origin", "measured", "__weakref__")

    def __init__(self, machine: Machine, frame: Frame, origin: int):
        self.machine, self.frame, self.origin = machine, frame, origin
        self.started = self.finished = self.running = False
        self.measured: Any = None

    def __iter__(self) -> "InlineGenerator":
        return self

    def _resume(self, value: Any, exc: BaseException | None) -> Any:
        """Run to the next yield. StopIteration at the end; Raised for the body's own exceptions."""
        machine, frame = self.machine, self.frame
        if self.finished:
            if exc is not None:
                raise Raised(exc)
            raise StopIteration
        if self.running:
            raise Raised(ValueError("generator already executing"))
        if exc is not None and not self.started:
            self.finished = True
            raise Raised(exc)
        self.running = True
        machine.handled_outside.append(machine.handled)
        machine.handled = frame.handled
        path = machine.module_path
        machine.module_path = frame.module_path
        try:
            if exc is not None:
                self._leave_delegate(exc)
                if machine.handled is not None and not machine.world.is_outside(exc):
                    # the generator's own: else it stays
                    set_context(machine, exc)
                ins = frame.program[frame.pc - 1][1]
                if not machine.unwind(frame, ins, exc, True):
                    self.finished = True
                    raise Raised(exc)
            else:
                frame.stack.append(value)
            self.started = True
            try:
                outcome = machine.run(frame)
            except Raised as raised:
                self.finished = True
                if isinstance(raised.exc, StopIteration):  # 3.12 and later convert it by bytecode
                    error = RuntimeError("generator raised StopIteration")
                    error.__cause__ = error.__context__ = raised.exc
                    raise Raised(error) from None
                raise
        finally:
            self.running = False
            frame.handled = machine.handled
            machine.handled = machine.handled_outside.pop()
            machine.module_path = path
            if self.finished:
                self._forget()
        if outcome == "yield":
            return frame.result
        self.finished = True
        self._forget()
        raise StopIteration if frame.result is None else StopIteration(frame.result)

    def _forget(self) -> None:
        """The frame is done: what only it held is dropped."""
        self.frame.slots, self.frame.stack = [], []

    def _leave_delegate(self, exc: BaseException) -> None:
        """The generator waits in `yield from`: the exception concerns the inner iterator first."""
        frame = self.frame
        following = frame.program[frame.pc][1]
        if following.op != "RESUME" or following.arg & 3 != 2:
            return
        inner = frame.stack[-1]
        if not isinstance(exc, GeneratorExit):
            raise Break(
                "generator",
                "an exception is thrown into a generator that waits in `yield from`",
                "call throw() on the inner generator",
            )
        if isinstance(inner, InlineGenerator):
            inner.close()
        elif isinstance(inner, PythonIterator) or not isinstance(inner, (list, tuple)) and hasattr(inner, "close"):
            raise Break(
                "generator", "a generator that waits in `yield from` is closed", "close the inner iterator first"
            )

    def __del__(self) -> None:
        """The program let go of it: CPython closes it there and then, so its `finally` and `with` blocks run before the
        next instruction.
        """
        if self.started and not self.finished and not self.running:
            self.machine.close_soon(self)

    def __next__(self) -> Any:
        return natively(self.machine, self._resume, None, None)

    def send(self, value: Any) -> Any:
        if not self.started and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        return natively(self.machine, self._resume, value, None)

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        exc = (
            kind
            if isinstance(kind, BaseException)
            else (value if isinstance(value, BaseException) else kind(*(() if value is None else (value,))))
        )
        if not isinstance(exc, BaseException):
            exc = TypeError(
                f"calling {kind!r} should have returned an instance of BaseException, not {type(exc).__name__}"
            )
        return natively(self.machine, self._resume, None, exc)

    def close(self) -> Any:
        """What the generator returns then is the result, from Python 3.13 on."""
        if self.finished:
            return None
        if not self.started:
            self.finished = True
            return None
        try:
            natively(self.machine, self._resume, None, GeneratorExit())
        except StopIteration as end:
            return end.value if sys.version_info >= (3, 13) else None
        except GeneratorExit:
            return None
        raise RuntimeError("generator ignored GeneratorExit")


class PythonIterator:
    """A native iterator over an object whose class defines __next__ in Python."""

    __slots__ = ("machine", "target", "origin")

    def __init__(self, machine: Machine, target: Any, origin: int):
        self.machine, self.target, self.origin = machine, target, origin

    def __iter__(self) -> "PythonIterator":
        return self

    def __next__(self) -> Any:
        machine = self.machine
        return natively(machine, lambda: machine.call(machine.getattr(self.target, "__next__"), []))
