"""A library's own autograd.Functions on wrappers (those behind `DTensor.from_local`, `to_local` and `redistribute`).

Their forward and backward take wrappers apart and make others, by classes and tables that no graph has. So they are not
captured: while a graph is traced both run as they are, on the instances of the classes, and what they do with the
tensors inside is traced.
"""

from __future__ import annotations

from typing import Any

import torch

from ..tensor import TraceTensor
from .class_operators import inside, outer_tensor
from .crossings import Call
from .wrapping import is_wrapper

__all__ = ["LibraryFunction"]


def _instance(value: Any) -> Any:
    """The instance of a wrapper's class that a traced tensor stands for."""
    return value.tt_wrapper if type(value) is TraceTensor and value.tt_wrapper is not None else value


class _Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, *args: Any) -> Any:
        ctx.function = function
        with inside():
            return _checked(outer_tensor(function.forward(ctx, *map(_instance, args)), {}))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple:
        with inside():
            given = ctx.function.backward(ctx, *map(_instance, gradients))
            return None, *(outer_tensor(g, {}) for g in given)


def _checked(result: Any) -> TraceTensor:
    if type(result) is not TraceTensor:
        raise NotImplementedError(f"a library's function makes a {type(result).__name__}, which is not traced")
    return result


class LibraryFunction(Call):
    """`function.apply` of tensors. `args`: all of its arguments, with None in the places `at` of tensors."""

    whole = True

    def __init__(self, function: Any, args: tuple, at: tuple[int, ...]):
        super().__init__(f"{function.__name__.strip('_')}_apply")
        self.function, self.args, self.at = function, args, at

    def __call__(self, *tensors: torch.Tensor) -> Any:
        args = list(self.args)
        for i, tensor in zip(self.at, tensors, strict=True):
            args[i] = tensor
        if not any(type(tensor) is TraceTensor for tensor in tensors):
            return self.function.apply(*args)
        made = _Inside.apply(self.function, *args)
        if is_wrapper(_instance(made)) and made.requires_grad:
            made.tt_differentiable = True
        return made
