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

# What makes operators fail -> names of operators, methods and Python's own, `*` standing for any letters.
FAILURES: dict[str, str] = {
    "a position out of range": """index index_select* index_add* index_copy* index_fill* index_put* index_reduce*
        _index_put* _unsafe_index _unsafe_index_put* _unsafe_masked_index _unsafe_masked_index_put* gather scatter*
        take* put put_ embedding* _embedding* max_unpool* unravel_index tensor_split getitem setitem set_item
        __getitem__ __setitem__""",
    "a class, count or length that is wrong": """nll_loss* cross_entropy* multilabel_margin_loss* multi_margin_loss*
        ctc_loss _ctc_loss one_hot bincount histc* histogram* repeat_interleave masked_scatter masked_scatter_
        segment_reduce sym_constrain*""",
    "a number outside of an interval": """multinomial bernoulli* normal* poisson binomial binary_cross_entropy* renorm*
        native_batch_norm_backward quantize*""",
    "a matrix that is singular or not definite": """*cholesky* *inv *inv_ex *inverse* *solve* lstsq linalg_* _linalg_*
        eig* *svd* qr geqrf lu* ldl* *det matrix_*""",
    "an integer division by zero, or a negative power": """floor_divide floor_divide_ floordiv ifloordiv __floordiv__
        __ifloordiv__ remainder remainder_ fmod fmod_ mod imod __mod__ __imod__ __div__ __rdiv__ div div_ divide divide_
        pow pow_ ipow __pow__ __ipow__""",
    "an assertion": "_assert*",
}
# Of those, the ones that nothing they are given makes fail.
NEVER = """linalg_vector_norm linalg_vecdot linalg_cross linalg_diagonal linalg_matrix_exp matrix_exp _linalg_det
    _linalg_slogdet linalg_*_ex _linalg_*_ex lu_ex ldl_ex *inv_ex *cholesky_ex *solve_ex linalg_lu*_unpack lu_unpack
    *_backward"""
DIVISIONS = frozenset("div floor_divide remainder fmod".split())


def _any_of(names: str) -> re.Pattern:
    return re.compile("|".join(names.split()).replace("*", ".*"))


_FAILING, _NEVER = _any_of(" ".join(FAILURES.values())), _any_of(NEVER)


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
    return _FAILING.fullmatch(parts[-1]) is not None


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
    if name in DIVISIONS:
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
