"""The schedule: what fusion hands to code generation, the whole of a graph's run as data.

A Schedule is a list of steps in order of execution over named Buffers, with every allocation, reuse and release in
it (the memory plan), and a description of how the graph's outputs are made. Sizes are ints or Exprs over the graph's size symbols.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from ..lowering.ir import Buffer, Kernel

__all__ = ["Alloc", "Free", "Launch", "Extern", "View", "OutputSpec", "Schedule", "Step"]


@dataclass
class Alloc:
    """Make `buffer`: from fresh memory, or in the memory of `reuse` (a dead buffer of at least that many bytes)."""
    buffer: Buffer
    reuse: Buffer | None = None


@dataclass
class Free:
    buffer: Buffer


@dataclass
class Launch:
    """Run a generated kernel on actual arguments.

    Kernels are in normal form: their buffers (`in0`, `out0`, `tmp0` for locals), axes (`i0`, `r0`), accumulators (`acc0`)
    and sizes (`n0`) are formal names, so that repeated layers give equal kernels (`Kernel.key()` is the text that code generation
    may cache by). Element k of `inputs`, `outputs`, `sizes`, `params` is the actual argument for element k of the kernel's list
    of the same name: Buffers of this schedule, Exprs over the graph's size symbols, and names of scalar graph inputs.

    Memory: an actual output may be the very memory of an actual input (a buffer reused in place, or a mutated graph input);
    then, and only then, each element is read at exactly the index that the same iteration writes afterwards. So generated code must not
    mark pointers `restrict` against each other, but needs no other care. Two different outputs never overlap.
    """
    kernel: Kernel
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    params: list[str] = field(default_factory=list)


@dataclass
class Extern:
    """Call torch's own kernel. `args`/`kwargs` are plain Python structures in which a Buffer stands for a tensor and an
    Expr for an int. `outputs` are the buffers that the call makes, in the order of the operator's returns (None: not used).
    With `out_variant` the outputs are allocated before and passed as out= arguments (names in `out_names`)."""
    op: Any                                  # torch._ops.OpOverload
    args: tuple
    kwargs: dict
    outputs: list[Buffer | None]
    out_variant: Any = None
    out_names: tuple[str, ...] = ()
    reason: str = ""                         # why it is not a generated kernel: "matrix product", "no lowering rule", ...
    origin: str = ""
    lines: list[tuple] = field(default_factory=list)


@dataclass
class View:
    """`buffer` is `base` seen with other shape, stride and storage offset (elements, relative to base); no copy."""
    buffer: Buffer
    base: Buffer
    offset: Any = 0


@dataclass
class OutputSpec:
    """How one output of the graph is made.
    kind: "buffer"   value=Buffer (fresh memory; two outputs may name the same buffer: the same tensor object)
          "input"    value=input index: the very object that came in
          "view"     value=(input index | Buffer, shape, stride, offset): a view that must alias
          "replay"   value=(input index | Buffer, fx nodes): a chain of view operators replayed on the real tensor
          "int"      value=int | Expr
          "const"    value=object
    """
    kind: str
    value: Any


Step = Union[Alloc, Free, Launch, Extern, View]


@dataclass
class Schedule:
    steps: list[Step]
    inputs: list[Buffer | Any]               # per graph input: Buffer for tensors, Expr symbol for ints, ("param", name, dtype) for floats
    outputs: list[OutputSpec]
    mutations: list[tuple[int, Buffer]] = field(default_factory=list)   # inputs[i].copy_(buffer) at the end; writes done in place are not listed
    constants: dict[str, Any] = field(default_factory=dict)             # buffer name -> tensor kept by the entry
    symbols: dict[str, tuple[int, str, int]] = field(default_factory=dict)   # size symbol -> (input index, "size" | "stride" | "value", dim)
    hints: dict[str, int] = field(default_factory=dict)
    peak_bytes: Any = 0                      # of temporaries and outputs, at the hints
    unfused: list[tuple[str, str, str]] = field(default_factory=list)   # (node, node, reason): every refusal to fuse
