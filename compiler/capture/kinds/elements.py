"""What builtin containers do with their elements in C: hash and compare keys, compare sequences element by element,
take indices, make text.

Where an element's class defines the method in Python, the interpreter must run it: native code would do its effects
while capture goes on, and read what no guard then watches.
"""

from __future__ import annotations

import collections
import functools
import types
from typing import TYPE_CHECKING, Any, Iterable

import torch

from ..machine.generators import InlineGenerator, natively
from .identity import TEXTS
from .inline_policy import is_trusted_module
from ..numbers.late_text import settled
from ..machine.signals import Break, Raised
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS
from .builtin_types import base_of, python_method
from .lookups import class_attribute
from ..machine.programs import program_of

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "settle_keys",
    "equal_sequences",
    "order_sequences",
    "equal_dicts",
    "compare_containers",
    "as_index",
    "as_number",
    "as_key",
    "hint_length",
    "items",
    "search",
    "with_own_text",
    "Spelled",
    "spelled",
]

_KEY_METHODS = ("__hash__", "__eq__")


def _own(value: Any, *names: str) -> bool:
    """Whether the class of `value` defines one of these methods in Python, in a module of the user's."""
    cls = type(value)
    if cls in ATOMS or cls is TraceTensor:
        return False
    return any(
        method is not None and not is_trusted_module(getattr(method, "__module__", None) or "")
        for method in (python_method(cls, name) for name in names)
    )


def asks_back(value: Any) -> bool:
    """Whether torch's functions, given this value for a number or a sequence, run Python code of its class to find out
    which.
    """
    return not isinstance(value, torch.Tensor) and _own(
        value, "__index__", "__float__", "__len__", "__getitem__", "__iter__"
    )


# --- keys
def settle_keys(machine: Machine, keys: Iterable, present: Iterable = ()) -> None:
    """Keys are about to be hashed, and compared with those that are `present`, by native code: interpret their methods
    first, so that what they read is guarded. Methods with side effects break."""
    special = [k for k in map(machine.world.identity, _flat(keys)) if _own(k, *_KEY_METHODS)]
    if not special:
        return
    for key in special:
        for name in _KEY_METHODS:
            if _own(key, name) and not _only_reads(type(key), name):
                raise Break(
                    "unsupported",
                    f"keys are hashed and compared by {type(key).__name__}.{name}, which may do more than read"
                    " attributes",
                    "let __hash__ and __eq__ only read attributes, or use plain keys",
                )
    before = len(machine.effects.entries), len(machine.graph.graph.nodes)
    others = [k for k in _flat(present) if type(k) not in ATOMS]
    for i, key in enumerate(special):
        if _own(key, "__hash__"):
            machine.call(machine.getattr(key, "__hash__"), [])
        for other in (*others, *special[:i]):
            if other is not key and machine.native(hash, other) == machine.native(hash, key):
                machine.truth(machine.compare("==", other, key))
    if (len(machine.effects.entries), len(machine.graph.graph.nodes)) != before:
        raise Break(
            "unsupported",
            f"hashing or comparing keys of class {type(special[0]).__name__} has side effects, or computes with"
            " tensors",
            "let __hash__ and __eq__ only read attributes",
        )


_PURE_CALLS = frozenset(
    """hash isinstance type tuple frozenset len str repr getattr sorted super NotImplemented id int __eq__ __hash__
    lower upper casefold items search keys values __class__""".split()
)
_WRITES = frozenset(
    """STORE_ATTR STORE_SUBSCR STORE_GLOBAL STORE_DEREF STORE_NAME DELETE_ATTR DELETE_SUBSCR DELETE_GLOBAL IMPORT_NAME
    YIELD_VALUE MAKE_FUNCTION LOAD_DEREF""".split()
)


def _only_reads(cls: type, name: str) -> bool:
    """Whether a method does nothing but read attributes, compare and hash: native code may run it, and the interpreter
    beforehand.
    """
    fn = python_method(cls, name)
    if not isinstance(fn, types.FunctionType):
        return False
    for _handler, ins in program_of(fn.__code__)[1]:
        if ins.op in _WRITES or ins.op == "LOAD_METHOD" and ins.arg not in _PURE_CALLS:
            return False
        if ins.op == "LOAD_GLOBAL" and ins.arg not in _PURE_CALLS and not isinstance(fn.__globals__.get(ins.arg), type):
            return False
    return True


def _flat(keys: Iterable) -> Iterable:
    for key in keys:
        if type(key) is tuple:
            yield from _flat(key)
        else:
            yield key


# --- sequences and dicts
def _interpreted(values: Iterable) -> bool:
    """Whether comparing these values needs the interpreter."""
    return any(
        type(value) not in ATOMS
        and (isinstance(value, (list, tuple, dict, TraceTensor)) or _own(value, "__eq__", "__lt__", "__gt__"))
        for value in values
    )


def _same(machine: Machine, a: Any, b: Any) -> bool:
    return a is b or machine.truth(machine.compare("==", a, b))


def equal_sequences(machine: Machine, a: Any, b: Any) -> bool | None:
    """`a == b` of two lists or two tuples, or None where native code can do it."""
    a, b = machine.plain(a), machine.plain(b)
    if not _interpreted(a) and not _interpreted(b):
        return None
    return len(a) == len(b) and all(_same(machine, x, y) for x, y in zip(a, b))


def order_sequences(machine: Machine, text: str, a: Any, b: Any) -> Any:
    """`a < b` and the like of two lists or two tuples, or None where native code can do it."""
    a, b = machine.plain(a), machine.plain(b)
    if not _interpreted(a) and not _interpreted(b):
        return None
    for x, y in zip(a, b):
        if not _same(machine, x, y):
            return machine.compare(text, x, y)
    return machine.compare(text, len(a), len(b))


def equal_dicts(machine: Machine, a: Any, b: Any) -> bool | None:
    """`a == b` of two dicts, or None where native code can do it."""
    a, b = machine.plain(a), machine.plain(b)
    if not _interpreted(a.values()) and not _interpreted(b.values()):
        return None
    return len(a) == len(b) and all(key in b and _same(machine, value, b[key]) for key, value in a.items())


# --- indices
def as_index(machine: Machine, value: Any) -> Any:
    """An index as an int, where its class says so by a method of its own."""
    if type(value) not in ATOMS and not isinstance(value, (int, torch.SymInt)) and _own(value, "__index__"):
        number = machine.call(machine.getattr(value, "__index__"), [])
        if not isinstance(number, int):
            raise Raised(TypeError(f"__index__ returned non-int (type {type(number).__name__})"))
        return number
    return value


def as_number(machine: Machine, value: Any) -> Any:
    """An argument of a native function of numbers, where its class says by methods of its own which number it is."""
    for name, convert in (("__float__", float), ("__index__", int)):
        if type(value) not in ATOMS and _own(value, name):
            return machine.call(machine.getattr(value, name), []) if convert is float else as_index(machine, value)
    return value


def hint_length(machine: Machine, value: Any) -> None:
    """list(value) and tuple(value) ask how long it is, for room."""
    if type(value) is InlineGenerator and value.measured is not None and not value.finished:
        machine.call(len, [value.measured])
    elif _own(value, "__len__", "__length_hint__"):
        name = "__len__" if _own(value, "__len__") else "__length_hint__"
        try:
            machine.call(machine.getattr(value, name), [])
        except Raised as raised:
            if not isinstance(raised.exc, TypeError):
                raise


def items(machine: Machine, value: Any) -> list:
    """What list(value) holds; the iterator is made first, then the length is asked for."""
    iterator = machine.iterate(value)
    hint_length(machine, value)
    return machine.native(list, iterator)


def as_key(machine: Machine, key: Any) -> Any:
    """The key of a sequence's item: an index or a slice."""
    if type(key) is slice:
        parts = [as_index(machine, v) for v in (key.start, key.stop, key.step)]
        return slice(*parts) if any(part is not v for part, v in zip(parts, (key.start, key.stop, key.step))) else key
    return as_index(machine, key)


def search(machine: Machine, owner: Any, name: str, args: list, missing: str = "") -> Any:
    """index, remove, count and `in` of an inside sequence: elements are compared one by one. `missing` is the error's
    text, if it is not that of the method."""
    wanted = args[0]
    where: Any = range(len(owner))
    if name == "index" and len(args) > 1:
        bounds = [as_index(machine, arg) for arg in args[1:]]
        where = range(*machine.native(slice(bounds[0], bounds[1] if len(bounds) > 1 else None).indices, len(owner)))
    found = 0
    for i in where:
        if i >= len(owner):
            break
        v = owner[i]
        if v is wanted or machine.truth(machine.compare("==", v, wanted)):
            if name == "remove":
                del owner[i]
                return None
            if name != "count":
                return True if name == "__contains__" else i
            found += 1
    if name in ("count", "__contains__"):
        return found if name == "count" else False
    if missing:
        raise Raised(ValueError(missing))
    base = next(b for b in (list, tuple, collections.deque) if isinstance(owner, b))
    return machine.native(getattr(base(), name), wanted)  # the error, in the words of an empty one


# --- text
class Spelled:
    """Stands for an object in `%` and str.format: what it is made into is interpreted."""

    __slots__ = ("machine", "value")

    def __init__(self, machine: Machine, value: Any):
        self.machine, self.value = machine, value

    def _run(self, function: Any, *args: Any) -> Any:
        return settled(natively(self.machine, self.machine.call, function, [self.value, *args]))

    def __str__(self) -> str:
        return self._run(str)

    def __repr__(self) -> str:
        return self._run(repr)

    def __format__(self, spec: str) -> str:
        return self._run(format, spec)

    def __int__(self) -> int:
        return self._run(int)

    def __float__(self) -> float:
        return self._run(float)

    def __index__(self) -> int:
        return as_index(self.machine, self.value)

    def __getattr__(self, name: str) -> Any:
        return spelled(self.machine, natively(self.machine, self.machine.getattr, self.value, name))

    def __getitem__(self, key: Any) -> Any:
        return spelled(self.machine, natively(self.machine, self.machine.get_item, self.value, key))


def with_own_text(machine: Machine, value: Any) -> Any:
    """A container as native repr() may take it: elements whose classes make their text in Python are interpreted."""
    cls = type(value)
    if cls in ATOMS:
        return value
    if cls in (list, tuple):
        parts = [with_own_text(machine, item) for item in value]
        return cls(parts) if any(part is not item for part, item in zip(parts, value)) else value
    if cls is dict:
        pairs = [(with_own_text(machine, key), with_own_text(machine, item)) for key, item in value.items()]
        return (
            dict(pairs)
            if any(p is not key or q is not item for (p, q), (key, item) in zip(pairs, value.items()))
            else value
        )
    if cls in (set, frozenset):
        if any(with_own_text(machine, item) is not item for item in value):
            raise Break("unsupported", "a set of objects that make their own text is made into text")
        return value
    if python_method(cls, "__repr__") is not None or cls in TEXTS:
        return Spelled(machine, value)
    base = base_of(value)
    within = (
        ()
        if base is None or cls is torch.Size
        else base.values(value)
        if issubclass(base, dict)
        else base.__iter__(value)
    )
    if any(with_own_text(machine, v) is not v for v in within):
        raise Break("unsupported", f"a {cls.__name__} of objects that make their own text is made into text")
    if isinstance(machine.world.pin(value), functools.partial) and machine.world.is_outside(value):
        raise Break("unknown_object", "the text of a functools.partial from outside is made")
    if class_attribute(cls, "__repr__") is object.__dict__["__repr__"]:
        return Spelled(machine, value)
    return value


def spelled(machine: Machine, value: Any) -> Any:
    """`value` as an argument of native formatting."""
    if (
        type(value) in ATOMS
        or isinstance(value, (str, int, float, complex, torch.SymInt))
        and not _own(value, "__str__", "__format__", "__repr__")
    ):
        return int(value) if isinstance(value, torch.SymInt) else value
    return Spelled(machine, value)


def compare_containers(machine: Machine, text: str, left: Any, right: Any) -> Any:
    """Builtin containers that hold objects which compare in their own way; None for others."""
    for base in (list, tuple):
        if isinstance(left, base) and isinstance(right, base):
            if text in ("==", "!="):
                same = equal_sequences(machine, left, right)
                return same if same is None else same == (text == "==")
            return order_sequences(machine, text, left, right)
    if text in ("==", "!=") and type(left) is dict and type(right) is dict:
        same = equal_dicts(machine, left, right)
        return same if same is None else same == (text == "==")
    return None
