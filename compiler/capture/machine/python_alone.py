"""Calls that have no tensor work: they draw numpy's numbers, count, read a file, make a plan of whole numbers.

Where the graph breaks within one, nothing is gained by compiling its parts: the break lies at the call, which runs as
plain Python. A loop in it would be an entry, with guards, in each of its turns.

Names tell: what the code of the call and of what it calls mentions, and what it is given. What names do not tell (what
getattr gives, what a container holds) counts as no tensor. So a call that is taken for plain Python may do some tensor
work eagerly; the result is the same.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from typing import Any, Iterable

import torch

from ..kinds.inline_policy import is_trusted_module
from .stack_values import ATOMS, MISSING, is_numpy_scalar

__all__ = ["is_python_alone"]

_PLAIN = (*ATOMS, torch.SymInt, torch.SymFloat, torch.SymBool)
_LOOK, _DEPTH = 16, 4  # elements of a container that are looked at, and containers in containers
_MOST = 32  # functions that are looked at
_CONTAINERS = (list, tuple, set, dict)
_NO_TENSORS = ("torch.random", "torch.cuda", "torch.cuda.random")  # functions of theirs seed, count and choose devices


def is_python_alone(function: types.FunctionType, arguments: Iterable[Any]) -> bool:
    """Whether a call of `function` reaches no tensor."""
    objects: list[Any] = []
    arguments = (x for a in arguments for x in (_contents(a) if type(a) is types.CellType else (a,)))
    return all(_is_plain(a, objects) for a in arguments) and not _reaches(function, objects, set())


def _is_plain(value: Any, objects: list[Any], depth: int = 0) -> bool:
    """Whether a value is a number, a text, or a container of some; a module is put into `objects`."""
    cls = type(value)
    if cls in _PLAIN or is_numpy_scalar(value):
        return True
    if cls in _CONTAINERS:
        items = value.values() if cls is dict else value
        return depth < _DEPTH and all(_is_plain(x, objects, depth + 1) for _, x in zip(range(_LOOK), items))
    if torch.nn.Module not in cls.__mro__:  # isinstance would ask the object, which may be the program's own code
        return False
    objects.append(value)
    return True


def _reaches(function: types.FunctionType, objects: list[Any], seen: set[types.CodeType]) -> bool:
    """Whether the code of a function, or of what it calls, mentions anything of torch's, or of an object that holds
    some."""
    code = function.__code__
    if code in seen:
        return False
    seen.add(code)
    if len(seen) > _MOST:
        return True
    names, attributes = _mentioned(code)
    found = [function.__globals__[name] for name in names if name in function.__globals__]
    for cell in function.__closure__ or ():
        found += _contents(cell)
    for module in found:  # those of torch that are found in it, too
        if isinstance(module, types.ModuleType) and _of_torch(module):
            found += (vars(module)[name] for name in attributes & vars(module).keys())
            attributes -= vars(module).keys()
    for owner in objects:
        found += (x for name in attributes if (x := _attribute(owner, name)) is not MISSING)
    return any(_is_work(x, objects, seen) for x in found)


@functools.lru_cache(maxsize=1024)
def _mentioned(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals and the attributes that code names, with those of the functions in it."""
    names, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER")):
            attributes.add(instruction.argval)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            more = _mentioned(inner)
            names |= more[0]
            attributes |= more[1]
    return frozenset(names), frozenset(attributes)


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _attribute(module: torch.nn.Module, name: str) -> Any:
    """What a module has under a name, without running any code."""
    held = object.__getattribute__(module, "__dict__")
    for table in (held, *(held.get(t, {}) for t in ("_parameters", "_buffers", "_modules"))):
        if name in table:
            return table[name]
    return inspect.getattr_static(type(module), name, MISSING)


def _is_work(value: Any, objects: list[Any], seen: set[types.CodeType]) -> bool:
    """Whether something that code mentions may be tensor work, or lead to some."""
    if type(value) in (staticmethod, classmethod, types.MethodType):
        value = value.__func__
    if type(value) is property:
        value = value.fget
    cls = type(value)
    if cls is types.FunctionType:
        return not _is_known(value) and (_of_torch(value) or _reaches(value, objects, seen))
    if cls is types.ModuleType:
        return not (_is_known(value) or _of_torch(value))
    if issubclass(cls, type) or cls is types.BuiltinFunctionType:
        return not _is_known(value)
    modules: list[Any] = []
    if _is_plain(value, modules):
        return bool(modules)
    return cls in _CONTAINERS or not _is_known(cls)


def _module_of(value: Any) -> str:
    return value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None) or ""


def _of_torch(value: Any) -> bool:
    return _module_of(value).partition(".")[0] == "torch"


def _is_known(value: Any) -> bool:
    """Whether a module, a function or a class is the standard library's or numpy's, or one of torch's without
    tensors."""
    name = _module_of(value)
    if _of_torch(value):
        return name in _NO_TENSORS
    return name.partition(".")[0] == "numpy" or is_trusted_module(name)
