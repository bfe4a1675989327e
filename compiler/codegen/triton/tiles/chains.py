"""Kernels of chained products (templates.ChainedProducts): a program holds a tile of rows, goes through the keys tile
by tile, makes the products of both there, computes from them what the columns are multiplied with, and adds that up for
each result.

What a tile of keys is read for, as an operand of a product and as columns, is read once. Conditions outside of which
everything is 0 bound the loop, as in attention (row_tiles.py).
"""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import torch

from ....lowering.ir import Axis, Kernel, Value, const, make, prim, walk
from ....lowering.templates import ChainedProducts
from ....symbolic.expr import ZERO, symbol
from .attention_tiles import held, shared_memory
from ..dtypes import ttype
from ..layout import Choices, GpuTarget, Layout, at_hints, is_wide, numel
from ..prims import Operand
from ..printer import Function
from .row_tiles import F32, LOG2E, RowTiles, conjuncts
from ..values import Names, Values, stored

__all__ = ["ChainPrinter", "chain_choices", "plan_chain"]

LEAST = 16


# ---- tiles
def plan_chain(kernel: Kernel, target: GpuTarget, choices: Choices = Choices(), wide: bool | None = None) -> Layout:
    t = kernel.template
    assert isinstance(t, ChainedProducts)
    rows, keys, batch = (at_hints(numel(axes), kernel.hints) for axes in (t.rows, (t.keys,), t.batch))
    width = max(held(a) for a, *_ in (*t.products, *t.sums))
    several = len(t.sums) > 1
    xblock, rblock, warps = (128, 64, 8) if width <= 64 and not several else (64, 64, 4)
    while xblock > LEAST and (xblock >= 2 * rows or xblock > 64 and batch * -(-rows // xblock) < 2 * target.processors):
        xblock //= 2
    while rblock > LEAST and rblock >= 2 * keys:
        rblock //= 2
    lay = Layout("chain", t.rows, (), xblock, 1, rblock, 4 if xblock <= 64 else warps, 3)
    for name in ("xblock", "rblock", "warps", "stages"):
        if getattr(choices, name) is not None:
            setattr(lay, name, getattr(choices, name))
    while lay.stages > 1 and shared_bytes(t, lay) > shared_memory(target):
        lay.stages -= 1
    lay.wide = is_wide(kernel) if wide is None else wide
    return lay


def shared_bytes(t: ChainedProducts, lay: Layout) -> int:
    """About as much shared memory as a program needs: its rows' operands, for each stage what it reads of the keys, and
    what one sum multiplies.
    """
    of_rows = sum(held(a) for a, *_ in t.products)
    of_keys = sum(held(a) for a, *_ in t.products) + sum(held(a) for a, *_ in t.sums)
    return 2 * (lay.xblock * of_rows + max(1, lay.stages) * lay.rblock * of_keys + lay.xblock * lay.rblock)


def chain_choices(default: dict[str, Any]) -> list[Choices]:
    """Tiles for a search, around those of the rules."""
    return [
        Choices(xblock=x, rblock=r, warps=w, stages=n)
        for x, r, w, n in (
            (64, 64, 4, 3),
            (64, 64, 4, 2),
            (128, 64, 8, 2),
            (128, 64, 8, 3),
            (64, 128, 8, 2),
            (128, 32, 4, 3),
            (64, 32, 4, 4),
            (128, 128, 8, 2),
        )
    ]


# ---- fewer operations for each score
def _scaled(v: Value) -> tuple[Value, float]:
    """(x, number) with v = x * number."""
    if v.op in ("mul", "div") and v.args[1].op == "const" and 0 < abs(v.args[1].attr) < math.inf:
        x, number = _scaled(v.args[0])
        return x, number * v.args[1].attr if v.op == "mul" else number / v.args[1].attr
    if v.op == "where" and v.args[2].op == "const" and v.args[2].attr in (0, -math.inf):
        x, number = _scaled(v.args[1])
        if number > 0 or v.args[2].attr == 0:
            return prim("where", v.args[0], x, v.args[2]), number
    return v, 1.0


def _times(v: Value, number: float, of_tile: Callable[[Value], bool]) -> Value:
    """v * number with as few products of whole tiles as there may be."""
    x, own = _scaled(v)
    number *= own
    if x.op in ("add", "sub") and not all(map(of_tile, x.args)):
        return prim(x.op, *(_times(a, number, of_tile) for a in x.args))
    if x.op == "where" and x.args[2].op == "const" and x.args[2].attr in (0, -math.inf) and number > 0:
        return prim("where", x.args[0], _times(x.args[1], number, of_tile), x.args[2])
    return x if number == 1 else prim("mul", x, const(number, x.dtype))


def _by_powers_of_two(root: Value, of_tile: Callable[[Value], bool]) -> Value:
    """The value with exponentials of float32 as powers of two, whose factor and that of their operand are one number;
    and quotients as products.
    """
    made: dict[int, Value] = {}
    for v in walk([root]):
        args = tuple([made[a.id] for a in v.args])
        new = (
            v
            if v.op in ("load", "index") or all(x is y for x, y in zip(args, v.args))
            else make(v.op, v.dtype, args, v.attr)
        )
        if new.op == "exp" and new.dtype == torch.float32:
            new = prim("exp2", _times(new.args[0], LOG2E, of_tile))
        elif new.op == "div" and new.dtype == torch.float32 and new.args[1].op == "const":
            new = _times(new, 1.0, of_tile)
        made[v.id] = new
    return made[root.id]


# ---- where a factor is 0
def _needed(v: Value, zero: bool = True) -> dict[int, Value]:
    """Conditions (by id) without which v is 0; or, not `zero`, -inf."""
    op, a = v.op, v.args
    if op == "where" and a[2].op == "const" and a[2].attr == (0 if zero else -math.inf):
        return {c.id: c for c in conjuncts(a[0])} | _needed(a[1], zero)
    if (
        op == "cast"
        and a[0].dtype.is_floating_point
        or op == "mul"
        and not zero
        and a[1].op == "const"
        and a[1].attr > 0
    ):
        return _needed(a[0], zero)
    if zero and op == "mul":
        return _needed(a[0]) | _needed(a[1])
    if zero and op in ("neg", "div"):
        return _needed(a[0])
    if zero and op in ("exp", "exp2") or not zero and op == "sub":
        return _needed(a[0], False)
    if zero and op in ("add", "sub"):
        both = _needed(a[1])
        return {k: c for k, c in _needed(a[0]).items() if k in both}
    return {}


def _where_all_hold(root: Value, known: dict[int, Value]) -> Value:
    """The value where those conditions hold."""
    made: dict[int, Value] = {}
    for v in walk([root]):
        if v.op == "where" and any(c.id in known for c in conjuncts(v.args[0])):
            left = [c for c in conjuncts(v.args[0]) if c.id not in known]
            x, y = (made[a.id] for a in v.args[1:])
            c = None
            for part in left:
                c = part if c is None else prim("logical_and", c, part)
            made[v.id] = x if c is None else prim("where", c, x, y)
        else:
            args = tuple([made[a.id] for a in v.args])
            made[v.id] = (
                v
                if v.op in ("load", "index") or all(x is y for x, y in zip(args, v.args))
                else make(v.op, v.dtype, args, v.attr)
            )
    return made[root.id]


class ChainPrinter(RowTiles):
    def __init__(self, kernel: Kernel, target: GpuTarget, layout: Layout, name: str, exact: bool = False):
        super().__init__(kernel, target, layout, name, exact)
        t = kernel.template
        assert isinstance(t, ChainedProducts)
        self.t = t
        factors = [
            _by_powers_of_two(f, self._of_tile) if target.backend == "cuda" and not exact else f for _, f, _ in t.sums
        ]
        # a number that all of a sum is multiplied with is so at the end; in float16 it may keep what is summed in range
        scaled = [_scaled(f) if c.dtype == torch.bfloat16 else (f, 1.0) for f, (_, _, c) in zip(factors, t.sums)]
        self.factors, self.scales = ([x[k] for x in scaled] for k in range(2))
        every = [_needed(f) for f in self.factors]
        common = {k: c for k, c in every[0].items() if all(k in e for e in every)}
        self._goes_through(t, common.values(), layout)
        self.known = {b.condition.id: b.condition for b in self.bounds}

    def _functions(self) -> list[tuple[Function, str]]:
        return [self._tile(self.name)]

    def _of_tile(self, v: Value) -> bool:
        """Whether a value is another for each row and key."""
        values = walk([v])
        over = {
            n
            for x in values
            for n in (x.attr[1] if x.op == "load" else x.attr if x.op == "index" else ZERO).symbol_names()
        }
        return (
            any(x.op == "acc" for x in values)
            or self.t.keys.symbol.name in over
            and any(a.symbol.name in over for a in self.t.rows)
        )

    # ---- tiles of operands
    def _columns(self, axes: Sequence[Axis]) -> list[str]:
        """Variables for columns, one for each size."""
        sizes = dict.fromkeys(int(a.size) for a in axes)
        return [f"d{n} = tl.arange(0, {held(Axis(symbol('d'), n))})[None, :]" for n in sizes]

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
        return value, self._operand("", value, v, f"[{block}, {n}]", frozenset((dim, column))).removeprefix(" = ")

    def _tile(self, name: str) -> tuple[Function, str]:
        t, lay = self.t, self.lay
        names = Names(origins=self.origins)
        masks: dict[str, str] = {}
        body = [f"pid = {self._pid('tl.program_id(0)')}"]
        lines, block = self._program("pid", masks)
        body += lines
        body += self._columns([a for a, *_ in (*t.products, *t.sums)])
        self.of_rows: list[str] = []
        tiles: dict[Value, str] = {}
        for axis, a, _ in t.products:
            key, text = self._load(a, axis, "x", masks, names)
            if key not in tiles:
                tiles[key] = f"a{len(tiles)}"
                body.append(f"{tiles[key]} = {text}")
            self.of_rows.append(tiles[key])
        body += [f"sum{j} = tl.zeros([XBLOCK, {held(axis)}], tl.float32)" for j, (axis, *_) in enumerate(t.sums)]
        body += self._loops(names, masks, block)
        for j, (axis, *_) in enumerate(t.sums):
            body += self._stored(j, axis, names, masks)
        return self._function(name, body, self.batch * self._blocks(), {"XBLOCK": lay.xblock, "RBLOCK": lay.rblock})

    # ---- a pass over keys
    def _loop(self, begin: str, end: str, names: Names, masks: dict[str, str], edge: bool) -> list[str]:
        t = self.t
        far = ".to(tl.int64)" if self.lay.wide else ""
        head = [
            f"r0 = roffset + tl.arange(0, RBLOCK)[None, :]{far}",
            f"s0 = roffset + tl.arange(0, RBLOCK)[:, None]{far}",
        ]
        inner, of_keys = dict(masks), {}
        if edge and not self.even:
            head += [f"rmask = r0 < {self._t(self.n_keys)}", f"smask = s0 < {self._t(self.n_keys)}"]
            inner["r"], of_keys["r"] = "rmask", "smask"
        v = self._of(
            names,
            self._dims("x", t.rows, {t.keys.symbol.name: "r"}),
            inner,
            ("x", "XBLOCK"),
            ("r", "RBLOCK"),
            lambda name: Operand(name, F32, frozenset("xr")),
        )
        tiles: dict[Value, str] = {}

        def of_key(value: Value, axis: Axis) -> str:
            key, text = self._load(value, axis, "r", of_keys, names)
            if key not in tiles:
                tiles[key] = f"b{len(tiles)}"
                v.inside.append(f"{tiles[key]} = {text}")
            return tiles[key]

        done: set[str] = set()
        for j, (axis, _, c) in enumerate(t.sums):
            factor = self.factors[j]
            if not edge:
                factor = _where_all_hold(factor, self.known)
            for name in dict.fromkeys(x.attr for x in walk([factor]) if x.op == "acc" and x.attr not in done):
                k = int(name.removeprefix("product"))
                over, _, b = t.products[k]
                v.inside.append(f"{name} = tl.dot({self.of_rows[k]}, tl.trans({of_key(b, over)}))")
                done.add(name)
            v.emit([factor])
            x = v.operand(factor)
            text = x.text if x.dims >= frozenset("xr") else f"tl.broadcast_to({x.text}, [XBLOCK, RBLOCK])"
            if "r" in inner:
                text = f"tl.where(rmask, {text}, 0.0)"
            v.inside.append(f"sum{j} = tl.dot(({text}).to({ttype(c.dtype).stored}), {of_key(c, axis)}, sum{j})")
        names.forget("r")
        return [
            *v.outside,
            f"for roffset in range({begin}, {end}, RBLOCK):",
            *(f"    {line}" for line in [*head, *v.inside]),
        ]

    def _stored(self, j: int, axis: Axis, names: Names, masks: dict[str, str]) -> list[str]:
        column, n = f"d{axis.size}", held(axis)
        v: Values = self._of(
            names,
            self._dims("x", self.t.rows, {column: column}),
            masks | self._beyond(column, axis),
            ("x", "XBLOCK"),
            (column, str(n)),
            lambda name: Operand(name, F32, frozenset(("x", column))),
        )
        scale = [f"sum{j} = sum{j} * {self.scales[j]!r}"] if self.scales[j] != 1 else []
        for s in self.k.stages[j].stores:
            value = self._named(s.value, {axis.symbol.name: symbol(column)})
            v.emit([stored(value)])
            v.store(s.buffer, s.index.subs({axis.symbol.name: symbol(column)}), value, s.mode, frozenset(("x", column)))
        return [*scale, *v.outside, *v.inside]
