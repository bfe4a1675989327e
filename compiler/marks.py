"""Marks that user code sets: `disable` keeps a function out of the compiler, `is_compiling` tells whether it is being captured."""
from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any, Callable, Iterator

__all__ = ["disable", "is_compiling", "is_disabled"]


def is_compiling() -> bool:
    """True while the compiler captures the code that asks: capture answers this call itself, so what runs here is eager."""
    return False


def is_disabled(fn: Any) -> bool:
    """Whether `fn` asks to be left out: tcompile.disable, torch.compiler.disable, torch._dynamo.disable."""
    return bool(getattr(fn, "_tcompile_disable", False) or getattr(fn, "_torchdynamo_disable", False))


def disable(fn: Callable | None = None) -> Any:
    """Run `fn`, and everything that it calls, eager: as a decorator, or `with tcompile.disable():` for a block."""
    if fn is None:
        return _disabled()
    if not callable(fn):
        raise TypeError(f"tcompile.disable takes a function or nothing, got {type(fn).__name__}")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disabled():
            return fn(*args, **kwargs)
    call._tcompile_disable = True      # type: ignore[attr-defined]
    return call


@contextmanager
def _disabled() -> Iterator[None]:
    from .runtime.dispatch import disabled
    with disabled():
        yield
