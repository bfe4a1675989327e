"""The CUDA graphs of one plan for each set of parameters that it serves: those of a model's equal blocks, or of a model
that is built anew. A set is told by its first parameter, the object. Where that is gone, the next set takes its place.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .cuda_graphs import CudaGraphs
    from .step_memory import Step

__all__ = ["GraphSets"]

MOST_SETS = 64  # that have graphs
TRIES = 3  # sets that end before their graphs have paid, until sets are told apart no more


class GraphSets:
    """in: the graphs for the first set, which make those for others (`sibling`)."""

    def __init__(self, first: CudaGraphs):
        self.members = [first]
        self._place: int | None = None  # which input is the first parameter; -1: none is
        self._ended = 0  # sets that ended before their graphs had paid
        self._by_step: dict[Step, CudaGraphs] = {}

    def place(self, inputs: tuple) -> int:
        """Which of the plan's inputs tells the sets apart; -1: none does."""
        if self._place is None:
            parameters = (
                tensor for tensor in self.members[0].tensors if isinstance(inputs[tensor], torch.nn.Parameter)
            )
            self._place = next(parameters, -1)
        return self._place

    def of(self, parameter: Any) -> CudaGraphs | None:
        """The graphs for the set that begins with this parameter; None: there are too many sets."""
        free = None
        for one in self.members:
            known = None if one.parameter is None else one.parameter()
            if known is parameter:
                return one
            if known is None:
                free = one
        if free is None:
            if len(self.members) >= MOST_SETS:
                return None
            free = self.members[0].sibling()
        elif free.parameter is not None:
            self._ended += not free.paid
            if self._ended > TRIES:
                self._place = -1
            free.forget()
        free.parameter = weakref.ref(parameter)
        return free

    def of_step(self, step: Step, n_tangents: int) -> CudaGraphs:
        """A backward's graphs for what the forward of this step keeps."""
        found = self._by_step.get(step)
        if found is None:
            found = self._by_step[step] = self.members[0].sibling()
            found.end_step(step, n_tangents)
        return found
