"""`with torch.device(...)` in the program: the device on which functions make tensors that are told none.

For torch it is a mode on a stack. Capture leaves the stack as it is and hands such functions the device, as the mode
would. The entry pushes and pops what the program entered and left, where a break lies inside of such a region.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import DeviceContext, _device_constructors

from ..kinds.callables import python_function
from ..machine.signals import Break

if TYPE_CHECKING:
    from ..entry.entry_source import EntryWriter
    from ..machine.machine import Machine

__all__ = ["DeviceRegions"]


class DeviceRegions:
    """The regions that the program is in, other than those that the frame began in."""

    def __init__(self) -> None:
        self.entered: list[torch.device] = []
        self.left = 0  # of those that the frame began in

    def enter(self, device: torch.device) -> torch.device:
        self.entered.append(device)
        return device

    def leave(self) -> None:
        if self.entered:
            self.entered.pop()
        elif isinstance(_mode(self.left), DeviceContext):
            self.left += 1
        else:
            raise Break("unsupported", "the code leaves a region of torch.device that this thread did not enter")

    @property
    def device(self) -> torch.device | None:
        """The device that capture is to name; None: the one that holds anyway."""
        if self.entered:
            return self.entered[-1]
        if not self.left:
            return None
        mode = _mode(self.left)
        if mode is not None and not isinstance(mode, DeviceContext):
            raise Break("unsupported", "the code leaves a region of torch.device inside of another mode")
        return torch.device("cpu") if mode is None else mode.device

    def named(self, fn: Any, kwargs: dict) -> dict:
        """The keywords of a call, with the device."""
        device = self.device
        return (
            kwargs
            if device is None or kwargs.get("device") is not None or fn not in _device_constructors()
            else {**kwargs, "device": device}
        )

    def write(self, writer: EntryWriter) -> None:
        """Leave torch's stack as the program has it here."""
        for _ in range(self.left):
            # (whichever device is asked: the innermost region ends)
            writer.line(f"{writer.value(torch.device('cpu'))}.__exit__(None, None, None)")
        for device in self.entered:
            writer.line(f"{writer.value(device)}.__enter__()")


def _mode(depth: int) -> Any:
    """The mode at a depth of torch's stack, 0 the innermost; None below its end."""
    n = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(n - 1 - depth) if depth < n else None


@python_function(("torch", "get_default_device"))
def get_default_device(machine: Machine) -> torch.device:
    machine.world.state("default_device", machine.initial_state["default_device"])
    device = machine.devices.device
    if device is None:
        return machine.native(torch.get_default_device)
    return device if device.index is not None else machine.native(torch.empty, 0, device=device).device
