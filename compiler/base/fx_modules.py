"""Captured graphs as torch.fx GraphModules that leave nothing behind.

torch.fx keeps the source of every GraphModule it ever made, for tracebacks; here it goes with the module. The source is
made when somebody reads or runs it: graphs that are compiled are neither, and of a large one it takes longer than a
stage.
"""

from __future__ import annotations

import linecache
import weakref
from typing import Any

import torch
from torch.fx import graph_module as _fx
from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = ["graph_module"]


def graph_module(graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule of class `name` over `graph`, without parameters of its own."""
    return _Late(torch.nn.Module(), graph, class_name=name)


class _Late(_LazyGraphModule):
    def _real_recompile(self) -> Any:
        code = super()._real_recompile()
        weakref.finalize(self, _forget, type(self).forward.__code__.co_filename).atexit = False
        return code


def _forget(file: str) -> None:
    linecache.cache.pop(file, None)
    _fx._loader.eval_cache.pop(file, None)
