"""What a value costs to compute, in units of one simple vector instruction."""

from __future__ import annotations

from ..lowering.ir import Value, walk
from ..lowering.primitives import FUNCTION, PRIMS

__all__ = ["own_cost", "is_function", "Costs"]

_CAP = 1 << 20


def own_cost(value: Value) -> int:
    if value.op in ("const", "param", "acc"):
        return 0
    if value.is_load:
        return 1 if not value.args else 2 if reads_rows(value) else 4
    return PRIMS[value.op].cost if value.op in PRIMS else 1


def is_function(name: str) -> bool:
    """Whether an operator of this name takes as long as a dozen others."""
    return name in PRIMS and PRIMS[name].cost >= FUNCTION


def reads_rows(value: Value) -> bool:
    """Whether a load at a computed position reads runs of memory from there on (rows of a table), not single
    elements.
    """
    return any(
        coeff == 1 and len(atoms) == 1 and not atoms[0].name.startswith("ind")
        for coeff, atoms in value.attr[1].terms()
        if len(atoms) == 1 and atoms[0].is_symbol
    )


class Costs:
    """cost(v): of v with everything below it, counted as a tree (capped). Remembered; linear in the number of nodes."""

    def __init__(self) -> None:
        self.memo: dict[int, int] = {}
        self._keep: list[Value] = []

    def __call__(self, root: Value) -> int:
        memo = self.memo
        for value in () if root.id in memo else walk([root], memo):
            below = 0 if value.is_load and value.args and reads_rows(value) else sum(memo[arg.id] for arg in value.args)
            memo[value.id] = min(own_cost(value) + below, _CAP)  # (where a row lies is worked out once for the row)
            self._keep.append(value)
        return memo[root.id]
