"""Graph passes: functions AtenGraph -> None (in place) or AtenGraph, run in the order of one table.

In: an AtenGraph, before ("recorded") or after ("decomposed") decomposition. A row of `PASSES` says which options switch
a pass off; by its name it is switched off, too (option `disabled_passes`). Users add their own with `insert`.
"""

from __future__ import annotations

import time
from operator import is_
from typing import Any, Callable, NamedTuple

from .. import events
from ..graph.aten import AtenGraph
from ..ops import keep_bits
from . import clean, fold
from .attention_inference import attention
from .attention_training import attention_calls
from .attention_gradients import attention_gradients
from .products.broadcast_products import broadcast_products
from .products.product_bias import bias_products
from .fast_dropout import dropout_by_bits
from .attention_dropout import dropout_attention
from .channels_last import channels_last
from .convolution_bias import convolution_bias
from .depthwise_gradients import depthwise_gradients
from .known_masks import known_masks
from .late_waits import late_waits, plain_waits
from .overlap import overlap_exchanges
from .products.merge_products import merge_products
from .products.pad_products import pad_products
from .padded_groups import padded_groups
from .slice_scatters import slices_of_scatters
from .gradient_sums import sums_of_parts
from .strided_gradients import strided_gradients
from .products.transposed_products import turned_products
from .unused import unused_share

__all__ = ["PASSES", "Pass", "insert", "remove", "run_passes", "changes", "disabled_passes"]

Function = Callable[[AtenGraph], "AtenGraph | None"]


class Pass(NamedTuple):
    """A row of the table."""

    name: str
    point: str  # "recorded" or "decomposed": it runs before or after decomposition
    function: Function
    off: tuple[Callable[[Any], bool], ...] = ()  # what of a compile call's options switches it off


def _no_patterns(opts: Any) -> bool:
    return not opts.get("pattern_matcher", True)


def _no_bits(opts: Any) -> bool:
    return not keep_bits.wanted(opts)


def _no_own_attention(opts: Any) -> bool:
    """Whether fusion makes no kernels of attention, which the pass leaves to it."""
    return bool(opts.get("attention", "auto") == "library" or _rounds(opts) or opts.get("disable_fusion"))


def _no_library_attention(opts: Any) -> bool:
    return bool(opts.get("attention", "auto") == "generated" or _rounds(opts))


def _rounds(opts: Any) -> bool:
    return bool(opts.get("emulate_precision"))


PASSES: list[Pass] = [
    Pass("plain_waits", "recorded", plain_waits),
    Pass("cse_recorded", "recorded", clean.common_subexpressions),
    Pass("dce_recorded", "recorded", clean.dead_code),
    Pass("attention", "recorded", attention, (_no_patterns,)),
    Pass("fast_dropout", "recorded", dropout_by_bits, (_no_bits,)),
    Pass("constant_folding", "decomposed", fold.constant_folding),
    Pass("strided_gradients", "decomposed", strided_gradients),
    Pass("slices_of_scatters", "decomposed", slices_of_scatters, (_no_patterns,)),
    Pass("sums_of_parts", "decomposed", sums_of_parts, (_no_patterns,)),
    Pass("no_ops", "decomposed", clean.no_ops),
    Pass("view_chains", "decomposed", clean.view_chains),
    Pass("cse", "decomposed", clean.common_subexpressions),
    Pass("broadcast_products", "decomposed", broadcast_products),
    Pass("turned_products", "decomposed", turned_products, (_no_patterns,)),
    Pass("attention_calls", "decomposed", attention_calls, (_no_patterns, _no_library_attention)),
    Pass("attention_gradients", "decomposed", attention_gradients, (_no_patterns, _no_own_attention)),
    Pass("dce", "decomposed", clean.dead_code),
    Pass("known_masks", "decomposed", known_masks),
    Pass("dropout_attention", "decomposed", dropout_attention, (_no_bits, _no_own_attention)),
    Pass("convolution_bias", "decomposed", convolution_bias),
    Pass("depthwise_gradients", "decomposed", depthwise_gradients, (_no_patterns,)),
    Pass("channels_last", "decomposed", channels_last),
    Pass("padded_groups", "decomposed", padded_groups),
    Pass("pad_products", "decomposed", pad_products),
    Pass("bias_products", "decomposed", bias_products),
    Pass("merge_products", "decomposed", merge_products, (_no_patterns,)),
    Pass("late_waits", "decomposed", late_waits),
    Pass("overlap_exchanges", "decomposed", overlap_exchanges),
]
_BUILTIN = tuple(PASSES)


def insert(
    name: str, function: Function, *, point: str = "decomposed", before: str | None = None, after: str | None = None
) -> None:
    """Add a pass to the table, by default at the end of its point. `before` / `after` name a pass. Raises ValueError
    for a name that is taken or not there, or an unknown point."""
    if point not in ("recorded", "decomposed"):
        raise ValueError(f"point is 'recorded' or 'decomposed', got {point!r}")
    names = [run.name for run in PASSES]
    if name in names:
        raise ValueError(f"a graph pass named {name!r} exists already; passes are {', '.join(names)}")
    at = len(PASSES)
    for ref, shift in ((before, 0), (after, 1)):
        if ref is not None:
            if ref not in names:
                raise ValueError(f"no graph pass {ref!r}; passes are {', '.join(names)}")
            at = names.index(ref) + shift
            point = PASSES[names.index(ref)].point
    PASSES.insert(at, Pass(name, point, function))


def remove(name: str) -> None:
    """Take a pass that was inserted out again. Raises ValueError for built-in passes (switch those off by option)."""
    if any(p.name == name for p in _BUILTIN):
        raise ValueError(f"{name!r} is a pass of tcompile: use the option disabled_passes={name!r}")
    PASSES[:] = [run for run in PASSES if run.name != name]


def changes() -> tuple[Pass, ...]:
    """The table, where it is not the built-in one; else nothing."""
    return () if tuple(PASSES) == _BUILTIN else tuple(PASSES)


def disabled_passes(opts: Any) -> frozenset[str]:
    """The passes that a compile call's options switch off (None: the defaults)."""
    opts = {} if opts is None else opts
    named = opts.get("disabled_passes", "") or ""
    names = named.split(",") if isinstance(named, str) else named
    return frozenset(
        [*(name.strip() for name in names), *(run.name for run in PASSES if any(off(opts) for off in run.off))]
    )


def run_passes(a: AtenGraph, point: str, opts: Any = None) -> AtenGraph:
    """All passes of one point, in order, without those that the options switch off."""
    from ..graph.meta.core import state

    outer, state.env = state.env, a.env
    disabled = disabled_passes(opts)
    unused = unused_share(a) if point == "recorded" and events.heard() else 0.0
    before = _operations(a) if events.heard() else None
    try:
        for run in list(PASSES):
            if run.point == point and run.name not in disabled:
                began = time.perf_counter()
                a = run.function(a) or a
                if before is not None:
                    seconds, after = time.perf_counter() - began, _operations(a)
                    _tell(run.name, point, before, after, seconds, unused)
                    before = after
    finally:
        state.env = outer
    return a


_MOST_TOLD = 60


def _operations(aten_graph: AtenGraph) -> dict[str, tuple]:
    """Name -> target, arguments and keywords of each operation, and the results. Whoever changes arguments makes new
    ones."""
    out: dict[str, tuple] = {node.name: (node.target, node.args, node.kwargs) for node in aten_graph.calls()}
    out["return"] = (None, tuple(aten_graph.results), {})
    return out


def _text(name: str, operation: tuple) -> str:
    target, args, kwargs = operation
    words = ", ".join([*map(str, args), *(f"{key}={value}" for key, value in kwargs.items())])
    return f"return {words}" if target is None else f"{name} = {target}({words})"


def _texts(these: dict[str, tuple], others: dict[str, tuple]) -> dict[str, str]:
    """Of operations that may not be the same in the others."""
    return {
        name: _text(name, operation)
        for name, operation in these.items()
        if (other := others.get(name)) is None or not all(map(is_, operation, other))
    }


def _tell(
    name: str, point: str, before: dict[str, tuple], after: dict[str, tuple], seconds: float, unused: float
) -> None:
    old, new = _texts(before, after), _texts(after, before)
    removed = [text for key, text in old.items() if new.get(key) != text]
    added = [text for key, text in new.items() if old.get(key) != text]
    events.emit(
        "pass",
        name=name,
        point=point,
        seconds=seconds,
        before=len(before) - 1,
        after=len(after) - 1,
        removed=removed[:_MOST_TOLD],
        added=added[:_MOST_TOLD],
        more=max(0, len(removed) - _MOST_TOLD) + max(0, len(added) - _MOST_TOLD),
        unused=unused,
    )
