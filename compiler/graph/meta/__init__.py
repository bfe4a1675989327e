"""Metadata rules: in come TensorMetas and plain arguments of an aten operator, out go the TensorMetas of its results.

`lookup(op)` finds the rule; the modules beside this one hold them by theme. What has no rule is run on meta tensors by
the caller (`graph/fallback.py`).
"""

from __future__ import annotations

import torch

# Imported for the rules that they register.
from . import (
    attention_meta,
    core,
    factory_meta,
    indexing_meta,
    checks_meta,
    collectives_meta,
    keep_bits_meta,
    matmul_meta,
    nn_meta,
    pointwise_meta,
    linalg_meta,
    lstm_meta,
    reduce_meta,
    searching_meta,
    views_meta,
)
from .core import RULES, DataDependentError, Rule, TensorMeta

from .refused import refusing

__all__ = ["lookup", "lookup_for_calls", "TensorMeta", "DataDependentError", "RULES"]


def lookup(op: torch._ops.OpOverload) -> Rule | None:
    """The rule of a *functional* operator (in-place and out= forms use their functional form's), or None."""
    ns, _, name = op._schema.name.partition("::")
    return find(name if ns == "aten" else f"{ns}::{name}", op._overloadname, op)


def lookup_for_calls(op: torch._ops.OpOverload) -> Rule | None:
    """`lookup`, for calls of the program's: it raises for dtypes that eager refuses, which steps of a decomposition may
    have.
    """
    rule = lookup(op)
    return rule and refusing(op, rule)


def find(name: str, overload: str, op: torch._ops.OpOverload | None = None) -> Rule | None:
    r = RULES.get(f"{name}.{overload}") or RULES.get(name)
    if (
        r is None
        and op is not None
        and torch.Tag.pointwise in op.tags
        and len(op._schema.returns) == 1
        and op.namespace in ("aten", "prims")
    ):
        # (of other namespaces the tag says no dtype)
        r = RULES[f"{name}.{overload}"] = pointwise_meta.generic_pointwise(name.removeprefix("prims::"))
    return r
