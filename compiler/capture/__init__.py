"""Capture: a Python frame in; guards, a torch-level fx graph and the text of an entry out.

`capture_frame(code, func, args) -> CaptureResult` (entry/capture.py) interprets the frame's bytecode with the arguments
of this first call and does nothing for real. Read in this order:

machine/    world.py: what came from outside, by which Source, and what was relied on; machine.py and frame.py: the
            interpreter; handlers_*.py: one function per canonical instruction (bytecode/)
kinds/      calls.py: interpreted, recorded, computed, logged, or a break; then each kind of Python value;
            native/: methods of C classes; objects/: what every object has
tensors/    calls that take or make tensors
numbers/    numbers that vary from call to call
arrays/     arrays of numpy
library/    what capture knows of torch and of the standard library
entry/      graph_builder.py: tensor calls as nodes; effects.py: what is done to outside objects afterwards;
            entry_source.py and made_values.py: the text of the entry
breaks/     causes.py: reasons and remedies
bytecode/   instructions of every Python version as one set; resume functions and loop regions
"""
