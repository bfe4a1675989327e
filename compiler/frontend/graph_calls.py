"""Graphs that somebody else captured, as functions that the engine compiles."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Callable

import torch

from ..backends.registry import resolve
from ..config import Options
from .engine import new_engine

__all__ = ["compile_fx", "flat_caller"]


def compile_fx(gm: Any, example_inputs: list, **options: Any) -> Callable:
    """Take an fx graph that somebody else captured (torch.compile's capture, torch.fx.symbolic_trace) through the
    stages from `graph` on: a callable of the same inputs. Sizes are those of each call; a new set of sizes is compiled
    anew.
    """
    if not isinstance(gm, torch.fx.GraphModule):
        raise TypeError(f"compile_fx takes a torch.fx.GraphModule, got {type(gm).__name__}")
    mode = options.pop("mode", None)
    opts = Options.make(mode, resolve("tcompile"), False, None, options or None)
    return new_engine(opts, {}).dispatcher(flat_caller(gm))


def flat_caller(gm: Any) -> FunctionType:
    """A function that calls the graph, with its inputs as parameters."""
    names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
    module = "module_"
    while module in names:
        module += "_"
    ns: dict[str, Any] = {module: gm}
    exec(f"def graph({', '.join(names)}):\n    return {module}.forward({', '.join(names)})", ns)
    return ns["graph"]
