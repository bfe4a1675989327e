"""Adapter: hands a captured graph to a backend registered with torch, and makes tcompile one of those.

One of the two files that may import torch._dynamo (the other is stock.py).
"""
from __future__ import annotations

from typing import Any, Callable

__all__ = ["names", "lookup", "tcompile_backend"]


def names() -> list[str]:
    """Backends that torch knows, without those of this package."""
    import torch._dynamo
    return [n for n in torch._dynamo.list_backends(exclude_tags=()) if n != "tcompile"]


def lookup(name: str) -> Callable:
    """The function behind a torch backend's name; it takes (gm, example_inputs)."""
    from torch._dynamo.backends.registry import lookup_backend
    fn = lookup_backend(name)

    def backend(gm: Any, example_inputs: list, **options: Any) -> Callable:
        return fn(gm, example_inputs, **options)
    backend.__name__ = name
    return backend


def tcompile_backend(gm: Any, example_inputs: list, *, options: dict[str, Any] | None = None, mode: str | None = None, **more: Any) -> Callable:
    """`torch.compile(model, backend="tcompile")`: stock capture, this compiler's graph stages and kernels. torch gives
    example inputs as FakeTensors or tensors; the graph is taken through the pipeline at the first real call."""
    from ..api import compile_fx
    if mode not in (None, "default"):
        more["mode"] = mode
    return compile_fx(gm, example_inputs, **(options or {}), **more)
