"""Recurrent networks in training: packed sequences, whose batch sizes are values of a tensor, and sequences that are
picked by a number that varies.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .harness import check, randn


def left(*modules):
    return [(p.detach().clone(), p.grad) for m in modules for p in m.parameters()]


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["loss", "step"])
@pytest.mark.parametrize("kind", [nn.LSTM, pytest.param(nn.GRU, marks=pytest.mark.slow), nn.RNN])
def test_packed_sequences(kind, whole):
    """torch's functions read the batch sizes in C++: with a number of steps that varies the process ended there."""

    def run(compiled):
        m, head = kind(5, 6, 2, bidirectional=True, batch_first=True, dropout=0.2), nn.Linear(12, 3)
        optimizer = torch.optim.SGD([*m.parameters(), *head.parameters()], 0.1)

        def loss_of(x, lengths, y):
            out, _ = m(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            out, _ = pad_packed_sequence(out, batch_first=True)
            return F.cross_entropy(head(out).flatten(0, 1), y[:, : out.shape[1]].flatten())

        def step(*batch):
            loss = loss_of(*batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        if whole:
            f = compiled(step)
        else:
            loss_of = compiled(loss_of)
            f = step
        return [f(randn(4, 7, 5), torch.tensor([3, 7 - k, 2, 5]), torch.randint(0, 3, (4, 7))) for k in range(4)], left(
            m, head
        )

    check(run, quiet=False)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_operator_on_packed_data(kind):
    """Without the module around it, as a frame in the middle of its forward would call it."""

    def run(compiled):
        m, out = kind(5, 6), []
        name = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "rnn_tanh"}[kind]

        def call(x, sizes, state):
            state = (state, state) if kind is nn.LSTM else state
            return (
                getattr(torch if x.shape[0] > 4 else torch.ops.aten, name)(
                    x, sizes, state, m._flat_weights, True, 1, 0.0, True, False
                )[0]
                * 2
            )

        f = compiled(call)
        for sizes in ([3, 2, 1], [3, 1], [2, 2, 1, 1]):
            result = f(randn(sum(sizes), 5), torch.tensor(sizes), torch.zeros(1, sizes[0], 6))
            result.sum().backward()
            out.append(result.detach())
        return out, left(m)

    check(run, quiet=False)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_sequences_by_index(kind):
    """sequences[i]: what varies is where it lies, not its size."""

    def run(compiled):
        m, head = kind(3, 4, batch_first=True), nn.Linear(4, 2)
        optimizer = torch.optim.SGD([*m.parameters(), *head.parameters()], 0.1)
        x, y = randn(6, 2, 5, 3), randn(6, 2, 2)

        def step(i):
            loss = F.mse_loss(head(m(x[i])[0][:, -1]), y[i])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = compiled(step)
        return [f(i) for i in (0, 3, 5, 2, 4)], left(m, head)

    check(run, quiet=True)
