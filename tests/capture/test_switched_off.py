"""Entries of library code that measure slower than plain calls are switched off (frontend/slow_entries.py). Times are
made up: an entry takes what a test says, a plain call one second."""

from __future__ import annotations

import pytest
import torch

from tcompile.compiler import config, events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook, policy, slow_entries
from tcompile.compiler.report.builder import ReportBuilder
from tcompile.compiler.runtime import frame_hook

from .test_library_policy import installed

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")


@pytest.fixture
def library():
    yield from installed()


@pytest.fixture
def clock(monkeypatch, tmp_path):
    """Seconds that calls take, and how often each kind was timed."""
    clock = {"entry": 2.0, "plain": 1.0, "timed": []}

    def timed(form, fn, *args):
        kind = "plain" if fn is slow_entries.call_original else "entry"
        clock["timed"].append(kind)
        return fn(*args), clock[kind]

    monkeypatch.setattr(slow_entries, "_timed", timed)
    with config.patch(switch_off_slower=True, cache_dir=str(tmp_path)):
        yield clock
        hook.reset()


def new_session():
    """Forget what is in memory, as the end of a process does; what lies on disk stays."""
    for engine in hook.all_engines():
        engine.times.forms.clear()
    hook.reset()


class Cell:
    def __init__(self, text, **names):
        self.code, self.names = compile(text, "<cell 1>", "exec"), {"torch": torch, **names}
        self.opts = Options.make(None, "eager", False, None, None)

    def run(self):
        """(frames captured, decisions, fallbacks, report)"""
        captured, decided, fallbacks, builder = [], {}, [], ReportBuilder("cell", {}, None)

        def note(e):
            if e.kind == "capture_end":
                captured.append(e.result.code.co_qualname)
            elif e.kind == "library":
                decided[e.frame] = (e.decision, e.reason)
            elif e.kind == "fallback":
                fallbacks.append((e.what, e.reason))

        with events.listen(note), events.listen(builder):
            hook.run_code(self.code, self.names, self.opts)
        return captured, decided, fallbacks, builder.report()


FORWARD = "with torch.no_grad():\n    for _ in range(20):\n        out = lib.drive(model, x)"
CALLS = 3 * 20


def forward(library):
    x, model = torch.randn(4, 8), library.build()
    with torch.no_grad():
        want = library.drive(model, x)
    return Cell(FORWARD, lib=library, x=x, model=model), want


def entries_of(library):
    return hook.all_engines()[-1].cache(library.Net.forward.__code__).entries


def hits_of(library):
    return sum(e.hits for e in entries_of(library))


def test_a_slower_entry_is_switched_off_with_words(library, clock):
    cell, want = forward(library)
    captured, decided, fallbacks, report = cell.run()
    assert captured.count("Net.forward") == 1
    assert decided["Net.forward"][0] == "switched off"
    assert "took 2e+03 ms, and 1e+03 ms as plain Python" in decided["Net.forward"][1]
    assert [what for what, _ in fallbacks] == ["Net.forward"] and "switched off" in fallbacks[0][1]
    assert any(d.decision == "switched off" and d.what == "Net.forward" for d in report.decisions)
    assert report.summary.status == "partly"
    assert clock["timed"].count("entry") == slow_entries.WARM + slow_entries.CALLS
    assert clock["timed"].count("plain") == 1 + slow_entries.PLAIN
    assert hits_of(library) == slow_entries.WARM + slow_entries.CALLS  # what runs plain is no hit
    torch.testing.assert_close(cell.names["out"], want)
    timed = len(clock["timed"])
    captured, decided, fallbacks, report = cell.run()  # said again, not measured again
    assert not captured and len(clock["timed"]) == timed and len(fallbacks) == 1
    assert decided["Net.forward"][0] == "switched off"
    torch.testing.assert_close(cell.names["out"], want)


def test_a_quicker_entry_stays_and_is_not_timed_again(library, clock):
    clock["entry"] = 0.9
    cell, want = forward(library)
    _, decided, fallbacks, report = cell.run()
    assert "Net.forward" not in decided and not fallbacks
    assert clock["timed"].count("entry") == slow_entries.WARM + slow_entries.CALLS
    assert not isinstance(entries_of(library)[0].fn, slow_entries.Measured)
    timed = len(clock["timed"])
    cell.run()
    assert len(clock["timed"]) == timed
    new_session()
    captured, _, fallbacks, _ = cell.run()
    assert "Net.forward" in captured and not fallbacks
    assert len(clock["timed"]) - timed <= 3, "what was kept on disk is not measured again"
    torch.testing.assert_close(cell.names["out"], want)


def test_a_much_quicker_entry_needs_no_more_plain_calls(library, clock):
    clock["entry"] = 0.3
    forward(library)[0].run()
    assert clock["timed"].count("plain") == 1


def test_the_decision_holds_in_a_new_session(library, clock):
    cell, want = forward(library)
    cell.run()
    new_session()
    timed = len(clock["timed"])
    captured, decided, fallbacks, _ = cell.run()
    assert "Net.forward" not in captured and len(fallbacks) == 1
    assert decided["Net.forward"][0] == "switched off" and "in an earlier session" in decided["Net.forward"][1]
    assert len(clock["timed"]) - timed <= 1
    torch.testing.assert_close(cell.names["out"], want)
    cell.names["x"] = cell.names["x"][:3].clone()  # another form is another matter
    assert "Net.forward" in cell.run()[0]


def test_a_small_difference_is_measured_again(library, clock):
    """In the same session, and in the next one; only then it holds."""
    clock["entry"] = 1.2
    cell, want = forward(library)
    rounds = slow_entries.WARM + slow_entries.ROUNDS * slow_entries.CALLS
    for session in range(slow_entries.SESSIONS):
        clock["timed"].clear()
        captured, decided, _, _ = cell.run()
        assert "Net.forward" in captured and decided["Net.forward"][0] == "switched off", session
        assert clock["timed"].count("entry") == rounds
        assert clock["timed"].count("plain") == 1 + slow_entries.ROUNDS * slow_entries.PLAIN
        torch.testing.assert_close(cell.names["out"], want)
        new_session()
    captured, decided, _, _ = cell.run()
    assert "Net.forward" not in captured and decided["Net.forward"][0] == "switched off"
    torch.testing.assert_close(cell.names["out"], want)


def test_noise_in_one_round_does_not_switch_off(library, clock, monkeypatch):
    """The machine was busy while the first calls of the entry were timed."""
    clock["entry"], timed = 1.2, slow_entries._timed

    def quiet_after_a_while(form, fn, *args):
        if clock["timed"].count("plain") > slow_entries.PLAIN:
            clock["entry"] = 0.7
        return timed(form, fn, *args)

    monkeypatch.setattr(slow_entries, "_timed", quiet_after_a_while)
    cell, want = forward(library)
    _, decided, fallbacks, _ = cell.run()
    assert "Net.forward" not in decided and not fallbacks
    torch.testing.assert_close(cell.names["out"], want)


def test_noise_in_one_session_is_forgotten(library, clock):
    clock["entry"] = 1.2
    cell, _ = forward(library)
    assert cell.run()[1]["Net.forward"][0] == "switched off"
    new_session()
    clock["entry"] = 0.7
    captured, decided, fallbacks, _ = cell.run()
    assert "Net.forward" in captured and "Net.forward" not in decided and not fallbacks


def test_what_is_kept_is_measured_again_now_and_then(library, clock):
    cell, _ = forward(library)
    cell.run()
    clock["entry"] = 0.3  # another version of a library below, another machine's load
    for _ in range(slow_entries.TRUSTED):
        new_session()
        assert "Net.forward" not in cell.run()[0]
    new_session()
    captured, decided, fallbacks, _ = cell.run()
    assert "Net.forward" in captured and "Net.forward" not in decided and not fallbacks
    new_session()
    assert "Net.forward" in cell.run()[0]


def test_reset_forgets_it_also_on_disk(library, clock):
    cell, _ = forward(library)
    cell.run()
    hook.reset()
    clock["entry"] = 0.3
    captured, _, fallbacks, _ = cell.run()
    assert "Net.forward" in captured and not fallbacks


def test_time_decides_nothing_under_deterministic_algorithms(library, clock):
    cell, want = forward(library)
    cell.run()
    before = list(clock["timed"])
    torch.use_deterministic_algorithms(True)
    try:
        _, decided, fallbacks, _ = cell.run()
        assert not fallbacks and clock["timed"] == before and hits_of(library) > CALLS
        new_session()
        captured, decided, fallbacks, _ = cell.run()
        assert "Net.forward" in captured and not fallbacks and clock["timed"] == before
        torch.testing.assert_close(cell.names["out"], want)
    finally:
        torch.use_deterministic_algorithms(False)


TRAINER = """
marks = []

def train(model, optimizer, x):
    for _ in range(12):
        for part in (x, x + 1):
            marks.append("forward")
            loss = model(part).square().mean()
            loss.backward()
            if float(loss.detach()) > 1e9:
                return
        optimizer.step()
        marks.append("step")
        optimizer.zero_grad()
"""


def test_in_training_it_changes_between_steps_alone(library, clock, monkeypatch):
    exec(compile(TRAINER, library.drive.__code__.co_filename, "exec"), library.__dict__)

    def train(cell):
        torch.manual_seed(1)
        model = library.build()
        cell.names.update(model=model, optimizer=torch.optim.SGD(model.parameters(), 1e-3))
        cell.run()
        return [p.detach().clone() for p in model.parameters()]

    cell = Cell("lib.train(model, optimizer, x)", lib=library, x=torch.randn(4, 8))
    with config.patch(switch_off_slower=False):
        want = train(cell)
    hook.reset()
    library.marks.clear()
    go_on = slow_entries.Measured.go_on
    monkeypatch.setattr(slow_entries.Measured, "go_on", lambda self: library.marks.append("change") or go_on(self))
    torch.testing.assert_close(train(cell), want)
    changes = [i for i, what in enumerate(library.marks) if what == "change"]
    # (the step itself runs after the change)
    assert len(changes) == 2 and all(library.marks[i + 1] == "step" for i in changes), library.marks
    _, decided, fallbacks, _ = cell.run()
    assert decided["Net.forward"][0] == "switched off" and fallbacks


def test_a_function_of_tensors_costs_nothing_once_it_is_off(library, clock, monkeypatch):
    monkeypatch.setattr(policy, "FUNCTION_WORK", 3 * policy.CALL_WORK)
    x = torch.randn(64)
    cell = Cell("for _ in range(40):\n    out = lib.repeat(lib.polynomial, x)", lib=library, x=x)
    captured, decided, fallbacks, _ = cell.run()
    assert captured.count("polynomial") == 1 and decided["polynomial"][0] == "switched off"
    assert len([w for w, _ in fallbacks if w == "polynomial"]) == 1
    asked = []
    is_off = hook.all_engines()[-1].times.is_off
    monkeypatch.setattr(
        hook.all_engines()[-1].times, "is_off", lambda code, args: asked.append(1) or is_off(code, args)
    )
    captured, _, fallbacks, _ = cell.run()
    assert not captured and 1 <= len(asked) <= 10 and ("polynomial" in [w for w, _ in fallbacks])
    torch.testing.assert_close(cell.names["out"], library.polynomial(x))


def test_a_damaged_note_is_dropped(library, clock, tmp_path):
    import hashlib

    cell, want = forward(library)
    cell.run()
    [note] = tmp_path.glob("v1/notes/slower-*")
    for body in ('{"verdict": "off"}', "[]", "no json"):
        note.write_text(hashlib.sha256(body.encode()).hexdigest() + "\n" + body)
        new_session()
        assert "Net.forward" in cell.run()[0], body
        torch.testing.assert_close(cell.names["out"], want)


def test_the_option_switches_it_off(library, clock):
    with config.patch(switch_off_slower=False):
        _, decided, fallbacks, _ = forward(library)[0].run()
    assert not clock["timed"] and not fallbacks
