"""Captured graphs as torch.fx GraphModules that leave nothing behind.

torch.fx keeps the source of every GraphModule it ever made, for tracebacks; here it goes with the module.
"""

from __future__ import annotations

import linecache
import weakref

import torch
from torch.fx import graph_module as _fx

__all__ = ["graph_module"]


def graph_module(graph: torch.fx.Graph, name: str) -> torch.fx.GraphModule:
    """A GraphModule of class `name` over `graph`, without parameters of its own."""
    made = torch.fx.GraphModule(torch.nn.Module(), graph, class_name=name)
    weakref.finalize(made, _forget, type(made).forward.__code__.co_filename).atexit = False
    return made


def _forget(file: str) -> None:
    linecache.cache.pop(file, None)
    _fx._loader.eval_cache.pop(file, None)
