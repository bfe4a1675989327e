"""`CompileReport`: all facts of one run of the compiler, as plain data that shows itself."""

from __future__ import annotations

import json as _json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable

from ..base.quoting import well_formed
from . import schema as s

if TYPE_CHECKING:
    from ..reproduce import Reproducer

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
    partitions: list[s.Partition] = field(default_factory=list)
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
    wall: s.Wall = field(default_factory=s.Wall)
    decisions: list[s.Decision] = field(default_factory=list)
    answers: list[s.Answer] = field(default_factory=list)
    profiles: list[s.CallProfile] = field(default_factory=list)
    ranks: s.Ranks = field(default_factory=s.Ranks)
    errors: list[str] = field(default_factory=list)
    omitted: list[s.Omission] = field(default_factory=list)
    previous: s.RunDiff = field(default_factory=s.RunDiff)
    # the exception that ended the cell; the summary tells of it
    raised: str = field(default="", compare=False, repr=False)
    # seconds for which the program waited for the compiler; the summary tells of it
    waited: float | None = field(default=None, compare=False, repr=False)
    # frame -> calls whose graph raised, which ran again as plain Python
    reran: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
    # what was decided of library code, by function and decision
    decided: dict[tuple[str, str], s.Decision] = field(default_factory=dict, compare=False, repr=False)
    # options that were tried -> settings and the ratio that they measured
    tried: dict[str, dict[str, Any]] = field(default_factory=dict, compare=False, repr=False)
    raised_words: str = field(default="", compare=False, repr=False)  # its message
    # what the run of a cell changed of what its entries rely on
    changed_itself: str = field(default="", compare=False, repr=False)
    met_tensors: bool = field(default=False, compare=False, repr=False)  # capture gave up a frame with tensors in it
    # findings of whoever ran the code: they come first
    notes: list[s.Finding] = field(default_factory=list, compare=False, repr=False)
    why_nothing: str = field(default="", compare=False, repr=False)  # why nothing was compiled, where that is known
    # rows that do not name the cell, which later runs take over as they are (facts/relabel.py)
    named_places: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    result: Any = field(default=None, compare=False, repr=False)  # explain(): the call's value; never saved
    # explain(): the arguments of compile; never saved
    compile_args: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    # backend=inductor: stock's report of the same calls; saved apart
    stock: Any = field(default=None, compare=False, repr=False)
    # times the calls again, in the same process; never saved
    live: Any = field(default=None, compare=False, repr=False)

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
        """Write the report: `.json` data, `.html` one page that needs nothing else and is interactive, anything else
        text. Returns the path."""
        path = os.fspath(path)
        if path.endswith((".html", ".htm")):
            text = self._view("page")
        elif path.endswith(".json"):
            text = self.to_json()
        else:
            text = str(self) + "\n"
        with open(path, "w", encoding="utf-8") as f:
            f.write(well_formed(text))
        return path

    @classmethod
    def from_json(cls, text: str | bytes | dict) -> "CompileReport":
        """Load a report that `to_json` or `save` wrote. Raises ValueError for anything else, naming what is wrong."""
        from .json import load

        return load(cls, text)

    def diff(self, before: "CompileReport") -> s.RunDiff:
        """What changed from an earlier report to this one: figures, options, lines of code."""
        from .diff import diff

        if not isinstance(before, CompileReport):
            raise TypeError(f"diff takes a CompileReport, got {type(before).__name__}")
        return diff(before, self)

    def reproducer(self, what: Any) -> Reproducer:
        """One Python file that runs by itself and compares with eager: of `r.graphs[0]`, of a kernel's operations, of a
        wrong number (`r.numerics`), or of a graph break. Text names them too: "kernels/0", "breaks/0". ReproduceError
        where the report was loaded from a file, or a value can't be written."""
        from ..reproduce.from_report import from_report

        return from_report(self, what)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if _renderer is not None:
            return _renderer(self)
        return {"text/plain": str(self)}

    def _view(self, name: str) -> Any:
        if _views is None:
            raise RuntimeError(
                f"{name}: views are drawn by the notebook package: load the report by `tcompile.CompileReport`"
            )
        return _views(self, name)

    def widget(self) -> Any:
        """The whole report as an ipywidgets widget, with the controls that need a kernel."""
        return self._view("widget")

    def overview_widget(self) -> Any:
        """The first tab as a widget: code with marks, findings, times, where the compile time went."""
        return self._view("overview_widget")

    def code_widget(self) -> Any:
        """Cell, graph, loop IR and kernel side by side as a widget; choosing in one lights up the others."""
        return self._view("code_widget")

    def graph_widget(self) -> Any:
        """The graphs as a widget: modules that open, kernels outlined, search, table."""
        return self._view("graph_widget")

    def profile_widget(self) -> Any:
        """One call as a flame chart, as a widget: guards, kernels, library calls and Python between."""
        return self._view("profile_widget")

    def guards_widget(self) -> Any:
        """Entries over time, recompiles and guards as a widget."""
        return self._view("guards_widget")

    def speedup_widget(self) -> Any:
        """The timings as a widget, with what can be asked of the kernel: again, other options, a sweep."""
        return self._view("speedup_widget")

    def details_widget(self) -> Any:
        """Breaks, functions, fallbacks, sizes, numerics, cache and environment as a widget."""
        return self._view("details_widget")

    def speedup_plot(self) -> Any:
        """A plotly figure of seconds per call, with intervals and samples. Raises ValueError where nothing was
        timed.
        """
        return self._view("speedup_plot")

    def break_even_plot(self) -> Any:
        """A plotly figure of total time over the number of calls: the lines cross where compiling has paid off."""
        return self._view("break_even_plot")

    def __str__(self) -> str:
        from .plain_text import render

        return render(self)

    def __repr__(self) -> str:
        return f"<CompileReport {self.summary.line or self.summary.status}>"
