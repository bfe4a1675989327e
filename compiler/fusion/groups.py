"""Grouping: which loop nests share a kernel.

The steps are walked once, in order. A nest may join the group of its latest producer (or a later group that reads the
same memory) where

- the iteration spaces have a common refinement: all axes ("full"), or the axes that a reduction keeps ("outer");
- what it reads from the group is read exactly where the same iteration makes it;
- the group stays within its limits.

Groups are numbered in order of creation and every edge goes from a lower or equal number to a higher one, so that no
cycle can arise and no search is needed: the whole is linear. Each refusal is recorded with its reason, and so is what
kept a nest out of a kernel that it reads from and could not even try to join.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Iterator, Sequence

from ..base.figures import plural
from ..lowering.ir import Axis, Buffer, LoopNest, loaded, loads
from ..lowering.lowered import Extern, LoweredStep, View
from ..lowering.rewrite import positions, tidy
from ..symbolic.expr import ZERO, Expr, mul_all
from .column_sums import column_sums, in_space_of
from .domain import Factor, factor_symbol, factors_of, map_axes, numel_hint, refine
from .forced_fusion import NOTHING_FORCED, ForcedFusion
from .order import PATIENCE
from .inline import buffers_read
from .memory.lower_peak import NO_PEAK
from .row_sums import row_sums
from .schedule import Template

__all__ = ["Group", "Limits", "group_steps"]

SMALL_OUTER = 16  # fewer rows than this cannot feed the threads
LOOK_AHEAD = 16  # nests that are looked through for one that reads two independent results
SMALL_SPACE = 1 << 14  # elements up to which calling a kernel costs more than what it does
BIG_WORK = 1 << 15  # elements from which that matters
HELD = 1 << 15  # elements of a row that a GPU's registers hold between two passes
COSTLY_LOADS = 6  # of one element


@dataclass
class Limits:
    nests: int = 4096
    buffers: int = 64  # that a kernel reads, and as many that it writes
    passes: int = 7  # over a row: three norms on end
    epilogue: bool = True
    forced: ForcedFusion = NOTHING_FORCED


@dataclass(eq=False)
class Group:
    """Nests of one kernel. `factors` is the iteration space; `level[k]` says which of its factors nest k runs over."""

    number: int
    calls: int = 0  # library calls and products before it
    nests: list[LoopNest] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)  # "full" | "outer"
    factors: list[Factor] = field(default_factory=list)
    writes: dict[Buffer, Expr | None] = field(default_factory=dict)  # buffer -> index over the factors' symbols
    reads: set[Buffer] = field(default_factory=set)
    read_at: dict[Buffer, list[tuple]] = field(default_factory=dict)  # buffer -> (axes, level, index) of some reads
    # (axes, level, buffer, index) of elements of a row that are computed again
    elements: list[tuple] = field(default_factory=list)
    because: list[str] = field(default_factory=list)
    passes: dict[Buffer, int] = field(default_factory=dict)  # buffer -> passes over the row before it is known
    kept: int = 0  # buffers that something outside needs for certain
    runs: int = 0  # runs of rows whose columns are summed (column_sums.py), 0: none are
    sums: "Group | None" = None  # the group that adds up those sums
    extern: Any = None  # an Extern or View step alone in its place
    _maps: dict[Any, dict[str, Expr] | None] = field(default_factory=dict)

    def is_open(self, floor: int) -> bool:
        """Whether something that must not run before group `floor` may join it, as far as its kind goes."""
        return self.number >= floor and self.extern is None and not self.alone

    @property
    def product(self) -> bool:
        """Whether the kernel is a matrix product with what follows it."""
        return bool(self.nests) and self.nests[0].product

    @property
    def alone(self) -> bool:
        """Whether the kernel is a scan, or a nest that writes over what others stored."""
        return bool(self.nests) and self.nests[0].alone

    @property
    def has_reduction(self) -> bool:
        return any(factor.reduced for factor in self.factors)

    @property
    def names(self) -> list[str]:
        """Of the operators in it."""
        return [name for nest in self.nests for name in nest.origins]

    def chosen(self, level: str, factors: Sequence[Factor]) -> list[int]:
        return [k for k, factor in enumerate(factors) if level == "full" or not factor.reduced]

    def map_of(self, axes: tuple[Axis, ...], level: str, factors: list[Factor]) -> dict[str, Expr] | None:
        if factors is not self.factors:
            return map_axes(axes, factors, self.chosen(level, factors))
        key = (tuple((axis.symbol.name, axis.size) for axis in axes), level)
        if key not in self._maps:
            self._maps[key] = map_axes(axes, factors, self.chosen(level, factors))
        return self._maps[key]

    def ranges(self, factors: Sequence[Factor]) -> dict[str, tuple]:
        return {f"g{k}": (0, factor.size) for k, factor in enumerate(factors)}

    def refactor(self, factors: list[Factor]) -> None:
        """Adopt a refined space: the maps and the indices of what was written change."""
        if len(factors) == len(self.factors) and all(factor == own for factor, own in zip(factors, self.factors)):
            return
        self.factors = factors
        self._maps = {}
        ranges = self.ranges(factors)
        for nest, level in zip(self.nests, self.levels):
            if self.writes[nest.buffer] is not None:
                mapping = self.map_of(nest.domain if level == "full" else nest.axes, level, factors)
                self.writes[nest.buffer] = tidy(nest.index.subs(mapping), ranges)


class Refusal(Exception):
    pass


def group_steps(
    steps: Sequence[LoweredStep],
    hints: dict[str, int],
    limits: Limits,
    fuse: bool = True,
    needed: Sequence[Buffer] = (),
) -> tuple[list[Group], list[tuple[str, str, str]]]:
    """(groups in order of execution, (node, node, why they are two kernels)). The second list has each refusal, and
    whoever reads what another kernel or library call makes. needed: the graph's results."""
    return _Grouping(hints, limits, fuse, set(needed)).run(steps)


class _Grouping:
    def __init__(self, hints: dict[str, int], limits: Limits, fuse: bool, needed: set[Buffer]):
        self.hints, self.limits, self.fuse, self.needed = hints, limits, fuse, needed
        self.groups: list[Group] = []
        self.made_in: dict[Buffer, Group] = {}  # buffer -> the last group that writes it
        self.readers: dict[Buffer, list[Group]] = {}  # buffer -> recent groups that read it
        self.unfused: list[tuple[str, str, str]] = []
        self.names: dict[Buffer, str] = {}  # buffer -> the operator that makes it, or what it is a view of
        self.kept_out: dict[Group, str] = {}  # groups that the nest at hand could not join, and why
        # sizes -> the last group begun over them: updates of many parameters share kernels
        self.small: dict[tuple, Group] = {}
        self.loaded: dict[int, set[Buffer]] = {}  # id of a nest -> what it reads
        self.readers_of: dict[Buffer, list[LoopNest]] = {}  # all nests that read a buffer
        self.calls = 0  # library calls and products so far

    def run(self, steps: Sequence[LoweredStep]) -> tuple[list[Group], list[tuple[str, str, str]]]:
        for step in steps:
            if isinstance(step, LoopNest):
                self.loaded[id(step)] = loaded([step.value])
                for buffer in self.loaded[id(step)]:
                    self.readers_of.setdefault(buffer, []).append(step)
        for step in steps:
            if isinstance(step, LoopNest):
                self.place(step)
            else:
                self.place_call(step)
        return self.groups, self.unfused

    def place_call(self, step: Extern | View) -> None:
        group = self.new_group()
        group.extern = step
        if isinstance(step, View):
            self.made_in[step.buffer] = group
            if step.base in self.names:  # (else it is of memory that the graph is given)
                self.names[step.buffer] = self.names[step.base]
            return
        self.calls += 1
        name = _call_name(step)
        for buffer in dict.fromkeys(buffers_read(step)):
            if buffer in self.names:
                self.unfused.append((self.names[buffer], name, _call_reason(step, name)))
        for buffer in step.outputs:
            if buffer is not None:
                self.made_in[buffer], self.names[buffer] = group, name

    def new_group(self) -> Group:
        group = Group(len(self.groups), self.calls)
        self.groups.append(group)
        return group

    def place(self, nest: LoopNest) -> None:
        """Put the nest into a kernel, and note why it is in no other that it reads from."""
        loads = _loads(nest)
        read = {buffer: self.made_in[buffer] for buffer, _ in loads if buffer in self.made_in}
        beside = {
            g[-1] for buffer, _ in loads if (g := self.readers.get(buffer))
        }  # kernels that have last read the same
        self.kept_out = {}
        floor = self.find_place(nest, loads)
        own, name = self.made_in[nest.buffer], _name(nest)
        self.names[nest.buffer] = name
        for group in [*self.kept_out, *sorted(beside - self.kept_out.keys() - {own}, key=lambda g: g.number)]:
            if group.nests and group not in read.values():
                reason = self.kept_out.get(group) or self.not_tried(group, own, nest, read, floor)
                self.unfused.append((_name(group.nests[-1]), name, reason))
        for buffer, group in read.items():
            if group is not own and nest.buffer not in group.writes and buffer in self.names:
                reason = self.kept_out.get(group) or self.not_tried(group, own, nest, read, floor)
                self.unfused.append((self.names[buffer], name, reason))

    def find_place(self, nest: LoopNest, loads: list) -> int:
        """Put the nest into the first kernel that takes it, or a new one. Returns the number of the last group that has
        to begin before it does."""
        producers = {self.made_in[buffer] for buffer, _ in loads if buffer in self.made_in}
        earlier = self.made_in.get(nest.buffer)  # another piece of the same buffer
        floor = max((producer.number for producer in producers), default=-1)
        if earlier is not None:
            floor = max(floor, earlier.number)
        for group in self.candidates(nest, loads, floor):
            try:
                self.join(group, nest, loads)
                return floor
            except Refusal as e:
                other = in_order_of(nest, loads, group) or in_space_of(group, nest, loads)
                if other is not None:
                    try:
                        self.join(group, other, _loads(other))
                        return floor
                    except Refusal:
                        pass  # the first reason is the one to report
                if self.across(group, nest, loads):
                    return floor
                self.refuse(group, nest, str(e))
        self.start(nest, loads)
        return floor

    def not_tried(self, group: Group, own: Group, nest: LoopNest, read: dict[Buffer, Group], floor: int) -> str:
        """Why a nest that reads from a group was never about to join it: the conditions of `candidates`."""
        if not self.fuse:
            return "disable_fusion is on"
        if isinstance(group.extern, View):
            return "it is read through a view of its memory, which is there when its kernel has run"
        if group.extern is not None:
            name = _call_name(group.extern)
            return _call_reason(group.extern, name)
        if nest.product:
            kind = "matrix product" if len(nest.reduce_axes) == 1 else "convolution"
            return f"{_name(nest)} is a {kind}: it reads what it multiplies many times, from memory"
        if nest.onto:
            return f"{_name(nest)} writes over what others have stored, and comes after all of them"
        if nest.scan:
            return f"{_name(nest)} goes through its rows in order, in a kernel of its own"
        if group.number < floor:
            last = next((self.names.get(buffer, buffer.name) for buffer, g in read.items() if g.number == floor), "")
            then = f"only after the kernel of {_name(group.nests[-1])} has run"
            if not last:
                return f"{_name(nest)} is made in pieces, an earlier one of them {then}"
            return f"{_name(nest)} also needs {last}, which is known {then}"
        if self.waits(group, nest):
            return "stored by this kernel, the whole of which it is a part would wait in memory for the other parts"
        if own.nests and own.nests[0] is not nest:
            return f"{_name(nest)} was put into the kernel of {_name(own.nests[0])} before this one was tried"
        return f"{_name(nest)} was refused by other kernels before this one was tried"

    def across(self, group: Group, nest: LoopNest, loads: list) -> bool:
        """Have a group that reduces rows sum over them as well, if that is what the nest does."""
        by_columns = column_sums(group, nest, loads)
        parts = by_columns or row_sums(group, nest, loads)
        if parts is None:
            return False
        first, second = parts
        try:
            self.join(group, first, _loads(first))
        except Refusal:
            return False
        if by_columns:
            group.runs = int(first.buffer.shape[0])
        if group.sums is not None:
            try:
                self.join(group.sums, second, _loads(second))
                return True
            except Refusal:
                pass
        self.start(second, _loads(second))
        group.sums = self.made_in[second.buffer]
        return True

    def candidates(self, nest: LoopNest, loads: list, floor: int) -> list[Group]:
        if not self.fuse or nest.product or nest.onto:
            return []  # (what writes over others' results comes after all of them)
        if nest.scan:  # (values and positions of a running maximum)
            last = self.groups[-1] if self.groups else None
            return [last] if last is not None and last.number >= floor and _same_scan(last, nest) else []
        out = self.latest(self.groups[floor], nest) if floor >= 0 else []
        for group in self.products_beside(nest):
            if group.number >= floor and group not in out:
                out.insert(0, group)
        seen = set(out)
        for buffer, _ in loads:
            for group in reversed(self.readers.get(buffer, ())):
                if group not in seen and group.is_open(floor):
                    seen.add(group)
                    out.append(group)
        del out[5:]
        out = [group for group in out if not self.waits(group, nest)]
        if self.limits.forced:
            self.wished(nest, floor, out)
        return out + self.unrelated(nest, floor, seen)

    def waits(self, group: Group, nest: LoopNest) -> bool:
        """Whether the first part of a `cat`, were it stored by that group, would have the whole's memory wait for the
        other parts through many library calls and products. On a CPU small parts are rather not read again.
        """
        if self.calls - group.calls <= PATIENCE or nest.buffer in self.made_in:
            return False
        whole = numel_hint(nest.buffer.shape, self.hints)
        if not nest.on_gpu and whole * nest.buffer.dtype.itemsize < NO_PEAK:
            return False
        return numel_hint([axis.size for axis in nest.domain], self.hints) < whole

    def unrelated(self, nest: LoopNest, floor: int, seen: set[Group]) -> list[Group]:
        """Groups that share nothing with the nest, and whose kernel still costs less with it: the last one, and the
        latest small one over as many elements."""
        out = []
        last = self.groups[-1] if self.groups else None
        if (
            last is not None
            and last not in seen
            and last.is_open(floor)
            and (self.alike(last, nest) or self.meets(last, nest))
        ):
            out.append(last)
        small = self.small.get(_sizes(nest)) if nest.reduce_op is None else None
        if (
            small is not None
            and small is not last
            and small not in seen
            and small.number >= floor
            and not small.has_reduction
            and self.alike(small, nest)
        ):
            out.append(small)
        return out

    def latest(self, group: Group, nest: LoopNest) -> list[Group]:
        """The latest group that the nest reads from, where it may be joined; else what keeps them apart is noted."""
        if group.extern is None:
            # (a GPU's scans have their pieces of a row in registers: what follows is computed there)
            if not group.alone or group.nests[0].scan and nest.reduce_op is None and nest.on_gpu:
                return [group]
            self.kept_out[group] = "its elements are known only when all of them have been written"
        return []

    def wished(self, nest: LoopNest, floor: int, out: list[Group]) -> None:
        """The group of an operator that is wanted beside the nest comes first; where it runs too early, that is the
        refusal.
        """
        for group in self.groups:
            pair = self.limits.forced.together(group.names, nest.origins)
            if not pair:
                continue
            if group.number < floor:
                first, second = pair.split(":")
                self.unfused.append((first, second, "another kernel has to run between the two"))
            elif group.extern is None and not group.alone:
                out[:] = [group, *(other for other in out if other is not group)]

    def alike(self, group: Group, nest: LoopNest) -> bool:
        """Whether a nest that shares nothing with the group costs less in its kernel than in one of its own: the same
        space, and small, or reduced."""
        own = factors_of(nest.domain, nest.reduce_axes)
        return own == group.factors and (
            nest.reduce_op is not None or numel_hint([factor.size for factor in own], self.hints) <= SMALL_SPACE
        )

    def meets(self, group: Group, nest: LoopNest) -> bool:
        """Whether a nest that shares nothing with the group, over the same space, makes what is read together with the
        group's results: sin(a) + cos(b).
        """
        if [f.size for f in factors_of(nest.domain, nest.reduce_axes)] != [factor.size for factor in group.factors]:
            return False
        ways, seen = [nest], {id(nest)}
        while ways and len(seen) <= LOOK_AHEAD:
            for reader in self.readers_of.get(ways.pop(0).buffer, ()):
                if any(buffer in group.writes for buffer in self.loaded[id(reader)]):
                    return True
                if id(reader) not in seen and not reader.alone and not reader.product:
                    seen.add(id(reader))
                    ways.append(reader)
        return False

    def products_beside(self, nest: LoopNest) -> list[Group]:
        """A GPU's matrix products whose elements are read together with the nest's: a dropout's mask, a residual that
        is scaled.
        """
        if not nest.on_gpu or nest.reduce_op is not None or nest.mode != "set":
            return []
        together = {
            buffer
            for reader in self.readers_of.get(nest.buffer, ())
            if reader.reduce_op is None
            for buffer in self.loaded[id(reader)]
        }
        return list(
            dict.fromkeys(
                group for buffer in together if (group := self.made_in.get(buffer)) is not None and group.product
            )
        )

    def refuse(self, group: Group, nest: LoopNest, reason: str) -> None:
        pair = self.limits.forced.together(group.names, nest.origins) if self.limits.forced else ""
        if pair:
            self.unfused.append((*pair.split(":"), reason))  # type: ignore[arg-type]
        self.kept_out[group] = reason

    def start(self, nest: LoopNest, loads: list) -> None:
        group = self.new_group()
        group.factors = factors_of(nest.domain, nest.reduce_axes)
        if nest.reduce_op is None and not nest.alone and not nest.product:
            self.small[_sizes(nest)] = group
        self.add(group, nest, loads, "full", group.factors, "")
        self.calls += nest.product

    def join(self, group: Group, nest: LoopNest, loads: list) -> None:
        forced = self.limits.forced
        apart = forced.apart(group.names, nest.origins) if forced else ""
        if apart:
            raise Refusal(f"kept apart by force_split={apart}")
        wanted = bool(forced) and bool(forced.together(group.names, nest.origins))
        self.check_kernel(group, nest, loads, wanted)
        last: Refusal | None = None
        for level, factors in self.spaces(group, nest):
            try:
                self.check_reads(group, nest, loads, level, factors)
                if factors is not group.factors:
                    self.check_elements(group, factors)
                if not wanted:
                    self.check_sharing(group, nest, loads, level, factors)
                    self.check_cost(group, nest, level, factors)
            except Refusal as e:
                last = last or e
                continue
            because = self.why(group, loads)
            if factors is not group.factors:
                group.refactor(factors)
            self.add(group, nest, loads, level, group.factors, because)
            return
        if last is None:
            own = factors_of(nest.domain, nest.reduce_axes)
            last = Refusal(f"their loops run over different sizes: {_space(group.factors)} and {_space(own)}")
        raise last

    def check_kernel(self, group: Group, nest: LoopNest, loads: list, wanted: bool) -> None:
        """What a kernel may hold, whatever the iteration space in which the nest would join it."""
        if len(group.nests) >= self.limits.nests and not wanted:
            raise Refusal(f"the kernel has {plural(len(group.nests), 'operator')} already (max_fusion_size)")
        reads = {buffer for buffer, _ in loads}
        if (
            len(group.reads) + len(reads) > self.limits.buffers
            and len((group.reads | reads) - group.writes.keys()) > self.limits.buffers
        ):
            raise Refusal(f"the kernel would read more than {self.limits.buffers} buffers")
        if nest.buffer in self.needed and group.kept >= self.limits.buffers:
            raise Refusal(f"the kernel would write more than {self.limits.buffers} buffers")
        if _passes(group, nest, loads) > self.limits.passes:
            raise Refusal(f"the kernel would pass over its rows more than {self.limits.passes} times")
        if not self.limits.epilogue and (
            group.product or any(self.made_in[b].extern is not None for b in group.reads | reads if b in self.made_in)
        ):
            raise Refusal("epilogue_fusion is off")
        if group.product and (
            nest.reduce_op is not None or not reads & group.writes.keys() and group not in self.products_beside(nest)
        ):
            raise Refusal(f"{_name(nest)} needs whole rows of the product, of which its kernel has parts at hand")
        if nest.on_gpu and not wanted and self.costly_again(group, nest, loads):
            raise Refusal(
                "what its elements are made of is too costly to compute in a second pass over rows that no processor"
                " holds"
            )

    def costly_again(self, group: Group, nest: LoopNest, reads: list) -> bool:
        """Whether a nest would have its group compute elements again that take many loads each (gradients of pools)."""
        if (
            not any(group.passes.get(buffer) for buffer, _ in reads)
            or numel_hint([factor.size for factor in group.factors if factor.reduced], self.hints) <= HELD
        ):
            return False
        each = numel_hint([axis.size for axis in nest.domain], self.hints) > numel_hint(
            [factor.size for factor in group.factors if not factor.reduced], self.hints
        )
        return each and any(len(loads([other.value])) >= COSTLY_LOADS for other in group.nests)

    def spaces(self, group: Group, nest: LoopNest) -> Iterator[tuple[str, list[Factor]]]:
        """(level, refined factors) under which the nest may run in the group."""
        own = factors_of(nest.domain, nest.reduce_axes)
        if nest.reduce_op is not None:
            if not group.has_reduction:
                refined = refine(group.factors, own, match_flags=False)
            else:
                refined = refine(group.factors, own, match_flags=True)
                if refined is None and _same_total(group.factors, own):
                    raise Refusal("the reductions are over different axes")
            if refined is not None:
                yield "full", group.factors if refined == group.factors else refined
            return
        if not group.has_reduction:
            refined = refine(own, group.factors, match_flags=False)
            if refined is not None:
                yield "full", group.factors if refined == group.factors else refined
            return
        refined = refine(own, group.factors, match_flags=False) if not group.product else None
        if refined is not None:
            yield "full", group.factors if refined == group.factors else refined
        outer = [factor for factor in group.factors if not factor.reduced]
        refined = refine(own, outer, match_flags=False)
        if refined is not None and not (group.product and _cuts_tiles(group, refined, outer)):
            yield "outer", group.factors if refined == outer else _with_outer(group.factors, refined)

    def check_reads(self, group: Group, nest: LoopNest, loads: list, level: str, factors: list[Factor]) -> None:
        own_reads = [(buffer, expr) for buffer, expr in loads if buffer in group.writes]
        other = self.made_in.get(nest.buffer) is group and nest.buffer in group.writes
        if other and any(factor.reduced for factor in factors):
            raise Refusal("pieces of one buffer")
        if not own_reads:
            return
        axes = nest.domain if level == "full" else nest.axes
        mapping = group.map_of(axes, level, factors)
        if mapping is None:
            raise Refusal("their loops run over different sizes")
        ranges = group.ranges(factors)
        written = group.writes
        if factors is not group.factors:
            old = {}
            for n, lv in zip(group.nests, group.levels):
                mm = group.map_of(n.domain if lv == "full" else n.axes, lv, factors)
                if mm is None:
                    raise Refusal("their loops run over different sizes")
                old[n.buffer] = tidy(n.index.subs(mm), ranges) if group.writes[n.buffer] is not None else None
            written = old
        for b, e in own_reads:
            at = written[b]
            if at is None or (
                tidy(e.subs(mapping), ranges) is not at
                and not (level == "outer" and self.same_row(e.subs(mapping), at, factors, ranges))
            ):
                raise Refusal(f"{_name(nest)} reads {b.name} at another index than the one it is made at")

    def check_sharing(self, group: Group, nest: LoopNest, loads: list, level: str, factors: list[Factor]) -> None:
        """Nests that only read the same memory belong together where they read it at the same index, or run over the
        very same space; the same number of elements in another order shares nothing in the cache."""
        if (
            group.product
            or any(b in group.writes for b, _ in loads)
            or [f.size for f in factors_of(nest.domain)] == [factor.size for factor in group.factors]
        ):
            return
        ranges = group.ranges(factors)
        mapping = group.map_of(nest.domain if level == "full" else nest.axes, level, factors)
        for buffer, expr in loads:
            for axes, lv, other in group.read_at.get(buffer, ()):
                mm = group.map_of(axes, lv, factors)
                if (
                    mapping is not None
                    and mm is not None
                    and tidy(other.subs(mm), ranges) is tidy(expr.subs(mapping), ranges)
                ):
                    return
        raise Refusal("reads the same memory in another order")

    def same_row(self, expr: Expr, at: Expr, factors: list[Factor], ranges: dict) -> bool:
        """Whether one element of the same row is read, once for the row: it is computed again there (log-softmax, then
        the target's element)."""
        p = element(at, expr, factors, ranges)
        return p is not None and all(
            factor.reduced or p[f"g{k}"] is factor_symbol(k) for k, factor in enumerate(factors)
        )

    def check_elements(self, group: Group, factors: list[Factor]) -> None:
        """Elements of rows that the group's nests compute again have to be found in a refined space as well."""
        ranges = group.ranges(factors)
        made = {nest.buffer: (nest, lv) for nest, lv in zip(group.nests, group.levels)} if group.elements else {}
        for axes, level, buffer, expr in group.elements:
            maker, lv = made[buffer]
            mapping, at = (
                group.map_of(axes, level, factors),
                group.map_of(maker.domain if lv == "full" else maker.axes, lv, factors),
            )
            if (
                mapping is None
                or at is None
                or not self.same_row(expr.subs(mapping), tidy(maker.index.subs(at), ranges), factors, ranges)
            ):
                raise Refusal("finding the place of an element in a row would take divisions")

    def check_cost(self, group: Group, nest: LoopNest, level: str, factors: list[Factor]) -> None:
        if nest.on_gpu or not any(factor.reduced for factor in factors) or all(factor.reduced for factor in factors):
            return  # (generated code splits a kernel without outer axes among threads, a GPU's any of few rows)
        outer = numel_hint([factor.size for factor in factors if not factor.reduced], self.hints)
        inner = numel_hint([factor.size for factor in factors if factor.reduced], self.hints)
        if outer >= SMALL_OUTER or outer * inner < BIG_WORK:
            return
        others = (
            nest.reduce_op is None
            and level == "full"
            or any(other.reduce_op is None and lv == "full" for other, lv in zip(group.nests, group.levels))
        )
        if others:
            raise Refusal(
                f"the reduction leaves {outer} rows: too few to share among threads with what is computed for each"
                " element"
            )

    def why(self, group: Group, loads: list) -> str:
        made = [buffer for buffer, _ in loads if buffer in group.writes]
        if made:
            return "reads what the kernel makes, at the same index"
        if any(buffer in group.reads for buffer, _ in loads):
            return "reads the same memory"
        return "runs over the same space"

    def add(self, group: Group, nest: LoopNest, loads: list, level: str, factors: list[Factor], because: str) -> None:
        mapping = group.map_of(nest.domain if level == "full" else nest.axes, level, factors)
        group.nests.append(nest)
        group.levels.append(level)
        if because:
            group.because.append(because)
        group.passes[nest.buffer] = _passes(group, nest, loads)
        group.kept += nest.buffer in self.needed
        # an index that several nests write (pieces of a cat) is never the one that a reader wants
        group.writes[nest.buffer] = (
            tidy(nest.index.subs(mapping), group.ranges(factors)) if nest.buffer not in self.made_in else None
        )
        for buffer, expr in loads:
            at = group.writes.get(buffer) if level == "outer" else None
            if at is not None and tidy(expr.subs(mapping), group.ranges(factors)) is not at:
                group.elements.append((nest.axes, level, buffer, expr))
            known = group.read_at.setdefault(buffer, [])
            if len(known) < 3:
                known.append((nest.domain if level == "full" else nest.axes, level, expr))
            if buffer not in group.writes and buffer not in group.reads:
                group.reads.add(buffer)
                rs = self.readers.setdefault(buffer, [])
                rs.append(group)
                if len(rs) > 4:
                    del rs[0]
        self.made_in[nest.buffer] = group


def _loads(nest: LoopNest) -> list[tuple[Buffer, Expr]]:
    return [(value.attr[0], value.attr[1]) for value in loads([nest.value])]


def _cuts_tiles(group: Group, factors: list[Factor], outer: list[Factor]) -> bool:
    """Whether other axes than the product's own would part its tiles: its columns stay one axis, and where it is a
    GPU's sum over windows (of several axes), so does each along which they slide."""
    slides = group.nests[0].on_gpu and len(group.nests[0].reduce_axes) > 1
    return factors[-1] != outer[-1] or slides and factors != outer


def _sizes(nest: LoopNest) -> tuple:
    return tuple(axis.size for axis in nest.domain)


def in_order_of(nest: LoopNest, loads: list, group: Group) -> LoopNest | None:
    """The nest with its axes in the group's order, as far as some memory that both touch tells which axis is which;
    None where that changes nothing, or would move the innermost axis. A GPU's rows are reduced in any order of the
    rows."""
    reduced = {one.symbol.name for one in nest.reduce_axes}
    if reduced and not (nest.on_gpu and nest.reduce_op is not None and not nest.alone and not nest.product):
        return None
    for buffer, expr in loads:
        at = group.writes.get(buffer)
        if at is None and buffer in group.read_at:
            axes, level, other = group.read_at[buffer][0]
            at = other.subs(group.map_of(axes, level, group.factors) or {})
        if at is None:
            continue
        place = {}
        for n, axis in enumerate(nest.domain):
            c = expr.coeff(axis.symbol.name)
            if c is not None and c is not ZERO:
                place[c] = n
        order = [place.get(at.coeff(f"g{k}")) for k in range(len(group.factors))]
        inner = order[-1] if order else None
        if nest.on_gpu:  # (one that runs once for each row)
            order = [dim for dim, factor in zip(order, group.factors) if dim is not None or not factor.reduced]
        if set(order) != set(range(len(nest.domain))) or len(order) != len(nest.domain):
            continue
        if order == list(range(len(order))) or inner is not None and inner != len(order) - 1:
            continue
        domain = tuple(nest.domain[dim] for dim in order)
        axes = tuple(one for one in domain if one.symbol.name not in reduced)
        if tuple(one for one in domain if one.symbol.name in reduced) == nest.reduce_axes:
            return replace(nest, axes=axes, domain=domain)
    return None


def element(at: Expr, expr: Expr, factors: Sequence[Factor], ranges: dict) -> dict[str, Expr] | None:
    """The point of the space at which a buffer stored at `at` has its flat position e; None where that takes
    divisions.
    """
    axes = [Axis(factor_symbol(k), factor.size) for k, factor in enumerate(factors)]
    strides = [at.coeff(axis.symbol.name) for axis in axes]
    if any(stride is None or stride is ZERO for stride in strides) or not expr.is_affine:
        return None
    known = [stride for stride in strides if stride.is_const]
    if len(known) == len(strides):
        axes.sort(key=lambda a: -at.coeff(a.symbol.name).value)
    p = positions(axes, at, expr, ranges)
    return p if all(x.is_affine for x in p.values()) else None


def _passes(group: Group, nest: LoopNest, loads: list) -> int:
    return max((group.passes.get(buffer, 0) for buffer, _ in loads), default=0) + (nest.reduce_op is not None)


def _with_outer(factors: Sequence[Factor], outer: Sequence[Factor]) -> list[Factor]:
    """The space with its kept factors refined to `outer`; only where the reduced ones are innermost together or nothing
    changes.
    """
    out: list[Factor] = []
    rest = list(outer)
    for factor in factors:
        if factor.reduced:
            out.append(factor)
            continue
        left = factor.size
        while True:
            o = rest.pop(0)
            out.append(Factor(o.size))
            if o.size is left:
                break
            left = left // o.size
    return out


def _same_total(a: Sequence[Factor], b: Sequence[Factor]) -> bool:
    return mul_all(f.size for f in a) is mul_all(f.size for f in b)


def _same_scan(group: Group, nest: LoopNest) -> bool:
    """Whether the group begins with a scan of the same values over the same space."""
    first = group.nests[0] if group.nests else None
    return first is not None and bool(first.scan) and first.domain == nest.domain and first.value is nest.value


def _call_name(step: Extern) -> str:
    return step.origin or step.shown_name()


def _call_reason(step: Extern, name: str) -> str:
    """Why what is beside a call is in no kernel with it. A Template is a kernel, of a pattern that is printed whole."""
    kind = "a kernel of a pattern of its own" if isinstance(step, Template) else "a library call"
    return f"{name} is {kind} ({step.reason})"


def _name(nest: LoopNest) -> str:
    return nest.origins[-1] if nest.origins else nest.buffer.name


def _space(factors: Sequence[Factor]) -> str:
    """`64 × 128`, `64, each reduced over 1000`."""
    kept, reduced = (
        " × ".join(str(factor.size) for factor in factors if factor.reduced is way) for way in (False, True)
    )
    return f"{kept or 'one value'}, each reduced over {reduced}" if reduced else kept or "one value"
