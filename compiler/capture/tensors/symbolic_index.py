"""x[..., n, ...] with an integer n that varies: the selections that torch would make, as operators of their own, so
that no value of n is fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["select_symbols"]


def select_symbols(
    machine: Machine, tensor: TraceTensor, index: Any, call_method: Callable
) -> tuple[TraceTensor, Any] | None:
    """The tensor that `index` selects by its symbolic integers, and the index of the rest: torch, too, selects for
    integers before it looks at tensors among the indices. None where there is nothing to select, or where torch is to
    say what is wrong with the index."""
    entries = list(index) if type(index) is tuple else [index]
    if not any(type(entry) is torch.SymInt for entry in entries):
        return None
    widths = [_dimensions_taken(entry) for entry in entries]
    if None in widths:
        return None
    spare = tensor.ndim - sum(widths)
    wide = [i for i, entry in enumerate(entries) if entry is ...]
    if spare < 0 or len(wide) > 1:
        return None
    if wide:
        widths[wide[0]] = spare
    dims = [sum(widths[:i]) for i in range(len(entries))]
    chosen = [i for i, entry in enumerate(entries) if type(entry) is torch.SymInt]
    for i in chosen:
        size = tensor.shape[dims[i]]
        if not (machine.truth(entries[i] < size) and machine.truth(entries[i] >= -size)):
            return None
    for i in reversed(chosen):  # from behind: the dimensions in front keep their places
        tensor = call_method(machine, tensor, "select", [dims[i], entries[i]], {})
    rest = tuple(entry for entry in entries if type(entry) is not torch.SymInt)
    return tensor, rest or ...


def _dimensions_taken(entry: Any) -> int | None:
    """How many dimensions of the tensor an entry of an index stands for; None where that is for torch to say."""
    if entry is None or entry is ... or type(entry) is bool:
        return 0
    if isinstance(entry, (int, torch.SymInt, slice)):
        return 1
    if type(entry) in (list, tuple) and all(type(e) in (int, bool) for e in entry):
        return 1
    if type(entry) is TraceTensor:
        return entry.ndim if entry.dtype in (torch.bool, torch.uint8) else 1
    return None
