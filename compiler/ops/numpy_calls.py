"""numpy's functions on tensors, as the targets of graph nodes: what torch._numpy, torch's own translation of numpy,
makes of them.

`numpy_call("linalg.norm")` is a function of tensors that gives tensors. On TraceTensors it is traced through like any
function of torch.
Names: "sum" a function of numpy, "linalg.norm" one of a part of it, "array.sum" a method of an array. The name of a
function that changes its first argument ends in "_".
"""

from __future__ import annotations

import functools
import sys
import types
from typing import Any, Callable

import torch

__all__ = ["numpy_call"]

_IN_PLACE = frozenset(
    """__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
    __ilshift__ __irshift__""".split()
)


@functools.cache
def numpy_call(name: str) -> Callable:
    """The function of this name over tensors. AttributeError where torch has no translation."""
    import torch._numpy as tnp

    home, _, last = name.rpartition(".")
    owner: Any = tnp.ndarray if home == "array" else functools.reduce(getattr, home.split(".") if home else [], tnp)
    fn = getattr(owner, last)
    array = tnp.ndarray

    def call(*args: Any, **kwargs: Any) -> Any:
        return _tensors(array, fn(*_arrays(array, args), **_arrays(array, kwargs)))

    call.__name__ = call.__qualname__ = (
        "numpy_" + name.replace(".", "_").replace("__", "") + ("_" if last in _IN_PLACE else "")
    )
    call.__module__ = __name__
    setattr(sys.modules[__name__], call.__name__, call)  # where a printed graph finds it
    return call


def _arrays(array: type, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return array(value)
    if type(value) in (list, tuple):
        return type(value)([_arrays(array, item) for item in value])
    if type(value) is dict or isinstance(value, types.MappingProxyType):
        return {key: _arrays(array, item) for key, item in value.items()}
    return slice(*(_arrays(array, v) for v in (value.start, value.stop, value.step))) if type(value) is slice else value


def _tensors(array: type, value: Any) -> Any:
    if isinstance(value, array):
        return value.tensor  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return (
            tuple([_tensors(array, item) for item in value])
            if isinstance(value, tuple)
            else [_tensors(array, item) for item in value]
        )
    return value
