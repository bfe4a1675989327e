"""A student's choice of groups as the fusion stage.

ops_of(program, *args)   the loops that fusion gets for a call of the program, as plain facts
fusion_stage(group)      group(ops) says which operators share a kernel: a list of lists of names

The compiler's own fusion makes the kernels, told by force_fuse and force_split which operators belong together. What
can't share a kernel raises ValueError with the compiler's reason.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Callable, Sequence

import tcompile

from ..compiler import stages
from ..compiler.fusion.domain import size_hint
from ..compiler.fusion.schedule import Launch
from ..compiler.lowering.ir import Buffer, LoopNest, walk
from ..compiler.stages import Decline
from .plugs import named_after
from .testing import unsolved_said

__all__ = ["Op", "fusion_stage", "ops_of"]


@dataclass(frozen=True)
class Op:
    """One operator as fusion sees it.

    kind     "input", "pointwise" or "reduction"
    reads    names of the operators and inputs that it reads
    over     sizes of its loops, of those that a reduction sums over too
    reduced  positions in `over` of the loops that a reduction sums over
    bytes    of its result
    result   whether the program returns it
    crossed  what it reads at other places than those where the same loops make it (transposed, shifted)
    """

    name: str
    kind: str
    reads: tuple[str, ...] = ()
    over: tuple[int, ...] = ()
    reduced: tuple[int, ...] = ()
    bytes: int = 0
    result: bool = False
    crossed: frozenset = frozenset()


def _bytes(b: Buffer, hints: dict[str, int]) -> int:
    count = 1
    for size in b.shape:
        count *= size_hint(size, hints)
    return count * b.dtype.itemsize


def _facts(lowered: Any) -> list[Op]:
    hints = lowered.hints
    results = {id(o.value) for o in lowered.outputs if o.kind == "buffer"}
    made: dict[Buffer, LoopNest] = {}
    ops = [Op(b.name, "input", bytes=_bytes(b, hints)) for b in lowered.inputs if isinstance(b, Buffer)]
    if lowered.mutations or lowered.constants:
        raise Decline("a program that writes its arguments, or holds constants")
    for nest in lowered.steps:
        if not isinstance(nest, LoopNest) or nest.alone or nest.product or len(nest.origins) != 1:
            raise Decline("an operator that is more than one loop over its elements")
        if nest.buffer in made:
            raise Decline("an operator that is written in pieces")
        values: list[Any] = list(walk([nest.value]))
        loads = [v.attr for v in values if v.op == "load"]
        names = [made[b].origins[0] if b in made else b.name for b, *_ in loads]
        crossed = frozenset(n for n, (b, i, *_) in zip(names, loads) if b in made and _elsewhere(made[b], nest, i))
        sizes = tuple(size_hint(a.size, hints) for a in nest.domain)
        reduced = tuple(k for k, a in enumerate(nest.domain) if a in nest.reduce_axes)
        kind = "reduction" if nest.reduce_op else "pointwise"
        made[nest.buffer] = nest
        ops.append(
            Op(
                nest.origins[0],
                kind,
                tuple(dict.fromkeys(names)),
                sizes,
                reduced,
                _bytes(nest.buffer, hints),
                id(nest.buffer) in results,
                crossed,
            )
        )
    return ops


def _elsewhere(maker: LoopNest, reader: LoopNest, index: Any) -> bool:
    """Whether equal loops of the reader ask for another element than the one that they have just made."""
    if [a.size for a in maker.axes] != [a.size for a in reader.domain]:
        return False  # the loops differ: that is what tells
    same = {a.symbol.name: b.symbol for a, b in zip(maker.axes, reader.domain)}
    return str(maker.index.subs(same)) != str(index)


def ops_of(program: Callable, *args: Any) -> list[Op]:
    """The operators of one call, inputs first, in the order of execution."""
    found: list[list[Op]] = []

    def look(lowered: Any, *, opts: Any) -> Any:
        found.append(_facts(lowered))
        return stages.original("fusion")(lowered, opts=opts)

    with tcompile.stages.replace("fusion", look), tcompile.config.patch(suppress_errors=False):
        tcompile.explain(program)(*args)
    return found[0] if found else []


def fusion_stage(group: Callable[[list[Op]], list[list[str]]]) -> Callable:
    """`group(ops)` as the fusion stage. It names each operator (inputs left out) once. Raise Decline for what is too
    hard."""

    def stage(lowered: Any, *, opts: Any) -> Any:
        ops = _facts(lowered)
        with unsolved_said():
            mine = group(list(ops))
        groups = _checked(mine, [op.name for op in ops if op.kind != "input"], group.__name__)
        home = {name: k for k, names in enumerate(groups) for name in names}
        pairs = list(itertools.combinations(home, 2))
        fuse = ",".join(f"{a}:{b}" for a, b in pairs if home[a] == home[b])
        split = ",".join(f"{a}:{b}" for a, b in pairs if home[a] != home[b])
        forced = {"force_fuse": fuse, "force_split": split}
        schedule = stages.original("fusion")(lowered, opts=replace(opts, given={**opts.given, **forced}))
        kernels = [set(s.kernel.origins) for s in schedule.steps if isinstance(s, Launch)]
        for a, b in pairs:
            if home[a] == home[b] and not any(a in k and b in k for k in kernels):
                why = [reason for x, y, reason in schedule.unfused if {x, y} == {a, b}]
                raise ValueError(f"{a!r} and {b!r} can't share a kernel: {(why or ['their loops have no order'])[0]}")
        return schedule

    return named_after(group, stage)


def _checked(groups: Any, names: Sequence[str], who: str) -> list[list[str]]:
    """The groups as lists, each operator in one of them."""
    if not isinstance(groups, (list, tuple)) or not all(isinstance(g, (list, tuple, set)) for g in groups):
        raise TypeError(f"{who} should give a list of lists of names, and gave {groups!r:.200}")
    flat = [name for g in groups for name in g]
    for name in names:
        if flat.count(name) != 1:
            raise ValueError(f"{who} has {name!r} in {flat.count(name)} groups; each operator belongs to one")
    extra = [name for name in flat if name not in names]
    if extra:
        raise ValueError(f"{who} names {extra[0]!r}, which is not an operator of the program: {', '.join(names)}")
    return [list(g) for g in groups if g]
