"""Pieces of CUDA C++ that name the Hopper generation's own instructions: barriers in shared memory, the copy engine
(TMA) and its multicast within a cluster, products of a warpgroup (wgmma). No headers, so that NVRTC needs none. Source:
the PTX ISA manual, 8.0 and later.
"""

from __future__ import annotations

from typing import Iterable

import torch

from ..gelu import DERIVATIVE, SHARE_BELOW
from . import philox_words

__all__ = ["PRELUDE", "CLUSTER_BARRIER", "FENCE", "functions", "conversions", "product"]

PRELUDE = r"""
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct __align__(64) Map { u64 opaque[16]; };   // how the copy engine walks through a tensor

__device__ __forceinline__ void barrier_init(u32 at, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at), "r"(arrivals));
}
__device__ __forceinline__ void barrier_expect(u32 at, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 at, u32 phase) {
  asm volatile(
    "{\n.reg .pred P;\nWAIT:\n"
    "mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
    "@P bra DONE;\nbra WAIT;\nDONE:\n}"
    :: "r"(at), "r"(phase) : "memory");
}
__device__ __forceinline__ void barrier_arrive(u32 at, u32 block) {   // at the barrier of a block of the cluster
  asm volatile("{\n.reg .b32 r;\nmapa.shared::cluster.u32 r, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [r];\n}"
    :: "r"(at), "r"(block) : "memory");
}
__device__ __forceinline__ void load_tile(u32 to, const Map *m, u32 barrier, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
    :: "r"(to), "l"((u64)m), "r"(barrier), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void load_tile_for_all(u32 to, const Map *m, u32 barrier, int x, int y, u16 blocks) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
    "[%0], [%1, {%3, %4}], [%2], %5;"
    :: "r"(to), "l"((u64)m), "r"(barrier), "r"(x), "r"(y), "h"(blocks) : "memory");
}
__device__ __forceinline__ void store_tile(const Map *m, u32 from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];"
    :: "l"((u64)m), "r"(from), "r"(x), "r"(y) : "memory");
}
// A matrix in shared memory as wgmma reads it: rows of 128 bytes, swizzled; bytes between its groups of columns and of
// eight rows.
__device__ __forceinline__ u64 matrix(u32 at, u32 columns, u32 rows) {
  return (u64)((at & 0x3ffff) >> 4) | (u64)(columns >> 4) << 16 | (u64)(rows >> 4) << 32 | 1ull << 62;
}
__device__ __forceinline__ void store_matrices(u32 at, const u32 (&w)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
    :: "r"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) : "memory");
}
__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, 128;" :: "r"(group) : "memory"); }
""".lstrip()

CLUSTER_BARRIER = 'asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");'
FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'


def _horner(coefficients: tuple[float, ...]) -> str:
    text = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        text = f"fmaf({text}, a, {coefficient!r}f)"
    return text


# Functions for results of 16 bits, printed where they are used; NaN stays NaN.
FUNCTIONS = {
    "exp2_": 'float exp2_(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }',
    "reciprocal": (
        'float reciprocal(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }'
    ),
    "maximum": (
        'float maximum(float a, float b) { float r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return'
        " r; }"
    ),
    "minimum": (
        'float minimum(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return'
        " r; }"
    ),
    "gelu": (
        "float gelu(float x) { float a = minimum(fabsf(x), 32.0f); return fmaf(-a, share_below(a), fmaxf(x, 0.0f)); }"
    ),
    "erf_plus_1": (
        "float erf_plus_1(float x) { float q = 2.0f * share_below(minimum(fabsf(x) * 1.41421356f, 32.0f)); return x < 0"
        " ? q : 2.0f - q; }"
    ),
    "sigmoid": "float sigmoid(float x) { return reciprocal(1.0f + exp2_(x * -1.44269504f)); }",
    "tanh_": (
        "float tanh_(float x) {\n  float far = 1.0f - 2.0f * reciprocal(1.0f + exp2_(x * 2.88539008f));\n"
        "  return fabsf(x) < 0.02f ? x - x * x * x * 0.33333333f : far;\n}"
    ),
    "tanh_plus_1": "float tanh_plus_1(float x) { return 2.0f * reciprocal(1.0f + exp2_(x * -2.88539008f)); }",
}


_CALLS = {
    "sigmoid": ("exp2_", "reciprocal"),
    "tanh_": ("exp2_", "reciprocal"),
    "tanh_plus_1": ("exp2_", "reciprocal"),
    "share_below": ("exp2_",),
    "gelu": ("minimum", "share_below"),
    "gelu_derivative": ("exp2_", "minimum"),
    "erf_plus_1": ("minimum", "share_below"),
}


def functions(names: Iterable[str], dtype: torch.dtype) -> str:
    """The text of these functions and of those that they call, for results of this type."""
    texts = (
        FUNCTIONS
        | philox_words.FUNCTIONS
        | {
            "share_below": (
                "float share_below(float a) {  // of the normal distribution, below -a\n  return"
                f" exp2_({_horner(SHARE_BELOW[dtype])});\n}}"
            ),
            "gelu_derivative": (
                "float gelu_derivative(float x) {\n  float a = minimum(fabsf(x), 32.0f), below ="
                f" {_horner(DERIVATIVE[dtype])} * exp2_(x * -0.72134752f * x);\n  return x < 0 ? below : 1.0f -"
                " below;\n}"
            ),
        }
    )
    wanted: dict[str, None] = {}

    def need(name: str) -> None:
        for other in _CALLS.get(name, ()):
            need(other)
        wanted[name] = None

    for name in names:
        need(name)
    return "".join(f"__device__ __forceinline__ {texts[name]}\n" for name in wanted)


def conversions(dtype: torch.dtype) -> str:
    """pack(lo, hi) -> two values of 16 bits in one word, low_half(word), high_half(word)."""
    t = "bf16" if dtype is torch.bfloat16 else "f16"
    if dtype is torch.bfloat16:
        low, high = "return __uint_as_float(w << 16);", "return __uint_as_float(w & 0xffff0000u);"
    else:
        low, high = (
            f'float r; asm("{{.reg .b16 l, h; mov.b32 {{l, h}}, %1; cvt.f32.f16 %0, {part};}}" : "=f"(r) : "r"(w));'
            " return r;"
            for part in "lh"
        )
    return (
        f'__device__ __forceinline__ u32 pack(float lo, float hi) {{ u32 r; asm("cvt.rn.{t}x2.f32 %0, %1, %2;" :'
        f' "=r"(r) : "f"(hi), "f"(lo)); return r; }}\n__device__ __forceinline__ float low_half(u32 w) {{ {low}'
        f" }}\n__device__ __forceinline__ float high_half(u32 w) {{ {high} }}\n"
    )


def product(dtype: torch.dtype, columns: int, elements: int, a_by_columns: bool, b_by_rows: bool) -> str:
    """multiply(sum, a, b, add): a warpgroup's product of 64 rows, `columns` columns and `elements` of the sum, begun;
    the sum is in registers. All in one statement, for the compiler's sake. a_by_columns: neighbours of A in memory are
    rows of it; b_by_rows: neighbours of B are columns of it.
    """
    n, t = columns // 2, "bf16" if dtype is torch.bfloat16 else "f16"
    numbers, operands = ", ".join(f"%{i}" for i in range(n)), ", ".join(f'"+f"(s[{i}])' for i in range(n))
    # of 16 elements, in units of the descriptors
    steps = [(2048 if across else 32) // 16 for across in (a_by_columns, b_by_rows)]
    lines = [
        ".reg .pred p;",
        ".reg .b64 a, b;",
        f"setp.ne.b32 p, %{n + 2}, 0;",
        f"mov.b64 a, %{n};",
        f"mov.b64 b, %{n + 1};",
    ]
    for i in range(elements // 16):
        if i:
            lines += ["setp.eq.b32 p, 0, 0;"] * (i == 1) + [f"add.s64 a, a, {steps[0]};", f"add.s64 b, b, {steps[1]};"]
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{t}.{t} {{{numbers}}}, a, b, p, 1, 1,"
            f" {int(a_by_columns)}, {int(b_by_rows)};"
        )
    text = "\n    ".join(f'"{line}\\n"' for line in ["{", *lines, "}"])
    return (
        f"__device__ __forceinline__ void multiply(float (&s)[{n}], u64 a, u64 b, int add) {{\n  asm volatile(\n   "
        f' {text}\n    : {operands} : "l"(a), "l"(b), "r"(add));\n}}\n'
    )
