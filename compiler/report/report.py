"""`CompileReport`: all facts of one run of the compiler, as plain data that shows itself."""

from __future__ import annotations

import json as _json
import os
from dataclasses import dataclass, field
from typing import Any, Callable

from . import schema as s

__all__ = ["CompileReport", "set_renderer"]

# kernel_magics registers how a report is drawn; without it (no Jupyter) a report is text.
_renderer: Callable[["CompileReport"], dict[str, Any]] | None = None
_views: Callable[["CompileReport", str], Any] | None = None


def set_renderer(
    render: Callable[["CompileReport"], dict[str, Any]] | None,
    views: Callable[["CompileReport", str], Any] | None = None,
) -> None:
    """Install the function that gives a report's MIME bundle, and the one that makes its widgets and plots by name. The
    notebook package does this."""
    global _renderer, _views
    _renderer, _views = render, views


@dataclass(repr=False)
class CompileReport:
    """What happened when code ran through the compiler.

    `assert not r.graph_breaks`, `r.graphs[0].graph_module`, `r.kernels[0].source`, `r.speedups.over("eager").ratio`:
    each attribute is a list or a small object of `schema.py`, which documents the fields and their units.
    """

    title: str = ""
    created: str = ""  # ISO 8601, UTC
    id: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    source: s.CellSource = field(default_factory=s.CellSource)
    summary: s.Summary = field(default_factory=s.Summary)
    frames: list[s.Frame] = field(default_factory=list)
    entries: list[s.Entry] = field(default_factory=list)
    graphs: list[s.Graph] = field(default_factory=list)
    graph_breaks: list[s.Break] = field(default_factory=list)
    guards: list[s.GuardRow] = field(default_factory=list)
    recompiles: list[s.Recompile] = field(default_factory=list)
    kernels: list[s.Kernel] = field(default_factory=list)
    externs: list[s.Extern] = field(default_factory=list)
    autotune: list[s.AutotuneRun] = field(default_factory=list)
    memory: list[s.Memory] = field(default_factory=list)
    stages: list[s.Stage] = field(default_factory=list)
    cache: list[s.CacheLookup] = field(default_factory=list)
    fallbacks: list[s.Fallback] = field(default_factory=list)
    numerics: list[s.NumericError] = field(default_factory=list)
    speedups: s.Speedups = field(default_factory=s.Speedups)
    timeline: list[s.TimelineEvent] = field(default_factory=list)
    marks: list[s.Mark] = field(default_factory=list)
    findings: list[s.Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    omitted: list[s.Omission] = field(default_factory=list)
    raised: str = field(default="", compare=False, repr=False)  # the exception that ended the cell; the summary tells of it
    result: Any = field(default=None, compare=False, repr=False)  # explain(): the call's value; never saved
    live: Any = field(
        default=None, compare=False, repr=False
    )  # times the calls again, in the same process; never saved

    @property
    def compile_seconds(self) -> float:
        return self.summary.compile_seconds

    def to_dict(self, limit: int | None = None) -> dict[str, Any]:
        """The report as JSON-ready data, at most `limit` bytes when serialised (200,000 unless told)."""
        from .json import DEFAULT_LIMIT, dump

        return dump(self, DEFAULT_LIMIT if limit is None else limit)

    def to_json(self, limit: int | None = None) -> str:
        """The report as JSON text. What had to be left out to meet `limit` bytes is named in "omitted"."""
        return _json.dumps(self.to_dict(limit), ensure_ascii=False, separators=(",", ":"))

    def save(self, path: str | os.PathLike) -> str:
        """Write the report: `.json` data, `.html` a self-contained page, anything else text. Returns the path."""
        path = os.fspath(path)
        if path.endswith((".html", ".htm")):
            bundle = _renderer(self) if _renderer is not None else {}
            body = bundle.get("text/html")
            if body is None:
                raise RuntimeError(
                    "report.save: HTML needs the renderer; write `import tcompile.kernel_magics.render` first, or save as .json"
                )
            text = f'<!doctype html>\n<meta charset="utf-8">\n<title>{_escape(self.title or "tcompile report")}</title>\n{body}\n'
        elif path.endswith(".json"):
            text = self.to_json()
        else:
            text = str(self) + "\n"
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    @classmethod
    def from_json(cls, text: str | bytes | dict) -> "CompileReport":
        """Load a report that `to_json` or `save` wrote. Raises ValueError for anything else, naming what is wrong."""
        from .json import load

        return load(cls, text)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if _renderer is not None:
            return _renderer(self)
        return {"text/plain": str(self)}

    def _view(self, name: str) -> Any:
        if _views is None:
            raise RuntimeError(
                f"{name}: views are drawn by the notebook package; `import tcompile` before the compiler to have it at hand"
            )
        return _views(self, name)

    def widget(self) -> Any:
        """The whole report as an ipywidgets widget, with the controls that need a kernel."""
        return self._view("widget")

    def graph_widget(self) -> Any:
        """The graphs as a widget: choose, switch between captured and lowered, search."""
        return self._view("graph_widget")

    def guards_widget(self) -> Any:
        """The guards as a widget, with search."""
        return self._view("guards_widget")

    def speedup_widget(self) -> Any:
        """The timings as a widget, with a button that takes them again."""
        return self._view("speedup_widget")

    def speedup_plot(self) -> Any:
        """A plotly figure of seconds per call, with intervals and samples. Raises ValueError where nothing was timed."""
        return self._view("speedup_plot")

    def break_even_plot(self) -> Any:
        """A plotly figure of total time over the number of calls: the lines cross where compiling has paid off."""
        return self._view("break_even_plot")

    def __str__(self) -> str:
        from .text import render

        return render(self)

    def __repr__(self) -> str:
        return f"<CompileReport {self.summary.line or self.summary.status}>"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
