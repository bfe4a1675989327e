"""A report exported as one page, opened from disk: interactive, and silent on the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport

from .conftest import ARTIFACTS, LABEXTENSION
from .notebooks import SAMPLE


def test_exported_page(browser: Any, tmp_path: Path) -> None:
    if not (LABEXTENSION / "standalone.js").exists():
        pytest.skip("the labextension is not built (make labextension)")
    path = CompileReport.from_json(SAMPLE.read_text()).save(str(tmp_path / "r.html"))
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or problems.append(r.url))
    page.goto(f"file://{path}")
    page.wait_for_selector(".tc-open .tc-tab")
    for name in ("code", "graph", "guards", "speed", "more"):
        page.click(f".tc-tab:has-text('{name}')")
        page.wait_for_timeout(150)
    page.click(".tc-tab:has-text('speed')")
    page.wait_for_selector(".tc-plot svg")
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "page-speed.png", full_page=True)
    assert not problems
    context.close()
