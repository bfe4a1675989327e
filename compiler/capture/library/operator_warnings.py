"""Warnings that torch gives at each call of an operator, or of a function that capture knows. Capture runs such an
operator without data, and a graph not as torch's kernel. So the program gives the warning, from its own line, as it
gives those of Python code.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any, Callable

import torch
from torch.utils.checkpoint import checkpoint

from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["quietly", "warn_of_checkpoint", "warn_of_gradient", "warn_of_operator"]


def _spread(name: str) -> Callable[[], Any]:
    return lambda: getattr(torch, name)(torch.ones(1))


def _gradient() -> Any:
    with torch.enable_grad():
        return (torch.ones(1, requires_grad=True) * 2).grad


def _checkpoint() -> Any:
    with torch.enable_grad():
        return checkpoint(torch.sin, torch.ones(1, requires_grad=True))


# what gives the warning, on data of its own: the text is that of the torch that is there
_EXAMPLES: dict[str, Callable[[], Any]] = {
    **{name: _spread(name) for name in ("std", "var", "std_mean", "var_mean")},
    "grad": _gradient,
    "checkpoint": _checkpoint,
}


@functools.cache
def _text(name: str) -> str:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        _EXAMPLES[name]()
    return str(given[-1].message) if given else ""


def quietly(fn: Callable, *args: Any, **kwargs: Any) -> Any:
    """fn(...) without the warnings that it gives while it is captured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fn(*args, **kwargs)


def _warn(machine: Machine, name: str) -> None:
    if text := _text(name):
        machine.call(warnings.warn, [text, UserWarning], {})


def warn_of_operator(machine: Machine, fn: Callable, args: list, kwargs: dict) -> bool:
    """Give the warning of a call, if there is one."""
    name = getattr(fn, "__name__", "")
    if name not in ("std", "var", "std_mean", "var_mean"):
        return False
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, TraceTensor):
        args = [owner, *args]
    if not _without_freedom(args, kwargs):
        return False
    if not machine.opts.in_order:  # where torch's own kernels run, they say it
        _warn(machine, name)
    return True


def _without_freedom(args: list, kwargs: dict) -> bool:
    """Whether a variance is that of no more numbers than its correction. False where sizes may vary."""
    x, *rest = [*args, *([kwargs["input"]] if "input" in kwargs else [])]
    dim, unbiased = kwargs.get("dim"), kwargs.get("unbiased")
    if rest and type(rest[0]) is bool:
        unbiased = rest[0]
    elif rest:
        dim = rest[0]
        unbiased = rest[1] if len(rest) > 1 else unbiased
    correction = kwargs.get("correction")
    if correction is None:
        correction = 1 if unbiased is None else int(unbiased)
    shape = list(x.shape)
    if not all(type(size) is int for size in shape) or type(correction) not in (int, float):
        return False
    dims = [dim] if type(dim) is int else list(dim or range(len(shape)))
    over = {d % len(shape) for d in dims} if shape else set()
    kept = math.prod(size for d, size in enumerate(shape) if d not in over)
    return (math.prod(shape[d] for d in over) if kept else 0) <= correction


def warn_of_gradient(machine: Machine, tensor: TraceTensor) -> None:
    """What is said where the gradient of a tensor is read that gets none."""
    if tensor.requires_grad and not tensor.is_leaf and not tensor.retains_grad:
        _warn(machine, "grad")


def warn_of_checkpoint(machine: Machine) -> None:
    """What is said where torch.utils.checkpoint is not told use_reentrant, and takes it as true."""
    _warn(machine, "checkpoint")
