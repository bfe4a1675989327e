"""Programs that hold a tile of rows and go through keys tile by tile: which tiles of keys they go through.

Comparisons of key and row positions, without which what is computed counts for nothing, say which tiles of keys count
at all, and for which of those a comparison holds everywhere: a loop over the latter leaves it out. Where other
conditions hold at all (documents of packed sequences) a first loop finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterable, Sequence

import torch

from ....lowering.ir import Axis, Value, known_position, numel, walk
from ....lowering.rewrite import Rewriter
from ....symbolic.expr import ZERO, Expr, as_expr, ceildiv, integer, symbol
from .plans import held
from ..dtypes import ttype
from ..layout import Layout
from ..prims import Operand
from ..printer import Printer
from ..values import Names, Values

__all__ = ["Bound", "F32", "LOG2E", "RowTiles", "bound_of", "conjuncts"]

LOG2E = 1.4426950408889634
FIRST, LAST = symbol("first_row"), symbol("last_row")
F32 = ttype(torch.float32)


@dataclass(frozen=True)
class Bound:
    """Keys that a comparison lets through: from, or up to and with, `limit`."""

    upper: bool
    limit: Expr
    condition: Value


def conjuncts(value: Value) -> list[Value]:
    return [x for arg in value.args for x in conjuncts(arg)] if value.op == "logical_and" else [value]


def bound_of(value: Value, t: Any) -> Bound | None:
    """What a comparison of positions says of the keys of a template."""
    if value.op not in ("lt", "le", "gt", "ge"):
        return None
    a, b = map(known_position, value.args)
    if a is None or b is None:
        return None
    expr, key = a - b, t.keys.symbol
    sign = expr.coeff(key.name)
    if sign is None or not sign.is_const or abs(sign.value) != 1:
        return None
    rest = expr - key * sign
    plain = {x.symbol.name for x in (*t.batch, *t.rows)}
    if any(name.startswith("ind") or name == key.name for name in rest.symbol_names()):
        return None
    for n in rest.symbol_names() & plain:
        k = rest.coeff(n)
        if k is None or not k.is_const:
            return None
    upper = (value.op in ("lt", "le")) == (sign.value > 0)
    limit = rest * -sign.value
    if value.op in ("lt", "gt"):
        limit = limit - 1 if upper else limit + 1
    return Bound(upper, limit, value)


def looked_through(conditions: Iterable[Value], t: Any) -> list[Value]:
    """Those conditions for which it pays to look first between which keys they hold at all, tile by tile. They are no
    bounds, and take no memory of their own for each score: documents of a packed sequence, lengths, prefixes, chunks.
    """
    key, rows = t.keys.symbol.name, {row.symbol.name for row in t.rows}

    def is_cheap(value: Value) -> bool:
        over: set[str] = set()
        for v in walk([value]):
            names = v.symbols
            if (
                v.op in _DEAR
                or v.args
                and v.is_load
                or v.is_load
                and key in names
                and names & rows
                or any(name.startswith("ind") for name in names)
            ):
                return False
            if v.op == "index" and _repeats(v.attr):
                return False
            over |= names
        return key in over or bool(rows & over)

    return [condition for condition in conditions if bound_of(condition, t) is None and is_cheap(condition)]


def _repeats(expr: Expr) -> bool:
    return expr.op == "mod" or any(_repeats(arg) for arg in expr.args if isinstance(arg, Expr))


_DEAR = frozenset(("exp", "exp2", "log", "tanh", "sin", "cos", "pow", "erf", "remainder", "fmod", "acc"))


class RowTiles(Printer):
    """`_goes_through` says what, `_loop` prints a pass over keys."""

    def _goes_through(self, t: Any, conditions: Iterable[Value], layout: Layout) -> None:
        """`t`: a template with axes batch, rows and keys; `conditions`: of which any that does not hold has a row and a
        key count for nothing.
        """
        conditions = list(conditions)
        self.over, self.bounds = t, [bound for condition in conditions if (bound := bound_of(condition, t)) is not None]
        self.sparse = looked_through(conditions, t)
        self.sizes = {axis.symbol.name: int(axis.size) for axis in t.axes if type(axis.size) is int}
        self.rows, self.n_keys, self.batch = numel(t.rows), as_expr(t.keys.size), numel(t.batch)
        self.even = self.n_keys.is_const and self.n_keys.value % layout.rblock == 0

    def _program(self, pid: str, masks: dict[str, str]) -> tuple[list[str], str]:
        """Lines that say which batch and rows a program has, and the text of its tile's number."""
        lines = [f"xblocks = {self._t(self._blocks())}", f"bindex = {pid} // xblocks"]
        block = f"({pid} % xblocks)"
        if any(
            bound.upper
            and FIRST.name
            in self._row_limit(bound.limit, True).symbol_names() | self._row_limit(bound.limit, False).symbol_names()
            for bound in self.bounds
        ):
            block = f"(xblocks - 1 - {pid} % xblocks)"  # (those that see the most keys begin)
        return lines + self._where(block, self.lay.xblock, masks), block

    def _blocks(self) -> Expr:
        return ceildiv(self.rows, integer(self.lay.xblock))

    def _loop(self, begin: str, end: str, names: Names, masks: dict[str, str], edge: bool) -> list[str]:
        """Lines of a loop over keys. `edge`: whether positions are looked at."""
        raise NotImplementedError

    # ---- positions
    def _where(self, block: str, xblock: int, masks: dict[str, str]) -> list[str]:
        """The batch axes and the rows of a program."""
        body = self._axes(self.over.batch, "b")
        body.append(f"xindex = {block} * XBLOCK + tl.arange(0, XBLOCK)[:, None]")
        if not (self.rows.is_const and self.rows.value % xblock == 0):
            body.append(f"xmask = xindex < {self._t(self.rows)}")
            masks["x"] = "xmask"
        return body + self._axes(self.over.rows, "x")

    def _beyond(self, name: str, axis: Axis) -> dict[str, str]:
        """The mask of a tile dimension that holds more columns than there are."""
        return {name: f"({name} < {axis.size})"} if held(axis) > int(axis.size) else {}

    def _of(
        self,
        names: Names,
        dims: dict[str, str],
        masks: dict[str, str],
        rows: tuple[str, str],
        columns: tuple[str, str],
        acc: Callable[[str], Operand] | None = None,
    ) -> Values:
        """A printer of values over tiles whose rows and columns are the given (dimension, size)."""

        def shape(have: frozenset[str]) -> str:
            return f"[{rows[1] if rows[0] in have else '1'}, {columns[1] if columns[0] in have else '1'}]"

        return Values(
            names,
            dims,
            masks,
            shape,
            acc or self._acc,
            self.need,
            self.itype,
            exact=self.exact,
            backend=self.target.backend,
            sizes=self.sizes,
        )

    def _operand(self, value: Value, values: Values, shape: str, whole: frozenset[str]) -> str:
        """The load of an operand's tile, in its own type: what lies outside is 0."""
        buffer, e = value.attr
        have = values.dims_of(e)
        mask, _ = values.mask(have)
        text = f"tl.load({buffer.name} + ({values.index(e)})" + (f", {mask}, other=0.0" if mask else "") + ")"
        return text if have >= whole else f"tl.broadcast_to({text}, {shape})"

    def _dims(self, dim: str, axes: Sequence[Axis], more: dict[str, str]) -> dict[str, str]:
        return {axis.symbol.name: dim for axis in axes} | more

    def _named(self, value: Value, names: dict[str, Expr]) -> Value:
        return Rewriter(on_index=lambda e: e.subs(names))(value)

    def _row_limit(self, expr: Expr, greatest: bool) -> Expr:
        """The greatest (or least) value of an expression over the rows of a tile."""
        rows = self.over.rows
        m = {}
        for row in rows:
            k = expr.coeff(row.symbol.name)
            if k is not None and k is not ZERO:
                ends = (FIRST, LAST) if len(rows) == 1 else (ZERO, as_expr(row.size) - 1)
                m[row.symbol.name] = ends[(k.value > 0) == greatest]
        return expr.subs(m) if m else expr

    def _loops(self, names: Names, masks: dict[str, str], block: str) -> list[str]:
        """The passes over the keys: those that a condition may leave out before and after those that all rows of the
        tile see.
        """
        lay, n_keys = self.lay, self.n_keys
        block_of, size = f"{block} * XBLOCK", self._t(n_keys)
        begin, end = "0", size
        out: list[str] = []
        limits = [(bound.upper, self._row_limit(bound.limit, g), g) for bound in self.bounds for g in (True, False)]
        if any({FIRST.name, LAST.name} & expr.symbol_names() for _, expr, _ in limits):
            out += [f"first_row = {block_of}", f"last_row = tl.minimum(first_row + XBLOCK, {self._t(self.rows)}) - 1"]

        def text(upper: bool, greatest: bool, wrap: str, start: str) -> str:
            for u, e, g in limits:
                if u is upper and g is greatest:
                    start = f"tl.{wrap}({start}, {self._t(e + 1 if upper else e)})"
            return start

        lower, upper = (any(bound.upper is u for bound in self.bounds) for u in (False, True))
        if lower:
            out.append(f"begin = {text(False, False, 'maximum', '0')} // RBLOCK * RBLOCK")
            begin = "begin"
        if upper:
            out.append(f"end = {text(True, True, 'minimum', size)}")
            end = "end"
        if lay.split > 1:
            out += [
                "per = tl.cdiv(tl.cdiv(" + size + ", RBLOCK), SPLIT) * RBLOCK",
                f"begin = tl.maximum({begin}, piece * per)",
                f"end = tl.minimum({end}, piece * per + per)",
            ]
            begin, end = "begin", "end"
        if self.sparse:
            begin, end, lines = self._narrowed(begin, end, names, masks)
            out += lines
        if self.even and not self.bounds:  # (also in pieces)
            return [*out, *self._loop(begin, end, names, masks, False)]
        whole = begin
        if lower:
            out.append(
                f"whole = tl.minimum(tl.cdiv({text(False, True, 'maximum', begin)}, RBLOCK), tl.cdiv({end}, RBLOCK)) *"
                " RBLOCK"
            )
            whole = "whole"
        out.append(f"rest = tl.maximum({whole}, ({text(True, False, 'minimum', end)}) // RBLOCK * RBLOCK)")
        if lower:
            out += self._loop(begin, "whole", names, masks, True)
        out += self._loop(whole, "rest", names, masks, False)
        return out if self.even and not upper else out + self._loop("rest", end, names, masks, True)

    def _narrowed(self, begin: str, end: str, names: Names, masks: dict[str, str]) -> tuple[str, str, list[str]]:
        """(begin, end) of the keys between which a row of the tile sees any, and the lines that find them."""
        t = self.over
        head = [f"r0 = roffset + tl.arange(0, RBLOCK)[None, :]{'.to(tl.int64)' if self.lay.wide else ''}"]
        inner = dict(masks)
        if not self.even:
            head.append(f"rmask = r0 < {self._t(self.n_keys)}")
            inner["r"] = "rmask"
        values = self._of(
            names, self._dims("x", t.rows, {t.keys.symbol.name: "r"}), inner, ("x", "XBLOCK"), ("r", "RBLOCK")
        )
        values.emit(self.sparse)
        seen = [values.operand(c) for c in self.sparse]
        names.forget("r")
        lines = list(values.outside)
        of_rows = " & ".join([x.text for x in seen if "r" not in x.dims] + ([masks["x"]] if "x" in masks else []))
        if len([x for x in seen if "r" in x.dims]) < len(seen):
            lines += [f"end = tl.where(tl.max(({of_rows}).to(tl.int32)) > 0, {end}, {begin})"]
            end = "end"
        of_both = " & ".join([x.text for x in seen if "r" in x.dims] + [inner[d] for d in ("x", "r") if d in inner])
        if any("r" in x.dims for x in seen):
            lines += [
                f"least = tl.full([XBLOCK, RBLOCK], {2**31 - 1}, {self.itype})",
                f"most = tl.zeros([XBLOCK, RBLOCK], {self.itype})",
                f"for roffset in range({begin}, {end}, RBLOCK):",
                *(
                    f"    {line}"
                    for line in [
                        *head,
                        *values.inside,
                        f"seen = {of_both}",
                        "least = tl.minimum(least, tl.where(seen, roffset, least))",
                        "most = tl.where(seen, roffset + RBLOCK, most)",
                    ]
                ),
                f"begin = tl.maximum({begin}, tl.minimum(tl.min(least), {end}))",
                f"end = tl.minimum({end}, tl.max(most))",
            ]
            begin = "begin"
        return begin, end, lines
