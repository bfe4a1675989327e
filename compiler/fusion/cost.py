"""What a value costs to compute, in units of one simple vector instruction."""
from __future__ import annotations

from ..lowering.ir import Value

__all__ = ["own_cost", "Costs"]

_COST = {**dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "erf"), 12),
         **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc",
                          "lgamma", "pow", "atan2", "nextafter", "hypot"), 25),
         **dict.fromkeys(("div", "div_trunc", "div_floor", "remainder", "fmod", "sqrt", "rsqrt", "reciprocal"), 3)}
_CAP = 1 << 20


def own_cost(v: Value) -> int:
    if v.op in ("const", "param", "acc"):
        return 0
    if v.op == "load":
        return 4 if v.args else 1                        # reading where a value says: a gather
    return _COST.get(v.op, 1)


class Costs:
    """cost(v): of v with everything below it, counted as a tree (capped). Remembered; linear in the number of nodes."""

    def __init__(self) -> None:
        self.memo: dict[int, int] = {}
        self._keep: list[Value] = []

    def __call__(self, root: Value) -> int:
        memo = self.memo
        r = memo.get(root.id)
        if r is not None:
            return r
        stack = [root]
        while stack:
            v = stack[-1]
            if v.id in memo:
                stack.pop()
                continue
            todo = [a for a in reversed(v.args) if a.id not in memo]
            if todo:
                stack.extend(todo)
                continue
            stack.pop()
            memo[v.id] = min(own_cost(v) + sum(memo[a.id] for a in v.args), _CAP)
            self._keep.append(v)
        return memo[root.id]
