"""Capture: a Python frame in; guards, a torch-level fx graph and the text of an entry out.

`capture_frame(code, func, args) -> CaptureResult` (capture.py) interprets the frame's bytecode with the arguments of this first call and does
nothing for real. Read in this order:

world.py          what came from outside, by which Source, and what was relied on       frame.py, machine.py   the interpreter
handlers_*.py     one function per canonical instruction (bytecode/)                     operators.py, attributes.py, containers.py
calls.py          interpreted, recorded, computed, logged, or a break; then              modules.py, classes.py, generators.py,
                  builtin_calls.py, builtin_functions.py, library_functions.py           inline_policy.py, tensor_calls.py
graph_builder.py  tensor calls as nodes          effects.py  what is to be done to outside objects afterwards
entry_source.py   the entry's text               breaks.py   reasons and remedies          loops.py  loops that hold a break
"""
