"""The grader: partial credit, and submissions that loop, fork, write, crash, or are no notebooks at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tcompile.labs.commands import sheet
from tcompile.labs.grader import Limits, grade
from tcompile.labs.library import find

LAB = find(1)
# Each submission imports torch in a process of its own: `make test` takes the first tests, `make labs` all.
long = pytest.mark.skipif(os.environ.get("TCOMPILE_LABS") != "all", reason="make labs runs it")
ANSWER = "def traffic(report):\n    return sum((k.bytes or 0) * k.launches for k in report.kernels)"


def submission(folder: Path, **cells: str) -> Path:
    """Lab 1's notebook with these exercises' cells, and `own` before all others."""
    data = json.loads((LAB.folder / "lab.en.ipynb").read_text(encoding="utf-8"))
    kept = []
    if "own" in cells:
        kept.append({"cell_type": "code", "metadata": {}, "source": cells.pop("own"), "outputs": []})
    for cell in data["cells"]:
        facts = cell["metadata"].get("tcompile_lab", {})
        if facts.get("kind") == "exercise" and facts["name"] in cells:
            cell["source"] = cells[facts["name"]]
        kept.append(cell)
    data["cells"] = kept
    path = folder / "lab01.ipynb"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def graded(folder: Path, limits: Limits = Limits(), **cells: str):
    return grade(submission(folder, **cells), hidden=True, only="traffic", limits=limits)


def test_an_answer_and_half_an_answer(tmp_path: Path) -> None:
    assert graded(tmp_path, traffic=ANSWER).exercise("traffic") == (11.0, 11.0)
    half = graded(tmp_path, traffic="def traffic(report):\n    return sum(k.bytes for k in report.kernels)")
    assert half.exercise("traffic") == (7.0, 11.0)
    (message,) = [t.message for t in half.tests if t.message]
    assert "TypeError" in message and "line 2" in message and "sum(k.bytes" in message
    unsolved = graded(tmp_path)
    assert unsolved.points == 0 and {t.message for t in unsolved.tests} == {"not solved yet."}


@long
def test_what_goes_wrong_costs_one_exercise(tmp_path: Path) -> None:
    """Exits, crashes, memory, files, endless recursion: each in its own exercise, and all are told apart."""
    path = submission(
        tmp_path,
        predicted_kernels='predicted_kernels = {"chain": 1, "softmax": 1, "total": 1, "both": 2}',
        traffic="def traffic(report):\n    import os\n    os._exit(3)",
        breaks_of="def breaks_of(program, *args):\n    import ctypes\n    ctypes.string_at(1)",
        whole_step="def whole_step(x):\n    return torch.empty(1 << 33).fill_(1)",
        entries_needed="def entries_needed(sizes):\n    with open('big', 'wb') as f:\n        f.write(bytes(200 << 20))",
        tidy="def tidy(x, weight):\n    raise SystemExit(4)",
    )
    result = grade(path, hidden=False)
    assert result.exercise("predicted_kernels") == (2.0, 2.0)
    told = {t.exercise: t.message for t in reversed(result.tests)}
    assert "exit status 3" in told["traffic"]
    assert "SIGSEGV" in told["breaks_of"]
    assert "alloc" in told["whole_step"] or "memory" in told["whole_step"]
    assert "OSError" in told["entries_needed"] and "File too large" in told["entries_needed"]
    assert "exit (4)" in told["tidy"]
    assert result.points == 2.0 and not result.score


@long
@pytest.mark.parametrize(
    "loop", ["while True: pass", "while True:\n        try:\n            x = 1\n        except BaseException: pass"]
)
def test_an_endless_loop_ends(tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that catches what would end it: then the process is ended from outside."""
    swallow = "import signal\n    signal.signal(signal.SIGPROF, signal.SIG_IGN)\n    " if "try" in loop else ""
    result = grade(
        submission(tmp_path, traffic=f"def traffic(report):\n    {swallow}{loop}"),
        hidden=False,
        only="traffic",
        limits=Limits(seconds=240),
    )
    message = result.tests[0].message  # on a machine under load the time in all may pass first
    assert "processor time" in message or "did not end" in message


@long
def test_a_fork_bomb_is_stopped(tmp_path: Path) -> None:
    bomb = "def traffic(report):\n    import os, time\n    for _ in range(200):\n        if os.fork() == 0:\n            os.setsid()\n            time.sleep(600)\n    time.sleep(60)"
    result = graded(tmp_path, traffic=bomb)
    assert {t.message for t in result.tests} == {"it started more than 48 processes."}
    left = []
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            left += [status] if b"tcompile.labs.runner" in status.read_bytes() else []
        except OSError:
            continue
    assert not left


@long
def test_a_cell_that_fails_leaves_the_others(tmp_path: Path) -> None:
    result = graded(tmp_path, own="1 / 0\n%matplotlib inline\n", traffic=ANSWER)
    assert result.points == 11.0
    result = graded(tmp_path, traffic="def traffic(report)\n    return 0")
    assert result.points == 0 and "SyntaxError" in result.tests[0].message


def test_files_that_are_no_labs(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "[]"), ("c", "{}"), ("d", '{"cells": [], "metadata": {}}')):
        path = tmp_path / f"{name}.ipynb"
        path.write_text(text)
        result = grade(path)
        assert result.status == "unreadable" and result.message and result.points == 0, name


@long
def test_points_repeat(tmp_path: Path) -> None:
    own = "import random, torch\nnoise = random.random() + torch.rand(1).item()"
    path = submission(tmp_path, own=own, traffic="def traffic(report):\n    return noise")
    first, second = (grade(path, only="traffic") for _ in range(2))
    assert first.to_json() == second.to_json() and sheet([first]) == sheet([second])
    assert "lab01.ipynb,1,graded,0,11,0" in sheet([first])


@long
def test_the_home_goes_away_and_secrets_stay_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "secret")
    tell = "def traffic(report):\n    import os\n    raise ValueError(os.environ.get('SOME_TOKEN'), os.path.expanduser('~'))"
    message = graded(tmp_path, traffic=tell).tests[0].message
    assert "secret" not in message and "tcompile-lab-home-" in message
    home = message.split("'")[1]
    assert not Path(home).exists()
