"""Recurrent modules, forward and training: their kernels hand opaque workspaces from forward to backward."""

from __future__ import annotations

import pytest
import tcompile
import torch
import torch.nn as nn
from tcompile.compiler import events


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(6, 5, batch_first=True),
        lambda: nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True),
        lambda: nn.GRU(6, 5, batch_first=True),
        lambda: nn.RNN(6, 5, batch_first=True),
        lambda: nn.LSTM(6, 5, proj_size=3, batch_first=True),
    ],
    ids=["lstm", "deep", "gru", "rnn", "projected"],
)
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


@pytest.mark.parametrize("amp", [False, True])
def test_an_lstm_trains_inside_of_a_whole_step(amp):
    """Its kernels are calls of the compiled graphs, forward and backward: nothing around them runs as in eager."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru, self.head = (
                nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True),
                nn.GRU(16, 8, batch_first=True),
                nn.Linear(8, 3),
            )

        def forward(self, x):
            return self.head(self.gru(self.lstm(x)[0])[0][:, -1])

    def run(compiled):
        torch.manual_seed(0)
        model = Model()
        opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def step(x):
            opt.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = nn.functional.smooth_l1_loss(model(x), torch.ones(len(x), 3))
            loss.backward()
            opt.step()
            return loss.detach()

        f = compiled(step)
        return [f(torch.randn(4, 5, 6)) for _ in range(6)], [p.detach() for p in model.parameters()]

    try:
        want = run(lambda f: f)
    except RuntimeError as error:
        if not amp or "primitive descriptor" not in str(error):
            raise
        pytest.skip("oneDNN has no LSTM in bfloat16 for this processor: eager raises")
    said = []
    hear = lambda e: (
        said.append(e.facts)
        if e.kind in ("break", "skip") or e.kind == "fallback" and "gradients" in e.facts["what"]
        else None
    )  # noqa: E731
    events.subscribe(hear)
    try:
        got = run(tcompile.compile)
    finally:
        events.unsubscribe(hear)
    torch.testing.assert_close(got, want, rtol=1e-2 if amp else 1e-4, atol=1e-2 if amp else 1e-5)
    assert not said
