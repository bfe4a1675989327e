"""A product in CUDA C++ (codegen/cuda) run on the CPU: its text as it is, a thread of the host for each thread of the
two groups that multiply. What names the device's own instructions is written out: products from the matrices
themselves, exchanges between lanes, matrices stored to shared memory, and the copy engine's swizzled boxes."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Sequence

import torch

from tcompile.compiler.codegen.cuda import hopper
from tcompile.compiler.codegen.cuda.product import find_tiles
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.codegen.triton.printer import without_locals

from ..compile_once import compile_once

FLAGS = ("g++", "-O1", "-std=c++20", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-shared", "-fPIC", "-pthread")
HEADERS = "".join(f"#include <{h}>\n" for h in "barrier cmath cstdint cstring thread vector algorithm".split())
PRELUDE = r"""
using std::min;
typedef uint32_t u32; typedef uint64_t u64; typedef uint16_t u16;
struct float2 { float x, y; };
static float2 make_float2(float x, float y) { return {x, y}; }
struct uint2 { u32 x, y; };
static uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
struct Dim { unsigned x; };
static thread_local Dim threadIdx, blockIdx;
static Dim gridDim;
struct Map { void *to; long offset, length, lines, stride; };
static const Map *A, *B;
static unsigned char shared_memory[1 << 18];
static u32 table[256], at_table[256];
static std::barrier<> *group_barriers[2], *warp_barriers[8];
#define GROUP ((threadIdx.x - 128) / 128)
#define WARP ((threadIdx.x - 128) / 32)
static u32 __shfl_sync(u32, u32 x, u32 from) {
  u32 me = threadIdx.x - 128;
  table[me] = x;
  warp_barriers[WARP]->arrive_and_wait();
  u32 out = table[me / 32 * 32 + from];
  warp_barriers[WARP]->arrive_and_wait();
  return out;
}
static void group_sync(int) { group_barriers[GROUP]->arrive_and_wait(); }
static void store_matrices(u32 at, const u32 (&w)[4]) {
  u32 me = threadIdx.x - 128, lane = me % 32;
  at_table[me] = at;
  warp_barriers[WARP]->arrive_and_wait();
  for (int j = 0; j < 4; j++) memcpy(shared_memory + at_table[me - lane + j * 8 + lane / 4] + lane % 4 * 4, &w[j], 4);
  warp_barriers[WARP]->arrive_and_wait();
}
static void store_tile(const Map *m, u32 from, int x, int y) {
  for (int r = 0; r < 64; r++) for (int c = 0; c < 64; c++) if (y + r < m->lines && x + c < m->length)
    memcpy((u16 *)m->to + m->offset + (y + r) * m->stride + x + c, shared_memory + from + r * 128 + (c / 8 ^ r % 8) * 16 + c % 8 * 2, 2);
}
static float fmaxf_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }
static float rsqrtf(float x) { return 1 / sqrtf(x); }
static float __int_as_float(u32 x) { float f; memcpy(&f, &x, 4); return f; }
#define barrier_wait(...)
#define barrier_arrive(...)
#define matrix(...) 0
#define multiply(sum, a, b, piece) products(sum, m, n, piece, who, thread, A_BY_COLUMNS, B_BY_ROWS)
"""
CONVERSIONS = {
    torch.bfloat16: r"""
static float low_half(u32 w) { w <<= 16; float f; memcpy(&f, &w, 4); return f; }
static float high_half(u32 w) { return low_half(w >> 16); }
static u32 rounded(float f) { u32 w; memcpy(&w, &f, 4); return f != f ? 0x7fff : (w + 0x7fff + (w >> 16 & 1)) >> 16; }
""",
    torch.float16: r"""
static float low_half(u32 w) { _Float16 h; memcpy(&h, &w, 2); return h; }
static float high_half(u32 w) { return low_half(w >> 16); }
static u32 rounded(float f) { _Float16 h = f; u16 w; memcpy(&w, &h, 2); return w; }
""",
}
PRODUCTS = r"""
static u32 pack(float lo, float hi) { return rounded(lo) | rounded(hi) << 16; }
static float element(const Map *m, bool across, long outer, long k) {   // beyond the matrix the copy engine brings zeros
  long line = across ? k : outer, at = across ? outer : k;
  return line < m->lines && at < m->length ? low_half(((u16 *)m->to)[m->offset + line * m->stride + at]) : 0;
}
template <int N> static void products(float (&sum)[N], int m, int n, int piece, int who, int thread, bool a_by_columns, bool b_by_rows) {
  for (int i = 0; i < N; i++) {
    int row = m + who * 64 + thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, column = n + i / 4 * 8 + thread % 4 * 2 + i % 2;
    float x = piece ? sum[i] : 0;
    for (int k = piece * 64; k < piece * 64 + 64; k++) x += element(A, a_by_columns, row, k) * element(B, b_by_rows, column, k);
    sum[i] = x;
  }
}
"""
FUNCTIONS = {
    "exp2_": "float exp2_(float x) { return exp2f(x); }",
    "reciprocal": "float reciprocal(float x) { return 1 / x; }",
    "maximum": "float maximum(float a, float b) { return fmaxf_nan(a, b); }",
    "minimum": "float minimum(float a, float b) { return -fmaxf_nan(-a, -b); }",
}


def run_on_host(kernel: Any, buffers: Sequence[torch.Tensor], columns: int, target: GpuTarget) -> None:
    """Run a kernel, printed as tiles of so many columns, on its buffers (inputs, then outputs)."""
    source = print_kernel(kernel, target, Choices("tiles", xblock=columns), "k")
    t = find_tiles(without_locals(kernel), target)
    assert source.language == "cuda" and t is not None
    dtype, text = t.product.a.dtype, source.text
    for found, put in (
        (hopper.PRELUDE, PRELUDE + CONVERSIONS[dtype] + PRODUCTS),
        (hopper.conversions(dtype), ""),
        (hopper.product(dtype, columns, 64, t.a_by_columns, t.b_by_rows), ""),
        *((hopper.FUNCTIONS[n], f) for n, f in FUNCTIONS.items()),
    ):
        assert found in text or found in hopper.FUNCTIONS.values()
        text = text.replace(found, put)
    text = text.replace('asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));', "rank = blockIdx.x % 2;")
    text = re.sub(r"(if \([^()]*\) )?asm volatile\(.*\);", ";", text)
    text = (
        re.sub(r"  extern __shared__.*\n", "", text)
        .replace("(u32)__cvta_generic_to_shared(memory)", "0")
        .replace("#pragma unroll", "")
    )
    for word in (
        "__device__ __forceinline__",
        "__global__",
        "__launch_bounds__(384, 1)",
        "__cluster_dims__(2, 1, 1)",
        "__grid_constant__ ",
        "barrier_init(full + 8 * i, 1);",
    ):
        text = text.replace(word, "static" if word.startswith("__device__") else "")
    text = re.sub(r"barrier_init\(.*?\);|barrier_expect\(.*?\);|load_tile(_for_all)?\(.*?\);", "", text)
    text = text.replace("group == 0)", "group == 0) return; else if (false)", 1)
    names = [b.name for b in (*t.kernel.inputs, *t.kernel.outputs)]
    place = {id(b): i for i, b in enumerate((*t.kernel.inputs, *t.kernel.outputs))}
    kinds = {torch.float32: "float", torch.bool: "unsigned char", torch.uint8: "unsigned char", torch.int64: "u64"}
    arguments = ", ".join(
        f"({kinds.get(torch.uint8 if b.bits else b.dtype, 'u16')} *)given[{i}]"
        for i, b in enumerate((*t.kernel.inputs, *t.kernel.outputs))
    )
    maps = "".join(
        f"Map map{i} = {{given[{place[id(w.buffer)]}], {w.offset}, {w.length}, {w.lines}, {w.stride}}};"
        for i, w in enumerate(source.walks)
    )
    text += f"""
extern "C" void run(void **given) {{
  {maps}
  A = &map0, B = &map1, gridDim.x = 4;
  for (int i = 0; i < 2; i++) group_barriers[i] = new std::barrier<>(128);
  for (int i = 0; i < 8; i++) warp_barriers[i] = new std::barrier<>(32);
  for (unsigned block = 0; block < gridDim.x; block++) {{
    std::vector<std::thread> all;
    for (unsigned i = 128; i < 384; i++) all.emplace_back([&, i] {{ threadIdx.x = i, blockIdx.x = block; k({arguments}, {", ".join(f"map{i}" for i in range(len(source.walks)))}); }});
    for (auto &x : all) x.join();
  }}
}}
"""
    text = text.replace("A_BY_COLUMNS", str(int(t.a_by_columns))).replace("B_BY_ROWS", str(int(t.b_by_rows)))
    assert len(buffers) == len(names) and "asm" not in text
    headers, _ = compile_once((*FLAGS, "-x", "c++-header"), HEADERS, ".h", ".h.gch")
    library, _ = compile_once((*FLAGS, "-include", str(headers.with_suffix(""))), text, ".cpp", ".so")
    ctypes.CDLL(str(library)).run((ctypes.c_void_p * len(buffers))(*(b.data_ptr() for b in buffers)))
