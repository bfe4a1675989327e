"""The bytecode layer: code objects in, code objects out; no torch.

`decode` lifts a code object of CPython 3.11, 3.12 or 3.13 into one canonical instruction set (opset.py); `assemble` lowers it again.
resume.py makes the functions that a graph break needs, regions.py takes loop bodies out of functions.
"""
from .instructions import Bytecode, Handler, Instruction, Position, Slot, decode
from .assemble import assemble
from .opset import OPS, stack_effect
from .version import NULL_FIRST, VERSION
from .wire import UnsupportedBytecode

__all__ = ["Bytecode", "Handler", "Instruction", "Position", "Slot", "assemble", "decode", "OPS", "stack_effect", "NULL_FIRST", "VERSION", "UnsupportedBytecode"]
