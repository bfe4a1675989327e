"""Handlers: attributes, jumps, functions, imports, with, exceptions, match, generators. Those of operators and items
stand in kinds/operators.py, those of calls in kinds/calls.py."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any, Iterator


from ...guards import source as S
from . import exception_groups
from ..kinds import operators
from ..breaks.asserts import asserted
from ..bytecode.opset import EXIT_SLOTS
from ..bytecode.version import NULL_FIRST
from ..kinds.classes import build_class  # noqa: F401  (registers itself with calls)
from ..kinds.objects.texts import format_text, to_text
from .exceptions import traceback_at
from .frame import Frame
from .generators import InlineGenerator
from ..kinds.inline_policy import is_trusted_module
from .native_loops import begins, repeats_itself
from .machine import Machine
from .programs import RETURN, YIELD, handler
from ..kinds.outside_iterators import is_native_iterator, outside_iterator
from .signals import Break, Raised
from ...graph.tensor import TraceTensor
from .stack_values import NULL
from ..kinds.attributes import delete_attribute

__all__: list[str] = []

_LONG_LOOP = (
    2000  # iterations with tensor work that are unrolled into one graph; a longer loop is captured per iteration
)


# --- attributes and items
@handler("LOAD_ATTR")
def load_attr(m: Machine, f: Frame, ins: Any) -> None:
    f.stack[-1] = m.getattr(f.stack[-1], ins.arg)


@handler("LOAD_METHOD")
def load_method(m: Machine, f: Frame, ins: Any) -> None:
    v = m.getattr(f.stack.pop(), ins.arg)
    f.stack.extend((NULL, v) if NULL_FIRST else (v, NULL))


@handler("LOAD_SUPER_ATTR")
def load_super_attr(m: Machine, f: Frame, ins: Any) -> None:
    obj = f.stack.pop()
    cls = f.stack.pop()
    sup = f.stack.pop()
    proxy = m.call(sup, [cls, obj])
    v = m.getattr(proxy, ins.arg)
    if ins.method:
        f.stack.extend((NULL, v) if NULL_FIRST else (v, NULL))
    else:
        f.stack.append(v)


@handler("STORE_ATTR")
def store_attr(m: Machine, f: Frame, ins: Any) -> None:
    obj = f.stack.pop()
    m.setattr(obj, ins.arg, f.stack.pop())


@handler("DELETE_ATTR")
def delete_attr(m: Machine, f: Frame, ins: Any) -> None:
    delete_attribute(m, f.stack.pop(), ins.arg)


# --- control
@handler("JUMP", "JUMP_NO_INTERRUPT")
def jump(m: Machine, f: Frame, ins: Any) -> None:
    f.pc = ins.target.index


@handler("POP_JUMP_IF_TRUE")
def pop_jump_if_true(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    if v is True or v is not False and v is not None and _jumps(m, f, ins, v, True):
        f.pc = ins.target.index


@handler("POP_JUMP_IF_FALSE")
def pop_jump_if_false(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    if v is False or v is None or v is not True and _jumps(m, f, ins, v, False):
        f.pc = ins.target.index


def _jumps(m: Machine, f: Frame, ins: Any, v: Any, jumps_if: bool) -> bool:
    decided = asserted(m, f, v, jumps_if, ins.target.index)
    return m.truth(v) is jumps_if if decided is None else decided


@handler("POP_JUMP_IF_NONE")
def pop_jump_if_none(m: Machine, f: Frame, ins: Any) -> None:
    if f.stack.pop() is None:
        f.pc = ins.target.index


@handler("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(m: Machine, f: Frame, ins: Any) -> None:
    if f.stack.pop() is not None:
        f.pc = ins.target.index


@handler("GET_ITER")
def get_iter(m: Machine, f: Frame, ins: Any) -> None:
    value = f.stack[-1]
    if id(value) in m.world.sources and is_native_iterator(value):
        return  # iter() of it is itself; FOR_ITER will ask
    f.stack[-1] = m.iterate(value)
    begins(m, f)


@handler("FOR_ITER")
def for_iter(m: Machine, f: Frame, ins: Any) -> None:
    iterator = f.stack[-1]
    if id(iterator) in m.world.sources:
        iterator = f.stack[-1] = outside_iterator(m, iterator)
    if m.graph.calls > _LONG_LOOP:
        count = m.loop_counts[ins] = m.loop_counts.get(ins, 0) + 1
        if count > _LONG_LOOP:
            raise Break("long_loop", f"the loop runs more than {_LONG_LOOP} times")
    if repeats_itself(m, f, ins, iterator):
        raise Break("long_loop", "each iteration of the loop does the same large work")
    try:
        v = next(iterator)
    except StopIteration:
        f.stack.pop()
        f.pc = ins.target.index
        return
    except Exception as exc:
        m.translate(exc)
        raise Raised(exc) from None
    f.stack.append(v)


@handler("RETURN_VALUE")
def return_value(m: Machine, f: Frame, ins: Any) -> str:
    f.result = f.stack.pop()
    return RETURN


# --- calls and functions
@handler("MAKE_FUNCTION")
def make_function(m: Machine, f: Frame, ins: Any) -> None:
    code = f.stack.pop()
    flags = ins.arg
    closure = f.stack.pop() if flags & 8 else None
    annotate = f.stack.pop() if flags & 16 else None
    annotations = f.stack.pop() if flags & 4 else None
    kwdefaults = f.stack.pop() if flags & 2 else None
    defaults = f.stack.pop() if flags & 1 else None
    fn = types.FunctionType(code, f.scope.namespace, code.co_name, defaults, closure)
    fn.__qualname__ = code.co_qualname
    if kwdefaults:
        fn.__kwdefaults__ = dict(kwdefaults)
    if annotations:
        fn.__annotations__ = (
            dict(zip(annotations[::2], annotations[1::2])) if isinstance(annotations, tuple) else annotations
        )
    if annotate is not None:
        fn.__annotate__ = annotate  # type: ignore[attr-defined]
    f.stack.append(m.world.create(fn))


@handler("CALL_INTRINSIC_1")
def call_intrinsic_1(m: Machine, f: Frame, ins: Any) -> None:
    name = ins.arg
    if name == "INTRINSIC_STOPITERATION_ERROR":
        exc = f.stack[-1]
        if isinstance(exc, StopIteration):
            error = RuntimeError("generator raised StopIteration")
            error.__cause__ = error.__context__ = exc
            f.stack[-1] = error
    elif name == "INTRINSIC_UNARY_POSITIVE":
        f.stack[-1] = operators.unary(m, "UNARY_POSITIVE", f.stack[-1])
    elif name == "INTRINSIC_LIST_TO_TUPLE":
        f.stack[-1] = tuple(m.plain(f.stack[-1]))
    else:
        raise Break("bytecode", f"capture does not support {name}")


# --- imports
@handler("IMPORT_NAME")
def import_name(m: Machine, f: Frame, ins: Any) -> None:
    fromlist, level = f.stack.pop(), f.stack.pop()
    name = ins.arg
    package = f.scope.namespace.get("__package__") or f.scope.namespace.get("__name__", "").rpartition(".")[0]
    full = importlib.util.resolve_name("." * level + name, package) if level else name
    module = sys.modules.get(full)
    if module is None:
        raise Break("import", f"the module {full} is imported for the first time")
    if not fromlist and not level:
        module = sys.modules[full.partition(".")[0]]
    key = full if fromlist or level else full.partition(".")[0]
    if not is_trusted_module(key):
        m.world.guard(S.dict_value(S.const(sys.modules), key), "ID", module, "imported module")
    m.world.anchor(module)
    for part in _names_of_parts(module, fromlist or ()):
        if f"{module.__name__}.{part}" not in sys.modules and not _has(m, module, part):
            raise Break("import", f"the module {full}.{part} is imported for the first time")
    f.stack.append(module)


def _names_of_parts(module: Any, fromlist: tuple) -> Iterator[str]:
    """The names that `from module import ...` takes for modules, too, where the module itself lacks them."""
    held = vars(module)
    if "__path__" in held:  # it is a package
        for name in fromlist:
            yield from (n for n in ((name,) if name != "*" else held.get("__all__", ())) if n not in held)


def _has(m: Machine, module: Any, name: str) -> bool:
    try:
        m.getattr(module, name)
    except Raised:
        return False
    return True


@handler("IMPORT_FROM")
def import_from(m: Machine, f: Frame, ins: Any) -> None:
    module = f.stack[-1]
    try:
        v = m.getattr(module, ins.arg)
    except Raised as raised:
        sub = sys.modules.get(f"{module.__name__}.{ins.arg}")
        if sub is None:
            raise Raised(_import_error(module, ins.arg)) from raised
        v = sub
    f.stack.append(v)


def _import_error(module: types.ModuleType, name: str) -> ImportError:
    """The interpreter's own, in its words."""
    file = vars(module).get("__file__")
    known = {"name_from": name} if sys.version_info >= (3, 12) else {}
    return ImportError(
        f"cannot import name {name!r} from {module.__name__!r} ({file or 'unknown location'})",
        name=module.__name__,
        path=file,
        **known,
    )


# --- text
@handler("FORMAT_VALUE")
def format_value(m: Machine, f: Frame, ins: Any) -> None:
    spec = f.stack.pop() if ins.with_spec else ""
    value = f.stack.pop()
    if ins.arg:
        value = to_text(m, value, {"s": "str", "r": "repr", "a": "ascii"}.get(ins.arg, ins.arg))
    f.stack.append(format_text(m, value, spec))


@handler("CONVERT_VALUE")
def convert_value(m: Machine, f: Frame, ins: Any) -> None:
    f.stack[-1] = to_text(m, f.stack[-1], ins.arg)


# --- with and exceptions
@handler("BEFORE_WITH")
def before_with(m: Machine, f: Frame, ins: Any) -> None:
    manager = f.stack.pop()
    t = m.world.type_of(manager)
    if not hasattr(t, "__enter__") or not hasattr(t, "__exit__"):
        missed = " (missed __exit__ method)" if hasattr(t, "__enter__") else ""
        raise Raised(TypeError(f"'{t.__name__}' object does not support the context manager protocol{missed}"))
    enter = m.getattr(manager, "__enter__")
    f.stack.append(m.getattr(manager, "__exit__"))
    f.stack.extend((NULL,) * (EXIT_SLOTS - 1))
    f.stack.append(m.call(enter, []))


@handler("WITH_EXCEPT_START")
def with_except_start(m: Machine, f: Frame, ins: Any) -> None:
    exc = f.stack[-1]
    f.stack.append(
        m.call(f.stack[-3 - EXIT_SLOTS], [type(exc), exc, exc.__traceback__ or traceback_at(m.trails.get(id(exc), ()))])
    )


@handler("PUSH_EXC_INFO")
def push_exc_info(m: Machine, f: Frame, ins: Any) -> None:
    exc = f.stack.pop()
    f.stack.append(m.handled)
    f.stack.append(exc)
    m.handled = exc


@handler("POP_EXCEPT")
def pop_except(m: Machine, f: Frame, ins: Any) -> None:
    m.handled = f.stack.pop()


@handler("CHECK_EXC_MATCH")
def check_exc_match(m: Machine, f: Frame, ins: Any) -> None:
    wanted = f.stack.pop()
    exc = f.stack[-1]
    classes = tuple(m.plain(wanted)) if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in classes):
        raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    f.stack.append(any(c in type(exc).__mro__ for c in classes))  # a metaclass has no say in it


@handler("CHECK_EG_MATCH")
def check_eg_match(m: Machine, f: Frame, ins: Any) -> None:
    wanted = f.stack.pop()
    wanted = tuple(m.plain(wanted)) if isinstance(wanted, tuple) else wanted
    rest, match = exception_groups.split(m, f.stack.pop(), wanted)
    f.stack.extend((rest, match))
    if match is not None:
        m.handled = match


@handler("PREP_RERAISE_STAR")
def prep_reraise_star(m: Machine, f: Frame, ins: Any) -> None:
    raised = f.stack.pop()
    f.stack[-1] = exception_groups.left_to_raise(m, f.stack[-1], m.plain(raised))


def _exception_of(m: Machine, given: Any, what: str) -> BaseException:
    """What `raise` makes of a class or an instance."""
    if not (isinstance(given, type) and issubclass(given, BaseException)):
        if not isinstance(given, BaseException):
            raise Raised(TypeError(f"{what} must derive from BaseException"))
        return given
    made = m.call(given, [])
    if not isinstance(made, BaseException):
        kind = m.world.type_of(made)
        raise Raised(TypeError(f"calling {given} should have returned an instance of BaseException, not {kind}"))
    return made


@handler("RAISE_VARARGS")
def raise_varargs(m: Machine, f: Frame, ins: Any) -> None:
    if ins.arg == 0:
        if (handled := m.handling()) is None:
            m.rely_on_nothing_handled_outside()
            raise Raised(RuntimeError("No active exception to reraise"))
        raise Raised(handled)
    cause = f.stack.pop() if ins.arg == 2 else NULL
    exc = f.stack.pop()
    exc = _exception_of(m, exc, "exceptions")
    if cause is not NULL:
        if cause is not None:
            cause = _exception_of(m, cause, "exception causes")
        if m.world.is_outside(exc):
            raise Break("mutation", "the cause of an exception from outside is set")
        exc.__cause__ = cause
    raise Raised(exc)


@handler("RERAISE")
def reraise(m: Machine, f: Frame, ins: Any) -> None:
    raise Raised(f.stack.pop())


# --- match
@handler("GET_LEN")
def get_len(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(m.call(len, [f.stack[-1]]))


# What patterns ask of a type: flags that its bases hand down, and that Mapping.register and Sequence.register set.
_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22
_ABSENT = object()


def _has_flag(m: Machine, value: Any, flag: int) -> bool:
    return bool(m.world.type_of(value).__flags__ & flag)


@handler("MATCH_MAPPING")
def match_mapping(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(_has_flag(m, f.stack[-1], _MAPPING))


@handler("MATCH_SEQUENCE")
def match_sequence(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(_has_flag(m, f.stack[-1], _SEQUENCE))


@handler("MATCH_KEYS")
def match_keys(m: Machine, f: Frame, ins: Any) -> None:
    keys, obj = f.stack[-1], f.stack[-2]
    values: list[Any] = []
    seen: set[Any] = set()
    for k in keys:
        if m.is_atom(k) and k in seen:
            raise Raised(ValueError(f"mapping pattern checks duplicate key ({k!r})"))
        if m.is_atom(k):
            seen.add(k)
        if getattr(m.world.type_of(obj), "get", None) is dict.get:
            value = operators.get_item(m, obj, k) if operators.contains(m, obj, k) else _ABSENT
        else:
            value = m.call(m.getattr(obj, "get"), [k, _ABSENT])
        if value is _ABSENT:
            f.stack.append(None)
            return
        values.append(value)
    f.stack.append(tuple(values))


@handler("MATCH_CLASS")
def match_class(m: Machine, f: Frame, ins: Any) -> None:
    names, cls, obj = f.stack.pop(), f.stack.pop(), f.stack.pop()
    if not isinstance(cls, type):
        raise Raised(TypeError("called match pattern must be a class"))
    if not m.world.is_instance(obj, cls):
        f.stack.append(None)
        return
    values: list[Any] = []
    fields: Any = ()
    if ins.arg:
        itself = False
        try:
            fields = m.getattr(cls, "__match_args__")
            if type(fields) is not tuple:
                raise Raised(
                    TypeError(f"{cls.__name__}.__match_args__ must be a tuple (got {m.world.type_of(fields).__name__})")
                )
        except Raised as raised:
            if not isinstance(raised.exc, AttributeError):
                raise
            itself = bool(cls.__flags__ & _MATCH_SELF)
        allowed = 1 if itself else len(fields)
        if ins.arg > allowed:
            raise Raised(
                TypeError(
                    f"{cls.__name__}() accepts {allowed} positional sub-pattern{'' if allowed == 1 else 's'} ({ins.arg}"
                    " given)"
                )
            )
        if itself:
            values.append(obj)
    seen: set[str] = set()
    for name in (*fields[: ins.arg], *names):
        if type(name) is not str:
            raise Raised(TypeError(f"__match_args__ elements must be strings (got {m.world.type_of(name).__name__})"))
        if name in seen:
            raise Raised(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
        seen.add(name)
        try:
            values.append(m.getattr(obj, name))
        except Raised as raised:
            if not isinstance(raised.exc, AttributeError):
                raise
            f.stack.append(None)
            return
    f.stack.append(tuple(values))


# --- generators
@handler("RETURN_GENERATOR")
def return_generator(m: Machine, f: Frame, ins: Any) -> str:
    if f.code.co_flags & 0x380:  # coroutine, iterable coroutine, async generator
        raise Break("async")
    return YIELD


@handler("YIELD_VALUE")
def yield_value(m: Machine, f: Frame, ins: Any) -> str:
    f.result = f.stack.pop()
    return YIELD


@handler("GET_YIELD_FROM_ITER")
def get_yield_from_iter(m: Machine, f: Frame, ins: Any) -> None:
    if not isinstance(f.stack[-1], InlineGenerator):
        f.stack[-1] = m.iterate(f.stack[-1])


def _send(m: Machine, iterator: Any, value: Any) -> tuple[bool, Any]:
    """One step of a delegated iterator: (finished, value)."""
    try:
        if value is None:
            return False, next(iterator)
        return False, m.call(m.getattr(iterator, "send"), [value])
    except StopIteration as stop:
        return True, stop.value
    except Raised as raised:
        if isinstance(raised.exc, StopIteration):
            return True, raised.exc.value
        raise
    except Exception as exc:
        m.translate(exc)
        raise Raised(exc) from None


@handler("SEND")
def send(m: Machine, f: Frame, ins: Any) -> None:
    finished, value = _send(m, f.stack[-2], f.stack.pop())
    f.stack.append(value)
    if finished:
        f.pc = ins.target.index


@handler("SEND_POP")
def send_pop(m: Machine, f: Frame, ins: Any) -> None:
    finished, value = _send(m, f.stack[-2], f.stack.pop())
    if finished:
        f.stack[-1] = value
        f.pc = ins.target.index
    else:
        f.stack.append(value)


@handler("END_SEND")
def end_send(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    f.stack[-1] = v


@handler("CLEANUP_THROW")
def cleanup_throw(m: Machine, f: Frame, ins: Any) -> None:
    exc = f.stack[-1]
    if not isinstance(exc, StopIteration):
        raise Raised(exc)
    del f.stack[-3:]
    f.stack.extend((None, exc.value))


_ = TraceTensor
