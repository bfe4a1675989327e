"""DTensor's ways in and out, and from one placement to another: `from_local`, `to_local`, `redistribute`.

Behind each stands a Function of torch's. It becomes one node (graph/wrappers/class_functions.py), which relies on the
mesh and the placements as the objects that they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....graph.tensor import TraceTensor
from ....graph.wrappers import LibraryFunction
from ...machine.signals import Break
from ...machine.stack_values import ATOMS, is_placement
from ...tensors.tensor_subclasses import Subclassed
from ...tensors.wrapper_values import as_program_sees, finish, is_of_wrapper

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__ = ["apply_of_library", "runs_as_it_is"]

_LIBRARY = "torch.distributed.tensor."


def runs_as_it_is(cls: type) -> bool:
    """Whether a Function is one of DTensor's."""
    return str(getattr(cls, "__module__", "")).startswith(_LIBRARY)


def apply_of_library(machine: Machine, cls: type, args: tuple) -> Any:
    """cls.apply(*args) as one node."""
    given, at, tensors = list(args), [], []
    for i, value in enumerate(args):
        if type(value) is Subclassed and is_of_wrapper(value):
            if value.unfinished is not None:
                finish(machine, value)
            value = value.plain
        if type(value) is TraceTensor:
            at.append(i)
            tensors.append(value)
            given[i] = None
        else:
            _rely_on(machine, value)
    call = LibraryFunction(cls, tuple(given), tuple(at))
    return as_program_sees(
        machine, machine.graph.record("call_function", call, tuple(tensors), {}, machine.native(call, *tensors))
    )


def _rely_on(machine: Machine, value: Any) -> None:
    """What is no tensor: numbers and placements, which are guarded as they are; other objects of the library by their
    identity (none of them changes).
    """
    if type(value) in ATOMS or value is None or is_placement(type(value)):
        return
    if isinstance(value, (tuple, list)):
        for item in value:
            _rely_on(machine, item)
    elif type(value) is dict:
        for item in value.values():
            _rely_on(machine, item)
    elif (source := machine.world.source_of(value)) is not None:
        machine.world.guard(source, "WEAK_ID", value, "a mesh, or how a DTensor is placed on it")
    elif not str(getattr(type(value), "__module__", "")).startswith("torch."):
        raise Break("unsupported", f"a DTensor is made with a {type(value).__name__}")
