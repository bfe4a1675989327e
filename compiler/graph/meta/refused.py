"""Dtypes that torch's kernels refuse on the CPU. Rules give metadata for every dtype, and kernels of ours would compute what eager refuses; where a
rule raises, the call runs as it is, and the error is eager's."""
from __future__ import annotations

from typing import Any, Callable

import torch

from .core import Rule, TensorMeta

__all__ = ["refusing"]


def _is_bool(d: torch.dtype) -> bool:
    return d is torch.bool


def _is_whole(d: torch.dtype) -> bool:
    return not (d.is_floating_point or d.is_complex)


def _is_float(d: torch.dtype) -> bool:
    return not _is_whole(d)


# operator -> whether it is refused for tensors all of such a dtype
_REFUSED: dict[str, Callable[[torch.dtype], bool]] = {
    **dict.fromkeys(("abs", "ceil", "floor", "trunc", "round", "relu", "mv", "dot", "vdot", "addmv", "trace", "argmax", "argmin"), _is_bool),
    **dict.fromkeys(("addcdiv", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "log_sigmoid_forward", "softshrink", "hardshrink",
                     "binary_cross_entropy", "soft_margin_loss", "native_layer_norm", "native_group_norm", "linalg_vector_norm"), _is_whole),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), _is_float),
}


def refusing(name: str, rule: Rule) -> Rule:
    """The rule of the operator of that name, raising for dtypes that its kernel has no code for."""
    refused = _REFUSED.get(name)
    if refused is None:
        return rule

    def checked(*args: Any, **kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, TensorMeta)]
        if tensors and tensors[0].device.type == "cpu" and all(refused(t.dtype) for t in tensors):
            raise RuntimeError(f"{name} is not implemented for {tensors[0].dtype}")
        return rule(*args, **kwargs)
    return checked
