"""What the code of a wrapper class reads, beside its arguments, is relied on.

`__torch_dispatch__` runs as it is while a graph is made, and not when the entry runs. So what it names is guarded: the
functions of the program that it calls, the numbers and tables among their globals, and the methods of its class. What
lies deeper (attributes of objects, other modules) is taken to stay as it is, as is the code of installed packages.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ...guards import source as S
from ..entry.locations import is_library_file
from ..kinds.inline_policy import is_trusted_module
from ..kinds.lookups import class_attribute
from ..kinds.objects.class_attributes import defining_class
from ..machine.stack_values import ATOMS

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["rely_on_class"]

_PROTOCOL = ("__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__", "__new__", "__init__")
_LARGEST_TABLE = 256


def rely_on_class(machine: Machine, cls: type) -> None:
    """Rely on how a wrapper class makes its tensors, and on what it makes of operators."""
    _Reader(machine, cls).read()


class _Reader:
    def __init__(self, machine: Machine, cls: type):
        self.m, self.cls = machine, cls
        self.seen: set[int] = set()

    def read(self) -> None:
        for name in _PROTOCOL:
            self._method(name)

    def _method(self, name: str) -> None:
        """A name that code uses, if it is a method of the class: functions, and what is behind a decorator."""
        raw = class_attribute(self.cls, name)
        fn = raw.fget if isinstance(raw, property) else getattr(raw, "__func__", raw)
        if isinstance(fn, types.FunctionType):
            self.m.world.rely_on_bases(self.cls)
            if not isinstance(raw, property):
                self.m.getattr(self.cls, name)
            self._function(fn)
        elif type(raw) in ATOMS and not is_trusted_module(defining_class(self.cls, name).__module__ or ""):
            self.m.getattr(self.cls, name)

    def _function(self, fn: types.FunctionType) -> None:
        code = fn.__code__
        if id(fn) in self.seen or is_trusted_module(fn.__module__ or "") or is_library_file(code.co_filename):
            return
        self.seen.add(id(fn))
        scope = self.m.scope_of(fn.__globals__)
        for name in dict.fromkeys(_names(code)):
            if name in scope.namespace:
                self._global(scope, name)
            if hasattr(self.cls, name):
                self._method(name)
        for cell in fn.__closure__ or ():
            try:
                inner = cell.cell_contents
            except ValueError:  # nothing yet
                continue
            if isinstance(inner, types.FunctionType):
                self._function(inner)

    def _global(self, scope: Any, name: str) -> None:
        value, world = scope.namespace[name], self.m.world
        if scope.trusted or isinstance(value, types.ModuleType):
            return
        if type(value) in ATOMS or isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            self.m.load_global(scope, name)
            source = world.source_of(value)
            if isinstance(value, types.FunctionType) and source is not None:
                if not is_trusted_module(value.__module__ or ""):
                    world.guard_function(source, value, "called by a tensor class")
                self._function(value)
        elif type(value) in (dict, list, tuple) and len(value) <= _LARGEST_TABLE:
            self._table(self.m.load_global(scope, name))
        elif isinstance(value, torch.Tensor):
            source = S.glob(name) if scope.root else S.dict_value(S.const(scope.namespace), name)
            world.guard(source, "WEAK_ID", value, "used by a tensor class")

    def _table(self, table: Any) -> None:
        """A table of functions, or of numbers: which operator is done by which function."""
        world = self.m.world
        source = world.source_of(table)
        if source is None:
            return
        if type(table) is dict:
            world.guard(source, "DICT_KEYS", tuple(table), "table of a tensor class")
            parts = [(S.dict_value(source, key), item) for key, item in table.items()]
        else:
            world.guard(source, "LEN", len(table), "table of a tensor class")
            parts = [(S.item(source, i), v) for i, v in enumerate(table)]
        for reached, value in parts:
            if type(value) in ATOMS:
                world.load(value, reached)
            elif isinstance(value, types.FunctionType):
                world.guard_function(reached, value, "called by a tensor class")
                self._function(value)


def _names(code: types.CodeType) -> Iterator[str]:
    """Names that code and the code inside of it use: globals, attributes."""
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _names(const)
