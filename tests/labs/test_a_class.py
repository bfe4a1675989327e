"""`tcompile lab grade` on a class: in parallel, to CSV, each as it deserves, and the same again the next time."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

import pytest

from tcompile.cli import main
from tcompile.labs.library import find

from .submissions import Submission, everybody, few

BIG = os.environ.get("TCOMPILE_LABS") == "all"


def graded(folder: Path, submissions: list[Submission], name: str) -> str:
    for s in submissions:
        place = folder / "class" / s.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "lab.ipynb").write_text(s.text, encoding="utf-8")
    sheet = folder / name
    words = ["lab", "grade", str(folder / "class"), "-o", str(sheet), "--jobs", "2"]
    assert main([*words, "--feedback", str(folder / "feedback")]) == 0
    return sheet.read_text(encoding="utf-8")


def judge(sheet: str, submissions: list[Submission]) -> list[str]:
    """What is not as it should be."""
    wrong = []
    rows = {row["submission"].split("/")[0]: row for row in csv.DictReader(sheet.splitlines())}
    for s in submissions:
        row = rows[s.name]
        status = s.deserves if s.deserves in ("unreadable", "error") else "graded"
        if row["status"] != status:
            wrong.append(f"{s.name}: {row['status']}")
        if row["status"] != "graded" or status != "graded":
            continue
        points, of = float(row["points"]), float(row["of"])
        told = {"all": points == of > 0, "none": points == 0, "some": 0 < points < of}[s.deserves]
        if not told:
            wrong.append(f"{s.name} deserves {s.deserves}, and got {points} of {of}")
        worth = {e["name"]: e["points"] + e["hidden_points"] for e in find(int(row["lab"])).facts["exercises"]}
        for name in s.solved:
            got = row.get(f"{row['lab']}.{name}") or row.get(name)
            if float(got or 0) != worth[name]:
                wrong.append(f"{s.name}: {name} is right, and got {got} of {worth[name]}")
    return wrong


def test_a_small_class(tmp_path: Path) -> None:
    chosen = few()
    sheet = graded(tmp_path, chosen, "grades.csv")
    assert not judge(sheet, chosen)
    told = (tmp_path / "feedback" / "lab01_segfault" / "lab.txt").read_text()
    assert "SIGSEGV" in told and "✗ traffic: 0 of 11 points" in told


def test_the_large_class_has_fifty_and_more() -> None:
    """A right answer and a blank of every lab, and those that are odd or hostile."""
    names = [s.name for s in everybody()]
    assert len(names) == len(set(names)) >= 50


@pytest.mark.timeout(3600)
@pytest.mark.skipif(not BIG, reason="make labs runs it")
def test_fifty_submissions(tmp_path: Path) -> None:
    chosen = everybody()
    began = time.monotonic()
    sheet = graded(tmp_path, chosen, "grades.csv")
    print(f"{time.monotonic() - began:.0f} s for {len(chosen)} submissions")
    assert not judge(sheet, chosen), sheet
    # again, without those that take their whole time: equal, byte for byte
    quick = [s for s in chosen if not any(w in s.name for w in ("endless", "swallows", "forks", "sleepers", "files"))]
    again = tmp_path / "again"
    assert graded(again, quick[::3], "grades.csv") == graded(again, quick[::3], "more.csv")
