"""Products of groups (torch._grouped_mm) in the loop IR, without a form of their own: which group a row, or a place of
the sum, belongs to is a value, found by bisection among the ends of the groups. Every printer and interpreter computes
it as it stands; `in_groups` knows it again, for printers that go through the groups one by one instead
(codegen/triton/grouped.py).

    rows      sum(a[m, k] * masked(g(m) < groups, b[g(m), k, n], 0) for k)                       what lies behind the
                                                                                                 last group is 0
    columns   sum(masked(g(n) < groups, a[g(n), m, k], 0) * b[k, n] for k)
    sums      sum(where(g(k) == g, a[m, k], 0) * where(g(k) == g, b[k, n], 0) for k)            for each group g
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..symbolic.expr import Expr, as_expr, symbol
from .ir import Buffer, Value, cast, const, indirect_symbol, is_const, load, prim
from .patterns import Either, Same, match, op
from .rewrite import Rewriter

__all__ = ["Ends", "GROUP", "group_at", "of_its_group", "of_group", "in_groups"]

I64 = torch.int64
GROUP = symbol("group")  # the group that a printer is at
_LANE = symbol("lane")


@dataclass(frozen=True)
class Ends:
    """Where `count` groups that follow each other end: ascending numbers, group k's at `index`, over the symbol
    `lane`.
    """

    buffer: Buffer
    index: Expr
    count: int

    def at(self, expr: Expr) -> Value:
        return cast(load(self.buffer, self.index.subs({_LANE.name: expr})), I64)


def group_at(ends: Ends, place: Value) -> Value:
    """How many groups end at `place`, int64, or before it: the group that it belongs to; ends.count behind the last."""
    group = const(0, I64)
    for step in reversed(range(ends.count.bit_length())):
        after = (
            prim("minimum", prim("add", group, const(1 << step, I64)), const(ends.count, I64))
            if not group.is_const
            else const(1 << step, I64)
        )
        group = prim("where", prim("le", ends.at(indirect_symbol(after) - 1), place), after, group)
    return group


def of_its_group(group: Value, ends: Ends, value: Value) -> Value:
    """x, which is read at a place's group, where the place has one, else 0."""
    return prim("masked", prim("lt", group, const(ends.count, I64)), value, const(0, value.dtype))


def of_group(group: Value, which: Value, value: Value) -> Value:
    """x where its place belongs to that group, else 0."""
    return prim("where", prim("eq", group, which), value, const(0, value.dtype))


# what `of_its_group` and `of_group` make, and a step of `group_at`
_READ_IN_GROUP = Either(
    (
        op("masked", op("lt", Same("group"), Same("which")), Same("x"), 0),
        op("where", op("eq", Same("group"), Same("which")), Same("x"), 0),
    )
)
_STEP = op(
    "where", op("le", op("cast", Same("end", op("load"))), Same("place", op("index"))), Same("after"), Same("before")
)


def in_groups(value: Value) -> tuple[Value, Ends, Expr, Expr | None] | None:
    """(x, the ends, the place, which group is asked for) of what `of_its_group` (None: a place's own) or `of_group`
    made; x is read at GROUP where it was read at the place's group. None of any other value."""
    read = match(_READ_IN_GROUP, value)
    found = _bisected(read["group"]) if read is not None else None
    if read is None or found is None or read["which"].op not in ("const", "index"):
        return None
    (ends, place), group, which, x = found, read["group"], read["which"], read["x"]
    if value.op == "where":
        return x, ends, place, as_expr(which.attr)
    at = f"ind{group.id}"
    return (
        (Rewriter(on_index=lambda i: i.subs({at: GROUP}))(x), ends, place, None)
        if is_const(which, ends.count)
        else None
    )


def _bisected(group: Value) -> tuple[Ends, Expr] | None:
    """The ends and the place that `group_at` made a value of, step by step (values of earlier graphs are not those that
    it would make now).
    """
    step, count = 1, 1
    known: set[tuple] = set()  # what all steps have in common
    while (found := match(_STEP, group)) is not None:
        place, after, before = found["place"], found["after"], found["before"]
        if place.args:
            return None
        buffer, e = found["end"].attr
        if before.is_const:
            if before.attr != 0 or not is_const(after, step) or step != 1 << count.bit_length() - 1:
                return None
            index = next(iter(known))[1] if known else e
            ends = Ends(buffer, index, count)
            return (
                (ends, place.attr)
                if known <= {(buffer, index, count, place)} and index.subs({_LANE.name: as_expr(step - 1)}) is e
                else None
            )
        later = match(op("minimum", op("add", Same("before"), step), Same("count", op("const"))), after, found)
        if later is None:
            return None
        count = later["count"].attr
        known.add((buffer, e.subs({f"ind{after.id}": _LANE + 1}), count, place))
        group, step = before, 2 * step
    return None
