"""Generated Triton kernels on the CPU, through Triton's interpreter: functions and schedules against eager."""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import torch

from tcompile.compiler.codegen.generated import Generated, GeneratedKernel
from tcompile.compiler.codegen.generate import generate_triton
from tcompile.compiler.codegen.triton.layout import Choices, GpuTarget
from tcompile.compiler.codegen.triton.print_kernel import print_kernel
from tcompile.compiler.codegen.kernel_sources import TritonSource
from tcompile.compiler.fusion.schedule import Schedule
from tcompile.compiler.graph.decompose import reduce_forms  # noqa: E402
from tcompile.compiler.lowering.rules import pointwise, reductions
from tcompile.compiler.runtime.compiled_graph import python_plan

from ...lowering.helper import _flat as flat_outputs
from ...lowering import helper
from ...oracles.loop_interpreter import flat

# few processors: the interpreter is slow, and small shapes get every kind of kernel
SMALL = GpuTarget("cuda", 90, 32, 8)
_child: list[subprocess.Popen] = []


def compile_fn(fn: Callable, *inputs: Any, **opts: Any) -> Schedule:
    """fn through lowering and fusion. The tensors are a CPU's. What is done on a CPU alone is left out: a short form of
    erf, variances in float64, sums that cannot overflow.
    """
    with (
        mock.patch.object(pointwise, "_gelu_s_erf", lambda lo, v: "erf"),
        mock.patch.object(reduce_forms, "_in_float64", lambda x: False),
        mock.patch.object(reductions, "_sums_first", lambda lo: False),
    ):
        return helper.compile_fn(fn, *inputs, **opts)


def _process() -> subprocess.Popen:
    if not _child or _child[0].poll() is not None:
        env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        _child[:] = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("interpreter_child.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
            )
        ]
        atexit.register(_child[0].kill)
    return _child[0]


def interpret(job: dict) -> list:
    p = _process()
    pickle.dump(job, p.stdin)
    p.stdin.flush()
    kind, answer = pickle.load(p.stdout)
    if kind == "error":
        raise AssertionError(f"{answer}\n{job['text']}")
    return answer


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """Floats of eight bits as what kernels take them for."""
    return t.view(torch.uint8) if t.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else t


class Interpreted:
    """What native.CudaKernel is, through the interpreter."""

    def __init__(self, k: GeneratedKernel, source: TritonSource | None = None):
        self.k, self.source = k, source or k.source
        sizes = [str(e) for e in k.kernel.sizes]
        self.n_sizes = len(sizes)
        values = [f.grid for f in self.source.functions] + [s.numel for s in self.source.scratch]
        self.plan = eval(f"lambda {', '.join(sizes)}: ({', '.join(e.py() for e in values)},)", {"min": min, "max": max})

    def __call__(self, *args: Any) -> None:
        k = self.k.kernel
        n_in, n = len(k.inputs), len(k.inputs) + len(k.outputs)
        tensors, scalars = args[:n], list(args[n:])
        memory, where = [], {}
        index = []
        for t in tensors:
            key = (t.data_ptr(), t.dtype, t.numel())
            if key not in where or t.numel() == 0:
                where[key] = len(memory)
                memory.append(as_bytes(flat(t)).clone())
            index.append(where[key])
        numbers = self.plan(*scalars[: self.n_sizes])
        n_f = len(self.source.functions)
        for s, count in zip(self.source.scratch, numbers[n_f:]):
            index.append(len(memory))
            memory.append(torch.empty(count, dtype=s.dtype).fill_(77 if s.dtype != torch.bool else True))
        launches = [(f.name, g, index, scalars, f.constants) for f, g in zip(self.source.functions, numbers)]
        written = index[n_in:n]
        out = interpret({"text": self.source.text, "memory": memory, "launches": launches, "written": written})
        for t, o in zip(tensors[n_in:], out):
            as_bytes(flat(t)).copy_(o)


def run(generated: Generated, inputs: Any) -> tuple:
    kernels = {k.name: Interpreted(k) for k in generated.kernels}
    return python_plan(generated, kernels)(*inputs)


def generate(
    schedule: Any, choices: Choices = Choices(), target: GpuTarget = SMALL, wide: bool | None = None, **opts: Any
) -> Generated:
    g = generate_triton(schedule, opts, None, target)
    if choices != Choices() or wide:
        for k in g.kernels:
            k.source = print_kernel(k.kernel, target, choices, name=k.name, wide=wide)
    return g


def check(
    fn: Callable,
    *inputs: Any,
    atol: float | None = None,
    rtol: float | None = None,
    choices: Choices = Choices(),
    kinds: set[str] | None = None,
    wide: bool | None = None,
    **opts: Any,
) -> Generated:
    """Interpreted equals eager: values, dtypes, shapes, strides. kinds: the shapes of kernels that must occur."""
    g = generate(compile_fn(fn, *inputs, **opts), choices, wide=wide, **opts)
    with torch.no_grad():
        want = flat_outputs(fn(*inputs))
        got = run(g, inputs)
    want = want if isinstance(want, tuple) else (want,)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, atol=atol, rtol=rtol, equal_nan=True)
        assert a.stride() == b.stride()
    if kinds is not None:
        assert {k.source.choices["shape"] for k in g.kernels} == kinds, [k.source.choices for k in g.kernels]
    return g
