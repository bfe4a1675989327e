"""What lies on the interpreted stack, told apart by type: constants, builtin containers, native functions, numbers that
are symbols.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import pathlib
import re
import sys
import types
import uuid
from typing import Any

import torch

from ..kinds.lookups import MISSING, Missing

__all__ = [
    "ATOMS",
    "SINGLETONS",
    "NULL",
    "Missing",
    "MISSING",
    "BOUND_NATIVE",
    "IMMUTABLE",
    "NATIVE_CONSTANTS",
    "native_owner",
    "has_owner",
    "constant_only",
    "is_numpy_scalar",
    "is_library_constant",
    "is_placement",
    "specialize",
]

NULL = Missing("NULL")

# Immutable values that a guard can compare: the stack holds them without provenance.
SINGLETONS = (type(None), bool, type(...), type(NotImplemented))
ATOMS = frozenset(
    (*SINGLETONS, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.layout, torch.memory_format)
)
# the last: methods that know their class
BOUND_NATIVE = (types.BuiltinFunctionType, types.MethodWrapperType, type(re.compile("").sub))
# Immutable classes of C. Capture makes them natively, from constants alone, and runs their methods natively. Methods of
# Python's classes (fractions.Fraction) are interpreted, so that a row of IMMUTABLE is enough for these.
NATIVE_CONSTANTS = (
    datetime.date,
    datetime.time,
    datetime.datetime,
    datetime.timedelta,
    datetime.timezone,
    decimal.Decimal,
)
# What a guard on the object itself fixes: the same object has the same value.
IMMUTABLE = (
    int,
    float,
    complex,
    str,
    bytes,
    *NATIVE_CONSTANTS,
    fractions.Fraction,
    datetime.tzinfo,
    pathlib.PurePath,
    uuid.UUID,
    re.Pattern,
)


def native_owner(fn: Any) -> Any:
    """The object that a native function is bound to; None for functions of a module (pybind11 binds those to a record
    of its own).
    """
    owner = getattr(fn, "__self__", None)
    return None if type(owner).__name__.startswith(("pybind11", "PyCapsule")) else owner


def has_owner(value: Any) -> bool:
    """Whether a native function is bound to an object, not to its module or class."""
    return not isinstance(native_owner(value), (types.ModuleType, type(None), type))


def constant_only(value: Any) -> bool:
    """Whether a value is immutable and known, or a builtin container of such values."""
    cls = type(value)
    if cls in ATOMS or isinstance(value, IMMUTABLE):
        return True
    if cls in (list, tuple, set, frozenset):
        return all(map(constant_only, value))
    return cls is dict and all(constant_only(key) and constant_only(item) for key, item in value.items())


def is_numpy_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def is_library_constant(value: Any) -> bool:
    """Values of libraries that never change: numpy's scalars, dtypes and limits of types; placements of DTensors."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.generic, numpy.dtype, numpy.finfo, numpy.iinfo)):
        return True
    return is_placement(type(value))


def is_placement(cls: type) -> bool:
    """Whether values of a class say how a DTensor is placed: Shard(0), Replicate(), Partial("sum")."""
    module = sys.modules.get("torch.distributed.tensor.placement_types")
    return module is not None and module.Placement in cls.__mro__ and cls.__module__ == module.__name__


def specialize(value: Any) -> Any:
    """A symbolic value as the plain number it is now, with a guard."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymBool):
        return bool(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    return value
