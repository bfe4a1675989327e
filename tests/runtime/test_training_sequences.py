"""Random sequences of what training programs do, by graphs and eager: no pass may read or write memory that somebody
still holds.
"""

from __future__ import annotations

import copy
from typing import Any, Iterator

import pytest
import torch
import torch.nn as nn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcompile
from tcompile.compiler.native import native
from tcompile.compiler.runtime.gpu import cuda_graphs

from . import test_training_graphs as steps
from .graph_stand_in import graphs_on_the_cpu

pytestmark = pytest.mark.skipif(native is None, reason="CUDA graphs need the C extension")

LAYERS = (nn.GELU, nn.Tanh, nn.ReLU, lambda: nn.LayerNorm(24), lambda: nn.BatchNorm1d(24))
WHAT = (
    "step",
    "step",
    "step",
    "step",
    "step, gradients kept to be added to",
    "step, zeroed in between",
    "step, zeroed in place",
    "hold",
    "let go",
    "without gradients",
    "two forwards",
    "backward twice",
    "update",
    "forward alone",
)


@pytest.fixture(scope="module")
def made() -> Iterator[list[cuda_graphs.CudaGraphs]]:
    with pytest.MonkeyPatch.context() as patch, graphs_on_the_cpu(patch), steps.noting("cpu", patch) as found:
        yield found


class Both:
    """A compiled module and its copy in eager, which do the same; and gradients that the program holds."""

    def __init__(self, layers: list[Any]):
        modules = nn.Sequential(nn.Linear(16, 24), *layers, nn.Linear(24, 8))
        self.modules = modules, copy.deepcopy(modules)
        self.calls = tcompile.compile(modules, mode="reduce-overhead", dynamic=False), self.modules[1]
        self.optimizers = [torch.optim.SGD(m.parameters(), 0.02, momentum=0.9) for m in self.modules]
        self.held: list[tuple[torch.Tensor, torch.Tensor]] = []

    def zero(self, to_none: bool = True) -> None:
        for o in self.optimizers:
            o.zero_grad(set_to_none=to_none)

    def do(self, what: str, rows: int) -> None:
        x, x2 = torch.randn(rows, 16), torch.randn(rows, 16)
        if what == "hold":
            self.held += [
                (p.grad, p.grad.clone()) for p in list(self.modules[0].parameters())[::2] if p.grad is not None
            ]
        elif what == "let go":
            self.held.clear()
        elif what == "update":
            for m, o in zip(self.modules, self.optimizers):
                torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0) if not self.held else None
                o.step()
        elif what == "without gradients":
            with torch.no_grad():
                torch.testing.assert_close(self.calls[0](x), self.calls[1](x), atol=2e-4, rtol=2e-3)
        elif what == "forward alone":
            torch.testing.assert_close(*(c(x) for c in self.calls), atol=2e-4, rtol=2e-3)
        else:
            if what in ("step", "two forwards", "backward twice"):
                self.zero()
            if what == "step, zeroed in place":
                self.zero(to_none=False)
            results = [(c(x), c(x2) if what == "two forwards" else None) for c in self.calls]
            if what == "step, zeroed in between":
                self.zero()
            for y, y2 in results:
                loss = y.square().mean() + (0 if y2 is None else y2.mean())
                if what == "backward twice":
                    loss.backward(retain_graph=True)
                loss.backward()

    def check(self) -> None:
        for p, q in zip(*(m.parameters() for m in self.modules)):
            assert (p.grad is None) == (q.grad is None)
            torch.testing.assert_close(p, q, atol=3e-4, rtol=3e-3)
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, atol=3e-4, rtol=3e-3)
        now = {id(p.grad) for p in self.modules[0].parameters()}  # these may be added to
        assert all(torch.equal(g, before) for g, before in self.held if id(g) not in now)
        self.held = [(g, g.clone() if id(g) in now else before) for g, before in self.held]


@given(st.data())
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
def test_like_eager(made: list[cuda_graphs.CudaGraphs], data: st.DataObject) -> None:
    torch.manual_seed(data.draw(st.integers(0, 1 << 20)))
    both = Both([data.draw(st.sampled_from(LAYERS))() for _ in range(data.draw(st.integers(1, 3)))])
    for what in ["step"] * 4 + data.draw(st.lists(st.sampled_from(WHAT), min_size=4, max_size=16)):
        both.do(what, data.draw(st.sampled_from((6, 6, 6, 9))))
        both.check()
    tcompile.reset()


def test_that_graphs_ran(made: list[cuda_graphs.CudaGraphs]) -> None:
    """Not that all of the above ran plainly."""
    both = Both([nn.Tanh()])
    for _ in range(6):
        both.do("step", 6)
        both.check()
    assert sum(c.replays for c in made[-2:]) >= 6 and steps.lent(made[-2:])
