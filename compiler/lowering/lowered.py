"""What lowering hands to fusion: loop nests, calls of torch's own kernels and views, in order, over named buffers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Union

from ..ops.functional_forms import shown_name
from .ir import Buffer, LoopNest

__all__ = ["Param", "Extern", "View", "OutputSpec", "LoweredGraph", "LoweredStep"]


@dataclass(frozen=True)
class Param:
    """A scalar graph input (a Python float) by name, inside an extern call's arguments."""

    name: str


@dataclass
class Extern:
    """Call torch's own kernel. `args`/`kwargs` are plain Python structures in which a Buffer stands for a tensor and an
    Expr for an int, a Param for a float input. `outputs` are the buffers that the call makes, in the order of the
    operator's returns (None: not used). With `out_variant` the outputs are allocated before and passed as out=
    arguments (names in `out_names`). Where kwargs hold one of these names, the output begins as that buffer's values
    (`begins_as`): the memory plan gives it that buffer's memory, or a copy."""

    op: Any  # torch._ops.OpOverload
    args: tuple
    kwargs: dict
    outputs: list[Buffer | None]
    out_variant: Any = None
    out_names: tuple[str, ...] = ()
    reason: str = ""  # why it is not a generated kernel: "matrix product", "no lowering rule", ...
    origin: str = ""
    lines: list[tuple] = field(default_factory=list)

    def shown_name(self) -> str:
        """The operator's name for reports."""
        return shown_name(self.op)

    def begins_as(self) -> dict[Buffer, Buffer]:
        """Output -> the buffer whose values it holds before the call."""
        pairs = zip(self.out_names, self.outputs)
        return {b: self.kwargs[name] for name, b in pairs if b is not None and name in self.kwargs}


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
          "view"     value=(input index | Buffer, shape, stride, offset): a view that must alias; `dtype` where it is
                     not the base's
          "int"      value=int | Expr
          "const"    value=object
    changes, detached: as in GraphOutput
    """

    kind: str
    value: Any
    dtype: Any = None
    changes: int = 0
    detached: bool | None = False


LoweredStep = Union[LoopNest, Extern, View]


@dataclass
class LoweredGraph:
    """A graph as loop nests. Each buffer is written by one nest or extern call (by several only where `cat` stores its
    pieces), before anything reads it. Prints as pseudo-code."""

    steps: list[LoweredStep]
    inputs: list[Any]  # as Schedule.inputs
    outputs: list[OutputSpec]
    mutations: list[tuple[int, Buffer]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    symbols: dict[str, tuple[int, str, int]] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)  # operator -> number of calls without a lowering rule

    writes: dict[int, int] = field(default_factory=dict)  # as AtenGraph.writes
    given: list[Buffer] = field(default_factory=list)  # inputs whose memory is free after their last use
