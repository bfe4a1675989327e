"""Sources: how a value that capture saw is reached from a frame.

A Source is provenance. It is a path that starts at the frame (a local, a closure cell, a global, ...) and takes
attribute and item steps. The same Source reloads the value in emitted Python code (`code()`) and names it in a guard
and in messages (`name()`); the guard compiler turns it into steps of the C guard program. Sources are immutable and
hash-consed, so `is` compares them.
"""

from __future__ import annotations

import collections
import math
import sys
import weakref
from typing import Any, Callable, Hashable

import torch

from .weak import Weak, reference

__all__ = [
    "Source",
    "local",
    "closure",
    "glob",
    "builtin",
    "function",
    "attr",
    "item",
    "dict_value",
    "type_of",
    "cell",
    "const",
    "default",
    "kwdefault",
    "size",
    "stride",
    "storage_offset",
    "ratio",
    "computed",
    "calc",
    "scalar",
    "array",
    "plain",
    "unwrapped",
    "drawn",
    "cached",
    "shared",
    "asked",
    "count",
    "scalar_tensor",
    "as_number",
    "UnlikeNumber",
    "optimizer_state",
    "step_text",
]

_LEAST_EXPONENT, _MOST_ODD = 2.0**-126, 2.0**24  # what float32 holds
_table: dict[tuple, "Source"] = {}
# Paths that start at an object itself live as long as somebody uses them: they must not keep the object for ever.
_from_objects: "weakref.WeakValueDictionary[tuple, Source]" = weakref.WeakValueDictionary()


class Source:
    """One step of a path.

    kind      base   key
    local     None   (index, name)   the frame's parameter slot `index` (co_varnames order, *args and **kwargs last)
    closure   None   (index, name)   contents of the function's closure cell `index`
    global    None   name            func.__globals__[name]
    builtin   None   name            builtins.<name>, where no global of that name shadows it
    function  None   None            the function object of the frame
    drawn     None   (n, fn, args, named)  fn(*args, **named): draw n of a random number. Never guarded; evaluated once,
                                           in order
    cached    None   (n, name)       what the cache of a function gave that the entry asked as number n. Never guarded:
                                     the entry compares it, with its parts, when it asks
    const     None   object          an object that was fixed by what was guarded before: kept by the entry, or weakly
                                     (`weak.reference`): then `held`
                                     is a Weak, and `key` what it refers to
    attr      src    name            getattr(base, name)
    item      src    key             base[key], key a constant
    dict      src    key             base[key] where base is exactly a dict (keys may be any hashable constant)
    type      src    None            type(base)
    cell      src    None            base.cell_contents
    default   src    index           base.__defaults__[index]
    kwdefault src    name            base.__kwdefaults__[name]
    size      src    dim             base.shape[dim]     base is a tensor
    stride    src    dim             base.stride(dim)
    offset    src    None            base.storage_offset()
    optimized src    (g, i)          base["state"][base["param_groups"][g]["params"][i]]: base is the __dict__ of an
                                     optimizer. The state of its
                                     parameter i of group g, whichever tensor that is
    asked     src    fn              fn(base): what a function of C says of the object, which changes nothing (`id`,
                                     `type.__subclasses__`)
    ratio     None   (a, b)          the float a / b of two integer Exprs, whose symbols have sources of their own.
                                     Never guarded
    computed  None   (fn, operands)  fn(*operands), a float: operands are Sources of floats, integer Exprs and plain
                                     numbers. Never guarded; what it raises
                                     eager raises, too
    calc      src    (op, c, r)      base op c, or c op base where r; op add, sub, mul, truediv or pow, c the repr of a
                                     float; or a function of module
                                     math, with c empty. Never guarded
    scalar    src    (dtype, device, use)  a 0-dim tensor of the float at base; a float that means something else to
                                           that use than a tensor does
                                     raises (`scalar_tensor`). Never guarded
    array     src    number          a tensor over the memory of the numpy array at base, or of numpy's number there.
                                     Never guarded
    plain     src    None            the tensor at base, of a class of the program's, as a plain tensor over its memory.
                                     Never guarded
    unwrapped src    callable        the tensors inside of the wrapper at base, as a tuple, through which gradients pass
                                     (`graph.wrappers.Unwrap`). Never guarded
    """

    __slots__ = ("kind", "base", "held", "_hash", "__weakref__")
    kind: str
    base: "Source | None"
    held: Any
    _hash: int

    @property
    def key(self) -> Any:
        return self.held() if type(self.held) is Weak else self.held

    def __repr__(self) -> str:
        return f"<Source {self.name()}>"

    @property
    def root(self) -> "Source":
        source = self
        while source.base is not None:
            source = source.base
        return source

    def path(self) -> list["Source"]:
        """The steps from the root to this source, root first."""
        out, source = [], self
        while source is not None:
            out.append(source)
            source = source.base
        return out[::-1]

    def name(self) -> str:
        """The way a user would write it: `self.layers[0].weight`, `x.shape[1]`."""
        kind = self.kind
        if kind in ("local", "closure"):
            return self.key[1]
        if kind in ("global", "builtin"):
            return self.key
        if kind == "function":
            return "<this function>"
        if kind == "drawn":
            return f"{getattr(self.key[1], '__name__', 'random')}()"
        if kind == "cached":
            return f"{self.key[1]}()"
        if kind == "computed":
            return f"{self.key[0].__name__}({', '.join(_operand_name(o) for o in self.key[1])})"
        if kind == "ratio":
            return f"({self.key[0].py()} / {self.key[1].py()})"
        if kind == "const":
            obj = self.key
            if obj is None and self.held is not None:
                return "<an object that is gone>"
            named = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None)
            return named or f"<{type(obj).__name__}>"
        assert self.base is not None
        b = self.base.name()
        if kind == "attr":
            return f"{b}.{self.key}"
        if kind in ("item", "dict"):
            return f"{b}[{self.key!r}]"
        if kind == "optimized":
            owner = b.removesuffix(".__dict__")
            return f"{owner}.state[{owner}.param_groups[{self.key[0]}]['params'][{self.key[1]}]]"
        return b if kind in _CONVERSIONS else step_text(kind, b, self.key, _shown)

    def code(self, fn: str = "__fn", consts: dict[str, Any] | None = None) -> str:
        """A Python expression that reloads the value inside an entry function, whose parameters carry the frame's own
        names and whose first parameter `fn` is the function object. `consts` collects the objects that the expression
        needs as globals of the entry."""
        kind = self.kind
        if kind == "local":
            return self.key[1] if self.key[1].isidentifier() else f"_arg{self.key[0]}"
        if kind == "closure":
            return f"{fn}.__closure__[{self.key[0]}].cell_contents"
        if kind == "global":
            return f"{fn}.__globals__[{self.key!r}]"
        if kind == "builtin":
            return f"__builtins__[{self.key!r}]"
        if kind == "function":
            return fn
        if kind == "drawn":
            given = [*map(repr, self.key[2]), *(f"{n}={v!r}" for n, v in self.key[3])]
            return f"{_const_name(self.key[1], consts)}({', '.join(given)})"
        if kind == "const":
            name = f"_const_{id(self.key):x}"
            if consts is not None:
                consts[name] = self.key
            return name
        assert self.base is not None
        b = self.base.code(fn, consts)
        if kind == "attr":
            return f"{b}.{self.key}" if self.key.isidentifier() else f"getattr({b}, {self.key!r})"
        if kind in ("item", "dict"):
            key = self.key
            if isinstance(key, (str, int, bool, type(None), bytes)):
                return f"{b}[{key!r}]"
            name = f"_key_{id(key):x}"
            if consts is not None:
                consts[name] = key
            return f"{b}[{name}]"
        return step_text(kind, b, self.key, lambda obj: _const_name(obj, consts))


_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**"}


Name = Callable[[Any], str]  # of an object that a text needs


def _calc(base: str, key: tuple[str, str, bool], name: Name) -> str:
    op, c, reflected = key
    if not c:
        return f"{name(getattr(math, op))}({base})"
    return f"({c} {_OPERATORS[op]} {base})" if reflected else f"({base} {_OPERATORS[op]} {c})"


class UnlikeNumber(ArithmeticError):
    """A number of this call cannot be a tensor, as the entry has it: the call is to run as it is."""


def scalar_tensor(value: float, dtype: torch.dtype, device: torch.device, use: str = "") -> torch.Tensor:
    """A 0-dim tensor of a number as operators take it: what is too large for the dtype is infinite. UnlikeNumber where
    it would not mean what the number means to its use (`as_number`)."""
    if use and not as_number(value, dtype, use):
        raise UnlikeNumber(f"{value} as a tensor of {dtype} is not what it is as a number")
    try:
        return torch.full((), value, dtype=dtype, device=device)
    except RuntimeError:
        return torch.full((), value, dtype=torch.float64, device=device).to(dtype)


def as_number(value: float, dtype: torch.dtype, use: str) -> bool:
    """Whether an operator does the same to a number and to a 0-dim tensor of it. It refuses numbers that the dtype does
    not hold. The only bound of a clamp ("bound") that is a NaN bounds nothing before torch 2.13. The square root, which
    an exponent ("exponent") of 0.5 is, keeps the sign of -0.0; and exponents are not rounded to the dtype, which
    changes whether they are zero, or odd."""
    size = abs(value)
    if dtype.is_floating_point and torch.finfo(dtype).max < size < math.inf or use == "bound" and value != value:
        return False
    return use != "exponent" or size != 0.5 and not 0.0 < size < _LEAST_EXPONENT and not _MOST_ODD < size < math.inf


def tensor_of_number(value: Any) -> torch.Tensor:
    """A number of numpy's as a tensor without dimensions."""
    return torch.from_numpy(sys.modules["numpy"].array(value))


def as_python(value: Any) -> Any:
    """A number of numpy's as the number of Python's that it is."""
    return value.item()


# kind of a step -> its Python text, over that of its base
_STEPS: dict[str, Callable[[str, Any, Name], str]] = {
    "calc": _calc,
    "asked": lambda base, key, name: f"{name(key)}({base})",
    "scalar": lambda base, key, name: f"{name(scalar_tensor)}({base}, {name(key[0])}, {name(key[1])}, {key[2]!r})",
    "array": lambda base, key, name: f"{name(tensor_of_number if key else torch.from_numpy)}({base})",
    "plain": lambda base, key, name: f"{name(torch.Tensor.as_subclass)}({base}, {name(torch.Tensor)})",
    "unwrapped": lambda base, key, name: f"{name(key)}({base})",
    "optimized": lambda base, key, name: f"{base}['state'][{base}['param_groups'][{key[0]}]['params'][{key[1]}]]",
    "type": lambda base, key, name: f"type({base})",
    "cell": lambda base, key, name: f"{base}.cell_contents",
    "default": lambda base, key, name: f"{base}.__defaults__[{key}]",
    "kwdefault": lambda base, key, name: f"{base}.__kwdefaults__[{key!r}]",
    "size": lambda base, key, name: f"{base}.shape[{key}]",
    "stride": lambda base, key, name: f"{base}.stride({key})",
    "offset": lambda base, key, name: f"{base}.storage_offset()",
}
_CONVERSIONS = frozenset(("scalar", "array", "plain", "unwrapped"))  # to a user the same value


def step_text(kind: str, base: str, key: Any, name: Name) -> str:
    """The Python text of a step (but for attributes and items) over the text of its base."""
    return _STEPS[kind](base, key, name)


def _shown(fn: Any) -> str:
    return f"math.{fn.__name__}" if getattr(math, fn.__name__, None) is fn else getattr(fn, "__qualname__", fn.__name__)


def _operand_name(operand: Any) -> str:
    return operand.name() if isinstance(operand, Source) else operand.py() if hasattr(operand, "py") else repr(operand)


def _const_name(obj: Any, consts: dict[str, Any] | None) -> str:
    name = f"_const_{id(obj):x}"
    if consts is not None:
        consts[name] = obj
    return name


def make_source(kind: str, base: Source | None, key: Any) -> Source:
    # const objects and float/bool keys are told apart by identity and type: 1, 1.0 and True are equal keys in Python
    tag: Hashable = id(key) if kind == "const" else (type(key), key)
    k = (kind, id(base) if base is not None else None, tag)
    weak = kind == "const" or base is not None and base.root.kind == "const"
    table: Any = _from_objects if weak else _table
    source = table.get(k)
    if source is None or kind == "const" and source.key is not key:  # another object lies where one was that is gone
        source = object.__new__(Source)
        source.kind, source.base, source.held = kind, base, reference(key) if kind == "const" else key
        source._hash = hash(k)
        table[k] = source
    return source


def local(index: int, name: str) -> Source:
    return make_source("local", None, (index, name))


def closure(index: int, name: str) -> Source:
    return make_source("closure", None, (index, name))


def glob(name: str) -> Source:
    return make_source("global", None, name)


def builtin(name: str) -> Source:
    return make_source("builtin", None, name)


def function() -> Source:
    return make_source("function", None, None)


def const(obj: Any) -> Source:
    return make_source("const", None, obj)


def shared(obj: Any) -> Source:
    """`const` of an object that others may let go of: where it can be, it is held weakly."""
    return _alone("const", Weak(obj)) if type(obj).__weakrefoffset__ else const(obj)


def cached(n: int, name: str) -> Source:
    return make_source("cached", None, (n, name))


def attr(base: Source, name: str) -> Source:
    return make_source("attr", base, name)


def item(base: Source, key: Any) -> Source:
    return make_source("item", base, key)


def dict_value(base: Source, key: Any) -> Source:
    return make_source("dict", base, key)


def type_of(base: Source) -> Source:
    return make_source("type", base, None)


def cell(base: Source) -> Source:
    return make_source("cell", base, None)


def default(base: Source, index: int) -> Source:
    return make_source("default", base, index)


def kwdefault(base: Source, name: str) -> Source:
    return make_source("kwdefault", base, name)


def size(base: Source, dim: int) -> Source:
    return make_source("size", base, dim)


def stride(base: Source, dim: int) -> Source:
    return make_source("stride", base, dim)


def storage_offset(base: Source) -> Source:
    return make_source("offset", base, None)


def calc(base: Source, op: str, c: float | None, reflected: bool) -> Source:
    # as text: 0.0 and -0.0 are equal keys
    return make_source("calc", base, (op, "" if c is None else repr(c), reflected))


def ratio(a: Any, b: Any) -> Source:
    return make_source("ratio", None, (a, b))


def computed(fn: Any, operands: tuple) -> Source:
    # as text: 0.0 and -0.0, and 1 and 1.0, are equal keys
    return make_source(
        "computed",
        None,
        (fn, operands, tuple(repr(operand) for operand in operands if not isinstance(operand, Source))),
    )


def scalar(base: Source, dtype: Any, device: Any, use: str = "") -> Source:
    return make_source("scalar", base, (dtype, device, use))


def asked(base: Source, fn: Any) -> Source:
    return make_source("asked", base, fn)


_COUNTED = (list, collections.deque, dict, set)  # they grow
_COUNTED_BY_LEN = frozenset((*_COUNTED, collections.OrderedDict, collections.defaultdict))


def count(base: Source, held: Any) -> Source | None:
    """How many items the container `held`, which lies at `base`, has; None for what does not grow. No method of the
    program's is asked."""
    if type(held) in _COUNTED_BY_LEN:
        return asked(base, len)
    return next((asked(base, kind.__len__) for kind in _COUNTED if isinstance(held, kind)), None)


def optimizer_state(base: Source, group: int, index: int) -> Source:
    return make_source("optimized", base, (group, index))


def _alone(kind: str, held: Any) -> Source:
    """A root that no equal one is shared with."""
    source: Source = object.__new__(Source)
    source.kind, source.base, source.held, source._hash = kind, None, held, hash((kind, id(held)))
    return source


def drawn(n: int, fn: Any, args: tuple, named: tuple) -> Source:
    return _alone("drawn", (n, fn, args, named))


def plain(base: Source) -> Source:
    return make_source("plain", base, None)


def array(base: Source, number: bool = False) -> Source:
    return make_source("array", base, number)


def number(base: Source) -> Source:
    """A number of numpy's as one of Python's."""
    return asked(base, as_python)


def where_number(source: Source) -> Source:
    """Where a number lies; one of numpy's by the place of numpy's."""
    return source.base if source.kind == "asked" and source.held is as_python and source.base is not None else source


def unwrapped(base: Source, by: Any) -> Source:
    return make_source("unwrapped", base, by)
