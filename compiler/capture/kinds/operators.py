"""Operators on stack values: tensors go to the graph, Python objects' own methods are interpreted, the rest is
native.
"""

from __future__ import annotations

import builtins
import collections
import math
import operator
import types
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph.known_values import known
from ...graph.tensor import DataDependentError, TraceTensor
from ...guards import source as S
from . import containers, elements
from ..numbers import size_floats
from ..tensors import tensor_calls
from .attributes import in_class_dict
from .choices import any_of, undecided
from ..machine.generators import InlineGenerator
from .identity import TEXTS, default_text
from ..numbers.late_text import LateText, hashed, join_texts, made_late, settled
from .lookups import class_attribute
from ..numbers.tensor_reads import COMPARISONS, is_read
from ..machine.signals import Break, Raised
from ..tensors.tensor_subclasses import Subclassed
from ..machine.stack_values import ATOMS, IMMUTABLE, MISSING, specialize
from .builtin_types import MUTABLE, base_of, python_method
from ..tensors.subclass_calls import operate

if TYPE_CHECKING:
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
    "to_text",
    "format_text",
    "break_kind_of",
    "own_length",
    "native_operation",
]

_BINARY: dict[str, tuple[Callable, str]] = {
    "+": (operator.add, "add"),
    "-": (operator.sub, "sub"),
    "*": (operator.mul, "mul"),
    "/": (operator.truediv, "truediv"),
    "//": (operator.floordiv, "floordiv"),
    "%": (operator.mod, "mod"),
    "**": (operator.pow, "pow"),
    "@": (operator.matmul, "matmul"),
    "<<": (operator.lshift, "lshift"),
    ">>": (operator.rshift, "rshift"),
    "&": (operator.and_, "and"),
    "|": (operator.or_, "or"),
    "^": (operator.xor, "xor"),
}
_INPLACE: dict[str, tuple[Callable, str]] = {
    "+=": (operator.iadd, "add"),
    "-=": (operator.isub, "sub"),
    "*=": (operator.imul, "mul"),
    "/=": (operator.itruediv, "truediv"),
    "//=": (operator.ifloordiv, "floordiv"),
    "%=": (operator.imod, "mod"),
    "**=": (operator.ipow, "pow"),
    "@=": (operator.imatmul, "matmul"),
    "<<=": (operator.ilshift, "lshift"),
    ">>=": (operator.irshift, "rshift"),
    "&=": (operator.iand, "and"),
    "|=": (operator.ior, "or"),
    "^=": (operator.ixor, "xor"),
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


mro_lookup = class_attribute


_LARGE = 1 << 53  # ints up to it are floats
_FEW = 32  # keys that a number which varies is compared with one by one; among more of them it is fixed

_SHAPE_WORDS = ("size of the result", "nonzero", "unique", "masked_select", "repeat_interleave", "bincount", "histc")


def break_kind_of(exc: BaseException) -> str | None:
    """The break that an error from running on TraceTensors stands for, or None where it is the program's own."""
    if isinstance(exc, DataDependentError):
        text = str(exc)
        if "tolist" in text:
            return "tolist"
        if "numpy" in text:
            return "numpy"
        if "data_ptr" in text:
            return "tensor_metadata"
        if "equal" in text:
            return "data_dependent_branch"
        return "data_dependent_shape" if any(word in text for word in _SHAPE_WORDS) else "item"
    if isinstance(exc, NotImplementedError) and ("not traced" in str(exc) or "no metadata rule" in str(exc)):
        return "unsupported"
    if isinstance(exc, RecursionError):
        return "recursion"
    if isinstance(exc, TypeError) and str(exc) == "unhashable type: non-nested SymInt":
        return "unsupported"  # deep inside of what native code hashes
    return None


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


def binary(m: Machine, text: str, a: Any, b: Any) -> Any:
    """`a op b`, or `a op= b`: the value that replaces a."""
    ta, tb = type(a), type(b)
    inplace = text in _INPLACE
    fn, name = _INPLACE[text] if inplace else _BINARY[text]
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(m, fn, a, b)
    if ta is TraceTensor or tb is TraceTensor:
        other = b if ta is TraceTensor else a
        method = python_method(type(other), f"__r{name}__" if ta is TraceTensor else f"__{name}__")
        if method is None or type(other) is TraceTensor:
            if inplace and ta is not TraceTensor:
                fn = _BINARY[text[:-1]][0]
            return tensor_calls.call_operator(m, fn, [a, b])
    if ta in ATOMS and tb in ATOMS:
        return m.native(_BINARY[text[:-1]][0] if inplace else fn, a, b)
    if inplace:
        method = python_method(ta, f"__i{name}__")
        if method is not None:
            result = m.call(method, [a, b])
            if result is not NotImplemented:
                return result
        elif (
            ta in _ASK_FIRST
            and (right := python_method(tb, f"__r{name}__")) is not None
            and (result := m.call(right, [b, a])) is not NotImplemented
        ):
            return result
        elif ta in MUTABLE or base_of(a) in MUTABLE:
            if m.world.is_outside(a):
                return containers.inplace(m, a, text, b)
            return native_operation(
                m, fn, a, elements.items(m, b) if isinstance(a, list) and text == "+=" else m.plain(b)
            )
        fn = _BINARY[text[:-1]][0]
    right = python_method(tb, f"__r{name}__")
    if (
        text in ("%", "%=")
        and isinstance(a, (str, bytes))
        and python_method(ta, "__mod__") is None
        and not (right is not None and issubclass(tb, ta))
    ):
        if text == "%" and ta is str and (late := made_late(m, str.__mod__, (a, b))) is not None:
            return late
        return native_operation(m, fn, a, _spelled_arguments(m, b))  # text knows what to do with any object
    if (ta is LateText or tb is LateText) and text in ("+", "+=") and {ta, tb} <= _TEXTS:
        return join_texts([a, b])
    if right is not None and tb is not ta and issubclass(tb, ta) and right is not python_method(ta, f"__r{name}__"):
        result = m.call(right, [b, a])
        if result is not NotImplemented:
            return result
        right = None
    left = python_method(ta, f"__{name}__")
    if left is not None:
        result = m.call(left, [a, b])
        if result is not NotImplemented:
            return result
    if right is not None and tb is not ta:
        result = m.call(right, [b, a])
        if result is not NotImplemented:
            return result
    if left is not None or right is not None:
        joined = _as_sequences(m, text.removesuffix("="), a, b)
        if joined is not None:
            return joined
        raise Raised(TypeError(f"unsupported operand type(s) for {text}: '{ta.__name__}' and '{tb.__name__}'"))
    if text in ("+", "+=", "*", "*=") and (same := _same_tuple(m, text, a, b)) is not None:
        return same
    if text[0] == "*":
        a, b = (
            elements.as_index(m, a) if isinstance(b, _SEQUENCES) else a,
            (elements.as_index(m, b) if isinstance(a, _SEQUENCES) else b),
        )
    elif isinstance(a, _SETS) and isinstance(b, _SETS):
        a, b = m.plain(a), m.plain(b)
        elements.settle_keys(m, b, a)
    return native_operation(m, fn, m.plain(a), m.plain(b))


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
    fn, left_name, right_name = _COMPARE[text]
    ta, tb = type(a), type(b)
    if ta is Subclassed or tb is Subclassed:
        return _of_subclass(m, fn, a, b)
    if ta is TraceTensor or tb is TraceTensor:
        other = b if ta is TraceTensor else a
        if type(other) is TraceTensor or isinstance(other, (int, float, complex, bool, *_SYMBOLIC)):
            return tensor_calls.call_operator(m, fn, [a, b])
        if text in ("==", "!="):
            if other is None or isinstance(other, (str, type, list, tuple, dict, torch.dtype)):
                return text == "!="
            raise Break("unknown_object", f"a tensor is compared with an object of type {type(other).__name__}")
        return tensor_calls.call_operator(m, fn, [a, b])
    if ta in ATOMS and tb in ATOMS:
        return m.native(fn, a, b)
    if ta is not tb and issubclass(tb, ta):  # a subclass answers first
        right = python_method(tb, right_name)
        if right is not None:
            result = m.call(right, [b, a])
            if result is not NotImplemented:
                return result
            left = python_method(ta, left_name)
            result = m.call(left, [a, b]) if left is not None else NotImplemented
            if result is not NotImplemented:
                return result
            return _compare_identity(m, text, a, b)
    left = python_method(ta, left_name)
    if text == "!=" and left is None and python_method(ta, "__eq__") is not None:
        result = compare(m, "==", a, b)
        return result if result is NotImplemented else not m.truth(result)
    if left is not None:
        result = m.call(left, [a, b])
        if result is not NotImplemented:
            return result
    right = python_method(tb, right_name)
    if right is not None:
        result = m.call(right, [b, a])
        if result is not NotImplemented:
            return result
    if left is not None or right is not None:
        return _compare_identity(m, text, a, b)
    answer = _compare_elements(m, text, a, b)
    if answer is not None:
        return answer
    if text in ("==", "!=") and ta.__eq__ is object.__eq__ and tb.__eq__ is object.__eq__:
        return identical(m, a, b) == (text == "==")
    return native_operation(m, fn, m.deep_plain(a), m.deep_plain(b))


def _compare_identity(m: Machine, text: str, a: Any, b: Any) -> bool:
    """What is left when neither side knows the other."""
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
    if mro_lookup(t, "__bool__") is MISSING and (method := python_method(t, "__len__")) is not None:
        return bool(own_length(m, method, value))
    if m.world.is_outside(value) and base_of(value) is not None:
        return bool(containers.length(m, value))
    if isinstance(value, InlineGenerator):
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
    if (
        isinstance(container, dict)
        and type(item) in _UNHASHABLE
        or isinstance(container, _SETS)
        and type(item) in _UNHASHABLE
        and type(item) is not set
    ):
        m.native(hash, item)  # raises; a set is looked for as a frozenset
    if m.world.is_outside(container):
        answer = containers.contains(m, container, item)
        if answer is not None:
            return answer
    if isinstance(container, (list, tuple, collections.deque)):
        values = m.plain(container)
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
    if (
        python_method(t, "__iter__") is not None
        or not hasattr(t, "__iter__")
        and python_method(t, "__getitem__") is not None
    ):
        return any(v is item or m.truth(compare(m, "==", v, item)) for v in m.iterate(container))
    container = m.plain(container)
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
        method = python_method(type(obj), "__getitem__")
        if method is not None:
            if type(method) is types.FunctionType and method.__module__ == "enum":
                if type(key) is str and key in obj._member_map_ and id(obj) not in m.world.made:
                    return m.world.load(
                        obj._member_map_[key],
                        S.dict_value(S.attr(m.world.anchor(obj), "_member_map_"), key),
                        "member of an enum",
                    )
                return m.getattr(obj, key)
            return m.call(method, [obj, key])
        subscript = mro_lookup(obj, "__class_getitem__")
        if (
            isinstance(subscript, classmethod)
            and isinstance(subscript.__func__, types.FunctionType)
            and subscript.__func__.__module__ != "typing"
        ):
            return m.call(m.getattr(obj, "__class_getitem__"), [key])
        return m.native(operator.getitem, obj, m.deep_plain(key))
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
        missing = python_method(t, "__missing__")
        if missing is not None and key not in obj:
            return m.call(missing, [obj, key])
        if t.__name__ == "defaultdict" and key not in obj and obj.default_factory is not None:
            obj[key] = m.call(obj.default_factory, [])
            return obj[key]
    return native_operation(m, operator.getitem, obj, key)


def _length(m: Machine, value: tuple) -> int:
    return containers.length(m, value) if m.world.is_outside(value) else len(value)


def _is_whole(m: Machine, value: tuple, key: slice) -> bool:
    """Whether a slice of a tuple is the tuple itself."""
    if not {type(key.start), type(key.stop), type(key.step)} <= {type(None), int} or key.step == 0:
        return False
    n = _length(m, value)
    return key.indices(n) == (0, n, 1)


def _same_tuple(m: Machine, text: str, a: Any, b: Any) -> Any:
    """`a + b` and `a * b` of a tuple where they are the very tuple; None where they are another."""
    if text[0] == "+":
        if type(a) is tuple and type(b) is tuple:
            return a if _length(m, b) == 0 else b if _length(m, a) == 0 else None
        return None
    for value, times in ((a, b), (b, a)):
        if type(value) is tuple and type(times) in (int, bool) and times == 1:
            return value
    return None


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


# --- text
def _refuse_tensors(value: Any) -> None:
    if isinstance(value, (TraceTensor, Subclassed)):
        raise Break("print", "a tensor is made into text")
    if isinstance(value, (list, tuple, set, frozenset)):
        for v in value:
            _refuse_tensors(v)
    elif isinstance(value, dict):
        for v in value.values():
            _refuse_tensors(v)


def to_text(m: Machine, value: Any, function: str) -> str | LateText:
    """str(), repr() or ascii() of a value."""
    if type(value) in _TEXTS and function == "str":
        return value
    if (late := made_late(m, getattr(builtins, function), (value,))) is not None:
        return late
    if isinstance(value, _SYMBOLIC):
        value = specialize(value)
    if isinstance(value, (TraceTensor, Subclassed)):
        _refuse_tensors(value)
    dunder = "__str__" if function == "str" else "__repr__"
    if not isinstance(value, BaseException):
        method = python_method(type(value), dunder)
        if method is None and dunder == "__str__" and mro_lookup(type(value), "__str__") is object.__dict__["__str__"]:
            dunder = "__repr__"
            method = python_method(type(value), dunder)
        if method is not None and not m.is_atom(value):
            text = m.call(method, [value])
            if type(text) is not LateText and not isinstance(text, str):
                raise Raised(TypeError(f"{dunder} returned non-string (type {m.world.type_of(text).__name__})"))
            return text
    if type(value) in TEXTS:
        return TEXTS[type(value)](m, value)
    value = m.world.pin(m.deep_plain(value))
    _refuse_tensors(value)
    if (
        mro_lookup(type(value), "__repr__") is object.__dict__["__repr__"]
        and not isinstance(value, BaseException)
        and mro_lookup(type(value), "__str__") is object.__dict__["__str__"]
    ):
        return default_text(m, value)
    with m.env.fixing_texts():
        return m.native(getattr(builtins, function), elements.with_own_text(m, value))


def _method_text(m: Machine, method: types.MethodType) -> str | LateText:
    name = m.getattr(m.getattr(method, "__func__"), "__qualname__")
    return join_texts([f"<bound method {name} of ", to_text(m, m.getattr(method, "__self__"), "repr"), ">"])


TEXTS[types.MethodType] = _method_text


def format_text(m: Machine, value: Any, spec: str) -> str | LateText:
    """format(value, spec)."""
    if type(value) is LateText and not spec:
        return value
    if type(spec) is str and (late := made_late(m, format, (value, spec))) is not None:
        return late
    value, spec = settled(value), settled(spec)
    if isinstance(value, _SYMBOLIC):
        value = specialize(value)
    if isinstance(value, (bool, int, float, str, complex)) and type(value) in ATOMS:
        return m.native(format, value, spec)
    _refuse_tensors(value)
    method = python_method(type(value), "__format__")
    if method is not None:
        text = m.call(method, [value, spec])
        if not isinstance(text, str):
            raise Raised(TypeError(f"__format__ must return a str, not {m.world.type_of(text).__name__}"))
        return text
    if not spec:
        return to_text(m, value, "str")
    with m.env.fixing_texts():
        return m.native(format, m.deep_plain(value), spec)


for _text, (_fn, _name) in _BINARY.items():
    OPERATOR_FUNCTIONS[_fn] = lambda m, a, b, text=_text: binary(m, text, a, b)
for _text, (_fn, _name) in _INPLACE.items():
    OPERATOR_FUNCTIONS[_fn] = lambda m, a, b, text=_text: binary(m, text, a, b)
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
