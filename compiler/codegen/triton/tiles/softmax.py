"""Kernels of attention: contractions whose factors are the softmax of a row. A program keeps for each row the greatest
score so far, the sum of exponentials and the mixed values, scaled anew where a tile raises the maximum.

With few rows the keys are shared among programs, whose partial results a second launch folds. Powers are of two: the
logarithm's factor and the scale of scores are one number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable

import torch

from ....lowering.ir import Buffer, Kernel, Stage, Store, Value, cast
from ....lowering.templates import Contraction, InnerProduct, WeightedSum
from ....symbolic.expr import ZERO, symbol
from .contraction import ContractionPrinter, KeyTile
from .factors import needed, scaled
from .plans import held
from ..dtypes import ttype
from ..layout import GpuTarget, Layout
from ...kernel_sources import Function, Scratch
from .row_tiles import LOG2E
from ..values import Names

__all__ = ["SoftmaxPrinter"]


class SoftmaxPrinter(ContractionPrinter):
    row_tile, key_tile = "q", "v"

    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str, exact: bool = False):
        template = kernel.template
        assert isinstance(template, Contraction) and template.softmax is not None
        self.softmax, (self.mixed,) = template.softmax, template.sums
        dtype = template.products[0].a.dtype  # whose precision scores have
        score = Stage((), [], [Store(Buffer("score", dtype, (), ()), ZERO, cast(self.softmax.score, dtype))])
        super().__init__(replace(kernel, stages=[score, *kernel.stages]), target, layout, name, exact)
        self.k = kernel
        self.exp2 = "tl.exp2"  # which keeps denormal numbers, for two multiplications and a comparison more
        if target.backend == "cuda":
            self.exp2 = "_exp2"
            self.need("_exp2")

    def _conditions(self) -> Iterable[Value]:
        return needed(self.softmax.score, False).values()

    def _functions(self) -> list[tuple[Function, str]]:
        if self.lay.split == 1:
            return [self._tile(self.name)]
        n = self.batch * self.rows * self.lay.split
        self.scratch = [
            Scratch("part0", torch.float32, n * self.mixed.columns.size),
            Scratch("part1", torch.float32, n),
            Scratch("part2", torch.float32, n),
        ]
        return [self._tile(f"{self.name}_0"), self._fold_pieces(f"{self.name}_1")]

    # ---- the row's state
    def _state(self) -> list[str]:
        return [
            *self._columns([product.inner for product in self.t.products], "e", "[:, None]"),
            'top = tl.full([XBLOCK], -float("inf"), tl.float32)',
            "total = tl.zeros([XBLOCK], tl.float32)",
        ]

    def _across(self, tile: KeyTile, product: InnerProduct) -> str:
        """Read as it is multiplied: nothing else needs it with keys along rows."""
        row = f"e{product.inner.size}"
        value = self._named(product.b, {product.inner.symbol.name: symbol(row)})
        masks = {key: mask for key, mask in tile.masks.items() if key == "r"} | self._beyond(row, product.inner)
        n = held(product.inner)
        v = self._of(tile.names, {row: row, self.t.keys.symbol.name: "r"}, masks, (row, str(n)), ("r", "RBLOCK"))
        name = f"k{len(tile.products)}"
        tile.emit(f"{name} = {self._operand(value, v, f'[{n}, RBLOCK]', frozenset((row, 'r')))}")
        return name

    def _of_row(self, tile: KeyTile, edge: bool) -> None:
        score, factor = scaled(self._computed(tile, self.softmax.score, edge), 0.0)
        tile.values.emit([score, *self.factors.values()])
        text, number = self._text(tile, score), repr(factor * LOG2E)
        if "r" in tile.masks:
            text = f'tl.where(rmask, {text}, -float("inf"))'
        for line in (
            f"score = {text}",
            f"raised = tl.maximum(top, tl.max(score, 1) * {number})",
            'base = tl.where(raised == -float("inf"), 0.0, raised)',
            f"scale = {self.exp2}(top - base)",
            f"power = {self.exp2}(score * {number} - base[:, None])",
            "total = total * scale + tl.sum(power, 1)",
            "top = raised",
        ):
            tile.emit(line)

    def _factor(self, tile: KeyTile, s: WeightedSum, edge: bool) -> str:
        weight = self.factors.get(s.name)
        power = "power" if weight is None else f"(power * {tile.values.operand(weight).text})"
        return power if s.c.dtype == torch.float32 else f"{power}.to({ttype(s.c.dtype).stored})"

    def _sum(self, s: WeightedSum) -> str:
        return f"{s.name} * scale[:, None]"

    # ---- what becomes of the tile
    def _end(self, names: Names, masks: dict[str, str]) -> list[str]:
        return self._leave(masks) if self.lay.split > 1 else self._finish(names, masks)

    def _finish(self, names: Names, masks: dict[str, str]) -> list[str]:
        """The mixed values divided by the sums, and what the kernel stores of them, and of the rows themselves."""
        name, out = self.mixed.name, []
        for stage in self.k.stages[1:]:
            out += [f"row_top = top[:, None] * {1 / LOG2E!r}", "row_total = total[:, None]"]
            out += self._stores(stage, {}, masks, ("c", "1"), {}, names, "row_")
        out += [
            "total = tl.where(total == 0.0, 1.0, total)[:, None]"
            if self.softmax.empty == 0
            else "total = total[:, None]"
        ]
        return [*out, f"{name} = {name} / total", *super()._end(names, masks)]

    def _leave(self, masks: dict[str, str]) -> list[str]:
        """A piece's partial results in scratch memory."""
        name, columns = self.mixed.name, self.mixed.columns
        size, column = int(columns.size), f"d{columns.size}"
        row = [masks["x"]] if "x" in masks else []
        out = [f"at = (bindex * {self._t(self.rows)} + xindex) * SPLIT + piece"]
        mask = f", {row[0]}" if row else ""
        out += [f"tl.store(part1 + at, top[:, None]{mask})", f"tl.store(part2 + at, total[:, None]{mask})"]
        both = " & ".join([*row, *self._beyond(column, columns).values()])
        return [*out, f"tl.store(part0 + (at * {size} + {column}), {name}" + (f", {both}" if both else "") + ")"]

    def _fold_pieces(self, name: str) -> tuple[Function, str]:
        """The second launch: a program folds the pieces of one row."""
        columns = self.mixed.columns
        size, column = int(columns.size), f"d{columns.size}"
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
        mask = f", {column} < {size}, other=0.0" if self._beyond(column, columns) else ""
        pieces = f"tl.load(part0 + (at[:, None] * {size} + {column}){mask})"
        body += [*self._columns([columns]), f"{self.mixed.name} = tl.sum({pieces} * scale[:, None], 0)[None, :]"]
        body += self._finish(Names(origins=self.origins), masks)
        return self._function(name, body, self.batch * self.rows, {"XBLOCK": 1, "SPLIT": self.lay.split}, self.scratch)
