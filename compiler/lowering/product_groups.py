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
from .ir import Buffer, Value, cast, const, indirect_symbol, load, prim
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

    def at(self, k: Expr) -> Value:
        return cast(load(self.buffer, self.index.subs({_LANE.name: k})), I64)


def group_at(ends: Ends, place: Value) -> Value:
    """How many groups end at `place`, int64, or before it: the group that it belongs to; ends.count behind the last."""
    group = const(0, I64)
    for step in reversed(range(ends.count.bit_length())):
        after = (
            prim("minimum", prim("add", group, const(1 << step, I64)), const(ends.count, I64))
            if group.op != "const"
            else const(1 << step, I64)
        )
        group = prim("where", prim("le", ends.at(indirect_symbol(after) - 1), place), after, group)
    return group


def of_its_group(group: Value, ends: Ends, x: Value) -> Value:
    """x, which is read at a place's group, where the place has one, else 0."""
    return prim("masked", prim("lt", group, const(ends.count, I64)), x, const(0, x.dtype))


def of_group(group: Value, which: Value, x: Value) -> Value:
    """x where its place belongs to that group, else 0."""
    return prim("where", prim("eq", group, which), x, const(0, x.dtype))


def in_groups(v: Value) -> tuple[Value, Ends, Expr, Expr | None] | None:
    """(x, the ends, the place, which group is asked for) of what `of_its_group` (None: a place's own) or `of_group`
    made; x is read at GROUP where it was read at the place's group. None of any other value."""
    if (
        v.op not in ("masked", "where")
        or v.args[2].op != "const"
        or v.args[2].attr != 0
        or v.args[0].op != ("lt" if v.op == "masked" else "eq")
    ):
        return None
    (group, which), x = v.args[0].args, v.args[1]
    found = _bisected(group)
    if found is None or which.op not in ("const", "index"):
        return None
    ends, place = found
    if v.op == "where":
        return x, ends, place, as_expr(which.attr)
    at = f"ind{group.id}"
    return (
        (Rewriter(on_index=lambda i: i.subs({at: GROUP}))(x), ends, place, None)
        if which.op == "const" and which.attr == ends.count
        else None
    )


def _bisected(group: Value) -> tuple[Ends, Expr] | None:
    """The ends and the place that `group_at` made a value of, step by step (values of earlier graphs are not those that
    it would make now).
    """
    step, count = 1, 1
    known: set[tuple] = set()  # what all steps have in common
    while group.op == "where" and group.args[0].op == "le":
        (end, place), after, before = group.args[0].args, group.args[1], group.args[2]
        if end.op != "cast" or end.args[0].op != "load" or place.op != "index" or place.args:
            return None
        buffer, e = end.args[0].attr
        if before.op == "const":
            if before.attr != 0 or after.op != "const" or after.attr != step or step != 1 << count.bit_length() - 1:
                return None
            index = next(iter(known))[1] if known else e
            ends = Ends(buffer, index, count)
            return (
                (ends, place.attr)
                if known <= {(buffer, index, count, place)} and index.subs({_LANE.name: as_expr(step - 1)}) is e
                else None
            )
        if (
            after.op != "minimum"
            or after.args[0].op != "add"
            or after.args[0].args[0] is not before
            or [x.op for x in (after.args[0].args[1], after.args[1])] != ["const"] * 2
            or after.args[0].args[1].attr != step
        ):
            return None
        count = after.args[1].attr
        known.add((buffer, e.subs({f"ind{after.id}": _LANE + 1}), count, place))
        group, step = before, 2 * step
    return None
