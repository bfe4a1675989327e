"""Attributes of tensors: read as metadata or as nodes of the graph, written as effects."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Callable


from ...guards import source as S
from ..kinds import choices
from .patched_torch import bound_attribute, patched_attribute
from ..kinds.lookups import class_attribute
from ..machine.signals import Break, Raised
from . import tensor_calls
from .gradients import set_grad
from ..library.operator_warnings import quietly, warn_of_gradient
from ..library.watched_warnings import refuse_watched_operator
from ...graph.tensor import TraceTensor
from ..machine.stack_values import MISSING

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["get_attribute", "set_attribute"]

_METADATA = frozenset(
    """shape dtype device requires_grad ndim is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_sparse_csr
    is_quantized is_nested itemsize nbytes is_mkldnn names is_vulkan is_ipu is_mtia is_maia is_xla output_nr
    retains_grad""".split()
)
_GRAPH_PROPERTIES = frozenset(("T", "mT", "H", "mH", "real", "imag"))


def get_attribute(machine: Machine, tensor: TraceTensor, name: str) -> Any:
    world = machine.world
    if machine.choices:
        choices.check_attribute(machine, tensor, name)
    cls = world.type_of(tensor)
    raw = patched_attribute(cls, name)
    if raw is not MISSING and (
        isinstance(raw, property) or name not in getattr(world.reals.get(id(tensor)), "__dict__", ())
    ):
        return bound_attribute(machine, tensor, cls, name, raw)
    if name in _METADATA:
        return machine.native(getattr, tensor, name)
    if name in _GRAPH_PROPERTIES:
        if world.pending:
            refuse_watched_operator(machine)
        result = machine.native(tensor_calls.from_the_program(machine), getattr, tensor, name)
        return machine.graph.record("call_function", getattr, (tensor, name), {}, result)
    if name == "__class__":
        return world.type_of(tensor)
    if name == "data":  # as detach(), but writes are not counted as changes of the tensor
        machine.graph.apart.append(machine.native(getattr, tensor, "data"))
        return machine.graph.record("call_function", getattr, (tensor, "data"), {}, machine.graph.apart[-1])
    written = world.pending.get(id(tensor))
    if written is not None and name in written:
        return written[name]
    real = world.reals.get(id(tensor))
    source = world.source_of(real) if real is not None else None
    if name in _OF_AUTOGRAD:
        return _OF_AUTOGRAD[name](machine, tensor, real, source)
    if name == "_version" and real is None and not tensor.is_inference():  # that of an input differs from call to call
        if tensor.tt_storage.own_writes:
            raise Break("tensor_metadata", "the version of a tensor that an operator of the program's wrote to is read")
        return machine.native(getattr, tensor, "_version")
    if name in ("_version", "_base", "_backward_hooks", "_cdata", "volatile"):
        raise Break("tensor_metadata")
    found = class_attribute(cls, name) if raw is MISSING else MISSING
    if found is not MISSING:
        if isinstance(found, types.GetSetDescriptorType) or isinstance(found, property):
            raise Break("tensor_metadata", f"the property {name} of a tensor is read")
        return machine.native(getattr, tensor, name)
    if real is not None and source is not None:
        if name in real.__dict__:
            return world.load(real.__dict__[name], S.attr(source, name), "attribute of a tensor")
        world.guard(source, "HASATTR", (name, False), "missing attribute")
    raise Raised(AttributeError(f"'{cls.__name__}' object has no attribute '{name}'", name=name, obj=tensor))


def _grad(machine: Machine, tensor: TraceTensor, real: Any, source: Any) -> Any:
    """The gradient of a tensor from outside; what is made inside has none."""
    if real is None:
        warn_of_gradient(machine, tensor)
        return None
    gradient = real.grad if tensor.is_leaf or real.retains_grad else quietly(getattr, real, "grad")
    return machine.world.load(gradient, S.attr(source, "grad"), "gradient")


def _is_leaf(machine: Machine, tensor: TraceTensor, real: Any, source: Any) -> Any:
    if real is None:
        return tensor.is_leaf or bool(tensor.__dict__.get("_is_param"))  # a parameter that FSDP2 has gathered
    return machine.world.load(real.is_leaf, S.attr(source, "is_leaf"))


def _grad_fn(machine: Machine, tensor: TraceTensor, real: Any, source: Any) -> None:
    """None where it is known that there is none."""
    if not (real is None and tensor.is_leaf or not tensor.requires_grad):
        raise Break("tensor_metadata", "the autograd node of a tensor is read")


_OF_AUTOGRAD: dict[str, Callable[[Machine, TraceTensor, Any, Any], Any]] = {
    "grad": _grad,
    "_grad": _grad,
    "is_leaf": _is_leaf,
    "grad_fn": _grad_fn,
}


def set_attribute(machine: Machine, tensor: TraceTensor, name: str, value: Any) -> None:
    world = machine.world
    if id(tensor) in machine.choices:
        raise Break("choice", "an attribute is set on what max() or min() chose by values of tensors")
    if name == "requires_grad" and type(value) is bool:
        tensor_calls.call_method(machine, tensor, "requires_grad_", [value], {})
        return
    real = world.reals.get(id(tensor))
    if (
        name == "grad"
        and (real is not None or "grad" in world.pending.get(id(tensor), ()))
        and (value is None or _fits_as_gradient(tensor, value))
    ):
        set_grad(machine, tensor, value)
        return
    if name == "data":
        raise Break("tensor_data")
    if (
        name in ("grad", "requires_grad", "names")
        or name in _METADATA
        or class_attribute(world.type_of(tensor), name) is not MISSING
    ):
        raise Break("tensor_attribute", f"the attribute {name} of a tensor is set")
    if real is None and len(machine.graph.scopes) > 1:
        raise Break("tensor_attribute", f"an attribute {name} is put on a tensor made inside of an operator's body")
    world.pending.setdefault(id(tensor), {})[name] = value
    if real is not None:
        machine.effects.set_attribute(real, name, value)
    else:  # the entry puts it on the tensor where that leaves the captured part
        world.keep.append(tensor)


def _fits_as_gradient(tensor: TraceTensor, value: Any) -> bool:
    """Whether torch takes a tensor as the gradient of another without a word."""
    return (
        isinstance(value, TraceTensor)
        and tensor.requires_grad
        and (value.shape, value.dtype, value.device) == (tensor.shape, tensor.dtype, tensor.device)
        and value.grad_fn is None
        and value is not tensor
    )


# --- factories
