"""Marks that user code sets: `disable` keeps a function out of the compiler, `is_compiling` tells whether it is being
captured, `error_on_graph_break` says where a graph break is an error.
"""

from __future__ import annotations

import functools
import types
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

from .base.break_errors import are_errors, set_errors
from .errors import OptionError

__all__ = [
    "disable",
    "error_on_graph_break",
    "is_compiling",
    "is_disabled",
    "mark_dynamic",
    "is_disabled_alone",
    "why_disabled",
    "maybe_mark_dynamic",
    "mark_unbacked",
    "mark_static",
    "dynamic_dims",
    "demanded_dims",
    "static_dims",
    "unbacked_dims",
]


Dims = int | tuple[int, ...] | list[int]


def is_compiling() -> bool:
    """True while the compiler captures the code that asks: capture answers this call itself, so what runs here is
    eager.
    """
    return False


def is_disabled(fn: Any) -> bool:
    """Whether `fn` asks to be left out: tcompile.disable, torch.compiler.disable, torch._dynamo.disable."""
    return bool(getattr(fn, "_tcompile_disable", False) or getattr(fn, "_torchdynamo_disable", False))


def is_disabled_alone(fn: types.FunctionType) -> bool:
    """Whether what a function that is left out calls is compiled. Of a wrapper that torch.compiler.disable made, the
    function within is left out likewise from here on.
    """
    marks = fn.__dict__
    if marks.get("_torchdynamo_disable_recursive") is False:
        within = marks.get("_torchdynamo_orig_callable")
        if isinstance(within, types.FunctionType):
            disable(within, recursive=False, reason=marks.get("_torchdynamo_disable_msg"))
        return True
    return marks.get("_tcompile_disable_recursive") is False


def why_disabled(fn: types.FunctionType) -> str:
    """The reason that was given where `fn` was marked; empty without one."""
    return str(getattr(fn, "_tcompile_disable_reason", None) or getattr(fn, "_torchdynamo_disable_msg", None) or "")


def mark_dynamic(tensor: Any, dim: Dims, *, min: int | None = None, max: int | None = None) -> None:
    """Say that the size of `tensor` along `dim` will change from call to call, between `min` and `max`. It is a symbol
    from the first compilation on. Sizes 0 and 1 are always fixed. Code that fixes the size, by comparing it with a
    constant, raises ConstraintViolationError.
    """
    for d in _mark("mark_dynamic", tensor, "_tcompile_dynamic", dim):
        tensor._tcompile_ranges = {**getattr(tensor, "_tcompile_ranges", {}), d: (min, max)}


def maybe_mark_dynamic(tensor: Any, dim: Dims) -> None:
    """Ask for what mark_dynamic demands: code that needs the size itself fixes it, and the report says where."""
    _mark("maybe_mark_dynamic", tensor, "_tcompile_dynamic", dim)


def mark_unbacked(tensor: Any, dim: Dims, *, strict: bool = False) -> None:
    """Say that nothing may be known of the size of `tensor` along `dim`: it is a symbol even where it is 0 or 1 in the
    first call. A branch of the program on it is a graph break, and an error under fullgraph=True. Assertions and
    torch._check are checked at each call. Where an operator itself asks (a sum over nothing, a size to broadcast), the
    answer is guarded. Code that needs the number fixes it; with `strict` that is an error, as for mark_dynamic.
    """
    if not isinstance(strict, bool):
        raise OptionError(f"tcompile.mark_unbacked: strict is True or False, got {strict!r}")
    for d in _mark("mark_unbacked", tensor, "_tcompile_unbacked", dim):
        if strict:
            tensor._tcompile_ranges = {**getattr(tensor, "_tcompile_ranges", {}), d: (None, None)}


def mark_static(tensor: Any, dim: Dims | None = None) -> None:
    """Say that the size of `tensor` along `dim` is fixed (None: along all dimensions). It never becomes a symbol, and
    each size has an entry of its own."""
    _mark("mark_static", tensor, "_tcompile_static", dim)


def _mark(function: str, tensor: Any, mark: str, dim: Dims | None) -> set[int]:
    """Add dimensions, counted from the front, to what `tensor` has in its attribute `mark`, and give them. None: all of
    them, for mark_static alone.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tcompile.{function} takes a tensor, got {type(tensor).__name__}")
    n = tensor.dim()
    dims: Sequence[Any] = (
        range(n) if dim is None and function == "mark_static" else dim if isinstance(dim, (tuple, list)) else (dim,)
    )
    for d in dims:
        if type(d) is not int or not -n <= d < n:
            wanted = (
                f"an int from {-n} to {n - 1}, or a tuple of such, for this tensor"
                if n
                else "nothing for this tensor, which has no dimensions"
            )
            raise IndexError(f"tcompile.{function}: dim is {wanted}, got {d!r}")
    named = {dim % n for dim in dims}
    setattr(tensor, mark, getattr(tensor, mark, frozenset()) | named)
    return named


def dynamic_dims(tensor: Any) -> set[int]:
    """Dimensions that mark_dynamic, maybe_mark_dynamic or mark_unbacked named, those of this package or of
    torch._dynamo.
    """
    marks = ("_tcompile_dynamic", "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
    return {d for mark in marks for d in getattr(tensor, mark, ())} | unbacked_dims(tensor)


def unbacked_dims(tensor: Any) -> set[int]:
    """Dimensions that mark_unbacked of this package, or torch._dynamo's, named."""
    marks = ("_tcompile_unbacked", "_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")
    return {d % tensor.dim() for mark in marks for d in getattr(tensor, mark, ()) if tensor.dim()}


def demanded_dims(tensor: Any) -> dict[int, tuple[int | None, int | None]]:
    """Those of them that must not be fixed, with the least and the largest size that was named."""
    ranges: dict[int, tuple[int | None, int | None]] = dict.fromkeys(
        getattr(tensor, "_dynamo_dynamic_indices", ()), (None, None)
    )
    ranges.update(dict.fromkeys(getattr(tensor, "_dynamo_strict_unbacked_indices", ()), (None, None)))
    ranges.update({r.dim: (r.min, r.max) for r in getattr(tensor, "_dynamo_dynamic_range", ()) if r.dim in ranges})
    return {**ranges, **getattr(tensor, "_tcompile_ranges", {})}


def static_dims(tensor: Any) -> set[int]:
    """Dimensions that mark_static of this package, or torch._dynamo's, named."""
    return {*getattr(tensor, "_tcompile_static", ()), *getattr(tensor, "_dynamo_static_indices", ())}


def disable(fn: Callable | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Run `fn`, and everything that it calls, eager: as a decorator, or `with tcompile.disable():` for a block.

    recursive=False marks the function `fn` itself: its frame alone stays uncompiled, and what it calls is compiled.
    A graph break there says the `reason`.
    """
    if fn is None:
        if recursive and reason is None:
            return _disabled()
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise TypeError(f"tcompile.disable takes a function or nothing, got {type(fn).__name__}")
    if not recursive:
        if not isinstance(fn, types.FunctionType):
            raise TypeError(f"tcompile.disable(recursive=False) takes a Python function, got {type(fn).__name__}")
        fn._tcompile_disable, fn._tcompile_disable_recursive = True, False  # type: ignore[attr-defined]
        fn._tcompile_disable_reason = reason  # type: ignore[attr-defined]
        return fn

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _disabled():
            return fn(*args, **kwargs)

    call._tcompile_disable = True  # type: ignore[attr-defined]
    call._tcompile_disable_reason = reason  # type: ignore[attr-defined]
    return call


class error_on_graph_break:
    """Whether a graph break is an error, for a part of what is compiled: `with tcompile.error_on_graph_break(True):`
    for a block, or as a decorator for a function with all that it calls. The innermost one counts. The option
    `error_on_graph_break` says what holds outside of all. Under fullgraph=True every break is an error anyway.

    A FullGraphError names line, reason and remedy. What parts a graph under fullgraph=True without an error does so
    here, too. Unlike fullgraph it does not ask for one graph: a part where breaks are allowed may lie between.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        if not isinstance(error_on_graph_break, bool):
            raise OptionError(f"error_on_graph_break is True or False, got {error_on_graph_break!r}")
        self.error_on_graph_break = error_on_graph_break
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(are_errors())
        set_errors(self.error_on_graph_break)

    def __exit__(self, *exc: Any) -> None:
        set_errors(self._before.pop())

    def __call__(self, fn: Callable) -> Callable:
        if not callable(fn):
            raise TypeError(f"tcompile.error_on_graph_break decorates a function, got {type(fn).__name__}")
        wanted = self.error_on_graph_break

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(wanted):
                return fn(*args, **kwargs)

        return call


@contextmanager
def _disabled() -> Iterator[None]:
    from .runtime.dispatch import disabled

    with disabled():
        yield
