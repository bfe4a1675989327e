"""Device binaries as callables: `kernel(*tensors, *sizes, *scalars)` enqueues one kernel on the current stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch

from ... import events
from ...codegen.generated import GeneratedKernel
from ...codegen.kernel_sources import TritonSource
from ...codegen.triton.layout import Choices, GpuTarget
from ...codegen.triton.prims import WAIT
from ...errors import InternalError, RejectedKernel
from ...native import native
from ...symbolic.expr import Expr, as_expr
from ...symbolic.stack_code import stack_code
from .compile import Binary, Job, begin, compile_all, refused_by_device

__all__ = [
    "begin_kernels",
    "load_kernels",
    "loaded",
    "fits",
    "make_kernel",
    "launch_facts",
    "launcher",
    "LaunchFacts",
    "occupancy",
]

# (id of a binary, device) -> its functions; binaries live as long as the process
_handles: dict[tuple[int, int], tuple] = {}
_keep: list[Binary] = []
_TILE_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType


def load_kernels(
    kernels: Sequence[GeneratedKernel],
    target: GpuTarget,
    index: int,
    opts: Any,
    otherwise: Callable[[GeneratedKernel], Callable] | None = None,
) -> list[Callable]:
    """A callable on device `index` for each kernel. `otherwise(kernel)`: of make_kernel. Raises ToolchainError."""
    jobs = _jobs(kernels, target, opts)
    binaries = compile_all(jobs, opts)
    for job, binary in zip(jobs, binaries):
        loaded(binary, index, job, opts)
    made = [
        make_kernel(k, b, target, index, opts, otherwise=otherwise(k) if otherwise else None)
        for k, b in zip(kernels, binaries)
    ]
    if events.heard():
        device = torch.cuda.get_device_properties(index)
        for kernel, binary in zip(kernels, binaries):
            _tell(kernel, binary, [h[1:3] for h in _functions(binary, index)], device)
    return made


def begin_kernels(kernels: Sequence[GeneratedKernel], target: GpuTarget, opts: Any) -> None:
    """Have kernels compiled that will be loaded later."""
    begin(_jobs(kernels, target, opts), opts)


def _jobs(kernels: Sequence[GeneratedKernel], target: GpuTarget, opts: Any) -> list[Job]:
    return [Job(kernel.source, target, contract=not opts.get("emulate_precision", False)) for kernel in kernels]


def _tell(kernel: GeneratedKernel, binary: Binary, used: Sequence[tuple[int, int]], device: Any) -> None:
    """State what a kernel uses of the device. `used`: (registers, bytes of spilled values) of a thread, for each
    function.
    """
    most = max(range(len(used)), key=lambda i: used[i][0])
    events.emit(
        "binary",
        name=kernel.name,
        source=kernel.source.text,
        language=kernel.source.language,
        names=kernel.source.names,
        choices=dict(kernel.source.choices),
        lines=kernel.kernel.lines,
        registers=used[most][0],
        spills=max(u[1] for u in used),
        shared=max(part.shared for part in binary.parts),
        occupancy=occupancy(used[most][0], binary.parts[most].shared, binary.parts[most].threads, device),
        assembly="\n".join(part.assembly() for part in binary.parts),
    )


def occupancy(registers: int, shared: int, threads: int, device: Any) -> float:
    """The share of a multiprocessor's threads that can be at work at once: as many programs as its registers (given out
    to a warp in units of 256), its shared memory and its threads allow. `device`: torch.cuda.get_device_properties."""
    warps = -(-threads // device.warp_size)
    limits = [
        device.max_threads_per_multi_processor // threads,
        device.regs_per_multiprocessor // (warps * -(-max(1, registers) * device.warp_size // 256) * 256),
    ]
    if shared:
        limits.append(device.shared_memory_per_multiprocessor // shared)
    return min(limits) * threads / device.max_threads_per_multi_processor


def _functions(binary: Binary, index: int) -> tuple:
    key = (id(binary), index)
    found = _handles.get(key)
    if found is None:
        with torch.cuda.device(index):
            torch._C._cuda_setDevice(index)  # a thread of autograd's may have no context yet
            found = tuple(native.cuda_load(p.code, ((p.entry, p.shared),))[0] for p in binary.parts)
        for part, (_, registers, _, most) in zip(binary.parts, found):
            if part.threads > most:
                raise RejectedKernel(
                    f"{part.name} has {part.threads} threads of {registers} registers, and the device runs {most} of"
                    " them"
                )
        _handles[key] = found
        _keep.append(binary)
    return found


def loaded(binary: Binary, index: int, job: Job, opts: Any) -> Binary:
    """The binary, whose functions device `index` has loaded and would launch. Raises RejectedKernel."""
    try:
        _functions(binary, index)
    except RejectedKernel as e:
        raise refused_by_device(job, opts, e) from e
    return binary


def fits(binary: Binary, index: int) -> bool:
    """Whether the device has what the binary takes: shared memory, registers, threads."""
    try:
        _functions(binary, index)
    except RejectedKernel:
        return False
    return True


def make_kernel(
    kernel: GeneratedKernel,
    binary: Binary,
    target: GpuTarget,
    index: int,
    opts: Any,
    source: TritonSource | None = None,
    aligned: bool = True,
    otherwise: Callable | None = None,
) -> Callable:
    """The callable of one kernel. Variants for pointers that are not aligned, and for sizes that 32-bit indices can't
    hold, are compiled when a call first needs them; `otherwise` makes what serves where the driver rejects a launch.
    """
    source = source or kernel.source
    handles = _functions(binary, index)
    facts = launch_facts(kernel, source)
    sizes = [str(e) for e in kernel.kernel.sizes]
    fixed = facts.fixed
    parts = tuple(
        (handle[0], part.threads, part.shared, int(grid.value) if fixed else 0, facts.waits)
        for handle, part, grid in zip(handles, binary.parts, facts.grids)
    )
    unaligned = (lambda: _unaligned(kernel, source, target, index, opts)) if aligned else None
    wide = (lambda: _wide(kernel, target, index, opts)) if source.limits else None
    return launcher(kernel.name, index, parts, kernel.n_buffers, sizes, facts, unaligned, wide, otherwise)


@dataclass(frozen=True)
class LaunchFacts:
    """What a launcher has to know of a kernel's source: sizes are over the kernel's own.

    kinds     a letter for each size and scalar: 'i' 32 bits, 'l' 64 bits, 'f' float, 'd' double
    grids     of each function
    offsets   of each partial result in scratch memory; `scratch` the bytes of all
    limits    what 32-bit indices have to hold
    walks     how the copy engine goes through buffers
    waits     whether it may start while the kernel before ends
    """

    kinds: str
    grids: list[Expr]
    offsets: list[Expr]
    scratch: Expr
    limits: list[Expr]
    walks: tuple
    waits: bool

    @property
    def fixed(self) -> bool:
        """Whether no size matters to how the kernel is launched (it may be passed some all the same)."""
        return not self.limits and all(expr.is_const for expr in (*self.grids, *self.offsets, self.scratch))


def launch_facts(kernel: GeneratedKernel, source: TritonSource) -> LaunchFacts:
    sizes = [str(e) for e in kernel.kernel.sizes]
    kinds = "".join("l" if t == "i64" else "i" for n, t in source.functions[0].arguments if n in sizes)
    kinds += "".join(
        {"fp32": "f", "fp64": "d", "i64": "l"}.get(t, "i")
        for n, t in source.functions[0].arguments
        if n in dict(kernel.kernel.params)
    )
    offsets, total = _scratch(source)
    grids = [as_expr(function.grid) for function in source.functions]
    return LaunchFacts(kinds, grids, offsets, total, list(source.limits), _walks(kernel, source), WAIT in source.text)


def launcher(
    name: str,
    index: int,
    parts: tuple,
    n_buffers: int,
    sizes: Sequence[str],
    facts: LaunchFacts,
    unaligned: Callable | None,
    wide: Callable | None,
    otherwise: Callable | None = None,
) -> Callable:
    """The callable of functions on device `index`: (handle, threads, shared bytes, grid, waits) each."""
    offsets = [*facts.offsets, facts.scratch]
    varying = [*facts.grids, *offsets]
    grid, limits = ((), ()) if facts.fixed else (_codes(sizes, varying), _codes(sizes, facts.limits))
    flat = tuple(int(e.value) for e in offsets) if facts.fixed else (0,) * len(offsets)
    others, n = (unaligned, wide, facts.walks, otherwise), len(sizes)
    with torch.cuda.device(index):
        return native.CudaKernel(name, index, parts, n_buffers, n, facts.kinds, flat, grid, limits, *others)


def _walks(kernel: GeneratedKernel, source: TritonSource) -> tuple:
    """How the copy engine goes through buffers, as the launcher describes it to the driver."""
    place = {id(b): i for i, b in enumerate((*kernel.kernel.inputs, *kernel.kernel.outputs))}
    return tuple(
        (
            place[id(w.buffer)],
            _TILE_TYPES[w.buffer.dtype],
            w.offset * w.buffer.dtype.itemsize,
            w.length,
            w.lines,
            w.stride * w.buffer.dtype.itemsize,
            *w.box,
        )
        for w in source.walks
    )


def _scratch(source: TritonSource) -> tuple[list[Expr], Expr]:
    """Offsets in bytes of each partial result, and the bytes of all."""
    offsets, at = [], as_expr(0)
    for scratch in source.scratch:
        offsets.append(at)
        at = at + (scratch.numel * scratch.dtype.itemsize + 15) // 16 * 16
    return offsets, at


def _codes(sizes: Sequence[str], values: Sequence[Expr]) -> tuple:
    """Expressions over a kernel's sizes as the launcher computes them."""
    place = {name: i for i, name in enumerate(sizes)}
    codes = tuple(stack_code(e, place, native.OPCODES) for e in values)
    if None in codes:
        raise InternalError(f"the grid of a kernel is beyond 64 bits: {', '.join(map(str, values))}")
    return codes


def _unaligned(kernel: GeneratedKernel, source: TritonSource, target: GpuTarget, index: int, opts: Any) -> Callable:
    """The kernel for pointers of any alignment, in Triton where the copy engine can't take them."""
    if source.language == "cuda":
        from ...codegen.triton.print_kernel import print_kernel

        source = print_kernel(kernel.kernel, target, Choices(), name=kernel.source.name)
    binary = compile_all([Job(source, target, False, not opts.get("emulate_precision", False))], opts)[0]
    return make_kernel(kernel, binary, target, index, opts, source, aligned=False)


def _wide(kernel: GeneratedKernel, target: GpuTarget, index: int, opts: Any) -> Callable:
    """The kernel with 64-bit indices."""
    from ...codegen.triton.print_kernel import print_kernel

    source = print_kernel(
        kernel.kernel,
        target,
        Choices(),
        name=kernel.source.name,
        wide=True,
        exact=bool(opts.get("emulate_precision", False)),
    )
    binary = compile_all([Job(source, target, contract=not opts.get("emulate_precision", False))], opts)[0]
    return make_kernel(kernel, binary, target, index, opts, source)
