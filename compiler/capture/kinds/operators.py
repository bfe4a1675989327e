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
from ..numbers.late_text import LateText, hashed, join_texts, made_late, settled
from .lookups import class_attribute, found_in
from ..numbers.tensor_reads import COMPARISONS, is_read, negated
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


def native_operation(m: Machine, fn: Callable, *args: Any) -> Any:
    """Native operator on values without TraceTensors; a size expression that it cannot take is fixed to its value."""
    if m.late_texts:
        args = tuple(map(settled, args))
    for a in args:
        m.world.pin(a)
    if m.env.hints:
        m.env.location = m.user_line()
    if any(type(a) in _SYMBOLIC for a in args):
        if fn in _DIVISIONS and isinstance(args[1], torch.SymInt) and args[1] == 0:
            raise Raised(
                ZeroDivisionError(
                    "division by zero" if fn is operator.truediv else "integer division or modulo by zero"
                )
            )
        if fn is operator.invert and type(args[0]) is torch.SymInt:
            return native_operation(m, operator.sub, -1, args[0])
        if (result := size_floats.operation(m, fn, args)) is not None:
            return result
    if (
        fn is operator.floordiv
        and torch.SymFloat in map(type, args)
        or fn in COMPARISONS
        and _rounds(*map(type, args), *args)
    ):
        args = tuple(
            [specialize(a) for a in args]
        )  # SymFloat's way by an integer loses the sign of -0.0; it compares ints as floats
    try:
        return fn(*args)
    except Exception as exc:
        m.translate(exc)
        if any(isinstance(a, _SYMBOLIC) for a in args):
            return m.native(fn, *[specialize(a) for a in args])
        raise Raised(exc) from None


def _rounds(ta: type, tb: type, a: Any, b: Any) -> bool:
    """Whether symbols would be compared as floats, one of which is an int that may be none."""
    if torch.SymFloat in (ta, tb):
        return torch.SymInt in (ta, tb) or any(t is int and abs(n) > _LARGE for t, n in ((ta, a), (tb, b)))
    return torch.SymInt in (ta, tb) and any(t is float and _LARGE <= abs(n) < math.inf for t, n in ((ta, a), (tb, b)))


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


def binary(m: Machine, text: str, a: Any, b: Any) -> Any:
    """`a op b`, or `a op= b`: the value that replaces a."""
    ta, tb = type(a), type(b)
    op = _OPERATIONS[text]
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(m, op.function, a, b)
    if (ta is TraceTensor or tb is TraceTensor) and not _is_for_object(op, a, b):
        return tensor_calls.call_operator(m, op.plain if ta is not TraceTensor else op.function, [a, b])
    if ta in ATOMS and tb in ATOMS:
        return m.native(op.plain, a, b)
    for step in _BINARY_STEPS:
        result = step(m, op, a, b)
        if result is not NotImplemented:
            return result
    return _by_native_code(m, op, a, b)


def _is_for_object(op: _Operation, a: Any, b: Any) -> bool:
    """Whether a tensor meets an object whose class has the operator, which answers."""
    other, name = (type(b), f"__r{op.name}__") if type(a) is TraceTensor else (type(a), f"__{op.name}__")
    return other is not TraceTensor and python_method(other, name) is not None


def _ask(m: Machine, method: Any, a: Any, b: Any) -> Any:
    """What a method of a class of the program's says to `a` and `b`; NotImplemented where there is no such method."""
    return NotImplemented if method is None else m.call(method, [a, b])


def _own_method(cls: type, name: str) -> Any:
    """A method of a class of the program's, or None. One that is None refuses the operator, and what would stand in."""
    method = python_method(cls, name)
    if method is None and found_in(cls, name) is None:
        raise Raised(TypeError("'NoneType' object is not callable"))
    return method


def _in_place(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """`a op= b` by a method of its own. What has none goes on as `a op b`."""
    ta = type(a)
    if not op.in_place:
        return NotImplemented
    method = _own_method(ta, f"__i{op.name}__")
    if method is not None:
        return m.call(method, [a, b])
    if ta in _ASK_FIRST:
        result = _ask(m, _own_method(type(b), f"__r{op.name}__"), b, a)
        if result is not NotImplemented:
            return result
    if ta not in MUTABLE and base_of(a) not in MUTABLE:
        return NotImplemented
    if m.world.is_outside(a):
        return containers.inplace(m, a, op.text, b)
    other = elements.items(m, b) if isinstance(a, list) and op.text == "+=" else m.plain(b)
    return native_operation(m, op.function, a, other)


def _formatted(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """`text % value`: text knows what to do with any object, but for a subclass of its own that answers itself."""
    right = python_method(type(b), f"__r{op.name}__")  # looked up, and relied on, for all operators
    if op.symbol != "%" or not isinstance(a, (str, bytes)) or python_method(type(a), "__mod__") is not None:
        return NotImplemented
    if right is not None and issubclass(type(b), type(a)):
        return NotImplemented
    if not op.in_place and type(a) is str and (late := made_late(m, str.__mod__, (a, b))) is not None:
        return late
    return native_operation(m, op.plain, a, _spelled_arguments(m, b))


def _joined_text(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """`text + text`, one of which holds numbers that vary."""
    if op.symbol != "+" or LateText not in (type(a), type(b)) or not {type(a), type(b)} <= _TEXTS:
        return NotImplemented
    return join_texts([a, b])


def _by_own_methods(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """By methods of the program's classes: the right side first where it is of a subclass that has its own."""
    ta, tb = type(a), type(b)
    right, asked = python_method(tb, f"__r{op.name}__"), False
    if right is not None and tb is not ta and issubclass(tb, ta) and right is not python_method(ta, f"__r{op.name}__"):
        result = m.call(right, [b, a])
        if result is not NotImplemented:
            return result
        asked = True
    left = _own_method(ta, f"__{op.name}__")
    result = _ask(m, left, a, b)
    if result is NotImplemented and tb is not ta and not asked:
        result = _ask(m, _own_method(tb, f"__r{op.name}__"), b, a)
    if result is not NotImplemented or left is None and right is None:
        return result
    joined = _as_sequences(m, op.symbol, a, b)
    if joined is not None:
        return joined
    raise Raised(TypeError(f"unsupported operand type(s) for {op.text}: '{ta.__name__}' and '{tb.__name__}'"))


def _same_tuple(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    """`a + b` and `a * b` of a tuple where they are the very tuple; NotImplemented where they are another."""
    if op.symbol == "+" and type(a) is tuple and type(b) is tuple:
        return a if _length(m, b) == 0 else b if _length(m, a) == 0 else NotImplemented
    for value, times in ((a, b), (b, a)) if op.symbol == "*" else ():
        if type(value) is tuple and type(times) in (int, bool) and times == 1:
            return value
    return NotImplemented


def _by_native_code(m: Machine, op: _Operation, a: Any, b: Any) -> Any:
    if op.symbol[0] == "*":
        a, b = (
            elements.as_index(m, a) if isinstance(b, _SEQUENCES) else a,
            (elements.as_index(m, b) if isinstance(a, _SEQUENCES) else b),
        )
    elif isinstance(a, _SETS) and isinstance(b, _SETS):
        a, b = m.plain(a), m.plain(b)
        elements.settle_keys(m, b, a)
    return native_operation(m, op.plain, m.plain(a), m.plain(b))


# Ways of `a op b`, in Python's order. One that does not know the operands gives NotImplemented; the next is tried.
_BINARY_STEPS = (_in_place, _formatted, _joined_text, _by_own_methods, _same_tuple)
_ASK_FIRST = frozenset(
    (list, collections.deque, bytearray)
)  # sequences without operators of numbers: in place, too, the other side is asked first
_CONCATENATED = (str, list, tuple, bytes, bytearray, collections.deque)


def _as_sequences(m: Machine, text: str, a: Any, b: Any) -> Any:
    """`a + b` and `a * b` where the methods of numbers did not know the other side: sequences are concatenated and
    repeated. None: neither.
    """
    if text == "+" and isinstance(a, _CONCATENATED):
        name, base = type(b).__name__, next(base for base in _CONCATENATED if isinstance(a, base)).__name__
        raise Raised(
            TypeError(
                f"can't concat {name} to {base}"
                if base.startswith("byte")
                else f'can only concatenate {base} (not "{name}") to {base}'
            )
        )
    for sequence, times in ((a, b), (b, a)) if text == "*" else ():
        if isinstance(sequence, _CONCATENATED):
            number = elements.as_index(m, times)
            if number is times:
                raise Raised(TypeError(f"can't multiply sequence by non-int of type '{type(times).__name__}'"))
            return native_operation(m, operator.mul, m.plain(sequence), number)
    return None


def _spelled_arguments(m: Machine, value: Any) -> Any:
    """The right side of `text % value`."""
    if isinstance(value, tuple):
        return tuple(elements.spelled(m, v) for v in m.plain(value))
    if isinstance(value, dict):
        return {k: elements.spelled(m, v) for k, v in m.plain(value).items()}
    return elements.spelled(m, value)


def _of_subclass(m: Machine, fn: Callable, *args: Any) -> Any:
    """An operator with a tensor of a class of the program's."""
    return operate(m, fn, list(args))


def unary(m: Machine, name: str, value: Any) -> Any:
    fn, dunder = _UNARY[name]
    if type(value) is TraceTensor:
        return tensor_calls.call_operator(m, fn, [value])
    if type(value) is Subclassed:
        return _of_subclass(m, fn, value)
    method = python_method(type(value), dunder)
    return m.call(method, [value]) if method is not None else native_operation(m, fn, value)


def compare(m: Machine, text: str, a: Any, b: Any) -> Any:
    fn = _COMPARE[text][0]
    ta, tb = type(a), type(b)
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(m, fn, a, b)
    if ta is TraceTensor or tb is TraceTensor:
        return _compare_tensor(m, text, a, b)
    if ta in ATOMS and tb in ATOMS:
        return m.native(fn, a, b)
    result = _compare_by_methods(m, text, a, b)
    if result is not NotImplemented:
        return result
    answer = _compare_elements(m, text, a, b)
    if answer is not None:
        return answer
    if text in ("==", "!=") and ta.__eq__ is object.__eq__ and tb.__eq__ is object.__eq__:
        return identical(m, a, b) == (text == "==")
    return native_operation(m, fn, m.deep_plain(a), m.deep_plain(b))


def _compare_tensor(m: Machine, text: str, a: Any, b: Any) -> Any:
    """A tensor with a tensor or a number is a node; with what can't be a number it is unequal, as torch says."""
    other = b if type(a) is TraceTensor else a
    may_be_equal = type(other) is TraceTensor or isinstance(other, (int, float, complex, bool, *_SYMBOLIC))
    if text in ("==", "!=") and not may_be_equal:
        if other is None or isinstance(other, (str, type, list, tuple, dict, torch.dtype)):
            return text == "!="
        raise Break("unknown_object", f"a tensor is compared with an object of type {type(other).__name__}")
    return tensor_calls.call_operator(m, _COMPARE[text][0], [a, b])


def _answers_first(tb: type, ta: type, name: str) -> bool:
    """Whether the right side is asked first: it is of a subclass, and has the method."""
    return ta is not tb and issubclass(tb, ta) and _compares(tb, name)


def _compares(cls: type, name: str) -> bool:
    """Whether a class of the program's compares its objects by a method of Python's: object's `!=` asks `__eq__`."""
    return python_method(cls, name) is not None or name == "__ne__" and _negates_equal(cls)


def _negates_equal(cls: type) -> bool:
    return found_in(cls, "__ne__") is object.__ne__ and python_method(cls, "__eq__") is not None


def _ask_comparison(m: Machine, name: str, a: Any, b: Any) -> Any:
    """What the class of `a` says; NotImplemented where it has no such method, or does not know `b`."""
    method = python_method(type(a), name)
    if method is None and name == "__ne__" and _negates_equal(type(a)):
        result = _ask(m, python_method(type(a), "__eq__"), a, b)
        return result if result is NotImplemented else not m.truth(result)
    return _ask(m, method, a, b)


def _compare_by_methods(m: Machine, text: str, a: Any, b: Any) -> Any:
    """By methods of the program's classes; NotImplemented where neither side has one."""
    _, left_name, right_name = _COMPARE[text]
    ta, tb = type(a), type(b)
    if _answers_first(tb, ta, right_name):
        result = _ask_comparison(m, right_name, b, a)
        if result is NotImplemented:
            result = _ask_comparison(m, left_name, a, b)
        return _compare_identity(m, text, a, b) if result is NotImplemented else result
    result = _ask_comparison(m, left_name, a, b)
    if result is not NotImplemented:
        return result
    result = _ask_comparison(m, right_name, b, a)
    if result is NotImplemented and (_compares(ta, left_name) or _compares(tb, right_name)):
        return _compare_identity(m, text, a, b)
    return result


def _compare_identity(m: Machine, text: str, a: Any, b: Any) -> bool:
    """What is left when neither side knows the other."""
    for x, name in ((a, _COMPARE[text][1]), (b, _COMPARE[text][2])):
        if type(x) not in ATOMS and type(x) not in BUILTIN_TYPES and not _compares(type(x), name):
            found = found_in(type(x), name)
            if found is not vars(object).get(name, found):  # Decimal's looks into any rational number
                raise Break("c_call", f"a {type(a).__name__} is compared with a {type(b).__name__} by native code")
    if text in ("==", "!="):
        return identical(m, a, b) == (text == "==")
    raise Raised(
        TypeError(f"'{text}' not supported between instances of '{type(a).__name__}' and '{type(b).__name__}'")
    )


def _compare_elements(m: Machine, text: str, a: Any, b: Any) -> Any:
    """Builtin containers that hold objects which compare in their own way; None for others."""
    for base in (list, tuple):
        if isinstance(a, base) and isinstance(b, base):
            if text in ("==", "!="):
                same = elements.equal_sequences(m, a, b)
                return same if same is None else same == (text == "==")
            return elements.order_sequences(m, text, a, b)
    if text in ("==", "!=") and type(a) is dict and type(b) is dict:
        same = elements.equal_dicts(m, a, b)
        return same if same is None else same == (text == "==")
    return None


def truth(m: Machine, value: Any) -> bool:
    """`bool(value)` of the program; a tensor ends the graph."""
    t = type(value)
    if t is TraceTensor:
        if (fact := known(value)) is not None:
            return m.native(bool, fact)
        raise Break("data_dependent_branch")
    if t is Subclassed:
        return _of_subclass(m, bool, value)
    if t in ATOMS:
        return bool(value)
    if isinstance(value, _SYMBOLIC):
        m.env.location = m.user_line()
        if is_read(value):
            raise Break("data_dependent_branch")
        if m.env.is_open(value):
            raise Break("unbacked_size")
        return m.env.branch(value)
    if t is LateText:
        return bool(settled(value))
    method = python_method(t, "__bool__")
    if method is not None:
        answer = m.call(method, [value])
        if not isinstance(answer, (bool, torch.SymBool)):
            raise Raised(TypeError(f"__bool__ should return bool, returned {m.world.type_of(answer).__name__}"))
        return bool(answer)
    if class_attribute(t, "__bool__") is MISSING and (method := python_method(t, "__len__")) is not None:
        return bool(own_length(m, method, value))
    if m.world.is_outside(value) and base_of(value) is not None:
        return truth(m, containers.length(m, value))
    if isinstance(value, InlineGenerator) or not hasattr(t, "__bool__") and not hasattr(t, "__len__"):
        return True
    return m.native(bool, m.world.pin(value))


def own_length(m: Machine, method: Any, value: Any) -> Any:
    """What a class's own __len__ says."""
    n = elements.as_index(m, m.call(method, [value]))
    if type(n) is TraceTensor:
        raise Break("item", "__len__ returns a tensor")
    if not isinstance(n, (int, torch.SymInt)):
        raise Raised(TypeError(f"'{type(n).__name__}' object cannot be interpreted as an integer"))
    if n < 0:
        raise Raised(ValueError("__len__() should return >= 0"))
    return n if isinstance(n, torch.SymInt) else m.native(len, range(n))


def identical(m: Machine, a: Any, b: Any) -> bool:
    """`a is b`; relies on two outside objects being different ones."""
    if a is b:
        return True
    if isinstance(a, torch.SymBool):
        return bool(a) is b
    if isinstance(b, torch.SymBool):
        return bool(b) is a
    if m.choices and (id(a) in m.choices or id(b) in m.choices):
        raise Break("choice", "which object max() or min() gave depends on the values of tensors")
    world = m.world
    if type(a) is torch.SymInt or type(b) is torch.SymInt:  # small integers are one object each; of others nobody knows
        a, b = specialize(a), specialize(b)
        return type(a) is type(b) is int and a == b and -5 <= a <= 256
    if type(a) is type(b) and type(a) not in ATOMS:
        sources = []
        for v in (a, b):
            v = world.reals.get(id(v), v)
            source = world.source_of(v)
            if source is None:
                return False
            sources.append(source)
        if all(s.root.kind == "const" and s.base is None for s in sources):
            return False
        world.differ(*sources)
    return False


_UNHASHABLE = (list, dict, set, slice)  # from 3.12 on slices have a hash


def contains(m: Machine, container: Any, item: Any) -> Any:
    """`item in container`."""
    t = type(container)
    if t is TraceTensor or t is Subclassed:
        raise Break(
            "data_dependent_branch",
            "whether a tensor holds a value depends on its data",
            "use (tensor == value).any() with torch.where",
        )
    if m.late_texts:
        container, item = settled(container), settled(item)
        t = type(container)
    m.world.identity(item)
    if id(container) in m.world.class_dicts:
        return in_class_dict(m, container, item) is not MISSING
    method = python_method(t, "__contains__")
    if method is not None:
        return m.truth(m.call(method, [container, item]))
    if isinstance(container, (dict, *_SETS)):
        _refuse_unhashable(m, container, item)
    if m.world.is_outside(container):
        answer = containers.contains(m, container, item)
        if answer is not None:
            return answer
    if isinstance(container, (list, tuple, collections.deque)):
        return _in_sequence(m, m.plain(container), item)
    if _iterates_itself(t):
        return any(v is item or m.truth(compare(m, "==", v, item)) for v in m.iterate(container))
    return _in_native(m, m.plain(container), item)


def _refuse_unhashable(m: Machine, container: Any, item: Any) -> None:
    """Raise the TypeError for what has no hash; a set is looked for among sets as a frozenset."""
    if type(item) in _UNHASHABLE and (isinstance(container, dict) or type(item) is not set):
        m.native(hash, item)


def _in_sequence(m: Machine, values: Any, item: Any) -> Any:
    """By identity and `==`, element for element; the graph decides where tensors are compared."""
    if type(item) in ATOMS and all(type(v) in ATOMS for v in values):
        return item in values
    unknown: list[TraceTensor] = []
    for v in values:
        if unknown and type(v) not in ATOMS and type(v) is not TraceTensor:
            m.truth(unknown[0])  # whether its class is asked depends on it
        if v is item:
            return True
        answer = compare(m, "==", v, item)
        if undecided(m, answer):
            unknown.append(answer)
        elif m.truth(answer):
            return True
    return any_of(m, unknown) if unknown else False


def _iterates_itself(t: type) -> bool:
    """Whether the class has no __contains__, and iterates in Python."""
    return (
        python_method(t, "__iter__") is not None
        or not hasattr(t, "__iter__")
        and python_method(t, "__getitem__") is not None
    )


def _in_native(m: Machine, container: Any, item: Any) -> Any:
    """By native code: hashes of dicts and sets, texts, ranges, ..."""
    if isinstance(container, (dict, *_SETS)):
        if type(item) is torch.SymInt and len(container) <= _FEW and all(type(v) in ATOMS for v in container):
            return any(m.truth(compare(m, "==", v, item)) for v in container)
        item = hashed(item)
        elements.settle_keys(m, (item,), container)
    elif m.world.is_outside(container) and not isinstance(container, (str, bytes, range, *IMMUTABLE)):
        raise Break("unknown_object", f"native code looks for a value in a {type(container).__name__} from outside")
    return m.native(operator.contains, container, item)


def get_item(m: Machine, obj: Any, key: Any) -> Any:
    t = type(obj)
    if t is Subclassed or type(key) is Subclassed and t is TraceTensor:
        return _of_subclass(m, operator.getitem, obj, key)
    if t is TraceTensor:
        return tensor_calls.call_operator(m, operator.getitem, [obj, key])
    if isinstance(obj, type):
        return _item_of_class(m, obj, key)
    if t.__module__ == "typing":  # List[int]: caches of its own make it a function of the key
        return m.native(operator.getitem, obj, m.deep_plain(key))
    m.world.identity(key)
    if t is tuple and type(key) is slice and _is_whole(m, obj, key):
        return obj
    if id(obj) in m.world.class_dicts:
        if (value := in_class_dict(m, obj, key)) is MISSING:
            raise Raised(KeyError(key))
        return value
    method = python_method(t, "__getitem__")
    if method is not None:
        return m.call(method, [obj, key])
    if isinstance(obj, dict) and type(key) in _UNHASHABLE:
        m.native(hash, key)
    if m.world.is_outside(obj):
        return containers.get_item(m, obj, key)
    key = _settled(m, obj, key)
    if isinstance(obj, dict) and not isinstance(key, (TraceTensor, *_SYMBOLIC)):
        made = _made_for_missing(m, obj, key)
        if made is not MISSING:
            return made
    return native_operation(m, operator.getitem, obj, key)


def _item_of_class(m: Machine, cls: type, key: Any) -> Any:
    """cls[key]: a member of an enum, what the metaclass or the class itself says, or a generic alias."""
    method = python_method(type(cls), "__getitem__")
    if method is not None:
        if type(method) is types.FunctionType and method.__module__ == "enum":
            return _member_of_enum(m, cls, key)
        return m.call(method, [cls, key])
    subscript = class_attribute(cls, "__class_getitem__")
    if (
        isinstance(subscript, classmethod)
        and isinstance(subscript.__func__, types.FunctionType)
        and subscript.__func__.__module__ != "typing"
    ):
        return m.call(m.getattr(cls, "__class_getitem__"), [key])
    return m.native(operator.getitem, cls, m.deep_plain(key))


def _member_of_enum(m: Machine, cls: Any, key: Any) -> Any:
    if type(key) is str and key in cls._member_map_ and id(cls) not in m.world.made:
        source = S.dict_value(S.attr(m.world.anchor(cls), "_member_map_"), key)
        return m.world.load(cls._member_map_[key], source, "member of an enum")
    return m.getattr(cls, key)


def _made_for_missing(m: Machine, obj: Any, key: Any) -> Any:
    """What a dict made inside gives for a key that it lacks; MISSING where native code may look itself."""
    t = type(obj)
    method = python_method(t, "__missing__")
    if method is not None and key not in obj:
        return m.call(method, [obj, key])
    if t.__name__ == "defaultdict" and key not in obj and obj.default_factory is not None:
        obj[key] = m.call(obj.default_factory, [])
        return obj[key]
    return MISSING


def _length(m: Machine, value: tuple) -> int:
    return containers.length(m, value) if m.world.is_outside(value) else len(value)


def _is_whole(m: Machine, value: tuple, key: slice) -> bool:
    """Whether a slice of a tuple is the tuple itself."""
    if not {type(key.start), type(key.stop), type(key.step)} <= {type(None), int} or key.step == 0:
        return False
    n = _length(m, value)
    return key.indices(n) == (0, n, 1)


def _settled(m: Machine, obj: Any, key: Any) -> Any:
    """A key as native code may take it."""
    if type(key) in ATOMS:
        return key
    if isinstance(obj, dict):
        key = hashed(key)
        elements.settle_keys(m, (key,), obj)
        return key
    return elements.as_key(m, key)


def set_item(m: Machine, obj: Any, key: Any, value: Any) -> None:
    t = type(obj)
    if t is Subclassed or t is TraceTensor and (type(key) is Subclassed or type(value) is Subclassed):
        _of_subclass(m, operator.setitem, obj, key, value)
        return
    if t is TraceTensor:
        tensor_calls.call_operator(m, operator.setitem, [obj, key, value])
        return
    m.world.identity(key)
    method = python_method(t, "__setitem__")
    if method is not None:
        m.call(method, [obj, key, value])
    elif m.world.is_outside(obj):
        containers.mutate(m, obj, "__setitem__", [key, value], {})
    else:
        if isinstance(obj, list) and isinstance(key, slice):
            value = list(m.iterate(value))
        settled = _settled(m, obj, key)
        if isinstance(obj, (list, dict)):  # they hold the value and don't look at it
            native_operation(m, lambda container, key: operator.setitem(container, key, value), obj, settled)
        else:
            native_operation(m, operator.setitem, obj, settled, value)


def delete_item(m: Machine, obj: Any, key: Any) -> None:
    method = python_method(type(obj), "__delitem__")
    if method is not None:
        m.call(method, [obj, key])
    elif m.world.is_outside(obj):
        containers.mutate(m, obj, "__delitem__", [key], {})
    else:
        native_operation(m, operator.delitem, obj, _settled(m, obj, key))


for _text, _op in _OPERATIONS.items():
    OPERATOR_FUNCTIONS[_op.function] = lambda m, a, b, text=_text: binary(m, text, a, b)
for _text, (_fn, _l, _r) in _COMPARE.items():
    OPERATOR_FUNCTIONS[_fn] = lambda m, a, b, text=_text: compare(m, text, a, b)
for _uname, (_fn, _name) in _UNARY.items():
    OPERATOR_FUNCTIONS[_fn] = lambda m, a, name=_uname: unary(m, name, a)
OPERATOR_FUNCTIONS.update(
    {
        operator.getitem: get_item,
        operator.setitem: set_item,
        operator.delitem: delete_item,
        operator.contains: lambda m, a, b: contains(m, a, b),
        operator.truth: truth,
        operator.not_: lambda m, a: not truth(m, a),
        operator.is_: identical,
        operator.is_not: lambda m, a, b: not identical(m, a, b),
    }
)


# --- the instructions
@handler("BINARY_SUBSCR")
def binary_subscr(m: Machine, f: Frame, ins: Any) -> None:
    key = f.stack.pop()
    f.stack[-1] = get_item(m, f.stack[-1], key)


@handler("STORE_SUBSCR")
def store_subscr(m: Machine, f: Frame, ins: Any) -> None:
    key, obj, value = f.stack.pop(), f.stack.pop(), f.stack.pop()
    set_item(m, obj, key, value)


@handler("DELETE_SUBSCR")
def delete_subscr(m: Machine, f: Frame, ins: Any) -> None:
    key = f.stack.pop()
    delete_item(m, f.stack.pop(), key)


@handler("UNARY_POSITIVE", "UNARY_NEGATIVE", "UNARY_INVERT")
def unary_op(m: Machine, f: Frame, ins: Any) -> None:
    f.stack[-1] = unary(m, ins.op, f.stack[-1])


@handler("UNARY_NOT")
def unary_not(m: Machine, f: Frame, ins: Any) -> None:
    f.stack[-1] = not truth(m, f.stack[-1])


@handler("BINARY_OP")
def binary_op(m: Machine, f: Frame, ins: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = binary(m, ins.arg, f.stack[-1], right)


@handler("COMPARE_OP")
def compare_op(m: Machine, f: Frame, ins: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = compare(m, ins.arg, f.stack[-1], right)


@handler("IS_OP")
def is_op(m: Machine, f: Frame, ins: Any) -> None:
    right = f.stack.pop()
    f.stack[-1] = identical(m, f.stack[-1], right) != bool(ins.arg)


@handler("CONTAINS_OP")
def contains_op(m: Machine, f: Frame, ins: Any) -> None:
    right = f.stack.pop()
    found = contains(m, right, f.stack[-1])
    f.stack[-1] = found != bool(ins.arg) if type(found) is bool else negated(m, found) if ins.arg else found


@handler("TO_BOOL")
def to_bool(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack[-1]
    varies = type(v) is TraceTensor or is_read(v) or m.env.is_open(v)
    if not varies or f.program[f.pc][1].op not in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):  # else the jump asks
        f.stack[-1] = truth(m, v)
