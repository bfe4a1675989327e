"""Trace a function into an aten graph and run the graph with torch's kernels, for comparison with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tcompile.compiler.graph.aten import AtenGraph
from tcompile.compiler.graph.aten_interpreter import interpret
from tcompile.compiler.graph.to_aten import finish, record_function
from tcompile.compiler.graph.verify_graph import verify
from tcompile.compiler.symbolic.env import ShapeEnv
from tests.oracles.opdb import compare


def graph_of(fn: Callable, tensors: list, dynamic: dict | None = None, opts: Any = None) -> AtenGraph:
    a = finish(record_function(fn, tensors, ShapeEnv() if dynamic else None, dynamic), opts)
    verify(a)
    return a


def compiled(fn: Callable, tensors: list) -> Callable:
    """The form that the op_db oracle takes."""
    a = graph_of(fn, tensors)
    return lambda *xs: interpret(a, list(xs))


def same(fn: Callable, *tensors: torch.Tensor, dynamic: dict | None = None, other: list | None = None) -> AtenGraph:
    """Assert that the graph gives what eager gives, strides, aliasing and written inputs included; `other` are inputs
    of other sizes for which the same graph must hold (and its guards do)."""
    a = graph_of(fn, list(tensors), dynamic)
    for ts in [list(tensors)] + ([other] if other else []):
        e, o = (
            [t.detach().clone() if _simple(t) else copy_of(t) for t in ts],
            [t.detach().clone() if _simple(t) else copy_of(t) for t in ts],
        )
        with torch.no_grad():
            want, got = fn(*e), interpret(a, o)
        problem = compare(want, list(got), e, o)
        assert not problem, f"{problem}\n{a}"
    return a


def _simple(t: torch.Tensor) -> bool:
    return t.is_contiguous()


def copy_of(t: torch.Tensor) -> torch.Tensor:
    """The same strides, in memory of its own."""
    size = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0
    base = torch.zeros(size, dtype=t.dtype)
    return base.as_strided(t.shape, t.stride()).copy_(t) if t.numel() else t.clone()


def ops(a: AtenGraph) -> list[str]:
    return [n.target._schema.name.partition("::")[2] for n in a.calls() if isinstance(n.target, torch._ops.OpOverload)]
