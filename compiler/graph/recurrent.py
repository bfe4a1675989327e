"""LSTM and GRU on tensors of symbolic sizes: torch's C++ asks for plain numbers there, and fixes the sizes or gives up.

What stands here for a function of torch's does what its C++ does on the CPU: oneDNN's operator a layer where that
serves, and otherwise one step after the other.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from .tensor import TraceTensor

__all__ = ["for_symbols"]

aten = torch.ops.aten

_MOST_STEPS = 64  # cells in a graph; longer sequences are torch's own to run
_LSTM = 2  # oneDNN's number of the kind of layer


def for_symbols(fn: Any, args: Sequence, kwargs: dict) -> Callable:
    """What to call instead of `fn` with these arguments: a function of ours, or `fn`."""
    make = _FORMS.get(fn) if isinstance(fn, _FUNCTION) else None
    tensors = [arg for arg in args if isinstance(arg, TraceTensor)]
    if make is None or kwargs or not tensors or any(tensor.device.type != "cpu" for tensor in tensors):
        return fn
    if not any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape):
        return fn
    return make(*args) or fn


_FUNCTION = (type(torch.lstm), type(torch.lstm_cell))


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return torch._C._nn.linear(x, weight, bias)


def _lstm_step(gates: Any, cell: Any, hidden: int) -> tuple:
    i, f, g, o = torch.split(gates, hidden, 1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _gru_step(of_input: Any, of_state: Any, state: Any, hidden: int) -> Any:
    (r_i, z_i, n_i), (r_h, z_h, n_h) = (torch.split(gates, hidden, 1) for gates in (of_input, of_state))
    new = torch.tanh(n_i + torch.sigmoid(r_i + r_h) * n_h)
    return (state - new) * torch.sigmoid(z_i + z_h) + new


# --- cells
def _cell(step: Callable) -> Callable:
    def form(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Callable:
        return lambda *args: step(x, hx, w_ih, w_hh, b_ih, b_hh)

    return form


def _lstm_cell(x: Any, hx: Sequence, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> tuple:
    return _lstm_step(_linear(hx[0], w_hh, b_hh) + _linear(x, w_ih, b_ih), hx[1], w_hh.shape[1])


def _gru_cell(x: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    return _gru_step(_linear(x, w_ih, b_ih), _linear(hx, w_hh, b_hh), hx, w_hh.shape[1])


# --- layers
def _sequence(is_lstm: bool) -> Callable:
    """The form of torch.lstm and torch.gru on padded data."""

    def form(
        x: Any,
        hx: Any,
        params: Any,
        has_biases: Any,
        num_layers: Any,
        dropout: Any,
        train: Any,
        bidirectional: Any,
        batch_first: Any = None,
    ) -> Callable | None:
        if type(batch_first) is not bool:  # packed data
            return None
        directions = 2 if bidirectional is True else 1
        states = list(hx) if is_lstm else [hx]
        parts = 4 if has_biases is True else 2
        length = x.shape[1 if batch_first is True else 0] if isinstance(x, TraceTensor) and x.dim() == 3 else None
        if (
            length is None
            or dropout
            and train
            and num_layers > 1
            or len(params) != parts * num_layers * directions  # (projections have more)
        ):
            return None
        weights = [[*params[k : k + parts], None, None][:4] for k in range(0, len(params), parts)]
        if is_lstm and _by_library(x, states, params):
            return lambda *args: _layers(x, states, weights, directions, batch_first, train, _library_layer)
        if isinstance(length, torch.SymInt) or length * len(weights) > _MOST_STEPS:
            return None
        layer = _lstm_layer if is_lstm else _gru_layer
        return lambda *args: _layers(x, states, weights, directions, batch_first, train, layer)

    return form


def _by_library(x: Any, states: list, params: Sequence) -> bool:
    """Whether oneDNN runs it as torch would; its workspace for a backward has a size that only it knows."""
    grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *states, *params))
    return not grad and torch.backends.mkldnn.enabled and x.dtype == torch.float32


def _layers(
    x: Any, states: list, weights: list[list], directions: int, batch_first: bool, train: bool, layer: Callable
) -> tuple:
    x = x.transpose(0, 1) if batch_first else x
    ends: list[tuple] = []
    for first in range(0, len(weights), directions):
        outputs = []
        for k in range(first, first + directions):
            of_layer = [state.select(0, k) for state in states]
            output, *end = layer(x, of_layer, weights[k], k > first, train)
            outputs.append(output)
            ends.append(tuple(end))
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
    finals = (torch.stack(list(of_state), 0) for of_state in zip(*ends))
    return x.transpose(0, 1) if batch_first else x, *finals


def _library_layer(x: Any, states: list, weights: list, reverse: bool, train: bool) -> tuple:
    w_ih, w_hh, *biases = weights
    has_biases = biases[0] is not None
    b_ih, b_hh = biases if has_biases else (torch.zeros_like(w_ih), torch.zeros_like(w_hh))
    h, c = (state.contiguous() for state in states)
    hidden = w_hh.shape[1]
    numbers: tuple = (reverse, [], _LSTM, hidden, 1, has_biases, False, False, train)
    with torch.no_grad():
        return aten.mkldnn_rnn_layer.default(x.contiguous(), w_ih, w_hh, b_ih, b_hh, h, c, *numbers)[:3]


def _lstm_layer(x: Any, states: list, weights: list, reverse: bool, train: bool) -> tuple:
    w_ih, w_hh, b_ih, b_hh = weights
    h, c = states
    steps, outputs = torch.unbind(_linear(x, w_ih, b_ih), 0), []
    for gates in reversed(steps) if reverse else steps:
        h, c = _lstm_step(gates + _linear(h, w_hh, b_hh), c, w_hh.shape[1])
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs, 0), h, c


def _gru_layer(x: Any, states: list, weights: list, reverse: bool, train: bool) -> tuple:
    w_ih, w_hh, b_ih, b_hh = weights
    (h,) = states
    steps, outputs = torch.unbind(_linear(x, w_ih, b_ih), 0), []
    for gates in reversed(steps) if reverse else steps:
        h = _gru_step(gates, _linear(h, w_hh, b_hh), h, w_hh.shape[1])
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs, 0), h


_FORMS: dict[Any, Callable] = {
    torch.lstm: _sequence(True),
    torch.gru: _sequence(False),
    torch.lstm_cell: _cell(_lstm_cell),
    torch.gru_cell: _cell(_gru_cell),
}
