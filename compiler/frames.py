"""Which frames the hook takes up.

The hook sees every Python frame that a cell reaches. Worth capturing are those that work on tensors or modules: user functions and library
code with a tensor or a module among their arguments, and the forward of any nn.Module. torch's own Python is inlined where captured
code calls it, and passed over where it runs by itself.
"""
from __future__ import annotations

import os
import types
from contextlib import contextmanager
from typing import Any, Iterator

import torch
import torch.nn as nn

__all__ = ["wanted", "never", "every_frame", "takes_every_frame"]

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_MODULES = os.path.join(_TORCH, "nn", "modules") + os.sep
_OWN = ("<tcompile", "<eval_with_key>")      # entries, host plans and captured graphs: the compiler's own output
_LOOK = 16           # elements of a container that are looked at


_forced = 0


@contextmanager
def every_frame() -> Iterator[None]:
    """For tests of capture: frames without any tensor are captured too, and their entries used."""
    global _forced
    _forced += 1
    try:
        yield
    finally:
        _forced -= 1


def takes_every_frame() -> bool:
    return _forced > 0


def never(code: types.CodeType, func: types.FunctionType) -> bool:
    """Code that is not worth asking about again: the compiler's own output, methods made for its own classes (a dataclass's __init__ has
    no file), and torch's Python but for modules."""
    file = code.co_filename
    if file.startswith(_OWN) or str(func.__globals__.get("__name__")).startswith("tcompile."):
        return True
    return file.startswith(_TORCH) and not file.startswith(_MODULES)


def wanted(code: types.CodeType, args: tuple) -> bool:
    """Whether a frame of `code` with these arguments should be captured."""
    file = code.co_filename
    if _forced:
        return not file.startswith(_TORCH)
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
