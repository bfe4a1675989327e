"""Random programs of everything that generated code has loops for: element-wise work, views, broadcasts, reductions,
products, joins, scans, scattered writes, look-ups, pools, resampling, integers and masks between floats. In float64, so
that a wrong index shows."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

__all__ = ["make", "inputs_of"]

SIZES = [
    (4, 6),
    (6, 4),
    (2, 3, 4),
    (4, 3, 2),
    (24,),
    (3, 8),
    (8, 3),
    (1, 6),
    (6, 1),
    (40, 6),
    (2, 3, 6, 5),
    (1, 2, 8, 8),
    (17,),
    (1, 1),
    (5, 1, 7),
]
LIMIT = 3000  # elements of a value
Step = Callable[[random.Random, torch.Tensor, list], "torch.Tensor | None"]


def _dim(rng: random.Random, x: torch.Tensor) -> int:
    return rng.randrange(-x.ndim, x.ndim)


def elementwise(rng, x, xs):
    return rng.choice(
        [
            torch.sin,
            torch.tanh,
            torch.sigmoid,
            torch.neg,
            torch.erf,
            torch.floor,
            F.gelu,
            F.silu,
            F.softplus,
            torch.atan,
            torch.abs,
            lambda x: (x.abs() + 0.5).log(),
            lambda x: (x.abs() + 1).rsqrt(),
            lambda x: x.clamp(-1, 0.5),
            lambda x: torch.digamma(x.abs() + 1),
            lambda x: torch.special.i0e(x),
            lambda x: x.round(decimals=1),
            lambda x: F.hardtanh(x) * x,
            torch.frac,
        ]
    )(x)


def binary(rng, x, xs):
    others = [y for y in xs if _fits(y.shape, x.shape)]
    y = rng.choice(others)
    return rng.choice(
        [
            torch.add,
            torch.sub,
            torch.mul,
            torch.maximum,
            torch.fmin,
            torch.atan2,
            lambda a, b: torch.where(a > b, a, b * 2),
            lambda a, b: a / (b.abs() + 1),
            lambda a, b: torch.lerp(a, b, 0.3),
            lambda a, b: torch.addcmul(a, b, b, value=0.5),
        ]
    )(x, y)


def _fits(a, b):
    return len(a) <= len(b) and all(m in (1, n) for m, n in zip(reversed(a), reversed(b)))


def norm(rng, x, xs):
    d = _dim(rng, x)
    return rng.choice(
        [
            lambda: x - x.mean(d, keepdim=True),
            lambda: torch.softmax(x, d),
            lambda: x * x.amax(d, keepdim=True),
            lambda: F.normalize(x, dim=d),
            lambda: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-3).sqrt(),
            lambda: torch.log_softmax(x, d),
            lambda: F.layer_norm(x, x.shape[-1:]),
        ]
    )()


def reduction(rng, x, xs):
    d = _dim(rng, x)
    if x.shape[d] == 0:
        return None
    return rng.choice(
        [
            lambda: x.sum(d),
            lambda: x.mean(d, keepdim=True),
            lambda: x.prod(d),
            lambda: x.amin(d),
            lambda: x.logsumexp(d),
            lambda: x.norm(dim=d),
            lambda: x.var(d, correction=0),
            lambda: x.max(d)[0],
            lambda: x.argmax(d).double(),
            lambda: (x > 0).sum(d).double(),
            lambda: (x > 0.5).any(d).double(),
            lambda: x.sum(),
        ]
    )()


def view(rng, x, xs):
    n = x.ndim
    kind = rng.randrange(8)
    if kind == 0 and n >= 2:
        return x.transpose(*rng.sample(range(n), 2))
    if kind == 1:
        shapes = [s for s in SIZES if torch.Size(s).numel() == x.numel()]
        return x.reshape(rng.choice(shapes)) if shapes else x.flatten()
    d = _dim(rng, x)
    if kind == 2 and x.shape[d] > 1:
        return x.narrow(d, rng.randrange(x.shape[d] - 1), 1)
    if kind == 3 and x.shape[d] > 2:
        return x[(slice(None),) * (d % n) + (slice(1, None, 2),)]
    if kind == 4 and x.shape[d] == 1 and x.numel() < LIMIT // 8:
        shape = list(x.shape)
        shape[d] = 5
        return x.expand(shape)
    if kind == 5:
        return x.unsqueeze(rng.randrange(n + 1)) if n < 4 else x.squeeze()
    if kind == 6 and n >= 2:
        return torch.diagonal(x, rng.randrange(-1, 2)) if min(x.shape[:2]) > 1 else None
    if kind == 7 and x.shape[d] >= 3:
        return x.unfold(d, 2, 1) if n < 4 else None
    return None


def join(rng, x, xs):
    if x.numel() > LIMIT // 4:
        return None
    d = _dim(rng, x)
    return rng.choice(
        [
            lambda: torch.cat([x, x * 2, -x][: rng.randrange(2, 4)], d),
            lambda: torch.stack([x, x + 1], d) if x.ndim < 4 else x * 2,
            lambda: x.flip(d) + 1,
            lambda: torch.roll(x, rng.randrange(-2, 3), d),
            lambda: F.pad(x, (1, 2), value=0.5),
            lambda: x.repeat_interleave(2, d),
            lambda: torch.cat([x, x.cumsum(d), x, x.sin(), x * 3], d),
            lambda: x.tril() if x.ndim > 1 else x.tanh(),
        ]
    )()


def scan(rng, x, xs):
    d = _dim(rng, x)
    return rng.choice(
        [
            lambda: x.cumsum(d),
            lambda: torch.tanh(x).cumprod(d),
            lambda: x.cummax(d)[0],
            lambda: x.cummin(d)[1].double(),
            lambda: x.logcumsumexp(d),
            lambda: (x * 0.5).cumsum(d).tanh(),
            lambda: (x > 0).cumsum(d).double() * 0.1,
        ]
    )()


def _positions(rng, n, count):
    return torch.tensor([rng.randrange(n) for _ in range(count)])


def scatter(rng, x, xs):
    d = rng.randrange(x.ndim)
    n = x.shape[d]
    if not x.numel():
        return None
    i = _positions(rng, n, rng.randrange(1, 5))
    rows = x.index_select(d, i) * 0.5
    wide = i.view([-1 if k == d else 1 for k in range(x.ndim)]).expand(rows.shape)
    return rng.choice(
        [
            lambda: x.index_add(d, i, rows.sin()),
            lambda: x.index_copy(d, i.unique(), x.index_select(d, i.unique()) + 1),
            lambda: x.index_fill(d, i, 0.25),
            lambda: x.scatter_add(d, wide, rows),
            lambda: x.scatter_reduce(d, wide, rows, "amax", include_self=rng.random() < 0.5),
            lambda: x.scatter_reduce(d, wide, rows, "mean"),
            lambda: torch.zeros_like(x).scatter_add(d, wide, rows.tanh()) * 2,
            lambda: x.masked_fill(x > 0.3, -1.0),
            lambda: torch.select_scatter(x, x.select(d, 0) + 1, d, n - 1),
            lambda: torch.slice_scatter(x, x.narrow(d, 0, 1) * 3, d, n - 1, n),
            lambda: x.masked_scatter(x > 0, x.sin()),
            lambda: (x * 1).index_put((i.clamp(max=x.shape[0] - 1),), x[0] * 2, accumulate=True),
        ]
    )()


def lookup(rng, x, xs):
    d = rng.randrange(x.ndim)
    if not x.numel():
        return None
    i = _positions(rng, x.shape[d], rng.randrange(1, 6))
    return rng.choice(
        [
            lambda: x.index_select(d, i).cos(),
            lambda: x[i.clamp(max=x.shape[0] - 1)] + 1,
            lambda: torch.gather(x, d, x.argsort(dim=d, stable=True)),
            lambda: torch.take_along_dim(x, x.argmax(d, keepdim=True), d),
            lambda: torch.bucketize(x, torch.linspace(-1, 1, 7, dtype=x.dtype)).double() * 0.2,
            lambda: (
                F.embedding((x.abs() * 3).long().clamp(max=4), torch.arange(15, dtype=x.dtype).view(5, 3) * 0.1)
                if x.ndim < 4 and x.numel() < 400
                else None
            ),
            lambda: (
                F.one_hot((x.abs() * 2).long().clamp(max=3), 4).double() if x.ndim < 4 and x.numel() < 400 else None
            ),
        ]
    )()


def window(rng, x, xs):
    if x.ndim == 2 and x.shape[-1] >= 3:
        return rng.choice(
            [
                lambda: F.avg_pool1d(x, 3, 1, 1),
                lambda: F.max_pool1d(x, 2),
                lambda: F.adaptive_avg_pool1d(x, 3),
                lambda: F.pad(x, (2, 1), mode="reflect"),
            ]
        )()
    if x.ndim == 4 and min(x.shape[-2:]) >= 3 and x.numel() < LIMIT // 4:
        return rng.choice(
            [
                lambda: F.avg_pool2d(x, 3, 2, 1),
                lambda: F.max_pool2d(x, 2, 1),
                lambda: F.adaptive_avg_pool2d(x, (2, 3)),
                lambda: F.adaptive_max_pool2d(x, 2),
                lambda: F.pad(x, (1, 1, 2, 0), mode="replicate"),
                lambda: F.interpolate(x, scale_factor=2),
                lambda: F.unfold(x, 2),
                lambda: F.interpolate(x, size=(5, 7), mode="bilinear"),
                lambda: F.interpolate(x, size=(4, 9), mode="bicubic"),
                lambda: F.pixel_unshuffle(x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2], 2),
                lambda: F.instance_norm(x),
                lambda: F.local_response_norm(x, 2),
            ]
        )()
    return None


def product(rng, x, xs):
    if x.ndim != 2:
        return None
    others = [y for y in xs if y.ndim == 2 and y.shape[0] == x.shape[1] and y.shape[1] * x.shape[0] < LIMIT]
    return x @ rng.choice(others) * 0.3 if others else x.t() @ x * 0.1 if x.shape[1] < 50 else None


def integers(rng, x, xs):
    k = (x * 4).long()
    return (
        rng.choice(
            [
                lambda: k // 3,
                lambda: k % 5,
                lambda: k // (k.abs() + 1),
                lambda: torch.gcd(k, k + 6),
                lambda: (k & 7) ^ 3,
                lambda: k << 2,
                lambda: (k.to(torch.int8) * 60).to(torch.int16),
                lambda: k.abs() ** 2,
                lambda: k.clamp(-2, 2).to(torch.uint8) + 250,
            ]
        )().double()
        * 0.1
    )


STEPS: list[Step] = [
    elementwise,
    elementwise,
    binary,
    binary,
    binary,
    norm,
    reduction,
    view,
    view,
    join,
    scan,
    scatter,
    lookup,
    window,
    window,
    product,
    integers,
]


def make(seed: int) -> Callable:
    """The program of a seed: a function of tensors that gives a tuple of tensors."""

    def program(*inputs: torch.Tensor) -> tuple:
        rng = random.Random(seed)
        xs = list(inputs)
        for _ in range(rng.randrange(4, 26)):
            x = rng.choice(xs[-6:])
            if x.ndim == 0:
                x = rng.choice(inputs) * x.clamp(-1, 1)
            y = rng.choice(STEPS)(rng, x, xs)
            if y is None:
                y = x * 1.5 + 0.25
            if y.numel() > LIMIT:
                y = y.flatten()[: LIMIT // 4] * 0.5
            xs.append(torch.tanh(y) if rng.random() < 0.15 else y)
        made = xs[len(inputs) :]
        return (*rng.sample(made, min(3, len(made))), xs[-1] * 1.0)

    return program


def inputs_of(seed: int) -> list[torch.Tensor]:
    rng = random.Random(seed)
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(rng.randrange(1, 4)):
        x = torch.randn(rng.choice(SIZES), dtype=torch.float64, generator=g)
        kind = rng.randrange(5)
        if kind == 0 and x.ndim > 1:
            x = x.transpose(0, -1).contiguous().transpose(0, -1)
        elif kind == 1:
            x = torch.cat([x, x])[::2]
        out.append(x)
    return out
