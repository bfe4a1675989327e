"""What is built of a lab's source: `student/` (for everyone) and `instructor/` (solutions, hidden tests).

student/NN_name/      lab.json, lab.en.ipynb, lab.zh.ipynb, public_tests.py
instructor/NN_name/   hidden_tests.py, solution.en.ipynb, solution.zh.ipynb

The files of tests are plain pytest; conftest.py hands them the submission as `lab`. Two builds of one source are equal.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .source import LANGUAGES, Cell, Lab, find_labs, read_lab, student_code

__all__ = ["build_all", "build_lab"]

WORDS = {
    "en": {
        "minutes": "Lab {number}. About {minutes} minutes.",
        "points": "*Points here: {points}. By tests that you do not see: {hidden}.*",
        "challenge": "*A challenge. Points here: {points}. By tests that you do not see: {hidden}.*",
        "hint": "Hint {n}",
        "board": "## Where you stand\nThe challenge's figures are counts, and no clock's: they repeat.",
        "speed": "Microseconds are of this machine and this moment: they are for you, and count for no points.",
    },
    "zh": {
        "minutes": "实验 {number}。大约 {minutes} 分钟。",
        "points": "*这里可得 {points} 分，隐藏测试另有 {hidden} 分。*",
        "challenge": "*挑战题：这里可得 {points} 分，隐藏测试另有 {hidden} 分。*",
        "hint": "提示 {n}",
        "board": "## 你的进度\n挑战题的数字是计数，不是计时，因此可以重复得到。",
        "speed": "微秒数只属于这台机器和这一刻：给你自己看，不计分。",
    },
}
_CONFTEST = '''"""The submission as `lab`: the notebook that TCOMPILE_LAB_SUBMISSION names, else lab.ipynb here."""

from tcompile.labs.testing import pytest_lab as lab  # noqa: F401
'''


def number_text(x: float) -> str:
    return f"{x:g}"


def build_all(sources: Path, out: Path) -> list[Lab]:
    """Every lab below `sources`, into out/student and out/instructor, which are made anew."""
    labs = [read_lab(folder) for folder in find_labs(sources)]
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    for lab in labs:
        build_lab(lab, fresh)
    fresh.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)
    return labs


def build_lab(lab: Lab, out: Path) -> None:
    student, instructor = (out / part / lab.folder.name for part in ("student", "instructor"))
    student.mkdir(parents=True)
    instructor.mkdir(parents=True)
    (student / "lab.json").write_text(_json(_facts(lab)), encoding="utf-8")
    for language in LANGUAGES:
        (student / f"lab.{language}.ipynb").write_text(_json(notebook(lab, language)), encoding="utf-8")
        (instructor / f"solution.{language}.ipynb").write_text(
            _json(notebook(lab, language, solution=True)), encoding="utf-8"
        )
    (student / "public_tests.py").write_text(tests_module(lab, hidden=False), encoding="utf-8")
    (instructor / "hidden_tests.py").write_text(tests_module(lab, hidden=True), encoding="utf-8")
    for folder in (student, instructor):
        (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _facts(lab: Lab) -> dict:
    return {
        "number": lab.number,
        "name": lab.name,
        "minutes": lab.minutes,
        "stage": lab.stage,
        "title": lab.title,
        "exercises": [
            {"name": e.name, "points": e.points, "hidden_points": e.hidden_points, "challenge": e.challenge}
            for e in lab.exercises
        ],
        "given": {c.name: c.source for c in lab.cells if c.kind == "given"},
        "looks": {
            language: {k.split(" ", 1)[1]: v[0] for k, v in texts.items() if k.startswith("look ")}
            for language, texts in lab.texts.items()
        },
    }


def tests_module(lab: Lab, hidden: bool) -> str:
    """The tests as a module: the helpers, then the functions, then the table that says what each is worth."""
    tests = [t for t in lab.tests if t.hidden is hidden]
    parts = [f'"""Lab {lab.number}, {"hidden" if hidden else "public"} tests. Built from {lab.folder.name}/lab.py."""']
    parts.append(lab.helpers)
    parts += [f"{t.source}" for t in tests]
    if lab.score:
        parts.append(lab.score)
    if lab.speed and not hidden:
        parts.append(lab.speed)
    rows = "".join(f"    ({t.name!r}, {t.exercise!r}, {t.points!r}, {t.seconds!r}),\n" for t in tests)
    parts.append(f"# test, exercise, points, seconds of processor time\nTESTS = [\n{rows}]")
    return "\n\n\n".join(p for p in parts if p) + "\n"


def _markdown(name: str, source: str) -> dict:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(name: str, source: str, kind: str) -> dict:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": f"{kind}-{name}"[:64],
        "metadata": {"tcompile_lab": {"kind": kind, "name": name}},
        "outputs": [],
        "source": source,
    }


def exercise_text(lab: Lab, name: str, language: str) -> str:
    """The words of an exercise: text, points, hints to open."""
    words, texts = WORDS[language], lab.texts[language]
    e = next(e for e in lab.exercises if e.name == name)
    line = words["challenge" if e.challenge else "points"].format(
        points=number_text(e.points), hidden=number_text(e.hidden_points)
    )
    out = [texts[f"exercise {name}"][0], line]
    for n, hint in enumerate(texts.get(f"hint {name}", ()), 1):
        out.append(f"<details><summary>{words['hint'].format(n=n)}</summary>\n\n{hint}\n\n</details>")
    return "\n\n".join(out)


def notebook(lab: Lab, language: str, solution: bool = False) -> dict:
    words, texts = WORDS[language], lab.texts[language]
    head = f"# {lab.title[language]}\n\n" + words["minutes"].format(number=lab.number, minutes=lab.minutes)
    cells = [_markdown("title", head)]
    cells.append(_code("start", f"import tcompile.labs\n\ncourse = tcompile.labs.open({lab.number})", "start"))
    for c in lab.cells:
        cells += _cells_of(lab, c, language, solution)
    if lab.score:
        cells.append(_markdown("board-text", " ".join([words["board"], *([words["speed"]] if lab.speed else [])])))
        cells.append(_code("board", "course.scoreboard()", "check"))
    if "text end" in texts:
        cells.append(_markdown("text-end", texts["text end"][0]))
    return {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "tcompile_lab": {"language": language, "number": lab.number, "solution": solution},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cells_of(lab: Lab, c: Cell, language: str, solution: bool) -> list[dict]:
    if c.kind == "text":
        return [_markdown(f"text-{c.name}", lab.texts[language][f"text {c.name}"][0])] if c.name != "end" else []
    if c.kind in ("given", "show"):
        return [_code(c.name, c.source, c.kind)]
    if c.kind != "exercise":
        return []
    worded = f"# exercise: {c.name}\n" + student_code(c.source, solution)
    return [
        _markdown(f"exercise-text-{c.name}"[:64], exercise_text(lab, c.name, language)),
        _code(c.name, worded, "exercise"),
        _code(c.name, f'course.check("{c.name}")', "check"),
    ]
