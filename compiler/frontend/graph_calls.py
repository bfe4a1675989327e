"""Graphs that somebody else captured, as functions that the engine compiles."""

from __future__ import annotations

from types import FunctionType
from typing import Any, Callable

import torch

from ..backends.registry import resolve
from ..config import Options
from .engine import new_engine

__all__ = ["compile_fx", "tcompile_backend", "flat_caller"]


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


def tcompile_backend(
    gm: Any, example_inputs: list, *, options: dict[str, Any] | None = None, mode: str | None = None, **more: Any
) -> Callable:
    """`torch.compile(model, backend="tcompile")`: stock capture, this compiler's graph stages and kernels. torch gives
    example inputs as FakeTensors or tensors; the graph is taken through the pipeline at the first real call."""
    if mode not in (None, "default"):
        more["mode"] = mode
    return compile_fx(gm, example_inputs, **(options or {}), **more)


def flat_caller(gm: Any) -> FunctionType:
    """A function that calls the graph, with its inputs as parameters."""
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    module = "module_"
    while module in names:
        module += "_"
    ns: dict[str, Any] = {module: gm}
    exec(f"def graph({', '.join(names)}):\n    return {module}.forward({', '.join(names)})", ns)
    return ns["graph"]
