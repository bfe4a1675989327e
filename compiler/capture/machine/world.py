"""The world that capture sees: which Python objects came from outside, by which Source, and what was relied on.

Values on the interpreted stack are plain Python objects. Three kinds matter:

* *outside objects* existed before the frame ran. Reading one goes through `load`, which registers its Source and writes
  the guard that pins what was seen. They are never changed during capture: writes go to the effect log and to `pending`
  (attributes) or to a shadow (containers), which later reads consult.
* *inside objects* were made by the interpreted program. They are real lists, dicts, instances, ..., changed in place.
* tensors are TraceTensors: metadata, and a node in the graph.
"""

from __future__ import annotations

import abc
import dataclasses
import decimal
import enum
import functools
import types
import weakref
from typing import Any

import torch

from ...guards import source as S
from ...guards.guard import FunctionSpec, Guard, TensorSpec
from ...guards.source import Source
from ...guards.state import SubclassAnswers, read_field
from ...guards.tensors import has_tangent
from ...guards.wrapper_check import PlacedAs
from ...ops.conjugates import has_bits, without_bits
from ...marks import demanded_dims, dynamic_dims, static_dims, unbacked_dims
from ...symbolic.expr import ge
from ...graph.history import is_refused
from ...graph.tensor import TraceTensor, trace_tensor_like
from ...graph.wrappers import is_dtensor, is_jagged, is_wrapper
from ..kinds import choices
from ..arrays.array_value import Array, array_class, array_like
from ..library.backward_reads import refuse_read
from ..bytecode.splice import UNBOUND
from .generators import InlineGenerator
from ..kinds.inline_policy import is_trusted_function, is_trusted_module
from ..numbers.late_text import LateText, given_late
from ..arrays.outside_arrays import load_array, load_number
from ..kinds.outside_iterators import OutsideIterator
from ..numbers.scalars import float_symbol
from .signals import Break, Skip
from .stack_values import (
    ATOMS,
    BOUND_NATIVE,
    IMMUTABLE,
    MISSING,
    SINGLETONS,
    has_owner,
    is_library_constant,
    is_placement,
)
from ..tensors.bit_views import record_flipped
from ..tensors.tensor_subclasses import PLAIN_TENSORS, Subclassed, plain_alias, refusal
from ..tensors.jagged_values import load_jagged
from ..tensors.wrapper_values import as_changed, load_wrapper

__all__ = ["World"]


HEAP_TYPE = 1 << 9
_CODE_TYPES = (
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)


_FIXED = (*_CODE_TYPES, enum.Enum, property, torch.Size, types.MethodType, slice, types.CodeType, types.GenericAlias)


_GENERATOR = (i for i in ())
_EMPTY = torch.empty(0)


_HEAP_TYPE = 1 << 9


def _lies(value: Any, cls: type) -> bool:
    """Whether isinstance() would hear from the object that it is of another class, or an error."""
    said = next(base.__dict__["__class__"] for base in cls.__mro__ if "__class__" in base.__dict__)
    looked_up = next(base.__dict__["__getattribute__"] for base in cls.__mro__ if "__getattribute__" in base.__dict__)
    if said is object.__dict__["__class__"] and not isinstance(looked_up, types.FunctionType):
        return False
    try:
        return value.__class__ is not cls
    except Exception:
        return True


def _refuse_cached(*sources: Source) -> None:
    """Break where two objects are told apart, and one of them is what a cache has for numbers that vary."""
    if any(source.root.kind == "cached" for source in sources):
        raise Break("c_call", "what a cached function gives for a number that varies is compared with another object")


class World:
    """Provenance, guards and graph inputs of one capture."""

    def __init__(self, machine: Any, opts: Any):
        self.machine, self.opts = machine, opts
        self.env = machine.env
        self.sources: dict[int, Source] = {}  # id of an outside object -> how it is reached
        self.keep: list[Any] = []  # holds the objects, so that ids stay theirs
        self.guards: dict[tuple, Guard] = {}
        self.loaded: dict[Source, Any] = {}  # what each source gave, as a stack value
        self.pending: dict[int, dict[str, Any]] = {}  # attribute writes not yet done: id(object) -> name -> value
        self.made: dict[int, Any] = {}  # instances of classes made inside
        self.created: set[int] = set()  # ids of instances made inside, of any class (kept in `keep`)
        self.tensors: dict[int, TraceTensor] = {}  # id of a real tensor -> its stand-in
        self.reals: dict[int, torch.Tensor] = {}  # id of a stand-in -> the real tensor of this call
        self.shadows: dict[int, Any] = {}  # outside containers read whole or written, by id: Shadow
        self.shadowed: dict[int, Any] = {}  # id of a shadow's content -> the outside container
        self.dict_owners: dict[int, Any] = {}  # id of an outside object's __dict__ that was read -> the object
        self.class_dicts: dict[int, type] = {}  # id of the dict of a class, as the program has it -> the class
        self.cell_contents: dict[int, Source] = {}  # id of an outside cell -> source of its content
        self.state_relied: dict[str, Any] = {}
        self.growing: set[Source | None] = set()  # lists whose length varies: so do the floats in them
        self.float_sources: dict[Source, float] = {}  # floats that may vary
        self.scalars: dict[Source, TraceTensor] = {}  # their inputs of the graph
        self.originals: set[int] = set()  # ids of modules that were reached through what compile() made of them
        self.draws: list[Source] = []  # random numbers, in the order in which the entry draws them
        self.guarded_as: dict[Source, Source] = {}  # where the graph gets an inner tensor -> where guards find it
        self.subclassed: dict[int, Subclassed] = {}  # id of a tensor of a class of the program's -> its stand-in
        self.updating = False  # an optimizer's own code runs
        self.changed: dict[int, Subclassed] = {}  # ids of wrappers' stand-ins -> those that it writes to in their place
        self.updated: set[int] = set()  # ids of stand-ins that were loaded by it, as what requires no gradient
        self.arrays: dict[int, Array] = {}  # id of a numpy array from outside -> its stand-in
        # (tensor, dimension) that mark_dynamic named -> (least, largest size)
        self.demanded: dict[tuple[Source, int], tuple] = {}
        self.class_lookups: dict[int, tuple[type, dict[str, Any]]] = {}

    # --- guards
    def guard(self, source: Source, kind: str, expected: Any, why: str = "") -> None:
        """Rely on a fact. A second, equal fact is dropped."""
        root = source.root
        if kind == "ALIAS":
            _refuse_cached(source, expected)
        if root.kind == "cached" or root is source and root.kind == "const" and kind in ("ID", "TYPE"):
            return
        if root.kind == "const" and id(root.key) in self.made:  # each run makes a class of its own
            return
        key = (source, kind, expected[0] if kind == "HASATTR" else expected if kind == "LACKS" else None)
        if key not in self.guards:
            file, line = self.machine.user_line()
            self.guards[key] = Guard(source, kind, expected, file, line, why)

    def differ(self, *sources: Source) -> None:
        """Rely on these giving different objects."""
        _refuse_cached(*sources)
        key = (None, "NO_ALIAS", sources)
        if key not in self.guards:
            file, line = self.machine.user_line()
            self.guards[key] = Guard(None, "NO_ALIAS", sources, file, line, "identity comparison")

    def state(self, name: str, value: Any) -> Any:
        """Rely on a field of torch's global state, as it was when the frame began."""
        self.state_relied.setdefault(name, value)
        return value

    # --- provenance
    def source_of(self, obj: Any) -> Source | None:
        return self.sources.get(id(obj))

    def is_outside(self, obj: Any) -> bool:
        return id(obj) in self.sources

    def register(self, obj: Any, source: Source) -> Any:
        """`obj` is reached by `source`; the first path found is kept."""
        if id(obj) not in self.sources:
            self.sources[id(obj)] = source
            self.keep.append(obj)
        return obj

    def anchor(self, obj: Any) -> Source:
        """A source for an object that is fixed by what was guarded already (a class, a function, a module): the entry
        itself holds it."""
        s = self.sources.get(id(obj))
        if s is None:
            s = S.const(obj)
            self.register(obj, s)
        return s

    def create(self, obj: Any) -> Any:
        """An instance was made by the program."""
        self.created.add(id(obj))
        self.keep.append(obj)
        return obj

    # --- loading
    def load(self, value: Any, source: Source, why: str = "") -> Any:
        """The stack value for what `source` gives now, guarded as far as its own nature needs: constants by value,
        tensors by metadata, classes and functions by identity, everything else by type (its parts are guarded when they
        are read).
        """
        if self.machine.backward_of:
            refuse_read(self.machine, value, source)
        got = self.loaded.get(source, MISSING)
        if self.updating and type(value) not in PLAIN_TENSORS and is_wrapper(value) and not is_dtensor(type(value)):
            if got is MISSING:
                got = self.loaded[source] = self._load(value, source, why)
            return as_changed(self, got) if type(got) is Subclassed else got
        if got is not MISSING and (self.updating or id(got) not in self.updated):
            return got
        result = self._load(value, source, why)
        self.loaded[source] = result
        return result

    def _load(self, value: Any, source: Source, why: str) -> Any:
        cls = type(value)
        if cls is int:
            return self._load_int(value, source, why)
        if cls is float and self._varies(source, value, self.opts.dynamic_floats):
            self.float_sources[source] = value
            return float_symbol(self.machine, value, source)
        if cls is str and self._text_varies(source, value):
            return given_late(self.machine, value, source, why)
        if cls in ATOMS:
            if cls in SINGLETONS:
                self.guard(source, "ID", value, why)
            else:
                self.guard(source, "EQUALS", value, why)
            return value
        if cls.__flags__ & _HEAP_TYPE and _lies(value, cls):
            raise Skip(
                f"an object of type {type.__dict__['__name__'].__get__(cls)} is used, but its __class__ names"
                " another type"
            )
        if isinstance(value, torch.Tensor):
            return self.load_tensor(value, source)
        if (
            getattr(cls, "__module__", "") == "numpy"
            and cls.__name__ == "ndarray"
            and (array := load_array(self.machine, value, source, why)) is not None
        ):
            return array
        if (number := load_number(self.machine, value, source, why)) is not None:
            return number
        known = self.sources.get(id(value))
        if known is not None and known is not source:
            if known.root.kind == "const" and known.base is None:
                self.guard(source, "ID", value, why)
            else:
                self.guard(source, "ALIAS", known, "same object")
            return value
        if isinstance(value, torch.Size):
            self.guard(source, "EQUALS", value, why)
            return value
        if value is UNBOUND:
            self.guard(source, "ID", value, why)
            return value
        self.register(value, source)
        self._guard_object(value, cls, source, why)
        return value

    def _guard_object(self, value: Any, cls: type, source: Source, why: str) -> None:
        """Guard an object that is known by its source, as far as its own nature needs."""
        if cls is decimal.Decimal:
            self.state("decimal", read_field("decimal"))
        if is_placement(cls):  # (equal modules have equal ones)
            self.guard(S.asked(source, PlacedAs(value)), "ID", True, why)
        elif isinstance(value, IMMUTABLE) or is_library_constant(value):
            self.guard(source, "ID", value, why)  # the same object has the same value
        elif cls is slice:
            if not all(type(v) in ATOMS for v in (value.start, value.stop, value.step)):
                raise Break("unknown_object", "a slice of objects from outside is used")
            self.guard(source, "EQUALS", value, why)
        elif cls is functools.partial:
            self.guard(source, "TYPE", cls, why)  # its function and arguments are guarded as they are read
        elif cls in BOUND_NATIVE and has_owner(value):
            self.guard(source, "TYPE", cls, why)  # its owner and its name are guarded as it is called
        elif isinstance(value, types.FunctionType) and not is_trusted_function(value):
            # what it does is guarded when it is called, who it is where that matters
            self.guard(source, "TYPE", cls, why)
        elif isinstance(value, _CODE_TYPES) or isinstance(value, enum.Enum) or cls is property:
            self.guard(source, "ID", value, why)
        else:
            self.guard(source, "TYPE", cls, why)

    def guard_function(self, source: Source, fn: types.FunctionType, why: str) -> None:
        """Rely on what a function does: its code and globals. The same text defined anew will do; its cells and
        defaults are guarded where they are read."""
        own = fn.__globals__ is self.machine.root_globals
        self.guard(source, "FUNCTION", FunctionSpec(fn.__code__, None if own else fn.__globals__), why)

    def identity(self, value: Any) -> Any:
        """A function from outside is compared or hashed: relied on as the object that it is."""
        if isinstance(value, types.FunctionType):
            source = self.sources.get(id(value))
            if source is not None:
                self.guard(source, "WEAK_ID", weakref.ref(value), "the function itself is looked at")
        return value

    def pin(self, value: Any) -> Any:
        """`value` is about to be read by native code as a whole: allow what its guard fixes already."""
        cls = type(value)
        if isinstance(value, BaseException) and id(value) in self.sources:
            raise Break("unknown_object", f"native code reads an exception, a {cls.__name__}, that came from outside")
        if (
            cls in ATOMS
            or id(value) not in self.sources
            or isinstance(value, _FIXED)
            or cls.__hash__ is object.__hash__
            and not hasattr(cls, "__len__")
        ):
            return value
        if (
            isinstance(value, IMMUTABLE)
            or is_library_constant(value)
            or isinstance(value, (list, tuple, dict, set, frozenset))
        ):
            return value
        if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            raise Break("storage")
        raise Break(
            "unknown_object",
            f"native code reads the value of a {getattr(cls, '__module__', '')}.{cls.__name__} from outside",
        )

    def _load_int(self, value: int, source: Source, why: str) -> Any:
        symint: Any = value
        if self._varies(source, value, self.opts.dynamic_ints):
            symint = self.env.create_int(value, source, signed=source in self.opts.signed_ints)
        if isinstance(symint, int):
            self.guard(source, "EQUALS", value, why)
            return value
        expr = self.env.to_expr(symint)
        self.guard(source, "INT_SYMBOL", expr, why)
        return symint

    def _text_varies(self, source: Source, value: str) -> bool:
        """Whether a text is read when the entry runs."""
        known = self.opts.dynamic_texts
        return known is not None and (source in known or source.base is None and value in self.opts.from_outside)

    def _varies(self, source: Source, value: Any, known: Any) -> bool:
        """Whether a number is a symbol: one that changed before, or comes from outside, or any argument under
        dynamic=True.
        """
        if known is None:
            return False
        if value in self.opts.from_outside:
            return True
        source = S.where_number(source)
        if known is self.opts.dynamic_floats and source.base in self.growing:
            return True
        return source in known or (self.opts.dynamic is True and source.kind == "local")

    def float_guards(self) -> list[Guard]:
        """FLOAT where the number may vary; by its value where something needed the number."""
        guards = []
        for source, value in self.float_sources.items():
            pinned = self.env.pinned_floats.get(source)
            if pinned is not None:
                file, line = pinned
                guards.append(Guard(source, "EQUALS", value, file, line, "the number itself is used"))
            else:
                guards.append(
                    Guard(
                        source, "FLOAT", tuple(self.env.float_facts.get(source, ())), None, None, "passed to the graph"
                    )
                )
        return guards

    def load_tensor(self, real: torch.Tensor, source: Source) -> Any:
        """A graph input for an outside tensor; one per tensor object."""
        known = self.tensors.get(id(real))
        if known is not None:
            first = self.sources[id(real)]
            if first is not source:
                self.guard(source, "ALIAS", first, "same tensor")
            return known
        if type(real) not in PLAIN_TENSORS:
            return self._load_subclassed(real, source)
        if has_bits(real):
            return self._load_with_bits(real, source)
        trace = self.stand_in(real, source)
        spec = self.spec(real, trace)
        self._input(real, trace, source, spec)
        self.guard(source, "TENSOR", spec)
        return trace

    def _load_with_bits(self, real: torch.Tensor, source: Source) -> TraceTensor:
        """A conjugate or negative view: the graph is given its memory, and makes the view."""
        if real.requires_grad and real.is_leaf:
            raise Skip(
                f"the tensor `{source.name()}` is a leaf, and a conjugate or negative view; the frame runs as it is"
            )
        memory = without_bits(real)
        under = self.stand_in(memory, source)
        spec = self.spec(memory, under)
        self._input(memory, under, S.unwrapped(source, without_bits), spec)
        self.register(real, source)
        self.guard(source, "TENSOR", dataclasses.replace(spec, is_conj=real.is_conj(), is_neg=real.is_neg()))
        trace = record_flipped(self.machine, under, real.is_conj(), real.is_neg(), True)
        self.tensors[id(real)], self.reals[id(trace)] = trace, real
        return trace

    def _load_subclassed(self, real: torch.Tensor, source: Source) -> Subclassed:
        """A tensor of a class of the program's: the graph has it as a plain one."""
        known = self.subclassed.get(id(real))
        if known is not None and (self.updating or id(known) not in self.updated):
            if (first := self.sources[id(known)]) is not source:
                self.guard(source, "ALIAS", first, "same tensor")
            return known
        if is_jagged(real):
            return load_jagged(self, real, source)
        if is_wrapper(real):
            return load_wrapper(self, real, source)
        reason = refusal(type(real))
        if reason:
            raise Skip(
                f"the tensor `{source.name()}` is a tensor subclass, {type(real).__name__}, {reason}; the frame runs as"
                " it is"
            )
        alias = plain_alias(real)
        trace = self.stand_in(alias, source)
        spec = self.spec(alias, trace)
        self.register(real, source)
        self._input(alias, trace, S.plain(source), spec)
        self.guard(source, "TENSOR", dataclasses.replace(spec, type=type(real)))
        self.machine.subclassed = True
        made = self.subclassed[id(real)] = self.register(Subclassed(type(real), trace, real.__dict__), source)
        return made

    def stand_in(self, real: torch.Tensor, source: Source) -> TraceTensor:
        """The metadata of a tensor at `source`, with symbols where its sizes may vary."""
        check_supported(real, source)
        static = self._is_static(real, source)
        dims: dict[int, Any] = {} if static else {d: S.size(source, d) for d in self._dynamic_dims(real, source)}
        for d in sorted(dims.keys() & unbacked_dims(real)) if self.opts.unbacked else ():
            on_cpu = real.device.type == "cpu"  # accelerators launch nothing for no elements
            if on_cpu and real.shape[d] < 2:
                self.opts.small.append(dims[d])
            dims[d] = self.env.create_unbacked(real.shape[d], dims[d], 0 if on_cpu else 2)
        strides = (
            {}
            if static
            else {d: S.stride(source, d) for d in self.opts.dynamic_strides.get(source, ()) if d < real.dim()}
        )
        trace = trace_tensor_like(real, self.env if dims or strides else None, dims, strides)
        for d in strides:
            stride = trace.stride()[d]
            if isinstance(stride, torch.SymInt) and (expr := self.env.to_expr(stride)).op == "sym":
                file, line = self.machine.user_line()
                self.guards[source, "PREDICATE", d] = Guard(
                    None, "PREDICATE", ge(expr, 2), file, line, "a stride of 2 or more"
                )
        if real.requires_grad and not real.is_leaf:
            trace = _as_result(trace)
        return trace

    def _input(self, real: torch.Tensor, trace: TraceTensor, source: Source, spec: TensorSpec) -> None:
        self.register(real, source)
        self.tensors[id(real)] = trace
        self.reals[id(trace)] = real
        self.machine.graph.add_input(real, trace, source, spec, self._is_static(real, source))

    def _is_static(self, real: torch.Tensor, source: Source) -> bool:
        return isinstance(real, torch.nn.Parameter) or source.root.kind == "const" or self._module_state(source)

    def _module_state(self, source: Source) -> bool:
        """A buffer: reached as an attribute of a module."""
        if source.kind != "attr" or source.base is None:
            return False
        owner = self.loaded.get(source.base)
        return isinstance(owner, torch.nn.Module)

    def _dynamic_dims(self, real: torch.Tensor, source: Source) -> tuple[int, ...]:
        # the tensors that it was learned from may have had more
        learned = {d for d in self.opts.dynamic_dims.get(source, ()) if d < real.dim()}
        if self.opts.dynamic is False:
            return tuple(learned)
        named = range(real.dim()) if self.opts.dynamic is True else {*learned, *dynamic_dims(real)}
        self.demanded.update({(source, key): bounds for key, bounds in demanded_dims(real).items()})
        return tuple(sorted({*named} - static_dims(real)))

    def spec(self, real: torch.Tensor, trace: torch.Tensor) -> TensorSpec:
        to_expr = self.env.to_expr
        shape = tuple(to_expr(size) if isinstance(size, torch.SymInt) else int(size) for size in trace.shape)
        stride = tuple(to_expr(d) if isinstance(d, torch.SymInt) else int(d) for d in trace.stride())
        return TensorSpec(
            type(real),
            real.dtype,
            real.device,
            real.requires_grad,
            shape,
            stride,
            is_conj=real.is_conj(),
            is_neg=real.is_neg(),
        )

    # --- classes as the program sees them
    def type_of(self, value: Any) -> type:
        """`type(value)` as the interpreted program would see it."""
        if isinstance(value, TraceTensor):
            if self.machine.choices:
                choices.refuse(self.machine, value)
            real = self.reals.get(id(value))
            made = torch.nn.Parameter if value.__dict__.get("_is_param") else torch.Tensor
            return type(real) if real is not None else made
        if isinstance(value, torch.SymInt):
            return int
        if type(value) is InlineGenerator:
            return types.GeneratorType
        if type(value) is OutsideIterator:
            return type(value.real)
        if isinstance(value, torch.SymBool):
            return bool
        if isinstance(value, torch.SymFloat):
            return float
        if type(value) is Array:
            return array_class(value)
        if type(value) is Subclassed:
            return value.tensor_class
        return str if type(value) is LateText else type(value)

    def rely_on_tensor(self, trace: TraceTensor, *facts: str) -> None:
        """Rely on more of the inputs that `trace` is, or is a view of: fields of TensorSpec that methods of the same
        name give.
        """
        for real_id, known in self.tensors.items():
            if known is trace or known.tt_storage is trace.tt_storage:
                key = (self.sources[real_id], "TENSOR", None)
                if key not in self.guards:  # the memory of an array: its own facts are relied on
                    continue
                guard = self.guards[key]
                real = self.reals[id(known)]
                now = {name: getattr(real, name)() for name in facts}
                self.guards[key] = dataclasses.replace(guard, expected=dataclasses.replace(guard.expected, **now))

    def rely_on_bases(self, cls: type) -> None:
        """Rely on the classes that `cls` inherits from, and their order."""
        if (
            cls.__flags__ & HEAP_TYPE
            and id(cls) not in self.made
            and not is_trusted_module(getattr(cls, "__module__", None) or "")
        ):
            self.guard(S.attr(self.anchor(cls), "__mro__"), "EQUALS", cls.__mro__, "the class's bases")

    def rely_on_subclasses(self, asked: Any, classes: Any) -> None:
        """Rely on whether a class is a subclass of abstract classes of the user's: register() makes other classes
        theirs.
        """
        for cls in classes if isinstance(classes, tuple) else (classes,):
            if isinstance(cls, tuple):
                self.rely_on_subclasses(asked, cls)
            if getattr(cls, "_is_protocol", False):
                raise Break(
                    "unsupported",
                    f"isinstance() asks for the protocol {cls.__name__}, which looks at every attribute",
                    "ask for a class, or use hasattr",
                )
            if isinstance(cls, abc.ABCMeta) and not is_trusted_module(getattr(cls, "__module__", None) or ""):
                self.state_relied.setdefault("abstract_classes", SubclassAnswers()).note(asked, cls)

    def is_instance(self, value: Any, classes: Any) -> bool:
        """`isinstance(value, classes)`; native for all but the stand-ins."""
        self.rely_on_subclasses(self.type_of(value), classes)
        self.rely_on_bases(self.type_of(value))
        if isinstance(value, TraceTensor):
            real = self.reals.get(id(value))
            if real is None:
                real = torch.empty(0, dtype=value.dtype).as_subclass(self.type_of(value))
            return isinstance(real, classes)
        if isinstance(value, torch.SymInt):
            return isinstance(2, classes) or isinstance(value, classes)
        if isinstance(value, torch.SymBool):
            return isinstance(True, classes)
        if isinstance(value, torch.SymFloat):
            return isinstance(1.5, classes)
        if type(value) is Array:
            return isinstance(array_like(value), classes)
        if type(value) is Subclassed:
            probe = _EMPTY.as_subclass(value.tensor_class)
            if value.__dict__.get("_is_param"):
                probe._is_param = True  # type: ignore[attr-defined]
            return isinstance(probe, classes)
        return isinstance(
            _GENERATOR if type(value) is InlineGenerator else "" if type(value) is LateText else value, classes
        )


def _as_result(trace: TraceTensor) -> TraceTensor:
    """The same metadata as the result of an operator: it requires a gradient and is no leaf."""
    with torch.inference_mode(False), torch.enable_grad():  # (made before: no operator of inference mode gives one)
        result: Any = trace.requires_grad_(True).clone()
    result.tt_origin = trace
    return result if result.stride() == trace.stride() else trace


def check_supported(real: torch.Tensor, source: Source) -> None:
    """Refuse tensors whose meaning a plain graph input cannot carry."""
    reason = ""
    if real.layout is not torch.strided or real.is_quantized:
        reason = "not a dense strided tensor"
    elif real.is_nested:
        reason = "a nested tensor"
    elif real._is_zerotensor():
        reason = "a zero tensor"
    elif torch._C._functorch.is_functorch_wrapped_tensor(real):
        reason = "inside a functorch transform"
    elif has_tangent(real):
        reason = "a forward-mode AD dual"
    elif real.requires_grad and is_refused(real):
        reason = "a view that autograd refuses, as its base was written into"
    if reason:
        raise Skip(f"the tensor `{source.name()}` is {reason}; the frame runs as it is")
