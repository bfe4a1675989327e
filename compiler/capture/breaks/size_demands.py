"""Sizes that the program marked as dynamic: code that fixes one, or one outside of its range, is refused, as torch
refuses it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ...errors import ConstraintViolationError
from ...guards import source as S
from ...guards.guard import Guard
from ...symbolic import expr as E
from ...symbolic.env import NUMBER_USED

if TYPE_CHECKING:
    from ..machine.world import World

__all__ = ["hold_demands"]


def hold_demands(world: World) -> list[Guard]:
    """Guards for the ranges of marked sizes. Raises ConstraintViolationError where a comparison of the program fixed
    one. (An operator that capture knows for fixed sizes alone may fix it, too: that is no fault of the program's, and
    costs an entry for each size.)
    """
    guards = []
    for (source, dim), (low, high) in world.demanded.items():
        size, env = S.size(source, dim), world.env
        symbol = next((E.symbol(name) for name, known in env.sources.items() if known is size), None)
        if symbol is None:  # 0 and 1 are always fixed
            continue
        hint, name = env.hints[symbol.name], f"{source.name()}.shape[{dim}]"
        if low is not None and hint < low or high is not None and hint > high:
            raise _violation(
                f"{name} was marked as dynamic from {low} to {high}, and is {hint}.\nWhat to do: widen the range of"
                " mark_dynamic."
            )
        for fact, file, line, why in env.guards:
            if (
                fact.op == "eq"
                and why != NUMBER_USED
                and symbol.name in fact.symbol_names()
                and env.replace(symbol).is_const
            ):
                where = f" at {file}:{line}" if file else ""
                raise _violation(
                    f"{name} was marked as dynamic, but the program fixes it to {hint}{where}.\n"
                    "What to do: let the code work for every size, or use maybe_mark_dynamic, which allows this."
                )
        guards += [
            Guard(None, "PREDICATE", fact, None, None, "the range that mark_dynamic gave")
            for fact in (
                *([E.le(low, symbol)] if low is not None else ()),
                *([E.le(symbol, high)] if high is not None else ()),
            )
        ]
    return guards


def _violation(message: str) -> ConstraintViolationError:
    """torch's own error, too, for a program that imported it."""
    theirs = getattr(sys.modules.get("torch.fx.experimental.symbolic_shapes"), "ConstraintViolationError", None)
    kind = (
        ConstraintViolationError
        if theirs is None
        else type("ConstraintViolationError", (ConstraintViolationError, theirs), {})
    )
    return kind(message)
