"""The bytecode layer: code objects in, code objects out; no torch.

`decode` lifts a code object of CPython 3.11 to 3.14 into one canonical instruction set (opset.py; one small file per
version maps to it); `assemble` lowers it again. On top of them, for capture:

resume.py      make_break: execute one instruction natively and go on;  make_resume: the rest of a function as a
                                                                        function
loops.py       find_loops
regions.py     make_region: a loop's body as a function of its own
loop_break.py  make_loop_break: run a whole loop natively, its body as a region, what follows as a resume function
"""

from .assemble import assemble
from .instructions import Bytecode, Handler, Instruction, Position, Slot, decode
from .opset import OPS, stack_effect
from .version import NULL_FIRST, VERSION
from .wire import UnsupportedBytecode

__all__ = [
    "OPS",
    "NULL_FIRST",
    "VERSION",
    "Bytecode",
    "Handler",
    "Instruction",
    "Position",
    "Slot",
    "UnsupportedBytecode",
    "assemble",
    "decode",
    "stack_effect",
]
