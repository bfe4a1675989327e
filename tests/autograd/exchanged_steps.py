"""Training steps in two processes whose function calls backward() and exchanges gradients itself: what
tests/autograd/test_exchanged_steps.py compares with eager.

    python -m tests.autograd.exchanged_steps gloo      prints a line of JSON for each case, as collective_runs.py does
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from .collective_runs import CALLS, WORLD, adamw, compare, given
from .two_processes import start

__all__ = ["CASES", "ONE_GRAPH", "compare"]


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def net():
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 7))


# --- gradients of plain parameters
def one_by_one(parameters):
    for p in parameters:
        dist.all_reduce(p.grad)
        p.grad /= WORLD


def divided_before(parameters):
    torch._foreach_div_([p.grad for p in parameters], float(WORLD))
    for p in parameters:
        dist.all_reduce(p.grad)


def all_at_once(parameters):
    handles = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
    for handle in handles:
        handle.wait()
    for p in parameters:
        p.grad /= WORLD


def in_one_bucket(parameters):
    gradients = [p.grad for p in parameters]
    bucket = _flatten_dense_tensors(gradients)
    dist.all_reduce(bucket)
    bucket /= WORLD
    for g, part in zip(gradients, _unflatten_dense_tensors(bucket, gradients)):
        g.copy_(part)


def trained(exchange: Callable, make: Callable, passes: int = 1, clip: bool = False) -> Callable:
    """Steps of a small net; `passes`: how many add their gradients up before they are exchanged."""

    def case(wrap: Callable) -> list[list]:
        m = net()
        optimizer = make(m.parameters())

        def step(*batches):
            optimizer.zero_grad()
            loss = m(batches[0]).square().mean()
            loss.backward()
            if passes > 1:
                m(batches[1]).square().mean().backward()
            exchange(list(m.parameters()))
            norm = nn.utils.clip_grad_norm_(m.parameters(), 0.5) if clip else loss
            optimizer.step()
            return [loss.detach(), norm.detach()]

        f = wrap(step)
        return [
            f(*(given(2 * k + i) for i in range(passes)))
            + [t.detach().clone() for p in m.parameters() for t in (p, p.grad)]
            for k in range(CALLS)
        ]

    case.__name__ = f"{exchange.__name__}_{make.__name__}_{passes}" + "_clipped" * clip
    return case


def gradients_alone(exchange: Callable) -> Callable:
    """Gradients that are there already: they are exchanged in their own memory."""

    def case(wrap: Callable) -> list[list]:
        m = nn.ParameterList([torch.zeros(3, 1 << 17) for _ in range(3)])  # (small ones are kept from failing graphs)
        f = wrap(lambda: exchange(list(m.parameters())))
        out = []
        for k in range(CALLS):
            for i, p in enumerate(m.parameters()):
                p.grad = given(k + i)[0].repeat(1 << 16).view(3, -1)
            before = [p.grad for p in m.parameters()]
            f()
            out.append([p.grad.clone() for p in m.parameters()])
            out[-1].append(torch.tensor([float(p.grad is g) for p, g in zip(m.parameters(), before)]))
        return out

    case.__name__ = f"{exchange.__name__}_alone"
    return case


# --- tensor parallel
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


COLUMNS_AND_ROWS = {"up": ColwiseParallel(), "down": RowwiseParallel()}
SEQUENCE = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
}


def described(t: torch.Tensor) -> torch.Tensor:
    """How a DTensor is placed, as numbers."""
    places = [(p.is_replicate(), p.is_partial(), getattr(p, "dim", 0)) for p in getattr(t, "placements", ())]
    return torch.tensor([float(t.requires_grad), *(float(n) for place in places for n in place)])


def whole(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return t.full_tensor() if hasattr(t, "full_tensor") else t.clone()


def parallel(wrap: Callable, plan: dict, make: Callable, add_up: bool = False, alone: bool = False) -> list[list]:
    """Whole steps; `alone`: the optimizer's step by itself, behind a backward pass of eager's."""
    m, mesh = nn.Sequential(Block(), Block()), init_device_mesh("cpu", (WORLD,))
    for block in m:
        parallelize_module(block, mesh, dict(plan))
    optimizer = make(m.parameters())

    def step(x):
        if not add_up:
            optimizer.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        update()
        return loss.detach()

    def update():
        optimizer.step()

    if alone:
        update = wrap(update)
    f, out = step if alone else wrap(step), []
    for k in range(CALLS):
        generator = torch.Generator().manual_seed(k + (100 * dist.get_rank() if plan is SEQUENCE else 0))
        out.append([f(torch.randn(2, 6, 8, generator=generator))])
        for p in m.parameters():
            out[-1] += [whole(p), whole(p.grad), described(p), described(p.grad)]
    return out


def columns_and_rows(wrap):
    return parallel(wrap, COLUMNS_AND_ROWS, adamw)


def columns_and_rows_with_momentum(wrap):
    return parallel(wrap, COLUMNS_AND_ROWS, momentum)


def sequence_parallel(wrap):
    return parallel(wrap, SEQUENCE, adamw)


def sequence_parallel_step_alone(wrap):
    return parallel(wrap, SEQUENCE, momentum, alone=True)


def gradients_that_add_up(wrap):
    return parallel(wrap, COLUMNS_AND_ROWS, momentum, add_up=True)


# --- what exchanges gradients by hooks
def wrapped(module: nn.Module, wrap: Callable, inner: Callable = lambda module: module) -> list[list]:
    optimizer = momentum(module.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = inner(module)(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = wrap(step)
    return [[f(given(k)), *map(whole, module.parameters())] for k in range(CALLS)]


def data_parallel(wrap):
    return wrapped(nn.parallel.DistributedDataParallel(net()), wrap)


def past_its_forward(wrap):
    """The module inside of DistributedDataParallel, whose gradients it exchanges all the same."""
    return wrapped(nn.parallel.DistributedDataParallel(net()), wrap, lambda module: module.module)


def fully_sharded(wrap):
    from torch.distributed.fsdp import fully_shard

    m, mesh = net(), init_device_mesh("cpu", (WORLD,))
    fully_shard(m[0], mesh=mesh)
    fully_shard(m, mesh=mesh)
    return wrapped(m, wrap)


IN_PLACE = tuple(map(gradients_alone, (one_by_one, divided_before, all_at_once)))
ONE_GRAPH = (
    *IN_PLACE,
    *(trained(e, momentum) for e in (one_by_one, divided_before, all_at_once, in_one_bucket)),
    trained(one_by_one, adamw),
    trained(all_at_once, adamw, passes=2),
    trained(in_one_bucket, adamw, passes=2, clip=True),
    columns_and_rows,
    columns_and_rows_with_momentum,
    sequence_parallel,
    sequence_parallel_step_alone,
)
TWO_GRAPHS = (gradients_that_add_up,)  # the first step has no gradients yet
CASES = (*ONE_GRAPH, *TWO_GRAPHS, data_parallel, past_its_forward, fully_sharded)

if __name__ == "__main__":
    start(f"{__package__}.exchanged_steps", *sys.argv[1:])
