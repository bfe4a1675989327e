"""The schedule: what fusion hands to code generation, the whole of a graph's run as data.

A Schedule is a list of steps over named Buffers, in order of execution. Every allocation, reuse and release is in it:
the memory plan. It says, too, how the graph's outputs are made. Sizes are ints or Exprs over the graph's size symbols.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from ..lowering.ir import Buffer, Kernel
from ..lowering.lowered import Extern, OutputSpec, View
from ..ops.collectives import communicates

__all__ = ["Alloc", "Free", "Launch", "Extern", "View", "OutputSpec", "Schedule", "Step", "Template"]


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

    Kernels are in normal form: their buffers (`in0`, `out0`, `tmp0` for locals), axes (`i0`, `r0`), accumulators
    (`acc0`) and sizes (`n0`) are formal names, so that repeated layers give equal kernels (`Kernel.key()` is the text
    that code generation may cache by). Element k of `inputs`, `outputs`, `sizes`, `params` is the actual argument for
    element k of the kernel's list of the same name: Buffers of this schedule, Exprs over the graph's size symbols, and
    names of scalar graph inputs.

    Memory: an actual output may be the very memory of an actual input (a buffer reused in place, or a mutated graph
    input). Then, and only then, each element is read at exactly the index that the same iteration writes afterwards. So
    generated code must not mark pointers `restrict` against each other, but needs no other care. Two different outputs
    never overlap.
    """

    kernel: Kernel
    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    params: list[str] = field(default_factory=list)


@dataclass
class Template(Extern):
    """A step that takes an Extern's place until kernels are built: `launch`, of a kernel with a template. `args` are
    what it reads, `op` is the operator that it stands for."""

    launch: Launch | None = None


Step = Union[Alloc, Free, Launch, Extern, View]


@dataclass
class Schedule:
    steps: list[Step]
    # per graph input: Buffer for tensors, Expr symbol for ints, ("param", name, dtype) for floats
    inputs: list[Buffer | Any]
    outputs: list[OutputSpec]
    # inputs[i].copy_(buffer) at the end; writes done in place are not listed
    mutations: list[tuple[int, Buffer]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)  # buffer name -> tensor kept by the entry
    # size symbol -> (input index, "size" | "stride" | "value", dim)
    symbols: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    peak_bytes: Any = 0  # of temporaries and outputs, at the hints
    unfused: list[tuple[str, str, str]] = field(default_factory=list)  # (node, node, reason): every refusal to fuse
    written: list[int] = field(default_factory=list)  # inputs that kernels write in place (by a View of them)
    counted: list[int] = field(default_factory=list)  # inputs whose versions grow by one for each time they are listed
    uncounted: list[int] = field(default_factory=list)  # inputs that are written without a change of version
    given: list[Buffer] = field(default_factory=list)  # inputs whose memory is free after their last use

    def changed_results(self) -> dict[int, int]:
        """Positions of results whose memory the program has changed after making it -> how often. One for each piece of
        memory.
        """
        seen: set[int] = set()
        out = {}
        for k, output in enumerate(self.outputs):
            memory = output.value[0] if output.kind == "view" else output.value
            if output.changes and id(memory) not in seen:
                seen.add(id(memory))
                out[k] = output.changes
        return out

    def first_lasting(self) -> Step | None:
        """The first step that stays done when a later one raises: a collective, or a kernel that writes an input in
        place where something that may raise follows.
        """
        inputs = {id(x) for x in self.inputs}
        views = (
            {id(step.buffer) for step in self.steps if isinstance(step, View) and id(step.base) in inputs}
            if self.written
            else ()
        )
        for at, step in enumerate(self.steps):
            if isinstance(step, Extern) and communicates(step.op):
                return step
            if isinstance(step, Launch) and any(id(output) in views for output in step.outputs):
                follow = self.steps[at:]
                return (
                    step
                    if self.mutations
                    or any(isinstance(s, Extern) or isinstance(s, Launch) and s.kernel.checks for s in follow)
                    else None
                )
        return None
