"""Which of torch's kernels scaled_dot_product_attention may use: process-wide switches that capture and tracing change
and put back.
"""

from __future__ import annotations

import torch

__all__ = ["SWITCHES", "switches", "set_switches"]

# (setter, getter, name of the SDPBackend)
SWITCHES = tuple(
    (getattr(torch._C, f"_set_sdp_use_{name}"), getattr(torch._C, f"_get_{name}_sdp_enabled"), flag)
    for name, flag in (
        ("flash", "FLASH_ATTENTION"),
        ("mem_efficient", "EFFICIENT_ATTENTION"),
        ("math", "MATH"),
        ("cudnn", "CUDNN_ATTENTION"),
        ("overrideable", "OVERRIDEABLE"),
    )
    if hasattr(torch._C, f"_set_sdp_use_{name}") and hasattr(torch._C, f"_get_{name}_sdp_enabled")
)


def switches() -> tuple[bool, ...]:
    """What the switches are now."""
    return tuple(get() for _, get, _ in SWITCHES)


def set_switches(values: tuple[bool, ...]) -> None:
    for (set_, get, _), value in zip(SWITCHES, values):
        if get() != value:
            set_(value)
