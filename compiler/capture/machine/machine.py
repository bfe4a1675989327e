"""The interpreter: runs canonical bytecode over stack values (world.py), records tensor calls, and logs effects."""

from __future__ import annotations

import builtins as _builtins
import sys
import types
from typing import TYPE_CHECKING, Any, Callable, Collection

from ...graph.tensor import TraceTensor
from ...guards import source as S
from ...symbolic.env import ShapeEnv
from ..kinds import attributes, calls, containers, operators
from ..kinds.choices import Choice
from ..library.default_devices import DeviceRegions
from ..entry.effects import EffectLog
from .exceptions import note_frame, set_context
from .frame import Frame, GlobalScope, Unread
from .generators import InlineGenerator, natively
from ..entry.graph_builder import GraphBuilder
from ..entry.model_names import ParameterNames
from ..kinds.inline_policy import is_trusted_module
from ..entry.locations import Position
from .programs import RETURN, program_of
from .native_loops import check_turn
from .nesting import Step, frames_left, passes_on
from ..kinds.outside_iterators import OutsideIterator
from .signals import Break, Otherwise, Raised, Skip
from ..tensors import subclass_calls, tensor_calls, tensor_factories
from ..tensors.gradient_hooks import Hooks
from ..tensors.tensor_errors import break_kind_of, undescribed
from ..tensors.tensor_subclasses import ProbeClasses, holds_subclassed
from ..library.training import BackwardPasses
from .stack_values import ATOMS, MISSING
from .world import World

if TYPE_CHECKING:
    from ..kinds.caches import Asked

__all__ = ["Machine", "StopAt", "root_frame"]

_MAX_DEPTH = 120
_QUICK_LIMIT, _LIMIT = 100_000, 10_000_000  # instructions without and with tensor work
_IDLE_LIMIT = 20_000  # instructions in a cell, behind tensor work, until there must be more of it


class StopAt(BaseException):
    """The frames have arrived at a forced break; `index` is the root frame's instruction."""

    def __init__(self, index: int, frames: list[Frame]):
        super().__init__(index)
        self.index, self.frames = index, frames


_COMPILING = "whether it is being compiled"  # a key of Machine.ways


class Machine:
    """State of one attempt to capture one frame."""

    def __init__(self, opts: Any, root_globals: dict):
        self.opts = opts
        self.env = ShapeEnv()
        self.env.locate = self.user_line
        self.world = World(self, opts)
        self.graph = GraphBuilder(self)
        self.parameter_names = ParameterNames(root_globals)
        self.effects = EffectLog(self)
        self.passes = BackwardPasses()
        self.hooks = Hooks()
        self.ways: dict[Any, int] = {}  # what earlier attempts learned (signals.Otherwise)
        self.asked_compiling = False  # the program has asked whether it is being compiled
        self.stepping: Any = None  # the optimizer whose step is interpreted
        self.placed: list[Any] = []  # DTensors from outside that are parameters
        self.unsharding: Any = None  # the outermost FSDP2 module that was called (library/distributed/fully_shard.py)
        self.first_training: int | None = (
            None  # instruction of the root frame that called the first backward pass, or optimizer's step
        )
        self.frames: list[Frame] = []
        self.handles_outside = sys.exception() is not None  # who called the frame: in an except clause
        self.handled: BaseException | None = None  # by the innermost generator that runs, or outside of them
        self.handled_outside: list[BaseException | None] = []  # by who resumed the generators that run
        self.stops: dict[int, Any] = {}  # instruction index of the root frame -> reason
        # functions allowed in graphs that capture could not follow: calls in the graph
        self.opaque: set[types.CodeType] = set()
        self.checked: dict[Any, tuple[float, float]] = {}  # ints that are read -> what the program has checked of them
        self.allowed: set[types.CodeType] = set()  # code of forward of Functions that are allowed in graphs
        self.paths: dict[int, list[Step]] = {}  # the same index, of a call -> where the frames within it are left
        self.initial_state: dict[str, Any] = {}  # torch's global state when the frame began
        # settings of autocast and switches of attention, once the program changes them
        self.flags_before: dict[str, Any] = {}
        self.index_by_tensors = (
            False  # whether a tensor without dimensions indexes as a tensor, not as the number that it holds
        )
        self.hooks_refused: Any = MISSING  # why hooks for saved tensors are, by now; MISSING: not asked yet
        self.iterators: dict[int, OutsideIterator] = {}  # id of an iterator from outside -> what stands for it
        self.dual_level: int | None = None  # root instruction that entered a level of forward gradients
        self.choices: dict[int, Choice] = {}  # id of a tensor that stands for one of several objects -> which
        self.cached: list[Asked] = []  # what the entry asks caches of functions for, in order
        self.backward_of = ""  # the custom autograd function whose backward is interpreted
        self.referenced = False  # the frame lets go of an object from outside that a weak reference is held to
        self.state_changed = False  # grad mode or autocast was set by the program
        self.loop_counts: dict[Any, int] = {}  # FOR_ITER instruction -> iterations, once the graph is large
        self.module_path = ""
        self.late_texts = False  # a text that varies has been made
        self.given_texts = False  # one of them came from outside
        self.escaped: BaseException | None = None  # what the program raised, on its way through native code
        self.subclassed = False  # a tensor of a class of the program's has been met
        self.functions_off = False  # __torch_function__ of such classes is not asked
        self.given_warnings = False  # the list that catch_warnings(record=True) fills came with the frame's values
        self.devices = DeviceRegions()
        self.break_errors: bool = opts.break_errors  # whether a break is an error here (error_on_graph_break)
        self.probe_classes = ProbeClasses()
        self.ragged: dict[int, Any] = {}  # id of offsets or lengths -> the nested tensor from outside that has them
        self.ragged_sizes: dict[int, TraceTensor] = {}  # torch's number of a ragged size -> the tensor that it is of
        self.instructions = 0
        self.following: tuple[int, int] | None = (
            None  # in a library's call: instructions until it must have done tensor work, and nodes before
        )
        self.limit = _QUICK_LIMIT if opts.library is None else _IDLE_LIMIT  # negative while `dropped` holds generators
        self.calls_before = 0  # operators in the graph when the limit was set
        self.dropped: list[InlineGenerator] = []
        self.inlined: dict[types.CodeType, None] = {}
        self.root_globals = root_globals
        self._scopes: dict[int, GlobalScope] = {id(root_globals): GlobalScope(root_globals, None, False, True)}
        # id of an exception made inside -> where it passed, innermost first
        self.trails: dict[int, list[Position]] = {}
        self.origins: dict[int, int] = {}  # id of a stand-in that cannot be rebuilt -> root instruction that made it

    def says_compiling(self) -> bool:
        """What the program hears where it asks whether it is being compiled."""
        self.asked_compiling = True
        return _COMPILING not in self.ways

    def doubt_compiling(self) -> None:
        """The program raises. A library that hears that it is compiled may leave out a default, and fail for want of
        it: capture begins again, and it hears what it hears in eager."""
        if self.asked_compiling and _COMPILING not in self.ways:
            raise Otherwise(_COMPILING, 1)

    def release(self) -> None:
        """Let go of the program's objects now, not when the garbage collector finds the cycles that the machine is part
        of: inputs may be large.
        """
        world = self.world
        for table in (
            world.keep,
            world.sources,
            world.loaded,
            world.pending,
            world.made,
            world.tensors,
            world.reals,
            world.shadows,
            world.shadowed,
            world.dict_owners,
            world.cell_contents,
            world.scalars,
            self.effects.entries,
            self.graph.keep,
            self.frames,
            self.trails,
        ):
            table.clear()
        self.handled = None
        self.parameter_names = ParameterNames({})
        self.passes.freed.clear()
        self.graph.examples = []
        location = self.env.location
        self.env.locate = lambda: location

    # --- where we are
    def stack_positions(self) -> list[Position]:
        """Positions of the interpreted frames, outermost first, the user's innermost one last."""
        out = [frame.position() for frame in self.frames]
        while len(out) > 1 and out[-1].library:
            out.pop()
        return out

    def user_line(self) -> tuple[str | None, int | None]:
        for frame in reversed(self.frames):
            if not frame.library:
                position = frame.position()
                return position.file, position.line
        return None, None

    @property
    def one_graph(self) -> bool:
        """Whether capture is not to break where it could go on."""
        return bool(self.opts.fullgraph or self.break_errors)

    @property
    def root_index(self) -> int:
        """Index of the root frame's current instruction."""
        return self.frames[0].pc - 1 if self.frames else 0

    # --- frames
    def scope_of(self, namespace: dict) -> GlobalScope:
        scope = self._scopes.get(id(namespace))
        if scope is None:
            name = namespace.get("__name__")
            module = sys.modules.get(name) if isinstance(name, str) else None
            if module is not None and getattr(module, "__dict__", None) is namespace:
                source = self.world.anchor(module)
                scope = GlobalScope(namespace, source, is_trusted_module(name), False, True)
            else:
                self.world.keep.append(namespace)
                scope = GlobalScope(namespace, S.const(namespace), False, False)
            self._scopes[id(namespace)] = scope
        return scope

    def run(self, frame: Frame) -> Any:
        """Run until the frame returns (RETURN) or yields (YIELD); the value is in `frame.result`."""
        frames, program, stops = self.frames, frame.program, self.stops_in(frame)
        if len(frames) > _MAX_DEPTH:
            raise Break("recursion")
        frames.append(frame)
        try:
            while True:
                pc = frame.pc
                if stops and pc in stops and len(left := frames_left(frames)) == len(frames):
                    raise StopAt(left[0].pc - (len(left) > 1), left)
                fn, ins = program[pc]
                frame.pc = pc + 1
                self.instructions += 1
                if self.instructions > self.limit:
                    self.over_limit()
                try:
                    outcome = fn(self, frame, ins)
                except Raised as raised:
                    if not self.unwind(frame, ins, raised.exc):
                        raise
                    continue
                except BaseException as exc:  # the program may raise classes of its own under BaseException, too
                    if exc is not self.escaped:  # of capture's own
                        raise
                    self.escaped = None
                    if not self.unwind(frame, ins, exc):
                        raise Raised(exc) from None
                    continue
                if outcome is not None:
                    return outcome
        except Break as signal:
            if signal.where is None:
                signal.where = [frame.position() for frame in frames]
                signal.frames = frames_left(frames)
                signal.codes = [frame.code for frame in frames]
                if self.dual_level is not None and signal.index is None:
                    signal.index = self.dual_level
            raise
        except Skip as signal:
            signal.codes = signal.codes or [frame.code for frame in frames]
            raise
        finally:
            frames.pop()

    def stops_in(self, frame: Frame) -> Collection[int]:
        """The instructions before which a frame that begins now is to be left."""
        if frame.is_root:
            return {index for index in self.stops if not self.paths.get(index)}
        path = self.paths.get(self.frames[0].pc - 1) if self.paths else None
        depth = len(self.frames)  # of the frame: the root's is 0
        if (
            path
            and depth == len(path)
            and frame.code is path[-1].code
            and all(
                frame.code is step.code and frame.pc - 1 == step.index for frame, step in zip(self.frames[1:], path)
            )
        ):
            return (path[-1].index,)
        return ()

    def close_soon(self, generator: InlineGenerator) -> None:
        """A generator lost its last reference: it is closed before the next instruction."""
        self.dropped.append(generator)
        if self.limit > 0:
            self.limit = -self.limit  # makes `run` look

    def close_dropped(self) -> None:
        """Close the generators that nobody holds any more. What they raise is lost, as in CPython; a break goes back to
        where they were made.
        """
        while self.dropped:
            generator = self.dropped.pop()
            try:
                generator.close()
            except Break as signal:
                signal.index = generator.origin
                raise
            except (RuntimeError, StopIteration):
                pass  # "generator ignored GeneratorExit" is printed, not raised
            except Exception as exc:
                raise Break(
                    "generator", f"closing a generator raises {type(exc).__name__}", "close it by its close() method"
                ) from None
            del generator  # what its frame held may be dropped in its turn
        self.limit = abs(self.limit)

    def over_limit(self) -> None:
        """Close what was dropped. Give up on frames that compute for long in Python alone."""
        if self.limit < 0:
            self.close_dropped()
            if self.instructions <= self.limit:
                return
        if not self.graph.calls:
            if self.limit < _QUICK_LIMIT:
                self.limit = _QUICK_LIMIT
                return
            raise Skip("the code computes for a long time without tensors", quiet=True, final=True)
        if self.opts.library is not None:
            self._over_limit_of_a_cell()
            return
        if self.limit == _LIMIT:
            raise Break("long_loop", "too many instructions run between tensor operations")
        self.limit = _LIMIT

    def _over_limit_of_a_cell(self) -> None:
        """A cell may hold any Python between its tensor work. What computes for long runs as it is: to interpret it
        takes hundreds of times as long.
        """
        if self.graph.calls == self.calls_before:
            raise Break("idle_loop")
        most = self.opts.work.instruction_limit if self.opts.work is not None else 0
        if self.instructions > (most or _LIMIT):
            raise Break("long_loop", "too many instructions for one graph")
        self.calls_before, self.limit = self.graph.calls, self.instructions + _IDLE_LIMIT

    def handling(self) -> BaseException | None:
        """What sys.exception() gives: a generator that handles nothing sees what is handled where it was resumed."""
        if self.handled is not None:
            return self.handled
        return next((exc for exc in reversed(self.handled_outside) if exc is not None), None)

    def rely_on_nothing_handled_outside(self) -> None:
        """The program asks what is handled while none of its own clauses handles anything: its caller may."""
        if self.handles_outside:
            raise Break(
                "c_call",
                "the program asks for the exception that its caller handles",
                "hand it over as an argument",
            )
        self.world.state("sys.exception", None)

    def unwind(self, frame: Frame, ins: Any, exc: BaseException, thrown: bool = False) -> bool:
        """Go to the handler that covers `ins`; False where none does. `thrown`: into a generator, by its throw()."""
        outside = self.world.is_outside(exc)
        raised = ins.arg != 0 if ins.op == "RAISE_VARARGS" else ins.op != "RERAISE" and id(exc) not in self.trails
        if raised and not outside and not thrown:  # else it comes from a call, or is raised again
            set_context(self, exc)
        note_frame(self, frame, ins, exc)
        handler = ins.handler
        if handler is None:
            return False
        if not outside:
            exc.__traceback__ = None  # native code left its own frames there
        del frame.stack[handler.depth :]
        if handler.lasti:
            frame.stack.append(ins.index)
        frame.stack.append(exc)
        frame.pc = handler.target.index
        return True

    @passes_on
    def call_code(
        self, code: types.CodeType, scope: GlobalScope, function: Any, slots: dict[int, Any], names: Any = None
    ) -> Any:
        """Interpret a call whose parameters are bound already."""
        bytecode, program = program_of(code)
        frame = Frame(code, bytecode, program, scope, function, False)
        for index, value in slots.items():
            frame.slots[index] = value
        frame.names = names
        frame.module_path = self.module_path
        self.inlined.setdefault(code)
        handled = self.handled
        outcome = self.run(frame)
        self.handled = handled
        if outcome is RETURN:
            return frame.result
        return InlineGenerator(self, frame, self.root_index)

    # --- native code
    def native(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Any:
        """Call native code; what it raises is the interpreted program's exception."""
        try:
            return fn(*args, **kwargs)
        except (Exception, GeneratorExit) as exc:
            self.translate(exc)
            raise Raised(exc) from None

    def translate(self, exc: BaseException) -> None:
        """Turn errors that mean "the value of a tensor is needed" into breaks."""
        kind = break_kind_of(exc)
        if kind is None and self.late_texts and isinstance(exc, TypeError):
            kind = "late_text"  # native code may have met a stand-in for a text
        if kind is not None:
            raise Break(kind, undescribed(exc)) from None

    def callback(self, fn: Any) -> Callable:
        """A native callable that interprets `fn`; for native code that calls back (sorted's key, map, reduce)."""

        def call_back(*args: Any, **kwargs: Any) -> Any:
            check_turn(self, self.frames[-1], call_back)
            return natively(self, self.call, fn, list(args), kwargs)

        call_back.interprets = fn  # type: ignore[attr-defined]   # what an entry writes in its place
        return call_back

    # --- the operations that everything else is written with
    @passes_on
    def call(self, fn: Any, args: list, kwargs: dict | None = None) -> Any:
        return calls.call(self, fn, args, kwargs or {})

    def getattr(self, obj: Any, name: str) -> Any:
        return attributes.get_attribute(self, obj, name)

    def setattr(self, obj: Any, name: str, value: Any) -> None:
        attributes.set_attribute(self, obj, name, value)

    def plain(self, value: Any) -> Any:
        """An inside equivalent of a container, fit for native code: outside containers are read (and guarded) whole."""
        return containers.plain(self, value)

    def deep_plain(self, value: Any) -> Any:
        return containers.deep_plain(self, value)

    def iterate(self, value: Any) -> Any:
        """A native iterator over stack values."""
        return containers.iterate(self, value)

    def truth(self, value: Any) -> bool:
        return operators.truth(self, value)

    def compare(self, text: str, a: Any, b: Any) -> Any:
        """`a == b`, or what else `text` says."""
        return operators.compare(self, text, a, b)

    def get_item(self, obj: Any, key: Any) -> Any:
        return operators.get_item(self, obj, key)

    def call_python(self, fn: types.FunctionType, args: list, kwargs: dict) -> Any:
        """Interpret a Python function, whatever the registry of callables says of it."""
        return calls.call_python(self, fn, args, kwargs)

    # --- calls of torch with tensors of the graph
    def torch_function(self, fn: Callable, args: list, kwargs: dict) -> Any:
        return tensor_calls.call_function(self, fn, args, kwargs)

    def torch_method(self, tensor: TraceTensor, name: str, args: list, kwargs: dict) -> Any:
        return tensor_calls.call_method(self, tensor, name, args, kwargs)

    def torch_operator(self, fn: Callable, args: list) -> Any:
        """An operator of Python."""
        return tensor_calls.call_operator(self, fn, args)

    def torch_factory(self, fn: Callable, args: list, kwargs: dict) -> Any:
        """A function that makes a tensor from plain values."""
        return tensor_factories.call_factory(self, fn, args, kwargs)

    def torch_override(self, fn: Callable, args: list, kwargs: dict) -> Any:
        """A call that __torch_function__ of the program's classes answers."""
        return subclass_calls.operate(self, fn, args, kwargs)

    def is_atom(self, value: Any) -> bool:
        return type(value) in ATOMS

    def load_global(self, scope: GlobalScope, name: str) -> Any:
        """globals()[name], then builtins; NameError."""
        namespace = scope.namespace
        if self.world.shadows:
            containers.refuse_late_items(self, namespace)
        written = self.world.pending.get(id(namespace))
        if written is not None and name in written:
            value = written[name]
            if value is not MISSING:
                return value
        elif name in namespace:
            value = namespace[name]
            if scope.root:
                return self.world.load(value, S.glob(name), "global")
            assert scope.source is not None
            if scope.trusted and isinstance(
                value, (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
            ):
                self.world.anchor(value)
                if scope.module and isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
                    self.world.guard(S.attr(scope.source, name), "ID", value, "function of a module")
                return value
            source = S.attr(scope.source, name) if scope.module else S.dict_value(scope.source, name)
            return self.world.load(value, source, "global")
        builtins = namespace.get("__builtins__", __builtins__)
        if isinstance(builtins, types.ModuleType):
            builtins = vars(builtins)
        if name in builtins:
            value = builtins[name]
            if not self.is_atom(value):
                self.world.anchor(value)
            self._guard_no_global(scope, name, value)
            return value
        self._guard_no_name(scope, name)
        raise Raised(NameError(f"name '{name}' is not defined", name=name))

    def _guard_no_name(self, scope: GlobalScope, name: str) -> None:
        """Rely on there being neither a global nor a builtin of that name."""
        if scope.trusted:
            return
        if scope.root:
            namespace = S.attr(S.function(), "__globals__")
        else:
            assert scope.source is not None
            namespace = S.attr(scope.source, "__dict__") if scope.module else scope.source
        for source in (namespace, S.const(vars(_builtins))):
            self.world.guard(source, "LACKS", name, "no such name")

    def _guard_no_global(self, scope: GlobalScope, name: str, value: Any) -> None:
        """Rely on a builtin not being hidden by a global."""
        if scope.root:
            self.world.guard(S.builtin(name), "ID", value, "builtin")
        elif not scope.trusted and scope.source is not None:
            if scope.module and "__getattr__" in scope.namespace:  # (which globals do not ask)
                self.world.guard(S.attr(scope.source, "__dict__"), "LACKS", name, "builtin")
            elif scope.module:
                self.world.guard(scope.source, "HASATTR", (name, False), "builtin")
            else:
                self.world.guard(scope.source, "DICT_KEYS", tuple(scope.namespace), "builtin")


def root_frame(machine: Machine, code: types.CodeType, func: Any, args: tuple) -> Frame:
    """The frame that capture starts in; parameters are loaded when first read."""
    bytecode, program = program_of(code)
    frame = Frame(code, bytecode, program, machine.scope_of(machine.root_globals), func, True)
    machine.subclassed = holds_subclassed(args)
    for index, value in enumerate(args):
        frame.slots[index] = Unread(value, S.local(index, bytecode.slots[index].name))
    return frame
