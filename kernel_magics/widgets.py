"""Reports as widgets, for VS Code, Colab and dashboards: the views of the labextension, drawn by the same JavaScript.

`report_widget(r)` is the whole report, the others one view each. Widgets of one report share a selection through their
`selection` trait: `ipywidgets.jslink((a, "selection"), (b, "selection"))`. A question that a view asks is answered by
`controls.py`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

from .page import bundle_path
from .questions import checked, number_of

__all__ = ["TABS", "VIEWS", "report_widget", "view_widget"]

TABS = ("overview", "code", "graph", "profile", "guards", "speed", "more")  # `TABS` of labextension/src/report.ts


@lru_cache(maxsize=1)
def _widget_class(script: str) -> type:
    import anywidget
    import traitlets

    class ReportWidget(anywidget.AnyWidget):
        _esm = script
        report = traitlets.Dict().tag(sync=True)
        view = traitlets.Unicode("").tag(sync=True)
        selection = traitlets.Dict().tag(sync=True)

        def __init__(self, of: Any, view: str = "") -> None:
            super().__init__(report=of.to_dict(), view=view)
            self.of = of
            self.on_msg(self._asked)

        def _asked(self, _: Any, message: Any, buffers: Any) -> None:
            number = number_of(message)
            try:
                self.send({"id": number, "ok": self._answer(message)})
            except KeyboardInterrupt:
                self.send({"id": number, "error": "stopped"})
            except Exception as e:  # the view shows it; an error in a handler would vanish in the kernel's log
                self.send({"id": number, "error": str(e) if isinstance(e, ValueError) else f"{type(e).__name__}: {e}"})

        def _answer(self, message: Any) -> Any:
            from .controls import CONTROLS  # imports torch

            question = checked(message, CONTROLS)
            say = lambda text: self.send({"id": number_of(message), "progress": text})  # noqa: E731
            return CONTROLS[question["ask"]](self.of, {**question, "say": say})

        def _repr_mimebundle_(self, **kwargs: Any) -> Any:
            """With the report's HTML, for readers that have no widgets: a saved notebook, nbconvert, GitHub."""
            from .render import html

            made = super()._repr_mimebundle_(**kwargs)
            data, metadata = made if isinstance(made, tuple) else (made, {})
            return {
                **(data or {}),
                "text/plain": self.of.summary.line,
                "text/html": html.render_html(self.of),
            }, metadata

    return ReportWidget


def view_widget(report: Any, view: str = "") -> Any:
    """A widget of one view (a name of `TABS`), or of the whole report ("")."""
    if view and view not in TABS:
        raise ValueError(f"view is one of {', '.join(TABS)}, got {view!r}")
    script = bundle_path()
    try:
        if script is None:
            import ipywidgets

            from .render import html

            note = (
                "<p>The interactive views were not built (they need Node: <code>make labextension</code>); this is the"
                " static report.</p>"
            )
            return ipywidgets.HTML(note + html.render_html(report))
        return _widget_class(script.read_text(encoding="utf-8"))(report, view)
    except ImportError as e:
        raise ImportError(
            f"widgets need {e.name}: pip install {e.name} (the report itself is shown without them)"
        ) from None


def report_widget(report: Any) -> Any:
    """The whole report: the closed line and its tabs."""
    return view_widget(report)


def _one(view: str) -> Callable[[Any], Any]:
    return lambda report: view_widget(report, view)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "widget": report_widget,
    "overview_widget": _one("overview"),
    "code_widget": _one("code"),
    "graph_widget": _one("graph"),
    "profile_widget": _one("profile"),
    "guards_widget": _one("guards"),
    "speedup_widget": _one("speed"),
    "details_widget": _one("more"),
}
