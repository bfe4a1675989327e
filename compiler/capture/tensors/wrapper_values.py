"""Tensors of wrapper subclasses in the program: from outside, as results, and as what the entry gives back.

The program sees a Subclassed, whose plain tensor stands for the wrapper in the graph (graph/wrappers). One from
outside reaches the graph by its inner tensors. They are inputs with guards of their own, and a `Wrap` node puts them
together. The entry makes results of a graph's inner tensors again, by the class's `__tensor_unflatten__`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import TYPE_CHECKING, Any

import torch

from ...graph.tensor import TraceTensor, from_meta, tensor_meta
from ...graph.wrappers import Crossing, Fixed, Inner, Unwrap, Wrap, Wrapping, is_dtensor, is_wrapper, take_apart
from ...guards import source as S
from ...guards.source import Source
from ...guards.snapshots import Unguardable, copied
from ...guards.wrapper_check import InnerTensor, WrapperCheck, gradient, is_leaf
from ..kinds.lookups import class_attribute
from ..machine.signals import Break, Skip, Unrebuildable
from ..machine.stack_values import ATOMS
from . import tensor_calls
from .class_code import rely_on_class
from .gradients import set_grad
from .tensor_subclasses import PLAIN_TENSORS, Subclassed

if TYPE_CHECKING:
    from ..entry.entry_source import EntryWriter
    from ..machine.machine import Machine
    from ..machine.world import World

__all__ = [
    "as_changed",
    "load_wrapper",
    "as_program_sees",
    "inner_attribute",
    "inner_tensors",
    "gradient_of_wrapper",
    "write_wrapper",
    "make_wrapper",
    "finish",
    "is_leaf_of_wrapper",
    "is_of_wrapper",
    "is_wrapper_class",
]

_NO_FUNCTION = torch._C._disabled_torch_function_impl
_CONSTANTS = (*ATOMS, enum.Enum, type, torch.Size)


def is_of_wrapper(s: Subclassed, finished: bool = False) -> bool:
    """Whether this stands for a wrapper. `finished`: and has its inner tensors."""
    return s.plain.tt_wrapper is not None or s.unfinished is not None and not finished


def is_wrapper_class(cls: type) -> bool:
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


# --- from outside
def load_wrapper(world: World, real: Any, source: Source) -> Subclassed:
    """The stand-in for a wrapper from outside; Skip where its class or its context cannot be captured."""
    m = world.machine
    updated = world.updating and real.is_leaf and is_dtensor(type(real))
    try:
        loaded = _Loading(world, real, source, real.requires_grad and not updated)
    except Unguardable as problem:
        raise Skip(
            f"the tensor `{source.name()}` is a {type(real).__name__} whose flatten context {problem}; the frame runs"
            " as it is"
        ) from None
    m.subclassed = True
    world.guard(source, "HASATTR", ("_is_param", hasattr(real, "_is_param")), "whether it is a parameter")
    world.register(real, source)
    known = world.subclassed.get(id(real))
    made = world.subclassed[id(real)] = world.register(Subclassed(type(real), loaded.outer, real.__dict__), source)
    world.reals[id(made)] = world.register(real, source)
    if known is not None:  # (one stand-in is differentiated, another one changed: what is set on either is set)
        world.pending[id(made)] = world.pending.setdefault(id(known), {})
    if updated and real.requires_grad:
        world.updated.add(id(made))
    if real.is_leaf and real.requires_grad and not updated and is_dtensor(type(real)):
        m.placed.append(real)
    return made


def as_changed(world: World, s: Subclassed) -> Subclassed:
    """For an optimizer's code: a leaf over the memory of the one that is differentiated, which can be written to."""
    real = world.reals.get(id(s))
    if real is None or not is_of_wrapper(s) or not s.plain.tt_differentiable or not real.is_leaf:
        return s
    if (known := world.changed.get(id(s))) is not None:
        return known
    m = world.machine
    put_together = m.graph.find(id(s.plain), 0)
    traces = {m.graph.find(id(t), 0): t for t in world.tensors.values()}
    wrapping, sizes, _ = take_apart(s.plain)
    parts = [tensor_calls.call_method(m, traces[n], "detach", [], {}) for n in put_together.args[1:]]
    wrap = Wrap(Crossing(wrapping), False)
    outer = m.graph.record("call_function", wrap, (sizes, *parts), {}, m.native(wrap, sizes, *parts))
    m.graph.calls -= 1 + len(parts)
    source = world.sources[id(s)]
    made = world.changed[id(s)] = world.register(Subclassed(type(real), outer, real.__dict__), source)
    world.reals[id(made)] = world.register(real, source)
    world.pending[id(made)] = world.pending.setdefault(id(s), {})
    return made


def _reached(t: Any, name: str, source: Source) -> Source:
    return S.attr(source, name) if name in t.__dict__ else S.asked(source, InnerTensor(name))


def inner_tensors(world: World, s: Subclassed) -> list[TraceTensor]:
    """The tensors inside of a wrapper from outside, without history. None of them is a wrapper."""
    real, source = world.reals[id(s)], world.sources[id(s)]
    names, _ = real.__tensor_flatten__()
    parts = [(getattr(real, name), _reached(real, name, source)) for name in names]
    return [world.load_tensor(part, reached) for part, reached in parts if isinstance(part, torch.Tensor)]


class _Loading:
    """The inputs and guards of one wrapper, and the node that puts it together."""

    def __init__(self, world: World, real: Any, source: Source, differentiable: bool):
        self.world, self.plain = world, []
        self.unwrap: Source | None = None
        if differentiable:
            crossing = Crossing(take_apart(real)[0])
            unwrap = Unwrap(crossing)
            self.unwrap, self.aliases = S.unwrapped(source, unwrap), list(unwrap(real))
            if not all(t.requires_grad for t in self.aliases):
                raise Unguardable("goes with inner tensors that are not all of floating point, and it requires grad")
        wrapping, sizes, _ = self._inside(real, source)
        m = world.machine
        wrap = Wrap(crossing if differentiable else Crossing(wrapping), differentiable)
        outer = m.native(wrap, sizes, *self.plain)
        scopes, m.graph.scopes = m.graph.scopes, [m.graph.root]  # in the frame's own graph, as its inputs are
        try:
            self.outer = m.graph.record("call_function", wrap, (sizes, *self.plain), {}, outer)
        finally:
            m.graph.scopes = scopes
        m.graph.calls -= 1  # nothing is computed by it

    def _inside(self, t: Any, source: Source) -> tuple[Wrapping, tuple, Any]:
        """How a wrapper is made, and its sizes and strides, with symbols where inner tensors have them."""
        world = self.world
        refuse(t, source)
        world.guard(source, "TYPE", type(t), "class of the tensor")
        rely_on_class(world.machine, type(t))
        names, context = t.__tensor_flatten__()
        inner: list[Wrapping | Fixed | None] = []
        own: list[Any] = []
        shapes: dict[str, tuple] = {}
        for name in names:
            part = getattr(t, name)
            reached = _reached(t, name, source)
            if is_wrapper(part):
                wrapping, sizes, _ = self._inside(part, reached)
                shapes[name] = sizes[:2]
            elif not isinstance(part, torch.Tensor):
                wrapping, sizes = Fixed(part), None  # the check compares it, as it does the context
            else:
                if type(part) not in PLAIN_TENSORS:
                    raise Unguardable(f"goes with an inner tensor of class {type(part).__name__}")
                wrapping = sizes = None
                trace = self._input(part, reached)
                self.plain.append(trace)
                shapes[name] = tuple(trace.shape), tuple(trace.stride())
            inner.append(wrapping)
            own.append(sizes)
        shape, from_inner = _shape(t, shapes)
        stride, strides = _stride(t, shape, shapes)
        world.guard(
            S.asked(source, WrapperCheck(t, from_inner, strides)), "ID", True, "outer properties and flatten context"
        )
        return Wrapping(type(t), tuple(names), copied(context), tuple(inner)), (shape, stride, tuple(own)), None

    def _input(self, part: torch.Tensor, source: Source) -> TraceTensor:
        """The stand-in for an inner tensor. Where the wrapper requires grad, gradients pass through the input."""
        world = self.world
        if self.unwrap is None:
            return world.load_tensor(part, source)
        alias = self.aliases[len(self.plain)]
        trace = world.stand_in(alias, source)
        spec = world.spec(alias, trace)
        reached = S.item(self.unwrap, len(self.plain))
        world.register(alias, reached)
        world.guarded_as[reached] = source
        world.tensors[id(alias)], world.reals[id(trace)] = trace, alias
        world.machine.graph.add_input(alias, trace, reached, spec, False)
        world.guard(source, "TENSOR", dataclasses.replace(spec, type=type(part), requires_grad=part.requires_grad))
        return trace


def refuse(t: Any, source: Source) -> None:
    """Skip for wrappers that no check of ours describes."""
    reason = ""
    if t.layout is not torch.strided:
        reason = f"of layout {t.layout}"
    elif isinstance(class_attribute(type(t), "__getattribute__"), types.FunctionType):
        reason = "which looks up attributes in its own way"
    elif t.is_conj() or t.is_neg():
        reason = "a conjugate or negative view"
    elif type(t).__module__ == "torch.distributed._functional_collectives":
        reason = "whose collective may be under way"
    if reason:
        raise Skip(f"the tensor `{source.name()}` is a {type(t).__name__}, {reason}; the frame runs as it is")


def _shape(t: Any, inner: dict[str, tuple]) -> tuple[tuple, tuple]:
    """The outer sizes, and where each comes from: (inner tensor, dimension) where that varies, else the number."""
    shape, origin = [], []
    for d, n in enumerate(t.shape):
        found = next(
            (
                (name, k)
                for name, (sizes, _) in inner.items()
                for k in sorted(range(len(sizes)), key=lambda k: k != d)
                if type(sizes[k]) is torch.SymInt and getattr(t, name).shape[k] == n
            ),
            None,
        )
        shape.append(int(n) if found is None else inner[found[0]][0][found[1]])
        origin.append(int(n) if found is None else found)
    return tuple(shape), tuple(origin)


def _stride(t: Any, shape: tuple, inner: dict[str, tuple]) -> tuple[tuple, Any]:
    """The outer strides, and how they are checked: numbers, "contiguous", or the inner tensor that has the same."""
    now = tuple(map(int, t.stride()))
    if all(type(n) is int for n in shape):
        return now, now
    like = next((name for name in inner if tuple(getattr(t, name).stride()) == now), None)
    if like is not None:
        return inner[like][1], like
    if not t.is_contiguous():
        raise Unguardable("goes with sizes that vary and strides that follow from no inner tensor")
    strides: list[Any] = [1]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)])), "contiguous"


def gradient_of_wrapper(m: Machine, s: Any) -> Any:
    """`.grad` of a wrapper from outside. NotImplemented where its class may have a say in that, or it is no leaf."""
    real = m.world.reals.get(id(s))
    if real is None or not real.is_leaf or type(real).__torch_function__ is not _NO_FUNCTION:
        return NotImplemented
    written = m.world.pending.get(id(s), {})
    return written["grad"] if "grad" in written else m.world.load(real.grad, S.asked(m.world.sources[id(s)], gradient))


def is_leaf_of_wrapper(m: Machine, s: Any) -> Any:
    """`.is_leaf` of a wrapper. NotImplemented where its class may have a say in that, or it was made inside."""
    real = m.world.reals.get(id(s))
    if real is None:
        return True if s.__dict__.get("_is_param") else NotImplemented  # a parameter that FSDP2 has gathered
    if type(real).__torch_function__ is not _NO_FUNCTION:
        return NotImplemented
    return m.world.load(real.is_leaf, S.asked(m.world.sources[id(s)], is_leaf))


# --- backward passes inside
def wrapped_leaves(m: Machine) -> list[Subclassed]:
    """The leaves from outside that are wrappers and require grad."""
    found = [s for s in m.world.subclassed.values() if s.nested is None and id(s) in m.world.reals and is_of_wrapper(s)]
    return [s for s in found if s.plain.requires_grad and m.world.reals[id(s)].is_leaf]


def inside(m: Machine, s: Subclassed) -> list[TraceTensor]:
    """The inputs of the graph that the gradients of a wrapper from outside pass through."""
    put_together = m.graph.find(id(s.plain), 0)
    nodes = put_together.all_input_nodes if put_together is not None else ()
    return [t for t in m.world.tensors.values() if m.graph.find(id(t), 0) in nodes]


def accumulate_in_wrapper(m: Machine, s: Subclassed, gradient: TraceTensor) -> None:
    """What AccumulateGrad does with the gradient of a leaf that is a wrapper."""
    before = gradient_of_wrapper(m, s)
    if before is NotImplemented or not s.plain.is_contiguous() or is_dtensor(s.tensor_class):
        raise Break("backward", f"the gradient of a {s.tensor_class.__name__} is accumulated")
    g = as_program_sees(m, gradient)
    enabled = torch._C.is_grad_enabled()
    m.call(torch._C._set_grad_enabled, [False])
    if before is None:
        set_grad(m, s, m.call(torch.clone, [g], {"memory_format": torch.contiguous_format}))
    else:
        m.call(torch.Tensor.add_, [before, g])
    m.call(torch._C._set_grad_enabled, [enabled])


# --- made inside
def make_wrapper(m: Machine, cls: Any, size: Any, *args: Any, **kwargs: Any) -> Subclassed:
    """torch.Tensor._make_wrapper_subclass(cls, size, ...): its class sets its inner tensors as attributes."""
    odd = [k for k in kwargs if k.startswith("dispatch_") and kwargs[k] not in (None, False)]
    if odd or not is_wrapper_class(cls):
        raise Break("unsupported", f"a tensor of class {cls.__name__} is made, which can't be taken apart")
    args, kwargs = [m.deep_plain(a) for a in args], {k: m.deep_plain(v) for k, v in kwargs.items()}
    if kwargs.get("requires_grad"):
        raise Break("unsupported", f"a leaf of class {cls.__name__} that requires grad is made")
    instance = m.native(torch.Tensor._make_wrapper_subclass, cls, m.deep_plain(size), *args, **kwargs)
    made = Subclassed(cls, from_meta(tensor_meta(instance), m.env))
    made.unfinished = instance
    m.subclassed = True
    rely_on_class(m, cls)
    return m.world.create(made)


def finish(m: Machine, s: Subclassed) -> None:
    """The inner tensors of a wrapper made inside are set: from here on it is a value of the graph."""
    instance: Any = s.unfinished
    for name, value in s.__dict__.items():
        if type(value) is Subclassed:
            if not is_of_wrapper(value):
                raise Break("unsupported", f"a {s.tensor_class.__name__} holds a {value.tensor_class.__name__}")
            if value.unfinished is not None:
                finish(m, value)
            read_inside(m, value.plain)
            value = value.plain.tt_wrapper
        instance.__dict__[name] = m.deep_plain(value)
    wrapping, sizes, plain = m.native(take_apart, instance)
    wrap = Wrap(Crossing(wrapping), False)
    s.plain = m.graph.record("call_function", wrap, (sizes, *plain), {}, m.native(wrap, sizes, *plain))
    s.unfinished = None
    m.graph.calls -= 1


def read_inside(m: Machine, outer: TraceTensor) -> None:
    """Make the tensors inside of a wrapper values of the graph, for another one that holds it."""
    wrapping, _, plain = take_apart(outer)
    if any(m.graph.find(id(t)) is None for t in plain):
        read = Unwrap(Crossing(wrapping), differentiable=False)
        m.graph.record("call_function", read, (outer,), {}, tuple(plain))
        m.graph.calls -= 1


# --- results
def as_program_sees(m: Machine, value: Any, given: dict[int, Subclassed] = {}) -> Any:  # noqa: B006
    """A result of torch's, with a Subclassed for each tensor that stands for a wrapper: `given` has those of tensors
    that torch was given."""
    if type(value) is TraceTensor and value.tt_wrapper is not None:
        m.subclassed = True
        return given.get(id(value)) or m.world.create(Subclassed(type(value.tt_wrapper), value))
    if isinstance(value, (list, tuple)) and any(isinstance(v, (list, tuple, TraceTensor)) for v in value):
        parts = [as_program_sees(m, v, given) for v in value]
        if any(p is not v for p, v in zip(parts, value)):
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict and any(isinstance(v, (list, tuple, TraceTensor)) for v in value.values()):
        seen = {k: as_program_sees(m, v, given) for k, v in value.items()}
        return seen if any(seen[k] is not v for k, v in value.items()) else value
    return value


def inner_attribute(m: Machine, s: Subclassed, name: str) -> Any:
    """An attribute that the class gave a wrapper that was made inside: NotImplemented where it has none."""
    if name in s.__dict__:
        return s.__dict__[name]
    instance = s.plain.tt_wrapper
    slot = isinstance(class_attribute(s.tensor_class, name), types.MemberDescriptorType) and hasattr(instance, name)
    if not slot and name not in getattr(instance, "__dict__", {}):
        return NotImplemented
    value = getattr(instance, name)
    if isinstance(value, torch.Tensor):
        inner = Inner(name)
        made = m.graph.record("call_function", inner, (s.plain,), {}, m.native(inner, s.plain))
        m.graph.calls -= 1
        value = s.__dict__[name] = as_program_sees(m, made)
        return value
    if isinstance(value, _CONSTANTS) or type(value) is tuple and all(isinstance(v, _CONSTANTS) for v in value):
        return value
    if is_dtensor(s.tensor_class):
        return m.world.load(value, m.world.anchor(value))  # how it is placed, which never changes
    raise Break(
        "tensor_attribute", f"the attribute {name} of a {s.tensor_class.__name__} that was made inside is an object"
    )


def write_wrapper(w: EntryWriter, s: Subclassed) -> str:
    """The entry's expression for a wrapper that was made inside."""
    m = w.machine
    if s.unfinished is not None:
        finish(m, s)
    wrapping, sizes, plain = take_apart(s.plain)
    outer = s.plain
    if outer.requires_grad and not all(t.dtype.is_floating_point for t in plain):
        raise Unrebuildable(s, f"a {s.tensor_class.__name__} that requires grad over tensors of integers")
    if outer.requires_grad and not _gradient_is_alike(outer.tt_wrapper):
        raise Unrebuildable(s, f"a {s.tensor_class.__name__} whose gradient will be of another form")
    unwrap = Unwrap(Crossing(wrapping))
    parts = m.native(unwrap, outer)
    m.graph.record("call_function", unwrap, (outer,), {}, parts)
    m.graph.calls -= 1
    wrap = Wrap(Crossing(wrapping), outer.requires_grad)
    given = ", ".join(w.value(p) for p in parts)
    name = w.assign(s, f"{w.constant(wrap)}({_text(w, sizes)}, {given})")
    for key, value in s.__dict__.items():  # what the program set or read: the same objects
        w.line(f"{name}.__dict__[{key!r}] = {w.value(value)}")
    return name


def _gradient_is_alike(t: Any) -> bool:
    """Whether the gradient of a result comes in the result's own form, as far as its class says."""
    coerce = getattr(t, "__coerce_tangent_metadata__", None)
    try:
        return coerce is None or coerce() is t
    except Exception:  # it computes: of tensors without data it can't
        return False


def _text(w: EntryWriter, sizes: Any) -> str:
    if isinstance(sizes, tuple):
        return f"({''.join(_text(w, n) + ', ' for n in sizes)})"
    return w.value(sizes)
