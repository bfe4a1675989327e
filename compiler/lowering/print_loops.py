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
from .templates import Contraction, DropoutAttention
from .lowered import LoweredGraph

__all__ = ["names_of", "print_kernel", "print_lowered", "print_nest", "value_lines", "dtype_name"]

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "and",
    "logical_or": "or",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
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

    def comment(self, v: Value, *more: str) -> str:
        if not self.told:
            return ""
        nodes = self.origins[v.id].union(x for x in more if x) or {v.origin} - {""}
        return f"  # {', '.join(sorted(nodes))}" if nodes else ""

    def of(self, v: Value) -> str:
        return self.text[v.id]

    def operand(self, v: Value) -> str:
        t = self.text[v.id]
        return t if v.id in self.simple else f"({t})"

    def expression(self, v: Value) -> tuple[str, bool]:
        """(text, whether it binds tighter than any operator)."""
        op = v.op
        if op == "load":
            b, e = v.attr
            text = e.py()
            for a in v.args:
                text = _put(text, a, self.of(a))
            return f"{b.name}[{text}]", True
        if op == "index":
            text = v.attr.py()
            for a in v.args:
                text = _put(text, a, self.of(a))
            text = text if v.dtype == torch.int64 else f"{dtype_name(v.dtype)}({text})"
            return text, v.attr.op in ("sym", "int") or v.dtype != torch.int64
        if op == "const":
            # the dtype tells a constant apart where nothing else does: integer and low precision ones
            return (
                repr(v.attr)
                if v.dtype in (torch.float32, torch.int64, torch.bool)
                else f"{dtype_name(v.dtype)}({v.attr!r})"
            ), True
        if op in ("param", "acc"):
            return v.attr, True
        if op == "cast":
            return f"{dtype_name(v.dtype)}{'.round' if v.attr else ''}({self.of(v.args[0])})", True
        if op == "check_index":
            return f"check({self.of(v.args[0])}, below={self.of(v.args[1])}, {v.attr!r})", True
        if op in _INFIX:
            return f"{self.operand(v.args[0])} {_INFIX[op]} {self.operand(v.args[1])}", False
        return f"{op}({', '.join(self.of(a) for a in v.args)})", True


def value_lines(roots: list[Value], names: _Names, indent: str) -> list[str]:
    """Assignments for what `roots` need and has no name yet."""
    order = walk(roots)
    uses: dict[int, int] = {}
    for v in order:
        for a in v.args:
            uses[a.id] = uses.get(a.id, 0) + 1
    for r in roots:
        uses[r.id] = uses.get(r.id, 0) + 1
    lines = []
    indirect = {a.id for v in order if v.op in ("load", "index") for a in v.args}
    for v in order:
        if v.id in names.text:
            continue
        text, simple = names.expression(v)
        if names.told:
            own = () if v.op in ("const", "param", "acc", "index") or not v.origin else (v.origin,)
            names.origins[v.id] = frozenset(own).union(*(names.origins[a.id] for a in v.args))
        trivial = v.op in ("const", "param", "acc") or (v.op == "index" and len(text) < 12)
        if not trivial and (uses[v.id] > 1 or len(text) > 60 or v.id in indirect):
            name = f"v{names.count}"
            names.count += 1
            lines.append(f"{indent}{name} = {text}{names.comment(v)}")
            text, simple = name, True
            names.origins[v.id] = frozenset()
        names.text[v.id] = text
        if simple:
            names.simple.add(v.id)
    return lines


def names_of(k: Kernel, values: dict[str, str]) -> dict[str, str]:
    """Variable of a kernel's generated text -> aten node: its accumulators, and `values`."""
    return {**{a.name: a.origin for st in k.stages for a in st.accs if a.origin}, **values}


def print_kernel(k: Kernel, name: str = "kernel", origins: bool = False) -> str:
    """`origins`: each line ends with the aten nodes that it computes."""

    def arg(b: Buffer) -> str:
        return repr(b)

    args = [arg(b) for b in k.inputs] + [f"{s}: size" for s in k.sizes] + [f"{n}: {dtype_name(d)}" for n, d in k.params]
    lines = [f"kernel {name}({', '.join(args)}) -> {', '.join(arg(b) for b in k.outputs)}"]
    indent = "  "
    for n, a in enumerate(k.outer):
        lines.append(f"{indent}for {a.symbol} in {a.size}{', parallel' if n == 0 else ''}:")
        indent += "  "
    for b in k.locals:
        lines.append(f"{indent}local {b!r}")
    names = _Names(told=origins)
    if k.template is not None:
        t = k.template
        lines += (
            _contraction_lines(t, names, indent) if isinstance(t, Contraction) else _dropout_lines(t, names, indent)
        )
    for st in k.stages:
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
        for s in st.stores:
            at = s.index.py()
            for p in s.positions:
                at = _put(at, p, names.of(p))
            lines.append(f"{inner}{s.buffer.name}[{at}] {_STORE[s.mode]} {names.of(s.value)}{names.comment(s.value)}")
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
    lines = [f"{indent}for {a.symbol} in {a.size}:" for a in (*t.rows, t.keys, t.inner, t.columns)]
    lines += value_lines(t.roots(), names, indent + "  ")
    q, k, v, words, *more = (names.of(x) for x in t.roots())
    f = "gradients of attention" if more else "attention"
    return [
        *lines,
        f"{indent}{', '.join(t.results)} = {f}({', '.join((q, k, v, *more))}) with dropout by {words} ({what})",
    ]


def print_nest(n: LoopNest) -> str:
    lines = []
    indent = ""
    red = {a.symbol.name for a in n.reduce_axes}
    for a in n.domain:
        lines.append(f"{indent}for {a.symbol} in {a.size}{' (reduced)' if a.symbol.name in red else ''}:")
        indent += "  "
    names = _Names()
    lines += value_lines([n.value], names, indent)
    value = names.of(n.value)
    if n.reduce_op:
        value = f"{'running ' if n.scan else ''}{n.reduce_op}({value})"
    lines.append(f"{indent}{n.buffer.name}[{n.index.py()}] {_STORE[n.mode]} {value}")
    return "\n".join(lines)


def print_lowered(g: LoweredGraph) -> str:
    out = ["inputs: " + ", ".join(map(repr, g.inputs))]
    for s in g.steps:
        if isinstance(s, LoopNest):
            out.append(f"# {', '.join(s.origins)} -> {s.buffer!r}\n{print_nest(s)}")
        elif hasattr(s, "base"):
            out.append(f"{s.buffer!r} = view of {s.base.name} at {s.offset}, strides {s.buffer.stride}")
        else:
            outs = ", ".join("_" if b is None else repr(b) for b in s.outputs)
            out.append(f"{outs} = {s.op}{s.args!r}  # {s.reason}")
    out.append("outputs: " + ", ".join(f"{o.kind} {o.value!r}" for o in g.outputs))
    if g.mutations:
        out.append("mutations: " + ", ".join(f"input {i} <- {b.name}" for i, b in g.mutations))
    return "\n".join(out)


# Kernels and lowered graphs show themselves by the functions above.
Kernel.key = lambda k: print_kernel(k)
Kernel.__str__ = lambda k: print_kernel(k, k.name)
LoweredGraph.__str__ = lambda g: print_lowered(g)
