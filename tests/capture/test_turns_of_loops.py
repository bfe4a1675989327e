"""Loops of a cell, one turn at a time: a turn is captured once, whatever its number; a turn that waits compiles
nothing."""

from __future__ import annotations

import textwrap

import pytest
import torch

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")

BODY = "\n    x = torch.tanh(x @ w) + i\n    h.append(float(x.sum()))\n"
HEADS = {
    "range": "for i in range(6):",
    "floats": "for i in (0.5, 1.5, 2.5, 3.5):",
    "enumerate": "for i, b in enumerate(batches):",
    "zip": "for b, i in zip(batches, range(1, 9)):",
    "unused": "for k in range(6):\n    i = 1",
}


@pytest.fixture(autouse=True)
def fresh():
    yield
    hook.reset()


def names():
    g = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 8, generator=g) for _ in range(6)]
    w, x = torch.randn(8, 8, generator=g), torch.randn(4, 8, generator=g)
    return {"torch": torch, "__name__": "__main__", "batches": batches, "w": w, "x": x, "h": []}


def run(text, space, **given):
    """Names of the frames that were captured."""
    captured = []
    with events.listen(lambda e: captured.append(e.frame) if e.kind == "capture_begin" else None):
        hook.run_code(compile(text, "<cell>", "exec"), space, Options.make(options=given or None))
    return captured


@pytest.mark.parametrize("head", HEADS)
def test_the_second_turn_compiles_nothing(head):
    plain, ours = names(), names()
    exec(HEADS[head] + BODY, plain)
    captured = run(HEADS[head] + BODY, ours)
    assert sum("<loop" in name for name in captured) == 1, captured
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert type(ours["i"]) is type(plain["i"]) and ours["i"] == plain["i"]


def test_a_number_that_the_program_branches_on():
    text = "for i in range(6):\n    x = x * 2 if i % 2 else x - x.mean() * i\n    h.append(x.sum().item())\n"
    plain, ours = names(), names()
    exec(text, plain)
    captured = run(text, ours)
    assert sum("<loop" in name for name in captured) == 2, captured
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)


STEPS = """\
for (x,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.cat(batches)), 8):
    loss = (model(x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_first_step_that_waits_compiles_nothing():
    text = f"""
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), 0.1)
{STEPS}
h.append(loss.item())
"""
    plain, ours = names(), names()
    captured = []
    for _ in range(5):
        torch.manual_seed(0)
        exec(text, plain)
        torch.manual_seed(0)
        captured.append(run(text, ours))
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert captured[2:] == [[], [], []]


def test_each_first_step_of_a_run_waits():
    text = f"""
for fold in range(4):
    torch.manual_seed(fold)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for epoch in range(2):
{textwrap.indent(STEPS, " " * 8)}
    h.append(loss.item())
"""
    plain, ours = names(), names()
    captured = []
    for _ in range(4):
        exec(text, plain)
        captured.append(run(text, ours))
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert captured[1:] == [[], [], []]


def test_each_first_step_of_a_run_waits_where_the_class_is_defined_anew():
    """The entry is renamed in the first of them, and counts its calls from 0 again."""
    text = f"""
class Net(torch.nn.Linear):
    pass

for fold in range(4):
    torch.manual_seed(fold)
    model = Net(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for epoch in range(2):
{textwrap.indent(STEPS, " " * 8)}
    h.append(loss.item())
"""
    plain, ours = names(), names()
    captured = []
    for _ in range(4):
        exec(text, plain)
        captured.append(run(text, ours))
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert captured[1:] == [[], [], []]


def test_an_id_that_each_run_makes_anew_is_asked_outside():
    space = names()
    space["kept"], space["Key"] = [], type("Key", (), {})  # (kept: no two runs have one address)
    space["f"] = lambda key, x: (x * 2).sum() + 0 * id(key)
    text = "key = Key()\nkept.append(key)\nfor i in range(3):\n    h.append(f(key, x))\n    print(end='')\n"
    captured = [run(text, space) for _ in range(6)]
    assert captured[1:] == [[]] * 5, captured
    torch.testing.assert_close(space["h"], [(space["x"] * 2).sum()] * 18, rtol=1e-5, atol=1e-5)


def test_the_last_batch_of_slices_is_like_the_others():
    text = "data = torch.cat(batches)\nfor i in range(0, 24, 4):\n    h.append((data[i : i + 4] * 2).sum().item())\n"
    plain, ours = names(), names()
    exec(text, plain)
    captured = run(text, ours)
    assert sum("<loop" in name for name in captured) == 1, captured
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)


WARM_UP = """
optimizer = torch.optim.SGD(model.parameters(), 0.3)
for step in range(9):
    for group in optimizer.param_groups:
        group["lr"] = 0.3 * min(1, (step + 1) / 5)
    loss = (model(batches[step % 6]) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    h.append(loss.item())
"""


def test_a_learning_rate_that_grows_at_first_stays_then():
    plain, ours = names(), names()
    for space in (plain, ours):
        torch.manual_seed(0)
        space["model"] = torch.nn.Linear(8, 4)
    exec(WARM_UP, plain)
    run(WARM_UP, ours)
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert ours["optimizer"].param_groups[0]["lr"] == plain["optimizer"].param_groups[0]["lr"] == 0.3


WINDOWS = """
def windows(n):
    starts = torch.randint(len(data) - 8, (n,))
    return torch.stack([data[i : i + 8] for i in starts])

for step in range(12):
    loss = (model(windows(6)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 4 == 0:
        h.append(loss.item())
"""


def test_windows_that_overlap_now_and_then_are_one_program():
    """With the break in a function, the loop's number is a global for what goes on in the cell: no constant."""
    plain, ours = names(), names()
    for space in (plain, ours):
        torch.manual_seed(0)
        space["data"], space["model"] = torch.randn(50), torch.nn.Linear(8, 4)
        space["optimizer"] = torch.optim.Adam(space["model"].parameters(), 0.1)
        state = torch.get_rng_state()
    exec(WINDOWS, plain)
    torch.set_rng_state(state)
    recompiled = []
    with events.listen(lambda e: recompiled.append(e.failures[0].got_text) if e.kind == "recompile" else None):
        run(WINDOWS, ours)
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-4, atol=1e-5)
    assert len(recompiled) == 1 and "% 4" in recompiled[0], recompiled


EPOCHS = """
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model.scale = None
for epoch in range(3):
    for i in range(0, 24, 8):
        if model.scale is None:
            model.scale = torch.ones(())
        loss = (model(data[i : i + 8]) ** 2).mean() * model.scale
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    h.append(loss.item())
"""


def test_an_inner_loop_begins_at_0_again():
    """What the first turn sets up is met twice, with and without, and not a third time where `i` is 0 again."""
    plain, ours = names(), names()
    for space in (plain, ours):
        torch.manual_seed(0)
        space["model"], space["data"] = torch.nn.Linear(8, 4), torch.cat(space["batches"])
    exec(EPOCHS, plain)
    recompiled = []
    with events.listen(lambda e: recompiled.append(e.failures[0].got_text) if e.kind == "recompile" else None):
        run(EPOCHS, ours)
    torch.testing.assert_close(ours["h"], plain["h"], rtol=1e-5, atol=1e-5)
    assert len(recompiled) == 1 and "scale" in recompiled[0], recompiled
