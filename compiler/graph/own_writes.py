"""How far versions move where operators of the program's own write: that is known when they have run.

in: a compiled graph, and which of its inputs and results such operators write to (`AtenGraph.own_writes`). out: a call
that leaves the versions that eager would have left.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from .aten import AtenGraph, OwnWrite

__all__ = ["counted", "move_on"]


def counted(call: Callable[..., tuple], a: AtenGraph) -> Callable[..., tuple]:
    """The call of `a`, with the versions of what operators of the program's have written."""
    copied = {i for i, _ in a.mutation_slots}
    inputs: dict[int, list[OwnWrite]] = {}
    results: dict[int, list[OwnWrite]] = {}
    for w in a.own_writes:
        if not w.of_input:
            results.setdefault(w.position, []).append(w)
        elif w.position in copied:
            inputs.setdefault(w.position, []).append(w)
    if not inputs and not results:
        return call

    def run(*given: Any) -> tuple:
        before = [(t, t._version + a.writes.get(i, 1), i) for i in inputs if not (t := given[i]).is_inference()]
        out = call(*given)
        for t, version, i in before:
            move_on(t, inputs[i], version)
        for k, writes in results.items():
            if not out[k].is_inference():
                move_on(out[k], writes)
        return out

    return run


def move_on(t: torch.Tensor, writes: Iterable[OwnWrite], version: int | None = None) -> None:
    """Let a tensor's version, now or as it is given, say how often the operators wrote, where once was counted."""
    version = t._version if version is None else version
    version += sum(w.form.moved.get(w.name, 1) - 1 for w in writes)
    torch._C._autograd._unsafe_set_version_counter((t,), (version,))
