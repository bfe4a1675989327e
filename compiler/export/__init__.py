"""Exported programs: one graph with its inputs, guards and state, that saves, loads and runs without the source it came from.

in: a function or module and example arguments. out: ExportedProgram. `build.py` captures; `program.py` is the program, its checks and its
calls; `files.py` writes and reads it: text for the graph (`graphs.py`, `targets.py`, `values.py`), raw bytes for tensors, no pickles.
"""
from .build import export
from .files import load_exported
from .program import ExportedProgram

__all__ = ["export", "load_exported", "ExportedProgram"]
