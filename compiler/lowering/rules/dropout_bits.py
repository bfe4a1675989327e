"""Dropout by bits (ops/keep_bits.py): words that are drawn on a GPU, 32 elements' at once."""

from __future__ import annotations

from typing import Any

import torch

from ...ops import keep_bits
from ...symbolic.expr import as_expr
from ..ir import cast, const, index, load, prim
from ..context import Lowering
from ..rule_table import NoRule, rule
from ..ref import Ref, flat_index
from .random import drawing_device, drawn_state

I64 = torch.int64


@rule(keep_bits.KEEP_BITS)
def words(lo: Lowering, node: Any, n: Any, p: Any, *, device: Any) -> Ref:
    if n == 0:
        raise NoRule("random numbers: none")
    drawing_device(lo)
    state = drawn_state(lo, keep_bits.INCREMENT)
    at = index(flat_index(lo.out_shape(), (1,)))
    word = prim(
        "keep_word", load(state, as_expr(0)), load(state, as_expr(1)), at, const(keep_bits.keep_fraction(p), I64)
    )
    return lo.pointwise(cast(word, torch.int32))
