"""mode="max-autotune" on the CPU: each kernel is printed in several ways, and the fastest by measurement is kept.

What varies is `Choices` (codegen/cpp/layout.py): the vector axis and so the order of the loops, lanes, unrolling, the
size of a work item, and the number of threads. Candidates run in turn on buffers of the kernel's shapes at the size
hints, round after round until the time is up. One replaces the default only where its median is clearly lower and it
won most of the rounds. Results are kept in the disk cache under the kernel's content, the machine and the compiler, so
a second process searches nothing.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Sequence

import torch

from .. import events
from ..codegen.cpp.layout import Choices
from ..codegen.cpp.printer import print_kernel
from ..codegen.generated import Generated, GeneratedKernel
from ..lowering.ir import Buffer, Kernel
from ..symbolic.expr import as_expr
from .cache import KernelCache, content_key, open_cache
from .cpu_kernels import load_kernels, load_text
from .toolchain import find

__all__ = ["tune", "candidates", "Trial"]

CLEARLY = 0.97  # of the default's median: less gain than this is noise
MOST_BYTES = 1 << 30  # of one kernel's buffers; larger kernels keep the default
ROUNDS = 31


@dataclass
class Trial:
    """One way to print a kernel and its median time in microseconds; `threads` 0: as many as torch uses."""

    choices: Choices
    threads: int
    microseconds: float
    kept: bool = False

    def plain(self) -> dict[str, Any]:
        """For the event, the report and the disk cache."""
        given = {key: value for key, value in asdict(self.choices).items() if value not in (None, False)}
        return {
            "choices": given or {"default": True},
            "threads": self.threads,
            "us": round(self.microseconds, 3),
            "kept": self.kept,
        }


def candidates(kernel: Kernel, default: dict[str, Any]) -> list[Choices]:
    """Ways to print `kernel`, the default first. `default`: what the rules chose (KernelSource.choices)."""
    out = [Choices()]
    reduces = any(stage.accs for stage in kernel.stages)
    out += [Choices(unroll=u) for u in (1, 2, 4, 8)]
    if default["lanes"] > 4:
        out.append(Choices(lanes=default["lanes"] // 2))
    if default["shape"] == "outer":
        out += [Choices(vector=axis.symbol.name) for axis in kernel.outer if axis.symbol.name != default["vector"]]
        block = default["block"] or 4096
        out += [Choices(block=b) for b in (block // 4, block // 2, block * 2, block * 4) if b >= default["lanes"]]
    if kernel.outer and reduces and default["shape"] in ("inner", "outer"):
        out.append(Choices(mode="outer" if default["shape"] == "inner" else "inner"))
    return list(dict.fromkeys(out))


def tune(generated: Generated, opts: Any) -> Generated:
    """The same graph with each kernel printed in the way that measured fastest. Raises ToolchainError as building
    does.
    """
    cache = open_cache(opts)
    tool = find(opts, cache)
    seconds = float(opts.get("autotune_seconds"))
    kernels, threads = [], {}
    for i, kernel in enumerate(generated.kernels):
        left = seconds * (len(generated.kernels) - i)
        events.emit(
            "progress",
            text=f"tuning {kernel.name}, at most {left:.0f} s left, kernel",
            done=i + 1,
            total=len(generated.kernels),
        )
        best, n = _tune_kernel(kernel, generated, opts, cache, tool, seconds)
        kernels.append(best)
        threads[best.name] = n
    return replace(generated, kernels=kernels, threads=threads)


def _tune_kernel(
    kernel: GeneratedKernel, generated: Generated, opts: Any, cache: KernelCache, tool: Any, seconds: float
) -> tuple[GeneratedKernel, int]:
    key = "tune-" + content_key(
        kernel.kernel.key()
        + repr(sorted(kernel.kernel.hints.items()))
        + repr(generated.target.width)
        + f"threads {torch.get_num_threads()}",
        tool.flags(generated.target),
        tool.version,
    )
    note = cache.get_note(key)
    if note is not None:
        kept = json.loads(note)
        events.emit("cache", key=key, hit=True, reason="", what=f"tuning of {kernel.name}")
        events.emit("autotune", kernel=kernel.name, trials=kept["trials"])
        return _printed(kernel, Choices(**kept["choices"]), generated), kept["threads"]
    trials = _measure(kernel, generated, opts, seconds)
    best = next((trial for trial in trials if trial.kept), None)
    choices, n = (best.choices, best.threads) if best is not None else (Choices(), 0)
    plain = [trial.plain() for trial in trials]
    cache.put_note(key, json.dumps({"choices": asdict(choices), "threads": n, "trials": plain}))
    events.emit("autotune", kernel=kernel.name, trials=plain)
    return _printed(kernel, choices, generated), n


def _printed(kernel: GeneratedKernel, choices: Choices, generated: Generated) -> GeneratedKernel:
    return (
        kernel
        if choices == Choices()
        else replace(kernel, source=print_kernel(kernel.kernel, generated.target, choices, kernel.name))
    )


def _measure(kernel: GeneratedKernel, generated: Generated, opts: Any, seconds: float) -> list[Trial]:
    arguments = _arguments(kernel.kernel)
    if arguments is None:
        return []
    until = time.perf_counter() + seconds
    variants: list[tuple[Choices, GeneratedKernel]] = []
    seen: set[str] = set()
    for choices in candidates(kernel.kernel, kernel.source.choices):
        variant = _printed(kernel, choices, generated)
        if variant.source.code not in seen:
            seen.add(variant.source.code)
            variants.append((choices, variant))
    # all of them at once, in parallel
    load_text([(variant.name, variant.source.code) for _, variant in variants], generated.target, opts)
    calls = load_kernels([variant for _, variant in variants], generated.target, opts)
    if kernel.source.checks and not _passes(calls[0], arguments):
        return []
    trials = _race([(choices, 0, call) for (choices, _), call in zip(variants, calls)], arguments, until)
    winner = min(trials, key=lambda trial: trial.microseconds) if trials else None
    if winner is not None and torch.get_num_threads() > 1:
        call = calls[[choices for choices, _ in variants].index(winner.choices)]
        numbers = sorted({1, torch.get_num_threads() // 2} - {0, torch.get_num_threads()})
        trials += _race(
            [(winner.choices, number, _with_threads(call, number)) for number in numbers]
            + [(winner.choices, 0, _with_threads(call, 0))],
            arguments,
            until,
        )[:-1]
        call.threads = 0
    default = trials[0]
    best = min(trials, key=lambda trial: trial.microseconds)
    if best.microseconds < CLEARLY * default.microseconds and _wins_again(best, variants, calls, arguments, seconds):
        best.kept = True
    else:
        default.kept = True
    return trials


def _passes(call: Callable, arguments: list) -> bool:
    """Whether made-up numbers pass the kernel's checks of indices: `i - 1`, and constants of the program, need not."""
    try:
        call(*arguments)
    except (IndexError, RuntimeError):  # (what `check_error` makes)
        return False
    return True


def _wins_again(
    best: Trial,
    variants: Sequence[tuple[Choices, GeneratedKernel]],
    calls: Sequence[Callable],
    arguments: list,
    seconds: float,
) -> bool:
    """Whether the best of many is faster than the default also in a race of the two alone: the least of many medians is
    lucky, too.
    """
    call = calls[[c for c, _ in variants].index(best.choices)]
    runner = call if best.threads == 0 else _with_threads(call, best.threads)
    first, again = _race(
        [(variants[0][0], 0, calls[0]), (best.choices, best.threads, runner)],
        arguments,
        time.perf_counter() + seconds / 4,
    )
    call.threads = 0
    return again.microseconds < CLEARLY * first.microseconds


def _with_threads(call: Callable, n: int) -> Callable:
    def run(*args: Any) -> None:
        call.threads = n
        call(*args)

    return run


def _race(runners: Sequence[tuple[Choices, int, Callable]], arguments: list, until: float) -> list[Trial]:
    """Median time of each, measured in turn; stops early when the time is up."""
    times: list[list[float]] = [[] for _ in runners]
    for _, _, call in runners:
        call(*arguments)
    repeat = 1
    t0 = time.perf_counter()
    runners[0][2](*arguments)
    once = max(time.perf_counter() - t0, 1e-7)
    repeat = max(1, min(1000, int(100e-6 / once)))
    for round_number in range(ROUNDS):
        for (_, _, call), row in zip(runners, times):
            t0 = time.perf_counter()
            for _ in range(repeat):
                call(*arguments)
            row.append((time.perf_counter() - t0) / repeat * 1e6)
        if time.perf_counter() > until and round_number >= 2:
            break
    base = times[0]
    out = []
    for (choices, threads, _), row in zip(runners, times):
        median = statistics.median(row)
        wins = sum(a < b for a, b in zip(row, base))
        if row is not base and 2 * wins < len(row):  # a low median by luck: do not let it pass for a gain
            median = max(median, statistics.median(base))
        out.append(Trial(choices, threads, median))
    return out


def _arguments(kernel: Kernel) -> list | None:
    """Tensors, sizes and scalars to measure with; None where the sizes have no hints or the buffers are too large."""
    try:
        sizes = [int(as_expr(size).eval(kernel.hints)) for size in kernel.sizes]
        values = {size.name: size_value for size, size_value in zip(kernel.sizes, sizes)} | dict(kernel.hints)
        tensors = []
        total = 0
        for buffer in (*kernel.inputs, *kernel.outputs):
            tensor = _tensor(buffer, values)
            total += tensor.untyped_storage().nbytes()
            if total > MOST_BYTES:
                return None
            tensors.append(tensor)
    except KeyError:
        return None
    return [*tensors, *sizes, *(1.0 if dtype.is_floating_point else 1 for _, dtype in kernel.params)]


def _tensor(buffer: Buffer, values: dict[str, int]) -> torch.Tensor:
    shape = tuple(int(as_expr(size).eval(values)) for size in buffer.shape)
    stride = tuple(int(as_expr(s).eval(values)) for s in buffer.stride)
    n = 1 + sum((size - 1) * st for size, st in zip(shape, stride)) if all(shape) else 0
    flat = torch.zeros(n, dtype=buffer.dtype)  # integers may be indices: 0 is always inside
    if buffer.dtype.is_floating_point and buffer.kind != "output":
        flat.copy_(torch.rand(n, generator=torch.Generator().manual_seed(0)))
    return flat.as_strided(shape, stride)  # elements of windows and of what is expanded share memory
