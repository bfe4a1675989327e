"""Recurrent modules, forward and training: their kernels hand opaque workspaces from forward to backward."""
from __future__ import annotations

import pytest
import tcompile
import torch
import torch.nn as nn


@pytest.mark.parametrize("make", [
    lambda: nn.LSTM(6, 5, batch_first=True), lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
    lambda: nn.GRU(6, 5, batch_first=True), lambda: nn.RNN(6, 5, batch_first=True), lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True),
], ids=["lstm", "deep", "gru", "rnn", "projected"])
def test_recurrent_module_trains(make):
    torch.manual_seed(0)
    module = make()
    x = torch.randn(3, 4, 6, requires_grad=True)

    def run(f):
        module.zero_grad()
        x.grad = None
        out, state = f(x)
        (out.pow(2).sum() + sum(s.sum() for s in (state if isinstance(state, tuple) else (state,)))).backward()
        return out.detach(), x.grad, [p.grad.clone() for p in module.parameters()]
    want = run(module)
    compiled = tcompile.compile(module)
    for _ in range(2):
        torch.testing.assert_close(run(compiled), want, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x)[0], want[0], rtol=1e-4, atol=1e-5)
