"""Values made inside, made again by the entry: each kind of value has a row that says by which lines."""

from __future__ import annotations

import collections
import datetime
import enum
import functools
import gc
import itertools
import operator
import pathlib
import sys
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...base.quoting import is_plain_name
from ...graph.tensor import TraceTensor
from ..arrays.array_value import Array
from ..bytecode.splice import UNBOUND
from ..kinds.outside_iterators import OutsideIterator
from ..library import polyfills
from ..machine.generators import InlineGenerator, PythonIterator
from ..machine.signals import Break, Unrebuildable
from ..machine.stack_values import BOUND_NATIVE, IMMUTABLE, MISSING, is_library_constant, has_owner
from ..numbers.late_text import LateText
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.jagged_values import write_jagged
from ..tensors.wrapper_values import is_of_wrapper, write_wrapper

if TYPE_CHECKING:
    from .entry_source import EntryWriter

__all__ = ["make"]

_MOST_TOTALS = 1000  # sums of an itertools.accumulate that are computed before anybody asks
_REDUCED = (
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
    type(iter({})),
    type(iter("")),
    zip,
    enumerate,
    reversed,
    type(reversed([])),
    type(iter({}.items())),
    type(iter({}.values())),
    type(iter(set())),
    map,
    filter,
    itertools.repeat,
    itertools.count,
    itertools.compress,
    itertools.chain,
    itertools.islice,
    itertools.takewhile,
    itertools.dropwhile,
    itertools.filterfalse,
    itertools.zip_longest,
    itertools.product,
    itertools.permutations,
    itertools.combinations,
    itertools.combinations_with_replacement,
)
_NATIVE_CONTENT = frozenset(
    (
        object,
        types.SimpleNamespace,
        collections.OrderedDict,
        collections.defaultdict,
        dict,
        list,
        set,
        int,
        str,
        float,
        bytes,
        frozenset,
    )
)
_NAMED = (
    type,
    types.ModuleType,
    enum.Enum,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.CodeType,
    types.GenericAlias,
)
_NEVER_CHANGED = (
    torch.finfo,
    torch.iinfo,
    torch.device,
    operator.itemgetter,
    operator.attrgetter,
    *IMMUTABLE,
    pathlib.PosixPath,
    pathlib.WindowsPath,
    pathlib.PurePosixPath,
    pathlib.PureWindowsPath,
    datetime.datetime,
    datetime.timezone,
)


def make(writer: EntryWriter, value: Any) -> str:
    """An expression for a value that has no name in the entry yet, after the lines that it needs."""
    of_type = _OF_TYPE.get(type(value))
    if of_type is not None:
        return of_type(writer, value)
    for fits, do in _OF_KIND:
        if fits(writer, value):
            return do(writer, value)
    return _instance(writer, value)


def _constant(writer: EntryWriter, value: Any) -> str:
    """The object itself, which lives on with the entry."""
    writer.kept.append(value)
    return writer.constant(value)


def _class(writer: EntryWriter, cls: type) -> str:
    if id(cls) in writer.machine.world.made:
        raise Unrebuildable(cls, f"an instance of the class {cls.__name__}, defined inside")
    return writer.constant(cls)


# --- tensors, arrays and texts
def _outside_iterator(writer: EntryWriter, v: OutsideIterator) -> str:
    return writer.value(v.real)


def _late_text(writer: EntryWriter, v: LateText) -> str:
    return writer.assign(v, " + ".join(map(writer.text_part, v.parts)) or "''")


def _array(writer: EntryWriter, array: Array) -> str:
    if array._source is not None:
        return writer.load(array._source)
    name = writer.assign(array, f"{writer.value(array._tensor)}.numpy(){'[()]' if array._number else ''}")
    if array._fixed:
        writer.line(f"{name}.setflags(write=False)")
    return name


def _subclassed(writer: EntryWriter, subclassed: Subclassed) -> str:
    if subclassed.nested is not None:
        return write_jagged(writer, subclassed)
    if is_of_wrapper(subclassed):
        return write_wrapper(writer, subclassed)
    as_subclass, tensor_class = writer.constant(torch.Tensor.as_subclass), _class(writer, subclassed.tensor_class)
    name = writer.assign(subclassed, f"{as_subclass}({writer.value(subclassed.plain)}, {tensor_class})")
    for key, value in subclassed.__dict__.items():
        writer.line(f"{name}.__dict__[{key!r}] = {writer.value(value)}")
    return name


# --- builtin containers
def _tuple(writer: EntryWriter, v: tuple) -> str:
    return writer.assign(v, f"({writer.sequence(v)}{',' if len(v) == 1 else ''})") if len(v) else "()"


def _list(writer: EntryWriter, v: list) -> str:
    return writer.assign(v, f"[{writer.sequence(v)}]")


def _dict(writer: EntryWriter, v: dict) -> str:
    return writer.assign(
        v, "{" + ", ".join(f"{writer.value(key)}: {writer.value(value)}" for key, value in v.items()) + "}"
    )


def _set(writer: EntryWriter, v: set) -> str:
    return writer.assign(v, "{" + writer.sequence(v) + "}" if v else "set()")


def _bytearray(writer: EntryWriter, v: bytearray) -> str:
    return writer.assign(v, f"bytearray({bytes(v)!r})")


def _frozenset(writer: EntryWriter, v: frozenset) -> str:
    return writer.assign(v, f"frozenset([{writer.sequence(v)}])")


def _slice(writer: EntryWriter, v: slice) -> str:
    return writer.assign(v, f"slice({writer.value(v.start)}, {writer.value(v.stop)}, {writer.value(v.step)})")


def _size(writer: EntryWriter, v: torch.Size) -> str:
    return f"{writer.constant(torch.Size)}([{writer.sequence(v)}])"


def _pairs(writer: EntryWriter, v: dict) -> str:
    return "[" + ", ".join(f"({writer.value(key)}, {writer.value(value)})" for key, value in v.items()) + "]"


def _ordered_dict(writer: EntryWriter, v: collections.OrderedDict) -> str:
    return writer.assign(v, f"{writer.constant(type(v))}({_pairs(writer, v)})")


def _defaultdict(writer: EntryWriter, v: collections.defaultdict) -> str:
    items = _pairs(writer, v)
    return writer.assign(v, f"{writer.constant(type(v))}({writer.value(v.default_factory)}, {items})")


def _deque(writer: EntryWriter, v: collections.deque) -> str:
    return writer.assign(v, f"{writer.constant(type(v))}([{writer.sequence(v)}], {v.maxlen!r})")


def _view(writer: EntryWriter, value: Any) -> str:
    return writer.assign(value, f"{writer.value(dict(value.mapping))}.{_VIEWS[type(value)]}()")


_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


def _mapping_proxy(writer: EntryWriter, v: types.MappingProxyType) -> str:
    owner = writer.machine.world.class_dicts.get(id(v))
    if owner is not None:  # of a class: what it holds when the entry runs
        return writer.assign(v, f"{writer.constant(vars)}({writer.value(owner)})")
    return writer.assign(v, f"{writer.constant(type(v))}({writer.value(gc.get_referents(v)[0])})")


def _tuple_of_class(writer: EntryWriter, value: Any) -> str:
    cls = type(value)
    if cls.__module__ == "torch.return_types":
        return writer.assign(value, f"{writer.constant(cls)}([{writer.sequence(tuple(value))}])")
    parts = writer.sequence(tuple.__iter__(value)) + ("," if len(value) == 1 else "")
    name = writer.assign(value, f"tuple.__new__({writer.constant(cls)}, ({parts}))")
    _own_attributes(writer, name, value)
    return name


# --- functions and what binds them
def _bound_method(writer: EntryWriter, v: types.MethodType) -> str:
    if type(v.__self__) in (TraceTensor, Array):
        return writer.assign(v, f"{writer.value(v.__self__)}.{v.__name__}")
    return writer.assign(
        v, f"{writer.constant(types.MethodType)}({writer.value(v.__func__)}, {writer.value(v.__self__)})"
    )


def _native_method(writer: EntryWriter, value: Any) -> str:
    if isinstance(value, types.BuiltinFunctionType) and not has_owner(value):
        return _constant(writer, value)
    owner, name = value.__self__, value.__name__
    overridden = _overridden_descriptor(value)
    if overridden is not None:
        return writer.assign(value, f"{writer.constant(overridden)}.__get__({writer.value(owner)})")
    return writer.assign(value, f"{writer.value(owner)}.{name}")


def _overridden_descriptor(method: Any) -> Any:
    """What a native method was bound from, where its owner gives another one by that name: super() found it past an
    override, or past what a class declares for its instances. None where its owner gives it."""
    owner, name = method.__self__, method.__name__
    classes = type(owner).__mro__
    given = (*owner.__mro__, *classes) if isinstance(owner, type) else classes
    first = next((vars(cls)[name] for cls in given if name in vars(cls)), None)
    for cls in classes:
        descriptor = vars(cls).get(name)
        if isinstance(descriptor, _NATIVE_DESCRIPTORS) and descriptor.__get__(owner) == method:
            return None if descriptor is first else descriptor
    return None


_NATIVE_DESCRIPTORS = (types.WrapperDescriptorType, types.MethodDescriptorType)


def _static_method(writer: EntryWriter, value: Any) -> str:
    return writer.assign(value, f"{writer.constant(type(value))}({writer.value(value.__func__)})")


def _partial(writer: EntryWriter, v: functools.partial) -> str:
    given = f"{writer.value(v.func)}, *{writer.value(v.args)}, **{writer.value(v.keywords)}"
    return writer.assign(v, f"{writer.constant(functools.partial)}({given})")


def _super(writer: EntryWriter, value: Any) -> str:
    return writer.assign(value, f"super({writer.value(value.__thisclass__)}, {writer.value(value.__self__)})")


def _cell(writer: EntryWriter, v: types.CellType) -> str:
    """A cell made inside; it has its name before its content, which may refer to it."""
    name = writer.fresh()
    writer.line(f"{name} = {writer.constant(types.CellType)}()")
    writer.made[id(v)] = name
    writer.kept.append(v)
    try:
        content = v.cell_contents
    except ValueError:
        return name
    if id(content) in writer.making:  # a function that refers to itself
        writer.waiting.setdefault(id(content), []).append(name)
    else:
        writer.line(f"{name}.cell_contents = {writer.value(content)}")
    return name


def _function(writer: EntryWriter, v: types.FunctionType) -> str:
    if "interprets" in v.__dict__:
        return writer.value(v.__dict__["interprets"])
    world = writer.machine.world
    if (
        world.sources.get(id(v)) is None
        and id(v) not in world.created  # a cell that defines it makes another one, with other defaults, in each run
        and v.__module__ is not None
        and not v.__closure__
        and v.__name__ != "<lambda>"
        and "<locals>" not in v.__qualname__
    ):
        writer.kept.append(v)
        return writer.constant(v)
    space = writer.globals_of(writer.machine.scope_of(v.__globals__))
    closure = "None"
    if v.__closure__:
        closure = "(" + "".join(writer.value(c) + ", " for c in v.__closure__) + ")"
    defaults = writer.value(v.__defaults__) if v.__defaults__ else "None"
    name = writer.fresh()
    writer.kept.append(v)
    writer.line(
        f"{name} = {writer.constant(types.FunctionType)}({writer.constant(v.__code__, 'code')}, {space},"
        f" {v.__name__!r}, {defaults}, {closure})"
    )
    writer.made[id(v)] = name
    writer.line(f"{name}.__qualname__ = {v.__qualname__!r}")
    if v.__kwdefaults__:
        writer.line(f"{name}.__kwdefaults__ = {writer.value(v.__kwdefaults__)}")
    if getattr(v, "__annotate__", None) is not None:  # Python 3.14 computes them when they are asked for
        writer.line(f"{name}.__annotate__ = {writer.value(v.__annotate__)}")
    elif v.__annotations__:
        writer.line(f"{name}.__annotations__ = {writer.value(v.__annotations__)}")
    if v.__module__ != v.__globals__.get("__name__"):
        writer.line(f"{name}.__module__ = {v.__module__!r}")
    if v.__doc__ != (
        v.__code__.co_consts[0] if v.__code__.co_consts and isinstance(v.__code__.co_consts[0], str) else None
    ):
        writer.line(f"{name}.__doc__ = {v.__doc__!r}")
    for key, value in v.__dict__.items():
        writer.line(f"{name}.__dict__[{key!r}] = {writer.value(value)}")
    return name


# --- what is told by more than its exact type
def _is_unbound(writer: EntryWriter, value: Any) -> bool:
    return value is UNBOUND


def _unbound(writer: EntryWriter, value: Any) -> str:
    return writer.constant(value, "unbound")


def _is_made_class(writer: EntryWriter, value: Any) -> bool:
    return isinstance(value, type) and id(value) in writer.machine.world.made


def _refuse_class(writer: EntryWriter, cls: type) -> str:
    raise Unrebuildable(cls, f"the class {cls.__name__}, defined inside")


def _reference(writer: EntryWriter, v: weakref.ReferenceType) -> str:
    target = v()
    return (
        _instance(writer, v)
        if target is None
        else writer.assign(v, f"{writer.constant(weakref.ref)}({writer.value(target)})")
    )


def _generator(writer: EntryWriter, v: InlineGenerator) -> str:
    """Generators stay where they run, but for itertools.accumulate, which capture itself interprets. One that nothing
    was asked of yet calls the program's function when somebody asks."""
    if v.frame.code is not polyfills.accumulate.__code__:
        raise Unrebuildable(v, "a generator")
    iterable, function, initial = v.frame.slots[:3]
    if not v.started and type(function) is types.FunctionType:
        given = f"{writer.sequence((iterable, function))}, initial={writer.value(initial)}"
        return writer.assign(v, f"{writer.constant(itertools.accumulate)}({given})")
    given = f"[{writer.sequence(_totals(writer, v))}], {writer.constant(polyfills.latter)}"
    return writer.assign(v, f"{writer.constant(itertools.accumulate)}({given})")


def _is_running(writer: EntryWriter, value: Any) -> bool:
    """Whether it is an iterator that cannot be carried over a break."""
    return isinstance(value, PythonIterator) or id(value) in writer.machine.origins


def _refuse_running(writer: EntryWriter, value: Any) -> str:
    raise Unrebuildable(value, f"a {type(value).__name__}")


def _is_library_constant(writer: EntryWriter, value: Any) -> bool:
    return is_library_constant(value)


def _never_changes(writer: EntryWriter, value: Any) -> bool:
    return type(value) in _NEVER_CHANGED


def _of(*kinds: type) -> Callable[[EntryWriter, Any], bool]:
    """A condition: the value is an instance of one of the kinds."""
    return lambda w, v: isinstance(v, kinds)


def _totals(writer: EntryWriter, v: InlineGenerator) -> list[Any]:
    """What an itertools.accumulate that leaves the captured part will give. It is computed now, where that has no
    effects and nobody else has the list that it goes through."""
    refusal, before, items = Unrebuildable(v, "an accumulate"), len(writer.machine.effects.entries), v.frame.slots[0]
    if type(items) is list and not writer.machine.world.is_outside(items) and writer.returns:
        writer.gone_through.append((items, refusal))
    elif type(items) is not tuple:
        raise refusal
    try:
        totals = list(itertools.islice(v, _MOST_TOTALS + 1))
    except (Exception, Break):
        raise refusal from None
    if len(writer.machine.effects.entries) != before or not v.finished:
        raise refusal
    return totals


def _exception(writer: EntryWriter, error: BaseException) -> str:
    cls = _class(writer, type(error))
    name = writer.assign(error, f"{cls}.__new__({cls}, {writer.sequence(error.args)})")
    writer.line(f"{name}.args = {writer.value(error.args)}")
    for key, value in error.__dict__.items():
        writer.line(
            f"{name}.{key} = {writer.value(value)}"
            if is_plain_name(key)
            else f"setattr({name}, {key!r}, {writer.value(value)})"
        )
    if isinstance(error, (NameError, AttributeError)) and isinstance(error.name, str):
        writer.line(f"{name}.name = {error.name!r}")
    if isinstance(error, AttributeError) and (
        type(error.obj) is TraceTensor or writer.machine.world.is_outside(error.obj)
    ):
        writer.line(f"{name}.obj = {writer.value(error.obj)}")
    if error.__cause__ is not None:
        writer.line(f"{name}.__cause__ = {writer.value(error.__cause__)}")
    if error.__suppress_context__:
        writer.line(f"{name}.__suppress_context__ = True")
    trail = writer.machine.trails.get(id(error))
    if error.__context__ is not None:
        writer.line(f"{name}.__context__ = {writer.value(error.__context__)}")
    elif trail:  # raised where nothing of the frame's own was handled
        writer.line(f"{name}.__context__ = {writer.constant(sys.exception)}()")
    if trail:
        writer.line(f"{name}.__traceback__ = {writer.traceback(trail)}")
    return name


def _iterator(writer: EntryWriter, value: Any) -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parts = value.__reduce__()
    fn, args = parts[0], parts[1]
    name = writer.assign(value, f"{writer.value(fn)}({writer.sequence(args)})")
    if len(parts) > 2 and parts[2] is not None:
        writer.line(f"{name}.__setstate__({writer.value(parts[2])})")
    return name


# What instances of subclasses hold, past special methods of their own.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    str: str.__str__,
    float: float.__float__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}


def _instance(writer: EntryWriter, value: Any) -> str:
    """An instance of a class written in Python, field by field, without its __init__."""
    t = type(value)
    native = next(b for b in t.__mro__ if not b.__flags__ & (1 << 9))  # the class of C that holds the content
    if (
        native not in _NATIVE_CONTENT
        or t.__flags__ & (1 << 7)
        or any(
            isinstance(vars(b).get("__new__"), types.BuiltinFunctionType) and b not in _NATIVE_CONTENT
            for b in t.__mro__
        )
    ):
        raise Unrebuildable(value, f"a {t.__module__}.{t.__name__} made inside")
    cls = _class(writer, t)
    base = next(
        (b for b in (collections.OrderedDict, collections.defaultdict, dict, list, set) if isinstance(value, b)), object
    )
    kind = next((b for b in _CONTENT if isinstance(value, b)), None)
    if base is object and kind is not None:
        name = writer.assign(value, f"{kind.__name__}.__new__({cls}, {writer.value(_CONTENT[kind](value))})")
    else:
        maker = writer.constant(native) if native.__module__ != "builtins" else native.__name__
        name = writer.assign(value, f"{maker}.__new__({cls})")
        if base is list:
            writer.line(f"list.extend({name}, [{writer.sequence(list.__iter__(value))}])")
        elif base is set:
            writer.line(f"set.update({name}, [{writer.sequence(set.__iter__(value))}])")
        elif base is not object:
            for k in base.__iter__(value):
                writer.line(
                    f"{maker}.__setitem__({name}, {writer.value(k)}, {writer.value(dict.__getitem__(value, k))})"
                )
    _own_attributes(writer, name, value)
    for owner in t.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot in ("__dict__", "__weakref__"):
                continue
            mangled = (
                f"_{owner.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            )
            x = getattr(value, mangled, MISSING)
            if x is not MISSING:
                writer.line(f"object.__setattr__({name}, {mangled!r}, {writer.value(x)})")
    return name


def _own_attributes(writer: EntryWriter, name: str, value: Any) -> None:
    """Lines that put what is in the __dict__ of `value` into that of `name`."""
    if fields := getattr(value, "__dict__", None):
        given = ", ".join(f"{key!r}: {writer.value(field)}" for key, field in fields.items())
        writer.line(f"{name}.__dict__.update({{{given}}})")


_OF_TYPE: dict[type, Callable[[EntryWriter, Any], str]] = {
    OutsideIterator: _outside_iterator,
    LateText: _late_text,
    Array: _array,
    Subclassed: _subclassed,
    tuple: _tuple,
    list: _list,
    dict: _dict,
    set: _set,
    bytearray: _bytearray,
    frozenset: _frozenset,
    slice: _slice,
    collections.OrderedDict: _ordered_dict,
    collections.defaultdict: _defaultdict,
    collections.deque: _deque,
    **dict.fromkeys(_VIEWS, _view),
    types.MappingProxyType: _mapping_proxy,
    types.FunctionType: _function,
    types.MethodType: _bound_method,
    **dict.fromkeys(BOUND_NATIVE, _native_method),
    staticmethod: _static_method,
    classmethod: _static_method,
    functools.partial: _partial,
    super: _super,
    types.CellType: _cell,
    weakref.ReferenceType: _reference,
    InlineGenerator: _generator,
}
# In order: a class made inside is a class, too, and what native code made may be an iterator of a kind that has a row.
_OF_KIND: tuple[tuple[Callable[[EntryWriter, Any], bool], Callable[[EntryWriter, Any], str]], ...] = (
    (_is_unbound, _unbound),
    (_of(torch.Size), _size),
    (_is_made_class, _refuse_class),
    (_of(*_NAMED), _constant),
    (_of(tuple), _tuple_of_class),
    (_of(BaseException), _exception),
    (_of(*_REDUCED), _iterator),
    (_is_running, _refuse_running),
    (_is_library_constant, _constant),
    (_never_changes, _constant),
)
