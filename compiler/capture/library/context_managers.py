"""Torch's context managers that are not plain Python: sdpa_kernel, inference_mode, switches for tensor subclasses.

no_grad, enable_grad, set_grad_enabled and autocast are Python over native switches (builtin_calls.py), and are
interpreted as what they are.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch

from ...graph.attention_switches import SWITCHES, set_switches, switches
from ...guards.state import flag_name, read_field
from ..kinds.callables import FUNCTIONS, cls, function, python_function
from ..machine.signals import Break, Raised
from ..machine.stack_values import MISSING

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__ = ["set_switches", "switches"]


def _set_switch(machine: Machine, value: Any, *, setter: Any, getter: Any) -> None:
    """Changed for real while capture goes on (it is put back), and in the graph for the nodes that follow."""
    machine.flags_before.setdefault(flag_name(getter, ()), getter())
    machine.state_changed = True
    machine.native(setter, machine.truth(value))
    machine.graph.record_state(setter, (machine.truth(value),))


for _setter, _getter in (
    *((s, g) for s, g, _ in SWITCHES),
    (torch._C._set_fwd_grad_enabled, torch._C._is_fwd_grad_enabled),
):
    FUNCTIONS[_setter] = functools.partial(_set_switch, setter=_setter, getter=_getter)


class NoContext(contextlib.nullcontext, contextlib.ContextDecorator):
    """A context that says nothing to a graph, as a decorator, too."""


@cls(torch.autograd.profiler.record_function)
def record_function_(machine: Machine, /, *args: Any, **kwargs: Any) -> Any:
    return machine.world.create(NoContext())


class SdpaKernels(contextlib.ContextDecorator):
    """sdpa_kernel(...) made inside: interpreted like any context manager, and made again where a break lies inside of
    it.
    """

    def __init__(self, wanted: tuple[bool, ...]):
        self.wanted = wanted
        self.before: tuple[bool, ...] = ()

    def __enter__(self) -> None:
        self.before = tuple([get() for _, get, _ in SWITCHES])
        for (set_, _, _), value in zip(SWITCHES, self.wanted):
            set_(value)

    def __exit__(self, *exc: Any) -> None:
        for (set_, _, _), value in zip(SWITCHES, self.before):
            set_(value)


@python_function(("torch.nn.attention", "sdpa_kernel"))
def sdpa_kernel_(machine: Machine, backends: Any, set_priority: bool = False) -> Any:
    from torch.nn.attention import SDPBackend

    wanted = list(machine.iterate(backends)) if not isinstance(backends, SDPBackend) else [backends]
    if machine.truth(set_priority):
        raise Break("unsupported", "sdpa_kernel with set_priority=True changes an order that a graph cannot hold")
    if not all(isinstance(b, SDPBackend) for b in wanted):
        raise Raised(AssertionError("Backend must be an instance of SDPBackend or a list of SDPBackend instances"))
    return machine.world.create(
        SdpaKernels(tuple(any(b == getattr(SDPBackend, flag, None) for b in wanted) for _, _, flag in SWITCHES))
    )


_HOOKS = torch._C._autograd


@function(_HOOKS._saved_tensors_hooks_get_disabled_error_message)
def why_hooks_are_refused(machine: Machine) -> Any:
    """Why hooks for saved tensors are refused here, or None: the words are read at the beginning, and followed from
    there.
    """
    if machine.hooks_refused is MISSING:
        get = _HOOKS._saved_tensors_hooks_get_disabled_error_message
        machine.hooks_refused = get()
        machine.world.state(flag_name(get, ()), machine.hooks_refused)
    return machine.hooks_refused


@function(_HOOKS._saved_tensors_hooks_disable)
def refuse_hooks(machine: Machine, message: str, *args: Any) -> None:
    """torch.autograd.graph.disable_saved_tensors_hooks. Nothing in a graph puts such hooks: an effect of the entry."""
    why_hooks_are_refused(machine)
    hooks = "saved_tensor_hooks"
    machine.world.state(hooks, read_field(hooks))
    if read_field(hooks):
        raise Break("unsupported", "hooks for saved tensors are disabled while some are set")
    machine.hooks_refused = message
    machine.effects.call(_HOOKS._saved_tensors_hooks_disable, [message, *args], {})


@function(_HOOKS._saved_tensors_hooks_enable)
def allow_hooks(machine: Machine) -> None:
    machine.hooks_refused = None
    machine.effects.call(_HOOKS._saved_tensors_hooks_enable, [], {})


@cls(torch._C._InferenceMode)
def inference_mode_(machine: Machine, *args: Any) -> Any:
    """What torch.inference_mode() enters. It changes what tensors are, not what operators compute: what a graph gives
    back is made where the graph is called."""
    raise Break("inference_mode")


@cls(torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction)
def no_subclass_functions(machine: Machine) -> Any:
    """Plain tensors know no such functions: what it switches is the interpreter's own state."""
    return machine.world.create(NoSubclassFunctions())


def _switch(off: bool) -> bool:
    """Called by interpreted code alone: what is done is the handler below."""
    raise NotImplementedError


@python_function((__name__, "_switch"))
def _switch_(machine: Machine, off: Any) -> bool:
    before, machine.functions_off = machine.functions_off, machine.truth(off)
    return before


class NoSubclassFunctions:
    """DisableTorchFunctionSubclass made inside: interpreted. A break inside of it is none of capture's: the frame runs
    as it is.
    """

    def __init__(self) -> None:
        self.before = False

    def __enter__(self) -> None:
        self.before = _switch(True)

    def __exit__(self, *exc: Any) -> None:
        _switch(self.before)
