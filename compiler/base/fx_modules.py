"""What torch.fx does more cheaply when it is asked so: captured graphs as GraphModules, and nodes.

torch.fx keeps the source of every GraphModule it ever made, for tracebacks; here it goes with the module. The source
is written where somebody reads or runs it: that is a tenth of a first call whose kernels are there.
"""

from __future__ import annotations

import linecache
import weakref
from typing import Any

import torch
from torch.fx import _lazy_graph_module, graph_module as _fx

__all__ = ["call_node", "graph_module", "written_out"]


class _Captured(_lazy_graph_module._LazyGraphModule):
    def _lazy_forward(self, *args: Any, **kwargs: Any) -> Any:
        self.real_recompile()
        return self.forward(*args, **kwargs)  # (torch calls the module, which words errors in a way of its own)

    forward = _lazy_forward


def graph_module(graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule of class `name` over `graph`, without parameters of its own."""
    made = _Captured(torch.nn.Module(), graph, class_name=name)
    weakref.finalize(made, _forget, type(made)).atexit = False
    return made


def written_out(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The module with its source as its forward, for who calls it often or looks at its class."""
    if isinstance(module, _Captured):
        module.real_recompile()
    return module


def _forget(kind: type) -> None:
    if kind.forward is not _Captured.forward:  # type: ignore[attr-defined]
        file = kind.forward.__code__.co_filename  # type: ignore[attr-defined]
        linecache.cache.pop(file, None)
        _fx._loader.eval_cache.pop(file, None)


def call_node(
    graph: torch.fx.Graph, kind: str, target: Any, args: tuple, kwargs: dict[str, Any], name: str | None = None
) -> torch.fx.Node:
    """A new call, as `create_node` makes it. That walks over all arguments for a warning; what is set is not walked
    over."""
    node = graph.create_node(kind, target, (), {}, name=name)
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node
