"""mode="max-autotune" on a GPU: kernels are printed with other tiles, and the fastest by measurement is kept.

The search predicts first. A kernel that moves its bytes at the rate of a plain copy, measured once per device, has
nothing to gain and is left alone. So is one that the launch itself takes longer than. The others are taken in the order
of what they could win, their variants are compiled all at once in worker processes, and run in turn. A variant replaces
the rules' choice only where its median is clearly lower. It ends with the budget in seconds (option `autotune_seconds`,
per kernel and MOST_S for a graph), and says how far it is in `progress` events. Results lie in the disk cache under the
kernel's content, the device and triton's version. Where memory runs out the rules' choice stands, and an event says so.
"""

from __future__ import annotations

import functools
import json
import statistics
import time
from dataclasses import asdict, replace
from typing import Any, Callable, Sequence

import torch

from ... import events
from ...codegen.cuda.product import product_choices
from ...codegen.generated import Generated, GeneratedKernel
from ...codegen.triton.tiles.plans import tile_choices
from ...codegen.triton.layout import Choices, GpuTarget, at_hints
from ...codegen.triton.print_kernel import print_kernel
from ...codegen.triton.printer import without_locals
from ...codegen.triton.product import find_product
from ...codegen.triton.tiles.window_gradients import window_gradients_choices
from ...codegen.triton.tiles.windows import windows_choices
from ...errors import ToolchainError
from ...lowering.ir import Buffer, Kernel, numel
from ...symbolic.expr import as_expr
from ..cache import content_key, open_cache
from .compile import Job, compile_all
from .counters import Counters
from .gpu_kernels import fits, make_kernel
from .workers import triton_version

__all__ = ["tune", "searched", "candidates", "arguments", "time_in_turn", "time_from_graphs", "copy_bandwidth"]

CLEARLY = 0.97  # of the rules' median: less gain than this is noise
GOOD = 1.10  # times the time of a copy of equal bytes: nothing to gain
LEAST_US = 6.0  # kernels that take less are the launch
MOST_S = 4.0  # of search for one graph
MOST_SHARE = 0.4  # of free memory, for one kernel's buffers
ROUNDS, LAUNCHES = 9, 5
GRAPH_ROUNDS, REPEATS = 7, 10
FLOPS = 7e14  # operations a second of the library's products of 16 bits (of an H200)


def tune(generated: Generated, opts: Any, index: int) -> Generated:
    """The same graph with each kernel printed in the way that measured fastest. Raises ToolchainError as building
    does.
    """
    cache = open_cache(opts)
    until = time.perf_counter() + min(MOST_S, float(opts.get("autotune_seconds")) * max(1, len(generated.kernels)))
    chosen: dict[str, GeneratedKernel] = {}
    wanted: list[tuple[str, GeneratedKernel]] = []
    for kernel in generated.kernels:
        key = note_key(kernel, generated.target, index)
        note = cache.get_note(key)
        if note is None:
            wanted.append((key, kernel))
            continue
        kept = json.loads(note)
        events.emit("cache", key=key, hit=True, reason="", what=f"tuning of {kernel.name}")
        events.emit("autotune", kernel=kernel.name, trials=kept["trials"])
        chosen[kernel.name] = _printed(kernel, Choices(**kept["choices"]), generated.target, opts)
    if wanted:
        with torch.cuda.device(index), torch.random.fork_rng([index]):
            if not torch.cuda.is_current_stream_capturing():
                _search(wanted, generated, opts, index, cache, until, chosen)
    return replace(generated, kernels=[chosen.get(kernel.name, kernel) for kernel in generated.kernels])


def searched(what: str, opts: Any, search: Callable[[], Any], otherwise: Any) -> Any:
    """search(), or `otherwise` where it fails: that costs speed, not the graph."""
    try:
        return search()
    except ToolchainError:
        raise  # of a kernel that is needed
    except Exception as e:
        if not opts.get("suppress_errors"):
            raise
        events.fallback(
            "autotune", f"{what} ended with {type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}"
        )
        return otherwise


def note_key(kernel: GeneratedKernel, target: GpuTarget, index: int, more: str = "") -> str:
    """The name of what is kept of a kernel's search; `more`: what it was compared with, beside its own tiles."""
    return "tune-" + content_key(
        kernel.kernel.key() + repr(sorted(kernel.kernel.hints.items())) + repr(target) + more,
        (torch.cuda.get_device_name(index),),
        f"triton {triton_version()}",
    )


def _search(
    wanted: list[tuple[str, GeneratedKernel]],
    generated: Generated,
    opts: Any,
    index: int,
    cache: Any,
    until: float,
    chosen: dict[str, GeneratedKernel],
) -> None:
    jobs = [Job(k.source, generated.target, contract=not opts.get("emulate_precision", False)) for _, k in wanted]
    rows = []
    for (key, kernel), binary in zip(wanted, compile_all(jobs, opts)):
        try:
            given = arguments(kernel.kernel, index)
            if given is None or kernel.source.asserts:  # (made-up numbers may fail a check of indices)
                continue
            call = make_kernel(kernel, binary, generated.target, index, opts)
            us = time_in_turn([functools.partial(call, *given)], 3)[0]
        except torch.OutOfMemoryError as e:
            _give_up(kernel, e)
            continue
        floor = max(kernel.bytes / copy_bandwidth(index) * 1e6, 2.0)
        if us > LEAST_US and us > GOOD * floor:
            rows.append((us - floor, us, floor, key, kernel))
        else:
            _note(kernel, key, [_trial(Choices(), us, True)], Choices(), cache)
    rows.sort(key=lambda r: -r[0])
    for n, (_, us, floor, key, kernel) in enumerate(rows):
        left = until - time.perf_counter()
        if left <= 0:
            events.emit(
                "progress",
                text=f"tuning ends with its budget; kernels not searched: {len(rows) - n}, kernel",
                done=n,
                total=len(rows),
            )
            break
        events.emit(
            "progress",
            text=(
                f"tuning {kernel.name} ({us:.0f} us, a copy of its bytes {floor:.0f} us), at most {left:.1f} s left,"
                " kernel"
            ),
            done=n + 1,
            total=len(rows),
        )
        try:
            trials, best = _race(kernel, generated, opts, index)
        except torch.OutOfMemoryError as e:
            _give_up(kernel, e)
            continue
        _note(kernel, key, trials, best, cache)
        chosen[kernel.name] = _printed(kernel, best, generated.target, opts)


def _race(kernel: GeneratedKernel, generated: Generated, opts: Any, index: int) -> tuple[list[dict[str, Any]], Choices]:
    """Trials of one kernel, and the choices to keep."""
    variants = printed_variants(kernel, candidates(kernel, generated.target), generated.target, opts)
    calls: list[tuple[Choices, Callable]] = []
    jobs = [
        Job(variant.source, generated.target, contract=not opts.get("emulate_precision", False))
        for _, variant in variants
    ]
    given = arguments(kernel.kernel, index)
    assert given is not None
    for (choices, variant), binary in zip(variants, those_that_compile(jobs, opts)):
        if binary is not None and fits(binary, index):
            calls.append((choices, make_kernel(variant, binary, generated.target, index, opts)))
    run = [functools.partial(call, *given) for _, call in calls]
    quick = time_in_turn(run, 2)
    keep = [i for i, seconds in enumerate(quick) if i == 0 or seconds < 1.25 * min(quick)]
    final = dict(zip(keep, time_in_turn([run[i] for i in keep], ROUNDS)))
    best = min(final, key=lambda i: final[i])
    if final[best] >= CLEARLY * final[0]:
        best = 0
    return [_trial(choices, final.get(i, quick[i]), i == best) for i, (choices, _) in enumerate(calls)], calls[best][0]


def printed_variants(
    kernel: GeneratedKernel, choices: Sequence[Choices], target: GpuTarget, opts: Any
) -> list[tuple[Choices, GeneratedKernel]]:
    """The kernel printed in each way; ways that give the same text and tiles count once."""
    variants: list[tuple[Choices, GeneratedKernel]] = []
    seen: set[tuple] = set()
    for choice in choices:
        variant = _printed(kernel, choice, target, opts)
        same = (
            variant.source.text,
            *(
                (function.warps, function.stages, tuple(function.constants.items()))
                for function in variant.source.functions
            ),
        )
        if same not in seen:
            seen.add(same)
            variants.append((choice, variant))
    return variants


def those_that_compile(jobs: Sequence[Job], opts: Any) -> list[Any]:
    """Binaries, None for a variant that the compiler rejects (too much shared memory, too many registers)."""
    try:
        return list(compile_all(jobs, opts))
    except ToolchainError:
        out: list[Any] = []
        for job in jobs:
            try:
                out += compile_all([job], opts)
            except ToolchainError:
                out.append(None)
        return out


def described(choices: Choices) -> dict[str, Any]:
    return choices.plain() or {"default": True}


def _trial(choices: Choices, us: float, kept: bool) -> dict[str, Any]:
    return {"choices": described(choices), "us": round(us, 3), "kept": kept}


def _note(kernel: GeneratedKernel, key: str, trials: list[dict[str, Any]], best: Choices, cache: Any) -> None:
    cache.put_note(key, json.dumps({"choices": asdict(best), "trials": trials}))
    events.emit("autotune", kernel=kernel.name, trials=trials)


def _give_up(kernel: GeneratedKernel, error: Exception) -> None:
    torch.cuda.empty_cache()
    events.fallback(
        "autotune", f"{kernel.name} keeps the tile sizes that the rules chose: {str(error).splitlines()[0][:200]}"
    )


def _printed(kernel: GeneratedKernel, choices: Choices, target: GpuTarget, opts: Any) -> GeneratedKernel:
    if choices == Choices():
        return kernel
    return replace(
        kernel,
        source=print_kernel(
            kernel.kernel, target, choices, kernel.source.name, exact=bool(opts.get("emulate_precision", False))
        ),
    )


def candidates(kernel: GeneratedKernel, target: GpuTarget) -> list[Choices]:
    """Ways to print a kernel, the rules' first."""
    default = kernel.source.choices  # what the rules chose
    kind, out = default["shape"], [Choices()]
    if kind in ("pointwise", "horizontal"):
        out += [Choices(xblock=x, warps=w) for x, w in ((256, 2), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8))]
    elif kind == "tiled":
        out += [
            Choices(xblock=x, yblock=y, warps=w)
            for x, y, w in ((32, 32, 4), (64, 32, 4), (32, 64, 4), (64, 64, 4), (128, 32, 8), (32, 128, 8))
        ]
        out += [Choices(kind="pointwise")]
    elif kind == "persistent":
        rows = default["rblock"]
        out += [
            Choices(xblock=x, warps=w)
            for x in (1, 2, 4)
            if x * rows <= 16384
            for w in (1, 2, 4, 8, 16)
            if 32 * w <= x * rows <= 32 * w * 64
        ]
        if rows >= 1024:
            out += [Choices("looped", xblock=1, rblock=r, warps=w) for r, w in ((1024, 4), (2048, 8))]
    elif kind == "rows":
        out += [Choices(warps=w, stages=n) for w in (4, 8, 16) for n in (1, 2, 3)]
    elif kind == "looped":
        if default["xblock"] > 4:
            out += [Choices(xblock=x, rblock=r, warps=w) for x in (16, 32, 64) for r, w in ((16, 4), (32, 4), (64, 8))]
        else:
            out += [
                Choices(xblock=1, rblock=r, warps=w)
                for r, w in ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16), (8192, 16))
            ]
    elif kind == "product":
        out += product_choices(kernel.kernel, target, default)
    elif kind == "windows":
        out += windows_choices(default)
    elif kind == "window gradients":
        out += window_gradients_choices()
    elif kind in ("attention", "chain"):
        out += tile_choices(default)
    elif kind == "split":
        splits = sorted(
            {
                max(1, default["split"] // 2),
                default["split"],
                min(512, default["split"] * 2),
                min(512, default["split"] * 4),
            }
        )
        shapes = (
            ((32, 16, 4), (32, 32, 4), (64, 16, 4), (64, 32, 8), (128, 8, 4), (128, 16, 8))
            if default["xblock"] > 4
            else ((1, 1024, 4), (1, 2048, 8), (1, 4096, 16))
        )
        out += [Choices(xblock=x, rblock=r, warps=w, split=split) for x, r, w in shapes for split in splits]
        out += [Choices(stages=3, split=split) for split in splits]
    return out


@functools.cache
def copy_bandwidth(index: int) -> float:
    """Bytes a second of a large copy on this device, reads and writes together."""
    with torch.cuda.device(index):
        n = min(1 << 28, torch.cuda.mem_get_info(index)[0] // 8)
        a = torch.empty(n, dtype=torch.uint8, device="cuda")
        b = torch.empty_like(a)
        us = time_in_turn([lambda: b.copy_(a)], 5)[0]
    return 2 * n / us * 1e6


def time_in_turn(calls: Sequence[Callable[[], Any]], rounds: int, launches: int = LAUNCHES) -> list[float]:
    """Median microseconds of each on the device, measured in turn after a first run each. `launches`: runs one after
    the other that are timed together."""
    for call in calls:
        call()
    times: list[list[float]] = [[] for _ in calls]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for call, row in zip(calls, times):
            call()
            begin.record()
            for _ in range(launches):
                call()
            end.record()
            end.synchronize()
            row.append(begin.elapsed_time(end) * 1e3 / launches)
    return [statistics.median(row) for row in times]


def time_from_graphs(calls: Sequence[Callable[[], Any]], replayed: bool = True) -> list[float]:
    """Median microseconds of each on the device, from CUDA graphs of REPEATS runs that are replayed in turn.
    `replayed`: whether they will be, so that counters of products are cleared first (counters.py)."""
    graphs = []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
            torch.cuda.synchronize()
            with Counters(torch.cuda.current_device(), replayed) as counters:
                counters.graph.capture_begin()
                try:
                    for _ in range(REPEATS):
                        call()
                finally:
                    counters.graph.capture_end()
            graphs.append(counters.graph)
    torch.cuda.current_stream().wait_stream(side)
    return [t / REPEATS for t in time_in_turn([graph.replay for graph in graphs], GRAPH_ROUNDS, 1)]


def arguments(kernel: Kernel, index: int) -> list | None:
    """Tensors, sizes and scalars to measure with; None where the sizes have no hints, or memory for the buffers is not
    there.
    """
    try:
        sizes = [int(as_expr(size).eval(kernel.hints)) for size in kernel.sizes]
        values = {str(size): n for size, n in zip(kernel.sizes, sizes)} | dict(kernel.hints)
        shapes = [
            tuple(tuple(int(as_expr(dim).eval(values)) for dim in dims) for dims in (buffer.shape, buffer.stride))
            for buffer in (*kernel.inputs, *kernel.outputs)
        ]
    except KeyError:
        return None
    buffers = [*kernel.inputs, *kernel.outputs]
    need = sum(_span(shape, stride) * buffer.dtype.itemsize for buffer, (shape, stride) in zip(buffers, shapes))
    if need > MOST_SHARE * torch.cuda.mem_get_info(index)[0]:
        return None
    product = find_product(without_locals(kernel)) if kernel.template is None else None
    parted = (
        {product.groups.ends.buffer: at_hints(numel(product.axes_in_groups), kernel.hints)}
        if product is not None and product.groups is not None
        else {}
    )
    tensors = [
        made_up(buffer, shape, stride, index, parted.get(buffer)) for buffer, (shape, stride) in zip(buffers, shapes)
    ]
    return [*tensors, *sizes, *(1.0 if dtype.is_floating_point else 1 for _, dtype in kernel.params)]


def _span(shape: tuple, stride: tuple) -> int:
    return 1 + sum((size - 1) * st for size, st in zip(shape, stride)) if all(shape) else 0


def made_up(buffer: Buffer, shape: tuple, stride: tuple, index: int, parted: int | None = None) -> torch.Tensor:
    """A tensor like the buffer, to measure with. parted: it tells where groups of so many rows end. They are made
    alike: how calls will part their rows is not known, and for groups that are not alike the library and our kernels do
    the same products more."""
    tensor = torch.empty(max(1, _span(shape, stride)), dtype=buffer.dtype, device=torch.device("cuda", index))
    if buffer.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64) and buffer.kind != "output":
        tensor.uniform_()
    else:
        tensor.zero_()  # integers may be indices: 0 is always inside
    tensor = tensor.as_strided(shape, stride)
    if parted is not None:
        tensor.copy_(torch.arange(1, shape[0] + 1) * parted // shape[0])
    return tensor
