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
def len_(machine: Machine, value: Any) -> Any:
    t = type(value)
    if t is TraceTensor:
        if value.dim() == 0:
            raise Raised(TypeError("len() of a 0-d tensor"))
        return value.shape[0]
    if t is Subclassed:
        return operate(machine, len, [value])
    method = python_method(t, "__len__")
    if method is not None:
        return own_length(machine, method, value)
    if machine.world.is_outside(value) and base_of(value) is not None:
        return containers.length(machine, value)
    containers.refuse_class_dict(machine, value)
    if isinstance(value, types.MappingProxyType) and machine.world.is_outside(value):
        raise Break(
            "unknown_object",
            "a read-only view of a dict from outside is read: guards cannot look behind it",
            "read the dict itself",
        )
    return machine.native(len, machine.world.pin(value))


@function(hash)
def hash_(machine: Machine, value: Any) -> int:
    t = type(value)
    method = python_method(t, "__hash__")
    if method is None:
        if t.__hash__ is object.__hash__ and t not in (*ATOMS, Array) and not issubclass(t, _PERMANENT):
            return address_hash(machine, value)
        return pure(machine, hash, [hashed(value)], {})
    n = machine.call(method, [value])
    if not isinstance(n, int):
        raise Raised(TypeError("__hash__ method should return an integer"))
    return -2 if n == -1 else n if -1 << 63 <= n < 1 << 63 else hash(int(n))


@function(isinstance)
def isinstance_(machine: Machine, value: Any, classes: Any) -> bool:
    classes = machine.deep_plain(classes)
    answer = _asked_class(machine, "__instancecheck__", value, machine.world.type_of(value), classes)
    return machine.native(machine.world.is_instance, value, classes) if answer is None else answer


def _asked_class(machine: Machine, name: str, value: Any, exactly: Any, classes: Any) -> bool | None:
    """What the program's metaclasses say by __instancecheck__ or __subclasscheck__; None where no class has one of the
    program's.
    """
    if isinstance(classes, tuple) and any(map(_answers_itself, classes)):
        return any(
            machine.truth(machine.call(isinstance if name == "__instancecheck__" else issubclass, [value, c]))
            for c in classes
        )
    if not _answers_itself(classes):
        return None
    if exactly is classes and name == "__instancecheck__":
        return True
    return machine.truth(machine.call(machine.getattr(type(classes), name), [classes, value]))


def _answers_itself(cls: Any) -> bool:
    """Whether a class has a metaclass of the program's, which may answer for it."""
    if not isinstance(cls, type) or type(cls) is type:
        return False
    methods = [class_attribute(type(cls), name) for name in ("__instancecheck__", "__subclasscheck__")]
    return any(
        isinstance(method, types.FunctionType) and not is_trusted_module(method.__module__ or "") for method in methods
    )


@function(issubclass)
def issubclass_(machine: Machine, value: Any, classes: Any) -> bool:
    classes = machine.deep_plain(classes)
    if (answer := _asked_class(machine, "__subclasscheck__", value, value, classes)) is not None:
        return answer
    machine.world.rely_on_subclasses(value, classes)
    if isinstance(value, type):
        machine.world.rely_on_bases(value)
    return machine.native(issubclass, value, classes)


@function(callable)
def callable_(machine: Machine, value: Any) -> bool:
    class_attribute(type(value), "__call__")  # relied on, there or not
    return callable(value) and not isinstance(value, InlineGenerator)


@function(getattr)
def getattr_(machine: Machine, obj: Any, name: str, default: Any = MISSING) -> Any:
    if not isinstance(name, str):
        raise Raised(TypeError("attribute name must be string"))
    if default is MISSING:
        return machine.getattr(obj, name)
    try:
        return machine.getattr(obj, name)
    except Raised as raised:
        if isinstance(raised.exc, AttributeError):
            return default
        raise


@function(hasattr)
def hasattr_(machine: Machine, obj: Any, name: str) -> bool:
    return has_attribute(machine, obj, name)


@function(setattr)
def setattr_(machine: Machine, obj: Any, name: str, value: Any) -> None:
    machine.setattr(obj, settled(name), value)


@function(delattr)
def delattr_(machine: Machine, obj: Any, name: str) -> None:
    delete_attribute(machine, obj, name)


@function(iter)
def iter_(machine: Machine, value: Any, sentinel: Any = MISSING) -> Any:
    if machine.world.is_outside(value) and is_native_iterator(value):
        return value
    if sentinel is not MISSING:
        return interpret(machine, polyfills.call_until, [value, sentinel], {})
    return machine.iterate(value)


@function(next)
def next_(machine: Machine, iterator: Any, default: Any = MISSING) -> Any:
    try:
        if python_method(type(iterator), "__next__") is not None:
            return machine.call(machine.getattr(iterator, "__next__"), [])
        if machine.world.is_outside(iterator):
            iterator = outside_iterator(machine, iterator)
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
        machine.translate(exc)
        raise Raised(exc) from None


@function(abs)
def abs_(machine: Machine, value: Any) -> Any:
    if type(value) is TraceTensor:
        return tensor_calls.call_operator(machine, operator.abs, [value])
    method = python_method(type(value), "__abs__")
    return machine.call(method, [value]) if method is not None else native_operation(machine, abs, value)


@function(pow)
def pow_(machine: Machine, base: Any, exponent: Any, modulus: Any = None) -> Any:
    if modulus is None:
        return binary(machine, "**", base, exponent)
    method = python_method(type(base), "__pow__")
    if method is not None:
        return machine.call(method, [base, exponent, modulus])
    return machine.native(pow, *map(specialize, (base, exponent, modulus)))


@function(divmod)
def divmod_(machine: Machine, a: Any, b: Any) -> Any:
    for owner, other, name in ((a, b, "__divmod__"), (b, a, "__rdivmod__")):
        method = python_method(type(owner), name) if type(owner) is not TraceTensor else None
        result = machine.call(method, [owner, other]) if method is not None else NotImplemented
        if result is not NotImplemented:
            return result
    if type(a) is TraceTensor or type(b) is TraceTensor:
        names = [machine.world.type_of(v).__name__ for v in (a, b)]
        raise Raised(TypeError(f"unsupported operand type(s) for divmod(): '{names[0]}' and '{names[1]}'"))
    if type(a) in (torch.SymInt, torch.SymFloat) or type(b) in (torch.SymInt, torch.SymFloat):
        return native_operation(machine, operator.floordiv, a, b), native_operation(machine, operator.mod, a, b)
    return native_operation(machine, divmod, a, b)


@function(round)
def round_(machine: Machine, value: Any, digits: Any = None) -> Any:
    if type(value) is TraceTensor and hasattr(torch.Tensor, "__round__"):
        return tensor_calls.call_method(machine, value, "round", [], {} if digits is None else {"decimals": digits})
    method = python_method(type(value), "__round__")
    if method is not None:
        return machine.call(method, [value] if digits is None else [value, digits])
    if type(value) is TraceTensor:
        raise Raised(TypeError("type Tensor doesn't define __round__ method"))
    if type(value) is torch.SymFloat and digits is not None:
        return native_operation(machine, round, value, as_index(machine, digits))
    return machine.native(round, specialize(value), as_index(machine, digits))


@function(sum)
def sum_(machine: Machine, iterable: Any, start: Any = 0) -> Any:
    total = start
    for v in _native_iter(machine, iterable):
        total = binary(machine, "+", total, v)
    return total


@function(any)
def any_(machine: Machine, iterable: Any) -> bool:
    return any(machine.truth(v) for v in _native_iter(machine, iterable))


@function(all)
def all_(machine: Machine, iterable: Any) -> bool:
    return all(machine.truth(v) for v in _native_iter(machine, iterable))


def _native_iter(machine: Machine, iterable: Any) -> Any:
    """Iterate in the interpreter's own code; errors of the iterator are the program's."""
    return _drawn(machine, machine.iterate(iterable))


def _drawn(machine: Machine, iterator: Any) -> Any:
    while True:
        try:
            value = next(iterator)
        except StopIteration:
            return
        except Exception as exc:
            machine.translate(exc)
            raise Raised(exc) from None
        yield value


@function(sorted)
def sorted_(machine: Machine, iterable: Any, *, key: Any = None, reverse: Any = False) -> list:
    elements = items(machine, iterable)
    keys = elements if key is None else [machine.call(key, [element]) for element in elements]
    reverse = machine.truth(reverse)
    if any(
        type(name) not in ATOMS and (type(name) is TraceTensor or python_method(type(name), "__lt__") is not None)
        for name in keys
    ):

        def before(i: int, j: int) -> int:
            return -1 if machine.truth(compare(machine, "<", keys[i], keys[j])) else 0

        order = machine.native(sorted, range(len(elements)), key=functools.cmp_to_key(before), reverse=reverse)
    else:
        order = machine.native(
            sorted, range(len(elements)), key=[machine.deep_plain(name) for name in keys].__getitem__, reverse=reverse
        )
    return [elements[place] for place in order]


def _extreme(machine: Machine, fn: Callable, args: tuple, key: Any, default: Any) -> Any:
    if (
        len(args) > 1
        and key is None
        and (
            any(map(is_read, args))
            or torch.SymFloat in map(type, args)
            and {float, torch.SymFloat}.issuperset(map(type, args))
        )
    ):
        return native_operation(machine, fn, *args)
    values = _native_iter(machine, args[0]) if len(args) == 1 else iter(args)
    best = next(values, MISSING)
    if best is MISSING:
        return default if default is not MISSING else machine.native(fn, [])  # the error, in this version's words
    fold = Fold(machine, best, best if key is None else machine.call(key, [best]))
    for value in values:
        k = value if key is None else machine.call(key, [value])
        fold.take(value, k, compare(machine, "<" if fn is min else ">", k, fold.key))
    return fold.result()


@function(min)
def min_(machine: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(machine, min, args, key, default)


@function(max)
def max_(machine: Machine, *args: Any, key: Any = None, default: Any = MISSING) -> Any:
    return _extreme(machine, max, args, key, default)


@function(repr)
def repr_(machine: Machine, value: Any) -> str:
    return to_text(machine, value, "repr")


@function(ascii)
def ascii_(machine: Machine, value: Any) -> str:
    return to_text(machine, value, "ascii")


@function(format)
def format_(machine: Machine, value: Any, spec: str = "") -> str:
    return format_text(machine, value, spec)


KEEPS_TEXTS.update((repr_, ascii_, format_, isinstance_, setattr_))


@function(vars)
def vars_(machine: Machine, *args: Any) -> Any:
    if not args:
        return locals_(machine)
    return machine.getattr(args[0], "__dict__")


@function(locals)
def locals_(machine: Machine) -> dict:
    """The variables of the interpreted frame, as a dict of its own. A class body and a module have theirs as it is."""
    frame = machine.frames[-1]
    if frame.names is not None:
        return frame.names
    if not frame.bytecode.is_function:
        raise Break("unsupported", "locals() reads the variables of the frame")
    found = {}
    for slot, value in zip(frame.bytecode.slots, frame.slots):
        if (slot.cell or slot.free) and isinstance(value, types.CellType):
            value = read_cell(machine, value)
        if isinstance(value, Unread):
            value = value.load(machine)
        if value is not MISSING and value is not NULL and not slot.name.startswith((".", "__stack_", "__local_")):
            found[slot.name] = value
    return found


@function(id)
def id_(machine: Machine, value: Any) -> int:
    return address(machine, value)


@function(globals, dir, exec, eval, compile, input, open, breakpoint, __import__)
def refused(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    raise Break("unsupported", "a builtin that reads or changes the frame, or does input and output, is called")


@function(sys._getframe)
def frame_of(machine: Machine, depth: int = 0) -> Any:
    """The frame of an entry has not the variables of the program's by name, and of no frame within. So a function that
    looks for variables runs plainly, and so do those whose variables it may look at."""
    asking = next((frame for frame in reversed(machine.frames) if not frame.scope.trusted), None)
    if asking is not None and "f_locals" in asking.code.co_names:
        raise Plainly(
            "unsupported",
            "sys._getframe() gives a frame, whose variables are looked at by f_locals",
            "pass the values by name",
            calls_compiled=False,
        )
    raise Break("unsupported", "sys._getframe() looks at the frame, which is not there while a graph runs")


@function(sys.exc_info)
def exc_info(machine: Machine) -> tuple:
    exc = exception(machine)
    return (None, None, None) if exc is None else (type(exc), exc, None)


@function(sys.exception)
def exception(machine: Machine) -> Any:
    exc = machine.handling()
    if exc is None:
        machine.rely_on_nothing_handled_outside()
    return exc


@function(functools.reduce)
def reduce_(machine: Machine, fn: Any, iterable: Any, initial: Any = MISSING) -> Any:
    values = _native_iter(machine, iterable)
    total = next(values, MISSING) if initial is MISSING else initial
    if total is MISSING:
        raise Raised(TypeError("reduce() of empty iterable with no initial value"))
    for value in values:
        total = machine.call(fn, [total, value])
    return total


# --- classes
@cls(type)
def type_(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    if len(args) == 1:
        return machine.world.type_of(args[0])
    if len(args) != 3 or not isinstance(args[1], tuple) or not isinstance(machine.plain(args[2]), dict):
        raise Break("class_definition", "a class is made by type()")
    check_class(type, args[1])
    return make_class(machine, type, args[0], args[1], dict(machine.plain(args[2])), kwargs)


@cls(super)
def super_(machine: Machine, *args: Any) -> Any:
    if args:
        return _super(machine, *args)
    frame = machine.frames[-1]
    slots = frame.bytecode.slots
    cell = next(
        (frame.slots[i] for i, slot in enumerate(slots) if slot.name == "__class__" and (slot.free or slot.cell)), None
    )
    if cell is None:
        raise Raised(RuntimeError("super(): no arguments"))
    first = frame.slots[0]
    if isinstance(first, types.CellType) and slots[0].cell:
        first = read_cell(machine, first)
    if isinstance(first, Unread):
        first = first.load(machine)
    return _super(machine, read_cell(machine, cell), first)


def _super(machine: Machine, *args: Any) -> Any:
    return SuperOf(*args) if len(args) == 2 and type(args[1]) is Subclassed else machine.native(super, *args)


@cls(int)
def int_(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    if args and type(args[0]) is TraceTensor:
        if (
            len(args) == 1
            and not kwargs
            and not args[0].dtype.is_floating_point
            and args[0].dtype != torch.bool
            and (number := tensor_reads.item(machine, args[0])) is not NotImplemented
        ):
            return number if tensor_reads.is_read(number) else machine.native(int, number)
        raise Break("item", "int() reads the value of a tensor into Python")
    if args and type(args[0]) is torch.SymInt and len(args) == 1:
        return args[0]
    if (
        len(args) == 1
        and type(args[0]) is torch.SymFloat
        and (whole := size_floats.to_int(machine, args[0])) is not None
    ):
        return whole
    if len(args) == 1 and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__int__") or python_method(type(args[0]), "__index__")
        if method is not None:
            return machine.call(method, [args[0]])
    return machine.native(int, *[machine.plain(arg) for arg in args], **kwargs)


@cls(float)
def float_(machine: Machine, *args: Any) -> Any:
    if args and type(args[0]) is TraceTensor:
        if (
            len(args) == 1
            and args[0].dtype != torch.bool
            and (number := tensor_reads.item(machine, args[0])) is not NotImplemented
        ):
            if not tensor_reads.is_read(number):
                return machine.native(float, number)
            return number if type(number) is torch.SymFloat else tensor_reads.to_float(machine, number)
        raise Break("item", "float() reads the value of a tensor into Python")
    if len(args) == 1 and type(args[0]) is torch.SymInt:
        return size_floats.to_float(machine, args[0])
    if len(args) == 1 and type(args[0]) is torch.SymFloat:
        return args[0]
    if args and type(args[0]) not in ATOMS:
        method = python_method(type(args[0]), "__float__")
        if method is not None:
            return machine.call(method, [args[0]])
    return machine.native(float, *[specialize(arg) for arg in args])


@cls(complex)
def complex_(machine: Machine, *args: Any, **kwargs: Any) -> Any:
    if tensor_calls.holds_tensor(args):
        raise Break("item", "complex() reads the value of a tensor into Python")
    if len(args) == 1 and python_method(type(args[0]), "__complex__") is not None:
        return machine.call(machine.getattr(args[0], "__complex__"), [])
    return machine.native(complex, *[as_number(machine, arg) for arg in args], **kwargs)


@cls(bool)
def bool_(machine: Machine, value: Any = False) -> Any:
    read = tensor_reads.truth(machine, value)
    return machine.truth(value) if read is NotImplemented else read


@cls(str)
def str_(machine: Machine, /, *args: Any, **kwargs: Any) -> str:
    if len(args) == 1 and not kwargs:
        return to_text(machine, args[0], "str")
    return machine.native(str, *args, **kwargs)


def _at_most_one(name: str, args: tuple) -> None:
    if len(args) > 1:
        raise Raised(TypeError(f"{name} expected at most 1 argument, got {len(args)}"))


@cls(list)
def list_(machine: Machine, *args: Any) -> list:
    _at_most_one("list", args)
    return _sized(machine, args[0]) if args else []


def _sized(machine: Machine, iterable: Any) -> list:
    """All elements; the length is asked for first, as list() and tuple() do."""
    iterator = machine.iterate(iterable)
    hint_length(machine, iterable)
    return list(_drawn(machine, iterator))


@cls(tuple)
def tuple_(machine: Machine, *args: Any) -> tuple:
    _at_most_one("tuple", args)
    if args and type(args[0]) is tuple:
        return args[0]
    return tuple(_sized(machine, args[0])) if args else ()


@cls(set)
def set_(machine: Machine, *args: Any) -> set:
    _at_most_one("set", args)
    items = list(_native_iter(machine, args[0])) if args else []
    settle_keys(machine, items)
    return machine.native(set, items)


@cls(frozenset)
def frozenset_(machine: Machine, *args: Any) -> frozenset:
    _at_most_one("frozenset", args)
    if args and type(args[0]) is frozenset:
        return args[0]
    items = list(_native_iter(machine, args[0])) if args else []
    settle_keys(machine, items)
    return machine.native(frozenset, items)


def _pairs(machine: Machine, args: tuple) -> Any:
    _at_most_one("dict", args)
    if not args:
        return {}
    value = machine.plain(args[0])
    if isinstance(value, dict) or hasattr(type(value), "keys"):
        return as_mapping(machine, value)
    pairs = []
    for i, pair in enumerate(_native_iter(machine, value)):
        t = machine.world.type_of(pair)
        if not hasattr(t, "__iter__") and not hasattr(t, "__getitem__"):
            raise Raised(TypeError(f"cannot convert dictionary update sequence element #{i} to a sequence"))
        pairs.append(tuple(machine.iterate(pair)))
    settle_keys(machine, [pair[0] for pair in pairs if pair])
    return pairs


@cls(dict)
def dict_(machine: Machine, /, *args: Any, **kwargs: Any) -> dict:
    return machine.native(dict, _pairs(machine, args), **kwargs)


@cls(collections.OrderedDict)
def ordered_dict(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return machine.native(collections.OrderedDict, _pairs(machine, args), **kwargs)


@cls(collections.defaultdict)
def default_dict(machine: Machine, factory: Any = None, /, *args: Any, **kwargs: Any) -> Any:
    return machine.native(collections.defaultdict, factory, _pairs(machine, args), **kwargs)


@cls(collections.deque)
def deque_(machine: Machine, iterable: Any = (), maxlen: Any = None) -> Any:
    return machine.native(collections.deque, list(_native_iter(machine, iterable)), maxlen)


@cls(range)
def range_(machine: Machine, *args: Any) -> Any:
    for arg in args:
        if type(arg) is TraceTensor and known(arg) is None:
            raise Break("data_dependent_loop")
    return machine.native(
        range, *[int(a) if isinstance(a, (torch.SymInt, TraceTensor)) else as_index(machine, a) for a in args]
    )


@cls(slice)
def slice_(machine: Machine, *args: Any) -> slice:
    return machine.native(slice, *args)


@cls(enumerate)
def enumerate_(machine: Machine, iterable: Any, start: Any = 0) -> Any:
    return made_by_native(machine, machine.native(enumerate, machine.iterate(iterable), as_index(machine, start)))


@cls(zip)
def zip_(machine: Machine, *iterables: Any, strict: Any = False) -> Any:
    return made_by_native(
        machine, machine.native(zip, *[machine.iterate(iterable) for iterable in iterables], strict=strict)
    )


@cls(map)
def map_(machine: Machine, fn: Any, *iterables: Any) -> Any:
    return made_by_native(
        machine, machine.native(map, machine.callback(fn), *[machine.iterate(iterable) for iterable in iterables])
    )


@cls(filter)
def filter_(machine: Machine, fn: Any, iterable: Any) -> Any:
    return made_by_native(
        machine, machine.native(filter, machine.callback(bool if fn is None else fn), machine.iterate(iterable))
    )


@cls(reversed)
def reversed_(machine: Machine, value: Any) -> Any:
    method = python_method(type(value), "__reversed__")
    if method is not None:
        return machine.call(method, [value])
    if type(value) is TraceTensor:
        return reversed(list(machine.iterate(value)))
    if python_method(type(value), "__getitem__") is not None:
        made = interpret(machine, polyfills.items_backwards, [value, machine.call(len, [value])], {})
        made.measured = value
        return made
    return machine.native(reversed, machine.world.pin(machine.plain(value)))


@cls(property)
def property_(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return property(*args, **kwargs)


@cls(staticmethod)
def staticmethod_(machine: Machine, fn: Any) -> Any:
    return staticmethod(fn)


@cls(classmethod)
def classmethod_(machine: Machine, fn: Any) -> Any:
    return classmethod(fn)


@cls(functools.partial)
def partial_(machine: Machine, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    return machine.world.create(machine.native(functools.partial, fn, *args, **kwargs))


@cls(types.MethodType)
def method_type(machine: Machine, fn: Any, owner: Any) -> Any:
    return machine.native(types.MethodType, fn, owner)


@cls(torch.Size)
def size_(machine: Machine, *args: Any) -> Any:
    values = list(_native_iter(machine, args[0])) if args else []
    return (
        machine.native(torch.Size, values)
        if all(type(value) in (int, torch.SymInt) for value in values)
        else tuple(values)
    )


@cls(torch.device)
def device_(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return machine.native(torch.device, *args, **kwargs)


def _bytes(machine: Machine, *args: Any, c: type, **kwargs: Any) -> Any:
    if len(args) == 1 and not kwargs and type(args[0]) not in ATOMS:
        if c is bytes and python_method(type(args[0]), "__bytes__") is not None:
            return machine.call(machine.getattr(args[0], "__bytes__"), [])
        number = as_index(machine, args[0])
        if number is not args[0]:
            args = (number,)
        elif isinstance(args[0], (list, tuple, set, InlineGenerator)) or any(
            python_method(type(args[0]), name) is not None for name in ("__iter__", "__getitem__")
        ):
            # bytearray() asks for no length
            values = items(machine, args[0]) if c is bytes else machine.native(list, machine.iterate(args[0]))
            args = ([as_index(machine, value) for value in values],)
    return machine.native(c, *[machine.world.pin(machine.plain(arg)) for arg in args], **kwargs)


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
        lambda machine, *a, c, **k: machine.native(c, *[machine.plain(x) for x in a], **k), c=_plain_class
    )


def _itertool(machine: Machine, *args: Any, tool: Any, **kwargs: Any) -> Any:
    def native(value: Any) -> Any:
        if tool is itertools.product:
            return (
                items(machine, value) if type(value) not in ATOMS or isinstance(value, (str, bytes, range)) else value
            )
        if value is None or type(value) in ATOMS and not isinstance(value, (str, bytes, range)):
            return value
        if callable(value) and not hasattr(type(value), "__iter__"):
            return machine.callback(value)
        return machine.iterate(value)

    if tool is itertools.repeat:
        return made_by_native(machine, machine.native(tool, *args, **kwargs))
    kwargs = {name: native(value) if name != "fillvalue" else value for name, value in kwargs.items()}
    return made_by_native(machine, machine.native(tool, *[native(arg) for arg in args], **kwargs))


for _tool in vars(itertools).values():
    if isinstance(_tool, type) and _tool.__module__ == "itertools" and not _tool.__name__.startswith("_"):
        CLASSES[_tool] = functools.partial(_itertool, tool=_tool)
