"""Pictures of what a program touches say the same as their facts."""

from __future__ import annotations

import threading
import xml.dom.minidom

import pytest
import torch

from tcompile.labs.clock import OutOfTime, limited
from tcompile.labs.pictures import bars
from tcompile.labs.puzzle_widget import Puzzle
from tcompile.labs.puzzles import Case, arange, picture, play, touched
from tcompile.labs.testing import Wrong, plays
from tcompile.labs.words import speak


def test_rows_are_touched_once():
    view = touched({"x": (4, 6)}, lambda pid: {"x": [(pid, j) for j in range(6)]}, range(4))
    assert view.exact and "0 too often · 0 out of bounds · 0 never" in repr(view)
    assert view.svg.count("<rect") == 24


def test_what_is_read_twice_out_of_bounds_and_never():
    view = touched({"x": (10,)}, lambda pid: {"x": range(4 * pid, 4 * pid + 5)}, range(2), {"x": list(range(10))})
    assert view.again == {"x": [(4,)]} and view.outside == {"x": []} and view.missed == {"x": [(9,)]}
    beyond = touched({"x": (10,)}, lambda pid: {"x": range(4 * pid, 4 * pid + 4)}, range(3))
    assert beyond.outside == {"x": [(10,), (11,)]} and not beyond.exact
    assert "! [10]" in beyond.svg


def test_pictures_are_well_formed_and_escape_names(tmp_path):
    for drawn in (touched({"<x>": (3,)}, lambda pid: {"<x>": [pid]}, range(3)), bars({"a & b": {"<c>": 3.0}})):
        xml.dom.minidom.parseString(drawn.svg)
        assert drawn.save(tmp_path / "p.svg").read_text() == drawn.svg
        assert "data:image/svg+xml" in drawn._repr_html_()


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="2 dimensions"):
        touched({"x": (3, 4)}, lambda pid: {"x": [pid]}, range(3))
    with pytest.raises(KeyError, match="tensors are x"):
        touched({"x": (3,)}, lambda pid: {"y": [pid]}, range(3))


def rows_case(n: int, m: int) -> Case:
    x = torch.arange(float(n * m)).reshape(n, m)
    return Case(n, {"x": x}, {"out": x.sum(1)})


def sum_rows(p, x, out):
    total = 0.0
    for j in range(x.shape[1]):
        total += x[p, j]
    out[p] = total


def endless(p, x, out):
    while True:
        pass


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda p, x, out: out.__setitem__(p, sum(x[p, j] for j in range(7))), r"x\[0, 6\] is read by program 0"),
        (lambda p, x, out: out.__setitem__(p, x[p, 0]), r"out\[0\] should be 15; it is 0"),
        (lambda p, x, out: out.__setitem__(p, sum(x[p, j] + 0 * x[p, j] for j in range(6))), "read 2 times"),
        (lambda p, x, out: out.__setitem__(p, x[p, -1]), r"x\[0, -1\] is read"),
        (lambda p, x, out: None, r"out\[0\] is never written"),
        (lambda p, x, out: out.__setitem__(p, x[p]), "2 dimensions"),
        (lambda p, x, out: out.__setitem__(p, x[p, 1.5]), "whole numbers"),
        (lambda p, x, out: [out.__setitem__(p, x[p, 0]) for _ in iter(int, 1)], "never end"),
    ],
)
def test_what_is_wrong_with_a_program_is_said_in_words(change, said) -> None:
    speak("en")
    played = play(change, rows_case(4, 6))
    assert not played.solved
    with pytest.raises(Wrong, match=said):
        plays(change, rows_case(4, 6), what="sum_rows")
    xml.dom.minidom.parseString(picture(played, (1,)).svg)


def test_a_solved_puzzle_and_its_order() -> None:
    speak("en")
    played = plays(sum_rows, rows_case(2, 3))
    assert played.counts("x") == {(i, j): 1 for i in range(2) for j in range(3)} and played.solved
    one = picture(played, (1,)).svg
    assert one.count("fill-opacity='0.2'") == 4 and ">3</text>" in one


def test_blocks_touch_what_their_masks_let_through() -> None:
    def blocks(p, x, out):
        at = 4 * p + arange(4)
        out.store(at, value=x.load(at, mask=at < 6, other=-1.0), mask=at < 6)

    x = torch.arange(6.0)
    played = plays(blocks, Case(2, {"x": x}, {"out": x}))
    assert len(played.touches) == 12


def test_what_is_typed_is_run_and_an_endless_loop_ends() -> None:
    pytest.importorskip("ipywidgets")
    speak("en")
    names = {"sum_rows": endless}
    puzzle = Puzzle(sum_rows, rows_case, {"n": 2, "m": 3}, names)
    shown = puzzle._repr_mimebundle_()
    shown = shown[0] if isinstance(shown, tuple) else shown
    assert "application/vnd.jupyter.widget-view+json" in shown and "data:image/svg+xml" in shown["text/html"]
    assert puzzle.type("def sum_rows(p, x, out):\n    out[p] = 1 / 0").problem.startswith("your code raised ZeroDiv")
    assert "line 1" in puzzle.type("def sum_rows(p, x, out)").problem
    assert "sum_rows" in puzzle.type("x = 1").problem
    assert "did not end" in puzzle.type("def sum_rows(p, x, out):\n    while True:\n        pass").problem
    assert puzzle.type("def sum_rows(p, x, out):\n    out[p] = sum(x[p, j] for j in range(3))").solved
    names["sum_rows"] = endless  # the cell was run again
    puzzle.follow()
    assert "did not end" in puzzle.played.problem


def test_a_limit_of_time_holds_in_any_thread() -> None:
    ended = []

    def run() -> None:
        try:
            with limited(0.2):
                endless(0, None, None)
        except OutOfTime:
            ended.append(True)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert ended
