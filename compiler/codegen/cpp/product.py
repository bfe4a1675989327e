"""Matrix products as C++: a loop nest `for b, m, n: f(sum over k of A[b, m, k] * B[b, k, n])` in blocks that stay in
registers and cache.

`find_product` recognises such a kernel by its structure; `print_product` prints it in two phases:

    pack      the rows of A in panels of MR rows, k outermost, so that a tile reads them in order. Items are panels.
    NAME      an item packs NR columns of B and multiplies them with a block of panels, tile by tile: MR x NR sums in
              registers.
              What follows the product in the kernel (a bias, an activation, a residual) is computed on the tile while
              it is hot.

Where A is far larger than the caches (the gradient of a vocabulary's weights), there is no first phase: an item's
thread packs its block of rows itself and goes through all columns before the next block.

Sums over k are kept in registers for RUN steps and then added to the tile in memory, which also keeps the error of long
sums down.

Products are the kernels that take longest to compile, and a model has many that differ in sizes alone. So sizes and
strides of more than a few elements are no part of the text: they are arguments (`numbers`), which the plan passes
before the kernel's own sizes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import torch

from ..kernel_sources import NUMBER
from ...lowering.ir import Axis, Buffer, Kernel, Store, Value, indirect_values, is_plain_load, numel
from ...symbolic.expr import ONE, ZERO, Expr, as_expr, ceildiv, integer, minimum, symbol
from ..sums import sum_of_products
from .dtypes import ctype
from .few_rows import DEEP, FEW_ROWS, few_rows_text, few_rows_tile
from .support import SIGNATURE, Support, Target, used_sizes
from ..guarded import stored
from .values import LEVEL_ITEM, LEVEL_LOOP, LEVEL_TOP, LEVEL_VECTOR, Location, Scope, StageValues
from .math.vecmath import need_instruction

__all__ = ["Product", "find_product", "ProductPrinter", "transpose_text"]

RUN = 128  # steps of k between additions to the tile in memory
BLOCK_BYTES = 384 * 1024  # of packed rows that an item goes through: they stay in the second-level cache
LEAST_BLOCK = 96  # rows
LEAST_WORK = 4096  # multiplications below which plain loops do as well
# Beyond FAR_BYTES of packed rows, going through all of them again for each strip of columns is slower than packing the
# strips again for each block of FAR_ROWS rows.
FAR_BYTES, FAR_ROWS = 4 << 20, 256
LEAST_NUMBER = 17  # smaller ones stay in the text: unit strides, tiles
_LITERAL = re.compile(r"(?<![\w.])(\d+)(LL)?(?![\w.])")


@dataclass
class Product:
    """`a`, `b`: the loads; `rows` run over a alone (one axis or several), `columns` over b alone; `batch` over both, or
    over b alone where one matrix multiplies several. The sum runs over `outer_k` (mostly none) and `k`."""

    a: Value
    b: Value
    acc: str
    outer_k: tuple[Axis, ...]
    k: Axis
    rows: tuple[Axis, ...]
    columns: Axis
    batch: tuple[Axis, ...]
    stores: list[Store]


def _is_read(value: Value) -> bool:
    """Whether an operand is read from a tensor as it is."""
    return is_plain_load(value) and value.attr[0].scope == "global"


def _axes_of_operands(kernel: Kernel, a: Value, b: Value) -> dict[str, list[Axis]] | None:
    """Which axes of the results the operands run along: "a", "b" or both of them, "ab"."""
    of: dict[str, list[Axis]] = {"a": [], "b": [], "ab": []}
    for axis in kernel.outer:
        ca, cb = a.attr[1].coeff(axis.symbol.name), b.attr[1].coeff(axis.symbol.name)
        if ca is None or cb is None or (ca is ZERO and cb is ZERO):
            return None
        of["b" if ca is ZERO else "a" if cb is ZERO else "ab"].append(axis)
    return of


def find_product(kernel: Kernel, target: Target) -> Product | None:
    """What makes this kernel (its axes merged) a product, or None. Only float32, on machines with fused
    multiply-add.
    """
    if not target.fma or target.width < 32 or kernel.checks or kernel.locals:
        return None
    summed = sum_of_products(kernel)
    if summed is None:
        return None
    first, acc = summed
    outer_k, k, value = first.axes[:-1], first.axes[-1], acc.value
    if value.dtype != torch.float32 or not all(map(_is_read, value.args)):
        return None
    stores = [store for st in kernel.stages[1:] for store in st.stores]
    if not stores or any(store.mode != "set" for store in stores):
        return None
    a, b = value.args
    if any(load.attr[1].coeff(axis.symbol.name) in (None, ZERO) for load in (a, b) for axis in first.axes):
        return None
    of = _axes_of_operands(kernel, a, b)
    if of is None:
        return None
    for one, many in (("a", "b"), ("b", "a")):
        if (
            of[one]
            and len(of[many]) > 1
            and _unit(stores, of[many][-1])
            and not any(_unit(stores, store) for store in of[one])
        ):
            # one matrix times several: each by itself, so that results are stored in whole vectors
            of["ab"] += of[many][:-1]
            of[many] = of[many][-1:]
    if len(of["b"]) != 1 or (
        of["a"] and _unit(stores, of["a"][-1]) and len(of["a"]) == 1 and not _unit(stores, of["b"][0])
    ):
        a, b, of["a"], of["b"] = b, a, of["b"], of["a"]
    if len(of["b"]) != 1 or not of["a"]:
        return None
    if math.prod(_hint(axis.size, kernel.hints) for axis in (*kernel.outer, *first.axes)) < LEAST_WORK:
        return None
    return Product(a, b, acc.name, tuple(outer_k), k, tuple(of["a"]), of["b"][0], tuple(of["ab"]), stores)


def _unit(stores: list[Store], axis: Axis) -> bool:
    return all(store.index.coeff(axis.symbol.name) is ONE for store in stores)


def _hint(size: Any, hints: dict[str, int]) -> int:
    expr = as_expr(size)
    return expr.value if expr.is_const else int(expr.eval({name: hints.get(name, 64) for name in expr.symbol_names()}))


def tile_shape(lanes: int, rows: int, columns: int, varies: bool = False) -> tuple[int, int]:
    """(rows, vectors of columns) of a tile: as many sums as the registers hold, and few rows that are only padding.
    `varies`: there may be any number of rows, `rows` was only the first."""
    registers = 32 if lanes == 16 else 16
    vectors = 1 if columns <= lanes else 2
    most = min((registers - 1 - vectors) // vectors, 14)
    if varies and rows <= most:
        return most, vectors
    least = max(4, most // 2)
    best = min(range(least, most + 1), key=lambda m: (-(-rows // m) * (m + 1.5), -m))
    return best, vectors


@dataclass
class _OpenScope(Scope):
    """A scope whose texts of indices name numbers instead of holding them, but for divisors: those are computed with
    for each row.
    """

    numbers: list[int] = field(default_factory=list)
    strides: dict[int, str] = field(default_factory=dict)  # the numbers of indices -> their names

    def index_text(self, expr: Expr) -> str:
        text = super().index_text(expr)
        if re.search(r"[/%]|tc_", text):
            return text
        return _LITERAL.sub(lambda m: self._stride(int(m[1])) if int(m[1]) >= LEAST_NUMBER else m[0], text)

    def once(self, expr: Any) -> str:
        """What is computed once in a call: each number is an argument by itself, divisors as well."""
        return _LITERAL.sub(
            lambda m: self.fresh_number(int(m[1])) if int(m[1]) > 0 else m[0], super().index_text(as_expr(expr))
        )

    def _stride(self, number: int) -> str:
        if number not in self.strides:
            self.strides[number] = self.fresh_number(number)
        return self.strides[number]

    def fresh_number(self, number: int) -> str:
        self.numbers.append(number)
        return f"{NUMBER}{len(self.numbers) - 1}"


class ProductPrinter:
    """Prints one product kernel; `source()` gives (text, symbols of the phases, choices). `numbers`: what the text
    takes before the kernel's sizes.
    """

    def __init__(self, kernel: Kernel, product: Product, target: Target, name: str, header: str):
        self.k, self.p, self.name, self.header = kernel, product, name, header
        self.lanes = target.width // 4
        rows = 1
        for row in product.rows:
            rows *= _hint(row.size, kernel.hints)
        varies = any(as_expr(axis.size).symbol_names() for axis in product.rows)
        self.mr, self.vectors = tile_shape(self.lanes, rows, _hint(product.columns.size, kernel.hints), varies)
        # rows of the smaller tile for what is left of them
        self.half = self.mr // 2 if varies and rows <= self.mr else 0
        self.nr = self.vectors * self.lanes
        self.s = Support(target, self.lanes)
        self.scope = _OpenScope(self.s)
        self.m, self.n, self.depth = (
            numel(product.rows),
            as_expr(product.columns.size),
            numel((*product.outer_k, product.k)),
        )
        self.panels = ceildiv(self.m, self.mr)
        per = max(LEAST_BLOCK, BLOCK_BYTES // (4 * max(1, _hint(self.depth, kernel.hints))))
        self.per_block = max(1, -(-per // self.mr))  # panels of one item
        self.blocks = ceildiv(self.panels, self.per_block)
        # a block with all its columns at a time: its rows, and those of the result, stay in cache
        self.block_first = (
            rows * _hint(self.depth, kernel.hints) * 4 > FAR_BYTES and self.per_block * self.mr >= FAR_ROWS
        )
        self.column_panels = ceildiv(self.n, self.nr)
        self.batches = numel(product.batch)
        # packed once for all
        self.one = bool(product.batch) and all(
            product.a.attr[1].coeff(axis.symbol.name) is ZERO for axis in product.batch
        )
        once = self.scope.once
        self.shapes = [
            f"    const i64 rows = {once(self.m)}, columns = {once(self.n)}, depth = {once(self.depth)};",
            f"    const i64 panels = {once(self.panels)};",
        ]
        k = product.k.symbol.name
        # few rows are multiplied as they lie, where the kernel sees few of them: see few_rows.py
        self.few = (
            rows <= self.mr
            and not self.block_first
            and not product.outer_k
            and product.a.attr[1].coeff(k) is ONE
            and product.b.attr[1].coeff(k) is ONE
        )

    def source(self) -> tuple[str, list[str], dict[str, Any]]:
        parts = [*([] if self.block_first else [self._pack()]), self._multiply(), self._plan()]
        body = ["\n".join([*part[:1], *self._sizes(part), *part[1:]]) for part in parts]  # all numbers are known now
        self._helpers()
        text = "\n".join([self.header, self.s.text(), "using tc::MR; using tc::NR; using tc::DEEP;", "", *body])
        choices = {
            "shape": "product",
            "vector": self.p.columns.symbol.name,
            "lanes": self.lanes,
            "block": self.per_block * self.mr,
            "unroll": [self.mr, self.vectors],
            "serial": False,
        }
        return text, [*([] if self.block_first else [f"{self.name}_pack"]), self.name], choices

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self.scope.numbers)

    # ---- texts
    def _c(self, expr: Any) -> str:
        return self.scope.index_text(as_expr(expr))

    def _sizes(self, text: list[str]) -> list[str]:
        """Declarations of the sizes and numbers that these lines use."""
        own = [size for size in self.k.sizes if not str(size).startswith(NUMBER)]
        return used_sizes([*(symbol(f"{NUMBER}{i}") for i in range(len(self.scope.numbers))), *own], text)

    def _helpers(self) -> None:
        self.s.vector("f32")
        self.s.need("access")
        need_instruction(self.s, "fma", "f32")
        self.s.need(
            "product.sizes",
            f"enum {{ MR = {self.mr}, NV = {self.vectors}, NR = NV * L, DEEP = {DEEP} }};     // a tile: MR rows, NR"
            " columns",
        )
        self.s.need("product.transpose", transpose_text(self.lanes))
        self.s.need("product.pack", _PACK)
        self.s.need("product.tile", _TILE.replace("RUN", str(RUN)))
        if self.few:
            self.s.need("product.few", few_rows_text(self.lanes))

    def _head(self, symbol_name: str) -> list[str]:
        out = [f'extern "C" int {symbol_name}{SIGNATURE} {{']
        for n, b in enumerate((*self.k.inputs, *self.k.outputs)):
            t = storage(b)
            const = "const " if n < len(self.k.inputs) and b not in self.k.outputs else ""
            out.append(f"    {const}{t} *{b.name} = ({const}{t} *)buffer[{n}];")
        for n, (p, dtype) in enumerate(self.k.params):
            ct = ctype(dtype)
            out.append(f"    const {ct.scalar} {p} = ({ct.scalar})param[{n}].{'f' if ct.is_float else 'i'};")
        out += [
            *self.shapes,
            (
                "    const i64 panel_size = (depth * MR + 2 * L - 1) / L * L;       // packing may write up to L"
                " elements more than it should"
            ),
            *([] if self.block_first else ["    float *const packed = (float *)(((u64)scratch + 63) & ~63ull);"]),
        ]
        return out

    def _decode(self, name: str, axes: tuple[Axis, ...], ind: str) -> list[str]:
        """The axes' symbols from their flat position, the last fastest."""
        if not axes:
            return []
        if len(axes) == 1:
            return [f"{ind}const i64 {axes[0].symbol} = {name};"]
        out = [f"{ind}i64 {name}_rest = {name};"]
        for axis in reversed(axes[1:]):
            size = self._c(axis.size)
            out.append(f"{ind}const i64 {axis.symbol} = {name}_rest % ({size}); {name}_rest /= ({size});")
        return [*out, f"{ind}const i64 {axes[0].symbol} = {name}_rest;"]

    def _at(self, value: Value, zero: tuple[Axis, ...]) -> tuple[str, str]:
        """(address of a load where the axes `zero` and k are 0, its step along k)."""
        buffer, index = value.attr
        step = index.coeff(self.p.k.symbol.name)
        base = index.subs({axis.symbol.name: ZERO for axis in (*zero, self.p.k)})
        return f"{buffer.name} + ({self._c(base)})", self._c(step)

    def _pack_panel(self, to: str, ind: str) -> list[str]:
        """Statements that pack the rows of one `panel` of one `batch`."""
        product = self.p
        address, step = self._at(product.a, ())
        unit = len(product.rows) == 1 and product.a.attr[1].coeff(product.rows[0].symbol.name) is ONE
        return [
            f"{ind}const i64 top = panel * MR;",
            f"{ind}const int used = rows - top < MR ? (int)(rows - top) : MR;",
            *self._parts(
                [
                    "const float *row_at[MR];",
                    "for (int i = 0; i < used; i++) {",
                    "    const i64 row = top + i;",
                    *self._decode("row", product.rows, "    "),
                    f"    row_at[i] = {address};",
                    "}",
                    (
                        f"tc::{'pack_across<MR>(' if unit else 'pack(MR, '}row_at, {step}, used, {{run}}, {to}{{at}} *"
                        " MR{end});"
                    ),
                ],
                ind,
            ),
        ]

    def _parts(self, lines: list[str], ind: str) -> list[str]:
        """Packing for each part of the sum that is evenly spaced in memory: all of it, or one for each step of the
        outer axes of the sum.
        """
        pack = lines[-1]
        if not self.p.outer_k:
            pack = pack.replace("{at} * MR{end}", "").replace("{at} * NR{end}", "").replace("{run}", "depth")
            return [ind + line for line in (*lines[:-1], pack)]
        pack = pack.replace("{at}", " + (part * run)").replace("{end}", "").replace("{run}", "run")
        return [
            f"{ind}const i64 run = {self._c(self.p.k.size)}, parts = depth / run;",
            f"{ind}for (i64 part = 0; part < parts; ++part) {{",
            *self._decode("part", self.p.outer_k, ind + "    "),
            *(f"{ind}    {line}" for line in (*lines[:-1], pack)),
            f"{ind}}}",
        ]

    def _pack(self) -> list[str]:
        lines = [
            "    for (i64 item = begin; item < end; ++item) {",
            *(
                ["        const i64 panel = item;"]
                if self.one
                else [
                    "        const i64 panel = item % panels, batch = item / panels;",
                    *self._decode("batch", self.p.batch, "        "),
                ]
            ),
            *self._pack_panel("packed + item * panel_size", "        "),
            "    }",
            "    return 0;",
            "}",
            "",
        ]
        return [*self._head(f"{self.name}_pack"), *lines]

    def _multiply(self) -> list[str]:
        product = self.p
        address, step = self._at(product.b, (product.columns,))
        stride = product.b.attr[1].coeff(product.columns.symbol.name)
        levels = {axis.symbol.name: LEVEL_ITEM for axis in product.batch} | {
            row.symbol.name: LEVEL_LOOP for row in product.rows
        }
        levels[product.columns.symbol.name] = LEVEL_VECTOR
        v = product.columns.symbol.name
        values = StageValues(
            self.scope,
            levels,
            v,
            lambda buffer, expr: Location(buffer.name, expr, None),
            lambda name: ("product", LEVEL_VECTOR),
        )
        known = indirect_values()
        roots: list[Value] = []
        for st in product.stores:
            roots += [known[name] for name in sorted(st.index.symbol_names()) if name in known]
            roots.append(stored(st.value))
        values.emit(roots)
        body = list(values.lines.get(LEVEL_VECTOR, []))
        for st in product.stores:
            body += [text for _, text in values.store(st, True)]
        block = "block" if self.one else "batch * blocks + block"
        panel = "panel % block_panels" if self.block_first else "panel" if self.one else "batch * panels + panel"
        operands = f"packed + ({panel}) * panel_size, right, depth, tile"
        lines = [
            *(f"    {line}" for line in values.lines.get(LEVEL_TOP, [])),
            (
                f"    const i64 block_panels = {self.scope.fresh_number(self.per_block)};           // a block: so many"
                " panels of MR rows"
            ),
            (
                f"    const i64 blocks = {self.scope.once(self.blocks)}, column_panels ="
                f" {self.scope.once(self.column_panels)};"
            ),
            "    float *const allocated = (float *)__builtin_malloc((depth + 1) * NR * 4 + 64);",
            "    float *const right = (float *)(((u64)allocated + 63) & ~63ull);",
            "    float tile[MR * NR] __attribute__((aligned(64)));",
            *(
                [
                    "    float *const own = (float *)__builtin_malloc(block_panels * panel_size * 4 + 64);",
                    "    float *const packed = (float *)(((u64)own + 63) & ~63ull);",
                    "    i64 held_rows = -1;                  // which rows `packed` holds",
                ]
                if self.block_first
                else []
            ),
            "    i64 held = -1;                       // whose columns `right` holds",
            "    for (i64 item = begin; item < end; ++item) {",
            *self._place(),
            *self._decode("batch", product.batch, "        "),
            *(
                [
                    f"        const bool few = rows <= (depth < DEEP ? {FEW_ROWS} : MR);         // they are read as"
                    " they lie"
                ]
                if self.few
                else []
            ),
            *self._pack_columns(address, step, stride),
            *(f"        {line}" for line in values.lines.get(LEVEL_ITEM, [])),
            "        const i64 last = (block + 1) * block_panels < panels ? (block + 1) * block_panels : panels;",
            *(
                [
                    f"        if (held_rows != {block}) {{",
                    f"            held_rows = {block};",
                    "            for (i64 panel = block * block_panels; panel < last; ++panel) {",
                    *self._pack_panel("packed + panel % block_panels * panel_size", "                "),
                    "            }",
                    "        }",
                ]
                if self.block_first
                else []
            ),
            "        for (i64 panel = block * block_panels; panel < last; ++panel) {",
            "            const int used = rows - panel * MR < MR ? (int)(rows - panel * MR) : MR;",
            *self._few_tile(address, stride),
            *(
                [
                    f"            {'else ' if self.few else ''}if (used <= {self.half})"
                    f" tc::multiply<{self.half}>({operands});"
                ]
                if self.half
                else []
            ),
            f"            {'else ' if self.few or self.half else ''}tc::multiply<MR>({operands});",
            *self._finish_rows(values, body),
            "        }",
            "    }",
            "    __builtin_free(allocated);",
            *(["    __builtin_free(own);"] if self.block_first else []),
            "    return 0;",
            "}",
            "",
        ]
        return [*self._head(self.name), *lines]

    def _pack_columns(self, address: str, step: str, stride: Any) -> list[str]:
        """A strip of columns, packed where it is not the one that is held."""
        call = f"tc::{'pack_across<NR>(' if stride is ONE else 'pack(NR, '}column_at, {step}, used, {{run}},"
        return [
            f"        if ({'!few && ' if self.few else ''}held != strip) {{",
            "            held = strip;",
            "            const int used = columns - first < NR ? (int)(columns - first) : NR;",
            *self._parts(
                [
                    "const float *column_at[NR];",
                    f"for (int j = 0; j < used; j++) column_at[j] = {address} + (first + j) * ({self._c(stride)});",
                    f"{call} right{{at}} * NR{{end}});",
                ],
                " " * 12,
            ),
            "        }",
        ]

    def _finish_rows(self, values: StageValues, body: list[str]) -> list[str]:
        """What becomes of a tile: each row of it through the operators that follow the product."""
        p = self.p
        needs_row = any(
            axis.symbol.name in text for axis in p.rows for text in (*body, *values.lines.get(LEVEL_LOOP, []))
        )
        row = ["                const i64 row = panel * MR + i;", *self._decode("row", p.rows, "                ")]
        return [
            "            for (int i = 0; i < used; i++) {",
            *(row if needs_row else []),
            *(f"                {line}" for line in values.lines.get(LEVEL_LOOP, [])),
            (
                f"                auto finish = [&](i64 {p.columns.symbol.name}, vf32 product, auto lanes)"
                " __attribute__((always_inline)) {"
            ),
            *(f"                    {line}" for line in body),
            "                };",
            "                UNROLL for (int j = 0; j < NR; j += L) {",
            "                    const i64 at = first + j;",
            "                    const vf32 sum = tc::load<vf32>(tile + i * NR + j, tc::All{});",
            "                    if (at + L <= columns) finish(at, sum, tc::All{});",
            "                    else if (at < columns) finish(at, sum, tc::First{columns - at});",
            "                }",
            "            }",
        ]

    def _few_tile(self, address: str, stride: Any) -> list[str]:
        if not self.few:
            return []
        row_address, _ = self._at(self.p.a, ())
        tile = few_rows_tile(
            self._decode("row", self.p.rows, ""),
            row_address,
            f"{address} + j * ({self._c(stride)})",
            4 if self.lanes == 16 else 2,
        )
        return ["            if (few) {", *(f"                {line}" for line in tile), "            }"]

    def _place(self) -> list[str]:
        """Which block of rows and which strip of columns an item is."""
        if not self.block_first:
            return [
                "        const i64 block = item % blocks, strip = item / blocks;",
                "        const i64 first = strip % column_panels * NR, batch = strip / column_panels;",
            ]
        return [
            "        const i64 block = item / column_panels % blocks, batch = item / column_panels / blocks;",
            (
                "        const i64 strip = batch * column_panels + item % column_panels, first = item % column_panels"
                " * NR;"
            ),
        ]

    def _plan(self) -> list[str]:
        packed = self.panels if self.one else self.batches * self.panels
        scratch = packed * (self.depth * self.mr + 2 * self.lanes) * 4 + 64
        pack_ps = self.depth * (self.mr * 250)
        rows = minimum(self.panels, integer(self.per_block)) * self.mr
        item_ps = rows * self.depth * max(1, self.nr * 1000 // (6 * self.lanes))
        phases = [(self.batches * self.column_panels * self.blocks, item_ps)]
        if self.block_first:
            scratch = ZERO
        else:
            phases.insert(0, (packed, pack_ps))
        rows_ = [
            f"    out[{k}] = {self.scope.once(size)};"
            for k, size in enumerate([scratch, *(size for phase in phases for size in phase)])
        ]
        if self.few:
            rows_.append(
                f"    if ({self.scope.once(self.m)} <= ({self.scope.once(self.depth)} < DEEP ? {FEW_ROWS} : MR)) out[1]"
                " = 0;         // nothing to pack"
            )
        return [f'extern "C" void {self.name}_plan(const i64 *size, i64 *out) {{', *rows_, "}", ""]


def storage(buffer: Buffer) -> str:
    ct = ctype(buffer.dtype)
    return {"bf16": "u16", "f16": "u16", "bool": "u8"}.get(ct.storage, ct.scalar)


def transpose_text(lanes: int, vector: str = "vf32") -> str:
    """L x L elements in L vectors, rows for columns: log2(L) rounds that exchange ever smaller blocks of two
    vectors.
    """
    rounds = []
    half = lanes // 2
    while half:
        # a where the bit is clear, else b from s lanes before
        low = [i if not i & half else lanes + (i ^ half) for i in range(lanes)]
        high = [i + half if not i & half else lanes + i for i in range(lanes)]
        rounds.append(
            f"    UNROLL for (int i = 0; i < L; i++) if (!(i & {half})) {{\n"
            "        const VECTOR a = r[i], b = r[i + %d];\n"
            "        r[i] = SHUFFLE(a, b, %s);\n        r[i + %d] = SHUFFLE(a, b, %s);\n    }"
            % (half, ", ".join(map(str, low)), half, ", ".join(map(str, high)))
        )
        half //= 2
    text = "\n".join(
        [
            "#if defined(__clang__) || __GNUC__ >= 12",
            "#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)",
            "#else",
            "#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (__typeof__((a) < (b))){__VA_ARGS__})",
            "#endif",
            "// L rows of L elements become columns.",
            "INLINE void transpose(VECTOR (&r)[L]) {",
            *rounds,
            "}",
        ]
    )
    return text.replace("VECTOR", vector)


_PACK = """\
// W rows (the first `used` of them are there, the others are 0) as to[k * W + i] = from[i][k * step]; writes up to L
// elements more.
// (Called by both phases: what transposes is most of what the compiler has to do here.)
static __attribute__((noinline)) void pack(int W, const float *const *from, i64 step, int used, i64 depth, float *to) {
    i64 k = 0;
    if (step == 1) {
        for (; k + L <= depth; k += L)
            // the last block first: what it writes too much is overwritten
            for (int block = (W - 1) / L * L; block >= 0; block -= L) {
                vf32 r[L];
                UNROLL for (int i = 0; i < L; i++)
                    r[i] = block + i < used ? load<vf32>(from[block + i] + k, All{}) : vf32{};
                if (depth >= DEEP)
                    UNROLL for (int i = 0; i < L; i++)
                        __builtin_prefetch(from[block + i < used ? block + i : 0] + k + 64);
                transpose(r);
                UNROLL for (int i = 0; i < L; i++) store(to + (k + i) * W + block, r[i], All{});
            }
    }
    for (; k < depth; k++)
        for (int i = 0; i < W; i++) to[k * W + i] = i < used ? from[i][k * step] : 0.0f;
}
// The same for rows that begin one element after the other: whole pieces of memory at each k.
template <int W>
static __attribute__((noinline))
void pack_across(const float *const *from, i64 step, int used, i64 depth, float *to) {
    const float *p = from[0];
    if (used == W) {
        for (i64 k = 0; k < depth; k++) __builtin_memcpy(to + k * W, p + k * step, W * sizeof(float));
        return;
    }
    for (i64 k = 0; k < depth; k++)
        for (int i = 0; i < W; i++) to[k * W + i] = i < used ? p[k * step + i] : 0.0f;
}"""
_TILE = """\
// tile = sum over k of a[k][0..M) * b[k][0..NR), of panels of MR rows
template <int M>
static __attribute__((noinline)) void multiply(const float *a, const float *b, i64 depth, float *tile) {
    for (i64 begin = 0; begin < depth || begin == 0; begin += RUN) {
        const i64 end = begin + RUN < depth ? begin + RUN : depth;
        vf32 sum[M][NV];
        UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < NV; j++) sum[i][j] = vf32{};
        for (i64 k = begin; k < end; k++) {
            vf32 column[NV];
            UNROLL for (int j = 0; j < NV; j++) column[j] = load<vf32>(b + k * NR + j * L, All{});
            UNROLL for (int i = 0; i < M; i++) {
                const vf32 x = a[k * MR + i] - vf32{};
                UNROLL for (int j = 0; j < NV; j++) sum[i][j] = fma(x, column[j], sum[i][j]);
            }
        }
        UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < NV; j++) {
            float *at = tile + i * NR + j * L;
            store(at, begin ? load<vf32>(at, All{}) + sum[i][j] : sum[i][j], All{});
        }
    }
}"""
