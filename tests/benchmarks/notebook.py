"""The budgets of the notebook, measured: what a report adds to a saved notebook, what the magic costs, what profiling a
call costs, how fast the views draw.

    python -m tests.benchmarks.notebook

Writes tests/benchmarks/results/DATE-notebook.md. Sizes are exact; times are the best of a few tries, because a machine
with other work to do only ever adds to them; the load is written beside them. The views are drawn in a headless
Chromium, without a GPU.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from tests.browser.conftest import FLAGS, LABEXTENSION, ROOT
from tests.browser.pages import TABS, cpu_ms, opened, saved, show
from tests.browser.test_budgets import ACTS, PAN, page_with
from tests.browser.test_living_graph import training_step

RESULTS = Path(__file__).parent / "results"
SMALL = "y = torch.relu(x * 2 + 1)"
BERT = "with torch.no_grad():\n    out = model(ids)"
TRIES, PROFILED = 5, 40
# From the page's beginning to its first frame with the report, in milliseconds.
DRAWN = "() => new Promise(r => requestAnimationFrame(() => setTimeout(() => r(performance.now()), 0)))"


def in_the_kernel(page: Path) -> list[tuple[str, str, str]]:
    """Rows of what a shell shows: bytes of a report, the seconds of a cell that are neither compiling nor running, and
    what a call takes that is profiled. BERT's report is saved as `page`.
    """
    os.environ["TCOMPILE_CACHE_DIR"] = tempfile.mkdtemp(prefix="tcompile-notebook-")
    from IPython.testing.globalipapp import start_ipython
    from tcompile.kernel_magics import display, session

    shown: list[dict[str, Any]] = []
    display.Place._put = lambda self, data: shown.append(data)  # type: ignore[method-assign]
    begin = display.Place.__init__

    def in_a_notebook(self: Any, shell: Any, quiet: bool = False) -> None:
        begin(self, shell, quiet)
        self.notebook = True

    display.Place.__init__ = in_a_notebook  # type: ignore[method-assign]
    spent: dict[str, float] = {}

    def clocked(owner: Any, name: str) -> None:
        f = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return f(*args, **kwargs)
            finally:
                spent[name] = time.thread_time() - start

        setattr(owner, name, call)

    clocked(session.Session, "run")
    clocked(session, "execute")
    shell = start_ipython()
    shell.run_cell(
        "%load_ext tcompile\nimport torch, transformers\nx = torch.ones(100)\nids = torch.randint(0, 30000, (1, 32))\n"
        "model = transformers.BertModel(transformers.BertConfig()).eval()"
    ).raise_error()

    def overhead(body: str) -> float:
        shell.run_cell(f"%%tcompile time=off\n{body}", store_history=True).raise_error()
        return 1e3 * (spent["run"] - spent["execute"])

    overhead(SMALL)  # the first cell of a process imports the compiler
    rows = []
    for name, body, times in (("a small function", SMALL, 9), ("BERT-base, 12 layers", BERT, 5)):
        first = overhead(body)
        size = sum(len(json.dumps(v, ensure_ascii=False).encode()) for v in shown[-1].values())
        again = min(overhead(body) for _ in range(times))
        summary = len(shown[-1]["text/html"].encode())
        rows += [
            (f"report in a saved notebook, {name}", f"{size / 1e3:.1f} KB", "200 KB"),
            ("of it its summary (text/html)", f"{summary / 1e3:.1f} KB", "20 KB"),
            (f"magic beyond compiling and running, {name}: the run that compiles", f"{first:.1f} ms of CPU", "50 ms"),
            ("the same, served by entries", f"{again:.1f} ms of CPU", "50 ms"),
        ]
    shell.run_cell(f"%%tcompile time=off -o bert\n{BERT}", store_history=True).raise_error()
    shell.user_ns["bert"].save(str(page))
    return [*rows, profiling()]


def profiling() -> tuple[str, str, str]:
    """What a call of a few milliseconds takes with a clock around each of its steps, in turn with calls without: the
    work of this thread, as other programs share the cores."""
    import tcompile
    import torch
    from tcompile.compiler.runtime.trace import trace

    torch.set_num_threads(1)
    blocks = (torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.LayerNorm(128)) for _ in range(32))
    layers, x = tcompile.compile(torch.nn.Sequential(*blocks).eval()), torch.randn(256, 128)
    plain, clocked, spans = [], [], 0
    with torch.no_grad():
        layers(x)
        for _ in range(PROFILED):
            begin = time.thread_time()
            layers(x)
            between = time.thread_time()
            spans = len(trace(lambda: layers(x)).spans)
            plain.append(between - begin)
            clocked.append(time.thread_time() - between)
    what = f"profiling a call of {1e3 * median(plain):.1f} ms of CPU and {spans} steps"
    return what, f"{median(clocked) / median(plain):.2f} times its time", "2 times"


def first_drawing(browser: Any, address: str) -> str:
    """From opening a saved report to its first frame, by the page's clock and by what its thread works meanwhile; the
    median of some tries."""
    times, works = [], []
    for _ in range(TRIES):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        session = context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(address, wait_until="commit")
        page.wait_for_selector(".tc-open .tc-tab")
        times.append(page.evaluate(DRAWN))
        metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        works.append(1e3 * metrics["TaskDuration"])
        context.close()
    spread = f"{min(times):.0f} to {max(times):.0f}"
    return f"{median(times):.0f} ms ({spread}), {median(works):.0f} ms of it the page's own work"


def in_the_browser(bert: Path) -> list[tuple[str, str, str]]:
    sys.path.insert(0, str(ROOT / "tools"))
    from environment import find_browser
    from playwright.sync_api import sync_playwright

    rows = []
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=find_browser(), args=FLAGS)
        with opened(browser, saved(Path(folder))) as (page, _):
            first = {tab: cpu_ms(page, _click(i)) for i, tab in enumerate(TABS)}
        rows.append(
            (
                "first paint of a view, the slowest of six",
                f"{max(first.values()):.0f} ms ({max(first, key=first.__getitem__)})",
                "500 ms",
            )
        )
        large = saved(Path(folder), training_step(330, 14))
        rows.append(("BERT's report as a page: opened and drawn", first_drawing(browser, f"file://{bert}"), "500 ms"))
        rows.append(("the same of a graph of 6,000 nodes", first_drawing(browser, large), "1000 ms"))
        with opened(browser, large) as (page, _):
            rows.append(("6,000 nodes: the graph's first drawing", f"{cpu_ms(page, _click(2)):.0f} ms", "1000 ms"))
            zoom = "document.querySelectorAll('.tc-graph .tc-tool')[i % 2].click()"
            rows.append(("6,000 nodes: a zoom", f"{cpu_ms(page, zoom, 8):.0f} ms", "50 ms"))
            frames = page.evaluate(PAN)
            rows.append(("6,000 nodes: a frame while panning, median", f"{median(frames):.1f} ms", "50 ms"))
        with opened(browser, page_with(2000, Path(folder))) as (page, _):
            show(page, "graph")
            page.wait_for_timeout(300)
            for name, code in ACTS.items():
                rows.append((f"2,000 nodes: {name}", f"{cpu_ms(page, code, 8):.0f} ms", "100 ms"))
        with opened(browser, page_with(10_000, Path(folder))) as (page, _):
            rows.append(("10,000 nodes: first drawing", f"{cpu_ms(page, _click(2)):.0f} ms", "1000 ms"))
            page.locator(".tc-tool", has_text="▾ all").click()
            page.wait_for_timeout(500)
            frames = page.evaluate(PAN)
            rows.append(
                (
                    "10,000 nodes: a frame while panning, median",
                    f"{frames[len(frames) // 2]:.1f} ms",
                    "33 ms (30 frames a second)",
                )
            )
        browser.close()
    scripts = [p for p in (LABEXTENSION / "static").glob("*.js")]
    plotly = max(scripts, key=lambda p: p.stat().st_size)
    rest = sum(p.stat().st_size for p in scripts if p != plotly)
    rows.append(
        (
            "JavaScript at JupyterLab's start",
            f"{rest / 1e6:.2f} MB, and plotly {plotly.stat().st_size / 1e6:.2f} MB with the first plot",
            "2.5 MB",
        )
    )
    return rows


def _click(tab: int) -> str:
    return f"document.querySelectorAll('.tc-tab')[{tab}].click()"


def main() -> None:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        bert = Path(folder) / "bert.html"
        apart = ProcessPoolExecutor(1, get_context("spawn"))  # the shell's event loop is none of the browser's
        rows = [*apart.submit(in_the_kernel, bert).result(), *in_the_browser(bert)]
    text = [
        f"# The notebook, {datetime.date.today()}",
        "",
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} meanwhile.",
        "Above the cores: other programs were at work, and times are longer. "
        f"Python {platform.python_version()}, torch {torch.__version__}.",
        "Best of a few tries. `python -m tests.benchmarks.notebook`",
        "",
        "| what | measured | budget |",
        "| --- | --- | --- |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    target = RESULTS / f"{datetime.date.today()}-notebook.md"
    target.write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
