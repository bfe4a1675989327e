"""The tab of ranks: there for a run on several, with a row a rank, who waits for whom, and what differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tcompile import CompileReport
from tcompile.compiler.report import schema as s

from .notebooks import sample_report
from .pages import TABS, opened, saved


def on_two_ranks() -> CompileReport:
    report = CompileReport.from_json(sample_report())
    spans = [
        s.RankSpan("compile", "compiling", 0.1, 0.5),
        s.RankSpan("communication", "all_reduce", 1.0, 0.5, 0.4, 1, 64),
    ]
    report.ranks = s.Ranks(
        2.0,
        "call",
        [
            s.RankRow(0, "cuda:0", "here", seconds=2.0, communication_seconds=0.5, early_seconds=0.4, spans=spans),
            s.RankRow(1, "cuda:1", "here", "raised", "ValueError: <b>bad</b>", seconds=1.9, spans=spans[:1]),
        ],
        [s.RankWait(0, 1, 0.4, 1, "all_reduce", 0.4)],
        [s.RankDifference("step", 0, [[0], [1]], ["mm(%0, %1)", "ends here"], report.source.file, 3, 2)],
        ["a remark"],
    )
    return report


def test_ranks_beside_each_other(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path, on_two_ranks())) as (page, problems):
        names = [tab.get_attribute("id").split("-tab-")[1] for tab in page.locator(".tc-tab").all()]
        assert names == ["ranks", *TABS]
        panel = page.locator(".tc-panel-root:not([hidden])")
        words = panel.inner_text()
        assert "Rank 0 was 400 ms ahead of rank 1 at 1 collective" in words and "a remark" in words
        assert "mm(%0, %1)" in words and "ends here" in words and "and 2 further graphs of it" in words
        assert words.index("rank 1 raised: ValueError: <b>bad</b>") < words.index("Rank 0 was 400 ms ahead")
        assert (
            panel.locator(".tc-ranks rect").count() == 6
            and panel.locator(".tc-ranks rect.tc-rank-waiting").count() == 1
        )
        assert "2 ranks" in page.locator(".tc-report").inner_text()
        assert not problems


def test_no_tab_without_ranks(browser: Any, tmp_path: Path) -> None:
    with opened(browser, saved(tmp_path)) as (page, problems):
        assert page.locator(".tc-tab", has_text="ranks").count() == 0 and not problems
