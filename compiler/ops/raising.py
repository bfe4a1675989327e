"""Operators that fail for some values of their operands, while shapes and dtypes are right: an index out of range, a
singular matrix.

A captured graph that fails is run again as plain Python, so that the error, its line and the state that it leaves are
eager's. That needs inputs which the graph has not changed yet: capture and the memory plan ask here which calls may
fail.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

__all__ = ["may_raise", "node_may_raise", "KEEP_BYTES"]

KEEP_BYTES = 1 << 20
"""Inputs up to this size (together) are kept from being changed before the last call that may fail.

Larger ones are changed in place, for speed."""

_NAMES = re.compile(
    r"index_(select|add|copy|fill|put|reduce).*|_?(unsafe_)?(masked_)?index(_put.*)?|gather|scatter.*|take.*|put_?|"
    r"_?embedding.*|nll_loss.*|cross_entropy.*|multi_?label_?margin_loss.*|multi_margin_loss.*|ctc_loss|_ctc_loss|"
    r"one_hot|multinomial|bernoulli.*|normal.*|poisson|binomial|"
    r".*cholesky.*|.*inv(_ex)?|.*inverse.*|.*solve.*|lstsq|linalg_.*|_linalg_.*|eig.*|.*svd.*|qr|geqrf|lu.*|ldl.*|"
    r".*det|matrix_.*|pinverse|"
    r"floor_?div(ide)?|__i?floordiv__|i?floordiv|remainder_?|fmod_?|i?mod|__i?mod__|__r?div__|div_?|divide_?|i?pow_?|"
    r"__i?pow__|bincount|histc.*|histogram.*|repeat_interleave|masked_scatter_?|segment_reduce|max_unpool.*|"
    r"binary_cross_entropy.*|unravel_index|_assert.*|set_?item|getitem|__getitem__|__setitem__|tensor_split|renorm.*|"
    r"native_batch_norm_backward|sym_constrain.*|quantize.*"
)


@functools.lru_cache(maxsize=4096)
def may_raise(name: str) -> bool:
    """Whether an operator of this name (`torch.index_select`, `aten.index_select.default`, `gather`) may fail for some
    values. Of somebody else's operators (`mylib.op.default`) nobody knows."""
    parts = name.split(".")
    if "tcompile_kernels" in name:  # a launch of a Triton kernel: nothing is known when it returns
        return False
    if len(parts) == 3 and parts[0] not in ("aten", "prims"):
        return True
    if parts[0] in ("aten", "prims") and len(parts) > 1:
        parts = parts[1:2]
    return _NAMES.fullmatch(parts[-1]) is not None


# Matched above, but nothing that they are given makes them fail.
_NEVER = re.compile(
    r"linalg_(vector_norm|vecdot|cross|diagonal|matrix_exp)|_?linalg_.*_ex|(lu|ldl|.*inv|.*cholesky|.*solve)_ex|"
    r"matrix_exp|_linalg_(det|slogdet)|.*_backward|linalg_lu.*_unpack|lu_unpack"
)
_DIVISIONS = re.compile(r"div|floor_divide|remainder|fmod")


def node_may_raise(node: torch.fx.Node) -> bool:
    """Whether a call in an aten graph, of no use otherwise, has to run as it may fail: eager raises whether or not the
    result is read.
    """
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    name = op._schema.name.partition("::")[2]
    if not may_raise(name) or _NEVER.fullmatch(name):
        return False
    args: tuple[Any, ...] = node.args
    if name == "pow":
        return _whole(node) and isinstance(args[1], (int, float)) and args[1] < 0
    if _DIVISIONS.fullmatch(name):
        divisor = args[1]
        return _whole(node) and not (isinstance(divisor, (int, float)) and divisor != 0)
    if name in ("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"):
        return any(i is not None and _dtype(i) not in (torch.bool, torch.uint8) for i in args[1])
    return True


def _dtype(x: Any) -> Any:
    return getattr(x.meta.get("val"), "dtype", None) if isinstance(x, torch.fx.Node) else None


def _whole(node: torch.fx.Node) -> bool:
    dtype = _dtype(node)
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex
