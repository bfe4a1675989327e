"""Reproducers: one Python file that shows a failure by itself, with torch and tcompile alone.

in: a graph, kernel, break or wrong number of a report, or a function and its arguments. out: `Reproducer`, a text that
saves and runs. `specs.py` says of each input its layout and range; `program_text.py` prints a graph as Python;
`definitions.py` prints a function with all that it refers to; `in_file.py` is what each file carries along.
"""

from .reproducer import Reproducer

__all__ = ["Reproducer"]
