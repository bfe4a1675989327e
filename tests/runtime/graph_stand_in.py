"""CUDA graphs without a GPU: what `runtime/gpu/cuda_graphs.py` and `step_memory.py` decide, over memory of the CPU.

A stand-in for a graph runs its plan over the addresses that it was recorded with. As a real one may, it first destroys
whatever of its pool is not its own to read, and after that what it reads where the pool was given that memory back.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Callable, Iterator

import pytest
import torch

import tcompile
from tcompile.compiler.runtime import plan_parts
from tcompile.compiler.runtime.compiled_graph import CompiledGraph
from tcompile.compiler.runtime.dispatch import disabled
from tcompile.compiler.runtime.gpu import cuda_graphs, graph_results, step_memory

common: Any = None


def natively(f: Callable) -> Callable:
    """Not seen by the frame hook, as what it stands for is not."""

    @functools.wraps(f)
    def run(*args: Any) -> Any:
        with disabled():
            return f(*args)

    return run


class Pool:
    def __init__(self, index: int):
        self.index = index
        self.blocks: list[torch.Tensor] = []  # all that was ever allocated in it

    def destroy(self, but: set[int]) -> None:
        for b in self.blocks:
            if b.data_ptr() not in but:
                b.untyped_storage().fill_(0x7F)


class Graph:
    """`fed`: views of what is read; `outs`: views of where results lie; `consumes`: whether what is read is given
    back.
    """

    def __init__(self, owner: cuda_graphs.CudaGraphs, pool: Pool, fed: list, outs: list, consumes: bool):
        self.owner, self.pool, self.fed, self.outs, self.consumes = owner, pool, fed, outs, consumes

    @natively
    def replay(self) -> None:
        read = {x.data_ptr() for x in self.fed if isinstance(x, torch.Tensor)}
        with torch.no_grad():
            self.pool.destroy(but=read)
            results = [
                own(r) if isinstance(r, torch.Tensor) and r.layout is torch.strided else r
                for r in self.owner.plan(*self.fed)
            ]
            if self.consumes:
                self.pool.destroy(but=set())
            for r, o in zip(results, self.outs):
                if o is not None:
                    flat(o).copy_(flat(r))


def own(t: torch.Tensor) -> torch.Tensor:
    return flat(t).clone().as_strided(t.shape, t.stride())


def flat(t: torch.Tensor) -> torch.Tensor:
    return t.as_strided((step_memory.span(t),), (1,), t.storage_offset())


def bytes_at(address: int, n: int) -> torch.Tensor:
    return torch.from_dlpack(step_memory.native.blob(address, n, 1, 0, None))


class Static:
    """native.CudaStatic in Python."""

    def __init__(self, device: int, inputs: tuple, outputs: tuple, objects: tuple):
        self.inputs, self.outputs, self.objects = inputs, outputs, objects

    @natively
    def load(self, inputs: tuple) -> int:
        for i, address, n in self.inputs:
            if n < 0 and inputs[i].data_ptr() != address:
                return i
        for i, address, n in self.inputs:
            if n > 0:
                bytes_at(address, n).copy_(bytes_at(inputs[i].data_ptr(), n))
        return -1

    @natively
    def results(self, inputs: tuple) -> tuple:
        out: list[Any] = []
        codes = {code: dtype for dtype, code in plan_parts.DTYPE_CODES.items()}
        for kind, n, address, shape, stride, code in self.outputs:
            if kind == 0:
                t = torch.empty_strided(shape, stride, dtype=codes[code])
                if n:
                    bytes_at(t.data_ptr(), n).copy_(bytes_at(address, n))
                out.append(t)
            elif kind == 1:
                out.append(inputs[n])
            else:
                out.append(self.objects[n] if kind == 2 else self.objects[n].detach())
        return tuple(out)


@natively
def _record(self: cuda_graphs.CudaGraphs, pool: Pool, fed: list, states: Any = None) -> tuple[Any, tuple]:
    tensors = [x for x in fed if isinstance(x, torch.Tensor)]
    before, state = [x.detach().clone() for x in tensors], torch.get_rng_state()
    pool.blocks += [x.detach() for x in tensors if any(x.data_ptr() == o.data_ptr() for o in pool.blocks)]
    read = [step_memory.over(x, pool) if isinstance(x, torch.Tensor) else x for x in fed]
    consumes = self.backward and bool(self.step) and pool is not common
    inputs = list(fed)
    outs = self._consume_plainly(fed) if self.backward else self.plan(*fed)
    with torch.no_grad():
        for x, b in zip(tensors, before):
            if not torch.equal(x, b):
                x.copy_(b)
        torch.set_rng_state(state)
    new = [
        o if isinstance(o, torch.Tensor) and o.layout is torch.strided and not any(o is x for x in inputs) else None
        for o in outs
    ]
    given = {x.untyped_storage().data_ptr() for x in tensors}
    pool.blocks += [o.detach() for o in new if o is not None and o.untyped_storage().data_ptr() not in given]
    return Graph(
        self, pool, read, [None if o is None else step_memory.over(o, o.detach()) for o in new], consumes
    ), outs


@contextmanager
def graphs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is compiled inside runs by stand-ins for CUDA graphs."""
    global common
    common = Pool(0)
    monkeypatch.setattr(cuda_graphs, "_capturing", lambda: False)
    monkeypatch.setattr(cuda_graphs, "_in_order", lambda index: None)
    monkeypatch.setattr(graph_results, "_lies_on", lambda t, index: True)
    monkeypatch.setattr(cuda_graphs, "native", SimpleNamespace(CudaStatic=Static))
    for module in (cuda_graphs, graph_results):
        monkeypatch.setattr(module, "common_pool", lambda index: common)
    monkeypatch.setattr(cuda_graphs, "most_bytes", lambda index: 1 << 40)
    monkeypatch.setattr(cuda_graphs.CudaGraphs, "_record", _record)
    monkeypatch.setattr(step_memory, "Pool", Pool)
    build = tcompile.stages.original("runtime")

    def runtime(generated: Any, opts: Any, eager: Any = None) -> Any:
        g = build(generated, opts, eager=eager)
        return CompiledGraph(generated, cuda_graphs.CudaGraphs(g.call, generated.schedule, 0), "cuda graph", g.kernels)

    with tcompile.stages.replace("runtime", runtime):
        yield
