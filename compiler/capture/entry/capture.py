"""capture_frame: one frame to guards, a graph, and the text of an entry."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import keyword
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Container, Mapping, NoReturn

import torch

from ... import events
from ...base.break_errors import set_errors
from ...graph.captured import CapturedGraph
from ...guards import source as S
from ...guards.guard import Guard
from ...guards.python_program import no_overlap
from ...guards.source import Source
from ...guards.state import DEFAULT_FIELDS, read_state
from ...graph.torch_modes import TorchModes, autocast_nesting
from ...ops.conjugates import without_bits

# Imported for what they register: how functions and values of each library are captured.
from ..kinds import builtin_functions
from ..machine import handlers_control, handlers_data
from ..library import library_functions, native_library, number_checks, path_names, torch_marks, triton_launches
from ..numbers import number_forms
from ..tensors import padded_sequences, resampling, reshaped_in_place
from ..library import (
    autograd_functions,
    context_managers,
    flex_attention,
    forward_ad,
    functional_transforms,
    higher_order_calls,
)
from ..library.distributed import collective_calls, data_parallel, fully_shard, message_calls
from ..arrays import numpy_numbers
from ..breaks.causes import make_graph_break
from ..bytecode.loop_break import make_loop_break, make_native_loop
from ..bytecode.loops import Loop
from ..bytecode.regions import CannotOutline
from ..bytecode.opset import MOVES
from ..bytecode.nested import resuming, settle, suspend
from ..bytecode.resume import STACK, ResumeSpec, make_break
from ..bytecode.splice import CannotResume, in_flight
from .undo import split_effects
from ..breaks.size_demands import hold_demands
from .entry_source import EntryWriter
from ..tensors.patched_torch import special_guards
from ..tensors.gradient_hooks import shows_nodes
from ..breaks.failing import Keeping, changes_modes, give_back, keep, keeping, run_natively
from ..machine.frame import Frame
from ..machine.generators import InlineGenerator, PythonIterator
from ..numbers.late_text import LateText, in_words, varies
from ..kinds.lookups import class_guards, recording
from ..machine.native_loops import enclosing_loop
from ..machine.frame import Unread
from ..machine.machine import Machine, StopAt, root_frame
from ..machine.programs import RETURN
from ..machine.nesting import Step, path_of
from .model_names import ParameterNames
from .result import CaptureResult, GraphBreak, SkipFrame
from ..machine.signals import Break, CaptureBug, Otherwise, Plainly, Raised, Skip, Unrebuildable
from ..tensors.tensor_errors import refuses_view
from ..tensors.tensor_subclasses import PLAIN_TENSORS
from ..tensors.wrapper_values import writes_counted
from ..library.torch_marks import is_allowed_in_graph
from ..library.watched_warnings import fills_one_of
from ..machine.stack_values import MISSING, NULL

__all__ = ["CaptureOptions", "capture_frame", "runs_natively"]

# Code that capture itself made to run as it is: break functions, hosts of outlined loops. A frame hook meets them.
runs_natively: weakref.WeakSet[types.CodeType] = weakref.WeakSet()


def call_directly(function: Callable, *args: Any) -> Any:
    """The dispatcher of resume functions where the integrator gave none: run it as it is."""
    return function(*args)


_SCALARS = (torch.SymInt, torch.SymFloat, LateText)


@dataclass
class CaptureOptions:
    """What the integrator decides.

    dynamic        True: sizes and int parameters are symbols from the start; None, False: only those named below
    unbacked       sizes that mark_unbacked named may be 0 and 1, and no branch is taken on them; else they are symbols
                   like others
    small          filled by capture: sources of such sizes that are 0 or 1 in this call
    dynamic_dims   Source of a tensor -> its dimensions that are symbols
    dynamic_strides  Source of a tensor -> strides that are symbols, where they follow from no size
    dynamic_ints   Sources of ints that are symbols
    signed_ints    those of them that are symbols of any value, though they are 2 or more now
    unread         Sources of the lengths of containers that no entry reads as a whole: they had too many lengths, or
                   are keyed by addresses
    dynamic_floats Sources of floats that are inputs of the graph; None: no float is one, whatever `dynamic` says
    dynamic_texts  Sources of texts that vary: none is guarded by what it says, where nobody looks into it; None: all
                   texts are guarded
    from_outside   whether a number or a text is known to differ from run to run (frontend/recompile.py), wherever
                   it is read
    size_floats    floats that varying sizes make may vary, as inputs of the graph that the entry computes; else they
                   fix the sizes
    fullgraph      the first break is not resumed: the result's `breaks` says it (the caller raises)
    break_errors   breaks are errors where the frame begins: error_on_graph_break (GraphBreak.is_error; the caller
                   raises)
    dispatch       dispatch(resume_function, *args): runs the rest of a frame after a break
    failed         failed(error, func, args, handlers=): the graph raised `error`; runs the frame as it is
    in_order       the backend does the graph's calls in their order; else it changes inputs after all calls that may
                   fail (raising.py)
    graph_name     class name of the GraphModule
    training       backward passes and optimizers' steps become part of the graph (else they break)
    nested         jagged nested tensors are taken apart; else frames that have some run as they are
    entries_exist  there are entries for other calls of this frame: capture raises StateMade where one of them may do
                   after all
    max_breaks     a frame that breaks in more places runs as it is
    every_frame    frames without tensor work are captured too (tests of capture)
    library        the policy that says which calls into libraries are followed (policy.Library); None: all
    leaf           the frame is captured whole, without a module's call, or not at all
    work           counts the instructions that are interpreted (frontend/cell_work.py); None: nobody does
    asked          filled by capture: (function with a cache, key) -> what its cache was made to have, in a list
    uncached       filled by capture: (dict of a cache, key) of calls that break until the cache has what they give
    returned       returned(machine, value, outputs): told the stack value that the frame returns, and what the graph
                   gives for it (export)
    """

    dynamic: bool | None = None
    unbacked: bool = False
    small: list[Source] = field(default_factory=list)
    dynamic_dims: Mapping[Source, Any] = field(default_factory=dict)
    dynamic_strides: Mapping[Source, Any] = field(default_factory=dict)
    dynamic_ints: Any = frozenset()
    signed_ints: Any = frozenset()
    unread: Any = frozenset()
    dynamic_floats: Any = frozenset()
    dynamic_texts: Any = frozenset()
    from_outside: Container[Any] = frozenset()
    size_floats: bool = True
    fullgraph: bool = False
    break_errors: bool = False
    dispatch: Callable = call_directly
    failed: Callable = run_natively
    in_order: bool = True
    graph_name: str = "graph"
    training: bool = True
    nested: bool = True
    entries_exist: bool = False
    max_breaks: int = 64
    every_frame: bool = False
    library: Any = None
    leaf: bool = False
    work: Any = None
    asked: dict[tuple, list] = field(default_factory=dict)
    uncached: list[tuple[dict, Any]] = field(default_factory=list)
    returned: Callable | None = None


def capture_frame(
    code: types.CodeType, func: Any, args: tuple, *, globals: dict | None = None, opts: CaptureOptions | None = None
) -> CaptureResult:
    """Interpret the frame of `func(*args)` and give its guards, graph and entry.

    `args` are the parameters in co_varnames order (*args tuple, **kwargs dict last). `globals` defaults to the
    function's. Nothing of the program is executed for real: effects are in the entry. Raises SkipFrame where the frame
    should run as it is.
    """
    opts = opts or CaptureOptions()
    namespace = globals if globals is not None else func.__globals__
    name = code.co_qualname
    if code in runs_natively:
        raise SkipFrame("it is the native part of a function that was split", quiet=True)
    if code.co_flags & 0x380 or code.co_flags & 0x20:
        raise SkipFrame("a generator or coroutine runs as it is", quiet=True)
    events.emit("capture_begin", frame=name, file=code.co_filename, line=code.co_firstlineno, code=code, func=func)
    stops: dict[int, GraphBreak] = {}
    loops: dict[int, Loop] = {}
    paths: dict[int, list[Step]] = {}
    opaque: set[types.CodeType] = set()
    ways: dict[Any, int] = {}
    for _ in range(opts.max_breaks):
        attempt = _Attempt(code, func, args, namespace, opts, stops, loops, paths)
        attempt.machine.opaque, attempt.machine.ways = opaque, ways
        try:
            with TorchModes() as attempt.state_before, recording(attempt.machine.world.class_lookups):
                result = attempt.run()
        except Plainly as signal:
            result = attempt.plainly(signal)
        except Break as signal:
            if attempt.machine.given_texts and signal.kind == "late_text":  # better another entry for each text
                opts = dataclasses.replace(opts, dynamic_texts=None)
                continue
            if (allowed := _allowed(attempt.machine, signal)) is not None:
                opaque.add(allowed)
            elif (known := attempt.machine.unsharding) is not None and known.open:
                known.by_hooks(signal.reason)
            elif opts.leaf:
                raise SkipFrame(signal.reason or signal.kind, quiet=True) from None
            elif (
                opts.library is None
                or attempt.machine.break_errors
                or not opts.library.leave_alone(signal.codes, signal.reason or signal.kind)
            ):
                _learn(stops, attempt, signal)
            continue
        except Skip as skip:
            if opts.library is not None and opts.library.leave_alone(skip.codes, skip.reason):
                continue
            raise SkipFrame(skip.reason, quiet=skip.quiet, breaks=list(stops.values()), final=skip.final) from None
        except Otherwise as signal:
            ways[signal.key] = signal.way
            continue
        except _Restart:
            continue
        finally:
            if opts.work is not None:
                opts.work.instructions += attempt.machine.instructions
            attempt.machine.release()
        events.emit("capture_end", result=result)
        return result
    raise SkipFrame(f"{name} breaks in too many places", breaks=list(stops.values()))


def _allowed(machine: Machine, signal: Break) -> types.CodeType | None:
    """The outermost code on the way to a break that is allowed in graphs, and not a call in the graph yet."""
    functions = {frame.code for frame in signal.frames[1:] if is_allowed_in_graph(frame.function)}
    return next(
        (code for code in signal.codes if code in functions | machine.allowed and code not in machine.opaque), None
    )


def _on_code(code: types.CodeType, function: types.FunctionType) -> types.FunctionType:
    """The function as it is now, on other code."""
    made = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Restart(BaseException):
    """Try again with a new forced break."""


def _learn(stops: dict[int, GraphBreak], attempt: "_Attempt", signal: Break) -> None:
    """Force a break at the root frame's instruction that the signal came from."""
    index = attempt.frame.pc - 1 if signal.index is None else signal.index
    brk = make_graph_break(signal, signal.where or [attempt.frame.position()])
    brk.is_error = attempt.machine.break_errors
    loop = enclosing_loop(attempt.code, index)
    if loop is not None:
        index = loop.head if loop.kind == "for" else loop.entry
        attempt.loops[index] = loop
    if index in stops and not attempt.paths.pop(index, None):
        raise SkipFrame(brk.reason, breaks=[brk])
    if index not in stops and loop is None and signal.index is None:
        attempt.paths[index] = path_of(signal.frames)
    stops[index] = brk


class _Attempt:
    """One run over the frame with the breaks known so far."""

    def __init__(
        self,
        code: types.CodeType,
        func: Any,
        args: tuple,
        namespace: dict,
        opts: CaptureOptions,
        stops: dict[int, GraphBreak],
        loops: dict[int, Loop],
        paths: dict[int, list[Step]],
    ):
        self.code, self.func, self.args, self.opts, self.stops, self.loops, self.paths = (
            code,
            func,
            args,
            opts,
            stops,
            loops,
            paths,
        )
        self.namespace = namespace
        self.idle = False  # the loop that holds the break does no tensor work that pays for compiling it
        self.leaving = 0  # the level of the frame whose state is being written
        self.machine = Machine(opts, namespace)
        self.machine.parameter_names = ParameterNames(namespace, func, args)
        self.machine.stops, self.machine.paths = stops, paths
        self.machine.initial_state = read_state(DEFAULT_FIELDS)
        self.machine.world.state_relied.update(self.machine.initial_state)
        self.machine.functions_off = not self.machine.initial_state["torch_function"][0]
        self.machine.given_warnings = fills_one_of(args)
        self.frame: Frame = root_frame(self.machine, code, func, args)

    def run(self) -> CaptureResult:
        machine, frame = self.machine, self.frame
        try:
            outcome = machine.run(frame)
            frame.slots = []  # the frame is gone: so are generators that only it held
            machine.close_dropped()
        except StopAt as stop:
            return self._broken(stop.index, stop.frames)
        except Break:
            if machine.handled is not None:  # it raised, and what breaks is on its way out
                machine.doubt_compiling()
            raise
        except Raised as raised:
            if refuses_view(raised.exc):
                raise SkipFrame(f"it raises {in_words(raised.exc)}", quiet=True) from None
            machine.doubt_compiling()
            # the program raises: let it raise natively, from its own line
            signal = Break("exception", f"the program raises {in_words(raised.exc)}")
            # one break for one exception, whichever frame it leaves
            signal.where = machine.trails.get(id(raised.exc), [])[::-1] or None
            raise signal from None
        except CaptureBug as bug:
            raise bug.__cause__ or RuntimeError(str(bug)) from None
        if outcome is not RETURN:
            raise SkipFrame("a generator runs as it is", quiet=True)
        return self._returned(frame.result)

    # --- ends
    def _params(self) -> list[str]:
        code = self.code
        n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        # the entry's text also uses builtins and names of its own
        return [
            (
                name
                if name.isidentifier()
                and not hasattr(builtins, name)
                and not name.startswith("__")
                and not keyword.iskeyword(name)
                else f"_arg{i}"
            )
            for i, name in enumerate(code.co_varnames[:n])
        ]

    def _only_moves(self) -> bool:
        """Whether the frame has no instruction that could ever be tensor work: what follows a cell's last call."""
        return all(instr.op in MOVES for instr in self.frame.bytecode.instructions)

    def _returned(self, value: Any) -> CaptureResult:
        machine = self.machine
        if not machine.graph.calls and not self.opts.every_frame:
            raise SkipFrame("there is no tensor work in it", quiet=True, final=self._only_moves())
        writer = EntryWriter(machine, self._params())
        try:
            self._write_effects(writer)
            writer.result(value)
        except Unrebuildable as problem:
            self._break_at_origin(problem)
        machine.hooks.check(machine, writer.outputs)
        if self.opts.returned is not None:
            self.opts.returned(machine, value, writer.outputs)
        return self._result(writer, [])

    def _broken(self, index: int, frames: list[Frame]) -> CaptureResult:
        machine, brk = self.machine, self.stops[index]
        if brk.is_error is None:
            brk.is_error = machine.break_errors
        self.idle = brk.kind in ("idle_loop", "small_loop")
        if machine.functions_off and machine.initial_state["torch_function"][0]:
            raise SkipFrame(f"where torch functions of subclasses are off: {brk.reason}", breaks=[brk])
        if not machine.graph.calls and not self._worth_breaking():
            raise SkipFrame(brk.reason, quiet=True, breaks=[brk])
        writer = EntryWriter(machine, self._params())
        try:
            self._write_effects(writer)
            path = self.paths.get(index, [])
            steps = [Step(self.code, index, self.loops.get(index)), *path]
            writer.line(f"return {self._leave(writer, frames, steps, self.opts.dispatch)}")
        except Unrebuildable as problem:
            self._leave_less(index)
            self._break_at_origin(problem, brk)
        except (CannotResume, CannotOutline) as problem:
            self._leave_less(index)
            raise SkipFrame(f"{brk.reason} The frame cannot go on after it: {problem}", breaks=[brk]) from None
        machine.hooks.check(machine, writer.outputs)
        reads_nodes = shows_nodes(frames, writer.outputs, brk.kind == "tensor_hook")
        return self._result(writer, [brk], needs_hook=True, reads_nodes=reads_nodes)

    def plainly(self, signal: Plainly) -> CaptureResult:
        """An entry that runs the frame as it is, on code of its own, so that the hook looks at what it calls and not at
        the frame again.
        """
        code, brk = self.code, make_graph_break(signal, signal.where or [self.frame.position()])
        brk.is_error = self.machine.break_errors
        if not self.frame.bytecode.is_function:
            raise SkipFrame(brk.reason, breaks=[brk], tensors=bool(self.machine.world.tensors))
        plain = code.replace(co_consts=(*code.co_consts, "runs plainly"))
        runs_natively.add(plain)
        params, n, k = self._params(), code.co_argcount, code.co_kwonlyargcount
        rest = params[n + k :]
        arguments = (
            params[:n]
            + ([f"*{rest.pop(0)}"] if code.co_flags & 4 else [])
            + [f"{name}={param}" for name, param in zip(code.co_varnames[n : n + k], params[n : n + k])]
            + [f"**{p}" for p in rest]
        )
        source = f"def entry({', '.join(['__fn', *params])}):\n    return __plain(__fn)({', '.join(arguments)})\n"
        return CaptureResult(
            code=code,
            guards=self._guards(None),
            source=source,
            breaks=[brk],
            needs_hook=signal.calls_compiled,
            namespace={"__plain": functools.partial(_on_code, plain), "break_code": plain},
        )

    def _worth_breaking(self) -> bool:
        """A frame that broke before any tensor work is still worth its rest, if it has tensors, modules or torch itself
        in reach.
        """
        if self.machine.world.tensors or not self.frame.bytecode.is_function or self.opts.every_frame:
            return True
        near: list[Any] = []
        for arg in self.args:
            near.extend(
                arg[:8]
                if isinstance(arg, (tuple, list))
                else list(arg.values())[:8]
                if isinstance(arg, dict)
                else (arg,)
            )
        near += [self.namespace.get(name) for name in self.code.co_names]
        for cell in getattr(self.func, "__closure__", None) or ():
            try:
                near.append(cell.cell_contents)
            except ValueError:
                continue
        return any(
            isinstance(v, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer))
            or isinstance(v, types.ModuleType)
            and v.__name__.partition(".")[0] == "torch"
            for v in near
        )

    def _write_effects(self, writer: EntryWriter) -> None:
        for effect in self.machine.effects:
            writer.effect(effect)
        if (versions := writes_counted(self.machine, self.machine.world.subclassed.values())) is not None:
            writer.effect(versions)
        grad, before = torch._C.is_grad_enabled(), self.machine.initial_state["grad_mode"]
        if grad != before:
            writer.line(f"{writer.constant(torch._C._set_grad_enabled)}({grad})")
        self.machine.devices.write(writer)
        if self.machine.break_errors != self.opts.break_errors:
            writer.line(f"{writer.constant(set_errors)}({self.machine.break_errors})")
        if self.machine.state_changed:
            self._write_autocast(writer)

    def _write_autocast(self, writer: EntryWriter) -> None:
        """Leave autocast as the program has it here: a break may lie inside of an autocast region."""
        before = self.state_before
        name = writer.constant(torch)
        if context_managers.switches() != before.switches:
            writer.line(f"{writer.constant(context_managers.set_switches)}({context_managers.switches()!r})")
        if torch._C._is_fwd_grad_enabled() != before.tangents:
            writer.line(f"{name}._C._set_fwd_grad_enabled({torch._C._is_fwd_grad_enabled()})")
        for device, enabled, dtype in before.autocast:
            if (torch._C.is_autocast_enabled(device), torch.get_autocast_dtype(device)) != (enabled, dtype):
                writer.line(f"{name}.set_autocast_enabled({device!r}, {torch._C.is_autocast_enabled(device)})")
                writer.line(f"{name}.set_autocast_dtype({device!r}, {writer.value(torch.get_autocast_dtype(device))})")
        if torch.is_autocast_cache_enabled() != before.cache:
            writer.line(f"{name}.set_autocast_cache_enabled({torch.is_autocast_cache_enabled()})")
        now = autocast_nesting()
        for _ in range(now - before.nesting):
            writer.line(f"{name}.autocast_increment_nesting()")
        for _ in range(before.nesting - now):
            writer.line(f"{name}.autocast_decrement_nesting()")
        if now == 0 and before.nesting > 0:
            writer.line(f"{name}.clear_autocast_cache()")  # as leaving the outermost region does

    def _leave_less(self, index: int) -> None:
        """A frame within the root frame cannot be left where it is: the call that made it is the break."""
        if path := self.paths.get(index):
            del path[max(self.leaving - 1, 0) :]
            raise _Restart

    def _leave(
        self, writer: EntryWriter, frames: list[Frame], steps: list[Step], dispatch: Callable, level: int = 0
    ) -> str:
        """The call of a function that goes on from the state of frames[level], and of those within it. Break functions
        run as they are, never captured themselves."""
        self.leaving = level
        frame, step = frames[level], steps[level]
        innermost = level + 1 == len(steps)
        nulls = [depth for depth, v in enumerate(frame.stack) if v is NULL]
        bound = [i for i, slot in enumerate(frame.slots) if slot is not MISSING]
        module_level = not frame.bytecode.is_function
        suspends = level > 0 and frame.bytecode.instructions[step.index].handler is None
        onward = suspend if suspends else dispatch if innermost else resuming(dispatch)
        if step.loop is None:
            spec: ResumeSpec = make_break(
                frame.code,
                step.index,
                nulls,
                bound,
                dispatch=onward,
                locals_are_globals=module_level,
                within=None if innermost else functools.partial(settle, dispatch),
            )
        else:
            idle = self.idle and innermost
            per_iteration = functools.partial(
                make_loop_break, dispatch=call_directly if idle else dispatch, leave=onward
            )
            whole = functools.partial(make_native_loop, dispatch=onward)
            ways = (whole, per_iteration) if idle else (per_iteration, whole)
            try:
                spec = ways[0](frame.code, step.loop, nulls, bound, locals_are_globals=module_level)
            except CannotOutline:
                spec = ways[1](frame.code, step.loop, nulls, bound, locals_are_globals=module_level)
        function, arguments = self._break_function(writer, frame, spec, level)
        if not innermost:
            arguments.append(self._leave(writer, frames, steps, dispatch, level + 1))
        return (
            f"{function}({', '.join(arguments)})"
            if level == 0
            else f"{function}, ({', '.join(arguments)}{',' if len(arguments) == 1 else ''})"
        )

    def _break_function(self, writer: EntryWriter, frame: Frame, spec: ResumeSpec, level: int) -> tuple[str, list[str]]:
        """The name of a function over the code of `spec`, and the arguments that are the frame's state."""
        machine, stack = self.machine, frame.stack
        runs_natively.add(spec.code)
        handled: dict[int, Any] = {}
        depths = [d for d, kind in enumerate(spec.kinds) if kind == "prev_exc"]
        for at, depth in enumerate(depths):
            handled[depth] = stack[depths[at + 1]] if at + 1 < len(depths) else machine.handled
        arguments = []
        for param, value in zip(spec.params, spec.arguments(frame.slots, stack, handled)):
            if isinstance(value, Unread):
                arguments.append(writer.load(value.source))
            elif param.kind == "stack":
                text = writer.stack_value(value)
                handled_here = param.number > 0 and spec.kinds[param.number - 1] == "prev_exc"
                arguments.append(f"{writer.constant(in_flight)}({text})" if handled_here else text)
            else:
                arguments.append(writer.value(value))
        # Made anew at each call: functions of one code object may have different globals and cells.
        # One that an inlined comprehension is still to make is empty so far.
        cells = "".join(
            (
                f"{writer.constant(types.CellType)}()"
                if frame.slots[slot] is MISSING
                else writer.value(frame.slots[slot])
            )
            + ", "
            for slot in spec.closure
        )
        name = f"break_{level}"
        writer.line(
            f"{name} = {writer.constant(types.FunctionType)}({writer.constant(spec.code, 'break_code')},"
            f" {self._globals(writer, frame)}, {spec.code.co_name!r}, None, {f'({cells})' if cells else None})"
        )
        return name, arguments

    def _globals(self, writer: EntryWriter, frame: Frame) -> str:
        """An expression for the globals of a frame."""
        if frame.scope.root:
            return "__fn.__globals__"
        source = self.machine.world.source_of(frame.function)
        return (
            writer.constant(frame.scope.namespace, "globals")
            if source is None
            else f"{writer.load(source)}.__globals__"
        )

    def _break_at_origin(self, problem: Unrebuildable, brk: GraphBreak | None = None) -> None:
        """The value cannot be made by the entry: break where it was made, so that it is made natively. `brk` is the
        break that would have had to carry it, and stays the one to report."""
        value = problem.value
        self.machine.hooks.give_up(value)
        origin = (
            value.origin
            if isinstance(value, (InlineGenerator, PythonIterator))
            else self.machine.origins.get(id(value))
        )
        if origin is None or origin in self.stops:
            raise SkipFrame(f"{problem.what} leaves the captured part", breaks=list(self.stops.values())) from None
        self.frame.pc = origin + 1
        if brk is None:
            if isinstance(value, type):
                signal = Break("class_definition", f"the class {value.__name__} is defined")
            else:
                signal = Break(
                    "generator" if isinstance(value, InlineGenerator) else "rebuild",
                    f"{problem.what} leaves the captured part",
                )
            brk = make_graph_break(signal, [self.frame.position()])
        self.stops[origin] = brk
        raise _Restart from None

    def _named(self) -> dict[str, bool]:
        """Whether what the frame leaves under its names varies: locals and its stack where it breaks, and globals."""
        held: dict[str, Any] = {f"{STACK}{depth}": value for depth, value in enumerate(self.frame.stack)}
        held |= {slot.name: v for slot, v in zip(self.frame.bytecode.slots, self.frame.slots)}
        held |= {
            effect.name: effect.value
            for effect in self.machine.effects
            if effect.kind == "global" and effect.target.root
        }
        known = {name: value for name, value in held.items() if value is not MISSING and type(value) is not Unread}
        return {name: type(value) in _SCALARS and varies(value) for name, value in known.items()}

    def _result(
        self, writer: EntryWriter, breaks: list[GraphBreak], needs_hook: bool = False, reads_nodes: bool = False
    ) -> CaptureResult:
        machine = self.machine
        graph: CapturedGraph | None = machine.graph.finish(writer.outputs, self.opts.graph_name)
        if graph is not None:  # (the nodes are looked at behind this break, or behind a later one)
            graph.reads_nodes = reads_nodes
        sources = [i.source for i in graph.inputs] if graph is not None else []
        handlers = any(c.co_exceptiontable for c in (self.code, *machine.inlined))
        writer.namespace.update(
            __keep=keep,
            __give_back=give_back,
            __grad_enabled=torch._C.is_grad_enabled,
            __set_grad_enabled=torch._C._set_grad_enabled,
            __TorchModes=TorchModes,
            __failed=functools.partial(self.opts.failed, handlers=handlers),
        )
        noted = keeping(graph) if graph is not None else Keeping()
        if graph is not None and any(
            graph.example_inputs[i].requires_grad and not graph.example_inputs[i].is_leaf for i in noted.copied
        ):
            self._train_natively(
                "a tensor that requires grad is changed in place, and a later operator may fail: its history could not"
                " be undone"
            )
        text = writer.text(
            sources,
            graph is not None,
            noted if self.opts.in_order else Keeping(),
            modes=changes_modes(graph) if graph is not None and self.opts.in_order else None,
        )
        lasting, attributes = split_effects(machine.effects, {*machine.world.created, *machine.world.made})
        inputs = graph.example_inputs if graph is not None else ()
        return CaptureResult(
            code=self.code,
            guards=self._guards(graph),
            source=text,
            namespace=writer.namespace,
            graph=graph,
            breaks=breaks,
            inlined=[c.co_qualname for c in machine.inlined],
            effects=[effect.words() for effect in machine.effects],
            lasting=lasting,
            attributes=attributes,
            needs_hook=needs_hook,
            named=self._named(),
            placed=machine.placed + fully_shard.parted_by_hooks([*machine.placed, *inputs]),
        )

    def _train_natively(self, reason: str) -> NoReturn:
        """No graph can be made of this frame as a whole: where it trains, what comes before the first backward pass or
        step can be one.
        """
        first = self.machine.first_training
        if first is None or first in self.stops:
            raise SkipFrame(reason)
        self.frame.pc = first + 1
        self.stops[first] = make_graph_break(Break("backward", reason), [self.frame.position()])
        raise _Restart

    def _guards(self, graph: CapturedGraph | None) -> list[Guard]:
        machine = self.machine
        world = machine.world
        guards = [Guard(None, "STATE", dict(world.state_relied), None, None, "global state")]
        guards += world.guards.values()
        guards += world.float_guards()
        guards += hold_demands(world)
        guards += [
            Guard(S.const(cache), "LACKS", key, None, None, "not cached yet") for cache, key in self.opts.uncached
        ]
        for expr, file, line, why in machine.env.guards:
            guards.append(Guard(None, "PREDICATE", expr, file, line, why or "size"))
        written = machine.graph.written
        if written and graph is not None:
            tensors = [
                (i, example_input, id(world.tensors[id(example_input)].tt_storage) in written)
                for i, example_input in zip(graph.inputs, graph.example_inputs)
                if i.kind == "tensor" and i.source is not None and i.source.kind != "scalar"
            ]
            changed = [(i, e) for i, e, w in tensors if w]
            together = changed + [(i, e) for i, e, w in tensors if not w and not i.static]
            if changed and len(together) > 1:
                if not no_overlap([e for _, e in together], len(changed)):
                    self._train_natively("tensors that share memory are changed in place")
                guards.append(
                    Guard(
                        None,
                        "NO_OVERLAP",
                        tuple(
                            i.source.base
                            if i.source.kind in ("plain", "array") or i.source.key is without_bits
                            else world.guarded_as.get(i.source, i.source)
                            for i, _ in together
                        ),
                        None,
                        None,
                        "a tensor is changed in place",
                        len(changed),
                    )
                )
        guards += self._different_targets()
        guards += class_guards(world.class_lookups, world.made)
        if graph is not None or world.tensors:
            classes = dict.fromkeys(
                (torch.Tensor, *(type(world.reals[id(tensor)]) for tensor in world.tensors.values()))
            )
            # (in the order of their first use)
            guards += special_guards(cls for cls in classes if cls in PLAIN_TENSORS)
        return guards

    def _different_targets(self) -> list[Guard]:
        """An object that is changed must not be the same as another one that was taken for different."""
        world = self.machine.world
        kinds = {
            type(effect.target) for effect in self.machine.effects if effect.kind in ("setattr", "delattr", "method")
        }
        guards = []
        for kind in kinds:
            same = tuple(
                {
                    source: None
                    for o in world.keep
                    if type(o) is kind and (source := world.sources.get(id(o))) is not None
                    if source.root.kind != "const" and source not in world.guarded_as  # (those are made at each call)
                }
            )
            if len(same) > 1:
                guards.append(Guard(None, "NO_ALIAS", same, None, None, "one of them is changed"))
        return guards
