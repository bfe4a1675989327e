"""Operators of torch that do not check all of their arguments, with the checks that they lack.

Graphs out of files call these in their place. Recurrent layers read weights and states of other sizes beyond their
ends, as does the norm of a weight. Attention reads values as far as there are keys. Truncating division of the smallest
whole number by -1 ends the process.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.nn.functional as F

from ..errors import ExportError

__all__ = ["CHECKED", "ORIGINALS", "div"]


def _sized(what: str, tensor: torch.Tensor, *sizes: int) -> None:
    if tuple(tensor.shape) != sizes:
        raise ExportError(f"{what} must have shape {list(sizes)}, got {list(tensor.shape)}")


def _recurrent(
    kind: str,
    gates: int,
    data: torch.Tensor,
    states: Sequence[torch.Tensor],
    batch: int | None,
    weights: Sequence[torch.Tensor],
    biases: bool,
    layers: int,
    bidirectional: bool,
) -> None:
    ways = 2 if bidirectional else 1
    if layers < 1:
        raise ExportError(f"{kind} of {layers} layers")
    projected, hidden = states[0].shape[-1], states[-1].shape[-1]
    for name, state in zip(("h", "c"), states):
        if (
            state.dim() != 3
            or state.shape[0] != layers * ways
            or batch is not None
            and state.shape[1] != batch
            or state.shape[1] != states[0].shape[1]
        ):
            raise ExportError(f"{kind}: the state {name} of shape {list(state.shape)} does not fit")
    each = 2 + 2 * biases + (projected != hidden)
    if len(weights) != each * layers * ways:
        raise ExportError(f"{kind} must have {each * layers * ways} weights, got {len(weights)}")
    for k in range(layers * ways):
        first, second, *others = weights[k * each : (k + 1) * each]
        _sized(f"{kind}: weight {k * each}", first, gates * hidden, data.shape[-1] if k < ways else projected * ways)
        _sized(f"{kind}: weight {k * each + 1}", second, gates * hidden, projected)
        for w in others[:2] if biases else ():
            _sized(f"{kind}: a bias", w, gates * hidden)
        if projected != hidden:
            _sized(f"{kind}: a projection", others[-1], projected, hidden)


def _checked_recurrent(kind: str, original: Callable, gates: int) -> Callable:
    def checked(data: torch.Tensor, *args: Any) -> Any:
        if len(args) != 8:
            raise ExportError(f"{kind} takes 9 arguments, got {1 + len(args)}")
        # (batch_sizes, states, weights, ...), else (states, weights, ...)
        is_packed = isinstance(args[2], (tuple, list))
        states, weights, has_biases, layers, _, _, bidirectional = args[1:] if is_packed else args[:-1]
        batch = None
        if not is_packed:
            if data.dim() != 3:
                raise ExportError(f"{kind} takes three dimensions, got {data.dim()}")
            batch = data.shape[0 if args[-1] else 1]
        states = states if kind == "lstm" else (states,)
        _recurrent(kind, gates, data, states, batch, weights, has_biases, layers, bidirectional)
        return original(data, *args)

    checked.__name__ = checked.__qualname__ = kind
    return checked


def _weight_norm(v: torch.Tensor, grad: torch.Tensor, dim: int = 0) -> torch.Tensor:
    shape = [1] * v.dim() if dim == -1 else [size if d == dim else 1 for d, size in enumerate(v.shape)]
    if dim == -1:
        shape = []
    _sized("weight_norm: the magnitude", grad, *shape)
    if not v.numel():
        raise ExportError("weight_norm of no elements")  # torch divides by their number, which ends the process
    return torch._weight_norm(v, grad, dim)


def scaled_dot_product_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor:
    if (
        min(query.dim(), key.dim(), value.dim()) < 2
        or key.shape[-2] != value.shape[-2]
        or query.shape[-1] != key.shape[-1]
    ):
        raise ExportError(
            f"attention of a query {list(query.shape)}, a key {list(key.shape)} and a value {list(value.shape)}"
        )
    return F.scaled_dot_product_attention(query, key, value, *args, **kwargs)


def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    floating = (
        isinstance(a, float)
        or isinstance(b, float)
        or isinstance(a, torch.Tensor)
        and a.is_floating_point()
        or isinstance(b, torch.Tensor)
        and b.is_floating_point()
    )
    if rounding_mode != "trunc" or floating:
        return torch.div(a, b, rounding_mode=rounding_mode)
    down = torch.div(a, b, rounding_mode="floor")
    return down + ((down < 0) & (torch.remainder(a, b) != 0))  # (what is rounded down and below zero is one more)


# Operator -> what is called in its place. (Of divisions, where they truncate.)
CHECKED: dict[Any, Callable] = {
    torch.lstm: _checked_recurrent("lstm", torch.lstm, 4),
    torch.gru: _checked_recurrent("gru", torch.gru, 3),
    torch.rnn_tanh: _checked_recurrent("rnn_tanh", torch.rnn_tanh, 1),
    torch.rnn_relu: _checked_recurrent("rnn_relu", torch.rnn_relu, 1),
    torch._weight_norm: _weight_norm,
    F.scaled_dot_product_attention: scaled_dot_product_attention,
}
ORIGINALS: dict[Callable, Any] = {**{checked: original for original, checked in CHECKED.items()}, div: torch.div}
