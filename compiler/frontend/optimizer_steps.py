"""Steps of torch's optimizers that library code takes: `optimizer.step()` below a trainer's loop.

In a captured function a step is part of the graph. Where a library's loop calls it, with its own glue around, the step
runs as torch's Python: a dozen small operators for each parameter. From the STEP_CALLS-th step of an optimizer's class
in one run of a cell it is an entry of its own, guarded like any other. A closure runs before it as it is, with what it
calls compiled.

torch puts the same wrapper around the step of every class. It runs inside of the hooks that a program has put on the
optimizer, so that these run as they are, too.
"""

from __future__ import annotations

import inspect
import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from .. import events
from ..capture.library.optimizers import captured_step, inner_step
from ..guards.guard_program import compile_guards
from ..runtime.dispatch import RUN_ORIGINAL, Entry, disabled

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["OptimizerSteps", "is_step", "STEP_CALLS"]

STEP_CALLS = 4  # steps of one class in a run of a cell before its steps are compiled: fewer do not pay

_WRAPPER = torch.optim.Adam.step
while _WRAPPER.__code__.co_name != "_use_grad" and hasattr(_WRAPPER, "__wrapped__"):
    _WRAPPER = _WRAPPER.__wrapped__


def is_step(code: types.CodeType) -> bool:
    """Whether a frame is that of torch's wrapper around an optimizer's step."""
    return code is _WRAPPER.__code__


def _step(optimizer: torch.optim.Optimizer) -> None:
    inner_step(optimizer)


_STEP: Any = _step  # reports call it what it is to whoever reads them
_STEP.__code__ = _STEP.__code__.replace(co_name="step", co_qualname="Optimizer.step")


class OptimizerSteps:
    """The steps that one engine compiles."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._counts: dict[type, tuple[int, int]] = {}  # class -> (run of a cell, steps in it)
        self._begun: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._given_up: set[type] = set()
        self._entry: Any = None  # made at the first step: an engine may be made while stock's hook is on

    def reset(self) -> None:
        self._counts.clear()
        self._begun.clear()
        self._given_up.clear()

    def serve(self, args: tuple) -> Any:
        """What runs for a frame of the wrapper: an entry, or RUN_ORIGINAL."""
        called, keywords = args
        optimizer: Any = called[0] if called else None
        kind = type(optimizer)
        if kind in self._given_up or len(called) > 2 or not keywords.keys() <= {"closure"}:
            return RUN_ORIGINAL
        if captured_step(kind) is None:
            return RUN_ORIGINAL
        if optimizer not in self._begun:  # its first step makes its state
            self._begun.add(optimizer)
            return RUN_ORIGINAL
        run, count = self._counts.get(kind, (-1, 0))
        count = count + 1 if run == self._engine.generation else 1
        if count <= STEP_CALLS and not self._serves(optimizer):
            self._counts[kind] = self._engine.generation, count
            return RUN_ORIGINAL
        if self._entry is None:
            with disabled():
                self._entry = Entry(compile_guards([], 2), self._run, None)
        return self._entry

    def _give_up(self, kind: type) -> None:
        self._given_up.add(kind)
        self._engine.state(_STEP.__code__).skips = 0
        events.emit("library", frame=f"{kind.__name__}.step", decision="left alone", reason="its step is not one graph")

    def _serves(self, optimizer: Any) -> bool:
        cache: Any = self._engine.cache(_STEP.__code__)
        return cache.lookup(_STEP, (optimizer,)) is not None

    def _run(self, wrapper: Any, called: tuple, keywords: dict) -> Any:
        __tracebackhide__ = True
        optimizer = called[0]
        closure = called[1] if len(called) == 2 else keywords.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        cache: Any = self._engine.cache(_STEP.__code__)
        entry = cache.lookup(_STEP, (optimizer,))
        if entry is None:
            with disabled():
                entry = self._engine.entry_for(_STEP.__code__, cache, _STEP, (optimizer,))
        if entry is not RUN_ORIGINAL and not entry.meta.breaks:
            entry.hits += 1  # the dispatcher, which counts, is not on this way
            entry.fn(_STEP, optimizer)
            return loss
        if entry is not RUN_ORIGINAL or self._engine.state(_STEP.__code__).skips:
            self._give_up(type(optimizer))
        before = torch._C.is_grad_enabled()
        try:
            torch.set_grad_enabled(optimizer.defaults["differentiable"])
            inspect.unwrap(wrapper)(optimizer)
        finally:
            torch.set_grad_enabled(before)
        return loss
