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
def nop(m: Machine, f: Frame, ins: Any) -> None:
    pass


@handler("POP_TOP", "END_FOR")
def pop_top(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.pop()


@handler("PUSH_NULL")
def push_null(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(NULL)


@handler("COPY")
def copy(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(f.stack[-ins.arg])


@handler("SWAP")
def swap(m: Machine, f: Frame, ins: Any) -> None:
    s, n = f.stack, ins.arg
    s[-1], s[-n] = s[-n], s[-1]


def _only_moved(f: Frame) -> bool:
    """Whether the value just loaded goes straight into another local (as where a region or resume function begins)."""
    at = f.pc
    for _ in range(6):
        ins = f.program[at][1]
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
def load_const(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(ins.arg)


@handler("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(m: Machine, f: Frame, ins: Any) -> None:
    v = f.slots[ins.slot]
    if type(v) is Unread:
        if not _only_moved(f):  # a mere move between locals relies on nothing
            v = f.slots[ins.slot] = v.load(m)
    elif v is MISSING:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
        )
    f.stack.append(v)


@handler("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(m: Machine, f: Frame, ins: Any) -> None:
    v = f.slots[ins.slot]
    if type(v) is Unread:
        v = v.load(m)
    f.stack.append(NULL if v is MISSING else v)
    f.slots[ins.slot] = MISSING


@handler("STORE_FAST")
def store_fast(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    f.slots[ins.slot] = MISSING if v is NULL else v


@handler("DELETE_FAST")
def delete_fast(m: Machine, f: Frame, ins: Any) -> None:
    if f.slots[ins.slot] is MISSING:
        raise Raised(
            UnboundLocalError(f"cannot access local variable '{ins.arg}' where it is not associated with a value")
        )
    f.slots[ins.slot] = MISSING


# --- cells
@handler("MAKE_CELL")
def make_cell(m: Machine, f: Frame, ins: Any) -> None:
    v = f.slots[ins.slot]
    if type(v) is Unread:
        v = v.load(m)
    f.slots[ins.slot] = types.CellType() if v is MISSING else types.CellType(v)


@handler("COPY_FREE_VARS")
def copy_free_vars(m: Machine, f: Frame, ins: Any) -> None:
    closure = f.function.__closure__ or ()
    first = len(f.slots) - ins.arg
    world = m.world
    base = world.source_of(f.function) if not f.is_root else None
    for i, cell in enumerate(closure):
        f.slots[first + i] = cell
        if id(cell) in world.sources:
            continue
        if f.is_root:
            world.register(cell, S.item(S.attr(S.function(), "__closure__"), i))
            world.cell_contents[id(cell)] = S.closure(i, f.bytecode.slots[first + i].name)
        elif base is not None:
            source = S.item(S.attr(base, "__closure__"), i)
            world.register(cell, source)
            world.cell_contents[id(cell)] = S.cell(source)


@handler("LOAD_CLOSURE")
def load_closure(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(f.slots[ins.slot])


@handler("LOAD_DEREF")
def load_deref(m: Machine, f: Frame, ins: Any) -> None:
    v = read_cell(m, f.slots[ins.slot])
    if v is MISSING:
        if f.bytecode.slots[ins.slot].free:
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
    f.stack.append(v)


@handler("STORE_DEREF")
def store_deref(m: Machine, f: Frame, ins: Any) -> None:
    write_cell(m, f.slots[ins.slot], f.stack.pop())


@handler("DELETE_DEREF")
def delete_deref(m: Machine, f: Frame, ins: Any) -> None:
    write_cell(m, f.slots[ins.slot], MISSING)


@handler("LOAD_CLASSDEREF")
def load_classderef(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is not None and m.native(operator.contains, f.names, ins.arg):
        f.stack.append(m.native(operator.getitem, f.names, ins.arg))
    else:
        load_deref(m, f, ins)


@handler("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(m: Machine, f: Frame, ins: Any) -> None:
    names = f.stack.pop()
    if ins.arg in names:
        f.stack.append(names[ins.arg])
    else:
        load_deref(m, f, ins)


# --- names
@handler("LOAD_GLOBAL")
def load_global(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(m.load_global(f.scope, ins.arg))


@handler("STORE_GLOBAL")
def store_global(m: Machine, f: Frame, ins: Any) -> None:
    value = f.stack.pop()
    m.world.pending.setdefault(id(f.scope.namespace), {})[ins.arg] = value
    m.effects.set_global(f.scope, ins.arg, value)


@handler("DELETE_GLOBAL")
def delete_global(m: Machine, f: Frame, ins: Any) -> None:
    m.load_global(f.scope, ins.arg)
    m.world.pending.setdefault(id(f.scope.namespace), {})[ins.arg] = MISSING
    m.effects.delete_global(f.scope, ins.arg)


@handler("LOAD_NAME")
def load_name(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is not None and m.native(operator.contains, f.names, ins.arg):
        f.stack.append(m.native(operator.getitem, f.names, ins.arg))
    else:
        load_global(m, f, ins)


@handler("STORE_NAME")
def store_name(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is not None:
        m.native(operator.setitem, f.names, ins.arg, f.stack.pop())  # the namespace may be of a class of the program's
    else:
        store_global(m, f, ins)


@handler("DELETE_NAME")
def delete_name(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is not None:
        try:
            m.native(operator.delitem, f.names, ins.arg)
        except Raised:
            raise Raised(NameError(f"name {ins.arg!r} is not defined", name=ins.arg)) from None
    else:
        delete_global(m, f, ins)


@handler("LOAD_LOCALS")
def load_locals(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is None:
        raise Break("unsupported", "the namespace of a module is read as a dict")
    f.stack.append(f.names)


@handler("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(m: Machine, f: Frame, ins: Any) -> None:
    names = f.stack.pop()
    f.stack.append(names[ins.arg] if ins.arg in names else m.load_global(f.scope, ins.arg))


@handler("LOAD_BUILD_CLASS")
def load_build_class(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(builtins.__build_class__)


@handler("LOAD_ASSERTION_ERROR")
def load_assertion_error(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(AssertionError)


@handler("SETUP_ANNOTATIONS")
def setup_annotations(m: Machine, f: Frame, ins: Any) -> None:
    if f.names is None:
        raise Break("unsupported", "a module's annotations are set up")
    f.names.setdefault("__annotations__", {})


# --- building
def _pop_n(f: Frame, n: int) -> list:
    if not n:
        return []
    items = f.stack[-n:]
    del f.stack[-n:]
    return items


@handler("BUILD_TUPLE")
def build_tuple(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(tuple(_pop_n(f, ins.arg)))


@handler("BUILD_LIST")
def build_list(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(_pop_n(f, ins.arg))


@handler("BUILD_SET")
def build_set(m: Machine, f: Frame, ins: Any) -> None:
    items = [hashed(v) for v in _pop_n(f, ins.arg)]
    settle_keys(m, items)
    f.stack.append(m.native(set, items))


@handler("BUILD_MAP")
def build_map(m: Machine, f: Frame, ins: Any) -> None:
    items = _pop_n(f, 2 * ins.arg)
    keys = [hashed(k) for k in items[::2]]
    settle_keys(m, keys)
    f.stack.append(m.native(lambda: dict(zip(keys, items[1::2]))))


@handler("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Machine, f: Frame, ins: Any) -> None:
    keys = f.stack.pop()
    f.stack.append(dict(zip(keys, _pop_n(f, ins.arg))))


@handler("BUILD_STRING")
def build_string(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(join_texts(_pop_n(f, ins.arg)))


@handler("BUILD_SLICE")
def build_slice(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(slice(*_pop_n(f, ins.arg)))


def _grow(m: Machine, container: Any, name: str, *args: Any) -> None:
    """Add to a container that a display or a comprehension is building. After a break it comes from outside: the part
    that was built before it is an argument of the resume function."""
    if name in ("add", "__setitem__"):
        args = (hashed(args[0]), *args[1:])
        settle_keys(m, args[:1], m.plain(container))
    elif name == "update":
        settle_keys(m, args[0], m.plain(container))
    if m.world.is_outside(container):
        containers.mutate(m, container, name, list(args), {})
    else:
        m.native(getattr(container, name), *args)


@handler("LIST_APPEND")
def list_append(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    _grow(m, f.stack[-ins.arg], "append", v)


@handler("SET_ADD")
def set_add(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    _grow(m, f.stack[-ins.arg], "add", v)


@handler("MAP_ADD")
def map_add(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    k = f.stack.pop()
    _grow(m, f.stack[-ins.arg], "__setitem__", k, v)


@handler("LIST_EXTEND")
def list_extend(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    try:
        items = m.iterate(v)
    except Raised as raised:
        if (
            isinstance(raised.exc, TypeError)
            and not hasattr(type(v), "__iter__")
            and not hasattr(type(v), "__getitem__")
        ):
            raise Raised(TypeError(f"Value after * must be an iterable, not {m.world.type_of(v).__name__}")) from None
        raise
    hint_length(m, v)
    _grow(m, f.stack[-ins.arg], "extend", m.native(list, items))


@handler("SET_UPDATE")
def set_update(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    _grow(m, f.stack[-ins.arg], "update", m.native(list, m.iterate(v)))


@handler("DICT_UPDATE")
def dict_update(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    if not hasattr(m.world.type_of(v), "keys"):
        raise Raised(TypeError(f"'{m.world.type_of(v).__name__}' object is not a mapping"))
    _grow(m, f.stack[-ins.arg], "update", as_mapping(m, v))


@handler("DICT_MERGE")
def dict_merge(m: Machine, f: Frame, ins: Any) -> None:
    v = f.stack.pop()
    called = f.stack[-ins.arg - 2]
    if called is NULL:  # 3.13 has the callable first
        called = f.stack[-ins.arg - 3]
    if not hasattr(m.world.type_of(v), "keys"):
        raise Raised(
            TypeError(f"{name_of(called)} argument after ** must be a mapping, not {m.world.type_of(v).__name__}")
        )
    v = as_mapping(m, v)
    target = f.stack[-ins.arg]
    known = m.plain(target)
    for k in v:
        if k in known:
            raise Raised(TypeError(f"{name_of(called)} got multiple values for keyword argument '{k}'"))
    _grow(m, target, "update", v)


@handler("LIST_TO_TUPLE")
def list_to_tuple(m: Machine, f: Frame, ins: Any) -> None:
    f.stack.append(tuple(m.plain(f.stack.pop())))


def _stores_follow(f: Frame, n: int) -> bool:
    program = f.program
    return all(program[i][1].op == "STORE_FAST" for i in range(f.pc, min(f.pc + n, len(program))))


def _unpacked(m: Machine, value: Any, most: int | None) -> list:
    """The elements of what is unpacked; no more of them than `most` are drawn."""
    t = m.world.type_of(value)
    if not hasattr(t, "__iter__") and not hasattr(t, "__getitem__"):
        raise Raised(TypeError(f"cannot unpack non-iterable {t.__name__} object"))
    return m.native(list, itertools.islice(m.iterate(value), most))


_COUNTS_ALL = VERSION >= (3, 14)  # the message says how many values there are


@handler("UNPACK_SEQUENCE")
def unpack_sequence(m: Machine, f: Frame, ins: Any) -> None:
    value = f.stack.pop()
    if type(value) is tuple and id(value) in m.world.sources and len(value) == ins.arg and _stores_follow(f, ins.arg):
        # what is unpacked into locals is guarded when it is read
        source = m.world.sources[id(value)]
        m.world.guard(source, "LEN", ins.arg, "length of a sequence")
        f.stack.extend(Unread(v, S.item(source, i)) for i, v in reversed(list(enumerate(value))))
        return
    counted = _COUNTS_ALL and type(value) in (list, tuple, dict)
    items = _unpacked(m, value, None if counted else ins.arg + 1)
    if len(items) != ins.arg:
        few = "not enough" if len(items) < ins.arg else "too many"
        raise Raised(
            ValueError(
                f"{few} values to unpack (expected {ins.arg}"
                + (f", got {len(items)})" if counted or few != "too many" else ")")
            )
        )
    f.stack.extend(reversed(items))


@handler("UNPACK_EX")
def unpack_ex(m: Machine, f: Frame, ins: Any) -> None:
    before, after = ins.arg & 0xFF, ins.arg >> 8
    items = _unpacked(m, f.stack.pop(), None)
    if len(items) < before + after:
        raise Raised(ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(items)})"))
    rest = items[before : len(items) - after]
    tail = items[len(items) - after :]
    f.stack.extend(reversed(items[:before] + [rest] + tail))
