"""Loading the compiler between two cells, once the notebook has torch.

The compiler's modules take about a second to import. Where the first compiled cell paid for that, a cell that only
builds a model took a second longer than plain. Under a kernel they are imported after a cell's reply has been sent,
while the kernel has nothing else to do; in a terminal before its next prompt.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

__all__ = ["Preload"]

_AFTER_REPLY = 0.05  # seconds
# What a first compilation imports by itself, beside the stages of the pipeline.
_MODULES = tuple(
    """compiler.frontend.hook compiler.autograd.bridge compiler.codegen.triton.print_kernel
    compiler.graph.aten_interpreter compiler.guards.probe compiler.guards.watch_probe compiler.lowering.promote
    compiler.lowering.rules compiler.native.build compiler.report.builder compiler.report.environment
    kernel_magics.rerun kernel_magics.render.html kernel_magics.render.svg kernel_magics.activity""".split()
)


class Preload:
    """Loads the compiler once, after the first cell that leaves torch imported."""

    def __init__(self) -> None:
        self.done = False

    def after_cell(self) -> None:
        if self.done or "torch" not in sys.modules:
            return
        self.done = True
        try:
            loop = asyncio.get_running_loop()  # a kernel's
        except RuntimeError:
            load()
        else:
            loop.call_later(_AFTER_REPLY, load)


def load() -> None:
    package = __package__.rpartition(".")[0]
    importlib.import_module(f"{package}.compiler.api")
    from ..compiler import stages

    stages.load()
    for module in _MODULES:
        importlib.import_module(f"{package}.{module}")
    from ..compiler.capture.tensors.patched_torch import patched_special_method
    from ..compiler.native import autograd_node
    from ..compiler.report.environment import environment
    from ..compiler.runtime.frame_hook import default_skip_prefixes

    for made_once in (autograd_node, patched_special_method, environment, default_skip_prefixes):
        made_once()  # (tables and facts that are kept)
