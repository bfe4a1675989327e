"""Attention kernels (templates.Attention): a program holds a tile of rows, goes through the keys tile by tile, and
keeps for each row the greatest score so far, the sum of exponentials and the mixed values, scaled anew where a tile
raises the maximum.

Scores are printed from their expression as in any kernel. Comparisons of key and row positions say which tiles of keys
count at all, and for which of those the comparison holds everywhere: a loop over the latter leaves it out. With few
rows the keys are shared among programs, whose partial results a second launch folds. Powers are of two: the logarithm's
factor and the scale of scores are one number.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ....lowering.ir import Buffer, Kernel, Stage, Store, Value, cast, const, prim
from ....lowering.templates import Attention
from ....symbolic.expr import ZERO, symbol
from .attention_tiles import held
from ..dtypes import ttype
from ..layout import GpuTarget, Layout
from ..prims import Operand
from ..printer import Function
from ..split import Scratch
from .row_tiles import F32, LOG2E, RowTiles, conjuncts
from ..values import Names, stored

__all__ = ["AttentionPrinter", "conditions", "scaled"]


def scaled(score: Value) -> tuple[Value, float]:
    """(x, factor > 0) with score = x * factor, where a factor stands outermost."""
    if score.op == "where" and score.args[2].op == "const" and score.args[2].attr == -math.inf:
        x, factor = scaled(score.args[1])
        return prim("where", score.args[0], x, score.args[2]), factor
    if score.op in ("mul", "div") and score.args[1].op == "const" and 0 < score.args[1].attr < math.inf:
        x, factor = scaled(score.args[0])
        return x, factor * (score.args[1].attr if score.op == "mul" else 1 / score.args[1].attr)
    return score, 1.0


def conditions(t: Attention) -> list[Value]:
    """Those without which a row does not see a key."""
    score = t.score
    return (
        conjuncts(score.args[0])
        if score.op == "where" and score.args[2].op == "const" and score.args[2].attr == -math.inf
        else []
    )


class AttentionPrinter(RowTiles):
    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str, exact: bool = False):
        assert kernel.template is not None
        self.t: Attention = kernel.template
        score = self.t.score
        precise = Store(Buffer("score", self.t.q.dtype, (), ()), ZERO, cast(score, self.t.q.dtype))
        super().__init__(
            replace(kernel, stages=[Stage((), [], [precise]), *kernel.stages]), target, layout, name, exact
        )
        self.k = kernel
        self.exp2 = "tl.exp2"  # which keeps denormal numbers, for two multiplications and a comparison more
        if target.backend == "cuda":
            self.exp2 = "_exp2"
            self.need("_exp2")
        t = self.t
        self._goes_through(t, conditions(t), layout)
        self.inner, self.columns = held(t.inner), held(t.columns)

    def _functions(self) -> list[tuple[Function, str]]:
        if self.lay.split == 1:
            return [self._tile(self.name)]
        n = self.batch * self.rows * self.lay.split
        self.scratch = [
            Scratch("part0", torch.float32, n * self.t.columns.size),
            Scratch("part1", torch.float32, n),
            Scratch("part2", torch.float32, n),
        ]
        return [self._tile(f"{self.name}_0"), self._fold_pieces(f"{self.name}_1")]

    # ---- one tile of rows
    def _tile(self, name: str) -> tuple[Function, str]:
        t, lay = self.t, self.lay
        names = Names(origins=self.origins)
        masks: dict[str, str] = {}
        body = [f"pid = {self._pid('tl.program_id(0)')}"]
        pid = "pid"
        if lay.split > 1:
            body.append("piece = pid % SPLIT")
            pid = "(pid // SPLIT)"
        lines, block = self._program(pid, masks)
        body += lines
        inner = masks | self._beyond("d", t.inner)
        body += [f"d = tl.arange(0, {self.inner})[None, :]", f"e = tl.arange(0, {self.inner})[:, None]"]
        q = self._named(t.q, {t.inner.symbol.name: symbol("d")})
        v = self._of(names, self._dims("x", t.rows, {"d": "d"}), inner, ("x", "XBLOCK"), ("d", str(self.inner)))
        body.append(self._operand("q", q, v, f"[XBLOCK, {self.inner}]", frozenset("xd")))
        body.append(f"c = tl.arange(0, {self.columns})[None, :]")
        body += ['top = tl.full([XBLOCK], -float("inf"), tl.float32)', "total = tl.zeros([XBLOCK], tl.float32)"]
        body.append(f"mixed = tl.zeros([XBLOCK, {self.columns}], tl.float32)")
        body += self._loops(names, masks, block)
        if lay.split > 1:
            body += self._leave(masks)
        else:
            body += self._finish(names, masks)
        constants = {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock} | ({"SPLIT": lay.split} if lay.split > 1 else {})
        return self._function(name, body, self.batch * self._blocks() * lay.split, constants, self.scratch)

    def _loop(self, begin: str, end: str, names: Names, masks: dict[str, str], edge: bool) -> list[str]:
        """Lines of a loop over keys. `edge`: whether positions are looked at."""
        t = self.t
        inner = dict(masks)
        far = ".to(tl.int64)" if self.lay.wide else ""
        head = [
            f"r0 = roffset + tl.arange(0, RBLOCK)[None, :]{far}",
            f"s0 = roffset + tl.arange(0, RBLOCK)[:, None]{far}",
        ]
        by_rows: dict[str, str] = {}
        if edge and not self.even:
            head += [f"rmask = r0 < {self._t(self.n_keys)}", f"smask = s0 < {self._t(self.n_keys)}"]
            inner["r"], by_rows["r"] = "rmask", "smask"
        m = ({"r": inner["r"]} if "r" in inner else {}) | self._beyond("e", t.inner)
        k = self._named(t.k, {t.inner.symbol.name: symbol("e")})
        v = self._of(names, {"e": "e", t.keys.symbol.name: "r"}, m, ("e", str(self.inner)), ("r", "RBLOCK"))
        dots = [
            self._operand("k", k, v, f"[{self.inner}, RBLOCK]", frozenset("er")),
            f"product = {self._dot('q', 'k', '', t.q.dtype)}",
        ]
        score, factor = scaled(self._within(edge))
        v = self._of(
            names,
            self._dims("x", t.rows, {t.keys.symbol.name: "r"}),
            inner,
            ("x", "XBLOCK"),
            ("r", "RBLOCK"),
            lambda name: Operand(name, F32, frozenset("xr")),
        )
        v.emit([score, *([] if t.weight is None else [t.weight])])
        x = v.operand(score)
        score_text = x.text if x.dims >= frozenset("xr") else f"tl.broadcast_to({x.text}, [XBLOCK, RBLOCK])"
        if "r" in inner:
            score_text = f'tl.where(rmask, {score_text}, -float("inf"))'
        number = repr(factor * LOG2E)
        lines = [
            *head,
            *dots,
            *v.inside,
            f"score = {score_text}",
            f"raised = tl.maximum(top, tl.max(score, 1) * {number})",
            'base = tl.where(raised == -float("inf"), 0.0, raised)',
            f"scale = {self.exp2}(top - base)",
            f"power = {self.exp2}(score * {number} - base[:, None])",
            "total = total * scale + tl.sum(power, 1)",
            "top = raised",
        ]
        value = self._named(t.v, {t.columns.symbol.name: symbol("c"), t.keys.symbol.name: symbol("s0")})
        w = self._of(
            names,
            {"c": "c", "s0": "r"},
            by_rows | self._beyond("c", t.columns),
            ("r", "RBLOCK"),
            ("c", str(self.columns)),
        )
        lines.append(self._operand("v", value, w, f"[RBLOCK, {self.columns}]", frozenset("rc")))
        power = "power" if t.weight is None else f"(power * {v.operand(t.weight).text})"
        power = power if t.v.dtype == torch.float32 else f"{power}.to({ttype(t.v.dtype).stored})"
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
        left = [c for c in conjuncts(score.args[0]) if c.id not in drop]
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
        v = self._of(
            names,
            self._dims("x", t.rows, {"c": "c"}),
            masks | self._beyond("c", t.columns),
            ("x", "XBLOCK"),
            ("c", str(self.columns)),
            lambda name: Operand("mixed", F32, frozenset("xc")),
        )
        for s in stage.stores:
            value = self._named(s.value, column)
            v.emit([stored(value)])
            v.store(s.buffer, s.index.subs(column), value, s.mode, frozenset("xc"))
        return [*out, *v.outside, *v.inside]

    def _store_rows(self, stage: Stage, names: Names, masks: dict[str, str]) -> list[str]:
        """What the kernel stores of the rows themselves."""
        v = self._of(
            names,
            self._dims("x", self.t.rows, {}),
            masks,
            ("x", "XBLOCK"),
            ("c", str(self.columns)),
            lambda name: Operand(f"row_{name}", F32, frozenset("x")),
        )
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
        masks.clear()  # (there is a program for each row, and no more)
        body = [line for line in body if not line.startswith("xmask")]
        body += [
            "at = pid * SPLIT + tl.arange(0, SPLIT)",
            "tops = tl.load(part1 + at)",
            "raised = tl.max(tops, 0)",
            f'scale = {self.exp2}(tops - tl.where(raised == -float("inf"), 0.0, raised))',
            "total = tl.sum(tl.load(part2 + at) * scale, 0)[None]",
            "top = raised[None]",
        ]
        mask = f", c < {size}, other=0.0" if self._beyond("c", self.t.columns) else ""
        body += [
            f"c = tl.arange(0, {self.columns})[None, :]",
            f"mixed = tl.sum(tl.load(part0 + (at[:, None] * {size} + c){mask}) * scale[:, None], 0)[None, :]",
        ]
        body += self._finish(Names(origins=self.origins), masks)
        return self._function(name, body, self.batch * self.rows, {"XBLOCK": 1, "SPLIT": self.lay.split}, self.scratch)
