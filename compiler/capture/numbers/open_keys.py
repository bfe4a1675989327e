"""Dicts that are written to under keys that vary: `log[i] = loss`, `history[f"epoch {i}"] = loss`.

The entry makes the key when it runs, and what was written is done then. Who reads the dict fixes the keys first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .late_text import LateText, hashed

if TYPE_CHECKING:
    from ..machine.shadow import Shadow

__all__ = ["is_open", "settle_keys"]


def is_open(key: Any) -> bool:
    return type(key) in (torch.SymInt, LateText)


def settle_keys(shadow: Shadow | None) -> None:
    """Fix the keys under which a container was written to."""
    for name, args in shadow.blind if shadow is not None else ():
        if name == "__setitem__" and is_open(args[0]):
            args[0] = hashed(args[0])
