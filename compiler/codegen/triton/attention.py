"""Attention kernels (ir.Attention): a program holds a tile of rows, goes through the keys tile by tile, and keeps for each row the greatest
score so far, the sum of exponentials and the mixed values, scaled anew where a tile raises the maximum.

Scores are printed from their expression as in any kernel. Comparisons of key and row positions say which tiles of keys count at all, and for
which of those the comparison holds everywhere: a loop over the latter leaves it out. With few rows the keys are shared among programs, whose
partial results a second launch folds. Powers are of two: the logarithm's factor and the scale of scores are one number.
"""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Callable, Sequence

import torch

from ...lowering.ir import Attention, Axis, Buffer, Kernel, Stage, Store, Value, cast, const, prim
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import ZERO, Expr, as_expr, ceildiv, integer, symbol
from .attention_tiles import held
from .dtypes import ttype
from .layout import GpuTarget, Layout, numel
from .prims import Operand
from .printer import Function, Printer, Scratch
from .values import Names, Values, stored

__all__ = ["AttentionPrinter", "bounds", "scaled"]

LOG2E = 1.4426950408889634
FIRST, LAST = symbol("first_row"), symbol("last_row")
F32 = ttype(torch.float32)


@dataclass(frozen=True)
class Bound:
    """Keys that a comparison lets through: from, or up to and with, `limit`."""
    upper: bool
    limit: Expr
    condition: Value


def scaled(score: Value) -> tuple[Value, float]:
    """(x, factor > 0) with score = x * factor, where a factor stands outermost."""
    if score.op == "where" and score.args[2].op == "const" and score.args[2].attr == -math.inf:
        x, factor = scaled(score.args[1])
        return prim("where", score.args[0], x, score.args[2]), factor
    if score.op in ("mul", "div") and score.args[1].op == "const" and 0 < score.args[1].attr < math.inf:
        x, factor = scaled(score.args[0])
        return x, factor * (score.args[1].attr if score.op == "mul" else 1 / score.args[1].attr)
    return score, 1.0


def _conjuncts(c: Value) -> list[Value]:
    return [x for a in c.args for x in _conjuncts(a)] if c.op == "logical_and" else [c]


def _bound(c: Value, t: Attention) -> Bound | None:
    """What a comparison of positions says of the keys."""
    if c.op not in ("lt", "le", "gt", "ge") or not all(a.op in ("index", "const") and a.dtype == torch.int64 for a in c.args):
        return None
    a, b = (integer(x.attr) if x.op == "const" else x.attr for x in c.args)
    e, key = a - b, t.keys.symbol
    sign = e.coeff(key.name)
    if sign is None or not sign.is_const or abs(sign.value) != 1:
        return None
    rest = e - key * sign
    plain = {x.symbol.name for x in (*t.batch, *t.rows)}
    if any(n.startswith("ind") or n == key.name for n in rest.symbol_names()):
        return None
    for n in rest.symbol_names() & plain:
        k = rest.coeff(n)
        if k is None or not k.is_const:
            return None
    upper = (c.op in ("lt", "le")) == (sign.value > 0)
    limit = rest * -sign.value
    if c.op in ("lt", "gt"):
        limit = limit - 1 if upper else limit + 1
    return Bound(upper, limit, c)


def bounds(t: Attention) -> list[Bound]:
    """What a score's condition says of the keys that a row sees."""
    if not (t.score.op == "where" and t.score.args[2].op == "const" and t.score.args[2].attr == -math.inf):
        return []
    return [b for c in _conjuncts(t.score.args[0]) if (b := _bound(c, t)) is not None]


class AttentionPrinter(Printer):
    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str, exact: bool = False):
        assert kernel.template is not None
        self.t: Attention = kernel.template
        score = self.t.score
        digits = self.t.q.dtype if len(kernel.stages) == 1 else torch.float32      # (what is stored of rows shows them)
        precise = Store(Buffer("score", digits, (), ()), ZERO, cast(score, digits))
        super().__init__(replace(kernel, stages=[Stage((), [], [precise]), *kernel.stages]), target, layout, name, exact)
        self.k = kernel
        self.exp2 = "tl.exp2"                            # which keeps denormal numbers, for two multiplications and a comparison more
        if target.backend == "cuda":
            self.exp2 = "_exp2"
            self.need("_exp2")
        t = self.t
        self.sizes = {a.symbol.name: int(a.size) for a in (*t.batch, *t.rows, t.keys, t.inner, t.columns) if type(a.size) is int}
        self.inner, self.columns = held(t.inner), held(t.columns)
        self.rows, self.n_keys, self.batch = numel(t.rows), as_expr(t.keys.size), numel(t.batch)
        self.bounds = bounds(t)
        self.even = self.n_keys.is_const and self.n_keys.value % layout.rblock == 0

    def _functions(self) -> list[tuple[Function, str]]:
        if self.lay.split == 1:
            return [self._tile(self.name)]
        n = self.batch * self.rows * self.lay.split
        self.scratch = [Scratch("part0", torch.float32, n * self.t.columns.size), Scratch("part1", torch.float32, n), Scratch("part2", torch.float32, n)]
        return [self._tile(f"{self.name}_0"), self._fold_pieces(f"{self.name}_1")]

    # ---- positions
    def _where(self, block: str, xblock: int, masks: dict[str, str]) -> list[str]:
        """The batch axes and the rows of a program."""
        body = self._axes(self.t.batch, "b")
        body.append(f"xindex = {block} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        if not (self.rows.is_const and self.rows.value % xblock == 0):
            body.append(f"xmask = xindex < {self._t(self.rows)}")
            masks["x"] = "xmask"
        return body + self._axes(self.t.rows, "x")

    def _beyond(self, name: str, axis: Axis) -> dict[str, str]:
        """The mask of a tile dimension that holds more columns than there are."""
        return {name: f"({name} < {axis.size})"} if held(axis) > int(axis.size) else {}

    def _of(self, names: Names, dims: dict[str, str], masks: dict[str, str], rows: tuple[str, str], columns: tuple[str, str],
            acc: Callable[[str], Operand] | None = None) -> Values:
        """A printer of values over tiles whose rows and columns are the given (dimension, size)."""
        def shape(have: frozenset[str]) -> str:
            return f"[{rows[1] if rows[0] in have else '1'}, {columns[1] if columns[0] in have else '1'}]"
        return Values(names, dims, masks, shape, acc or self._acc, self.need, self.itype, exact=self.exact, backend=self.target.backend, sizes=self.sizes)

    def _operand(self, name: str, value: Value, v: Values, shape: str, whole: frozenset[str]) -> str:
        """A tile of q, k or v, in its own type: what lies outside is 0."""
        buffer, e = value.attr
        have = v.dims_of(e)
        mask, _ = v.mask(have)
        text = f"tl.load({buffer.name} + ({v.index(e)})" + (f", {mask}, other=0.0" if mask else "") + ")"
        return f"{name} = " + (text if have >= whole else f"tl.broadcast_to({text}, {shape})")

    # ---- one tile of rows
    def _tile(self, name: str) -> tuple[Function, str]:
        t, lay = self.t, self.lay
        names = Names(origins=self.origins)
        masks: dict[str, str] = {}
        xblocks = ceildiv(self.rows, integer(lay.xblock))
        body = [f"pid = {self._pid('tl.program_id(0)')}"]
        pid = "pid"
        if lay.split > 1:
            body.append("piece = pid % SPLIT")
            pid = "(pid // SPLIT)"
        body += [f"xblocks = {self._t(xblocks)}", f"bindex = {pid} // xblocks"]
        block = f"({pid} % xblocks)"
        if any(b.upper and FIRST.name in self._row_limit(b.limit, True).symbol_names() | self._row_limit(b.limit, False).symbol_names() for b in self.bounds):
            block = f"(xblocks - 1 - {pid} % xblocks)"   # (those that see the most keys begin)
        body += self._where(block, lay.xblock, masks)
        inner = masks | self._beyond("d", t.inner)
        body += [f"d = tl.arange(0, {self.inner})[None, :]", f"e = tl.arange(0, {self.inner})[:, None]"]
        q = self._named(t.q, {t.inner.symbol.name: symbol("d")})
        v = self._of(names, self._dims("x", t.rows, {"d": "d"}), inner, ("x", "XBLOCK"), ("d", str(self.inner)))
        body.append(self._operand("q", q, v, f"[XBLOCK, {self.inner}]", frozenset("xd")))
        body.append(f"c = tl.arange(0, {self.columns})[None, :]")
        body += ["top = tl.full([XBLOCK], -float(\"inf\"), tl.float32)", "total = tl.zeros([XBLOCK], tl.float32)"]
        body.append(f"mixed = tl.zeros([XBLOCK, {self.columns}], tl.float32)")
        body += self._loops(names, masks, block)
        if lay.split > 1:
            body += self._leave(masks)
        else:
            body += self._finish(names, masks)
        constants = {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock} | ({"SPLIT": lay.split} if lay.split > 1 else {})
        return self._function(name, body, self.batch * xblocks * lay.split, constants, self.scratch)

    def _dims(self, dim: str, axes: Sequence[Axis], more: dict[str, str]) -> dict[str, str]:
        return {a.symbol.name: dim for a in axes} | more

    def _named(self, value: Value, names: dict[str, Expr]) -> Value:
        return Rewriter(on_index=lambda e: e.subs(names))(value)

    def _row_limit(self, e: Expr, greatest: bool) -> Expr:
        """The greatest (or least) value of an expression over the rows of a tile."""
        rows = self.t.rows
        m = {}
        for a in rows:
            k = e.coeff(a.symbol.name)
            if k is not None and k is not ZERO:
                ends = (FIRST, LAST) if len(rows) == 1 else (ZERO, as_expr(a.size) - 1)
                m[a.symbol.name] = ends[(k.value > 0) == greatest]
        return e.subs(m) if m else e

    def _loops(self, names: Names, masks: dict[str, str], block: str) -> list[str]:
        """The passes over the keys: those that a condition may leave out before and after those that all rows of the tile see."""
        lay, n = self.lay, self.n_keys
        block_of, size = f"{block} * XBLOCK", self._t(n)
        begin, end = "0", size
        out: list[str] = []
        limits = [(b.upper, self._row_limit(b.limit, g), g) for b in self.bounds for g in (True, False)]
        if any({FIRST.name, LAST.name} & e.symbol_names() for _, e, _ in limits):
            out += [f"first_row = {block_of}", f"last_row = tl.minimum(first_row + XBLOCK, {self._t(self.rows)}) - 1"]

        def text(upper: bool, greatest: bool, wrap: str, start: str) -> str:
            for u, e, g in limits:
                if u is upper and g is greatest:
                    start = f"tl.{wrap}({start}, {self._t(e + 1 if upper else e)})"
            return start
        lower, upper = (any(b.upper is u for b in self.bounds) for u in (False, True))
        if lower:
            out.append(f"begin = {text(False, False, 'maximum', '0')} // RBLOCK * RBLOCK")
            begin = "begin"
        if upper:
            out.append(f"end = {text(True, True, 'minimum', size)}")
            end = "end"
        if lay.split > 1:
            out += ["per = tl.cdiv(tl.cdiv(" + size + ", RBLOCK), SPLIT) * RBLOCK", f"begin = tl.maximum({begin}, piece * per)", f"end = tl.minimum({end}, piece * per + per)"]
            begin, end = "begin", "end"
        if self.even and not self.bounds:                # (also in pieces)
            return [*out, *self._loop(begin, end, names, masks, False)]
        whole = begin
        if lower:
            out.append(f"whole = tl.minimum(tl.cdiv({text(False, True, 'maximum', begin)}, RBLOCK), tl.cdiv({end}, RBLOCK)) * RBLOCK")
            whole = "whole"
        out.append(f"rest = tl.maximum({whole}, {text(True, False, 'minimum', end)} // RBLOCK * RBLOCK)")
        if lower:
            out += self._loop(begin, "whole", names, masks, True)
        out += self._loop(whole, "rest", names, masks, False)
        return out + self._loop("rest", end, names, masks, True)

    def _loop(self, begin: str, end: str, names: Names, masks: dict[str, str], edge: bool) -> list[str]:
        """Lines of a loop over keys. `edge`: whether positions are looked at."""
        t = self.t
        inner = dict(masks)
        far = ".to(tl.int64)" if self.lay.wide else ""
        head = [f"r0 = roffset + tl.arange(0, RBLOCK)[None, :]{far}", f"s0 = roffset + tl.arange(0, RBLOCK)[:, None]{far}"]
        by_rows: dict[str, str] = {}
        if edge and not self.even:
            head += [f"rmask = r0 < {self._t(self.n_keys)}", f"smask = s0 < {self._t(self.n_keys)}"]
            inner["r"], by_rows["r"] = "rmask", "smask"
        m = ({"r": inner["r"]} if "r" in inner else {}) | self._beyond("e", t.inner)
        k = self._named(t.k, {t.inner.symbol.name: symbol("e")})
        v = self._of(names, {"e": "e", t.keys.symbol.name: "r"}, m, ("e", str(self.inner)), ("r", "RBLOCK"))
        dots = [self._operand("k", k, v, f"[{self.inner}, RBLOCK]", frozenset("er")), f"product = {self._dot('q', 'k', '', t.q.dtype)}"]
        score, factor = scaled(self._within(edge))
        v = self._of(names, self._dims("x", t.rows, {t.keys.symbol.name: "r"}), inner, ("x", "XBLOCK"), ("r", "RBLOCK"),
                     lambda name: Operand(name, F32, frozenset("xr")))
        v.emit([score])
        x = v.operand(score)
        score_text = x.text if x.dims >= frozenset("xr") else f"tl.broadcast_to({x.text}, [XBLOCK, RBLOCK])"
        if "r" in inner:
            score_text = f"tl.where(rmask, {score_text}, -float(\"inf\"))"
        number = repr(factor * LOG2E)
        lines = [*head, *dots, *v.inside, f"score = {score_text}",
                 f"raised = tl.maximum(top, tl.max(score, 1) * {number})", "base = tl.where(raised == -float(\"inf\"), 0.0, raised)",
                 f"scale = {self.exp2}(top - base)", f"power = {self.exp2}(score * {number} - base[:, None])",
                 "total = total * scale + tl.sum(power, 1)", "top = raised"]
        value = self._named(t.v, {t.columns.symbol.name: symbol("c"), t.keys.symbol.name: symbol("s0")})
        w = self._of(names, {"c": "c", "s0": "r"}, by_rows | self._beyond("c", t.columns), ("r", "RBLOCK"), ("c", str(self.columns)))
        lines.append(self._operand("v", value, w, f"[RBLOCK, {self.columns}]", frozenset("rc")))
        power = "power" if t.v.dtype == torch.float32 else f"power.to({ttype(t.v.dtype).stored})"
        lines.append(f"mixed = {self._dot(power, 'v', 'mixed * scale[:, None]', t.v.dtype)}")
        names.forget("r")
        return [*v.outside, f"for roffset in range({begin}, {end}, RBLOCK):", *(f"    {line}" for line in lines)]

    def _dot(self, a: str, b: str, plus: str, dtype: torch.dtype) -> str:
        more = (f", {plus}" if plus else "") + (', input_precision="ieee"' if dtype == torch.float32 else "")
        return f"tl.dot({a}, {b}{more})"

    def _within(self, edge: bool) -> Value:
        """The score; without the conditions that hold for a whole tile."""
        score = self.t.score
        if edge or not self.bounds:
            return score
        drop = {b.condition.id for b in self.bounds}
        left = [c for c in _conjuncts(score.args[0]) if c.id not in drop]
        if not left:
            return score.args[1]
        c = left[0]
        for x in left[1:]:
            c = prim("logical_and", c, x)
        return prim("where", c, score.args[1], const(-math.inf, torch.float32))

    # ---- what becomes of the tile
    def _finish(self, names: Names, masks: dict[str, str]) -> list[str]:
        """The mixed values divided by the sums, and what the kernel stores of them."""
        t = self.t
        empty = "total == 0.0"
        stage, *of_rows = self.k.stages
        out = [line for s in of_rows for line in self._store_rows(s, names, masks)]
        out += [f"total = tl.where({empty}, 1.0, total)[:, None]" if t.empty == 0 else "total = total[:, None]"]
        out.append("mixed = mixed / total")
        column = {t.columns.symbol.name: symbol("c")}
        v = self._of(names, self._dims("x", t.rows, {"c": "c"}), masks | self._beyond("c", t.columns), ("x", "XBLOCK"), ("c", str(self.columns)),
                     lambda name: Operand("mixed", F32, frozenset("xc")))
        for s in stage.stores:
            value = self._named(s.value, column)
            v.emit([stored(value)])
            v.store(s.buffer, s.index.subs(column), value, s.mode, frozenset("xc"))
        return [*out, *v.outside, *v.inside]

    def _store_rows(self, stage: Stage, names: Names, masks: dict[str, str]) -> list[str]:
        """What the kernel stores of the rows themselves."""
        v = self._of(names, self._dims("x", self.t.rows, {}), masks, ("x", "XBLOCK"), ("c", str(self.columns)),
                     lambda name: Operand(f"row_{name}", F32, frozenset("x")))
        for s in stage.stores:
            v.emit([stored(s.value)])
            v.store(s.buffer, s.index, s.value, s.mode, frozenset("x"))
        return [f"row_top = top[:, None] * {1 / LOG2E!r}", "row_total = total[:, None]", *v.outside, *v.inside]

    def _leave(self, masks: dict[str, str]) -> list[str]:
        """A piece's partial results in scratch memory."""
        size = int(self.t.columns.size)
        row = [masks["x"]] if "x" in masks else []
        out = [f"at = (bindex * {self._t(self.rows)} + xindex) * SPLIT + piece"]
        mask = f", {row[0]}" if row else ""
        out += [f"tl.store(part1 + at, top[:, None]{mask})", f"tl.store(part2 + at, total[:, None]{mask})"]
        both = " & ".join([*row, *self._beyond("c", self.t.columns).values()])
        return [*out, f"tl.store(part0 + (at * {size} + c), mixed" + (f", {both}" if both else "") + ")"]

    def _fold_pieces(self, name: str) -> tuple[Function, str]:
        """The second launch: a program folds the pieces of one row."""
        size = int(self.t.columns.size)
        masks: dict[str, str] = {}
        body = [f"pid = {self._pid('tl.program_id(0)')}", f"bindex = pid // ({self._t(self.rows)})"]
        body += self._where(f"(pid % ({self._t(self.rows)}))", 1, masks)
        masks.clear()                                    # (there is a program for each row, and no more)
        body = [line for line in body if not line.startswith("xmask")]
        body += ["at = pid * SPLIT + tl.arange(0, SPLIT)", "tops = tl.load(part1 + at)", "raised = tl.max(tops, 0)",
                 f"scale = {self.exp2}(tops - tl.where(raised == -float(\"inf\"), 0.0, raised))", "total = tl.sum(tl.load(part2 + at) * scale, 0)[None]", "top = raised[None]"]
        mask = f", c < {size}, other=0.0" if self._beyond("c", self.t.columns) else ""
        body += [f"c = tl.arange(0, {self.columns})[None, :]",
                 f"mixed = tl.sum(tl.load(part0 + (at[:, None] * {size} + c){mask}) * scale[:, None], 0)[None, :]"]
        body += self._finish(Names(origins=self.origins), masks)
        return self._function(name, body, self.batch * self.rows, {"XBLOCK": 1, "SPLIT": self.lay.split}, self.scratch)
