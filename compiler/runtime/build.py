"""The runtime stage: `build(generated, opts) -> CompiledGraph`."""
from __future__ import annotations

from typing import Any, Callable

from .. import events
from ..codegen.generated import Generated
from ..errors import ToolchainError
from .kernels import load_kernels, native_ready
from .program import make_program

__all__ = ["build", "CompiledGraph"]


class CompiledGraph:
    """A graph ready to run: `graph(*inputs) -> tuple`, inputs in the order of the graph's placeholders.

    sources        kernel name -> C++ text
    plan_source    Python text of the host plan
    kernels        kernel name -> callable on tensors, sizes and scalars
    kernel_stats   kernel name -> {"bytes", "flops", "choices", "phases"} of one launch at the size hints
    extern_count   calls of torch's own kernels per run
    schedule       the Schedule it was made from
    how            "program" (the plan runs in C), "python" (the plan's text) or "eager" (no C++ compiler)
    call           the callable itself, without this object around it
    """

    __slots__ = ("sources", "plan_source", "kernels", "kernel_stats", "extern_count", "schedule", "how", "call", "generated", "__weakref__")

    def __init__(self, generated: Generated, call: Callable[..., tuple], how: str, kernels: dict[str, Callable]):
        self.generated, self.call, self.how, self.kernels = generated, call, how, kernels
        self.schedule = generated.schedule
        self.sources = {k.name: k.source.text for k in generated.kernels}
        self.plan_source = generated.host.source
        self.kernel_stats = {k.name: {"bytes": k.bytes, "flops": k.flops, "choices": dict(k.source.choices), "phases": len(k.source.phases)}
                             for k in generated.kernels}
        self.extern_count = generated.host.extern_calls

    def __call__(self, *inputs: Any) -> tuple:
        return self.call(*inputs)

    def __repr__(self) -> str:
        return f"<CompiledGraph: {len(self.kernels)} kernels, {self.extern_count} calls of torch's kernels, {self.how}>"


def build(generated: Generated, opts: Any, eager: Callable[..., tuple] | None = None) -> CompiledGraph:
    """Compile what the disk cache does not have, load it, and put the plan together.

    `eager`: what runs the same graph by torch's own kernels. It serves where there is no C++ compiler, and a fallback event says
    so. Without it that raises ToolchainError, as a compiler that rejects a kernel does (a bug of tcompile's, or a full disk).
    """
    if generated.cuda is not None:
        from .gpu.build import build_gpu
        return build_gpu(generated, opts, eager)
    try:
        if generated.kernels and opts.get("max_autotune"):
            from .autotune import tune
            generated = tune(generated, opts)
        callables = load_kernels(generated.kernels, generated.target, opts) if generated.kernels else []
    except ToolchainError as e:
        if eager is None or not str(e).startswith("no C++ compiler"):
            raise
        events.emit("fallback", what="no C++ compiler", reason=str(e), count=1)
        return CompiledGraph(generated, eager, "eager", {})
    kernels = {k.name: c for k, c in zip(generated.kernels, callables)}
    for name, n in generated.threads.items():
        kernels[name].threads = n
    _announce(generated)
    program = make_program(generated, kernels, opts) if native_ready() else None
    if program is not None:
        return CompiledGraph(generated, program, "program", kernels)
    return CompiledGraph(generated, python_plan(generated, kernels), "python", kernels)


def python_plan(generated: Generated, kernels: dict[str, Callable], instead: dict[str, Callable] | None = None) -> Callable[..., tuple]:
    """The host plan's text as a function. `instead`: functions in the place of those that the plan names."""
    namespace = {**generated.host.names, **kernels, **(instead or {})}
    if native_ready() and generated.cuda is None:
        from .program import fast_empty
        namespace["empty_strided"] = fast_empty()
    exec(compile(generated.host.source, "<tcompile host plan>", "exec"), namespace)
    return namespace["run"]


def _announce(generated: Generated) -> None:
    from ..fusion.schedule import Extern, Launch
    steps = generated.schedule.steps
    launches = [(generated.kernels[generated.kernel_of[id(s)]].name, list(s.kernel.origins)) for s in steps if isinstance(s, Launch)]
    events.emit("schedule", kernels=[k.name for k in generated.kernels], launches=launches, extern=[str(s.op) for s in steps if isinstance(s, Extern)],
                memory={"peak_bytes": generated.schedule.peak_bytes, "plan": generated.host.source}, schedule=generated.schedule)
