"""Whether the C launcher runs with this torch. In: `native`. Out: `native_ready`."""

from __future__ import annotations

from typing import Any

import torch

from .. import events
from . import native, say_missing

__all__ = ["native_ready"]

_native_state: list[Any] = []


def native_ready() -> bool:
    """Whether the C launcher can be used with this torch; says why not, once."""
    if native is None:
        say_missing()
        return False
    if not _native_state:
        sample = torch.empty(3)
        why = native.launcher_setup(sample, torch.Tensor, sample._cdata, sample.data_ptr())
        _native_state.append(why)
        if why is not None:
            events.fallback("launcher", f"{why}; kernels are called through ctypes")
    return _native_state[0] is None
