"""aten graph -> loop nests. `lower` walks the graph once; each operator's rule (rules/) says what it computes.

Every operator that computes makes one loop nest (or a few) that stores to a buffer of its own with eager's strides;
views make none, they are substitutions of index symbols (ref.py). What has no rule is an Extern call, with its reason,
and is counted. Fusion then decides which buffers exist at all.
"""

from __future__ import annotations

from typing import Any

from .. import events
from ..ops.closed_set import NO_RULE
from . import rules  # noqa: F401  (registers the rules)
from .context import Lowering
from .ir import clear
from .lowered import Extern, LoweredGraph

__all__ = ["lower"]


def lower(aten: Any, opts: Any, trial: bool = False) -> LoweredGraph:
    """AtenGraph -> LoweredGraph. Never fails for an operator that it does not know: that becomes an Extern, stated as a
    fallback but in a `trial`.
    """
    clear()
    lowered = Lowering(aten, opts).run()
    if not trial:
        reasons = {str(s.op): s.reason for s in lowered.steps if isinstance(s, Extern)}
        for op, n in lowered.fallbacks.items():
            events.emit("fallback", what=op, reason=f"eager kernel: {reasons.get(op, NO_RULE)}", count=n)
    return lowered
