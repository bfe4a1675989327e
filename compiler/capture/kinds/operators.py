"""Operators on stack values: tensors go to the graph, Python objects' own methods are interpreted, the rest is
native.
"""

from __future__ import annotations

import collections
import math
import operator
import types
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import torch

from ...graph.known_values import known
from ...graph.tensor import TraceTensor
from ...guards import source as S
from . import containers, elements
from ..numbers import size_floats
from ..tensors import tensor_calls
from .objects.class_attributes import in_class_dict
from .choices import any_of, undecided
from ..machine.generators import InlineGenerator
from ..machine.programs import handler
from ..numbers.float_node import refuse_compared
from ..numbers.late_text import LateText, hashed, join_texts, made_late, settled
from .lookups import class_attribute, found_in
from ..numbers.tensor_reads import ASK_FOR_TRUTH, COMPARISONS, is_read, negated, negation
from ..machine.signals import Break, Raised
from ..tensors.tensor_subclasses import Subclassed
from ..machine.stack_values import ATOMS, IMMUTABLE, MISSING, specialize
from .builtin_types import BUILTIN_TYPES, MUTABLE, base_of, python_method
from ..tensors.subclass_calls import operate

if TYPE_CHECKING:
    from ..machine.frame import Frame
    from ..machine.machine import Machine

__all__ = [
    "binary",
    "compare",
    "unary",
    "truth",
    "identical",
    "contains",
    "get_item",
    "set_item",
    "delete_item",
    "own_length",
    "native_operation",
]

_BINARY = {  # -> the function of module operator, by Python's name of the method
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "|": "or",
    "^": "xor",
}
_COMPARE: dict[str, tuple[Callable, str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
_UNARY: dict[str, tuple[Callable, str]] = {
    "UNARY_POSITIVE": (operator.pos, "__pos__"),
    "UNARY_NEGATIVE": (operator.neg, "__neg__"),
    "UNARY_INVERT": (operator.invert, "__invert__"),
}
OPERATOR_FUNCTIONS: dict[Any, Callable] = {}  # operator.add -> function(machine, a, b)
_DIVISIONS = frozenset(
    (operator.truediv, operator.floordiv, operator.mod, operator.itruediv, operator.ifloordiv, operator.imod, divmod)
)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_SEQUENCES = (list, tuple, str, bytes, bytearray)
_SETS = (set, frozenset)
_TEXTS = frozenset((str, LateText))


_LARGE = 1 << 53  # ints up to it are floats
_FEW = 32  # keys that a number which varies is compared with one by one; among more of them it is fixed


def native_operation(machine: Machine, fn: Callable, *args: Any) -> Any:
    """Native operator on values without TraceTensors; a size expression that it cannot take is fixed to its value."""
    if machine.late_texts:
        args = tuple(map(settled, args))
    for arg in args:
        machine.world.pin(arg)
    if machine.env.hints:
        machine.env.location = machine.user_line()
    if any(type(arg) in _SYMBOLIC for arg in args):
        if fn in _DIVISIONS and isinstance(args[1], torch.SymInt) and args[1] == 0:
            raise Raised(
                ZeroDivisionError(
                    "division by zero" if fn is operator.truediv else "integer division or modulo by zero"
                )
            )
        if fn is operator.invert and type(args[0]) is torch.SymInt:
            return native_operation(machine, operator.sub, -1, args[0])
        if (result := size_floats.operation(machine, fn, args)) is not None:
            return result
    if (
        fn is operator.floordiv
        and torch.SymFloat in map(type, args)
        or fn in COMPARISONS
        and _rounds(*map(type, args), *args)
    ):
        # SymFloat's way by an integer loses the sign of -0.0; it compares ints as floats
        args = tuple([specialize(arg) for arg in args])
    try:
        return fn(*args)
    except Exception as exc:
        machine.translate(exc)
        if any(isinstance(arg, _SYMBOLIC) for arg in args):
            return machine.native(fn, *[specialize(arg) for arg in args])
        raise Raised(exc) from None


def _rounds(ta: type, tb: type, left: Any, right: Any) -> bool:
    """Whether symbols would be compared as floats, one of which is an int that may be none."""
    if torch.SymFloat in (ta, tb):
        return torch.SymInt in (ta, tb) or any(
            cls is int and abs(number) > _LARGE for cls, number in ((ta, left), (tb, right))
        )
    return torch.SymInt in (ta, tb) and any(
        cls is float and _LARGE <= abs(number) < math.inf for cls, number in ((ta, left), (tb, right))
    )


class _Operation(NamedTuple):
    """A binary operator, as `+` or as `+=`."""

    text: str
    symbol: str  # without the "=" of one in place
    name: str
    function: Callable
    plain: Callable  # not in place

    @property
    def in_place(self) -> bool:
        return self.function is not self.plain


_OPERATIONS = {
    text + equals: _Operation(
        text + equals,
        text,
        name,
        getattr(operator, f"__i{name}__" if equals else f"__{name}__"),
        getattr(operator, f"__{name}__"),
    )
    for text, name in _BINARY.items()
    for equals in ("", "=")
}


def binary(machine: Machine, text: str, left: Any, right: Any) -> Any:
    """`a op b`, or `a op= b`: the value that replaces a."""
    ta, tb = type(left), type(right)
    op = _OPERATIONS[text]
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(machine, op.function, left, right)
    if (ta is TraceTensor or tb is TraceTensor) and not _is_for_object(op, left, right):
        return tensor_calls.call_operator(machine, op.plain if ta is not TraceTensor else op.function, [left, right])
    if ta in ATOMS and tb in ATOMS:
        return machine.native(op.plain, left, right)
    for step in _BINARY_STEPS:
        result = step(machine, op, left, right)
        if result is not NotImplemented:
            return result
    return _by_native_code(machine, op, left, right)


def _is_for_object(op: _Operation, left: Any, right: Any) -> bool:
    """Whether a tensor meets an object whose class has the operator, which answers."""
    other, name = (type(right), f"__r{op.name}__") if type(left) is TraceTensor else (type(left), f"__{op.name}__")
    return other is not TraceTensor and python_method(other, name) is not None


def _ask(machine: Machine, method: Any, left: Any, right: Any) -> Any:
    """What a method of the program's says to `left` and `right`; NotImplemented where there is no such method."""
    return NotImplemented if method is None else machine.call(method, [left, right])


def _own_method(cls: type, name: str) -> Any:
    """A method of a class of the program's, or None. One that is None refuses the operator, and what would stand in."""
    method = python_method(cls, name)
    if method is None and found_in(cls, name) is None:
        raise Raised(TypeError("'NoneType' object is not callable"))
    return method


def _in_place(machine: Machine, op: _Operation, left: Any, right: Any) -> Any:
    """`a op= b` by a method of its own. What has none goes on as `a op b`."""
    ta = type(left)
    if not op.in_place:
        return NotImplemented
    method = _own_method(ta, f"__i{op.name}__")
    if method is not None:
        return machine.call(method, [left, right])
    if ta in _ASK_FIRST:
        result = _ask(machine, _own_method(type(right), f"__r{op.name}__"), right, left)
        if result is not NotImplemented:
            return result
    if ta not in MUTABLE and base_of(left) not in MUTABLE:
        return NotImplemented
    if machine.world.is_outside(left):
        return containers.inplace(machine, left, op.text, right)
    other = elements.items(machine, right) if isinstance(left, list) and op.text == "+=" else machine.plain(right)
    return native_operation(machine, op.function, left, other)


def _formatted(machine: Machine, op: _Operation, left: Any, b: Any) -> Any:
    """`text % value`: text knows what to do with any object, but for a subclass of its own that answers itself."""
    right = python_method(type(b), f"__r{op.name}__")  # looked up, and relied on, for all operators
    if op.symbol != "%" or not isinstance(left, (str, bytes)) or python_method(type(left), "__mod__") is not None:
        return NotImplemented
    if right is not None and issubclass(type(b), type(left)):
        return NotImplemented
    if not op.in_place and type(left) is str and (late := made_late(machine, str.__mod__, (left, b))) is not None:
        return late
    return native_operation(machine, op.plain, left, _spelled_arguments(machine, b))


def _joined_text(machine: Machine, op: _Operation, left: Any, right: Any) -> Any:
    """`text + text`, one of which holds numbers that vary."""
    if op.symbol != "+" or LateText not in (type(left), type(right)) or not {type(left), type(right)} <= _TEXTS:
        return NotImplemented
    return join_texts([left, right])


def _by_own_methods(machine: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """By methods of the program's classes: the right side first where it is of a subclass that has its own."""
    ta, tb = type(a), type(b)
    right, asked = python_method(tb, f"__r{op.name}__"), False
    if right is not None and tb is not ta and issubclass(tb, ta) and right is not python_method(ta, f"__r{op.name}__"):
        result = machine.call(right, [b, a])
        if result is not NotImplemented:
            return result
        asked = True
    left = _own_method(ta, f"__{op.name}__")
    result = _ask(machine, left, a, b)
    if result is NotImplemented and tb is not ta and not asked:
        result = _ask(machine, _own_method(tb, f"__r{op.name}__"), b, a)
    if result is not NotImplemented or left is None and right is None:
        return result
    joined = _as_sequences(machine, op.symbol, a, b)
    if joined is not None:
        return joined
    raise Raised(TypeError(f"unsupported operand type(s) for {op.text}: '{ta.__name__}' and '{tb.__name__}'"))


def _same_tuple(machine: Machine, op: _Operation, left: Any, right: Any) -> Any:
    """`a + b` and `a * b` of a tuple where they are the very tuple; NotImplemented where they are another."""
    if op.symbol == "+" and type(left) is tuple and type(right) is tuple:
        return left if _length(machine, right) == 0 else right if _length(machine, left) == 0 else NotImplemented
    for value, times in ((left, right), (right, left)) if op.symbol == "*" else ():
        if type(value) is tuple and type(times) in (int, bool) and times == 1:
            return value
    return NotImplemented


def _by_native_code(machine: Machine, op: _Operation, left: Any, right: Any) -> Any:
    if op.symbol[0] == "*":
        left, right = (
            elements.as_index(machine, left) if isinstance(right, _SEQUENCES) else left,
            (elements.as_index(machine, right) if isinstance(left, _SEQUENCES) else right),
        )
    elif isinstance(left, _SETS) and isinstance(right, _SETS):
        left, right = machine.plain(left), machine.plain(right)
        elements.settle_keys(machine, right, left)
    return native_operation(machine, op.plain, machine.plain(left), machine.plain(right))


# Ways of `a op b`, in Python's order. One that does not know the operands gives NotImplemented; the next is tried.
_BINARY_STEPS = (_in_place, _formatted, _joined_text, _by_own_methods, _same_tuple)
# sequences without operators of numbers: in place, too, the other side is asked first
_ASK_FIRST = frozenset((list, collections.deque, bytearray))
_CONCATENATED = (str, list, tuple, bytes, bytearray, collections.deque)


def _as_sequences(machine: Machine, text: str, left: Any, right: Any) -> Any:
    """`a + b` and `a * b` where the methods of numbers did not know the other side: sequences are concatenated and
    repeated. None: neither.
    """
    if text == "+" and isinstance(left, _CONCATENATED):
        name, base = type(right).__name__, next(base for base in _CONCATENATED if isinstance(left, base)).__name__
        raise Raised(
            TypeError(
                f"can't concat {name} to {base}"
                if base.startswith("byte")
                else f'can only concatenate {base} (not "{name}") to {base}'
            )
        )
    for sequence, times in ((left, right), (right, left)) if text == "*" else ():
        if isinstance(sequence, _CONCATENATED):
            number = elements.as_index(machine, times)
            if number is times:
                raise Raised(TypeError(f"can't multiply sequence by non-int of type '{type(times).__name__}'"))
            return native_operation(machine, operator.mul, machine.plain(sequence), number)
    return None


def _spelled_arguments(machine: Machine, value: Any) -> Any:
    """The right side of `text % value`."""
    if isinstance(value, tuple):
        return tuple(elements.spelled(machine, item) for item in machine.plain(value))
    if isinstance(value, dict):
        return {key: elements.spelled(machine, item) for key, item in machine.plain(value).items()}
    return elements.spelled(machine, value)


def _of_subclass(machine: Machine, fn: Callable, *args: Any) -> Any:
    """An operator with a tensor of a class of the program's."""
    return operate(machine, fn, list(args))


def unary(machine: Machine, name: str, value: Any) -> Any:
    fn, dunder = _UNARY[name]
    if type(value) is TraceTensor:
        return tensor_calls.call_operator(machine, fn, [value])
    if type(value) is Subclassed:
        return _of_subclass(machine, fn, value)
    method = python_method(type(value), dunder)
    return machine.call(method, [value]) if method is not None else native_operation(machine, fn, value)


def compare(machine: Machine, text: str, left: Any, right: Any) -> Any:
    fn = _COMPARE[text][0]
    ta, tb = type(left), type(right)
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(machine, fn, left, right)
    if ta is TraceTensor or tb is TraceTensor:
        return _compare_tensor(machine, text, left, right)
    if ta in ATOMS and tb in ATOMS:
        return machine.native(fn, left, right)
    result = _compare_by_methods(machine, text, left, right)
    if result is not NotImplemented:
        return result
    answer = elements.compare_containers(machine, text, left, right)
    if answer is not None:
        return answer
    if text in ("==", "!=") and ta.__eq__ is object.__eq__ and tb.__eq__ is object.__eq__:
        return identical(machine, left, right) == (text == "==")
    left, right = machine.deep_plain(left), machine.deep_plain(right)
    if torch.SymFloat in (ta, tb) and machine.world.opts.library is not None:
        refuse_compared(left, right)
    return native_operation(machine, fn, left, right)


def _compare_tensor(machine: Machine, text: str, left: Any, right: Any) -> Any:
    """A tensor with a tensor or a number is a node; with what can't be a number it is unequal, as torch says."""
    other = right if type(left) is TraceTensor else left
    may_be_equal = type(other) is TraceTensor or isinstance(other, (int, float, complex, bool, *_SYMBOLIC))
    if text in ("==", "!=") and not may_be_equal:
        if other is None or isinstance(other, (str, type, list, tuple, dict, torch.dtype)):
            return text == "!="
        raise Break("unknown_object", f"a tensor is compared with an object of type {type(other).__name__}")
    return tensor_calls.call_operator(machine, _COMPARE[text][0], [left, right])


def _answers_first(tb: type, ta: type, name: str) -> bool:
    """Whether the right side is asked first: it is of a subclass, and has the method."""
    return ta is not tb and issubclass(tb, ta) and _compares(tb, name)


def _compares(cls: type, name: str) -> bool:
    """Whether a class of the program's compares its objects by a method of Python's: object's `!=` asks `__eq__`."""
    return python_method(cls, name) is not None or name == "__ne__" and _negates_equal(cls)


def _negates_equal(cls: type) -> bool:
    return found_in(cls, "__ne__") is object.__ne__ and python_method(cls, "__eq__") is not None


def _ask_comparison(machine: Machine, name: str, left: Any, right: Any) -> Any:
    """What the class of `left` says; NotImplemented where it has no such method, or does not know `right`."""
    method = python_method(type(left), name)
    if method is None and name == "__ne__" and _negates_equal(type(left)):
        result = _ask(machine, python_method(type(left), "__eq__"), left, right)
        return result if result is NotImplemented else not machine.truth(result)
    return _ask(machine, method, left, right)


def _compare_by_methods(machine: Machine, text: str, left: Any, right: Any) -> Any:
    """By methods of the program's classes; NotImplemented where neither side has one."""
    _, left_name, right_name = _COMPARE[text]
    ta, tb = type(left), type(right)
    if _answers_first(tb, ta, right_name):
        result = _ask_comparison(machine, right_name, right, left)
        if result is NotImplemented:
            result = _ask_comparison(machine, left_name, left, right)
        return _compare_identity(machine, text, left, right) if result is NotImplemented else result
    result = _ask_comparison(machine, left_name, left, right)
    if result is not NotImplemented:
        return result
    result = _ask_comparison(machine, right_name, right, left)
    if result is NotImplemented and (_compares(ta, left_name) or _compares(tb, right_name)):
        return _compare_identity(machine, text, left, right)
    return result


def _compare_identity(machine: Machine, text: str, left: Any, right: Any) -> bool:
    """What is left when neither side knows the other."""
    for side, name in ((left, _COMPARE[text][1]), (right, _COMPARE[text][2])):
        if type(side) not in ATOMS and type(side) not in BUILTIN_TYPES and not _compares(type(side), name):
            found = found_in(type(side), name)
            if found is not vars(object).get(name, found):  # Decimal's looks into any rational number
                raise Break(
                    "c_call", f"a {type(left).__name__} is compared with a {type(right).__name__} by native code"
                )
    if text in ("==", "!="):
        return identical(machine, left, right) == (text == "==")
    raise Raised(
        TypeError(f"'{text}' not supported between instances of '{type(left).__name__}' and '{type(right).__name__}'")
    )


def truth(machine: Machine, value: Any) -> bool:
    """`bool(value)` of the program; a tensor ends the graph."""
    cls = type(value)
    if cls is TraceTensor:
        if (fact := known(value)) is not None:
            return machine.native(bool, fact)
        raise Break("data_dependent_branch")
    if cls is Subclassed:
        return _of_subclass(machine, bool, value)
    if cls in ATOMS:
        return bool(value)
    if isinstance(value, _SYMBOLIC):
        machine.env.location = machine.user_line()
        if is_read(value):
            raise Break("data_dependent_branch")
        if machine.env.is_open(value):
            raise Break("unbacked_size")
        return machine.env.branch(value)
    if cls is LateText:
        return bool(settled(value))
    method = python_method(cls, "__bool__")
    if method is not None:
        answer = machine.call(method, [value])
        if not isinstance(answer, (bool, torch.SymBool)):
            raise Raised(TypeError(f"__bool__ should return bool, returned {machine.world.type_of(answer).__name__}"))
        return bool(answer)
    if class_attribute(cls, "__bool__") is MISSING and (method := python_method(cls, "__len__")) is not None:
        return bool(own_length(machine, method, value))
    if machine.world.is_outside(value) and base_of(value) is not None:
        return truth(machine, containers.length(machine, value))
    if isinstance(value, InlineGenerator) or not hasattr(cls, "__bool__") and not hasattr(cls, "__len__"):
        return True
    return machine.native(bool, machine.world.pin(value))


def own_length(machine: Machine, method: Any, value: Any) -> Any:
    """What a class's own __len__ says."""
    length = elements.as_index(machine, machine.call(method, [value]))
    if type(length) is TraceTensor:
        raise Break("item", "__len__ returns a tensor")
    if not isinstance(length, (int, torch.SymInt)):
        raise Raised(TypeError(f"'{type(length).__name__}' object cannot be interpreted as an integer"))
    if length < 0:
        raise Raised(ValueError("__len__() should return >= 0"))
    return length if isinstance(length, torch.SymInt) else machine.native(len, range(length))


def identical(machine: Machine, left: Any, right: Any) -> bool:
    """`a is b`; relies on two outside objects being different ones."""
    if left is right:
        return True
    if isinstance(left, torch.SymBool):
        return bool(left) is right
    if isinstance(right, torch.SymBool):
        return bool(right) is left
    if machine.choices and (id(left) in machine.choices or id(right) in machine.choices):
        raise Break("choice", "which object max() or min() gave depends on the values of tensors")
    world = machine.world
    if (
        type(left) is torch.SymInt or type(right) is torch.SymInt
    ):  # small integers are one object each; of others nobody knows
        left, right = specialize(left), specialize(right)
        return type(left) is type(right) is int and left == right and -5 <= left <= 256
    if type(left) is type(right) and type(left) not in ATOMS:
        sources = []
        for side in (left, right):
            side = world.reals.get(id(side), side)
            source = world.source_of(side)
            if source is None:
                return False
            sources.append(source)
        if all(source.root.kind == "const" and source.base is None for source in sources):
            return False
        world.differ(*sources)
    return False


_UNHASHABLE = (list, dict, set, slice)  # from 3.12 on slices have a hash


def contains(machine: Machine, container: Any, item: Any) -> Any:
    """`item in container`."""
    cls = type(container)
    if cls is TraceTensor or cls is Subclassed:
        raise Break(
            "data_dependent_branch",
            "whether a tensor holds a value depends on its data",
            "use (tensor == value).any() with torch.where",
        )
    if machine.late_texts:
        container, item = settled(container), settled(item)
        cls = type(container)
    machine.world.identity(item)
    if id(container) in machine.world.class_dicts:
        return in_class_dict(machine, container, item) is not MISSING
    method = python_method(cls, "__contains__")
    if method is not None:
        return machine.truth(machine.call(method, [container, item]))
    if isinstance(container, (dict, *_SETS)):
        _refuse_unhashable(machine, container, item)
    if machine.world.is_outside(container):
        answer = containers.contains(machine, container, item)
        if answer is not None:
            return answer
    if isinstance(container, (list, tuple, collections.deque)):
        return _in_sequence(machine, machine.plain(container), item)
    if _iterates_itself(cls):
        return any(
            element is item or machine.truth(compare(machine, "==", element, item))
            for element in machine.iterate(container)
        )
    return _in_native(machine, machine.plain(container), item)


def _refuse_unhashable(machine: Machine, container: Any, item: Any) -> None:
    """Raise the TypeError for what has no hash; a set is looked for among sets as a frozenset."""
    if type(item) in _UNHASHABLE and (isinstance(container, dict) or type(item) is not set):
        machine.native(hash, item)


def _in_sequence(machine: Machine, values: Any, item: Any) -> Any:
    """By identity and `==`, element for element; the graph decides where tensors are compared."""
    if type(item) in ATOMS and all(type(value) in ATOMS for value in values):
        return item in values
    unknown: list[TraceTensor] = []
    for value in values:
        if unknown and type(value) not in ATOMS and type(value) is not TraceTensor:
            machine.truth(unknown[0])  # whether its class is asked depends on it
        if value is item:
            return True
        answer = compare(machine, "==", value, item)
        if undecided(machine, answer):
            unknown.append(answer)
        elif machine.truth(answer):
            return True
    return any_of(machine, unknown) if unknown else False


def _iterates_itself(cls: type) -> bool:
    """Whether the class has no __contains__, and iterates in Python."""
    return (
        python_method(cls, "__iter__") is not None
        or not hasattr(cls, "__iter__")
        and python_method(cls, "__getitem__") is not None
    )


def _in_native(machine: Machine, container: Any, item: Any) -> Any:
    """By native code: hashes of dicts and sets, texts, ranges, ..."""
    if isinstance(container, (dict, *_SETS)):
        if (
            type(item) is torch.SymInt
            and len(container) <= _FEW
            and all(type(element) in ATOMS for element in container)
        ):
            return any(machine.truth(compare(machine, "==", element, item)) for element in container)
        item = hashed(item)
        elements.settle_keys(machine, (item,), container)
    elif machine.world.is_outside(container) and not isinstance(container, (str, bytes, range, *IMMUTABLE)):
        raise Break("unknown_object", f"native code looks for a value in a {type(container).__name__} from outside")
    return machine.native(operator.contains, container, item)


def get_item(machine: Machine, obj: Any, key: Any) -> Any:
    cls = type(obj)
    if cls is Subclassed or type(key) is Subclassed and cls is TraceTensor:
        return _of_subclass(machine, operator.getitem, obj, key)
    if cls is TraceTensor:
        return tensor_calls.call_operator(machine, operator.getitem, [obj, key])
    if isinstance(obj, type):
        return _item_of_class(machine, obj, key)
    if cls.__module__ == "typing":  # List[int]: caches of its own make it a function of the key
        return machine.native(operator.getitem, obj, machine.deep_plain(key))
    machine.world.identity(key)
    if cls is tuple and type(key) is slice and _is_whole(machine, obj, key):
        return obj
    if id(obj) in machine.world.class_dicts:
        if (value := in_class_dict(machine, obj, key)) is MISSING:
            raise Raised(KeyError(key))
        return value
    method = python_method(cls, "__getitem__")
    if method is not None:
        return machine.call(method, [obj, key])
    if isinstance(obj, dict) and type(key) in _UNHASHABLE:
        machine.native(hash, key)
    if machine.world.is_outside(obj):
        return containers.get_item(machine, obj, key)
    key = _settled(machine, obj, key)
    if isinstance(obj, dict) and not isinstance(key, (TraceTensor, *_SYMBOLIC)):
        made = _made_for_missing(machine, obj, key)
        if made is not MISSING:
            return made
    return native_operation(machine, operator.getitem, obj, key)


def _item_of_class(machine: Machine, cls: type, key: Any) -> Any:
    """cls[key]: a member of an enum, what the metaclass or the class itself says, or a generic alias."""
    method = python_method(type(cls), "__getitem__")
    if method is not None:
        if type(method) is types.FunctionType and method.__module__ == "enum":
            return _member_of_enum(machine, cls, key)
        return machine.call(method, [cls, key])
    subscript = class_attribute(cls, "__class_getitem__")
    if (
        isinstance(subscript, classmethod)
        and isinstance(subscript.__func__, types.FunctionType)
        and subscript.__func__.__module__ != "typing"
    ):
        return machine.call(machine.getattr(cls, "__class_getitem__"), [key])
    return machine.native(operator.getitem, cls, machine.deep_plain(key))


def _member_of_enum(machine: Machine, cls: Any, key: Any) -> Any:
    if type(key) is str and key in cls._member_map_ and id(cls) not in machine.world.made:
        source = S.dict_value(S.attr(machine.world.anchor(cls), "_member_map_"), key)
        return machine.world.load(cls._member_map_[key], source, "member of an enum")
    return machine.getattr(cls, key)


def _made_for_missing(machine: Machine, obj: Any, key: Any) -> Any:
    """What a dict made inside gives for a key that it lacks; MISSING where native code may look itself."""
    cls = type(obj)
    method = python_method(cls, "__missing__")
    if method is not None and key not in obj:
        return machine.call(method, [obj, key])
    if cls.__name__ == "defaultdict" and key not in obj and obj.default_factory is not None:
        obj[key] = machine.call(obj.default_factory, [])
        return obj[key]
    return MISSING


def _length(machine: Machine, value: tuple) -> int:
    return containers.length(machine, value) if machine.world.is_outside(value) else len(value)


def _is_whole(machine: Machine, value: tuple, key: slice) -> bool:
    """Whether a slice of a tuple is the tuple itself."""
    if not {type(key.start), type(key.stop), type(key.step)} <= {type(None), int} or key.step == 0:
        return False
    length = _length(machine, value)
    return key.indices(length) == (0, length, 1)


def _settled(machine: Machine, obj: Any, key: Any) -> Any:
    """A key as native code may take it."""
    if type(key) in ATOMS:
        return key
    if isinstance(obj, dict):
        key = hashed(key)
        elements.settle_keys(machine, (key,), obj)
        return key
    return elements.as_key(machine, key)


def set_item(machine: Machine, obj: Any, key: Any, value: Any) -> None:
    cls = type(obj)
    if cls is Subclassed or cls is TraceTensor and (type(key) is Subclassed or type(value) is Subclassed):
        _of_subclass(machine, operator.setitem, obj, key, value)
        return
    if cls is TraceTensor:
        tensor_calls.call_operator(machine, operator.setitem, [obj, key, value])
        return
    machine.world.identity(key)
    method = python_method(cls, "__setitem__")
    if method is not None:
        machine.call(method, [obj, key, value])
    elif machine.world.is_outside(obj):
        containers.mutate(machine, obj, "__setitem__", [key, value], {})
    else:
        if isinstance(obj, list) and isinstance(key, slice):
            value = list(machine.iterate(value))
        settled = _settled(machine, obj, key)
        if isinstance(obj, (list, dict)):  # they hold the value and don't look at it
            native_operation(machine, lambda container, key: operator.setitem(container, key, value), obj, settled)
        else:
            native_operation(machine, operator.setitem, obj, settled, value)


def delete_item(machine: Machine, obj: Any, key: Any) -> None:
    method = python_method(type(obj), "__delitem__")
    if method is not None:
        machine.call(method, [obj, key])
    elif machine.world.is_outside(obj):
        containers.mutate(machine, obj, "__delitem__", [key], {})
    else:
        native_operation(machine, operator.delitem, obj, _settled(machine, obj, key))


for _text, _op in _OPERATIONS.items():
    OPERATOR_FUNCTIONS[_op.function] = lambda machine, left, right, text=_text: binary(machine, text, left, right)
for _text, (_fn, _l, _r) in _COMPARE.items():
    OPERATOR_FUNCTIONS[_fn] = lambda machine, left, right, text=_text: compare(machine, text, left, right)
for _uname, (_fn, _name) in _UNARY.items():
    OPERATOR_FUNCTIONS[_fn] = lambda machine, operand, name=_uname: unary(machine, name, operand)
OPERATOR_FUNCTIONS.update(
    {
        operator.getitem: get_item,
        operator.setitem: set_item,
        operator.delitem: delete_item,
        operator.contains: lambda machine, container, item: contains(machine, container, item),
        operator.truth: truth,
        operator.not_: negation,
        operator.is_: identical,
        operator.is_not: lambda machine, left, right: not identical(machine, left, right),
    }
)


# --- the instructions
@handler("BINARY_SUBSCR")
def binary_subscr(machine: Machine, frame: Frame, ins: Any) -> None:
    key = frame.stack.pop()
    frame.stack[-1] = get_item(machine, frame.stack[-1], key)


@handler("STORE_SUBSCR")
def store_subscr(machine: Machine, frame: Frame, ins: Any) -> None:
    key, obj, value = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    set_item(machine, obj, key, value)


@handler("DELETE_SUBSCR")
def delete_subscr(machine: Machine, frame: Frame, ins: Any) -> None:
    key = frame.stack.pop()
    delete_item(machine, frame.stack.pop(), key)


@handler("UNARY_POSITIVE", "UNARY_NEGATIVE", "UNARY_INVERT")
def unary_op(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack[-1] = unary(machine, ins.op, frame.stack[-1])


@handler("UNARY_NOT")
def unary_not(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack[-1] = negation(machine, frame.stack[-1])


@handler("BINARY_OP")
def binary_op(machine: Machine, frame: Frame, ins: Any) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = binary(machine, ins.arg, frame.stack[-1], right)


@handler("COMPARE_OP")
def compare_op(machine: Machine, frame: Frame, ins: Any) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = compare(machine, ins.arg, frame.stack[-1], right)


@handler("IS_OP")
def is_op(machine: Machine, frame: Frame, ins: Any) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = identical(machine, frame.stack[-1], right) != bool(ins.arg)


@handler("CONTAINS_OP")
def contains_op(machine: Machine, frame: Frame, ins: Any) -> None:
    right = frame.stack.pop()
    found = contains(machine, right, frame.stack[-1])
    frame.stack[-1] = found != bool(ins.arg) if type(found) is bool else negated(machine, found) if ins.arg else found


@handler("TO_BOOL")
def to_bool(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack[-1]
    varies = type(value) is TraceTensor or is_read(value) or machine.env.is_open(value)
    if not varies or frame.program[frame.pc][1].op not in ASK_FOR_TRUTH:
        # else the jump asks
        frame.stack[-1] = truth(machine, value)
