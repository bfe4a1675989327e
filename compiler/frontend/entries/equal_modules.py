"""Equal modules that are compiled one by one (the blocks of a model) share what the first of them was compiled to.

Each has an engine, with caches and a recompile limit of its own. A call that its own entries do not serve asks those
of the other engines with the same options for the same code. Guards say what an entry relies on: which module it was
made for is none of that. A block that differs (its width, a dtype, a flag, a hook) meets guards that do not hold. Who
compiles one module twice wants it anew.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from torch import nn

from ...capture.library.distributed.fully_shard import parted_by_hooks
from ...graph.wrappers import is_dtensor

__all__ = ["entry_of_equal", "placed_within"]


def entry_of_equal(engine: Any, others: Iterable[Any], code: types.CodeType, func: Any, args: tuple) -> Any:
    """An entry that another engine made and that serves this call, with that engine; (None, None) where there is none.

    CUDA graphs read parameters where they were recorded: with them each module has an entry of its own.
    """
    if engine.module is None or engine.opts.get("cudagraphs"):
        return None, None
    module, options = engine.module(), engine.opts.values()
    for other in others:
        if other.module is None or other.module() is module or other.number != engine.number:
            continue
        for known, cache in list(other.caches.items()):
            if known != code or known.co_filename != code.co_filename:
                continue
            for entry in cache.entries:
                if entry.options == options and entry.program.check(func, args) < 0:
                    return entry, other
    return None, None


def placed_within(args: tuple) -> list[Any]:
    """The DTensors that are parameters of the modules among a call's arguments, or are gathered for them by FSDP2."""
    parameters = [param for arg in args if nn.Module in type(arg).__mro__ for param in nn.Module.parameters(arg)]
    return [param for param in parameters if is_dtensor(type(param))] + parted_by_hooks(parameters)
