"""Ranks beside each other as HTML: a timeline with a row a rank, who waits for whom, and where graphs differ."""

from __future__ import annotations

from ...compiler.base.quoting import html_text
from ...compiler.report.ranks.ranks_schema import RankRow, Ranks
from ...compiler.report.ranks.ranks_text import CLOCKS, HEAD, difference_words, rank_cells, wait_sentence
from ...compiler.base.figures import seconds
from .svg import image

__all__ = ["HEAD", "ranks_parts"]

COLOURS = {"its own work": "#2f7de1", "compiling": "#b5851f", "waiting": "#d14b4b", "communicating": "#2aa198"}
_WIDTH, _ROW = 640.0, 18.0


def ranks_parts(r: Ranks) -> tuple[str, list[str], list[list[str]], list[str]]:
    """A picture with its legend, sentences of who waits for whom, rows of a table below HEAD, and notes."""
    sentences = [wait_sentence(w) for w in r.waits[:8]]
    notes = [CLOCKS[r.clock]] if r.clock in CLOCKS else []
    differences = [" · ".join(difference_words(d)) for d in r.differences]
    return timeline(r), [*sentences, *differences], [rank_cells(row) for row in r.rows], [*r.remarks, *notes]


def timeline(r: Ranks) -> str:
    """A row a rank, over one clock."""
    if not r.seconds:
        return ""
    scale = _WIDTH / r.seconds
    shapes = [shape for i, row in enumerate(r.rows) for shape in _row(row, i * (_ROW + 4), scale)]
    height = len(r.rows) * (_ROW + 4)
    words = "; ".join(
        f"rank {row.rank}: {seconds(row.seconds)}, waiting {seconds(row.early_seconds)}" for row in r.rows
    )
    legend = " &nbsp; ".join(f'<span style="color:{c}">■</span> {html_text(name)}' for name, c in COLOURS.items())
    return (
        image(_WIDTH, height, shapes, f"Timeline of ranks, the first above: {words}")
        + f'<div class="dim">{legend} &nbsp; over {html_text(seconds(r.seconds))}, rank {r.rows[0].rank} above</div>'
    )


def _row(row: RankRow, y: float, scale: float) -> list[str]:
    """What fills the row: computing, and spans over it; of one colour in one path."""
    paths: dict[str, list[str]] = {}

    def add(colour: str, begin: float, length: float) -> None:
        if length > 0:
            x, w = begin * scale, max(0.6, length * scale)
            paths.setdefault(COLOURS[colour], []).append(f"M{x:.1f} {y:g}h{w:.1f}v{_ROW:g}h{-w:.1f}z")

    add("its own work", row.begin, row.seconds)
    for span in row.spans:
        if span.kind == "compile":
            add("compiling", span.begin, span.seconds)
        else:
            add("waiting", span.begin, span.early)
            add("communicating", span.begin + span.early, span.seconds - span.early)
    return [f'<path fill="{colour}" d="{"".join(d)}"/>' for colour, d in paths.items()]
