"""Which loops of a kernel become which tiles, and of what size.

    "pointwise"   no reduction: the outer axes, flattened, in tiles of XBLOCK
    "tiled"       no reduction, but some operand lies in memory in another order than the result: tiles of YBLOCK x
                  XBLOCK, each
                  read along its own fast axis (the exchange goes through shared memory); or something is read once for
                  a whole row
    "horizontal"  several independent loops without a reduction (shared_launches.py): each tile of XBLOCK belongs to
                  one of them
    "persistent"  a whole row of the reduced axes at once: everything is read once and stays in registers between the
                  stages
    "looped"      the reduced axes in pieces of RBLOCK; a stage is one loop over them
    "split"       too few rows to fill the device: each stage is a launch of its own, whose programs take SPLIT pieces
                  of a row and
                  leave partial results that the next launch folds
    "rows"        rows are reduced and columns summed: each program goes through a run of rows, XBLOCK at a time
                  (rows.py)
    "product"     a matrix product: tiles of YBLOCK rows x XBLOCK columns, summed over pieces of RBLOCK by tensor cores
                  (product.py)
    "windows"     a sum over windows that slide: tiles of YBLOCK columns x XBLOCK channels, for RBLOCK rows at once
                  (tiles/windows.py)
    "window gradients"  those of its weights: tiles of YBLOCK columns x XBLOCK channels, with a sum for each tap
                  (tiles/window_gradients.py)
    "attention"   tiles of XBLOCK rows, over the keys in pieces of RBLOCK (codegen/triton/tiles/softmax.py)
    "chain"       likewise, of chained products (codegen/triton/tiles/contraction.py)

Sizes are rules of thumb measured on an H200; max-autotune searches around them (`variants`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable

from ...lowering.ir import Axis, Kernel, Value, has_op, loads, numel
from ...symbolic.expr import ONE, ZERO, Expr, as_expr
from .dtypes import ttype

__all__ = ["GpuTarget", "Choices", "Layout", "plan_layout", "is_wide", "spans", "runs_of", "draws", "is_horizontal"]

INT32 = 2**31
MOST_PERSISTENT = 32768  # elements of a row that registers hold
SMALL_PERSISTENT = 4096  # ... where there is but one pass to save
MOST_SPLIT = 512
# elements of a kernel without a reduction, and of its rows, that have a tile of rows
LEAST_ROWS, LEAST_COLUMNS = (1 << 22, 256)


@dataclass(frozen=True)
class GpuTarget:
    """What code is generated for: Triton's backend name and architecture, and the number of multiprocessors."""

    backend: str = "cuda"  # "cuda" | "hip"
    arch: Any = 90  # compute capability as an int, or AMD's name
    warp: int = 32
    processors: int = 132
    early: bool = False  # whether a kernel is launched while the one before it ends, and waits for it

    @property
    def text(self) -> str:
        return f"{self.backend}:{self.arch}"


@dataclass(frozen=True)
class Choices:
    """What a search may vary; None leaves it to the rules."""

    kind: str | None = None
    xblock: int | None = None
    yblock: int | None = None
    rblock: int | None = None
    warps: int | None = None
    stages: int | None = None
    split: int | None = None

    def plain(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if value is not None}


@dataclass
class Layout:
    """`x`, `y`: outer axes of each flattened tile dimension, slowest first."""

    kind: str
    x: tuple[Axis, ...]
    y: tuple[Axis, ...] = ()
    xblock: int = 1
    yblock: int = 1
    rblock: int = 1
    warps: int = 4
    stages: int = 1
    split: int = 1
    wide: bool = False
    columns: bool = False  # a split kernel whose memory runs along x
    groups: int = 0  # of a product

    def plain(self) -> dict[str, Any]:
        out = {"shape": self.kind, "xblock": self.xblock, "warps": self.warps}
        if self.kind in ("tiled", "product", "windows", "window gradients"):
            out["yblock"] = self.yblock
        if self.kind not in ("pointwise", "tiled", "horizontal", "window gradients"):
            out["rblock"] = self.rblock
        if self.kind == "split" or self.split > 1:
            out["split"] = self.split
        if self.groups:
            out["groups"] = self.groups
        if self.stages > 1:
            out["stages"] = self.stages
        if self.wide:
            out["index"] = "int64"
        return out


def at_hints(e: Any, hints: dict[str, int]) -> int:
    e = as_expr(e)
    return int(e.eval({name: hints.get(name, 64) for name in e.symbol_names()}))


def spans(kernel: Kernel) -> list[Expr]:
    """What must stay below 2^31 for 32-bit indices: elements of each buffer to the last that is reached, and of the
    loops.
    """
    out = [numel(kernel.outer)] + [numel(stage.axes) for stage in kernel.stages]
    for buffer in (*kernel.inputs, *kernel.outputs):
        out.append(8 * buffer.dtype.itemsize * buffer.reach if buffer.bits else buffer.reach)
    return [expr for expr in dict.fromkeys(out) if not (expr.is_const and expr.value < INT32 // 2)]


def is_wide(kernel: Kernel) -> bool:
    """Whether indices need 64 bits at the size hints."""
    return any(at_hints(e, kernel.hints) >= INT32 - (1 << 20) for e in spans(kernel))


def pow2(n: int) -> int:
    return 1 << max(0, int(n) - 1).bit_length()


def _floor_pow2(n: int) -> int:
    return 1 << (max(1, int(n)).bit_length() - 1)


def _accesses(kernel: Kernel) -> list[tuple[Expr, int]]:
    """(index, bytes of an element) of every load and store of global memory at plain indices."""
    out = []
    for st in kernel.stages:
        out += [(store.index, ttype(store.buffer.dtype).size) for store in st.stores]
        out += [(value.attr[1], ttype(value.dtype).size) for value in loads(st.roots())]
    return out


def _fast_axis(expr: Expr, axes: Iterable[Axis]) -> Axis | None:
    """The axis along which neighbouring elements are read."""
    for axis in axes:
        if expr.coeff(axis.symbol.name) is ONE:
            return axis
    return None


def plan_layout(
    kernel: Kernel,
    target: GpuTarget,
    choices: Choices = Choices(),
    wide: bool | None = None,
    tiles: Layout | None = None,
) -> Layout:
    """Decide the tiles. The kernel's local buffers are gone already (printer.without_locals). tiles: what the rules
    say for a product or a sum over windows.
    """
    reduced = next((stage.axes for stage in kernel.stages if stage.axes), ())
    lay = (
        _rows(kernel, reduced)
        if runs_of(kernel)
        else (
            _horizontal(kernel, target)
            if is_horizontal(kernel)
            else tiles
            or (_reduction(kernel, target, choices, reduced) if reduced else _pointwise(kernel, target, choices))
        )
    )
    lay.wide = is_wide(kernel) if wide is None else wide
    for name in ("xblock", "yblock", "rblock", "warps", "stages", "split"):
        value = getattr(choices, name)
        if value is not None:
            setattr(lay, name, value)
    return lay


# ---- without a reduction
def _pointwise(kernel: Kernel, target: GpuTarget, choices: Choices) -> Layout:
    n = at_hints(numel(kernel.outer), kernel.hints)
    tiled = _tile_axes(kernel) if choices.kind in (None, "tiled") else None
    if tiled is not None:
        y, x = tiled
        return Layout("tiled", x, y, xblock=64, yblock=64, warps=8)
    rows = _row_values(kernel, n) if choices.kind in (None, "tiled") else None
    if rows is not None:
        y, x = rows
        width = at_hints(numel(x), kernel.hints)
        xblock = next((p for p in (1024, 512, 256) if 8 * (-width % p) <= width), 128)
        return Layout("tiled", x, y, xblock=xblock, yblock=1024 // xblock, warps=4)
    return _flat("pointwise", kernel.outer, n, target)


def _flat(kind: str, axes: tuple[Axis, ...], n: int, target: GpuTarget) -> Layout:
    """Tiles of n elements in all, one behind the other."""
    xblock, warps = 1024, 4
    while xblock > 128 and -(-n // xblock) < 4 * target.processors:
        xblock //= 2
    if xblock < 512:
        warps = 2 if xblock == 256 else 1 if xblock <= 64 else 2
    return Layout(kind, axes, xblock=min(xblock, max(32, pow2(n))), warps=warps)


def is_horizontal(kernel: Kernel) -> bool:
    """Whether a kernel's stages are loops that have nothing to do with each other."""
    return not kernel.outer and len(kernel.stages) > 1 and all(stage.axes and not stage.accs for stage in kernel.stages)


def _horizontal(kernel: Kernel, target: GpuTarget) -> Layout:
    axes = tuple(axis for stage in kernel.stages for axis in stage.axes)
    return _flat("horizontal", axes, sum(at_hints(axis.size, kernel.hints) for axis in axes), target)


def _tile_axes(kernel: Kernel) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """(y, x) axes where something is read along another axis than what is written."""
    if len(kernel.outer) < 2:
        return None
    stores = [store.index for st in kernel.stages for store in st.stores]
    fast = {id(a): a for store in stores if (a := _fast_axis(store, kernel.outer)) is not None}
    if len(fast) != 1:
        return None
    x = next(iter(fast.values()))
    weight: dict[int, int] = {}
    for expr, size in _accesses(kernel):
        a = _fast_axis(expr, kernel.outer)
        if a is not None and a is not x and expr.coeff(x.symbol.name) is not ZERO:
            weight[id(a)] = weight.get(id(a), 0) + size
    if not weight:
        return None
    best = max(weight, key=lambda k: weight[k])
    y = next(axis for axis in kernel.outer if id(axis) == best)
    if at_hints(x.size, kernel.hints) < 16 or at_hints(y.size, kernel.hints) < 16:
        return None
    others = tuple(axis for axis in kernel.outer if axis is not x and axis is not y)
    return (*others, y), (x,)


def _row_values(kernel: Kernel, n: int) -> tuple[tuple[Axis, ...], tuple[Axis, ...]] | None:
    """(y, x) axes of a large kernel that reads something once for all of x (the sum of a row, in a softmax's gradient):
    in a flat tile each element would read it again, and compute with it. None where rows do not begin where 16 bytes
    do."""
    if n < LEAST_ROWS or draws(kernel):
        return None
    place = {axis.symbol.name: k for k, axis in enumerate(kernel.outer)}
    last = len(kernel.outer) - 1
    along = [
        max((place[name] for name in expr.symbol_names() if name in place), default=-1) for expr, _ in _accesses(kernel)
    ]
    rows = max((k for k in along if 0 <= k < last), default=None)
    if rows is None:
        return None
    y, x = kernel.outer[: rows + 1], kernel.outer[rows + 1 :]
    width = numel(x)
    return (y, x) if width.is_const and width.value >= LEAST_COLUMNS and width.value % 8 == 0 else None


# ---- with one
@dataclass(frozen=True)
class _Rows:
    """What a layout of reductions is decided by."""

    kernel: Kernel
    target: GpuTarget
    x: int  # results
    r: int  # elements of each
    rows: int  # r as a power of two
    passes: int
    x_fast: bool  # what lies side by side in memory are results, not elements of one


def _reduction(kernel: Kernel, target: GpuTarget, choices: Choices, reduced: tuple[Axis, ...]) -> Layout:
    hints = kernel.hints
    x, r = at_hints(numel(kernel.outer), hints), at_hints(numel(reduced), hints)
    passes = sum(1 for stage in kernel.stages if stage.axes)
    x_fast = _along_x(kernel, reduced)
    rows = pow2(r)
    if any(acc.running for stage in kernel.stages for acc in stage.accs):
        return _scan(kernel, target, x, rows, x_fast)
    few = _few_rows(x, r, passes, x_fast, target)
    shared = _shared_rows(kernel) if x >= 64 and not few and not x_fast and passes == 1 else 0
    if shared > 1 and choices.kind is None:
        # several vectors times one matrix: what they read again is shared by a few rows of it
        return Layout("looped", kernel.outer, xblock=min(8, pow2(x)), rblock=min(512, rows), warps=8)
    on = _Rows(kernel, target, x, r, rows, passes, x_fast)
    kind = choices.kind
    if kind is None:
        kind = "split" if few else "persistent" if numel(reduced).is_const and _fits(on) else "looped"
    lay = Layout(kind, kernel.outer)
    if kind == "persistent":
        _whole_rows(lay, on)
    elif x_fast:
        _columns(lay, on)
    else:
        _pieces_of_rows(lay, on)
    if kind == "split":
        _split(lay, on)
    return lay


def _fits(on: _Rows) -> bool:
    """Whether whole rows fit the registers of a program."""
    most = 64 if on.x_fast else MOST_PERSISTENT if on.passes > 1 else SMALL_PERSISTENT
    return on.rows <= most and on.rows * _live_rows(on.kernel) <= MOST_PERSISTENT * 4


def _whole_rows(lay: Layout, on: _Rows) -> None:
    lay.rblock = on.rows
    crowded = len(_row_loads(on.kernel)) > 8  # many rows are live at once: fewer elements of each to a thread
    want = 4096 if on.x_fast else 1024 if crowded else 2048
    xblock = _floor_pow2(max(1, want // on.rows))
    if on.x_fast:
        xblock = max(xblock, 32)
    while xblock > 1 and -(-on.x // xblock) < 4 * on.target.processors and not (on.x_fast and xblock <= 32):
        xblock //= 2
    lay.xblock = min(xblock, pow2(on.x))
    each = 4 if crowded else 8 if draws(on.kernel) or _reads_bits(on.kernel) else 16
    lay.warps = min(32, max(1, _floor_pow2(lay.xblock * on.rows // (32 * each))))
    if on.rows >= 1024:
        lay.warps = max(lay.warps, 4)


def _columns(lay: Layout, on: _Rows) -> None:
    """Results lie side by side: a block of them goes down the rows."""
    small, rows, looped = on.x * on.r < 1 << 23, len(_row_loads(on.kernel)), lay.kind == "looped"
    lay.xblock = min(32 if small else 128 if lay.kind == "split" and rows > 3 else 64, pow2(on.x))
    lay.rblock = min(64 if lay.kind == "split" and rows == 1 and not small else 32, on.rows)
    lay.warps = 4 if small else 8
    while looped and lay.xblock > 16 and -(-on.x // lay.xblock) < 2 * on.target.processors:
        lay.xblock //= 2
    if looped and -(-on.x // lay.xblock) < on.target.processors:  # (what is left of sums that many programs made)
        lay.rblock, lay.warps = min(128, on.rows), 8


def _pieces_of_rows(lay: Layout, on: _Rows) -> None:
    lay.rblock = min(4096 if on.r >= 16384 else 2048, on.rows)
    lay.xblock = 1 if lay.rblock >= 1024 else min(pow2(on.x), 1024 // lay.rblock)
    lay.warps = min(16, max(2, lay.xblock * lay.rblock // (32 * 8)))
    # (a piece of a row is folded in each step: fewer warps wait for each other)
    if lay.kind == "looped" and on.r >= 16384 and _row_bytes(on.kernel) <= 2:
        lay.rblock, lay.warps = 2048, 4


def _split(lay: Layout, on: _Rows) -> None:
    """Several programs for one result, each with a part of its elements."""
    lay.columns = on.x_fast
    processors = on.target.processors
    blocks = -(-on.x // lay.xblock)
    pieces = max(1, -(-on.r // lay.rblock))
    programs = (8 if on.x_fast and on.passes == 1 and on.x * on.r < 1 << 23 else 4) * processors
    lay.split = max(1, min(MOST_SPLIT, _floor_pow2(max(1, programs // blocks)), pow2(-(-pieces // 2))))
    if on.x_fast and on.passes == 1 and _stores_rows(on.kernel):
        # what is computed beside the sums needs warps that go on while others wait
        more = min(MOST_SPLIT, _floor_pow2(16 * processors // blocks), _floor_pow2(pieces // 8))
        lay.split = max(lay.split, more)


def _scan(kernel: Kernel, target: GpuTarget, x: int, rows: int, x_fast: bool) -> Layout:
    """Rows in pieces, in order."""
    lay = Layout("looped", kernel.outer)
    if x_fast:
        lay.xblock, lay.rblock = min(32, pow2(x)), min(64, rows)
        while lay.xblock > 16 and -(-x // lay.xblock) < 2 * target.processors:
            lay.xblock //= 2
    else:
        lay.rblock = min(2048, rows)
        lay.xblock = min(pow2(x), max(1, 1024 // lay.rblock))
    lay.warps = min(8, max(1, _floor_pow2(lay.xblock * lay.rblock // (32 * 8))))
    return lay


def runs_of(kernel: Kernel) -> int:
    """Runs of rows whose columns are summed; 0 where none are."""
    return next((int(store.buffer.shape[0]) for st in kernel.stages for store in st.stores if store.mode == "rows"), 0)


def _rows(kernel: Kernel, reduced: tuple[Axis, ...]) -> Layout:
    r = at_hints(numel(reduced), kernel.hints)
    return Layout("rows", kernel.outer, rblock=pow2(r), warps=8 if r > 512 else 4, stages=3)


def _few_rows(x: int, r: int, passes: int, x_fast: bool, target: GpuTarget) -> bool:
    """Whether whole rows would leave most of the device idle for longer than more launches take."""
    blocks = -(-x // 64) if x_fast else x
    if blocks >= target.processors:
        return False
    if x_fast:
        return r >= 512 and x * r >= 1 << 15
    return r > (MOST_PERSISTENT if passes > 1 else MOST_PERSISTENT // 2)


def _live_rows(kernel: Kernel) -> int:
    """Rows of values that a persistent kernel holds at the same time: at least what several stages read."""
    names = {axis.symbol.name for stage in kernel.stages for axis in stage.axes}
    seen: dict[int, int] = {}
    for st in kernel.stages:
        for value in loads(st.roots()):
            if value.symbols & names:
                seen[value.id] = seen.get(value.id, 0) + 1
    return max(1, sum(1 for n in seen.values() if n > 1))


def draws(kernel: Kernel) -> bool:
    """Whether random numbers are made inside: of eight neighbours at a time, which then stay in the registers of one
    thread.
    """
    return any(has_op(st.roots(), "philox") for st in kernel.stages)


def _reads_bits(kernel: Kernel) -> bool:
    """Whether a byte holds the truth values of eight neighbours: those that a thread has side by side."""
    return any(buffer.bits for buffer in kernel.inputs)


def _stores_rows(kernel: Kernel) -> bool:
    """Whether elements of rows are stored beside what is reduced."""
    return any(
        store.index.symbol_names() & {axis.symbol.name for axis in st.axes}
        for st in kernel.stages
        for store in st.stores
    )


def _row_loads(kernel: Kernel) -> dict[int, Value]:
    """The different rows that a kernel reads from memory."""
    names = {axis.symbol.name for stage in kernel.stages for axis in stage.axes}
    return {value.id: value for st in kernel.stages for value in loads(st.roots()) if value.symbols & names}


def _shared_rows(kernel: Kernel) -> int:
    """Different rows that a kernel reads again for each row of its result, where that is all it makes (an own row read
    and written is more than those).
    """
    if _stores_rows(kernel):
        return 0
    outer = {axis.symbol.name for axis in kernel.outer}
    return sum(not value.symbols & outer for value in _row_loads(kernel).values())


def _row_bytes(kernel: Kernel) -> int:
    """Bytes of the widest element that a kernel reads along its rows."""
    return max((ttype(v.dtype).size for v in _row_loads(kernel).values()), default=8)


def _along_x(kernel: Kernel, reduced: tuple[Axis, ...]) -> bool:
    """Whether memory runs along the outer axes (a sum over leading dimensions)."""
    names, kept = {axis.symbol.name for axis in reduced}, {axis.symbol.name for axis in kernel.outer}
    score = 0
    accesses = [(expr, size) for expr, size in _accesses(kernel) if expr.symbol_names() & names]
    whole = [(expr, size) for expr, size in accesses if expr.symbol_names() & kept]
    for e, size in whole or accesses:  # (a number for each row is little beside the rows)
        score += size * ((_fast_axis(e, reduced) is not None) - (_fast_axis(e, kernel.outer) is not None))
    return score < 0
