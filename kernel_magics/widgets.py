"""A report as ipywidgets: the same views, for VS Code, Colab and dashboards, and the controls that need a kernel."""

from __future__ import annotations

from typing import Any, Callable

__all__ = ["report_widget", "graph_widget", "guards_widget", "speedup_widget"]


def _ipywidgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ImportError(
            "widgets need ipywidgets: pip install ipywidgets (the report itself is shown without them)"
        ) from None
    return ipywidgets


def _styled(body: str) -> str:
    from .render.html import STYLE

    return f'<style>{STYLE}</style><div class="tcr">{body}</div>'


def report_widget(report: Any) -> Any:
    """The whole report: the closed line, tabs, and re-timing."""
    w = _ipywidgets()
    from .render import html

    views: list[tuple[str, Any]] = [
        ("Overview", w.HTML(_styled(html.overview_html(report)))),
        ("Graph", graph_widget(report)),
        (f"Guards {sum(g.count for g in report.guards)}", guards_widget(report)),
        ("Speed", speedup_widget(report)),
        ("Kernels", w.HTML(_styled(html.kernels_html(report)))),
        ("More", w.HTML(_styled(html.more_html(report)))),
    ]
    tabs = w.Tab(children=[v for _, v in views])
    for i, (title, _) in enumerate(views):
        tabs.set_title(i, title)

    class ReportBox(w.VBox):  # type: ignore[name-defined]  # ipywidgets is imported when a widget is asked for
        """Carries the report's HTML for readers that have no widgets: a saved notebook, nbconvert, GitHub."""

        def _repr_mimebundle_(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            return {
                **super()._repr_mimebundle_(*args, **kwargs),
                "text/plain": report.summary.line,
                "text/html": html.render_html(report),
            }

    return ReportBox([w.HTML(_styled(html.line_html(report))), tabs])


def graph_widget(report: Any) -> Any:
    """A graph to choose, as a table, filtered by what is typed."""
    w = _ipywidgets()
    from .render import html

    if not report.graphs:
        return w.HTML(_styled("<p>no graph was captured</p>"))
    choice = w.Dropdown(options=[(g.name, i) for i, g in enumerate(report.graphs)], description="graph")
    form = w.ToggleButtons(
        options=[("captured", "captured"), ("aten", "lowered")],
        value="captured" if report.graphs[0].captured else "lowered",
    )
    search = w.Text(placeholder="name, operation, module or kernel", description="find")
    body = w.HTML()

    def draw(_: Any = None) -> None:
        body.value = _styled(html.graph_html(report, choice.value, form.value, search.value))

    for control in (choice, form, search):
        control.observe(draw, "value")
    draw()
    return w.VBox([w.HBox([choice, form, search], layout=w.Layout(flex_flow="row wrap")), body])


def guards_widget(report: Any) -> Any:
    """The guards in words, filtered by what is typed; those that failed first."""
    w = _ipywidgets()
    from .render import html

    search = w.Text(placeholder="source or words", description="find")
    body = w.HTML()

    def draw(_: Any = None) -> None:
        body.value = _styled(html.guards_html(report, search.value))

    search.observe(draw, "value")
    draw()
    return w.VBox([search, body])


def speedup_widget(report: Any) -> Any:
    """The timings, and a button that takes them again in this kernel."""
    w = _ipywidgets()
    from .render import html

    body = w.HTML(_styled(html.speed_html(report)))
    seconds = w.BoundedFloatText(
        value=1.0, min=0.1, max=600, step=0.5, description="seconds", layout=w.Layout(width="170px")
    )
    stock = w.Checkbox(value="torch" in report.speedups.engines, description="torch.compile too", indent=False)
    button = w.Button(
        description="time again",
        icon="refresh",
        disabled=report.live is None,
        tooltip="run the captured calls again under each engine"
        if report.live is not None
        else "its calls are not in this kernel any more",
    )
    note = w.HTML("" if report.live is not None else "<i>a loaded report: its calls cannot be run again here</i>")

    def again(_: Any) -> None:
        button.disabled, note.value = True, "timing …"
        try:
            report.live(seconds.value, ("eager", "torch") if stock.value else ("eager",))
            body.value, note.value = _styled(html.speed_html(report)), ""
        except Exception as e:  # a callback's error would vanish in the kernel's log
            note.value = html.esc(f"timing failed: {type(e).__name__}: {e}")
        finally:
            button.disabled = False

    button.on_click(again)
    return w.VBox([body, w.HBox([button, seconds, stock, note], layout=w.Layout(flex_flow="row wrap"))])


VIEWS: dict[str, Callable[[Any], Any]] = {
    "widget": report_widget,
    "graph_widget": graph_widget,
    "guards_widget": guards_widget,
    "speedup_widget": speedup_widget,
}
