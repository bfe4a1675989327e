"""What printers give: a kernel as the text of one file, and how it is called. (The printers are imported where one
prints.)"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Sequence

import torch

from ..lowering.ir import Buffer
from ..symbolic.expr import Expr

__all__ = ["Function", "KernelSource", "NUMBER", "Scratch", "TritonSource", "Walk"]

NUMBER = "number_"  # what the arguments that stand for numbers are called, and a count
_IN_CODE = "tc_kernel"


@dataclass
class KernelSource:
    """One kernel's file. `phases`: symbols to run one after the other, each over all of its items; `layout` tells how
    the loops were chosen, for the report.

    `text` is for readers: it names the kernel and says where it comes from. `code` is what is compiled: the same
    without that, so that equal loops are one library wherever they stand. `symbol(name)` is what a function of `text`
    is called in `code`."""

    name: str
    text: str
    phases: list[str]
    plan_symbol: str
    checks: list[str]
    choices: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # variable of the text -> aten node
    numbers: tuple[int, ...] = ()  # constants that the code takes as arguments, before the kernel's sizes

    @property
    def code(self) -> str:
        lines = self.text.split("\n")
        first = next((n for n, line in enumerate(lines) if not line.startswith("//")), 0)
        return re.sub(rf"\b{re.escape(self.name)}(?=\b|_)", _IN_CODE, "\n".join(lines[first:]))

    def symbol(self, name: str) -> str:
        return _IN_CODE + name[len(self.name) :]


@dataclass(frozen=True)
class Scratch:
    """Memory for partial results, one element per row and piece."""

    name: str
    dtype: torch.dtype
    numel: Expr


@dataclass(frozen=True)
class Walk:
    """A matrix as the copy engine goes through it: lines of `length` neighbours, `lines` of them `stride` elements
    apart, from `offset` on. `box`: what one copy takes, neighbours and lines."""

    buffer: Buffer
    offset: int
    length: int
    lines: int
    stride: int
    box: tuple[int, int]


@dataclass
class Function:
    """One launch. `arguments`: (name, Triton type) in order; `grid`: number of programs over the kernel's sizes;
    `constants`: values of the constexpr arguments."""

    name: str
    arguments: list[tuple[str, str]]
    constants: dict[str, int]
    grid: Expr
    warps: int
    stages: int

    @property
    def head(self) -> str:
        """The line that it begins with."""
        names = [n for n, _ in self.arguments] + [f"{constant}: tl.constexpr" for constant in self.constants]
        return f"def {self.name}({', '.join(names)}):"


@dataclass
class TritonSource:
    """One kernel's file, in Triton's Python or in CUDA C++. `asserts`: whether it checks indices on the device;
    `limits`: expressions that must stay below 2^31 for its 32-bit indices (empty where that is certain, or indices have
    64 bits); `fuse_multiply_add` as eager does not."""

    name: str
    text: str
    functions: list[Function]
    scratch: list[Scratch] = field(default_factory=list)
    choices: dict[str, Any] = field(default_factory=dict)
    asserts: bool = False
    limits: list[Expr] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # variable of the text -> aten node
    language: str = "triton"  # or "cuda": C++ of ../cuda, with `walks` as its last arguments
    walks: Sequence[Any] = ()  # cuda.product.Walk: how the copy engine goes through buffers
    numbers: tuple[int, ...] = ()  # what the arguments stand for that the text leaves open (open_numbers.py)
    shared: int = 0  # bytes of shared memory that CUDA C++ asks for

    @property
    def phases(self) -> list[str]:
        return [function.name for function in self.functions]
