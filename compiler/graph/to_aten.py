"""The graph stage: a captured torch-level graph becomes a functional graph of the closed operator set."""
from __future__ import annotations

from typing import Any

from .captured import CapturedGraph
from .aten import AtenGraph
from .decompose import decompose
from .passes import run_passes
from .passes.sizes import unify_sizes
from .record import record

__all__ = ["to_aten", "finish", "disabled_passes", "PATTERNS"]

PATTERNS = ("attention", "slices_of_scatters", "sums_of_parts", "merge_products")      # passes that the option pattern_matcher stands for


def to_aten(captured: CapturedGraph, opts: Any = None) -> AtenGraph:
    """Record, run passes, decompose, run passes. `opts` is the compile call's Options (None: defaults)."""
    a = record(captured)
    if opts is not None and opts.get("freezing"):
        from .freeze import fold_batch_norms
        fold_batch_norms(a)
    return finish(a, opts)


def finish(a: AtenGraph, opts: Any = None) -> AtenGraph:
    """The part behind recording: passes and decomposition."""
    disabled = disabled_passes(opts)
    unify_sizes(a)
    a = run_passes(a, "recorded", disabled)
    a = decompose(a)
    unify_sizes(a)
    return run_passes(a, "decomposed", disabled)


def disabled_passes(opts: Any) -> frozenset[str]:
    """The passes that the option of this name switches off."""
    if opts is None:
        return frozenset()
    names = opts.get("disabled_passes", "") or ""
    if isinstance(names, str):
        names = [n.strip() for n in names.split(",") if n.strip()]
    return frozenset(names) if opts.get("pattern_matcher", True) else frozenset((*names, *PATTERNS))
