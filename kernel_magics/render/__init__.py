"""Drawing a report: in comes a CompileReport, out come text, self-contained HTML and the JSON for JupyterLab.

Nothing here needs Jupyter; importing this package makes reports draw themselves as HTML wherever they are displayed.
"""

from __future__ import annotations

from typing import Any, Iterable

from ...compiler.report import MIME, set_renderer
from ...compiler.report.plain_text import render_short

__all__ = ["bundle", "view", "MIME"]

# What a report adds to a saved notebook: the data of the views, and a summary that needs none of them.
JSON_LIMIT = 150_000
HTML_LIMIT = 20_000


def bundle(report: Any, only: Iterable[str] | None = None) -> dict[str, Any]:
    """The MIME bundle of a report: text, HTML and JSON, or the types in `only`."""
    from .html import render_html

    makers = {
        "text/plain": lambda: render_short(report),
        "text/html": lambda: render_html(report, HTML_LIMIT),
        MIME: lambda: report.to_dict(JSON_LIMIT),
    }
    return {mime: make() for mime, make in makers.items() if only is None or mime in only}


def view(report: Any, name: str) -> Any:
    """A widget, a plot or the page of a report, by name."""
    if name in ("speedup_plot", "break_even_plot"):
        from . import plot

        return plot.speedup_figure(report) if name == "speedup_plot" else plot.break_even_figure(report)
    if name == "page":
        from ..page import page

        return page(report)
    from ..widgets import VIEWS

    return VIEWS[name](report)


set_renderer(bundle, view)
