"""What happens to a kernel that Triton, NVRTC or the device refuses: it is printed in other ways until one is taken. A
file on disk shows the refusal alone.

A kernel is refused when it is compiled or loaded, before anything ran. Rarely it is refused at a launch, in the middle
of a plan (loading asks the driver whether it would launch). Then the other way runs from that launch on. Where no way
is taken the graph is generated once more with a kernel for each operator (stages.py), and after that runs by torch's
own kernels. Each step counts as a fallback. A kernel that fails on the device is no refusal: CUDA takes no more work
then.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

from ... import events
from ...codegen.generated import GeneratedKernel
from ...codegen.triton.layout import Choices, GpuTarget
from ...errors import RejectedKernel
from . import tune
from .compile import Binary, Job, compile_all, refused_by_device
from .gpu_kernels import loaded, make_kernel

__all__ = ["in_other_ways", "OtherWays", "by_torch"]


def in_other_ways(
    kernels: Sequence[GeneratedKernel], target: GpuTarget, opts: Any, index: int | None = None
) -> list[GeneratedKernel]:
    """The kernels; one that is rejected, printed in the first other way that is not. Raises RejectedKernel where all
    are. Their binaries are in the disk cache then. `index`: the device that has to take them, None: compilers alone.
    """
    return [_first_accepted(kernel, target, opts, index) for kernel in kernels]


def _first_accepted(kernel: GeneratedKernel, target: GpuTarget, opts: Any, index: int | None) -> GeneratedKernel:
    refused: RejectedKernel | None = None
    for choices, printed in _ways(kernel, target, opts):
        try:
            _binary(printed, target, opts, index)
        except RejectedKernel as e:
            refused = refused or e
            continue
        if refused is not None:
            _say(kernel, choices, refused)
        return printed
    assert refused is not None
    raise refused


class OtherWays:
    """Called with the RejectedKernel of a launch, it makes what is launched instead: the kernel printed in the next way
    that is not refused. Raises RejectedKernel where none is left."""

    def __init__(self, kernel: GeneratedKernel, target: GpuTarget, index: int, opts: Any):
        self.kernel, self.target, self.index, self.opts = kernel, target, index, opts
        self.left: Iterator[tuple[Choices, GeneratedKernel]] | None = None

    def __call__(self, refused: RejectedKernel) -> Callable:
        kernel, target, index, opts = self.kernel, self.target, self.index, self.opts
        shown = refused_by_device(Job(kernel.source, target, contract=_contract(opts)), opts, refused)
        if self.left is None:
            self.left = ((c, way) for c, way in _ways(kernel, target, opts) if way.source is not kernel.source)
        for choices, way in self.left:
            try:
                binary = _binary(way, target, opts, index)
            except RejectedKernel:
                continue
            _say(kernel, choices, shown)
            return make_kernel(way, binary, target, index, opts, otherwise=self)
        raise shown from refused


def by_torch(eager: Callable[..., tuple], inputs: tuple | None, why: RejectedKernel | None) -> tuple:
    """What stands for a plan of which a kernel is launched in no way. `why`: the refusal, None in later calls;
    `inputs`: None where the plan let some go before it: that call fails, the next ones do not.
    """
    if why is not None:
        events.fallback("kernel", f"torch's own kernels run a graph from now on: {_short(why)}")
        if inputs is None:
            raise why
    assert inputs is not None
    return eager(*inputs)


def _ways(kernel: GeneratedKernel, target: GpuTarget, opts: Any) -> list[tuple[Choices, GeneratedKernel]]:
    return tune.printed_variants(kernel, tune.candidates(kernel, target), target, opts)


def _binary(kernel: GeneratedKernel, target: GpuTarget, opts: Any, index: int | None) -> Binary:
    job = Job(kernel.source, target, contract=_contract(opts))
    (binary,) = compile_all([job], opts)
    return binary if index is None else loaded(binary, index, job, opts)


def _contract(opts: Any) -> bool:
    return not opts.get("emulate_precision", False)


def _say(kernel: GeneratedKernel, choices: Choices, refused: RejectedKernel) -> None:
    way = ", ".join(f"{key}={value}" for key, value in choices.plain().items())
    events.fallback("kernel", f"{kernel.name} takes {way}: {_short(refused)}")


def _short(e: RejectedKernel) -> str:
    first, *rest = str(e).splitlines()
    where = next((line for line in rest if line.startswith("To see it alone: ")), "")
    return f"{first[:200]}. {where}".rstrip(". ")
