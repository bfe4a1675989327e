"""AtenGraph: the functional graph that the graph stage hands to lowering."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Iterator

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_output
from ..ops.functional_forms import Form
from ..symbolic.env import ShapeEnv
from .meta.core import TensorMeta

__all__ = ["AtenGraph", "GraphOutput", "OwnWrite"]


@dataclass(frozen=True)
class OwnWrite:
    """An operator of the program's own writes its parameter `name`: the memory of an input, or of a result, by its
    position. The counts beside it (`AtenGraph.writes`, `GraphOutput.changes`) take it for one write."""

    of_input: bool
    position: int
    form: Form
    name: str


@dataclass
class GraphOutput:
    """How one value that the captured graph returns is made (OutputSpec of fusion/schedule.py, over fx nodes).

    kind     value in `plan`                        value in `outputs`
    buffer   slot                                   node: fresh memory laid out as `meta` says; two outputs with the
                                                    same node
                                                    are the same tensor object
    input    input index                            the same: the very object that came in (its mutation, if any,
                                                    included)
    view     ("input" | "node", index | slot)       (input index | node, shape, stride, offset): a view of that tensor's
                                                    memory; the offset, in elements, counts from the start of that
                                                    tensor
    int      int | Expr                             the same
    const    any other object (None, a number)      the same

    A *slot* is an index into the results, the arguments of the fx output node.

    `changes`: how often the program changes a slot's memory after making it. Its version is to be that number.
    `detached`: whether a view is none to autograd, as what detach() gives; None: nobody asks.
    """

    kind: str
    value: Any
    meta: TensorMeta | None = None
    changes: int = 0
    detached: bool | None = False


@dataclass
class AtenGraph:
    """A functional graph of closed-set operators (`ops/closed_set.py`).

    graph      torch.fx.Graph: placeholders in the order of `inputs`, get_attr nodes that name `constants`,
               call_function nodes on
               OpOverloads (and operator.getitem on nodes with several results), one output whose argument is the tuple
               of *results*: fresh output values, bases of output views, new values of mutated inputs. node.meta: "val"
               TensorMeta | tuple of TensorMeta | int/Expr (placeholders of sizes); "stack"; "module". `aten.clone`
               makes fresh memory with exactly the strides of its "val". A result is laid out as its "val" says; other
               values may be laid out in any way.
    inputs     the captured graph's GraphInputs
    plan       one GraphOutput per returned value, naming slots (passes may replace nodes); `outputs` is the plan with
               nodes
    mutations  [(input index, slot)]: after the run, inputs[index].copy_(results[slot])
    env        ShapeEnv with the size symbols' hints and ranges
    no_overlap input indices whose memory was assumed disjoint from every other input's (mutated ones): needs a guard
    """

    graph: torch.fx.Graph
    inputs: list
    plan: list[GraphOutput]
    mutation_slots: list[tuple[int, int]] = field(default_factory=list)
    env: ShapeEnv | None = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    no_overlap: list[int] = field(default_factory=list)
    name: str = "graph"
    generated_products: frozenset[str] = frozenset()  # nodes whose product a search found faster as generated code
    # input index -> how often the program changes it: so much its version grows (0: through `x.data` alone)
    writes: dict[int, int] = field(default_factory=dict)
    ahead: Any = None  # stages.Ahead: where it is generated already, before it is asked for
    own_writes: tuple[OwnWrite, ...] = ()
    whole: AtenGraph | None = (
        None  # where what parameters decide has been taken out (option `freezing`): the graph as it was, for checks
    )

    def copy(self) -> AtenGraph:
        """The same graph over nodes of its own."""
        graph, new = torch.fx.Graph(), {}
        for node in self.graph.nodes:
            new[node] = graph.node_copy(node, new.__getitem__)
        return replace(self, graph=graph, inputs=list(self.inputs), constants=dict(self.constants))

    @property
    def results(self) -> tuple[torch.fx.Node, ...]:
        """The nodes that the output node names, by slot."""
        return self.graph.output_node().args[0]

    @property
    def outputs(self) -> list[GraphOutput]:
        """The plan with nodes in the place of slots."""
        results = self.results
        out = []
        for output in self.plan:
            if output.kind == "buffer":
                output = replace(output, value=results[output.value])
            elif output.kind == "view":
                kind, i = output.value
                meta = output.meta
                output = replace(
                    output, value=(results[i] if kind == "node" else i, meta.shape, meta.stride, meta.storage_offset)
                )
            out.append(output)
        return out

    @property
    def mutations(self) -> list[tuple[int, torch.fx.Node]]:
        """[(input index, node that holds its new value)]."""
        results = self.results
        return [(i, results[s]) for i, s in self.mutation_slots]

    @property
    def placeholders(self) -> list[torch.fx.Node]:
        return self.graph.find_nodes(op="placeholder")

    def constants_in(self, graph: torch.fx.Graph) -> dict[str, Any]:
        """Those of its constants that a graph made of this one reads."""
        return {node.target: self.constants[node.target] for node in graph.find_nodes(op="get_attr")}

    def calls(self) -> Iterator[torch.fx.Node]:
        return filter(is_call, self.graph.nodes)

    def __str__(self) -> str:
        lines = []
        for n in self.graph.nodes:
            if is_output(n):
                outs = ", ".join(_output_text(output) for output in self.outputs)
                lines.append(f"return {outs}")
                lines += [f"  {self.inputs[i].name if self.inputs else i}.copy_({node})" for i, node in self.mutations]
            elif is_call(n):
                args = ", ".join([*map(str, n.args), *(f"{key}={value}" for key, value in n.kwargs.items())])
                lines.append(f"{n.name}: {n.meta.get('val')} = {_target_name(n.target)}({args})")
            else:
                lines.append(f"{n.name}: {n.meta.get('val')} = {n.op}")
        return "\n".join(lines)


def _target_name(t: Any) -> str:
    return str(t) if isinstance(t, torch._ops.OpOverload) else getattr(t, "__name__", str(t))


def _output_text(output: GraphOutput) -> str:
    if output.kind == "buffer":
        return str(output.value)
    if output.kind == "view":
        base = output.value[0]
        return f"view({f'input {base}' if isinstance(base, int) else base}, {output.meta})"
    return f"{output.kind} {output.value}"
