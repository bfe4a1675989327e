"""What follows a matrix product, as CUDA C++ on the two neighbouring elements of a row that a thread holds in one word.

A thread goes through 16 columns at a time, two in each half of them, of two rows. What it reads for them it reads while
the columns before are computed. Truth values of four neighbours, those of a dropout and of a bool tensor, are made by
one of the four lanes that hold a row's columns (philox_words.py).

Everything is computed in float32 for a result of 16 bits, by the short forms of hopper.py. `NotPrintable` says what
this file has no form for: such kernels are Triton's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Mapping, Sequence

import torch

from ...lowering.ir import Axis, Buffer, Store, Value, is_plain_load, numel
from ...lowering.patterns import Same, match, op
from ...lowering.primitives import COMPARISONS, EXACT
from ...lowering.rewrite import tidy
from ...symbolic.expr import ONE, Expr, as_expr, symbol
from ..gelu import derivative, gelu, plus_one

__all__ = ["COLUMN", "FOUR", "ROW", "Epilogue", "NotPrintable"]

# Where a thread is: which row, which columns of two and of four.
ROW = "int row = held_m + thread / 32 * 16 + lane / 4 + 8 * i;"
COLUMN = "int column = held_n + at + 8 * h + lane % 4 * 2;"
FOUR = "int four = held_n + at + lane % 4 * 4;"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_TEXTS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    **{name: f"{{0}} {row.infix} {{1}}" for name, row in COMPARISONS.items()},
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "neg": "-{0}",
    "relu": "{0} < 0 ? 0.0f : {0}",
    "where": "{0} ? {1} : {2}",
}
_CALLS = {
    "sqrt": "sqrtf",
    "rsqrt": "rsqrtf",
    "abs": "fabsf",
    "exp2": "exp2_",
    "sigmoid": "sigmoid",
    "tanh": "tanh_",
    "maximum": "maximum",
    "minimum": "minimum",
}
_OWN = frozenset(("exp2_", "sigmoid", "tanh_", "maximum", "minimum"))
_POLYNOMIALS = frozenset(("gelu", "gelu_derivative", "erf_plus_1"))
_SIGMOID = op("div", Same("number"), op("add", op("exp", Same("power")), 1))


class NotPrintable(Exception):
    """The kernel holds what has no form here."""


@dataclass(frozen=True)
class Pair:
    """The texts of a value for both elements; `of_row`: whether it varies from row to row; `word`: both, as they are
    stored in 16 bits, where that is known.
    """

    first: str
    second: str
    of_row: bool
    word: str = ""

    def packed(self) -> str:
        return self.word or f"pack({self.first}, {self.second})"


class Epilogue:
    """The statements for what is stored. In scope are `h` (which half of the columns), `column` (of the first element),
    `i` (which row), `row`, and the product as `v0` and `v1`. `once`: statements before all tiles; `fields`, `read`,
    `read_fours`: what is read ahead, into `ahead`, by two and by four columns; `first`: statements that read for
    columns alone; `fours`: statements for both rows, where `four` is the first of four columns; `even`, `odd`: what
    follows these by turns; `by_column`: statements that rows do not matter to; `inside`: the others; `results`: the
    pair of each store; `functions`: names of hopper.FUNCTIONS. `staged`: the stores that are not written here, but by
    the copy engine; `guard`: where the elements may lie outside of the result; `rounded`: as of fast_math.rounded_to:
    where polynomials may stand."""

    def __init__(
        self,
        stores: list[Store],
        rows: tuple[Axis, ...],
        columns: tuple[Axis, ...],
        dtype: torch.dtype,
        acc: str,
        guard: str,
        staged: Sequence[Store],
        rounded: Mapping[int, torch.dtype],
    ) -> None:
        self.once: list[str] = []
        self.fields: list[str] = []
        self.first: list[str] = []
        self.read: list[str] = []
        self.read_fours: list[str] = []
        self.fours: list[str] = []
        self.even: list[str] = []
        self.odd: list[str] = []
        self.by_column: list[str] = []
        self.inside: list[str] = []
        self.names = 0
        self.bits: dict[int, str] = {}  # truth values by fours: of both rows, four bits each
        self.functions: dict[str, None] = {}
        self.dtype, self.acc, self.guard, self.rounded = dtype, acc, guard, rounded
        self.ranges = {"row": (0, numel(rows)), "column": (0, numel(columns))}
        self.places = {**_parts("row", rows), **_parts("column", columns)}
        self.known: dict[int, Pair] = {}
        self.results = [self._value(store.value) for store in stores]
        for store, result in zip(stores, self.results):
            if store not in staged:
                self._store(store, result)

    def _value(self, value: Value) -> Pair:
        x = self.known.get(value.id)
        if x is None:
            x = self.known[value.id] = self._statement(value)
        return x

    def _let(self, value: Value, text: str, *args: Pair) -> Pair:
        """A variable for each element, with the text over those of the operands."""
        name, of_row = self._name(), any(arg.of_row for arg in args)
        kind = "bool" if value.dtype is torch.bool else "float"
        first, second = (text.format(*side) for side in zip(*((arg.first, arg.second) for arg in args)))
        (self.inside if of_row else self.by_column).append(f"{kind} {name}_0 = {first}, {name}_1 = {second};")
        return Pair(f"{name}_0", f"{name}_1", of_row)

    def _name(self) -> str:
        self.names += 1
        return f"x{self.names}"

    def _function(self, value: Value, name: str, *args: Pair) -> Pair:
        if name in _POLYNOMIALS and value.id not in self.rounded:
            raise NotPrintable(f"{value.op}, whose digits beyond 16 bits may be seen")
        if name in _OWN or name in _POLYNOMIALS or name in ("tanh_plus_1", "reciprocal"):
            self.functions[name] = None
        return self._let(value, f"{name}({', '.join(f'{{{k}}}' for k in range(len(args)))})", *args)

    def _statement(self, value: Value) -> Pair:
        if value.is_const and value.dtype in FLOATS:
            text = _literal(value.attr)
            return Pair(text, text, False)
        if value.is_accumulator and value.attr == self.acc:
            return Pair("v0", "v1", True)
        if value.is_load and value.dtype is torch.bool or value.op == "lt" and value.args[0].op == "philox":
            return self._truth(value)
        if value.is_load:
            return self._load(value)
        if (
            value.dtype not in FLOATS
            and value.dtype is not torch.bool
            or any(arg.dtype not in FLOATS and arg.dtype is not torch.bool for arg in value.args)
        ):
            raise NotPrintable(f"{value.op} of {value.dtype}")
        short = self._short(value)
        if short is not None:
            return short
        args = [self._value(arg) for arg in value.args]
        if value.is_cast:
            return self._cast(value, args[0])
        if value.dtype in (torch.float16, torch.bfloat16) and value.op not in EXACT:
            raise NotPrintable(f"{value.op} rounded to {value.dtype}")
        if value.op in _TEXTS:
            return self._let(value, _TEXTS[value.op], *args)
        if value.op == "exp":
            return self._function(value, "exp2_", self._let(value, "{0} * 1.44269504f", *args))
        if value.op in _CALLS:
            return self._function(value, _CALLS[value.op], *args)
        raise NotPrintable(value.op)

    def _cast(self, value: Value, x: Pair) -> Pair:
        source = value.args[0]
        if source.dtype is torch.bool:
            return self._let(value, "{0} ? 1.0f : 0.0f", x)
        if value.dtype not in FLOATS:
            raise NotPrintable(f"a cast to {value.dtype}")
        if (
            value.dtype is torch.float32
            or value.dtype is source.dtype
            or source.is_accumulator
            and value.dtype is self.dtype
        ):
            # (the product is held rounded)
            return x
        if value.dtype is not self.dtype:
            raise NotPrintable(f"a cast to {value.dtype} beside a product of {self.dtype}")
        word = self._name()
        (self.inside if x.of_row else self.by_column).append(f"u32 {word} = pack({x.first}, {x.second});")
        return Pair(f"low_half({word})", f"high_half({word})", x.of_row, word)

    # ---- short forms
    def _short(self, value: Value) -> Pair | None:
        x = gelu(value)
        if x is not None:
            return self._function(value, "gelu", self._value(x))
        x = derivative(value)
        if x is not None:
            return self._function(value, "gelu_derivative", self._value(x))
        plus = plus_one(value)
        if plus is not None:
            return self._function(value, f"{plus[0]}_plus_1", self._value(plus[1]))
        if match(_SIGMOID, value) is not None:
            a, b = (self._value(arg) for arg in value.args)  # (the divisor is 1 or more)
            r = self._function(value.args[1], "reciprocal", b)
            return self._let(value, "{0} * {1}", a, r)
        return None

    # ---- memory
    def _place(self, buffer: Buffer, expr: Expr) -> Expr:
        """A flat position over `row` and `column`."""
        if expr.symbol_names() - self.places.keys():
            raise NotPrintable(f"a place in {buffer.name}")
        expr = tidy(expr.subs(self.places), self.ranges)
        if "tc_" in expr.c():
            raise NotPrintable(f"a place at {expr.c()}")
        return expr

    def _store(self, store: Store, x: Pair) -> None:
        """Written from registers: four threads have 32 bytes of float32 side by side."""
        buffer = store.buffer
        if store.mode != "set" or store.positions or buffer.holds not in (torch.float32, torch.bool, self.dtype):
            raise NotPrintable(f"a store to {buffer.name}")
        e = self._place(buffer, store.index)
        if buffer.holds is torch.bool and store.value.id in self.bits and _are_neighbours(e, 8):
            self._store_bits(buffer, e, self.bits[store.value.id])
            return
        if buffer.bits:
            raise NotPrintable("bits of what is no dropout")
        if not _are_neighbours(e, 2):
            raise NotPrintable(f"a store at {e.c()}")
        kind, text = {
            torch.float32: ("float2", f"make_float2({x.first}, {x.second})"),
            torch.bool: ("u16", f"{x.first} | {x.second} << 8"),
        }.get(buffer.dtype, ("u32", x.packed()))
        self.inside.append(
            f"{f'if ({self.guard} && row < M) ' if self.guard else ''}*({kind} *)({buffer.name} + ({e.c()})) = {text};"
        )

    def _store_bits(self, buffer: Buffer, expr: Expr, bits: str) -> None:
        """Truth values of 32 columns at once: parts of sectors cost the cache more than all else."""
        self.functions["eights"] = None
        self.once.append(f"u32 {bits}_before = 0;")
        self.even.append(f"{bits}_before = {bits};")
        guard, at = "if (eight < N && row < M) " if self.guard else "", expr.subs({"column": symbol("eight")}).c()
        store = f"*(uint2 *)({buffer.name} + ({at})) = make_uint2(to_bytes(left >> 4 * i), to_bytes(right >> 4 * i))"
        if buffer.bits:
            store = f"{buffer.name}[({at}) >> 3] = left >> 4 * i & 15 | (right >> 4 * i & 15) << 4"
        else:
            self.functions["to_bytes"] = None
        self.odd += [
            (
                f"{{ u32 left, right; eights({bits}_before | {bits} << 8, lane, left, right); int eight = held_n + at -"
                " 16 + lane % 4 * 8;"
            ),
            f"  for (int i = 0; i < 2; i++) {{ {ROW} {guard}{store}; }} }}",
        ]

    def _load(self, value: Value) -> Pair:
        buffer, e = value.attr
        if value.args or buffer.repeats or buffer.dtype not in (torch.float32, self.dtype):
            raise NotPrintable(f"a load of {buffer.name}")
        e = self._place(buffer, e)
        of_row, wide = "row" in e.symbol_names(), buffer.dtype is torch.float32
        guard = self.guard + " && row < M" if of_row and self.guard else self.guard
        name, p = self._name(), buffer.name

        def ahead(kind: str, field: str, text: str) -> str:
            text = _guarded(guard, text, "make_float2(0, 0)" if kind == "float2" else kind + "(0)")
            if not of_row:  # (a few lines of the cache for all rows)
                self.first += [
                    f"{kind} {field}[2];",
                    f"for (int h = 0; h < 2; h++) {{ {COLUMN} {field}[h] = {text}; }}",
                ]
                return f"{field}[h]"
            self.fields.append(f"{kind} {field}[2][2];")
            self.read.append(f"ahead.{field}[h][i] = {text};")
            return f"ahead.{field}[h][i]"

        if e.is_const:
            self.once.append(f"float {name} = {p}[{e.c()}];" if wide else f"float {name} = low_half({p}[{e.c()}]);")
            return Pair(name, name, False)
        if _are_neighbours(e, 2):
            read = ahead(
                "float2" if wide else "u32", name, f"*(const {'float2' if wide else 'u32'} *)({p} + ({e.c()}))"
            )
            return (
                Pair(f"{read}.x", f"{read}.y", of_row)
                if wide
                else Pair(f"low_half({read})", f"high_half({read})", of_row, read)
            )
        second = tidy(e.subs({"column": symbol("column") + 1}), self.ranges)
        reads = [
            ahead("float" if wide else "u16", f"{name}_{k}", f"{p}[{x.c()}]")
            for k, x in enumerate((e, second)[: 1 + (second is not e)])
        ]
        if not wide:
            reads = [f"low_half({read})" for read in reads]
        return Pair(reads[0], reads[-1], of_row)

    # ---- truth values by fours
    def _truth(self, value: Value) -> Pair:
        name = self._name()
        self.bits[value.id] = name
        text = self._bytes(value, name) if value.is_load else self._drawn(value, name)
        self.functions["exchanged"] = None
        self.fours += [f"u32 {name} = {text}, {name}_of[2];", f"exchanged({name}, lane, {name}_of);"]
        return Pair(f"({name}_of[h] >> 4 * i & 1)", f"({name}_of[h] >> (4 * i + 1) & 1)", True)

    def _bytes(self, value: Value, name: str) -> str:
        """Of a tensor of truth values, as bytes or as bits."""
        buffer, e = value.attr
        e = self._place(buffer, e)
        if value.args or buffer.repeats or not _are_neighbours(e, 4):
            raise NotPrintable(f"a load of {buffer.name}")
        self.fields.append(f"u32 {name}[2];")
        at = e.subs({"column": symbol("four")}).c()
        if buffer.bits:
            read = f"{buffer.name}[({at}) >> 3] >> (({at}) & 7)"
            self.read_fours.append(
                f"ahead.{name}[i] = {_guarded('four < N && row < M' if self.guard else '', read, '0')};"
            )
            return f"ahead.{name}[0] & 15 | (ahead.{name}[1] & 15) << 4"
        self.functions["from_bytes"] = None
        read = f"*(const u32 *)({buffer.name} + ({at}))"
        self.read_fours.append(f"ahead.{name}[i] = {_guarded('four < N && row < M' if self.guard else '', read, '0')};")
        return f"from_bytes(ahead.{name}[0]) | from_bytes(ahead.{name}[1]) << 4"

    def _drawn(self, value: Value, name: str) -> str:
        """Which numbers of a dropout are below its threshold."""
        word, limit = value.args
        *state, at, threads, vector = word.args
        if not limit.is_const or not 0 <= limit.attr < 1 << 32 or at.op != "index" or at.args or not threads.is_const:
            raise NotPrintable("random numbers that are no dropout's")
        e = tidy(at.attr.subs(self.places), self.ranges)
        if (
            not vector.is_const
            or vector.attr not in (4, 8)
            or any(not is_plain_load(x) or not x.attr[1].is_const for x in state)
            or not _are_neighbours(e, 4)
        ):
            raise NotPrintable("random numbers of neighbours that lie apart")
        self.functions["kept"] = None
        names: list[str] = []
        for x in state:
            buffer, place = x.attr
            names.append(f"{buffer.name}_{place.value}")
            read = f"u64 {names[-1]} = {buffer.name}[{place.value}];"
            if read not in self.once:
                self.once.append(read)
        rows = ({"column": symbol("four"), "row": symbol("upper") + 8 * i} for i in range(2))
        places = ", ".join(tidy(e.subs(row), {}).c() for row in rows)
        self.fours.append(f"u32 {name}_at[2] = {{{places}}};")
        return f"kept({', '.join(names)}, {name}_at, {threads.attr}u, {vector.attr}u, {limit.attr}u)"


def _guarded(condition: str, text: str, otherwise: str) -> str:
    return f"{condition} ? {text} : {otherwise}" if condition else text


def _are_neighbours(expr: Expr, n: int) -> bool:
    """Whether the positions of n columns, from a multiple of n on, lie side by side from a multiple of n on."""
    return expr.coeff("column") is ONE and all(
        coeff % n == 0 or len(atoms) == 1 and atoms[0] is symbol("column") for coeff, atoms in expr.terms()
    )


def _parts(name: str, axes: tuple[Axis, ...]) -> dict[str, Expr]:
    """Each axis from the flat position."""
    out: dict[str, Expr] = {}
    inner: Expr = ONE
    for k, axis in enumerate(reversed(axes)):
        flat = symbol(name) // inner
        out[axis.symbol.name] = flat % as_expr(axis.size) if k < len(axes) - 1 else flat
        inner = inner * as_expr(axis.size)
    return out


def _literal(x: float) -> str:
    x = float(x)
    if math.isnan(x):
        return "__int_as_float(0x7fffffff)"
    if math.isinf(x):
        return f"__int_as_float({'0x7f800000' if x > 0 else '0xff800000'})"
    return f"({x!r}f)" if x < 0 else f"{x!r}f"
