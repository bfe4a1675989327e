"""mode="max-autotune" on a GPU: which matrix products are generated kernels, with what follows them, and which are the
library's.

Each product of 16 bits is compared as a whole: the generated kernel with its epilogue against the library's product and
those kernels that the epilogue makes superfluous. The graph is lowered twice for that, with all products generated and
with none. Products that cannot win by their bytes and operations are not tried; the rest run in turn from CUDA graphs,
so that launching them does not count. Like products of a graph are measured once, and the answer lies in the disk
cache.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Callable, Sequence

import torch

from ... import events
from ...codegen.cuda.product import find_tiles, product_choices
from ...codegen.kernel_cost import kernel_cost
from ...codegen.generated import GeneratedKernel
from ...codegen.triton.gpu_target import target_of
from ...codegen.triton.layout import Choices, GpuTarget, draws
from ...codegen.triton.print_kernel import print_kernel
from ...codegen.triton.printer import without_locals
from ...codegen.triton.product import find_product
from ...fusion.fuse import schedule
from ...fusion.schedule import Launch
from ...errors import ToolchainError
from ...lowering.ir import Buffer, Kernel
from ...lowering.lower import lower
from ...lowering.lowered import Extern
from ...symbolic.expr import as_expr
from ..cache import open_cache
from ..native_program import gemm_of, one_product, operands_of
from . import tune
from .algorithms import choose_algorithms
from .compile import Binary, Job
from .gpu_kernels import fits, make_kernel
from .tune import FLOPS, time_from_graphs
from .workers import processes

__all__ = ["choose", "find_candidates"]

GROUPED = "aten._grouped_mm.default"
PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default", GROUPED)
DTYPES = (torch.bfloat16, torch.float16)
OURS, TILES = 0.95, 1.2  # of the library's rate of arithmetic, that products in Triton and in CUDA C++ reach at best
IN_GROUPS = 0.7  # ... and the library's own of products of groups, of memory's rate, too
LEAST_TILES_S = 2e-5  # of a product that is worth trying in CUDA C++, which takes seconds to compile
JOBS = 4  # workers for each candidate of a graph; the candidates beyond are left to the library
LEAST_US = 3.0  # what a kernel takes at least, beside its bytes and operations
MOST_S = 3.0  # of search for one graph


@dataclass
class Candidate:
    """One kind of product in a graph: its kernel, and what that stands for, a call of the library and the kernels
    behind it. `nodes`: where it is.
    """

    kernel: GeneratedKernel
    nodes: list[str]
    extern: Extern
    superfluous: list[GeneratedKernel]
    left: list[
        GeneratedKernel
        # what the superfluous ones did beside that: kernels that run in any case, and count on the side of the
        # generated one
    ]
    gain: float  # microseconds, as predicted

    @property
    def key(self) -> str:
        """What it is compared with, beside the kernel."""
        return f"{self.extern.op} {[kernel.kernel.key() for kernel in self.superfluous]}" + (
            f" without {[kernel.kernel.key() for kernel in self.left]}" if self.left else ""
        )


def choose(aten: Any, opts: Any) -> Any:
    """The graph with the products named that are faster as generated kernels (AtenGraph.generated_products)."""
    nodes = [
        node
        for node in aten.graph.nodes
        if str(node.target) in PRODUCTS and node.meta["val"].device.type == "cuda" and node.meta["val"].dtype in DTYPES
    ]
    if not nodes or not opts.get("max_autotune") or opts.get("gpu_products") != "auto" or opts.get("emulate_precision"):
        return aten
    index = nodes[0].meta["val"].device.index or 0
    with torch.cuda.device(index), torch.random.fork_rng([index]):
        if torch.cuda.is_current_stream_capturing():
            return aten
        target = target_of(index, opts)
        chosen = tune.searched("the choice of products", opts, lambda: _choose(aten, opts, target, index), [])
    return replace(aten, generated_products=frozenset(chosen)) if chosen else aten


def _choose(aten: Any, opts: Any, target: GpuTarget, index: int) -> list[str]:
    candidates = find_candidates(aten, opts, target, tune.copy_bandwidth(index))
    new = [candidate for candidate in candidates if _known(candidate, target, index, opts) is None]
    compiled = _compile(new[: max(1, processes(opts) // JOBS)], target, opts)
    until = time.perf_counter() + min(MOST_S, float(opts.get("autotune_seconds")) * max(1, len(candidates)))
    return [
        name
        for candidate in candidates
        if _wins(candidate, target, index, opts, until, compiled)
        for name in candidate.nodes
    ]


def find_candidates(aten: Any, opts: Any, target: GpuTarget, bandwidth: float) -> list[Candidate]:
    """What may win by its bytes and operations, the most promising first. `bandwidth`: bytes a second."""
    names = frozenset(node.name for node in aten.graph.nodes if str(node.target) in PRODUCTS)
    by_library = schedule(lower(aten, opts, trial=True), opts)
    generated = schedule(lower(replace(aten, generated_products=names), opts, trial=True), opts)
    calls = {step.origin: step for step in by_library.steps if isinstance(step, Extern) and step.origin in names}
    launches, ours_instead = (
        [step.kernel for step in x.steps if isinstance(step, Launch)] for x in (by_library, generated)
    )
    found: dict[str, Candidate] = {}
    for k in ours_instead:
        nodes = [origin for origin in k.origins if origin in calls]
        if len(nodes) != 1 or find_product(without_locals(k)) is None or k.checks:
            continue  # (what is generated in any case; made-up numbers may fail a check of indices)
        behind, left = _behind(k, launches, ours_instead)
        key = k.key() + repr(sorted(k.hints.items())) + repr([x.key() for x in (*behind, *left)])
        if key in found:
            found[key].nodes += nodes
            continue
        call = calls[nodes[0]]
        if not all(type(size) is int for b in (*call.args, *call.outputs) if isinstance(b, Buffer) for size in b.shape):
            continue  # (what one size measured would serve all: the library has a choice for each)
        operations = kernel_cost(k)[1] / (FLOPS * target.processors / 132)
        in_groups = str(call.op) == GROUPED
        if in_groups and operations > _bytes_of(call) / bandwidth:
            continue  # (what follows our tiles is not hidden beside others': measured in a step, 92 us beside 72)
        tiles = operations > LEAST_TILES_S and find_tiles(without_locals(k), target) is not None
        ours, theirs = (
            sum(kernel_cost(other)[0] / bandwidth * 1e6 + LEAST_US for other in others) for others in (left, behind)
        )
        ours += max(kernel_cost(k)[0] / bandwidth, operations / (TILES if tiles else OURS)) * 1e6 + LEAST_US
        theirs += max(_bytes_of(call) / bandwidth, operations) / (IN_GROUPS if in_groups else 1) * 1e6 + LEAST_US
        instead_of, beside = ([_printed(other, target, other.name) for other in others] for others in (behind, left))
        found[key] = Candidate(
            _printed(k, target, f"product_{nodes[0]}"), nodes, call, instead_of, beside, theirs - ours
        )
    return sorted((candidate for candidate in found.values() if candidate.gain > 0), key=lambda c: -c.gain)


def _behind(kernel: Kernel, launches: Sequence[Kernel], instead: Sequence[Kernel]) -> tuple[list[Kernel], list[Kernel]]:
    """The kernels behind a library's product that kernel k makes superfluous, and those of `instead` that do what k
    does not of it (a sum of what a kernel stores)."""
    parts = set(kernel.origins)
    behind: list[Kernel] = []
    left: list[Kernel] = []
    for launch in launches:
        if not launch.origins or not parts & set(launch.origins):
            continue
        rest = [y for y in instead if y is not kernel and set(y.origins) & set(launch.origins) - parts]
        if parts.union(*(y.origins for y in rest)) >= set(launch.origins) and all(
            set(launch.origins) | parts >= set(y.origins) for y in rest
        ):
            behind.append(launch)
            left += [y for y in rest if y not in left]
    return behind, left


def _printed(kernel: Kernel, target: GpuTarget, name: str) -> GeneratedKernel:
    n_bytes, flops = kernel_cost(kernel)
    return GeneratedKernel(name, kernel, print_kernel(kernel, target, name=name), n_bytes, flops)


def _bytes_of(call: Extern) -> int:
    return sum(
        buffer.dtype.itemsize * math.prod(buffer.shape)
        for buffer in (*call.args, *call.outputs)
        if isinstance(buffer, Buffer)
    )


@dataclass
class _Compiled:
    """The ways to print a candidate with their binaries (None: rejected), those of the kernels that it stands for, and
    of what is left of these.
    """

    variants: list[tuple[Choices, GeneratedKernel]]
    binaries: list[Binary | None]
    behind: list[Binary | None]
    left: list[Binary | None]


def _compile(candidates: Sequence[Candidate], target: GpuTarget, opts: Any) -> dict[str, _Compiled]:
    """All of them at once, by the names of their kernels: the processors of the host are many, and each takes
    seconds.
    """
    contract = not opts.get("emulate_precision", False)
    variants = [
        tune.printed_variants(candidate.kernel, _ways(candidate, target), target, opts) for candidate in candidates
    ]
    if candidates:
        events.emit(
            "progress", text="compiling products to compare with the library's, kind", done=0, total=len(candidates)
        )
    jobs = [
        Job(k.source, target, contract=contract)
        for candidate, found in zip(candidates, variants)
        for k in (*candidate.superfluous, *candidate.left, *(v for _, v in found))
    ]
    binaries = iter(tune.those_that_compile(jobs, opts))
    out = {}
    for candidate, found in zip(candidates, variants):
        behind, left = ([next(binaries) for _ in kernels] for kernels in (candidate.superfluous, candidate.left))
        out[candidate.kernel.name] = _Compiled(found, [next(binaries) for _ in found], behind, left)
    return out


def _ways(candidate: Candidate, target: GpuTarget) -> list[Choices]:
    """Ways to print a candidate. Triton's tiles spill where random numbers are drawn behind them: 15 s to compile,
    twenty times the library's time.
    """
    found = product_choices(candidate.kernel.kernel, target, candidate.kernel.source.choices)
    in_cuda = [x for x in found if x.kind == "tiles"]
    return in_cuda if in_cuda and draws(candidate.kernel.kernel) else [Choices(), *found]


def _note_key(candidate: Candidate, target: GpuTarget, index: int) -> str:
    return tune.note_key(candidate.kernel, target, index, "product " + candidate.key)


def _known(candidate: Candidate, target: GpuTarget, index: int, opts: Any) -> list[dict[str, Any]] | None:
    """The trials of an earlier comparison."""
    note = open_cache(opts).get_note(_note_key(candidate, target, index))
    return None if note is None else json.loads(note)


def _wins(
    candidate: Candidate, target: GpuTarget, index: int, opts: Any, until: float, compiled: dict[str, _Compiled]
) -> bool:
    """Whether the generated kernel, in the best of its ways, is clearly faster than the library and what follows it."""
    cache = open_cache(opts)
    key = _note_key(candidate, target, index)
    trials = _known(candidate, target, index, opts)
    if trials is not None:
        events.emit("cache", key=key, hit=True, reason="", what=f"choice of {candidate.kernel.name}")
    elif time.perf_counter() > until or candidate.kernel.name not in compiled:
        events.emit(
            "progress",
            text=f"the search ends with its budget; {candidate.kernel.name} is left to the library",
            done=1,
            total=1,
        )
        return False
    else:
        left = until - time.perf_counter()
        text = f"comparing {candidate.kernel.name} with the library, at most {left:.1f} s left"
        events.emit("progress", text=text, done=0, total=1)
        try:
            trials, best = _race(candidate, compiled[candidate.kernel.name], target, index, opts)
        except (RuntimeError, ToolchainError, KeyError) as e:
            # memory, a call that no CUDA graph can hold, a size that has no hint
            torch.cuda.empty_cache()
            events.fallback(
                "autotune", f"{candidate.kernel.name} is left to the library: {str(e).splitlines()[0][:200]}"
            )
            return False
        cache.put_note(key, json.dumps(trials))
        if best is not None:
            ours = [{**trial, "kept": trial["choices"] == tune.described(best)} for trial in trials[1:]]
            cache.put_note(
                tune.note_key(candidate.kernel, target, index), json.dumps({"choices": asdict(best), "trials": ours})
            )
    if trials[0]["kept"]:
        events.emit("autotune", kernel=candidate.kernel.name, trials=trials)
    return not trials[0]["kept"]


def _race(
    candidate: Candidate, found: _Compiled, target: GpuTarget, index: int, opts: Any
) -> tuple[list[dict[str, Any]], Choices | None]:
    """Trials, the library's first, and the tiles to keep; None: the library."""
    given = tune.arguments(candidate.kernel.kernel, index)
    if given is None:
        raise RuntimeError("its operands would take too much memory to be measured")
    behind, left = (
        _calls(candidate.superfluous, found.behind, target, index, opts),
        _calls(candidate.left, found.left, target, index, opts),
    )
    library = _library(candidate, index, opts)

    def run(*calls: Callable) -> None:
        for call in calls:
            call()

    calls: list[tuple[Choices | None, Callable]] = [(None, partial(run, library, *behind))]
    for (choices, v), binary in zip(found.variants, found.binaries):
        if binary is not None and fits(binary, index):
            calls.append((choices, partial(run, partial(make_kernel(v, binary, target, index, opts), *given), *left)))
    times = time_from_graphs([f for _, f in calls])
    best = min(range(len(times)), key=lambda i: times[i])
    if times[best] >= tune.CLEARLY * times[0]:
        best = 0
    return [
        {"choices": {"library": True} if x is None else tune.described(x), "us": round(t, 3), "kept": i == best}
        for i, ((x, _), t) in enumerate(zip(calls, times))
    ], calls[best][0]


def _calls(
    kernels: Sequence[GeneratedKernel], binaries: Sequence[Binary | None], target: GpuTarget, index: int, opts: Any
) -> list[Callable]:
    """Kernels with operands of their own."""
    out: list[Callable] = []
    for kernel, binary in zip(kernels, binaries):
        given = tune.arguments(kernel.kernel, index)
        if given is None:
            raise RuntimeError("its operands would take too much memory to be measured")
        if binary is None:
            raise ToolchainError(f"{kernel.name} does not compile")
        out.append(partial(make_kernel(kernel, binary, target, index, opts), *given))
    return out


def _library(candidate: Candidate, index: int, opts: Any) -> Callable[[], Any]:
    """The library's product as a plan would run it: by its best algorithm where that is chosen by measuring, else by
    torch's operator.
    """
    parted = _parted(candidate.extern)
    operands = [
        _operand(a, candidate.kernel.kernel.hints, index, parted if k == 2 else None)
        for k, a in enumerate(operands_of(candidate.extern))
    ]
    gemm = gemm_of(candidate.extern) if candidate.extern.out_variant is not None else ()
    if not gemm:
        return lambda: candidate.extern.op(
            *operands, *candidate.extern.args[len(operands) :], **candidate.extern.kwargs
        )
    out = _operand(candidate.extern.outputs[0], {}, index)
    return partial(
        one_product(candidate.extern, index, choose_algorithms([candidate.extern], opts, index).get(gemm, ())),
        out,
        *operands,
    )


def _parted(call: Extern) -> int | None:
    """How many rows, columns or elements of a sum the third operand of a product of groups parts."""
    if str(call.op) != GROUPED or len(call.args) < 3 or call.args[2] is None:
        return None
    a, b = call.args[:2]
    return int(b.shape[1] if len(a.shape) == 3 else a.shape[0] if len(b.shape) == 3 else a.shape[1])


def _operand(a: Any, hints: dict[str, int], index: int, parted: int | None = None) -> Any:
    if not isinstance(a, Buffer):
        return a
    shape, stride = (tuple(int(as_expr(dim).eval(hints)) for dim in dims) for dims in (a.shape, a.stride))
    return tune.made_up(a, shape, stride, index, parted)
