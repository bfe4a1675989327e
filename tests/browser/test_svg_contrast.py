"""Texts in SVG, and the summary that a notebook keeps, read in both themes: plots, ranks, the static report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tcompile import CompileReport
from tcompile.kernel_magics.render.html import render_html

from .contrast import CONTRAST
from .notebooks import SAMPLE
from .pages import THEMES, opened, saved, theme_style
from .test_ranks_view import on_two_ranks

DRAWN = "() => [...document.querySelectorAll('.tc-report svg text')].filter(e => e.checkVisibility()).length"


@pytest.mark.parametrize("theme", [None, *THEMES])
def test_texts_of_plots_and_of_ranks_read(browser: Any, tmp_path: Path, theme: str | None) -> None:
    with opened(browser, saved(tmp_path, on_two_ranks()), theme=theme) as (page, problems):
        assert page.evaluate(DRAWN), "the tab of ranks comes first"
        assert page.evaluate(CONTRAST)[1] == {}
        page.locator(".tc-tab", has_text="speed").click()
        page.wait_for_selector(".tc-plot svg")
        assert page.evaluate(DRAWN) > 5
        assert page.evaluate(CONTRAST)[1] == {}
        assert not problems


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("limit", [None, 20_000])
def test_the_static_report_reads(browser: Any, theme: str, limit: int | None) -> None:
    html = render_html(CompileReport.from_json(SAMPLE.read_text()), limit)
    page = browser.new_page()
    page.set_content(f"<style>{theme_style(theme)}body{{color:var(--jp-ui-font-color1)}}</style><main>{html}</main>")
    page.evaluate("() => document.querySelectorAll('details').forEach(d => (d.open = true))")
    seen, bad = page.evaluate(CONTRAST, "main")
    page.close()
    assert seen > 50 and bad == {}
