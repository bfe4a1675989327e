"""What of the caller's autograd state must not reach the tensors that the compiler traces with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

import torch

from ..base import forks
from ..guards.state import hidden_hooks

__all__ = ["tracing_modes", "without_saved_tensor_hooks"]


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Saved-tensor hooks of the user's (activation checkpointing, offloading) are for the compiled graph's own saved
    tensors: they are not called for those of traced tensors."""
    hooks = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    before, hidden_hooks.any = getattr(hidden_hooks, "any", False), bool(hooks) or getattr(hidden_hooks, "any", False)
    try:
        yield
    finally:
        hidden_hooks.any = before
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def tracing_modes() -> Iterator[None]:
    """Without saved-tensor hooks and without anomaly checks, which would look at the data of traced gradients."""
    anomaly, check = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    with without_saved_tensor_hooks():
        if not anomaly:
            yield
            return
        with forks.changed(lambda: torch.set_anomaly_enabled(True, check)):
            torch.set_anomaly_enabled(False)
            yield
