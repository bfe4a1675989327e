"""Random programs of element-wise work, views, reductions, products and joins: fused, planned, and equal to eager in
float64.
"""

import random

import pytest
import torch

from ..lowering.helper import check
from .programs import inputs_of, make

SIZES = [(4, 6), (6, 4), (2, 3, 4), (4, 3, 2), (24,), (3, 8), (8, 3), (1, 6), (6, 1), (40, 6)]


def step(rng: random.Random, xs: list) -> torch.Tensor:
    x = rng.choice(xs[-6:])
    n = x.dim()
    kind = rng.randrange(14)
    if kind == 0:
        return rng.choice([torch.sin, torch.tanh, torch.exp, torch.relu, torch.sigmoid, torch.neg])(x * 0.5)
    if kind == 1:
        same = [y for y in xs if y.shape == x.shape]
        return rng.choice([torch.add, torch.sub, torch.mul, torch.maximum])(x, rng.choice(same))
    if kind == 2 and n:
        return x - x.mean(rng.randrange(n), keepdim=True)
    if kind == 3 and n:
        return torch.softmax(x, rng.randrange(n))
    if kind == 4 and n >= 2:
        d = rng.sample(range(n), 2)
        return x.transpose(*d)
    if kind == 5 and n:
        shapes = [s for s in SIZES if torch.Size(s).numel() == x.numel()]
        return x.reshape(rng.choice(shapes)) if shapes else x.flatten()
    if kind == 6 and n:
        d = rng.randrange(n)
        return x.sum(d) if x.numel() > 4 else x * 2
    if kind == 7 and n == 2:
        others = [y for y in xs if y.dim() == 2 and y.shape[0] == x.shape[1]]
        if others:
            return x @ rng.choice(others) * 0.3
    if kind == 8 and n:
        d = rng.randrange(n)
        if x.shape[d] > 1:
            if rng.random() < 0.4:
                return x.narrow(d, 1, x.shape[d] - 1) + 0 * x.narrow(d, 0, 1)
            return x.narrow(d, rng.randrange(x.shape[d]), 1)
    if kind == 9 and n and x.numel() < 200:
        return torch.cat([x, x * 2, -x][: rng.randrange(2, 4)], rng.randrange(n))
    if kind == 10 and n:
        return x.flip(rng.randrange(n)) + 1
    if kind == 11 and n:
        return x * x.amax(rng.randrange(n), keepdim=True)
    if kind == 12 and n:
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-3).sqrt()
    if kind == 13 and n:
        i = torch.tensor([0, x.shape[0] - 1, 0])
        return x[i].cos()
    return x * 1.5 + 0.25


def program(seed: int):
    def f(*inputs):
        rng = random.Random(seed)
        xs = list(inputs)
        for _ in range(rng.randrange(4, 22)):
            xs.append(step(rng, xs))
        return tuple(rng.sample(xs[len(inputs) :], min(3, len(xs) - len(inputs)))) + (xs[-1] * 1.0,)

    return f


@pytest.mark.parametrize("seed", range(36))
def test_random_program(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    inputs = [torch.randn(rng.choice(SIZES), dtype=torch.float64) for _ in range(rng.randrange(1, 4))]
    opts = rng.choice([{}, {}, {}, {"disable_fusion": True}, {"max_fusion_size": 3}])

    def distinct(*a):  # outputs that eager gives as views are made fresh: aliasing is the graph stage's
        return tuple(x.clone() for x in program(seed)(*a))

    check(distinct, *inputs, rtol=1e-9, atol=1e-9, **opts)


@pytest.mark.parametrize("seed", range(12))
def test_random_program_of_all_loops(seed):
    """Scans, scatters, look-ups, pools and integers among the rest, compiled to machine code (programs.py)."""
    import tcompile

    rng = random.Random(seed)
    inputs, program = inputs_of(seed), make(seed)
    want = program(*inputs)
    got = tcompile.compile(
        program,
        dynamic=rng.random() < 0.3,
        options=rng.choice([{}, {}, {"disable_fusion": True}, {"max_fusion_size": 3}]),
    )(*inputs)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8, equal_nan=True)
        assert all(s == t for s, t, n in zip(a.stride(), b.stride(), b.shape) if n > 1)
