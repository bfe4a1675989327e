"""A kernel as C++ text: `print_kernel(kernel, target, choices) -> KernelSource`.

Every function it prints has the signature

    extern "C" int NAME(void *const *buffer, const i64 *size, const Scalar *param, char *scratch, i64 begin, i64 end)

and runs the work items [begin, end): the launcher decides how many threads share them. It returns 0, or 1 + the
position of a failed check in Kernel.checks. NAME_plan(size, out) fills in what the launcher has to know: out[0] bytes
of scratch, then for each phase its number of items and the estimated picoseconds of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

from ...lowering.ir import Acc, Axis, Buffer, Kernel, Stage, numel
from ...lowering.print_loops import names_of
from ...base.quoting import comment
from ...symbolic.expr import ZERO, Expr, as_expr, ceildiv, integer, symbol
from ..kernel_sources import KernelSource
from .accumulators import FLUSH, Accumulator, better
from .columns import column_phases
from .dtypes import ctype, storage_size
from .layout import Choices, Layout, StageLoops, chunk_count, merge_axes, plan_layout, size_hint, value_cost
from .hoist import hoisted
from .moves import moved_as_bits
from .pieces import mark_turns
from .prims import Operand, reduce_update
from .product import Product, ProductPrinter, find_product, transpose_text
from .scan import scan_loop
from .narrow_positions import shorten_positions
from .support import SIGNATURE, Support, Target, used_sizes, vector_type
from ..guarded import stored
from .values import LEVEL_ITEM, LEVEL_LOOP, LEVEL_TOP, LEVEL_VECTOR, Location, Scope, StageValues

__all__ = ["print_kernel"]

STACK_BYTES = 64 * 1024  # of local buffers; larger ones are allocated once per call and thread
TOGETHER, SHORT = (
    512,
    512,
    # elements of the rows that a reduction over rows takes at a time, one vector of columns after the other, where rows
    # have so few elements
)


@dataclass
class _Pass:
    """One pass over a vector axis: `body` for each vector, with `name` from `lo` to `hi`, `unroll` of them at a time.

    axis        where the pass is the whole of it, or its blocks
    may_flush   long sums are added to their totals in between
    """

    number: int
    name: str
    lo: str
    hi: str
    body: list[str]
    accumulators: list[Accumulator]
    unroll: int
    axis: Axis | None
    may_flush: bool


def print_kernel(kernel: Kernel, target: Target, choices: Choices = Choices(), name: str | None = None) -> KernelSource:
    """Print one kernel. Raises InternalError for what the loop IR allows but C++ has no form for (complex numbers)."""
    merged = shorten_positions(merge_axes(kernel))
    product = find_product(merged, target)
    if product is not None:
        return _print_product(merged, product, target, name or kernel.name)
    return _Printer(moved_as_bits(merged), target, choices, name or kernel.name).run()


def _print_product(kernel: Kernel, product: Product, target: Target, name: str) -> KernelSource:
    printer = ProductPrinter(kernel, product, target, name, header(kernel, name))
    text, phases, choices = printer.source()
    return KernelSource(
        name=name,
        text=text,
        phases=phases,
        plan_symbol=f"{name}_plan",
        checks=list(kernel.checks),
        choices=choices,
        names=names_of(kernel, printer.scope.origins),
        numbers=printer.numbers,
    )


def header(kernel: Kernel, name: str) -> str:
    """Comments at the head of a kernel's file: the operators, the user's lines, the buffers."""
    out = [f"{name}: {', '.join(dict.fromkeys(kernel.origins)) or 'generated kernel'}"]
    seen = dict.fromkeys(f"{line[0].rsplit('/', 1)[-1]}:{line[1]}" for line in kernel.lines if len(line) >= 2)
    if seen:
        out.append(f"from {', '.join(list(seen)[:8])}{' ...' if len(seen) > 8 else ''}")
    for b, role in [*((b, "reads ") for b in kernel.inputs), *((output, "writes") for output in kernel.outputs)]:
        out.append(f"  {role} {b}")
    return "\n".join(f"// {comment(line)}" for line in out)


class _Printer:
    def __init__(self, kernel: Kernel, target: Target, choices: Choices, name: str):
        self.name = name
        self.layout: Layout = plan_layout(kernel, target, choices)
        if self.layout.mode == "outer":
            lanes, unhoisted = self.layout.lanes, kernel
            kernel = hoisted(kernel, lambda value: value_cost(value, lanes))
            if kernel is not unhoisted:
                self.layout = plan_layout(kernel, target, replace(choices, vector=self.layout.vector.symbol.name))
        self.k = mark_turns(kernel, self.layout)
        self.s = Support(target, self.layout.lanes)
        self.scope = Scope(self.s, checks=list(kernel.checks))
        self.top: list[str] = []  # statements of LEVEL_TOP
        self.accs: dict[str, tuple[Acc, str]] = {}
        self.heap: list[str] = []
        self.scratch_bytes: Expr = ZERO  # shared by the phases

    # ---- the file
    def run(self) -> KernelSource:
        lay = self.layout
        phases = column_phases(self) if lay.split_rows else self._split_phases() if lay.split else [self._whole()]
        functions = [text for _, text, _, _ in phases]
        plan = self._plan_function([(items, ps) for _, _, items, ps in phases])
        for function in functions:
            self.s.call_often_used(function)
        text = "\n".join([header(self.k, self.name), self.s.text(), *functions, plan])
        v = (
            lay.vector.symbol.name
            if lay.vector is not None
            else ", ".join(sorted({stage.vector.symbol.name for stage in lay.stages if stage.vector is not None}))
        )
        return KernelSource(
            self.name,
            text,
            [phase[0] for phase in phases],
            f"{self.name}_plan",
            list(self.k.checks),
            {
                "shape": "split" if lay.split or lay.split_rows else lay.mode,
                "vector": v,
                "lanes": lay.lanes,
                "block": lay.block,
                "unroll": [stage.unroll for stage in lay.stages],
                "serial": lay.serial,
                **({"tile": lay.tile.symbol.name} if lay.tile is not None else {}),
            },
            names_of(self.k, self.scope.origins),
        )

    def _plan_function(self, phases: list[tuple[Expr, Expr]]) -> str:
        rows = [f"    out[0] = {self._c(self.scratch_bytes)};"]
        for i, (items, ps) in enumerate(phases):
            rows += [
                f"    out[{1 + 2 * i}] = {self._c(items)};",
                f"    out[{2 + 2 * i}] = {0 if self.layout.serial else self._c(ps)};",
            ]
        if any("tc_" in row for row in rows):
            self.s.index_helpers()
        return "\n".join(
            [
                f'extern "C" void {self.name}_plan(const i64 *size, i64 *out) {{',
                *used_sizes(self.k.sizes, rows),
                *rows,
                "}",
                "",
            ]
        )

    def _c(self, expr: Any) -> str:
        return self.scope.index_text(as_expr(expr))

    # ---- declarations
    def _pointer_lines(self) -> list[str]:
        out = []
        for n, b in enumerate((*self.k.inputs, *self.k.outputs)):
            t = self._storage(b)
            const = "const " if n < len(self.k.inputs) and b not in self.k.outputs else ""
            out.append(f"    {const}{t} *{b.name} = ({const}{t} *)buffer[{n}];")
        return out

    def _param_lines(self) -> list[str]:
        out = []
        for n, (p, dtype) in enumerate(self.k.params):
            ct = ctype(dtype)
            out.append(f"    const {ct.scalar} {p} = ({ct.scalar})param[{n}].{'f' if ct.is_float else 'i'};")
        return out

    def _storage(self, buffer: Buffer) -> str:
        ct = ctype(buffer.dtype)
        return {"bf16": "u16", "f16": "u16", "bool": "u8"}.get(ct.storage, ct.scalar)

    def _local_lines(self) -> list[str]:
        """Scratch of one thread: on the stack where it is small and its size is known."""
        out, used = [], 0
        per = self.layout.block if self.layout.mode == "outer" and self.layout.block else 1
        for buffer in self.k.locals:
            t = self._storage(buffer)
            n = integer(per)
            for size in buffer.shape:
                n = n * as_expr(size)
            n_bytes = n * storage_size(ctype(buffer.dtype))
            if n_bytes.is_const and used + n_bytes.value <= STACK_BYTES:
                used += n_bytes.value
                out.append(f"    {t} {buffer.name}[{max(1, n.value)}] __attribute__((aligned(64)));")
            else:
                out.append(f"    {t} *{buffer.name} = ({t} *)__builtin_malloc({self._c(n_bytes)} + 64);")
                self.heap.append(buffer.name)
        return out

    def _function(self, symbol_name: str, body: list[str]) -> str:
        lines = [
            *self.local_lines,
            *(f"    {line}" for line in self.top),
            *body,
            *(f"    __builtin_free({n});" for n in self.heap),
        ]
        head = [
            f'extern "C" int {symbol_name}{SIGNATURE} {{',
            *self._pointer_lines(),
            *used_sizes(self.k.sizes, lines),
            *self._param_lines(),
        ]
        if self.k.checks:
            head.append("    int failed = 0;")
        return "\n".join([*head, *lines, f"    return {'failed' if self.k.checks else '0'};", "}", ""])

    # ---- kernels with outer axes, and those without loops
    def _whole(self) -> tuple[str, str, Expr, Expr]:
        lay = self.layout
        self.local_lines = self._local_lines()
        items = numel(lay.items)
        blocks = None
        if lay.mode == "outer" and lay.block:
            blocks = ceildiv(lay.vector.size, lay.block)
            items = items * blocks
        if lay.tile is not None:
            items = items * ceildiv(lay.tile.size, lay.lanes)
        body = []
        for i, stage in enumerate(self.k.stages):
            body += self._stage(i, stage, lay.stages[i])
        lines = self._items_loop(blocks, body)
        return self.name, self._function(self.name, lines), items, as_expr(lay.item_ns)

    def _items_loop(self, blocks: Expr | None, body: list[str], slowest: Sequence[tuple[str, Expr]] = ()) -> list[str]:
        lay = self.layout
        axes = [*slowest, *((item.symbol.name, as_expr(item.size)) for item in lay.items)]
        if lay.tile is not None:
            axes.append(("tile", ceildiv(lay.tile.size, lay.lanes)))
        if blocks is not None and not (blocks.is_const and blocks.value == 1):
            axes.insert(0 if lay.block_first else len(axes), ("block", blocks))
        step = ""
        if not axes:
            head = ["    for (i64 item = begin; item < end; ++item) {"]
        elif len(axes) == 1:
            head = [f"    for (i64 {axes[0][0]} = begin; {axes[0][0]} < end; ++{axes[0][0]}) {{"]
        else:  # the first item's position by divisions, the others' by counting
            head, step = ["    i64 rest = begin;"], f"++{axes[0][0]};"
            for name, size in axes[1:]:
                step = f"if (++{name} == {self._c(size)}) {{ {name} = 0; {step} }}"
            for name, size in reversed(axes[1:]):
                n = str(size) if size.is_const and size.value else f"(begin < end ? {self._c(size)} : 1)"
                head.append(f"    i64 {name} = rest % {n}; rest /= {n};")
            head += [f"    i64 {axes[0][0]} = rest;", "    for (i64 item = begin; item < end; ++item) {"]
        if lay.mode == "outer":
            v, n = lay.vector.symbol.name, self._c(lay.vector.size)
            if blocks is not None and any(a == "block" for a, _ in axes):
                head += [
                    f"        const i64 {v}_begin = block * {lay.block}, {v}_end = {v}_begin + {lay.block} < {n} ?"
                    f" {v}_begin + {lay.block} : {n};"
                ]
            else:
                head += [f"        const i64 {v}_begin = 0, {v}_end = {n};"]
            if lay.tile is not None:
                t, n = lay.tile.symbol.name, self._c(lay.tile.size)
                head += [
                    f"        const i64 {t}_begin = tile * L, {t}_end = {t}_begin + L < {n} ? {t}_begin + L : {n};"
                ]
        return [*head, *(f"    {line}" for line in body), *([f"        {step}"] if step else []), "    }"]

    # ---- one stage
    def _locate(self, buffer: Buffer, expr: Expr) -> Location:
        if buffer.scope == "local" and self.layout.mode == "outer":
            v = self.layout.vector.symbol
            at = symbol(v.name) - symbol(v.name + "_begin")
            expr = expr * (self.layout.block or 1) + at
        return Location(buffer.name, expr, None)

    def _acc_operand(self, name: str) -> tuple[str, int]:
        acc, kind = self.accs[name]
        if kind == "running":
            return f"{name}_now", LEVEL_VECTOR
        if kind == "array":
            v = self.layout.vector.symbol.name
            self.s.need("access")
            return f"tc::load<{self._acc_vector(acc)}>({name} + ({v} - {v}_begin), lanes)", LEVEL_VECTOR
        return name, LEVEL_ITEM

    def _acc_vector(self, acc: Acc) -> str:
        if acc.is_position:
            self.s.vector("i64")
            return "vi64"
        return vector_type(self.s, ctype(acc.dtype))

    def _stage(
        self,
        number: int,
        stage: Stage,
        loops: StageLoops,
        bounds: tuple[str, str] | None = None,
        chunked: Axis | None = None,
    ) -> list[str]:
        """Lines of one stage, indented for a function's items loop by the caller (4 blanks)."""
        lay = self.layout
        axis_level = {item.symbol.name: LEVEL_ITEM for item in lay.items}
        for i, axis in enumerate(loops.scalar):
            axis_level[axis.symbol.name] = LEVEL_LOOP + i
        if lay.mode == "outer":
            axis_level["block"] = LEVEL_ITEM
            axis_level[""] = LEVEL_VECTOR
        if loops.vector is not None:
            axis_level[loops.vector.symbol.name] = LEVEL_VECTOR
        vector = loops.vector.symbol.name if loops.vector is not None else None
        roots = [acc.value for acc in stage.accs]
        for st in stage.stores:
            roots += [*st.positions, stored(st.value)]
        lines: list[str] = []
        if vector is None and any(acc.running for acc in stage.accs):
            lines += scan_loop(self, stage, axis_level)
        elif vector is None:
            lines += self._scalar_stage(stage, roots, axis_level)
        else:
            lines += self._vector_stage(number, stage, roots, axis_level, loops, bounds, chunked)
        return lines

    def _take_outer(self, values: StageValues) -> list[str]:
        """Move finished statements of the outermost levels to their places; those of the item are returned."""
        self.top += values.lines.pop(LEVEL_TOP, [])
        return values.lines.pop(LEVEL_ITEM, [])

    def _scalar_stage(self, stage: Stage, roots: list, axis_level: dict[str, int]) -> list[str]:
        values = StageValues(self.scope, axis_level, None, self._locate, self._acc_operand)
        values.emit(roots)
        lines = self._take_outer(values)
        for st in stage.stores:
            lines += [text for _, text in values.store(st, False)]
        for acc in stage.accs:  # a reduction over nothing but one element
            operand = values.operand(acc.value)
            ct = ctype(acc.dtype)
            text = "0" if acc.is_position else self._convert_acc(operand, acc)
            lines.append(f"const {ct.scalar} {acc.name} = {text};")
            self.accs[acc.name] = (acc, "scalar")
        self.scope.leave(LEVEL_ITEM)
        return [f"    {line}" for line in lines]

    def _convert_acc(self, operand: Operand, acc: Acc) -> str:
        from .prims import conversion

        ct = ctype(acc.dtype)
        return operand.text if operand.ct == ct else conversion(self.s, operand, ct)

    def _vector_stage(
        self,
        number: int,
        stage: Stage,
        roots: list,
        axis_level: dict[str, int],
        loops: StageLoops,
        bounds: tuple[str, str] | None,
        chunked: Axis | None,
    ) -> list[str]:
        lay, vector = self.layout, loops.vector
        name = vector.symbol.name
        outer_mode = lay.mode == "outer"
        lo, hi = bounds or ((f"{name}_begin", f"{name}_end") if outer_mode else ("0", self._c(vector.size)))
        main = self._vector_values(name, axis_level)
        running = any(acc.running for acc in stage.accs)
        main.emit(roots[: len(stage.accs)] if running else roots)
        body = list(main.lines.pop(LEVEL_VECTOR, []))
        accumulators = [Accumulator(self.k, lay, self.s, self.scope, acc, outer_mode, loops) for acc in stage.accs]
        together = self._takes_rows_together(stage, loops, main, accumulators)
        for accumulator in accumulators:
            body += accumulator.update(main, together)
            if accumulator.acc.running:
                self.accs[accumulator.acc.name] = (accumulator.acc, "running")
        if running:  # what is stored is made of the results so far
            main.emit(roots[len(stage.accs) :])
            body += main.lines.pop(LEVEL_VECTOR, [])
        out = self._take_outer(main)
        between = {lv: main.lines[lv] for lv in sorted(main.lines)}
        for st in stage.stores:
            body += [text for _, text in main.store(st, True)]
        if lay.tile is not None:
            out += self._tiles(main, name, [*between.get(LEVEL_LOOP, []), *body])
            self.scope.leave(LEVEL_ITEM)
            return _indented(out)
        for accumulator in accumulators:
            out += accumulator.declare()
        # short rows: several of them go into one accumulator before it is added to its total
        rows = FLUSH // vector.size if loops.scalar and isinstance(vector.size, int) and 0 < vector.size < FLUSH else 0
        heads, body = self._row_loops(loops, chunked, between, accumulators if together else [], body)
        in_rows = self._vector_pass(
            main,
            _Pass(number, name, lo, hi, body, accumulators, loops.unroll, vector if bounds is None else None, not rows),
        )
        flushes = [line for accumulator in accumulators for line in accumulator.flush(loops.unroll)] if rows else []
        if flushes:
            in_rows.append(f"if ({loops.scalar[-1].symbol} % {rows} == {rows - 1}) {{ {' '.join(flushes)} }}")
        depth = len(loops.scalar)
        out += [*heads, *_indented(in_rows, depth), *("    " * k + "}" for k in reversed(range(depth))), *flushes]
        for accumulator in accumulators:
            out += accumulator.finish()
            self.accs[accumulator.acc.name] = (accumulator.acc, "array" if outer_mode else "scalar")
        self.scope.leave(LEVEL_ITEM)
        return _indented(out)

    def _vector_values(self, name: str, axis_level: dict[str, int]) -> StageValues:
        """The values of a stage whose vectors run along the axis `name`."""
        lay = self.layout
        if lay.tile is not None:
            axis_level[lay.tile.symbol.name] = LEVEL_LOOP
        by_piece = lay.tile is None and lay.copies == 1
        return StageValues(
            scope=self.scope,
            axis_level=axis_level,
            vector=name,
            locate=self._locate,
            acc_operand=self._acc_operand,
            copies=lay.copies,
            tiled=lay.tiled,
            start=f"{name}_from" if by_piece else None,
            hints=self.k.hints,
        )

    def _takes_rows_together(
        self, stage: Stage, loops: StageLoops, values: StageValues, accumulators: list[Accumulator]
    ) -> bool:
        """Whether a stage is reductions over short rows alone: each vector of them stays in a register over some
        rows."""
        if self.layout.mode != "outer" or not loops.scalar or not accumulators:
            return False
        if (
            stage.stores
            or values.pieces
            or values.turns
            or any(accumulator.acc.is_position or accumulator.acc.running for accumulator in accumulators)
        ):
            return False
        return size_hint(loops.vector.size, self.k.hints) <= SHORT

    def _row_loops(
        self,
        loops: StageLoops,
        chunked: Axis | None,
        between: dict[int, list[str]],
        together: list[Accumulator],
        body: list[str],
    ) -> tuple[list[str], list[str]]:
        """(the heads of the loops over rows, each with what is computed once a row; the body of the pass in them).
        `together`: accumulators that some rows of the innermost loop go into together."""
        heads = []
        for i, axis in enumerate(loops.scalar):
            x, ind = axis.symbol, "    " * i
            begin, end = ("chunk_begin", "chunk_end") if axis is chunked else ("0", self._c(axis.size))
            computed = between.get(LEVEL_LOOP + i, [])
            if together and axis is loops.scalar[-1]:
                body = self._rows(str(x), together, [*computed, *body], loops.unroll)
                step = max(8, TOGETHER // max(1, size_hint(loops.vector.size, self.k.hints)))
                heads += [
                    f"{ind}for (i64 {x}_from = {begin}; {x}_from < {end}; {x}_from += {step}) {{",
                    f"{ind}    const i64 {x}_to = {x}_from + {step} < {end} ? {x}_from + {step} : {end};",
                ]
            else:
                heads += [f"{ind}for (i64 {x} = {begin}; {x} < {end}; ++{x}) {{", *_indented(computed, i + 1)]
        return heads, body

    def _vector_pass(self, values: StageValues, pass_: _Pass) -> list[str]:
        """A pass in one loop, or piece by piece where values change in between."""
        if not (values.pieces or values.turns):
            return self._vector_loop(pass_)
        v = pass_.name
        piece = self._vector_loop(replace(pass_, lo=f"{v}_from", hi=f"{v}_to", axis=None))
        return [
            f"for (i64 {v}_from = {pass_.lo}, {v}_to; {v}_from < {pass_.hi}; {v}_from = {v}_to) {{",
            *_indented([*values.piece_lines(f"{pass_.hi} - {v}_from"), *piece]),
            "}",
        ]

    def _rows(self, x: str, accumulators: list[Accumulator], body: list[str], step: int) -> list[str]:
        """The pass of a reduction over rows for one vector of columns: rows from `x`_from to `x`_to, `step` of them
        side by side, in accumulators of their own: each waits for its own last result only."""
        fn, copies = f"{x}_row", range(step)
        sums = "".join(f", {accumulator.vector} &{accumulator.name}_sum" for accumulator in accumulators)
        lines = [
            f"auto {fn} = [&](i64 {x}{sums}) __attribute__((always_inline)) {{",
            *(f"    {line}" for line in body),
            "};",
        ]
        for accumulator in accumulators:
            starts = [accumulator.stored() if copy == 0 else accumulator.identity for copy in copies]
            named = (f"{accumulator.name}_v{copy} = {start}" for copy, start in zip(copies, starts))
            lines.append(f"{accumulator.vector} {', '.join(named)};")

        def call(at: str, u: int) -> str:
            return f"{fn}({at}{''.join(f', {accumulator.name}_v{u}' for accumulator in accumulators)});"

        lines += [
            f"i64 {x} = {x}_from;",
            (
                f"for (; {x} + {step} <= {x}_to; {x} += {step}) {{"
                f" {' '.join(call(f'{x} + {copy}' if copy else x, copy) for copy in copies)} }}"
            ),
            f"for (; {x} < {x}_to; ++{x}) {call(x, 0)}",
        ]
        for accumulator in accumulators:
            total = accumulator.combined([f"{accumulator.name}_v{copy}" for copy in copies])
            lines.append(f"tc::store({accumulator.address}, {total}, tc::All{{}});")
        return lines

    def _vector_loop(self, pass_: _Pass) -> list[str]:
        """A lambda for one vector, called for whole vectors, then for the rest."""
        lay = self.layout
        v, hi, fn = pass_.name, pass_.hi, f"pass{pass_.number}"
        if lay.copies > 1:
            return self._wide_loop(fn, v, pass_.lo, hi, pass_.body)
        unroll = 1 if lay.mode == "outer" and pass_.accumulators else pass_.unroll
        params = "".join(f", {param}" for accumulator in pass_.accumulators for param in accumulator.parameters())
        lines = [
            f"auto {fn} = [&](i64 {v}, auto lanes{params}) __attribute__((always_inline)) {{",
            *_indented(pass_.body),
            "};",
        ]
        self.s.need("access")

        def call(at: str, lanes: str, u: int) -> str:
            args = "".join(
                f", {argument}" for accumulator in pass_.accumulators for argument in accumulator.arguments(u)
            )
            return f"{fn}({at}, {lanes}{args});"

        known, fills = self._extent(pass_.axis)
        if pass_.may_flush and any(accumulator.flushes for accumulator in pass_.accumulators):
            loop = [
                f"while (at < {hi}) {{",
                f"    const i64 stop = {hi} - at < {FLUSH} ? {hi} : at + {FLUSH};",
                *_indented(self._whole_vectors(call, "stop", unroll, known)),
                f"    if (stop == {hi} && at < {hi}) {{ {call('at', f'tc::First{{{hi} - at}}', 0)} at = {hi}; }}",
                *_indented([line for accumulator in pass_.accumulators for line in accumulator.flush(unroll)]),
                "}",
            ]
        else:
            loop = self._whole_vectors(call, hi, unroll, known)
            if not fills:
                loop.append(f"if (at < {hi}) {call('at', f'tc::First{{{hi} - at}}', 0)}")
        return ["{", *_indented([*lines, f"i64 at = {pass_.lo};", *loop]), "}"]

    def _extent(self, axis: Axis | None) -> tuple[int | None, bool]:
        """(elements of a pass over the axis where all passes have as many; whether whole vectors fill every pass)."""
        lay = self.layout
        if axis is None or not as_expr(axis.size).is_const:
            return None, False
        size = as_expr(axis.size).value
        if lay.mode == "outer" and lay.block and size > lay.block:
            return None, size % lay.block == 0 and lay.block % lay.lanes == 0
        return size, size % lay.lanes == 0

    def _whole_vectors(
        self, call: Callable[[str, str, int], str], end: str, unroll: int, known: int | None
    ) -> list[str]:
        """Loops from `at` to `end`: over `unroll` vectors at a time, then over single ones. `known`: elements of the
        pass, which may leave nothing for one of them."""
        L, step = self.layout.lanes, self.layout.lanes * unroll
        loop = []
        if unroll > 1 and (known is None or known >= step):
            calls = " ".join(call(f"at + {u * L}" if u else "at", "tc::All{}", u) for u in range(unroll))
            loop.append(f"for (; at + {step} <= {end}; at += {step}) {{ {calls} }}")
        single = known is None or known >= L
        if single and not (unroll > 1 and known is not None and known % step == 0):
            loop.append(f"for (; at + {L} <= {end}; at += {L}) {call('at', 'tc::All{}', 0)}")
        return loop

    def _tiles(self, values: StageValues, v: str, body: list[str]) -> list[str]:
        """L x L tiles: their rows are loaded along the tile's axis and transposed, so that loads and stores both take
        whole vectors. What is left at the edges is loaded element by element."""
        lay = self.layout
        t = lay.tile.symbol.name
        self.s.need("access"), self.s.need("each")
        names = [values.sources[x.id] for x in lay.tiled]
        params = "".join(f", auto {name}" for name in names)
        lines = [
            f"auto pass = [&](i64 {t}, i64 {v}, auto lanes{params}) __attribute__((always_inline)) {{",
            *(f"    {line}" for line in body),
            "};",
            f"i64 at = {v}_begin;",
            f"if ({t}_end - {t}_begin == L)",
            f"    for (; at + L <= {v}_end; at += L) {{",
        ]
        for x, name in zip(lay.tiled, names):
            raw = values.storage_vector(ctype(x.dtype))
            self.s.need(f"transpose.{raw}", transpose_text(self.layout.lanes, raw))
            here = x.attr[1].subs({t: symbol(f"{t}_begin"), v: symbol("at") + symbol("k")})
            lines += [
                f"        {raw} {name}_tile[L];",
                (
                    f"        UNROLL for (int k = 0; k < L; k++) {name}_tile[k] = tc::load<{raw}>({x.attr[0].name} +"
                    f" ({self._c(here)}), tc::All{{}});"
                ),
                f"        tc::transpose({name}_tile);",
            ]
        given = "".join(f", [&](auto) {{ return {name}_tile[j]; }}" for name in names)
        lines += [
            f"        UNROLL for (int j = 0; j < L; j++) pass({t}_begin + j, at, tc::All{{}}{given});",
            "    }",
            f"for (i64 {t} = {t}_begin; {t} < {t}_end; ++{t})",
            f"    for (i64 {v} = at; {v} < {v}_end; {v} += L) {{",
            f"        const tc::First left{{{v}_end - {v} < L ? {v}_end - {v} : L}};",
        ]
        single = "".join(f", [&](auto lanes) {{ return {values.source_texts[name]}; }}" for name in names)
        return ["{", *(f"    {line}" for line in (*lines, f"        pass({t}, {v}, left{single});", "    }")), "}"]

    def _wide_loop(self, fn: str, v: str, lo: str, hi: str, body: list[str]) -> list[str]:
        """Several vectors side by side through a long chain of statements: each waits for its own last result only."""
        L, copies = self.layout.lanes, self.layout.copies
        self.s.need("within")
        parts = [f"const tc::First lanes_{chr(ord('a') + c)} = tc::within({hi} - {v}, {c * L});" for c in range(copies)]
        return [
            "{",
            f"    auto {fn} = [&](i64 {v}) __attribute__((always_inline)) {{   // {copies} vectors side by side",
            *(f"        {line}" for line in (*parts, *body)),
            "    };",
            f"    for (i64 at = {lo}; at < {hi}; at += {L * copies}) {fn}(at);",
            "}",
        ]

    # ---- kernels without outer axes: every stage is a phase over chunks
    def _split_phases(self) -> list[tuple[str, str, Expr, Expr]]:
        """See layout.py. Accumulators of a chunk go to scratch; later phases begin by combining them, always in the
        same order.
        """
        lay, kernel = self.layout, self.k
        from .layout import MAX_CHUNKS

        offset = 0
        partials: list[tuple[Acc, int, int, Expr]] = []  # acc, offset of values, offset of positions, chunks
        phases = []
        local_bytes: Any = 0
        self.shared_locals = {}
        for buffer in kernel.locals:  # locals live across phases: in scratch, shared by all threads
            n = as_expr(storage_size(ctype(buffer.dtype)))
            for d in buffer.shape:
                n = n * as_expr(d)
            self.shared_locals[buffer.name] = local_bytes
            local_bytes = as_expr(local_bytes) + ceildiv(n, 64) * 64
        for i, stage in enumerate(kernel.stages):
            loops = lay.stages[i]
            name = self.name if len(kernel.stages) == 1 else f"{self.name}_phase{i}"
            self.top, self.scope.names, self.scope.levels = [], {}, {}
            self.local_lines = [
                f"    {self._storage(local)} *{local.name} = ({self._storage(local)} *)(scratch +"
                f" {self._c(self.shared_locals[local.name])});"
                for local in kernel.locals
            ]
            combine = [line for acc, at, pos, n in partials for line in self._combine(acc, local_bytes, at, pos, n)]
            self.top += combine
            if not stage.axes:
                body = [
                    "    for (i64 item = begin; item < end; ++item) {",
                    *(f"    {line}" for line in self._stage(i, stage, loops)),
                    "    }",
                ]
                phases.append((name, self._function(name, body), integer(1), integer(1000)))
                for acc in stage.accs:
                    raise AssertionError(f"accumulator {acc.name} without axes in a split kernel")
                continue
            axis = loops.scalar[0] if loops.scalar else loops.vector
            rest = numel(tuple(other for other in stage.axes if other is not axis))
            n = chunk_count(axis.size, rest)
            size = self._c(axis.size)
            step = lay.lanes if axis is loops.vector else 1
            body = [
                (
                    f"    const i64 chunks = {self._c(n)}, per_chunk = (({size} + chunks - 1) / chunks + {step - 1}) /"
                    f" {step} * {step};"
                ),
                "    for (i64 chunk = begin; chunk < end; ++chunk) {",
                f"        const i64 chunk_begin = chunk * per_chunk < {size} ? chunk * per_chunk : {size};",
                f"        const i64 chunk_end = chunk_begin + per_chunk < {size} ? chunk_begin + per_chunk : {size};",
            ]
            bounds = ("chunk_begin", "chunk_end") if axis is loops.vector else None
            body += [f"    {line}" for line in self._stage(i, stage, loops, bounds, axis)]
            for acc in stage.accs:
                ct = ctype(acc.folded)
                at, pos = offset, offset + 8 * MAX_CHUNKS
                offset += 8 * MAX_CHUNKS * (2 if acc.is_position else 1)
                base = f"scratch + {self._c(as_expr(local_bytes) + at)}"
                if acc.is_position:
                    body += [
                        f"        (({ct.scalar} *)({base}))[chunk] = {acc.name}_best;",
                        f"        ((i64 *)(scratch + {self._c(as_expr(local_bytes) + pos)}))[chunk] = {acc.name};",
                    ]
                else:
                    body.append(f"        (({ct.scalar} *)({base}))[chunk] = {acc.name};")
                partials.append((acc, at, pos, n))
            body.append("    }")
            ps = integer(max(1, round(lay.stage_ns[i] * 1000))) * ceildiv(numel(stage.axes), n)
            phases.append((name, self._function(name, body), n, ps))
        self.scratch_bytes = as_expr(local_bytes) + offset
        return phases

    def _combine(self, acc: Acc, base: Any, at: int, pos: int, expr: Expr) -> list[str]:
        ct = ctype(acc.folded)
        chunks = f"{acc.name}_chunks"
        lines = [f"const {ct.scalar} *{chunks} = (const {ct.scalar} *)(scratch + {self._c(as_expr(base) + at)});"]
        if acc.is_position:
            is_better = better(acc, f"{chunks}[c]", f"{acc.name}_best")
            lines += [
                f"const i64 *{acc.name}_positions = (const i64 *)(scratch + {self._c(as_expr(base) + pos)});",
                f"{ct.scalar} {acc.name}_best = {chunks}[0];",
                f"i64 {acc.name} = {acc.name}_positions[0];",
                f"for (i64 c = 1; c < {self._c(expr)}; ++c) if ({is_better})"
                f" {acc.name}_best = {chunks}[c], {acc.name} = {acc.name}_positions[c];",
            ]
        else:
            updated = reduce_update(self.s, acc.op, Operand(acc.name, ct, False), Operand(f"{chunks}[c]", ct, False))
            lines += [
                f"{ct.scalar} {acc.name} = {chunks}[0];",
                f"for (i64 c = 1; c < {self._c(expr)}; ++c) {acc.name} = {updated};",
            ]
        self.accs[acc.name] = (acc, "scalar")
        return lines


def _indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]
