"""A report as one page, opened from disk, and as a widget in a host that is not JupyterLab: interactive, readable in
every theme and at every width, named for screen readers, in one language, under a policy that forbids eval, and silent
on the network."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport

from .conftest import ARTIFACTS, LABEXTENSION
from .contrast import CONTRAST
from .notebooks import SAMPLE, sample_report
from .pages import TABS, THEMES, opened, saved, show

# What a screen reader needs: names of everything that can be focused, references that lead somewhere, children where
# roles ask for them.
NAMES = """() => {
  const bad = [], root = document.querySelector('.tc-report');
  const named = e => (e.getAttribute('aria-label') || e.title || e.textContent || e.placeholder || '').trim()
                     || (e.labels && [...e.labels].some(l => l.textContent.trim()));
  const visible = e => e.checkVisibility();
  for (const e of root.querySelectorAll('button, a, input, select, textarea, [tabindex], [role=img], [role=region], [role=listbox], [role=application]'))
    if (visible(e) && !named(e)) bad.push('no name: ' + e.outerHTML.slice(0, 120));
  for (const e of root.querySelectorAll('[tabindex]')) if (Number(e.tabIndex) > 0) bad.push('tab order: ' + e.outerHTML.slice(0, 80));
  const ids = [...root.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) bad.push('an id twice');
  for (const e of root.querySelectorAll('[aria-labelledby], [aria-activedescendant]'))
    for (const name of ['aria-labelledby', 'aria-activedescendant'])
      if (visible(e) && e.hasAttribute(name) && !document.getElementById(e.getAttribute(name))) bad.push(name + ' leads nowhere: ' + e.outerHTML.slice(0, 80));
  const need = {listbox: 'option', list: 'listitem', tablist: 'tab'};
  for (const [role, child] of Object.entries(need))
    for (const e of root.querySelectorAll(`[role=${role}]`))
      if (visible(e) && !e.querySelector(`[role=${child}]`)) bad.push(`${role} without ${child}: ` + e.outerHTML.slice(0, 100));
  for (const e of root.querySelectorAll('th')) if (!e.scope) bad.push('th without scope');
  return bad;
}"""

# What a pointer can press and a key cannot reach; then where the focus is, whether one sees it and whether it is in
# view.
BY_POINTER_ALONE = """() => {
  const pressed = e => getComputedStyle(e).cursor === 'pointer', bad = {};
  for (const e of document.querySelectorAll('.tc-report *')) {
    if (!e.checkVisibility() || !pressed(e) || pressed(e.parentElement)) continue;
    const own = e.closest('button, a[href], input, select, summary, label, [tabindex]');
    if (own?.tabIndex >= 0 || e.closest('[role=tablist], [role=listbox], [role=radiogroup]')) continue;
    bad[`${e.tagName}.${e.getAttribute('class')}`] = e.textContent.slice(0, 40);
  }
  return bad;
}"""
FOCUSED = """() => {
  const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
  const ring = style.outlineStyle !== 'none' || style.boxShadow !== 'none';
  const inView = box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight;
  return e === document.body ? null : [e.outerHTML.slice(0, 90), ring, inView];
}"""

# Elements that reach beyond the page's right edge, but for those in containers that scroll.
TOO_WIDE = """() => {
  const width = document.documentElement.clientWidth, bad = [];
  for (const e of document.querySelectorAll('.tc-report *')) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > width + 1 && !e.closest('.tc-table-wrap, .tc-listing, .tc-virtual, .tc-pane-body, .tc-graph-stage, svg, pre')) bad.push(e.className || e.tagName);
  }
  return document.documentElement.scrollWidth > width ? ['the page scrolls sideways', ...bad] : bad;
}"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("page"))


def test_exported_page(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        for tab in TABS:
            show(page, tab)
        show(page, "speed")
        page.wait_for_selector(".tc-plot svg")
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / "page-speed.png", full_page=True)
        # A plot keeps to its place: nothing is drawn over what follows it.
        boxes = page.evaluate("""() => [...document.querySelectorAll('.tc-plot')].filter(e => e.checkVisibility()).map(e =>
            [e.getBoundingClientRect().height, e.querySelector('svg').getBoundingClientRect().height])""")
        assert boxes and all(inner <= outer + 1 and inner < 320 for outer, inner in boxes)
        assert not problems


@pytest.mark.parametrize("theme", [None, *THEMES])
def test_every_text_has_contrast(browser: Any, address: str, theme: str | None) -> None:
    with opened(browser, address, theme=theme) as (page, problems):
        for tab in TABS:
            show(page, tab)
            seen, bad = page.evaluate(CONTRAST)
            assert seen > 10 and not bad, (tab, bad)
        assert not problems


def test_a_page_follows_a_dark_system(browser: Any, address: str) -> None:
    with opened(browser, address, color_scheme="dark") as (page, problems):
        for tab in TABS:
            show(page, tab)
            _, bad = page.evaluate(CONTRAST)
            assert not bad, (tab, bad)
        ground = page.evaluate("() => getComputedStyle(document.querySelector('.tc-report')).backgroundColor")
        assert ground == "rgb(22, 24, 28)" and not problems


VSCODE_DARK = {
    "editor-background": "#1f1f1f",
    "sideBar-background": "#181818",
    "editorWidget-background": "#202020",
    "foreground": "#cccccc",
    "descriptionForeground": "#9d9d9d",
    "panel-border": "#2b2b2b",
    "focusBorder": "#0078d4",
    "textLink-foreground": "#4daafc",
}


@pytest.mark.parametrize("host, ground", [("vscode", "rgb(31, 31, 31)"), ("colab", "rgb(22, 24, 28)")])
def test_dark_in_a_host_with_the_light_colours_of_ipywidgets(
    browser: Any, address: str, host: str, ground: str
) -> None:
    with opened(browser, address, theme="light") as (page, problems):
        if host == "vscode":
            page.add_style_tag(
                content=":root{" + "".join(f"--vscode-{name}:{value};" for name, value in VSCODE_DARK.items()) + "}"
            )
            page.evaluate("() => document.body.dataset.vscodeThemeKind = 'vscode-dark'")
        else:
            page.evaluate("() => document.documentElement.setAttribute('theme', 'dark')")
        for tab in TABS:
            show(page, tab)
            _, bad = page.evaluate(CONTRAST)
            assert not bad, (tab, bad)
        assert (
            page.evaluate("() => getComputedStyle(document.querySelector('.tc-report')).backgroundColor") == ground
            and not problems
        )


@pytest.mark.parametrize("width", [1400, 900, 600, 420])
def test_nothing_runs_out_of_the_page(browser: Any, address: str, width: int) -> None:
    with opened(browser, address, width=width) as (page, _):
        for tab in TABS:
            show(page, tab)
            assert not page.evaluate(TOO_WIDE), (tab, width)
            ARTIFACTS.mkdir(exist_ok=True)
            page.screenshot(path=ARTIFACTS / f"page-{tab}-{width}.png", full_page=True)


def test_screen_readers_find_names(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, _):
        for tab in TABS:
            show(page, tab)
            assert not page.evaluate(NAMES), tab
        show(page, "graph")
        page.click(".tc-tool:has-text('table')")
        assert not page.evaluate(NAMES)


def test_the_keyboard_reaches_everything(browser: Any, address: str) -> None:
    """Tab walks through the report and out of it again, by stops that one sees; arrows change tabs; no element keeps
    the focus, and none can be pressed by a pointer alone.
    """
    with opened(browser, address) as (page, _):
        page.focus(".tc-tab[aria-selected=true]")
        for tab in TABS[1:]:
            page.keyboard.press("ArrowRight")
            assert page.evaluate("() => document.activeElement.textContent").startswith(tab)
        for tab in TABS:
            show(page, tab)
            assert page.evaluate(BY_POINTER_ALONE) == {}, tab
            page.focus(".tc-head")
            stops = []
            for _ in range(120):
                page.keyboard.press("Tab")
                stops.append(page.evaluate(FOCUSED))
                if not stops[-1]:
                    break
            assert not stops[-1], f"the focus does not leave {tab}"
            assert len({words for words, *_ in stops[:-1]}) > 3
            unseen = [words for words, ringed, in_view in stops[:-1] if not (ringed and in_view)]
            assert not unseen, (tab, unseen)


def test_forward_and_backward_as_one_graph(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        show(page, "graph")
        page.click(".tc-segment:has-text('with backward')")
        page.click(".tc-tool:has-text('table')")
        for name, found in (("grad_tanh", "1 match"), ("mm_1", "1 match"), ("saved_tanh", "0 matches")):
            page.fill(".tc-search input", name)
            assert page.locator(".tc-search [role=status]").inner_text() == found, name
        page.fill(".tc-search input", "grad_h")
        page.press(".tc-search input", "Enter")
        details = page.locator(".tc-graph-details").inner_text()
        assert "backward.layers.2" in details and "layers_2_weight" in details, "it reads forward's own weight"
        show(page, "code")
        assert page.locator(".tc-virtual .tc-selected:visible", has_text="%grad_h").count() == 1, (
            "the selection is backward's node in other views"
        )
        assert not problems


def test_why_two_operations_are_not_one_kernel(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        show(page, "graph")
        page.click(".tc-tool:has-text('table')")
        page.fill(".tc-search input", "tanh_2")
        page.press(".tc-search input", "Enter")
        page.locator(".tc-graph-details .tc-links .tc-link", has_text="mul ○").click()
        assert (
            "Not in one kernel: tanh_2 is also an output; sum reads another order."
            in page.locator(".tc-graph-details").inner_text()
        )
        assert page.locator(".tc-graph-details button:has-text('time it')").count() == 0, (
            "without a kernel nothing can be tried"
        )
        assert not problems


def test_memory_and_what_is_kept_for_backward(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        show(page, "speed")
        text = page.locator(".tc-panel-root:visible").inner_text()
        for words in (
            "Bytes alive while graph_0 runs",
            "Kept for backward",
            "8.2 KB in 2 values, 1 computed again",
            "what eager keeps",
        ):
            assert words in text, words
        page.locator("[data-partition] tr", has_text="tanh_2").click()
        show(page, "graph")
        assert page.locator(".tc-graph-details h4").inner_text() == "tanh_2"
        assert not problems


def test_one_place_says_of_each_call_what_served_it_and_why(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.locator(".tc-glance div", has_text="Which call waited").locator("button").click()
        calls = page.locator("[aria-label='Calls and the entries that served them']:visible").first
        text = calls.inner_text()
        for words in (
            "the first call: there was no entry yet",
            "compiled again: ",
            "changed from 8 to 16",
            "did not compile",
        ):
            assert words in text, text
        assert page.locator(".tc-selected", has_text="Call by call").count() == 1, "and the way there leads to it"
        assert not problems


def test_the_line_that_costs_most_is_that_of_the_table(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        said = page.locator(".tc-glance div", has_text="Which line costs most").inner_text()
        line, share = re.search(r"line (\d+), (\d+) %", said).groups()
        rows = page.locator("[aria-label='Where the wall time went, by name'] tbody tr").evaluate_all(
            "rows => rows.map(r => [...r.cells].map(c => c.innerText))"
        )
        for row in rows:
            part = re.search(r"(\d+) %", " ".join(row))
            assert part is None or "line" not in row[-1] or int(part[1]) <= int(share), (said, row)
        heat = page.locator(".tc-listing .tc-heat").evaluate_all("all => all.map(e => parseInt(e.textContent))")
        assert max(heat) <= int(share) and line, heat
        assert not problems


def test_all_texts_go_through_one_door(browser: Any, tmp_path: Path) -> None:
    """With a translator that marks what it has seen, no text is left that it has not, but for what the report
    brought.
    """
    with served(tmp_path, {}) as home, opened_widget(browser, home, WIDGET, "") as (page, problems):
        page.wait_for_selector(".tc-head")
        page.click(".tc-head")
        raw = json.dumps(sample_report(), ensure_ascii=False)
        page.evaluate("text => window.known = text", raw + "".join(_unpacked(sample_report())))
        for tab in range(1, 8):
            page.click(f".tc-tab:nth-child({tab})")
            page.wait_for_timeout(200)
        left = page.evaluate("""() => {
          // Words that the report brought, and units: what is left of a text without them must be of the translator's making.
          const known = new Set(window.known.match(/[A-Za-z_]{2,}/g)), units = /^(ns|ms|[kKMGT]?(FLOP|B))$/;
          const own = text => { for (let next; (next = text.replace(/⟦[^⟦⟧]*⟧/g, ' ')) !== text; ) text = next; return text; };
          const foreign = text => (own(text).match(/[A-Za-z_]{2,}/g) ?? []).some(w => !known.has(w) && !units.test(w));
          const left = new Set();
          const skip = 'code, p:has(> code), pre, .tc-listing, .tc-virtual, .tc-graph-details h4';
          const walker = document.createTreeWalker(document.querySelector('.tc-report'), NodeFilter.SHOW_TEXT);
          while (walker.nextNode()) {
            const { textContent, parentElement } = walker.currentNode;
            if (!parentElement.closest(skip) && foreign(textContent)) left.add(textContent.trim().slice(0, 80));
          }
          for (const e of document.querySelectorAll('.tc-report [title], .tc-report [aria-label], .tc-report [placeholder]'))
            for (const name of ['title', 'aria-label', 'placeholder'])
              if (!e.closest(skip) && foreign(e.getAttribute(name) || '')) left.add(name + ': ' + e.getAttribute(name).slice(0, 80));
          return [...left];
        }""")
        assert left == [], left
        assert not problems


def _unpacked(value: Any) -> Iterator[str]:
    """The JSON of whatever is packed in a report."""
    from tcompile.compiler.report.json import unpack

    yield json.dumps(unpack(value), ensure_ascii=False)


# A host as VS Code's and Colab's output frames are: the widget is a module that gets a model, and the page allows no
# eval and no request.
WIDGET = """<!doctype html><html><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="POLICY"></head>
<body><div id="el"></div><script type="module" nonce="n">
import widget, { setTranslator } from './standalone.js';
setTranslator((text, many, n) => '⟦' + (many !== undefined && n !== 1 ? many : text) + '⟧');
const report = await (await fetch('./report.json')).json();
const listeners = {}, sent = [];
const state = { report, view: VIEW, selection: {} };
window.widgetModel = { get: n => state[n], set: (n, v) => { state[n] = v; }, save_changes: () => { window.saved = (window.saved || 0) + 1; },
  on: (e, f) => { (listeners[e] ??= []).push(f); }, off: (e, f) => { listeners[e] = (listeners[e] || []).filter(g => g !== f); }, send: m => sent.push(m) };
window.sent = sent; window.state = state;
window.tell = (e, m) => (listeners[e] || []).forEach(f => f(m));
window.done = await widget.render({ model: window.widgetModel, el: document.getElementById('el') });
</script></body></html>"""
STRICT = "default-src 'none'; script-src 'self' 'nonce-n'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'"


class served:
    """A folder on loopback with the bundle and the sample report."""

    def __init__(self, folder: Path, change: dict[str, Any]):
        if not (LABEXTENSION / "standalone.js").exists():
            pytest.skip("the labextension is not built (make labextension)")
        self.folder = folder
        (folder / "standalone.js").write_bytes((LABEXTENSION / "standalone.js").read_bytes())
        (folder / "report.json").write_text(json.dumps({**sample_report(), **change}))

    def __enter__(self) -> "served":
        handler = partial(
            type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *a: None}),
            directory=str(self.folder),
        )
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.server.shutdown()
        self.server.server_close()


class opened_widget:
    def __init__(self, browser: Any, home: served, page: str, view: str):
        text = page.replace("POLICY", STRICT).replace("VIEW", json.dumps(view))
        (home.folder / "index.html").write_text(text)
        self.browser, self.address = browser, f"http://127.0.0.1:{home.server.server_address[1]}/index.html"

    def __enter__(self) -> tuple[Any, list[str]]:
        self.context = self.browser.new_context(viewport={"width": 900, "height": 800})
        page = self.context.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on(
            "console",
            lambda m: (
                m.type in ("error", "warning")
                and "favicon" not in m.text + m.location["url"]
                and problems.append(m.text)
            ),
        )
        page.on(
            "request",
            lambda r: r.url.startswith((self.address.rsplit("/", 1)[0], "data:", "blob:")) or problems.append(r.url),
        )
        page.goto(self.address)
        return page, problems

    def __exit__(self, *_: Any) -> None:
        self.context.close()


@pytest.mark.parametrize("view", ["", "graph", "speed"])
def test_a_widget_in_a_host_that_forbids_eval_and_requests(browser: Any, tmp_path: Path, view: str) -> None:
    with served(tmp_path, {}) as home, opened_widget(browser, home, WIDGET, view) as (page, problems):
        page.wait_for_selector(".tc-head" if not view else ".tc-panel-root", timeout=10_000)
        if view == "graph":
            page.focus(".tc-graph-canvas")
            page.keyboard.press("ArrowDown")
            page.wait_for_function("window.saved > 0 && state.selection.node !== undefined")
            page.evaluate("() => { state.selection = {kernel: 1, graph: 0}; tell('change:selection'); }")
            assert page.locator(".tc-graph-details h4").inner_text() != "x", "another widget's selection is shown here"
        elif view == "speed":
            # A question goes to the kernel as a message, and its answer comes back as one; a widget can't interrupt, so
            # there is no stop button.
            page.wait_for_function("sent.some(m => m.ask === 'controls')")
            page.evaluate("""() => { const m = sent.find(m => m.ask === 'controls');
                tell('msg:custom', {id: m.id, ok: {calls: ['f'], timed: ['f'], arguments: [], modes: ['default', 'max-autotune'], mode: 'default', switches: []}}); }""")
            page.locator("button", has_text="time again").click()
            page.wait_for_function("sent.some(m => m.ask === 'retime')")
            assert page.locator("button", has_text="stop").count() == 0
            page.evaluate(
                "() => tell('msg:custom', {id: sent.find(m => m.ask === 'retime').id, error: 'run the cell again'})"
            )
            page.wait_for_selector("[role=alert]:has-text('run the cell again')")
        page.evaluate("() => window.done()")
        assert page.locator(".tc-head, .tc-panel-root").count() == 0
        assert not problems


GPU_SAMPLE = SAMPLE.with_name("gpu_report.json")


def pane(page: Any, title: str) -> Any:
    return page.locator(f".tc-pane:has(strong:text-is('{title}'))")


def test_one_selection_through_all_levels_down_to_ptx(browser: Any, tmp_path: Path) -> None:
    """Kernels as a GPU gets them: an operation lights its lines in loop IR, Triton and PTX, and a line of each lights
    the operation.
    """
    with opened(browser, saved(tmp_path, CompileReport.from_json(GPU_SAMPLE.read_text())), width=1600) as (
        page,
        problems,
    ):
        show(page, "code")
        assert not pane(page, "PTX").is_visible()
        page.click(".tc-segment:has-text('PTX')")

        def lit(title: str) -> list[str]:
            return [line.strip() for line in pane(page, title).locator(".tc-selected code").all_inner_texts()]

        pane(page, "Graph").locator(".tc-graph-line", has_text="%rsqrt = ").click()
        assert lit("Kernel") == ["rsqrt_0 = libdevice.rsqrt(add_0)"] and all("rsqrt" in line for line in lit("Loop IR"))
        assert lit("PTX")[0].startswith("// line") and any(line.startswith("rsqrt") for line in lit("PTX")), lit("PTX")
        assert lit("Cell") == ["h = F.layer_norm(x, (1024,), w, b)"]
        pane(page, "Kernel").locator(".tc-line", has_text="sub_0 = in0_at_0 - div_0").click()
        assert "%var_mean = " in "".join(lit("Graph")) and any(line.startswith("sub") for line in lit("PTX"))
        pane(page, "PTX").locator(".tc-line", has_text="rsqrt.approx").first.click()
        assert "%rsqrt = " in "".join(lit("Graph"))
        pane(page, "Loop IR").locator(".tc-line", has_text="acc0 = sum(").first.click()
        assert "%var_mean = " in "".join(lit("Graph")) and "acc0 = (tl.sum(in0_at_0, 1))[:, None]" in lit("Kernel")
        page.locator("select[aria-label='Kernel']").select_option(label="k4_sum")
        assert "k4_sum" in pane(page, "PTX").inner_text()
        show(page, "speed")
        table = page.locator("table[aria-label=Kernels]").inner_text()
        assert "registers" in table and "occupancy" in table and "63 %" in table
        assert "4.10 TB/s" in page.locator("figcaption", has_text="Against the machine").inner_text()
        assert not problems


def test_a_report_of_an_h200_opens_everywhere(browser: Any, tmp_path: Path) -> None:
    """As a GPU machine wrote it: an operator whose results nobody reads, kernels that several layers share, a
    search.
    """
    report = CompileReport.from_json(GPU_SAMPLE.with_name("h200_report.json").read_text())
    with opened(browser, saved(tmp_path, report)) as (page, problems):
        for tab in TABS:
            show(page, tab)
            assert page.locator(".tc-panel-root:visible [role=alert]").count() == 0, tab
            assert not page.evaluate(TOO_WIDE), tab
        show(page, "graph")
        page.fill(".tc-search input", "cudnn_attention")
        page.keyboard.press("Enter")
        assert "32×12×512×64" in page.locator(".tc-graph-details").inner_text()
        show(page, "code")
        assert not pane(page, "Cell").is_visible(), "the code was not kept: no empty column"
        pane(page, "Kernel").locator(".tc-line", has_text="rsqrt_0 = ").click()
        page.click(".tc-segment:has-text('PTX')")
        page.wait_for_timeout(100)
        seen = page.evaluate("""() => { const box = [...document.querySelectorAll('.tc-pane')].find(p => p.ariaLabel === 'PTX').querySelector('.tc-listing');
            const row = box.querySelector('.tc-selected'); return row.offsetTop >= box.scrollTop && row.offsetTop < box.scrollTop + box.clientHeight; }""")
        assert seen, "a column that opens shows what is selected"
        show(page, "speed")
        trials = page.locator(".tc-autotune", has_text="16 candidates")
        assert "● as planned" in trials.inner_text() and trials.locator(".tc-bar-row").count() == 16
        names = (
            page.locator("[aria-label=Roofline] .tc-tick, [aria-label=Roofline] text")
            .filter(has_text="_")
            .evaluate_all(
                "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.left, b.right, b.top, b.bottom]; })"
            )
        )
        assert len(names) == 2 and (
            names[0][3] <= names[1][2]
            or names[1][3] <= names[0][2]
            or names[0][1] <= names[1][0]
            or names[1][1] <= names[0][0]
        )
        assert not problems


def test_a_view_that_fails_leaves_the_others(browser: Any, address: str) -> None:
    with opened(browser, address) as (page, problems):
        page.evaluate(
            "() => { HTMLCanvasElement.prototype.getContext = () => { throw new Error('no canvas here'); }; }"
        )
        show(page, "graph")
        assert "this view cannot be drawn" in page.locator(".tc-panel-root:visible [role=alert]").inner_text()
        show(page, "guards")
        assert page.locator(".tc-panel-root:visible table").count() and not problems


def test_a_dark_page_prints_on_white_and_whole(browser: Any, address: str) -> None:
    with opened(browser, address, color_scheme="dark") as (page, problems):
        for tab in ("overview", "guards", "more"):
            show(page, tab)
            page.emulate_media(media="print", color_scheme="dark")
            assert (
                page.evaluate("() => getComputedStyle(document.querySelector('.tc-report')).backgroundColor")
                == "rgb(255, 255, 255)"
            )
            seen, bad = page.evaluate(CONTRAST)
            assert seen > 10 and not bad, (tab, bad)
            cut = page.evaluate(
                "() => [...document.querySelectorAll('.tc-listing')].filter(e => e.checkVisibility() && e.scrollHeight > e.clientHeight + 1).length"
            )
            assert not cut, "a listing that scrolls is cut off on paper"
            assert not page.locator(".tc-tabs").is_visible()
            page.emulate_media(media="screen", color_scheme="dark")
        assert not problems


def test_zoomed_to_200_percent_and_without_motion(browser: Any, address: str) -> None:
    """Twice as large on a screen of 1280 points: 640 are left, and nothing runs out sideways; who asked for no motion
    gets none.
    """
    with opened(browser, address, width=640, device_scale_factor=2, reduced_motion="reduce") as (page, problems):
        for tab in TABS:
            show(page, tab)
            assert not page.evaluate(TOO_WIDE), tab
        moving = page.evaluate("() => document.getAnimations().filter(a => a.playState === 'running').length")
        assert moving == 0 and not problems
