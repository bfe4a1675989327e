"""The runtime stage for a graph on a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Sequence

import torch

from ... import events
from ...base import meanwhile
from ...ops import philox
from ...codegen.generated import Generated
from ...errors import RejectedKernel
from ...fusion.schedule import Extern, Schedule
from ..compiled_graph import CompiledGraph, announce, python_plan
from ..native_program import make_program
from .algorithms import choose_algorithms
from .first_calls import FirstCalls
from .cuda_graphs import CudaGraphs, why_not_captured
from .gpu_kernels import load_kernels
from .rejected import OtherWays, by_torch, in_other_ways
from .tune import searched, tune

__all__ = ["build_gpu"]


def build_gpu(generated: Generated, opts: Any, eager: Callable[..., tuple] | None = None) -> CompiledGraph:
    """Compile the kernels that the disk cache lacks, load them on the device and put the plan together. Raises
    ToolchainError.
    """
    index = generated.cuda or 0
    if generated.kernels and opts.get("max_autotune"):
        generated = searched("the search of tiles", opts, lambda: tune(generated, opts, index), generated)
    target, mend = generated.target, bool(opts.get("suppress_errors"))
    otherwise = partial(OtherWays, target=target, index=index, opts=opts) if mend else None
    try:
        with meanwhile.offered_last(FirstCalls(generated.schedule.steps, index)):
            kernels = load_kernels(generated.kernels, target, index, opts, otherwise) if generated.kernels else []
    except RejectedKernel:
        if not mend:
            raise
        generated = replace(generated, kernels=in_other_ways(generated.kernels, target, opts, index))
        kernels = load_kernels(generated.kernels, target, index, opts, otherwise)
    by_name = {kernel.name: c for kernel, c in zip(generated.kernels, kernels)}
    announce(generated)
    algorithms = searched(
        "the choice of algorithms", opts, lambda: choose_algorithms(generated.schedule.steps, opts, index), {}
    )
    program = make_program(generated, by_name, opts, algorithms)
    plan, how = (program, "program") if program is not None else (python_plan(generated, by_name), "python")
    if program is not None and eager is not None and mend:
        program.instead = partial(by_torch, eager)  # type: ignore[attr-defined]
    if opts.get("cudagraphs"):
        why = why_not_captured(generated.schedule, index)
        if why is None:
            plan, how = CudaGraphs(plan, generated.schedule, index), "cuda graph"
        else:
            events.fallback("CUDA graph", f"plain launches: {why}")
    return CompiledGraph(generated, _drawing(plan, generated.schedule, eager), how, by_name)


class _Drawing:
    """A plan whose kernels draw random numbers, where they draw what torch's would: inputs that torch's kernels look at
    lie at the expected addresses, and no CUDA graph of the program's own is captured, which torch's kernels alone are
    told about. Elsewhere `eager` runs.
    """

    def __init__(self, plan: Callable[..., tuple], laid: list[int], eager: Callable[..., tuple]):
        self.plan, self.laid, self.eager = plan, laid, eager
        self.said: set[str] = set()

    def __getattr__(self, name: str) -> Any:  # (what the plan is asked for as a CUDA graph)
        return getattr(self.plan, name)

    def __call__(self, *inputs: Any) -> tuple:
        return self.eager(*inputs) if self._otherwise(inputs) else self.plan(*inputs)

    def consume(self, given: list) -> tuple:
        """The same; each input leaves the list after its last use."""
        if self._otherwise(given):
            return self.eager(*given)
        return self.plan.consume(given) if hasattr(self.plan, "consume") else self.plan(*given)

    def _otherwise(self, inputs: Sequence[Any]) -> bool:
        if torch._C._cuda_isCurrentStreamCapturing():
            why = "a CUDA graph of the program's own is captured"
        elif self.laid and any(inputs[i].data_ptr() % philox.ALIGNMENT for i in self.laid):
            why = "an input lies at an odd address"
        else:
            return False
        if why not in self.said:
            self.said.add(why)
            events.fallback("random numbers", f"torch's own kernels: {why}")
        return True


def _drawing(
    plan: Callable[..., tuple], schedule: Schedule, eager: Callable[..., tuple] | None
) -> Callable[..., tuple]:
    draws = [step for step in schedule.steps if isinstance(step, Extern) and step.op is philox.STATE]
    if not draws or eager is None:
        return plan
    return _Drawing(
        plan, [i for i, b in enumerate(schedule.inputs) if any(b is x for step in draws for x in step.args[0])], eager
    )
