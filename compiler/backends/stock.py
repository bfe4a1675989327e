"""Adapter: stock torch.compile, run beside tcompile as a comparison (compare=eager,torch).

One of the two files that may import torch._dynamo (the other is registered.py).
"""
from __future__ import annotations

from typing import Any, Callable


__all__ = ["compile", "available", "counters"]


def available() -> str | None:
    """None if stock torch.compile can run here, else why not."""
    try:
        import torch._dynamo  # noqa: F401
    except Exception as e:
        return f"torch._dynamo can't be imported: {type(e).__name__}: {e}"
    return None


def compile(fn: Callable, **kwargs: Any) -> Callable:
    """torch.compile(fn, **kwargs) with stock's own defaults; state of earlier comparisons is forgotten first."""
    import torch._dynamo
    torch._dynamo.reset()
    return torch.compile(fn, **kwargs)


def counters() -> dict[str, dict[str, int]]:
    """Stock's own counts of graphs and breaks, for the side-by-side view."""
    import torch._dynamo
    return {k: dict(v) for k, v in torch._dynamo.utils.counters.items()}
