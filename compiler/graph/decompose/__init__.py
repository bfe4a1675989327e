"""Decomposition: aten operators as other operators, down to the closed set of `ops/closed_set.py`.

In: an AtenGraph as recorded. Out: an AtenGraph whose element-wise operators carry explicit casts and whose composite
operators (softmax, layer_norm, gelu, losses, ...) are written out, computing in float32 where eager's kernels do.
Tables are filled by the modules beside this one; `table.py` emits nodes and gives them metadata.
"""

from __future__ import annotations

# they fill the table
from . import (
    backward_forms,
    promotion_casts,
    composites,
    index_forms,
    nn_forms,
    pointwise_forms,
    reduce_forms,
    view_forms,
)
from . import borrowed  # noqa: I001  (fills what they left)
from .table import TABLE, Builder, decompose, decomposition

__all__ = ["decompose", "decomposition", "Builder", "TABLE"]
