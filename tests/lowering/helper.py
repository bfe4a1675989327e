"""Small AtenGraphs from real functions: make_fx and functionalize stand in for the graph stage, which has its own
tests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tcompile.compiler.graph.aten import GraphOutput
from tcompile.compiler.fusion.fuse import schedule
from tcompile.compiler.fusion.loop_interpreter import run_schedule
from tcompile.compiler.fusion.schedule import Launch, Schedule
from tcompile.compiler.fusion.verify_schedule import verify_schedule
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.ref import contiguous_strides
from tcompile.compiler.lowering.verify_loops import verify_lowered


def meta(t: Any) -> Any:
    if isinstance(t, torch.Tensor):
        return SimpleNamespace(
            shape=tuple(t.shape),
            stride=tuple(t.stride()),
            dtype=t.dtype,
            device=t.device,
            storage_offset=t.storage_offset(),
            requires_grad=False,
        )
    return tuple(map(meta, t)) if isinstance(t, (tuple, list)) else t


def _flat(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return out
    flat: list = []
    for o in out:
        flat += [o] if isinstance(o, torch.Tensor) else list(o)
    return tuple(flat)


def aten_graph(fn: Callable, *inputs: Any) -> Any:
    """An AtenGraph stand-in of fn at these inputs (static shapes)."""
    with torch.no_grad():
        plain = lambda *a: _flat(fn(*a))  # make_fx wants a plain signature and plain containers
        gm = make_fx(torch.func.functionalize(plain, remove="mutations"), tracing_mode="real")(*inputs)
        gm.graph.eliminate_dead_code()
        env: dict = {}
        it = iter(inputs)
        constants = {}
        for n in gm.graph.nodes:
            if n.op == "placeholder":
                env[n] = next(it)
            elif n.op == "get_attr":
                env[n] = constants[n.target] = getattr(gm, n.target)
            elif n.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((n.args, n.kwargs), lambda x: env[x])
                env[n] = n.target(*args, **kwargs)
            else:
                continue
            n.meta = {"val": meta(env[n])}
    out = next(n for n in gm.graph.nodes if n.op == "output").args[0]
    flat = list(out) if isinstance(out, (tuple, list)) else [out]
    return SimpleNamespace(
        graph=gm.graph,
        inputs=None,
        outputs=[GraphOutput(kind="buffer", value=n) for n in flat],
        mutations=[],
        env=SimpleNamespace(hints={}),
        constants=constants,
    )


def compile_fn(fn: Callable, *inputs: Any, **opts: Any) -> Schedule:
    """fn through lowering and fusion, verified."""
    lowered = lower(aten_graph(fn, *inputs), opts)
    verify_lowered(lowered)
    s = schedule(lowered, opts)
    verify_schedule(s)
    return s


def kernels(s: Schedule) -> list:
    return [x.kernel for x in s.steps if isinstance(x, Launch)]


def externs(s: Schedule) -> list[str]:
    return [str(x.op) for x in s.steps if hasattr(x, "out_variant")]


def check(
    fn: Callable,
    *inputs: Any,
    atol: float | None = None,
    rtol: float | None = None,
    n_kernels: int | None = None,
    n_externs: int | None = None,
    **opts: Any,
) -> Schedule:
    """Compiled equals eager: values, dtypes, shapes and strides."""
    s = compile_fn(fn, *inputs, **opts)
    with torch.no_grad():
        want = fn(
            *[
                x.clone() if isinstance(x, torch.Tensor) and 0 not in x.stride() and x.is_contiguous() else x
                for x in inputs
            ]
        )
        got = run_schedule(s, list(inputs))
    want = _flat(want)
    want = want if isinstance(want, tuple) else (want,)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w, atol=atol, rtol=rtol, equal_nan=True)
        assert g.dtype == w.dtype and g.shape == w.shape
        assert all(a == b for a, b, n in zip(g.stride(), w.stride(), w.shape) if n > 1) or w.numel() == 0, (
            g.stride(),
            w.stride(),
        )
    if n_kernels is not None:
        assert len(kernels(s)) == n_kernels, f"{len(kernels(s))} kernels\n{s}"
    if n_externs is not None:
        assert len(externs(s)) == n_externs, f"{externs(s)}"
    return s


class Builder:
    """An AtenGraph stand-in made by hand, for sizes that are symbols."""

    def __init__(self, **hints: int):
        self.graph = torch.fx.Graph()
        self.hints, self.outs, self.mutations, self.n = hints, [], [], 0

    def input(self, shape: Any, dtype: torch.dtype = torch.float32, stride: Any = None) -> torch.fx.Node:
        n = self.graph.placeholder(f"x{self.n}")
        self.n += 1
        n.meta = {"val": symbolic_meta(shape, dtype, stride)}
        return n

    def scalar(self, e: Any) -> torch.fx.Node:
        n = self.graph.placeholder(f"x{self.n}")
        self.n += 1
        n.meta = {"val": e}
        return n

    def call(
        self, op: Any, *args: Any, shape: Any, dtype: torch.dtype = torch.float32, stride: Any = None, **kwargs: Any
    ) -> torch.fx.Node:
        n = self.graph.call_function(op, args, kwargs)
        n.meta = {"val": symbolic_meta(shape, dtype, stride)}
        return n

    def aten(self, *outs: torch.fx.Node) -> Any:
        self.graph.output(tuple(outs))
        return SimpleNamespace(
            graph=self.graph,
            inputs=None,
            outputs=[GraphOutput(kind="buffer", value=n) for n in outs],
            mutations=self.mutations,
            env=SimpleNamespace(hints=self.hints),
            constants={},
        )

    def schedule(self, *outs: torch.fx.Node, **opts: Any) -> Schedule:
        lowered = lower(self.aten(*outs), opts)
        verify_lowered(lowered)
        s = schedule(lowered, opts)
        verify_schedule(s)
        return s


def symbolic_meta(shape: Any, dtype: torch.dtype, stride: Any = None) -> Any:
    return SimpleNamespace(
        shape=tuple(shape),
        stride=tuple(stride) if stride is not None else contiguous_strides(tuple(shape)),
        dtype=dtype,
        device=torch.device("cpu"),
        storage_offset=0,
        requires_grad=False,
    )
