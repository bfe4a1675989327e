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
from ..machine.stack_values import BOUND_NATIVE, IMMUTABLE, MISSING, is_library_constant, native_owner
from ..numbers.late_text import LateText
from ..tensors.tensor_subclasses import Subclassed
from ..tensors.jagged_values import write_jagged
from ..tensors.wrapper_values import is_of_wrapper, write_wrapper

if TYPE_CHECKING:
    from .entry_source import EntryWriter

__all__ = ["make", "has_owner"]

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


def make(w: EntryWriter, v: Any) -> str:
    """An expression for a value that has no name in the entry yet, after the lines that it needs."""
    of_type = _OF_TYPE.get(type(v))
    if of_type is not None:
        return of_type(w, v)
    for fits, do in _OF_KIND:
        if fits(w, v):
            return do(w, v)
    return _instance(w, v)


def _constant(w: EntryWriter, v: Any) -> str:
    """The object itself, which lives on with the entry."""
    w.kept.append(v)
    return w.constant(v)


def _class(w: EntryWriter, t: type) -> str:
    if id(t) in w.machine.world.made:
        raise Unrebuildable(t, f"an instance of the class {t.__name__}, defined inside")
    return w.constant(t)


# --- tensors, arrays and texts
def _outside_iterator(w: EntryWriter, v: OutsideIterator) -> str:
    return w.value(v.real)


def _late_text(w: EntryWriter, v: LateText) -> str:
    return w.assign(v, " + ".join(map(w.text_part, v.parts)) or "''")


def _array(w: EntryWriter, v: Array) -> str:
    if v._source is not None:
        return w.load(v._source)
    name = w.assign(v, f"{w.value(v._tensor)}.numpy(){'[()]' if v._number else ''}")
    if v._fixed:
        w.line(f"{name}.setflags(write=False)")
    return name


def _subclassed(w: EntryWriter, v: Subclassed) -> str:
    if v.nested is not None:
        return write_jagged(w, v)
    if is_of_wrapper(v):
        return write_wrapper(w, v)
    name = w.assign(v, f"{w.constant(torch.Tensor.as_subclass)}({w.value(v.plain)}, {_class(w, v.tensor_class)})")
    for key, x in v.__dict__.items():
        w.line(f"{name}.__dict__[{key!r}] = {w.value(x)}")
    return name


# --- builtin containers
def _tuple(w: EntryWriter, v: tuple) -> str:
    return w.assign(v, f"({w.sequence(v)}{',' if len(v) == 1 else ''})") if len(v) else "()"


def _list(w: EntryWriter, v: list) -> str:
    return w.assign(v, f"[{w.sequence(v)}]")


def _dict(w: EntryWriter, v: dict) -> str:
    return w.assign(v, "{" + ", ".join(f"{w.value(k)}: {w.value(x)}" for k, x in v.items()) + "}")


def _set(w: EntryWriter, v: set) -> str:
    return w.assign(v, "{" + w.sequence(v) + "}" if v else "set()")


def _bytearray(w: EntryWriter, v: bytearray) -> str:
    return w.assign(v, f"bytearray({bytes(v)!r})")


def _frozenset(w: EntryWriter, v: frozenset) -> str:
    return w.assign(v, f"frozenset([{w.sequence(v)}])")


def _slice(w: EntryWriter, v: slice) -> str:
    return w.assign(v, f"slice({w.value(v.start)}, {w.value(v.stop)}, {w.value(v.step)})")


def _size(w: EntryWriter, v: torch.Size) -> str:
    return f"{w.constant(torch.Size)}([{w.sequence(v)}])"


def _pairs(w: EntryWriter, v: dict) -> str:
    return "[" + ", ".join(f"({w.value(k)}, {w.value(x)})" for k, x in v.items()) + "]"


def _ordered_dict(w: EntryWriter, v: collections.OrderedDict) -> str:
    return w.assign(v, f"{w.constant(type(v))}({_pairs(w, v)})")


def _defaultdict(w: EntryWriter, v: collections.defaultdict) -> str:
    items = _pairs(w, v)
    return w.assign(v, f"{w.constant(type(v))}({w.value(v.default_factory)}, {items})")


def _deque(w: EntryWriter, v: collections.deque) -> str:
    return w.assign(v, f"{w.constant(type(v))}([{w.sequence(v)}], {v.maxlen!r})")


def _view(w: EntryWriter, v: Any) -> str:
    return w.assign(v, f"{w.value(dict(v.mapping))}.{_VIEWS[type(v)]}()")


_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


def _mapping_proxy(w: EntryWriter, v: types.MappingProxyType) -> str:
    owner = w.machine.world.class_dicts.get(id(v))
    if owner is not None:  # of a class: what it holds when the entry runs
        return w.assign(v, f"{w.constant(vars)}({w.value(owner)})")
    return w.assign(v, f"{w.constant(type(v))}({w.value(gc.get_referents(v)[0])})")


def _tuple_of_class(w: EntryWriter, v: Any) -> str:
    t = type(v)
    if t.__module__ == "torch.return_types":
        return w.assign(v, f"{w.constant(t)}([{w.sequence(tuple(v))}])")
    return w.assign(v, f"tuple.__new__({w.constant(t)}, ({w.sequence(tuple.__iter__(v))}{',' if len(v) == 1 else ''}))")


# --- functions and what binds them
def _bound_method(w: EntryWriter, v: types.MethodType) -> str:
    if type(v.__self__) in (TraceTensor, Array):
        return w.assign(v, f"{w.value(v.__self__)}.{v.__name__}")
    return w.assign(v, f"{w.constant(types.MethodType)}({w.value(v.__func__)}, {w.value(v.__self__)})")


def _native_method(w: EntryWriter, v: Any) -> str:
    if isinstance(v, types.BuiltinFunctionType) and not has_owner(v):
        return _constant(w, v)
    return w.assign(v, f"{w.value(v.__self__)}.{v.__name__}")


def has_owner(v: Any) -> bool:
    """Whether a native function is bound to an object, not to its module or class."""
    return not isinstance(native_owner(v), (types.ModuleType, type(None), type))


def _static_method(w: EntryWriter, v: Any) -> str:
    return w.assign(v, f"{w.constant(type(v))}({w.value(v.__func__)})")


def _partial(w: EntryWriter, v: functools.partial) -> str:
    return w.assign(
        v, f"{w.constant(functools.partial)}({w.value(v.func)}, *{w.value(v.args)}, **{w.value(v.keywords)})"
    )


def _super(w: EntryWriter, v: Any) -> str:
    return w.assign(v, f"super({w.value(v.__thisclass__)}, {w.value(v.__self__)})")


def _cell(w: EntryWriter, v: types.CellType) -> str:
    """A cell made inside; it has its name before its content, which may refer to it."""
    name = w.fresh()
    w.line(f"{name} = {w.constant(types.CellType)}()")
    w.made[id(v)] = name
    w.kept.append(v)
    try:
        content = v.cell_contents
    except ValueError:
        return name
    if id(content) in w.making:  # a function that refers to itself
        w.waiting.setdefault(id(content), []).append(name)
    else:
        w.line(f"{name}.cell_contents = {w.value(content)}")
    return name


def _function(w: EntryWriter, v: types.FunctionType) -> str:
    if "interprets" in v.__dict__:
        return w.value(v.__dict__["interprets"])
    world = w.machine.world
    if (
        world.sources.get(id(v)) is None
        and id(v) not in world.created  # a cell that defines it makes another one, with other defaults, in each run
        and v.__module__ is not None
        and not v.__closure__
        and v.__name__ != "<lambda>"
        and "<locals>" not in v.__qualname__
    ):
        w.kept.append(v)
        return w.constant(v)
    space = w.globals_of(w.machine.scope_of(v.__globals__))
    closure = "None"
    if v.__closure__:
        closure = "(" + "".join(w.value(c) + ", " for c in v.__closure__) + ")"
    defaults = w.value(v.__defaults__) if v.__defaults__ else "None"
    name = w.fresh()
    w.kept.append(v)
    w.line(
        f"{name} = {w.constant(types.FunctionType)}({w.constant(v.__code__, 'code')}, {space},"
        f" {v.__name__!r}, {defaults}, {closure})"
    )
    w.made[id(v)] = name
    w.line(f"{name}.__qualname__ = {v.__qualname__!r}")
    if v.__kwdefaults__:
        w.line(f"{name}.__kwdefaults__ = {w.value(v.__kwdefaults__)}")
    if getattr(v, "__annotate__", None) is not None:  # Python 3.14 computes them when they are asked for
        w.line(f"{name}.__annotate__ = {w.value(v.__annotate__)}")
    elif v.__annotations__:
        w.line(f"{name}.__annotations__ = {w.value(v.__annotations__)}")
    if v.__module__ != v.__globals__.get("__name__"):
        w.line(f"{name}.__module__ = {v.__module__!r}")
    if v.__doc__ != (
        v.__code__.co_consts[0] if v.__code__.co_consts and isinstance(v.__code__.co_consts[0], str) else None
    ):
        w.line(f"{name}.__doc__ = {v.__doc__!r}")
    for key, x in v.__dict__.items():
        w.line(f"{name}.__dict__[{key!r}] = {w.value(x)}")
    return name


# --- what is told by more than its exact type
def _is_unbound(w: EntryWriter, v: Any) -> bool:
    return v is UNBOUND


def _unbound(w: EntryWriter, v: Any) -> str:
    return w.constant(v, "unbound")


def _is_made_class(w: EntryWriter, v: Any) -> bool:
    return isinstance(v, type) and id(v) in w.machine.world.made


def _refuse_class(w: EntryWriter, v: type) -> str:
    raise Unrebuildable(v, f"the class {v.__name__}, defined inside")


def _reference(w: EntryWriter, v: weakref.ReferenceType) -> str:
    target = v()
    return _instance(w, v) if target is None else w.assign(v, f"{w.constant(weakref.ref)}({w.value(target)})")


def _generator(w: EntryWriter, v: InlineGenerator) -> str:
    """Generators stay where they run, but for itertools.accumulate, which capture itself interprets. One that nothing
    was asked of yet calls the program's function when somebody asks."""
    if v.frame.code is not polyfills.accumulate.__code__:
        raise Unrebuildable(v, "a generator")
    iterable, function, initial = v.frame.slots[:3]
    if not v.started and type(function) is types.FunctionType:
        given = f"{w.sequence((iterable, function))}, initial={w.value(initial)}"
        return w.assign(v, f"{w.constant(itertools.accumulate)}({given})")
    return w.assign(
        v, f"{w.constant(itertools.accumulate)}([{w.sequence(_totals(w, v))}], {w.constant(polyfills.latter)})"
    )


def _is_running(w: EntryWriter, v: Any) -> bool:
    """Whether it is an iterator that cannot be carried over a break."""
    return isinstance(v, PythonIterator) or id(v) in w.machine.origins


def _refuse_running(w: EntryWriter, v: Any) -> str:
    raise Unrebuildable(v, f"a {type(v).__name__}")


def _is_library_constant(w: EntryWriter, v: Any) -> bool:
    return is_library_constant(v)


def _never_changes(w: EntryWriter, v: Any) -> bool:
    return type(v) in _NEVER_CHANGED


def _of(*kinds: type) -> Callable[[EntryWriter, Any], bool]:
    """A condition: the value is an instance of one of the kinds."""
    return lambda w, v: isinstance(v, kinds)


def _totals(w: EntryWriter, v: InlineGenerator) -> list[Any]:
    """What an itertools.accumulate that leaves the captured part will give. It is computed now, where that has no
    effects and nobody else has the list that it goes through."""
    refusal, before, items = Unrebuildable(v, "an accumulate"), len(w.machine.effects.entries), v.frame.slots[0]
    if type(items) is list and not w.machine.world.is_outside(items) and w.returns:
        w.gone_through.append((items, refusal))
    elif type(items) is not tuple:
        raise refusal
    try:
        totals = list(itertools.islice(v, _MOST_TOTALS + 1))
    except (Exception, Break):
        raise refusal from None
    if len(w.machine.effects.entries) != before or not v.finished:
        raise refusal
    return totals


def _exception(w: EntryWriter, v: BaseException) -> str:
    cls = _class(w, type(v))
    name = w.assign(v, f"{cls}.__new__({cls}, {w.sequence(v.args)})")
    w.line(f"{name}.args = {w.value(v.args)}")
    for key, x in v.__dict__.items():
        w.line(f"{name}.{key} = {w.value(x)}" if is_plain_name(key) else f"setattr({name}, {key!r}, {w.value(x)})")
    if isinstance(v, (NameError, AttributeError)) and isinstance(v.name, str):
        w.line(f"{name}.name = {v.name!r}")
    if isinstance(v, AttributeError) and (type(v.obj) is TraceTensor or w.machine.world.is_outside(v.obj)):
        w.line(f"{name}.obj = {w.value(v.obj)}")
    if v.__cause__ is not None:
        w.line(f"{name}.__cause__ = {w.value(v.__cause__)}")
    if v.__suppress_context__:
        w.line(f"{name}.__suppress_context__ = True")
    trail = w.machine.trails.get(id(v))
    if v.__context__ is not None:
        w.line(f"{name}.__context__ = {w.value(v.__context__)}")
    elif trail:  # raised where nothing of the frame's own was handled
        w.line(f"{name}.__context__ = {w.constant(sys.exception)}()")
    if trail:
        w.line(f"{name}.__traceback__ = {w.traceback(trail)}")
    return name


def _iterator(w: EntryWriter, v: Any) -> str:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parts = v.__reduce__()
    fn, args = parts[0], parts[1]
    name = w.assign(v, f"{w.value(fn)}({w.sequence(args)})")
    if len(parts) > 2 and parts[2] is not None:
        w.line(f"{name}.__setstate__({w.value(parts[2])})")
    return name


# What instances of subclasses hold, past special methods of their own.
_CONTENT: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    str: str.__str__,
    float: float.__float__,
    bytes: lambda v: bytes.__getitem__(v, slice(None)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}


def _instance(w: EntryWriter, v: Any) -> str:
    """An instance of a class written in Python, field by field, without its __init__."""
    t = type(v)
    native = next(b for b in t.__mro__ if not b.__flags__ & (1 << 9))  # the class of C that holds the content
    if (
        native not in _NATIVE_CONTENT
        or t.__flags__ & (1 << 7)
        or any(
            isinstance(vars(b).get("__new__"), types.BuiltinFunctionType) and b not in _NATIVE_CONTENT
            for b in t.__mro__
        )
    ):
        raise Unrebuildable(v, f"a {t.__module__}.{t.__name__} made inside")
    cls = _class(w, t)
    base = next(
        (b for b in (collections.OrderedDict, collections.defaultdict, dict, list, set) if isinstance(v, b)), object
    )
    kind = next((b for b in _CONTENT if isinstance(v, b)), None)
    if base is object and kind is not None:
        name = w.assign(v, f"{kind.__name__}.__new__({cls}, {w.value(_CONTENT[kind](v))})")
    else:
        maker = w.constant(native) if native.__module__ != "builtins" else native.__name__
        name = w.assign(v, f"{maker}.__new__({cls})")
        if base is list:
            w.line(f"list.extend({name}, [{w.sequence(list.__iter__(v))}])")
        elif base is set:
            w.line(f"set.update({name}, [{w.sequence(set.__iter__(v))}])")
        elif base is not object:
            for k in base.__iter__(v):
                w.line(f"{maker}.__setitem__({name}, {w.value(k)}, {w.value(dict.__getitem__(v, k))})")
    fields = getattr(v, "__dict__", None)
    if fields:
        w.line(f"{name}.__dict__.update({{{', '.join(f'{k!r}: {w.value(x)}' for k, x in fields.items())}}})")
    for owner in t.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot in ("__dict__", "__weakref__"):
                continue
            mangled = (
                f"_{owner.__name__.lstrip('_')}{slot}" if slot.startswith("__") and not slot.endswith("__") else slot
            )
            x = getattr(v, mangled, MISSING)
            if x is not MISSING:
                w.line(f"object.__setattr__({name}, {mangled!r}, {w.value(x)})")
    return name


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
