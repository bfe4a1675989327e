"""Cells and whole programs: the compiler sees the frames that code reaches, without wrapping anything.

`enable()` activates the frame hook for a with-block; `run_code(code, namespace)` runs a cell's code object through
capture, with the hook on for what it calls. Compiled entries are kept per code object and per set of options and serve
later cells.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from contextlib import contextmanager, nullcontext
from typing import Any, Iterator, TypeVar

from .. import events, stages
from . import frames
from ..base.labels import is_loop
from ..capture.bytecode.loops import find_loops
from ..capture.bytecode.memo import CodeMemo
from ..config import Options
from ..capture.breaks.failing import call_original
from ..capture.library.torch_marks import is_stock_compiled
from .cell_times import CellTimes
from .cell_work import CellWork
from .engine import Engine
from ..guards.guard_program import compile_guards
from ..guards.held_places import HeldPlaces
from ..guards.redefined import renamed
from ..guards.source_values import file_of
from ..guards.weak import referents
from ..marks import error_on_graph_break, is_disabled
from .instead_of_stock import InsteadOfStock
from .slow_entries import Timings
from .optimizer_steps import OptimizerSteps, is_step
from .policy import Library, counted_gain, is_installed
from .recompile import FrameState, carried, is_before_first_step
from .set_up import only_sets_up
from ..runtime import frame_hook as _hook
from ..runtime.stock_hook import hide
from ..runtime.dispatch import RUN_ORIGINAL, Entry, disabled, forget_all, forget_code

__all__ = ["enable", "run_code", "reset", "engine_for", "all_engines"]

T = TypeVar("T")
_CELLS = 256  # distinct cells whose entries are kept
_ENGINES = 64  # sets of options whose engines are kept
_LINES_REST = 3  # a cell's lines without tensor work are looked at in the 1st, 9th, 73rd run
_REST = 63  # calls that pass unseen of a function that is switched off
_CLASSES, _RUNS_KEPT = 32, 4  # classes of the program that are kept at most, and for how many runs of cells
_engines: "dict[Any, HookEngine]" = {}  # the one asked for last is the last


def engine_for(opts: Options) -> "HookEngine":
    """The engine of a set of options, kept so that entries serve later cells. Of very many sets (a backend that is
    defined anew by each cell), the one that was not asked for longest goes, with its entries."""
    key = (
        opts.mode,
        opts.backend if isinstance(opts.backend, str) else id(opts.backend),
        opts.fullgraph,
        opts.dynamic,
        tuple(sorted(opts.given.items())),
        stages.replaced(),
    )
    e = _engines.pop(key, None) or HookEngine(opts)
    _engines[key] = e
    while len(_engines) > _ENGINES:
        _engines.pop(next(iter(_engines))).reset()
    return e


def all_engines() -> list[Engine]:
    return list(_engines.values())


class _CellMemo(CodeMemo[T]):
    """Cells are known again by the value of their code: one that is run again as it was finds what it had. The latest
    are kept.
    """

    def __init__(self) -> None:
        super().__init__()
        # code of a cell and its name (not its number: guards.source_values.file_of) -> the equal one that came first
        self._cells: dict[tuple[types.CodeType, str], types.CodeType] = {}

    def first(self, code: types.CodeType) -> types.CodeType:
        """The code object that the same cell had when it ran first. The functions that it defines are then the same
        code, too.
        """
        return self._cells.get((code, file_of(code)), code) if code.co_name == "<module>" else code

    def get(self, code: types.CodeType, default: T | None = None) -> T | None:  # type: ignore[override]
        return super().get(self.first(code), default)

    def __setitem__(self, code: types.CodeType, value: T) -> None:
        if code.co_name == "<module>":
            code = self._cells.setdefault((code, file_of(code)), code)
            if len(self._cells) > _CELLS:
                del self._cells[next(iter(self._cells))]
        super().__setitem__(code, value)

    def clear(self) -> None:
        super().clear()
        self._cells.clear()


class HookEngine(Engine):
    """An engine for frames that the hook sees. Their caches hang on the code objects, one for each set of options."""

    def __init__(self, opts: Options):
        super().__init__(opts)
        self.caches: _CellMemo[Any] = _CellMemo()
        self.states = _CellMemo()
        self.library = None if opts.fullgraph else Library()  # fullgraph names what is to be one graph
        self.steps = OptimizerSteps(self)
        self.times = Timings(opts)
        self.cell_times = CellTimes(self, _CellMemo())
        self.instead_of_stock = InsteadOfStock(self, engine_for)
        self._root: types.CodeType | None = None  # of a library, which the hook asks about
        self._waiting = False  # the call that the hook asks about is to run as it is
        # the program's classes in entries -> the run that they are of: kept until a cell may have defined them again
        self._defined: dict[type, int] = {}

    def cache(self, code: types.CodeType) -> Any:
        from ..runtime.dispatch import code_cache

        c = self.caches.get(code)
        if c is None:
            c = self.caches[code] = code_cache(code, owner=self.number)
        return c

    def all_caches(self) -> list[Any]:
        """Those that serve a cell under these options."""
        graphs = self.instead_of_stock.with_graphs
        return [*self.caches.values(), *(graphs.caches.values() if graphs is not None else ())]

    def frame_cache(self, func: types.FunctionType) -> Any:
        return self.cache(func.__code__)  # a cell's code is known again by its value

    def reset(self) -> None:
        for code in self.caches:
            forget_code(code, self.number)
        self.caches.clear()
        self.states.clear()
        self.outside.clear()
        self.steps.reset()
        self.times.reset()
        self.cell_times.reset()
        self._defined.clear()
        if self.library is not None:
            self.library.reset()

    # ---- library code
    def on_frame(self, code: types.CodeType, func: types.FunctionType, args: tuple) -> Any:
        if is_stock_compiled(func):
            return self.instead_of_stock.serve(func)
        if is_step(code):
            self.times.between_steps()
            return self.steps.serve(args) if self.library is not None else RUN_ORIGINAL
        if (
            self.library is None
            or not is_installed(code.co_filename)
            or frames.takes_every_frame()
            or func.__dict__
            and is_disabled(func)
        ):
            return self._compiled_or_plain(code, func, args)
        if self.library.is_root(code, func, args, self.generation):
            self._root = code
            if self.times.is_off(code, args):
                if self.library.is_leaf(code):
                    self.cache(code).rest = _REST
                return call_original(func, args)
            result = self._compiled_or_plain(code, func, args)
            if result is RUN_ORIGINAL and (state := self.state(code)).skips:
                self.library.give_up(code, state.last_skip)
        elif self.library.is_watched(code):
            return self.times.run_plain(code, func, args)
        else:
            result = RUN_ORIGINAL
        if self.library.given_up(code):
            self.cache(code).skip = True
        elif rest := self.library.rest(code):
            self.cache(code).rest = rest
        return result

    def _compiled_or_plain(self, code: types.CodeType, func: types.FunctionType, args: tuple) -> Any:
        """What runs the frame; a call that waits (`_waits`) runs as it is, with everything below it."""
        self._waiting = False
        result = super().on_frame(code, func, args)
        if result is not RUN_ORIGINAL or not self._waiting:
            return result
        self._waiting = False
        return self.times.run_plain(code, func, args) if code is self._root else call_original(func, args)

    def _miss_within(self, dispatcher: Any, func: types.FunctionType, args: tuple) -> Any:
        """As Engine's; a turn that waits runs as it is, with everything below it, as a frame that waits."""
        __tracebackhide__ = True
        self._waiting = False
        found = super()._miss_within(dispatcher, func, args)
        if found is not RUN_ORIGINAL or not self._waiting:
            return found
        self._waiting = False
        self.state(func.__code__).waits_for = None  # the hook does not meet the frame that this starts
        with disabled():
            return Entry(compile_guards([], len(args)), _as_it_is, None)

    def _tiers(self, code: types.CodeType) -> dict[str, Any]:
        if self.library is None or frames.takes_every_frame():
            return {}
        if is_installed(code.co_filename):
            return {"leaf": self.library.is_leaf(code)}
        return {"library": self.library}

    def _waits(self, cache: Any, state: Any, func: types.FunctionType, args: tuple, misses: Any) -> bool:
        """A root that serves other calls meets a new form of call once in each run of a cell before it is compiled for
        it. What comes once in a run (the prompt of a generation, the last batch) never is, so that a second run
        compiles nothing. The first step of an optimizer that the cell has made anew is such a call, too: capturing it
        would end where the optimizer gets its state. A run may have several, if entries have served the steps between
        them. A frame that goes on to further steps does not wait.
        """
        if self.library is None or not len(cache) or frames.takes_every_frame():
            return False
        first_step = _is_one_turn(func.__code__) and is_before_first_step(state, misses)
        if func.__code__ is not self._root and not first_step:
            return False
        call, served = tuple(map(id, args)), sum(entry.hits for entry in cache.entries)
        waited = state.waited == self.generation
        known = waited and state.waits_for == call
        if waited and not known and not (first_step and served != state.served):  # (a renamed entry counts anew)
            return False
        # What resumes a frame meets a call first, and the hook meets the frame that this starts.
        state.waits_for = None if known else call
        state.waited, state.served = self.generation, served
        self._waiting = True
        return True

    def _rest(self, state: FrameState) -> int:
        """Looks become rarer, as a JIT's counters back off: at the 1st, 2nd, 4th, 8th call and so on. A turn of a loop
        that prints now and then has tensor work in some turns, and none in most. What is no turn rests from the first
        look on, or the second run of a cell would be looked at. A cell's own lines run once in a run: they rest longer.
        """
        if self.library is None or frames.takes_every_frame():
            return 0
        turn = is_loop(state.name)
        return (1 << (_LINES_REST if state.name == "<module>" else 1) * (state.skips - turn)) - 1

    # ---- classes that a cell defined again
    @contextmanager
    def run_of_a_cell(self) -> Iterator[None]:
        """For the length of a with-block a cell runs, whose work of compiling is bounded."""
        before = self.work
        self.next_run()
        self.work = None if self.opts.fullgraph or frames.takes_every_frame() else CellWork.of(self.opts)
        try:
            yield
        finally:
            self.work = before

    def next_run(self) -> None:
        super().next_run()
        self.times.next_run()
        for cls, run in list(self._defined.items()):
            if run < self.generation - _RUNS_KEPT:
                del self._defined[cls]

    def _program(self, result: Any, n_locals: int) -> Any:
        """As Engine's. Where the guards know a class of a cell's, their plan is kept for the one that the cell's next
        run defines in its place: making it anew is most of what the entry's renaming costs.
        """
        if not any(_is_a_cells(held) for held in referents(result.guards)):
            return super()._program(result, n_locals)
        places = result.held_places = HeldPlaces(result.guards)
        places.make_plan(result.guards, n_locals)
        return compile_guards(result.guards, n_locals, places=places)

    def _add_entry(self, cache: Any, name: str, program: Any, result: Any, owners: list[Any] | None = None) -> Any:
        entry: Any = super()._add_entry(cache, name, program, result, owners)
        for held in (owner() for owner in entry.owners):
            if _is_a_cells(held):
                self._defined[held] = self.generation
        while len(self._defined) > _CLASSES:
            del self._defined[next(iter(self._defined))]
        if self._root is not None and self.cache(self._root) is cache and self.library is not None:
            self.times.watch(entry, cache, self._root, self.library.is_leaf(self._root))
        return entry

    def _renamed(self, cache: Any, state: Any, misses: Any, func: types.FunctionType, args: tuple) -> Any:
        for entry, _ in misses:
            meta = entry.meta
            if meta.held_places is None:
                meta.held_places = HeldPlaces(meta.guards)
            if (renaming := renamed(meta.guards, meta.held_places, func, args)) is None:
                continue
            namespace = renaming.namespace(meta.namespace)
            if namespace is None:
                continue
            guards, places = renaming.places(meta.guards, meta.held_places, len(args))
            program = compile_guards(guards, len(args), places=places)
            if (at := program.check(func, args)) >= 0:
                state.renamed_unmet.append(guards[at].source)
                continue
            call: Any = namespace.get("graph_0")
            if hasattr(call, "held_by"):
                call.held_by(namespace, "graph_0")
            cache.remove(entry)
            meta = dataclasses.replace(meta, guards=guards, namespace=namespace, held_places=places)
            made = self._add_entry(cache, state.name, program, meta, renaming.owners(entry.owners))
            events.emit("renamed", old=entry, entry=made)  # the same code, for whoever tells what served a run
            return made
        return None

    def _check_gain(self, code: types.CodeType, result: Any) -> None:
        if self.library is None or frames.takes_every_frame():
            return
        self.library.check_gain(code, result.graph, bool(result.breaks))
        counted = counted_gain(result)
        if counted is not None and is_installed(code.co_filename):  # what loses there is switched off by itself
            counted = max(counted, 0.0)
        result.counted = counted


def _is_a_cells(held: Any) -> bool:
    return isinstance(held, type) and held.__module__ == "__main__"


def _as_it_is(func: types.FunctionType, *args: Any) -> Any:
    __tracebackhide__ = True
    with disabled():
        return call_original(func, args)


hide(_as_it_is.__code__)


def _is_one_turn(code: types.CodeType) -> bool:
    """Whether a call of the code is one turn of a loop, or runs no loop."""
    return is_loop(code.co_qualname) or not find_loops(code)


@contextmanager
def enable(opts: Options | None = None, **kwargs: Any) -> Iterator[None]:
    """Compile what runs in this thread and context for the length of a with-block: every frame that works on tensors,
    also inside libraries. Keywords are those of `compile` (`opts`: the same, checked before). Without the C extension
    it says so and runs eager.
    """
    if opts is not None and not isinstance(opts, Options):
        raise TypeError(
            f"enable() takes keywords (mode=..., backend=..., fullgraph=..., dynamic=..., options=...), got {opts!r}"
        )
    if opts is None:
        from ..backends import resolve

        opts = Options.make(
            kwargs.pop("mode", None),
            resolve(kwargs.pop("backend", "tcompile")),
            kwargs.pop("fullgraph", False),
            kwargs.pop("dynamic", None),
            kwargs.pop("options", None),
        )
        if kwargs:
            raise TypeError(
                f"enable() got an unexpected keyword {next(iter(kwargs))!r}; it takes mode, backend, fullgraph,"
                " dynamic, options"
            )
    if not _hook.available():
        events.fallback("frame hook", _hook.why_unavailable() or "")
        yield
        return
    engine = engine_for(opts)
    if sys.gettrace() is not None:
        events.fallback("frame hook", "a debugger or tracer watches this thread: frames run eager for it")
    stated = engine.break_errors_stated()
    with (
        nullcontext() if stated is None else error_on_graph_break(stated),
        _hook.capturing(engine.on_frame, frames.types_to_look_for()),
    ):
        yield


def run_code(code: types.CodeType, namespace: dict[str, Any], opts: Options) -> Any:
    """Run a cell's code object in `namespace`, its own top level captured like a function, with the hook on for what it
    calls. Returns what the code object returns (None for a cell, the value for an expression)."""
    __tracebackhide__ = True
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise ValueError("run_code: an asynchronous cell is awaited by its caller, inside enable()")
    engine = engine_for(opts)
    return _run_cell(engine, engine.caches.first(code), namespace, opts)


def _run_cell(engine: HookEngine, code: types.CodeType, namespace: dict[str, Any], opts: Options) -> Any:
    __tracebackhide__ = True
    namespace.setdefault("__builtins__", __builtins__)
    top = types.FunctionType(code, namespace, code.co_name)
    with engine.run_of_a_cell(), enable(opts):
        if not _hook.available():
            return eval(code, namespace)
        engine.cache(code)  # from now on the cell is known again, with what it defines
        if engine.library is not None and not frames.takes_every_frame() and only_sets_up(code, namespace):
            return eval(code, namespace)
        with engine.cell_times.run_of(code) as run:
            if run.plain:
                with disabled():
                    return eval(code, namespace)
            return _run_compiled(engine, code, top, namespace)


def _run_compiled(engine: HookEngine, code: types.CodeType, top: types.FunctionType, namespace: dict[str, Any]) -> Any:
    __tracebackhide__ = True
    if engine.opts.dynamic is not False and (names := carried(code)):
        engine.outside.named(code, dict.fromkeys(names, True))
        engine.state(code).vary(engine.outside.places(code))
    with disabled():
        entry = engine.entry_for(code, engine.cache(code), top, ())
    if entry is RUN_ORIGINAL:
        return eval(code, namespace)
    entry.hits += 1
    return entry.fn(top)


def reset() -> None:
    """Forget the entries of all engines, also of those that are gone."""
    for engine in _engines.values():
        engine.reset()
    forget_all()
