"""The optimizers and their schedules, in a step that is captured as a whole and compiled by themselves."""

from __future__ import annotations

import functools

import pytest
import tcompile
import torch
from tcompile.compiler import events
from torch import nn

from .harness import check, mlp, randn
from .steps import OPTIMIZERS, Signs, all_of, train


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    check(functools.partial(train, make=OPTIMIZERS[name], steps=8), quiet=True)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "muon"])
def test_a_parameter_without_dimensions(name):
    """A temperature, a logit scale."""

    def run(compiled):
        m, scale = mlp(), nn.Parameter(torch.tensor(1.5))
        opt = OPTIMIZERS[name]([*m.parameters(), scale])

        def step(x):
            opt.zero_grad()
            loss = (m(x) * scale.exp()).pow(2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        f = compiled(step)
        return (
            [f(randn(6, 4)) for _ in range(7)],
            scale.detach(),
            scale.grad,
            all_of(m, opt),
            list(opt.state[scale].items()),
        )

    check(run, quiet=name != "sgd_momentum")  # (dampened: its first step makes the state)


def test_an_optimizer_that_breaks():
    check(functools.partial(train, make=lambda p: torch.optim.Adafactor(p, 0.01), steps=8), quiet=False)


def test_an_optimizer_of_the_programs_own():
    check(functools.partial(train, make=lambda p: Signs(p, 0.01), steps=4), quiet=False)


@pytest.mark.parametrize("name", ["sgd_momentum_alone", "radam", "adamw"])
def test_the_first_step_and_the_later_ones_are_one_entry(name):
    made = []

    def hear(e):
        if e.kind == "entry":
            made.append(e)

    tcompile.reset()
    events.subscribe(hear)
    try:
        train(tcompile.compile, OPTIMIZERS[name], steps=4)
    finally:
        events.unsubscribe(hear)
    assert len(made) == 1


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["sgd_momentum", "adamw"])
def test_schedules(name, schedule):
    check(functools.partial(train, make=OPTIMIZERS[name], scheduler=SCHEDULES[schedule], steps=8), quiet=False)


def test_a_schedule_compiles_nothing_anew():
    seen = []

    def hear(e):
        if e.kind in ("recompile", "break", "skip"):
            seen.append((e.kind, str(e.facts)))

    tcompile.reset()
    events.subscribe(hear)
    try:
        train(tcompile.compile, OPTIMIZERS["adamw"], scheduler=SCHEDULES["cosine"], steps=6)
    finally:
        events.unsubscribe(hear)
    assert not seen


# --- opt.step compiled by itself
@pytest.mark.parametrize("name", ["sgd_momentum", "adam", "adamw", "rmsprop_all"])
def test_a_compiled_step_method(name):
    def run(compiled):
        m = mlp()
        opt = OPTIMIZERS[name](m.parameters())
        step = compiled(opt.step)
        for _ in range(4):
            opt.zero_grad()
            m(randn(3, 4)).pow(2).sum().backward()
            step()
        return all_of(m, opt)

    check(run, quiet=True)
