"""SymNode: what lets torch's C++ compute with our size expressions.

torch.SymInt and torch.SymBool wrap a node object whose methods C++ and the Python operators call by name. torch's own
node is built on sympy; this one is built on `expr`. A node whose expression is constant says so (`is_constant`,
`maybe_as_int`), and torch then continues with the plain int.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.fx.experimental.sym_node import SymNode as _TorchSymNode

from . import expr as E
from .bitwise import MOST_SHIFT
from .expr import Expr

if TYPE_CHECKING:
    from .env import ShapeEnv

__all__ = ["SymNode", "wrap"]


class SymNode(_TorchSymNode):
    """An integer or boolean expression of one ShapeEnv, or a float.

    Floats are not tracked: an operation that leads to one fixes the sizes it depends on (a guard) and gives a plain
    float. `expr` is an Expr, or a Python float. It derives from torch's class, and uses none of it, because torch's
    operators look for `constant` on that class alone.
    """

    fx_node = None
    expr: Any = None  # hides the base class's property

    def __init__(self, expr: Expr | float, env: "ShapeEnv", pytype: type = int):
        self.expr, self.env, self.pytype = expr, env, pytype

    @property
    def constant(self) -> int | bool | float | None:
        """The plain value, where it is known."""
        return self.expr if self.pytype is float else self.expr.value if self.expr.is_const else None

    # ---- kind
    def is_int(self) -> bool:
        return self.pytype is int

    def is_bool(self) -> bool:
        return self.pytype is bool

    def is_float(self) -> bool:
        return self.pytype is float

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return self.pytype is not float and self.expr.is_const  # floats are unwrapped by `constant`

    def has_hint(self) -> bool:
        return True

    @property
    def hint(self) -> int | bool | float:
        return self.expr if self.pytype is float else self.env.hint(self.expr)

    @property
    def shape_env(self) -> "ShapeEnv":
        return self.env

    def require_hint(self, fallback: Any = None) -> int | bool | float:
        return self.hint

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        if self.pytype is not int:
            return None
        if not expr.is_const:
            expr = self.env.replace(expr)
        return expr.value if expr.is_const else None

    def maybe_as_float(self) -> float | None:
        return self.expr if self.pytype is float else None

    def maybe_as_bool(self) -> bool | None:
        return self.expr.value if self.pytype is bool and self.expr.is_const else None

    def constant_int(self) -> int | None:
        return self.maybe_as_int()

    def constant_bool(self) -> bool | None:
        return self.maybe_as_bool()

    # ---- making nodes
    def wrap_int(self, n: int) -> "SymNode":
        return SymNode(E.integer(n), self.env)

    def wrap_bool(self, b: bool) -> "SymNode":
        return SymNode(E.TRUE if b else E.FALSE, self.env, bool)

    def wrap_float(self, x: float) -> "SymNode":
        return SymNode(float(x), self.env, float)

    def clone(self) -> "SymNode":
        return self

    def with_shape_env(self, env: "ShapeEnv") -> "SymNode":
        return SymNode(self.expr, env, self.pytype)

    # ---- text
    def _graph_repr(self) -> str:
        if self.env.fixes_texts:
            return repr(self.int_() if self.pytype is int else self.bool_() if self.pytype is bool else self._number())
        return self._in_words()

    str = __str__ = __repr__ = _graph_repr

    def _in_words(self) -> Any:
        return str_(self.expr)

    # ---- integer arithmetic
    def add(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(operator.add, other, "add")

    def sub(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(operator.sub, other, "sub")

    def mul(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(operator.mul, other, "mul")

    def reflected(self, op: str, fn: Callable, other: "SymNode") -> "SymNode | None":
        """`o op self`, where this node computes that itself (capture/numbers/float_node.py)."""
        return None

    def mod(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(operator.mod, other)

    def floordiv(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(operator.floordiv, other)

    int_floordiv = floordiv

    def sym_min(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(lambda a, b: min(a, b) if isinstance(a, float) else E.minimum(a, b), other)

    def sym_max(self, other: "SymNode") -> "SymNode":
        return self._int_or_float(lambda a, b: max(a, b) if isinstance(a, float) else E.maximum(a, b), other)

    def neg(self) -> "SymNode":
        return SymNode(-self.expr, self.env, self.pytype)

    def pos(self) -> "SymNode":
        return self

    def abs(self) -> "SymNode":
        if self.pytype is float:
            return self.wrap_float(abs(self.expr))
        return SymNode(E.maximum(self.expr, -self.expr), self.env)

    def pow_by_natural(self, other: "SymNode") -> "SymNode":
        base = self.maybe_as_int()
        if base is not None and base > 0 and not base & (base - 1):  # 2 ** n
            return self.wrap_int(1).lshift(self.wrap_int(base.bit_length() - 1).mul(other))
        return SymNode(E.mul_all([self.expr] * other.guard_int("", 0)), self.env)

    def _is_shift(self) -> bool:
        """Whether 2 to this power has less than 64 bits; what a shift by more makes is for Python alone."""
        return self.env.decide(E.and_(E.le(0, self.expr), E.le(self.expr, MOST_SHIFT)))

    def lshift(self, other: "SymNode") -> "SymNode":
        return (
            SymNode(E.lshift(self.expr, other.expr), self.env)
            if other._is_shift()
            else self.wrap_int(self.guard_int("", 0) << other.guard_int("", 0))
        )

    def rshift(self, other: "SymNode") -> "SymNode":
        return (
            SymNode(self.expr // E.lshift(1, other.expr), self.env)
            if other._is_shift()
            else self.wrap_int(self.guard_int("", 0) >> other.guard_int("", 0))
        )

    def bitwise_and(self, other: "SymNode") -> "SymNode":
        return SymNode(E.bitand(self.expr, other.expr), self.env)

    def bitwise_or(self, other: "SymNode") -> "SymNode":
        return SymNode(self.expr + other.expr - E.bitand(self.expr, other.expr), self.env)

    def bitwise_xor(self, other: "SymNode") -> "SymNode":
        return SymNode(self.expr + other.expr - 2 * E.bitand(self.expr, other.expr), self.env)

    def floor(self) -> "SymNode":
        return self if self.pytype is int else self.wrap_int(math.floor(self.expr))

    def ceil(self) -> "SymNode":
        return self if self.pytype is int else self.wrap_int(math.ceil(self.expr))

    def trunc(self) -> "SymNode":
        return self if self.pytype is int else self.wrap_int(math.trunc(self.expr))

    sym_int = trunc

    def round(self, ndigits: int | None = None) -> "SymNode":
        if self.pytype is int:
            return self
        r = round(self.expr, ndigits)
        return self.wrap_int(r) if isinstance(r, int) else self.wrap_float(r)

    def sym_sum(self, args: list["SymNode"]) -> "SymNode":
        return SymNode(E.add_all(arg.expr for arg in args), self.env)

    # ---- floats
    def _number(self) -> int | float:
        return self.expr if self.pytype is float else self.guard_int("", 0)

    def _int_or_float(self, fn: Callable, o: "SymNode", op: str = "") -> "SymNode":
        other = o.reflected(op, fn, self) if op else None
        if other is not None:
            return other
        if self.pytype is float or o.pytype is float:
            return self.wrap_float(fn(float(self._number()), float(o._number())))
        return SymNode(fn(self.expr, o.expr), self.env)

    def sym_float(self) -> "SymNode":
        return self if self.pytype is float else self.wrap_float(self._number())

    def truediv(self, o: "SymNode") -> "SymNode":
        other = o.reflected("truediv", operator.truediv, self)
        if other is not None:
            return other
        return self.wrap_float(self._number() / o._number())

    float_truediv = int_truediv = truediv

    def float_pow(self, other: "SymNode") -> "SymNode":
        return self.wrap_float(float(self._number()) ** other._number())

    pow = float_pow

    def is_integer(self) -> "SymNode":
        return self.wrap_bool(self.pytype is int or self.expr.is_integer())

    # ---- predicates
    def _compare(self, fn: Callable, plain: Callable, other: "SymNode") -> "SymNode":
        if self.pytype is float or other.pytype is float:
            return self.wrap_bool(plain(self._number(), other._number()))
        return SymNode(fn(self.expr, other.expr), self.env, bool)

    def eq(self, other: "SymNode") -> "SymNode":
        return self._compare(E.eq, operator.eq, other)

    def ne(self, other: "SymNode") -> "SymNode":
        return self._compare(E.ne, operator.ne, other)

    def lt(self, other: "SymNode") -> "SymNode":
        return self._compare(E.lt, operator.lt, other)

    def le(self, other: "SymNode") -> "SymNode":
        return self._compare(E.le, operator.le, other)

    def gt(self, other: "SymNode") -> "SymNode":
        return self._compare(E.gt, operator.gt, other)

    def ge(self, other: "SymNode") -> "SymNode":
        return self._compare(E.ge, operator.ge, other)

    def sym_and(self, other: "SymNode") -> "SymNode":
        return SymNode(E.and_(self.expr, other.expr), self.env, bool)

    def sym_or(self, other: "SymNode") -> "SymNode":
        return SymNode(E.or_(self.expr, other.expr), self.env, bool)

    and_, or_ = sym_and, sym_or

    def sym_not(self) -> "SymNode":
        return SymNode(E.not_(self.expr), self.env, bool)

    def sym_ite(self, a: "SymNode", b: "SymNode") -> "SymNode":
        return SymNode(E.ite(self.expr, a.expr, b.expr), self.env)

    # ---- decisions
    def guard_int(self, file: str, line: int) -> int:
        return self.env.specialize(self.expr)

    def guard_float(self, file: str, line: int) -> float:
        return float(self._number())

    def guard_bool(self, file: str, line: int) -> bool:
        return self.env.decide(self.expr)

    guard_size_oblivious = guard_bool

    def guard_or_false(self, file: str, line: int) -> bool:
        """torch asks so where False does for a size of which nothing may be known."""
        return not self.env.is_open_predicate(self.expr) and self.env.decide(self.expr)

    def guard_or_true(self, file: str, line: int) -> bool:
        return self.env.is_open_predicate(self.expr) or self.env.decide(self.expr)

    def expect_true(self, file: str, line: int) -> bool:
        return self.env.decide(self.expr)

    def statically_known_true(self, file: str, line: int) -> bool:
        return self.env.known(self.expr) is True

    def evaluate(self, size_oblivious: bool = False) -> int | bool | float:
        return self._number() if self.pytype is not bool else self.guard_bool("", 0)

    def int_(self) -> int:
        return self.env.specialize(self.expr)

    def bool_(self) -> bool:
        return self.env.decide(self.expr)

    # ---- memory format: asked of a tensor's first symbolic node, with all sizes and strides as nodes
    def _layout(self, sizes: list, strides: list, order: tuple | None) -> "SymNode":
        env = self.env
        sz, st = [_expr(size) for size in sizes], [_expr(stride) for stride in strides]
        dims = order if order is not None else tuple(range(len(sz) - 1, -1, -1))
        if len(dims) != len(sz):
            return self.wrap_bool(False)
        if order is None and env.has_unbacked and env.surely_contiguous(sz, st):
            return self.wrap_bool(True)
        expected: Expr = E.ONE
        for dim in dims:
            if env.decide(E.eq(sz[dim], 1)):
                continue
            if not env.decide(E.eq(st[dim], expected)):
                return self.wrap_bool(any(env.decide(E.eq(s, 0)) for s in sz) and order is None)
            expected = expected * sz[dim]
        return self.wrap_bool(True)

    def is_contiguous(self, sizes: list, strides: list) -> "SymNode":
        return self._layout(sizes, strides, None)

    def is_channels_last_contiguous_2d(self, sizes: list, strides: list) -> "SymNode":
        return self._layout(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_contiguous_3d(self, sizes: list, strides: list) -> "SymNode":
        return self._layout(sizes, strides, (1, 4, 3, 2, 0))

    def _channels_last_strides(self, sizes: list, strides: list, order: tuple) -> "SymNode":
        """As c10::is_channels_last_strides_2d: strides in that order, not necessarily dense."""
        env = self.env
        sz, st = [_expr(size) for size in sizes], [_expr(stride) for stride in strides]
        if len(sz) != len(order) or env.decide(E.eq(st[1], 0)):
            return self.wrap_bool(False)
        low: Expr = E.ZERO
        for dim in order:
            if (
                env.decide(E.eq(sz[dim], 0))
                or env.decide(E.lt(st[dim], low))
                or (dim == 0 and env.decide(E.eq(low, st[1])))
            ):
                return self.wrap_bool(False)
            low = st[dim]
            if env.decide(E.gt(sz[dim], 1)):
                low = low * sz[dim]
        return self.wrap_bool(True)

    def is_channels_last_strides_2d(self, sizes: list, strides: list) -> "SymNode":
        return self._channels_last_strides(sizes, strides, (1, 3, 2, 0))

    def is_channels_last_strides_3d(self, sizes: list, strides: list) -> "SymNode":
        return self._channels_last_strides(sizes, strides, (1, 4, 3, 2, 0))

    def is_non_overlapping_and_dense(self, sizes: list, strides: list) -> "SymNode":
        env = self.env
        sz, st = [_expr(size) for size in sizes], [_expr(stride) for stride in strides]
        if env.has_unbacked and env.surely_contiguous(sz, st):
            return self.wrap_bool(True)
        live = [dim for dim in range(len(sz)) if not env.decide(E.eq(sz[dim], 1))]
        live.sort(key=lambda d: env.hint(st[d]))
        expected: Expr = E.ONE
        for d in live:
            if not env.decide(E.eq(st[d], expected)):
                return self.wrap_bool(False)
            expected = expected * sz[d]
        return self.wrap_bool(True)

    def is_non_overlapping_and_dense_indicator(self, sizes: list, strides: list) -> "SymNode":
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).expr.value))


def _expr(x: Any) -> Expr:
    return x.expr if isinstance(x, SymNode) else E.as_expr(x)


def str_(expr: Any) -> str:
    return expr.py() if isinstance(expr, Expr) else repr(expr)


def wrap(expr: E.IntLike, env: "ShapeEnv") -> "int | torch.SymInt":
    """An int or a SymInt for a size."""
    if isinstance(expr, int):
        return expr
    if expr.is_const:
        return expr.value
    return torch.SymInt(SymNode(expr, env))


for _name in ("sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2"):

    def _float_fn(self: SymNode, _f: Callable = getattr(math, _name)) -> SymNode:
        return self.wrap_float(_f(self._number()))

    setattr(SymNode, f"sym_{_name}", _float_fn)
