"""The standard library's native functions and classes during capture: interpreted from their Python form
(polyfills.py), or computed natively on values that are constants."""

from __future__ import annotations

import _bisect
import _collections
import _functools
import _heapq
import _operator
import _struct
import binascii
import cmath
import datetime
import decimal
import difflib
import itertools
import json
import operator
import os
import pprint
import re
import sys
import textwrap
import types
import typing
import unicodedata
import zlib
from typing import TYPE_CHECKING, Any, Callable

from . import polyfills
from ...guards.state import read_field
from ..kinds.builtin_calls import PURE
from ..kinds.callables import CLASSES, FUNCTIONS, PYTHON_FUNCTIONS
from ..kinds.parameters import interpret
from ..machine.signals import Break
from ..machine.stack_values import NATIVE_CONSTANTS, constant_only

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []


def _polyfilled(fn: Any) -> Callable:
    return lambda machine, *args, **kwargs: interpret(machine, fn, list(args), kwargs)


_IN_PYTHON: tuple[tuple[Any, dict[str, Any]], ...] = (
    (
        _heapq,
        {
            "heapify": polyfills.heapify,
            "heappush": polyfills.heappush,
            "heappop": polyfills.heappop,
            "heappushpop": polyfills.heappushpop,
            "heapreplace": polyfills.heapreplace,
            "_heapify_max": polyfills.heapify_max,
            "_heappop_max": polyfills.heappop_max,
            "_heapreplace_max": polyfills.heapreplace_max,
        },
    ),
    (
        _bisect,
        {
            "bisect_left": polyfills.bisect_left,
            "bisect_right": polyfills.bisect_right,
            "bisect": polyfills.bisect_right,
            "insort_left": polyfills.insort_left,
            "insort_right": polyfills.insort_right,
            "insort": polyfills.insort_right,
        },
    ),
    (_functools, {"cmp_to_key": polyfills.cmp_to_key}),
    (
        _operator,
        {
            "countOf": polyfills.count_of,
            "indexOf": polyfills.index_of,
            "concat": polyfills.concat,
            "iconcat": polyfills.iconcat,
            "call": polyfills.call,
            "abs": polyfills.absolute,
            "length_hint": polyfills.length_hint,
        },
    ),
    (_collections, {"_count_elements": polyfills.count_elements}),
    (itertools, {"tee": polyfills.tee}),
    (sys, {"exit": polyfills.leave}),
    (os, {"fspath": polyfills.fspath}),
)
for _module, _names in _IN_PYTHON:
    for _name, _fn in _names.items():
        if hasattr(_module, _name):
            FUNCTIONS[getattr(_module, _name)] = _polyfilled(_fn)
PYTHON_FUNCTIONS[("torch.masked._ops", "_combine_input_and_mask")] = _polyfilled(polyfills.combine_input_and_mask)
CLASSES[itertools.accumulate] = _polyfilled(polyfills.accumulate)
CLASSES[itertools.starmap] = _polyfilled(polyfills.starmap)


# --- native functions and classes of constants
PURE.update(
    (
        str.maketrans,
        bytes.maketrans,
        bytearray.maketrans,
        *(getattr(_struct, n) for n in ("pack", "unpack", "calcsize")),
        *(f for f in vars(cmath).values() if isinstance(f, types.BuiltinFunctionType)),
        binascii.crc32,
        binascii.hexlify,
        binascii.unhexlify,
        zlib.crc32,
        zlib.adler32,
        *(f for f in vars(unicodedata).values() if isinstance(f, types.BuiltinFunctionType)),
    )
)


def _constant_class(cls: type) -> Callable:
    def make(machine: Machine, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = (
            tuple(machine.deep_plain(arg) for arg in args),
            {name: machine.deep_plain(value) for name, value in kwargs.items()},
        )
        if not constant_only((*args, *kwargs.values())):
            raise Break("c_call", f"a {cls.__name__} is made from a value that is not constant")
        if cls is decimal.Decimal:
            machine.world.state("decimal", read_field("decimal"))  # what is computed with it depends on
        return machine.native(cls, *args, **kwargs)

    return make


for _cls in NATIVE_CONSTANTS:
    CLASSES[_cls] = _constant_class(_cls)


def _constant_function(fn: Callable) -> Callable:
    """Run `fn` natively on constants; interpret it on anything else."""

    def run(machine: Machine, *args: Any, **kwargs: Any) -> Any:
        plain = (
            tuple(machine.deep_plain(arg) for arg in args),
            {name: machine.deep_plain(value) for name, value in kwargs.items()},
        )
        if constant_only((*plain[0], *plain[1].values())):
            return machine.native(fn, *plain[0], **plain[1])
        return interpret(machine, fn, list(args), kwargs)

    return run


for _fn in (
    json.dumps,
    json.loads,
    textwrap.dedent,
    textwrap.indent,
    textwrap.fill,
    textwrap.wrap,
    pprint.pformat,
    difflib.ndiff,
    re.compile,
    re.match,
    re.search,
    re.fullmatch,
    re.split,
    re.findall,
    re.escape,
    re._compile,
    datetime.date.fromisoformat,
):  # type: ignore[attr-defined]  # _compile: its cache is everybody's
    if isinstance(_fn, types.FunctionType):
        PYTHON_FUNCTIONS[(_fn.__module__, _fn.__qualname__)] = _constant_function(_fn)


def _methodcaller(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return machine.native(operator.methodcaller, *args, **kwargs)


CLASSES[operator.methodcaller] = _methodcaller
for _cls in (typing.TypeVar, typing.ParamSpec):
    CLASSES[_cls] = _constant_class(_cls)
