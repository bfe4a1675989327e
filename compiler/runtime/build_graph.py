"""The runtime stage: `build(generated, opts) -> CompiledGraph`."""

from __future__ import annotations

from typing import Any, Callable

from ..codegen.generated import Generated
from ..errors import NoToolchainError, RejectedKernel, ToolchainError
from .compiled_graph import CompiledGraph, announce, python_plan
from .cpu_kernels import load_kernels, native_ready
from .native_program import make_program
from .waiting import Waiting

__all__ = ["build"]


def build(generated: Generated, opts: Any, eager: Callable[..., tuple] | None = None) -> CompiledGraph:
    """Compile what the disk cache does not have, load it, and put the plan together.

    `eager`: what runs the same graph by torch's own kernels. It serves where there is no compiler, or where one fails
    (killed, a full disk, no linker) and `suppress_errors` is on: a fallback event says so, and later calls try again.
    Otherwise that raises ToolchainError; RejectedKernel, where a graph of smaller kernels may still be taken.
    """
    try:
        return _build(generated, opts, eager)
    except (ToolchainError, OSError) as e:
        if isinstance(e, RejectedKernel) and opts.get("suppress_errors") and not opts.get("disable_fusion"):
            raise  # (to be generated with a kernel for each operator)
        if eager is None or not (isinstance(e, NoToolchainError) or opts.get("suppress_errors")):
            raise
        waiting = Waiting(eager, lambda: _build(generated, opts, eager), e)
        graph = CompiledGraph(generated, waiting, "eager", {})
        waiting.serves(graph)
        return graph


def _build(generated: Generated, opts: Any, eager: Callable[..., tuple] | None) -> CompiledGraph:
    if generated.cuda is not None:
        from .gpu.gpu_graph import build_gpu

        return build_gpu(generated, opts, eager)
    if generated.kernels and opts.get("max_autotune"):
        from .autotune import tune

        generated = tune(generated, opts)
    callables = load_kernels(generated.kernels, generated.target, opts) if generated.kernels else []
    kernels = {kernel.name: c for kernel, c in zip(generated.kernels, callables)}
    for name, thread in generated.threads.items():
        kernels[name].threads = thread
    announce(generated)
    program = make_program(generated, kernels, opts) if native_ready() else None
    if program is not None:
        return CompiledGraph(generated, program, "program", kernels)
    return CompiledGraph(generated, python_plan(generated, kernels), "python", kernels)
