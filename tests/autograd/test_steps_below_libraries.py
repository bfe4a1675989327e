"""Optimizers' steps that library code takes, below a cell: compiled entries, with eager's results."""

from __future__ import annotations

import sys
import sysconfig
import types

import pytest
import torch

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.frontend.optimizer_steps import STEP_CALLS
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")

LIBRARY = """
import time


def fit(model, opt, x, steps, schedule=None, with_closure=False):
    began, losses = time.time(), []

    def closure():
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for i in range(steps):
        if with_closure:
            loss = opt.step(closure)
        else:
            loss = closure()
            opt.step()
        if schedule is not None:
            schedule.step()
        losses.append(loss.item())
        assert len(f"{began}-{i}") > 0
    return losses
"""


@pytest.fixture
def library():
    hook.reset()  # other tests have entries of the same optimizers
    module = types.ModuleType("a_trainer")
    exec(compile(LIBRARY, sysconfig.get_paths()["purelib"] + "/a_trainer.py", "exec"), module.__dict__)
    sys.modules["a_trainer"] = module
    yield module
    del sys.modules["a_trainer"]
    hook.reset()


def build(kind, **keywords):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    return model, kind(model.parameters(), **keywords)


KINDS = [
    (torch.optim.AdamW, {"lr": 1e-2}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 1e-2}),
]


@pytest.mark.parametrize("kind, keywords", KINDS)
@pytest.mark.parametrize("with_closure", [False, True])
def test_steps_are_eagers(library, kind, keywords, with_closure):
    x = torch.randn(5, 6, dtype=torch.float64)
    model, opt = build(kind, **keywords)
    want = library.fit(model, opt, x, 12, torch.optim.lr_scheduler.ExponentialLR(opt, 0.9), with_closure)
    steps, runs = [], []
    for _ in range(3):
        mine, mine_opt = build(kind, **keywords)
        names = {
            "lib": library,
            "model": mine,
            "opt": mine_opt,
            "x": x,
            "schedule": torch.optim.lr_scheduler.ExponentialLR(mine_opt, 0.9),
            "with_closure": with_closure,
        }
        steps.clear()

        def note(e):
            if e.kind == "capture_begin" and e.frame == "Optimizer.step":
                steps.append(e.frame)

        with events.listen(note):
            text = "out = lib.fit(model, opt, x, 12, schedule, with_closure)"
            hook.run_code(compile(text, "<cell 1>", "exec"), names, Options.make(None, "eager", False, None, None))
        runs.append(len(steps))
        torch.testing.assert_close(names["out"], want)
        torch.testing.assert_close(list(mine.parameters()), list(model.parameters()))
        assert mine_opt.state_dict()["param_groups"] == opt.state_dict()["param_groups"]
        torch.testing.assert_close(mine_opt.state_dict()["state"], opt.state_dict()["state"])
    assert runs == [1, 0, 0]  # compiled once, for every optimizer of the kind


def test_hooks_and_few_steps_and_other_optimizers_run_as_they_are(library):
    x = torch.randn(5, 6, dtype=torch.float64)
    seen, captured = [], []
    opts = Options.make(None, "eager", False, None, None)

    def note(e):
        if e.kind == "entry" and e.frame == "Optimizer.step":
            captured.append(e.frame)

    def run(opt, model, steps, with_closure=False):
        names = {"lib": library, "model": model, "opt": opt, "x": x, "n": steps, "c": with_closure}
        with events.listen(note):
            hook.run_code(compile("out = lib.fit(model, opt, x, n, None, c)", "<cell 1>", "exec"), names, opts)
        return names["out"]

    model, opt = build(torch.optim.Adam)
    run(opt, model, STEP_CALLS)
    assert not captured
    model, opt = build(torch.optim.LBFGS)
    other, eager = build(torch.optim.LBFGS)
    assert run(opt, model, 6, True) == pytest.approx(library.fit(other, eager, x, 6, None, True))
    assert not captured
    model, opt = build(torch.optim.Adam)
    opt.register_step_post_hook(lambda *a: seen.append(1))
    other, eager = build(torch.optim.Adam)
    assert run(opt, model, 12) == pytest.approx(library.fit(other, eager, x, 12))
    assert len(seen) == 12


def test_an_error_in_a_closure_leaves_grad_mode_as_it_was(library):
    model, opt = build(torch.optim.SGD, lr=0.1)
    x = torch.randn(5, 6, dtype=torch.float64)
    names = {"lib": library, "model": model, "opt": opt, "x": x}
    opts = Options.make(None, "eager", False, None, None)
    for _ in range(2):
        hook.run_code(compile("lib.fit(model, opt, x, 8, None, True)", "<cell 1>", "exec"), names, opts)
    names["x"] = torch.randn(5, 7, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="shapes"):
        hook.run_code(compile("lib.fit(model, opt, x, 8, None, True)", "<cell 1>", "exec"), names, opts)
    assert torch.is_grad_enabled()
