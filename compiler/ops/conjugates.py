"""Conjugate and negative views: memory with a bit that says how it is read.

A traced view has the bit, so that torch's C++ answers and resolves it as in eager. Its value in a graph is computed.
Autograd takes conjugates inside of its formulas as such views, too. The formula alone reads them: they are computed.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD", "OPERATORS", "copy_bits", "has_bits", "mark", "view_with_bits", "without_bits"]

aten = torch.ops.aten

# the view that sets a bit, or takes it away again -> the operator that computes its value, and the view's from that
OPERATORS: dict[Any, Any] = {
    aten._conj.default: aten.conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}


def _in_formulas(view: torch._ops.OpOverload, computed: torch._ops.OpOverload) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        node = torch._C._current_autograd_node()
        # (the node of a write through a view writes into views of the gradient)
        return NotImplemented if node is None or node.name().endswith("CopySlices") else computed(x)

    return call


INSTEAD: dict[Any, Callable[[Any], Any]] = {view: _in_formulas(view, made) for view, made in OPERATORS.items()}


def has_bits(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def mark(op: torch._ops.OpOverload, source: Any, out: Any) -> None:
    """Give the views that `op` made of a traced tensor the bits that they have in eager."""
    if not isinstance(source, torch.Tensor):
        return
    conj = source.is_conj() is not (op is aten._conj.default)
    neg = source.is_neg() is not (op is aten._neg_view.default)
    if not conj and not neg:
        return
    if conj and op is aten.view_as_real.default:
        raise RuntimeError(
            "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the conjugate tensor so you can"
            " view it as real, use self.resolve_conj(); however, be warned that the resulting tensor will NOT alias the"
            " original."
        )
    for t in out if isinstance(out, (list, tuple)) else (out,):
        if t.dtype is not source.dtype and op is aten.view.dtype:
            kind = "conjugate view tensors" if conj else "tensors with negative bit set"
            raise RuntimeError(f"torch.Tensor.view is not supported for {kind} when converting to a different dtype.")
        torch._C._set_conj(t, conj)
        torch._C._set_neg(t, neg)


def copy_bits(source: torch.Tensor, tensor: torch.Tensor) -> None:
    """Read `tensor` as `source` is read."""
    torch._C._set_conj(tensor, source.is_conj())
    torch._C._set_neg(tensor, source.is_neg())


def without_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as it lies there."""
    with torch.enable_grad():
        if tensor.is_conj():
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if tensor.is_neg() else tensor


def view_with_bits(tensor: torch.Tensor, conj: bool, neg: bool, recorded: bool, view: bool) -> torch.Tensor:
    """What `without_bits` was given, of what it gave. recorded: by autograd, where that requires a gradient."""
    with torch.set_grad_enabled(recorded):
        if neg:
            tensor = torch._neg_view(tensor)
        if conj:
            tensor = torch._conj(tensor)
    return tensor if view else tensor.detach()
