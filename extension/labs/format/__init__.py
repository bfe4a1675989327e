"""How a lab is written, and what is built of it. The standard library alone: a wheel's build runs this.

source.py     a lab's folder (lab.py, en.md, zh.md) read and checked
build.py      what comes of it: notebooks of students and of the solution, tests as plain pytest
others.py     the same for nbgrader and otter-grader
"""

from .build import build_all, build_lab
from .others import nbgrader_notebook, otter_notebook, otter_tests
from .source import Lab, LabError, find_labs, read_lab

__all__ = [
    "Lab",
    "LabError",
    "build_all",
    "build_lab",
    "find_labs",
    "nbgrader_notebook",
    "otter_notebook",
    "otter_tests",
    "read_lab",
]
