"""DistributedDataParallel and the first FSDP: modules around a module, whose forward talks to an object of C++.

What they do before and after is bookkeeping, without operators. Each call of that object would end a graph. So their
forward runs as it is, and the module inside is compiled by itself, as if nothing stood around it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...kinds.callables import python_function
from ...machine.signals import Break

if TYPE_CHECKING:
    from ...machine.machine import Machine

__all__: list[str] = []


@python_function(
    ("torch.nn.parallel.distributed", "DistributedDataParallel.forward"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel.forward"),
)
def forward(machine: Machine, module: Any, *args: Any, **kwargs: Any) -> Any:
    kind = machine.world.type_of(module).__name__
    raise Break("library", f"{kind} exchanges gradients around the module that it holds")
