"""A puzzle in a notebook: the student's program, a step through its programs, and the picture, redrawn at each change.

    course.puzzle(row_sum, rows_case, n=4, m=6)

The text starts as the notebook's function, and follows when its cell is run again. What is typed is run at once, with
limits. Where it defines the function the notebook gets it, so that a check sees what is seen here. Without a front end,
and on paper, the same picture is static.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import weakref
from html import escape
from typing import Any, Callable, Mapping

from .clock import OutOfTime, limited
from .pictures import Picture
from .puzzle_picture import picture
from .puzzle_run import Case, Index, Played, play, program_text
from .answers import register_source, told
from .words import language, say, speak

__all__ = ["Puzzle"]

SECONDS = 1.0  # that a program may run after a change
_shown: weakref.WeakValueDictionary[str, Puzzle] = weakref.WeakValueDictionary()


def _failed(case: Case, problem: str) -> Played:
    """What is shown where the program could not run at all: the tensors, and why."""
    nothing = play(lambda *_: None, case)
    nothing.error = nothing.problem = problem
    return nothing


class Puzzle:
    """One puzzle. Notebooks show it live where ipywidgets is there, and as a static picture elsewhere."""

    def __init__(
        self,
        function: Callable[..., Any],
        case: Case | Callable[..., Case],
        sizes: Mapping[str, int],
        names: dict[str, Any] | None = None,
    ):
        self.name = function.__name__
        self.names = names if names is not None else {}
        self._case, self.sizes = case, dict(sizes)
        self._language = language()
        self.function = function
        self.printed = ""
        self.text = self._text_of(function)
        self.played = self.run(function)
        self._box: Any = None
        self._parts: dict[str, Any] = {}
        self._busy = False

    # ---- running
    def case(self) -> Case:
        return self._case if isinstance(self._case, Case) else self._case(**self.sizes)

    @staticmethod
    def _text_of(function: Callable[..., Any]) -> str:
        try:
            return inspect.getsource(function).rstrip() + "\n"
        except (OSError, TypeError):
            return f"def {function.__name__}{inspect.signature(function)}:\n    ...\n"

    def run(self, function: Callable[..., Any]) -> Played:
        """Run the program for every program number, within limits."""
        speak(self._language)
        case = self.case()
        printed = io.StringIO()
        try:
            with limited(SECONDS), contextlib.redirect_stdout(printed):
                played = play(function, case)
        except OutOfTime:
            played = _failed(case, say("waited", seconds=SECONDS))
        except SystemExit as e:
            played = _failed(case, say("exited", code=e.code))
        self.printed = printed.getvalue()[-400:]
        return played

    def type(self, text: str) -> Played:
        """Run what was typed, and show it."""
        speak(self._language)
        self.text = text
        file = f"<{self.name} cell>"
        register_source(file, text)
        scope = dict(self.names)
        scope.pop(self.name, None)
        try:
            with limited(SECONDS), contextlib.redirect_stdout(io.StringIO()):
                exec(compile(text, file, "exec"), scope)
            function = scope.get(self.name)
            if not callable(function):
                raise ValueError(say("puzzle_no_function", name=self.name))
        except OutOfTime:
            self.played = _failed(self.case(), say("waited", seconds=SECONDS))
        except SyntaxError as e:
            line = (e.text or "").strip()
            self.played = _failed(self.case(), f"SyntaxError: {e.msg}, {say('line', line=e.lineno)}: {line}")
        except Exception as e:  # the student's mistake: it becomes words in the picture
            self.played = _failed(self.case(), told(e))
        else:
            self.function = function
            if self.name in self.names:
                self.names[self.name] = function
            self.played = self.run(function)
        self._draw()
        return self.played

    def follow(self) -> None:
        """The function's cell was run again: show what it defines now."""
        now = self.names.get(self.name)
        if not callable(now) or now is self.function:
            return
        self.function = now
        self.text = self._text_of(now)
        if "code" in self._parts:
            self._busy = True  # the text is set here, not typed
            self._parts["code"].value = self.text
            self._busy = False
        self.played = self.run(now)
        self._draw()

    # ---- showing
    def picture(self, program: Index | None = None) -> Picture:
        """The picture as it is on paper."""
        speak(self._language)
        return picture(self.played, program)

    def __repr__(self) -> str:
        return self.picture().text

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        static = {"text/plain": repr(self), "text/html": self._repr_html_()}
        try:
            box = self._widget()
        except ImportError:
            return static
        made = box._repr_mimebundle_(**kwargs)
        data, metadata = made if isinstance(made, tuple) else (made, {})
        return {**(data or {}), **static}, metadata

    def _widget(self) -> Any:
        if self._box is None:
            self._box = self._made()
            _shown[self.name] = self
            _follow_cells()
        self._draw()
        return self._box

    def _made(self) -> Any:
        import ipywidgets as w

        speak(self._language)
        rows = 1 + self.text.count("\n")
        code = w.Textarea(
            self.text, rows=max(6, min(24, rows + 2)), continuous_update=True,
            tooltip=say("puzzle_code"), layout=w.Layout(width="calc(100% - 4px)"),
        )  # fmt: skip
        code.add_class("tc-puzzle-code")
        label = w.HTML(f"<span>{escape(say('puzzle_code'))}</span>")
        programs = self.case().every_program()
        # A number field: a slider's handle has no name for screen readers, and JupyterLab takes a list's arrow keys.
        choice = w.BoundedIntText(
            -1, min=-1, max=len(programs) - 1, description=say("puzzle_program"), tooltip=say("puzzle_choose"),
            continuous_update=True, layout=w.Layout(width="160px"),
        )  # fmt: skip
        which = w.HTML(say("puzzle_all"), layout=w.Layout(width="64px"))
        before = w.Button(icon="chevron-left", tooltip=say("puzzle_previous"), layout=w.Layout(width="36px"))
        after = w.Button(icon="chevron-right", tooltip=say("puzzle_next"), layout=w.Layout(width="36px"))
        before.on_click(lambda _: self._step(-1))
        after.on_click(lambda _: self._step(1))
        sizes = [
            w.BoundedIntText(n, min=1, max=9, description=f"{name} =", tooltip=name, layout=w.Layout(width="140px"))
            for name, n in self.sizes.items()
        ]
        shown, note = w.HTML(), w.HTML(f"<small>{escape(say('puzzle_keep'))}</small>")
        back = w.Button(description=say("puzzle_back"), layout=w.Layout(width="auto"))
        original = self.text
        back.on_click(lambda _: setattr(code, "value", original))
        self._parts = {
            "code": code,
            "choice": choice,
            "which": which,
            "shown": shown,
            "sizes": sizes,
            "original": original,
        }
        code.observe(lambda change: None if self._busy else self.type(change["new"]), "value")
        choice.observe(lambda change: self._draw(), "value")
        for field, name in zip(sizes, self.sizes):
            field.observe(lambda change, name=name: self._resize(name, change["new"]), "value")
        box = w.VBox([label, code, w.HBox([note, back]), w.HBox([choice, which, before, after, *sizes]), shown])
        box.add_class("tc-puzzle")
        return box

    def _step(self, by: int) -> None:
        choice = self._parts["choice"]
        most = len(self.case().every_program())
        choice.value = -1 if choice.value + by >= most else max(-1, choice.value + by)

    def _resize(self, name: str, n: int) -> None:
        speak(self._language)
        self.sizes[name] = n
        choice = self._parts["choice"]
        choice.max = len(self.case().every_program()) - 1
        choice.value = -1
        self.played = self.run(self.function)
        self._draw()

    def _draw(self) -> None:
        if not self._parts:
            return
        programs = self.played.case.every_program()
        n = self._parts["choice"].value
        speak(self._language)
        chosen = programs[n] if 0 <= n < len(programs) else None
        self._parts["which"].value = say("puzzle_all") if chosen is None else f"p = {program_text(chosen)}"
        drawn = picture(self.played, chosen, ink="currentColor", verdict=False)
        alt = escape(drawn.text, quote=True)
        svg = drawn.svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)
        colour = "#2aa198" if self.played.solved else "#d14b4b"
        verdict = self.played.problem or say("puzzle_solved")
        style = f"border-left:4px solid {colour};padding-left:8px;white-space:pre-wrap"
        said = f'<div role="status" aria-live="polite" style="{style}">'
        printed = f"<pre>{escape(say('puzzle_printed'))} {escape(self.printed)}</pre>" if self.printed else ""
        body = f'{said}<span class="tc-puzzle-verdict">{escape(verdict)}</span></div>{printed}'
        self._parts["shown"].value = f'<div style="overflow-x:auto;line-height:1.4">{body}{svg}</div>'


_followed: list[Any] = []


def _follow_cells() -> None:
    """After each cell, the puzzles on show look for a new definition of their function."""
    try:
        from IPython import get_ipython
    except ImportError:
        return
    shell = get_ipython()
    if shell is None or any(s is shell for s in _followed):
        return
    _followed.append(shell)
    shell.events.register("post_run_cell", _follow_all)


def _follow_all(result: Any = None) -> None:
    for puzzle in list(_shown.values()):
        puzzle.follow()
