"""CompiledGraph: a graph that is ready to run."""

from __future__ import annotations

from typing import Any, Callable

from .. import events
from ..base.figures import plural
from ..codegen.generated import Generated
from .cpu_kernels import native_ready

__all__ = ["CompiledGraph", "announce", "python_plan"]


class CompiledGraph:
    """A graph ready to run: `graph(*inputs) -> tuple`, inputs in the order of the graph's placeholders.

    sources        kernel name -> C++ text
    plan_source    Python text of the host plan
    kernels        kernel name -> callable on tensors, sizes and scalars
    kernel_stats   kernel name -> {"bytes", "flops", "choices", "phases"} of one launch at the size hints
    extern_count   calls of torch's own kernels per run
    schedule       the Schedule it was made from
    how            "program" (the plan runs in C), "python" (the plan's text) or "eager" (the toolchain fails:
                   waiting.py)
    call           the callable itself, without this object around it
    """

    __slots__ = (
        "sources",
        "plan_source",
        "kernels",
        "kernel_stats",
        "extern_count",
        "schedule",
        "how",
        "call",
        "generated",
        "__weakref__",
    )

    def __init__(self, generated: Generated, call: Callable[..., tuple], how: str, kernels: dict[str, Callable]):
        self.generated, self.call, self.how, self.kernels = generated, call, how, kernels
        self.schedule = generated.schedule
        self.sources = {kernel.name: kernel.source.text for kernel in generated.kernels}
        self.plan_source = generated.host.source
        self.kernel_stats = {
            kernel.name: {
                "bytes": kernel.bytes,
                "flops": kernel.flops,
                "choices": dict(kernel.source.choices),
                "phases": len(kernel.source.phases),
            }
            for kernel in generated.kernels
        }
        self.extern_count = generated.host.extern_calls

    def __call__(self, *inputs: Any) -> tuple:
        return self.call(*inputs)

    def __repr__(self) -> str:
        return (
            f"<CompiledGraph: {plural(len(self.kernels), 'kernel')}, {plural(self.extern_count, 'call')} of torch's"
            f" kernels, {self.how}>"
        )


def python_plan(
    generated: Generated, kernels: dict[str, Callable], instead: dict[str, Callable] | None = None
) -> Callable[..., tuple]:
    """The host plan's text as a function. `instead`: functions in the place of those that the plan names."""
    namespace = {**generated.host.names, **kernels, **(instead or {})}
    if native_ready() and generated.cuda is None:
        from .native_program import fast_empty

        namespace["empty_strided"] = fast_empty()
    exec(compile(generated.host.source, "<tcompile host plan>", "exec"), namespace)
    return namespace["run"]


def announce(generated: Generated) -> None:
    from ..fusion.schedule import Extern, Launch

    steps = generated.schedule.steps
    launches = [
        (generated.kernels[generated.kernel_of[id(step)]].name, list(step.kernel.origins))
        for step in steps
        if isinstance(step, Launch)
    ]
    events.emit(
        "schedule",
        kernels=[kernel.name for kernel in generated.kernels],
        launches=launches,
        extern=[step.shown_name() for step in steps if isinstance(step, Extern)],
        memory={"peak_bytes": generated.schedule.peak_bytes, "plan": generated.host.source},
        schedule=generated.schedule,
    )
