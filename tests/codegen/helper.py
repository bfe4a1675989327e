"""Hand-built kernels, compiled and run, for each kind of vector that this machine can run."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from tcompile.compiler.codegen.cpp.layout import Choices
from tcompile.compiler.codegen.cpp.printer import print_kernel
from tcompile.compiler.codegen.generated import GeneratedKernel
from tcompile.compiler.codegen.target import host_target
from tcompile.compiler.config import Options
from tcompile.compiler.lowering.ir import Axis, Buffer, Kernel, Stage, Store, Value, load
from tcompile.compiler.runtime.cpu_kernels import load_kernels
from tcompile.compiler.symbolic.expr import symbol

i0, i1, i2, r0, r1, n0, n1 = (symbol(n) for n in ("i0", "i1", "i2", "r0", "r1", "n0", "n1"))
SIMD = {64: ["auto", "avx2", "none"], 32: ["auto", "none"], 16: ["none"]}[host_target().width]


def buffer(
    name: str, dtype: torch.dtype, shape: Sequence[Any], stride: Sequence[Any] | None = None, kind: str = "input"
) -> Buffer:
    """A contiguous buffer, unless strides are given."""
    if stride is None:
        stride, n = [], 1
        for s in reversed(shape):
            stride.insert(0, n)
            n = n * s
    scope = "local" if kind == "local" else "global"
    return Buffer(name, dtype, tuple(shape), tuple(stride), scope, kind="temp" if kind == "local" else kind)


def compile_kernel(kernel: Kernel, simd: str = "auto", choices: Choices = Choices()) -> Callable:
    """A callable on tensors, sizes and scalars; `.text` is its source."""
    opts = Options.make(options={"simd": simd})
    target = host_target(opts)
    source = print_kernel(kernel, target, choices)
    (call,) = load_kernels([GeneratedKernel(kernel.name, kernel, source)], target, opts)

    def run(*args: Any) -> None:
        call(*args)

    run.text, run.source, run.call = source.text, source, call
    return run


def pointwise(
    fn: Callable[..., Value],
    *inputs: torch.Tensor,
    out: torch.dtype,
    simd: str = "auto",
    params: Sequence = (),
    choices: Choices = Choices(),
) -> torch.Tensor:
    """fn over loads of 1-d inputs of one length."""
    n = inputs[0].numel()
    ins = [buffer(f"in{k}", t.dtype, (n,)) for k, t in enumerate(inputs)]
    o = buffer("out0", out, (n,), kind="output")
    v = fn(*[load(b, i0) for b in ins])
    k = Kernel("pointwise", (Axis(i0, n),), [Stage((), [], [Store(o, i0, v)])], ins, [o])
    result = torch.empty(n, dtype=out)
    compile_kernel(k, simd, choices)(*inputs, result)
    return result


def pointwise_many(
    cases: dict[str, tuple[Callable[..., Value], torch.Tensor]], out: torch.dtype, simd: str = "auto"
) -> dict[str, torch.Tensor]:
    """Several functions of one argument each, all of one length, in one kernel: name -> result."""
    n = next(iter(cases.values()))[1].numel()
    ins = [buffer(f"in{k}", x.dtype, (n,)) for k, (_, x) in enumerate(cases.values())]
    outs = [buffer(f"out{k}", out, (n,), kind="output") for k in range(len(cases))]
    stores = [Store(o, i0, fn(load(b, i0))) for (fn, _), b, o in zip(cases.values(), ins, outs)]
    results = [torch.empty(n, dtype=out) for _ in cases]
    kernel = Kernel("many", (Axis(i0, n),), [Stage((), [], stores)], ins, outs)
    compile_kernel(kernel, simd)(*[x for _, x in cases.values()], *results)
    return dict(zip(cases, results))
