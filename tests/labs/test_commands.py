"""`tcompile lab ...` with what people type: files that are there, labs that are not, places that can't be written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tcompile.cli import main
from tcompile.labs import progress


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TCOMPILE_LAB_LANGUAGE", "en")


def said(capsys: pytest.CaptureFixture, *words: str) -> tuple[int, str]:
    status = main(["lab", "--lang", "en", *words])
    out, err = capsys.readouterr()
    return status, out + err


def test_a_lab_is_started_once(capsys: pytest.CaptureFixture) -> None:
    assert said(capsys, "start", "9") == (0, "lab09.ipynb is yours. Open it:  jupyter lab lab09.ipynb\n")
    before = Path("lab09.ipynb").read_text()
    status, text = said(capsys, "start", "9")
    assert status == 1 and "stays as it is" in text and Path("lab09.ipynb").read_text() == before
    assert json.loads(before)["metadata"]["tcompile_lab"]["number"] == 9
    assert "*Points here: 4. By tests that you do not see: 4.*" in before


def test_the_language_stands_before_or_behind_the_command(capsys: pytest.CaptureFixture) -> None:
    for words in (("--lang", "zh", "start", "3"), ("start", "3", "--lang", "zh")):
        assert main(["lab", *words]) == 0
        notebook = Path("lab03.ipynb")
        assert json.loads(notebook.read_text())["metadata"]["tcompile_lab"]["language"] == "zh"
        notebook.unlink()


def test_a_solution_has_no_blanks(capsys: pytest.CaptureFixture) -> None:
    assert said(capsys, "solution", "9", "--into", "some/folder")[0] == 0
    text = Path("some/folder/lab09.solution.ipynb").read_text()
    assert "your code here" not in text and "vector_steps" in text


def test_the_list_has_what_was_reached(capsys: pytest.CaptureFixture) -> None:
    progress.note(Path(), 9, {"expression": (4.0, 4.0)}, {})
    lines = said(capsys, "list")[1].splitlines()
    assert lines[8] == " 9  C++ code generation  (85 minutes)   4 of 50 points"
    assert main(["lab", "--lang", "zh", "list"]) == 0 and "C++ 代码生成" in capsys.readouterr()[0]


@pytest.mark.parametrize(
    "words, told",
    [
        (("start", "99"), "there is no lab 99; labs are 1, 2,"),
        (("start", "1", "--into", "file"), "file/lab01.ipynb can't be written: "),
        (("start", "1", "--into", "/proc/1/nowhere"), "lab01.ipynb can't be written: "),
        (("check", "1"), "lab01.ipynb is not there. Begin with:  tcompile lab start 1"),
        (("check", "1", "--exercise", "nope"), "lab 1 has no exercise 'nope'; exercises are predicted_kernels, "),
        (("grade", "nowhere"), "nowhere is not there. Give the folder"),
        (("grade", "empty"), "empty has no notebook (*.ipynb)"),
        (("grade", "class", "-o", "file/x.csv"), "file/x.csv can't be written: "),
        (("grade", "class", "-o", "empty"), "empty can't be written: Is a directory"),
        (("grade", "class", "--feedback", "file"), "can't be written: "),
    ],
)
def test_what_can_not_be_done_is_said(words: tuple, told: str, capsys: pytest.CaptureFixture) -> None:
    Path("file").touch()
    Path("empty").mkdir()
    Path("class").mkdir()
    Path("class/lab01.ipynb").touch()
    status, text = said(capsys, *words)
    assert status == 1 and told in text and "Traceback" not in text


@pytest.mark.parametrize("words", [("--jobs", "0"), ("--memory", "-5"), ("--seconds", "soon"), ("--seconds", "0")])
def test_limits_are_whole_numbers_from_1_up(words: tuple, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        main(["lab", "grade", ".", *words])
    assert f"argument {words[0]}: a whole number from 1 up, got {words[1]!r}" in capsys.readouterr()[1]
