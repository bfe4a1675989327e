"""A schedule as text: kernels, calls and the memory plan in order of execution."""

from __future__ import annotations

from ..lowering.print_loops import print_kernel
from .schedule import Alloc, Extern, Free, Launch, Schedule, View

__all__ = ["print_schedule"]


def print_schedule(schedule: Schedule) -> str:
    out = ["inputs: " + ", ".join(map(repr, schedule.inputs))]
    for step in schedule.steps:
        if isinstance(step, Alloc):
            out.append(
                f"alloc {step.buffer!r}" + (f" in the memory of {step.reuse.name}" if step.reuse is not None else "")
            )
        elif isinstance(step, Free):
            out.append(f"free {step.buffer.name}")
        elif isinstance(step, View):
            out.append(f"{step.buffer!r} = view of {step.base.name} at {step.offset}, strides {step.buffer.stride}")
        elif isinstance(step, Extern):
            outs = ", ".join("_" if output is None else output.name for output in step.outputs)
            out.append(f"{outs} = {step.op}{step.args!r}{step.kwargs or ''}  # {step.reason}")
        elif isinstance(step, Launch):
            args = [b.name for b in step.inputs] + [str(size) for size in step.sizes] + list(step.params)
            out.append(f"{', '.join(output.name for output in step.outputs)} = {step.kernel.name}({', '.join(args)})")
            out.append(_indented(print_kernel(step.kernel, step.kernel.name)))
    out.append("outputs: " + ", ".join(f"{output.kind} {output.value!r}" for output in schedule.outputs))
    if schedule.mutations:
        out.append("mutations: " + ", ".join(f"input {i} <- {buffer.name}" for i, buffer in schedule.mutations))
    out.append(f"peak: {schedule.peak_bytes} bytes")
    out += [f"not fused: {a} and {b}: {why}" for a, b, why in schedule.unfused]
    return "\n".join(out)


def _indented(text: str) -> str:
    return "\n".join("    " + line for line in text.splitlines())


Schedule.__str__ = lambda s: print_schedule(s)
