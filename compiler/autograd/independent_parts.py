"""Results of one graph whose backward passes are independent.

In eager each operator is a node of autograd's graph, and a backward pass frees what the nodes on its way saved, nothing
else. One compiled graph behind one autograd.Function would free everything at the first backward pass: the second loss
of a GAN's step could not be differentiated any more. So results that share no node that saves a tensor get Functions of
their own, over one run of the forward graph. Each is joined to the inputs that its results depend on, and keeps what
its own backward graph reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.fx

from ..graph.history import history, saves_tensors
from .engine_order import one_by_one
from .saved_versions import refuse_changed, remember, taken_from
from .backward_variants import without_unused_inputs

if TYPE_CHECKING:
    from .bridge import GradGraph
    from .partition import Partition

__all__ = ["Group", "Part", "PartedCall", "independent_parts"]


@dataclass
class Group:
    """Differentiable outputs, by position. frees: whether one of their nodes saves a tensor, so that a second backward
    pass fails.
    """

    outputs: list[int]
    frees: bool


def independent_parts(outputs: Sequence[torch.Tensor], reach: Sequence[Any]) -> list[Group]:
    """The differentiable outputs in groups: those in different groups share no autograd node that saves tensors. What
    saves nothing at all is one group for all outputs that reach the same inputs (`reach`)."""
    owner: dict[Any, int] = {}
    group = list(range(len(outputs)))
    saving: set[int] = set()

    def find(k: int) -> int:
        while group[k] != k:
            k = group[k]
        return k

    for k, t in enumerate(outputs):
        for node in history(t):
            if saves_tensors(node):
                saving.add(k)
                group[find(k)] = find(owner.setdefault(node, k))
    found: dict[Any, list[int]] = {}
    for k in range(len(outputs)):
        found.setdefault(find(k) if k in saving else reach[k], []).append(k)
    return [Group(ks, ks[0] in saving) for ks in sorted(found.values())]


@dataclass
class Part:
    """
    outputs     differentiable outputs, as positions in the output plan
    inputs      the graph's inputs that they depend on, and that have gradients: leaves first, in eager's order
    n_leaves    how many of these are leaves
    saved       positions among what forward keeps (saved inputs, then results) that the backward graph reads for these
                outputs
    remembered  [(input, strong)]: the inputs that are not among those, for double backward; then outputs
    watched     positions among what is remembered whose versions are looked at
    """

    outputs: list[int]
    inputs: list[int]
    n_leaves: int
    saved: list[int]
    remembered: list[tuple[int, bool]]
    watched: list[int]
    frees: bool
    function: Any = None


class PartedCall:
    """The call of a compiled graph with gradients whose results are of several independent parts. ordered: somebody is
    told in which order the gradients of leaves are there.
    """

    def __init__(self, graph: GradGraph, groups: list[Group], small: Sequence[bool], ordered: bool):
        self.graph, self.ordered = graph, ordered
        p: Partition = graph.joint.partition
        places = p.backward.placeholders
        n_saved = len(places) - len(graph.tangent_metas) - len(p.symbols) - len(graph.scalars)
        self.parts: list[Part] = []
        self.n_saved = n_saved
        for group in groups:
            outputs = group.outputs
            reached, n_leaves = self._in_order({j for k in outputs for j in graph.joint.reach[k]})
            # the backward graph that will run where all of them have tangents; with fewer it reads no more
            mine = graph.variant(
                tuple(k in outputs for k in range(graph.n_tangents)),
                tuple(j in reached for j in graph.joint.grad_inputs),
                keep=True,
            )
            saved = [i for i in without_unused_inputs(mine)[1] if i < n_saved]
            kept = {p.saved_inputs[i] for i in saved if i < len(p.saved_inputs)}
            mine_too = [graph.at[k] for k in outputs if graph.at[k] in graph.joint.watched[1]]
            remembered = [
                *[(i, s) for i, s in enumerate(small) if i not in kept],
                *[(graph.n_inputs + k, False) for k in mine_too],
            ]
            for_these = {i for i, ks in graph.joint.watched[0].items() if not ks.isdisjoint(outputs)}
            watched = [k for k, (i, _) in enumerate(remembered) if i >= graph.n_inputs or i in for_these]
            part = Part(outputs, reached, n_leaves, saved, remembered, watched, group.frees)
            part.function = type("TCompiled", (_PartBridge,), {"call": self, "part": part})
            self.parts.append(part)
        self.part_of = {k: part for part in self.parts for k in part.outputs}

    def _in_order(self, reached: set[int]) -> tuple[list[int], int]:
        """The inputs of a part, leaves first, and the number of these."""
        joint, examples = self.graph.joint, self.graph.captured.example_inputs
        inputs = [joint.grad_inputs[j] for j in joint.order if j in reached]
        inputs += [joint.grad_inputs[j] for j in sorted(reached.difference(joint.order))]
        leaves = [i for i in inputs if examples[i].is_leaf]
        return leaves + [i for i in inputs if not examples[i].is_leaf], len(leaves)

    def run(self, everything: list, inputs: tuple) -> list:
        """The differentiable outputs; `everything` gets the graph's own results."""
        graph = self.graph
        kept = graph.run_forward(everything, inputs)
        rest = graph.rest(inputs)
        diff: list[Any] = [None] * graph.n_tangents
        for part in self.parts:
            call = (
                [everything[graph.at[k]] for k in part.outputs],
                [kept[i] for i in part.saved],
                rest,
                (*inputs, *everything),
            )
            given = [inputs[i] for i in part.inputs]
            if self.ordered:
                given[: part.n_leaves] = one_by_one(given[: part.n_leaves])
            outs = part.function.apply(call, *given)
            for k, t in zip(part.outputs, outs):
                diff[k] = t
        return diff

    def backward(self, part: Part, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        """The gradients of a part's inputs."""
        graph = self.graph
        saved: list[Any] = [None] * self.n_saved
        kept = taken_from(ctx) if part.frees or part.saved else []
        for i in reversed(part.saved):
            saved[i] = kept.pop()
        refuse_changed(part.watched, ctx.remembered if part.remembered else ())
        every: list[Any] = [None] * graph.n_tangents
        for k, t in zip(part.outputs, tangents):
            every[k] = t
        if torch._C.is_grad_enabled():
            grads = graph.double(ctx, saved, part.remembered, every)
        else:
            graph.refuse_copied(ctx)
            needs = [False] * graph.n_inputs
            for i, need in zip(part.inputs, ctx.needs_input_grad[-len(part.inputs) :]):
                # (in Python, the call comes first)
                needs[i] = need
            grads = graph.run_backward(saved, getattr(ctx, "rest", []), tuple(every), tuple(needs), part)
        return tuple([grads[i] for i in part.inputs])


class _PartBridge(torch.autograd.Function):
    """The Function of one part. Its inputs are the part's; what it returns is there already."""

    call: PartedCall
    part: Part

    @classmethod
    def forward(cls, ctx: Any, call: tuple[list, list, list, tuple], *inputs: Any) -> tuple:
        outputs, kept, rest, given = call
        ctx.rest = rest
        ctx.save_for_backward(*kept)
        ctx.remembered = remember(cls.part.remembered, given)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @classmethod
    def backward(cls, ctx: Any, *tangents: torch.Tensor | None) -> tuple:
        return (None, *cls.call.backward(cls.part, ctx, *tangents))
