"""What a stage computes of reductions alone, once for each of their elements instead of at every step of its loops.

Where vectors run along an outer axis, results of reductions are vectors too. What follows from them (the logarithm of a
sum, the root of a variance) would be computed in the innermost loop. It gets a stage of its own, without axes, that
leaves it in a local buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

from ...lowering.ir import Buffer, Kernel, Stage, Store, Value, load, walk
from ...lowering.rewrite import Rewriter
from ...symbolic.expr import ZERO
from .dtypes import ctype

__all__ = ["hoisted"]

WORTH = 4  # cost of a value, in units of an addition, from which on a store and a load of it are less


def hoisted(kernel: Kernel, cost: Callable[[Value], float]) -> Kernel:
    """The same kernel with such values in stages of their own. `cost`: of one operation on a full vector."""
    stages: list[Stage] = []
    made: list[Buffer] = []
    for st in kernel.stages:
        kept = _kept(st, cost) if st.axes and not any(acc.running for acc in st.accs) else []
        if kept:
            places = {}
            for value in kept:
                made.append(Buffer(f"kept{len(made)}", value.dtype, (), (), scope="local"))
                places[value.id] = load(made[-1], ZERO)
            stages.append(Stage((), [], [Store(places[v.id].attr[0], ZERO, v) for v in kept]))
            put = Rewriter(known=places)
            st = Stage(
                st.axes,
                [replace(acc, value=put(acc.value)) for acc in st.accs],
                [replace(store, value=put(store.value)) for store in st.stores],
            )
        stages.append(st)
    # (the same object where there are none)
    return replace(kernel, stages=stages, locals=[*kernel.locals, *made]) if made else kernel


def _kept(stage: Stage, cost: Callable[[Value], float]) -> list[Value]:
    """The largest such values that are worth it."""
    values = walk(stage.roots())
    fixed: dict[int, float] = {}  # values made of reductions and numbers alone -> what they cost
    reduced: set[int] = set()
    for value in values:
        if value.op in ("acc", "const", "param") or (
            value.args
            and value.op not in ("load", "index", "check_index")
            and all(arg.id in fixed for arg in value.args)
        ):
            fixed[value.id] = cost(value) + sum(fixed[arg.id] for arg in value.args)
            if value.op == "acc" or any(arg.id in reduced for arg in value.args):
                reduced.add(value.id)
    users = {arg.id for item in values if item.id not in fixed for arg in item.args} | {v.id for v in stage.roots()}
    return [
        item
        for item in values
        if item.id in users
        and item.id in reduced
        and fixed[item.id] >= WORTH
        and ctype(item.dtype).kind == "float"
        and item.dtype.itemsize >= 4
    ]
