"""tcompile.export: capture a function or module into an ExportedProgram."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, Mapping, Sequence, cast

import torch
import torch.nn as nn

from .. import stages
from ..backends import resolve
from ..capture.entry.capture import CaptureOptions, capture_frame
from ..capture.entry.result import CaptureResult, SkipFrame
from ..capture.machine.stack_values import ATOMS
from ..errors import ExportError
from ..graph.higher_order import HigherOrderCall
from ..graph.tensor import TraceTensor
from ..guards import source as S
from ..guards.guard import Guard
from ..guards.source import Source
from ..guards.weak import present
from ..marks import dynamic_dims
from ..ops.conjugates import has_bits
from ..symbolic.expr import as_expr
from ..base.quoting import identifier
from ..runtime.dispatch import Dispatcher, disabled
from . import files, value_json  # (files gives programs `save` and `package`)
from .exported_program import ExportedProgram
from .program_calls import Check, Input, path_text

__all__ = ["export"]


def export(
    fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Any = None,
    backend: Any = "tcompile",
) -> ExportedProgram:
    """Capture `fn(*args, **kwargs)` as one graph and give it as a program that runs, saves and loads without its
    source.

    fn        a function, method or nn.Module
    dynamic   which sizes may differ later: {"x": [0]} or {"x": {0: "batch"}} by parameter, or a list of one entry per
              parameter; True for all of
              all tensors, and all int parameters; None for those that mark_dynamic marked. A size asked for that the
              code fixes is an ExportError with the line. Floats stay what they are in the example
    backend   what compiles the program when it is called; as in `compile`

    Raises ExportError where it cannot be one graph without side effects, with the line and the remedy.
    """
    if isinstance(args, torch.Tensor) or not isinstance(args, (tuple, list)):
        raise ExportError(f"export takes the example arguments as a tuple: export(fn, (x,)), got {type(args).__name__}")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ExportError(
            "export takes the example keywords as a dict: export(fn, (x,), {'scale': 2}), got"
            f" {type(kwargs).__name__}"
        )
    backend = resolve(backend)
    function, owner, name = _function_of(fn)
    try:
        bound = _signature(function).bind(*owner, *args, **(kwargs or {}))
    except TypeError as e:
        raise ExportError(f"the example arguments do not fit {name}: {e}") from None
    bound.apply_defaults()
    parameters = _frame_arguments(function, bound)
    seen = _Seen()
    options = CaptureOptions(
        dynamic=True if dynamic is True else None,
        fullgraph=True,
        training=False,
        size_floats=False,
        dynamic_floats=None,  # a program has sizes and ints that vary; floats are checked to be the example's
        graph_name="exported",
        dynamic_dims=_wanted(function, bound, dynamic, len(owner)),
        returned=seen.take,
    )
    with stages.compiling(), disabled():
        try:
            result = capture_frame(function.__code__, function, parameters, opts=options)
        except SkipFrame as skip:
            why = skip.breaks[0] if skip.breaks else None
            raise ExportError(f"{name} cannot be exported: " + (_break_text(why) if why else skip.reason)) from None
    if result.breaks:
        raise ExportError(f"{name} cannot be exported as one graph: {_break_text(result.breaks[0])}")
    code = function.__code__
    spread = (
        code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
        if code.co_flags & inspect.CO_VARKEYWORDS
        else -1
    )
    effects = [effect.words() for effect in seen.effects if not _unseen(effect, seen, spread)]
    if effects:
        raise ExportError(
            f"{name} has side effects that a graph cannot hold: {', '.join(dict.fromkeys(effects))}. Return values"
            " instead."
        )
    return _Builder(name, function, owner, result, seen, backend).program(options)


class _Seen:
    """What export needs of a capture, taken while it is there: capture lets go of everything when it ends."""

    def take(self, machine: Any, value: Any, outputs: list) -> None:
        world = machine.world
        self.value, self.outputs, self.effects = value, list(outputs), list(machine.effects)
        self.reals, self.sources, self.loaded, self.keep = (
            dict(world.reals),
            dict(world.sources),
            dict(world.loaded),
            list(world.keep),
        )
        self.nodes = dict(machine.graph.nodes)


def _unseen(effect: Any, seen: _Seen, spread: int) -> bool:
    """Whether nobody can tell that the effect happened: it is on the frame's own **kwargs (parameter `spread`), or an
    attribute or an item ends as what it was (`self.buffer += x`)."""
    if effect.kind == "method":
        source = seen.sources.get(id(effect.target))
        if source is not None and source.kind == "local" and source.key[0] == spread:
            return True
        if effect.base is not dict or effect.name != "__setitem__" or len(effect.args) != 2:
            return False
        key, value = effect.args
        return isinstance(key, str) and effect.target.get(key, effect) is seen.reals.get(id(value), value)
    if effect.kind == "setattr":
        before = getattr(effect.target, "__dict__", {}).get(effect.name, effect)
        return (
            before is effect.value
            or type(before) is type(effect.value)
            and type(before) in ATOMS
            and before == effect.value
        )
    return False


def _function_of(fn: Any) -> tuple[types.FunctionType, tuple, str]:
    """The Python function, what it is bound to, and its name."""
    original = getattr(type(fn), "__tcompile_original__", None)
    if original is not None:
        fn = original(fn)
    if isinstance(fn, Dispatcher):
        fn = fn.__wrapped__
    if isinstance(fn, nn.Module):

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            return module(*args, **kwargs)

        plain = type(fn).forward
        hooked = any(
            getattr(fn, h, None)
            for h in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        )
        if (
            isinstance(plain, types.FunctionType)
            and not hooked
            and "forward" not in fn.__dict__
            and type(fn).__call__ is nn.Module.__call__
        ):
            return plain, (fn,), type(fn).__name__
        return cast(types.FunctionType, forward), (fn,), type(fn).__name__
    if isinstance(fn, types.MethodType):
        if isinstance(fn.__func__, Dispatcher):
            fn = types.MethodType(fn.__func__.__wrapped__, fn.__self__)
        return cast(types.FunctionType, fn.__func__), (fn.__self__,), fn.__func__.__qualname__
    if isinstance(fn, types.FunctionType):
        return fn, (), fn.__qualname__
    raise ExportError(f"export takes a function or nn.Module, got {type(fn).__name__}")


def _signature(function: types.FunctionType) -> inspect.Signature:
    """Of the frame itself: a decorator's wrapper has its own, whatever it wraps."""
    return inspect.signature(function, follow_wrapped=False)


def _frame_arguments(function: types.FunctionType, bound: inspect.BoundArguments) -> tuple:
    """In the order of co_varnames: positional, keyword-only, then *args and **kwargs."""
    code = function.__code__
    n = code.co_argcount + code.co_kwonlyargcount
    names = list(code.co_varnames[:n])
    parameters = _signature(function).parameters.values()
    rest = [
        param.name
        for kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        for param in parameters
        if param.kind is kind
    ]
    return tuple(bound.arguments[name] for name in (*names, *rest))


def _break_text(b: Any) -> str:
    return f"{b.file}:{b.line}: {b.code.strip()}\n{b.reason}" + (f"\nWhat to do: {b.remedy}" if b.remedy else "")


def _slots(function: types.FunctionType) -> dict[str, int]:
    code = function.__code__
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return {name: i for i, name in enumerate(code.co_varnames[:n])}


def _wanted(
    function: types.FunctionType, bound: inspect.BoundArguments, dynamic: Any, skipped: int
) -> dict[Source, set[int]]:
    """Source of a tensor -> dimensions that shall be symbols."""
    names = list(bound.arguments)[skipped:]
    if isinstance(dynamic, (list, tuple)):
        dynamic = dict(zip(names, dynamic))
    if dynamic is not None and dynamic not in (True, False) and not isinstance(dynamic, Mapping):
        raise ExportError(f"dynamic is True, or a dict such as {{'x': [0]}}, got {type(dynamic).__name__}")
    spec = dict(dynamic) if isinstance(dynamic, Mapping) else {}
    places = _places(function, bound, names)
    for name in spec:
        if name not in places:
            raise ExportError(f"dynamic names {name!r}, which is not a parameter; there are {', '.join(places)}")
    out: dict[Source, set[int]] = {}

    def visit(value: Any, source: Source, wanted: Any) -> None:
        if isinstance(value, torch.Tensor):
            dims = _wanted_dims(value, source, wanted) | (set(dynamic_dims(value)) if dynamic is not False else set())
            if dims:
                out[source] = dims
        elif isinstance(value, (list, tuple)):
            items = wanted if isinstance(wanted, (list, tuple)) else ()
            for i, item in enumerate(value):
                visit(item, S.item(source, i), items[i] if i < len(items) else None)
        elif isinstance(value, dict):
            for key, item in value.items():
                step = S.dict_value(source, key) if type(value) is dict else S.item(source, key)
                visit(item, step, wanted.get(key) if isinstance(wanted, dict) else None)

    for name, (value, source) in places.items():
        visit(value, source, spec.get(name))
    return out


def _places(
    function: types.FunctionType, bound: inspect.BoundArguments, names: list[str]
) -> dict[str, tuple[Any, Source]]:
    """name -> (argument, where it is found): of the parameters `names`, and of each keyword in **kwargs."""
    slots = _slots(function)
    kinds = {param.name: param.kind for param in _signature(function).parameters.values()}
    out: dict[str, tuple[Any, Source]] = {}
    spread = None
    for name in names:
        if kinds[name] is inspect.Parameter.VAR_KEYWORD:
            spread = name
        else:
            out[name] = (bound.arguments[name], S.local(slots[name], name))
    if spread is not None:
        for key, value in bound.arguments[spread].items():
            out[key] = (value, S.dict_value(S.local(slots[spread], spread), key))
    return out


def _wanted_dims(value: torch.Tensor, source: Source, wanted: Any) -> set[int]:
    """The dimensions of a tensor that `wanted` names: one, several, or a dict of them with names (None: not that)."""
    if isinstance(wanted, dict):
        named = [key for key, name in wanted.items() if name is not None]
    elif isinstance(wanted, (list, tuple, set)):
        named = list(wanted)
    else:
        named = [] if wanted is None else [wanted]
    for d in named:
        if not isinstance(d, int) or not -value.dim() <= d < value.dim():
            raise ExportError(
                f"dynamic: dimensions of {source.name()} are from {-value.dim()} to {value.dim() - 1}, got {d!r}"
            )
    return {d % value.dim() for d in named}


class _Builder:
    """From what capture gave to a program."""

    def __init__(
        self, name: str, function: types.FunctionType, owner: tuple, result: CaptureResult, seen: _Seen, backend: Any
    ):
        assert result.graph is not None
        self.name, self.function, self.owner, self.result, self.graph = name, function, owner, result, result.graph
        self.seen, self.value, self.outputs, self.backend = seen, seen.value, seen.outputs, backend
        self.env = result.graph.env
        self.names = self._state_names()
        self.state: dict[str, torch.Tensor] = {}
        self.classes: dict[str, type] = {}

    def _state_names(self) -> dict[int, str]:
        module = self.owner[0] if self.owner and isinstance(self.owner[0], nn.Module) else None
        if module is None:
            return {}
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        return {id(t): name for name, t in reversed(named)}

    # --- inputs
    def is_argument(self, source: Source | None) -> bool:
        """Whether the value is reached from an argument of the call, and not by way of a module."""
        if source is None or source.root.kind != "local" or source.root.key[0] < len(self.owner):
            return False
        return not any(isinstance(self.seen.loaded.get(step), nn.Module) for step in source.path())

    def path(self, source: Source | None) -> list:
        assert source is not None
        steps: list = [source.root.key[1]]
        for step in source.path()[1:]:
            if step.kind not in ("attr", "item", "dict"):
                raise ExportError(
                    f"{self.name} reads {source.name()}, which an exported program cannot find in its arguments"
                )
            steps.append([{"dict": "item"}.get(step.kind, step.kind), step.key])
        return steps

    def add_state(self, tensor: torch.Tensor, source: Source | None) -> str:
        name = self.names.get(id(tensor))
        if name is None:
            base = identifier(source.name() if source is not None else "constant").strip("_") or "constant"
            name = f"constants.{base if base[0].isalpha() else 'c' + base}"
            while name in self.state:
                name += "_"
            self.names[id(tensor)] = name
        self.state[name] = tensor
        return name

    def inputs(self) -> list[Input]:
        out = []
        for i, example in zip(self.graph.inputs, self.graph.example_inputs):
            source = i.source
            if i.kind == "tensor" and isinstance(example, torch.Tensor):
                if self.is_argument(source):
                    out.append(Input(i.name, "argument", self.path(source)))
                else:
                    out.append(Input(i.name, "state", key=self.add_state(example, source)))
            else:
                symbol = next((key for key, where in self.env.sources.items() if where is source), None)
                if symbol is not None:
                    out.append(Input(i.name, "size", key=symbol))
                elif self.is_argument(source):
                    out.append(Input(i.name, "number", self.path(source)))
                else:
                    raise ExportError(
                        f"{self.name} uses the number {source.name() if source else i.name}, which is not an argument"
                    )
        return out

    # --- guards
    def checks(self) -> list[Check]:
        out: list[Check] = []
        for guard in self.result.guards:
            out.extend(self._check(guard))
        order = {"type": 0, "tensor": 1, "int": 1, "sizes": 3}
        return sorted(
            out,
            key=lambda c: (order.get(c.kind, 2) if c.kind == "sizes" else min(order.get(c.kind, 1), 1), len(c.path)),
        )

    def _check(self, guard: Guard) -> list[Check]:
        where = f"{guard.file}:{guard.line}" if guard.file else ""
        if guard.kind == "PREDICATE":
            return [Check("sizes", [], value_json.encode_expr(guard.expected), where)]
        if guard.kind in ("NO_OVERLAP", "NO_ALIAS"):
            written = len(guard.expected) if guard.written is None else guard.written
            paths = [(self.path(s), k < written) for k, s in enumerate(guard.expected) if self.is_argument(s)]
            return [
                Check("apart", a, b, where)
                for n, (a, changes) in enumerate(paths)
                for b, changes_too in paths[:n]
                if changes or changes_too
            ]
        if not self.is_argument(guard.source):
            return []
        path = self.path(guard.source)
        if guard.kind == "TENSOR":
            spec = guard.expected
            shape = [value_json.encode_expr(size) for size in spec.shape]
            return [
                Check(
                    "tensor",
                    path,
                    {
                        "dtype": str(spec.dtype),
                        "device": spec.device.type,
                        "requires_grad": bool(spec.requires_grad),
                        "shape": shape,
                    },
                    where,
                )
            ]
        if guard.kind in ("EQUALS", "ID"):
            return [Check("const", path, value_json.encode(present(guard.expected)), where)]
        if guard.kind == "TYPE":
            wanted = present(guard.expected)
            return [Check("type", path, f"{wanted.__module__}.{wanted.__qualname__}", where)]
        if guard.kind == "LEN":
            return [Check("len", path, guard.expected, where)]
        if guard.kind == "DICT_KEYS":
            return [Check("keys", path, [value_json.encode(k) for k in guard.expected], where)]
        if guard.kind == "INT_SYMBOL":
            return [Check("int", path, next(iter(guard.expected.symbol_names())), where)]
        if guard.kind == "FLOAT":
            return [Check("float", path, None, where)]
        if guard.kind == "ALIAS":
            return [Check("same", path, self.path(guard.expected), where)] if self.is_argument(guard.expected) else []
        if guard.kind in ("HASATTR", "CODE", "CLASS", "FUNCTION", "LACKS"):
            return []  # facts of classes and functions, which the type check stands for
        place = guard.source.name() if guard.source else "its state"
        raise ExportError(
            f"{self.name} relies on {place} in a way ({guard.kind}) that an exported program cannot check"
        )

    # --- result
    def shape(self, value: Any) -> list:
        if isinstance(value, TraceTensor):
            real = self.seen.reals.get(id(value))
            if real is not None:
                source = self.seen.sources[id(real)]
                return (
                    ["argument", self.path(source)]
                    if self.is_argument(source)
                    else ["state", self.add_state(real, source)]
                )
            if has_bits(value):
                raise ExportError(
                    f"{self.name} returns a conjugate or negative view, which a file does not hold: call"
                    " .resolve_conj() or .resolve_neg() on it"
                )
            return [
                "output",
                next(k for k, output in enumerate(self.outputs) if output is value or self._same_node(output, value)),
            ]
        if isinstance(value, torch.SymInt):
            return ["size", value_json.encode_expr(self.env.to_expr(value))]
        if isinstance(value, torch.Tensor):
            return ["state", self.add_state(value, None)]
        if type(value) is list:
            return ["list", [self.shape(item) for item in value]]
        if type(value) is tuple:
            return ["tuple", [self.shape(item) for item in value]]
        if type(value) is dict:
            return ["dict", [[value_json.encode(key), self.shape(item)] for key, item in value.items()]]
        cls = type(value)
        label = f"{cls.__module__}.{cls.__qualname__}"
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            self.classes[label] = cls
            return ["namedtuple", [[field, self.shape(item)] for field, item in zip(cls._fields, value)], label]
        if isinstance(value, dict) or dataclasses.is_dataclass(value):
            fields = (
                list(value.items())
                if isinstance(value, dict)
                else [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
            )
            self.classes[label] = cls
            return ["record", [[str(k), self.shape(v)] for k, v in fields], label]
        try:
            return ["const", value_json.encode(value)]
        except ExportError:
            raise ExportError(
                f"{self.name} returns a {label}; an exported program returns tensors, numbers, strings, and lists,"
                " tuples, dicts and dataclasses of them"
            ) from None

    def _same_node(self, a: Any, b: Any) -> bool:
        nodes = self.seen.nodes
        return isinstance(a, TraceTensor) and nodes.get(id(a)) is nodes.get(id(b)) is not None

    # --- the whole
    def program(self, options: CaptureOptions) -> ExportedProgram:
        self._check_dynamic(options)
        inputs, checks, result = self.inputs(), self.checks(), self.shape(self.value)
        module = self.owner[0] if self.owner and isinstance(self.owner[0], nn.Module) else None
        if module is not None:
            for name, t in (
                *module.named_parameters(remove_duplicate=False),
                *module.named_buffers(remove_duplicate=False),
            ):
                self.state.setdefault(name, t)
        symbols: dict[str, list] = {}
        for symbol, source in self.env.sources.items():
            if source is None:
                continue
            of, dim = (source.base, source.key) if source.kind == "size" else (source, None)
            if self.is_argument(of):
                symbols[symbol] = [self.path(of), dim]
        signature = []
        for parameter in list(_signature(self.function).parameters.values())[len(self.owner) :]:
            signature.append(
                [
                    parameter.name,
                    parameter.kind.name,
                    None if parameter.default is parameter.empty else [parameter.default],
                ]
            )
        matters = any(
            isinstance(node.target, HigherOrderCall) or node.target is torch._C._set_grad_enabled
            for node in self.graph.graph_module.graph.nodes
        )
        program = ExportedProgram(
            name=self.name,
            graph_module=_plain(self.graph.graph_module),
            signature=signature,
            inputs=inputs,
            checks=checks,
            result=result,
            state=self.state,
            parameters=[key for key, value in self.state.items() if isinstance(value, nn.Parameter)],
            symbols=symbols,
            training=bool(module.training) if module is not None else False,
            grad_matters=matters,
            backend=self.backend,
        )
        program.strides = self.strides()
        program.classes, program.hints = self.classes, {symbol: int(self.env.hints[symbol]) for symbol in symbols}
        return program

    def strides(self) -> dict[str, list]:
        """Those of the example's tensors, by argument, where they follow from the sizes."""
        out = {}
        known = {key for key, source in self.env.sources.items() if source is not None and source.kind == "size"}
        for guard in self.result.guards:
            if guard.kind == "TENSOR" and self.is_argument(guard.source):
                encoded = [
                    None if stride is None else value_json.encode_expr(stride) for stride in guard.expected.stride
                ]
                if None not in encoded and known.issuperset(
                    name for stride in guard.expected.stride for name in as_expr(stride).symbol_names()
                ):
                    out[path_text(self.path(guard.source))] = encoded
        return out

    def _check_dynamic(self, options: CaptureOptions) -> None:
        """Sizes that were asked to vary must not have been fixed."""
        for source, dims in options.dynamic_dims.items():
            for dim in dims:
                where = S.size(source, dim)
                symbol = next((key for key, at in self.env.sources.items() if at is where), None)
                if symbol is None:
                    real = next(
                        (
                            example_input
                            for i, example_input in zip(self.graph.inputs, self.graph.example_inputs)
                            if i.source is source
                        ),
                        None,
                    )
                    if isinstance(real, torch.Tensor) and real.shape[dim] < 2:
                        raise ExportError(
                            f"dynamic: dimension {dim} of `{source.name()}` has size {real.shape[dim]} in the example; "
                            "give one of 2 or more"
                        )
                    continue
                fixed = self.env.replace(self.env.to_expr(self.env.wrap(_symbol(symbol))))
                if fixed.is_const:
                    line = next(
                        (f" at {f}:{n}" for expr, f, n, _ in self.env.guards if symbol in expr.symbol_names() and f), ""
                    )
                    raise ExportError(
                        f"dynamic: dimension {dim} of `{source.name()}` cannot vary: the code fixes it to"
                        f" {fixed.value}{line}"
                    )


def _symbol(name: str) -> Any:
    from ..symbolic.expr import symbol

    return symbol(name)


def _plain(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph without what capture knows of it: a program keeps no tensors alive but its state."""
    for node in module.graph.nodes:
        node.meta = {key: value for key, value in node.meta.items() if key in ("stack", "module")}
        if node.name == "self":  # a parameter of that name; in the text of a graph it is the module
            node._rename("self_input")
            node.target = node.name
            module.recompile()
    return module
