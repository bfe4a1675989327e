"""Matrix products on a GPU that are loop nests: where they wait for memory more than for arithmetic, and where a search
found a kernel of ours, with what follows it, faster than the library's (runtime/gpu/tuned_products.py). All others are
library calls.

A vector times a matrix is a sum over rows of memory. Other products are of tiles, by tensor cores
(codegen/triton/product.py): their sum is over products of values of 16 bits, in float32. A matrix that is computed from
far fewer bytes (weights of eight and four bits, a scaled embedding) is computed inside of the product, and never
stored."""

from __future__ import annotations

from typing import Any

import torch

from ....symbolic.expr import Expr, as_expr
from ...ir import Buffer, LoopNest, Value, const, index, loads, make, prim
from ...context import Lowering
from ...promote import operand
from ...ref import Ref, dim_symbol, is_one, numel, ranges_of, ref_of_buffer, remap, same, strided
from ...rewrite import Rewriter, value_at

__all__ = ["hint", "in_memory", "may_be_ours", "on_gpu", "operands", "sum_of_products"]

ROW_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TILE_DTYPES = (torch.float16, torch.bfloat16)
FEW_ROWS = 2  # that are multiplied, one by one, with a matrix that is computed from fewer bytes
FEW_CASTS = 8  # the same on a CPU, where its bytes are converted and no more
FEW_TILES = 64  # rows that are multiplied in one tile with such a matrix: what it costs is to read it
FEW_PACKED = 16  # the same where its elements are parts of bytes: unpacking them for each tile of rows costs more
LEAST_ROW = 64  # of both sizes of a matrix that a vector is multiplied with
LEAST_TILE = 16  # of the inner size and the columns of a product of tiles
ODD_COLUMNS = 1024  # from which it matters that the library is slow for columns that are no multiple of eight


def hint(lo: Lowering, s: Any) -> int:
    """A size at the hints."""
    e, hints = as_expr(s), lo.aten.env.hints if lo.aten.env is not None else {}
    return e.value if e.is_const else int(e.eval({name: hints.get(name, 64) for name in e.symbol_names()}))


def in_memory(lo: Lowering, x: Ref) -> Ref | None:
    """The operand as a strided view of a buffer, so that nothing is computed inside the product; None where elements
    coincide.
    """
    v = strided(x)
    if v is None or not same(v[2], 0):  # (as a view with an offset: steps of a sequence share one kernel)
        x = ref_of_buffer(lo.realise(x))
        v = strided(x)
    if v is None or any(type(st) is int and st == 0 for st, size in zip(v[1], x.shape) if not is_one(size)):
        return None
    return x


def on_gpu(lo: Lowering, node: Any, a: Ref, b: Ref) -> Ref | None:
    """The product in float32 as loop nests; None where the library multiplies."""
    meta = lo.meta(node)
    return (few_rows(lo, meta, a, b) or _tiles(lo, node, meta, a, b)) if may_be_ours(lo, meta, a, b) else None


def may_be_ours(lo: Lowering, meta: Any, a: Ref, b: Ref) -> bool:
    return (
        meta.on_gpu
        and not lo.emulate
        and lo.opts.get("gpu_products", "auto") != "library"
        and a.dtype == meta.dtype
        and b.dtype == meta.dtype
    )


def _tiles(lo: Lowering, node: Any, m: Any, a: Ref, b: Ref) -> Ref | None:
    """sum over k of a[..., m, k] * b[..., k, n] for tensor cores."""
    found = operands(lo, node, m, a, b)
    if found is None:
        return None
    x, y = found
    n = a.ndim + 1
    shape = (*a.shape[:-2], a.shape[-2], b.shape[-1], a.shape[-1])
    batch = {dim: dim_symbol(n, dim) for dim in range(n - 3)}
    left = remap(x, shape, {**batch, n - 3: dim_symbol(n, n - 3), n - 2: dim_symbol(n, n - 1)})
    right = remap(y, shape, {**batch, n - 3: dim_symbol(n, n - 1), n - 2: dim_symbol(n, n - 2)})
    return sum_of_products(lo, left.value, right.value, shape)


def operands(lo: Lowering, node: Any, m: Any, a: Ref, b: Ref, better: bool = False) -> tuple[Ref, Ref] | None:
    """What tensor cores multiply where the product is one of tiles, `m` its result; None where the library multiplies.
    `better`: tiles are, for certain.
    """
    if (
        m.dtype not in TILE_DTYPES
        or min(hint(lo, size) for size in b.shape[-2:]) < LEAST_TILE
        or not same(a.shape[-1], b.shape[-2])
    ):
        return None
    wanted = (
        better
        or lo.opts.get("gpu_products", "auto") == "generated"
        or node.name in lo.aten.generated_products
        or _odd_columns(a, b)
    )
    rows = hint(lo, a.shape[0]) if a.ndim == 2 else 0
    if not wanted and not 0 < rows <= FEW_TILES:
        return None
    share = _bytes_behind(lo, b)
    if not wanted and (share > 0.5 or rows > FEW_PACKED and share <= 0.4):
        return None
    x, y = in_memory(lo, a), _computed(lo, b) if share <= 0.5 else in_memory(lo, b)
    return None if x is None or y is None else (x, y)


def _odd_columns(a: Ref, b: Ref) -> bool:
    """Whether the library is slow for the number of columns alone (a vocabulary of 50257). Its fast kernels want rows
    of the result that are multiples of 16 bytes, ours want that of the operands' rows only. An H100 takes 1.82 ms for
    2048 x 768 x 50265 in float16, and 0.24 ms for 50264 columns; generated, with all of them, 0.29.
    """
    k, n = b.shape[-2:]
    if a.ndim != 2 or type(k) is not int or type(n) is not int or k % 8 or n % 8 == 0 or n < ODD_COLUMNS:
        return False
    x, y = strided(a), strided(b)
    inside = x is None or is_one(x[1][1]) and type(x[1][0]) is int and x[1][0] % 8 == 0  # (else it is made contiguous)
    return inside and y is not None and is_one(y[1][0]) and type(y[1][1]) is int and y[1][1] % 8 == 0


def sum_of_products(lo: Lowering, a: Value, b: Value, shape: tuple) -> Ref:
    """sum(a * b) of values of 16 bits over the last dimension of `shape`, in float32."""
    out = lo.reduce(
        "sum",
        prim("mul", _exactly(a), _exactly(b)),
        shape,
        [len(shape) - 1],
        False,
        suffix="_product",
        logical_order=True,
    )
    lo.steps[-1].product = True
    return out


def _exactly(value: Value) -> Value:
    """A value of 16 bits in float32. Its rounding stays, whatever fusion drops: tensor cores take 16 bits."""
    if value.is_rounding:
        value = make("cast", value.dtype, value.args)
    return make("cast", torch.float32, (value,))


def _computed(lo: Lowering, b: Ref) -> Ref:
    """The matrix as a value of what lies in memory: element-wise nests that lead to it are computed where it is
    read.
    """
    made = _made(lo)
    ranges = ranges_of(b.shape)
    value = b.value
    while any(item.attr[0] in made for item in loads([value])):
        value = Rewriter(on_load=lambda buffer, e: _piece_at(made[buffer], e, ranges) if buffer in made else None)(
            value
        )
    return Ref(b.shape, b.dtype, value)


def _made(lo: Lowering) -> dict[Buffer, list[LoopNest]]:
    """What element-wise nests made, by buffer: each by one nest, or by several whose elements alternate (two halves of
    a byte).
    """
    writers: dict[Buffer, list[LoopNest]] = {}
    for step in lo.steps:
        if isinstance(step, LoopNest):
            writers.setdefault(step.buffer, []).append(step)
    return {
        key: nests
        for key, nests in writers.items()
        if all(nest.reduce_op is None and not nest.onto for nest in nests) and (len(nests) == 1 or _alternate(nests))
    }


def _alternate(nests: list[LoopNest]) -> bool:
    """Whether element i of a buffer is nest i % n's."""
    n, first = len(nests), nests[0]
    steps = [first.index.coeff(axis.symbol.name) for axis in first.axes]
    return (
        all(nest.axes == first.axes and nest.index is first.index + k for k, nest in enumerate(nests))
        and not {*first.index.symbol_names()} - {axis.symbol.name for axis in first.axes}
        and all(step is not None and step.is_const and step.value % n == 0 for step in steps)
    )


def _piece_at(nests: list[LoopNest], expr: Expr, ranges: dict[str, tuple]) -> Value:
    """What the nests store at flat position `expr`."""
    value = value_at(nests[-1], expr, ranges)
    for k in reversed(range(len(nests) - 1)):
        value = prim(
            "where",
            prim("eq", index(expr % len(nests)), const(k, torch.int64)),
            value_at(nests[k], expr, ranges),
            value,
        )
    return value


def few_rows(lo: Lowering, meta: Any, a: Ref, b: Ref) -> Ref | None:
    """A vector times a matrix as a sum over rows of memory, in float32: the library's kernels reach a half of the
    memory's speed there, and what is computed from the result joins the kernel. A few vectors likewise where the matrix
    is computed from fewer bytes, which are then read once, as they are. None for anything else."""
    if a.ndim != 2 or meta.dtype not in ROW_DTYPES or min(hint(lo, size) for size in b.shape) < LEAST_ROW:
        return None
    count = 1 if is_one(a.shape[0]) else a.shape[0]
    if type(count) is not int or count > (FEW_ROWS if meta.on_gpu else FEW_CASTS):
        return None
    computed = _bytes_behind(lo, b) <= 0.5
    matrix = _computed(lo, b) if computed else b
    if not computed and not (count == 1 and meta.on_gpu) or count > FEW_ROWS and not _is_converted(matrix.value):
        return None
    x, v = in_memory(lo, a), strided(b)
    if x is None or v is None or not same(v[1][0], 1):  # (a weight as Linear keeps it)
        return None
    f32 = torch.float32
    shape = (1, b.shape[1], a.shape[1])
    right = remap(matrix, shape, {0: dim_symbol(3, 2), 1: dim_symbol(3, 1)})
    rows = []
    for k in range(count):
        left = remap(x, shape, {0: as_expr(k), 1: dim_symbol(3, 2)})
        rows.append(
            lo.reduce(
                "sum",
                prim("mul", operand(left, f32), operand(right, f32)),
                shape,
                [2],
                False,
                suffix="_product",
                logical_order=True,
            )
        )
    if len(rows) == 1:
        return rows[0]
    out = (len(rows), b.shape[1])
    values = [remap(r, out, {0: as_expr(0), 1: dim_symbol(2, 1)}).value for r in rows]
    row = index(dim_symbol(2, 0))
    value = values[-1]
    for k in reversed(range(len(rows) - 1)):
        value = prim("where", prim("eq", row, const(k, torch.int64)), values[k], value)
    return Ref(out, f32, value)


def _is_converted(value: Value) -> bool:
    """Whether this is an element of memory in another dtype."""
    while value.is_cast:
        (value,) = value.args
    return value.op == "load"


def _bytes_behind(lo: Lowering, b: Ref) -> float:
    """The bytes that a matrix is computed from, element by element, for each of its own; a value for each column (a
    scale) does not count.
    """
    if all(item.attr[0].kind in ("input", "constant") for item in loads([b.value])):
        return 1.0  # (a weight as it is)
    made = _made(lo)
    leaves: dict[Buffer, int] = {}
    todo = [b.value]
    seen: set[Buffer] = set()
    while todo:
        for value in loads([todo.pop()]):
            if value.attr[0] in seen:
                continue
            buffer = value.attr[0]
            seen.add(buffer)
            if buffer in made:
                todo += [nest.value for nest in made[buffer]]
            else:
                leaves[buffer] = hint(lo, numel(buffer.shape)) * buffer.dtype.itemsize
    whole = hint(lo, numel(b.shape)) * b.dtype.itemsize
    return (
        max(0, sum(leaves.values()) - 4 * hint(lo, numel((*b.shape[:-2], b.shape[-1])))) / whole
        if leaves and whole
        else 1.0
    )
