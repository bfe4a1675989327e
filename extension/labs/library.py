"""Where the labs are: built in the package, or, in a checkout, built from notebooks/labs when a source changed.

Solutions and hidden tests are in the instructor's package alone (`tcompile_instructor`, made by `make
labs-instructor`), or in a checkout, which holds the sources.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from .format import build_all
from .words import say

__all__ = ["BuiltLab", "Missing", "find", "labs"]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = ROOT / "notebooks" / "labs"


class Missing(Exception):
    """A lab, a file or a package that is not there. The text says what to do."""


@dataclass(frozen=True)
class BuiltLab:
    facts: dict[str, Any]
    folder: Path
    instructor: Path | None

    @property
    def number(self) -> int:
        return self.facts["number"]

    @property
    def file_name(self) -> str:
        return f"lab{self.number:02d}.ipynb"

    def tests(self, hidden: bool) -> ModuleType:
        """A module of tests with its table TESTS."""
        folder = self.instructor if hidden else self.folder
        if folder is None:
            raise Missing(say("no_instructor"))
        path = folder / ("hidden_tests.py" if hidden else "public_tests.py")
        spec = importlib.util.spec_from_file_location(f"tcompile_lab_{self.number}_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _digest() -> str:
    code = hashlib.sha256()
    files = [p for p in SOURCES.rglob("*") if p.suffix in (".py", ".md")] + list((HERE / "format").glob("*.py"))
    for path in sorted(files):
        code.update(str(path.name).encode() + path.read_bytes())
    return code.hexdigest()


@lru_cache(maxsize=1)
def _folders() -> tuple[Path, Path | None]:
    """The folders of what students have and of what instructors have."""
    if (ROOT / "pyproject.toml").exists() and SOURCES.is_dir():
        out = ROOT / "build" / "labs" / _digest()[:16]
        if not out.exists():
            # several processes may come at once: the first one's stays
            mine = out.with_name(f"{out.name}.{os.getpid()}")
            build_all(SOURCES, mine)
            try:
                mine.rename(out)
            except OSError:
                shutil.rmtree(mine)
        return out / "student", out / "instructor"
    spec = importlib.util.find_spec("tcompile_instructor")
    instructor = Path(spec.origin).parent / "labs" if spec and spec.origin else None
    return HERE / "built", instructor


def labs() -> list[BuiltLab]:
    """Every lab, in order."""
    student, instructor = _folders()
    found = []
    for path in sorted(student.glob("*/lab.json")):
        theirs = instructor / path.parent.name if instructor else None
        found.append(
            BuiltLab(
                json.loads(path.read_text(encoding="utf-8")),
                path.parent,
                theirs if theirs and theirs.is_dir() else None,
            )
        )
    return found


def find(number: int) -> BuiltLab:
    everything = labs()
    for lab in everything:
        if lab.number == number:
            return lab
    raise Missing(say("no_lab", number=number, labs=", ".join(str(x.number) for x in everything) or "-"))
