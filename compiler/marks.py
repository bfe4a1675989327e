"""Marks that user code sets: `disable` keeps a function out of the compiler, `is_compiling` tells whether it is being captured."""
from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import Any, Callable, Iterator

__all__ = ["disable", "is_compiling", "is_disabled", "mark_dynamic", "maybe_mark_dynamic", "mark_static", "dynamic_dims", "static_dims"]


def is_compiling() -> bool:
    """True while the compiler captures the code that asks: capture answers this call itself, so what runs here is eager."""
    return False


def is_disabled(fn: Any) -> bool:
    """Whether `fn` asks to be left out: tcompile.disable, torch.compiler.disable, torch._dynamo.disable."""
    return bool(getattr(fn, "_tcompile_disable", False) or getattr(fn, "_torchdynamo_disable", False))


def mark_dynamic(tensor: Any, dim: int | tuple[int, ...]) -> None:
    """Say that the size of `tensor` along `dim` will change from call to call: it is a symbol from the first compilation on.
    Sizes 0 and 1 are always fixed."""
    marked: frozenset[int] = getattr(tensor, "_tcompile_dynamic", frozenset())
    tensor._tcompile_dynamic = marked | _checked("mark_dynamic", tensor, dim)


def maybe_mark_dynamic(tensor: Any, dim: int | tuple[int, ...]) -> None:
    """As mark_dynamic, which here is a wish, too: code that needs the size itself fixes it, and the report says where."""
    marked: frozenset[int] = getattr(tensor, "_tcompile_dynamic", frozenset())
    tensor._tcompile_dynamic = marked | _checked("maybe_mark_dynamic", tensor, dim)


def mark_static(tensor: Any, dim: int | tuple[int, ...] | None = None) -> None:
    """Say that the size of `tensor` along `dim` (None: along all dimensions) is fixed: it never becomes a symbol, and each size has
    an entry of its own."""
    marked: frozenset[int] = getattr(tensor, "_tcompile_static", frozenset())
    tensor._tcompile_static = marked | _checked("mark_static", tensor, tuple(range(tensor.dim())) if dim is None else dim)


def _checked(name: str, tensor: Any, dim: int | tuple[int, ...]) -> set[int]:
    """The dimensions, counted from the front."""
    import torch
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tcompile.{name} takes a tensor, got {type(tensor).__name__}")
    dims = dim if isinstance(dim, tuple) else (dim,)
    for d in dims:
        if not isinstance(d, int) or not -tensor.dim() <= d < tensor.dim():
            raise IndexError(f"{name}: dim is from {-tensor.dim()} to {tensor.dim() - 1} for this tensor, got {d!r}")
    return {d % tensor.dim() for d in dims}


def dynamic_dims(tensor: Any) -> set[int]:
    """Dimensions that mark_dynamic of this package, or torch._dynamo's, named."""
    return {*getattr(tensor, "_tcompile_dynamic", ()), *getattr(tensor, "_dynamo_dynamic_indices", ()),
            *getattr(tensor, "_dynamo_weak_dynamic_indices", ())}


def static_dims(tensor: Any) -> set[int]:
    """Dimensions that mark_static of this package, or torch._dynamo's, named."""
    return {*getattr(tensor, "_tcompile_static", ()), *getattr(tensor, "_dynamo_static_indices", ())}


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
