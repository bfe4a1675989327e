"""Kernels and lowered graphs as pseudo-code, for reports, logs, dumps and tests.

kernel softmax(in0: float32[2048, 2048]) -> out0: float32[2048, 2048]
  for i0 in 2048, parallel:
    for r0 in 2048:
      v0 = in0[2048*i0 + r0]
      acc0 = max(v0)
"""

from __future__ import annotations

import re

import torch

from .ir import Buffer, Kernel, LoopNest, Value, walk
from .primitives import COMPARISONS, INFIX
from .templates import Contraction, DropoutAttention
from .lowered import LoweredGraph

__all__ = ["names_of", "print_kernel", "print_lowered", "print_nest", "value_lines", "dtype_name"]

_INFIX = {
    **INFIX,
    **{op: row.infix for op, row in COMPARISONS.items()},
    **{"div": "/", "logical_and": "and", "logical_or": "or"},
}
_STORE = {"set": "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min=", "rows": "= sum of"}


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _put(text: str, indirect: Value, name: str) -> str:
    return re.sub(rf"\bind{indirect.id}\b", name, text)


class _Names:
    """Text of values; what is used more than once, or is long, gets a name of its own."""

    def __init__(self, count: int = 0, told: bool = False) -> None:
        self.text: dict[int, str] = {}
        self.simple: set[int] = set()
        self.count = count
        self.origins: dict[int, frozenset[str]] = {}  # the nodes that a value's text computes
        self.told = told

    def comment(self, value: Value, *more: str) -> str:
        if not self.told:
            return ""
        nodes = self.origins[value.id].union(x for x in more if x) or {value.origin} - {""}
        return f"  # {', '.join(sorted(nodes))}" if nodes else ""

    def of(self, value: Value) -> str:
        return self.text[value.id]

    def operand(self, value: Value) -> str:
        t = self.text[value.id]
        return t if value.id in self.simple else f"({t})"

    def expression(self, value: Value) -> tuple[str, bool]:
        """(text, whether it binds tighter than any operator)."""
        op = value.op
        if op == "load":
            b, e = value.attr
            text = e.py()
            for arg in value.args:
                text = _put(text, arg, self.of(arg))
            return f"{b.name}[{text}]", True
        if op == "index":
            text = value.attr.py()
            for arg in value.args:
                text = _put(text, arg, self.of(arg))
            text = text if value.dtype == torch.int64 else f"{dtype_name(value.dtype)}({text})"
            return text, value.attr.op in ("sym", "int") or value.dtype != torch.int64
        if op == "const":
            # the dtype tells a constant apart where nothing else does: integer and low precision ones
            return (
                repr(value.attr)
                if value.dtype in (torch.float32, torch.int64, torch.bool)
                else f"{dtype_name(value.dtype)}({value.attr!r})"
            ), True
        if op in ("param", "acc"):
            return value.attr, True
        if op == "cast":
            return f"{dtype_name(value.dtype)}{'.round' if value.attr else ''}({self.of(value.args[0])})", True
        if op == "check_index":
            return f"check({self.of(value.args[0])}, below={self.of(value.args[1])}, {value.attr!r})", True
        if op in _INFIX:
            return f"{self.operand(value.args[0])} {_INFIX[op]} {self.operand(value.args[1])}", False
        return f"{op}({', '.join(self.of(arg) for arg in value.args)})", True


def value_lines(roots: list[Value], names: _Names, indent: str) -> list[str]:
    """Assignments for what `roots` need and has no name yet."""
    order = walk(roots)
    uses: dict[int, int] = {}
    for value in order:
        for arg in value.args:
            uses[arg.id] = uses.get(arg.id, 0) + 1
    for root in roots:
        uses[root.id] = uses.get(root.id, 0) + 1
    lines = []
    indirect = {arg.id for value in order if value.op in ("load", "index") for arg in value.args}
    for value in order:
        if value.id in names.text:
            continue
        text, simple = names.expression(value)
        if names.told:
            own = () if value.op in ("const", "param", "acc", "index") or not value.origin else (value.origin,)
            names.origins[value.id] = frozenset(own).union(*(names.origins[arg.id] for arg in value.args))
        trivial = value.op in ("const", "param", "acc") or (value.op == "index" and len(text) < 12)
        if not trivial and (uses[value.id] > 1 or len(text) > 60 or value.id in indirect):
            name = f"v{names.count}"
            names.count += 1
            lines.append(f"{indent}{name} = {text}{names.comment(value)}")
            text, simple = name, True
            names.origins[value.id] = frozenset()
        names.text[value.id] = text
        if simple:
            names.simple.add(value.id)
    return lines


def names_of(kernel: Kernel, values: dict[str, str]) -> dict[str, str]:
    """Variable of a kernel's generated text -> aten node: its accumulators, and `values`."""
    return {**{acc.name: acc.origin for st in kernel.stages for acc in st.accs if acc.origin}, **values}


def print_kernel(kernel: Kernel, name: str = "kernel", origins: bool = False) -> str:
    """`origins`: each line ends with the aten nodes that it computes."""

    def arg(buffer: Buffer) -> str:
        return repr(buffer)

    args = (
        [arg(b) for b in kernel.inputs]
        + [f"{size}: size" for size in kernel.sizes]
        + [f"{n}: {dtype_name(d)}" for n, d in kernel.params]
    )
    lines = [f"kernel {name}({', '.join(args)}) -> {', '.join(arg(output) for output in kernel.outputs)}"]
    indent = "  "
    for n, a in enumerate(kernel.outer):
        lines.append(f"{indent}for {a.symbol} in {a.size}{', parallel' if n == 0 else ''}:")
        indent += "  "
    for b in kernel.locals:
        lines.append(f"{indent}local {b!r}")
    names = _Names(told=origins)
    if kernel.template is not None:
        template = kernel.template
        lines += (
            _contraction_lines(template, names, indent)
            if isinstance(template, Contraction)
            else _dropout_lines(template, names, indent)
        )
    for st in kernel.stages:
        inner = indent
        for a in st.axes:
            lines.append(f"{inner}for {a.symbol} in {a.size}:")
            inner += "  "
        if st.axes:  # values of one pass are not those of the next
            names = _Names(names.count, origins)
        lines += value_lines(st.roots(), names, inner)
        for a in st.accs:
            lines.append(
                f"{inner}{a.name} = {'running ' if a.running else ''}{a.op}({names.of(a.value)}) as"
                f" {dtype_name(a.dtype)}" + names.comment(a.value, a.origin)
            )
        for store in st.stores:
            at = store.index.py()
            for position in store.positions:
                at = _put(at, position, names.of(position))
            value = names.of(store.value) + names.comment(store.value)
            lines.append(f"{inner}{store.buffer.name}[{at}] {_STORE[store.mode]} {value}")
    return "\n".join(lines)


def _contraction_lines(t: Contraction, names: _Names, indent: str) -> list[str]:
    lines = [f"{indent}for {t.keys.symbol} in {t.keys.size}:"]
    for p in t.products:
        lines += [
            f"{indent}  for {p.inner.symbol} in {p.inner.size}:",
            *value_lines([p.a, p.b], names, indent + "    "),
            f"{indent}    {p.name} = sum({names.of(p.a)} * {names.of(p.b)})",
        ]
    weights = []
    if t.softmax is not None:
        score = t.softmax.score
        lines += value_lines([score], names, indent + "  ")
        lines.append(f"{indent}  top = max({names.of(score)}), total = sum(exp({names.of(score)} - top))")
        weights.append(f"softmax({names.of(score)})")
    for s in t.sums:
        factors = [] if s.factor is None else [s.factor]
        lines += [
            *value_lines(factors, names, indent + "  "),
            f"{indent}  for {s.columns.symbol} in {s.columns.size}:",
            *value_lines([s.c], names, indent + "    "),
        ]
        product = " * ".join([*weights, *map(names.operand, (*factors, s.c))])
        lines.append(f"{indent}    {s.name} = sum({product})" + (f", of no keys {t.softmax.empty}" if weights else ""))
    return lines


def _dropout_lines(t: DropoutAttention, names: _Names, indent: str) -> list[str]:
    what = f"keep={t.keep}{', causal' if t.causal else ''}, scale={t.scale}"
    lines = [f"{indent}for {axis.symbol} in {axis.size}:" for axis in (*t.rows, t.keys, t.inner, t.columns)]
    lines += value_lines(t.roots(), names, indent + "  ")
    q, k, v, words, *more = (names.of(x) for x in t.roots())
    f = "gradients of attention" if more else "attention"
    return [
        *lines,
        f"{indent}{', '.join(t.results)} = {f}({', '.join((q, k, v, *more))}) with dropout by {words} ({what})",
    ]


def print_nest(nest: LoopNest) -> str:
    lines = []
    indent = ""
    red = {axis.symbol.name for axis in nest.reduce_axes}
    for axis in nest.domain:
        lines.append(f"{indent}for {axis.symbol} in {axis.size}{' (reduced)' if axis.symbol.name in red else ''}:")
        indent += "  "
    names = _Names()
    lines += value_lines([nest.value], names, indent)
    value = names.of(nest.value)
    if nest.reduce_op:
        value = f"{'running ' if nest.scan else ''}{nest.reduce_op}({value})"
    lines.append(f"{indent}{nest.buffer.name}[{nest.index.py()}] {_STORE[nest.mode]} {value}")
    return "\n".join(lines)


def print_lowered(lowered: LoweredGraph) -> str:
    out = ["inputs: " + ", ".join(map(repr, lowered.inputs))]
    for step in lowered.steps:
        if isinstance(step, LoopNest):
            out.append(f"# {', '.join(step.origins)} -> {step.buffer!r}\n{print_nest(step)}")
        elif hasattr(step, "base"):
            out.append(f"{step.buffer!r} = view of {step.base.name} at {step.offset}, strides {step.buffer.stride}")
        else:
            outs = ", ".join("_" if output is None else repr(output) for output in step.outputs)
            out.append(f"{outs} = {step.op}{step.args!r}  # {step.reason}")
    out.append("outputs: " + ", ".join(f"{output.kind} {output.value!r}" for output in lowered.outputs))
    if lowered.mutations:
        out.append("mutations: " + ", ".join(f"input {i} <- {buffer.name}" for i, buffer in lowered.mutations))
    return "\n".join(out)


# Kernels and lowered graphs show themselves by the functions above.
Kernel.key = lambda k: print_kernel(k)
Kernel.__str__ = lambda k: print_kernel(k, k.name)
LoweredGraph.__str__ = lambda g: print_lowered(g)
