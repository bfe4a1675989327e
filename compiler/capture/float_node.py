"""FloatNode: a Python float of the program that may differ from call to call.

It stands behind a torch.SymFloat. Arithmetic with constants stays symbolic (`scale * 2`, `1 - beta`), as a Source that computes it
again at each call; comparisons with constants become facts that the guard checks; tensor arithmetic takes it as a scalar input of
the graph (`capture/scalars.py`). Any other use needs the number itself: it is pinned, and guarded by its value.
"""
from __future__ import annotations

import math
import operator
from typing import Any, Callable

from ..guards import source as S
from ..guards.source import Source
from ..symbolic.node import SymNode
from .signals import Break

__all__ = ["FloatNode", "Fact"]

Fact = tuple[str, float, bool]       # (comparison, constant, outcome)
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne}


class FloatNode(SymNode):
    """`source` reaches the float, or computes it from one that is reached; `expr` is its value in this first call."""

    def __init__(self, value: float, source: Source, env: Any):
        super().__init__(value, env, float)
        self.source = source

    @property
    def constant(self) -> None:
        return None

    def maybe_as_float(self) -> None:
        return None

    def str(self) -> str:
        return self.source.name()

    def _graph_repr(self) -> str:
        return self.source.name()

    __str__ = __repr__ = _graph_repr

    def _number(self) -> float:
        """The number itself is needed: from here on the frame relies on it."""
        root = self.source
        while root.kind == "calc":
            root = root.base  # type: ignore[assignment]
        if root.kind == "drawn":
            raise Break("random_python")                 # no two calls draw the same
        self.env.pin_float(root)
        return self.expr

    # ---- arithmetic with constants
    def _calc(self, op: str, f: Callable[[float, float], float], o: SymNode, reflected: bool = False) -> SymNode:
        c = _constant(o)
        if c is None or not math.isfinite(c) or op == "truediv" and (self.expr if reflected else c) == 0:
            a, b = (o, self) if reflected else (self, o)
            return self.wrap_float(f(float(a._number()), float(b._number())))
        if op == "truediv" and reflected:                # the entry computes it ahead of all else, where it must not raise
            if self.source.kind == "calc":
                return self.wrap_float(f(c, self._number()))
            if self.source.kind == "drawn":
                self._number()
            self.env.float_fact(self.source, ("ne", 0.0, True))
        value = f(c, self.expr) if reflected else f(self.expr, c)
        return FloatNode(value, S.calc(self.source, op, c, reflected), self.env)

    def add(self, o: SymNode) -> SymNode:
        return self._calc("add", operator.add, o)

    def sub(self, o: SymNode) -> SymNode:
        return self._calc("sub", operator.sub, o)

    def mul(self, o: SymNode) -> SymNode:
        return self._calc("mul", operator.mul, o)

    def truediv(self, o: SymNode) -> SymNode:
        return self._calc("truediv", operator.truediv, o)

    float_truediv = int_truediv = truediv

    def reflected(self, op: str, f: Callable, o: SymNode) -> SymNode:
        """`o op self`."""
        return self._calc(op, f, o, reflected=True)

    def neg(self) -> SymNode:
        return FloatNode(-self.expr, S.calc(self.source, "mul", -1.0, False), self.env)

    def sym_float(self) -> SymNode:
        return self

    def _pinned(self, name: str, *args: Any) -> Any:
        return getattr(self.wrap_float(self._number()), name)(*args)

    def abs(self) -> SymNode:
        return self._pinned("abs")

    def floor(self) -> SymNode:
        return self._pinned("floor")

    def ceil(self) -> SymNode:
        return self._pinned("ceil")

    def trunc(self) -> SymNode:
        return self._pinned("trunc")

    sym_int = trunc

    def round(self, ndigits: int | None = None) -> SymNode:
        return self._pinned("round", ndigits)

    def is_integer(self) -> SymNode:
        return self._pinned("is_integer")

    # ---- comparisons
    def _fact(self, name: str, o: SymNode) -> SymNode:
        c, compare = _constant(o), _COMPARISONS[name]
        if c is None or self.source.kind in ("calc", "drawn"):
            return self.wrap_bool(compare(self._number(), o._number()))
        outcome = compare(self.expr, c)
        self.env.float_fact(self.source, (name, c, outcome))
        return self.wrap_bool(outcome)

    def lt(self, o: SymNode) -> SymNode:
        return self._fact("lt", o)

    def le(self, o: SymNode) -> SymNode:
        return self._fact("le", o)

    def gt(self, o: SymNode) -> SymNode:
        return self._fact("gt", o)

    def ge(self, o: SymNode) -> SymNode:
        return self._fact("ge", o)

    def eq(self, o: SymNode) -> SymNode:
        return self._fact("eq", o)

    def ne(self, o: SymNode) -> SymNode:
        return self._fact("ne", o)

    def bool_(self) -> bool:
        """`if scale:`"""
        self._fact("ne", self.wrap_float(0.0))
        return bool(self.expr)

    def guard_bool(self, file: str, line: int) -> bool:
        return self.bool_()


def _constant(o: SymNode) -> float | None:
    """The number behind a node that is no symbol. Ints that a float cannot hold exactly are none."""
    if isinstance(o, FloatNode):
        return None
    c = o.constant
    return float(c) if c is not None and float(c) == c else None
