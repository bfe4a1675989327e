"""Figures that are true: what a speedup is of, what counts as speed, what a badge may say."""

from __future__ import annotations

import pytest
import tcompile
import torch
from make_sample import sample
from tcompile import CompileReport
from tcompile.compiler import events
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.builder import ReportBuilder
from tcompile.compiler.report.finish import finish
from tcompile.compiler.base.figures import against
from tcompile.compiler.report.conclusions.truth import fell_back, main_call, share_of_run, unused_share


def quiet() -> object:
    r = sample()
    r.graph_breaks.clear(), r.fallbacks.clear(), r.recompiles.clear(), r.errors.clear()
    for f in r.frames:
        if f.status == "partly":
            f.status = "compiled"
    return r


@pytest.mark.parametrize(
    "ratio, lo, hi, words",
    [
        (2.9, 2.8, 3.0, "2.9× [2.8–3.0] faster than eager"),
        (0.8, 0.78, 0.82, "1.25× [1.22–1.28] slower than eager"),
        (1.2, 0.9, 1.4, "no clear difference from eager (1.2× [0.9–1.4])"),
        (5.0, 2.5, 8.4, "2.5–8.4× faster than eager"),
        (69.0, 2.5, 83.9, "faster than eager (2.5–84×)"),
        (1 / 69.0, 1 / 83.9, 1 / 2.5, "slower than eager (2.5–84×)"),
        (0.1, 0.05, 0.4, "2.5–20× slower than eager"),
        (26.0, 26.0, 26.0, "one sample of each: too few to compare with eager"),
    ],
)
def test_what_an_interval_allows_to_say(ratio, lo, hi, words):
    assert against(ratio, lo, hi, "eager") == words


def test_what_raised_fell_back_or_was_interrupted_is_not_green():
    r = quiet()
    finish(r)
    assert r.summary.status == "compiled"
    for change in (
        lambda r: setattr(r, "raised", "ValueError"),
        lambda r: setattr(r, "raised", "KeyboardInterrupt"),
        lambda r: r.fallbacks.append(s.Fallback("forward", "switched off: its calls were slower", 1, 0)),
        lambda r: r.fallbacks.append(s.Fallback("toolchain", "no C++ compiler", 1)),
    ):
        r = quiet()
        change(r)
        finish(r)
        assert r.summary.status == "partly" and r.summary.symbol == "▲", r.summary
    r = quiet()
    r.fallbacks.append(s.Fallback("aten.foo.default", "eager kernel: no lowering rule", 1, 0))  # a library call
    finish(r)
    assert not fell_back(r) and r.summary.status == "compiled"


def test_work_that_was_left_out_is_no_speed():
    r = quiet()
    r.graphs[0].unused = 0.05
    finish(r)
    assert unused_share(r) == (0.0, "") and r.speedups.over("eager") is not None
    r.graphs[0].unused = 0.98
    finish(r)
    assert r.speedups.over("eager") is None and r.speedups.over("torch") is not None
    assert "98 % of graph_0's work left out" in r.summary.line and "than eager" not in r.summary.line
    call = r.speedups.calls[0]
    assert all(x.over != "eager" for x in call.speedups) and call.break_even_calls is None
    assert all(e.median for e in call.engines), "the times themselves stay"
    finish(r)
    assert r.speedups.reason.count("nobody reads") == 1


def test_a_figure_names_its_call_and_how_little_of_the_run_that_is():
    r = quiet()
    finish(r)
    assert "faster than eager in `forward` (under 1 % of the run)" in r.summary.line
    r.speedups.of = ""
    finish(r)
    assert "faster than eager   " in r.summary.line and r.speedups.share is None


def test_the_main_call_is_a_whole_one():
    r = quiet()
    assert main_call(r.speedups).name == "forward"  # the other has larger times, of its graphs alone
    r.speedups.calls = [c for c in r.speedups.calls if c.measured == "graphs"]
    assert main_call(r.speedups) is None
    finish(r)
    assert "pays off" not in r.summary.line


def test_a_backward_that_breaks_because_of_another_break_names_that_one():
    r = sample()
    r.source.file = "In[1]"
    r.graph_breaks = [
        s.Break("item", "item() needs the value.", "In[1]", 4, remedy="keep it a tensor", frame=0),
        s.Break(
            "backward",
            "backward() goes on into what computed `loss`, outside of the graph.",
            "In[1]",
            7,
            remedy="call it outside",
            frame=0,
        ),
    ]
    finish(r)
    assert r.graph_breaks[1].remedy.startswith("change line 4 first")
    assert any(f.line == 7 and f.action == r.graph_breaks[1].remedy for f in r.findings)


def test_a_recompile_names_the_call():
    def f(x):
        return torch.sin(x) * 2

    builder, g, x = ReportBuilder(), tcompile.compile(f), torch.ones(4, 3)
    with events.listen(builder):
        for call in (x, x, x.double()):
            g(call)
    (again,) = CompileReport.from_json(builder.report().to_json()).recompiles
    assert again.at_call == 3 and again.detail == "dtype"


def test_marks_say_what_became_of_a_line_also_where_it_calls():
    """A backward pass that autograd calls is compiled, and so is what a line calls in another cell or file."""
    r = sample()
    b = r.graph_breaks[0]
    b.harmless, file = True, r.source.file
    r.frames.append(s.Frame("Net.forward", "In[2]", 3, "compiled", cell_line=2))
    r.graphs.append(s.Graph("graph_net", len(r.frames) - 1, called_at=[]))

    def kinds(line):
        finish(r)
        return [m.kind for m in r.marks if m.file == file and m.line == line]

    assert kinds(2) == ["captured"] and kinds(b.line)[0] == "eager"
    r.graphs.append(s.Graph("graph_net_backward", len(r.frames) - 1, called_at=[file, b.line]))
    assert kinds(b.line)[0] == "captured"
    b.harmless = False
    assert kinds(b.line)[0] == "break"


def test_a_first_call_that_is_all_of_a_run_is_not_little_of_it():
    r = quiet()
    r.speedups.calls = [c for c in r.speedups.calls if c.measured == "call"]
    for f in r.frames:
        f.name = r.speedups.calls[0].name
    own = s.WallPart("compiled", "guards, launches and the rest of compiled calls", 0.9)
    r.wall = s.Wall(1.0, "sampled", 100, [own, s.WallPart("python", "Python", 0.1)], 100)
    assert share_of_run(r) == pytest.approx(0.9)
    r.frames[0].name = "another, which nobody timed"
    r.frames[0].entries = [0]
    assert share_of_run(r) < 0.9
