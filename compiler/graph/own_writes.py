"""How far versions move where operators of the program's own write: that is known when they have run.

in: a compiled graph, and which of its inputs and results such operators write to (`AtenGraph.own_writes`). out: a call
that leaves the versions that eager would have left.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from .aten import AtenGraph, OwnWrite

__all__ = ["counted", "move_on"]


def counted(call: Callable[..., tuple], aten_graph: AtenGraph) -> Callable[..., tuple]:
    """The call of `aten_graph`, with the versions of what operators of the program's have written."""
    copied = {i for i, _ in aten_graph.mutation_slots}
    inputs: dict[int, list[OwnWrite]] = {}
    results: dict[int, list[OwnWrite]] = {}
    for own_write in aten_graph.own_writes:
        if not own_write.of_input:
            results.setdefault(own_write.position, []).append(own_write)
        elif own_write.position in copied:
            inputs.setdefault(own_write.position, []).append(own_write)
    if not inputs and not results:
        return call

    def run(*given: Any) -> tuple:
        before = [
            (tensor, tensor._version + aten_graph.writes.get(i, 1), i)
            for i in inputs
            if not (tensor := given[i]).is_inference()
        ]
        out = call(*given)
        for tensor, version, i in before:
            move_on(tensor, inputs[i], version)
        for key, writes in results.items():
            if not out[key].is_inference():
                move_on(out[key], writes)
        return out

    return run


def move_on(tensor: torch.Tensor, writes: Iterable[OwnWrite], version: int | None = None) -> None:
    """Let a tensor's version, now or as it is given, say how often the operators wrote, where once was counted."""
    version = tensor._version if version is None else version
    version += sum(write.form.moved.get(write.name, 1) - 1 for write in writes)
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
