"""oneDNN's LSTM on the CPU as an operator whose backward can be another call.

torch's mkldnn_rnn_layer gives the workspace that its backward reads where grad mode is on; compiled graphs run with it
off. So what is recorded is an operator of ours, which is told whether the mode was on.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

__all__ = ["INSTEAD", "OURS", "TORCHS"]

_layer = torch.ops.aten.mkldnn_rnn_layer.default
_ours = torch.library.Library("tcompile", "FRAGMENT")
_ours.define(f"rnn_layer{str(_layer._schema).partition('rnn_layer')[2].replace(') ->', ', bool workspace) ->', 1)}")


def _rnn_layer(*args: Any) -> tuple:
    *args, workspace = args
    with torch._C._AutoDispatchBelowAutograd(), torch.set_grad_enabled(workspace):
        return _layer(*args)


_ours.impl("rnn_layer", _rnn_layer, "CPU")


OURS, TORCHS = torch.ops.tcompile.rnn_layer.default, _layer


def _recorded(*args: Any) -> tuple:
    return OURS(*args, torch._C.is_grad_enabled())


# operator -> function of the same arguments and results, on other operators
INSTEAD: dict[Any, Callable[..., Any]] = {_layer: _recorded}
