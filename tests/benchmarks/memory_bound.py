"""Memory-bound kernels against loops in C that a person wrote for the same buffers.

    python tests/benchmarks/memory_bound.py [--seconds 2] [--only softmax,transpose]

Each loop is the obvious one, with vectors left to the compiler under `-O3 -march=native -ffast-math` (glibc's vector
expf included). Both sides run on one thread, in turn, on the same buffers; times are the least processor time of a
round. "call" is the compiled function as the user calls it: guards, allocation of the result and pool included.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events
from tcompile.compiler.codegen.cpp.printer import print_kernel
from tcompile.compiler.codegen.generated import GeneratedKernel
from tcompile.compiler.codegen.target import host_target
from tcompile.compiler.config import Options
from tcompile.compiler.runtime.cpu_kernels import load_kernels

N, M = 2048, 2048

SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <immintrin.h>
typedef const float *in_t;
extern "C" {
void pointwise(in_t a, in_t b, float *o, long n, long m) { for (long i = 0; i < n * m; i++) o[i] = a[i] * b[i] + 2.0f * a[i]; }
void row_sum(in_t a, float *o, long n, long m) {
    for (long i = 0; i < n; i++) { float s = 0; for (long j = 0; j < m; j++) s += a[i * m + j]; o[i] = s; }
}
void column_sum(in_t a, float *o, long n, long m) {
    memset(o, 0, m * sizeof(float));
    for (long i = 0; i < n; i++) for (long j = 0; j < m; j++) o[j] += a[i * m + j];
}
void row_max(in_t a, float *o, long n, long m) {
    for (long i = 0; i < n; i++) { float s = -INFINITY; for (long j = 0; j < m; j++) s = a[i * m + j] > s ? a[i * m + j] : s; o[i] = s; }
}
void layer_norm(in_t x, in_t w, in_t b, float *o, long n, long m) {
    for (long i = 0; i < n; i++) {
        in_t r = x + i * m;
        float s = 0, q = 0;
        for (long j = 0; j < m; j++) s += r[j];
        s /= m;
        for (long j = 0; j < m; j++) q += (r[j] - s) * (r[j] - s);
        q = 1 / sqrtf(q / m + 1e-5f);
        for (long j = 0; j < m; j++) o[i * m + j] = (r[j] - s) * q * w[j] + b[j];
    }
}
void softmax(in_t x, float *o, long n, long m) {
    for (long i = 0; i < n; i++) {
        in_t r = x + i * m;
        float *p = o + i * m, t = -INFINITY, s = 0;
        for (long j = 0; j < m; j++) t = r[j] > t ? r[j] : t;
        for (long j = 0; j < m; j++) { p[j] = expf(r[j] - t); s += p[j]; }
        for (long j = 0; j < m; j++) p[j] /= s;
    }
}
void transpose(in_t a, float *o, long n, long m) {
    for (long i = 0; i < n; i += 16) for (long j = 0; j < m; j += 16)
        for (long y = j; y < j + 16; y++) for (long x = i; x < i + 16; x++) o[y * n + x] = a[x * m + y];
}
void to_bf16(in_t a, uint16_t *o, long n, long m) {
    const uint32_t *u = (const uint32_t *)a;
    for (long i = 0; i < n * m; i++) {
        uint32_t b = u[i], r = b + 0x7fff + ((b >> 16) & 1);
        o[i] = (b & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : r >> 16;
    }
}
void from_bf16(const uint16_t *a, float *o, long n, long m) {
    uint32_t *u = (uint32_t *)o;
    for (long i = 0; i < n * m; i++) u[i] = (uint32_t)a[i] << 16;
}
void bytes_to_float(const uint8_t *a, float *o, long n, long m) { for (long i = 0; i < n * m; i++) o[i] = a[i] * (1 / 255.0f); }
void masked(const uint8_t *k, in_t a, float *o, long n, long m) { for (long i = 0; i < n * m; i++) o[i] = k[i] ? a[i] : 0.0f; }
}
"""


@dataclass
class Work:
    name: str
    fn: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    out: torch.Tensor
    order: tuple[int, ...] = ()  # of the inputs among the kernel's
    sizes: dict[str, Any] = field(default_factory=dict)


def workloads() -> list[Work]:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(N, M, generator=g), torch.randn(N, M, generator=g)
    w, c = torch.randn(M, generator=g), torch.randn(M, generator=g)
    image = torch.randint(0, 256, (N, M), generator=g, dtype=torch.uint8)
    full, rows, columns = torch.empty(N, M), torch.empty(N), torch.empty(M)
    return [
        Work("pointwise", lambda a, b: a * b + 2 * a, (a, b), full),
        Work("row_sum", lambda a: a.sum(1), (a,), rows),
        Work("column_sum", lambda a: a.sum(0), (a,), columns),
        Work("row_max", lambda a: a.amax(1), (a,), rows),
        Work("layer_norm", lambda a, w, b: F.layer_norm(a, (M,), w, b), (a, w, c), full),
        Work("softmax", lambda a: a.softmax(1), (a,), full),
        Work("transpose", lambda a: a.t().contiguous(), (a,), torch.empty(M, N)),
        Work("to_bf16", lambda a: a.to(torch.bfloat16), (a,), torch.empty(N, M, dtype=torch.bfloat16)),
        Work("from_bf16", lambda a: a.float(), (a.to(torch.bfloat16),), full),
        Work("bytes_to_float", lambda a: a.float() * (1 / 255), (image,), full),
        Work("masked", lambda k, a: torch.where(k, a, 0.0), (image > 127, a), full),
    ]


def c_loops(folder: str) -> ctypes.CDLL:
    source, library = Path(folder) / "loops.cpp", Path(folder) / "loops.so"
    source.write_text(SOURCE)
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fPIC"]
    subprocess.run(["g++", *flags, "-c", "-o", str(source.with_suffix(".o")), str(source)], check=True)
    # linked without -ffast-math, which would set flush-to-zero for the process
    subprocess.run(["g++", "-shared", "-o", str(library), str(source.with_suffix(".o")), "-lmvec", "-lm"], check=True)
    return ctypes.CDLL(str(library))


def kernels_of(fn: Callable, inputs: tuple) -> tuple[Callable, list[Any]]:
    """The compiled function, and its kernels as (callable, IR)."""
    found: list[Any] = []
    compiled = tcompile.compile(fn, dynamic=False)
    with events.listen(lambda e: found.append(e.kernel) if e.kind == "kernel" else None):
        compiled(*inputs)
    opts = Options.make()
    target = host_target(opts)
    made = [GeneratedKernel(k.name, k, print_kernel(k, target)) for k in found]
    return compiled, list(zip(load_kernels(made, target, opts), found, strict=True))


def least(runs: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Least processor time of each in microseconds, measured in turn."""
    best = dict.fromkeys(runs, float("inf"))
    until = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < until or rounds < 20:
        for name, run in runs.items():
            t0 = time.thread_time()
            run()
            best[name] = min(best[name], (time.thread_time() - t0) * 1e6)
        rounds += 1
    return best


def measure(work: Work, loops: ctypes.CDLL, seconds: float) -> dict[str, Any]:
    compiled, kernels = kernels_of(work.fn, work.inputs)
    loop = getattr(loops, work.name)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*work.inputs, work.out)]
    sizes = [ctypes.c_long(N), ctypes.c_long(M)]
    runs: dict[str, Callable[[], Any]] = {"c": lambda: loop(*pointers, *sizes), "call": lambda: compiled(*work.inputs)}
    if len(kernels) == 1:
        call, kernel = kernels[0]
        extents = [kernel.hints[s.name] for s in kernel.sizes]
        arguments = [*_in_order(kernel.inputs, work.inputs), work.out, *extents]
        runs["kernel"] = lambda: call(*arguments)
    loop(*pointers, *sizes)
    wanted = work.out.clone()
    error = float((compiled(*work.inputs).double() - wanted.double()).abs().max() / wanted.double().abs().max())
    best = least(runs, seconds)
    row: dict[str, Any] = {
        "name": work.name,
        "c_us": round(best["c"], 1),
        "call_us": round(best["call"], 1),
        "call_over_c": round(best["call"] / best["c"], 3),
        "rel_difference": error,
        "kernels": len(kernels),
    }
    if "kernel" in best:
        row |= {"kernel_us": round(best["kernel"], 1), "kernel_over_c": round(best["kernel"] / best["c"], 3)}
    return row


def _in_order(formal: list[Any], inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """The inputs as the kernel reads them: by dtype and size; equal ones in the order in which they are given."""
    left = list(inputs)
    out = []
    for b in formal:
        n = 1
        for s in b.shape:
            n *= int(s)
        t = next(x for x in left if x.dtype == b.dtype and x.numel() == n)
        left = [x for x in left if x is not t]
        out.append(t)
    return out


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--seconds", type=float, default=2.0, help="of measuring each")
    ap.add_argument("--only", default="", help="names, separated by commas")
    a = ap.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loops = c_loops(folder)
        for work in workloads():
            if not a.only or work.name in a.only.split(","):
                print(json.dumps(measure(work, loops, a.seconds)), flush=True)
    print(json.dumps({"torch": torch.__version__, "load": os.getloadavg()[0]}))


if __name__ == "__main__":
    main()
