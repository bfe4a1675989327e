"""torch.autograd.forward_ad: a level is entered and left in the graph, and operators between carry tangents as they do
in eager.

The level is entered while capture goes on, too: torch's own formulas find their tangents on TraceTensors. A break
inside of it goes back to where it was entered, so that a graph holds a level whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from ..tensors import tensor_calls
from ..kinds.callables import python_function
from ..kinds.calls import call_python
from ..machine.signals import Break
from ...graph.tensor import TraceTensor

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_HOME = "torch.autograd.forward_ad"


def _level_around(machine: Machine) -> bool:
    """Whether a level was entered outside: relied on."""
    return machine.getattr(forward_ad, "_current_level") != -1


@python_function((_HOME, "enter_dual_level"))
def enter_dual_level(machine: Machine) -> int:
    if machine.dual_level is not None or _level_around(machine):
        torch._C._exit_dual_level(machine.native(torch._C._enter_dual_level))  # raises: there is but one level
        raise Break("forward_ad", "a level of forward gradients is entered inside of another")
    if len(machine.graph.scopes) > 1:
        raise Break("forward_ad", "a level of forward gradients is entered inside of the body of an operator")
    forward_ad._maybe_load_decompositions()
    machine.dual_level = machine.root_index
    machine.state_changed = True
    machine.native(torch._C._enter_dual_level)
    machine.graph.record_state(torch._C._enter_dual_level, ())
    return 0


@python_function((_HOME, "exit_dual_level"))
def exit_dual_level(machine: Machine, *, level: int | None = None) -> None:
    if machine.dual_level is None or level not in (None, 0):
        raise Break("forward_ad", "the code leaves a level of forward gradients that was entered outside")
    machine.dual_level = None
    torch._C._exit_dual_level(0)
    machine.graph.record_state(torch._C._exit_dual_level, (0,))


@python_function((_HOME, "make_dual"))
def make_dual(machine: Machine, tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
    if machine.dual_level is None and _level_around(machine):
        raise Break("forward_ad", "a tensor gets a tangent at a level that was entered outside")
    fits = all(type(t) is TraceTensor and (t.is_floating_point() or t.is_complex()) for t in (tensor, tangent))
    if machine.dual_level is None or level not in (None, 0) or not fits:
        return call_python(
            machine,
            forward_ad.make_dual,
            [tensor, tangent],
            {"level": 0 if level is None and machine.dual_level is not None else level},
        )
    make = torch._VF._make_dual  # type: ignore[attr-defined]
    return tensor_calls.call_function(machine, make, [tensor, tangent], {"level": 0})


@python_function((_HOME, "unpack_dual"))
def unpack_dual(machine: Machine, tensor: Any, *, level: int | None = None) -> Any:
    if machine.dual_level is None or level not in (None, 0) or type(tensor) is not TraceTensor:
        return call_python(machine, forward_ad.unpack_dual, [tensor], {"level": level})
    unpack = torch._VF._unpack_dual  # type: ignore[attr-defined]
    return forward_ad.UnpackedDualTensor(*tensor_calls.call_function(machine, unpack, [tensor], {"level": 0}))
