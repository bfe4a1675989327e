"""Four processes on a grid of two by two: parameters sharded by FSDP2 over its rows, by tensor parallelism over its
columns. What tests/autograd/test_sharded_grid.py compares with eager.

    python -m tests.autograd.grid_runs gloo
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .collective_runs import compare
from .two_processes import start

__all__ = ["CASES", "compare"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def rows_and_columns(wrap: Callable) -> list[list]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    net = nn.Sequential(Block(), Block(), nn.Linear(16, 8))
    for block in (net[0], net[1]):
        parallelize_module(block, mesh["columns"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["rows"])
    fully_shard(net, mesh=mesh["rows"])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    f, out = wrap(net), []
    for k in range(3):
        seed = mesh["rows"].get_local_rank() + 7 * k
        loss = f(torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append([loss.detach()])
    return [*out, [p.detach().full_tensor() for p in net.parameters()]]


CASES = (rows_and_columns,)

if __name__ == "__main__":
    start(f"{__package__}.grid_runs", *sys.argv[1:], world=4)
