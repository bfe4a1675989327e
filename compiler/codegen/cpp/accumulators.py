"""The C++ of an accumulator: a vector that is folded into a number, or an array over a block of results."""

from __future__ import annotations


from ...lowering.ir import Acc, Kernel, numel
from ...symbolic.expr import ZERO, Expr, as_expr
from .dtypes import ctype
from .layout import Layout, StageLoops
from .prims import Operand, reduce_identity, reduce_update, splat
from .support import Support, vector_type
from .values import LANE_IDS, Scope, StageValues

__all__ = ["Accumulator", "FLUSH", "better"]

FLUSH = 8192  # elements that one accumulator adds before it is added to a total (accuracy of long sums)


def better(acc: Acc, x: str, best: str) -> str:
    """C++ test whether x takes the place of best: strictly better, or the first NaN."""
    strictly = f"{x} {acc.better} {best}"
    return f"{strictly} || ({x} != {x} && {best} == {best})" if ctype(acc.folded).is_float else strictly


class Accumulator:
    """The C++ of one accumulator: vectors that are folded into a number ("inner"), or an array over the block
    ("outer").
    """

    def __init__(
        self, kernel: Kernel, layout: Layout, support: Support, scope: Scope, acc: Acc, array: bool, loops: StageLoops
    ):
        self.kernel, self.layout, self.s, self.scope = kernel, layout, support, scope
        self.acc, self.array, self.loops = acc, array, loops
        self.ct = ctype(acc.folded)
        self.vector = vector_type(self.s, self.ct)
        self.element = {"bool": "lane_mask"}.get(self.ct.kind, self.ct.scalar)
        n = numel((*loops.scalar, loops.vector) if not array else loops.scalar)
        hints = kernel.hints
        try:
            extent = int(n.eval(hints))
        except KeyError:
            extent = FLUSH * 4
        self.flushes = not array and acc.op == "sum" and self.ct.is_float and (extent > 2 * FLUSH)
        self.identity = splat(self.s, Operand(f"({reduce_identity(acc.op, self.ct)})", self.ct, False))
        if self.acc.is_position:
            self.s.vector("i64")

    @property
    def name(self) -> str:
        return self.acc.name

    def _position(self) -> Expr:
        """Row-major position in the stage's axes, at lane 0."""
        stage = next(st for st in self.kernel.stages if self.acc in st.accs)
        expr: Expr = ZERO
        for axis in stage.axes:
            expr = expr * as_expr(axis.size) + axis.symbol
        return expr

    def declare(self) -> list[str]:
        name = self.name
        if self.array:
            block = self.layout.block
            out = [
                f"{self.element} {name}{'_best' if self.acc.is_position else ''}[{block}] __attribute__((aligned(64)));"
            ]
            if self.acc.is_position:
                out.append(f"i64 {name}[{block}] __attribute__((aligned(64)));")
                out.append(
                    f"for (i64 k = 0; k < {block}; k++) {name}_best[k] = {reduce_identity(self.acc.op, self.ct)},"
                    f" {name}[k] = 0;"
                )
            else:
                first = {"any": "0", "all": "-1"}.get(self.acc.op, reduce_identity(self.acc.op, self.ct))
                out.append(f"for (i64 k = 0; k < {block}; k++) {name}[k] = {first};")
            return out
        out = []
        for u in range(self.loops.unroll):
            out.append(f"{self.vector} {name}_{'best_' if self.acc.is_position else ''}v{u} = {self.identity};")
            if self.acc.is_position:
                out.append(f"vi64 {name}_at_v{u} = {{}};")
        if self.flushes:
            out.append(f"{self.vector} {name}_total = {self.identity};")
        return out

    def parameters(self) -> list[str]:
        if self.array:
            return []
        return (
            [f"{self.vector} &{self.name}_best", f"vi64 &{self.name}_at"]
            if self.acc.is_position
            else [f"{self.vector} &{self.name}_sum"]
        )

    def arguments(self, u: int) -> list[str]:
        if self.array:
            return []
        return [f"{self.name}_best_v{u}", f"{self.name}_at_v{u}"] if self.acc.is_position else [f"{self.name}_v{u}"]

    @property
    def address(self) -> str:
        """Where the accumulators of these lanes lie in the array."""
        v = self.layout.vector.symbol.name
        return f"{self.name} + ({v} - {v}_begin)"

    def stored(self, lanes: str = "tc::All{}") -> str:
        """What is there."""
        self.s.need("access")
        return f"tc::load<{self.vector}>({self.address}, {lanes})"

    @staticmethod
    def _lanes(values: StageValues) -> str:
        """Of the array that an update changes: behind the end of a piece lies the next one, behind the end of a row
        nothing.
        """
        return "lanes" if values.pieces or values.turns else "tc::All{}"

    def combined(self, vectors: list[str]) -> str:
        """Several accumulators as one, pairwise."""
        while len(vectors) > 1:
            pairs = zip(vectors[::2], vectors[1::2])
            updates = [
                reduce_update(self.s, self.acc.op, Operand(a, self.ct, True), Operand(b, self.ct, True))
                for a, b in pairs
            ]
            halved = [f"(({self.vector})({update}))" for update in updates]
            vectors = halved + (vectors[-1:] if len(vectors) % 2 else [])
        return vectors[0]

    def update(self, values: StageValues, together: bool = False) -> list[str]:
        """Statements of the loop's body; `together`: of that over rows (`_rows`)."""
        support, name = self.s, self.name
        x = values.operand(self.acc.value)
        if x.ct != self.ct and not self.acc.is_position:
            from .prims import conversion

            x = Operand(f"({conversion(support, x, self.ct)})", self.ct, x.is_vector)
        x = Operand(splat(support, x), self.ct, True)
        if self.acc.is_position:
            return self._update_position(values, x)
        if self.array and not together:
            lanes = self._lanes(values)
            old = Operand(self.stored(lanes), self.ct, True)
            if self.acc.running:
                return [
                    f"const {self.vector} {name}_now = {reduce_update(support, self.acc.op, old, x)};",
                    f"tc::store({self.address}, {name}_now, {lanes});",
                ]
            return [
                f"tc::store({self.address}, ({self.vector})({reduce_update(support, self.acc.op, old, x)}), {lanes});"
            ]
        old = Operand(f"{name}_sum", self.ct, True)
        if together:
            return [f"{name}_sum = ({self.vector})({reduce_update(support, self.acc.op, old, x)});"]
        support.need("keep")
        return [
            f"{name}_sum = tc::keep(lanes, ({self.vector})({reduce_update(support, self.acc.op, old, x)}), {name}_sum);"
        ]

    def _update_position(self, values: StageValues, x: Operand) -> list[str]:
        support, name = self.s, self.name
        sign = self.acc.better
        support.need("masks"), support.need("keep"), support.need("access")
        lines = []
        best = f"{name}_best"
        if self.array:
            v = self.layout.vector.symbol.name
            at = f"({v} - {v}_begin)"
            lanes = self._lanes(values)
            lines += [
                f"const {self.vector} {name}_old = tc::load<{self.vector}>({name}_best + {at}, {lanes});",
                f"const vi64 {name}_old_at = tc::load<vi64>({name} + {at}, {lanes});",
            ]
            best = f"{name}_old"
        if self.acc.running and self.ct.kind == "bool":
            better = f"({x.text} | ~{best})" if sign == ">" else f"(~{x.text} | {best})"
        elif self.acc.running:  # of equals the last one
            better = f"tc::mask(({x.text} {sign}= {best}){f' | ({x.text} != {x.text})' if self.ct.is_float else ''})"
        else:
            better = self._better_lanes(x.text, best)
        position = self.scope.index_text(values.index_at(self._position(), 0, False))
        vector = self.loops.vector.symbol.name
        step = self._position().coeff(vector)
        if not self.array and step is not None and step.is_const:
            support.need("lane_ids", LANE_IDS)
            at_lanes = f"((i64)({position}) + tc::lane_ids() * {step.value}LL)"
        elif self.array:
            at_lanes = f"((i64)({position}) + vi64{{}})"
        else:
            support.need("each")
            lane = self.scope.index_text(values.index_at(self._position(), 0, True))
            at_lanes = f"tc::gather<vi64>(tc::All{{}}, [&](int k) {{ return (i64)({lane}); }})"
        if self.array:
            return [
                *lines,
                f"const vmask {name}_better = {better};",
                f"tc::store({name}_best + {at}, tc::where({name}_better, {x.text}, {name}_old), {lanes});",
                f"const vi64 {name}_now = tc::where({name}_better, {at_lanes}, {name}_old_at);",
                f"tc::store({name} + {at}, {name}_now, {lanes});",
            ]
        return [
            f"const vmask {name}_better = tc::keep(lanes, {better}, vmask{{}});",
            f"{name}_best = tc::where({name}_better, {x.text}, {name}_best);",
            f"{name}_at = tc::where({name}_better, {at_lanes}, {name}_at);",
        ]

    def _better_lanes(self, x: str, best: str) -> str:
        """Mask of the lanes whose x takes the place of the best so far: see `_better`."""
        sign = self.acc.better
        if self.ct.kind == "bool":
            return f"({x} & ~{best})" if sign == ">" else f"(~{x} & {best})"
        if self.ct.is_float:
            return f"tc::mask(({x} {sign} {best}) | (({x} != {x}) & ({best} == {best})))"
        return f"tc::mask({x} {sign} {best})"

    def _same_lanes(self, x: str, best: str) -> str:
        if self.ct.kind == "bool":
            return f"~({x} ^ {best})"
        return f"tc::mask(({x} == {best}){f' | (({x} != {x}) & ({best} != {best}))' if self.ct.is_float else ''})"

    def _first_best(self) -> list[str]:
        """The vectors' best elements as one, and the first position where it lies."""
        name, support = self.name, self.s
        support.need("masks"), support.need("fold")
        best, at, out = f"{name}_best_v0", f"{name}_at_v0", []
        for i in range(1, self.loops.unroll):
            x, there = f"{name}_best_v{i}", f"{name}_at_v{i}"
            out += [
                (
                    f"const vmask {name}_takes{i} = {self._better_lanes(x, best)} | ({self._same_lanes(x, best)} &"
                    f" tc::mask({there} < {at}));"
                ),
                f"{best} = tc::where({name}_takes{i}, {x}, {best}), {at} = tc::where({name}_takes{i}, {there}, {at});",
            ]
        t = self.element
        f = (
            ("a | b" if self.acc.better == ">" else "a & b")
            if self.ct.kind == "bool"
            else reduce_update(
                support, self.acc.op.removeprefix("arg"), Operand("a", self.ct, False), Operand("b", self.ct, False)
            )
        )
        return [
            *out,
            f"const {t} {name}_best = tc::fold({best}, []({t} a, {t} b) {{ return ({t})({f}); }});",
            (
                f"const i64 {name} = tc::fold(tc::where({self._same_lanes(best, f'({name}_best - {self.vector}{{}})')},"
                f" {at}, vi64{{}} + 0x7fffffffffffffffLL), [](i64 a, i64 b) {{ return a < b ? a : b; }});"
            ),
        ]

    def flush(self, unroll: int) -> list[str]:
        if not self.flushes:
            return []
        vs = [f"{self.name}_v{u}" for u in range(unroll)]
        total = " + ".join(vs)
        return [f"{self.name}_total += {total};", *(f"{v} = {self.identity};" for v in vs)]

    def finish(self) -> list[str]:
        """After the loops: from vectors to a number."""
        if self.array:
            return []
        name, support, unroll = self.name, self.s, self.loops.unroll
        if self.acc.is_position:
            return self._first_best()
        vs = [f"{name}_v{i}" for i in range(unroll)] if not self.flushes else [f"{name}_total"]
        combined = self.combined(vs)
        if self.acc.op in ("any", "all"):
            support.need("any")
            return [f"const bool {name} = tc::{self.acc.op}({combined});"]
        support.need("fold")
        t = self.ct.scalar
        f = reduce_update(support, self.acc.op, Operand("a", self.ct, False), Operand("b", self.ct, False))
        return [f"const {t} {name} = tc::fold({combined}, []({t} a, {t} b) {{ return ({t})({f}); }});"]
