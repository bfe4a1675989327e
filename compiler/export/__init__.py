"""Exported programs: one graph with its inputs, guards and state, that saves, loads and runs without the source it came
from.

in: a function or module and example arguments. out: ExportedProgram. `export_frame.py` captures; `exported_program.py`
is the program, its checks and its calls; `files.py` writes and reads it: text for the graph (`graph_json.py`,
`safe_targets.py`, `value_json.py`), raw bytes for tensors, no pickles.
"""

from .export_frame import export
from .files import load_exported
from .exported_program import ExportedProgram

__all__ = ["export", "load_exported", "ExportedProgram"]
