"""Writes gpu_report.json: a report as a GPU machine would give it, made without one. Run with `python -m
tests.report.make_gpu_sample`.

The kernels are real: a small transformer block is compiled as for an H200, through Triton's compiler to PTX. Times are
made up: a share of what the memory of the device allows."""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from tcompile.compiler import events
from tcompile.compiler.codegen.triton.layout import GpuTarget
from tcompile.compiler.config import Options
from tcompile.compiler.report import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.builder import record
from tcompile.compiler.report.finish import finish
from tcompile.compiler.runtime.gpu.compile import Job, compile_all
from tcompile.compiler.runtime.gpu.gpu_kernels import occupancy

from ..codegen.triton.as_gpu import as_gpu
from ..codegen.triton.test_compiled import usage

TARGET = GpuTarget("cuda", 90, 32, 132)
H200 = SimpleNamespace(
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
)
BANDWIDTH, PEAK = 4.1e12, 4.9e13
FILE = Path(__file__).with_name("gpu_report.json")


def block(x, w, b, w1, b1, residual):
    h = F.layer_norm(x, (1024,), w, b)
    h = F.gelu(F.linear(h, w1, b1), approximate="tanh")
    return F.softmax(h, -1).sum(0), F.dropout(h, 0.0) + residual


def made() -> CompileReport:
    n, d, m = 4096, 1024, 1024
    args = torch.randn(n, d), torch.ones(d), torch.zeros(d), torch.randn(m, d), torch.zeros(m), torch.randn(n, m)
    with record(title="block") as builder:
        generated = as_gpu(block, *args, target=TARGET)
        with tempfile.TemporaryDirectory() as folder:
            for k, binary in zip(
                generated.kernels, compile_all([Job(k.source, TARGET) for k in generated.kernels], Options())
            ):
                parts = [(p, usage(p.code, Path(folder))) for p in binary.parts]
                most, used = max(parts, key=lambda x: x[1]["registers"])
                events.emit(
                    "binary",
                    name=k.name,
                    source=k.source.text,
                    names=k.source.names,
                    registers=used["registers"],
                    spills=max(u["stack"] for _, u in parts),
                    shared=max(p.shared for p in binary.parts),
                    occupancy=occupancy(used["registers"], most.shared, most.threads, H200),
                    assembly="\n".join(p.assembly() for p in binary.parts),
                )
    r = builder.report()
    r.errors, r.fallbacks, r.timeline = [], [], []  # that the graph never ran
    r.graphs[0].ran = "compiled"
    r.source = s.CellSource(inspect.getsource(block), r.frames[0].file, r.frames[0].line)
    for f in r.frames:
        f.status, f.reason = "compiled", ""
    for i, k in enumerate(r.kernels):
        k.seconds = k.bytes / BANDWIDTH / (0.93, 0.71, 0.52)[i % 3] + 1.1e-6 if k.bytes else None
    r.environment.update(
        device="NVIDIA H200 (made without one)", copy_bytes_per_second=BANDWIDTH, matmul_flops_per_second=PEAK
    )
    r.speedups = s.Speedups("off", "made on a machine without a GPU: times of kernels are samples")
    r.id = "gpu-sample"
    finish(r)
    return r


if __name__ == "__main__":
    text = made().to_json()
    FILE.write_text(text + "\n")
    print(f"{FILE.name}: {len(text)} bytes")
