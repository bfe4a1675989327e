"""A GPU's driver that is none, for what happens to plans whose kernels it rejects: `python stand_in_driver.py FOLDER`
builds it there and runs each scenario, on the CPU's memory; the last line is what was seen, as JSON.

Its kernels add a constant to n numbers. A process of its own: the C extension keeps the driver that it found first.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import torch

from tcompile.compiler import events
from tcompile.compiler.codegen.generate import generate_triton
from tcompile.compiler.codegen.triton.layout import GpuTarget
from tcompile.compiler.config import Options
from tcompile.compiler.errors import RejectedKernel
from tcompile.compiler.fusion.schedule import Launch
from tcompile.compiler.native import native
from tcompile.compiler.runtime.cpu_kernels import native_ready
from tcompile.compiler.runtime.gpu import compile as gpu_compile
from tcompile.compiler.runtime.gpu import gpu_graph, gpu_kernels, rejected

from tests.runtime.helper import chain_schedule

DRIVER = r"""
#include <stdlib.h>
#include <string.h>
typedef struct { float constant; int n; } Code;
/* what so many launches of the kernel that adds 2 are answered (or loads) */
int answer, answers, most_threads, launches;
int cuModuleLoadData(void **m, const void *image)
{
    *m = memcpy(malloc(sizeof(Code)), image, sizeof(Code));
    return answer == 200 && ((Code *)*m)->constant == 2 && answers-- > 0 ? answer : 0;
}
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = m; return 0; }
int cuFuncSetAttribute(void *f, int which, int value) { return 0; }
int cuFuncGetAttribute(int *out, int which, void *f) { *out = which == 0 ? most_threads : 255; return 0; }
int cuLaunchKernel(Code *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **given, void **more)
{
    const float *in = *(float **)given[0];
    float *out = *(float **)given[1];
    launches++;
    if (f->constant == 2 && answers-- > 0)
        return answer;
    for (int i = 0; i < f->n; i++)
        out[i] = in[i] + f->constant;
    return 0;
}
int cuGetErrorString(int rc, const char **text) { *text = "as it was told"; return 0; }
int cuCtxGetCurrent(void **c) { *c = &answer; return 0; }
int cuCtxPushCurrent_v2(void *c) { return 0; }
int cuCtxPopCurrent_v2(void **c) { return 0; }
int cuStreamIsCapturing(void *s, int *status) { return *status = 0; }
int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t n, void *s) { return 0; }
int aoti_torch_get_current_cuda_stream(int device, void **s) { *s = 0; return 0; }
"""
N, CUDA = 4000, GpuTarget("cuda", 90, 32, 132)
NO_TEXT = base64.b64encode(zlib.compress(b"")).decode()
PROPERTIES = SimpleNamespace(
    warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, multi_processor_count=132
)


def compile_all(jobs: Any, opts: Any) -> list:
    """Binaries as the stand-in reads them."""
    out = []
    for job in jobs:
        constant = float(re.findall(r"in0_at_0 \+ ([\d.]+)", job.source.text)[0])
        threads = 32 * job.source.functions[0].warps
        part = gpu_compile.Part(job.source.name, "f", 0, threads, struct.pack("fi", constant, N), NO_TEXT)
        out.append(gpu_compile.Binary((part,)))
    return out


def set_up(folder: Path) -> Any:
    source, library = folder / "driver.c", folder / "driver.so"
    source.write_text(DRIVER)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    driver = ctypes.CDLL(str(library))
    assert native_ready()

    def allocate(shape: tuple, stride: tuple, code: int, index: int) -> torch.Tensor:
        return torch.empty_strided(shape, stride)

    assert native.cuda_setup(allocate, RejectedKernel, str(library), str(library)) is None
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[assignment, misc]
    torch._C._cuda_setDevice = lambda index: None
    torch.cuda.get_device_properties = lambda index: PROPERTIES  # type: ignore[assignment, return-value]
    gpu_kernels.compile_all = rejected.compile_all = compile_all  # type: ignore[assignment]
    return driver


def graph(eager: Callable | None, **options: Any) -> Any:
    """x + 1 + 2 + 3, a kernel each; the first one's memory is given back before the third runs."""
    opts = Options.make(options={"suppress_errors": True, **options})
    schedule = chain_schedule(N, 1.0, 2.0, 3.0)
    generated = generate_triton(schedule, opts, None, CUDA)
    assert sum(isinstance(s, Launch) for s in schedule.steps) == 3
    return gpu_graph.build_gpu(replace(generated, cuda=0), opts, eager)


def scenario(driver: Any, call: Callable[[Any, torch.Tensor], Any] = lambda g, x: g(x), **how: Any) -> dict[str, Any]:
    """What three calls of the graph give, and what is said of them. `how`: what the driver answers, and options."""
    for name in ("answer", "answers", "most_threads", "launches"):
        ctypes.c_int.in_dll(driver, name).value = how.pop(name, {"most_threads": 1024}.get(name, 0))
    gpu_kernels._handles.clear()
    eager: list[int] = []

    def by_torch(x: torch.Tensor) -> tuple:
        eager.append(1)
        return (x + 6,)

    said: list[str] = []
    seen: dict[str, Any] = {"calls": [], "launches": []}
    with events.listen(lambda e: said.append(f"{e.what}: {e.reason}") if e.kind == "fallback" else None):
        try:
            g = graph(by_torch, **how)
        except RejectedKernel as e:
            return {"refused": str(e)}
        for _ in range(3):
            before = ctypes.c_int.in_dll(driver, "launches").value
            x = torch.randn(N)
            want = x + 1 + 2 + 3
            try:
                (out,) = call(g, x)
                seen["calls"].append(bool(torch.allclose(out, want)))
            except RuntimeError as e:
                seen["calls"].append(f"{type(e).__name__}: {e}")
            seen["launches"].append(ctypes.c_int.in_dll(driver, "launches").value - before)
    return {**seen, "said": said, "eager": len(eager)}


def given_away(g: Any, x: torch.Tensor) -> Any:
    return g.call.consume([x.clone()])


if __name__ == "__main__":
    driver = set_up(Path(sys.argv[1]))
    for_ever = 1 << 30
    found = {
        "nothing": scenario(driver),
        "one launch": scenario(driver, answer=701, answers=1),
        "some ways": scenario(driver, answer=701, answers=2),
        "every launch": scenario(driver, answer=701, answers=for_ever),
        "every launch, given": scenario(driver, given_away, answer=701, answers=for_ever),
        "some loads": scenario(driver, answer=200, answers=2),
        "too many threads": scenario(driver, most_threads=32),
        "a fault": scenario(driver, answer=700, answers=for_ever),
        "to be heard": scenario(driver, answer=701, answers=for_ever, suppress_errors=False),
    }
    print(json.dumps(found))
