"""Operators that fail for some values of their operands, while shapes and dtypes are right: an index out of range, a singular matrix.

A captured graph that fails is run again as plain Python, so that the error, its line and the state that it leaves are eager's. That needs
inputs which the graph has not changed yet: capture and the memory plan ask here which calls may fail.
"""
from __future__ import annotations

import functools
import re

__all__ = ["may_raise", "KEEP_BYTES"]

KEEP_BYTES = 1 << 20
"""Inputs up to this size (together) are kept from being changed before the last call that may fail; larger ones are changed in place, for speed."""

_NAMES = re.compile(
    r"index_(select|add|copy|fill|put|reduce).*|_?(unsafe_)?(masked_)?index(_put.*)?|gather|scatter.*|take.*|put_?|_?embedding.*|nll_loss.*|cross_entropy.*|"
    r"multi_?label_?margin_loss.*|multi_margin_loss.*|ctc_loss|_ctc_loss|one_hot|multinomial|bernoulli.*|normal.*|poisson|binomial|"
    r".*cholesky.*|.*inv(_ex)?|.*inverse.*|.*solve.*|lstsq|linalg_.*|_linalg_.*|eig.*|.*svd.*|qr|geqrf|lu.*|ldl.*|.*det|matrix_.*|pinverse|"
    r"floor_?div(ide)?|__i?floordiv__|i?floordiv|remainder_?|fmod_?|i?mod|__i?mod__|__r?div__|div_?|divide_?|i?pow_?|__i?pow__|"
    r"bincount|histc.*|histogram.*|repeat_interleave|masked_scatter_?|segment_reduce|max_unpool.*|binary_cross_entropy.*|unravel_index|"
    r"_assert.*|set_?item|getitem|__getitem__|__setitem__|tensor_split|renorm.*|native_batch_norm_backward|sym_constrain.*|quantize.*")


@functools.lru_cache(maxsize=4096)
def may_raise(name: str) -> bool:
    """Whether an operator of this name (`torch.index_select`, `aten.index_select.default`, `gather`) may fail for some values."""
    parts = name.split(".")
    if parts[0] in ("aten", "prims") and len(parts) > 1:
        parts = parts[1:2]
    return _NAMES.fullmatch(parts[-1]) is not None
