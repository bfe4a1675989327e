"""A matrix product of 16 bits for the Hopper generation, in CUDA C++: `find_tiles` says whether a kernel is one,
`print_tiles` prints it.

Blocks stay on their multiprocessor and take tile after tile. One warp has the copy engine bring pieces of both matrices
into a ring in shared memory; two groups of four warps multiply 64 rows each. Two neighbouring blocks, a cluster, take
tiles one below the other: each brings one half of the columns' matrix for both, which halves what the cache has to
give. A finished tile is held rounded to 16 bits, 64 rows by columns in registers, while the next tile's products run.
What follows the product (epilogue.py) is computed beside them, some columns after each piece: tensor cores do not wait
for it.

Triton 3.6 has no form for this: its specialised warps do not compile for this generation, and it has no multicast.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ...base.generations import has
from ...lowering.ir import Axis, Buffer, Kernel, Store, is_plain_load, numel
from ...lowering.print_loops import names_of
from ...symbolic.expr import Expr, as_expr, integer
from ..triton.fast_math import rounded_to
from ..triton.layout import Choices, GpuTarget, spans
from ..kernel_sources import Function, TritonSource, Walk
from ..triton.printer import header_of, without_locals
from ..triton.product import Product, find_product
from ..triton.product import product_choices as triton_choices
from . import hopper
from .epilogue import COLUMN, FOUR, ROW, Epilogue, NotPrintable

__all__ = ["Tiles", "Walk", "find_tiles", "print_tiles", "product_choices"]

ROWS, PIECE, CLUSTER = 128, 64, 2  # of a tile; elements of the sum that a slot of the ring holds; blocks of a cluster
SHARED = 232448 - 1024  # bytes that a block may have, but for what is lost to alignment
LEAST = 128  # of every size of a product that is worth it
STAGED = 2  # results that the copy engine writes at most
GROUP = 8  # rows of tiles that are gone through together, so that they read the same columns from the cache
BARRIERS = 256  # bytes kept for them
_TYPES = {torch.float32: "float", torch.bool: "unsigned char", torch.uint8: "unsigned char", torch.int64: "u64"}


@dataclass
class Tiles:
    """A product that this file prints. `a_by_columns`, `b_by_rows`: as in hopper.product."""

    kernel: Kernel
    product: Product
    stores: list[Store]
    m: int
    n: int
    k: int
    a: Walk
    b: Walk
    outs: list[Walk]  # of the first stores, which the copy engine writes; the others are written from registers
    a_by_columns: bool
    b_by_rows: bool


def find_tiles(kernel: Kernel, target: GpuTarget) -> Tiles | None:
    """What makes this kernel (without local buffers) a product of these tiles on this target, or None."""
    if (
        target.backend != "cuda"
        or not has("products in CUDA C++", target.arch)
        or kernel.sizes
        or kernel.params
        or kernel.checks
    ):
        return None
    product = find_product(kernel)
    if (
        product is None
        or product.batch
        or product.groups is not None
        or len(product.k) != 1
        or not all(map(is_plain_load, (product.a, product.b)))
    ):
        return None
    m, n, k = (_size(x) for x in (product.rows, product.columns, product.k))
    if min(m, n, k) < LEAST or any(not expr.is_const or int(expr.value) >= 2**31 for expr in spans(kernel)):
        return None
    stores = [store for st in kernel.stages[1:] for store in st.stores]
    a, b = (
        _walk(product.a.attr, product.rows, product.k, (m, k), product.a.dtype),
        _walk(product.b.attr, product.columns, product.k, (n, k), product.a.dtype),
    )
    if a is None or b is None or not stores:
        return None
    stores.sort(key=lambda s: s.buffer.dtype is not product.a.dtype)
    outs: list[Walk] = []
    for store in stores[:STAGED]:
        out = _walk((store.buffer, store.index), product.rows, product.columns, (m, n), product.a.dtype)
        if store.mode != "set" or store.positions or out is not None and out[1]:
            return None
        if out is None:
            break
        outs.append(out[0])
    found = Tiles(kernel, product, stores, m, n, k, a[0], b[0], outs, a[1], b[1])
    try:
        _epilogue(found, 256)
    except NotPrintable:
        return None
    return found


def product_choices(kernel: Kernel, target: GpuTarget, default: dict[str, Any]) -> list[Choices]:
    """Ways to print a product that a search tries beside the rules' (`default`): tiles of Triton's, and of these the
    size that fills the device best. Where there are enough of the largest for all processors, which the rules take,
    Triton's small ones would never win, and what follows a product takes long to compile in each."""
    tiles, others = find_tiles(without_locals(kernel), target), triton_choices(default)
    if tiles is None:
        return others
    if tiles.m * tiles.n >= ROWS * 256 * target.processors:
        others = []
    return [*others, Choices("tiles", xblock=min((256, 192, 128), key=lambda x: _cost(tiles, x, target.processors)))]


def _cost(tiles: Tiles, columns: int, processors: int) -> float:
    """How long the products take, in units of one column of a tile: wider tiles read less, and the last round of tiles
    may leave processors idle.
    """
    rounds = -(-(-(-tiles.m // (ROWS * CLUSTER)) * -(-tiles.n // columns)) // (processors // CLUSTER))
    return rounds * (columns + 16.0)


def _size(axes: tuple[Axis, ...]) -> int:
    """Elements over these axes; 0 where it varies from call to call."""
    n = numel(axes)
    return int(n.value) if n.is_const else 0


def _walk(
    place: tuple[Buffer, Expr],
    axes: tuple[Axis, ...],
    inner: tuple[Axis, ...],
    sizes: tuple[int, int],
    dtype: torch.dtype,
) -> tuple[Walk, bool] | None:
    """How elements (axes, inner) lie in memory; and whether neighbours are along `axes`. None where the copy engine
    can't go that way: it wants lines that begin at multiples of 16 bytes."""
    buffer, expr = place
    outer_step, inner_step = _step(expr, axes), _step(expr, inner)
    names = {axis.symbol.name for axis in (*axes, *inner)}
    if (
        buffer.dtype is not dtype
        or buffer.repeats
        or outer_step is None
        or inner_step is None
        or expr.symbol_names() - names
    ):
        return None
    offset = expr.const_term
    across = outer_step == 1
    stride = inner_step if across else outer_step
    if 1 not in (outer_step, inner_step) or stride % 8 or offset % 8:
        return None
    lines, length = sizes[::-1] if across else sizes
    return (Walk(buffer, offset, length, lines, stride, (64, 64)), across) if stride >= length else None


def _step(expr: Expr, axes: tuple[Axis, ...]) -> int | None:
    """Elements from one flat position of the axes to the next; None where that differs."""
    step, inner = None, 1
    for axis in reversed(axes):
        coeff = expr.coeff(axis.symbol.name)
        size = as_expr(axis.size)
        if coeff is None or not coeff.is_const or not size.is_const:
            return None
        if size.value > 1:
            if step is None and coeff.value % inner == 0:
                step = int(coeff.value) // inner
            if step is None or coeff.value != step * inner:
                return None
        inner *= int(size.value)
    return step


def _epilogue(tiles: Tiles, columns: int) -> Epilogue:
    guard = "column < N" if tiles.n % columns or tiles.m % (ROWS * CLUSTER) else ""
    return Epilogue(
        stores=tiles.stores,
        rows=tiles.product.rows,
        columns=tiles.product.columns,
        dtype=tiles.product.a.dtype,
        acc=tiles.product.acc,
        guard=guard,
        staged=tiles.stores[: len(tiles.outs)],
        rounded=rounded_to(tiles.kernel),
    )


# ---- text
def print_tiles(kernel: Kernel, target: GpuTarget, choices: Choices, name: str) -> TritonSource:
    """The kernel as text; `choices.xblock`: columns of a tile."""
    k = without_locals(kernel)
    tiles = find_tiles(k, target)
    assert tiles is not None
    columns = choices.xblock or 256
    part = 64 if columns % 128 or len(tiles.outs) > 1 else 128  # columns that are staged at once
    slot, staged = (ROWS + columns) * PIECE * 2, len(tiles.outs) * 2 * 64 * part * 2
    slots = min(8, (SHARED - BARRIERS - staged) // slot)
    own = columns // CLUSTER  # columns that one block brings
    boxes = {
        "a": (64, 64) if tiles.a_by_columns else (PIECE, ROWS),
        "b": (64, 64) if tiles.b_by_rows else (PIECE, own),
        "out": (64, 64),
    }
    if tiles.b_by_rows and own % 64:  # (whole boxes only: one block brings two of three)
        own = -1
    walks = [
        replace(w, box=boxes[which])
        for which, w in (("a", tiles.a), ("b", tiles.b), *(("out", out) for out in tiles.outs))
    ]
    text = _Text(tiles, columns, part, slots, own, name).text()
    buffers = [(buffer.name, f"*{buffer.dtype}") for buffer in (*kernel.inputs, *kernel.outputs)]
    function = Function(name, buffers, {}, integer(target.processors // CLUSTER * CLUSTER), 12, slots)
    described = {"shape": "tiles", "xblock": columns, "yblock": ROWS, "rblock": PIECE, "stages": slots, "warps": 12}
    return TritonSource(
        name,
        f"{header_of(kernel, name, '//')}\n{text}",
        [function],
        choices=described,
        names=names_of(kernel, {}),
        language="cuda",
        walks=walks,
        shared=slots * slot + staged + BARRIERS,
    )


class _Text:
    def __init__(self, t: Tiles, columns: int, part: int, slots: int, own: int, name: str):
        self.t, self.columns, self.part, self.slots, self.own, self.name = t, columns, part, slots, own, name
        self.epilogue = _epilogue(t, columns)
        self.pieces = -(-t.k // PIECE)
        self.pairs = columns // 16  # of eight columns, that are computed together
        self.chunks = min(self.pairs, self.pieces, 16)
        self.a_bytes, self.b_bytes = ROWS * PIECE * 2, columns * PIECE * 2

    def text(self) -> str:
        tiles, epilogue = self.t, self.epilogue
        dtype = tiles.product.a.dtype
        arguments = ", ".join(
            f"{'' if buffer in tiles.kernel.outputs else 'const '}"
            f"{_TYPES.get(torch.uint8 if buffer.bits else buffer.dtype, 'u16')} *{buffer.name}"
            for buffer in (*tiles.kernel.inputs, *tiles.kernel.outputs)
        )
        maps = ", ".join(
            f"const __grid_constant__ Map {name}"
            for name in ("a_map", "b_map", *(f"out{i}_map" for i in range(len(tiles.outs))))
        )
        body = "\n".join(f"  {line}" for line in self.body())
        return (
            hopper.PRELUDE
            + hopper.conversions(dtype)
            + hopper.product(dtype, self.columns, PIECE, tiles.a_by_columns, tiles.b_by_rows)
            + hopper.functions(epilogue.functions, dtype)
            + f'\nextern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__({CLUSTER}, 1,'
            f" 1)\n{self.name}({arguments},\n    {maps})\n{{\n{body}\n}}\n"
        )

    def body(self) -> list[str]:
        s, slots = self, self.slots
        staged = len(self.t.outs) * 2 * 64 * self.part * 2
        return [
            f"const int M = {s.t.m}, N = {s.t.n}, PIECES = {s.pieces};",
            (
                f"const int TILE_ROWS = (M + {ROWS * CLUSTER - 1}) / {ROWS * CLUSTER}, TILE_COLUMNS = (N +"
                f" {s.columns - 1}) / {s.columns}, TILES = TILE_ROWS * TILE_COLUMNS;"
            ),
            "extern __shared__ __align__(1024) unsigned char memory[];",
            "u32 base = (u32)__cvta_generic_to_shared(memory), rank;",
            (
                f"u32 a_ring = base, b_ring = base + {slots * s.a_bytes}, staged = b_ring + {slots * s.b_bytes}, full ="
                f" staged + {staged}, empty = full + {8 * slots};"
            ),
            'asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));',
            "int group = threadIdx.x / 128, thread = threadIdx.x % 128, slot = 0, phase = 0;",
            "if (threadIdx.x == 0) {",
            (
                f"  for (int i = 0; i < {slots}; i++) {{ barrier_init(full + 8 * i, 1); barrier_init(empty + 8 * i,"
                f" {2 * CLUSTER}); }}"
            ),
            '  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");',
            "}",
            hopper.CLUSTER_BARRIER,
            "if (group == 0) {                     // the warp that has both matrices brought",
            '  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");',
            (
                f"  for (int tile = thread == 0 ? blockIdx.x / {CLUSTER} : TILES; tile < TILES; tile += gridDim.x /"
                f" {CLUSTER}) {{"
            ),
            *(f"    {line}" for line in s.place()),
            "    for (int piece = 0; piece < PIECES; piece++) {",
            *(f"      {line}" for line in s.bring()),
            "    }",
            "  }",
            "} else {                              // two groups that multiply 64 rows each",
            '  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");',
            *(f"  {line}" for line in s.multiply()),
            "}",
            hopper.CLUSTER_BARRIER,
        ]

    def place(self) -> list[str]:
        """The tile of this block."""
        return [
            f"int first = tile / (TILE_COLUMNS * {GROUP}) * {GROUP}, high = min(TILE_ROWS - first, {GROUP});",
            (
                f"int m = ((first + tile % (TILE_COLUMNS * {GROUP}) % high) * {CLUSTER} + rank) * {ROWS}, n = tile %"
                f" (TILE_COLUMNS * {GROUP}) / high * {self.columns};"
            ),
        ]

    def bring(self) -> list[str]:
        tiles, everybody = self.t, (1 << CLUSTER) - 1
        out = [
            "barrier_wait(empty + 8 * slot, phase ^ 1);",
            f"u32 ready = full + 8 * slot, a = a_ring + slot * {self.a_bytes}, b = b_ring + slot * {self.b_bytes};",
            f"barrier_expect(ready, {self.a_bytes + self.b_bytes});",
        ]
        if tiles.a_by_columns:
            out += [
                f"load_tile(a + {8192 * i}, &a_map, ready, m + {64 * i}, piece * {PIECE});" for i in range(ROWS // 64)
            ]
        else:
            out += [f"load_tile(a, &a_map, ready, piece * {PIECE}, m);"]
        if not tiles.b_by_rows:
            out += [
                f"load_tile_for_all(b + rank * {self.own * 128}, &b_map, ready, piece * {PIECE}, n + rank * {self.own},"
                f" {everybody});"
            ]
        elif self.own > 0:
            n = self.own // 64
            out += [
                f"load_tile_for_all(b + (rank * {n} + {i}) * 8192, &b_map, ready, n + (rank * {n} + {i}) * 64, piece *"
                f" {PIECE}, {everybody});"
                for i in range(n)
            ]
        else:  # an odd number of boxes: turn by turn
            out += [
                f"if (rank == {i % CLUSTER}) load_tile_for_all(b + {8192 * i}, &b_map, ready, n + {64 * i}, piece *"
                f" {PIECE}, {everybody});"
                for i in range(self.columns // 64)
            ]
        return [*out, f"if (++slot == {self.slots}) {{ slot = 0; phase ^= 1; }}"]

    def multiply(self) -> list[str]:
        s, n, epilogue = self, self.columns // 2, self.epilogue
        out = [
            (
                "int who = group - 1, lane = thread % 32, held_m = 0, held_n = -1, of_eight = thread / 32 * 16 + lane %"
                " 8 + lane / 8 % 2 * 8;"
            ),
            f"float sum[{n}];",
            (
                f"u32 held[{n // 2}], mine = staged + who * {64 * s.part * 2};            // the finished tile,"
                " rounded; where it is staged"
            ),
            *epilogue.once,
            *self.reading(),
            f"for (int tile = blockIdx.x / {CLUSTER};; tile += gridDim.x / {CLUSTER}) {{",
            *(["  if (held_n >= 0) ahead0 = read(0);"] if epilogue.fields else []),
            "  if (tile >= TILES) {                  // nothing runs beside what is held of the last one",
            "    if (held_n >= 0) {",
            *(f"      {line}" for c in range(s.chunks) for line in s.chunk(c)),
            "    }",
            "    break;",
            "  }",
            *(f"  {line}" for line in s.place()),
            "  int before = 0;",
        ]
        for c in range(s.chunks):
            out += [
                f"  {{ const int piece = {c};",
                *(f"    {line}" for line in s.piece()),
                "    if (held_n >= 0) {",
                *(f"      {line}" for line in s.chunk(c)),
                "    }",
                "  }",
            ]
        if s.chunks < s.pieces:
            out += [
                f"  for (int piece = {s.chunks}; piece < PIECES; piece++) {{",
                *(f"    {line}" for line in s.piece()),
                "  }",
            ]
        return [
            *out,
            '  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");',
            f"  if (thread < {CLUSTER}) barrier_arrive(empty + 8 * before, thread);",
            "  #pragma unroll",
            f"  for (int i = 0; i < {n // 2}; i++) held[i] = pack(sum[2 * i], sum[2 * i + 1]);",
            "  held_m = m + who * 64, held_n = n;",
            "}",
            'if (thread == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");',
        ]

    def reading(self) -> list[str]:
        """A function that reads what the epilogue wants for 16 columns, from `at` of the tile that is held."""
        epilogue = self.epilogue
        if not epilogue.fields:
            return []
        by_rows = ["  #pragma unroll", f"  for (int i = 0; i < 2; i++) {{ {ROW} {FOUR}"]
        return [
            f"struct Ahead {{ {' '.join(epilogue.fields)} }} ahead0 = {{}}, ahead1 = {{}};",
            "auto read = [&](int at) {",
            "  Ahead ahead;",
            *by_rows,
            *(f"    {line}" for line in epilogue.read_fours),
            "    #pragma unroll",
            f"    for (int h = 0; h < 2; h++) {{ {COLUMN}",
            *(f"      {line}" for line in epilogue.read),
            "    }",
            "  }",
            "  return ahead;",
            "};",
        ]

    def piece(self) -> list[str]:
        """One piece of the sum: multiplied as soon as it is there. The piece before it is done then, and its slot is
        given back to both blocks.
        """
        tiles = self.t
        return [
            "barrier_wait(full + 8 * slot, phase);",
            (
                f"u64 a = matrix(a_ring + slot * {self.a_bytes} + who * 8192,"
                f" {8192 if tiles.a_by_columns else 16}, 1024),"
                f" b = matrix(b_ring + slot * {self.b_bytes}, {8192 if tiles.b_by_rows else 16}, 1024);"
            ),
            'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");',
            "multiply(sum, a, b, piece);",
            'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");',
            "if (piece) {",
            '  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");',
            f"  if (thread < {CLUSTER}) barrier_arrive(empty + 8 * before, thread);",
            "}",
            f"before = slot; if (++slot == {self.slots}) {{ slot = 0; phase ^= 1; }}",
        ]

    def chunk(self, c: int) -> list[str]:
        """Some columns of the tile that is held: computed, staged, and stored once a part is complete."""
        each = -(-self.pairs // self.chunks)
        return [line for pair in range(c * each, min(self.pairs, (c + 1) * each)) for line in self.pair(pair)]

    def pair(self, pair: int) -> list[str]:
        """16 of these columns."""
        epilogue, at, outs = self.epilogue, pair * 16, len(self.t.outs)
        out: list[str] = []
        if outs and at % self.part == 0:  # the copy engine has read what was staged before
            out += [
                'if (thread == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");',
                "group_sync(1 + who);",
            ]
        out += [f"{{ const int at = {at};", *(f"  u32 w{k}[4];" for k in range(outs))]
        if epilogue.fields:  # (by turns in two variables: copies would wait for what is read)
            out += [
                f"  Ahead &ahead = ahead{pair % 2};",
                *([f"  ahead{1 - pair % 2} = read(at + 16);"] if pair + 1 < self.pairs else []),
            ]
        out += [f"  {line}" for line in epilogue.first]
        if epilogue.fours:
            out += [
                f"  int upper = held_m + thread / 32 * 16 + lane / 4; {FOUR}",
                *(f"  {line}" for line in (*epilogue.fours, *(epilogue.odd if pair % 2 else epilogue.even))),
            ]
        for h in range(2):
            out += [f"  {{ const int h = {h}; {COLUMN}", *(f"    {line}" for line in epilogue.by_column)]
            for i in range(2):
                word = f"held[{pair * 4 + h * 2 + i}]"
                out += [
                    f"    {{ const int i = {i}; {ROW} float v0 = low_half({word}), v1 = high_half({word});",
                    *(f"      {line}" for line in epilogue.inside),
                    *(
                        f"      w{k}[{h * 2 + i}] = {result.packed()};"
                        for k, result in enumerate(epilogue.results[:outs])
                    ),
                    "    }",
                ]
            out.append("  }")
        if outs:
            out += [
                (
                    f"  int eighth = {at % self.part // 8} + lane / 16, place = eighth / 8 * 8192 + of_eight * 128 +"
                    " (eighth % 8 ^ of_eight % 8) * 16;"
                ),
                *(f"  store_matrices(mine + {k * 2 * 64 * self.part * 2} + place, w{k});" for k in range(outs)),
            ]
        out.append("}")
        if outs and (at + 16) % self.part == 0:
            first = at + 16 - self.part
            out += [
                hopper.FENCE,
                "group_sync(1 + who);",
                "if (thread == 0) {",
                *(
                    f"  store_tile(&out{k}_map, mine + {k * 2 * 64 * self.part * 2 + 8192 * i}, held_n +"
                    f" {first + 64 * i}, held_m);"
                    for k in range(outs)
                    for i in range(self.part // 64)
                ),
                '  asm volatile("cp.async.bulk.commit_group;" ::: "memory");',
                "}",
            ]
        return out
