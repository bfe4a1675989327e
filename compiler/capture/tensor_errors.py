"""Errors of tensor operators: what eager says, not what the metadata rules say.

When an operator fails on TraceTensors and a handler of the program is to see the error, its type and words must be eager's: the operator is
run once on real tensors of the same metadata, whose values do not matter. If it does not fail there, the rule is wrong, and the graph breaks.
"""
from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable

import torch

from .signals import Break
from .world import TraceTensor

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["true_error", "refuses_view"]

_LIMIT = 1 << 26            # bytes of operands up to which an operator is tried


class _TooLarge(Exception):
    pass


def refuses_view(error: BaseException) -> bool:
    """Whether autograd refused a write for how the view was made: what is made anew, or comes out of a graph, has no such history."""
    return isinstance(error, RuntimeError) and "is being modified inplace" in str(error)


def true_error(m: Machine, fn: Callable, args: tuple | list, kwargs: dict, error: Exception) -> Exception:
    """The exception that `fn` raises on real tensors, for `error`, which it raised on TraceTensors."""
    if refuses_view(error):
        return error
    left = [_LIMIT]
    random = torch.get_rng_state()
    try:
        if isinstance(fn, (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType)) and isinstance(fn.__self__, TraceTensor):
            name = fn.__name__
            real = [_real(m, v, left) for v in (fn.__self__, *args)]
            named = {k: _real(m, v, left) for k, v in kwargs.items()}
            getattr(real[0], name)(*real[1:], **named)
        else:
            real = [_real(m, v, left) for v in args]
            named = {k: _real(m, v, left) for k, v in kwargs.items()}
            fn(*real, **named)
    except _TooLarge:
        return error
    except Exception as eager:
        return eager
    finally:
        torch.set_rng_state(random)
    raise Break("unsupported", f"the rule for {getattr(fn, '__name__', fn)} says that it fails ({type(error).__name__}: {error}), while eager does it")


def _real(m: Machine, value: Any, left: list[int]) -> Any:
    """`value` with tensors that hold memory in place of TraceTensors, and the sizes of this call in place of symbols."""
    if isinstance(value, TraceTensor):
        shape, stride = [int(d) for d in _hints(m, value.shape)], [int(d) for d in _hints(m, value.stride())]
        span = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if all(shape) else 0
        left[0] -= span * value.element_size()
        if left[0] < 0:
            raise _TooLarge
        with torch.no_grad():
            made = torch.zeros(span, dtype=value.dtype, device=value.device).as_strided(shape, stride).detach()
        made.requires_grad_(value.requires_grad and (made.dtype.is_floating_point or made.dtype.is_complex))
        if made.requires_grad and not value.is_leaf:
            with torch.enable_grad():
                made = made.clone()
        return made
    if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        return _hints(m, [value])[0]
    if isinstance(value, torch.Size) or type(value) is tuple or type(value) is list:
        items = [_real(m, v, left) for v in value]
        return items if isinstance(value, list) else torch.Size(items) if isinstance(value, torch.Size) else tuple(items)
    if type(value) is dict:
        return {k: _real(m, v, left) for k, v in value.items()}
    if type(value) is slice:
        return slice(*(_real(m, v, left) for v in (value.start, value.stop, value.step)))
    return value


def _hints(m: Machine, sizes: Any) -> list:
    return [m.env.to_expr(s).eval({n: int(h) for n, h in m.env.hints.items()}) if isinstance(s, torch.SymInt) else
            bool(s) if isinstance(s, torch.SymBool) else float(s) if isinstance(s, torch.SymFloat) else s for s in sizes]
