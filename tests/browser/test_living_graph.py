"""The graph of a training step: parts and modules as groups, an optimizer's step folded, costs, passes, a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tcompile import CompileReport
from tcompile.compiler.report import schema as s

from .notebooks import column_graph, sample_report
from .pages import cpu_ms, opened, saved, show
from .test_budgets import PAN


def training_step(layers: int, update: int) -> CompileReport:
    """A graph of forward, backward and an optimizer's step of so many operations for each of the layers' weights."""
    rows: list[tuple[str, str, list[int], str, int | None]] = [
        ("x", "input", [], "", None),
        ("lr", "input", [], "", None),
    ]

    def put(name: str, op: str, inputs: list[int], module: str = "", kernel: int | None = None) -> int:
        rows.append((name, op, inputs, module, kernel))
        return len(rows) - 1

    state = [put(f"opt_state_{i}_exp_avg", "input", []) for i in range(layers)]
    h, weights = 0, []
    for i in range(layers):
        weights.append(put(f"layers_{i}_weight", "parameter", [], f"layers.{i}.linear"))
        h = put(f"mm_{i}", "aten.mm.default", [h, weights[-1]], f"layers.{i}.linear")
        h = put(f"relu_{i}", "aten.relu.default", [h], f"layers.{i}.act", 0)
    grads: dict[int, int] = {}
    g = put("ones", "aten.full.default", [], "backward")
    for i in reversed(range(layers)):
        g = put(f"back_{i}", "aten.mul.Tensor", [g, h], f"backward.layers.{i}.act", 1)
        grads[i] = g = put(f"mm_back_{i}", "aten.mm.default", [g, weights[i]], f"backward.layers.{i}.linear")
    rate = put("rate", "aten.mul.Tensor", [1], "optimizer")
    news = []
    for i in range(layers):
        m = put(f"avg_{i}", "aten.mul.Tensor", [state[i], grads[i]], "optimizer", 2)
        for k in range(update):
            m = put(f"up_{i}_{k}", "aten.add.Tensor", [m, rate if k == 1 else weights[i]], "optimizer", 2)
        news.append(m)
    put("output", "output", [h, *news])
    report = sample_report()
    report["partitions"] = []
    report["profiles"] = []
    graph = report["graphs"][0]
    graph.update(captured=column_graph([]), lowered=column_graph(rows), ops=len(rows))
    graph["passes"] = [
        {
            "name": name,
            "point": "decomposed",
            "seconds": 1e-3,
            "before": 9,
            "after": 9,
            "removed": removed,
            "added": [line],
            "more": 0,
        }
        for name, line, removed in (
            ("cse", "relu_0 = aten.relu.default(mm_0)", []),
            ("fold", "relu_1 = aten.relu.default(mm_1)", ["gone_by_fold = aten.neg.default(mm_1)"]),
        )
    ]
    return CompileReport.from_json(json.dumps(report))


def walked(page: Any, keys: list[str]) -> list[str]:
    page.locator(".tc-graph-canvas").focus()
    out = []
    for key in keys:
        page.keyboard.press(key)
        out.append(page.locator(".tc-graph-details h4").inner_text())
    return out


def test_parts_are_groups_and_updates_are_folded(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, training_step(6, 3))) as (page, problems):
        show(page, "graph")
        page.locator(".tc-tool", has_text="▸ all").click()
        seen = walked(page, ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"])
        assert seen[1:] == ["forward.layers", "backward", "optimizer"], seen
        assert "operations" in page.locator(".tc-graph-details").inner_text()
        page.keyboard.press("Enter")  # opens the optimizer's step
        page.locator(".tc-search input").fill("up_3_2")
        page.locator(".tc-search input").press("Enter")
        assert page.locator(".tc-graph-details h4").inner_text() == "up_3_2"
        page.locator(".tc-graph-canvas").focus()
        page.keyboard.press("Backspace")  # closes the group of its parameter
        assert not problems


def test_a_graph_of_6000_nodes_opens_as_an_overview_in_time(browser: Any, tmp_path: Path) -> None:
    report = training_step(330, 14)
    assert report.graphs[0].lowered.count > 6000
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        first = cpu_ms(page, "document.querySelectorAll('.tc-tab')[2].click()", 1)
        assert first < 1000, first
        zoom = "document.querySelectorAll('.tc-graph .tc-tool')[i % 2].click()"
        assert cpu_ms(page, zoom, 6) < 50
        spent = page.evaluate(PAN)
        assert spent[len(spent) // 2] < 50, spent[len(spent) // 2]
        # so few boxes that each can be read, and yet all of the graph
        assert page.locator(".tc-minimap").is_hidden()
        assert not problems


def test_scrubbing_through_the_passes_and_comparing(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, training_step(4, 3))) as (page, problems):
        show(page, "graph")
        page.locator(".tc-passes summary").click()
        slider = page.locator(".tc-passes input")
        slider.press("ArrowRight")
        assert slider.get_attribute("aria-valuetext") == "fold"
        assert "relu_1 = aten.relu" in page.locator(".tc-passes").inner_text()
        page.locator(".tc-search input").fill("gone_by_fold")  # it is there until the pass that takes it away
        assert page.locator(".tc-search").inner_text() == "1 match"
        slider.press("End")
        page.locator(".tc-search input").fill("gone_by_fold")
        page.locator(".tc-search input").press("Enter")
        assert "1 of 1" in page.locator(".tc-search").inner_text()
        page.locator(".tc-passes summary").click()
        for text in ["gone_by_fold", ""] * 50:  # (that it was closed is told a moment later)
            page.locator(".tc-search input").fill(text)
            if page.locator(".tc-search").inner_text() == "0 matches":
                break
            page.wait_for_timeout(50)
        assert page.locator(".tc-search").inner_text() == "0 matches"
        page.locator(".tc-search input").fill("")
        page.locator(".tc-compare").select_option(label=page.locator(".tc-compare option").nth(1).inner_text())
        words = page.locator(".tc-graph-details").inner_text()
        assert "Against graph_1" in words and "only here" in words and "mm" in words
        assert not problems


def test_costs_and_strides_stand_with_a_node(browser: Any, tmp_path: Path) -> None:
    report = CompileReport.from_json(json.dumps(sample_report()))
    nodes = report.graphs[0].lowered.nodes()
    from tcompile.compiler.report.payload import encode

    next(n for n in nodes if n.name == "mm").stride = [1, 64]
    report.graphs[0].lowered = encode(nodes)
    assert isinstance(report.profiles[0], s.CallProfile)
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "graph")
        page.locator(".tc-search input").fill("mm")
        page.locator(".tc-search input").press("Enter")
        words = page.locator(".tc-graph-details").inner_text()
        assert "1, 64" in words and "7.20 µs, 12 %" in words, words
        assert not problems


def test_a_pair_is_chosen_by_the_overview_and_by_keys(browser: Any, tmp_path: Path) -> None:
    report = CompileReport.from_json(json.dumps(sample_report()))
    report.graphs[0].unfused = [["mm", "add", "mm is a library call (matrix product)"]]
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        page.locator("dt", has_text="Why are two operations two kernels?").locator("xpath=..").locator("button").click()
        details = page.locator(".tc-graph-details")
        assert details.locator("h4").inner_text() == "mm and add"
        assert "mm is a library call (matrix product)" in details.inner_text()
        chosen = page.locator(".tc-graph-table [aria-selected=true]")
        page.locator(".tc-tool", has_text="table").click()
        chosen.first.wait_for()
        assert sorted(row.split()[0] for row in chosen.all_inner_texts()) == ["%add", "%mm"], "both are seen as chosen"
        page.locator(".tc-tool", has_text="table").click()
        details.locator(".tc-link", has_text="mm").first.click()
        assert details.locator("h4").inner_text() == "mm"
        page.locator(".tc-graph-canvas").focus()
        page.keyboard.press("Shift+ArrowDown")
        assert details.locator("h4").inner_text().startswith("mm and ")
        assert not problems


KERNEL = """() => document.addEventListener('tcompile-host', event => {
  event.detail.host = { ask: async (question, facts) => {
    window.asked = [question, facts];
    const plain = {dtype: 'float32', count: 4, sample: [0.5, 1], min: -0.25, max: 2, mean: 0.5, nan: 0, inf: 0, zero: 1, mark: ''};
    return { values: [{...plain, node: 'mm'}, {...plain, node: 'add', nan: 2, sample: ['nan', 1], mark: 'nan'}] };
  } };
})"""


def test_values_are_asked_of_the_kernel_and_marked(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, problems):
        page.evaluate(KERNEL)
        show(page, "graph")
        page.locator(".tc-graph-details .tc-button", has_text="look at the values").click()
        details = page.locator(".tc-graph-details")
        details.locator("text=1 of 2 values are marked").wait_for()
        assert page.evaluate("window.asked[0]") == "values" and page.evaluate("window.asked[1].graph") == 0
        details.locator(".tc-link", has_text="add").click()
        words = details.inner_text()
        assert "-0.25 … 2, mean 0.5" in words and "2 NaN" in words and "nan 1" in words, words
        assert not problems


def test_without_a_kernel_no_values_are_offered(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, _):
        show(page, "graph")
        assert not page.locator(".tc-button", has_text="look at the values").count()


# How many of the picture's pixels show something else than the ground.
INK = """() => {
  const canvas = document.querySelector('.tc-graph-canvas');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let ink = 0;
  for (let i = 3; i < data.length; i += 4) ink += data[i] > 40;
  return ink / (canvas.width * canvas.height);
}"""


def test_all_of_a_wide_graph_is_a_map_that_can_be_read(browser: Any, tmp_path: Path) -> None:
    """Hundreds of updates beside each other were a line of a pixel, and its boxes had the colour of the ground."""
    report = training_step(300, 6)
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        show(page, "graph")
        page.locator(".tc-tool", has_text="▾ all").click()
        page.locator(".tc-tool", has_text="⤢").click()
        page.wait_for_timeout(300)
        assert page.evaluate(INK) > 0.1
        spent = cpu_ms(page, PAN_ONCE, 6)
        assert spent < 50, spent
        assert not problems


PAN_ONCE = """
  const canvas = document.querySelector('.tc-graph-canvas'), box = canvas.getBoundingClientRect();
  const at = (type, x) => canvas.dispatchEvent(new PointerEvent(type, {
    clientX: box.x + x, clientY: box.y + 300, pointerId: 1, buttons: 1, button: 0, bubbles: true }));
  at('pointerdown', 300); at('pointermove', 310 + i); at('pointercancel', 310);
"""


TRIED = """() => document.addEventListener('tcompile-host', event => {
  event.detail.host = { ask: async (question, facts) => {
    const engine = name => ({engine: name, status: 'ok', reason: '', median: 1e-3, lo: 1e-3, hi: 1e-3, n: 5, samples: []});
    const call = {name: 'f', measured: 'call', engines: ['eager', 'as it was', 'tried'].map(engine), ratios: {}};
    return { calls: [call], kernels: [['k0', ['mm']], ['k1', ['add']]], unfused: [['mm', 'add', 'it is a library call']] };
  } };
})"""


def test_what_cannot_be_one_kernel_has_no_times_and_nothing_to_keep(browser: Any, tmp_path: Path) -> None:
    rows = [("x", "input", [], "", None), ("mm", "aten.mm.default", [0], "", 0), ("add", "aten.add.Tensor", [1], "", 1)]
    report = sample_report()
    report["partitions"] = []
    report["graphs"][0].update(captured=column_graph([]), lowered=column_graph(rows), ops=2, unfused=[])
    with opened(browser, saved(tmp_path, CompileReport.from_json(json.dumps(report)))) as (page, problems):
        page.evaluate(TRIED)
        show(page, "graph")
        page.locator(".tc-graph-canvas").focus()
        for key in ("ArrowDown", "ArrowDown", "Shift+ArrowDown"):
            page.keyboard.press(key)
        details = page.locator(".tc-graph-details")
        details.locator("button", has_text="force them into one kernel").click()
        details.locator("text=They can’t be in one kernel: it is a library call.").wait_for()
        assert "To keep it" not in details.inner_text() and not details.locator("table").count()
        assert not problems
