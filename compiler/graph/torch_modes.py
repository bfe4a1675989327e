"""The modes of torch that programs switch on and off around operators: gradients, autocast, kernels of attention."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterator

import torch

from .attention_switches import set_switches, switches

__all__ = ["TorchModes", "autocast_off"]


class TorchModes:
    """The modes as they are when this is made; `restore`, or leaving a `with` of it, puts them back."""

    def __init__(self) -> None:
        self.grad = torch._C.is_grad_enabled()
        self.cache = torch.is_autocast_cache_enabled()
        self.autocast = [(d, torch._C.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")]
        self.nesting = autocast_nesting()
        self.switches = switches()
        self.dual, self.tangents = dual_level_entered(), torch._C._is_fwd_grad_enabled()

    def restore(self) -> None:
        """Switch everything back."""
        torch._C._set_grad_enabled(self.grad)
        if not self.dual and dual_level_entered():
            torch._C._exit_dual_level(0)
        torch._C._set_fwd_grad_enabled(self.tangents)
        set_switches(self.switches)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        inside = autocast_nesting()
        for _ in range(inside - self.nesting):
            torch.autocast_decrement_nesting()
        for _ in range(self.nesting - inside):
            torch.autocast_increment_nesting()
        if self.nesting == 0 and inside:
            torch.clear_autocast_cache()  # as leaving the outermost region does

    def __enter__(self) -> TorchModes:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.restore()


@contextmanager
def autocast_off() -> Iterator[None]:
    """As outside of all autocast regions."""
    before = [d for d in ("cpu", "cuda") if torch._C.is_autocast_enabled(d)]
    for d in before:
        torch.set_autocast_enabled(d, False)
    try:
        yield
    finally:
        for d in before:
            torch.set_autocast_enabled(d, True)


def dual_level_entered() -> bool:
    """Whether a level of forward gradients is entered; torch has but one."""
    try:
        torch._C._exit_dual_level(torch._C._enter_dual_level())
    except RuntimeError:
        return True
    return False


def autocast_nesting() -> int:
    """How many autocast regions are entered."""
    n = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return n
