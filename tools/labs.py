"""The course's packages, from the sources in notebooks/labs.

labs.py instructor OUT          the instructor's package: hidden tests and solutions, as a wheel
labs.py nbgrader OUT [--lang]   OUT/source/labNN/labNN.ipynb: a course for nbgrader
labs.py otter OUT [--lang]      OUT/labNN/: notebook and tests for otter-grader
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tcompile.labs.format import build_all, find_labs, nbgrader_notebook, otter_notebook, otter_tests, read_lab

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "notebooks" / "labs"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PROJECT = f"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tcompile-instructor"
version = "{VERSION}"
requires-python = ">=3.11"
description = "Solutions and hidden tests of tcompile's course labs: for instructors alone"
dependencies = ["tcompile=={VERSION}"]

[tool.hatch.build.targets.wheel]
packages = ["tcompile_instructor"]
"""


def instructor(out: Path, language: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        build_all(SOURCES, root / "built")
        package = root / "project" / "tcompile_instructor"
        package.mkdir(parents=True)
        shutil.copytree(root / "built" / "instructor", package / "labs")
        (package / "__init__.py").write_text('"""Solutions and hidden tests: see `tcompile lab`."""\n')
        (root / "project" / "pyproject.toml").write_text(PROJECT)
        command = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(out),
            str(package.parent),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print("\n".join(str(p) for p in sorted(out.glob("tcompile_instructor-*.whl"))))


def nbgrader(out: Path, language: str) -> None:
    for folder in find_labs(SOURCES):
        lab = read_lab(folder)
        path = out / "source" / f"lab{lab.number:02d}" / f"lab{lab.number:02d}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(nbgrader_notebook(lab, language), ensure_ascii=False, indent=1), encoding="utf-8")
        print(path)


def otter(out: Path, language: str) -> None:
    for folder in find_labs(SOURCES):
        lab = read_lab(folder)
        home = out / f"lab{lab.number:02d}"
        (home / "tests").mkdir(parents=True, exist_ok=True)
        for name, text in otter_tests(lab).items():
            (home / "tests" / name).write_text(text, encoding="utf-8")
        made = otter_notebook(lab, language, solution=False)
        (home / f"lab{lab.number:02d}.ipynb").write_text(
            json.dumps(made, ensure_ascii=False, indent=1), encoding="utf-8"
        )
        print(home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["instructor", "nbgrader", "otter"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--lang", default="en", choices=["en", "zh"])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    {"instructor": instructor, "nbgrader": nbgrader, "otter": otter}[args.what](args.out.resolve(), args.lang)


if __name__ == "__main__":
    main()
