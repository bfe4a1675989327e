"""Plotly figures of a report. plotly is imported when one is asked for."""

from __future__ import annotations

import json
from typing import Any

from .svg import ENGINE_COLOURS

__all__ = ["speedup_figure", "break_even_figure", "PLOTLY_MIME"]

PLOTLY_MIME = "application/vnd.plotly.v1+json"
_LAYOUT = {
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"color": "#808489", "size": 12},
    "margin": {"l": 60, "r": 20, "t": 30, "b": 45},
    "height": 320,
    "showlegend": False,
}
_GRID = {"gridcolor": "rgba(128,128,128,.25)", "zerolinecolor": "rgba(128,128,128,.4)"}


def _go() -> Any:
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError(
            "speedup plots need plotly: pip install plotly (r.speedups holds the figures, str(r) shows them)"
        ) from None
    return go


def _measured(report: Any) -> list:
    calls = [c for c in report.speedups.calls if any(e.median is not None for e in c.engines)]
    if not calls:
        raise ValueError(f"nothing was timed: {report.speedups.reason}")
    return calls


def speedup_figure(report: Any) -> Any:
    """Seconds per call of each engine: bars with intervals, and the samples beside them. Raises ValueError where
    nothing was timed.
    """
    go = _go()
    calls = _measured(report)
    fig = _figure(go, report)
    for engine in report.speedups.engines:
        rows = [(c, e) for c in calls for e in c.engines if e.engine == engine and e.median is not None]
        colour = ENGINE_COLOURS.get(engine, "#8a63c9")
        fig.add_bar(
            name=engine,
            x=[[c.name for c, _ in rows], [engine] * len(rows)],
            y=[e.median for _, e in rows],
            marker_color=colour,
            opacity=0.75,
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [0.0 if e.hi is None else e.hi - e.median for _, e in rows],
                "arrayminus": [0.0 if e.lo is None else e.median - e.lo for _, e in rows],
            },
            hovertemplate="%{y:.3s}s a call<extra>" + engine + "</extra>",
        )
        for c, e in rows:
            if e.samples:
                fig.add_scatter(
                    name=engine,
                    x=[[c.name] * len(e.samples), [engine] * len(e.samples)],
                    y=e.samples,
                    mode="markers",
                    marker={"color": colour, "size": 4, "opacity": 0.5},
                    hovertemplate="%{y:.3s}s<extra>one sample</extra>",
                )
    fig.update_layout(**_LAYOUT)
    fig.update_xaxes(**_GRID)
    fig.update_yaxes(title="time per call", ticksuffix="s", exponentformat="SI", rangemode="tozero", **_GRID)
    return fig


def break_even_figure(report: Any) -> Any:
    """Total time over number of calls: where the lines cross, compiling has paid off. Of the first timed call."""
    go = _go()
    c = _measured(report)[0]
    fig = _figure(go, report)
    most = max(10, 2 * (c.break_even_calls or 500))
    for e in c.engines:
        if e.median is None:
            continue
        start = 0.0 if e.engine == "eager" else max(0.0, (e.cold or 0.0) - e.median)
        if e.engine == "tcompile":
            start = c.compile_seconds or 0.0
        fig.add_scatter(
            name=e.label,
            x=[0, most],
            y=[start, start + most * e.median],
            mode="lines+text",
            text=["", e.label],
            textposition="top left",
            line={"color": ENGINE_COLOURS.get(e.engine, "#8a63c9")},
        )
    fig.update_layout(**_LAYOUT)
    fig.update_xaxes(title="calls", **_GRID)
    fig.update_yaxes(title="total time, compiling included", ticksuffix="s", exponentformat="SI", **_GRID)
    return fig


def _figure(go: Any, report: Any) -> Any:
    """A plotly figure that shows itself as plotly JSON with HTML beside it, for readers without plotly and without a
    network: plotly's own ways to show it give either no fallback or a script of 5 MB."""

    class ReportFigure(go.Figure):
        _ipython_display_ = None

        def _repr_mimebundle_(self, *_: Any, **__: Any) -> dict[str, Any]:
            from .html import STYLE, speed_html

            return {
                PLOTLY_MIME: json.loads(self.to_json()),
                "text/html": f'<style>{STYLE}</style><div class="tcr">{speed_html(report)}</div>',
                "text/plain": report.summary.line,
            }

    return ReportFigure()
