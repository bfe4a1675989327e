"""torch-level graphs as plain JSON values, and back."""
from __future__ import annotations

import keyword
from typing import Any

import torch
import torch.fx

from ..errors import ExportError
from ..graph_modules import graph_module
from ..graph.higher_order import AutogradFunctionCall, CheckpointCall, CondCall, HigherOrderCall, ScanCall, WhileLoopCall
from . import targets
from .values import decode, encode

__all__ = ["encode_graph", "decode_graph"]

_POINTERS = ("cdata",)             # Tensor.new takes an address by this keyword


def encode_graph(module: torch.fx.GraphModule) -> list:
    """One row a node: [kind, name, target, args, kwargs]. Tensors that the graph holds itself are refused: they are its inputs."""
    rows: list[list] = []
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            rows.append([node.op, node.name, None, _argument(node.args) if node.op == "output" else None, {}])
            continue
        if node.op == "call_method":
            targets.check_method(node.target)
            target: Any = node.target
        elif node.op == "call_function":
            target = _operator(node.target) if isinstance(node.target, HigherOrderCall) else targets.name_of(node.target)
        else:
            raise ExportError(f"a {node.op} node cannot be saved in an exported program")
        rows.append([node.op, node.name, target, _argument(node.args), {k: _argument(v) for k, v in node.kwargs.items()}])
    return rows


def _argument(value: Any) -> Any:
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_argument(v) for v in value]}
    if isinstance(value, list):
        return [_argument(v) for v in value]
    if isinstance(value, dict):
        return {"dict": [[encode(k), _argument(v)] for k, v in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_argument(value.start), _argument(value.stop), _argument(value.step)]}
    return encode(value)


def _read_argument(value: Any, nodes: dict[str, torch.fx.Node]) -> Any:
    if isinstance(value, list):
        return [_read_argument(v, nodes) for v in value]
    if isinstance(value, dict) and len(value) == 1:
        (kind, of), = value.items()
        if kind == "node":
            if of not in nodes:
                raise ExportError(f"the file's graph uses {of!r} before it is computed")
            return nodes[of]
        if kind == "tuple":
            return tuple(_read_argument(v, nodes) for v in of)
        if kind == "dict":
            return {decode(k): _read_argument(v, nodes) for k, v in of}
        if kind == "slice":
            return slice(*(_read_argument(v, nodes) for v in of))
    return decode(value)


def decode_graph(rows: list, name: str = "exported") -> torch.fx.GraphModule:
    """The graph of a file: every name, target and argument is checked, since fx writes them into Python text."""
    graph, nodes = torch.fx.Graph(), {}
    for op, label, target, args, kwargs in rows:
        if not (isinstance(label, str) and label.isidentifier() and not keyword.iskeyword(label)):
            raise ExportError(f"the file's graph has a node called {str(label)[:40]!r}")
        if op == "placeholder":
            nodes[label] = graph.placeholder(label)
            continue
        values = _read_argument(args, nodes)
        if op == "output":
            graph.output(values[0])
            continue
        named = {k: _read_argument(v, nodes) for k, v in kwargs.items()}
        if any(not k.isidentifier() or keyword.iskeyword(k) or k in _POINTERS for k in named):
            raise ExportError("the file's graph has a keyword that is no name, or that names memory")
        if op == "call_method":
            targets.check_method(target)
            if not values or not isinstance(values[0], torch.fx.Node):
                raise ExportError(f"the file calls the method {target!r} of what is no tensor")
            nodes[label] = graph.create_node("call_method", target, values, named, name=label)
        elif op == "call_function":
            function: Any = _read_operator(target) if isinstance(target, dict) else targets.function_of(target)
            if function is getattr:
                targets.check_property(values[1] if len(values) > 1 else None)
            nodes[label] = graph.create_node("call_function", function, values, named, name=label)
        else:
            raise ExportError(f"the file's graph has a node of kind {str(op)[:40]!r}")
    return graph_module(graph, name)


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
        raise ExportError(f"torch.func.{call.__name__} cannot be saved in an exported program: export what it is applied to, or its result")
    fields = {name: encode(getattr(call, name)) for name in _KINDS[call.kind][1]}
    return {"kind": call.kind, "name": call.__name__, "bodies": {k: encode_graph(g) for k, g in call.bodies.items()}, "fields": fields}


def _read_operator(data: dict) -> HigherOrderCall:
    kind, name = data.get("kind"), data.get("name")
    if kind not in _KINDS or not isinstance(name, str) or not name.isidentifier():
        raise ExportError(f"the file has an operator of unknown kind {str(kind)[:40]!r}")
    cls, fields = _KINDS[kind]
    bodies = [decode_graph(rows, f"{kind}_{label}") for label, rows in data["bodies"].items() if label.isidentifier()]
    values = [decode(data["fields"][f]) for f in fields]
    named = kind in ("autograd_function", "scan")
    return cls(*([name] if named else []), *bodies, *values)
