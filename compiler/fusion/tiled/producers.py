"""Who makes and who reads each buffer among the lowered steps, and what elements are computed by: for passes that put
one kernel in the place of products and what lies around them (contractions.py)."""

from __future__ import annotations

from typing import Any, Callable, Protocol, Sequence

import torch

from ...lowering.ir import Axis, Buffer, LoopNest, Value, acc, has_op, is_plain_load, load, loads, make, walk
from ...lowering.lowered import Extern, LoweredStep, View
from ...lowering.patterns import Either, Same, match, op
from ...lowering.ref import is_one
from ...lowering.rewrite import Rewriter, positions, tidy, value_at
from ...symbolic.expr import ONE, ZERO, Expr, as_expr, mul_all, symbol
from ..inline import buffers_read, does_more
from ..schedule import Template

__all__ = [
    "COLUMN",
    "DTYPES",
    "Finder",
    "INNER",
    "KEY",
    "NoMatch",
    "PLUS",
    "ROW",
    "flat",
    "groups_of",
    "inverse",
    "is_product",
    "made_by",
    "makes_scores",
    "on_gpu",
    "position",
    "read_by",
    "replaced",
]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_READ = Same("read", op("load"))
_SCALED = Either(
    tuple(op(by, Either((_READ, op("cast", _READ))), Same("number", op("const"))) for by in ("mul", "div"))
)
LONGEST = 64  # nests between two products
# values of a mask that are computed again for each score: of positions alone, of what memory holds
INDEX_ONLY, WITH_LOADS = (40, 12)
OF_SIDES = 8  # reads of what rows, or keys, have in memory for it
# axes of such kernels, beside those of a batch
ROW, KEY, INNER, COLUMN = (symbol("m0"), symbol("r0"), symbol("d0"), symbol("c0"))
PLUS = ("aten.baddbmm.default", "aten.addmm.default")
_COSTLY = frozenset(
    ("exp", "log", "tanh", "sin", "cos", "pow", "erf", "div_floor", "remainder", "sqrt", "log1p", "expm1")
)


class NoMatch(Exception):
    pass


class Result(Protocol):
    """What a kernel makes: over `batch`, `rows` and `columns`, as the first output of `step`, at `index`."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: Any
    step: Extern
    index: Expr


def is_product(extern: Extern) -> bool:
    # (a Template stands for more than its operator)
    return type(extern) is Extern and str(extern.op) in ("aten.bmm.default", "aten.mm.default") and not extern.kwargs


def makes_scores(step: Any) -> bool:
    return type(step) is Extern and (is_product(step) or str(step.op) in PLUS)


def on_gpu(extern: Extern) -> bool:
    buffer = next((output for output in extern.outputs if output is not None), None)
    return buffer is not None and buffer.on_gpu


class Finder:
    """Who makes and who reads each buffer, and what stands for what: `steps()` are the steps with kernels in the place
    of what they do.
    """

    def __init__(self, steps: Sequence[LoweredStep], needed: Sequence[Buffer], hints: dict[str, int]):
        self.first, self.needed, self.hints = list(steps), frozenset(needed), hints
        self.instead: dict[int, Template] = {}  # id of a step -> the kernel in its place
        self.dead: set[int] = set()  # ids of steps that nothing needs any more
        self.made: dict[Buffer, Any] = {}  # by one step alone
        self.readers: dict[Buffer, list[Any]] = {}
        self.order: dict[int, int] = {}  # id of a step -> its place
        self.ends: dict[Buffer, int] = {}  # place of the last step that makes it
        self._leads: dict[Buffer, bool] = {}
        several: set[Buffer] = set()
        for k, step in enumerate(self.first):
            self.order[id(step)] = k
            for buffer in made_by(step):
                self.ends[buffer] = k
                if buffer in self.made:
                    several.add(buffer)
                self.made[buffer] = step
            for buffer in read_by(step):
                self.readers.setdefault(buffer, []).append(step)
        for buffer in several:
            del self.made[buffer]

    def steps(self) -> list[LoweredStep]:
        return [
            self.instead.get(id(step), step)
            for step in self.first
            if id(step) in self.instead or id(step) not in self.dead
        ]

    def superfluous(self, gone: Sequence[Any], *steps: Template) -> list[Any]:
        """The steps that nothing needs once `gone` are not there and `steps` are: those, and what leads to them
        alone.
        """
        dead, todo, kept = (
            {id(one) for one in gone},
            list(gone),
            {x for step in steps for x in (*step.args, *step.outputs)} | self.needed,
        )
        out = list(gone)
        while todo:
            for buffer in read_by(todo.pop()):
                maker = self.made.get(buffer)
                if (
                    maker is None
                    or id(maker) in dead
                    or does_more(maker)
                    or any(
                        x in kept or any(id(reader) not in dead for reader in self.readers.get(x, ()))
                        for x in made_by(maker)
                    )
                ):
                    continue
                dead.add(id(maker))
                todo.append(maker)
                out.append(maker)
        return out

    def put(self, step: Template, place: Any, dead: Sequence[Any]) -> None:
        """Have `step` run in the place of another, without those that are superfluous then."""
        for gone in dead:
            self.dead.add(id(gone))
            for buffer in read_by(gone):
                self.readers[buffer].remove(gone)
        self.instead[id(place)] = step
        self.order[id(step)] = self.order[id(place)]
        for buffer in step.args:
            self.readers.setdefault(buffer, []).append(step)
        for buffer in made_by(step):
            self.made[buffer] = step
            self.ends[buffer] = self.order[id(step)]
        self._leads.clear()

    # ---- values
    def element(self, buffer: Buffer, at: Expr, ranges: dict[str, tuple]) -> Value:
        """A load of what lies at a flat position of a buffer, views seen through."""
        while isinstance(self.made.get(buffer), View):
            view = self.made[buffer]
            buffer, at = view.base, as_expr(view.offset) + at
        return load(buffer, tidy(at, ranges))

    def producer(self, value: Value) -> LoopNest | None:
        """The element-wise nest that made what is loaded."""
        return self.maker(value.attr[0]) if value.is_load else None

    def maker(self, buffer: Buffer) -> LoopNest | None:
        """The element-wise nest that made a buffer."""
        step = self.made.get(buffer)
        if (
            isinstance(step, LoopNest)
            and step.reduce_op is None
            and not step.alone
            and not step.product
            and not has_op([step.value], "check_index")
        ):
            return step
        return None

    def peeled(self, value: Value, ranges: dict[str, tuple]) -> Value:
        """What a value is computed by, through conversions and element-wise nests."""
        for _ in range(LONGEST):
            if value.is_float_cast and value.args[0].dtype.is_floating_point:
                value = value.args[0]
                continue
            nest = self.producer(value)
            if nest is None:
                return value
            value = value_at(nest, value.attr[1], ranges)
        raise NoMatch

    def expanded(
        self,
        value: Value,
        ranges: dict[str, tuple],
        wanted: Callable[[Buffer, Value], bool] = lambda b, new: True,
        among: Callable[[Buffer], bool] = lambda b: True,
    ) -> Value:
        """A value with the loads of the buffers `among` which `wanted(buffer, value)` is true computed; `value`: what
        is read, computed as far as that goes.
        """
        made: dict[int, Value | None] = {}

        def rewritten(value: Value, depth: int) -> Value:
            def on_load(buffer: Buffer, expr: Expr) -> Value | None:
                x = load(buffer, expr)
                if x.id not in made:
                    nest = self.producer(x) if among(buffer) else None
                    new = (
                        rewritten(value_at(nest, expr, ranges), depth + 1)
                        if nest is not None and depth < LONGEST
                        else None
                    )
                    made[x.id] = new if new is not None and wanted(buffer, new) else None
                return made[x.id]

            return Rewriter(on_load=on_load, drop_rounding=True)(value)

        return rewritten(value, 0)

    def leads(self, buffer: Buffer, depth: int = 0) -> bool:
        """Whether a buffer is computed, element by element, from a product."""
        known = self._leads.get(buffer)
        if known is None:
            step = self.made.get(buffer)
            if isinstance(step, View):
                known = self.leads(step.base, depth + 1)
            elif isinstance(step, Extern):
                known = makes_scores(step)
            elif isinstance(step, LoopNest) and step.reduce_op is None and not step.alone and depth < LONGEST:
                known = any(self.leads(value.attr[0], depth + 1) for value in loads([step.value]))
            else:
                known = False
            self._leads[buffer] = known
        return known

    def same(self, a: Value, b: Value, ranges: dict[str, tuple]) -> bool:
        return a is b or self.scores(a, ranges) is self.scores(b, ranges)

    def scores(self, value: Value, ranges: dict[str, tuple]) -> Value:
        return self.expanded(value, ranges, among=self.leads)

    def copied(self, value: Value, ranges: dict[str, tuple]) -> Value:
        """An operand as it lies before it was copied into another layout or converted; or the load itself."""
        best = value
        for _ in range(LONGEST):
            nest = self.producer(value)
            if nest is None:
                return best
            value = value_at(nest, value.attr[1], ranges)
            while (
                value.is_cast
                and value.dtype.is_floating_point
                and value.args[0].dtype in DTYPES
                and value.dtype.itemsize >= value.args[0].dtype.itemsize
            ):
                value = value.args[0]
            if not is_plain_load(value) or value.dtype not in DTYPES:
                return best
            best = value
        return best

    def operand(self, value: Value, ranges: dict[str, tuple]) -> tuple[Value, float]:
        """(operand of the first product, what it is scaled by): a factor that was multiplied into a copy of it belongs
        to the score.
        """
        x, factor = self.copied(value, ranges), 1.0
        nest = self.producer(x)
        if nest is not None and x.dtype == torch.float32:
            new = value_at(nest, x.attr[1], ranges)
            found = match(_SCALED, new)
            if found is not None and found["number"].attr and found["read"].dtype in DTYPES:
                factor = found["number"].attr if new.op == "mul" else 1 / found["number"].attr
                return self.copied(found["read"], ranges), factor
        return x, factor

    def row(self, value: Value, op: str, ranges: dict[str, tuple]) -> Value:
        """What is reduced over the keys to the number of a row `v`, over the axes of `ranges`."""
        value = self.peeled(value, ranges)
        nest = self.made.get(value.attr[0]) if value.is_load else None
        if not isinstance(nest, LoopNest) or nest.reduce_op != op or nest.scan or len(nest.reduce_axes) != 1:
            raise NoMatch
        over = nest.reduce_axes[0]
        used = value.attr[1].symbol_names()
        free = [key for key, (_, size) in ranges.items() if key not in used and as_expr(size) is as_expr(over.size)]
        if len(free) != 1 and over.symbol.name in free:
            # (of several axes of one size, the one that the rule reduces under the same name)
            free = [over.symbol.name]
        if len(free) != 1:
            raise NoMatch
        mapping = {} if value.attr[1] is nest.index else positions(nest.axes, nest.index, value.attr[1], ranges)
        mapping[over.symbol.name] = symbol(free[0])
        return Rewriter(on_index=lambda expr: tidy(expr.subs(mapping), ranges))(nest.value)

    # ---- what a kernel takes in
    def cheap(self, buffer: Buffer, new: Value) -> bool:
        """Whether a mask's element is better computed for each score than read."""
        values = walk([new])
        reads = loads([new])
        along: dict[int, set[str]] = {}  # of each value: "r" where it differs from key to key, "m" from row to row
        for value in values:
            own = {name[0] for name in value.symbols if name == KEY.name or name.startswith("m")}
            along[value.id] = own.union(*(along[arg.id] for arg in value.args))
        if not reads or not along[new.id]:  # (none: once for a program)
            return len(values) <= INDEX_ONLY
        if any(item.op in _COSTLY for item in values):
            return False
        each = [item for item in values if len(along[item.id]) == 2]
        if any(value.is_load for value in each):
            return len(reads) == 1 and len(values) <= WITH_LOADS
        return len(reads) <= OF_SIDES and len(values) <= INDEX_ONLY and len(each) <= WITH_LOADS

    def _joins(self, buffer: Buffer, new: Value) -> bool:
        """Whether what the result meets is computed where it does."""
        return len(self.readers.get(buffer, ())) == 1 and buffer not in self.needed and len(loads([new])) <= 2

    def followers(
        self, parts: Result, out: Buffer, ranges: dict[str, tuple], made: str = "mixed"
    ) -> tuple[Buffer, Expr, Value, Any, list[LoopNest]]:
        """(buffer, index, value) of what the kernel stores for its acc `made`, the step in whose place it runs, and the
        nests that it takes in.
        """
        value = acc(made, torch.float32)
        if out.dtype != torch.float32:
            value = make("cast", out.dtype, (value,), "round")
        buffer, at, place, more = out, tidy(parts.index, ranges), parts.step, []
        total = mul_all([a.size for a in (*parts.batch, *parts.rows)]) * parts.columns
        while buffer not in self.needed:
            readers = self.readers.get(buffer, [])
            nest = readers[0] if len(readers) == 1 else None
            if (
                not isinstance(nest, LoopNest)
                or self.made.get(nest.buffer) is not nest
                or self.producer(load(nest.buffer, nest.index)) is None
            ):
                break
            reads = {item for item in loads([nest.value])}
            mine = [read for read in reads if read.attr[0] is buffer]
            if (
                len(mine) != 1
                or mine[0].args
                or len(reads) > 3
                or mul_all([axis.size for axis in nest.domain]) is not total
            ):
                break
            mapping = inverse(nest.domain, mine[0].attr[1], at, ranges)
            if mapping is None:
                break
            value = self.expanded(_at_place(nest.value, mapping, buffer, value, ranges), ranges, self._joins)
            buffer, at, place = nest.buffer, tidy(nest.index.subs(mapping), ranges), nest
            more.append(nest)
        return buffer, at, value, place, more


def made_by(step: LoweredStep) -> list[Buffer]:
    return [output for output in step.outputs if output is not None] if isinstance(step, Extern) else [step.buffer]


def read_by(step: LoweredStep) -> list[Buffer]:
    return list(
        dict.fromkeys(value.attr[0] for value in loads([step.value]))
        if isinstance(step, LoopNest)
        else dict.fromkeys(buffers_read(step))
    )


def flat(axes: Sequence[Axis]) -> Expr:
    """The position along all axes together."""
    e = ZERO
    for axis in axes:
        e = e * axis.size + axis.symbol
    return e


def position(buffer: Buffer, *at: Any) -> Expr:
    """Where an element lies in a buffer; of a matrix, the first coordinate is left out."""
    e = ZERO
    for size, stride, x in zip(reversed(buffer.shape), reversed(buffer.stride), reversed(at)):
        if not is_one(size):
            e = e + as_expr(x) * stride
    return e


def groups_of(domain: Sequence[Axis], shape: Sequence[Any]) -> list[list[Axis]]:
    """The axes of a nest, in the order of memory, that together are the dimensions of a product: batch, rows, keys."""
    left = list(domain)
    out: list[list[Axis]] = []
    for want in reversed(shape):
        taken: list[Axis] = []
        n: Expr = ONE
        while n is not as_expr(want):
            if not left:
                raise NoMatch
            taken.insert(0, left.pop())
            n = n * as_expr(taken[0].size)
        out.insert(0, taken)
    if left or len(out[-1]) != 1:
        raise NoMatch
    return [[]] * (3 - len(out)) + out


def replaced(root: Value, old: Value, new: Value) -> Value:
    return Rewriter(
        drop_rounding=True, known={old.id: new if new.dtype == old.dtype else make("cast", old.dtype, (new,), "round")}
    )(root)


def _at_place(value: Value, mapping: dict[str, Expr], b: Buffer, element: Value, ranges: dict[str, tuple]) -> Value:
    """A reader's value with its axes renamed, where `element` stands for what it loads of `b`."""
    return Rewriter(
        lambda expr: tidy(expr.subs(mapping), ranges), lambda buffer, expr: element if buffer is b else None, True
    )(value)


def inverse(domain: Sequence[Axis], expr: Expr, at: Expr, ranges: dict[str, tuple]) -> dict[str, Expr] | None:
    """Each axis of a nest that reads `e`, as an expression where that is `at`; None where elements of what is read are
    left out or come twice.
    """
    whole: dict[str, Expr] = {}  # axis that is divided -> itself, of its two parts
    axes: list[Axis] = []
    for a in domain:
        by = {
            atom.args[1]
            for _, atoms in expr.terms()
            for atom in atoms
            if atom.op in ("floordiv", "mod") and atom.args[0] is a.symbol
        }
        k = by.pop() if len(by) == 1 else None
        if k is None or not k.is_const or type(a.size) is not int or a.size % k.value:
            axes.append(a)
            continue
        high, low = (
            Axis(symbol(f"{a.symbol.name}_{part}"), n) for part, n in (("high", a.size // k.value), ("low", k.value))
        )
        axes += [high, low]
        whole[a.symbol.name] = high.symbol * k + low.symbol
    if whole:
        expr = tidy(expr.subs(whole), {axis.symbol.name: (0, axis.size) for axis in axes})
    if not expr.is_affine:
        return None
    left = {axis.symbol.name: axis for axis in axes}
    order: list[Axis] = []
    rest, want = expr, ONE
    while left:  # from the fastest axis of what is read
        fastest = next((axis for axis in left.values() if expr.coeff(axis.symbol.name) is want), None)
        if fastest is None:
            return None
        del left[fastest.symbol.name]
        order.insert(0, fastest)
        rest, want = rest - fastest.symbol * want, want * fastest.size
    if rest is not ZERO:
        return None
    m = positions(order, expr, at, ranges)
    return {
        axis.symbol.name: tidy(whole[axis.symbol.name].subs(m), ranges)
        if axis.symbol.name in whole
        else m[axis.symbol.name]
        for axis in domain
    }
