"""Which frames the hook takes up.

The hook sees every Python frame that a cell reaches. Worth capturing are those that work on tensors or modules: user functions and library
code with a tensor or a module among their arguments, and the forward of any nn.Module. torch's own Python is inlined where captured
code calls it, and passed over where it runs by itself.
"""
from __future__ import annotations

import os
import types
from typing import Any

import torch
import torch.nn as nn

__all__ = ["wanted", "never"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_OWN = ("<tcompile", "<eval_with_key>")      # entries, host plans and captured graphs: the compiler's own output
_LOOK = 16           # elements of a container that are looked at


def never(code: types.CodeType) -> bool:
    """Code that is not worth asking about again: the compiler's own output, and torch's Python but for modules."""
    file = code.co_filename
    return file.startswith(_OWN) or file.startswith(_TORCH) and not file.startswith(_MODULES)


def wanted(code: types.CodeType, args: tuple) -> bool:
    """Whether a frame of `code` with these arguments should be captured."""
    file = code.co_filename
    if file.startswith(_TORCH):
        return file.startswith(_MODULES) and code.co_name == "forward" and bool(args) and isinstance(args[0], nn.Module)
    return any(_tensor_work(a) for a in args)


def _tensor_work(a: Any) -> bool:
    if isinstance(a, (torch.Tensor, nn.Module)):
        return True
    if type(a) in (list, tuple):
        return any(isinstance(x, (torch.Tensor, nn.Module)) for x in a[:_LOOK])
    if type(a) is dict and len(a) <= _LOOK:
        return any(isinstance(x, (torch.Tensor, nn.Module)) for x in a.values())
    return False
