"""Exported programs: one graph with its inputs, guards and state, that saves, loads and runs without the source it came
from.

in: a function or module and example arguments. out: ExportedProgram. `export_frame.py` captures; `exported_program.py`
is the program, `program_calls.py` its checks and its calls; `files.py` writes and reads it: text for the graph
(`graph_json.py`, `safe_targets.py`, `value_json.py`), raw bytes for tensors, no pickles.

`package.py` compiles a program into a folder that runs without a compiler: `load_package.py` in Python, `cpp/` in C++.
`package_plan.py` is the plan in it. Nothing is imported here, so that a package loads without the compiler's stages.
"""
