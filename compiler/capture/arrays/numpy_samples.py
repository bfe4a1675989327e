"""torch's translation of a function of numpy's, tried beside numpy itself on sample values before it is relied on.

What numpy gives for arguments of the same shapes, layouts and dtypes also says what a traced result is: a number or an
array, a view or memory of its own, a list or a tuple.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ...symbolic.env import ShapeEnv
from .array_value import Array, array_dtype

__all__ = ["Sample", "try_beside"]

_SMALL = 1 << 12  # elements up to which values are compared


class Sample(NamedTuple):
    """What numpy gave. For lists and tuples `kind` is the class and `parts` the elements."""

    number: bool = False
    shares: bool = False  # memory with an argument
    contiguous: bool = True
    writeable: bool = True
    kind: type = tuple
    parts: tuple = ()


def try_beside(env: ShapeEnv, fn: Any, call: Any, args: list, kwargs: dict, given: list, named: dict) -> Sample | None:
    """`fn` is numpy's, `call` its translation. `args` and `kwargs` hold Arrays, `given` and `named` are the same for
    the translation. None where they differ, or where numpy refuses the arguments."""
    import numpy

    for fill in ("random", "ones"):
        made: dict[int, Any] = {}
        ours = (
            [_sample(env, arg, made, fill) for arg in args],
            {name: _sample(env, value, made, fill) for name, value in kwargs.items()},
        )
        arrays = list(made.values())
        theirs = {
            key: (
                torch.from_numpy(numpy.array(value)).as_strided(
                    value.shape, [stride // value.itemsize for stride in value.strides]
                )
                if value.flags.c_contiguous
                else torch.from_numpy(value.copy(order="K"))
            )
            for key, value in made.items()
        }
        translated = (
            [_with(env, arg, g, theirs) for arg, g in zip(args, given)],
            {name: _with(env, value, named[name], theirs) for name, value in kwargs.items()},
        )
        try:
            with numpy.errstate(all="ignore"):
                expected = fn(*ours[0], **ours[1])
        except Exception:  # such values are not what the function is for
            continue
        try:
            found = call(*translated[0], **translated[1])
        except Exception:
            return None
        if not _same(expected, found) or not all(map(_same, arrays, theirs.values())):
            return None
        return _read(expected, arrays)
    return None


def _sample(env: ShapeEnv, value: Any, made: dict[int, Any], fill: str) -> Any:
    import numpy

    cls = type(value)
    if cls is Array:
        if id(value) not in made:
            made[id(value)] = _elements(env, value, fill)
        return made[id(value)][()] if value._number else made[id(value)]
    if cls in (list, tuple):
        return cls(_sample(env, item, made, fill) for item in value)
    if cls is slice:
        return slice(*(_sample(env, v, made, fill) for v in (value.start, value.stop, value.step)))
    return (
        _hint(env, value)
        if cls is torch.SymInt
        else float(value)
        if cls is torch.SymFloat
        else value
        if cls is not numpy.ndarray
        else value.copy()
    )


def _hint(env: ShapeEnv, value: Any) -> int:
    """A size as it is now; nothing is relied on."""
    return int(env.hint(env.to_expr(value))) if isinstance(value, torch.SymInt) else int(value)


def _elements(env: ShapeEnv, value: Array, fill: str) -> Any:
    """An array of the same shape, order of axes and dtype."""
    import numpy

    tensor, dtype = value._tensor, array_dtype(value)
    shape = [_hint(env, size) for size in tensor.shape]
    if fill == "ones":
        flat = numpy.ones(shape, dtype)
    else:
        draw = numpy.random.RandomState(len(shape))
        flat = draw.randn(*shape) * 2 if dtype.kind in "fc" else draw.rand(*shape) * (2 if dtype.kind == "b" else 5)
        flat = numpy.asarray(flat + 1j * draw.randn(*shape) if dtype.kind == "c" else flat).astype(dtype)
    order = sorted(range(len(shape)), key=lambda d: -_hint(env, tensor.stride()[d]))
    return (
        numpy.ascontiguousarray(flat.transpose(order)).transpose(numpy.argsort(order))
        if order != list(range(len(shape)))
        else flat
    )


def _with(env: ShapeEnv, value: Any, given: Any, theirs: dict[int, torch.Tensor]) -> Any:
    if type(value) is Array:
        return theirs[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_with(env, item, g, theirs) for item, g in zip(value, given))
    if type(value) is slice:
        return slice(*(_with(env, getattr(value, n), getattr(given, n), theirs) for n in ("start", "stop", "step")))
    if isinstance(given, torch.Tensor):  # a number of numpy's
        import numpy

        return torch.from_numpy(numpy.array(value))
    return (
        _hint(env, given)
        if isinstance(given, torch.SymInt)
        else float(given)
        if isinstance(given, torch.SymFloat)
        else given
    )


def _same(expected: Any, found: Any) -> bool:
    import numpy

    if isinstance(expected, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(expected) == len(found) and all(map(_same, expected, found))
    if isinstance(expected, (numpy.ndarray, numpy.generic)):
        if not isinstance(found, torch.Tensor):
            return False
        wanted, got = numpy.asarray(expected), found.resolve_conj().resolve_neg().numpy()
        if wanted.dtype != got.dtype or wanted.shape != got.shape:
            return False
        loose = 1e-3 if wanted.dtype.itemsize <= 4 or wanted.dtype.kind == "c" and wanted.dtype.itemsize <= 8 else 1e-7
        return wanted.size > _SMALL or bool(numpy.allclose(wanted, got, equal_nan=True, rtol=loose, atol=loose))
    return type(expected) is type(found) and expected == found


def _read(value: Any, arrays: list) -> Sample:
    import numpy

    if isinstance(value, numpy.ndarray):
        shares = any(numpy.shares_memory(value, array) for array in arrays)
        return Sample(False, shares, value.flags.c_contiguous, value.flags.writeable)
    if isinstance(value, (list, tuple)):
        return Sample(
            kind=tuple if isinstance(value, tuple) else list, parts=tuple([_read(item, arrays) for item in value])
        )
    return Sample(number=True)
