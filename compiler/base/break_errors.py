"""Whether a graph break is an error, as `error_on_graph_break` says at this moment of the run.

Stock's own state is the one that counts where stock is loaded, so that `torch._dynamo.error_on_graph_break` and
`tcompile.error_on_graph_break` mean the same wherever they stand, also in code that no one captures. Stock is never
imported for that. As stock's, the state is the process's.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["are_errors", "set_errors", "STOCK"]

STOCK = "torch._dynamo.utils"


class _Own:
    value = False
    shared = False  # stock is loaded, and was told of the value


def _stock() -> Any:
    """Stock's module, once it has its switch."""
    module = sys.modules.get(STOCK)
    if module is None or not hasattr(module, "_set_error_on_graph_break"):
        return None
    if not _Own.shared:
        _Own.shared = True
        if _Own.value:  # it was loaded within one of our with-blocks
            module._set_error_on_graph_break(True)
    return module


def are_errors() -> bool:
    """Whether graph breaks are errors now."""
    stock = _stock()
    return _Own.value if stock is None else bool(stock._get_error_on_graph_break())


def set_errors(value: bool) -> None:
    """Graph breaks are errors from now on, or not. Capture follows calls of this function without running it."""
    stock = _stock()
    if stock is None:
        _Own.value = value
    else:
        stock._set_error_on_graph_break(value)
