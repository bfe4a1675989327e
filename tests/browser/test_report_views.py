"""A saved notebook opened without a kernel: every view of the report is there, in both themes, wide and narrow."""

from __future__ import annotations

from typing import Any

import pytest

from . import notebooks
from .conftest import Lab, Server
from .pages import cpu_ms

TABS = ("overview", "code", "graph", "profile", "guards", "speed", "more")


@pytest.fixture(scope="module")
def sample(server: Server) -> str:
    return server.add("sample.ipynb", notebooks.with_sample())


def opened(lab: Lab, name: str) -> Any:
    lab.open(name)
    lab.page.wait_for_selector(".tc-head")
    lab.page.click(".tc-head")
    return lab.page.locator(".tc-output")


def tab(lab: Lab, name: str) -> Any:
    lab.page.click(f".tc-tab:has-text('{name}')")
    return lab.page.locator(".tc-panel-root:not([hidden])")


def test_closed_line_answers_first(lab: Lab, sample: str) -> None:
    lab.open(sample)
    line = lab.page.wait_for_selector(".tc-head").inner_text()
    for words in (
        "partly",
        "2 graphs",
        "1 break",
        "(line 7)",
        "3 kernels",
        "2.9×",
        "[2.8–3.0]",
        "faster than eager",
        "to compile",
    ):
        assert words in line, (words, line)
    assert lab.page.locator(".tc-head").get_attribute("aria-expanded") == "false"
    assert not lab.page.locator(".tc-body").is_visible()
    lab.check()


def test_the_ranked_answer_stands_on_top_and_changes_the_cell(lab: Lab, sample: str) -> None:
    report = opened(lab, sample)
    answers = report.locator(".tc-answer-row")
    assert "at most" in report.locator(".tc-answers").inner_text() and answers.count() > 3
    best = answers.first.inner_text()
    assert "autocast=bfloat16" in best and "1.6× [1.6–1.7], measured" in best and "an error of 3e-3" in best
    above = lab.page.evaluate(
        "() => document.querySelector('.tc-answers').getBoundingClientRect().bottom"
        " <= document.querySelector('.tc-stacked').getBoundingClientRect().top"
    )
    assert above and "Where the 920 ms of the run went" in report.inner_text()
    assert "What was left alone, and why" in report.inner_text()
    answers.first.locator(".tc-button").click()
    source = "() => window.jupyterapp.shell.currentWidget.content.widgets[1].model.sharedModel.getSource()"
    lab.page.wait_for_function(f"() => ({source})().split('\\n')[0].includes('autocast=bfloat16')")
    lab.check()


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_every_view(lab: Lab, sample: str, theme: str) -> None:
    lab.page.set_viewport_size({"width": 1400, "height": 1500})
    report = opened(lab, sample)
    lab.theme(theme)
    short = theme.split()[1].lower()
    expected = {
        "overview": ["Cell 4", "s.item()", "Time per call", "torch.compile", "Compile time", "what to change"],
        "code": ["Loop IR", "aten.mm", "extern", "kernel_add_tanh_0"],
        "graph": ["operations", "core aten"],
        "profile": ["One call", "with the clock", "kernel_softmax_2", "library call"],
        "guards": ["x.shape[0]", "expected", "16", "your line", "what to change", "is a float32 tensor"],
        "speed": ["first call", "steady", "paid off", "GB/s", "peak", "chosen"],
        "more": ["s.item() needs the value", "torch.where", "load_weights", "Dynamic sizes", "Environment", "g++"],
    }
    for name in TABS:
        panel = tab(lab, name)
        if name == "speed":
            lab.page.wait_for_selector(".tc-plotly .main-svg")
        if name == "graph":
            lab.page.wait_for_timeout(300)
        text = panel.inner_text()
        missing = [words for words in expected[name] if words.lower() not in text.lower()]
        assert not missing, (name, missing)
        lab.shot(f"{name}-{short}", report)
    lab.check()


def test_narrow_page_still_reads(narrow_lab: Lab, sample: str) -> None:
    """At some 540 px nothing runs out of the report sideways."""
    report = opened(narrow_lab, sample)
    for name in TABS:
        panel = tab(narrow_lab, name)
        narrow_lab.page.wait_for_timeout(300)
        assert panel.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), name
        narrow_lab.shot(f"{name}-narrow", report)
    narrow_lab.check()


def test_drawing_is_fast(lab: Lab, sample: str) -> None:
    """From the click to the drawn tab, each below half a second of work; the graph of 9,000 operations too."""

    def large(report: dict[str, Any]) -> None:
        rows: list[tuple[str, str, list[int], str, int | None]] = [("x", "input", [], "", None)]
        for i in range(1, 9001):
            rows.append((f"op_{i}", "aten.mul.Tensor", [i - 1], f"model.layers.{i // 30}", i // 5 % 3))
        report["id"] = "large"
        report["graphs"][0].update(lowered=notebooks.column_graph(rows), ops=9000)

    name = lab.server.add("large.ipynb", notebooks.with_sample(large))
    click = "[...document.querySelectorAll('{}')].find(e => e.textContent.startsWith('{}')).click()"
    clicks = [((".tc-tab", tab), 500) for tab in TABS] + [((".tc-tab", "graph"), 500), ((".tc-tool", "▾ all"), 1000)]
    opened(lab, name)
    for what, bar in clicks:
        spent = cpu_ms(lab.page, click.format(*what))
        assert spent < bar, (what, spent)
    lab.page.wait_for_timeout(300)
    lab.shot("graph-9000")
    lab.check()


def test_one_selection_for_all_columns(lab: Lab, sample: str) -> None:
    opened(lab, sample)
    tab(lab, "code")
    lab.page.click(".tc-pane .tc-line[data-line='5']")
    assert lab.page.locator(".tc-graph-line.tc-selected").count() == 9  # mm, add, tanh of three layers
    assert lab.page.locator(".tc-pane:has-text('Loop IR') .tc-line.tc-selected").count() >= 1
    lab.shot("code-selected", lab.page.locator(".tc-output"))
    lab.page.locator(".tc-graph-line", has_text="aten.mul.Tensor").click()
    assert lab.page.locator(".tc-pane .tc-line.tc-selected[data-line='6']").count() == 1
    assert "kernel_mul_sum_1" in lab.page.locator(".tc-pane-head:has-text('Kernel') select").evaluate(
        "e => e.options[e.selectedIndex].text"
    )
    lab.check()


def test_graph_by_keyboard_and_search(lab: Lab, sample: str) -> None:
    opened(lab, sample)
    panel = tab(lab, "graph")
    canvas = lab.page.locator(".tc-graph-canvas")
    canvas.focus()
    canvas.press("ArrowDown")
    assert panel.locator("h4").inner_text() == "x"
    canvas.press("ArrowDown")
    assert panel.locator("h4").inner_text() == "mm"
    lab.page.fill(".tc-search input", "sum")
    assert "match" in lab.page.locator(".tc-search [role=status]").inner_text()
    lab.page.press(".tc-search input", "Enter")
    assert "aten.sum" in panel.inner_text()
    lab.page.click(".tc-tool:has-text('table')")
    assert lab.page.locator(".tc-graph-table [role=option].tc-selected").count() == 1
    lab.shot("graph-search", lab.page.locator(".tc-output"))
    lab.check()


def test_links_open_their_place(lab: Lab, sample: str) -> None:
    opened(lab, sample)
    lab.page.locator(".tc-finding .tc-link").first.click()
    assert lab.page.locator(".tc-card-break.tc-selected").is_visible()
    assert lab.page.locator(".tc-tab[aria-selected=true]").inner_text().lower().startswith("more")
    lab.check()


def test_reader_s_place_survives_scrolling_away(lab: Lab, sample: str) -> None:
    """JupyterLab makes an output anew when its cell comes back into view: the open tab is still open."""
    opened(lab, sample)
    tab(lab, "guards")
    lab.page.evaluate("""() => {
        const cell = window.jupyterapp.shell.currentWidget.content.widgets[1];
        const saved = cell.model.outputs.toJSON();
        cell.model.outputs.clear();
        cell.model.outputs.fromJSON(saved);
    }""")
    lab.page.wait_for_selector(".tc-tab[aria-selected=true]:has-text('guards')")
    lab.check()


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda r: r.update(version=2), "version 2"),
        (lambda r: r.update(schema="other"), "does not hold a tcompile report"),
        (lambda r: r.update(kernels={"$z": "bm90IHpsaWI=", "n": 8}), "cannot be shown"),
    ],
)
def test_a_report_that_cannot_be_read_says_so(lab: Lab, damage: Any, words: str) -> None:
    lab.open(lab.server.add("damaged.ipynb", notebooks.with_sample(damage)))
    assert words in lab.page.wait_for_selector(".tc-report .tc-error").inner_text()
    assert not lab.errors


def test_user_text_is_text(lab: Lab) -> None:
    """Names and reasons come from user code: markup in them is shown, never interpreted."""

    def hostile(report: dict[str, Any]) -> None:
        evil = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
        report["id"] = "hostile"
        report["summary"]["note"] = evil
        report["findings"][0]["text"] = evil
        report["graph_breaks"][0].update(reason=evil, code=evil, function=evil, remedy=evil)
        report["recompiles"][0].update(expected=evil, got=evil, suggestion=evil, source=evil)
        report["source"]["text"] = f"# {evil}\n"

    opened(lab, lab.server.add("hostile.ipynb", notebooks.with_sample(hostile)))
    for name in TABS:
        tab(lab, name)
        lab.page.wait_for_timeout(100)
    assert lab.page.evaluate("() => window.hacked") is None
    assert lab.page.locator(".tc-report img, .tc-report script").count() == 0
    lab.check()


def test_empty_report_explains_itself(lab: Lab) -> None:
    def bare(report: dict[str, Any]) -> None:
        keep = {"schema", "version", "title", "created", "source"}
        for name in [n for n in report if n not in keep]:
            del report[name]
        figures = dict.fromkeys(("graphs", "breaks", "kernels", "externs", "recompiles", "compile_seconds"), 0)
        report.update(
            id="bare", summary={"status": "nothing", "symbol": "·", "note": "no tensor code ran", "line": "", **figures}
        )

    opened(lab, lab.server.add("bare.ipynb", notebooks.with_sample(bare)))
    for name in TABS:
        assert len(tab(lab, name).inner_text()) > 10, name
    assert "no tensor code ran" in lab.page.locator(".tc-head").inner_text()
    lab.check()
