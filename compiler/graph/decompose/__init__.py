"""Decomposition: aten operators as other operators, down to the closed set of `graph/opset.py`.

In: an AtenGraph as recorded. Out: an AtenGraph whose element-wise operators carry explicit casts and whose composite operators
(softmax, layer_norm, gelu, losses, ...) are written out, computing in float32 where eager's kernels do. Tables are
filled by the modules beside this one; `builder.py` emits nodes and gives them metadata.
"""
from __future__ import annotations

from . import backward, casts, composites, index, nn, pointwise, reduce, views  # noqa: F401  (they fill the table)
from . import borrowed  # noqa: F401, I001  (fills what they left)
from .builder import TABLE, Builder, decompose, decomposition

__all__ = ["decompose", "decomposition", "Builder", "TABLE"]
