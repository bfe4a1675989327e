"""What follows a matrix product, as CUDA C++ on the two neighbouring elements of a row that a thread holds in one word.

Everything is computed in float32 for a result of 16 bits, by the short forms of hopper.py. `NotPrintable` says what this file has no form for: such
kernels are Triton's.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...lowering.ir import Axis, Store, Value
from ...lowering.rewrite import tidy
from ...symbolic.expr import ONE, Expr, as_expr, symbol
from ..gelu import gelu, plus_one
from ..triton.layout import numel

__all__ = ["Epilogue", "NotPrintable"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_INFIX = {"add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "logical_and": "&&", "logical_or": "||"}
_CALLS = {"sqrt": "sqrtf", "rsqrt": "rsqrtf", "abs": "fabsf", "exp2": "exp2_", "sigmoid": "sigmoid", "tanh": "tanh_", "maximum": "maximum", "minimum": "minimum"}
_OWN = frozenset(("exp2_", "sigmoid", "tanh_", "maximum", "minimum"))


class NotPrintable(Exception):
    """The kernel holds what has no form here."""


@dataclass(frozen=True)
class Pair:
    """The texts of a value for both elements; `of_row`: whether it varies from row to row."""
    first: str
    second: str
    of_row: bool


class Epilogue:
    """The statements for what is stored. In scope are `column` (of the first element), `row`, and the product as `v0` and `v1`.
    `by_column`: statements that rows do not matter to; `inside`: the others; `results`: the pair of each store; `functions`: names of hopper.FUNCTIONS.
    `staged`: the store that is not written here, but by the copy engine; `guard`: where the elements may lie outside of the result."""

    def __init__(self, stores: list[Store], rows: tuple[Axis, ...], columns: tuple[Axis, ...], dtype: torch.dtype, acc: str, guard: str,
                 staged: Store | None) -> None:
        self.by_column: list[str] = []
        self.inside: list[str] = []
        self.functions: dict[str, None] = {}
        self.dtype, self.acc, self.guard = dtype, acc, guard
        self.ranges = {"row": (0, numel(rows)), "column": (0, numel(columns))}
        self.places = {**_parts("row", rows), **_parts("column", columns)}
        self.known: dict[int, Pair] = {}
        self.results = [self._value(s.value) for s in stores]
        for s, x in zip(stores, self.results):
            if s is not staged:
                self._store(s, x)

    def _value(self, v: Value) -> Pair:
        x = self.known.get(v.id)
        if x is None:
            x = self.known[v.id] = self._statement(v)
        return x

    def _let(self, v: Value, texts: tuple[str, str], of_row: bool) -> Pair:
        name = f"x{len(self.by_column) + len(self.inside)}"
        kind = "bool" if v.dtype is torch.bool else "float"
        (self.inside if of_row else self.by_column).append(f"{kind} {name}_0 = {texts[0]}, {name}_1 = {texts[1]};")
        return Pair(f"{name}_0", f"{name}_1", of_row)

    def _function(self, v: Value, name: str, *args: Pair) -> Pair:
        if name in _OWN or name in ("gelu", "erf_plus_1", "tanh_plus_1", "reciprocal"):
            self.functions[name] = None
        texts = [f"{name}({', '.join(side)})" for side in (tuple(a.first for a in args), tuple(a.second for a in args))]
        return self._let(v, (texts[0], texts[1]), any(a.of_row for a in args))

    def _statement(self, v: Value) -> Pair:
        if v.op == "const" and v.dtype in FLOATS:
            text = _literal(v.attr)
            return Pair(text, text, False)
        if v.op == "acc" and v.attr == self.acc:
            return Pair("v0", "v1", True)
        if v.op == "load":
            return self._load(v)
        if v.dtype not in FLOATS and v.dtype is not torch.bool or any(a.dtype not in FLOATS and a.dtype is not torch.bool for a in v.args):
            raise NotPrintable(f"{v.op} of {v.dtype}")
        short = self._short(v)
        if short is not None:
            return short
        args = [self._value(a) for a in v.args]
        if v.op == "cast":
            return self._cast(v, args[0])
        of_row = any(a.of_row for a in args)
        if v.dtype in (torch.float16, torch.bfloat16) and v.op not in ("where", "maximum", "minimum", "relu", "neg", "abs"):
            raise NotPrintable(f"{v.op} rounded to {v.dtype}")
        if v.op in _INFIX:
            a, b = args
            return self._let(v, (f"{a.first} {_INFIX[v.op]} {b.first}", f"{a.second} {_INFIX[v.op]} {b.second}"), of_row)
        if v.op == "div":
            a, b = args
            return self._let(v, (f"{a.first} / {b.first}", f"{a.second} / {b.second}"), of_row)
        if v.op == "neg":
            return self._let(v, (f"-{args[0].first}", f"-{args[0].second}"), of_row)
        if v.op == "square":
            return self._let(v, (f"{args[0].first} * {args[0].first}", f"{args[0].second} * {args[0].second}"), of_row)
        if v.op == "relu":
            a, = args
            return self._let(v, (f"{a.first} < 0 ? 0.0f : {a.first}", f"{a.second} < 0 ? 0.0f : {a.second}"), of_row)
        if v.op == "where":
            c, a, b = args
            return self._let(v, (f"{c.first} ? {a.first} : {b.first}", f"{c.second} ? {a.second} : {b.second}"), of_row)
        if v.op == "exp":
            scaled = self._let(v, (f"{args[0].first} * 1.44269504f", f"{args[0].second} * 1.44269504f"), of_row)
            return self._function(v, "exp2_", scaled)
        if v.op in _CALLS:
            return self._function(v, _CALLS[v.op], *args)
        raise NotPrintable(v.op)

    def _cast(self, v: Value, x: Pair) -> Pair:
        source = v.args[0]
        if source.dtype is torch.bool:
            return self._let(v, (f"{x.first} ? 1.0f : 0.0f", f"{x.second} ? 1.0f : 0.0f"), x.of_row)
        if v.dtype not in FLOATS:
            raise NotPrintable(f"a cast to {v.dtype}")
        if v.dtype is torch.float32 or v.dtype is source.dtype or source.op == "acc" and v.dtype is self.dtype:      # (the product is held rounded)
            return x
        if v.dtype is not self.dtype:
            raise NotPrintable(f"a cast to {v.dtype} beside a product of {self.dtype}")
        word = self._let(v, (f"low_half(pack({x.first}, 0.0f))", f"low_half(pack({x.second}, 0.0f))"), x.of_row)
        return word

    # ---- short forms
    def _short(self, v: Value) -> Pair | None:
        x = gelu(v)
        if x is not None:
            return self._function(v, "gelu", self._value(x))
        plus = plus_one(v)
        if plus is not None:
            return self._function(v, f"{plus[0]}_plus_1", self._value(plus[1]))
        if v.op == "div" and v.args[1].op == "add" and {a.op for a in v.args[1].args} == {"exp", "const"} and _constant(v.args[1]) == 1:
            a, b = (self._value(x) for x in v.args)                     # (the divisor is 1 or more)
            r = self._function(v.args[1], "reciprocal", b)
            return self._let(v, (f"{a.first} * {r.first}", f"{a.second} * {r.second}"), a.of_row or b.of_row)
        return None

    # ---- memory
    def _store(self, s: Store, x: Pair) -> None:
        """Written from registers: four threads have 32 bytes of float32 side by side."""
        b = s.buffer
        if s.mode != "set" or s.positions or b.dtype not in (torch.float32, self.dtype) or s.index.symbol_names() - self.places.keys():
            raise NotPrintable(f"a store to {b.name}")
        e = tidy(s.index.subs(self.places), self.ranges)
        text = e.c()
        if not _is_pair(e) or "tc_" in text:
            raise NotPrintable(f"a store at {text}")
        wide = b.dtype is torch.float32
        to = f"*({'float2' if wide else 'u32'} *)({b.name} + ({text}))"
        self.inside.append(f"{f'if ({self.guard} && row < M) ' if self.guard else ''}{to} = {f'make_float2({x.first}, {x.second})' if wide else f'pack({x.first}, {x.second})'};")

    def _load(self, v: Value) -> Pair:
        buffer, e = v.attr
        if v.args or buffer.repeats or buffer.dtype not in (torch.float32, self.dtype) or e.symbol_names() - self.places.keys():
            raise NotPrintable(f"a load of {buffer.name}")
        e = tidy(e.subs(self.places), self.ranges)
        text = e.c()
        if "tc_" in text:
            raise NotPrintable(f"a load at {text}")
        of_row = "row" in e.symbol_names()
        wide = buffer.dtype is torch.float32
        name, p = f"x{len(self.by_column) + len(self.inside)}", buffer.name
        guard = self.guard + " && row < M" if of_row and self.guard else self.guard
        let = (self.inside if of_row else self.by_column).append
        if not wide and _is_pair(e):
            let(f"u32 {name} = {_guarded(guard, f'*(const u32 *)({p} + ({text}))', '0u')};")
            return Pair(f"low_half({name})", f"high_half({name})", of_row)
        if "column" not in e.symbol_names():
            read = f"{p}[{text}]" if wide else f"low_half({p}[{text}])"
            let(f"float {name} = {_guarded(guard, read, '0.0f')};")
            return Pair(name, name, of_row)
        second = tidy(e.subs({"column": symbol("column") + 1}), self.ranges).c()
        reads = [f"{p}[{t}]" if wide else f"low_half({p}[{t}])" for t in (text, second)]
        let(f"float {name}_0 = {_guarded(guard, reads[0], '0.0f')}, {name}_1 = {_guarded(guard, reads[1], '0.0f')};")
        return Pair(f"{name}_0", f"{name}_1", of_row)


def _guarded(condition: str, text: str, otherwise: str) -> str:
    return f"{condition} ? {text} : {otherwise}" if condition else text


def _is_pair(e: Expr) -> bool:
    """Whether positions of an even column and the next are one aligned word."""
    return e.coeff("column") is ONE and all(c % 2 == 0 or len(atoms) == 1 and atoms[0] is symbol("column") for c, atoms in e.terms())


def _parts(name: str, axes: tuple[Axis, ...]) -> dict[str, Expr]:
    """Each axis from the flat position."""
    out: dict[str, Expr] = {}
    inner: Expr = ONE
    for k, a in enumerate(reversed(axes)):
        flat = symbol(name) // inner
        out[a.symbol.name] = flat % as_expr(a.size) if k < len(axes) - 1 else flat
        inner = inner * as_expr(a.size)
    return out


def _constant(v: Value) -> float | None:
    found = [a.attr for a in v.args if a.op == "const"]
    return found[0] if len(found) == 1 else None


def _literal(x: float) -> str:
    x = float(x)
    if math.isnan(x):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(x):
        return f"__int_as_float({'0x7f800000' if x > 0 else '0xff800000'})"
    return f"({x!r}f)" if x < 0 else f"{x!r}f"
