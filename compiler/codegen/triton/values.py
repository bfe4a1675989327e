"""Statements for values: each printed once, as early as what it needs is there.

A value's `dims` are the tile dimensions that it varies over; what does not vary over "r" stands outside of a loop over
the reduced axes. What must not be evaluated everywhere has a guard (../guarded.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, ClassVar, Iterable

import torch

from ...lowering.ir import Axis, Buffer, Value, indirect_values, is_plain_load
from ...lowering.primitives import EXACT
from ...symbolic.expr import ONE, Expr, as_expr, symbol
from ..guarded import FreshNames, Guard, GuardedValues, stored
from .fast_math import cheap_expression, short_form, short_text
from .dtypes import literal, ttype
from .indices import index_text
from .prims import Operand, conversion, expression, materialised, rounded

__all__ = ["Names", "Tile", "Values"]

NONE: frozenset[str] = frozenset()
# bits that are read at once: words where a loop reads ahead, for which the hardware wants four bytes
BYTE, WORD = (8, 32)
# "r": a tile dimension of the loop over the reduced axes; "s": what changes from step to step alone
LOOPED = frozenset("rs")


@dataclass(frozen=True)
class Tile:
    """Where the lanes of a tile dimension lie: `start`, a multiple of `block`, plus tl.arange(0, block) at `position`;
    `per`: elements of a tile for each thread."""

    dim: str
    start: str
    position: str
    axes: tuple[Axis, ...]
    block: int
    per: int


def _memory(buffer: Buffer, n: int) -> str:
    """A buffer of bits as memory of n bits each."""
    return (
        buffer.name
        if 8 * buffer.dtype.itemsize == n
        else f"{buffer.name}.to(tl.pointer_type(tl.{'uint8' if n == BYTE else 'int32'}))"
    )


def _are_neighbours(expr: Expr, tile: Tile, n: int) -> bool:
    """Whether n lanes of a tile, from a multiple of n on, are at places side by side, from a multiple of n on."""
    if n > tile.block or not tile.axes or expr.coeff(tile.axes[-1].symbol.name) is not ONE:
        return False
    fast = tile.axes[-1]
    steps = [coeff for coeff, _ in (expr - fast.symbol).terms()] + [coeff for coeff, _ in as_expr(fast.size).terms()]
    return all(step % n == 0 for step in steps)


@dataclass
class Names(FreshNames):
    """Values that are in scope."""

    known: dict[tuple, Operand] = field(default_factory=dict)

    def forget(self, dim: str) -> None:
        """Names of a loop's body end with the loop."""
        for k in [key for key, value in self.known.items() if dim in value.dims and not value.is_literal]:
            del self.known[k]


class Values(GuardedValues):
    """Prints the values that roots need.

    axis_dims: axis symbol -> tile dimension; masks: dimension -> name of its mask (dimensions without one are always
    full);
    shape: dims -> text of a tile's shape; acc: accumulator name -> Operand; policy: buffer -> eviction policy of its
    loads or "";
    exact: ids of values that take no short forms (None: all), rounded: fast_math.rounded_to, `backend`: Triton's;
    sizes: axis symbol -> its size where that is a number;
    loose: dimension -> (name of a mask that ends at a multiple of 8, elements up to there), where a load may go so far;
    zero: dimensions along which loads that are masked off give 0; tiles: the dimensions of tiles, for what is computed
    for neighbours at once;
    ahead: whether a loop reads ahead, by words of four bytes and more; open: what of an index the text leaves open
    (open_numbers.py).
    """

    CARE = frozenset(("load", "check_index"))

    def __init__(
        self,
        names: Names,
        axis_dims: dict[str, str],
        masks: dict[str, str],
        shape: Callable[[frozenset], str],
        acc: Callable[[str], Operand],
        need: Callable[[str], None],
        index_type: str,
        policy: Callable[[Buffer, frozenset], str] = lambda b, d: "",
        exact: set[int] | None = None,
        backend: str = "cuda",
        sizes: dict[str, int] | None = None,
        loose: dict[str, tuple[str, int]] | None = None,
        zero: frozenset[str] = NONE,
        tiles: Iterable[Tile] = (),
        rounded: dict[int, torch.dtype] | None = None,
        ahead: bool = False,
        open: Callable[[Expr], Expr] = lambda e: e,
    ):
        super().__init__(names.known)
        self.rounded, self.ahead, self.open = rounded or {}, ahead, open
        self.exact, self.backend, self.sizes, self.loose, self.zero, self.tiles = (
            exact,
            backend,
            sizes or {},
            loose or {},
            zero,
            tuple(tiles),
        )
        self.names, self.axis_dims, self.masks, self.shape, self.acc = names, axis_dims, masks, shape, acc
        self.need, self.index_type, self.policy = need, index_type, policy
        self.looped = LOOPED  # dimensions of the loop: what does not vary over them stands outside of it
        self.outside: list[str] = []
        self.inside: list[str] = []
        self._under: Guard = ()  # of the statement that is printed

    # ---- order
    def emit(self, roots: Iterable[Value]) -> None:
        for v, guard in self.order(roots):
            key = self.key(v, guard)
            if key not in self.names.known:
                self._under = guard
                x = self.names.known[key] = self._statement(v, guard)
                if v.origin and x.text.isidentifier():
                    self.names.origins.setdefault(x.text, v.origin)
                self._under = ()

    def operand(self, value: Value, guard: Guard = ()) -> Operand:
        return self.names.known[self.key(value, self.guard_of(value, guard))]

    def takes_care(self, value: Value) -> bool:
        return super().takes_care(value) and not self._inside(value)

    def operands(self, value: Value, guard: Guard) -> list[tuple[Value, Guard]]:
        if value.op == "philox" and self._together(value):
            return [(arg, guard) for arg in value.args if arg is not value.args[2]]
        short = self._short(value) if value.op != "masked" else None
        return super().operands(value, guard) if short is None else [(short[1], guard)]

    def _rough(self, value: Value) -> bool:
        return self.exact is not None and value.id not in self.exact

    def _short(self, value: Value) -> tuple[str, Value] | None:
        """fast_math.short_form where one may stand."""
        if self.backend != "cuda" or not self._rough(value) or ttype(value.dtype).held != "tl.float32":
            return None
        return short_form(value, self.rounded.get(value.id))

    # ---- texts
    def _let(self, stem: str, text: str, value: Value, dims: frozenset[str]) -> Operand:
        name = self.names.fresh(stem)
        (self.inside if dims & self.looped else self.outside).append(f"{name} = {text}")
        return Operand(name, ttype(value.dtype), dims)

    def _statement(self, value: Value, guard: Guard) -> Operand:
        return self._OWN.get(value.op, Values._computed)(self, value, guard)

    def _arguments(self, value: Value, guard: Guard) -> list[Operand]:
        return [self.operand(a, g) for a, g in self.operands(value, guard)[: len(value.args)]]

    def _const(self, value: Value, guard: Guard) -> Operand:
        t = ttype(value.dtype)
        text = literal(value.attr, t)
        return Operand(f"({text})" if text.startswith("-") else text, t, is_literal=True)

    def _param(self, value: Value, guard: Guard) -> Operand:
        return Operand(value.attr, ttype(value.dtype))

    def _acc(self, value: Value, guard: Guard) -> Operand:
        return self.acc(value.attr)

    def _cast(self, value: Value, guard: Guard) -> Operand:
        t, (x,) = ttype(value.dtype), self._arguments(value, guard)
        if x.t == t or x.t.held == t.held and not t.low_precision and x.t.kind == t.kind and not x.is_literal:
            return Operand(x.text, t, x.dims, x.is_literal)
        return self._let("as_" + t.stored.removeprefix("tl."), conversion(x, t), value, x.dims)

    def _computed(self, value: Value, guard: Guard) -> Operand:
        t, args = ttype(value.dtype), self._arguments(value, guard)
        dims = frozenset().union(*(arg.dims for arg in args))
        short = self._short(value)
        text = (
            short_text(short[0], args[0], self.need)
            if short is not None
            else (cheap_expression(value, t, args, self.need, self.backend) if self._rough(value) else None)
            or expression(value.op, t, args, self.need)
        )
        if t.low_precision and value.op not in EXACT:
            text = rounded(f"({text})", t)  # an operator of a low precision type rounds its result
        return self._let(value.op, text, value, dims)

    def dims_of(self, expr: Expr) -> frozenset[str]:
        known = indirect_values()
        out: set[str] = set()
        for name in expr.symbol_names():
            if name in self.axis_dims:
                out.add(self.axis_dims[name])
            elif name in known:
                out |= self._indirect(known[name]).dims
        return frozenset(out)

    def _indirect(self, value: Value) -> Operand:
        """What stands behind an index, under the same guard as what is read there: elements that a check leaves out
        have no position.
        """
        return self.operand(value, self._under)

    def index(self, expr: Expr) -> str:
        known = indirect_values()
        m = {name: symbol(self._indirect(known[name]).text) for name in expr.symbol_names() if name in known}
        return index_text(expr.subs(m) if m else expr, self.need)

    def spread(self, text: str, have: frozenset[str], want: frozenset[str]) -> str:
        """An index as a tile over at least the dimensions `want`."""
        if want <= have:
            return text
        return f"{text} + tl.zeros({self.shape(have | want)}, {self.index_type})"

    def mask(self, dims: frozenset[str], guard: Guard = ()) -> tuple[str, frozenset[str]]:
        """(text of a mask or "", dimensions that it varies over)."""
        parts = [self.masks[dim] for dim in sorted(dims, reverse=True) if dim in self.masks]
        over = frozenset(dim for dim in dims if dim in self.masks)
        for k, g in enumerate(guard):
            x = self.operand(g, guard[:k])
            parts.append(x.text)
            over |= x.dims
        return " & ".join(parts), over

    def _inside(self, value: Value, sizes: dict[str, int] | None = None) -> bool:
        """Whether a load is inside of its buffer wherever the axes are: then a condition around it need not guard
        it.
        """
        if not is_plain_load(value):
            return False
        buffer, expr = value.attr
        sizes = self.sizes if sizes is None else sizes
        if not all(type(n) is int for n in (*buffer.shape, *buffer.stride)) or not all(buffer.shape):
            return False
        last, rest = 0, expr
        for name in expr.symbol_names():
            coeff = expr.coeff(name)
            if name not in sizes or coeff is None or not coeff.is_const or coeff.value < 0:
                return False
            last += coeff.value * (sizes[name] - 1)
            rest = rest.subs({name: 0})
        end = sum((size - 1) * st for size, st in zip(buffer.shape, buffer.stride))
        return rest.is_const and rest.value >= 0 and last + rest.value <= end

    def _load(self, value: Value, guard: Guard) -> Operand:
        buffer, e = value.attr
        have = self.dims_of(e)
        if buffer.bits:
            return self._bits(value, guard, have)
        mask, over = self.mask(have, guard)
        if "r" in have and "r" in self.loose and not guard:
            # whole words of 16 bytes: the end of a row may be read too far
            name, n = self.loose["r"]
            axes = [key for key, dim in self.axis_dims.items() if dim == "r"]
            if len(axes) == 1 and self._inside(value, {**self.sizes, axes[0]: n}):
                mask = " & ".join(name if part == self.masks["r"] else part for part in mask.split(" & "))
        if buffer.repeats:
            there = " & ".join(f"({self.index(repeat)} != 0)" for repeat in buffer.repeats)
            mask = f"{mask} & {there}" if mask else there
        dims = have | over
        at = self.spread(self.index(self.open(e)), have, dims)
        policy = self.policy(buffer, dims)
        text = (
            f"tl.load({buffer.name} + ({at})"
            + (f", {mask}" if mask else "")
            + (", other=0" if mask and (guard or over & self.zero) else "")
            + (f", eviction_policy={policy!r}" if policy else "")
            + ")"
        )
        t = ttype(value.dtype)
        if t.eight_bits:
            text = f"_from_{t.stored}({text})"
        elif t.low_precision:
            text += ".to(tl.float32)"
        elif t.kind == "bool":
            text += ".to(tl.int1)"
        return self._let(buffer.name + "_at", text, value, dims)

    # ---- masks of bits
    def _bits(self, value: Value, guard: Guard, have: frozenset[str]) -> Operand:
        """Truth values of neighbours of one load where they lie together in a tile, else each of its own byte."""
        buffer, e = value.attr
        tile, n = next(
            (
                (tile, n)
                for n in (WORD, BYTE)[not self.ahead :]
                for tile in self.tiles
                if not guard and _are_neighbours(e, tile, n)
            ),
            (None, BYTE),
        )
        if tile is None:
            mask, over = self.mask(have, guard)
            at = self._let("bit", self.spread(self.index(e), have, have | over), value, have | over).text
            memory = (
                f"tl.load({_memory(buffer, BYTE)} + ({at} >> 3)"
                + (f", {mask}" + (", other=0" if guard else "") if mask else "")
                + ")"
            )
            return self._let(f"{buffer.name}_at", f"({memory} >> ({at} & 7) & 1) != 0", value, have | over)
        self.need("_from_bits")
        at, mask = self._of_neighbours(e, tile, n, have)
        policy = self.policy(buffer, have)
        loaded = (
            f"tl.load({_memory(buffer, n)} + ({at})"
            + (f", {mask}" if mask else "")
            + (f", eviction_policy={policy!r}" if policy else "")
            + ")"
        )
        return self._let(
            f"{buffer.name}_at",
            (
                f"tl.trans(_from_bits(tl.trans({loaded}), {n}))"
                if tile.position == "[:, None]"
                else f"_from_bits({loaded}, {n})"
            ),
            value,
            have,
        )

    def _store_bits(self, buffer: Buffer, expr: Expr, x: Operand) -> None:
        have = self.dims_of(expr)
        out = self.inside if have & self.looped else self.outside
        text = (
            f"tl.full({self.shape(have)}, {x.text}, tl.int1)"
            if x.is_literal
            else x.text
            if x.dims == have
            else f"tl.broadcast_to({x.text}, {self.shape(have)})"
        )
        tile = next((tile for tile in self.tiles if _are_neighbours(expr, tile, BYTE)), None)
        if tile is None:
            self.need("_put_bit")
            mask, _ = self.mask(have)
            out.append(
                f"_put_bit({buffer.name}, {self.index(expr)}, {text},"
                f" {mask or f'tl.full({self.shape(have)}, 1, tl.int1)'})"
            )
            return
        self.need("_halves")
        self.need("_to_bits")
        at, mask = self._of_neighbours(expr, tile, BYTE, have)
        text = f"tl.trans(_to_bits(tl.trans({text})))" if tile.position == "[:, None]" else f"_to_bits({text})"
        out.append(f"tl.store({_memory(buffer, BYTE)} + ({at}), {text}" + (f", {mask})" if mask else ")"))

    def _of_neighbours(self, expr: Expr, tile: Tile, n: int, have: frozenset[str]) -> tuple[str, str]:
        """(e // n, mask) where each lane along a dimension of tiles stands for n neighbours."""
        lanes = self.names.fresh("lanes")
        # (as the words of random numbers have them)
        (self.inside if tile.dim in self.looped else self.outside).append(
            f"{lanes} = ({tile.start}) // {n} + tl.arange(0, {tile.dim.upper()}BLOCK // {n}){tile.position}"
            if tile.position
            else f"{lanes} = ({tile.start} + {n} * tl.arange(0, {tile.dim.upper()}BLOCK // {n})) // {n}"
        )
        where, inner, at = {}, ONE, symbol(lanes)
        for k, axis in enumerate(reversed(tile.axes)):
            size = as_expr(axis.size) if k else as_expr(axis.size) // n
            at_axis = at // inner if k == len(tile.axes) - 1 else at // inner % size
            where[axis.symbol.name] = at_axis if k else at_axis * n
            inner = inner * size
        parts = [
            self.masks[d] if d != tile.dim else f"({lanes} < {d}numel // {n})"
            for d in sorted(have, reverse=True)
            if d in self.masks
        ]
        return self.index(expr.subs(where) // n), " & ".join(parts)

    def _index(self, value: Value, guard: Guard) -> Operand:
        expr, t = value.attr, ttype(value.dtype)
        if expr.is_const:
            return Operand(literal(expr.value, t), t, is_literal=True)
        dims = self.dims_of(expr)
        if self.index_type != "tl.int32" or t.held != "tl.int64":
            return self._let("index", f"({self.index(expr)}).to({t.held})", value, dims)
        name = self._let("index", self.index(expr), value, dims).text
        # (converted where it is neither compared nor becomes a float)
        return Operand(f"{name}.to(tl.int64)", t, dims, narrow=name)

    # ---- random numbers
    def _together(self, value: Value) -> tuple[Tile, int] | None:
        """Along which dimension of tiles, and for how many neighbours, the words of `philox` are computed at once: a
        counter gives those of four, from a multiple of four on. None: each by itself."""
        at = value.args[2]
        if at.op != "index" or at.args or value.args[4].attr < 4:
            return None
        for tile in self.tiles:
            for n in (8, 4) if value.args[4].attr > 4 else (4,):  # (four float32 are what a thread holds side by side)
                if n <= tile.per and _are_neighbours(at.attr, tile, n):
                    return tile, n
        return None

    def _philox(self, value: Value, guard: Guard) -> Operand:
        seed, counter, threads, vector = (self.operand(value.args[k], guard) for k in (0, 1, 3, 4))
        together, e, unsigned = self._together(value), value.args[2].attr, self.index_type.replace("int", "uint")
        more = (
            f"{threads.text if threads.is_literal else f'({threads.narrow or threads.text}).to({unsigned})'},"
            f" {vector.text}"
        )
        state = f"{seed.text}, {counter.text}"
        self.need("_product")
        self.need("_philox")
        if together is None:
            self.need("_philox_one")
            at = self.operand(value.args[2], guard)
            return self._word(
                f"_philox_one({state}, ({at.narrow or materialised(at)}).to({unsigned}), {more})", value, at.dims
            )
        tile, n = together
        if n == 4:
            self.need("_philox_four")
        self.need(f"_philox_{n}")
        dims = self.dims_of(e)
        lanes, out = self.names.fresh("lanes"), self.inside if dims & LOOPED else self.outside
        out.append(f"{lanes} = {tile.start} + {n} * tl.arange(0, {tile.dim.upper()}BLOCK // {n}){tile.position}")
        where, inner = {}, ONE
        for k, axis in enumerate(reversed(tile.axes)):
            at_axis = symbol(lanes) // inner
            where[axis.symbol.name] = at_axis if k == len(tile.axes) - 1 else at_axis % axis.size
            inner = inner * as_expr(axis.size)
        at_lanes = f"({self.index(e.subs(where))}).to({unsigned})"
        if tile.position == "[:, None]":
            return self._word(f"tl.trans(_philox_{n}({state}, tl.trans({at_lanes}), {more}))", value, dims)
        return self._word(f"_philox_{n}({state}, {at_lanes}, {more})", value, dims)

    def _keep_word(self, value: Value, guard: Guard) -> Operand:
        seed, counter, at, ones = (self.operand(arg, guard) for arg in value.args)
        for name in ("_product", "_philox", "_folded", "_keep_word"):
            self.need(name)
        return self._word(
            f"_keep_word({seed.text}, {counter.text}, ({at.narrow or materialised(at)}).to(tl.uint32), {ones.text})",
            value,
            at.dims,
        )

    def _word(self, text: str, value: Value, dims: frozenset[str]) -> Operand:
        name = self._let("philox", text, value, dims).text
        return Operand(f"{name}.to(tl.int64)", ttype(value.dtype), dims, narrow=name, unsigned=True)

    def _check(self, value: Value, guard: Guard) -> Operand:
        i, n = self._arguments(value, guard)
        dims = i.dims | n.dims
        mask, over = self.mask(dims, guard)
        good = f"(0 <= {i.text}) & ({i.text} < {n.text})"
        wide = dims | over
        target = self.inside if wide & self.looped else self.outside
        # what is masked off may hold anything
        inverted = f"{good} | ~({mask})" if mask else good
        message = value.attr.partition(": ")[2] or value.attr
        target.append(f"tl.device_assert({inverted}, {message!r})")
        return self._let("checked", i.text if not i.is_literal else f"tl.full([], {i.text}, {i.t.held})", value, dims)

    # what is printed in a way of its own; the rest is computed from its operands
    _OWN: ClassVar[dict[str, Callable[["Values", Value, Guard], Operand]]] = {
        "const": _const,
        "param": _param,
        "acc": _acc,
        "load": _load,
        "index": _index,
        "cast": _cast,
        "check_index": _check,
        "philox": _philox,
        "keep_word": _keep_word,
    }

    # ---- stores
    def store(self, buffer: Buffer, expr: Expr, value: Value, mode: str, tile: frozenset[str]) -> None:
        """A store of `value`, over `tile` where elements are added up."""
        if buffer.bits:
            return self._store_bits(buffer, expr, self.operand(value))
        t = ttype(buffer.dtype)
        x = self.operand(stored(value))
        have = self.dims_of(expr)
        want = have | x.dims | (tile if mode == "add" else NONE)
        at = self.spread(self.index(self.open(expr)), have, want)
        text = x.text
        if x.is_literal:
            text = f"tl.full({self.shape(want)}, {text}, {t.held})" if want else f"tl.full([], {text}, {t.held})"
        if t.eight_bits:
            text = f"_to_{t.stored}({text})"
        mask, _ = self.mask(want)
        call = "tl.store" if mode == "set" else "tl.atomic_or" if t.kind == "bool" else "tl.atomic_add"
        if mode == "add" and t.low_precision:
            text = f"{text}.to({t.stored})"
        line = (
            f"{call}({buffer.name} + ({at}), {text}"
            + (f", {mask}" if mask else "")
            + (", sem='relaxed')" if mode != "set" else ")")
        )
        (self.inside if want & self.looped else self.outside).append(line)
