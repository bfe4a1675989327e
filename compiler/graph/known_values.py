"""Values of small tensors that a program makes of numbers it writes down: `torch.div(12, 5, rounding_mode="trunc")`.

They are the same at each call, so that reading one into Python needs no end of the graph. A value is known as long as
nothing writes to the memory of its tensor. Torch itself computes it, on the CPU, beside the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch

if TYPE_CHECKING:
    from .meta.core import TensorMeta
    from .opinfo import OpInfo

__all__ = ["FEW", "Storage", "Traced", "known", "know_result", "know_made", "know_literal", "forget"]

FEW = 64  # elements
# Operators that are followed: functions of their operands alone. An accelerator computes these as the CPU does on
# integers; on floating-point numbers it may differ in the last bit, so that these are known on the CPU only.
_FOLLOWED = frozenset(
    """abs add alias all amax amin any arange argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor cat
    ceil clamp clone cumsum detach div eq expand fill flip floor floor_divide fmod full full_like ge gt isnan
    le lift lift_fresh linspace logical_and logical_not logical_or logical_xor lt max maximum min minimum mul
    ne neg ones ones_like permute pow prod reciprocal remainder repeat roll round rsub scalar_tensor select
    sign slice split sqrt squeeze stack sub sum t _to_copy transpose trunc unbind _unsafe_view unsqueeze view
    where zeros zeros_like""".split()
)
_followed: dict[Any, bool] = {}


class Storage:
    """Identity of a piece of memory: tensors being traced with the same Storage alias. `known`: whether what its
    tensors hold may be known; `own_writes`: whether an operator of the program's has written to it.
    """

    __slots__ = ("__weakref__", "known", "own_writes")

    def __init__(self) -> None:
        self.known = self.own_writes = False


class Traced:
    """What is known of a tensor without data; `TraceTensor` is the class of them."""

    tt_meta: TensorMeta
    tt_storage: Storage
    tt_known: torch.Tensor


def known(t: Traced) -> torch.Tensor | None:
    """The value, which must not be written to; None where it is not known."""
    return getattr(t, "tt_known", None) if t.tt_storage.known else None


def forget(storage: Storage) -> None:
    """Something writes to the memory."""
    storage.known = False


def know_result(info: OpInfo, args: tuple, kwargs: dict, out: Any) -> None:
    """An operator that writes nothing has given `out` for `args`."""
    follows = _followed.get(info.op)
    if follows is None:
        follows = _followed[info.op] = info.op._schema.name.removeprefix("aten::") in _FOLLOWED
    if not follows:
        return
    values = [_value(arg) for arg in args]
    named = {name: _value(value) for name, value in kwargs.items()}
    if _UNKNOWN in values or _UNKNOWN in named.values():
        return
    if "device" in named:
        named["device"] = torch.device("cpu")
    _attach(out, lambda: info.op(*values, **named))


def know_made(out: Any, make: Callable, args: list, kwargs: dict) -> None:
    """A function that makes a tensor of plain numbers has given `out`."""
    if make in _MAKERS and not out.requires_grad and out.numel() <= FEW:
        _attach(out, lambda: make(*args, **{**kwargs, "device": "cpu"}))


def know_literal(tensor: Any, value: torch.Tensor) -> None:
    """`tensor` stands for a tensor that tracing has made of plain numbers, and that nothing writes to."""
    _attach(tensor, value.cpu)


_MAKERS = frozenset(
    (
        torch.tensor,
        torch.as_tensor,
        torch.full,
        torch.zeros,
        torch.ones,
        torch.arange,
        torch.linspace,
        torch.scalar_tensor,
    )
)


class _Unknown:
    """Stands for an operand whose value is not known. Compares by identity, as no tensor does."""


_UNKNOWN = _Unknown()


def _value(x: Any) -> Any:
    if isinstance(x, Traced):
        value = known(x)
        return _UNKNOWN if value is None else value
    cls = x.__class__
    if cls is list or cls is tuple:
        values = [_value(y) for y in x]
        return _UNKNOWN if any(item is _UNKNOWN for item in values) else values
    return _UNKNOWN if isinstance(x, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)) else x


def _attach(out: Any, compute: Callable[[], Any]) -> None:
    outs = out if isinstance(out, (list, tuple)) else (out,)
    if not all(isinstance(t, Traced) and _may_be_known(t) for t in outs):
        return
    try:
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            made = compute()
    except (RuntimeError, TypeError, ValueError, IndexError):
        return  # what torch refuses: the recorded call says so, where eager would
    for t, value in zip(outs, made if isinstance(made, (list, tuple)) else (made,), strict=True):
        if value.dtype is t.dtype and value.shape == t.shape:
            t.tt_known = value
            t.tt_storage.known = True


def _may_be_known(tensor: Any) -> bool:
    meta = tensor.tt_meta
    if tensor.requires_grad or any(type(size) is not int for size in meta.shape) or tensor.numel() > FEW:
        return False
    return meta.device.type == "cpu" or not (meta.dtype.is_floating_point or meta.dtype.is_complex)
