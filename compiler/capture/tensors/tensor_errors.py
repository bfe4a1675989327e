"""Errors of tensor operators: what eager says, not what the metadata rules say.

When an operator fails on TraceTensors and a handler of the program is to see the error, its type and words must be
eager's: the operator is run once on real tensors of the same metadata, whose values do not matter. If it does not fail
there, the rule is wrong, and the graph breaks. The words may name any number among the arguments, so that sizes and
numbers that vary are fixed: the next ones get words of their own.
"""

from __future__ import annotations

import re
import sys
import types
import warnings
from typing import Any, Callable

import torch

from ..machine.signals import Break
from ...graph.tensor import DataDependentError, TraceTensor
from ...ops.conjugates import copy_bits
from ..machine.stack_values import specialize

__all__ = ["break_kind_of", "true_error", "refuses_view", "undescribed"]

_SHAPE_WORDS = ("size of the result", "nonzero", "unique", "masked_select", "repeat_interleave", "bincount", "histc")
_LIMIT = 1 << 26  # bytes of operands up to which an operator is tried


def refuses_view(error: BaseException) -> bool:
    """Whether autograd refused a write for how the view was made: what is made anew, or comes out of a graph, has no
    such history.
    """
    return isinstance(error, RuntimeError) and "is being modified inplace" in str(error)


def true_error(fn: Callable, args: tuple | list, kwargs: dict, error: Exception) -> Exception:
    """The exception that `fn` raises on real tensors, for `error`, which it raised on TraceTensors."""
    if refuses_view(error):
        return error
    left, name = [_LIMIT], ""
    if isinstance(fn, (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)) and isinstance(
        fn.__self__, TraceTensor
    ):
        args, name = (fn.__self__, *args), fn.__name__
    real, named = [_real(arg, left) for arg in args], {key: _real(value, left) for key, value in kwargs.items()}
    if left[0] < 0:
        return error
    random, handled = torch.get_rng_state(), sys.exception()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the call itself will say so
            if name:
                getattr(real[0], name)(*real[1:], **named)
            else:
                fn(*real, **named)
    except Exception as eager:
        _part(eager, handled, error)
        return eager
    finally:
        torch.set_rng_state(random)
    raise Break(
        "unsupported",
        f"the metadata rule of {getattr(fn, '__name__', fn)} raises {type(error).__name__}: {error}, eager does not",
    )


def _part(raised: BaseException, *handled: BaseException | None) -> None:
    """What capture handled while eager was asked is no part of the program's exception."""
    while raised.__context__ is not None and raised.__context__ not in handled:
        raised = raised.__context__
    raised.__context__ = None


def _real(value: Any, left: list[int]) -> Any:
    """`value` with tensors that hold memory in place of TraceTensors (None where they are too large), and with the
    numbers of this call, fixed, in place of symbols."""
    if isinstance(value, TraceTensor):
        shape, stride = [specialize(size) for size in value.shape], [specialize(d) for d in value.stride()]
        span = 1 + sum((size - 1) * s for size, s in zip(shape, stride)) if all(shape) else 0
        left[0] -= span * value.element_size()
        if left[0] < 0:
            return None
        with torch.no_grad():
            made = torch.zeros(span, dtype=value.dtype, device=value.device).as_strided(shape, stride).detach()
        made.requires_grad_(value.requires_grad and (made.dtype.is_floating_point or made.dtype.is_complex))
        if made.requires_grad and not value.is_leaf:
            with torch.enable_grad():
                made = made.clone()
        copy_bits(value, made)
        return made
    if isinstance(value, torch.Size) or type(value) is tuple or type(value) is list:
        items = [_real(item, left) for item in value]
        return (
            items if isinstance(value, list) else torch.Size(items) if isinstance(value, torch.Size) else tuple(items)
        )
    if type(value) is dict:
        return {key: _real(item, left) for key, item in value.items()}
    if type(value) is slice:
        return slice(*(_real(v, left) for v in (value.start, value.stop, value.step)))
    return specialize(value)


def undescribed(exc: BaseException) -> str:
    """What causes.py knows an operator of the program's by, of which nothing tells what its result will be; or ""."""
    told = not isinstance(exc, NotImplementedError) or not re.match(r"(?!aten\.)\S+ has no metadata rule", str(exc))
    return "" if told else "an operator has no fake kernel"


def break_kind_of(exc: BaseException) -> str | None:
    """The break that an error from running on TraceTensors stands for, or None where it is the program's own."""
    if isinstance(exc, DataDependentError):
        text = str(exc)
        if "tolist" in text:
            return "tolist"
        if "numpy" in text:
            return "numpy"
        if "data_ptr" in text:
            return "tensor_metadata"
        if "equal" in text:
            return "data_dependent_branch"
        return "data_dependent_shape" if any(word in text for word in _SHAPE_WORDS) else "item"
    if isinstance(exc, NotImplementedError) and ("not traced" in str(exc) or "no metadata rule" in str(exc)):
        return "unsupported"
    if isinstance(exc, RecursionError):
        return "recursion"
    if isinstance(exc, TypeError) and str(exc) == "unhashable type: non-nested SymInt":
        return "unsupported"  # deep inside of what native code hashes
    return None
