"""What the graph stage takes: a torch-level graph, as capture makes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.fx

from ..guards.source import Source

__all__ = ["GraphInput", "CapturedGraph"]


@dataclass
class GraphInput:
    """One placeholder of a captured graph, in order."""

    name: str  # placeholder name in the fx graph
    source: Source | None  # where the entry loads it; None for values that the entry computes
    kind: str  # "tensor" | "int" (a size symbol's value) | "float"
    static: bool = False  # a parameter or buffer reached by a watched path: the entry may keep it
    spec: Any = None  # TensorSpec for tensors
    given: bool = False  # nobody else holds it as a rule: its memory is free after its last use


@dataclass
class CapturedGraph:
    """A torch-level graph. `graph_module(*inputs)` returns a tuple; every node has meta:
    val     the TraceTensor(s) or SymInt(s) that stand for its value
    stack   list of (file, line, col, end_line, end_col, function) with the user's innermost frame last
    module  dotted path of the nn.Module whose forward ran the node, "" at the root
    """

    graph_module: torch.fx.GraphModule
    inputs: list[GraphInput]
    env: Any  # symbolic.ShapeEnv: the symbols, their hints and the predicates guarded on
    name: str = "graph"
    example_inputs: list = field(default_factory=list)  # the real values of this first call, same order as inputs
    reads_nodes: bool = False  # the program looks at the autograd nodes of results: they must be eager's
