"""The engine: what happens when a frame has no compiled entry that fits.

A frame's entries live in its CodeCache. `Engine.miss` is called with the function and the tuple of its arguments: it
says why the entries there did not fit, captures the frame, takes its graph through the backend, builds the guarded
entry and runs it. The same happens for resume functions and loop regions, which are functions like any other.

Engines are cheap: one per compile() call, one per set of options for the frame hook.
"""

from __future__ import annotations

import functools
import subprocess
import time
import types
import weakref
from typing import Any, Callable, Sequence

import torch

from .. import events, stages
from ..autograd.modes import without_saved_tensor_hooks
from ..backends import compiler_of
from ..capture.bytecode.memo import CodeMemo
from ..capture.bytecode.resume import goes_on_at, raising
from ..capture.entry.capture import CaptureOptions
from ..capture.tensors.patched_torch import patched_special_method
from ..capture.breaks.failing import call_original, undone
from ..capture.numbers.late_text import in_words
from ..capture.numbers.tensor_reads import ASSUMED
from ..capture.entry.result import CaptureResult, SkipFrame
from ..graph.captured import CapturedGraph
from ..graph.tensor import DataDependentError
from ..capture.library.torch_marks import made_by_stock
from ..capture.machine.python_alone import is_python_alone
from ..capture.machine.signals import StateMade
from ..config import Options, options_number
from ..errors import BackendError, FullGraphError, InternalError, OutdatedCapture, TCompileError, ToolchainError
from ..guards.explain import explain_failure, nearest_first
from ..guards.guard import GuardFailure
from ..guards.guard_program import compile_guards
from ..guards.source import UnlikeNumber
from ..guards.weak import referents
from ..logs import log_error, log_guards
from ..marks import is_disabled, is_disabled_alone
from ..base.break_errors import are_errors
from .recompile import (
    FrameState,
    OutsideValues,
    compare_with_first,
    first_call,
    is_full,
    learn,
    make_room,
    numbers_of_turns,
    numbers_so_far,
    only_addresses_differ,
)
from .cell_work import CellWork
from .entries.entry_functions import (
    drop_with_owners,
    entry_function,
    guard_later_decisions,
    hook_native_calls,
    pass_over_native_code,
    state_break_errors,
)
from .entries.equal_modules import entry_of_equal, placed_within
from .entries.guard_filter import filtered
from .entry_calls import PLAIN_REST, EntryCall, GraphCall, may_have_effects, unseen_writes
from ..base.labels import is_loop
from ..runtime import frame_hook
from ..runtime.stock_hook import hide
from .optimizer_steps import is_step
from .sharded_steps import take_steps_over
from .frames import first_stays_eager, never, stays_eager, takes_every_frame, wanted
from .refused_breaks import break_message, refused_breaks
from ..runtime.dispatch import RUN_ORIGINAL, CodeCache, Dispatcher, Entry, code_cache, disabled

__all__ = ["Engine"]

_ALIKE = 3  # times running that a loop or a cell's lines are passed over for one reason before they are given up
_OWN_BACKENDS = ("tcompile", "eager", "aot_eager")
# Errors that the machine is to blame for, not this compiler.
_THE_MACHINE = (OSError, MemoryError, torch.OutOfMemoryError, subprocess.SubprocessError, ToolchainError)


class Engine:
    """Makes entries for frames under one set of options."""

    def __init__(self, opts: Options, backend_options: dict[str, Any] | None = None):
        self.opts, self.backend_options = opts, backend_options or {}
        self.generation = 0  # runs of cells so far: each has a recompile limit of its own
        self._limited: list[tuple[FrameState, weakref.ref[types.CodeType]]] = []
        self.work: CellWork | None = None  # of the run of a cell under way, where it is bounded
        self.module: weakref.ref[Any] | None = None  # the one that it compiles, whose equals share entries with it
        self.makers: list[Engine] = []  # of entries of others that serve here: they go on after breaks
        self.states: CodeMemo[FrameState] = CodeMemo()
        self.outside = OutsideValues()
        self.caches: CodeMemo[CodeCache] = CodeMemo()
        self.number = options_number(opts, bool(backend_options), stages.replaced())
        # Made code holds it as a constant, where the collector of cycles does not look: it must not hold the engine.
        self._dispatch = functools.partial(_resume_by, weakref.ref(self))

    # ---- callables
    def dispatcher(self, func: types.FunctionType) -> Dispatcher:
        """A callable that stands for `func`: looks up an entry, runs it, or comes back here."""
        return Dispatcher(func, self.cache(func.__code__), self.miss)

    def cache(self, code: types.CodeType) -> CodeCache:
        c = self.caches.get(code)
        if c is None:
            c = self.caches[code] = CodeCache()
        return c

    def state(self, code: types.CodeType) -> FrameState:
        s = self.states.get(code)
        if s is None:
            s = self.states[code] = FrameState(code.co_qualname)
            if self.opts.dynamic is not False:
                turns = numbers_of_turns(code, self.outside)
                s.dynamic_ints |= turns
                s.dynamic_floats |= turns
        return s

    def reset(self) -> None:
        """Forget every entry and everything learned."""
        for c in self.caches.values():
            c.clear()
        self.states.clear()
        self.outside.clear()

    def next_run(self) -> None:
        """A cell is about to run: what hit a limit in an earlier run gets another chance."""
        self.generation += 1
        for state, reference in self._limited:
            state.skip_reason = ""
            code = reference()
            if code is not None:
                frame_hook.unskip_code(code)
        self._limited.clear()

    # ---- a call without an entry
    def miss(self, dispatcher: Dispatcher, func: types.FunctionType, args: tuple) -> Any:
        """A dispatcher has no entry for this call: an Entry to run, or RUN_ORIGINAL."""
        __tracebackhide__ = True  # IPython leaves such frames out of tracebacks
        return self.entry_for(func.__code__, dispatcher.cache, func, args, self.break_errors_stated())

    def break_errors_stated(self) -> bool | None:
        """What the options say of breaks in the functions that they were given for: whether those are errors. None:
        nothing."""
        name = "error_on_graph_break"
        return bool(self.opts.get(name)) if name in self.opts.given or self.opts.get(name) else None

    def entry_for(
        self,
        code: types.CodeType,
        cache: CodeCache,
        func: types.FunctionType,
        args: tuple,
        break_errors: bool | None = None,
    ) -> Any:
        """Compile the frame for this call. Gives the new Entry, or RUN_ORIGINAL where the frame is to run as it is.
        `break_errors`: whether breaks are errors in it; None: as error_on_graph_break says at this moment."""
        __tracebackhide__ = True
        state = self.state(code)
        if state.rest:
            state.rest -= 1
            return RUN_ORIGINAL
        if state.skip_reason or stays_eager(state.name) or self._runs_plainly(state):
            return RUN_ORIGINAL
        if state.first is None and first_stays_eager() and not len(cache):
            state.first = first_call(code, args)
            return RUN_ORIGINAL
        with stages.compiling():
            state.renamed_unmet.clear()
            entry = cache.lookup(func, args)  # another thread may have been quicker
            if entry is None:
                entry = self._shared(cache, code, func, args)
            while entry is None:
                try:
                    with without_saved_tensor_hooks():
                        entry = self._compile(cache, state, func, args, break_errors)
                    break
                except StateMade:
                    entry = cache.lookup(func, args)
        return RUN_ORIGINAL if entry is None else entry

    def _shared(self, cache: CodeCache, code: types.CodeType, func: types.FunctionType, args: tuple) -> Entry | None:
        """An entry that was made for an equal module serves here from now on."""
        others = (e for r in engines if (e := r()) is not None)
        entry, maker = entry_of_equal(self, others, code, func, args)
        if entry is not None:
            cache.add(entry)
            drop_with_owners(cache, entry, referents(entry.meta.guards))
            if maker not in self.makers:
                self.makers.append(maker)
            if self._whole_steps() and (placed := placed_within(args)):
                take_steps_over(placed)
        return entry

    def _runs_plainly(self, state: FrameState) -> bool:
        """Whether no frame is captured now: operators call a method of the program's."""
        if not (name := patched_special_method()):
            return False
        self._skip(state, SkipFrame(f"{name} is the program's own, and operators and builtins call it"), counts=False)
        return True

    def resume(self, function: types.FunctionType, *args: Any) -> Any:
        """Run a resume function or a loop region: compiled code with a cache of its own, like any function."""
        __tracebackhide__ = True
        try:
            return Dispatcher(function, self.cache(function.__code__), self._miss_within)(*args)
        except _FailedWithin as failed:
            error = failed.error
        within = raising(function, error)
        if within is None:
            raise error
        with disabled():
            return within(*args)

    def _miss_within(self, dispatcher: Dispatcher, func: types.FunctionType, args: tuple) -> Any:
        """As `miss`, in the middle of a frame: where compiling fails, or is interrupted, the program's finally and with
        statements are to run.
        """
        __tracebackhide__ = True
        if self.opts.dynamic is not False:
            state = self.state(func.__code__)
            state.dynamic_floats |= numbers_so_far(func, args)
            state.vary(self.outside.take(func.__code__, args))
        try:
            found = self.entry_for(func.__code__, dispatcher.cache, func, args)
        except BaseException as error:
            raise _FailedWithin(error) from None
        if found is RUN_ORIGINAL and events.heard() and may_have_effects(func.__code__):
            code = func.__code__  # whoever wants to call the function again is to know
            events.emit(
                "call",
                frame=code.co_qualname,
                call=EntryCall(
                    code.co_qualname, func, args, {}, code.co_filename, code.co_firstlineno, False, PLAIN_REST
                ),
            )
        return found

    def failed(self, error: Exception, func: types.FunctionType, args: tuple, *, handlers: bool) -> Any:
        """A graph raised; nothing of the call has happened. It runs as it is: eager's error from its own line, or what
        handles it there (`handlers`: its code has exception handlers)."""
        if getattr(error, "_tcompile_final", False) or isinstance(error, BackendError):
            raise error
        __tracebackhide__ = True
        with disabled():
            result = call_original(func, args)
        name = func.__code__.co_qualname
        if not handlers and ASSUMED not in str(error) and type(error) is not UnlikeNumber:
            backend = getattr(error, "_tcompile_backend", None)
            if backend is not None:
                raise BackendError(
                    f"backend {backend!r} made code of {name} that raised {in_words(error)}, which eager does not",
                    backend,
                ) from error
            if not self.opts.get("suppress_errors"):
                raise InternalError(f"the graph of {name} raised {in_words(error)}, which eager does not") from error
        events.fallback(name, f"the graph raised {type(error).__name__}: {error}; the call ran as it is", reran=True)
        return result

    def _compile(
        self,
        cache: CodeCache,
        state: FrameState,
        func: types.FunctionType,
        args: tuple,
        break_errors: bool | None,
    ) -> Entry | None:
        __tracebackhide__ = True
        name = state.name
        misses = [m for m in cache.last_failures if m[1] >= 0]
        if (entry := self._renamed(cache, state, misses, func, args)) is not None:
            return entry
        if self.work is not None and (spent := self.work.spent()):
            self._put_off(cache, state, func.__code__, spent)
            return None
        if self._waits(cache, state, func, args, misses):
            return None
        if not self.opts.fullgraph and only_addresses_differ(state, misses, self.generation):
            state.skip_reason = "it reads the id of an object that each run makes anew: no entry would serve the next"
            events.fallback(name, f"{state.skip_reason}; runs eager from now on")
            return None

        def failures() -> list[GuardFailure]:
            nearest = nearest_first(misses, func, args)
            return [explain_failure(e.program.guards[i], func, args, guards=e.program.guards) for e, i in nearest]

        limit = self.opts.get("recompile_limit")
        if is_full(cache, state, self.generation, limit):
            if self.opts.fullgraph:
                reasons = failures()
                last = f": {reasons[0].expected_text}, now {reasons[0].got_text}" if reasons else ""
                raise FullGraphError(
                    f"fullgraph=True, but {name} has been compiled {limit} times (recompile_limit), and this call needs"
                    f" one more{last}.\nWhat to do: keep constant what changes from call to call, pass it as a tensor,"
                    " or raise recompile_limit."
                )
            state.skip_reason = f"recompile limit ({limit}) reached"
            self._limited.append((state, weakref.ref(func.__code__)))
            events.emit("limit", frame=name, limit=limit, failures=failures())
            events.fallback(name, f"{state.skip_reason}: runs eager from now on")
            return None
        if self.opts.dynamic is not False:
            compare_with_first(state, func.__code__, args)
            for e, _ in misses:
                learn(state, e.program.guards, func, args)
        small: list[Any] = []
        reasons = failures()
        try:
            try:
                try:
                    return self._make_entry(cache, state, func, args, reasons, break_errors, small)
                except OutdatedCapture as outdated:
                    small.clear()
                    events.emit("recompile", frame=name, failures=[outdated.failure], hits={})
                    return self._make_entry(cache, state, func, args, reasons, break_errors, small)
            except (SkipFrame, TCompileError, *_THE_MACHINE):
                raise
            except Exception as e:
                if not small:
                    raise
                why = f"{', '.join(s.name() for s in small)} is fixed, though mark_unbacked named it: {in_words(e)}"
                events.fallback(name, why)
            # An operator has no form for 0 or 1 elements that could be more: they are fixed, as other sizes of 0 and 1.
            return self._make_entry(cache, state, func, args, reasons, break_errors)
        except SkipFrame as skip:
            self._skip(state, skip)
            return None
        except FullGraphError:
            raise
        except TCompileError as e:
            if not isinstance(e, (InternalError, ToolchainError)) or self._is_heard(e):
                raise
            return self._give_up(state, e)
        except RecursionError as e:
            if self.opts.fullgraph:
                raise FullGraphError(
                    f"fullgraph=True, but capturing {name} needs deeper recursion than the interpreter allows"
                ) from e
            self._skip(state, SkipFrame("capturing it needs deeper recursion than the interpreter allows", quiet=True))
            return None
        except KeyboardInterrupt:
            raise
        except Exception as e:
            if self._is_heard(e):
                raise InternalError(f"compiling {name}: {type(e).__name__}: {e}") from e
            return self._give_up(state, e)

    def _put_off(self, cache: CodeCache, state: FrameState, code: types.CodeType, reason: str) -> None:
        """A call that no entry serves runs plain until the next run of a cell: enough was compiled in this one."""
        if state.put_off == self.generation:
            return
        state.put_off = self.generation
        events.fallback("the rest of the cell", reason)
        if not len(cache):
            state.skip_reason = reason
            self._limited.append((state, weakref.ref(code)))

    def _is_heard(self, e: Exception) -> bool:
        """Whether an error of the compiler's own reaches the program. Under fullgraph it does, unless the machine is to
        blame: a full disk, no memory, a compiler that does not start."""
        return not self.opts.get("suppress_errors") or self.opts.fullgraph and not isinstance(e, _THE_MACHINE)

    @staticmethod
    def _say_recompile(name: str, failures: list, cache: CodeCache, code: types.CodeType) -> None:
        if failures:
            hits = {id(e): e.hits for e in cache.entries}
            events.emit("recompile", frame=name, failures=failures, hits=hits, goes_on=goes_on_at(code))

    def _whole_steps(self) -> bool:
        """Whether graphs may compute gradients themselves: for backends of other people's, only these know what such a
        node means.
        """
        return bool(self.opts.get("whole_steps")) and self.opts.backend in _OWN_BACKENDS

    def _captured(
        self,
        cache: CodeCache,
        state: FrameState,
        func: types.FunctionType,
        args: tuple,
        break_errors: bool | None,
        small: list[Any] | None,
    ) -> CaptureResult:
        """The capture stage for a frame, with what its calls so far have taught. Raises SkipFrame."""
        __tracebackhide__ = True
        capture = CaptureOptions(
            dynamic=self.opts.dynamic,
            unbacked=small is not None,
            small=small if small is not None else [],
            dynamic_dims=state.dynamic_dims,
            dynamic_ints=state.dynamic_ints,
            signed_ints=state.signed_ints,
            dynamic_floats=state.dynamic_floats,
            unread=set() if self.opts.fullgraph else state.unread,
            dynamic_texts=state.dynamic_texts,
            from_outside=self.outside,
            dynamic_strides=state.dynamic_strides,
            fullgraph=self.opts.fullgraph,
            break_errors=are_errors() if break_errors is None else break_errors,
            dispatch=self._dispatch,
            failed=self.failed,
            in_order=self.opts.backend != "tcompile",
            training=self._whole_steps(),
            nested=self.opts.backend in _OWN_BACKENDS,  # (others would run torch's code with their own tensors)
            entries_exist=len(cache) > 0,
            every_frame=takes_every_frame(),
            work=self.work,
            **self._tiers(func.__code__),
        )
        result: CaptureResult = stages.run("capture", func.__code__, func, args, opts=self.opts, stage_opts=capture)
        if self.opts.get("print_guards"):
            log_guards(result)
        return result

    def _make_entry(
        self,
        cache: CodeCache,
        state: FrameState,
        func: types.FunctionType,
        args: tuple,
        failures: list,
        break_errors: bool | None,
        small: list[Any] | None = None,
    ) -> Entry:
        """Capture, compile and keep. `small` gets the sizes of 0 and 1 that mark_unbacked made symbols; None: they are
        plain."""
        __tracebackhide__ = True
        name, began = state.name, time.perf_counter()
        try:
            result = self._captured(cache, state, func, args, break_errors, small)
        except SkipFrame:
            self._say_recompile(name, failures, cache, func.__code__)
            raise
        self._say_recompile(name, failures, cache, func.__code__)
        self.outside.named(func.__code__, result.named)
        self._check_gain(func.__code__, result)
        for b in result.breaks:
            events.emit("break", brk=b)
        if refused := refused_breaks(result.breaks, self.opts):
            if result.graph is not None:
                events.emit("graph", graph=result.graph, frame=name, partial=True)  # a reader sees how far it came
            raise FullGraphError(break_message(refused[0], self.opts.fullgraph), refused)
        calls: list[GraphCall] = []
        if result.graph is not None:
            events.emit("graph", graph=result.graph, frame=name)
            made = stages.kernels_made()
            compiled = self._compiled(result.graph)
            if self.work is not None:
                self.work.kernels += stages.kernels_made() - made
            guard_later_decisions(result)
            call = result.namespace["graph_0"] = getattr(compiled, "call", compiled)
            if hasattr(call, "held_by"):
                call.held_by(result.namespace, "graph_0")
            calls.append(
                GraphCall(
                    result.graph.name,
                    result.graph.graph_module,
                    compiled,
                    tuple(result.graph.example_inputs),
                    unseen_writes(result.graph.graph_module.graph),
                )
            )
        self._filter_guards(result, func, args)
        program = self._program(result, len(args))
        bad = program.check(func, args)
        if bad >= 0:
            g = result.guards[bad]
            why = explain_failure(g, func, args, guards=program.guards)
            raise OutdatedCapture(
                f"the guard {g.kind} on {g.source.name() if g.source else 'state'} does not hold for the call that it "
                f"was made for: expected {why.expected_text}, got {why.got_text}",
                why,
            )
        result.break_errors = break_errors
        placed, result.placed = result.placed, []
        if placed and self._whole_steps():
            take_steps_over(placed)
        entry = self._add_entry(cache, name, program, result)
        events.emit("entry", frame=name, entry=entry, func=func, args=args, goes_on=goes_on_at(func.__code__))
        lasting = result.effects if result.lasting is None else result.lasting
        safe = not lasting and not result.breaks
        events.emit(
            "call",
            frame=name,
            call=EntryCall(
                name,
                func,
                args,
                {},
                func.__code__.co_filename,
                func.__code__.co_firstlineno,
                safe,
                "" if safe else ", ".join(lasting) or "the graph breaks",
                calls,
                time.perf_counter() - began,
                attributes=tuple(result.attributes),
            ),
        )
        if result.graph is not None:
            result.graph.example_inputs = []  # tensors of this call must not live on
            if result.graph.env is not None:
                result.graph.env.locate = _nowhere  # it knew the machine that captured, with all that it saw
        result.code = None  # code -> its cache -> entry -> code would never be collected
        return entry

    def _compiled(self, graph: CapturedGraph) -> Callable[..., tuple]:
        """What the backend makes of a graph. One that this compiler has no way to take runs with torch's kernels as it
        was captured, and an event says so."""
        try:
            return compiler_of(graph, self.opts, self.backend_options)(graph, self.opts)
        except (NotImplementedError, DataDependentError) as why:
            if self.opts.backend not in _OWN_BACKENDS:
                raise
            events.fallback(graph.name, f"{why}; the graph runs with torch's own kernels")
            return undone(graph)

    def _filter_guards(self, result: CaptureResult, func: types.FunctionType, args: tuple) -> None:
        """Leave out the guards that the program's own filter drops."""
        choose = self.opts.get("guard_filter_fn")
        if choose is not None:
            inputs = [i.source for i in result.graph.inputs] if result.graph is not None else []
            result.guards, result.dropped = filtered(choose, result.guards, inputs, func, args)

    def _program(self, result: CaptureResult, n_locals: int) -> Any:
        """The program of an entry's guards."""
        return compile_guards(result.guards, n_locals)

    def _add_entry(
        self, cache: CodeCache, name: str, program: Any, result: CaptureResult, owners: list[Any] | None = None
    ) -> Entry:
        """The guarded entry over what was captured and compiled, in the frame's cache. `owners`: what it needs."""
        fn = entry_function(result, name)
        # Under fullgraph what runs natively is what no graph can hold (`refused_breaks`), such as an operator with a
        # kernel in Python. Its frames are none of those that are to be one graph.
        if result.needs_hook and frame_hook.available() and not self.opts.fullgraph:
            pass_over_native_code(result)
            fn = hook_native_calls(fn, self.on_frame)
        if result.breaks and result.break_errors is not None:
            fn = state_break_errors(fn, result.break_errors)
        entry = Entry(program, fn, result)
        entry.generation, entry.options, entry.owners = self.generation, self.opts.values(), []
        make_room(cache, self.generation, self.opts.get("recompile_limit"))
        cache.add(entry)
        drop_with_owners(cache, entry, referents(result.guards) if owners is None else owners)
        return entry

    def _renamed(
        self,
        cache: CodeCache,
        state: FrameState,
        misses: Sequence[tuple[Entry, int]],
        func: types.FunctionType,
        args: tuple,
    ) -> Entry | None:
        """An entry that serves this call once it is said of the classes that a cell has defined again."""
        return None

    def _waits(
        self,
        cache: CodeCache,
        state: FrameState,
        func: types.FunctionType,
        args: tuple,
        misses: Sequence[tuple[Entry, int]],
    ) -> bool:
        """Whether a call that no entry serves runs plain, since another like it may not come."""
        return False

    def _tiers(self, code: types.CodeType) -> dict[str, Any]:
        """What the policy on library code (policy.py) says of a capture; by default all calls are followed."""
        return {}

    def _check_gain(self, code: types.CodeType, result: CaptureResult) -> None:
        """Raises SkipFrame where compiling the frame gains nothing, by the same policy."""

    # ---- frames that the hook sees
    def frame_cache(self, func: types.FunctionType) -> CodeCache:
        """The cache in which the hook finds the entries of a function's frames."""
        return code_cache(func.__code__, owner=self.number)

    def on_frame(self, code: types.CodeType, func: types.FunctionType, args: tuple) -> Any:
        """The hook asks for a frame that no entry serves."""
        if func.__dict__ and is_disabled(func):
            return _without_compiling(func, args)
        if never(code, func):
            if not is_step(code) and not made_by_stock(func):  # (either may be worth it to another engine)
                frame_hook.skip_code(code)
            return RUN_ORIGINAL
        if not wanted(code, args):
            return RUN_ORIGINAL
        alone = not takes_every_frame() and is_python_alone(func, args)
        result = RUN_ORIGINAL if alone else self.entry_for(code, self.frame_cache(func), func, args)
        if result is RUN_ORIGINAL and (alone or self.state(code).skip_reason):
            self.frame_cache(func).skip = True
        return result

    def _skip(self, state: FrameState, skip: SkipFrame, counts: bool = True) -> None:
        for b in skip.breaks:
            events.emit("break", brk=b)
        if (self.opts.fullgraph or not skip.quiet) and (refused := refused_breaks(skip.breaks, self.opts)):
            raise FullGraphError(break_message(refused[0], self.opts.fullgraph), refused)
        if self.opts.fullgraph and not skip.quiet and not skip.breaks:
            raise FullGraphError(f"fullgraph=True, but {state.name} is not captured: {skip.reason}", [])
        state.skips += counts
        state.alike = state.alike + counts if skip.reason == state.last_skip else int(counts)
        state.last_skip = skip.reason
        repeats = is_loop(state.name) or state.name.startswith("<module>")  # a turn, or a cell's lines in each run
        alike = state.alike >= _ALIKE and repeats and not skip.quiet
        if skip.final or alike or state.skips >= self.opts.get("recompile_limit"):
            state.skip_reason = skip.reason
        else:
            state.rest = self._rest(state)
        if not skip.quiet:
            events.emit("skip", frame=state.name, reason=skip.reason, tensors=skip.tensors)

    def _rest(self, state: FrameState) -> int:
        """How many calls of a frame that was passed over pass, after so many looks at it, before the next look."""
        return 0

    def _give_up(self, state: FrameState, e: BaseException) -> None:
        state.skip_reason = f"internal error: {type(e).__name__}: {e}"
        events.emit("error", where=state.name, error=e)
        if self.opts.get("verbose"):
            log_error(state.name, e)
        events.fallback(state.name, f"{state.skip_reason}; runs eager")


class _FailedWithin(BaseException):
    """Compiling the rest of a frame raised `error`."""

    def __init__(self, error: BaseException):
        self.error = error


def _without_compiling(func: types.FunctionType, args: tuple) -> Any:
    """A frame of a function marked to stay uncompiled, with everything that it calls: the hook asks with compiled code
    off.
    """
    if is_disabled_alone(func):
        return RUN_ORIGINAL
    return call_original(func, args)


for _step in (Engine.miss, Engine.resume, Engine.on_frame, Engine.entry_for):
    hide(_step.__code__)


def _nowhere() -> tuple[None, None]:
    return None, None


def _resume_by(engine: weakref.ref[Engine], function: types.FunctionType, *args: Any) -> Any:
    """Engine.resume; without an engine any more, the function as it is."""
    __tracebackhide__ = True
    e = engine()
    return function(*args) if e is None else e.resume(function, *args)


engines: list[Any] = []  # weak references to those that wrapped callables have


def new_engine(opts: Options, backend_options: dict[str, Any], module: Any = None) -> Engine:
    e = Engine(opts, backend_options)
    e.module = None if module is None else weakref.ref(module)
    engines[:] = [r for r in engines if r() is not None]
    engines.append(weakref.ref(e))
    return e
