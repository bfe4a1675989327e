"""Kernels of contractions (templates.Contraction). A program holds a tile of rows and goes through the keys tile by
tile. There it makes the inner products of both, computes from them what the columns are multiplied with, and adds that
up for each sum.

What a tile of keys is read for, as an operand of a product and as columns, is read once. Conditions outside of which
everything is 0 bound the loop (row_tiles.py). What keeps a softmax of the row goes on in softmax.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable

import torch

from ....lowering.ir import Axis, Kernel, Stage, Value, has_op, symbols_of, walk
from ....lowering.templates import Contraction, InnerProduct, WeightedSum
from ....symbolic.expr import symbol
from .plans import held
from ..dtypes import ttype
from ..layout import GpuTarget, Layout
from ..prims import Operand
from ...kernel_sources import Function
from .factors import by_powers_of_two, needed, scaled, where_all_hold
from .row_tiles import F32, RowTiles
from ...guarded import stored
from ..values import Names, Values

__all__ = ["ContractionPrinter", "KeyTile"]


@dataclass
class KeyTile:
    """One tile of keys: the values that are printed for it, and what is there of them already."""

    names: Names
    values: Values
    masks: dict[str, str]  # of tiles with keys along their columns
    by_rows: dict[str, str]  # of tiles with keys along their rows
    tiles: dict[Value, str] = field(default_factory=dict)
    products: set[str] = field(default_factory=set)

    def emit(self, line: str) -> None:
        self.values.inside.append(line)


class ContractionPrinter(RowTiles):
    row_tile, key_tile = "a", "b"  # what tiles are called

    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str, exact: bool = False):
        super().__init__(kernel, target, layout, name, exact)
        template = kernel.template
        assert isinstance(template, Contraction)
        self.t = template
        # a number that all of a sum is multiplied with is so at the end; in float16 it may keep what is summed in range
        self.factors: dict[str, Value] = {}
        self.scales: dict[str, float] = {}
        for s in template.sums:
            factor = s.factor
            if factor is not None and template.softmax is None:
                if target.backend == "cuda" and not exact:
                    factor = by_powers_of_two(factor, self._of_tile)
                if s.c.dtype == torch.bfloat16:
                    factor, self.scales[s.name] = scaled(factor)
            if factor is not None:
                self.factors[s.name] = factor
        self._goes_through(template, self._conditions(), layout)
        self.known = {bound.condition.id for bound in self.bounds}

    def _conditions(self) -> Iterable[Value]:
        """Those without which a row and a key count for nothing."""
        first, *others = [needed(factor) for factor in self.factors.values()]
        return [value for key, value in first.items() if all(key in other for other in others)]

    def _functions(self) -> list[tuple[Function, str]]:
        return [self._tile(self.name)]

    def _of_tile(self, value: Value) -> bool:
        """Whether a value is another for each row and key."""
        over = symbols_of([value])
        return (
            has_op([value], "acc")
            or self.t.keys.symbol.name in over
            and any(row.symbol.name in over for row in self.t.rows)
        )

    # ---- tiles of operands
    def _columns(self, axes: Iterable[Axis], letter: str = "d", across: str = "[None, :]") -> list[str]:
        """Variables for columns, one for each size."""
        sizes = dict.fromkeys(int(axis.size) for axis in axes)
        return [f"{letter}{size} = tl.arange(0, {held(Axis(symbol('d'), size))}){across}" for size in sizes]

    def _load(self, value: Value, axis: Axis, dim: str, masks: dict[str, str], names: Names) -> tuple[Value, str]:
        """(what identifies the tile, the text of its load): rows ("x") or keys ("r") along one side, `axis` along the
        other.
        """
        column, n = f"d{axis.size}", held(axis)
        value = self._named(
            value, {axis.symbol.name: symbol(column)} | ({self.t.keys.symbol.name: symbol("s0")} if dim == "r" else {})
        )
        dims = self._dims("x", self.t.rows, {column: column}) if dim == "x" else {"s0": "r", column: column}
        block = "XBLOCK" if dim == "x" else "RBLOCK"
        v = self._of(names, dims, masks | self._beyond(column, axis), (dim, block), (column, str(n)))
        return value, self._operand(value, v, f"[{block}, {n}]", frozenset((dim, column)))

    def _of_keys(self, tile: KeyTile, value: Value, axis: Axis) -> str:
        key, text = self._load(value, axis, "r", tile.by_rows, tile.names)
        if key not in tile.tiles:
            tile.tiles[key] = f"{self.key_tile}{len(tile.tiles)}"
            tile.emit(f"{tile.tiles[key]} = {text}")
        return tile.tiles[key]

    def _dot(self, a: str, b: str, plus: str, dtype: torch.dtype) -> str:
        more = (f", {plus}" if plus else "") + (', input_precision="ieee"' if dtype == torch.float32 else "")
        return f"tl.dot({a}, {b}{more})"

    def _tile(self, name: str) -> tuple[Function, str]:
        template, lay = self.t, self.lay
        names = Names(origins=self.origins)
        masks: dict[str, str] = {}
        body = [f"pid = {self._pid('tl.program_id(0)')}"]
        pid = "pid"
        if lay.split > 1:
            body.append("piece = pid % SPLIT")
            pid = "(pid // SPLIT)"
        lines, block = self._program(pid, masks)
        body += lines
        body += self._columns([*(product.inner for product in template.products), *(s.columns for s in template.sums)])
        self.tiles_of_rows: dict[str, str] = {}
        tiles: dict[Value, str] = {}
        for product in template.products:
            key, text = self._load(product.a, product.inner, "x", masks, names)
            if key not in tiles:
                tiles[key] = f"{self.row_tile}{len(tiles)}"
                body.append(f"{tiles[key]} = {text}")
            self.tiles_of_rows[product.name] = tiles[key]
        body += self._state()
        body += [f"{s.name} = tl.zeros([XBLOCK, {held(s.columns)}], tl.float32)" for s in template.sums]
        body += self._loops(names, masks, block)
        body += self._end(names, masks)
        constants = {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock} | ({"SPLIT": lay.split} if lay.split > 1 else {})
        return self._function(name, body, self.batch * self._blocks() * lay.split, constants, self.scratch)

    # ---- a pass over keys
    def _loop(self, begin: str, end: str, names: Names, masks: dict[str, str], edge: bool) -> list[str]:
        template = self.t
        far = ".to(tl.int64)" if self.lay.wide else ""
        head = [
            f"r0 = roffset + tl.arange(0, RBLOCK)[None, :]{far}",
            f"s0 = roffset + tl.arange(0, RBLOCK)[:, None]{far}",
        ]
        inner, by_rows = dict(masks), {}
        if edge and not self.even:
            head += [f"rmask = r0 < {self._t(self.n_keys)}", f"smask = s0 < {self._t(self.n_keys)}"]
            inner["r"], by_rows["r"] = "rmask", "smask"
        values = self._of(
            names,
            self._dims("x", template.rows, {template.keys.symbol.name: "r"}),
            inner,
            ("x", "XBLOCK"),
            ("r", "RBLOCK"),
            lambda name: Operand(name, F32, frozenset("xr")),
        )
        tile = KeyTile(names, values, inner, by_rows)
        self._of_row(tile, edge)
        for s in template.sums:
            factor = self._factor(tile, s, edge)
            tile.emit(f"{s.name} = {self._dot(factor, self._of_keys(tile, s.c, s.columns), self._sum(s), s.c.dtype)}")
        names.forget("r")
        return [
            *values.outside,
            f"for roffset in range({begin}, {end}, RBLOCK):",
            *(f"    {line}" for line in [*head, *values.inside]),
        ]

    def _computed(self, tile: KeyTile, root: Value, edge: bool) -> Value:
        """The value, without conditions that hold for all of the tile; the products that it is made of are there."""
        root = root if edge else where_all_hold(root, self.known)
        for name in dict.fromkeys(
            value.attr for value in walk([root]) if value.is_accumulator and value.attr not in tile.products
        ):
            p = next(product for product in self.t.products if product.name == name)
            tile.emit(f"{name} = {self._dot(self.tiles_of_rows[name], self._across(tile, p), '', p.a.dtype)}")
            tile.products.add(name)
        return root

    def _text(self, tile: KeyTile, value: Value) -> str:
        operand = tile.values.operand(value)
        return operand.text if operand.dims >= frozenset("xr") else f"tl.broadcast_to({operand.text}, [XBLOCK, RBLOCK])"

    def _across(self, tile: KeyTile, product: InnerProduct) -> str:
        """The keys' operand of a product, with keys along columns."""
        return f"tl.trans({self._of_keys(tile, product.b, product.inner)})"

    def _factor(self, tile: KeyTile, s: WeightedSum, edge: bool) -> str:
        """What columns are multiplied with, in their own type."""
        factor = self._computed(tile, self.factors[s.name], edge)
        tile.values.emit([factor])
        text = self._text(tile, factor)
        if "r" in tile.masks:
            text = f"tl.where(rmask, {text}, 0.0)"
        return f"({text}).to({ttype(s.c.dtype).stored})"

    # ---- what a row keeps: here nothing
    def _state(self) -> list[str]:
        """What it is before the first key."""
        return []

    def _of_row(self, tile: KeyTile, edge: bool) -> None:
        """Print what a tile of keys makes of it."""

    def _sum(self, s: WeightedSum) -> str:
        """What a sum is before a tile is added."""
        return s.name

    def _end(self, names: Names, masks: dict[str, str]) -> list[str]:
        """What becomes of the sums."""
        out: list[str] = []
        for s, stage in zip(self.t.sums, self.k.stages):
            column, n = f"d{s.columns.size}", held(s.columns)
            renamed = {s.columns.symbol.name: symbol(column)}
            if self.scales.get(s.name, 1) != 1:
                out.append(f"{s.name} = {s.name} * {self.scales[s.name]!r}")
            more, size = masks | self._beyond(column, s.columns), (column, str(n))
            out += self._stores(stage, {column: column}, more, size, renamed, names)
        return out

    def _stores(
        self,
        stage: Stage,
        columns: dict[str, str],
        masks: dict[str, str],
        size: tuple[str, str],
        renamed: dict,
        names: Names,
        prefix: str = "",
    ) -> list[str]:
        """What a stage stores of rows and `columns`."""
        dims = frozenset(("x", *columns))
        values = self._of(
            names,
            self._dims("x", self.t.rows, columns),
            masks,
            ("x", "XBLOCK"),
            size,
            lambda name: Operand(prefix + name, F32, dims),
        )
        for store in stage.stores:
            value = self._named(store.value, renamed)
            values.emit([stored(value)])
            values.store(store.buffer, store.index.subs(renamed), value, store.mode, dims)
        return [*values.outside, *values.inside]
