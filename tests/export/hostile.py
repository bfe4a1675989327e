"""Programs whose files the tests damage: they have all that a file can hold."""

import collections
import dataclasses
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Found:
    value: torch.Tensor
    note: str


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.k, None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(10, 4), nn.Linear(4, 4)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x, i):
        with torch.no_grad():
            y = self.embedding(i) * self.mask
        return F.layer_norm(self.linear(x + y), (4,)).split(2, -1), x.shape[0]


def sizes(x, y, scale=2.0):
    return (
        torch.cat([x, y]).sum(1) / x.shape[0] * scale,
        x.shape[0] * 2 + y.shape[0] // 2,
        x.new_zeros(x.shape[0] ** 2, 3),
    )


def nested(batch, pair):
    a = batch["x"] + batch["y"][0]
    return {
        "a": a,
        "b": [pair[0] * 2, None, 1.5],
        "c": Pair(a * 2, a[1:]),
        "d": Found(a.sum(), "yes"),
        3: pair[1],
        "e": a[..., None, 0:1].expand(2, 1),
    }


def control(x, n):
    y = torch.cond(n > 2, lambda a: a.sin(), lambda a: a.cos(), (x.detach(),))
    return Triple.apply(x, 3.0), y


def loop(x):
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda i, w: i < 3, lambda i, w: (i + 1, w * 2), (torch.tensor(0), x))


def programs(folder):
    """Saves each as `k.program` with its arguments beside it."""
    torch.manual_seed(0)
    cases = [
        (Net(), (torch.randn(3, 4), torch.tensor([1, 2, 9])), None),
        (sizes, (torch.randn(3, 4), torch.randn(5, 4)), {"x": [0], "y": [0]}),
        (nested, ({"x": torch.ones(2), "y": [torch.ones(2)]}, (torch.ones(3), torch.zeros(3))), None),
        (control, (torch.ones(3, requires_grad=True), torch.tensor(3)), None),
        (loop, (torch.ones(3),), None),
    ]
    for k, (fn, args, dynamic) in enumerate(cases):
        tcompile.export(fn, args, dynamic=dynamic).save(os.path.join(folder, f"{k}.program"))
        torch.save(args, os.path.join(folder, f"{k}.arguments.pt"))
    return cases
