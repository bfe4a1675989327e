"""What eager autograd keeps for backward, in bytes, operator by operator: what a partition is compared with.

Read off the autograd nodes of the traced graph before backward runs: each `_saved_*` attribute that is a tensor keeps
that tensor's memory, once however many nodes keep it. Memory of the graph's inputs lives anyway and is not counted.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Iterable

import torch

from ..base.fx_nodes import is_input
from ..graph.functionalize import Functionalizer
from ..graph.history import history
from .partition import bytes_of

__all__ = ["eager_kept"]

_saved_names: dict[type, tuple[str, ...]] = {}


def eager_kept(functionalizer: Functionalizer, outputs: Iterable[torch.Tensor], hints: dict[str, int]) -> list[int]:
    """Bytes of memory, at the hints, that the autograd nodes behind `outputs` keep: after each operator recorded so
    far, in order.
    """
    kept: dict[int, tuple[Any, int]] = {}  # memory -> the operator that made it, its bytes
    for node in history(*outputs):
        for t in _saved_tensors(node):
            a = functionalizer.aliases.get(id(t))
            if a is not None and a.memory.root is not None and a.memory.input is None and not a.memory.constant:
                kept[id(a.memory)] = a.memory.root.node, bytes_of(a.memory.root.meta, hints)
    made_by: dict[Any, int] = {}
    for n, size in kept.values():
        made_by[n] = made_by.get(n, 0) + size
    return list(accumulate(made_by.get(node, 0) for node in functionalizer.graph.nodes if not is_input(node)))


def _saved_tensors(node: Any) -> list[torch.Tensor]:
    kind = type(node)
    if kind not in _saved_names:
        _saved_names[kind] = tuple(n for n in dir(kind) if n.startswith("_saved_") or n == "saved_tensors")
    out: list[torch.Tensor] = []
    for name in _saved_names[kind]:
        try:
            value = getattr(node, name)
        except RuntimeError:  # changed in place since: backward, if it runs, will say so
            continue
        out += [t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, torch.Tensor)]
    return out
