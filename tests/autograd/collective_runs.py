"""Two processes that exchange tensors inside of captured functions, and update DTensors there: what
tests/autograd/test_collectives.py compares with eager.

    python -m tests.autograd.collective_runs gloo      prints one line of JSON per case: whether it is as eager, graphs,
                                                       breaks, what compiled after the first call
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional
from torch import nn

from .two_processes import WORLD, start

CALLS = 4


def given(k: int) -> torch.Tensor:
    """Of this process and call."""
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(dist.get_rank() + 7 * k))


# --- collectives that write
def all_reduce(x):
    y = x * 2
    dist.all_reduce(y)
    return y + 1


def all_reduce_of_an_input(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x + 1


def all_reduce_later(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    z = x + 3
    work.wait()
    return y + z


def never_waited_for(x):
    y = x * 2
    dist.all_reduce(y, async_op=True)
    return y


def all_gather_into_tensor(x):
    out = x.new_empty(2 * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(out, x * 2)
    return out + 1


def all_gather(x):
    out = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(out, x * 2)
    return out[0] - out[1]


def reduce_scatter_tensor(x):
    out = x.new_empty(x.shape[0] // 2, *x.shape[1:])
    dist.reduce_scatter_tensor(out, x * 2)
    return out + 1


def all_to_all_single(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x * 2)
    return out + 1


def broadcast(x):
    y = x * 2
    dist.broadcast(y, 1)
    return y + 1


# --- later, and of other groups
def broadcast_later(x):
    y = x * 2
    work = dist.broadcast(y, group_src=0, async_op=True)
    z = x.sin()
    work.wait()
    return y + z


def broadcast_from_each(x):
    """What is given is an input, and a part of one."""
    dist.broadcast(x, 0)
    y = x + 1
    dist.broadcast(y[1:3], src=1)
    return y * x


def all_to_all_later(x):
    """Processes give each other parts of several sizes."""
    rank = dist.get_rank()
    given, got = ([1, 3], [1, 3]) if rank == 0 else ([3, 1], [3, 1])
    out = x.new_empty(sum(got), 6)
    work = dist.all_to_all_single(out, x * 2, got, given, async_op=True)
    z = x.cos()
    work.wait()
    return out.sin() + z


def gathers_later(x):
    out, wide = [torch.empty_like(x) for _ in range(2)], x.new_empty(8, 6)
    works = [dist.all_gather(out, x * 2, async_op=True), dist.all_gather_into_tensor(wide, x + 1, async_op=True)]
    part = x.new_empty(2, 6)
    works.append(dist.reduce_scatter_tensor(part, x * 3, op=dist.ReduceOp.MAX, async_op=True))
    z = x.exp()
    for work in works:
        if not work.wait():
            return z
    return out[0] - out[1] + wide[2:6] + torch.cat([part, part]) + z


def functional_siblings(x):
    y = functional.broadcast(x.sin(), 1, dist.group.WORLD)
    z = functional.all_to_all_single(x * 2, None, None, dist.group.WORLD)
    w = functional.all_reduce(x.cos(), "max", dist.group.WORLD)
    return functional.wait_tensor(y) + z * w


def reduce_scatter(x):
    """(Given as a list gloo exchanges it in its own way: no process may run eager's beside a compiled one.)"""
    part = x.new_empty(2, 6)
    dist.reduce_scatter(part, list((x * 3).chunk(2)))
    return part + 1


def all_to_all_of_lists(x):
    """(Lists, and lists of collectives, gloo exchanges in its own way: see reduce_scatter.)"""
    parts = [x.new_empty(2, 6) for _ in range(2)]
    work = dist.all_to_all(parts, list((x * 2).chunk(2)), async_op=True)
    z = x.cos()
    work.wait()
    return torch.cat(parts).sin() + z


def asked_handles(x):
    """What a handle says, apart from wait()."""
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1 if work.is_success() and work.exception() is None and work.result()[0] is y else x


def functional_lists(x):
    a, b = functional.all_reduce_coalesced([x * 2, x + 1], "sum", dist.group.WORLD)
    c, d = functional.all_gather_into_tensor_coalesced([x * 2, x.sin()], dist.group.WORLD)
    e, f = functional.reduce_scatter_tensor_coalesced([x * 2, x.cos()], "sum", [0, 0], dist.group.WORLD)
    return torch.cat([a * b, c * d, e * f])


GROUPS: dict[str, dist.ProcessGroup] = {}


def groups() -> dict[str, dist.ProcessGroup]:
    """A second group of both processes, and one for each of them alone."""
    if not GROUPS:
        GROUPS["both"] = dist.new_group([0, 1])
        for rank in range(WORLD):
            group = dist.new_group([rank])
            if rank == dist.get_rank():
                GROUPS["own"] = group
    return GROUPS


def of_other_groups(x):
    y, z = x * 2, x + 1
    dist.all_reduce(y, group=GROUPS["both"])
    works = [
        dist.all_reduce(z, group=GROUPS["own"], async_op=True),
        dist.broadcast(y, group=GROUPS["both"], group_src=1, async_op=True),
    ]
    out = x.new_empty(4, 6)
    dist.all_gather_into_tensor(out, z, group=GROUPS["own"])
    for work in works:
        work.wait()
    size = dist.get_world_size(GROUPS["own"])
    return y + z + out * size + dist.get_rank(GROUPS["own"])


def asked_groups(x):
    group = GROUPS["both"]
    return x * group.rank() + group.size() + dist.get_group_rank(group, 1) + dist.get_global_rank(group, group_rank=1)


def rank_and_size(x):
    return x * dist.get_rank() + dist.get_world_size()


# --- functional ones, with their gradients
def functional_ones(x):
    y = functional.all_reduce(x.sin(), "sum", dist.group.WORLD)
    z = functional.all_gather_tensor(x * 2, 1, dist.group.WORLD)
    r = functional.reduce_scatter_tensor(x.exp(), "sum", 0, dist.group.WORLD)
    return y.square().sum() + z.cos().sum() + r.square().sum()


class Copied(torch.autograd.Function):
    """Each process computes a part of what follows: gradients are added up, beside a product."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        total = g @ w.t()
        work = dist.all_reduce(total, async_op=True)
        of_w = x.t() @ g
        work.wait()
        return total, of_w


class Added(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, g):
        return g


def own_functions(x):
    return Added.apply(torch.tanh(Copied.apply(x, x.t() * 0.1)) * 3).square().sum()


def without_history(x):
    """Eager's all_reduce is no part of the history."""
    y = x * 2
    dist.all_reduce(y)
    return y.sin().sum()


# --- each process issues the same ones
def equal_and_unread(x):
    functional.all_reduce(x * 3, "sum", dist.group.WORLD)
    a = functional.all_reduce(x, "sum", dist.group.WORLD)
    b = functional.all_reduce(x, "sum", dist.group.WORLD)
    return a * b + 1


def beside_products(x):
    parts = [(x * (i + 1)).sin() for i in range(4)]
    works = [dist.all_reduce(part, async_op=True) for part in parts]
    t = x
    for _ in range(3):
        t = (t @ t.t() @ x).tanh()
    for work in works:
        work.wait()
    return sum(parts) + t


def many_small(x):
    parts = [(x[:, i % 6] * (i + 1)).sin() for i in range(16)]
    for i, part in enumerate(parts):
        if i % 3 == 2:
            dist.broadcast(part, i % 2)
        else:
            dist.all_reduce(part, op=dist.ReduceOp.SUM if i % 2 else dist.ReduceOp.MAX)
        if i == 7:
            parts[8] = parts[8] + part
    return torch.stack(parts).cumsum(0)


def one_call(f: Callable, x: torch.Tensor, grad: bool) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(grad)
    out = f(x)
    if not grad:
        return [out, x]
    out.backward()
    return [out.detach(), x.grad]


def calls(f: Callable) -> Callable:
    """Calls of one function. Both processes call the compiled one; then rank 1 calls eager's, whose collectives have to
    meet."""
    grad = f in (functional_ones, own_functions, without_history)

    def run(wrap: Callable) -> list[list]:
        groups()
        g, steps = wrap(f), [lambda k: one_call(g, given(k), grad)] * CALLS
        if f not in (reduce_scatter, all_to_all_of_lists, functional_lists):
            steps.append(lambda k: one_call(f if dist.get_rank() else g, given(k), grad))
        return [step(k) for k, step in enumerate(steps)]

    run.__name__ = f.__name__
    return run


def around_what_is_written(x):
    """What is read before and behind a collective in place, by other names too, and what it is given once more."""
    before, part = x.sin(), x[1:]
    dist.all_reduce(part)
    dist.broadcast(x, 1)
    y = x * 2
    seen, reduced = y.view(-1), functional.all_reduce(y, "sum", dist.group.WORLD)
    again = functional.all_reduce(y, "max", dist.group.WORLD)
    dist.all_reduce(y)
    return torch.cat([before, y, reduced - again, (seen + 1).view_as(y), x.cos()])


def large_ones_in_place(x):
    """In the memory of inputs, one behind another, with kernels in between."""
    big = x.repeat(300, 300)
    return halved_sum(big) + big.sum(0)


def halved_sum(t):
    dist.all_reduce(t)
    t.mul_(0.5)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    return t.sum(0)


# --- DTensors in optimizers
def sharded(wrap: Callable, make: Callable, update: Callable | None = None, again: bool = False) -> list[list]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, mesh = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 7)), init_device_mesh("cpu", (WORLD,))
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    step = wrap(lambda: update(net, optimizer)) if update else wrap(optimizer.step)
    out = []
    for k in range(CALLS):
        for part in range(2 if again else 1):
            net.set_requires_gradient_sync(bool(part) or not again)
            loss = net(given(2 * k + part)).square().sum()
            loss.backward()
        got = step()
        optimizer.zero_grad()
        schedule.step()
        out.append([loss.detach(), *([got.full_tensor()] if isinstance(got, torch.Tensor) else [])])
    out[-1] += [p.detach().full_tensor() for p in net.parameters()]
    out[-1].append(torch.tensor([float(p._version > 0) for p in net.parameters()]))
    return out


# --- torch.distributed.nn.functional: they have gradients
def with_gradient(f: Callable) -> Callable:
    """Loss and gradient of a function of this process's tensor."""

    def case(wrap: Callable) -> list[list]:
        g, out = wrap(f), []
        for k in range(CALLS):
            x = given(k).requires_grad_()
            loss = g(x).square().sum()
            loss.backward()
            out.append([loss.detach(), x.grad])
        return out

    case.__name__ = f.__name__
    return case


def nn_all_reduce(x):
    return torch.distributed.nn.functional.all_reduce(x * 2).sin() * (dist.get_rank() + 1)


def nn_all_gather(x):
    first, second = torch.distributed.nn.functional.all_gather(x.t())
    return first.sin() * (dist.get_rank() + 1) + second


def nn_reduce_scatter(x):
    return torch.distributed.nn.functional.reduce_scatter(x.new_empty(2, 6), list((x * 2).chunk(2))).sin()


def nn_all_to_all(x):
    parts = torch.distributed.nn.functional.all_to_all([x.new_empty(2, 6) for _ in range(2)], list((x * 2).chunk(2)))
    return parts[0].sin() + parts[1] * (dist.get_rank() + 1)


def nn_all_to_all_single(x):
    mine, others = ([1, 3], [1, 1]) if dist.get_rank() == 0 else ([1, 3], [3, 3])
    out = x.new_empty(sum(others), 6)
    return torch.distributed.nn.functional.all_to_all_single(out, x * 2, others, mine).sin()


def nn_broadcast(x):
    return torch.distributed.nn.functional.broadcast(x * 2, 1).sin() * (dist.get_rank() + 1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def sharded_adamw(wrap):
    return sharded(wrap, adamw)


def sharded_sgd(wrap):
    return sharded(wrap, lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True))


def sharded_radam(wrap):
    return sharded(wrap, lambda p: torch.optim.RAdam(p, 1e-2))


def accumulated_gradients(wrap):
    return sharded(wrap, adamw, again=True)


def clipped_gradients(wrap):
    def update(net, optimizer):
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return sharded(wrap, adamw, update)


def whole_matrices(wrap):
    """Muon's step needs all of a matrix: it runs as it is."""
    return sharded(wrap, lambda p: torch.optim.Muon([t for t in p if t.dim() == 2], 1e-2))


ONE_GRAPH = (
    *map(
        calls,
        (
            all_reduce,
            all_reduce_of_an_input,
            all_reduce_later,
            never_waited_for,
            all_gather_into_tensor,
            all_gather,
            reduce_scatter_tensor,
            all_to_all_single,
            broadcast,
            broadcast_later,
            broadcast_from_each,
            all_to_all_later,
            gathers_later,
            reduce_scatter,
            functional_siblings,
            functional_lists,
            all_to_all_of_lists,
            asked_handles,
            of_other_groups,
            asked_groups,
            rank_and_size,
            functional_ones,
            own_functions,
            without_history,
            equal_and_unread,
            beside_products,
            many_small,
            around_what_is_written,
            large_ones_in_place,
        ),
    ),
    sharded_adamw,
    sharded_sgd,
    sharded_radam,
    accumulated_gradients,
    clipped_gradients,
    *map(
        with_gradient,
        (nn_all_reduce, nn_all_gather, nn_reduce_scatter, nn_all_to_all, nn_all_to_all_single, nn_broadcast),
    ),
)


def with_words(wrap: Callable) -> list[list]:
    """What no graph has: the frame goes on behind it."""

    def f(x):
        y = x * 2
        told: list = [None, None]
        dist.all_gather_object(told, dist.get_rank())
        work = dist.all_reduce(y, async_op=True)
        work.get_future().wait()
        return y + told[1]

    g = wrap(f)
    return [[g(given(k))] for k in range(CALLS)]


def operations_that_change(wrap: Callable) -> list[list]:
    """The operation is an argument."""

    def f(x, op):
        y = x * 2
        dist.all_reduce(y, op=op)
        return y

    g, ops = wrap(f), dist.ReduceOp
    return [[g(given(k), op)] for k, op in enumerate((ops.SUM, ops.MAX, ops.SUM, ops.MIN))]


CASES = (*ONE_GRAPH, operations_that_change, with_words, *([whole_matrices] if hasattr(torch.optim, "Muon") else []))


def compare(case: Callable, device: torch.device) -> dict[str, Any]:
    """One case in this process, eager and compiled."""
    import tcompile
    from tcompile.compiler import events

    def run(wrap: Callable) -> list[list]:
        torch.manual_seed(0)
        results = case(wrap)
        dist.barrier()  # what was never waited for is there by now
        return results

    want = run(lambda f: f)
    tcompile.reset()
    heard: dict[str, list] = {"graph": [], "break": [], "skip": [], "fallback": [], "schedule": []}

    def hear(e: events.Event) -> None:
        if e.kind in heard:
            heard[e.kind].append(e.facts)

    with events.listen(hear):
        got = run(tcompile.compile)
    pairs = [(a, b) for x, y in zip(want, got) for a, b in zip(x, y, strict=True)]
    return {
        "case": case.__name__,
        "same": len(want) == len(got) and all(a.shape == b.shape and torch.allclose(a, b, atol=1e-5) for a, b in pairs),
        "graphs": len(heard["graph"]),
        "breaks": [f["brk"].reason for f in heard["break"]]
        + [str(f["reason"]) for kind in ("skip", "fallback") for f in heard[kind]],
        "peak_bytes": max((f["schedule"].peak_bytes for f in heard["schedule"]), default=0),
        "calls": [str(s.op) for f in heard["schedule"][:1] for s in f["schedule"].steps if hasattr(s, "op")],
    }


if __name__ == "__main__":
    start(f"{__package__}.collective_runs", *sys.argv[1:])
