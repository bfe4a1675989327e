"""FloatNode: a Python float of the program that may differ from call to call.

It stands behind a torch.SymFloat. Arithmetic with constants stays symbolic (`scale * 2`, `1 - beta`): a Source computes
it again at each call. Comparisons with constants become facts that the guard checks. Tensor arithmetic takes it as a
scalar input of the graph (`scalars.py`). Any other use needs the number itself: it is pinned, and guarded by its value.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Callable

import torch

from ...guards import source as S
from ...guards.source import Source
from ...symbolic import expr as E
from ...symbolic.node import SymNode
from ..machine.signals import Break

__all__ = ["FloatNode", "computed", "is_power_of_two", "ratio_compared", "refuse_compared"]

_EXACT = float(1 << 50)  # integers up to it are floats, and so are their neighbours
_MOST_POWER = 8.0  # no size to that power is infinite
_NEVER_NEGATIVE = (abs, math.exp, math.sqrt, math.hypot)
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


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

    def _in_words(self) -> str:
        return self.source.name()

    def _number(self) -> float:
        """The number itself is needed: from here on the frame relies on it."""
        root = self.source.root
        if root.kind == "ratio":
            for integer in root.key:
                self.env.specialize(integer)
            return self.expr
        if root.kind == "computed":
            for operand in root.key[1]:
                if isinstance(operand, Source):
                    FloatNode(0.0, operand, self.env)._number()
                elif isinstance(operand, E.Expr):
                    self.env.specialize(operand)
            return self.expr
        if root.kind == "drawn":
            raise Break("random_python")  # no two calls draw the same
        reached = self.source  # an attribute, say, under the arithmetic
        while reached.kind == "calc":
            reached = reached.base
        self.env.pin_float(reached)
        return self.expr

    # ---- arithmetic with constants
    def calculated(
        self, op: str, f: Callable[[float, float], float], other: SymNode, reflected: bool = False
    ) -> SymNode:
        """`self op o`, or `o op self` where reflected; `f` computes it."""
        c = _constant(other)
        if (
            c is None
            or not math.isfinite(c)
            or op == "pow"
            and (reflected or abs(c) > _MOST_POWER or not self._positive())
            or op == "truediv"
            and (c == 0 or reflected and not self._positive())
        ):
            return computed(f, other, self) if reflected else computed(f, self, other)
        value = f(c, self.expr) if reflected else f(self.expr, c)
        return FloatNode(value, S.calc(self.source, op, c, reflected), self.env)

    def add(self, other: SymNode) -> SymNode:
        return self.calculated("add", operator.add, other)

    def sub(self, other: SymNode) -> SymNode:
        return self.calculated("sub", operator.sub, other)

    def mul(self, other: SymNode) -> SymNode:
        return self.calculated("mul", operator.mul, other)

    def truediv(self, other: SymNode) -> SymNode:
        return self.calculated("truediv", operator.truediv, other)

    float_truediv = int_truediv = truediv

    def reflected(self, op: str, fn: Callable, other: SymNode) -> SymNode:
        """`o op self`."""
        return self.calculated(op, fn, other, reflected=True)

    def function(self, f: Callable[[float], float]) -> SymNode:
        """A function of module math, of a number that is positive in every call; of others it needs the number."""
        if not self._positive():
            return computed(f, self)
        return FloatNode(f(self.expr), S.calc(self.source, f.__name__, None, False), self.env)

    def _positive(self) -> bool:
        """Whether the number is a positive one, neither tiny nor huge, in every call that the guards let through."""
        steps = self.source.path()
        if steps[0].kind != "ratio" or not all(self.env.decide(E.ge(integer, 1)) for integer in steps[0].key):
            return False
        for step in steps[1:]:
            op, c, reflected = step.key
            if (
                c
                and op != "pow"
                and not (op in ("mul", "truediv") and 1e-9 < float(c) < 1e9 or op == "add" and 0 <= float(c) < 1e9)
                or op.startswith("log")
            ):
                return False
        return len(steps) < 8 and sum(step.key[0] == "pow" for step in steps[1:]) < 2

    def neg(self) -> SymNode:
        return FloatNode(-self.expr, S.calc(self.source, "mul", -1.0, False), self.env)

    def sym_float(self) -> SymNode:
        return self

    def _pinned(self, name: str, *args: Any) -> Any:
        return getattr(self.wrap_float(self._number()), name)(*args)

    def abs(self) -> SymNode:
        return computed(abs, self)

    def floor(self) -> SymNode:
        return self._pinned("floor")

    def ceil(self) -> SymNode:
        return self._pinned("ceil")

    def trunc(self) -> SymNode:
        return self._pinned("trunc")

    sym_int = trunc

    def round(self, ndigits: int | None = None) -> SymNode:
        return self._pinned("round") if ndigits is None else computed(round, self, self.wrap_int(ndigits))

    def is_integer(self) -> SymNode:
        return self._pinned("is_integer")

    # ---- comparisons
    def _fact(self, name: str, other: SymNode) -> SymNode:
        c, compare = _constant(other), _COMPARISONS[name]
        if self.source.kind == "ratio" and c is not None and math.isfinite(c):
            numerator, divisor = self.source.key
            predicate = ratio_compared(name, numerator, divisor, c)
            if predicate is not None:
                return SymNode(predicate, self.env, bool)
        if c is None or self.source.kind in ("ratio", "calc", "computed", "drawn"):
            return self.wrap_bool(compare(self._number(), other._number()))
        outcome = compare(self.expr, c)
        self.env.float_fact(self.source, (name, c, outcome))
        return self.wrap_bool(outcome)

    def lt(self, other: SymNode) -> SymNode:
        return self._fact("lt", other)

    def le(self, other: SymNode) -> SymNode:
        return self._fact("le", other)

    def gt(self, other: SymNode) -> SymNode:
        return self._fact("gt", other)

    def ge(self, other: SymNode) -> SymNode:
        return self._fact("ge", other)

    def eq(self, other: SymNode) -> SymNode:
        return self._fact("eq", other)

    def ne(self, other: SymNode) -> SymNode:
        return self._fact("ne", other)

    def bool_(self) -> bool:
        """`if scale:`"""
        return self._fact("ne", self.wrap_float(0.0)).bool_()

    def guard_bool(self, file: str, line: int) -> bool:
        return self.bool_()


def ratio_compared(name: str, a: E.Expr, b: E.Expr, c: float) -> E.Expr | None:
    """What a comparison of `a / b` with a constant says of the integers; None where their values are needed."""
    if is_power_of_two(b):  # nothing is rounded
        p, q = c.as_integer_ratio()
        predicate: E.Expr = getattr(E, name)(a * q, b * p)
        return predicate
    if not b.is_const or b.value <= 0 or abs(c) * b.value > _EXACT:
        return None
    # A quotient grows with its numerator, however it is rounded: `a / b >= c` from one numerator on.
    from_c, above_c = _first_numerator(operator.ge, b.value, c), _first_numerator(operator.gt, b.value, c)
    found: dict[str, Callable[[], E.Expr]] = {
        "ge": lambda: E.ge(a, from_c),
        "lt": lambda: E.lt(a, from_c),
        "gt": lambda: E.ge(a, above_c),
        "le": lambda: E.lt(a, above_c),
        "eq": lambda: E.and_(E.ge(a, from_c), E.lt(a, above_c)),
        "ne": lambda: E.or_(E.lt(a, from_c), E.ge(a, above_c)),
    }
    return found[name]()


def _first_numerator(compare: Callable[[float, float], bool], divisor: int, c: float) -> int:
    """The least integer whose quotient compares so with `c`: by rounding it is next to the product at most."""
    numerator = math.floor(c * divisor) - 2
    while not compare(numerator / divisor, c):
        numerator += 1
    return numerator


def computed(f: Callable[..., float], *operands: SymNode) -> Any:
    """`f(*operands)` of numbers among which are symbols, by a pure function of Python's. None where it gives no float,
    or might give none in another call."""
    value = f(*map(_plain, operands))  # what it raises, the program raises here, and in every call with such numbers
    if type(value) is not float or f is operator.pow and not _real_power(*operands):
        return None
    parts = tuple(
        operand.source
        if isinstance(operand, FloatNode)
        else operand.expr
        if operand.constant is None
        else operand.constant
        for operand in operands
    )
    return FloatNode(value, S.computed(f, parts), operands[0].env)


def _plain(other: SymNode) -> Any:
    return other.expr if isinstance(other, FloatNode) else other.hint if other.constant is None else other.constant


def _real_power(base: SymNode, exponent: SymNode) -> bool:
    """Whether base ** exponent is a float in every call, or raises."""
    if not isinstance(base, FloatNode):
        return base.env.decide(E.gt(base.expr, 0)) if base.constant is None else base.constant > 0
    c = _constant(exponent)
    if c is not None and c.is_integer() or base._positive():
        return True
    if base.source.kind == "computed" and base.source.key[0] in _NEVER_NEGATIVE:
        return True
    if base.expr <= 0 or base.source.base is not None or base.source.kind in ("computed", "drawn", "ratio"):
        return False
    base.env.float_fact(base.source, ("gt", 0.0, True))
    return True


def refuse_compared(*numbers: Any) -> None:
    """Break where a comparison would fix numbers that are others in each turn of a cell's loop: `if loss < best`. An
    entry for each of them would serve no other turn.
    """
    nodes = [n.node for n in numbers if type(n) is torch.SymFloat and isinstance(n.node, FloatNode)]
    if len(nodes) < 2 and not any(node.source.kind in ("calc", "computed") for node in nodes):
        return  # with a constant: a fact that the guard checks
    if not any(node.source.root.kind == "ratio" for node in nodes):
        raise Break(
            "unsupported",
            "numbers that vary are compared",
            "no change is needed: Python compares them, and what follows is compiled",
        )


def is_power_of_two(e: E.Expr) -> bool:
    """Whether dividing by it is exact."""
    return e.is_const and e.value > 0 and e.value & (e.value - 1) == 0


def _constant(other: SymNode) -> float | None:
    """The number behind a node that is no symbol. Ints that a float cannot hold exactly are none."""
    if isinstance(other, FloatNode):
        return None
    constant = other.constant
    return float(constant) if constant is not None and float(constant) == constant else None
