"""A graph as a Python function: one line a node, operators as one writes them."""

from __future__ import annotations

import builtins
import importlib
import operator
import textwrap
from typing import Any, Callable, Iterable

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_input, is_method, is_output
from ..base.labels import label
from ..base.quoting import comment, identifier, is_plain_name
from ..errors import ReproduceError
from ..graph.higher_order import HigherOrderCall
from .literals import literal
from .nested_text import nested_call
from .specs import Autocast

__all__ = ["Names", "program_text", "function_name"]

_INFIX: dict[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.matmul: "@",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}
# Where torch's functions are looked for by name; what follows are prefixes that files write.
_HOMES = (
    *("torch", "torch.nn.functional", "torch.linalg", "torch.fft", "torch.special", "torch.functional", "torch.Tensor"),
    *("torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch._C"),
)


class Names:
    """Python names for the nodes of a graph: each its own, none a keyword, a builtin or a module of the file."""

    _TAKEN = frozenset((*dir(builtins), "torch", "operator", "tcompile", "math", "sys", "base64", "zlib", "tensor"))

    def __init__(self) -> None:
        self._names: dict[torch.fx.Node, str] = {}
        self._used: set[str] = set(self._TAKEN)

    def __getitem__(self, node: torch.fx.Node) -> str:
        if node not in self._names:
            base = name = identifier(node.name)
            k = 1
            while name in self._used:
                name, k = f"{base}_{k}", k + 1
            self._used.add(name)
            self._names[node] = name
        return self._names[node]


def program_text(
    graph: torch.fx.Graph, *, name: str = "program", modules: set[str] | None = None, autocast: Autocast = ()
) -> str:
    """`def program(...)` that computes what the graph computes, under `autocast`. `modules` gets the names that the
    file has to import. ReproduceError where a node can't be written."""
    imports: set[str] = set() if modules is None else modules
    bodies: list[str] = []
    text = _function(graph, name, imports, bodies)
    if autocast:
        regions = ", ".join(f"torch.autocast({device!r}, {dtype!r})" for device, dtype in autocast)
        head, _, body = text.partition("\n")
        text = f"{head}\n    with {regions}:\n{textwrap.indent(body, '    ')}"
    return "\n\n\n".join([*bodies, text])


def _function(graph: torch.fx.Graph, name: str, imports: set[str], bodies: list[str]) -> str:
    """One function; those that it gives to operators join `bodies`."""
    names = Names()
    parameters = [names[node] for node in graph.find_nodes(op="placeholder")]
    lines = [f"def {name}({', '.join(parameters)}):"]
    place = None
    for node in graph.nodes:
        if is_input(node):
            continue
        if is_output(node):
            lines.append(f"    return {_value(node.args[0], names, imports)}")
            continue
        text = f"    {names[node]} = {_call(node, names, imports, bodies)}"
        here = _place(node)
        if here and here != place and len(text) < 90:
            text += f"  # {comment(here)}"
        place = here or place
        lines.append(text)
    return "\n".join(lines)


def _place(node: torch.fx.Node) -> str:
    stack = node.meta.get("stack") or ()
    last = stack[-1] if stack else None
    return f"{label(str(last[0]))}:{last[1]}" if isinstance(last, (tuple, list)) and len(last) > 1 else ""


def _value(value: Any, names: Names, imports: set[str]) -> str:
    def named(v: Any) -> str | None:
        if isinstance(v, torch.fx.Node):
            return names[v]
        if callable(v) and not isinstance(v, (torch.dtype, torch.Size)):
            return function_name(v, imports)
        return None

    return literal(value, named)


def _arguments(args: Iterable[Any], kwargs: dict[str, Any], names: Names, imports: set[str]) -> str:
    plain = [_value(arg, names, imports) for arg in args]
    return ", ".join([*plain, *(f"{name}={_value(value, names, imports)}" for name, value in kwargs.items())])


def _call(node: torch.fx.Node, names: Names, imports: set[str], bodies: list[str]) -> str:
    def write(graph: torch.fx.Graph, kind: str) -> str:
        body = _function(graph, name := f"{kind}_{len(bodies)}", imports, bodies)
        bodies.append(body)
        return name

    try:
        if isinstance(node.target, HigherOrderCall):
            return nested_call(node.target, [_value(arg, names, imports) for arg in node.args], write, imports)
        return _call_text(node, names, imports)
    except ReproduceError as e:
        raise ReproduceError(f"the node {node.name} can't be written into a file: {e}") from None


def _call_text(node: torch.fx.Node, names: Names, imports: set[str]) -> str:
    target: Any = node.target
    if is_method(node):
        owner = names[node.args[0]]  # type: ignore[index]
        return f"{owner}.{target}({_arguments(node.args[1:], node.kwargs, names, imports)})"
    if not is_call(node):
        raise ReproduceError(f"a node of kind {node.op}")
    two = len(node.args) == 2 and not node.kwargs
    if two and target in _INFIX:
        a, b = (_value(arg, names, imports) for arg in node.args)
        return f"{a} {_INFIX[target]} {b}" if not a.startswith("-") else f"({a}) {_INFIX[target]} {b}"
    if two and target is operator.getitem:
        return f"{_value(node.args[0], names, imports)}[{_value(node.args[1], names, imports)}]"
    if two and target is getattr and isinstance(node.args[1], str) and is_plain_name(node.args[1]):
        return f"{_value(node.args[0], names, imports)}.{node.args[1]}"
    return f"{function_name(target, imports)}({_arguments(node.args, node.kwargs, names, imports)})"


def function_name(target: Callable, imports: set[str]) -> str:
    """The dotted name that leads to the very object; the module to import for it joins `imports`."""
    if isinstance(target, torch._ops.OpOverload):
        space, _, base = target._schema.name.partition("::")
        _import_of_operators(space)
        return f"torch.ops.{space}.{base}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{target._qualified_op_name.replace('::', '.')}"
    name = getattr(target, "__name__", "")
    if getattr(builtins, name, None) is target:
        return name
    if getattr(operator, name, None) is target:
        imports.add("operator")
        return f"operator.{name}"
    for home in _HOMES:
        for alias in (name, f"_{name}", name.removeprefix("_")):
            if alias and _at(f"{home}.{alias}") is target:
                return f"{home}.{alias}"
    module, path = getattr(target, "__module__", "") or "", getattr(target, "__qualname__", name)
    if module and module != "__main__" and "<locals>" not in path:
        try:
            importlib.import_module(module)
        except ImportError:
            pass
        else:
            if _at(f"{module}.{path}", module) is target:
                imports.add(module)
                return f"{module}.{path}"
    raise ReproduceError(f"{path or target!r} has no name by which another process finds it")


def _import_of_operators(space: str) -> None:
    if space not in _SPACES:
        raise ReproduceError(f"the operators of {space!r} are known in this process alone; name their module in setup=")


# Namespaces of operators that torch itself defines.
_SPACES = frozenset(("aten", "prims", "prim", "mkldnn", "quantized", "torchvision", "inductor", "_c10d_functional"))


def _at(path: str, module: str = "torch") -> Any:
    value: Any = importlib.import_module(module)
    for part in path[len(module) + 1 :].split("."):
        value = getattr(value, part, None)
    return value
