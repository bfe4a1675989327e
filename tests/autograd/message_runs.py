"""Two processes that send tensors to each other inside of captured functions: what tests/autograd/test_messages.py
compares with eager.

python -m tests.autograd.message_runs gloo      prints one line of JSON per case, as collective_runs does
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from .collective_runs import CALLS, given
from .collective_runs import compare as compare
from .two_processes import WORLD, start


def other() -> int:
    return 1 - dist.get_rank()


def called(f: Callable) -> Callable:
    """Calls of one function of this process's tensor."""

    def case(wrap: Callable) -> list[list]:
        g, out = wrap(f), []
        for k in range(CALLS):
            x = given(k)
            got = g(x)
            out.append([*(got if isinstance(got, tuple) else (got,)), x])
        return out

    case.__name__ = f.__name__
    return case


def room(x: torch.Tensor, mine: bool) -> list[torch.Tensor] | None:
    return [torch.empty_like(x) for _ in range(WORLD)] if mine else None


# --- what one process alone gets or gives
def gathered(x):
    out = room(x, dist.get_rank() == 0)
    dist.gather(x * 2, out, dst=0)
    return x.sin() if out is None else out[0] - out[1]


def gathered_later(x):
    out = room(x, dist.get_rank() == 1)
    work = dist.gather(x * 2, out, group_dst=1, async_op=True)
    y = x @ x.t()
    work.wait()
    return x.sin() if out is None else out[0] - out[1], y


def scattered(x):
    y = torch.zeros(2, 6)
    work = dist.scatter(y, list((x * 3).chunk(2)) if dist.get_rank() == 1 else None, src=1, async_op=True)
    z = x.cos()
    work.wait()
    return y + z[:2]


def scattered_into_an_input(x):
    dist.scatter(x[:2], [x[2:] + 1, x[2:] * 2] if dist.get_rank() == 0 else [])
    return x + 1


def reduced(x):
    """(The others' tensors are as eager leaves them, which nobody promises.)"""
    y, z = x * 2, x + 1
    dist.reduce(y, 1)
    work = dist.reduce(z, 0, op=dist.ReduceOp.MAX, async_op=True)
    t = (x @ x.t()).tanh() @ x
    work.wait()
    return y, z + t


# --- messages
def sent_and_received(x):
    y = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x * 2, 1)
        source = dist.recv(y, 1)
    else:
        source = dist.recv(y, src=0)
        dist.send(y + x, 0)
    return y * 3 + source


def exchanged(x):
    y, a = torch.empty_like(x), x * 2
    received, sent = dist.irecv(y, other()), dist.isend(a, other())
    z = x.sin() @ x.t()
    received.wait()
    sent.wait()
    b = y * 3
    a.add_(100)
    return b + a, z


def in_turns(x):
    acc = x
    for i in range(3):
        y = torch.empty_like(x)
        sent = dist.isend(acc.contiguous(), other(), tag=i)
        dist.recv(y, other(), tag=i)
        sent.wait()
        acc = (acc + y).tanh()
    return acc


def received_into_a_part(x):
    sent, y = dist.isend(x[1:3].contiguous(), other()), x.clone()
    received = dist.irecv(y[1:3], other())
    received.wait()
    sent.wait()
    return y


def batch(x):
    y = torch.zeros_like(x)
    operations = [dist.P2POp(dist.isend, x + 1, other()), dist.P2POp(dist.irecv, y, other())]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return y + x


def of_other_dtypes(x):
    out = []
    for dtype in (torch.int64, torch.bfloat16, torch.bool, torch.complex64):
        a = x.to(dtype)
        y = torch.empty_like(a)
        works = [dist.irecv(y, other()), dist.isend(a, other())]
        for work in works:
            work.wait()
        out.append(y.to(torch.complex64).real)
    return tuple(out)


def barriers(x):
    y = x * 2
    dist.barrier()
    z = y + 1
    dist.barrier(async_op=True).wait()
    dist.all_reduce(z)
    return z


# --- across calls and graphs
def waited_for_outside(wrap: Callable) -> list[list]:
    """What another process sends in a later frame has not come when the frame ends that receives it."""

    def receive(x):
        y = torch.zeros_like(x)
        return y, dist.irecv(y, other()), dist.irecv(x, other(), tag=1)

    def send(x):
        a = x * 5
        return dist.isend(a, other()), dist.isend(a + 1, other(), tag=1), (a + 1) * 2

    g, h, out = wrap(receive), wrap(send), []
    for k in range(CALLS):
        into = torch.zeros(4, 6)
        y, *received = g(into)
        *sent, z = h(given(k))
        torch.ones(64, 64).sin()
        for work in (*sent, *received):
            work.wait()
        out.append([y.clone(), into.clone(), z])
    return out


def sizes_that_vary(wrap: Callable) -> list[list]:
    def f(x):
        out, y = room(x, dist.get_rank() == 0), torch.empty_like(x)
        dist.gather(x * 2, out, dst=0)
        sent = dist.isend(x, other())
        dist.recv(y, other())
        sent.wait()
        return y if out is None else out[1] - y

    g = wrap(f)
    return [[g(given(k)[:n].contiguous())] for k, n in enumerate((4, 3, 2, 4, 1))]


def met_by_plain_code(wrap: Callable) -> list[list]:
    """Only one of the processes is compiled."""

    def f(x):
        out, y = room(x, dist.get_rank() == 0), x.clone()
        dist.gather(x * 2, out, dst=0)
        dist.barrier()
        dist.reduce(y, 0)
        return x if out is None else y + out[1]

    g = wrap(f) if dist.get_rank() == 0 else f
    return [[g(given(k))] for k in range(CALLS)]


class Sent(torch.autograd.Function):
    """A pipeline: activations go on, gradients come back."""

    @staticmethod
    def forward(ctx, x):
        dist.send(x.contiguous(), 1)
        return x.sum() * 0

    @staticmethod
    def backward(ctx, g):
        gradient = torch.empty(4, 6)
        dist.recv(gradient, 1)
        return gradient


class Received(torch.autograd.Function):
    @staticmethod
    def forward(ctx, like):
        got = torch.empty(4, 6)
        dist.recv(got, 0)
        return got + like * 0

    @staticmethod
    def backward(ctx, g):
        dist.send(g.contiguous(), 0)
        return torch.zeros(())


def pipeline(wrap: Callable) -> list[list]:
    layer, like = nn.Linear(6, 6), torch.zeros((), requires_grad=True)

    def f(x):
        return Sent.apply(layer(x)) if dist.get_rank() == 0 else layer(Received.apply(like)).square().sum()

    g, out = wrap(f), []
    for k in range(CALLS):
        y = g(given(k))
        y.backward()
        out.append([y.detach(), layer.weight.grad.clone()])
    return out


def unread_in_training(wrap: Callable) -> list[list]:
    """What nobody reads is exchanged all the same: the other process runs plainly."""
    layer = nn.Linear(6, 6)

    def f(x):
        h, t = layer(x), x.clone()
        functional.all_reduce(h.detach() * 3, "sum", dist.group.WORLD)
        dist.all_reduce(t)
        dist.barrier()
        return h.square().sum()

    g, out = wrap(f) if dist.get_rank() == 0 else f, []
    for k in range(CALLS):
        y, t = g(given(k)), torch.ones(3)
        y.backward()
        dist.all_reduce(t)
        out.append([y.detach(), layer.weight.grad.clone(), t])
    return out


def pipeline_by_hand(wrap: Callable) -> list[list]:
    layer = nn.Linear(6, 6)

    def f(x):
        got = torch.empty_like(x)
        if dist.get_rank() == 0:
            h = layer(x)
            dist.send(h.detach(), 1)
            dist.recv(got, 1)
            h.backward(got)
            return h.detach()
        dist.recv(got, 0)
        got.requires_grad_()
        loss = layer(got).square().sum()
        loss.backward()
        dist.send(got.grad, 0)
        return loss.detach()

    g, out = wrap(f), []
    for k in range(CALLS):
        out.append([g(given(k)), layer.weight.grad.clone()])
    return out


ONE_GRAPH = (
    *map(
        called,
        (
            gathered,
            gathered_later,
            scattered,
            scattered_into_an_input,
            reduced,
            sent_and_received,
            exchanged,
            in_turns,
            received_into_a_part,
            batch,
            barriers,
        ),
    ),
)


def with_words(wrap: Callable) -> list[list]:
    """What no graph has: from whichever process."""

    def f(x):
        y = torch.empty_like(x)
        if dist.get_rank() == 0:
            return y * 0 + dist.recv(y) + y
        dist.send(x, 0)
        return x

    g = wrap(f)
    return [[g(given(k))] for k in range(CALLS)]


CASES: tuple[Any, ...] = (
    *ONE_GRAPH,
    called(of_other_dtypes),
    pipeline,
    pipeline_by_hand,
    unread_in_training,
    waited_for_outside,
    sizes_that_vary,
    met_by_plain_code,
    with_words,
)


if __name__ == "__main__":
    start(f"{__package__}.message_runs", *sys.argv[1:])
