"""Tiles of contractions: how many rows and keys a program holds at a time, and in how many pieces keys are shared among
programs.

Rules of thumb by widths and lengths, measured on an H200; max-autotune searches around them (`tile_choices`).
"""

from __future__ import annotations

from typing import Any

from ....lowering.ir import Axis, Kernel, numel
from ....lowering.templates import AttentionGradients, Contraction, DropoutAttention
from ..dtypes import ttype
from ..layout import Choices, GpuTarget, Layout, at_hints, is_wide

__all__ = ["held", "plan_tiles", "tile_choices"]

LEAST = 16  # rows, keys and columns of a product of tensor cores
FEW_KEYS = 1024  # that are not worth sharing among programs
# bytes of shared memory that a program may have, by compute capability
_SHARED = {70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}


def held(columns: Axis) -> int:
    """How many columns the tile of a head holds: a power of two. (Two tiles, 48 = 32 + 16, would leave less empty; on
    an H200, with triton 3.6, such kernels read elsewhere than their text says.)"""
    return max(LEAST, 1 << (int(columns.size) - 1).bit_length())


def plan_tiles(kernel: Kernel, target: GpuTarget, choices: Choices = Choices(), wide: bool | None = None) -> Layout:
    t: Any = kernel.template
    rows, keys, batch = (at_hints(numel(axes), kernel.hints) for axes in (t.rows, (t.keys,), t.batch))
    if isinstance(t, DropoutAttention):
        lay = _with_dropout(t, rows, batch, target)
    else:
        lay = (_sums if t.softmax is None else _softmax)(t, rows, keys, batch, target)
    for name in ("xblock", "rblock", "warps", "stages", "split"):
        value = getattr(choices, name)
        if value is not None:
            setattr(lay, name, value)
    if isinstance(t, Contraction):
        most = _shared_memory(target)
        while lay.stages > 1 and _shared_bytes(t, lay) > most:
            lay.stages -= 1
        while lay.rblock > LEAST and _shared_bytes(t, lay) > most:
            lay.rblock //= 2
    lay.wide = is_wide(kernel) if wide is None else wide
    return lay


def _softmax(t: Contraction, rows: int, keys: int, batch: int, target: GpuTarget) -> Layout:
    width = max(held(a) for a in (*(product.inner for product in t.products), *(s.columns for s in t.sums)))
    size = ttype(t.products[0].a.dtype).size
    xblock, rblock, warps, stages = _tiles_of_heads(width, size, target)
    while xblock > LEAST and (xblock >= 2 * rows or xblock > 64 and batch * -(-rows // xblock) < target.processors):
        xblock //= 2
    while rblock > 32 and rblock >= 2 * keys:
        rblock //= 2
    if xblock <= 64 and size < 4:
        warps = 4
    if xblock < 64:
        rblock = min(128 if width <= 64 else 64, max(32, 1 << (keys - 1).bit_length()))
    lay = Layout("attention", t.rows, (), xblock, 1, rblock, warps, stages)
    programs = batch * -(-rows // xblock)
    if 2 * programs <= target.processors and keys > FEW_KEYS:
        while lay.split < 64 and 2 * lay.split * programs <= 2 * target.processors and 2 * lay.split * rblock <= keys:
            lay.split *= 2
    return lay


def _tiles_of_heads(width: int, size: int, target: GpuTarget) -> tuple[int, int, int, int]:
    """(rows, keys, warps, stages) of a program for heads of `width` columns of `size` bytes."""
    if target.backend != "cuda":
        return (128, 64, 4, 1) if width <= 128 else (64, 32, 4, 1)
    if size == 4 or target.arch < 75:  # (by ordinary multiplications)
        return (64, 32, 8, 2) if width <= 64 else (32, 32, 8, 2) if width <= 128 else (16, 32, 4, 1)
    if target.arch < 90:
        return (128, 64, 4, 3) if width <= 64 else (128, 32, 8, 3) if width <= 128 else (64, 32, 4, 2)
    return (128, 64, 4, 3) if 64 < width <= 96 else (64, 64, 4, 3) if width <= 128 else (128, 32, 8, 2)


def _sums(t: Contraction, rows: int, keys: int, batch: int, target: GpuTarget) -> Layout:
    width = max(held(a) for a in (*(product.inner for product in t.products), *(s.columns for s in t.sums)))
    xblock, rblock, warps = (128, 64, 8) if width <= 64 and len(t.sums) == 1 else (64, 64, 4)
    while xblock > LEAST and (xblock >= 2 * rows or xblock > 64 and batch * -(-rows // xblock) < 2 * target.processors):
        xblock //= 2
    while rblock > LEAST and rblock >= 2 * keys:
        rblock //= 2
    return Layout("chain", t.rows, (), xblock, 1, rblock, 4 if xblock <= 64 else warps, 3)


def _with_dropout(t: DropoutAttention, rows: int, batch: int, target: GpuTarget) -> Layout:
    """The fastest for heads of 64 columns; less of them where there are too few rows for all processors."""
    many = batch * -(-rows // 128) >= 2 * target.processors
    xblock, warps = (128, 8 if isinstance(t, AttentionGradients) else 4) if many else (64, 4)
    return Layout("dropout attention", t.rows, (), xblock, 1, 64, warps, 3)


def _shared_memory(target: GpuTarget) -> int:
    """Bytes of shared memory that a program may have."""
    if not isinstance(target.arch, int):
        return 64 * 1024
    return _SHARED.get(target.arch, 99) * 1024


def _shared_bytes(t: Contraction, lay: Layout) -> int:
    """About as much as a program needs: its rows' operands, for each stage what it reads of the keys, and, without a
    softmax, what one sum multiplies."""
    of_rows = sum(held(product.inner) * ttype(product.a.dtype).size for product in t.products)
    of_keys = sum(held(product.inner) * ttype(product.b.dtype).size for product in t.products)
    of_keys += sum(held(s.columns) * ttype(s.c.dtype).size for s in t.sums)
    factor = 2 * lay.xblock * lay.rblock if t.softmax is None else 0
    return lay.xblock * of_rows + max(1, lay.stages) * lay.rblock * of_keys + factor


# rows, keys, warps and stages that a search tries
_TRIED = {
    "attention": (
        (128, 64, 4, 3),
        (128, 64, 8, 3),
        (128, 64, 8, 2),
        (128, 128, 8, 2),
        (64, 64, 4, 3),
        (64, 64, 4, 2),
        (64, 128, 4, 2),
        (128, 32, 4, 4),
    ),
    "chain": (
        (64, 64, 4, 3),
        (64, 64, 4, 2),
        (128, 64, 8, 2),
        (128, 64, 8, 3),
        (64, 128, 8, 2),
        (128, 32, 4, 3),
        (64, 32, 4, 4),
        (128, 128, 8, 2),
    ),
}


def tile_choices(default: dict[str, Any]) -> list[Choices]:
    """Tiles for a search, around those of the rules (`default`: TritonSource.choices)."""
    if default["shape"] == "attention" and default["xblock"] < 64:
        now = default.get("split", 1)
        return [
            Choices(rblock=r, warps=w, split=n)
            for r, w in ((64, 4), (128, 4), (32, 2))
            for n in sorted({max(1, now // 2), now, now * 2})
        ]
    return [Choices(xblock=x, rblock=r, warps=w, stages=n) for x, r, w, n in _TRIED[default["shape"]]]
