"""A student's notebook run: the names that its cells define. A cell that fails leaves a message, and the next runs."""

from __future__ import annotations

import ast
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, ContextManager

from .library import BuiltLab, find
from .reading import cells_of, plain_python, read_notebook
from .answers import Submission, register_source, told, use_looks
from .words import say, speak

__all__ = ["load"]


def load(
    path: Path,
    lab: BuiltLab | None = None,
    skip: frozenset[str] = frozenset(),
    around: Callable[[str], ContextManager] = lambda name: nullcontext(),
) -> Submission:
    """Run the notebook's cells. `skip` names cells to leave out; `around(name)` is entered for each."""
    notebook, number, language = read_notebook(path)
    lab = lab or find(number)
    speak(language)
    use_looks(lab.facts["looks"].get(language) or {})
    module = types.ModuleType("lab_submission")
    sys.modules["lab_submission"] = module
    broken: dict[str, str] = {}
    for kind, name, text in cells_of(notebook, lab):
        if name in skip:
            continue
        try:
            with around(name):
                _run(f"<{name} cell>", plain_python(text), module.__dict__)
        except Exception as e:
            broken[name] = say("cell", name=name, error=told(e))
    return Submission(**{k: v for k, v in module.__dict__.items() if not k.startswith("__")}, _broken=broken)


def _run(file: str, source: str, names: dict[str, Any]) -> None:
    register_source(file, source)
    exec(compile(ast.parse(source, file), file, "exec"), names)
