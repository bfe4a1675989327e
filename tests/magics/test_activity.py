"""What a look at a thread's stack sees, and that a cell's report always ends as a report."""

from __future__ import annotations

import linecache
import time

import pytest
import torch
from tcompile.kernel_magics import kernels as kernels_module
from tcompile.kernel_magics import limits
from tcompile.kernel_magics import session as session_module
from tcompile.kernel_magics import activity
from tcompile.kernel_magics.sampling import Sample, Sampler, Samples
from tcompile.kernel_magics.activity import called_at, looks, seen_at

FUNCTION = """
import torch
def f(x):
    return torch.sin(x) * x + 2
x = torch.ones(8)
compile_now = (f, x)
y = f(x)
"""


def code_of(text: str):
    name = f"<cell {text!r}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return compile(text, name, "exec")


def calls(text: str) -> set[tuple[str, bool]]:
    """What `called_at` says of each position of a code."""
    code = code_of(text)
    return {called_at(code, at) for at in range(0, len(code.co_code), 2)} - {("", False)}


@pytest.mark.parametrize(
    "text, seen",
    [
        ("torch.matmul(a, b)", ("matmul", True)),
        ("y = x.softmax(-1).sum()", ("softmax", True)),
        ("F.scaled_dot_product_attention(q,\n  k, v)", ("scaled_dot_product_attention", True)),
        ("z = a @ b", ("@", True)),
        ("np.sort(a)", ("np.sort", False)),
        ("time.sleep(1)", ("time.sleep", False)),
        ("print(x)", ("print", False)),
        ("d.get(3)", ("d.get", False)),
    ],
)
def test_the_call_that_a_frame_stands_at(text, seen):
    assert seen in calls(text)


def look(*frames, asleep=0.0, starved=0.0) -> Sample:
    return Sample(1.0, 0.1, asleep, starved, tuple((code, -1) for code in frames))


def test_kinds_of_time():
    user = code_of("for i in x: pass")
    entry = compile("pass", "<tcompile entry 3 of f>", "exec")
    loader = compile("pass", torch.utils.data.dataloader.__file__, "exec")
    assert seen_at(look(entry, user)).kind == "compiled"
    assert seen_at(look(loader, user)).kind == "data" and seen_at(look(user)).kind == "python"

    def kinds(row):
        return {(seen.kind, round(share, 2)) for *_, share, seen in looks(Samples(0.0, 1.0, [row])) if share}

    assert kinds(look(user, asleep=0.09)) == {("waiting", 1.0)}
    assert kinds(look(user, starved=0.06)) == {("starved", 0.6), ("python", 0.4)}
    assert kinds(look(entry, user, asleep=0.09)) == {("compiled", 1.0)}, "it waits for threads of its own kernels"
    assert kinds(look(loader, user, asleep=0.09)) == {("data", 1.0)}, "loading data is that, also while it waits"


def test_the_compiler_at_work_is_not_the_programs_time():
    user, entry = code_of("f(x)"), compile("pass", "<tcompile entry 3 of f>", "exec")
    capture = compile("pass", activity.__file__.replace("kernel_magics/activity", "compiler/frontend/engine"), "exec")
    runtime = compile("pass", activity.__file__.replace("kernel_magics/activity", "compiler/runtime/dispatch"), "exec")
    progress = compile("pass", activity.__file__.replace("activity", "progress"), "exec")
    torch_code = compile("pass", torch.fx.__file__, "exec")
    for stack in ((capture, user), (torch_code, capture, user), (capture, entry, user)):
        assert seen_at(look(*stack)).kind == "compiling", stack
    assert seen_at(look(runtime, user)).kind == "compiled"
    assert seen_at(look(torch_code, user, capture)).kind == "python", "the program runs, called from there"
    (*_, share, seen), *rest = [x for x in looks(Samples(0.0, 1.0, [look(progress, user, asleep=0.09)])) if x[2]]
    assert not rest and share == 1.0 and seen.kind == "compiling", "waiting for the picture of progress to be sent"


def test_importing_a_library_is_one_part_whatever_it_imports():
    user, own = code_of("print(x)"), compile("pass", "/home/me/mine.py", "exec")
    machinery = compile("pass", "<frozen importlib._bootstrap>", "exec")
    library = compile("class A: pass", torch.optim.__file__, "exec")
    for stack in ((machinery, user), (library, machinery, library, machinery, user), (machinery, machinery)):
        seen = seen_at(look(*stack))
        assert (seen.kind, seen.name) == ("python", "importing modules")
    assert seen_at(look(own, machinery, user)).name != "importing modules", "a module of one's own is told by its code"
    assert seen_at(look(library, user)).name.endswith("(torch)")


def test_a_thread_is_looked_at_while_it_works_and_while_it_sleeps():
    sampler = Sampler()
    sampler.start()
    time.sleep(0.1)
    end = time.perf_counter() + 0.1
    while time.perf_counter() < end:
        sum(range(1000))
    samples = sampler.stop()
    time.sleep(0.15)
    seen = len(samples.rows)
    time.sleep(0.05)
    assert len(samples.rows) == seen, "it ends with the cell"
    assert sum(r.seconds for r in samples.rows) <= samples.end - samples.begin + 0.01
    if samples.rows and samples.rows[0].asleep:
        assert any(s.kind == "waiting" and "sleep" in s.name for *_, s in looks(samples))


@pytest.mark.parametrize("error", [RuntimeError("_assert_async failed"), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["measure", "time_kernels", "finish", "diff"])
def test_whatever_fails_while_timing_the_report_is_finished(shell, monkeypatch, capsys, error, where):
    from tcompile.compiler.report import CompileReport
    from tcompile.kernel_magics import timing

    def fails(*args, **kwargs):
        raise error

    shown = []
    monkeypatch.setattr(session_module, "_show", lambda place, report, timed=True: shown.append((report, timed)))
    shell.run_cell("%%tcompile time=20ms" + FUNCTION, store_history=True)
    if where == "measure":
        monkeypatch.setattr(timing, "measure", fails)
    elif where == "time_kernels":
        monkeypatch.setattr(kernels_module, "time_kernels", fails)
    elif where == "diff":
        monkeypatch.setattr(CompileReport, "diff", fails)
    else:
        monkeypatch.setattr(session_module, "finish", fails)
    if where in ("finish", "diff") and isinstance(error, KeyboardInterrupt):
        return  # what an interrupt meets there takes microseconds
    shell.run_cell("%%tcompile -o r time=20ms" + FUNCTION, store_history=True)
    report, timed = shown[-1]
    assert timed and report is shell.user_ns["r"], "the last thing shown is the finished report"
    assert shell.user_ns["y"].shape == (8,)
    words = [report.speedups.reason, *(f.text for f in report.notes)]
    if not isinstance(error, KeyboardInterrupt):
        assert any(type(error).__name__ in w for w in words), words
    assert "Traceback" not in capsys.readouterr().out


def test_a_cell_has_a_wall_time_whose_parts_add_up(shell):
    shell.run_cell("%%tcompile -o r time=off\nimport time\ntime.sleep(0.05)" + FUNCTION, store_history=True)
    wall = shell.user_ns["r"].wall
    assert wall.seconds >= 0.05 and sum(p.seconds for p in wall.parts) == pytest.approx(wall.seconds, rel=0.02)
    assert any(p.kind == "compiling" for p in wall.parts)


def test_the_machines_limits_are_measured_again_until_it_was_quiet(monkeypatch):
    figures = iter([3.0, 9.0, 5.0, 99.0])
    monkeypatch.setattr(limits, "_measured", lambda device: {"copy_bytes_per_second": next(figures)})
    monkeypatch.setattr(limits, "_best", {})
    monkeypatch.setattr(limits, "_quiet", set())
    told = [limits.machine_limits("cpu", busy)["copy_bytes_per_second"] for busy in (True, True, False, False)]
    assert told == [3.0, 9.0, 9.0, 9.0], "the best counts, and a quiet machine is not measured again"


def test_arrays_of_a_library_that_knows_no_torch_are_no_tensors(tmp_path, monkeypatch):
    """pandas' `arange` and `mean` are numpy's."""
    monkeypatch.setattr("tcompile.kernel_magics.activity.is_library_file", lambda file: "site-packages" in file)
    folder = tmp_path / "site-packages" / "frames"
    folder.mkdir(parents=True)
    text = "def take(self, arange):\n    return arange(3).mean()\n"
    for name, more, wanted in (("plain.py", "", False), ("both.py", "    import torch\n", True)):
        path = folder / name
        path.write_text(text + more)
        code = next(c for c in compile(path.read_text(), str(path), "exec").co_consts if hasattr(c, "co_code"))
        found = {called_at(code, at) for at in range(0, len(code.co_code), 2)}
        assert any(operator for _, operator in found) is wanted
