import pytest
from make_sample import sample

from tcompile.compiler.guards.guard import Guard
from tcompile.compiler.guards import source
from tcompile.compiler.report.finish import closed_line, finish
from tcompile.compiler.base.labels import cell_number, frame_words, label, set_cell_labels
from tcompile.compiler.base.figures import count, interval, plural, seconds, seconds_range, size
from tcompile.compiler.report.schema import Speedup
from tcompile.compiler.report.plain_text import bar, render_short
from tcompile.compiler.report.words import guard_text


@pytest.mark.parametrize(
    "x, text",
    [
        (0, "0 s"),
        (None, "–"),
        (12.3, "12 s"),
        (1.0, "1.0 s"),
        (0.412, "0.41 s"),
        (0.0123, "12 ms"),
        (5.8e-5, "58 µs"),
        (3.1e-7, "310 ns"),
        (4e-9, "4.0 ns"),
    ],
)
def test_seconds(x, text):
    assert seconds(x) == text


def test_numbers():
    assert size(98_560) == "99 KB" and size(1.2e6) == "1.2 MB" and size(12) == "12 B" and size(None) == "–"
    assert (
        interval(2.94, 2.81, 3.02) == "2.9× [2.8–3.0]"
        and interval(1.021, 1.012, 1.033) == "1.02× [1.01–1.03]"
        and interval(120, 110, 130) == "120× [110–130]"
    )
    assert count(1900) == "1\u202f900" or count(1900) == "1 900"
    assert (
        plural(1, "graph") == "1 graph"
        and plural(0, "graph") == "0 graphs"
        and plural(2, "entry", "entries") == "2 entries"
    )
    assert seconds_range(1.97e-5, 2.03e-5) == "19.7–20.3 µs"
    assert bar(0) == "" and bar(1, 4) == "████" and bar(5, 4) == "████"


def test_closed_line_of_each_status():
    r = sample()
    finish(r)
    assert (
        r.summary.line.startswith("▲ partly   2 graphs · 1 break (line 7: s.item()) · 3 kernels")
        and "2.9× [2.8–3.0] faster than eager" in r.summary.line
    )
    assert "pays off after" in r.summary.line and "recompiled 1× (x.shape[0])" in r.summary.line
    r.graph_breaks.clear(), r.fallbacks.clear(), r.recompiles.clear()
    finish(r)
    assert r.summary.line.startswith("● compiled   2 graphs · 0 breaks · 3 kernels")
    r.speedups.overall = [Speedup("tcompile", "eager", 0.8, 0.78, 0.82)]
    assert "1.25× [1.22–1.28] slower than eager" in closed_line(r)
    r.speedups.of = ""
    r.speedups.overall = [Speedup("tcompile", "eager", 0.98, 0.95, 1.03), Speedup("tcompile", "torch", 2.0, 2.0, 2.0)]
    assert (
        "no clear difference from eager (0.98× [0.95–1.03])   one sample of each: too few to compare with torch.compile"
        in closed_line(r)
    )
    r.speedups.overall = []
    assert "eager" not in closed_line(r)
    assert "\n" not in render_short(r).split("\n")[0]


def test_a_cell_that_fails_before_anything_is_compiled():
    r = sample()
    (
        r.graphs.clear(),
        r.graph_breaks.clear(),
        r.fallbacks.clear(),
        r.recompiles.clear(),
        r.kernels.clear(),
        r.guards.clear(),
    )
    r.raised, r.raised_words = "NameError", "name 'x' is not defined"
    finish(r)
    assert r.summary.status == "nothing" and r.summary.note == "the cell raised NameError"


def test_files_get_short_names(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    assert label(torch.nn.functional.__file__) == "torch/nn/functional.py"
    assert (
        label(str(tmp_path / "a" / "b.py")) == "a/b.py"
        and label("<string>") == "<string>"
        and label("") == ""
        and label("/elsewhere/x.py") == "x.py"
    )
    set_cell_labels({"/tmp/cell.py": 7}.get)
    try:
        assert label("/tmp/cell.py") == "In[7]" and cell_number("In[7]") == 7 and cell_number("x") is None
    finally:
        set_cell_labels(None)


def test_short_text_of_a_tensor_class():
    import torch
    from tcompile.compiler.report.words import short

    assert short(torch.Tensor) == "Tensor" and short(torch.zeros(2, 3)) == "Tensor[2, 3]"


def test_guards_are_whole_sentences():
    x = source.local(0, "x")
    assert guard_text(Guard(x, "LEN", 1)) == "`x` has 1 item"
    assert guard_text(Guard(x, "LEN", 3)) == "`x` has 3 items"
    assert guard_text(Guard(x, "TYPE", int)) == "`x` is exactly an int"
    assert guard_text(Guard(x, "TYPE", list)) == "`x` is exactly a list"


def test_a_loop_in_a_loop_is_named_by_its_own_line():
    assert frame_words("<module>.<loop at line 2>.<loop at line 3>") == "the loop at line 3"
    assert frame_words("f.<loop at line 2>.<loop at line 3>") == "the loop at line 3 in f"
    assert frame_words("f.<locals>.g.<loop at line 2>") == "the loop at line 2 in f.<locals>.g"
