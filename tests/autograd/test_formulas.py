"""Backward formulas of losses, activations and norms are written out, for sizes that vary too: no operator of them runs
by itself.
"""

from __future__ import annotations

from typing import Callable

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events

X = torch.linspace(-3, 3, 48).view(6, 8) * torch.linspace(0.4, 1.3, 8)
Y = X.flip(1).sin()

FORMULAS: dict[str, tuple[Callable, tuple]] = {
    **{
        f"{f.__name__} {r}": (lambda a, b, f=f, r=r: f(a, b, reduction=r), (X, Y))
        for f in (F.mse_loss, F.smooth_l1_loss, F.huber_loss)
        for r in ("mean", "sum", "none")
    },
    "smooth_l1 beta": (lambda a, b: F.smooth_l1_loss(a, b, beta=0.7), (X, Y)),
    "huber delta": (lambda a, b: F.huber_loss(a, b, delta=1.7), (X, Y)),
    "bce": (lambda a, b: F.binary_cross_entropy(a.sigmoid(), b.sigmoid().detach()), (X, Y)),
    "bce weights": (
        lambda a, b: torch.ops.aten.binary_cross_entropy(a.sigmoid(), b.sigmoid().detach(), b.detach().abs(), 2),
        (X, Y),
    ),
    "bce at the ends": (
        lambda a, b: F.binary_cross_entropy(a.clamp(0, 1), (b.detach() > 0).to(a.dtype), reduction="none"),
        (X, Y),
    ),
    "logsigmoid": (F.logsigmoid, (X * 20,)),
    "logit": (torch.logit, (X.abs() / 5,)),
    "logit within bounds": (lambda a: torch.logit(a, 0.3), (X / 3,)),
    "glu": (F.glu, (X,)),
    "glu over rows": (lambda a: F.glu(a.t(), 1), (X,)),
    "prelu": (F.prelu, (X, torch.linspace(0.1, 0.4, 8))),
    "prelu of one": (lambda a, w: F.prelu(a.t(), w), (X, torch.tensor([0.25]))),
    "batch norm": (
        lambda a, w: F.batch_norm(a.view(-1, 8), None, None, w, training=True),
        (X, torch.linspace(0.5, 2, 8)),
    ),
}


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=["float32", "bfloat16"]
)
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "vary"])
@pytest.mark.parametrize("name", FORMULAS)
def test_like_eager(name: str, dynamic: bool, dtype: torch.dtype) -> None:
    f, inputs = FORMULAS[name]
    compiled, alone = tcompile.compile(f, fullgraph=True, dynamic=dynamic), []

    def hear(e: events.Event) -> None:
        if e.kind == "fallback":
            alone.append(e.facts)

    events.subscribe(hear)
    try:
        found = []
        for g in (f, compiled):
            leaves = [t.detach().to(dtype, copy=True).requires_grad_() for t in inputs]
            result = g(*leaves)
            result.backward(torch.cos(torch.arange(result.numel())).to(dtype).view(result.shape))
            found.append([result.detach(), *(t.grad for t in leaves if t.grad is not None)])
    finally:
        events.unsubscribe(hear)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for got, want in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, want, **tolerance)
        assert got.stride() == want.stride()
    assert not alone
