"""What happens to a kernel that Triton or NVRTC refuses: it is printed in other ways until one is taken, and a file on
disk shows the refusal alone.

Where no way is taken the graph is generated once more with a kernel for each operator (stages.py), and after that runs
by torch's own kernels. Each step counts as a fallback.
"""

from __future__ import annotations

from typing import Any, Sequence

from ... import events
from ...codegen.generated import GeneratedKernel
from ...codegen.triton.layout import GpuTarget
from ...errors import RejectedKernel
from . import tune
from .compile import Job, compile_all

__all__ = ["in_other_ways"]


def in_other_ways(kernels: Sequence[GeneratedKernel], target: GpuTarget, opts: Any) -> list[GeneratedKernel]:
    """The kernels; one that is rejected, printed in the first other way that is not. Raises RejectedKernel where all
    are. Their binaries are in the disk cache then.
    """
    contract = not opts.get("emulate_precision", False)
    return [_first_accepted(kernel, target, opts, contract) for kernel in kernels]


def _first_accepted(kernel: GeneratedKernel, target: GpuTarget, opts: Any, contract: bool) -> GeneratedKernel:
    refused: RejectedKernel | None = None
    for choices, printed in tune.printed_variants(kernel, tune.candidates(kernel, target), target, opts):
        try:
            compile_all([Job(printed.source, target, contract=contract)], opts)
        except RejectedKernel as e:
            refused = refused or e
            continue
        if refused is not None:
            way = ", ".join(f"{key}={value}" for key, value in choices.plain().items())
            events.fallback("kernel", f"{kernel.name} takes {way}: {_short(refused)}")
        return printed
    assert refused is not None
    raise refused


def _short(e: RejectedKernel) -> str:
    first, *rest = str(e).splitlines()
    where = next((line for line in rest if line.startswith("To see it alone: ")), "")
    return f"{first[:200]}. {where}".rstrip(". ")
