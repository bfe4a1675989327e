"""What updates of parameters are compiled to: kernels that parameters share, no calls of torch's, one entry for every
model and step.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tcompile
from tcompile.compiler import events

from .harness import mlp, randn


def test_updates_of_small_parameters_share_kernels():
    """Horizontally: they read and write nothing in common."""
    m = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(8)])
    opt = torch.optim.AdamW(m.parameters())
    for p in m.parameters():
        p.grad = torch.randn_like(p)
    schedules = []
    hear = lambda e: schedules.append(e.facts) if e.kind == "schedule" else None  # noqa: E731
    events.subscribe(hear)
    try:
        tcompile.compile(lambda: opt.step())()
    finally:
        events.unsubscribe(hear)
    assert len(schedules) == 1 and len(schedules[0]["launches"]) <= 8  # for 32 parameters, each with a counter


def test_lists_of_tensors_are_fused():
    m = mlp()
    loss = m(torch.randn(3, 4)).sum()
    loss.backward()

    def clip():
        return nn.utils.clip_grad_norm_(m.parameters(), 0.1)

    assert not tcompile.explain(clip)().externs


def test_a_scaled_step_is_compiled_up_to_its_branch():
    """Of GradScaler.step, the question whether a gradient is infinite: what comes before and after it is two graphs,
    none by eager's kernels.
    """
    m = mlp()
    opt, scaler = torch.optim.AdamW(m.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=4.0)

    def step(x):
        opt.zero_grad()
        loss = m(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(opt)
        return loss.detach()

    said = []
    hear = lambda e: said.append(e) if e.kind in ("fallback", "break") else None  # noqa: E731
    events.subscribe(hear)
    try:
        f = tcompile.compile(step)
        for _ in range(3):
            f(torch.randn(3, 4))
            scaler.update()
    finally:
        events.unsubscribe(hear)
    assert {e.facts["brk"].kind for e in said if e.kind == "break"} == {"item"}
    assert not [e.facts for e in said if e.kind == "fallback"]


def test_one_entry_serves_every_model_and_step():
    entries = []

    def hear(e):
        if e.kind in ("entry", "recompile"):
            entries.append(e.kind)

    def step(m, opt, x):
        opt.zero_grad()
        loss = m(x).pow(2).sum()
        loss.backward()
        opt.step()
        return loss

    tcompile.reset()
    f = tcompile.compile(step)
    events.subscribe(hear)
    try:
        for _ in range(3):
            m, n = mlp(), mlp()
            a, b = torch.optim.AdamW(m.parameters(), 0.01), torch.optim.AdamW(n.parameters(), 0.01)
            for _ in range(3):
                x = randn(3, 4)
                f(m, a, x)
                step(n, b, x)
            for p, q in zip(m.parameters(), n.parameters()):
                torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    finally:
        events.unsubscribe(hear)
    assert "recompile" not in entries


@pytest.mark.parametrize("found", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 2])
@pytest.mark.parametrize("scale", [65536.0, 3e38, 0.3])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.7, 0.3)])
def test_the_scale_of_a_grad_scaler_is_updated_as_by_torch(found, tracker, scale, factors):
    def update(scale, tracker, found):
        return torch._amp_update_scale_(scale, tracker, found, *factors, 3)

    def given():
        return torch.tensor([scale]), torch.tensor([tracker], dtype=torch.int32), torch.tensor([found])

    mine, theirs = given(), given()
    with tcompile.record() as recording:
        got = tcompile.compile(update)(*mine)
    assert not recording.report().fallbacks
    want = update(*theirs)
    for a, b in zip((got, *mine), (want, *theirs)):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert got is mine[0] and want is theirs[0]
