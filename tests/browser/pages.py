"""The views in plain pages, without JupyterLab: quick to open, in any theme, at any width, under any policy."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport

from .conftest import LABEXTENSION
from .notebooks import SAMPLE

TABS = ("overview", "code", "graph", "profile", "guards", "speed", "more")
THEMES = {
    "light": "theme-light-extension",
    "dark": "theme-dark-extension",
    "high-contrast": "theme-dark-high-contrast-extension",
}


def saved(tmp_path: Path, report: CompileReport | None = None) -> str:
    """The address of a page with the report (the sample) in it."""
    if not (LABEXTENSION / "standalone.js").exists():
        pytest.skip("the labextension is not built (make labextension)")
    report = report or CompileReport.from_json(SAMPLE.read_text())
    return f"file://{report.save(str(tmp_path / 'report.html'))}"


def theme_style(name: str) -> str:
    """The variables of one of JupyterLab's themes."""
    file = Path(sys.prefix) / "share/jupyter/lab/themes/@jupyterlab" / THEMES[name] / "index.css"
    if not file.exists():
        pytest.skip(f"JupyterLab's theme is not installed: {file}")
    return (
        "".join(re.findall(r":root\s*\{[^}]*\}", file.read_text(), re.S)) + "body{background:var(--jp-layout-color0)}"
    )


@contextmanager
def opened(
    browser: Any, address: str, width: int = 1200, theme: str | None = None, **context: Any
) -> Iterator[tuple[Any, list[str]]]:
    """A page with the report open, and a list of whatever it throws, complains of or asks of another machine."""
    home = browser.new_context(viewport={"width": width, "height": 900}, **context)
    page = home.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("console", lambda m: m.type in ("error", "warning") and problems.append(m.text))
    page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or problems.append(r.url))
    page.goto(address)
    if theme is not None:
        page.add_style_tag(content=theme_style(theme))
        page.evaluate("light => document.body.dataset.jpThemeLight = light", str(theme == "light").lower())
    page.wait_for_selector(".tc-open .tc-tab")
    yield page, problems
    home.close()


def show(page: Any, tab: str) -> None:
    page.click(f".tc-tab:nth-child({TABS.index(tab) + 1})")
    page.wait_for_timeout(150)


ACT = """async ([code, i]) => {
  await new Function('i', code)(i);
  await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
}"""


def cpu_ms(page: Any, code: str, tries: int = 1) -> float:
    """Milliseconds that the page's thread works for what `code` does (`i`: which try), its drawing included; the least
    of some tries. What other programs do meanwhile does not count."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    spent = []
    for i in range(tries):
        page.wait_for_timeout(30)
        before = worked()
        page.evaluate(ACT, [code, i])
        spent.append(1000 * (worked() - before))
    session.detach()
    return min(spent)
