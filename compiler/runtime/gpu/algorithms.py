"""Which of cuBLASLt's algorithms runs each kind of product of 16 bits.

The library guesses by a model of the device; its first guess is a tenth slower than its best on some large products.
Those are timed whatever the mode is: that takes some 20 ms each, launched as they are. Under mode="max-autotune" all
are, the small ones from CUDA graphs, as are the large ones that will be replayed (an algorithm that has a counter
zeroed before waits for it, longer in a graph). Operands go round in more memory than the caches hold: a product rarely
finds its matrices there. Another algorithm than the first is kept only where it is clearly faster. Like products are
measured once; the answer lies in the disk cache, under the device and the library's version, to which alone the bytes
of an algorithm mean something.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from typing import Any, Callable, Iterable

import torch

from ... import events
from ...fusion.schedule import Extern
from ...lowering.ir import Buffer
from ...native import native
from ...symbolic.expr import as_expr
from ..cache import content_key, open_cache
from ..native_program import gemm_of, one_product, operands_of
from . import tune
from .tune import FLOPS, REPEATS, time_from_graphs

__all__ = ["choose_algorithms"]

CANDIDATES = 8
DTYPES = (torch.bfloat16, torch.float16)
LARGE_US = 45.0  # what a large product takes at least: launches are hidden behind it
MOST_S, LARGE_S = 1.0, 0.2  # of search for one graph: under max-autotune, otherwise
ROUNDS = 5
BEYOND_CACHES = 2  # times the second-level cache, that operands go round in


def choose_algorithms(steps: Iterable[Any], opts: Any, index: int) -> dict[tuple, tuple[bytes, int]]:
    """By `gemm_of` the algorithm, with the bytes of its workspace, of those products among a plan's steps for which
    another than the library's first guess was faster.
    """
    found: dict[tuple, Extern] = {}
    times: Counter[tuple] = Counter()
    for step in steps:
        if (
            isinstance(step, Extern)
            and step.out_variant is not None
            and all(isinstance(b, Buffer) and b.dtype in DTYPES for b in operands_of(step))
        ):
            gemm = gemm_of(step)
            if gemm:
                found.setdefault(gemm, step)
                times[gemm] += 1
    whole = bool(opts.get("max_autotune"))
    wanted = [gemm for gemm in sorted(found, key=lambda g: -times[g] * _us(g)) if whole or _us(gemm) >= LARGE_US]
    version = native.gemm_library() if wanted and native is not None else 0
    if not version:
        return {}
    cache = open_cache(opts)
    chosen: dict[tuple, tuple[bytes, int]] = {}
    until = time.perf_counter() + (min(MOST_S, float(opts.get("autotune_seconds")) * len(wanted)) if whole else LARGE_S)
    with torch.cuda.device(index), torch.random.fork_rng([index]):
        if torch.cuda.is_current_stream_capturing():
            return {}
        for gemm in wanted:
            note = _note(gemm, found[gemm], version, cache, opts, index, until)
            if note is not None and note["algorithm"]:
                chosen[gemm] = bytes.fromhex(note["algorithm"]), int(note["workspace"])
    return chosen


def _us(gemm: tuple) -> float:
    """Microseconds that a product takes at least, by its operations."""
    m, n, k = gemm[4:7]
    return 2 * m * n * k / FLOPS * 1e6


def _note(
    gemm: tuple, step: Extern, version: int, cache: Any, opts: Any, index: int, until: float
) -> dict[str, Any] | None:
    """What is known of one kind of product, measured where nothing is; None where that can't be done, or the time is
    up.
    """
    name = f"{str(step.op).split('.')[1]} {'x'.join(map(str, gemm[4:7]))}"
    replayed = bool(opts.get("cudagraphs") and opts.get("max_autotune"))
    key = "gemm-" + content_key(
        repr(gemm),
        (torch.cuda.get_device_name(index), "replayed, cleared first" if replayed else "launched"),
        f"cublasLt {version}",
    )
    text = cache.get_note(key)
    if text is not None:
        events.emit("cache", key=key, hit=True, reason="", what=f"algorithm of {name}")
        note = json.loads(text)
    elif time.perf_counter() > until:
        events.emit(
            "progress", text=f"the search ends with its budget; {name} runs as the library guesses", done=1, total=1
        )
        return None
    else:
        events.emit(
            "progress",
            text=f"timing the library's algorithms for {name}, at most {until - time.perf_counter():.1f} s left",
            done=0,
            total=1,
        )
        try:
            note = _race(gemm, step, index, replayed)
        except RuntimeError as e:  # memory, a call that no CUDA graph can hold
            torch.cuda.empty_cache()
            events.fallback("autotune", f"{name} runs as the library guesses: {str(e).splitlines()[0][:200]}")
            return None
        cache.put_note(key, json.dumps(note))
    if note["trials"]:
        events.emit("autotune", kernel=name, trials=note["trials"])
    return note


def _race(gemm: tuple, step: Extern, index: int, replayed: bool) -> dict[str, Any]:
    rows = native.gemm_algorithms(index, gemm, CANDIDATES)
    if len(rows) < 2:
        return {"algorithm": "", "workspace": 0, "trials": []}
    sets = _operands(step, index)
    calls = [_in_turn(one_product(step, index, row[:2]), sets) for row in rows]
    times = (
        tune.time_in_turn(calls, ROUNDS)
        if _us(gemm) >= LARGE_US and not replayed
        else time_from_graphs(calls, replayed)
    )
    best = min(range(len(rows)), key=lambda i: times[i])
    if times[best] >= tune.CLEARLY * times[0]:
        best = 0
    trials = [
        {"choices": {"algorithm": i, "parts": parts, "workspace": workspace}, "us": round(us, 3), "kept": i == best}
        for i, ((_, workspace, parts), us) in enumerate(zip(rows, times))
    ]
    return {"algorithm": rows[best][0].hex() if best else "", "workspace": rows[best][1], "trials": trials}


def _in_turn(run: Callable[..., tuple], sets: list[list[torch.Tensor]]) -> Callable[[], Any]:
    turn = itertools.cycle(sets)
    return lambda: run(*next(turn))


def _operands(step: Extern, index: int) -> list[list[torch.Tensor]]:
    """Results and operands, several times over."""
    buffers = (*step.outputs, *operands_of(step))
    shapes, strides = (
        [tuple(as_expr(dim).value for dim in dims) for dims in all_dims]
        for all_dims in ([buffer.shape for buffer in buffers], [buffer.stride for buffer in buffers])
    )
    size = sum(
        buffer.dtype.itemsize * (1 + sum((n - 1) * st for n, st in zip(*dims)))
        for buffer, *dims in zip(buffers, shapes, strides)
    )
    caches = torch.cuda.get_device_properties(index).L2_cache_size
    n = min(REPEATS, -(-BEYOND_CACHES * caches // size))
    if n * size > tune.MOST_SHARE * torch.cuda.mem_get_info(index)[0]:
        raise RuntimeError("its operands would take too much memory to be measured")
    return [
        [tune.made_up(buffer, shape, stride, index) for buffer, shape, stride in zip(buffers, shapes, strides)]
        for _ in range(max(1, n))
    ]
