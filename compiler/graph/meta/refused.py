"""Dtypes that torch's kernels refuse on the CPU. Rules give metadata for every dtype, and kernels of ours would compute
what eager refuses; where a rule raises, the call runs as it is, and the error is eager's.

Which dtypes these are torch knows best: its kernel is asked, once for each operator and dtypes, with two zeros in each
dimension (`_kernel_refuses`).
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch

from ...symbolic.expr import Expr
from .core import Rule, TensorMeta

__all__ = ["refusing", "refuses_output"]


def _is_bool(dtype: torch.dtype) -> bool:
    return dtype is torch.bool


def _is_whole(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex)


# operator -> whether it is refused for tensors all of such a dtype: where the kernel can't be asked with zeros, or says
# so in other words
_REFUSED: dict[str, Callable[[torch.dtype], bool]] = {
    **dict.fromkeys(("round", "relu", "hardtanh", "addmv", "argmax", "argmin", "isin", "linalg_cross"), _is_bool),
    **dict.fromkeys(
        """native_layer_norm native_group_norm linalg_vector_norm soft_margin_loss binary_cross_entropy addcdiv dist
        upsample_linear1d upsample_trilinear3d""".split(),
        _is_whole,
    ),
    **dict.fromkeys(
        """upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d
        _upsample_nearest_exact3d upsample_bilinear2d upsample_bicubic2d""".split(),
        lambda d: _is_whole(d) and d is not torch.uint8,
    ),
    **dict.fromkeys(("isposinf", "isneginf", "deg2rad", "rad2deg", "heaviside"), lambda d: d.is_complex),
}
_TAGS = frozenset(t for t in (torch.Tag.pointwise, getattr(torch.Tag, "reduction", None)) if t is not None)
# more operators that take any sizes and have kernels of one dtype each
_ASKED = frozenset(
    """
        sum mean prod amax amin argmax argmin any all var std var_mean std_mean cumsum cumprod cummax cummin
        logcumsumexp _softmax _log_softmax mm bmm mv dot vdot trace tril triu log_sigmoid_forward glu prelu mse_loss
        smooth_l1_loss huber_loss where masked_fill flip roll rsub dist floor_divide hardswish hardsigmoid softshrink
        hardshrink _cdist_forward multi_margin_loss multilabel_margin_loss_forward take searchsorted polar""".split()
)
_MOST_DIMS = 6


def refusing(op: torch._ops.OpOverload, rule: Rule) -> Rule:
    """The rule of the operator, raising for dtypes that its kernel has no code for."""
    name = op._schema.name.removeprefix("aten::")
    refused = _REFUSED.get(name, lambda dtype: False)
    asked = (name in _ASKED or not _TAGS.isdisjoint(op.tags)) and torch.Tag.nondeterministic_seeded not in op.tags
    if name not in _REFUSED and not asked:
        return rule

    def checked(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, TensorMeta)]
        if tensors and all(tensor.device.type == "cpu" for tensor in tensors):
            if (
                all(refused(tensor.dtype) for tensor in tensors)
                or asked
                and _kernel_refuses(
                    op, tuple(map(_kind, args)), tuple((key, _kind(value)) for key, value in kwargs.items())
                )
            ):
                raise RuntimeError(f"{name} is not implemented for {tensors[0].dtype}")
        return rule(*args, **kwargs)

    return checked


class _Zeros(tuple):
    """(dtype, dimensions) of a tensor argument."""


class _Plain(tuple):
    """(type, value) of another argument: 1, 1.0 and True are equal as keys."""


def _kind(x: Any) -> Any:
    """What decides of an argument which kernel runs, and can be looked up: of a number its type, of one that may be a
    dimension its value.
    """
    if isinstance(x, TensorMeta):
        return _Zeros((x.dtype, x.ndim))
    if isinstance(x, (list, tuple)):
        return tuple(map(_kind, x))
    if isinstance(x, (Expr, torch.SymInt)) or type(x) is int and abs(x) > _MOST_DIMS:
        x = 1
    elif isinstance(x, (torch.SymFloat, float)):
        x = 1.0
    elif type(x) is complex:
        x = 1j
    return _Plain((type(x), x))


def _zeros(x: Any) -> Any:
    if isinstance(x, _Zeros):
        if x[1] > _MOST_DIMS:
            raise ValueError
        return torch.zeros((2,) * x[1], dtype=x[0], device="cpu")
    return x[1] if isinstance(x, _Plain) else list(map(_zeros, x))


def refuses_output(
    op: torch._ops.OpOverload,
    functional: torch._ops.OpOverload,
    name: str,
    args: tuple,
    kwargs: dict,
    dtype: torch.dtype,
) -> bool:
    """Whether the kernel of an operator of single elements takes no output of that dtype, by its argument `name`."""
    return _output_refused(
        op,
        functional,
        name,
        tuple(map(_kind, args)),
        tuple((key, _kind(value)) for key, value in kwargs.items()),
        dtype,
    )


@functools.lru_cache(1 << 12)
def _output_refused(
    op: torch._ops.OpOverload,
    functional: torch._ops.OpOverload,
    name: str,
    args: tuple,
    kwargs: tuple,
    dtype: torch.dtype,
) -> bool:
    try:
        with torch.no_grad():
            given, named = list(map(_zeros, args)), {k: _zeros(v) for k, v in kwargs}
            op(*given, **named, **{name: torch.zeros_like(functional(*given, **named), dtype=dtype)})
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return True  # or it can't be asked: then the call runs as it is
    return False


@functools.lru_cache(1 << 12)
def _kernel_refuses(op: torch._ops.OpOverload, args: tuple, kwargs: tuple) -> bool:
    """Whether torch's kernel has no code for these dtypes. What else it says of two zeros in each dimension does not
    matter.
    """
    try:
        with torch.no_grad():
            op(*map(_zeros, args), **{k: _zeros(v) for k, v in kwargs})
    except NotImplementedError:
        return True
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    return False
