"""fx graphs as report nodes: names, operations, shapes, lines, modules. Reads `meta["val"]`, `["stack"]`,
`["module"]`.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Iterable

import torch
import torch.fx

from ..base.labels import cell_number
from ..base.fx_nodes import is_constant, is_input, is_output
from .payload import encode
from .schema import Graph, Node

__all__ = ["nodes_of", "op_name", "meta_text", "modules_of", "own_line", "all_lines", "callers_of", "describe"]

_GRADIENTS = "gradients"
_NO_OPERATION = ("input", "parameter", "output")

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STACK = re.compile(r"(?:(?<=^)|(?<=\.))__stack_\d+_*(?:\.|$)")
_MAX_ARGS = 160  # longest argument text
_PLAIN = frozenset((int, float, bool, str, type(None)))  # their repr says what they are


def op_name(target: Any) -> str:
    """`aten.add.Tensor`, `torch.relu`, `Tensor.view` for anything that a node may call."""
    if isinstance(target, str):
        return f"Tensor.{target}"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = (getattr(target, "__module__", None) or "").removeprefix("_").split(".")[0]
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__name__
    if module in ("torch", "operator", "math"):
        return name if name.startswith("Tensor.") else f"{module}.{name.rsplit('.', 1)[-1]}"
    return str(name)


def nodes_of(
    graph: Any, static: Iterable[str] = (), label: Callable[[str], str] = str, kernel_of: dict[str, int] | None = None
) -> list[Node]:
    """The nodes of a torch.fx.Graph (or of anything with a `.graph`). `static` names the placeholders that are
    parameters or buffers, `label` shortens file names, `kernel_of` maps node names to kernels."""
    graph = getattr(graph, "graph", graph)
    static, kernel_of = set(static), kernel_of or {}
    index: dict[Any, int] = {}
    labels: dict[str, str] = {"": ""}
    modules = modules_of(graph)
    out: list[Node] = []
    for node in graph.nodes:
        inputs: list[int] = []
        args = _arguments(node, index, inputs)
        if is_input(node):
            op = "parameter" if node.name in static else "input"
        elif is_constant(node):
            op, args = "parameter", str(node.target)
        else:
            op = "output" if is_output(node) else op_name(node.target)
        shape, dtype = meta_text(node.meta.get("val"))
        file, line = own_line(node.meta.get("stack"))
        if file not in labels:
            labels[file] = label(file)
        index[node] = len(out)
        out.append(
            Node(
                index=len(out),
                name=node.name,
                op=op,
                inputs=inputs,
                args=args,
                shape=shape,
                dtype=dtype,
                file=labels[file],
                line=line,
                module=modules[node],
                kernel=kernel_of.get(node.name),
                stride=_stride(node.meta.get("val")),
            )
        )
    return out


def modules_of(graph: Any) -> dict[Any, str]:
    """The module that each node is of, without names of capture's own: what lay on the stack at a break has none. What
    a training step does with gradients before an optimizer takes them (it clips them, say) is of `gradients`."""
    out: dict[Any, str] = {}
    for node in graph.nodes:
        module = _STACK.sub("", str(node.meta.get("module") or ""))
        if (
            not module
            and node.op.startswith("call")
            and any(_of_gradients(out[given]) for given in node.all_input_nodes)
        ):
            module = _GRADIENTS
        out[node] = module
    return out


def _of_gradients(module: str) -> bool:
    return module.partition(".")[0] in ("backward", _GRADIENTS)


def own_line(stack: Any) -> tuple[str, int | None]:
    """File and line of the innermost frame outside of torch: the line that a person wrote, `self.linear(x)` rather than
    what is inside of torch.nn.Linear."""
    for frame in reversed(stack or ()):
        if not str(frame[0]).startswith(_TORCH):
            return str(frame[0]), int(frame[1])
    return (str(stack[-1][0]), int(stack[-1][1])) if stack else ("", None)


def all_lines(graph: Any) -> set[tuple[str, int]]:
    """Every (file, line) on the way to an operation of the graph: also the line of a cell that called a library."""
    graph = getattr(graph, "graph", graph)
    return {(str(place[0]), int(place[1])) for node in graph.nodes for place in node.meta.get("stack") or ()}


def callers_of(graph: Any, cell: str, label: Callable[[str], str]) -> list[list]:
    """`[file, line, cell, line of the cell]` for each line outside of the cell that operations come from: who led there
    first."""
    graph = getattr(graph, "graph", graph)
    led: dict[tuple[str, int], int] = {}
    for node in graph.nodes:
        file, line = own_line(node.meta.get("stack"))
        if line is None or label(file) == cell:
            continue
        at = next((int(f[1]) for f in reversed(node.meta.get("stack") or ()) if label(str(f[0])) == cell), None)
        if at is not None:
            led.setdefault((label(file), line), at)
    return [[file, line, cell, at] for (file, line), at in led.items()]


def _arguments(node: torch.fx.Node, index: dict[Any, int], inputs: list[int]) -> str:
    def text(x: Any) -> str:
        if type(x) in _PLAIN:
            return repr(x)
        if isinstance(x, torch.fx.Node):
            if x not in index:
                return x.name
            i = index[x]
            if i not in inputs:
                inputs.append(i)
            return f"%{inputs.index(i)}"
        if isinstance(x, (list, torch.fx.immutable_collections.immutable_list)):
            return "[" + ", ".join(map(text, x)) + "]"
        if isinstance(x, tuple):
            return "(" + ", ".join(map(text, x)) + ("," if len(x) == 1 else "") + ")"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{k!r}: {text(v)}" for k, v in x.items()) + "}"
        if isinstance(x, slice):
            return ":".join("" if v is None else text(v) for v in (x.start, x.stop, x.step))
        if isinstance(x, torch.Tensor):
            return f"tensor{list(x.shape)}"
        return re.sub(r" at 0x[0-9a-f]+", "", repr(x)) if not isinstance(x, torch.dtype) else str(x)

    if is_input(node):
        return ""
    args = node.args[0] if is_output(node) and isinstance(node.args[0], (tuple, list)) else node.args
    parts = [text(arg) for arg in args] + [f"{k}={text(v)}" for k, v in node.kwargs.items()]
    whole = ", ".join(parts)
    return whole if len(whole) <= _MAX_ARGS else whole[: _MAX_ARGS - 1] + "…"


def meta_text(val: Any) -> tuple[list | None, str]:
    """Shape (ints and size expressions as text) and dtype of a node's value; a list of shapes for several results."""
    if isinstance(val, (tuple, list)) and not hasattr(val, "dtype"):
        each = [meta_text(v) for v in val]
        return [s for s, _ in each], ", ".join(dict.fromkeys(d for _, d in each if d))
    shape = getattr(val, "shape", None)
    if shape is None or not hasattr(val, "dtype"):
        return None, type(val).__name__ if isinstance(val, (int, float, bool, torch.SymInt)) else ""
    return [s if type(s) is int else _size_text(s) for s in shape], str(val.dtype).removeprefix("torch.")


def _stride(val: Any) -> list | None:
    """Of one tensor whose elements do not lie in rows one after the other; else None."""
    shape, stride = getattr(val, "shape", None), getattr(val, "stride", None)
    try:
        stride = stride() if callable(stride) else stride
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return None
    if shape is None or stride is None or not len(shape):
        return None
    sizes = [_sized(node) for node in shape]
    rows = [_sized(node) for node in stride]
    if all(type(size) is int for size in (*sizes, *rows)):
        expected = 1
        for size, step in zip(reversed(sizes), reversed(rows)):
            if size != 1 and step != expected:
                return rows
            expected *= size
        return None
    last = next((step for size, step in zip(reversed(sizes), reversed(rows)) if size != 1), 1)
    return rows if last != 1 else None  # of sizes that vary the innermost tells most


def _sized(node: Any) -> Any:
    return node if type(node) is int else _size_text(node)


def _size_text(s: Any) -> str:
    node = getattr(s, "node", None)
    expr = getattr(node, "expr", None)
    return str(expr if expr is not None else s)


def describe(
    graph: Graph, captured: Any, lowered: Any, kernel_of: dict[str, int], file: str, label: Callable[[str], str]
) -> None:
    """The nodes, lines and counts of a graph's row, from what was captured and lowered. `kernel_of` has the kernel of a
    node by its name; those of lines and modules are added."""
    static = {given.name for given in getattr(captured, "inputs", ()) if getattr(given, "static", False)}
    if lowered is not None and not graph.lowered:
        nodes = nodes_of(lowered, static, label, kernel_of)
        graph.lowered = encode(nodes)
        for node in nodes:
            if node.kernel is not None and node.line is not None:
                kernel_of.setdefault(f"{node.file}:{node.line}:{node.module}", node.kernel)
    if captured is not None and not graph.captured:
        module = captured.graph_module
        places = {(label(name), line) for name, line in all_lines(module)}
        graph.lines = sorted([name, line] for name, line in places if cell_number(name) is not None)
        graph.callers = callers_of(module, file, label)
        nodes = nodes_of(module, static, label, kernel_of)
        for node in nodes:
            if node.kernel is None and node.op not in _NO_OPERATION:
                node.kernel = kernel_of.get(f"{node.file}:{node.line}:{node.module}")
        graph.captured = encode(nodes)
        graph.ops = sum(node.op not in _NO_OPERATION for node in nodes)
        graph.outputs = sum(len(node.inputs) for node in nodes if node.op == "output")
    elif lowered is not None and not graph.ops:
        graph.ops = sum(node.op not in _NO_OPERATION for node in graph.lowered.nodes())
