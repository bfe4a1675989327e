"""torch.nn.utils.rnn.pad_sequence, whose C++ writes the sequences into a tensor that it makes for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import tensor_calls
from ..kinds.callables import FUNCTIONS
from ..kinds.parameters import interpret
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_PAD = torch._C._nn.pad_sequence


def _pad_sequence(machine: Machine, sequences: Any, *args: Any, **kwargs: Any) -> Any:
    items = list(machine.iterate(sequences))
    if _are_alike(items):
        return interpret(machine, _stacked, [items, *args], kwargs)
    return tensor_calls.call_function(machine, _PAD, [items, *args], kwargs)


def _are_alike(items: list) -> bool:
    """Whether the sequences differ in their lengths only."""
    if not all(type(t) is TraceTensor and t.dim() for t in items):
        return False
    kinds = {(tensor.dtype, tensor.device, tuple(map(str, tensor.shape[1:]))) for tensor in items}
    return len(kinds) == 1


def _stacked(
    sequences: list, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> torch.Tensor:
    if padding_side not in ("left", "right"):
        raise RuntimeError(f"Expected padding_side to be one of left or right, but got {padding_side}.")
    longest = max([t.shape[0] for t in sequences])
    padded = []
    for tensor in sequences:
        missing = longest - tensor.shape[0]
        ends = [0, missing] if padding_side == "right" else [missing, 0]
        padded.append(torch.nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1) + ends, value=padding_value))
    return torch.stack(padded, 0 if batch_first else 1)


FUNCTIONS[_PAD] = _pad_sequence
