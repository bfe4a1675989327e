"""The table of rules: which function says what an operator computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

if TYPE_CHECKING:
    from .context import Lowering

__all__ = ["RULES", "ANY_DTYPE", "NoRule", "rule", "view_rule"]

RULES: dict[Any, Callable] = {}
ANY_DTYPE: set[Any] = set()  # operators whose rules compute nothing with elements: they take every dtype


class NoRule(Exception):
    """A rule does not cover these arguments; the operator is called instead. The text is the reason."""


def rule(*ops: Any, any_dtype: bool = False) -> Callable:
    """Register `f(lo, node, *args, **kwargs) -> Ref | tuple` for OpOverloads or names ("aten.add.Tensor"; names that
    this torch does not have are left out). Tensor arguments arrive as Refs, sizes as ints or Exprs. Of several rules
    for one operator the last one is asked first; what raises NoRule passes it on. A rule is asked only for dtypes that
    loops have, without complex numbers; with `any_dtype` for all."""

    def put(fn: Callable) -> Callable:
        for op in ops:
            for o in [op] if not isinstance(op, str) else _find(op):
                RULES[o] = _either(fn, RULES[o]) if o in RULES else fn
                if any_dtype:
                    ANY_DTYPE.add(o)
        return fn

    return put


def _either(fn: Callable, other: Callable) -> Callable:
    def either(lo: Lowering, node: torch.fx.Node, *args: Any, **kwargs: Any) -> Any:
        mark = len(lo.steps)
        try:
            return fn(lo, node, *args, **kwargs)
        except NoRule:
            del lo.steps[mark:]
            return other(lo, node, *args, **kwargs)

    either.__module__ = fn.__module__
    return either


def view_rule(*names: str) -> Callable:
    """Register a rule for operators that look at memory and read no element."""
    return rule(*names, any_dtype=True)


def _find(name: str) -> list[Any]:
    """ "aten.add.Tensor" -> [torch.ops.aten.add.Tensor]; "aten.add" -> all overloads that are not out variants."""
    ns, packet, *overload = name.split(".")
    p = getattr(getattr(torch.ops, ns), packet, None)
    if p is None:
        return []
    if overload:
        return [getattr(p, overload[0])] if overload[0] in p.overloads() else []
    return [getattr(p, o) for o in p.overloads() if not any(arg.is_out for arg in getattr(p, o)._schema.arguments)]
