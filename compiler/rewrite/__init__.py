"""Graph passes: functions AtenGraph -> None (in place) or AtenGraph, run in the order of one table.

In: an AtenGraph, before ("recorded") or after ("decomposed") decomposition. `PASSES` holds (name, point, function); a
pass is switched off by its name (option `disabled_passes`), and users add their own with `insert`.
"""

from __future__ import annotations

import time
from operator import is_
from typing import Any, Callable

from .. import events
from ..graph.aten import AtenGraph
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

__all__ = ["PASSES", "insert", "remove", "run_passes", "changes"]

Pass = Callable[[AtenGraph], "AtenGraph | None"]

# name, point, function
PASSES: list[tuple[str, str, Pass]] = [
    ("plain_waits", "recorded", plain_waits),
    ("cse_recorded", "recorded", clean.common_subexpressions),
    ("dce_recorded", "recorded", clean.dead_code),
    ("attention", "recorded", attention),
    ("fast_dropout", "recorded", dropout_by_bits),
    ("constant_folding", "decomposed", fold.constant_folding),
    ("strided_gradients", "decomposed", strided_gradients),
    ("slices_of_scatters", "decomposed", slices_of_scatters),
    ("sums_of_parts", "decomposed", sums_of_parts),
    ("no_ops", "decomposed", clean.no_ops),
    ("view_chains", "decomposed", clean.view_chains),
    ("cse", "decomposed", clean.common_subexpressions),
    ("broadcast_products", "decomposed", broadcast_products),
    ("turned_products", "decomposed", turned_products),
    ("attention_calls", "decomposed", attention_calls),
    ("attention_gradients", "decomposed", attention_gradients),
    ("dce", "decomposed", clean.dead_code),
    ("known_masks", "decomposed", known_masks),
    ("dropout_attention", "decomposed", dropout_attention),
    ("convolution_bias", "decomposed", convolution_bias),
    ("channels_last", "decomposed", channels_last),
    ("padded_groups", "decomposed", padded_groups),
    ("pad_products", "decomposed", pad_products),
    ("bias_products", "decomposed", bias_products),
    ("merge_products", "decomposed", merge_products),
    ("late_waits", "decomposed", late_waits),
    ("overlap_exchanges", "decomposed", overlap_exchanges),
]
_BUILTIN = tuple(PASSES)


def insert(
    name: str, function: Pass, *, point: str = "decomposed", before: str | None = None, after: str | None = None
) -> None:
    """Add a pass to the table, by default at the end of its point. `before` / `after` name a pass. Raises ValueError
    for a name that is taken or not there, or an unknown point."""
    if point not in ("recorded", "decomposed"):
        raise ValueError(f"point is 'recorded' or 'decomposed', got {point!r}")
    names = [n for n, _, _ in PASSES]
    if name in names:
        raise ValueError(f"a graph pass named {name!r} exists already; passes are {', '.join(names)}")
    at = len(PASSES)
    for ref, shift in ((before, 0), (after, 1)):
        if ref is not None:
            if ref not in names:
                raise ValueError(f"no graph pass {ref!r}; passes are {', '.join(names)}")
            at = names.index(ref) + shift
            point = PASSES[names.index(ref)][1]
    PASSES.insert(at, (name, point, function))


def remove(name: str) -> None:
    """Take a pass that was inserted out again. Raises ValueError for built-in passes (switch those off by option)."""
    if any(n == name for n, _, _ in _BUILTIN):
        raise ValueError(f"{name!r} is a pass of tcompile: use the option disabled_passes={name!r}")
    PASSES[:] = [p for p in PASSES if p[0] != name]


def changes() -> tuple[tuple[str, str, Pass], ...]:
    """The table, where it is not the built-in one; else nothing."""
    return () if tuple(PASSES) == _BUILTIN else tuple(PASSES)


def run_passes(a: AtenGraph, point: str, disabled: frozenset[str] = frozenset()) -> AtenGraph:
    """All passes of one point, in order, without the disabled ones."""
    from ..graph.meta.core import state

    outer, state.env = state.env, a.env
    unused = unused_share(a) if point == "recorded" and events.heard() else 0.0
    before = _operations(a) if events.heard() else None
    try:
        for name, p, f in list(PASSES):
            if p == point and name not in disabled:
                began = time.perf_counter()
                r: Any = f(a)
                if r is not None:
                    a = r
                if before is not None:
                    seconds, after = time.perf_counter() - began, _operations(a)
                    _tell(name, point, before, after, seconds, unused)
                    before = after
    finally:
        state.env = outer
    return a


_MOST_TOLD = 60


def _operations(a: AtenGraph) -> dict[str, tuple]:
    """Name -> target, arguments and keywords of each operation, and the results. Whoever changes arguments makes new
    ones."""
    out: dict[str, tuple] = {n.name: (n.target, n.args, n.kwargs) for n in a.graph.nodes if n.op == "call_function"}
    out["return"] = (None, tuple(a.results), {})
    return out


def _text(name: str, operation: tuple) -> str:
    target, args, kwargs = operation
    words = ", ".join([*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())])
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
    removed = [text for n, text in old.items() if new.get(n) != text]
    added = [text for n, text in new.items() if old.get(n) != text]
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
