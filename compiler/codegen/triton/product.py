"""Matrix products as Triton: `for b, m, n: f(sum over k of A[b, m, k] * B[b, k, n])` in tiles that tensor cores
multiply.

`find_product` recognises such a kernel by its structure: a sum of products of two values of 16 bits, one that the
columns and one that the rows of the result do not matter to. Either may be computed from what lies in memory (weights
of few bits are unpacked on their way): the prologue. What follows the sum (a bias, an activation, a residual) is
computed on the tile before it is stored: the epilogue. Products of 16 bits are exact in float32, so that nothing but
the order of additions differs from a plain loop. Rows, columns or the sum may be in groups that have a matrix each
(grouped.py).

Programs that run at the same time go through GROUP rows of tiles together, so that they read the same columns from the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ...lowering.product_groups import Ends, in_groups
from ...lowering.ir import Axis, Kernel, Store, Value, has_op, loads, numel, symbols_of, walk
from ...lowering.rewrite import Rewriter, tidy
from ...symbolic.expr import ONE, Expr, as_expr, ceildiv, integer, symbol
from ..sums import sum_of_products
from .dtypes import ttype
from .grouped import Groups, flat, most_tiles, print_bounds, print_tile
from .layout import Choices, Layout, at_hints, pow2
from .prims import Operand
from .values import Names, Values

if TYPE_CHECKING:
    from ..kernel_sources import Function
    from .printer import Printer

__all__ = ["Product", "find_product", "product_layout", "print_product", "product_choices"]

DTYPES = (torch.bfloat16, torch.float16)
LEAST = 16  # of every size of a tile that tensor cores take
FEW_ROWS = 64  # up to which a product waits for its matrix, not for its arithmetic
GROUP = 8


@dataclass
class Product:
    """`a`, `b`: values of 16 bits; `rows` run over a alone, `columns` over b alone, `batch` over both."""

    a: Value
    b: Value
    acc: str
    k: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    batch: tuple[Axis, ...]
    groups: Groups | None = None

    @property
    def axes_in_groups(self) -> tuple[Axis, ...]:
        return {"y": self.rows, "x": self.columns, "r": self.k}[self.groups.dim] if self.groups is not None else ()


def find_product(kernel: Kernel) -> Product | None:
    """What makes this kernel (without local buffers) a product of tiles, or None."""
    sums = sum_of_products(kernel)
    if sums is None or sums[1].running:
        return None
    first, acc = sums
    value = acc.value
    a, b = (
        arg.args[0] if arg.is_cast and arg.dtype == torch.float32 and not arg.is_rounding else arg for arg in value.args
    )
    if a.dtype != b.dtype or a.dtype not in DTYPES or kernel.checks and has_op([a, b], "check_index"):
        return None
    found = in_groups(a) or in_groups(b)
    if found is not None:
        a, b = (x if (inside := in_groups(x)) is None else inside[0] for x in (a, b))
    of: dict[str, list[Axis]] = {"a": [], "b": [], "ab": []}
    summed = found[3].symbol_names() if found is not None and found[3] is not None else set()
    over = {"a": symbols_of([a]) | summed, "b": symbols_of([b]) | summed}
    if any(axis.symbol.name not in over["a"] or axis.symbol.name not in over["b"] for axis in first.axes):
        return None
    for axis in kernel.outer:
        side = "".join(side_name for side_name in ("a", "b") if axis.symbol.name in over[side_name])
        of.setdefault(side, []).append(axis)
    if "" in of:  # a result that neither operand runs along
        return None
    stores = [store for st in kernel.stages[1:] for store in st.stores]
    if (
        of["b"]
        and _last(stores, of["a"])
        and not _last(stores, of["b"])
        and at_hints(numel(of["a"]), kernel.hints) >= LEAST
    ):
        a, b, of["a"], of["b"] = b, a, of["b"], of["a"]  # what is stored side by side are columns
    if any(at_hints(numel(x), kernel.hints) < n for x, n in ((of["a"], 2), (of["b"], LEAST), (first.axes, LEAST))):
        return None
    product = Product(a, b, acc.name, first.axes, tuple(of["a"]), tuple(of["b"]), tuple(of["ab"]))
    return product if found is None else _grouped(product, *found[1:])


def _grouped(product: Product, ends: Ends, place: Expr, which: Expr | None) -> Product | None:
    """The product with what is in groups: where places are those of one dimension of its tiles."""
    dim = next(
        (dim for dim, axes in (("y", product.rows), ("x", product.columns), ("r", product.k)) if flat(axes) is place),
        None,
    )
    if dim is None or (dim == "r") != (which is not None) or product.batch and which is None:
        return None
    return replace(product, groups=Groups(ends, dim, which))


def _last(stores: list[Store], axes: list[Axis]) -> bool:
    """Whether neighbours along one of the axes are stored side by side."""
    return any(store.index.coeff(axis.symbol.name) is ONE for store in stores for axis in axes)


# ---- tiles
def product_layout(kernel: Kernel, product: Product, processors: int) -> Layout:
    """Tiles by rules of thumb: few rows in narrow strips of the matrix, as many as there are processors; many rows in
    the largest tiles that fill them. Groups count as alike, each a product of a batch: their sizes are known on the
    device alone."""
    rows, columns, depth, batch = (
        at_hints(numel(axes), kernel.hints) for axes in (product.rows, product.columns, product.k, product.batch)
    )
    parts = _alternating(product)
    depth, group = depth // parts, _group(product) // parts
    lay = Layout("product", product.columns, product.rows)
    if product.groups is not None:
        count = lay.groups = product.groups.ends.count
        if product.groups.dim == "y":
            rows, batch = _ceildiv(rows, count), min(count, rows)
        elif product.groups.dim == "x":
            columns, batch = _ceildiv(columns, count), min(count, columns)
        else:
            depth = _ceildiv(depth, count)
    wide = not lay.groups or rows > 2 * FEW_ROWS and not _reads_tiles(kernel, product)
    lay.yblock = max(LEAST, min(128 if wide else FEW_ROWS, pow2(rows)))
    if rows <= FEW_ROWS:
        lay.xblock, lay.rblock, lay.warps, lay.stages = 64, 128, 4, 4
        while lay.xblock > LEAST and batch * -(-columns // lay.xblock) < processors:
            lay.xblock //= 2
    else:
        lay.xblock, lay.rblock, lay.warps, lay.stages = (
            256 if rows >= 128 and not (lay.groups and _reads_tiles(kernel, product)) else 128,
            64,
            8,
            3,
        )
        for _ in range(4):
            if batch * -(-columns // lay.xblock) * -(-rows // lay.yblock) >= processors or lay.xblock <= 64:
                break
            if lay.xblock > lay.yblock:
                lay.xblock //= 2
            else:
                lay.yblock //= 2
        if lay.xblock * lay.yblock <= 128 * 64:
            lay.warps, lay.stages = 4, 4
    lay.xblock, lay.rblock = max(LEAST, min(lay.xblock, pow2(columns))), max(LEAST, min(lay.rblock, pow2(depth)))
    while group and group % lay.rblock and lay.rblock > LEAST:
        lay.rblock //= 2
    return lay


def _reads_tiles(kernel: Kernel, product: Product) -> bool:
    """Whether what follows the product reads an element for each of its own: registers do not hold two of the largest
    tiles.
    """
    rows, columns = ({axis.symbol.name for axis in axes} for axes in (product.rows, product.columns))
    return any(
        value.symbols & rows and value.symbols & columns for st in kernel.stages[1:] for value in loads(st.roots())
    )


def _ceildiv(n: int, m: int) -> int:
    return -(-n // m)


def product_choices(default: dict[str, Any]) -> list[Choices]:
    """Tiles that a search tries beside the rules'."""
    if "groups" in default and default["yblock"] >= FEW_ROWS:
        return [
            Choices(xblock=x, yblock=y, rblock=r, warps=w, stages=s)
            for x, y, r, w, s in (
                (256, 128, 64, 8, 3),
                (128, 128, 64, 8, 3),
                (128, 128, 64, 4, 3),
                (128, 64, 64, 4, 4),
                (256, 64, 64, 8, 4),
            )
        ]
    if default["yblock"] <= FEW_ROWS:
        y = default["yblock"]
        return [
            Choices(xblock=x, yblock=y, rblock=r, warps=w, stages=s)
            for x, r, w, s in ((16, 128, 2, 5), (32, 128, 4, 5), (64, 64, 4, 6), (64, 128, 4, 4))
        ]
    return [
        Choices(xblock=x, yblock=y, rblock=r, warps=w, stages=s)
        for x, y, r, w, s in ((256, 128, 64, 8, 4), (128, 128, 64, 8, 3), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4))
    ]


# ---- text
def print_product(printer: Printer, product: Product) -> tuple[Function, str]:
    lay, t = printer.lay, printer._t
    xblocks, yblocks = _tiles(product, "x", product.columns, lay.xblock), _tiles(product, "y", product.rows, lay.yblock)
    masks: dict[str, str] = {}
    depth = numel(product.k) // _alternating(product)
    begin, end = (
        ("rbegin" if product.groups is not None and product.groups.dim == "r" else "0"),
        ("rnumel" if product.groups is None else "rend"),
    )
    body = [f"tile = {printer._pid('tl.program_id(0)')}", f"rnumel = {t(depth)}", "rbase = tl.arange(0, RBLOCK)"]
    if product.batch:
        body += [
            f"zindex = tile // ({t(xblocks * yblocks)})",
            f"tile = tile % ({t(xblocks * yblocks)})",
            *printer._axes(product.batch, "z"),
        ]
    body += [
        f"first = tile // ({t(xblocks)} * {GROUP}) * {GROUP}",
        f"high = tl.minimum({t(yblocks)} - first, {GROUP})",
        f"inside = tile % ({t(xblocks)} * {GROUP})",
    ]
    for dim, axes, block, tile, position in (
        ("y", product.rows, lay.yblock, "(first + inside % high)", "[:, None]"),
        ("x", product.columns, lay.xblock, "(inside // high)", "[None, :]"),
    ):
        if product.groups is not None and product.groups.dim == dim:
            body += print_tile(printer, product.groups, axes, tile, position, masks)
        else:
            body += printer._dim(dim, axes, block, f"{tile} * {dim.upper()}BLOCK", position, masks)
    if begin != "0":
        body += print_bounds(printer, product.groups)
    names = Names(origins=printer.origins)
    parts = _alternating(product)
    head, tiles, outside = [], [], []
    whole = begin == "0" and depth.is_const and int(depth.value) % lay.rblock == 0
    own: dict[str, dict[str, Expr]] = {}
    groups: dict[str, str] = {}
    for dim, position in (("a", "[None, :]"), ("b", "[:, None]")):
        own[dim] = {axis.symbol.name: symbol(f"{axis.symbol.name}_{dim}") for axis in product.k}
        head.append(f"{dim}index = roffset + rbase{position}")
        if not whole:
            head.append(f"{dim}mask = {dim}index < {end}")
        head += printer._axes(tuple(Axis(own[dim][axis.symbol.name], axis.size) for axis in product.k), dim)
    for part in range(parts):
        for value, kept, dim in ((product.a, "y", "a"), (product.b, "x", "b")):
            inner = {key: mask for key, mask in masks.items() if key == kept} | ({} if whole else {"r": f"{dim}mask"})
            dims = {axis.symbol.name: kept for axis in (product.rows if kept == "y" else product.columns)} | {
                x.name: "r" for x in own[dim].values()
            }
            shape = _shape_of("YBLOCK", "RBLOCK", "y", "r") if kept == "y" else _shape_of("RBLOCK", "XBLOCK", "r", "x")
            sizes = {
                own[dim][axis.symbol.name].name: int(as_expr(axis.size).value) // parts
                for axis in product.k
                if as_expr(axis.size).is_const
            }
            value = _renamed(
                value,
                own[dim] if parts == 1 else {key: item * parts + part for key, item in own[dim].items()},
                {key: (0, size) for key, size in sizes.items()},
            )
            if len(product.k) == 1:
                value = _in_groups(value, own[dim][product.k[0].symbol.name], lay.rblock, groups)
            dims |= dict.fromkeys(groups, "s")
            values = Values(
                names,
                dims,
                inner,
                shape,
                printer._acc,
                printer.need,
                printer.itype,
                exact=printer.exact,
                rounded=printer.rounded,
                backend=printer.target.backend,
                sizes=printer.sizes | sizes,
                zero=frozenset("r"),
            )
            values.emit([value])
            operand, full = values.operand(value), frozenset((kept, "r"))
            text = operand.text if full <= operand.dims else f"tl.broadcast_to({operand.text}, {shape(full)})"
            if not value.is_load and not whole:
                text = f"tl.where({dim}mask, {text}, 0.0)"  # (what is computed from zeros may be anything)
            outside += values.outside
            tiles += [*values.inside, f"{dim} = ({text}).to({ttype(value.dtype).stored})"]
        tiles.append(f"{product.acc} = tl.dot(a, b, {product.acc})")
    name = product.acc
    body += [
        *outside,
        f"{name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)",
        f"for roffset in range({begin}, {end}, RBLOCK):",
        *(f"    {line}" for line in [*head, *(f"{group} = {text}" for group, text in groups.items()), *tiles]),
    ]
    names.forget("r")
    names.forget("s")
    printer.accs[name] = Operand(name, ttype(torch.float32), frozenset("yx"))
    for stage in printer.k.stages[1:]:
        body += printer._straight(stage, names, masks)
    constants = {"XBLOCK": lay.xblock, "YBLOCK": lay.yblock, "RBLOCK": lay.rblock}
    return printer._function(printer.name, body, xblocks * yblocks * numel(product.batch), constants)


def _tiles(product: Product, dim: str, axes: tuple[Axis, ...], block: int) -> Expr:
    """How many tiles a dimension has, at most."""
    return (
        most_tiles(product.groups.ends, numel(axes), block)
        if product.groups is not None and product.groups.dim == dim
        else ceildiv(numel(axes), integer(block))
    )


def _shape_of(rows: str, columns: str, first: str, second: str) -> Any:
    return lambda dims: f"[{rows if first in dims else '1'}, {columns if second in dims else '1'}]"


def _renamed(value: Value, names: dict[str, Expr], ranges: dict[str, tuple]) -> Value:
    """The value over its own symbols of the sum: one tile has them along its columns, the other along its rows."""
    return Rewriter(on_index=lambda expr: tidy(expr.subs(names), ranges))(value)


def _in_groups(value: Value, expr: Expr, rblock: int, groups: dict[str, str]) -> Value:
    """The value with k // n (the group of weights that share a scale) as a scalar of the step, where a step stays
    within one group. `groups`: what these scalars are, by name."""

    def replaced(e: Expr) -> Expr:
        out = as_expr(0)
        for coeff, atoms in e.terms():
            term = as_expr(coeff)
            for atom in atoms:
                divisor = atom.args[1] if atom.op == "floordiv" and atom.args[0] is expr else None
                if divisor is not None and divisor.is_const and divisor.value % rblock == 0:
                    name = f"group_{divisor.value}"
                    groups[name] = f"roffset // {divisor.value}"
                    atom = symbol(name)
                term = term * atom
            out = out + term
        return out

    return Rewriter(
        on_index=lambda expr: (
            replaced(expr) if any(atom.op == "floordiv" for _, atoms in expr.terms() for atom in atoms) else expr
        )
    )(value)


def _group(product: Product) -> int:
    """How many elements of the sum, one after the other, share a scale; 0: there are no such groups."""
    sizes = {
        int(atom.args[1].value)
        for value in loads([product.b])
        for _, atoms in value.attr[1].terms()
        for atom in atoms
        if atom.op == "floordiv"
        and atom.args[0] is product.k[0].symbol
        and atom.args[1].is_const
        and atom.args[1].value >= 2 * LEAST
    }
    return min(sizes) if len(product.k) == 1 and sizes else 0


def _alternating(product: Product) -> int:
    """How many elements of the sum are unpacked from one in memory, by turns (two halves of a byte): each is a product
    of its own then, so that none is read twice, and neighbours are read together."""
    if len(product.k) > 1:
        return 1
    axis = product.k[0]
    found: set[Expr] = set()
    for value in walk([product.b]):
        if (expr := value.position) is not None:
            found |= {
                atom.args[1]
                for _, atoms in expr.terms()
                for atom in atoms
                if atom.op == "mod" and atom.args[0] is axis.symbol
            }
    factor = next(iter(found)) if len(found) == 1 else as_expr(1)
    size = as_expr(axis.size)
    return (
        int(factor.value)
        if factor.is_const and factor.value in (2, 4, 8) and size.is_const and size.value % factor.value == 0
        else 1
    )
