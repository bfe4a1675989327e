"""A kernel as Triton text: `print_kernel(kernel, target, choices) -> TritonSource`.

The file holds one @triton.jit function, or one per stage for a split kernel. A function takes the kernel's buffers,
then scratch for partial results, sizes and scalars, and runs on a one-dimensional grid.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any, Callable, Sequence

import torch

from ...lowering.ir import (
    Acc,
    Axis,
    Buffer,
    Kernel,
    Stage,
    Store,
    Value,
    cast,
    indirect_values,
    load,
    loaded,
    loads,
    make,
    numel,
    walk,
)
from ...lowering.patterns import Leaf, Same, match, op
from ...lowering.print_loops import names_of
from ...lowering.rewrite import Rewriter
from ...base.generations import has
from ...base.quoting import comment
from ...base.source_text import source_line
from ...symbolic.expr import Expr, as_expr, ceildiv, integer
from ..kernel_sources import NUMBER, Function, Scratch, TritonSource
from . import bit_masks, eight_bits, fast_math, indices, philox_draws, prims, scan
from .dtypes import ttype
from .horizontal import print_horizontal
from .layout import GpuTarget, Layout, spans
from .open_numbers import KINDS, opened, own_sizes, with_arguments
from .prims import Operand, reduce_identity, reduce_tile, reduce_update
from .product import Product, print_product
from .rows import print_rows
from .split import is_variance, print_split
from ..guarded import stored
from .values import NONE, Names, Tile, Values
from .tiles.window_gradients import WindowGradients, print_window_gradients
from .tiles.windows import Windows, print_windows

__all__ = ["Found", "Printer", "header_of", "without_locals", "with_stored_values"]

HELPERS = {
    **prims.HELPERS,
    **indices.HELPERS,
    **fast_math.HELPERS,
    **scan.HELPERS,
    **eight_bits.HELPERS,
    **philox_draws.HELPERS,
    **bit_masks.HELPERS,
}


def without_locals(kernel: Kernel) -> Kernel:
    """The kernel with what it keeps in local buffers as plain values: registers hold them, or they are computed
    again.
    """
    if not kernel.locals:
        return kernel
    value_of: dict[Buffer, Value] = {}
    rewrite = Rewriter(on_load=lambda buffer, expr: value_of.get(buffer))
    stages = []
    for st in kernel.stages:
        accs = [replace(acc, value=rewrite(acc.value)) for acc in st.accs]
        stores = []
        for store in st.stores:
            value = rewrite(store.value)
            if store.buffer.scope == "local":
                value_of[store.buffer] = value
                rewrite = Rewriter(on_load=lambda buffer, expr: value_of.get(buffer))
            else:
                stores.append(Store(store.buffer, store.index, value, store.mode))
        if accs or stores:
            stages.append(Stage(st.axes, accs, stores))
    return replace(kernel, stages=stages, locals=[])


def with_stored_values(kernel: Kernel) -> Kernel:
    """A split kernel whose later launches read what earlier ones stored, where computing it again would read more."""
    stored: dict[int, tuple[Buffer, Expr]] = {}  # id of a value -> where it lies
    rows = {axis.symbol.name for st in kernel.stages for axis in st.axes}
    written = {id(store.buffer) for st in kernel.stages for store in st.stores}
    stages = []
    keep: list[Value] = []
    for st in kernel.stages:

        def replace_with_load(value: Value) -> Value | None:
            found = stored.get(value.id)
            return None if found is None else cast(load(*found), value.dtype)

        rewrite = _Replacing(replace_with_load)
        new = Stage(
            st.axes,
            [replace(acc, value=rewrite(acc.value)) for acc in st.accs],
            [Store(store.buffer, store.index, rewrite(store.value), store.mode) for store in st.stores],
        )
        stages.append(new)
        for store in st.stores if st.axes else ():
            if (
                store.mode != "set"
                or store.positions
                or not (store.value.dtype.is_floating_point and store.buffer.dtype.is_floating_point)
            ):
                continue
            reads = {
                read.attr: read.dtype.itemsize for read in loads([store.value]) if read.attr[1].symbol_names() & rows
            }
            if (
                len(reads) > 1
                and sum(reads.values()) > store.buffer.dtype.itemsize
                and not any(id(buffer) in written for buffer, _ in reads)
            ):
                same = [store.value] if store.value.dtype == store.buffer.dtype else []
                if store.value.is_rounding:  # eager's tensor is the rounded one
                    same.append(store.value.args[0])
                stored.update((value.id, (store.buffer, store.index)) for value in same)
                keep += same
    return replace(kernel, stages=stages)


def _fills(size: Expr, block: int) -> bool:
    """Whether n elements are whole blocks. None are not: a block that is not looped over reads its lanes once."""
    return size.is_const and size.value > 0 and size.value % block == 0


class _Replacing:
    """Values with some of their parts replaced: `with_what(value)` is what stands for a part, None where it stays."""

    def __init__(self, with_what: Callable[[Value], Value | None]):
        self.with_what = with_what
        self.made: dict[int, Value] = {}

    def __call__(self, root: Value) -> Value:
        for value in walk([root]):  # operands first
            if value.id not in self.made:
                new = self.with_what(value)
                if new is None and value.op in ("load", "index"):
                    new = value
                elif new is None:
                    args = tuple(self.made[arg.id] for arg in value.args)
                    new = (
                        value
                        if all(arg is b for arg, b in zip(args, value.args))
                        else make(value.op, value.dtype, args, value.attr)
                    )
                self.made[value.id] = new
        return self.made[root.id]


def header_of(kernel: Kernel, name: str, mark: str = "#") -> str:
    """The first lines of a kernel's file: what it computes, the user's lines, what it reads and writes."""
    out = [f"{name}: {', '.join(dict.fromkeys(kernel.origins)) or 'generated kernel'}"]
    for file, line in list(dict.fromkeys(tuple(x[:2]) for x in kernel.lines if len(x) >= 2))[:12]:
        code = source_line(str(file), line).strip()
        out.append(f"{str(file).rsplit('/', 1)[-1]}:{line}" + (f": {code[:100]}" if code else ""))
    for buffer, role in [
        *((buffer, "reads ") for buffer in kernel.inputs),
        *((output, "writes") for output in kernel.outputs),
    ]:
        out.append(f"  {role} {buffer}")
    return "\n".join(f"{mark} {comment(line)}" for line in out)


def _used(body: list[str]) -> list[str]:
    """Without sizes that nothing reads: kernels that differ in such a one alone are equal."""
    named = Counter(re.findall(r"\b[xyr]numel\b", "\n".join(body)))
    unread = {size for size, times in named.items() if times == 1}
    return [line for line in body if line.partition(" = ")[0] not in unread]


Found = Product | Windows | WindowGradients  # what a kernel is as a whole, recognised by its structure
_PRINTED: dict[type, Callable[..., tuple[Function, str]]] = {
    Product: print_product,
    Windows: print_windows,
    WindowGradients: print_window_gradients,
}


class Printer:
    """The loops of one kernel. What a template computes has a printer of its own, with these methods (tiles/),
    and perhaps helpers of its own.
    """

    own_helpers: dict[str, str] = {}

    def __init__(
        self,
        kernel: Kernel,
        target: GpuTarget,
        layout: Layout,
        name: str,
        exact: bool = False,
        found: Found | None = None,
        open_numbers: bool = False,
    ):
        self.k, self.target, self.lay, self.name, self.found = kernel, target, layout, name, found
        self.open = (
            opened
            if open_numbers and layout.kind in KINDS and not layout.wide and not own_sizes(kernel.sizes)
            else lambda expr: expr
        )
        self.sizes_taken = own_sizes(kernel.sizes) if open_numbers else kernel.sizes
        self.exact = None if exact else fast_math.needs_precision(kernel)
        self.rounded = {} if exact else fast_math.rounded_to(kernel)
        self.itype = "tl.int64" if layout.wide else "tl.int32"
        self.helpers: dict[str, None] = {}
        self.origins: dict[str, str] = {}
        self.reduces = layout.kind in ("persistent", "looped", "split", "rows")
        self.reduced = next((stage.axes for stage in kernel.stages if stage.axes), ())
        self.accs: dict[str, Operand] = {}
        self.scratch: list[Scratch] = []
        self.asserts = False
        self.tiles: dict[str, Tile] = {}  # where the lanes of each dimension of tiles lie
        self.sizes = {
            axis.symbol.name: int(as_expr(axis.size).value)
            for axis in (*kernel.outer, *self.reduced)
            if as_expr(axis.size).is_const
        }

    def need(self, name: str) -> None:
        self.helpers[name] = None

    # ---- the file
    def run(self) -> TritonSource:
        functions, numbers = self._with_numbers(self._functions())
        text = "".join(function_text for _, function_text in functions)
        self.helpers |= {helper: None for helper in ("_round_bfloat16", *eight_bits.HELPERS) if f"{helper}(" in text}
        helpers = HELPERS | self.own_helpers | self._of_older_machines()
        prelude = "".join(helpers[helper] + "\n\n" for helper in self.helpers)
        imports = "import triton\nimport triton.language as tl\n" + (
            "from triton.language.extra import libdevice\n" if "libdevice." in text + prelude else ""
        )
        file = f"{header_of(self.k, self.name)}\n{imports}\n\n{prelude}{text}".rstrip() + "\n"
        limits = [] if self.lay.wide else [expr for expr in spans(self.k) if not expr.is_const]
        return TritonSource(
            name=self.name,
            text=file,
            functions=[function for function, _ in functions],
            scratch=self.scratch,
            choices=self.lay.plain(),
            asserts="tl.device_assert(" in file,
            limits=limits,
            names=names_of(self.k, self.origins),
            numbers=numbers,
        )

    def _with_numbers(
        self, functions: list[tuple[Function, str]]
    ) -> tuple[list[tuple[Function, str]], tuple[int, ...]]:
        """The functions with an argument for each number that they leave open, behind their buffers."""
        texts, numbers = with_arguments([text for _, text in functions])
        if not numbers:
            return functions, ()
        out = []
        for (function, _), text in zip(functions, texts):
            old = function.head
            arrays = sum(text.startswith("*") for _, text in function.arguments)
            function.arguments[arrays:arrays] = [(f"{NUMBER}{i}", "i32") for i in range(len(numbers))]
            out.append((function, text.replace(old, function.head, 1)))
        return out, numbers

    def _of_older_machines(self) -> dict[str, str]:
        """What helpers are where the target lacks instructions that they name."""
        generation = self.target.arch if self.target.backend == "cuda" and isinstance(self.target.arch, int) else 0
        return (
            ({} if has("floats of eight bits", generation) else eight_bits.OLDER)
            | ({} if has("bfloat16 instructions", generation) else prims.OLDER)
            | (philox_draws.OLDER if not generation else {})
        )

    def _functions(self) -> list[tuple[Function, str]]:
        if self.lay.kind == "rows":
            return [print_rows(self)]
        if self.lay.kind == "horizontal":
            return [print_horizontal(self)]
        return (
            print_split(self)
            if self.lay.kind == "split"
            else [self._whole() if self.found is None else _PRINTED[type(self.found)](self, self.found)]
        )

    def _function(
        self, name: str, body: list[str], grid: Expr, constants: dict[str, int], scratch: Sequence[Scratch] = ()
    ) -> tuple[Function, str]:
        size = "i64" if self.lay.wide else "i32"
        arguments = [(buffer.name, "*" + ttype(buffer.dtype).pointer) for buffer in (*self.k.inputs, *self.k.outputs)]
        arguments += [(buffer.name, "*" + ttype(buffer.dtype).pointer) for buffer in scratch]
        arguments += [(str(e), size) for e in self.sizes_taken]
        arguments += [
            (name, ttype(dtype).pointer if not ttype(dtype).low_precision else "fp32") for name, dtype in self.k.params
        ]
        if self.target.early:
            self.need("_wait")
            body = ["_wait()", *body]
        function = Function(name, arguments, constants, grid, self.lay.warps, self.lay.stages)
        return function, "\n".join(["@triton.jit", function.head, *(f"    {line}" for line in _used(body)), "", "", ""])

    def _t(self, expr: Any) -> str:
        return indices.index_text(as_expr(expr), self.need)

    # ---- tiles
    def _shape(self, dims: frozenset[str]) -> str:
        if self.lay.kind in ("pointwise", "horizontal"):
            return "[XBLOCK]" if dims else "[]"
        rows, columns = ("x", "r") if self.reduces else ("y", "x")
        return (
            f"[{rows.upper() + 'BLOCK' if rows in dims else '1'},"
            f" {columns.upper() + 'BLOCK' if columns in dims else '1'}]"
        )

    def _axes(self, axes: tuple[Axis, ...], dim: str) -> list[str]:
        """The axes of one tile dimension from its flat index."""
        out, rest = [], f"{dim}index"
        inner: Expr = integer(1)
        for k, axis in enumerate(reversed(axes)):
            text = rest if inner is integer(1) else f"{rest} // ({self._t(inner)})"
            if k < len(axes) - 1:
                text = (
                    f"({text}) % ({self._t(axis.size)})"
                    if inner is not integer(1)
                    else f"{text} % ({self._t(axis.size)})"
                )
            out.append(f"{axis.symbol} = {text}")
            inner = inner * as_expr(axis.size)
        return out

    def _dim(
        self, dim: str, axes: tuple[Axis, ...], block: int, start: str, position: str, masks: dict[str, str]
    ) -> list[str]:
        """The flat index of a tile dimension, its axes and its mask."""
        count = numel(axes)
        self._lies(dim, axes, block, start, position)
        lines = [f"{dim}numel = {self._t(self.open(count))}"]
        lines.append(f"{dim}index = {start} + tl.arange(0, {dim.upper()}BLOCK){position}")
        if axes and not _fills(count, block):
            lines.append(f"{dim}mask = {dim}index < {dim}numel")
            masks[dim] = f"{dim}mask"
        elif not axes and block > 1:
            lines.append(f"{dim}mask = {dim}index < 1")
            masks[dim] = f"{dim}mask"
        return lines + self._axes(axes, dim)

    def _lies(self, dim: str, axes: tuple[Axis, ...], block: int, start: str, position: str) -> None:
        lay = self.lay
        elements = lay.xblock * (lay.rblock if self.reduces else lay.yblock if lay.kind == "tiled" else 1)
        self.tiles[dim] = Tile(dim, start, position, axes, block, elements // (32 * lay.warps))

    def _pid(self, text: str) -> str:
        return f"{text}.to(tl.int64)" if self.lay.wide else text

    def _axis_dims(self, stage: Stage) -> dict[str, str]:
        out = {axis.symbol.name: "x" for axis in self.lay.x} | {axis.symbol.name: "y" for axis in self.lay.y}
        return out | {axis.symbol.name: "r" for axis in stage.axes if self.lay.kind != "horizontal"}

    # ---- pointwise, tiled, persistent and looped kernels
    def _whole(self) -> tuple[Function, str]:
        lay = self.lay
        masks: dict[str, str] = {}
        pid = self._pid("tl.program_id(0)")
        xblocks = ceildiv(numel(lay.x), integer(lay.xblock))
        if lay.kind == "tiled":
            body = [f"pid = {pid}", f"xblocks = {self._t(xblocks)}"]
            body += self._dim("x", lay.x, lay.xblock, "(pid % xblocks) * XBLOCK", "[None, :]", masks)
            body += self._dim("y", lay.y, lay.yblock, "(pid // xblocks) * YBLOCK", "[:, None]", masks)
            grid = xblocks * ceildiv(numel(lay.y), integer(lay.yblock))
            constants = {"XBLOCK": lay.xblock, "YBLOCK": lay.yblock}
        else:
            body = self._dim("x", lay.x, lay.xblock, f"{pid} * XBLOCK", "[:, None]" if self.reduces else "", masks)
            grid, constants = xblocks, {"XBLOCK": lay.xblock}
        if lay.kind == "persistent":
            body += self._dim("r", self.reduced, lay.rblock, "0", "[None, :]", masks)
            constants["RBLOCK"] = lay.rblock
        elif lay.kind == "looped":
            body += [f"rnumel = {self._t(numel(self.reduced))}", "rbase = tl.arange(0, RBLOCK)[None, :]"]
            constants["RBLOCK"] = lay.rblock
        names = Names(origins=self.origins)
        stages = self.k.stages
        number = 0
        while number < len(stages):
            stage = stages[number]
            if any(acc.running for acc in stage.accs):
                body += scan.scan_loop(self, stage, names, masks)
            elif lay.kind == "looped" and number + 1 < len(stages) and is_online_softmax(stage, stages[number + 1]):
                body += self._online(number, stage, stages[number + 1], names, masks)
                number += 1
            elif lay.kind == "looped" and number + 1 < len(stages) and is_variance(stage, stages[number + 1]):
                body += self._variance(number, stage, stages[number + 1], names, masks, "0", "rnumel")
                number += 1
            elif lay.kind == "looped" and stage.axes:
                body += self._loop(number, stage, names, masks, "0", "rnumel")
            else:
                body += self._straight(stage, names, masks)
            number += 1
        return self._function(self.name, body, grid, constants)

    def _values(self, stage: Stage, names: Names, masks: dict[str, str], number: int = -1) -> Values:
        return Values(
            names=names,
            axis_dims=self._axis_dims(stage),
            masks=masks,
            shape=self._shape,
            acc=self._acc,
            need=self.need,
            index_type=self.itype,
            policy=(lambda buffer, dims: self._policy(number, buffer, dims))
            if number >= 0
            else (lambda buffer, dims: ""),
            exact=self.exact,
            backend=self.target.backend,
            sizes=self.sizes,
            loose=self._loose(),
            tiles=self.tiles.values(),
            rounded=self.rounded,
            ahead=self.lay.stages > 1,
            open=self.open,
        )

    def _loose(self) -> dict[str, tuple[str, int]]:
        count = numel(self.reduced)
        if self.lay.kind != "looped" or not count.is_const or count.value % 8 == 0 or count.value < 1024:
            return {}
        return {"r": ("rloose", -(-int(count.value) // 8) * 8)}

    def _acc(self, name: str) -> Operand:
        return self.accs[name]

    def _policy(self, number: int, buffer: Buffer, dims: frozenset[str]) -> str:
        """What several passes read stays in the cache until the last of them."""
        if "r" not in dims:
            return ""
        readers = [n for n, st in enumerate(self.k.stages) if st.axes and buffer in _buffers_read(st)]
        if len(readers) < 2:
            return ""
        return "evict_first" if number == readers[-1] else "evict_last"

    def _roots(self, stage: Stage) -> list[Value]:
        known = indirect_values()
        roots = [acc.value for acc in stage.accs]
        for store in stage.stores:
            roots += [known[name] for name in sorted(store.index.symbol_names()) if name in known]
            roots.append(stored(store.value))
        return roots

    def _tile(self, operand: Operand, identity: str | None, masks: dict[str, str], dims: frozenset[str]) -> str:
        """A value over all of `dims`; where lanes are masked off along r, `identity`."""
        shape = self._shape(dims)
        if operand.is_literal:
            text = f"tl.full({shape}, {operand.text}, {operand.t.held})"
        elif not dims <= operand.dims:
            text = f"tl.broadcast_to({operand.text}, {shape})"
        else:
            text = operand.text
        if identity is not None and "r" in masks:
            text = f"tl.where({masks['r']}, {text}, {_typed(identity, operand)})"
        return text

    def _straight(self, stage: Stage, names: Names, masks: dict[str, str]) -> list[str]:
        """A stage without a loop: the statements of its tile."""
        values = self._values(stage, names, masks)
        values.inside = values.outside
        values.emit(self._roots(stage))
        tile = frozenset(values.axis_dims.values()) | ({"x"} if self.reduces else NONE)
        if not stage.axes:
            tile -= {"r"}
        if stage.axes:
            self._fold_tiles(stage.accs, values, masks, values.outside)
        for acc in () if stage.axes else stage.accs:  # reductions over one element
            operand = values.operand(acc.value)
            text = "tl.full([], 0, tl.int64)" if acc.is_position else prims.conversion(operand, ttype(acc.dtype))
            values.outside.append(f"{acc.name} = {text}")
            self.accs[acc.name] = Operand(acc.name, ttype(acc.dtype), operand.dims)
        for store in stage.stores:
            values.store(store.buffer, store.index, store.value, store.mode, tile)
        return values.outside

    def _fold_tiles(self, accs: Sequence[Acc], values: Values, masks: dict[str, str], out: list[str]) -> None:
        """The accumulators of a stage whose tiles are whole rows. Sums are folded together: the warps of a row meet
        once for all of them.
        """
        found = [(acc, values.operand(acc.value)) for acc in accs]
        tiles = {
            acc.name: self._tile(operand, reduce_identity(acc.op, operand.t), masks, frozenset("xr"))
            for acc, operand in found
        }
        sums = [
            acc for acc, operand in found if acc.op == "sum" and operand.t.held == ttype(acc.dtype).held == "tl.float32"
        ]
        together = sums[: prims.MOST_SUMS] if len(sums) > 1 else []
        for acc, operand in found:
            if acc not in together:
                self._fold(acc, tiles[acc.name], "tl.broadcast_to(rindex, [XBLOCK, RBLOCK])", operand, out)
        if together:
            self.need(f"_add_{len(together)}")
            self.need(f"_sum_{len(together)}")
            out.append(
                f"{', '.join(acc.name for acc in together)} ="
                f" _sum_{len(together)}({', '.join(tiles[acc.name] for acc in together)})"
            )
            self.accs |= {acc.name: Operand(acc.name, ttype(acc.dtype), frozenset("x")) for acc in together}

    def _fold(self, acc: Acc, text: str, at: str, operand: Operand, out: list[str], stem: str | None = None) -> None:
        """`acc = reduction of a tile along r`, kept as a column."""
        name = stem or acc.name
        if acc.is_position:
            self.need("_" + acc.op)
            out.append(f"{name}_value, {name} = tl.reduce(({text}, {at}), 1, _{acc.op})")
            out.append(f"{name} = {name}[:, None].to(tl.int64)")
            self.accs[acc.name] = Operand(name, ttype(torch.int64), frozenset("x"))
            return
        t = ttype(acc.dtype)
        if operand.t != t and not (operand.t.held == t.held):
            text = f"({text}).to({t.held})" if t.kind != "bool" else f"(({text}) != 0)"
        folded = reduce_tile(acc.op, t, text, 1, self.need)
        out.append(f"{name} = ({folded})[:, None]")
        self.accs[acc.name] = Operand(name, t, frozenset("x"))

    def _head(self, axes: tuple[Axis, ...], masks: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """How a pass of a loop over reduced axes begins: where its lanes are; and the masks inside of it."""
        count, inner, head = numel(axes), dict(masks), ["rindex = roffset + rbase"]
        self._lies("r", axes, self.lay.rblock, "roffset", "[None, :]")
        if not _fills(count, self.lay.rblock):
            head.append("rmask = rindex < rnumel")
            inner["r"] = "rmask"
            head += [f"{name} = rindex < {end}" for name, end in self._loose().values()]
        return [*head, *self._axes(axes, "r")], inner

    def _loop(self, number: int, stage: Stage, names: Names, masks: dict[str, str], start: str, end: str) -> list[str]:
        """A stage as a loop over the reduced axes."""
        head, inner = self._head(stage.axes, masks)
        values = self._values(stage, names, inner, number)
        values.emit(self._roots(stage))
        declare: list[str] = []
        finish: list[str] = []
        full = frozenset("xr")
        for acc in stage.accs:
            operand = values.operand(acc.value)
            t = ttype(acc.dtype)
            running = "_" + acc.name
            tile = self._tile(operand, None, {}, full)
            if acc.is_position:
                identity = reduce_identity(acc.op, operand.t)
                declare += [
                    f"{running} = tl.full([XBLOCK, RBLOCK], {identity}, {operand.t.held})",
                    (
                        f"{running}_at = tl.full([XBLOCK, RBLOCK], {2**31 - 1 if not self.lay.wide else 2**62},"
                        f" {self.itype})"
                    ),
                ]
                sign = acc.better
                better = (
                    f"(({tile}) {sign} {running}) | (({tile}) != ({tile})) & ({running} == {running})"
                    if operand.t.is_float
                    else f"({tile}) {sign} {running}"
                )
                # the very first element counts even where it equals the identity
                better = f"({better}) | ({running}_at == {2**31 - 1 if not self.lay.wide else 2**62})"
                if "r" in inner:
                    better = f"rmask & ({better})"
                values.inside += [
                    f"{running}_better = {better}",
                    f"{running} = tl.where({running}_better, {tile}, {running})",
                    f"{running}_at = tl.where({running}_better, rindex, {running}_at)",
                ]
                self._fold(acc, running, f"{running}_at", operand, finish)
                continue
            if operand.t != t and operand.t.held != t.held:
                tile = f"({tile}).to({t.held})" if t.kind != "bool" else f"(({tile}) != 0)"
            declare.append(f"{running} = tl.full([XBLOCK, RBLOCK], {reduce_identity(acc.op, t)}, {t.held})")
            new = reduce_update(
                acc.op,
                t,
                Operand(running, t, full),
                Operand(f"({tile})" if not tile.isidentifier() else tile, t, full),
                self.need,
            )
            if "r" in inner:
                new = f"tl.where(rmask, {new}, {running})"
            values.inside.append(f"{running} = {new}")
            self._fold(acc, running, "", Operand(running, t, full), finish)
        tile_dims = frozenset("xr")
        for store in stage.stores:
            values.store(store.buffer, store.index, store.value, store.mode, tile_dims)
        names.forget("r")
        pieces = (
            f"range({start}, {end}, RBLOCK)"
            if self.lay.stages == 1
            else f"tl.range({start}, {end}, RBLOCK, num_stages={self.lay.stages})"
        )
        return [
            *values.outside,
            *declare,
            f"for roffset in {pieces}:",
            *(f"    {line}" for line in [*head, *values.inside]),
            *finish,
        ]

    def _online(self, number: int, first: Stage, second: Stage, names: Names, masks: dict[str, str]) -> list[str]:
        """A row's maximum and the sum of its exponentials in one pass: where a piece raises the maximum, the sum so far
        is scaled. A row of nothing but -inf gives NaN, as exp(-inf - -inf) does."""
        (top,) = first.accs
        (total,) = second.accs
        head, inner = self._head(first.axes, masks)
        values = self._values(first, names, inner, number + 1)
        values.emit(self._roots(first))
        operand = values.operand(top.value)
        full = frozenset("xr")
        t = ttype(total.dtype)
        self.need("_max")
        infinite = 'float("inf")'
        tile = self._tile(operand, f"-{infinite}", inner, full)
        piece = names.fresh("piece")
        values.inside += [
            f"{piece} = {tile}",
            f"_top = tl.maximum({top.name}, tl.reduce({piece}, 1, _max)[:, None], propagate_nan=tl.PropagateNan.ALL)",
            f"_from = tl.where(_top == -{infinite}, 0.0, _top)",
            f"_{total.name} = _{total.name} * libdevice.exp({top.name} - _from) + libdevice.exp({piece} - _from)",
            f"{top.name} = _top",
        ]
        for store in first.stores:
            values.store(store.buffer, store.index, store.value, store.mode, full)
        declare = [
            f"{top.name} = tl.full([XBLOCK, 1], -{infinite}, {operand.t.held})",
            f"_{total.name} = tl.full([XBLOCK, RBLOCK], 0.0, {t.held})",
        ]
        finish: list[str] = []
        self._fold(total, f"_{total.name}", "", Operand("", t, full), finish)
        finish.append(f'{total.name} = tl.where({top.name} == -{infinite}, float("nan"), {total.name})')
        self.accs[top.name] = Operand(top.name, ttype(top.dtype), frozenset("x"))
        names.forget("r")
        return [
            *values.outside,
            *declare,
            "for roffset in range(0, rnumel, RBLOCK):",
            *(f"    {line}" for line in [*head, *values.inside]),
            *finish,
        ]

    def _variance(
        self, number: int, first: Stage, second: Stage, names: Names, masks: dict[str, str], start: str, end: str
    ) -> list[str]:
        """A row's sum and the sum of its squared distances from the mean in one pass (Welford). Each lane of the tile
        keeps a mean and the squares around it. Lanes are brought to the common mean at the end."""
        total, squares = first.accs[0], second.accs[0]
        head, inner = self._head(first.axes, masks)
        values = self._values(first, names, inner, number + 1)
        values.emit(self._roots(first))
        full = frozenset("xr")
        operand = self._tile(values.operand(total.value), None, {}, full)
        step, off = "_step * _inverse", "_step * (_x - _mean)"
        if "r" in inner:
            step, off = (f"tl.where(rmask, {text}, 0.0)" for text in (step, off))
        values.inside += [
            f"_x = {operand}",
            "_done += 1.0",
            "_inverse = 1.0 / _done",
            "_step = _x - _mean",
            f"_mean = _mean + {step}",
            f"_squares = _squares + {off}",
        ]
        declare = [
            "_mean = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)",
            "_squares = tl.full([XBLOCK, RBLOCK], 0.0, tl.float32)",
            "_done = 0.0",
        ]
        finish = [
            f"_count = tl.maximum(({end} - {start} - rbase + RBLOCK - 1) // RBLOCK, 0).to(tl.float32)",
            (
                f"_seen = tl.maximum({end} - {start}, 1).to(tl.float32)"
                if start != "0"
                else f"_seen = ({self._t(numel(first.axes))}) * 1.0"
            ),
            f"{total.name} = (tl.sum(_mean * _count, 1))[:, None]",
            f"_mean = _mean - {total.name} / _seen",
            f"{squares.name} = (tl.sum(_squares + _count * _mean * _mean, 1))[:, None]",
        ]
        for acc in (total, squares):
            self.accs[acc.name] = Operand(acc.name, ttype(acc.dtype), frozenset("x"))
        names.forget("r")
        return [
            *values.outside,
            *declare,
            f"for roffset in range({start}, {end}, RBLOCK):",
            *(f"    {line}" for line in [*head, *values.inside]),
            *finish,
        ]


def is_online_softmax(first: Stage, second: Stage) -> bool:
    """Whether two passes are max(v) and sum(exp(v - max)) in float32; the first may store as well."""
    if second.stores or len(first.accs) != 1 or len(second.accs) != 1 or first.axes != second.axes or not first.axes:
        return False
    top, total = first.accs[0], second.accs[0]
    return (
        top.op == "max"
        and total.op == "sum"
        and total.dtype == top.value.dtype == torch.float32
        and match(op("exp", op("sub", Same("x"), Leaf("acc", top.name))), total.value, {"x": top.value}) is not None
    )


def _buffers_read(stage: Stage) -> set[Buffer]:
    return loaded([acc.value for acc in stage.accs] + [store.value for store in stage.stores])


def _typed(identity: str, operand: Operand) -> str:
    """The identity as a literal of the value's type where Triton would guess another."""
    return identity if operand.t.held in ("tl.float32", "tl.int1") else f"tl.full([], {identity}, {operand.t.held})"
