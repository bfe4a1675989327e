"""The table of slow tests names tests that exist; a row of a test that was renamed would leave it unmarked unseen."""

from __future__ import annotations

import re

from .. import slow_tests
from .test_imports import ROOT


def test_each_row_names_a_test():
    rows = slow_tests.listed()
    assert rows
    for name, seconds in rows.items():
        path, *_, function = name.split("::")
        assert re.search(rf"def {function}\b", (ROOT / path).read_text()), f"{name} is gone: run make slow-tests"
        assert seconds >= slow_tests.SECONDS


def test_a_row_marks_its_test_with_every_parameter(request, tmp_path, monkeypatch):
    monkeypatch.setattr(slow_tests, "TABLE", tmp_path / "table.txt")
    monkeypatch.setattr(request.node, "own_markers", [])
    name = slow_tests.function_of(request.node.nodeid)
    for row, slow in ((f"0.3 {name}s\n", False), (f"0.3 {name}\n", True)):
        slow_tests.TABLE.write_text(row)
        slow_tests.mark([request.node])
        assert (request.node.get_closest_marker("slow") is not None) is slow
    assert slow_tests.function_of(name + "[a[0]-b]") == name


def test_the_table_is_made_of_means(tmp_path, monkeypatch):
    times = tmp_path / "times.txt"
    times.write_text("0.1000 a.py::test[x y]\n0.5000 a.py::test[z]\n0.1000 a.py::other\n")
    monkeypatch.setattr(slow_tests, "TABLE", tmp_path / "table.txt")
    assert slow_tests.write_table(times) == 1
    assert slow_tests.listed() == {"a.py::test": 0.3}
