"""A class of fifty and more: generated notebooks, from right answers to hostile ones, with what each of them deserves."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tcompile.labs.library import find, labs

__all__ = ["Submission", "everybody", "few"]

ENDLESS = "while True: pass"
SWALLOWS = (
    "import signal\nsignal.signal(signal.SIGPROF, signal.SIG_IGN)\nwhile True:\n"
    "    try:\n        sum(range(1000))\n    except BaseException:\n        pass"
)
FORKS = "import os, time\nfor _ in range(200):\n    if os.fork() == 0:\n        time.sleep(300)\ntime.sleep(60)"
SLEEPERS = "import subprocess, time\nkeep = [subprocess.Popen(['sleep', '300']) for _ in range(100)]\ntime.sleep(60)"
HOG = "import torch\nkeep = [torch.ones(1 << 28) for _ in range(64)]"
LISTS = "keep = []\nwhile True: keep.append(bytes(1 << 24))"
BIG_FILE = "with open('big', 'wb') as f:\n    for _ in range(200): f.write(bytes(1 << 20))"
FILES = "import time\nfor k in range(60):\n    open(f'file{k}', 'wb').write(bytes(20 << 20))\ntime.sleep(20)"
SEGFAULT = "import ctypes\nctypes.string_at(1)"
ENDED = "import os\nos._exit(0)"
KILLED = "import os\nos.kill(os.getpid(), 9)"
EXITED = "raise SystemExit(0)"
PRINTS = "while True: print('again')"
FLOOD = "import os\nwhile True: os.write(1, b'x' * 4096)"
DEAF = "import os, time\nos.closerange(3, 256)\nimport signal\nfor n in (14, 27): signal.signal(n, signal.SIG_IGN)\nwhile True: pass"
WATCHER = "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(300)"
LONG_REPR = "class A:\n    def __repr__(self): return 'x' * (1 << 26)\nreturn A()"
HALF_PAIR = "raise ValueError('\\ud800')"
THREAD = "import threading, time\nthreading.Thread(target=lambda: time.sleep(300)).start()\nreturn -1"
AT_EXIT = "import atexit, time\natexit.register(time.sleep, 300)\nreturn -1"
DEEP = "def f(): return f()\nf()"
INPUT = "input('name? ')"
TRAFFIC = "def {name}(report):\n    return sum((k.bytes or 0) * k.launches for k in report.kernels)"
HELPER = TRAFFIC.replace("{name}", "times") + "  # of course.\n\ncourse.bars({'x': {'y': 1.0}})"
CPP_LOOP = "def {name}(p):\n    return 'volatile int k = 0; while (true) k = k + 1;'"
CPP_CRASH = "def {name}(p):\n    return '*(volatile int *)8 = 1;'"


@dataclass(frozen=True)
class Submission:
    """`deserves`: "all", "none", "some" (neither), "unreadable" or "error" (it ended the grader's process). `solved`:
    exercises that must keep their points."""

    name: str
    text: str
    deserves: str
    solved: tuple[str, ...] = ()


def _cells(notebook: dict) -> dict[str, Any]:
    facts = [(c["metadata"].get("tcompile_lab", {}), c) for c in notebook["cells"]]
    return {f["name"]: c for f, c in facts if f.get("kind") == "exercise"}


def _student(number: int, language: str = "en") -> dict:
    return json.loads((find(number).folder / f"lab.{language}.ipynb").read_text(encoding="utf-8"))


def _answers(number: int) -> dict[str, str]:
    path = find(number).instructor / "solution.en.ipynb"
    return {name: c["source"] for name, c in _cells(json.loads(path.read_text(encoding="utf-8"))).items()}


def _with(number: int, answers: dict[str, str], language: str = "en") -> dict:
    notebook = _student(number, language)
    cells = _cells(notebook)
    for name, source in answers.items():
        cells[name]["source"] = source
    return notebook


def _body(code: str) -> str:
    """Code as the whole answer of an exercise: a function of anything."""
    return "def {name}(*args, **more):\n" + "\n".join(f"    {line}" for line in code.splitlines())


def _solution(number: int) -> Submission:
    return Submission(f"lab{number:02d}_right", json.dumps(_with(number, _answers(number), "zh")), "all")


def _blank(number: int) -> Submission:
    return Submission(f"lab{number:02d}_blank", json.dumps(_student(number)), "none")


def _half(number: int) -> Submission:
    answers = _answers(number)
    first = dict(list(answers.items())[: len(answers) // 2])
    return Submission(f"lab{number:02d}_half", json.dumps(_with(number, first)), "some", tuple(first))


def _spoiled(name: str, number: int, source: str, own: str = "", at: int | tuple[int, ...] = 1) -> Submission:
    """All answers right but one (or some), and perhaps a cell of the student's own before them."""
    answers = _answers(number)
    places = at if isinstance(at, tuple) else (at,)
    before = tuple(list(answers)[: places[0]])
    for victim in [list(answers)[place] for place in places if source]:
        answers[victim] = source.replace("{name}", victim)
    notebook = _with(number, answers)
    if own:
        notebook["cells"].insert(0, {"cell_type": "code", "metadata": {}, "source": own, "outputs": []})
    return Submission(f"lab{number:02d}_{name}", json.dumps(notebook), "some" if source else "all", before)


def _hostile() -> list[Submission]:
    codes = {
        "endless": ENDLESS,
        "swallows": SWALLOWS,
        "forks": FORKS,
        "sleepers": SLEEPERS,
        "hog": HOG,
        "lists": LISTS,
        "big_file": BIG_FILE,
        "files": FILES,
        "segfault": SEGFAULT,
        "ended": ENDED,
        "killed": KILLED,
        "exited": EXITED,
        "deep": DEEP,
        "input": INPUT,
        "prints": PRINTS,
        "flood": FLOOD,
        "deaf": DEAF,
        "long_repr": LONG_REPR,
        "half_pair": HALF_PAIR,
        "thread": THREAD,
        "at_exit": AT_EXIT,
    }
    found = [_spoiled(name, 1, _body(code)) for name, code in codes.items()]
    watcher = _spoiled("watcher", 1, _body(WATCHER))
    found.append(Submission(watcher.name, watcher.text, "error"))
    found.append(_spoiled("crashes", 1, _body(SEGFAULT), at=(1, 2, 4)))
    found.append(_spoiled("endless_triton", 10, _body(ENDLESS), at=1))
    found.append(_spoiled("endless_cpp", 9, CPP_LOOP, at=4))
    found.append(_spoiled("crash_cpp", 9, CPP_CRASH, at=4))
    return found


def _odd() -> list[Submission]:
    bare = _with(1, _answers(1))  # as a tool leaves it that drops what it does not know
    for cell in bare["cells"]:
        cell["metadata"] = {}
    bare["metadata"] = {}
    odd = _with(1, _answers(1))
    odd["cells"] += [
        {"cell_type": "code", "metadata": m, "source": ["pass", 1]} for m in ([], "x", {"tcompile_lab": 3})
    ]
    odd["cells"] += [None, 5, {"cell_type": "code", "metadata": {"tcompile_lab": {"kind": [], "name": {}}}}]
    return [
        _spoiled("syntax", 1, "def {name}(report)\n    return 0"),
        _spoiled("wrong_value", 1, "def {name}(report):\n    return 12345"),
        _spoiled("wrong_type", 1, "def {name}(report):\n    return 'many'"),
        _spoiled("deleted", 1, "# gone"),
        _spoiled("own_error", 1, "", own="1 / 0"),
        _spoiled("own_magics", 1, "", own="%matplotlib inline\n!ls"),
        replace(_spoiled("timed", 1, "%%time\n" + TRAFFIC), deserves="all"),
        replace(_spoiled("own_helper", 1, "def {name}(report):\n    return times(report)", own=HELPER), deserves="all"),
        Submission("nested", "[" * 100_000, "unreadable"),
        Submission("odd_metadata", json.dumps(odd), "all"),
        Submission("lab01_bare", json.dumps(bare), "all"),
        Submission("empty_file", "", "unreadable"),
        Submission("no_json", "{'cells': []}", "unreadable"),
        Submission(
            "no_lab", json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "unreadable"
        ),
    ]


def everybody() -> list[Submission]:
    """The whole class."""
    numbers = [lab.number for lab in labs()]
    found = [make(n) for make in (_solution, _blank) for n in numbers]
    return [*found, *_hostile(), *_odd(), *(_half(n) for n in (3, 9))]


def few() -> list[Submission]:
    """What a class comes to in seconds."""
    return [_spoiled("segfault", 1, _body(SEGFAULT)), Submission("empty_file", "", "unreadable")]
