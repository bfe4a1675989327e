"""Statements for the values of one stage: each placed at the outermost loop that has all it needs.

A value's *level* says where it is computed: LEVEL_TOP (once per call), LEVEL_ITEM (once per work item), LEVEL_LOOP + k
(inside the stage's k-th scalar loop) or LEVEL_VECTOR (in the body of the vector loop, one value per lane). Values of
the outer levels are scalars; `prims` broadcasts them where they meet a vector. LEVEL_PIECE: once per piece of the
vector axis (pieces.py). LEVEL_UNIFORM: in the body of the vector loop, but one value for all lanes, as only the
condition under which it may be evaluated differs between them.

What must not be evaluated everywhere has a guard (../guarded.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, ClassVar, Iterable, Mapping

import torch

from ...lowering.ir import Buffer, Store, Value, const, has_op, indirect_values
from ...lowering.primitives import EXACT
from ...symbolic.expr import ONE, ZERO, Expr, as_expr, integer, mul_all, symbol
from ..guarded import FreshNames, Guard, GuardedValues, stored
from .dtypes import CType, ctype, literal
from .moves import BITS
from .pieces import PIECES, in_long_pieces, piece_text, split_index, step_in_pieces
from .prims import BOOL, Operand, conversion, expression, splat
from .runs import RUN, backwards_text, every_second_text, run_directions
from .narrow_positions import held, is_short_index
from .support import Support, vector_type

__all__ = [
    "LEVEL_TOP",
    "LEVEL_ITEM",
    "LEVEL_LOOP",
    "LEVEL_PIECE",
    "LEVEL_UNIFORM",
    "LEVEL_VECTOR",
    "Scope",
    "StageValues",
    "Location",
]

LEVEL_TOP, LEVEL_ITEM, LEVEL_LOOP, LEVEL_PIECE, LEVEL_UNIFORM, LEVEL_VECTOR = 0, 1, 2, 998, 999, 1000
LANE_IDS = "INLINE vi64 lane_ids() { vi64 v; UNROLL for (int k = 0; k < L; k++) v[k] = k; return v; }"
TWO = integer(2)
SHORT_LANE_IDS = "INLINE vi32 short_lane_ids() { vi32 v; UNROLL for (int k = 0; k < L; k++) v[k] = k; return v; }"


@dataclass
class Scope(FreshNames):
    """What is known while a kernel is printed, above all the names of values that are in scope."""

    support: Support
    names: dict[tuple, tuple[str, ...]] = field(default_factory=dict)  # (value id, guard ids) -> text per copy
    levels: dict[tuple, int] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)

    def leave(self, level: int) -> None:
        """Forget the names of levels above `level`."""
        for k in [key for key, lv in self.levels.items() if lv > level]:
            del self.names[k], self.levels[k]

    def index_text(self, expr: Expr) -> str:
        text = expr.c()
        if "tc_" in text:
            self.support.index_helpers()
        return text


def _fits(value: Value, storage: str) -> bool:
    """Whether a float32 has no more digits than a low precision type, whose values it was made of by operators that
    round nothing.
    """
    stack = [value]
    while stack:
        value = stack.pop()
        if value.op == "cast" and ctype(value.args[0].dtype).storage == storage:
            continue
        if (
            value.is_const
            and const(value.attr, value.dtype).attr
            == const(value.attr, torch.bfloat16 if storage == "bf16" else torch.float16).attr
        ):
            continue
        if value.op not in EXACT:
            return False
        stack += value.args[1:] if value.op in ("where", "masked") else value.args
    return True


def _always_inside(expr: Expr, buffer: Buffer) -> bool:
    """Whether the element may be read where it is not wanted, too: a failed check gives 0, and there is an element
    0.
    """
    position = indirect_values().get(str(expr)) if expr.is_symbol else None
    sizes = [as_expr(size) for size in buffer.shape]
    return (
        position is not None
        and position.op == "check_index"
        and position.args[1].is_const
        and all(size.is_const and size.value > 0 for size in sizes)
        and position.args[1].attr <= mul_all(sizes).value
    )


@dataclass(frozen=True)
class Location:
    """Where an element of a buffer is: C++ pointer and its index expression, in lanes of the vector axis (`step` ONE:
    contiguous, ZERO: one element, other or None: lane by lane)."""

    pointer: str
    index: Expr
    step: Expr | None


class StageValues(GuardedValues):
    """Prints the values that a stage's roots need.

    axis_level: level of each axis symbol; vector: symbol of the vector axis or None;
    locate: (buffer, index) -> Location, the caller's view of buffers (blocks of local buffers differ by layout);
    acc_operand: name of accumulator -> (text, level), its text at LEVEL_VECTOR may use the vector axis.
    start: name of the position at which a piece of the vector axis begins, None where the loop does not go piece by
    piece; `pieces` are its indices, see runs.py.
    """

    # they read memory, or can trap
    CARE = frozenset(("load", "check_index", "div_trunc", "div_floor", "remainder", "fmod"))

    def __init__(
        self,
        scope: Scope,
        axis_level: dict[str, int],
        vector: str | None,
        locate: Callable,
        acc_operand: Callable[[str], tuple[str, int]],
        copies: int = 1,
        tiled: Iterable[Value] = (),
        start: str | None = None,
        hints: Mapping[str, int] = {},
    ):
        super().__init__(scope.names)
        self.scope, self.s = scope, scope.support
        self.axis_level, self.vector, self.locate, self.acc_operand = axis_level, vector, locate, acc_operand
        self.copies = copies
        self.sources = {v.id: f"source{n}" for n, v in enumerate(tiled)}  # loads that the caller provides for
        self.source_texts: dict[str, str] = {}  # how to load their elements one by one
        self.lines: dict[int, list[str]] = {}
        self.start, self.hints = start, hints
        self.pieces: dict[Expr, str] = {}  # index -> variable
        self.turns: dict[Expr, str] = {}  # what changes its sign -> variable
        self._under: Guard = ()  # of the statement that is printed

    # ---- order and levels
    def emit(self, roots: Iterable[Value]) -> None:
        """Statements of all values that `roots` need and that are not in scope yet, into `lines[level]`."""
        for v, guard in self.order(roots):
            key = self.key(v, guard)
            if key in self.scope.names:
                continue
            level = self._level(v, guard)
            self.scope.levels[key] = level
            self._under = guard
            texts = self.scope.names[key] = self._statement(v, guard, level)
            for text in texts:
                if v.origin and text.isidentifier():
                    self.scope.origins.setdefault(text, v.origin)
            self._under = ()

    def _level(self, value: Value, guard: Guard) -> int:
        above = [self.scope.levels[self.key(a, self.guard_of(a, g))] for a, g in self.operands(value, guard)]
        level = max(above[: len(value.args)], default=LEVEL_TOP)
        if value.op == "turn":
            level = LEVEL_PIECE
        elif value.position is not None:
            level = max([level, *(self.axis_level.get(n, LEVEL_TOP) for n in value.symbols)])
            if value.is_load and value.attr[0].scope == "local":
                level = max(level, self.axis_level.get("", LEVEL_ITEM))
        elif value.op == "acc":
            level = max(level, self.acc_operand(value.attr)[1])
        conditions = max(above[len(value.args) :], default=LEVEL_TOP)
        return level if conditions <= level else min(conditions, LEVEL_UNIFORM)

    # ---- texts
    def operand(self, value: Value, guard: Guard = (), copy: int = 0) -> Operand:
        key = self.key(value, self.guard_of(value, guard))
        texts = self.scope.names[key]
        return Operand(texts[copy % len(texts)], ctype(value.dtype), self.scope.levels[key] == LEVEL_VECTOR)

    def index_at(self, expr: Expr, copy: int, lane: bool) -> Expr:
        """An index expression with indirect symbols replaced by the names that hold them; with `lane`, at lane k."""
        known = indirect_values()
        m: dict[str, Expr] = {}
        for name in expr.symbol_names():
            if name in known:
                x = self._indirect_operand(known[name], copy)
                m[name] = symbol(x.text + "[k]" if lane and x.is_vector else x.text)
        if self.vector is not None and self.vector in expr.symbol_names():
            at = symbol(self.vector)
            if copy:
                at = at + integer(copy * self.s.lanes)
            if lane:
                at = at + symbol("k")
            m[self.vector] = at
        return expr.subs(m) if m else expr

    def _indirect_operand(self, value: Value, copy: int) -> Operand:
        """What stands behind an index, under the same guard as what is read there: lanes that a check leaves out have
        no position.
        """
        return self.operand(value, self._under, copy)

    def step_of(self, expr: Expr) -> Expr | None:
        """Elements between neighbouring lanes; None where they follow no rule."""
        known = indirect_values()
        for name in expr.symbol_names():
            if name in known and self._indirect_operand(known[name], 0).is_vector:
                return None
        return expr.coeff(self.vector) if self.vector is not None else ZERO

    def _statement(self, value: Value, guard: Guard, level: int) -> tuple[str, ...]:
        ct = ctype(value.dtype)
        if value.is_const:
            text = literal(value.attr, ct)
            return (f"({text})" if text.startswith("-") else text,)
        if value.op == "param":
            return (value.attr,)
        if value.op == "acc" and level != LEVEL_VECTOR:
            return (self.acc_operand(value.attr)[0],)
        if value.op == "cast" and ctype(value.args[0].dtype) == ct:
            return self.scope.names[self.key(value.args[0], self.guard_of(value.args[0], guard))]
        vector = level == LEVEL_VECTOR
        stem = {"load": value.attr[0].name + "_at" if value.is_load else "", "cast": "as_" + ct.storage}.get(
            value.op, value.op
        )
        name = self.scope.fresh(stem)
        names = []
        inside = level >= LEVEL_UNIFORM
        for copy in range(self.copies if inside else 1):
            text = self._OWN.get(value.op, StageValues._computed)(self, value, guard, vector, copy)
            target = name if self.copies == 1 or not inside else f"{name}{chr(ord('a') + copy)}"
            kind = vector_type(self.s, ct) if vector else ct.scalar
            self.lines.setdefault(LEVEL_VECTOR if inside else level, []).append(f"const {kind} {target} = {text};")
            names.append(target)
        return tuple(names)

    # What a value is as C++ text, by its operator (`_OWN`); `copy`: of which of the vectors that a step computes.
    def _arguments(self, value: Value, guard: Guard, copy: int) -> list[Operand]:
        return [self.operand(a, g, copy) for a, g in self.operands(value, guard)[: len(value.args)]]

    def _turn(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        e, negated = value.attr
        self._need_pieces()
        return f"{self.turns.setdefault(e, f'turn{len(self.turns)}')}.at {'>=' if negated else '<'} 0"

    def _acc(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        return self.acc_operand(value.attr)[0]

    def _cast(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        if vector and is_short_index(value) and (text := self._short_index(value.args[0].attr, copy)):
            return text
        return conversion(self.s, self._arguments(value, guard, copy)[0], ctype(value.dtype))

    def _computed(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        ct = ctype(value.dtype)
        text = expression(self.s, value.op, ct, self._arguments(value, guard, copy))
        if ct.storage in ("bf16", "f16") and value.op not in EXACT:
            # an operator computed in a low precision type rounds its result
            self.s.need(f"{ct.storage}.vector" if vector else ct.storage)
            text = f"tc::round_{ct.storage}({text})"
        return text

    def _guard_mask(self, guard: Guard, copy: int) -> Operand:
        parts = [self.operand(g, guard[:k], copy) for k, g in enumerate(guard)]
        if any(part.is_vector for part in parts):
            self.s.need("masks")
            return Operand(" & ".join(splat(self.s, part) for part in parts), BOOL, True)
        return Operand(" && ".join(part.text for part in parts), BOOL, False)

    def _wanted(self, mask: Operand, copy: int) -> str:
        """Whether any lane wants what is the same for all."""
        if not mask.is_vector:
            return mask.text
        self.s.need("any"), self.s.need("keep")
        return f"tc::any(tc::keep({self.lanes_of(copy)}, {mask.text}, vmask{{}}))"

    def lanes_of(self, copy: int) -> str:
        """The variable that tells which lanes of this copy's vector take part."""
        return "lanes" if self.copies == 1 else f"lanes_{chr(ord('a') + copy)}"

    def _load(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        ct, (buffer, e) = ctype(value.dtype), value.attr
        where = self.locate(buffer, e)
        mask = self._guard_mask(guard, copy) if guard else None
        support = self.s
        if not vector:
            text = f"{where.pointer}[{self.scope.index_text(self.index_at(where.index, copy, False))}]"
            text = self._widen(text, ct, False)
            if buffer.repeats and mask is None:
                there = " && ".join(self.scope.index_text(repeat) for repeat in buffer.repeats)
                return f"{there} ? {text} : {literal(0, ct)}"
            return text if mask is None else f"{self._wanted(mask, copy)} ? {text} : {literal(0, ct)}"
        raw, lanes = self.storage_vector(ct), self.lanes_of(copy)
        support.need("access")
        step = self.step_of(where.index)
        if step is ZERO and mask is not None and mask.is_vector:
            step = None
        if step is ONE:
            address = f"{where.pointer} + ({self.scope.index_text(self.index_at(where.index, copy, False))})"
            if mask is None:
                text = f"tc::load{'' if self.copies == 1 else '_some'}<{raw}>({address}, {lanes})"
            elif mask.is_vector:
                support.need("masked")
                text = f"tc::load_if<{raw}>({address}, {mask.text}, {lanes})"
            else:
                text = f"{mask.text} ? tc::load<{raw}>({address}, {lanes}) : {raw}{{}}"
        else:
            element = f"{where.pointer}[{self.scope.index_text(self.index_at(where.index, copy, True))}]"
            at = self._positions(where.index, copy) if mask is None or _always_inside(where.index, buffer) else None
            if at is not None:
                support.need("gather_at")
                text = f"tc::gather_at<{raw}>({where.pointer}, {at}, {lanes})"
            elif mask is None:
                text = self._gather(where, raw, element, copy)
            elif mask.is_vector:
                support.need("masked")
                text = f"tc::gather_if<{raw}>({mask.text}, {lanes}, [&](int k) {{ return {element}; }})"
                if (step is TWO or self._in_runs(where)) and copy == 0 and self.copies == 1:
                    text = f"tc::whole(lanes, {mask.text}) ? {self._gather(where, raw, element, copy)} : {text}"
            else:
                text = f"{mask.text} ? {self._gather(where, raw, element, copy)} : {raw}{{}}"
        if value.id in self.sources:
            name = self.sources[value.id]
            self.source_texts[name] = text
            text = f"{name}(lanes)"
        return self._widen(text if "?" not in text else f"({text})", ct, True)

    def _gather(self, where: Location, raw: str, element: str, copy: int) -> str:
        """Lanes that don't lie side by side, or not always."""
        support, lanes = self.s, self.lanes_of(copy)
        support.need("each")
        if self.step_of(where.index) is TWO and support.lanes > 1:
            support.need("every_second", every_second_text(support.lanes))
            return (
                f"tc::every_second<{raw}>({where.pointer} +"
                f" ({self.scope.index_text(self.index_at(where.index, copy, False))}), {lanes})"
            )
        directions = self._in_runs(where)
        if not directions and not self._in_whole_vectors(where):
            return f"tc::gather<{raw}>({lanes}, [&](int k) {{ return {element}; }})"
        varying, fixed = split_index(where.index, self.vector)
        if self.start is not None and in_long_pieces(varying, self.vector, support.lanes, self.hints):
            self._need_pieces()
            piece = self.pieces.setdefault(varying, f"piece{len(self.pieces)}")
            return (
                f"tc::along<{raw}>({where.pointer} + ({self.scope.index_text(self.index_at(fixed, copy, False))}) +"
                f" {piece}.at + ({self.vector} - {self.start}) * {piece}.step, {piece}.step, {lanes})"
            )
        support.need("backwards", backwards_text(support.lanes))
        support.need("run", RUN)
        at = self.scope.index_text(self.index_at(where.index, copy, True))
        return f"tc::run<{raw}, {directions}>({where.pointer}, [&](int k) {{ return (i64)({at}); }}, {lanes})"

    def _in_runs(self, where: Location) -> int:
        """The directions in which lanes mostly lie side by side, see runs.py."""
        if self.vector is None or any(name in indirect_values() for name in where.index.symbol_names()):
            return 0
        return run_directions(where.index, self.vector)

    def _in_whole_vectors(self, where: Location) -> bool:
        """Whether lanes lie side by side in long pieces that are anywhere: heads of attention beside each other."""
        if (
            self.vector is None
            or self.start is None
            or any(name in indirect_values() for name in where.index.symbol_names())
        ):
            return False
        varying, _ = split_index(where.index, self.vector)
        return step_in_pieces(varying, self.vector) in (1, -1, 0) and in_long_pieces(
            varying, self.vector, self.s.lanes, self.hints
        )

    def _need_pieces(self) -> None:
        self.s.need("each")
        self.s.need("backwards", backwards_text(self.s.lanes))
        self.s.need("pieces", PIECES)

    def piece_lines(self, left: str) -> list[str]:
        """The head of the loop over pieces: their declarations, and how many lanes all of them hold for, of those
        left.
        """
        out = [
            f"const tc::Piece {name} = {piece_text(e, self.vector, self.start, self.scope.index_text)};"
            for e, name in (*self.pieces.items(), *self.turns.items())
        ]
        for steps in (
            *(f"{name}.lanes" for name in self.pieces.values()),
            *(f"tc::until_turn({name})" for name in self.turns.values()),
        ):
            left = f"tc::fewer({steps}, {left})"
        return [*out, f"{self.vector}_to = {self.start} + {left};", *self.lines.get(LEVEL_PIECE, [])]

    def _positions(self, expr: Expr, copy: int) -> str | None:
        """An index that follows computed positions as one vector expression; None where it is not affine in what varies
        by lane.
        """
        known = indirect_values()
        vectors = {
            name: x
            for name in expr.symbol_names()
            if name in known and (x := self._indirect_operand(known[name], copy)).is_vector
        }
        if not vectors:
            return None
        rest, parts = expr, []
        for n, x in [*vectors.items(), *([(self.vector, None)] if self.vector in expr.symbol_names() else [])]:
            coeff = expr.coeff(n)
            if coeff is None or coeff.symbol_names() & ({*vectors, self.vector}):
                return None
            rest = rest - coeff * symbol(n)
            if x is not None:
                factor = self.scope.index_text(self.index_at(coeff, copy, False))
                parts.append(x.text if coeff is ONE else f"{x.text} * (i64)({factor})")
            else:
                self.s.need("lane_ids", LANE_IDS)
                factor = self.scope.index_text(self.index_at(coeff, copy, False))
                parts.append(
                    f"({self.vector}{f' + {copy * self.s.lanes}' if copy else ''} + tc::lane_ids()) * (i64)({factor})"
                )
        self.s.vector("i64")
        return " + ".join(
            [
                *parts,
                *([f"(i64)({self.scope.index_text(self.index_at(rest, copy, False))})"] if rest is not ZERO else []),
            ]
        )

    def storage_vector(self, ct: CType) -> str:
        tag = {"bf16": "u16", "f16": "u16", "bool": "u8"}.get(ct.storage, ct.tag)
        self.s.vector(tag)
        return "v" + tag

    def _widen(self, text: str, ct: CType, vector: bool) -> str:
        if ct.storage == "bool" and not vector:
            return f"{text} != 0"
        if ct.storage not in ("bf16", "f16", "bool"):
            return text
        self.s.need(f"{ct.storage}.vector" if vector else ct.storage)
        return f"tc::widen_{ct.storage}({text})"

    def narrow(self, x: Operand, vector: bool) -> str:
        """A value as the buffer of its dtype stores it."""
        if vector and not x.is_vector and x.ct.storage in ("bf16", "f16"):  # narrowed once
            return splat(self.s, Operand(self.narrow(x, False), ctype(BITS), False))
        text = splat(self.s, x) if vector else x.text
        if x.ct.storage == "bool" and not vector:
            return f"(u8){text}"
        if x.ct.storage not in ("bf16", "f16", "bool"):
            return text
        self.s.need(f"{x.ct.storage}.vector" if vector else x.ct.storage)
        return f"tc::{'cut' if x.exact and x.ct.storage == 'bf16' else 'narrow'}_{x.ct.storage}({text})"

    def _index(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        ct, e = ctype(value.dtype), value.attr
        if not vector:
            return f"({ct.scalar})({self.scope.index_text(self.index_at(held(e) if ct.tag == 'i32' else e, 0, False))})"
        step = self.step_of(e)
        if ct.tag == "i32":
            return self._short_lanes(held(self.index_at(e, copy, False)), step) or self._each_lane(
                held(self.index_at(e, copy, True)), ct
            )
        self.s.vector("i64")
        if step is not None and step.is_const:
            self.s.need("lane_ids", LANE_IDS)
            base = self.scope.index_text(self.index_at(e, copy, False))
            text = f"(i64)({base}) + tc::lane_ids()" + (f" * {step.value}LL" if step is not ONE else "")
        else:
            text = self._each_lane(self.index_at(e, copy, True), ct)
        return text

    def _each_lane(self, expr: Expr, ct: CType) -> str:
        self.s.need("each")
        return (
            f"tc::gather<{vector_type(self.s, ct)}>(tc::All{{}}, [&](int k) {{ return"
            f" ({ct.scalar})({self.scope.index_text(expr)}); }})"
        )

    def _short_index(self, expr: Expr, copy: int) -> str | None:
        """An index expression as int32, counted in that type; None where its lanes follow no rule."""
        return self._short_lanes(self.index_at(expr, copy, False), self.step_of(expr))

    def _short_lanes(self, base: Expr, step: Expr | None) -> str | None:
        if step is None or not step.is_const or not -(1 << 20) < step.value < 1 << 20:
            return None
        self.s.vector("i32")
        self.s.need("short_lane_ids", SHORT_LANE_IDS)
        return f"(i32)({self.scope.index_text(base)}) + tc::short_lane_ids()" + (
            f" * {step.value}" if step is not ONE else ""
        )

    def _check(self, value: Value, guard: Guard, vector: bool, copy: int) -> str:
        code = self.scope.checks.index(value.attr) + 1
        i, n = self._arguments(value, guard, copy)
        if not vector:
            self.s.need(
                "check.scalar",
                "// An index that must lie in [0, n): else the kernel reports failure `code` and goes on with 0.\n"
                "INLINE i64 check(i64 i, i64 n, bool wanted, int code, int &failed) {\n"
                "    if (i >= 0 && i < n) return i;\n    if (wanted) failed = code;\n    return 0;\n}",
            )
            wanted = self._wanted(self._guard_mask(guard, copy), copy) if guard else "true"
            return f"tc::check({i.text}, {n.text}, {wanted}, {code}, failed)"
        self.s.vector("i64")
        self.s.need("any"), self.s.need("masks")
        self.s.need("keep")
        self.s.need(
            "check.vector",
            "template <class W> INLINE vi64 check(vi64 i, vi64 n, vmask wanted, W lanes, int code, int &failed) {\n"
            "    vi64 bad = (i < 0) | (i >= n);         // lanes beyond the end of the row may hold anything\n"
            "    if (__builtin_expect(!any(mask(bad)), 1)) return i;\n"
            "    if (any(keep(lanes, mask(bad) & wanted, vmask{}))) failed = code;\n    return bad ? vi64{} : i;\n}",
        )
        wanted = splat(self.s, self._guard_mask(guard, copy) if guard else Operand("true", BOOL, False))
        return f"tc::check({splat(self.s, i)}, {splat(self.s, n)}, {wanted}, {self.lanes_of(copy)}, {code}, failed)"

    _OWN: ClassVar[dict[str, Callable[["StageValues", Value, Guard, bool, int], str]]] = {
        "load": _load,
        "index": _index,
        "turn": _turn,
        "acc": _acc,
        "cast": _cast,
        "check_index": _check,
    }

    # ---- stores
    def store(self, store: Store, in_vector_loop: bool) -> list[tuple[int, str]]:
        """Statements that store a value: (level, text) pairs, one per copy."""
        buffer, expr, mode = store.buffer, store.index, store.mode
        ct = ctype(store.value.dtype if store.value.dtype is BITS else buffer.dtype)
        value = stored(store.value)
        where = self.locate(buffer, expr)
        # The buffer may be an input, which stays as it is where a position does not lie in it.
        checked = self.scope.checks and has_op(store.positions, "check_index")
        condition = "if (!failed) " if checked else ""
        if not in_vector_loop:
            x = self._as_stored(self.operand(value), ct)
            level = max([LEVEL_ITEM, *(self.axis_level.get(name, LEVEL_TOP) for name in expr.symbol_names())])
            target = f"{where.pointer}[{self.scope.index_text(self.index_at(where.index, 0, False))}]"
            return [(level, condition + self._store_scalar(target, x, ct, mode))]
        out = []
        for copy in range(self.copies):
            lanes = self.lanes_of(copy)
            x = self._as_stored(
                self.operand(value, (), copy), ct, _fits(value, ct.storage) if ct.storage in ("bf16", "f16") else False
            )
            step = self.step_of(where.index)
            if step is ONE:
                self.s.need("access")
                address = f"{where.pointer} + ({self.scope.index_text(self.index_at(where.index, copy, False))})"
                if mode != "set":
                    old = self._widen(
                        f"tc::load{'' if self.copies == 1 else '_some'}<{self.storage_vector(ct)}>({address}, {lanes})",
                        ct,
                        True,
                    )
                    x = Operand(f"({self._combined(mode, Operand(old, ct, True), x, ct)})", ct, True)
                text = f"tc::store{'' if self.copies == 1 else '_some'}({address}, {self.narrow(x, True)}, {lanes});"
            else:
                self.s.need("each")
                target = f"{where.pointer}[{self.scope.index_text(self.index_at(where.index, copy, True))}]"
                lane = Operand(f"{x.text}[k]", ct, False, x.exact) if x.is_vector else x
                text = f"tc::each({lanes}, [&](int k) {{ {self._store_scalar(target, lane, ct, mode)} }});"
            out.append((LEVEL_VECTOR, condition + text))
        return out

    def _as_stored(self, x: Operand, ct: CType, fits: bool = False) -> Operand:
        """The operand as an element of the buffer's type; a value of that type already, or one that fits it, is
        narrowed without rounding.
        """
        return Operand(x.text, ct, x.is_vector, exact=fits or x.ct.storage == ct.storage)

    def _store_scalar(self, target: str, x: Operand, ct: CType, mode: str) -> str:
        if mode == "set":
            value = f"{x.text} != 0" if ct.kind == "bool" and x.text.endswith("[k]") else self.narrow(x, False)
            return f"{target} = {value};"
        old = Operand(self._widen(target, ct, False), ct, False)
        if x.ct.kind == "bool" and x.text.endswith("[k]"):
            x = Operand(f"({x.text} != 0)", ct, False)
        total = Operand(f"({self._combined(mode, Operand(f'({old.text})', ct, False), x, ct)})", ct, False)
        return f"{target} = {self.narrow(total, False)};"

    def _combined(self, mode: str, old: Operand, x: Operand, ct: CType) -> str:
        """What is there and what is stored, as one value."""
        return expression(self.s, {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}[mode], ct, [old, x])
