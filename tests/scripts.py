"""Scripts of the project, which no package holds, as modules for their tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def script(path: str) -> ModuleType:
    """The module of a script, by its path in the project; made anew at each call."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(f"tcompile_{file.stem}", file)
    assert spec is not None and spec.loader is not None, f"{path} is no script"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
