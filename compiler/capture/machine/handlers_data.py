"""Handlers: stack, locals, cells, names, and building containers."""

from __future__ import annotations

import builtins
import itertools
import operator
import types
from typing import Any

from ...guards import source as S
from ..kinds import containers
from ..kinds.calls import name_of
from ..bytecode.version import VERSION
from ..kinds.elements import hint_length, settle_keys
from .frame import Frame, Unread, read_cell, write_cell
from ..numbers.late_text import hashed, join_texts
from .machine import Machine
from .programs import handler
from ..kinds.containers import as_mapping
from .signals import Break, Raised
from .stack_values import MISSING, NULL

__all__: list[str] = []


# --- stack
@handler("NOP", "RESUME")
def nop(machine: Machine, frame: Frame, ins: Any) -> None:
    pass


@handler("POP_TOP", "END_FOR")
def pop_top(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.pop()


@handler("PUSH_NULL")
def push_null(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(NULL)


@handler("COPY")
def copy(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.stack[-ins.arg])


@handler("SWAP")
def swap(machine: Machine, frame: Frame, ins: Any) -> None:
    stack, n = frame.stack, ins.arg
    stack[-1], stack[-n] = stack[-n], stack[-1]


def _only_moved(frame: Frame) -> bool:
    """Whether the value just loaded goes straight into another local (as where a region or resume function begins)."""
    at = frame.pc
    for _ in range(6):
        ins = frame.program[at][1]
        if ins.op in ("STORE_FAST", "POP_TOP"):
            return True
        if ins.op == "JUMP":
            at = ins.target.index
        elif ins.op in ("DELETE_FAST", "NOP"):
            at += 1
        else:
            return False
    return False


# --- constants and locals
@handler("LOAD_CONST")
def load_const(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(ins.arg)


@handler("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(machine: Machine, frame: Frame, ins: Any) -> None:
    v = frame.slots[ins.slot]
    if type(v) is Unread:
        if not _only_moved(frame):  # a mere move between locals relies on nothing
            v = frame.slots[ins.slot] = v.load(machine)
    elif v is MISSING:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
        )
    frame.stack.append(v)


@handler("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(machine: Machine, frame: Frame, ins: Any) -> None:
    v = frame.slots[ins.slot]
    if type(v) is Unread:
        v = v.load(machine)
    frame.stack.append(NULL if v is MISSING else v)
    frame.slots[ins.slot] = MISSING


@handler("STORE_FAST")
def store_fast(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    frame.slots[ins.slot] = MISSING if value is NULL else value


@handler("DELETE_FAST")
def delete_fast(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.slots[ins.slot] is MISSING:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
        )
    frame.slots[ins.slot] = MISSING


# --- cells
@handler("MAKE_CELL")
def make_cell(machine: Machine, frame: Frame, ins: Any) -> None:
    v = frame.slots[ins.slot]
    if type(v) is Unread:
        v = v.load(machine)
    frame.slots[ins.slot] = types.CellType() if v is MISSING else types.CellType(v)


@handler("COPY_FREE_VARS")
def copy_free_vars(machine: Machine, frame: Frame, ins: Any) -> None:
    closure = frame.function.__closure__ or ()
    first = len(frame.slots) - ins.arg
    world = machine.world
    base = world.source_of(frame.function) if not frame.is_root else None
    for i, cell in enumerate(closure):
        frame.slots[first + i] = cell
        if id(cell) in world.sources:
            continue
        if frame.is_root:
            world.register(cell, S.item(S.attr(S.function(), "__closure__"), i))
            world.cell_contents[id(cell)] = S.closure(i, frame.bytecode.slots[first + i].name)
        elif base is not None:
            source = S.item(S.attr(base, "__closure__"), i)
            world.register(cell, source)
            world.cell_contents[id(cell)] = S.cell(source)


@handler("LOAD_CLOSURE")
def load_closure(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(frame.slots[ins.slot])


@handler("LOAD_DEREF")
def load_deref(machine: Machine, frame: Frame, ins: Any) -> None:
    v = read_cell(machine, frame.slots[ins.slot])
    if v is MISSING:
        if frame.bytecode.slots[ins.slot].free:
            raise Raised(
                NameError(
                    f"cannot access free variable '{ins.arg}' where it is not associated with a value in enclosing"
                    " scope",
                    name=ins.arg,
                )
            )
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
        )
    frame.stack.append(v)


@handler("STORE_DEREF")
def store_deref(machine: Machine, frame: Frame, ins: Any) -> None:
    write_cell(machine, frame.slots[ins.slot], frame.stack.pop())


@handler("DELETE_DEREF")
def delete_deref(machine: Machine, frame: Frame, ins: Any) -> None:
    write_cell(machine, frame.slots[ins.slot], MISSING)


@handler("LOAD_CLASSDEREF")
def load_classderef(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is not None and machine.native(operator.contains, frame.names, ins.arg):
        frame.stack.append(machine.native(operator.getitem, frame.names, ins.arg))
    else:
        load_deref(machine, frame, ins)


@handler("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(machine: Machine, frame: Frame, ins: Any) -> None:
    names = frame.stack.pop()
    if ins.arg in names:
        frame.stack.append(names[ins.arg])
    else:
        load_deref(machine, frame, ins)


# --- names
@handler("LOAD_GLOBAL")
def load_global(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(machine.load_global(frame.scope, ins.arg))


@handler("STORE_GLOBAL")
def store_global(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    machine.world.pending.setdefault(id(frame.scope.namespace), {})[ins.arg] = value
    machine.effects.set_global(frame.scope, ins.arg, value)


@handler("DELETE_GLOBAL")
def delete_global(machine: Machine, frame: Frame, ins: Any) -> None:
    machine.load_global(frame.scope, ins.arg)
    machine.world.pending.setdefault(id(frame.scope.namespace), {})[ins.arg] = MISSING
    machine.effects.delete_global(frame.scope, ins.arg)


@handler("LOAD_NAME")
def load_name(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is not None and machine.native(operator.contains, frame.names, ins.arg):
        frame.stack.append(machine.native(operator.getitem, frame.names, ins.arg))
    else:
        load_global(machine, frame, ins)


@handler("STORE_NAME")
def store_name(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is not None:
        # the namespace may be of a class of the program's
        machine.native(operator.setitem, frame.names, ins.arg, frame.stack.pop())
    else:
        store_global(machine, frame, ins)


@handler("DELETE_NAME")
def delete_name(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is not None:
        try:
            machine.native(operator.delitem, frame.names, ins.arg)
        except Raised:
            raise Raised(NameError(f"name {ins.arg!r} is not defined", name=ins.arg)) from None
    else:
        delete_global(machine, frame, ins)


@handler("LOAD_LOCALS")
def load_locals(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is None:
        raise Break("unsupported", "the namespace of a module is read as a dict")
    frame.stack.append(frame.names)


@handler("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(machine: Machine, frame: Frame, ins: Any) -> None:
    names = frame.stack.pop()
    frame.stack.append(names[ins.arg] if ins.arg in names else machine.load_global(frame.scope, ins.arg))


@handler("LOAD_BUILD_CLASS")
def load_build_class(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(builtins.__build_class__)


@handler("LOAD_ASSERTION_ERROR")
def load_assertion_error(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(AssertionError)


@handler("SETUP_ANNOTATIONS")
def setup_annotations(machine: Machine, frame: Frame, ins: Any) -> None:
    if frame.names is None:
        raise Break("unsupported", "a module's annotations are set up")
    frame.names.setdefault("__annotations__", {})


# --- building
def _pop_n(frame: Frame, n: int) -> list:
    if not n:
        return []
    items = frame.stack[-n:]
    del frame.stack[-n:]
    return items


@handler("BUILD_TUPLE")
def build_tuple(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(tuple(_pop_n(frame, ins.arg)))


@handler("BUILD_LIST")
def build_list(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(_pop_n(frame, ins.arg))


@handler("BUILD_SET")
def build_set(machine: Machine, frame: Frame, ins: Any) -> None:
    items = [hashed(v) for v in _pop_n(frame, ins.arg)]
    settle_keys(machine, items)
    frame.stack.append(machine.native(set, items))


@handler("BUILD_MAP")
def build_map(machine: Machine, frame: Frame, ins: Any) -> None:
    items = _pop_n(frame, 2 * ins.arg)
    keys = [hashed(item) for item in items[::2]]
    settle_keys(machine, keys)
    frame.stack.append(machine.native(lambda: dict(zip(keys, items[1::2]))))


@handler("BUILD_CONST_KEY_MAP")
def build_const_key_map(machine: Machine, frame: Frame, ins: Any) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _pop_n(frame, ins.arg))))


@handler("BUILD_STRING")
def build_string(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(join_texts(_pop_n(frame, ins.arg)))


@handler("BUILD_SLICE")
def build_slice(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(slice(*_pop_n(frame, ins.arg)))


def _grow(machine: Machine, container: Any, name: str, *args: Any) -> None:
    """Add to a container that a display or a comprehension is building. After a break it comes from outside: the part
    that was built before it is an argument of the resume function."""
    if name in ("add", "__setitem__"):
        args = (hashed(args[0]), *args[1:])
        settle_keys(machine, args[:1], machine.plain(container))
    elif name == "update":
        settle_keys(machine, args[0], machine.plain(container))
    if machine.world.is_outside(container):
        containers.mutate(machine, container, name, list(args), {})
    else:
        machine.native(getattr(container, name), *args)


@handler("LIST_APPEND")
def list_append(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    _grow(machine, frame.stack[-ins.arg], "append", value)


@handler("SET_ADD")
def set_add(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    _grow(machine, frame.stack[-ins.arg], "add", value)


@handler("MAP_ADD")
def map_add(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    k = frame.stack.pop()
    _grow(machine, frame.stack[-ins.arg], "__setitem__", k, value)


@handler("LIST_EXTEND")
def list_extend(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    try:
        items = machine.iterate(value)
    except Raised as raised:
        if (
            isinstance(raised.exc, TypeError)
            and not hasattr(type(value), "__iter__")
            and not hasattr(type(value), "__getitem__")
        ):
            raise Raised(
                TypeError(f"Value after * must be an iterable, not {machine.world.type_of(value).__name__}")
            ) from None
        raise
    hint_length(machine, value)
    _grow(machine, frame.stack[-ins.arg], "extend", machine.native(list, items))


@handler("SET_UPDATE")
def set_update(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    _grow(machine, frame.stack[-ins.arg], "update", machine.native(list, machine.iterate(value)))


@handler("DICT_UPDATE")
def dict_update(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    if not hasattr(machine.world.type_of(value), "keys"):
        raise Raised(TypeError(f"'{machine.world.type_of(value).__name__}' object is not a mapping"))
    _grow(machine, frame.stack[-ins.arg], "update", as_mapping(machine, value))


@handler("DICT_MERGE")
def dict_merge(machine: Machine, frame: Frame, ins: Any) -> None:
    v = frame.stack.pop()
    called = frame.stack[-ins.arg - 2]
    if called is NULL:  # 3.13 has the callable first
        called = frame.stack[-ins.arg - 3]
    if not hasattr(machine.world.type_of(v), "keys"):
        raise Raised(
            TypeError(f"{name_of(called)} argument after ** must be a mapping, not {machine.world.type_of(v).__name__}")
        )
    v = as_mapping(machine, v)
    target = frame.stack[-ins.arg]
    known = machine.plain(target)
    for k in v:
        if k in known:
            raise Raised(TypeError(f"{name_of(called)} got multiple values for keyword argument '{k}'"))
    _grow(machine, target, "update", v)


@handler("LIST_TO_TUPLE")
def list_to_tuple(machine: Machine, frame: Frame, ins: Any) -> None:
    frame.stack.append(tuple(machine.plain(frame.stack.pop())))


def _stores_follow(frame: Frame, n: int) -> bool:
    program = frame.program
    return all(program[i][1].op == "STORE_FAST" for i in range(frame.pc, min(frame.pc + n, len(program))))


def _unpacked(machine: Machine, value: Any, most: int | None) -> list:
    """The elements of what is unpacked; no more of them than `most` are drawn."""
    tensor = machine.world.type_of(value)
    if not hasattr(tensor, "__iter__") and not hasattr(tensor, "__getitem__"):
        raise Raised(TypeError(f"cannot unpack non-iterable {tensor.__name__} object"))
    return machine.native(list, itertools.islice(machine.iterate(value), most))


_COUNTS_ALL = VERSION >= (3, 14)  # the message says how many values there are


@handler("UNPACK_SEQUENCE")
def unpack_sequence(machine: Machine, frame: Frame, ins: Any) -> None:
    value = frame.stack.pop()
    if (
        type(value) is tuple
        and id(value) in machine.world.sources
        and len(value) == ins.arg
        and _stores_follow(frame, ins.arg)
    ):
        # what is unpacked into locals is guarded when it is read
        source = machine.world.sources[id(value)]
        machine.world.guard(source, "LEN", ins.arg, "length of a sequence")
        frame.stack.extend(Unread(item, S.item(source, i)) for i, item in reversed(list(enumerate(value))))
        return
    counted = _COUNTS_ALL and type(value) in (list, tuple, dict)
    items = _unpacked(machine, value, None if counted else ins.arg + 1)
    if len(items) != ins.arg:
        few = "not enough" if len(items) < ins.arg else "too many"
        raise Raised(
            ValueError(
                f"{few} values to unpack (expected {ins.arg}"
                + (f", got {len(items)})" if counted or few != "too many" else ")")
            )
        )
    frame.stack.extend(reversed(items))


@handler("UNPACK_EX")
def unpack_ex(machine: Machine, frame: Frame, ins: Any) -> None:
    before, after = ins.arg & 0xFF, ins.arg >> 8
    items = _unpacked(machine, frame.stack.pop(), None)
    if len(items) < before + after:
        raise Raised(ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})"))
    rest = items[before : len(items) - after]
    tail = items[len(items) - after :]
    frame.stack.extend(reversed(items[:before] + [rest] + tail))
