"""The graph stage: a captured torch-level graph becomes a functional graph of the closed operator set."""

from __future__ import annotations

from typing import Any

from ..ops import keep_bits
from .captured import CapturedGraph
from .aten import AtenGraph
from .decompose import decompose
from ..rewrite import run_passes
from ..rewrite.equal_sizes import unify_sizes
from .record import record

__all__ = ["to_aten", "finish", "disabled_passes", "PATTERNS"]

PATTERNS = (
    "attention",
    "attention_calls",
    "attention_gradients",
    "slices_of_scatters",
    "sums_of_parts",
    "turned_products",
    "merge_products",
)  # passes that the option pattern_matcher stands for
BY_BITS = ("fast_dropout", "dropout_attention")  # and those of the option fast_dropout


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
    """The passes that options switch off."""
    if opts is None:
        return frozenset(BY_BITS)
    names = opts.get("disabled_passes", "") or ""
    if isinstance(names, str):
        names = [n.strip() for n in names.split(",") if n.strip()]
    if not opts.get("pattern_matcher", True):
        names = [*names, *PATTERNS]
    if not keep_bits.wanted(opts):
        names = [*names, *BY_BITS]
    if opts.get("attention", "auto") == "library" or opts.get("emulate_precision") or opts.get("disable_fusion"):
        names = [*names, "dropout_attention", "attention_gradients"]  # (whose kernels are fusion's to make)
    if opts.get("attention", "auto") == "generated" or opts.get("emulate_precision"):
        names = [*names, "attention_calls"]
    return frozenset(names)
