"""Lists, tuples, dicts and sets from outside: read lazily under guards, changed through shadows and the effect log.

A *shadow* is an inside copy of an outside container, made when the whole of it is read or when it is changed in a way
that depends on its content. Later reads and writes go to the shadow; the same writes, in order, are in the effect log
and are done on the real container after the graph has run. `lst.append(x)` and `d[k] = v` need no read, so they make no
guard.
"""

from __future__ import annotations

import collections
import enum
import operator
import types
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ...guards import source as S
from ...guards.source_values import is_constant, plain_key
from ...guards.weak import reference
from ..library import polyfills
from ..machine.generators import InlineGenerator, PythonIterator
from ..numbers.late_text import LateText, settled
from ..numbers.late_text import is_open, settle_keys
from .outside_iterators import OutsideIterator, is_native_iterator, outside_iterator
from ..machine.shadow import Shadow
from ..machine.signals import Break, Raised
from ..tensors.tensor_subclasses import Subclassed
from ...graph.tensor import TraceTensor
from ..machine.stack_values import ATOMS, MISSING
from .builtin_types import base_of, python_method
from .elements import search
from .identity import refuse_address
from ..numbers.lengths import known_index, outside_length, place_before_added, places_of_slice, refuse_unread
from .lookups import class_attribute
from .objects.tensor_keys import value_of_tensor
from .parameters import interpret

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = [
    "plain",
    "deep_plain",
    "iterate",
    "length",
    "get_item",
    "contains",
    "mutate",
    "call_method",
    "keys_of",
    "as_mapping",
    "MODULE_TABLES",
]

_SEQUENCES = (list, tuple, collections.deque)
_MOST_ROWS = 512  # of a tensor that a cell iterates over: a graph does not take more of them apart
MODULE_TABLES = ("_parameters", "_buffers", "_modules")  # of nn.Module: what is read through attributes


def _shadow(machine: Machine, obj: Any) -> Shadow:
    shadow = machine.world.shadows.get(id(obj))
    if shadow is None:
        shadow = machine.world.shadows[id(obj)] = Shadow()
    return shadow


def _written_attributes(machine: Machine, obj: Any) -> dict[str, Any]:
    """Where `obj` is the __dict__ of an object: the attributes that were written to and are not in it yet."""
    owner = machine.world.dict_owners.get(id(obj))
    # the globals of a module are written by their dict
    return machine.world.pending.get(id(obj if owner is None else owner), {})


def _refuse_late_attributes(machine: Machine, obj: Any) -> None:
    if _written_attributes(machine, obj):
        raise Break("mutation", "the __dict__ of an object with pending changes is read")


def refuse_late_items(machine: Machine, own: dict) -> None:
    """Break where `own`, in which an object's attributes lie, was changed by a name that leads to the dict itself."""
    shadow = machine.world.shadows.get(id(own))
    if shadow is not None and shadow.changed:
        raise Break("mutation", "an attribute is read from a dict with pending changes")


# Keys that compare by identity, or without code of the program's, and that are what they are for as long as they live.
_LASTING_KEYS = (
    type,
    enum.Enum,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.ModuleType,
    TypeVar,
)


def _check_keys(keys: tuple) -> tuple:
    for key in keys:
        cls = type(key)
        if not (cls in ATOMS or isinstance(key, _LASTING_KEYS) or cls is tuple or cls is torch.Size):
            raise Break("unknown_object", f"a dict from outside has a key of type {cls.__name__}")
    return keys


def keys_of(machine: Machine, obj: dict) -> tuple:
    """The keys of an outside dict as they are now, guarded."""
    _refuse_late_attributes(machine, obj)
    shadow = machine.world.shadows.get(id(obj))
    if shadow is not None and (shadow.value is not None or shadow.blind):
        return tuple(_read(machine, obj))
    source = machine.world.sources[id(obj)]
    refuse_unread(machine, source, obj)
    keys = _check_keys(
        tuple(dict.keys(obj))
        if not isinstance(obj, collections.OrderedDict)
        else tuple(collections.OrderedDict.keys(obj))
    )
    machine.world.guard(source, "DICT_KEYS", keys, "keys of a dict")
    return keys


def key_view(machine: Machine, obj: dict) -> dict:
    """A dict with the keys of an outside dict, in step with what the program does to them; its values mean nothing
    unless it is the shadow itself."""
    shadow = _shadow(machine, obj)
    if shadow.value is not None:
        return shadow.value
    if shadow.keys is None:
        shadow.keys = dict.fromkeys(keys_of(machine, obj))
    return shadow.keys


def _follow(view: dict, keys: Any) -> None:
    """Add to and remove from `view` what makes it hold `keys`; it is not touched where it does already."""
    for key in [k for k in view if k not in keys]:
        del view[key]
    for key in keys:
        view.setdefault(key)


def _read(machine: Machine, obj: Any) -> Any:
    """The shadow of an outside container, with all of its content loaded."""
    _refuse_late_attributes(machine, obj)
    shadow = _shadow(machine, obj)
    if shadow.value is not None:
        return shadow.value
    settle_keys(shadow)
    world = machine.world
    source = world.sources[id(obj)]
    base = base_of(obj)
    refuse_unread(machine, source, obj)
    if base in _SEQUENCES:
        world.guard(source, "LEN", base.__len__(obj), "length of a sequence")
        items = [world.load(v, S.item(source, i), "element") for i, v in enumerate(base.__iter__(obj))]
        if base is list:
            value: Any = items
        elif base is collections.deque:
            world.guard(
                S.attr(source, "maxlen"), "ID" if obj.maxlen is None else "EQUALS", obj.maxlen, "room of a deque"
            )
            value = collections.deque(items, obj.maxlen)
        elif type(obj) is tuple:
            value = tuple(items)
        elif hasattr(obj, "_fields"):
            value = tuple.__new__(type(obj), items)
        else:
            value = tuple(items)
    elif base is dict or base is collections.OrderedDict:
        keys = _check_keys(tuple(base.keys(obj)))
        world.guard(source, "DICT_KEYS", keys, "keys of a dict")
        loaded = {key: world.load(base.__getitem__(obj, key), S.dict_value(source, key), "dict value") for key in keys}
        if base is collections.OrderedDict:
            value = collections.OrderedDict(loaded)
        elif isinstance(obj, collections.defaultdict):
            value = collections.defaultdict(obj.default_factory, loaded)
        else:
            value = loaded
    elif base is frozenset:
        _check_keys(tuple(frozenset.__iter__(obj)))
        world.guard(source, "EQUALS" if is_constant(obj) else "ID", obj, "a frozenset")
        value = obj
    else:
        elements = _check_keys(tuple(set.__iter__(obj)))
        world.guard(source, "DICT_KEYS", elements, "elements of a set")
        value = set.copy(obj)  # a copy iterates as the set does, most of the time
        if tuple(value) != elements:
            raise Break(
                "unsupported", "a copy of a set from outside iterates in another order", "use a frozenset or a tuple"
            )
    shadow.value = value
    if base is not frozenset and base is not tuple:
        world.shadowed[id(value)] = obj
    for name, args in shadow.blind:
        _apply(machine, value, name, args, {})
    shadow.blind = []
    return value


def plain(machine: Machine, value: Any) -> Any:
    """An outside container as its shadow; everything else as it is."""
    if type(value) in ATOMS or id(value) not in machine.world.sources:
        return value
    return _read(machine, value) if base_of(value) is not None and not isinstance(value, torch.Size) else value


def refuse_class_dict(machine: Machine, value: Any) -> None:
    """Break where the dict of a class is read as a whole: which names there are no guard can say."""
    if id(value) in machine.world.class_dicts:
        raise Break("unknown_object", "the dict of a class is read as a whole", "read the attributes by their names")


def deep_plain(machine: Machine, value: Any) -> Any:
    """`value` with every outside container in it replaced by an inside copy."""
    if type(value) in ATOMS or type(value) is TraceTensor:
        return value
    value = plain(machine, value)
    cls = type(value)
    if cls is types.MappingProxyType:
        refuse_class_dict(machine, value)
    if cls is list:
        return [deep_plain(machine, item) for item in value]
    if cls is tuple:
        return tuple(deep_plain(machine, item) for item in value)
    if cls is dict:
        return {key: deep_plain(machine, item) for key, item in value.items()}
    base = base_of(value)
    if base is None or base in (set, frozenset) or cls is torch.Size:
        return value
    keys = list(base.keys(value)) if issubclass(base, dict) else range(base.__len__(value))
    before = [base.__getitem__(value, key) for key in keys]
    parts = [deep_plain(machine, v) for v in before]
    if all(part is v for part, v in zip(parts, before)):
        return value
    if cls is collections.deque:
        return collections.deque(parts, value.maxlen)
    if cls is collections.defaultdict:
        return collections.defaultdict(value.default_factory, zip(keys, parts))
    if cls in (collections.OrderedDict, collections.Counter):
        return cls(dict(zip(keys, parts)))
    if base is tuple:
        return tuple.__new__(cls, parts)
    raise Break("unknown_object", f"native code reads a {cls.__name__} that holds containers from outside")


def iterate(machine: Machine, value: Any) -> Any:
    """iter(value) as a native iterator over stack values."""
    cls = type(value)
    world = machine.world
    if cls is TraceTensor:
        return _rows(machine, value)
    if cls is Subclassed:
        if machine.call(machine.getattr(value, "dim"), []) == 0:
            raise Raised(TypeError("iteration over a 0-d tensor"))
        return iter(machine.call(machine.getattr(value, "unbind"), [0]))
    if cls in (list, tuple, dict, set, frozenset, collections.OrderedDict, collections.defaultdict):
        if id(value) in world.sources:
            if isinstance(value, dict):
                return iter(key_view(machine, value))
            return iter(_read(machine, value))
        return iter(value)
    if cls is LateText:
        return iter(settled(value))
    if cls in (str, bytes, range, InlineGenerator, PythonIterator, OutsideIterator) or isinstance(value, torch.Size):
        return iter(value)
    if cls is types.MappingProxyType:
        refuse_class_dict(machine, value)
    if isinstance(value, enum.EnumMeta):
        if id(value) not in world.made:
            plain(
                machine,
                world.load(value._member_names_, S.attr(world.anchor(value), "_member_names_"), "members of an enum"),
            )
            return iter(
                [
                    world.load(
                        value._member_map_[name],
                        S.dict_value(S.attr(world.anchor(value), "_member_map_"), name),
                        "member of an enum",
                    )
                    for name in value._member_names_
                ]
            )
        members = list(value)
        for member in members:
            world.register(member, S.attr(world.anchor(value), member.name))
        return iter(members)
    method = python_method(cls, "__iter__")
    if method is not None:
        result = machine.call(method, [value])
        if python_method(type(result), "__next__") is not None:
            return PythonIterator(machine, result, machine.root_index)
        if not hasattr(given := world.type_of(result), "__next__"):
            raise Raised(TypeError(f"iter() returned non-iterator of type '{given.__name__}'"))
        return iterate(machine, result)
    if python_method(cls, "__next__") is not None:
        return PythonIterator(machine, value, machine.root_index)
    if base_of(value) is not None:
        return iterate_subclass(machine, value)
    if not hasattr(cls, "__iter__") and python_method(cls, "__getitem__") is not None:
        return interpret(machine, polyfills.items_by_index, [value], {})
    if id(value) in world.sources and is_native_iterator(value):
        return outside_iterator(machine, value)
    if id(value) in world.sources and not isinstance(value, (type, types.ModuleType)):
        raise Break(
            "unknown_object", f"an object of type {cls.__name__} from outside is iterated over", "make it a list first"
        )
    return machine.native(iter, value)


def _rows(machine: Machine, tensor: TraceTensor) -> Any:
    if tensor.dim() == 0:
        raise Raised(TypeError("iteration over a 0-d tensor"))
    if machine.opts.library is not None and type(tensor.shape[0]) is int and tensor.shape[0] > _MOST_ROWS:
        raise Break("small_loop")
    return iter(machine.torch_method(tensor, "unbind", [0], {}))


def iterate_subclass(machine: Machine, value: Any) -> Any:
    """Instances of subclasses of the builtin containers that did not change __iter__."""
    if id(value) in machine.world.sources:
        return iter(key_view(machine, value)) if isinstance(value, dict) else iter(_read(machine, value))
    return machine.native(iter, value)


def length(machine: Machine, obj: Any) -> Any:
    """len() of an outside container."""
    _refuse_late_attributes(machine, obj)
    base = base_of(obj)
    assert base is not None
    shadow = machine.world.shadows.get(id(obj))
    added = 0 if shadow is None else shadow.count(base)
    return len(_read(machine, obj)) if added is None else outside_length(machine, obj, base, added)


def get_item(machine: Machine, obj: Any, key: Any) -> Any:
    """obj[key] of an outside container."""
    world = machine.world
    base = base_of(obj)
    if base is None or base in (set, frozenset):
        raise Break("unknown_object", f"an item of an object of type {type(obj).__name__} from outside is read")
    if type(key) is str and key in (written := _written_attributes(machine, obj)):
        if written[key] is MISSING:
            raise Raised(KeyError(key))
        return written[key]
    shadow = world.shadows.get(id(obj))
    if isinstance(obj, dict):
        refuse_address(machine, key)
    key, value = _given(machine, obj, shadow, base, key)
    if value is not MISSING:
        return value
    if type(key) is TraceTensor or type(key) is Subclassed:
        return value_of_tensor(machine, obj, key)
    if shadow is None or shadow.value is None and (not shadow.blind or base is dict and _untouched(shadow, key)):
        if base in _SEQUENCES and type(key) is int:
            return _element(machine, obj, key, base)
        if base not in _SEQUENCES and (type(key) in ATOMS or isinstance(key, _LASTING_KEYS)):
            return _value_of_key(machine, obj, key)
    if (at := place_before_added(machine, obj, key)) is not None:
        return _element(machine, obj, at, base)
    if (part := places_of_slice(machine, obj, key)) is not None:
        return [get_item(machine, obj, i) for i in part]
    value = _read(machine, obj)
    if isinstance(value, dict) and key not in value:
        return _missing(machine, obj, key)
    return machine.native(operator.getitem, value, key)


def _given(machine: Machine, obj: Any, shadow: Shadow | None, base: Any, key: Any) -> tuple[Any, Any]:
    """The key as a plain one, and what the program has put there without reading the container; MISSING."""
    if shadow is not None and (value := shadow.just_set(key)) is not MISSING:
        return key, value
    settle_keys(shadow)
    key = known_index(machine, obj, key)
    return key, MISSING if shadow is None else shadow.given(base, key)


def _element(machine: Machine, obj: Any, index: int, base: Any) -> Any:
    """An element of a sequence as it came from outside."""
    source = machine.world.sources[id(obj)]
    try:
        return machine.world.load(base.__getitem__(obj, index), S.item(source, index), "element")
    except IndexError as exc:
        machine.world.guard(source, "LEN", base.__len__(obj), "index out of range")
        raise Raised(exc) from None


def _value_of_key(machine: Machine, obj: dict, key: Any) -> Any:
    """What a dict as it came from outside has under a key that a guard can hold."""
    if dict.__contains__(obj, key):
        source = S.dict_value(machine.world.sources[id(obj)], key)
        return machine.world.load(dict.__getitem__(obj, key), source, "dict value")
    _lacks(machine, obj, key, "missing key")
    return _missing(machine, obj, key)


def _untouched(shadow: Shadow, key: Any) -> bool:
    """Whether the writes so far, done without reading, left what a dict has under a plain key."""
    return type(key) in ATOMS and not any(type(args[0]) in ATOMS and args[0] == key for _, args in shadow.blind)


def _lacks(machine: Machine, obj: dict, key: Any, why: str) -> None:
    """Rely on an outside dict's not having a key: on all of its keys where a guard that holds this one weakly could not
    look for it.
    """
    if plain_key(key) or reference(key) is key:
        machine.world.guard(machine.world.sources[id(obj)], "LACKS", key, why)
    else:
        keys_of(machine, obj)


def _missing(machine: Machine, obj: dict, key: Any) -> Any:
    method = python_method(type(obj), "__missing__")
    if method is not None:
        return machine.call(method, [obj, key])
    if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
        value = machine.call(machine.getattr(obj, "default_factory"), [])
        mutate(machine, obj, "__setitem__", [key, value], {})
        return value
    raise Raised(KeyError(key))


def contains(machine: Machine, obj: Any, item: Any) -> bool | None:
    """`item in obj` for an outside dict or set; None where the caller should compare elements."""
    base = base_of(obj)
    if base is dict or base is collections.OrderedDict:
        refuse_address(machine, item)
        if isinstance(item, TraceTensor):
            raise Break("unknown_object", "a tensor is looked up in a dict from outside")
        if type(item) is str and item in (written := _written_attributes(machine, obj)):
            return written[item] is not MISSING
        shadow = machine.world.shadows.get(id(obj))
        settle_keys(shadow)
        if (shadow is None or (shadow.value is None and not shadow.blind)) and (
            type(item) in ATOMS or isinstance(item, _LASTING_KEYS)
        ):
            if not dict.__contains__(obj, item):
                _lacks(machine, obj, item, "key in a dict")
                return False
            machine.world.load(
                dict.__getitem__(obj, item), S.dict_value(machine.world.sources[id(obj)], item), "key in a dict"
            )
            return True
        return machine.native(lambda: item in keys_of(machine, obj))
    if base in (set, frozenset):
        return machine.native(lambda: item in _read(machine, obj))
    return None


def _set_in_dict(machine: Machine, obj: Any, own: dict, name: Any, value: Any) -> None:
    """`obj.__dict__[name] = value`: past __setattr__ and descriptors, which read it from there."""
    if (
        type(name) is not str
        or isinstance(obj, (type, types.ModuleType, types.FunctionType))
        or name in MODULE_TABLES
        or isinstance(class_attribute(type(obj), name), (types.GetSetDescriptorType, types.MemberDescriptorType))
    ):
        raise Break("mutation", f"`{name}` is written to the __dict__ of a {type(obj).__name__}")
    machine.world.pending.setdefault(id(obj), {})[name] = value
    machine.effects.method(own, dict, "__setitem__", [name, value], {})


def as_mapping(machine: Machine, value: Any) -> dict:
    """A mapping argument as a plain dict of stack values."""
    cls = type(value)
    if isinstance(value, dict) and (
        cls.__iter__ is dict.__iter__
        or isinstance(value, collections.OrderedDict)
        and cls.__iter__ is collections.OrderedDict.__iter__
        and cls.keys is collections.OrderedDict.keys
    ):
        ordered = isinstance(value, collections.OrderedDict)
        return dict((collections.OrderedDict if ordered else dict).items(machine.plain(value)))
    if cls is types.MappingProxyType:
        refuse_class_dict(machine, value)
        if machine.world.is_outside(value):
            raise Break("unknown_object", "a mappingproxy from outside is read")
        return dict(value)
    keys = machine.native(list, machine.iterate(machine.call(machine.getattr(value, "keys"), [])))
    return {key: machine.get_item(value, key) for key in keys}


# --- methods
_READS: dict[type, set[str]] = {
    list: set(
        """copy index count __len__ __getitem__ __contains__ __iter__ __eq__ __add__ __mul__ __reversed__
        __ne__""".split()
    ),
    tuple: set("index count __len__ __getitem__ __contains__ __iter__ __eq__ __add__ __mul__ __ne__ __hash__".split()),
    dict: set(
        """get keys values items copy __len__ __getitem__ __contains__ __iter__ __eq__ __or__ __ne__
        __reversed__""".split()
    ),
    collections.deque: set(
        """copy index count __len__ __getitem__ __contains__ __iter__ __eq__ __add__ __mul__ __reversed__
        __ne__""".split()
    ),
    set: set(
        """copy union intersection difference issubset issuperset isdisjoint symmetric_difference __len__ __contains__
        __iter__ __eq__ __or__ __and__ __sub__""".split()
    ),
}
_READS[collections.OrderedDict] = _READS[dict]
_READS[frozenset] = _READS[set]
_WRITES: dict[type, set[str]] = {
    list: set("append extend insert pop remove clear sort reverse __setitem__ __delitem__ __iadd__ __imul__".split()),
    collections.deque: set(
        """append appendleft extend extendleft insert pop popleft remove clear reverse rotate __setitem__ __delitem__
        __iadd__""".split()
    ),
    dict: {"__setitem__", "__delitem__", "pop", "popitem", "update", "clear", "setdefault", "__ior__"},
    set: set(
        """add discard remove pop clear update __ior__ __iand__ __isub__ __ixor__ difference_update intersection_update
        symmetric_difference_update""".split()
    ),
}
_WRITES[collections.OrderedDict] = _WRITES[dict] | {"move_to_end"}


_STRUCTURAL = frozenset(
    """__dict__ _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks __annotations__
    __kwdefaults__""".split()
)


def _apply(machine: Machine, value: Any, name: str, args: list, kwargs: dict) -> Any:
    """A native method of an inside container, with iterables made native."""
    if name in ("extend", "extendleft", "__iadd__", "update", "__ior__") and args:
        args = [_native_argument(machine, arg) for arg in args]
    if name == "sort" and kwargs.get("key") is not None:
        kwargs = {**kwargs, "key": machine.callback(kwargs["key"])}
    base = base_of(value)
    return machine.native(getattr(base if base is not None else type(value), name), value, *args, **kwargs)


def _native_argument(machine: Machine, value: Any) -> Any:
    value = plain(machine, value)
    if isinstance(value, dict):
        return value
    return list(iterate(machine, value)) if not isinstance(value, (list, tuple, str, set, frozenset)) else value


def _as_it_is_now(given: Any) -> Any:
    """What is added to a container: the program may change it later."""
    return given.copy() if isinstance(given, (list, dict, set)) else given


def mutate(machine: Machine, obj: Any, name: str, args: list, kwargs: dict) -> Any:
    """A method that changes an outside container: now on its shadow, after the graph on itself."""
    result = _mutate(machine, obj, name, args, kwargs)
    shadow = machine.world.shadows.get(id(obj))
    if shadow is not None and shadow.keys is not None and shadow.value is not None:
        _follow(shadow.keys, shadow.value)
    return result


def _mutate(machine: Machine, obj: Any, name: str, args: list, kwargs: dict) -> Any:
    base = base_of(obj)
    if base is None or name not in _WRITES.get(base, ()):
        raise Break("mutation", f"{type(obj).__name__}.{name} changes an object from outside")
    owner = machine.world.dict_owners.get(id(obj))
    if owner is not None and name == "__setitem__":
        _set_in_dict(machine, owner, obj, *args)
        return None
    if owner is not None and name == "update" and not args and kwargs:
        for key, value in kwargs.items():
            _mutate(machine, obj, "__setitem__", [key, value], {})
        return None
    _refuse_structural(machine, obj, owner)
    _refuse_address_as_key(machine, obj, args)
    shadow = _shadow(machine, obj)
    shadow.changed = True
    if name in ("extend", "extendleft", "__iadd__", "update") and args:
        args = [_as_it_is_now(_native_argument(machine, args[0])), *args[1:]]
    if name == "remove" and base in _SEQUENCES:
        return _remove(machine, obj, base, args)
    if name == "setdefault":
        return _set_default(machine, obj, args)
    if shadow.value is None and _needs_no_read(machine, obj, base, name, args):
        if shadow.keys is not None:
            shadow.keys.setdefault(args[0])
        shadow.blind.append((name, args))
        machine.effects.method(obj, base, _INPLACE_METHODS.get(name, name), args, kwargs)
        return obj if name == "__iadd__" else None
    value = _read(machine, obj)
    if name == "sort":
        result = _apply(machine, value, name, args, dict(kwargs))
        machine.effects.method(obj, base, "__setitem__", [slice(None), list(value)], {})
        return result
    result = _apply(machine, value, name, args, kwargs)
    if name != "pop" or base is set or base in _SEQUENCES or isinstance(value, dict):
        machine.effects.method(obj, base, _INPLACE_METHODS.get(name, name), args, kwargs)
    return obj if name in _INPLACE_METHODS else result


def _refuse_address_as_key(machine: Machine, obj: Any, args: list) -> None:
    if args and isinstance(obj, dict):
        refuse_address(machine, args[0])


def _refuse_structural(machine: Machine, obj: Any, owner: Any) -> None:
    """Break for a container through which Python itself looks: an object's `__dict__`, a module's hooks."""
    source = machine.world.sources[id(obj)]
    below_dict = source.base is not None and source.base.kind == "attr" and source.base.key == "__dict__"
    if owner is not None or (source.kind == "attr" or below_dict) and source.key in _STRUCTURAL:
        raise Break("mutation", f"`{source.name()}` is changed, and attributes are read through it")


def _remove(machine: Machine, obj: Any, base: type, args: list) -> Any:
    """sequence.remove(value), as `del sequence[index]`: the entry need not compare."""
    missing = (
        "list.remove(x): x not in list"
        if base is list
        else f"{machine.native(repr, deep_plain(machine, args[0]))} is not in deque"
    )
    return mutate(machine, obj, "__delitem__", [search(machine, _read(machine, obj), "index", args, missing)], {})


def _set_default(machine: Machine, obj: Any, args: list) -> Any:
    """dict.setdefault(key, default)"""
    key = args[0]
    if contains(machine, obj, key):
        return get_item(machine, obj, key)
    value = args[1] if len(args) > 1 else None
    mutate(machine, obj, "__setitem__", [key, value], {})
    return value


def _needs_no_read(machine: Machine, obj: Any, base: type, name: str, args: list) -> bool:
    """Whether a write does not depend on what the container holds."""
    if base in _SEQUENCES:
        return name in ("append", "appendleft", "extend", "__iadd__")
    if base is not dict or name != "__setitem__":
        return False
    if is_open(args[0]):
        return machine.world.shadows[id(obj)].keys is None
    return type(args[0]) in ATOMS or id(args[0]) in machine.world.reals


# in-place operators, and the method that does the same
_INPLACE_METHODS = {
    "__iadd__": "extend",
    "__ior__": "update",
    "__imul__": "__imul__",
    "__iand__": "intersection_update",
    "__isub__": "difference_update",
    "__ixor__": "symmetric_difference_update",
}


def inplace(machine: Machine, obj: Any, text: str, other: Any) -> Any:
    """obj += other and the like, for an outside container."""
    name = {
        "+=": "__iadd__",
        "|=": "__ior__",
        "*=": "__imul__",
        "&=": "__iand__",
        "-=": "__isub__",
        "^=": "__ixor__",
    }.get(text)
    base = base_of(obj)
    if base is None or name not in _WRITES.get(base, ()) or isinstance(other, torch.Tensor):
        raise Break("mutation", f"{text} on an object from outside")
    if name == "__iadd__" and not hasattr(type(other), "__iter__") and not hasattr(type(other), "__getitem__"):
        raise Raised(TypeError(f"'{type(other).__name__}' object is not iterable"))
    if base is set and not isinstance(other, (set, frozenset)):
        raise Raised(
            TypeError(f"unsupported operand type(s) for {text}: '{type(obj).__name__}' and '{type(other).__name__}'")
        )
    mutate(machine, obj, name, [other], {})
    return obj


def call_method(machine: Machine, obj: Any, name: str, args: list, kwargs: dict) -> Any:
    """A builtin container's own method, called on an outside one."""
    base = base_of(obj)
    if base is None:
        raise Break("unknown_object", f"{type(obj).__name__}.{name} is called on an object from outside")
    if base in (dict, set, frozenset, collections.OrderedDict) or name in ("index", "count", "remove", "__contains__"):
        for key in args[:1]:
            machine.world.identity(key)
    if name in _WRITES.get(base, ()):
        return mutate(machine, obj, name, args, kwargs)
    if name not in _READS.get(base, ()):
        raise Break("c_call", f"{base.__name__}.{name} is called on an object from outside")
    if name == "__len__":
        return length(machine, obj)
    if name == "__getitem__":
        return get_item(machine, obj, args[0])
    if name == "__iter__":
        return iter(key_view(machine, obj)) if isinstance(obj, dict) else iter(_read(machine, obj))
    if isinstance(obj, dict):
        if name == "get":
            default = args[1] if len(args) > 1 else None
            return get_item(machine, obj, args[0]) if contains(machine, obj, args[0]) else default
        if name == "__contains__":
            return contains(machine, obj, args[0])
        if name == "keys":
            return key_view(machine, obj).keys()
    elif name in ("__contains__", "index", "count") and base in _SEQUENCES:
        return search(machine, _read(machine, obj), name, args)
    args = [deep_plain(machine, arg) for arg in args]
    return machine.native(getattr(base, name), _read(machine, obj), *args, **kwargs)
