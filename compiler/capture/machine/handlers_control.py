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
from .native_loops import begins, check_turn
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
def load_attr(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack[-1] = machine.getattr(frame.stack[-1], ins.arg)


@handler("LOAD_METHOD")
def load_method(machine: Machine, frame: Frame, ins: Any) -> None:
    v = machine.getattr(frame.stack.pop(), ins.arg)
    frame.stack.extend((NULL, v) if NULL_FIRST else (v, NULL))


@handler("LOAD_SUPER_ATTR")
def load_super_attr(machine: Machine, frame: Frame, ins: Any) -> None:
    obj = frame.stack.pop()
    cls = frame.stack.pop()
    sup = frame.stack.pop()
    proxy = machine.call(sup, [cls, obj])
    v = machine.getattr(proxy, ins.arg)
    if ins.method:
        frame.stack.extend((NULL, v) if NULL_FIRST else (v, NULL))
    else:
        frame.stack.append(v)


@handler("STORE_ATTR")
def store_attr(machine: Machine, frame: Frame, ins: Any) -> None:
    obj = frame.stack.pop()
    machine.setattr(obj, ins.arg, frame.stack.pop())


@handler("DELETE_ATTR")
def delete_attr(machine: Machine, frame: Frame, ins: Any) -> None:
    delete_attribute(machine, frame.stack.pop(), ins.arg)


# --- control
@handler("JUMP", "JUMP_NO_INTERRUPT")
def jump(machine: Machine, frame: Frame, ins: Any) -> None:
    _go_to(machine, frame, ins.target)


def _go_to(machine: Machine, frame: Frame, target: Any) -> None:
    """Go on at another instruction; an earlier one begins the next turn of a loop, of which FOR_ITER knows itself."""
    if target.index < frame.pc and target.op != "FOR_ITER":
        check_turn(machine, frame, target)
    frame.pc = target.index


@handler("POP_JUMP_IF_TRUE")
def pop_jump_if_true(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    if value is True or value is not False and value is not None and _jumps(machine, frame, ins, value, True):
        _go_to(machine, frame, ins.target)


@handler("POP_JUMP_IF_FALSE")
def pop_jump_if_false(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    if value is False or value is None or value is not True and _jumps(machine, frame, ins, value, False):
        _go_to(machine, frame, ins.target)


def _jumps(machine: Machine, frame: Frame, ins: Any, value: Any, jumps_if: bool) -> bool:
    decided = asserted(machine, frame, value, jumps_if, ins.target.index)
    return machine.truth(value) is jumps_if if decided is None else decided


@handler("POP_JUMP_IF_NONE")
def pop_jump_if_none(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.stack.pop() is None:
        frame.pc = ins.target.index


@handler("POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.stack.pop() is not None:
        frame.pc = ins.target.index


@handler("GET_ITER")
def get_iter(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack[-1]
    if id(value) in machine.world.sources and is_native_iterator(value):
        return  # iter() of it is itself; FOR_ITER will ask
    frame.stack[-1] = machine.iterate(value)
    begins(frame)


@handler("FOR_ITER")
def for_iter(machine: Machine, frame: Frame, ins: Any) -> None:
    iterator = frame.stack[-1]
    if id(iterator) in machine.world.sources:
        iterator = frame.stack[-1] = outside_iterator(machine, iterator)
    if machine.graph.calls > _LONG_LOOP:
        count = machine.loop_counts[ins] = machine.loop_counts.get(ins, 0) + 1
        if count > _LONG_LOOP:
            raise Break("long_loop", f"the loop runs more than {_LONG_LOOP} times")
    check_turn(machine, frame, ins, iterator)
    try:
        v = next(iterator)
    except StopIteration:
        frame.stack.pop()
        frame.pc = ins.target.index
        return
    except Exception as exc:
        machine.translate(exc)
        raise Raised(exc) from None
    frame.stack.append(v)


@handler("RETURN_VALUE")
def return_value(machine: Machine, frame: Frame, ins: Any) -> str:
    frame.result = frame.stack.pop()
    return RETURN


# --- calls and functions
@handler("MAKE_FUNCTION")
def make_function(machine: Machine, frame: Frame, ins: Any) -> None:
    code = frame.stack.pop()
    flags = ins.arg
    closure = frame.stack.pop() if flags & 8 else None
    annotate = frame.stack.pop() if flags & 16 else None
    annotations = frame.stack.pop() if flags & 4 else None
    kwdefaults = frame.stack.pop() if flags & 2 else None
    defaults = frame.stack.pop() if flags & 1 else None
    fn = types.FunctionType(code, frame.scope.namespace, code.co_name, defaults, closure)
    fn.__qualname__ = code.co_qualname
    if kwdefaults:
        fn.__kwdefaults__ = dict(kwdefaults)
    if annotations:
        fn.__annotations__ = (
            dict(zip(annotations[::2], annotations[1::2])) if isinstance(annotations, tuple) else annotations
        )
    if annotate is not None:
        fn.__annotate__ = annotate  # type: ignore[attr-defined]
    frame.stack.append(machine.world.create(fn))


@handler("CALL_INTRINSIC_1")
def call_intrinsic_1(machine: Machine, frame: Frame, ins: Any) -> None:
    name = ins.arg
    if name == "INTRINSIC_STOPITERATION_ERROR":
        exc = frame.stack[-1]
        if isinstance(exc, StopIteration):
            error = RuntimeError("generator raised StopIteration")
            error.__cause__ = error.__context__ = exc
            frame.stack[-1] = error
    elif name == "INTRINSIC_UNARY_POSITIVE":
        frame.stack[-1] = operators.unary(machine, "UNARY_POSITIVE", frame.stack[-1])
    elif name == "INTRINSIC_LIST_TO_TUPLE":
        frame.stack[-1] = tuple(machine.plain(frame.stack[-1]))
    else:
        raise Break("bytecode", f"capture does not support {name}")


# --- imports
@handler("IMPORT_NAME")
def import_name(machine: Machine, frame: Frame, ins: Any) -> None:
    fromlist, level = frame.stack.pop(), frame.stack.pop()
    name = ins.arg
    package = frame.scope.namespace.get("__package__") or frame.scope.namespace.get("__name__", "").rpartition(".")[0]
    full = importlib.util.resolve_name("." * level + name, package) if level else name
    module = sys.modules.get(full)
    if module is None:
        raise Break("import", f"the module {full} is imported for the first time")
    if not fromlist and not level:
        module = sys.modules[full.partition(".")[0]]
    key = full if fromlist or level else full.partition(".")[0]
    if not is_trusted_module(key):
        machine.world.guard(S.dict_value(S.const(sys.modules), key), "ID", module, "imported module")
    machine.world.anchor(module)
    for part in _names_of_parts(module, fromlist or ()):
        if f"{module.__name__}.{part}" not in sys.modules and not _has(machine, module, part):
            raise Break("import", f"the module {full}.{part} is imported for the first time")
    frame.stack.append(module)


def _names_of_parts(module: Any, fromlist: tuple) -> Iterator[str]:
    """The names that `from module import ...` takes for modules, too, where the module itself lacks them."""
    held = vars(module)
    if "__path__" in held:  # it is a package
        for name in fromlist:
            yield from (n for n in ((name,) if name != "*" else held.get("__all__", ())) if n not in held)


def _has(machine: Machine, module: Any, name: str) -> bool:
    try:
        machine.getattr(module, name)
    except Raised:
        return False
    return True


@handler("IMPORT_FROM")
def import_from(machine: Machine, frame: Frame, ins: Any) -> None:
    module = frame.stack[-1]
    try:
        v = machine.getattr(module, ins.arg)
    except Raised as raised:
        sub = sys.modules.get(f"{module.__name__}.{ins.arg}")
        if sub is None:
            raise Raised(_import_error(module, ins.arg)) from raised
        v = sub
    frame.stack.append(v)


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
def format_value(machine: Machine, frame: Frame, ins: Any) -> None:
    spec = frame.stack.pop() if ins.with_spec else ""
    value = frame.stack.pop()
    if ins.arg:
        value = to_text(machine, value, {"s": "str", "r": "repr", "a": "ascii"}.get(ins.arg, ins.arg))
    frame.stack.append(format_text(machine, value, spec))


@handler("CONVERT_VALUE")
def convert_value(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack[-1] = to_text(machine, frame.stack[-1], ins.arg)


# --- with and exceptions
@handler("BEFORE_WITH")
def before_with(machine: Machine, frame: Frame, ins: Any) -> None:
    manager = frame.stack.pop()
    tensor = machine.world.type_of(manager)
    if not hasattr(tensor, "__enter__") or not hasattr(tensor, "__exit__"):
        missed = " (missed __exit__ method)" if hasattr(tensor, "__enter__") else ""
        raise Raised(TypeError(f"'{tensor.__name__}' object does not support the context manager protocol{missed}"))
    enter = machine.getattr(manager, "__enter__")
    frame.stack.append(machine.getattr(manager, "__exit__"))
    frame.stack.extend((NULL,) * (EXIT_SLOTS - 1))
    frame.stack.append(machine.call(enter, []))


@handler("WITH_EXCEPT_START")
def with_except_start(machine: Machine, frame: Frame, ins: Any) -> None:
    exc = frame.stack[-1]
    frame.stack.append(
        machine.call(
            frame.stack[-3 - EXIT_SLOTS],
            [type(exc), exc, exc.__traceback__ or traceback_at(machine.trails.get(id(exc), ()))],
        )
    )


@handler("PUSH_EXC_INFO")
def push_exc_info(machine: Machine, frame: Frame, ins: Any) -> None:
    exc = frame.stack.pop()
    frame.stack.append(machine.handled)
    frame.stack.append(exc)
    machine.handled = exc


@handler("POP_EXCEPT")
def pop_except(machine: Machine, frame: Frame, ins: Any) -> None:
    machine.handled = frame.stack.pop()


@handler("CHECK_EXC_MATCH")
def check_exc_match(machine: Machine, frame: Frame, ins: Any) -> None:
    wanted = frame.stack.pop()
    exc = frame.stack[-1]
    classes = tuple(machine.plain(wanted)) if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(cls, type) and issubclass(cls, BaseException) for cls in classes):
        raise Raised(TypeError("catching classes that do not inherit from BaseException is not allowed"))
    frame.stack.append(any(cls in type(exc).__mro__ for cls in classes))  # a metaclass has no say in it


@handler("CHECK_EG_MATCH")
def check_eg_match(machine: Machine, frame: Frame, ins: Any) -> None:
    wanted = frame.stack.pop()
    wanted = tuple(machine.plain(wanted)) if isinstance(wanted, tuple) else wanted
    rest, match = exception_groups.split(machine, frame.stack.pop(), wanted)
    frame.stack.extend((rest, match))
    if match is not None:
        machine.handled = match


@handler("PREP_RERAISE_STAR")
def prep_reraise_star(machine: Machine, frame: Frame, ins: Any) -> None:
    raised = frame.stack.pop()
    frame.stack[-1] = exception_groups.left_to_raise(machine, frame.stack[-1], machine.plain(raised))


def _exception_of(machine: Machine, given: Any, what: str) -> BaseException:
    """What `raise` makes of a class or an instance."""
    if not (isinstance(given, type) and issubclass(given, BaseException)):
        if not isinstance(given, BaseException):
            raise Raised(TypeError(f"{what} must derive from BaseException"))
        return given
    made = machine.call(given, [])
    if not isinstance(made, BaseException):
        kind = machine.world.type_of(made)
        raise Raised(TypeError(f"calling {given} should have returned an instance of BaseException, not {kind}"))
    return made


@handler("RAISE_VARARGS")
def raise_varargs(machine: Machine, frame: Frame, ins: Any) -> None:
    if ins.arg == 0:
        if (handled := machine.handling()) is None:
            machine.rely_on_nothing_handled_outside()
            raise Raised(RuntimeError("No active exception to reraise"))
        raise Raised(handled)
    cause = frame.stack.pop() if ins.arg == 2 else NULL
    exc = frame.stack.pop()
    exc = _exception_of(machine, exc, "exceptions")
    if cause is not NULL:
        if cause is not None:
            cause = _exception_of(machine, cause, "exception causes")
        if machine.world.is_outside(exc):
            raise Break("mutation", "the cause of an exception from outside is set")
        exc.__cause__ = cause
    raise Raised(exc)


@handler("RERAISE")
def reraise(machine: Machine, frame: Frame, ins: Any) -> None:
    raise Raised(frame.stack.pop())


# --- match
@handler("GET_LEN")
def get_len(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(machine.call(len, [frame.stack[-1]]))


# What patterns ask of a type: flags that its bases hand down, and that Mapping.register and Sequence.register set.
_SEQUENCE, _MAPPING, _MATCH_SELF = 1 << 5, 1 << 6, 1 << 22
_ABSENT = object()


def _has_flag(machine: Machine, value: Any, flag: int) -> bool:
    return bool(machine.world.type_of(value).__flags__ & flag)


@handler("MATCH_MAPPING")
def match_mapping(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(_has_flag(machine, frame.stack[-1], _MAPPING))


@handler("MATCH_SEQUENCE")
def match_sequence(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(_has_flag(machine, frame.stack[-1], _SEQUENCE))


@handler("MATCH_KEYS")
def match_keys(machine: Machine, frame: Frame, ins: Any) -> None:
    keys, obj = frame.stack[-1], frame.stack[-2]
    values: list[Any] = []
    seen: set[Any] = set()
    for key in keys:
        if machine.is_atom(key) and key in seen:
            raise Raised(ValueError(f"mapping pattern checks duplicate key ({key!r})"))
        if machine.is_atom(key):
            seen.add(key)
        if getattr(machine.world.type_of(obj), "get", None) is dict.get:
            value = operators.get_item(machine, obj, key) if operators.contains(machine, obj, key) else _ABSENT
        else:
            value = machine.call(machine.getattr(obj, "get"), [key, _ABSENT])
        if value is _ABSENT:
            frame.stack.append(None)
            return
        values.append(value)
    frame.stack.append(tuple(values))


@handler("MATCH_CLASS")
def match_class(machine: Machine, frame: Frame, ins: Any) -> None:
    names, cls, obj = frame.stack.pop(), frame.stack.pop(), frame.stack.pop()
    if not isinstance(cls, type):
        raise Raised(TypeError("called match pattern must be a class"))
    if not machine.world.is_instance(obj, cls):
        frame.stack.append(None)
        return
    values: list[Any] = []
    fields: Any = ()
    if ins.arg:
        itself = False
        try:
            fields = machine.getattr(cls, "__match_args__")
            if type(fields) is not tuple:
                raise Raised(
                    TypeError(
                        f"{cls.__name__}.__match_args__ must be a tuple (got {machine.world.type_of(fields).__name__})"
                    )
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
            raise Raised(
                TypeError(f"__match_args__ elements must be strings (got {machine.world.type_of(name).__name__})")
            )
        if name in seen:
            raise Raised(TypeError(f"{cls.__name__}() got multiple sub-patterns for attribute {name!r}"))
        seen.add(name)
        try:
            values.append(machine.getattr(obj, name))
        except Raised as raised:
            if not isinstance(raised.exc, AttributeError):
                raise
            frame.stack.append(None)
            return
    frame.stack.append(tuple(values))


# --- generators
@handler("RETURN_GENERATOR")
def return_generator(machine: Machine, frame: Frame, ins: Any) -> str:
    if frame.code.co_flags & 0x380:  # coroutine, iterable coroutine, async generator
        raise Break("async")
    return YIELD


@handler("YIELD_VALUE")
def yield_value(machine: Machine, frame: Frame, ins: Any) -> str:
    frame.result = frame.stack.pop()
    return YIELD


@handler("GET_YIELD_FROM_ITER")
def get_yield_from_iter(machine: Machine, frame: Frame, ins: Any) -> None:
    if not isinstance(frame.stack[-1], InlineGenerator):
        frame.stack[-1] = machine.iterate(frame.stack[-1])


def _send(machine: Machine, iterator: Any, value: Any) -> tuple[bool, Any]:
    """One step of a delegated iterator: (finished, value)."""
    try:
        if value is None:
            return False, next(iterator)
        return False, machine.call(machine.getattr(iterator, "send"), [value])
    except StopIteration as stop:
        return True, stop.value
    except Raised as raised:
        if isinstance(raised.exc, StopIteration):
            return True, raised.exc.value
        raise
    except Exception as exc:
        machine.translate(exc)
        raise Raised(exc) from None


@handler("SEND")
def send(machine: Machine, frame: Frame, ins: Any) -> None:
    finished, value = _send(machine, frame.stack[-2], frame.stack.pop())
    frame.stack.append(value)
    if finished:
        frame.pc = ins.target.index


@handler("SEND_POP")
def send_pop(machine: Machine, frame: Frame, ins: Any) -> None:
    finished, value = _send(machine, frame.stack[-2], frame.stack.pop())
    if finished:
        frame.stack[-1] = value
        frame.pc = ins.target.index
    else:
        frame.stack.append(value)


@handler("END_SEND")
def end_send(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    frame.stack[-1] = value


@handler("CLEANUP_THROW")
def cleanup_throw(machine: Machine, frame: Frame, ins: Any) -> None:
    exc = frame.stack[-1]
    if not isinstance(exc, StopIteration):
        raise Raised(exc)
    del frame.stack[-3:]
    frame.stack.extend((None, exc.value))


_ = TraceTensor
