"""Calls without tensor work run as plain Python where the graph breaks within them."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.capture.machine.python_alone import is_python_alone


def _draws(n):
    return np.random.permutation(n)[: n // 2]


def _seeds(n):
    torch.manual_seed(n)
    return torch.cuda.is_available()


def _prints(n):
    print(n, time.time())
    return [random.random() for _ in range(n)]


def _makes(n):
    return torch.randperm(n)


def _computes(n):
    return F.relu(n)


_TABLES, _NAMES = [torch.ones(2), torch.zeros(2)], {"a": [1, 2]}


def _reads_tensors(n):
    return _TABLES[n]


def _reads_names(n):
    return _NAMES["a"][n]


def _calls_it(n):
    return [_computes(k) for k in range(n)]


class _Attention(torch.nn.Module):
    """A plan of whole numbers in each call, drawn by numpy, as BigBird's random attention draws its."""

    def __init__(self):
        super().__init__()
        self.linear, self.blocks = torch.nn.Linear(4, 4), 6

    def plan(self, rows):
        chosen = [np.zeros(2, dtype=np.int64) for _ in range(rows)]
        for row in range(rows):
            for place in range(self.blocks):
                if place not in self.taken(row) and np.random.random() > 0.4:
                    chosen[row][place % 2] = place
        return chosen

    @staticmethod
    def taken(row):
        return list(range(row - 1, row + 2))

    def forward(self, x):
        np.random.seed(3)
        y = self.linear(x).relu()
        rows = torch.as_tensor(np.stack(self.plan(3)))
        return (y[rows] * 2).sum()

    def uses_layer(self):
        return self.linear.weight

    def uses_weights(self):
        for p in self.parameters():
            p.data.mul_(0.5)


@pytest.mark.parametrize("function, alone", [
    (_draws, True), (_seeds, True), (_prints, True), (_makes, False), (_computes, False), (_calls_it, False),
    (_reads_tensors, False), (_reads_names, True),
])  # fmt: skip
def test_names_tell(function, alone):
    assert is_python_alone(function, (3,)) is alone


def test_what_is_given_tells():
    model = _Attention()
    assert all(is_python_alone(_draws, (given,)) for given in (3, [1, "a", None], np.float32(2), {"a": (1, 2)}))
    assert not any(
        is_python_alone(_draws, (given,)) for given in (torch.ones(2), [torch.ones(2)], np.ones(2), object())
    )
    assert is_python_alone(_Attention.plan, (model, 3))
    assert not any(is_python_alone(f, (model,)) for f in (_Attention.uses_layer, _Attention.uses_weights))


def test_a_plan_that_is_drawn_is_no_part_of_graphs():
    torch.manual_seed(0)
    model = _Attention()
    compiled, x = tcompile.compile(model), torch.randn(8, 4)
    for call in range(3):
        with tcompile.record() as recorded:
            got = compiled(x)
        torch.testing.assert_close(got, model(x))
        report = recorded.report()
        assert len(report.graphs) == (0 if call else 2) and not report.recompiles and not report.fallbacks
        if not call:
            assert {b.function for b in report.graph_breaks} == {"_Attention.forward", "_Attention.plan"}
