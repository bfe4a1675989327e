"""Capture: a Python frame in; guards, a torch-level fx graph and the text of an entry out.

`capture_frame(code, func, args) -> CaptureResult`. machine.py interprets canonical bytecode (bytecode/), world.py keeps provenance and
guards, graph_builder.py records, effects.py logs what is to be done to outside objects, entry_source.py writes the entry.
"""
