"""torch-level graphs as plain JSON values, and back."""

from __future__ import annotations

from typing import Any, Collection, Sequence

import torch
import torch.fx

from ..errors import ExportError
from ..base.fx_nodes import is_call, is_input, is_method, is_output
from ..base.fx_modules import graph_module
from ..base.quoting import is_plain_name
from ..graph.higher_order import (
    AutogradFunctionCall,
    CheckpointCall,
    CondCall,
    HigherOrderCall,
    ScanCall,
    WhileLoopCall,
)
from . import safe_targets
from .arithmetic import EITHER, OTHER, SEVERAL, SIZE, TENSOR, Kind, check_windows, kind_of, kind_of_call
from .checked import CHECKED, div
from .safe_operators import NATIVE_SEVERAL, base_name, check_sizes
from .value_json import decode, distinct, encode

__all__ = ["encode_graph", "decode_graph", "check_name", "custom_operators", "sets_modes"]

_RESERVED = frozenset(("self",))  # the first parameter of the text that fx writes
_LONGEST_NAME = 512
_MOST_NODES = 1 << 16
_MOST_BODIES = 1 << 13


def encode_graph(module: torch.fx.GraphModule) -> list:
    """One row a node: [kind, name, target, args, kwargs]. Tensors that the graph holds itself are refused: they are its
    inputs.
    """
    rows: list[list] = []
    for node in module.graph.nodes:
        if is_input(node) or is_output(node):
            rows.append([node.op, node.name, None, _argument(node.args) if is_output(node) else None, {}])
            continue
        if is_method(node):
            safe_targets.check_method(node.target)
            target: Any = node.target
        elif is_call(node):
            target = (
                _operator(node.target)
                if isinstance(node.target, HigherOrderCall)
                else safe_targets.name_of(node.target)
            )
        else:
            raise ExportError(f"a {node.op} node cannot be saved in an exported program")
        rows.append(
            [
                node.op,
                node.name,
                target,
                _argument(node.args),
                {name: _argument(value) for name, value in node.kwargs.items()},
            ]
        )
    return rows


def _argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_argument(item) for item in value]}
    if isinstance(value, list):
        return [_argument(item) for item in value]
    if isinstance(value, dict):
        return {"dict": [[encode(key), _argument(item)] for key, item in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_argument(value.start), _argument(value.stop), _argument(value.step)]}
    return encode(value)


def _read_argument(value: Any, nodes: dict[str, torch.fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read_argument(item, nodes) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, of),) = value.items()
        if kind == "node":
            if of not in nodes:
                raise ExportError(f"the file's graph uses {of!r} before it is computed")
            return nodes[of]
        if kind == "tuple":
            return tuple(_read_argument(v, nodes) for v in of)
        if kind == "dict":
            return dict(zip(distinct([decode(k) for k, _ in of]), [_read_argument(v, nodes) for _, v in of]))
        if kind == "slice":
            return slice(*(_read_argument(v, nodes) for v in of))
    return decode(value)


def check_name(name: Any) -> str:
    """A name that stands in Python text: an identifier, no keyword and none of fx's own."""
    if not (isinstance(name, str) and len(name) <= _LONGEST_NAME and is_plain_name(name)) or name in _RESERVED:
        raise ExportError(f"the file has a node called {str(name)[:40]!a}")
    return name


def decode_graph(
    rows: Any,
    operands: Sequence[Kind],
    name: str = "exported",
    allowed: Collection[str] = (),
    plain: Collection[int] = (),
) -> torch.fx.GraphModule:
    """The graph of a file: every name, target and argument is checked, since fx writes them into Python text.
    `operands`: the kinds of what its placeholders get. `allowed`: custom operators that it may call. `plain`: the
    placeholders whose `.data` it may read.
    """
    _check_extent(rows)
    return _Reader(operands, allowed, plain).graph_module(rows, name)


def _check_extent(rows: Any) -> None:
    """That the graph and the bodies in it have no more nodes than fx writes text of in a minute."""
    nodes, bodies, later = 0, 0, [rows]
    while later:
        body = later.pop()
        nodes, bodies = nodes + len(body) if isinstance(body, list) else nodes, bodies + 1
        for row in body if isinstance(body, list) else ():
            inner = row[2].get("bodies") if isinstance(row, list) and row[2:] and isinstance(row[2], dict) else None
            later.extend(inner.values() if isinstance(inner, dict) else ())
    if nodes > _MOST_NODES or bodies > _MOST_BODIES:
        raise ExportError(f"the file's graph has {nodes} nodes in {bodies} bodies, which is too many")


class _Reader:
    """Makes the nodes of one graph, row by row, and knows their kinds."""

    def __init__(self, operands: Sequence[Kind], allowed: Collection[str], plain: Collection[int]):
        self.graph = torch.fx.Graph()
        self.nodes: dict[str, torch.fx.Node] = {}
        self.kinds: dict[torch.fx.Node, Kind] = {}
        self.operands, self.allowed, self.plain = operands, allowed, plain
        self.inputs: list[torch.fx.Node] = []
        self.data: set[torch.fx.Node] = set()  # whose `.data` may be read
        self.results: list[Any] = []

    def graph_module(self, rows: Any, name: str) -> torch.fx.GraphModule:
        if not isinstance(rows, list) or not rows:
            raise ExportError("the file's graph has no rows")
        for k, row in enumerate(rows):
            if not isinstance(row, list) or len(row) != 5:
                raise ExportError(
                    f"row {k} of the file's graph is not a kind, a name, a target, arguments and keywords"
                )
            op, label, target, args, kwargs = row
            if (op == "output") != (k == len(rows) - 1):
                raise ExportError("the file's graph does not end with its output")
            if check_name(label) in self.nodes:
                raise ExportError(f"the file's graph has two nodes called {label!r}")
            if op == "placeholder":
                self._placeholder(label)
            elif op == "output":
                self._output(args)
            elif op in ("call_method", "call_function"):
                self._call(op, label, target, args, kwargs)
            else:
                raise ExportError(f"the file's graph has a node of kind {str(op)[:40]!a}")
        if len(self.operands) != len(self.inputs):
            raise ExportError("the file's graph and its inputs do not fit each other")
        made = graph_module(self.graph, name)
        made.meta["kinds"] = [kind_of(result, self.kinds) for result in self.results]
        return made

    def _add(self, label: str, node: torch.fx.Node, kind: Kind) -> None:
        if node.name != label:
            raise ExportError(f"the file has a node called {label!r}, which Python text of a graph cannot have")
        self.nodes[label], self.kinds[node] = node, kind

    def _placeholder(self, label: str) -> None:
        k = len(self.inputs)
        if k != len(self.nodes):
            raise ExportError("the file's graph takes an input behind its first call")
        node = self.graph.placeholder(label)
        self.inputs.append(node)
        if k in self.plain:
            self.data.add(node)
        self._add(label, node, self.operands[k] if k < len(self.operands) else OTHER)

    def _output(self, args: Any) -> None:
        values = _read_argument(args, self.nodes)
        if not isinstance(values, tuple) or len(values) != 1 or not isinstance(values[0], (tuple, list)):
            raise ExportError("the file's graph has an output that is not a tuple")
        self.results = list(values[0])
        self.graph.output(values[0])

    def _call(self, op: str, label: str, target: Any, args: Any, kwargs: Any) -> None:
        values = _read_argument(args, self.nodes)
        if not isinstance(values, tuple) or not isinstance(kwargs, dict):
            raise ExportError(f"the file's graph calls {label} with invalid arguments")
        named = {key: _read_argument(value, self.nodes) for key, value in kwargs.items()}
        safe_targets.check_keywords(named)
        first = kind_of(values[0], self.kinds) if values else OTHER
        if isinstance(target, dict) and op == "call_function":
            call: Any
            call, kind = _read_operator(target, [kind_of(value, self.kinds) for value in values], self.allowed)
            if named:
                raise ExportError(f"the file calls an operator with keywords: {label}")
            return self._add(label, self.graph.create_node(op, call, values, named, name=label), kind)
        if op == "call_method":
            safe_targets.check_method(target)
            if first.name not in (TENSOR.name, EITHER.name) or not isinstance(values[0], torch.fx.Node):
                raise ExportError(f"the file calls the method {target!r} of something that is not a tensor")
            called, name = target, target
        else:
            called = safe_targets.function_of(target, self.allowed)
            name = target.rpartition(":")[2].partition(".")[0]
        if called is getattr:
            safe_targets.check_property(values[1] if len(values) == 2 and not named else None)
            if first.name not in (TENSOR.name, EITHER.name):
                raise ExportError("the file reads a tensor property of something that is not a tensor")
            if values[1] == "data" and values[0] not in self.data:
                raise ExportError("the file reads the data of what is not an argument or state of floating dtype")
            kind = SIZE if values[1] == "shape" else first
        elif safe_targets.is_mode(called):
            safe_targets.check_mode(called, values, named)
            kind = OTHER
        else:
            safe_targets.check_enumerations(called, values, named)
            kind = kind_of_call(name, values, named, self.kinds)
            if base_name(name) in NATIVE_SEVERAL and not str(target).startswith("torch.nn.functional:"):
                kind = SEVERAL
            check_sizes(name, values, named)
            check_windows(name, values, named, self.kinds)
            op, called = _with_checks(op, called, name, named)
        self._add(label, self.graph.create_node(op, called, values, named, name=label), kind)


def _with_checks(op: str, called: Any, name: str, named: dict) -> tuple[str, Any]:
    """The call with what torch does not check itself (`checked.py`)."""
    if base_name(name) in ("div", "divide"):
        if named.get("rounding_mode") in (None, "floor"):
            return op, called
        if (
            name not in ("div", "divide")
            or set(named) != {"rounding_mode"}
            or isinstance(called, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
        ):
            raise ExportError(
                f"the file calls {name} with rounding_mode {str(named['rounding_mode'])[:40]!a} in place or of"
                " aten's own"
            )
        return "call_function", div
    plain = base_name(name).removeprefix("_")
    if called not in CHECKED and any(plain == checked.__name__.removeprefix("_") for checked in CHECKED.values()):
        raise ExportError(f"the file calls {name} in a form without checks")
    return op, called if isinstance(called, str) else CHECKED.get(called, called)


# --- operators whose operands are graphs
_KINDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "autograd_function": (AutogradFunctionCall, ("n_results", "has_grad", "non_differentiable", "dirty", "once")),
    "checkpoint": (CheckpointCall, ("reentrant", "preserve_rng_state")),
    "cond": (CondCall, ()),
    "while_loop": (WhileLoopCall, ("n_carried",)),
    "scan": (ScanCall, ("n_carried", "n_sequences", "reverse")),
}


def _operator(call: HigherOrderCall) -> dict:
    if call.kind not in _KINDS:
        raise ExportError(
            f"torch.func.{call.__name__} cannot be saved in an exported program: export what it is applied to, or its"
            " result"
        )
    fields = {name: encode(getattr(call, name)) for name in _KINDS[call.kind][1]}
    return {
        "kind": call.kind,
        "name": call.__name__,
        "bodies": {key: encode_graph(body) for key, body in call.bodies.items()},
        "fields": fields,
    }


# Of each: the bodies, and the kinds of what they get, given those of the operands and the fields.
_BODIES: dict[str, tuple[str, ...]] = {
    "autograd_function": ("forward", "backward"),
    "checkpoint": ("body",),
    "cond": ("true", "false"),
    "while_loop": ("condition", "step"),
    "scan": ("step",),
}
# Fields are flags, counts, or lists of them.
_FIELDS: dict[str, type] = {
    "n_results": int,
    "n_carried": int,
    "n_sequences": int,
    "once": bool,
    "reentrant": bool,
    "preserve_rng_state": bool,
    "reverse": bool,
}
_LISTS: dict[str, type] = {"has_grad": bool, "non_differentiable": int, "dirty": int}


def _field(name: str, value: Any, most: int) -> Any:
    """A field, checked: numbers count operands or results, of which there are at most `most`."""
    kind = _FIELDS.get(name)
    values: list[Any] = [value] if kind is not None else [*value] if isinstance(value, (list, tuple)) else [None]
    wanted: type = kind or _LISTS[name]
    if any(type(item) is not wanted for item in values) or not all(0 <= item <= most for item in values):
        raise ExportError(f"the file has an operator whose {name} is {str(value)[:40]!a}")
    return value


def _read_operator(data: dict, operands: list[Kind], allowed: Collection[str]) -> tuple[HigherOrderCall, Kind]:
    kind, name = data.get("kind"), data.get("name")
    if not isinstance(kind, str) or kind not in _KINDS or set(data) != {"kind", "name", "bodies", "fields"}:
        raise ExportError(f"the file has an operator of unknown kind {str(kind)[:40]!a}")
    cls, fields = _KINDS[kind]
    check_name(name)
    rows, given = data["bodies"], data["fields"]
    if (
        not isinstance(rows, dict)
        or list(rows) != list(_BODIES[kind])
        or not isinstance(given, dict)
        or set(given) != set(fields)
    ):
        raise ExportError(f"the file has a {kind} without its bodies and fields")
    count = max(len(rows[_BODIES[kind][0]]) if isinstance(rows[_BODIES[kind][0]], list) else 0, len(operands))
    values = {field: _field(field, decode(given[field]), count) for field in fields}

    def body(label: str, kinds: list[Kind]) -> torch.fx.GraphModule:
        return decode_graph(rows[label], kinds, f"{kind}_{label}", allowed)

    if kind == "autograd_function":
        forward = body("forward", operands)
        kept = forward.meta["kinds"][values["n_results"] :]
        bodies = [forward, body("backward", [TENSOR] * values["n_results"] + kept)]
    else:
        bodies = [body(label, operands[1:] if kind == "cond" else operands) for label in _BODIES[kind]]
    named = kind in ("autograd_function", "scan")
    gives = (
        SEVERAL if all(k is TENSOR for k in bodies[0 if kind == "autograd_function" else -1].meta["kinds"]) else OTHER
    )
    return cls(*([name] if named else []), *bodies, *values.values()), gives


def custom_operators(rows: list) -> set[str]:
    """The operators beyond torch's that rows of a graph call."""
    found: set[str] = set()
    for row in rows:
        if isinstance(row[2], dict):
            found.update(*[custom_operators(body) for body in row[2]["bodies"].values()])
        elif isinstance(row[2], str) and row[2].startswith("ops:"):
            found.add(row[2][4:].partition(".")[0])
    return {name for name in found if not name.startswith("aten::")}


def sets_modes(module: torch.fx.GraphModule) -> bool:
    """Whether the graph or a body of it sets a mode of the process: gradients or autocast."""
    return any(
        safe_targets.is_mode(node.target)
        or isinstance(node.target, HigherOrderCall)
        and any(sets_modes(body) for body in node.target.bodies.values())
        for node in module.graph.nodes
        if is_call(node)
    )
