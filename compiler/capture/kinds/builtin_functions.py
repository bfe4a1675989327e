"""Python's builtin functions and classes, itertools and collections, on stack values."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import sys
import types
from typing import TYPE_CHECKING, Any, Callable

import torch

from . import containers
from ..library import polyfills
from ...graph.known_values import known
from ..numbers import tensor_reads, size_floats
from ..tensors import tensor_calls
from .choices import Fold
from .builtin_calls import made_by_native, pure
from .callables import CLASSES, KEEPS_TEXTS, cls, function
from .inline_policy import is_trusted_module
from ..arrays.array_value import Array
from .elements import as_index, as_number, hint_length, items, settle_keys
from .identity import address, address_hash
from ..numbers.late_text import hashed, settled
from .lookups import class_attribute
from ..numbers.tensor_reads import is_read
from .outside_iterators import is_native_iterator, outside_iterator
from ..machine.signals import Break, Plainly, Raised
from ..machine.generators import InlineGenerator
from ..tensors.subclass_calls import operate
from ..tensors.tensor_subclasses import Subclassed, SuperOf
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, MISSING, NULL, specialize
from .builtin_types import base_of, python_method
from .objects.texts import format_text, to_text
from .operators import binary, compare, native_operation, own_length
from ..machine.frame import Unread, read_cell
from .parameters import interpret
from .containers import as_mapping
from .classes import check_class, make_class
from .attributes import delete_attribute, has_attribute

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["sorted_"]


_PERMANENT = (type, types.ModuleType, types.BuiltinFunctionType)  # guarded by identity wherever they are read


# --- builtins
@function(len)
def len_(m: Machine, value: Any) -> Any:
    t = type(value)
    if t is TraceTensor:
        if value.dim() == 0:
            raise Raised(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    if t is Subclassed:
        return operate(m, len, [value])
    method = python_method(t, "__len__")
    if method is not None:
        return own_length(m, method, value)
    if m.world.is_outside(value) and base_of(value) is not None:
        return containers.length(m, value)
    containers.refuse_class_dict(m, value)
    if isinstance(value, types.MappingProxyType) and m.world.is_outside(value):
        raise Break(
            "unknown_object",
            "a read-only view of a dict from outside is read: guards cannot look behind it",
            "read the dict itself",
        )
    return m.native(len, m.world.pin(value))


@function(hash)
def hash_(m: Machine, value: Any) -> int:
    t = type(value)
    method = python_method(t, "__hash__")
    if method is None:
        if t.__hash__ is object.__hash__ and t not in (*ATOMS, Array) and not issubclass(t, _PERMANENT):
            return address_hash(m, value)
        return pure(m, hash, [hashed(value)], {})
    n = m.call(method, [value])
    if not isinstance(n, int):
        raise Raised(TypeError("__hash__ method should return an integer"))
    return -2 if n == -1 else n if -1 << 63 <= n < 1 << 63 else hash(int(n))


@function(isinstance)
def isinstance_(m: Machine, value: Any, classes: Any) -> bool:
    classes = m.deep_plain(classes)
    answer = _asked_class(m, "__instancecheck__", value, m.world.type_of(value), classes)
    return m.native(m.world.is_instance, value, classes) if answer is None else answer


def _asked_class(m: Machine, name: str, value: Any, exactly: Any, classes: Any) -> bool | None:
    """What the program's metaclasses say by __instancecheck__ or __subclasscheck__; None where no class has one of the
    program's.
    """
    if isinstance(classes, tuple) and any(map(_answers_itself, classes)):
        return any(
            m.truth(m.call(isinstance if name == "__instancecheck__" else issubclass, [value, c])) for c in classes
        )
    if not _answers_itself(classes):
        return None
    if exactly is classes and name == "__instancecheck__":
        return True
    return m.truth(m.call(m.getattr(type(classes), name), [classes, value]))


def _answers_itself(cls: Any) -> bool:
    """Whether a class has a metaclass of the program's, which may answer for it."""
    if not isinstance(cls, type) or type(cls) is type:
        return False
    methods = [class_attribute(type(cls), name) for name in ("__instancecheck__", "__subclasscheck__")]
    return any(isinstance(f, types.FunctionType) and not is_trusted_module(f.__module__ or "") for f in methods)


@function(issubclass)
def issubclass_(m: Machine, value: Any, classes: Any) -> bool:
    classes = m.deep_plain(classes)
    if (answer := _asked_class(m, "__subclasscheck__", value, value, classes)) is not None:
        return answer
    m.world.rely_on_subclasses(value, classes)
    if isinstance(value, type):
        m.world.rely_on_bases(value)
    return m.native(issubclass, value, classes)


@function(callable)
def callable_(m: Machine, value: Any) -> bool:
    class_attribute(type(value), "__call__")  # relied on, there or not
    return callable(value) and not isinstance(value, InlineGenerator)


@function(getattr)
def getattr_(m: Machine, obj: Any, name: str, default: Any = MISSING) -> Any:
    if not isinstance(name, str):
        raise Raised(TypeError("attribute name must be string"))
    if default is MISSING:
        return m.getattr(obj, name)
    try:
        return m.getattr(obj, name)
    except Raised as raised:
        if isinstance(raised.exc, AttributeError):
            return default
        raise


@function(hasattr)
def hasattr_(m: Machine, obj: Any, name: str) -> bool:
    return has_attribute(m, obj, name)


@function(setattr)
def setattr_(m: Machine, obj: Any, name: str, value: Any) -> None:
    m.setattr(obj, settled(name), value)


@function(delattr)
def delattr_(m: Machine, obj: Any, name: str) -> None:
    delete_attribute(m, obj, name)


@function(iter)
def iter_(m: Machine, value: Any, sentinel: Any = MISSING) -> Any:
    if m.world.is_outside(value) and is_native_iterator(value):
        return value
    if sentinel is not MISSING:
        return interpret(m, polyfills.call_until, [value, sentinel], {})
    return m.iterate(value)


@function(next)
def next_(m: Machine, iterator: Any, default: Any = MISSING) -> Any:
    try:
        if python_method(type(iterator), "__next__") is not None:
            return m.call(m.getattr(iterator, "__next__"), [])
        if m.world.is_outside(iterator):
            iterator = outside_iterator(m, iterator)
        return next(iterator)
    except StopIteration as stop:
        if default is not MISSING:
            return default
        raise Raised(stop) from None
    except Raised as raised:
        if default is not MISSING and isinstance(raised.exc, StopIteration):
            return default
        raise
    except Exception as exc:
        m.translate(exc)
        raise Raised(exc) from None


@function(abs)
def abs_(m: Machine, value: Any) -> Any:
    if type(value) is TraceTensor:
        return tensor_calls.call_operator(m, operator.abs, [value])
    method = python_method(type(value), "__abs__")
    return m.call(method, [value]) if method is not None else native_operation(m, abs, value)


@function(pow)
def pow_(m: Machine, base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return binary(m, "**", base, exponent)
    method = python_method(type(base), "__pow__")
    if method is not None:
        return m.call(method, [base, exponent, modulus])
    return m.native(pow, base, exponent, modulus)


@function(divmod)
def divmod_(m: Machine, a: Any, b: Any) -> Any:
    for owner, other, name in ((a, b, "__divmod__"), (b, a, "__rdivmod__")):
        method = python_method(type(owner), name) if type(owner) is not TraceTensor else None
        result = m.call(method, [owner, other]) if method is not None else NotImplemented
        if result is not NotImplemented:
            return result
    if type(a) is TraceTensor or type(b) is TraceTensor:
        names = [m.world.type_of(v).__name__ for v in (a, b)]
        raise Raised(TypeError(f"unsupported operand type(s) for divmod(): '{names[0]}' and '{names[1]}'"))
    if type(a) in (torch.SymInt, torch.SymFloat) or type(b) in (torch.SymInt, torch.SymFloat):
        return native_operation(m, operator.floordiv, a, b), native_operation(m, operator.mod, a, b)
    return native_operation(m, divmod, a, b)


@function(round)
def round_(m: Machine, value: Any, digits: Any = None) -> Any:
    if type(value) is TraceTensor and hasattr(torch.Tensor, "__round__"):
        return tensor_calls.call_method(m, value, "round", [], {} if digits is None else {"decimals": digits})
    method = python_method(type(value), "__round__")
    if method is not None:
        return m.call(method, [value] if digits is None else [value, digits])
    if type(value) is TraceTensor:
        raise Raised(TypeError("type Tensor doesn't define __round__ method"))
    if type(value) is torch.SymFloat and digits is not None:
        return native_operation(m, round, value, as_index(m, digits))
    return m.native(round, specialize(value), as_index(m, digits))


@function(sum)
def sum_(m: Machine, iterable: Any, start: Any = 0) -> Any:
    total = start
    for v in _native_iter(m, iterable):
        total = binary(m, "+", total, v)
    return total


@function(any)
def any_(m: Machine, iterable: Any) -> bool:
    return any(m.truth(v) for v in _native_iter(m, iterable))


@function(all)
def all_(m: Machine, iterable: Any) -> bool:
    return all(m.truth(v) for v in _native_iter(m, iterable))


def _native_iter(m: Machine, iterable: Any) -> Any:
    """Iterate in the interpreter's own code; errors of the iterator are the program's."""
    return _drawn(m, m.iterate(iterable))


def _drawn(m: Machine, iterator: Any) -> Any:
    while True:
        try:
            value = next(iterator)
        except StopIteration:
            return
        except Exception as exc:
            m.translate(exc)
            raise Raised(exc) from None
        yield value


@function(sorted)
def sorted_(m: Machine, iterable: Any, *, key: Any = None, reverse: Any = False) -> list:
    elements = items(m, iterable)
    keys = elements if key is None else [m.call(key, [v]) for v in elements]
    reverse = m.truth(reverse)
    if any(
        type(k) not in ATOMS and (type(k) is TraceTensor or python_method(type(k), "__lt__") is not None) for k in keys
    ):

        def before(i: int, j: int) -> int:
            return -1 if m.truth(compare(m, "<", keys[i], keys[j])) else 0

        order = m.native(sorted, range(len(elements)), key=functools.cmp_to_key(before), reverse=reverse)
    else:
        order = m.native(sorted, range(len(elements)), key=[m.deep_plain(k) for k in keys].__getitem__, reverse=reverse)
    return [elements[i] for i in order]


def _extreme(m: Machine, fn: Callable, args: tuple, key: Any, default: Any) -> Any:
    if (
        len(args) > 1
        and key is None
        and (
            any(map(is_read, args))
            or torch.SymFloat in map(type, args)
            and {float, torch.SymFloat}.issuperset(map(type, args))
        )
    ):
        return native_operation(m, fn, *args)
    values = _native_iter(m, args[0]) if len(args) == 1 else iter(args)
    best = next(values, MISSING)
    if best is MISSING:
        return default if default is not MISSING else m.native(fn, [])  # the error, in this version's words
    fold = Fold(m, best, best if key is None else m.call(key, [best]))
    for v in values:
        k = v if key is None else m.call(key, [v])
        fold.take(v, k, compare(m, "<" if fn is min else ">", k, fold.key))
    return fold.result()


@function(min)
def min_(m: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(m, min, args, key, default)


@function(max)
def max_(m: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(m, max, args, key, default)


@function(repr)
def repr_(m: Machine, value: Any) -> str:
    return to_text(m, value, "repr")


@function(ascii)
def ascii_(m: Machine, value: Any) -> str:
    return to_text(m, value, "ascii")


@function(format)
def format_(m: Machine, value: Any, spec: str = "") -> str:
    return format_text(m, value, spec)


KEEPS_TEXTS.update((repr_, ascii_, format_, isinstance_, setattr_))


@function(vars)
def vars_(m: Machine, *args: Any) -> Any:
    if not args:
        return locals_(m)
    return m.getattr(args[0], "__dict__")


@function(locals)
def locals_(m: Machine) -> dict:
    """The variables of the interpreted frame, as a dict of its own. A class body and a module have theirs as it is."""
    frame = m.frames[-1]
    if frame.names is not None:
        return frame.names
    if not frame.bytecode.is_function:
        raise Break("unsupported", "locals() reads the variables of the frame")
    found = {}
    for slot, value in zip(frame.bytecode.slots, frame.slots):
        if (slot.cell or slot.free) and isinstance(value, types.CellType):
            value = read_cell(m, value)
        if isinstance(value, Unread):
            value = value.load(m)
        if value is not MISSING and value is not NULL and not slot.name.startswith((".", "__stack_", "__local_")):
            found[slot.name] = value
    return found


@function(id)
def id_(m: Machine, value: Any) -> int:
    return address(m, value)


@function(globals, dir, exec, eval, compile, input, open, breakpoint, __import__)
def refused(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    raise Break("unsupported", "a builtin that reads or changes the frame, or does input and output, is called")


@function(sys._getframe)
def frame_of(m: Machine, depth: int = 0) -> Any:
    """The frame of an entry has not the variables of the program's by name, and of no frame within. So a function that
    looks for variables runs plainly, and so do those whose variables it may look at."""
    asking = next((f for f in reversed(m.frames) if not f.scope.trusted), None)
    if asking is not None and "f_locals" in asking.code.co_names:
        raise Plainly(
            "unsupported",
            "sys._getframe() gives a frame, whose variables are looked at by f_locals",
            "pass the values by name",
            calls_compiled=False,
        )
    raise Break("unsupported", "sys._getframe() looks at the frame, which is not there while a graph runs")


@function(sys.exc_info)
def exc_info(m: Machine) -> tuple:
    exc = exception(m)
    return (None, None, None) if exc is None else (type(exc), exc, None)


@function(sys.exception)
def exception(m: Machine) -> Any:
    exc = m.handling()
    if exc is None:
        m.rely_on_nothing_handled_outside()
    return exc


@function(functools.reduce)
def reduce_(m: Machine, fn: Any, iterable: Any, initial: Any = MISSING) -> Any:
    values = _native_iter(m, iterable)
    total = next(values, MISSING) if initial is MISSING else initial
    if total is MISSING:
        raise Raised(TypeError("reduce() of empty iterable with no initial value"))
    for v in values:
        total = m.call(fn, [total, v])
    return total


# --- classes
@cls(type)
def type_(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1:
        return m.world.type_of(args[0])
    if len(args) != 3 or not isinstance(args[1], tuple) or not isinstance(m.plain(args[2]), dict):
        raise Break("class_definition", "a class is made by type()")
    check_class(m, type, args[1])
    return make_class(m, type, args[0], args[1], dict(m.plain(args[2])), kwargs)


@cls(super)
def super_(m: Machine, *args: Any) -> Any:
    if args:
        return _super(m, *args)
    frame = m.frames[-1]
    slots = frame.bytecode.slots
    cell = next((frame.slots[i] for i, s in enumerate(slots) if s.name == "__class__" and (s.free or s.cell)), None)
    if cell is None:
        raise Raised(RuntimeError("super(): no arguments"))
    first = frame.slots[0]
    if isinstance(first, types.CellType) and slots[0].cell:
        first = read_cell(m, first)
    if isinstance(first, Unread):
        first = first.load(m)
    return _super(m, read_cell(m, cell), first)


def _super(m: Machine, *args: Any) -> Any:
    return SuperOf(*args) if len(args) == 2 and type(args[1]) is Subclassed else m.native(super, *args)


@cls(int)
def int_(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    if args and type(args[0]) is TraceTensor:
        if (
            len(args) == 1
            and not kwargs
            and not args[0].dtype.is_floating_point
            and (number := tensor_reads.item(m, args[0])) is not NotImplemented
        ):
            return number if tensor_reads.is_read(number) else m.native(int, number)
        raise Break("item", "int() reads the value of a tensor into Python")
    if args and type(args[0]) is torch.SymInt and len(args) == 1:
        return args[0]
    if len(args) == 1 and type(args[0]) is torch.SymFloat and (whole := size_floats.to_int(m, args[0])) is not None:
        return whole
    if len(args) == 1 and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__int__") or python_method(type(args[0]), "__index__")
        if method is not None:
            return m.call(method, [args[0]])
    return m.native(int, *[m.plain(a) for a in args], **kwargs)


@cls(float)
def float_(m: Machine, *args: Any) -> Any:
    if args and type(args[0]) is TraceTensor:
        if len(args) == 1 and (number := tensor_reads.item(m, args[0])) is not NotImplemented:
            if not tensor_reads.is_read(number):
                return m.native(float, number)
            return number if type(number) is torch.SymFloat else tensor_reads.to_float(m, number)
        raise Break("item", "float() reads the value of a tensor into Python")
    if len(args) == 1 and type(args[0]) is torch.SymInt:
        return size_floats.to_float(m, args[0])
    if len(args) == 1 and type(args[0]) is torch.SymFloat:
        return args[0]
    if args and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__float__")
        if method is not None:
            return m.call(method, [args[0]])
    return m.native(float, *[specialize(a) for a in args])


@cls(complex)
def complex_(m: Machine, *args: Any, **kwargs: Any) -> Any:
    if tensor_calls.holds_tensor(args):
        raise Break("item", "complex() reads the value of a tensor into Python")
    if len(args) == 1 and python_method(type(args[0]), "__complex__") is not None:
        return m.call(m.getattr(args[0], "__complex__"), [])
    return m.native(complex, *[as_number(m, a) for a in args], **kwargs)


@cls(bool)
def bool_(m: Machine, value: Any = False) -> bool:
    return m.truth(value)


@cls(str)
def str_(m: Machine, /, *args: Any, **kwargs: Any) -> str:
    if len(args) == 1 and not kwargs:
        return to_text(m, args[0], "str")
    return m.native(str, *args, **kwargs)


def _at_most_one(name: str, args: tuple) -> None:
    if len(args) > 1:
        raise Raised(TypeError(f"{name} expected at most 1 argument, got {len(args)}"))


@cls(list)
def list_(m: Machine, *args: Any) -> list:
    _at_most_one("list", args)
    return _sized(m, args[0]) if args else []


def _sized(m: Machine, iterable: Any) -> list:
    """All elements; the length is asked for first, as list() and tuple() do."""
    iterator = m.iterate(iterable)
    hint_length(m, iterable)
    return list(_drawn(m, iterator))


@cls(tuple)
def tuple_(m: Machine, *args: Any) -> tuple:
    _at_most_one("tuple", args)
    if args and type(args[0]) is tuple:
        return args[0]
    return tuple(_sized(m, args[0])) if args else ()


@cls(set)
def set_(m: Machine, *args: Any) -> set:
    _at_most_one("set", args)
    items = list(_native_iter(m, args[0])) if args else []
    settle_keys(m, items)
    return m.native(set, items)


@cls(frozenset)
def frozenset_(m: Machine, *args: Any) -> frozenset:
    _at_most_one("frozenset", args)
    if args and type(args[0]) is frozenset:
        return args[0]
    items = list(_native_iter(m, args[0])) if args else []
    settle_keys(m, items)
    return m.native(frozenset, items)


def _pairs(m: Machine, args: tuple) -> Any:
    _at_most_one("dict", args)
    if not args:
        return {}
    value = m.plain(args[0])
    if isinstance(value, dict) or hasattr(type(value), "keys"):
        return as_mapping(m, value)
    pairs = []
    for i, pair in enumerate(_native_iter(m, value)):
        t = m.world.type_of(pair)
        if not hasattr(t, "__iter__") and not hasattr(t, "__getitem__"):
            raise Raised(TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence"))
        pairs.append(tuple(m.iterate(pair)))
    settle_keys(m, [pair[0] for pair in pairs if pair])
    return pairs


@cls(dict)
def dict_(m: Machine, /, *args: Any, **kwargs: Any) -> dict:
    return m.native(dict, _pairs(m, args), **kwargs)


@cls(collections.OrderedDict)
def ordered_dict(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return m.native(collections.OrderedDict, _pairs(m, args), **kwargs)


@cls(collections.defaultdict)
def default_dict(m: Machine, factory: Any = None, /, *args: Any, **kwargs: Any) -> Any:
    return m.native(collections.defaultdict, factory, _pairs(m, args), **kwargs)


@cls(collections.deque)
def deque_(m: Machine, iterable: Any = (), maxlen: Any = None) -> Any:
    return m.native(collections.deque, list(_native_iter(m, iterable)), maxlen)


@cls(range)
def range_(m: Machine, *args: Any) -> Any:
    for a in args:
        if type(a) is TraceTensor and known(a) is None:
            raise Break("data_dependent_loop")
    return m.native(range, *[int(a) if isinstance(a, (torch.SymInt, TraceTensor)) else as_index(m, a) for a in args])


@cls(slice)
def slice_(m: Machine, *args: Any) -> slice:
    return m.native(slice, *args)


@cls(enumerate)
def enumerate_(m: Machine, iterable: Any, start: Any = 0) -> Any:
    return made_by_native(m, m.native(enumerate, m.iterate(iterable), as_index(m, start)))


@cls(zip)
def zip_(m: Machine, *iterables: Any, strict: Any = False) -> Any:
    return made_by_native(m, m.native(zip, *[m.iterate(i) for i in iterables], strict=strict))


@cls(map)
def map_(m: Machine, fn: Any, *iterables: Any) -> Any:
    return made_by_native(m, m.native(map, m.callback(fn), *[m.iterate(i) for i in iterables]))


@cls(filter)
def filter_(m: Machine, fn: Any, iterable: Any) -> Any:
    return made_by_native(m, m.native(filter, m.callback(bool if fn is None else fn), m.iterate(iterable)))


@cls(reversed)
def reversed_(m: Machine, value: Any) -> Any:
    method = python_method(type(value), "__reversed__")
    if method is not None:
        return m.call(method, [value])
    if type(value) is TraceTensor:
        return reversed(list(m.iterate(value)))
    if python_method(type(value), "__getitem__") is not None:
        made = interpret(m, polyfills.items_backwards, [value, m.call(len, [value])], {})
        made.measured = value
        return made
    return m.native(reversed, m.world.pin(m.plain(value)))


@cls(property)
def property_(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return property(*args, **kwargs)


@cls(staticmethod)
def staticmethod_(m: Machine, fn: Any) -> Any:
    return staticmethod(fn)


@cls(classmethod)
def classmethod_(m: Machine, fn: Any) -> Any:
    return classmethod(fn)


@cls(functools.partial)
def partial_(m: Machine, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    return m.world.create(m.native(functools.partial, fn, *args, **kwargs))


@cls(types.MethodType)
def method_type(m: Machine, fn: Any, owner: Any) -> Any:
    return m.native(types.MethodType, fn, owner)


@cls(torch.Size)
def size_(m: Machine, *args: Any) -> Any:
    values = list(_native_iter(m, args[0])) if args else []
    return m.native(torch.Size, values) if all(type(v) in (int, torch.SymInt) for v in values) else tuple(values)


@cls(torch.device)
def device_(m: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return m.native(torch.device, *args, **kwargs)


def _bytes(m: Machine, *args: Any, c: type, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and type(args[0]) not in ATOMS:
        if c is bytes and python_method(type(args[0]), "__bytes__") is not None:
            return m.call(m.getattr(args[0], "__bytes__"), [])
        number = as_index(m, args[0])
        if number is not args[0]:
            args = (number,)
        elif isinstance(args[0], (list, tuple, set, InlineGenerator)) or any(
            python_method(type(args[0]), name) is not None for name in ("__iter__", "__getitem__")
        ):
            values = (
                items(m, args[0]) if c is bytes else m.native(list, m.iterate(args[0]))
            )  # bytearray() asks for no length
            args = ([as_index(m, v) for v in values],)
    return m.native(c, *[m.world.pin(m.plain(x)) for x in args], **kwargs)


CLASSES[bytes] = functools.partial(_bytes, c=bytes)
CLASSES[bytearray] = functools.partial(_bytes, c=bytearray)
for _plain_class in (
    torch.finfo,
    torch.iinfo,
    object,
    types.SimpleNamespace,
    types.MappingProxyType,
    operator.itemgetter,
    operator.attrgetter,
    types.GenericAlias,
):
    CLASSES[_plain_class] = functools.partial(
        lambda m, *a, c, **k: m.native(c, *[m.plain(x) for x in a], **k), c=_plain_class
    )


def _itertool(m: Machine, *args: Any, tool: Any, **kwargs: Any) -> Any:
    def native(value: Any) -> Any:
        if tool is itertools.product:
            return items(m, value) if type(value) not in ATOMS or isinstance(value, (str, bytes, range)) else value
        if value is None or type(value) in ATOMS and not isinstance(value, (str, bytes, range)):
            return value
        if callable(value) and not hasattr(type(value), "__iter__"):
            return m.callback(value)
        return m.iterate(value)

    if tool is itertools.repeat:
        return made_by_native(m, m.native(tool, *args, **kwargs))
    kwargs = {k: native(v) if k != "fillvalue" else v for k, v in kwargs.items()}
    return made_by_native(m, m.native(tool, *[native(a) for a in args], **kwargs))


for _tool in vars(itertools).values():
    if isinstance(_tool, type) and _tool.__module__ == "itertools" and not _tool.__name__.startswith("_"):
        CLASSES[_tool] = functools.partial(_itertool, tool=_tool)
