"""Backends: what turns a captured graph into something that runs.

in: CapturedGraph, Options. out: callable(*inputs) -> tuple. `tcompile` is this compiler's own pipeline; `eager` runs
the captured graph as it is. Any callable `backend(gm, example_inputs) -> callable` works, and so does the name of a
backend registered with torch (through the adapter registered.py). stock.py runs stock torch.compile as a comparison.
"""

from .registry import BACKENDS, compiler_of, list_backends, register_backend, resolve

__all__ = ["BACKENDS", "compiler_of", "list_backends", "register_backend", "resolve"]
