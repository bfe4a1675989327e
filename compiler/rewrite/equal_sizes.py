"""Sizes that guards found equal get one name throughout the graph."""

from __future__ import annotations

from typing import Any

import torch.fx

from ..base.fx_nodes import is_call
from ..symbolic.env import ShapeEnv
from ..symbolic.expr import Expr, maybe_int
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta
from .pass_nodes import holds_symbols

__all__ = ["unify_sizes"]


def unify_sizes(aten_graph: AtenGraph) -> None:
    """Apply the environment's replacements to arguments, metadata and outputs."""
    env = aten_graph.env
    if env is None or not env.replacements:
        return
    for node in aten_graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = _now(node.meta["val"], env)
        if is_call(node):
            if holds_symbols(node.args):
                node.args = _now(node.args, env)
            if node.kwargs and holds_symbols(tuple(node.kwargs.values())):
                node.kwargs = {name: _now(value, env) for name, value in node.kwargs.items()}
    for spec in aten_graph.plan:
        if spec.meta is not None:
            spec.meta = _now(spec.meta, env)
        if spec.kind == "int":
            spec.value = _now(spec.value, env)


def _now(x: Any, env: ShapeEnv) -> Any:
    if isinstance(x, Expr):
        return maybe_int(env.replace(x))
    if isinstance(x, TensorMeta):
        return x.replace(
            shape=_now(x.shape, env), stride=_now(x.stride, env), storage_offset=_now(x.storage_offset, env)
        )
    if isinstance(x, tuple):
        return tuple(_now(y, env) for y in x)
    if isinstance(x, list) and not isinstance(x, torch.fx.Node):
        return [_now(y, env) for y in x]
    return x
