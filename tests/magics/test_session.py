"""Reports of cells, `%tcompile` and its commands, cells under `%tcompile on`."""

import re
import time

import pytest
import torch
from IPython.core.completer import provisionalcompleter

FUNCTION = """
import torch
def f(x):
    return torch.sin(x) * x + 2
x = torch.ones(8)
compile_now = (f, x)
y = f(x)
"""


def run(shell, cell):
    return shell.run_cell(cell, store_history=True)


def test_report_goes_to_the_variable_and_is_shown(shell, capsys):
    r = run(shell, "%%tcompile -o r time=50ms" + FUNCTION)
    assert r.success
    report = shell.user_ns["r"]
    assert report is shell.tcompile.session.last
    assert len(report.graphs) == 1 and not report.graph_breaks and report.kernels[0].name == "kernel_0"
    assert report.graphs[0].graph_module is not None and "sin" in str(report.graphs[0].aten.graph)
    assert report.speedups.status == "measured", report.speedups.reason
    x = report.speedups.over("eager")
    assert x.lo <= x.ratio <= x.hi and 0.3 < x.ratio < 3
    assert report.source.file == "In[1]" and report.source.text.startswith("%%tcompile -o r")
    assert {m.kind for m in report.marks} == {"captured"} and [m.line for m in report.marks] == [4]
    out = capsys.readouterr().out
    assert (
        "● compiled" in out and "1 graph · 0 breaks · 1 kernel" in out and ("than eager" in out or "from eager" in out)
    )


def test_break_and_recompile_are_named(shell, capsys):
    r = run(shell, "%%tcompile -o r time=off\nBREAK = RECOMPILE = True" + FUNCTION)
    assert r.success
    report = shell.user_ns["r"]
    assert report.graph_breaks[0].line == 5 and report.graph_breaks[0].file == "In[1]" and report.graph_breaks[0].remedy
    assert report.recompiles[0].expected == "9" and report.recompiles[0].got == "8" and report.recompiles[0].suggestion
    assert report.frames[0].status == "partly" and report.entries[0].breaks == [0]
    out = capsys.readouterr().out
    assert "▲ partly" in out and "1 break (line 5" in out and "recompiled 1×" in out and "torch.where" in out
    assert [m.kind for m in report.marks if m.line == 5] == ["break", "guard"]


def test_unsafe_calls_are_timed_by_their_graphs_and_said_so(shell):
    run(shell, "%%tcompile -o r time=50ms\nSAFE = False" + FUNCTION)
    call = shell.user_ns["r"].speedups.calls[0]
    assert not call.safe and call.measured == "graphs" and "counter" in call.why_not and call.engines[0].median > 0


def test_repeat_runs_the_whole_cell_again(shell):
    run(shell, "n = 0")
    run(shell, "%%tcompile -o r repeat=3\nn += 1" + FUNCTION)
    assert shell.user_ns["n"] == 1 + 2 * 3
    call = shell.user_ns["r"].speedups.calls[0]
    assert call.measured == "cell" and call.engines[0].n == 3


def test_timing_off_and_nothing_to_time_are_said(shell):
    run(shell, "%%tcompile -o r time=off" + FUNCTION)
    assert shell.user_ns["r"].speedups.status == "off" and "time=off" in shell.user_ns["r"].speedups.reason
    run(shell, "%%tcompile -o r\n1 + 1")
    assert shell.user_ns["r"].summary.status == "nothing" and shell.user_ns["r"].speedups.status == "unavailable"


def test_result_is_shown_before_the_timing(shell, monkeypatch, capsys):
    import tcompile.kernel_magics.timing as timing

    seen = []
    real = timing.measure
    monkeypatch.setattr(timing, "measure", lambda *a, **k: (seen.append(capsys.readouterr().out), real(*a, **k))[1])
    run(shell, "%%tcompile time=20ms" + FUNCTION + "123456")
    assert "123456" in seen[0]


def test_on_and_off(shell, capsys):
    run(shell, "%tcompile on time=off")
    r = run(shell, "# tcompile: mode=reduce-overhead" + FUNCTION + "y.shape")
    assert r.success and r.result == torch.Size([8])
    assert shell.tcompile.session.last.options["mode"] == "reduce-overhead"
    assert "● compiled" in capsys.readouterr().out
    r = run(shell, "a = 1\n\nundefined_name")
    out = capsys.readouterr().out
    assert not r.success and "line 3" in out and "tcompile" not in out
    cells = shell.tcompile.session.cells
    assert (
        run(shell, "%%timeit -n1 -r1\n1 + 1").success
        and run(shell, "%pwd").success
        and shell.tcompile.session.cells == cells
    )
    assert run(shell, "import asyncio\nawait asyncio.sleep(0)\n3").result == 3
    r = run(shell, "# tcompile: mod=x\n1")
    assert not r.success and "mod" in capsys.readouterr().err
    run(shell, "%tcompile off")
    cells = shell.tcompile.session.cells
    assert run(shell, "1 + 1").result == 2 and shell.tcompile.session.cells == cells
    assert "nothing to compile" not in capsys.readouterr().out


def test_commands(shell, capsys):
    for c in ("help", "status", "cache", "last", "reset", "off", ""):
        assert run(shell, f"%tcompile {c}").success, c
    out = capsys.readouterr().out
    assert "%%tcompile [options]" in out and "no report yet" in out and "cache" in out
    assert shell.tcompile.session.engine.resets == 1
    run(shell, "%%tcompile time=off" + FUNCTION)
    assert run(shell, "%tcompile last").result is shell.tcompile.session.last
    for bad, word in (
        ("stat", "status"),
        ("mode=default", "%tcompile on mode=default"),
        ("off now", "takes nothing more"),
        ("cache all", "cache clear"),
    ):
        r = run(shell, f"%tcompile {bad}")
        err = capsys.readouterr().err
        assert not r.success and word in err, (bad, err)


@pytest.mark.parametrize(
    "cell, want",
    [
        ("%tcompile st", ["status"]),
        ("%tcompile cache ", ["clear"]),
        ("%%tcompile mo", ["mode="]),
        ("%%tcompile mode=max", ["max-autotune", "max-autotune-no-cudagraphs"]),
        ("%%tcompile --mode re", ["reduce-overhead"]),
        ("%%tcompile --full", ["--fullgraph"]),
        ("%%tcompile compare=", ["eager", "torch", "eager,torch"]),
        ("%tcompile on back", ["backend="]),
        ("# a training loop\n# tcompile: mode=d", ["default"]),
        ("# tcompile:tim", ["time="]),
    ],
)
def test_completion_offers_options_and_nothing_else(shell, cell, want):
    with provisionalcompleter():
        found = list(shell.Completer.completions(cell, len(cell)))
    assert [c.text for c in found] == want and {c.start for c in found} == {
        len(cell) - len(re.search(r"[^\s=:]*$", cell)[0])
    }


@pytest.mark.parametrize("cell", ["x = 1\n# tcompile: mo", "%%timeit\nmo", "mo", "%tcompile last mo"])
def test_completion_elsewhere_is_as_before(shell, cell):
    with provisionalcompleter():
        assert "mode=" not in [c.text for c in shell.Completer.completions(cell, len(cell))]


def test_a_function_of_the_user_completes_as_a_backend(shell):
    shell.user_ns["my_backend"] = lambda gm, inputs: gm
    with provisionalcompleter():
        assert "my_backend" in [c.text for c in shell.Completer.completions("%%tcompile backend=my_b", 23)]


def test_loading_twice_and_unloading(shell):
    from tcompile.kernel_magics import magics

    before = len(shell.input_transformers_cleanup)
    magics.load(shell, shell.tcompile.session.engine)
    assert len(shell.input_transformers_cleanup) == before
    assert run(shell, "%%tcompile\n2").result == 2
    magics.unload(shell)
    assert len(shell.input_transformers_cleanup) == before - 1 and shell.find_cell_magic("tcompile") is None


def test_bundle_is_displayed_with_all_three_types(shell, monkeypatch):
    """In a notebook the report is one output, updated in place: progress, progress of the timing with the report as it
    is by then, report.
    """
    from tcompile.compiler.report import MIME
    from tcompile.kernel_magics.display import PROGRESS_MIME

    shell.kernel = object()  # what tells a notebook's shell from a terminal's
    try:
        from IPython.utils.capture import capture_output

        began = time.perf_counter()
        with capture_output() as c:
            assert run(shell, "%%tcompile time=20ms\nDELAY = 0.1" + FUNCTION).success
        took = time.perf_counter() - began
    finally:
        del shell.kernel
    compiling = [o.data for o in c.outputs if PROGRESS_MIME in o.data and MIME not in o.data]
    assert any("compiling" in d["text/plain"] for d in compiling) and {
        d[PROGRESS_MIME]["phase"] for d in compiling
    } == {"running"}
    timing = [o.data for o in c.outputs if PROGRESS_MIME in o.data and MIME in o.data]
    assert (
        timing
        and {d[PROGRESS_MIME]["phase"] for d in timing} == {"timing"}
        and "1 graph" in timing[-1][PROGRESS_MIME]["line"]
    )
    assert timing[-1][MIME]["schema"] == "tcompile.report", "a kernel that ends while it times leaves the report behind"
    final = c.outputs[-1].data
    assert [o.data for o in c.outputs if MIME in o.data and PROGRESS_MIME not in o.data] == [final]
    assert set(final) == {"text/plain", "text/html", MIME} and "<script" not in final["text/html"]
    assert len(c.outputs) <= 6 + 5 * took  # five updates a second, and the lines of the timing


def test_report_is_kept_when_the_cell_raises(shell):
    r = run(shell, "%%tcompile -o r" + FUNCTION + "boom")
    assert (
        not r.success
        and len(shell.user_ns["r"].graphs) == 1
        and shell.user_ns["r"].speedups.reason == "the cell raised"
    )
