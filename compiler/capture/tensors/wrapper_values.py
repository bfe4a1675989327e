"""Tensors of wrapper subclasses in the program: from outside, as results, and as what the entry gives back.

The program sees a Subclassed, whose plain tensor stands for the wrapper in the graph (graph/wrappers). One from
outside reaches the graph by its inner tensors. They are inputs with guards of their own, and a `Wrap` node puts them
together. The entry makes results of a graph's inner tensors again, by the class's `__tensor_unflatten__`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import TYPE_CHECKING, Any, Iterable

import torch

from ...graph.tensor import TraceTensor, from_meta, tensor_meta
from ...graph.wrappers import (
    Crossing,
    Fixed,
    Inner,
    Unwrap,
    Wrap,
    Wrapping,
    form_of_gradient,
    is_dtensor,
    is_wrapper,
    take_apart,
)
from ...guards import source as S
from ...guards.source import Source
from ...guards.snapshots import Unguardable, copied
from ...guards.wrapper_check import InnerTensor, WrapperCheck, gradient, is_leaf
from ..entry.effects import Effect
from ..kinds.lookups import class_attribute
from ..machine.signals import Break, Raised, Skip, Unrebuildable
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
    "slot_of_wrapper",
    "inner_tensors",
    "gradient_of_wrapper",
    "write_wrapper",
    "writes_counted",
    "make_wrapper",
    "finish",
    "is_leaf_of_wrapper",
    "is_of_wrapper",
    "is_wrapper_class",
]

_NO_FUNCTION = torch._C._disabled_torch_function_impl
_CONSTANTS = (*ATOMS, enum.Enum, type, torch.Size)


def is_of_wrapper(subclassed: Subclassed, finished: bool = False) -> bool:
    """Whether this stands for a wrapper. `finished`: and has its inner tensors."""
    return subclassed.plain.tt_wrapper is not None or subclassed.unfinished is not None and not finished


def is_wrapper_class(cls: type) -> bool:
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


# --- from outside
def load_wrapper(world: World, real: Any, source: Source) -> Subclassed:
    """The stand-in for a wrapper from outside; Skip where its class or its context cannot be captured."""
    machine = world.machine
    updated = world.updating and real.is_leaf and is_dtensor(type(real))
    try:
        loaded = _Loading(world, real, source, real.requires_grad and not updated)
    except Unguardable as problem:
        raise Skip(
            f"the tensor `{source.name()}` is a {type(real).__name__} whose flatten context {problem}; the frame runs"
            " as it is"
        ) from None
    machine.subclassed = True
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
        machine.placed.append(real)
    return made


def as_changed(world: World, subclassed: Subclassed) -> Subclassed:
    """For an optimizer's code: a leaf over the memory of the one that is differentiated, which can be written to."""
    real = world.reals.get(id(subclassed))
    if real is None or not is_of_wrapper(subclassed) or not subclassed.plain.tt_differentiable or not real.is_leaf:
        return subclassed
    if (known := world.changed.get(id(subclassed))) is not None:
        return known
    machine = world.machine
    put_together = machine.graph.find(id(subclassed.plain), 0)
    traces = {machine.graph.find(id(tensor), 0): tensor for tensor in world.tensors.values()}
    wrapping, sizes, _ = take_apart(subclassed.plain)
    parts = [tensor_calls.call_method(machine, traces[arg], "detach", [], {}) for arg in put_together.args[1:]]
    wrap = Wrap(Crossing(wrapping), False)
    outer = machine.graph.record("call_function", wrap, (sizes, *parts), {}, machine.native(wrap, sizes, *parts))
    machine.graph.calls -= 1 + len(parts)
    source = world.sources[id(subclassed)]
    made = world.changed[id(subclassed)] = world.register(Subclassed(type(real), outer, real.__dict__), source)
    world.reals[id(made)] = world.register(real, source)
    world.pending[id(made)] = world.pending.setdefault(id(subclassed), {})
    return made


def _reached(t: Any, name: str, source: Source) -> Source:
    return S.attr(source, name) if name in t.__dict__ else S.asked(source, InnerTensor(name))


def inner_tensors(world: World, subclassed: Subclassed) -> list[TraceTensor]:
    """The tensors inside of a wrapper from outside, without history. None of them is a wrapper."""
    real, source = world.reals[id(subclassed)], world.sources[id(subclassed)]
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
            if not all(alias.requires_grad for alias in self.aliases):
                raise Unguardable("goes with inner tensors that are not all of floating point, and it requires grad")
        wrapping, sizes, _ = self._inside(real, source)
        machine = world.machine
        wrap = Wrap(crossing if differentiable else Crossing(wrapping), differentiable)
        outer = machine.native(wrap, sizes, *self.plain)
        # in the frame's own graph, as its inputs are
        scopes, machine.graph.scopes = (machine.graph.scopes, [machine.graph.root])
        try:
            self.outer = machine.graph.record("call_function", wrap, (sizes, *self.plain), {}, outer)
        finally:
            machine.graph.scopes = scopes
        machine.graph.calls -= 1  # nothing is computed by it

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
    for dim, size in enumerate(t.shape):
        found = next(
            (
                (name, k)
                for name, (sizes, _) in inner.items()
                for k in sorted(range(len(sizes)), key=lambda k: k != dim)
                if type(sizes[k]) is torch.SymInt and getattr(t, name).shape[k] == size
            ),
            None,
        )
        shape.append(int(size) if found is None else inner[found[0]][0][found[1]])
        origin.append(int(size) if found is None else found)
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
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * size)
    return tuple(reversed(strides[: len(shape)])), "contiguous"


def gradient_of_wrapper(machine: Machine, s: Any) -> Any:
    """`.grad` of a wrapper from outside. NotImplemented where its class may have a say in that, or it is no leaf."""
    real = machine.world.reals.get(id(s))
    if real is None or not real.is_leaf or type(real).__torch_function__ is not _NO_FUNCTION:
        return NotImplemented
    written = machine.world.pending.get(id(s), {})
    return (
        written["grad"]
        if "grad" in written
        else machine.world.load(real.grad, S.asked(machine.world.sources[id(s)], gradient))
    )


def is_leaf_of_wrapper(machine: Machine, s: Any) -> Any:
    """`.is_leaf` of a wrapper. NotImplemented where its class may have a say in that, or it was made inside."""
    real = machine.world.reals.get(id(s))
    if real is None:
        return True if s.__dict__.get("_is_param") else NotImplemented  # a parameter that FSDP2 has gathered
    if type(real).__torch_function__ is not _NO_FUNCTION:
        return NotImplemented
    return machine.world.load(real.is_leaf, S.asked(machine.world.sources[id(s)], is_leaf))


# --- backward passes inside
def wrapped_leaves(machine: Machine) -> list[Subclassed]:
    """The leaves from outside that are wrappers and require grad."""
    found = [
        s
        for s in machine.world.subclassed.values()
        if s.nested is None and id(s) in machine.world.reals and is_of_wrapper(s)
    ]
    return [s for s in found if s.plain.requires_grad and machine.world.reals[id(s)].is_leaf]


def inside(machine: Machine, subclassed: Subclassed) -> list[TraceTensor]:
    """The inputs of the graph that the gradients of a wrapper from outside pass through."""
    put_together = machine.graph.find(id(subclassed.plain), 0)
    nodes = put_together.all_input_nodes if put_together is not None else ()
    return [tensor for tensor in machine.world.tensors.values() if machine.graph.find(id(tensor), 0) in nodes]


def accumulate_in_wrapper(machine: Machine, subclassed: Subclassed, gradient: TraceTensor) -> None:
    """What AccumulateGrad does with the gradient of a leaf that is a wrapper."""
    before = gradient_of_wrapper(machine, subclassed)
    if before is NotImplemented or not subclassed.plain.is_contiguous():
        raise Break("backward", f"the gradient of a {subclassed.tensor_class.__name__} is accumulated")
    g = as_program_sees(machine, gradient)
    enabled = torch._C.is_grad_enabled()
    machine.call(torch._C._set_grad_enabled, [False])
    if before is None:
        set_grad(machine, subclassed, machine.call(torch.clone, [g], {"memory_format": torch.contiguous_format}))
    else:
        machine.call(torch.Tensor.add_, [before, g])
    machine.call(torch._C._set_grad_enabled, [enabled])


# --- made inside
def make_wrapper(machine: Machine, cls: Any, size: Any, *args: Any, **kwargs: Any) -> Subclassed:
    """torch.Tensor._make_wrapper_subclass(cls, size, ...): its class sets its inner tensors as attributes."""
    odd = [k for k in kwargs if k.startswith("dispatch_") and kwargs[k] not in (None, False)]
    if odd or not is_wrapper_class(cls):
        raise Break("unsupported", f"a tensor of class {cls.__name__} is made, which can't be taken apart")
    args, kwargs = (
        [machine.deep_plain(arg) for arg in args],
        {name: machine.deep_plain(value) for name, value in kwargs.items()},
    )
    if kwargs.get("requires_grad"):
        raise Break("unsupported", f"a leaf of class {cls.__name__} that requires grad is made")
    instance = machine.native(torch.Tensor._make_wrapper_subclass, cls, machine.deep_plain(size), *args, **kwargs)
    made = Subclassed(cls, from_meta(tensor_meta(instance), machine.env))
    made.unfinished = instance
    machine.subclassed = True
    rely_on_class(machine, cls)
    return machine.world.create(made)


def finish(machine: Machine, subclassed: Subclassed) -> None:
    """The inner tensors of a wrapper made inside are set: from here on it is a value of the graph."""
    instance: Any = subclassed.unfinished
    for name, value in subclassed.__dict__.items():
        if type(value) is Subclassed:
            if not is_of_wrapper(value):
                raise Break(
                    "unsupported", f"a {subclassed.tensor_class.__name__} holds a {value.tensor_class.__name__}"
                )
            if value.unfinished is not None:
                finish(machine, value)
            read_inside(machine, value.plain)
            value = value.plain.tt_wrapper
        instance.__dict__[name] = machine.deep_plain(value)
    wrapping, sizes, plain = machine.native(take_apart, instance)
    wrap = Wrap(Crossing(wrapping), False)
    subclassed.plain = machine.graph.record(
        "call_function", wrap, (sizes, *plain), {}, machine.native(wrap, sizes, *plain)
    )
    subclassed.unfinished = None
    machine.graph.calls -= 1


def read_inside(machine: Machine, outer: TraceTensor) -> None:
    """Make the tensors inside of a wrapper values of the graph, for another one that holds it."""
    wrapping, _, plain = take_apart(outer)
    if any(machine.graph.find(id(t)) is None for t in plain):
        read = Unwrap(Crossing(wrapping), differentiable=False)
        machine.graph.record("call_function", read, (outer,), {}, tuple(plain))
        machine.graph.calls -= 1


def writes_counted(machine: Machine, wrappers: Iterable[Subclassed]) -> Effect | None:
    """What was written to tensors in wrappers from outside was written to these: their versions say so."""
    found = [
        s for s in wrappers if s.nested is None and id(s) in machine.world.reals and s.plain.tt_wrapper is not None
    ]
    written = [
        s for s in found if not s.plain.is_inference() for _ in range(machine.native(getattr, s.plain, "_version"))
    ]
    return Effect("call", torch.autograd.graph.increment_version, args=[written]) if written else None


# --- results
def as_program_sees(machine: Machine, value: Any, given: dict[int, Subclassed] = {}) -> Any:  # noqa: B006
    """A result of torch's, with a Subclassed for each tensor that stands for a wrapper: `given` has those of tensors
    that torch was given."""
    if type(value) is TraceTensor and value.tt_wrapper is not None:
        machine.subclassed = True
        return given.get(id(value)) or machine.world.create(Subclassed(type(value.tt_wrapper), value))
    if isinstance(value, (list, tuple)) and any(isinstance(item, (list, tuple, TraceTensor)) for item in value):
        parts = [as_program_sees(machine, item, given) for item in value]
        if any(part is not item for part, item in zip(parts, value)):
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if type(value) is dict and any(isinstance(item, (list, tuple, TraceTensor)) for item in value.values()):
        seen = {key: as_program_sees(machine, item, given) for key, item in value.items()}
        return seen if any(seen[key] is not item for key, item in value.items()) else value
    return value


def slot_of_wrapper(machine: Machine, subclassed: Subclassed, name: str) -> Any:
    """What a slot of a wrapper from outside holds, which no guard reads as an attribute; NotImplemented for an empty
    one."""
    real = machine.world.reals.get(id(subclassed))
    if real is None or not is_of_wrapper(subclassed) or not hasattr(real, name):
        return NotImplemented
    value = getattr(real, name)
    if is_dtensor(type(real)) and not isinstance(value, torch.Tensor):
        return machine.world.load(value, machine.world.anchor(value))  # how it is placed, which its check compares
    return machine.world.load(
        value, S.asked(machine.world.sources[id(subclassed)], InnerTensor(name)), "a slot of a tensor"
    )


def inner_attribute(machine: Machine, subclassed: Subclassed, name: str) -> Any:
    """An attribute that the class gave a wrapper that was made inside: NotImplemented where it has none."""
    if name in subclassed.__dict__:
        return subclassed.__dict__[name]
    instance = subclassed.plain.tt_wrapper
    slot = isinstance(class_attribute(subclassed.tensor_class, name), types.MemberDescriptorType) and hasattr(
        instance, name
    )
    if not slot and name not in getattr(instance, "__dict__", {}):
        return NotImplemented
    value = getattr(instance, name)
    if isinstance(value, torch.Tensor):
        inner = Inner(name)
        made = machine.graph.record(
            "call_function", inner, (subclassed.plain,), {}, machine.native(inner, subclassed.plain)
        )
        machine.graph.calls -= 1
        value = subclassed.__dict__[name] = as_program_sees(machine, made)
        return value
    if isinstance(value, _CONSTANTS) or type(value) is tuple and all(isinstance(item, _CONSTANTS) for item in value):
        return value
    if is_dtensor(subclassed.tensor_class):
        return machine.world.load(value, machine.world.anchor(value))  # how it is placed, which never changes
    raise Break(
        "tensor_attribute",
        f"the attribute {name} of a {subclassed.tensor_class.__name__} that was made inside is an object",
    )


def write_wrapper(writer: EntryWriter, subclassed: Subclassed) -> str:
    """The entry's expression for a wrapper that was made inside."""
    machine = writer.machine
    if subclassed.unfinished is not None:
        finish(machine, subclassed)
    wrapping, sizes, plain = take_apart(subclassed.plain)
    outer = subclassed.plain
    if outer.requires_grad and not all(t.dtype.is_floating_point for t in plain):
        raise Unrebuildable(
            subclassed, f"a {subclassed.tensor_class.__name__} that requires grad over tensors of integers"
        )
    gradient = _form_of_gradient(machine, subclassed) if outer.requires_grad else None
    unwrap = Unwrap(Crossing(wrapping, gradient))
    parts = machine.native(unwrap, outer)
    machine.graph.record("call_function", unwrap, (outer,), {}, parts)
    machine.graph.calls -= 1
    wrap = Wrap(Crossing(wrapping, gradient), outer.requires_grad)
    _check_made_again(machine, subclassed, wrap, sizes, parts)
    given = ", ".join(writer.value(part) for part in parts)
    name = writer.assign(subclassed, f"{writer.constant(wrap)}({_text(writer, sizes)}, {given})")
    for key, value in subclassed.__dict__.items():  # what the program set or read: the same objects
        slot = isinstance(class_attribute(subclassed.tensor_class, key), types.MemberDescriptorType)
        place = f"{name}.{key}" if slot and key.isidentifier() else f"{name}.__dict__[{key!r}]"
        writer.line(f"{place} = {writer.value(value)}")
    return name


def _check_made_again(machine: Machine, subclassed: Subclassed, wrap: Wrap, sizes: tuple, parts: Any) -> None:
    """A class may refuse to make a tensor of what it said of it. (torch 2.14's DTensor does, where a view has left
    strided parts.)"""
    try:
        machine.native(wrap, sizes, *parts)
    except Raised:
        raise Unrebuildable(
            subclassed, f"a {subclassed.tensor_class.__name__} that its class does not make again of its parts"
        ) from None
    except Break:
        pass  # it looks at values, which the entry has


def _form_of_gradient(machine: Machine, subclassed: Subclassed) -> Wrapping | None:
    """How the gradient of a result will be made, where that is another way than the result's own."""
    try:
        return machine.native(form_of_gradient, subclassed.plain.tt_wrapper)
    except (Break, Raised):  # its class reads values, and there are none yet
        name = subclassed.tensor_class.__name__
        raise Unrebuildable(subclassed, f"a {name} whose gradient will be of another form") from None


def _text(writer: EntryWriter, sizes: Any) -> str:
    if isinstance(sizes, tuple):
        return f"({''.join(_text(writer, size) + ', ' for size in sizes)})"
    return writer.value(sizes)
