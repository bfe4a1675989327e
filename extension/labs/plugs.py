"""What stands between a student's function and the pipeline: stages made of functions that a lab can ask for.

capture_stage(trace)         trace(function, values) runs the function on what it likes and gives an fx graph
guard_stage(checks)          checks(reads) says which predicates guard an entry, in place of the compiler's own
sizes_stage(choose)          choose(history) says which dimensions are symbols
split_stage(split)           split(function) gives the function in two parts, around what runs natively

Each gives a function for `tcompile.stages.replace("capture", ...)`, named after the student's.
"""

from __future__ import annotations

import builtins
import functools
import types
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
import torch.fx

import tcompile

from ..compiler.capture.bytecode import Instruction, decode
from ..compiler.capture.entry.result import CaptureResult, GraphBreak
from ..compiler.graph.captured import CapturedGraph, GraphInput
from ..compiler.base.fx_modules import graph_module
from ..compiler.graph.tensor import trace_tensor_like
from ..compiler.guards.guard import Guard, TensorSpec
from ..compiler.guards.source import Source, asked, glob, local
from ..compiler.guards.state import DEFAULT_FIELDS, read_state
from ..compiler.stages import Decline
from ..compiler.symbolic.env import ShapeEnv

__all__ = [
    "Check",
    "Decline",
    "Read",
    "capture_stage",
    "explain_with",
    "guard_stage",
    "instructions",
    "split_stage",
    "tracing",
]

_IDLE = ("NOP", "RESUME", "CACHE", "TO_BOOL")  # jumps take the truth of any object themselves


def instructions(function: Callable) -> list[Instruction]:
    """A function's bytecode in the compiler's own instruction set, the same on every Python. Read `op`, `arg`,
    `target`, `index`, `line`; `target` is an instruction of the list."""
    decoded = decode(function.__code__).instructions
    kept: list[Instruction] = []
    made: dict[int, Instruction] = {}  # by id of what was decoded: the copy, or the one that follows where it was idle
    waiting: list[int] = []
    for ins in decoded:
        waiting.append(id(ins))
        if ins.op not in _IDLE:
            op = "LOAD_FAST" if ins.op == "LOAD_FAST_CHECK" else ins.op
            kept.append(ins.copy(op=op, index=len(kept)))
            made.update(dict.fromkeys(waiting, kept[-1]))
            waiting.clear()
    for ins in kept:
        if ins.target is not None:
            ins.target = made[id(ins.target)]
    return kept


def explain_with(stage: str, function: Callable, program: Callable, *args: Any) -> Any:
    """The report of one call, with `function` in the place of a stage. Its errors are raised, not swallowed."""
    with tcompile.stages.replace(stage, function), tcompile.config.patch(suppress_errors=False):
        return tcompile.explain(program)(*args)


def named_after(function: Callable, stage: Callable) -> Callable:
    functools.update_wrapper(stage, function)
    del stage.__dict__["__wrapped__"]
    return stage


# ---- capture
def capture_stage(trace: Callable[[types.FunctionType, dict[str, Any]], torch.fx.Graph]) -> Callable:
    """`trace(function, values)` as the capture stage. `values` has the arguments by name. The graph that it gives has a
    placeholder for each tensor that it uses, under the parameter's name, and an output: a node, or a tuple of nodes.
    Raise Decline for what is too hard."""

    def stage(code: types.CodeType, func: Any, args: tuple, *, opts: Any, globals: dict | None = None) -> CaptureResult:
        names = code.co_varnames[: len(args)]
        values = dict(zip(names, args))
        if code.co_flags & 0x2AC or code.co_freevars:
            raise Decline("a generator, a coroutine, a closure, or *args")
        with torch.random.fork_rng(devices=[]):  # examples may draw numbers; the program's own come later
            graph = trace(func, values)
        if not isinstance(graph, torch.fx.Graph):
            raise TypeError(f"{trace.__name__} should give a torch.fx.Graph, and gave {type(graph).__name__}")
        captured, single = _captured(graph, values, code.co_name)
        inputs = ", ".join(i.name for i in captured.inputs)
        source = f"def entry(__fn, {', '.join(names)}):\n    __out = graph_0({inputs})\n"
        source += "    return __out[0]\n" if single else "    return tuple(__out)\n"
        return CaptureResult(code, _plain_guards(func, values), source, {}, captured)

    return named_after(trace, stage)


def tracing(run: Callable[[types.FunctionType, dict[str, Any]], Any]) -> Callable:
    """`run(function, values)` on torch.fx's proxies for tensors: a `trace` for capture_stage."""

    def trace(function: types.FunctionType, values: dict[str, Any]) -> torch.fx.Graph:
        graph = torch.fx.Graph()
        tracer = torch.fx.proxy.GraphAppendingTracer(graph)

        def proxy(name: str) -> torch.fx.Proxy:
            return torch.fx.Proxy(graph.placeholder(name), tracer)

        given = {k: proxy(k) if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        try:
            result = run(function, given)
        except torch.fx.proxy.TraceError as e:
            raise Decline(f"Python asks for a tensor's value: {e}") from None
        graph.output(torch.fx.node.map_aggregate(result, lambda p: p.node if isinstance(p, torch.fx.Proxy) else p))
        return graph

    return named_after(run, trace)


def _captured(graph: torch.fx.Graph, values: dict[str, Any], name: str) -> tuple[CapturedGraph, bool]:
    """The graph with what the next stage asks for: metadata of every node, and a tuple as output."""
    env = ShapeEnv()
    known: dict[torch.fx.Node, Any] = {}
    inputs, examples = [], []
    single = True
    for node in list(graph.nodes):
        if node.op == "placeholder":
            real = values.get(node.target)
            if not isinstance(real, torch.Tensor):
                raise ValueError(
                    f"the placeholder {node.target!r} should have the name of a parameter that is a tensor"
                )
            known[node] = trace_tensor_like(real, env)
            spec = _spec(real)
            inputs.append(GraphInput(node.name, _source_of(list(values), str(node.target)), "tensor", spec=spec))
            examples.append(real)
        elif node.op == "output":
            result = node.args[0]
            single = isinstance(result, torch.fx.Node)
            flat = (result,) if single else tuple(result)
            if not all(isinstance(n, torch.fx.Node) for n in flat):
                raise Decline("a result that is not a tensor of the graph")
            node.args = (flat,)
            continue
        else:
            args = torch.fx.map_arg(node.args, known.__getitem__)
            kwargs = torch.fx.map_arg(node.kwargs, known.__getitem__)
            if node.op == "call_function":
                known[node] = node.target(*args, **kwargs)
            elif node.op == "call_method":
                known[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            else:
                raise Decline(f"a node of kind {node.op}")
        node.meta.update(val=known[node], stack=[], module="")
    graph.lint()
    return CapturedGraph(graph_module(graph, name), inputs, env, name, examples), single


def _spec(t: torch.Tensor) -> TensorSpec:
    return TensorSpec(type(t), t.dtype, t.device, t.requires_grad, tuple(t.shape), tuple(t.stride()))


def _source_of(names: Sequence[str], name: str) -> Source:
    return local(list(names).index(name), name)


def _state() -> Guard:
    return Guard(None, "STATE", {field: read_state()[field] for field in DEFAULT_FIELDS})


def _plain_guards(func: Any, values: dict[str, Any]) -> list[Guard]:
    """Enough for a graph of fixed sizes: every parameter, and the globals that the code names."""
    guards = [_state()]
    for name, value in values.items():
        source = _source_of(list(values), name)
        if isinstance(value, torch.Tensor):
            guards.append(Guard(source, "TENSOR", _spec(value)))
        elif isinstance(value, (bool, type(None))):
            guards.append(Guard(source, "ID", value))
        elif isinstance(value, (int, float, str)):
            guards.append(Guard(source, "EQUALS", value))
        else:
            raise Decline(f"a parameter of type {type(value).__name__}")
    for name in func.__code__.co_names:
        if name not in func.__globals__:
            continue  # an attribute, or a builtin
        value = func.__globals__[name]
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            guards.append(Guard(glob(name), "EQUALS", value))
        elif isinstance(value, torch.Tensor):
            raise Decline("a tensor of the module's")
        else:
            guards.append(Guard(glob(name), "ID", value))
    return guards


# ---- guards
@dataclass(frozen=True)
class Read:
    """What a captured program relied on: the value at a place, and how it was used.

    use    "tensor", "value", "length", "keys", "absent" (the key `detail` is not there), "identity" or "type"
    """

    name: str  # as a user would write it: `x`, `config['depth']`
    use: str
    value: Any
    detail: Any = None


@dataclass(frozen=True)
class Check:
    """A predicate over the value at a place: Check("k", "type(v) is int and v == 2"). `v` is the value."""

    name: str
    test: str


_USES = {
    "TENSOR": "tensor",
    "EQUALS": "value",
    "LEN": "length",
    "DICT_KEYS": "keys",
    "LACKS": "absent",
    "TYPE": "type",
    "ID": "identity",
    "WEAK_ID": "identity",
}


def _mine(guard: Guard, func: Any) -> bool:
    """Whether a guard is of the user's values: parameters, and globals that are plain data."""
    if guard.source is None or guard.kind not in _USES:
        return False
    root = guard.source.root
    if root.kind == "local":
        return True
    value = func.__globals__.get(root.key) if root.kind == "global" else None
    return isinstance(value, (int, float, str, list, dict, tuple, torch.Tensor)) and not callable(value)


def guard_stage(checks: Callable[[list[Read]], list[Check]]) -> Callable:
    """The compiler's own capture with the guards on the user's values made by `checks(reads)`. The guard program runs
    them: what they let through runs the entry."""

    def stage(code: types.CodeType, func: Any, args: tuple, *, opts: Any, globals: dict | None = None) -> CaptureResult:
        opts.dynamic, opts.dynamic_dims, opts.dynamic_strides = False, {}, {}  # all is fixed, and yours to check
        opts.dynamic_ints = opts.dynamic_floats = frozenset()
        result = tcompile.stages.original("capture")(code, func, args, globals=globals, opts=opts)
        mine = [g for g in result.guards if _mine(g, func)]
        reads, places = [], {}
        for g in mine:
            assert g.source is not None
            places[g.source.name()] = g.source
            reads.append(_read_of(g, func, args))
        made = [_guard_of(check, places) for check in checks(reads)]
        result.guards = [g for g in result.guards if g not in mine] + made
        return result

    return named_after(checks, stage)


def sizes_stage(choose: Callable[[list[dict[str, tuple]]], dict[str, Any]]) -> Callable:
    """The compiler's own capture, where `choose(history)` says which dimensions are symbols: {"x": {0}}. `history` has
    the shapes of the tensors by name, of each call that compiled, this one last. A size of 0 or 1 never is a symbol."""
    history: dict[types.CodeType, list[dict[str, tuple]]] = {}

    def stage(code: types.CodeType, func: Any, args: tuple, *, opts: Any, globals: dict | None = None) -> CaptureResult:
        values = dict(zip(code.co_varnames, args))
        shapes = {name: tuple(v.shape) for name, v in values.items() if isinstance(v, torch.Tensor)}
        calls = history.setdefault(code, [])
        calls.append(shapes)
        chosen = choose([dict(call) for call in calls])
        opts.dynamic, opts.dynamic_dims = None, {}
        for name, dims in chosen.items():
            if name not in shapes or not all(isinstance(d, int) and 0 <= d < len(shapes[name]) for d in dims):
                raise ValueError(f"{choose.__name__} gave {name!r}: {dims}; the tensors are {shapes}")
            opts.dynamic_dims[_source_of(list(values), name)] = tuple(d for d in sorted(dims) if shapes[name][d] > 1)
        return tcompile.stages.original("capture")(code, func, args, globals=globals, opts=opts)

    return named_after(choose, stage)


def _read_of(g: Guard, func: Any, args: tuple) -> Read:
    assert g.source is not None
    value: Any = None
    detail = g.expected if g.kind == "LACKS" else None
    steps = g.source.path()
    value = args[steps[0].key[0]] if steps[0].kind == "local" else func.__globals__[steps[0].key]
    for step in steps[1:]:
        value = getattr(value, step.key) if step.kind == "attr" else value[step.key]
    return Read(g.source.name(), _USES[g.kind], value, detail)


def _guard_of(check: Check, places: dict[str, Source]) -> Guard:
    if not isinstance(check, Check):
        raise TypeError(f"a guard should be a Check, got {type(check).__name__}")
    if check.name not in places:
        raise ValueError(f"{check!r}: the program read no {check.name!r}; it read {', '.join(places)}")
    names = {"torch": torch, "math": __import__("math"), **vars(builtins)}
    test = eval(f"lambda v: bool({check.test})", names)
    test.__qualname__ = f"<{check.test}>"
    return Guard(asked(places[check.name], test), "EQUALS", True, why=check.test)


# ---- breaks
def split_stage(split: Callable[[types.FunctionType], tuple[Callable, Callable, Callable] | None]) -> Callable:
    """`split(function)` as the capture stage of functions that break: it gives (before, native, after), or None where
    nothing breaks. `before(*args)` gives a tuple, `native(*that)` another, `after(*that)` the result. The first and the
    last are compiled as functions of their own, and the last may be split again; the one between runs as it is."""
    parts: set[types.CodeType] = set()

    def stage(code: types.CodeType, func: Any, args: tuple, *, opts: Any, globals: dict | None = None) -> CaptureResult:
        if code in parts:
            raise Decline("a part of a function that was split before")
        made = split(func)
        if made is None:
            raise Decline("nothing breaks in it")
        before, native, after = made
        parts.add(before.__code__)
        names = ", ".join(code.co_varnames[: len(args)])
        source = f"def entry(__fn, {names}):\n"
        source += f"    __live = __run(__before, {names})\n    __live = __native(*__live)\n"
        source += "    return __run(__after, *__live)\n"
        namespace = {"__run": opts.dispatch, "__before": before, "__native": native, "__after": after}
        where = GraphBreak(
            "split",
            f"{split.__name__} split the function here",
            code.co_filename,
            native.__code__.co_firstlineno,
            function=code.co_qualname,
        )
        return CaptureResult(code, [_state()], source, namespace, None, [where], effects=["the native part"])

    return named_after(split, stage)
