"""Reaching and comparing values without running user code: the meaning of a Source's steps, in Python.

The C evaluator (`compiler/native/values.c`) does the same, step by step; the tests run on both. A step raises
`Unreachable` where it cannot be taken (the attribute is missing, the list too short), or would run code of the user's
(a property, `__getattr__`, an overridden `__getitem__`). The guard that needed it fails then.
"""

from __future__ import annotations

import enum
import functools
import math
import operator
import threading
import types
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any, Callable, Sequence

import torch

from ..base.labels import cell_name
from ..native import native
from .weak import Weak, present

__all__ = [
    "Unreachable",
    "Absent",
    "load_attr",
    "load_item",
    "length",
    "const_equal",
    "quick_equal",
    "instance_dict",
    "dict_keys",
    "dict_has",
    "float_holds",
    "COMPARISONS",
    "same_code",
    "file_of",
    "class_lookup",
    "class_holds",
    "found_in_class",
    "same_found",
    "step",
]


_PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    types.MemberDescriptorType: ("__objclass__", "__name__"),
    types.GetSetDescriptorType: ("__objclass__", "__name__"),
}


class Unreachable(Exception):
    """A source's step has no value, or none that can be had without running user code."""


class Absent(Unreachable):
    """The attribute does not exist, for certain."""


_MISSING = object()
# Types whose attribute access is object's, under a name of their own in some cases; a subclass that overrides it in
# Python has another function there.
_PLAIN_TYPES = (
    BaseException,
    object,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    tuple,
    list,
    dict,
    set,
    frozenset,
    slice,
    range,
    OrderedDict,
    types.ModuleType,
    types.MethodType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.CellType,
    torch.dtype,
    torch.device,
    torch.Size,
    torch.Tensor,
)
_GETATTRIBUTES = tuple(
    {
        vars(base)["__getattribute__"]
        for t in (*_PLAIN_TYPES, functools.partial, defaultdict, deque)
        for base in t.__mro__
        if "__getattribute__" in vars(base)
    }
)
TUPLE_GETTER: type = type(vars(namedtuple("_Probe", "field"))["field"])
_DATA_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, TUPLE_GETTER)
_METHODS = (
    types.FunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    classmethod,
    types.ClassMethodDescriptorType,
)
_module_getattr = torch.nn.Module.__getattr__
_mro_of = type.__dict__["__mro__"].__get__
_dict_of_type = type.__dict__["__dict__"].__get__
_IDENTITY_TYPES = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    torch.dtype,
    torch.layout,
    torch.memory_format,
    type(None),
    bool,
    type(Ellipsis),
    type(NotImplemented),
)


def _type_lookup(tp: type, name: str) -> Any:
    for base in _mro_of(tp):
        found = _dict_of_type(base).get(name, _MISSING)
        if found is not _MISSING:
            return found
    return _MISSING


def instance_dict(obj: Any) -> dict | None:
    """The dict that instance attributes live in, or None."""
    is_module = isinstance(obj, types.ModuleType)
    descr = vars(types.ModuleType)["__dict__"] if is_module else _type_lookup(type(obj), "__dict__")
    if type(descr) not in _DATA_DESCRIPTORS:
        return None
    d = descr.__get__(obj)
    return d if isinstance(d, dict) else None


def _dict_get(d: dict, key: Any) -> Any:
    """d[key] by the plain dict lookup. Keys of types that may have a Python __eq__ are found by identity."""
    if plain_key(key):
        return dict.get(d, key, _MISSING)
    for k, value in dict.items(d):
        if k is key:
            return value
    return _MISSING


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")  # as C numbers them


def float_holds(value: Any, facts: tuple) -> bool:
    """Whether a FLOAT guard's comparisons come out as they did."""
    return type(value) is float and all(getattr(operator, op)(value, c) is outcome for op, c, outcome in facts)


def dict_has(d: dict, key: Any) -> bool:
    """`key in d` by the plain dict lookup."""
    return _dict_get(d, key) is not _MISSING


def plain_key(key: Any) -> bool:
    """Whether a dict looks for such a key without code of the program's, and finds it by a `Weak` that stands for
    it.
    """
    key = present(key)
    cls = type(key)
    if (
        cls in (str, int, bool, bytes, float, complex, type(None), torch.device, types.FunctionType)
        or cls.__hash__ is object.__hash__
        and cls.__eq__ is object.__eq__
    ):
        return True
    return cls is tuple and all(plain_key(k) for k in key)


def load_attr(obj: Any, name: str) -> Any:
    """getattr(obj, name) as far as it runs no user code: instance dicts, class attributes, slots, C getters, methods,
    and the parameters, buffers and submodules of an nn.Module. Raises Unreachable otherwise."""
    if name == "__class__":
        return type(obj)
    if name == "__dict__":
        return _attributes_of(obj)
    if isinstance(obj, type):
        return _load_class_attr(obj, name)
    tp = type(obj)
    if tp is threading.local:
        return _load_of_thread(obj, name)
    if _type_lookup(tp, "__getattribute__") not in _GETATTRIBUTES:
        raise Unreachable(name)
    # from here on in object's own order: a data descriptor, the instance's dict, the class, then __getattr__
    descr = _type_lookup(tp, name)
    if type(descr) in _DATA_DESCRIPTORS:
        return _load_by_getter(descr, obj, name)
    if descr is not _MISSING and hasattr(type(descr), "__set__"):
        raise Unreachable(name)  # a property, or another descriptor written in Python
    d = instance_dict(obj)
    if d is not None and (found := _dict_get(d, name)) is not _MISSING:
        return found
    if descr is not _MISSING:
        return _bind(descr, obj, tp, name)
    return _load_by_getattr(obj, d, name)


def _attributes_of(obj: Any) -> dict:
    """The dict of an instance or a module; a class has none that could be reached."""
    d = None if isinstance(obj, type) else instance_dict(obj)
    if d is None:
        raise Unreachable("__dict__")
    return d


def _load_of_thread(obj: threading.local, name: str) -> Any:
    """An attribute of this thread's."""
    found = getattr(obj, name, _MISSING)
    if found is _MISSING:
        raise Absent(name)
    return found


def _load_by_getter(descr: Any, obj: Any, name: str) -> Any:
    """An attribute that a data descriptor written in C gives."""
    tp = type(obj)
    if isinstance(obj, torch.Tensor) and tp not in (torch.Tensor, torch.nn.Parameter):
        raise Unreachable(name)  # its getters call the subclass' __torch_function__
    try:
        return descr.__get__(obj, tp)
    except Exception as error:
        raise Absent(name) from error


def _load_by_getattr(obj: Any, d: dict | None, name: str) -> Any:
    """What neither the instance nor its class has: nn.Module's __getattr__ looks into three tables of the instance's
    dict `d`; another one is user code."""
    custom = _type_lookup(type(obj), "__getattr__")
    if d is not None and custom is _module_getattr:
        for table in ("_parameters", "_buffers", "_modules"):
            t = dict.get(d, table)
            if isinstance(t, dict) and (found := _dict_get(t, name)) is not _MISSING:
                return found
        raise Absent(name)
    # a method asks its function, a module its own __getattr__
    asks_another = isinstance(obj, types.MethodType) or (
        isinstance(obj, types.ModuleType) and d is not None and "__getattr__" in d
    )
    raise (Absent if custom is _MISSING and not asks_another else Unreachable)(name)


def _bind(descr: Any, obj: Any, tp: type, name: str) -> Any:
    if type(descr) is staticmethod:
        return descr.__func__
    if type(descr) in _METHODS:
        return descr.__get__(obj, tp)
    if not hasattr(type(descr), "__get__") or isinstance(descr, (type, types.BuiltinFunctionType)):
        return descr
    raise Unreachable(name)


def _load_class_attr(cls: type, name: str) -> Any:
    if _type_lookup(type(cls), "__getattribute__") is not type.__getattribute__:
        raise Unreachable(name)
    meta = _type_lookup(type(cls), name)
    if type(meta) in _DATA_DESCRIPTORS:
        try:
            return meta.__get__(cls, type(cls))
        except AttributeError as error:
            raise Absent(name) from error
    if meta is not _MISSING and hasattr(type(meta), "__set__"):
        raise Unreachable(name)
    descr = _type_lookup(cls, name)
    if descr is _MISSING:
        if meta is _MISSING:
            raise (Absent if _type_lookup(type(cls), "__getattr__") is _MISSING else Unreachable)(name)
        return _bind(meta, cls, type(cls), name)
    if type(descr) is staticmethod:
        return descr.__func__
    if type(descr) in (classmethod, types.ClassMethodDescriptorType):
        return descr.__get__(None, cls)
    if (
        type(descr) in _METHODS
        or type(descr) in _DATA_DESCRIPTORS
        or type(descr) is property
        or not hasattr(type(descr), "__get__")
        or isinstance(descr, (type, types.BuiltinFunctionType))
    ):
        return descr
    raise Unreachable(name)


def load_item(obj: Any, key: Any) -> Any:
    """An item of a list, tuple, deque or dict: the content itself, past what a subclass overrides."""
    for base in (list, tuple, deque):
        if isinstance(obj, base):
            if type(key) is not int:
                raise Unreachable(key)
            n = base.__len__(obj)
            if not -n <= key < n:
                raise Unreachable(key)
            return base.__getitem__(obj, key)
    if isinstance(obj, dict):
        found = _dict_get(obj, key)
        if found is _MISSING:  # a __missing__ would be user code
            raise Unreachable(key)
        return found
    raise Unreachable(key)


def length(obj: Any) -> int:
    """len() of a builtin container or string, as the builtin base class counts."""
    for base in (list, tuple, dict, str, bytes, set, frozenset, range, deque):
        if isinstance(obj, base):
            return base.__len__(obj)
    raise Unreachable("len")


def dict_keys(obj: Any) -> tuple:
    """The keys of a dict in order, or the elements of a set as it iterates."""
    for base in (OrderedDict, dict, set, frozenset):
        if isinstance(obj, base):
            return tuple(base.__iter__(obj))
    raise Unreachable("keys")


def key_equal(a: Any, b: Any) -> bool:
    return a is b or const_equal(a, b)


def const_equal(a: Any, b: Any) -> bool:
    """Same type and equal, for constants, and lists and dicts of them: NaN equals NaN, 0.0 differs from -0.0, 1 from
    True. Objects of other types are equal only to themselves; no __eq__ of the user's is called."""
    if a is b:
        return True
    cls = type(a)
    if type(b) is Weak:
        return b() is a
    if cls is not type(b):
        return False
    if cls is int or cls is str or cls is bytes:
        return a == b
    if cls is float:
        return _float_equal(a, b)
    if cls is complex:
        return _float_equal(a.real, b.real) and _float_equal(a.imag, b.imag)
    if cls is tuple or cls is list or cls is torch.Size:
        return len(a) == len(b) and all(const_equal(x, y) for x, y in zip(a, b))
    if cls is dict:  # in the same order
        return len(a) == len(b) and all(const_equal(x, y) for x, y in zip(a.items(), b.items()))
    if cls is frozenset:
        return len(a) == len(b) and all(any(const_equal(x, y) for y in b) for x in a)
    if cls is slice or cls is range:
        return const_equal(a.start, b.start) and const_equal(a.stop, b.stop) and const_equal(a.step, b.step)
    if cls is torch.device:
        return a == b
    return False


quick_equal = const_equal if native is None else native.const_equal  # the same; C's knows torch's types from guards


def _float_equal(a: float, b: float) -> bool:
    return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)


def same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """Whether two code objects are one and the same piece of source: equal, lines included, and of the same file or
    cell.
    """
    return a is b or (a == b and file_of(a) == file_of(b))


def file_of(code: types.CodeType) -> str:
    """The file, or the cell, that the code comes from: one cell has one name however often it runs."""
    return cell_name(code.co_filename)


def class_lookup(cls: type, name: str) -> Any:
    """What `name` gives in the class and its bases, without binding it; Ellipsis where there is no such attribute."""
    found = _type_lookup(cls, name)
    return ... if found is _MISSING else found


def class_holds(cls: Any, expected: tuple) -> bool:
    """Whether the names of a CLASS guard still give what they gave."""
    if not isinstance(cls, type):
        return False
    return all(same_found(class_lookup(cls, name), wanted) for name, wanted in expected)


def found_in_class(found: Any) -> Any:
    """What a CLASS guard holds of a descriptor: those that take no weak reference are known by what they are made
    of.
    """
    parts = _PARTS.get(type(found))
    if parts is None:
        return Weak(found) if type(found).__weakrefoffset__ else found
    return (type(found), *(getattr(found, part) for part in parts))


def same_found(found: Any, wanted: Any) -> bool:
    """Whether a class lookup gave what it gave when `found_in_class` was asked, and what `weakly` made of that."""
    if type(wanted) is tuple:
        parts = (type(found), *(getattr(found, p) for p in _PARTS[type(found)])) if type(found) in _PARTS else ()
        return len(parts) == len(wanted) and all(part is present(b) for part, b in zip(parts, wanted))
    return found is wanted or type(wanted) is Weak and found is wanted() and found is not None


def is_constant(value: Any) -> bool:
    """Whether EQUALS can hold this value: const_equal decides it without user code."""
    cls = type(value)
    if cls in (int, float, complex, str, bytes, torch.device, Weak) or isinstance(value, (*_IDENTITY_TYPES, enum.Enum)):
        return True
    if cls is tuple or cls is torch.Size or cls is frozenset:
        return all(is_constant(item) for item in value)
    if cls is slice or cls is range:
        return all(is_constant(v) for v in (value.start, value.stop, value.step))
    return False


def _optimizer_state(fields: Any, group: int, index: int) -> Any:
    """What an optimizer, whose __dict__ is given, has as the state of a parameter."""
    if isinstance(fields, dict):
        groups, state = dict.get(fields, "param_groups"), dict.get(fields, "state")
        params = (
            dict.get(groups[group], "params")
            if type(groups) is list and group < len(groups) and isinstance(groups[group], dict)
            else None
        )
        if (
            type(params) is list
            and index < len(params)
            and isinstance(params[index], torch.Tensor)
            and isinstance(state, dict)
        ):
            found = dict.get(state, params[index], _MISSING)
            if found is not _MISSING:
                return found
    raise Unreachable("state")


def _answer(ask: Any, obj: Any) -> Any:
    """What a function says of an object, which may be another kind of object by now."""
    try:
        return ask(obj)
    except Exception as error:
        raise Unreachable(getattr(ask, "__name__", "asked")) from error


def _method(base: Any, key: Any) -> Any:
    return load_attr(load_attr(base, key), "__func__")


def _dict_value(base: Any, key: Any) -> Any:
    if not isinstance(base, dict):
        raise Unreachable(key)
    found = _dict_get(base, key)
    if found is _MISSING:
        raise Unreachable(key)
    return found


def _cell_contents(base: Any, key: Any) -> Any:
    if type(base) is not types.CellType:
        raise Unreachable("cell_contents")
    try:
        return base.cell_contents
    except ValueError as error:
        raise Unreachable("cell_contents") from error


def _default(base: Any, key: int) -> Any:
    defaults = base.__defaults__ if type(base) is types.FunctionType else None
    if defaults is None or not 0 <= key < len(defaults):
        raise Unreachable("__defaults__")
    return defaults[key]


def _keyword_default(base: Any, key: Any) -> Any:
    defaults = base.__kwdefaults__ if type(base) is types.FunctionType else None
    if not defaults or key not in defaults:
        raise Unreachable("__kwdefaults__")
    return defaults[key]


def _layout(kind: str, read: Callable[[torch.Tensor], Sequence[int]]) -> Callable[[Any, int], int]:
    """A number of a tensor's layout, by its dimension."""

    def number(base: Any, dim: int) -> int:
        if not isinstance(base, torch.Tensor):
            raise Unreachable(kind)
        with torch._C.DisableTorchFunctionSubclass():
            values = read(base)
            if not -len(values) <= dim < len(values):
                raise Unreachable(kind)
            return values[dim]

    return number


def _offset(base: Any, key: Any) -> int:
    if not isinstance(base, torch.Tensor):
        raise Unreachable("offset")
    with torch._C.DisableTorchFunctionSubclass():
        return base.storage_offset()


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attr": load_attr,
    "method": _method,
    "item": load_item,
    "dict": _dict_value,
    "asked": lambda base, key: _answer(key, base),
    "optimized": lambda base, key: _optimizer_state(base, *key),
    "type": lambda base, key: type(base),
    "cell": _cell_contents,
    "default": _default,
    "kwdefault": _keyword_default,
    "size": _layout("size", lambda tensor: tensor.shape),
    "stride": _layout("stride", lambda tensor: tensor.stride()),
    "offset": _offset,
}


def step(kind: str, base: Any, key: Any) -> Any:
    """One step of a Source (source.py has the table) from the value of its base. Raises Unreachable."""
    take = _STEPS.get(kind)
    if take is None:
        raise Unreachable(kind)
    return take(base, key)
