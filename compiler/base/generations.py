"""What depends on the generation of an NVIDIA GPU, in one table, with the reason: compute capabilities are compared
nowhere else.

A generation is a compute capability as one number: 90 for 9.0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["GENERATIONS", "Generations", "generation_of", "has", "here"]

NEWEST = 1 << 10


class Generations(NamedTuple):
    first: int
    last: int
    why: str


GENERATIONS: dict[str, Generations] = {
    "generated kernels": Generations(70, NEWEST, "what Triton compiles for"),
    "bfloat16 instructions": Generations(80, NEWEST, "older ones round to bfloat16 by bits"),
    "floats of eight bits": Generations(89, NEWEST, "older ones have no conversions: they are made of integers"),
    "early launch": Generations(90, NEWEST, "a kernel waits itself for the one before: griddepcontrol"),
    "products in CUDA C++": Generations(90, 90, "wgmma and the tensor memory accelerator as Hopper has them"),
    "cuDNN's attention": Generations(90, NEWEST, "the library's fastest there, as torch's own choice is"),
    "attention with dropout of ours": Generations(90, 99, "was measured there, and nowhere else"),
    "groups read on the device": Generations(90, 109, "a kernel reads where groups end; else the host does"),
}


def has(what: str, generation: int) -> bool:
    """Whether a generation has a row of the table."""
    row = GENERATIONS[what]
    return row.first <= generation <= row.last


def generation_of(index: int | None = None) -> int:
    major, minor = torch.cuda.get_device_capability(*(() if index is None else (index,)))
    return 10 * major + minor


def here(what: str, index: int) -> bool:
    """Whether the GPU of this number is there, NVIDIA's, and has a row of the table."""
    return torch.version.hip is None and torch.cuda.is_available() and has(what, generation_of(index))
