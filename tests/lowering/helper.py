"""Small graphs through lowering and fusion: of real functions, and made by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Callable

import torch

from tcompile.compiler.graph.aten import GraphOutput
from tcompile.compiler.graph.meta.core import TensorMeta
from tcompile.compiler.fusion.fuse import schedule
from ..oracles.loop_interpreter import run_schedule
from tcompile.compiler.fusion.schedule import Launch, Schedule
from tcompile.compiler.fusion.verify_schedule import verify_schedule
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.primitives import PRIMS, SPECIAL
from tcompile.compiler.lowering.ref import contiguous_strides
from tcompile.compiler.lowering.verify_loops import verify_lowered

from ..graph.helpers import graph_of


# primitives of one float that every target has, and that torch has under the same name
UNARY = [
    name
    for name, row in PRIMS.items()
    if row.operands == 1 and name not in SPECIAL and name not in ("bitwise_not", "erf_rough")
]


def _flat(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return out
    flat: list = []
    for o in out:
        flat += [o] if isinstance(o, torch.Tensor) else list(o)
    return tuple(flat)


def aten_graph(fn: Callable, *inputs: Any) -> Any:
    """The AtenGraph of fn at these inputs (static shapes), whose parts a test may change."""
    a = graph_of(lambda *xs: _flat(fn(*xs)), list(inputs))
    return SimpleNamespace(
        graph=a.graph,
        inputs=None,
        outputs=list(a.outputs),
        mutations=list(a.mutations),
        env=SimpleNamespace(hints={}),
        constants=a.constants,
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


def symbolic_meta(shape: Any, dtype: torch.dtype, stride: Any = None) -> TensorMeta:
    stride = contiguous_strides(tuple(shape)) if stride is None else tuple(stride)
    return TensorMeta(tuple(shape), stride, dtype, torch.device("cpu"))
