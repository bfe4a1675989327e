"""Strides of element-wise results are eager's, those of dimensions of size 1 included: views of them may be asked for
their strides, too.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import tcompile

WITH_NUMBERS = {
    "add": lambda x: x + 1,
    "sub": lambda x: 1 - x,
    "mul": lambda x: x * 2,
    "div": lambda x: x / 2,
    "reciprocal": lambda x: 1 / x,
    "floor": lambda x: x // 2,
    "remainder": lambda x: x % 2,
    "pow": lambda x: x**3,
    "exp": lambda x: 2**x,
    "eq": lambda x: x == 1,
    "clamp": lambda x: x.clamp(0, 1),
    "where": lambda x: torch.where(x > 1, x, 0.0),
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "hardtanh": F.hardtanh,
    "nan_to_num": torch.nan_to_num,
    "xlogy": lambda x: torch.xlogy(x, 2.0),
    "copysign": lambda x: torch.copysign(x, 1.0),
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "sin": torch.sin,
    "polygamma": lambda x: torch.polygamma(1, x),
    "logit": lambda x: torch.logit(x, 1e-3),
    "and": lambda x: x.int() & 1,
    "shift": lambda x: x.int() << 1,
    "same": lambda x: x + x,
    "0-dim": lambda x: x * torch.tensor(2.0),
    "fill": lambda x: x.masked_fill(x > 1, 0.0),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
@pytest.mark.parametrize("shape", [(6, 1), (4, 1, 3), (1, 1, 5)])
def test_beside_numbers(name, shape):
    f, x = WITH_NUMBERS[name], torch.rand(shape).transpose(0, -1)
    want, got = f(x), tcompile.compile(f)(x)
    assert got.stride() == want.stride() and got.shape == want.shape


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_chains_of_permuted_parts(data):
    sizes = data.draw(st.lists(st.sampled_from([1, 1, 2, 3]), min_size=2, max_size=4))
    more = data.draw(st.lists(st.sampled_from([0, 0, 1, 4]), min_size=len(sizes), max_size=len(sizes)))
    p, q = (data.draw(st.permutations(range(len(sizes)))) for _ in range(2))

    def f(x):
        for d, n in enumerate(sizes):
            x = x.narrow(d, 0, n)
        t = x.permute(p) + 1
        u = t.permute(q) * 2
        return x.permute(p) + 1, u, u + t.permute(q), torch.sin(t), torch.maximum(u, u)

    x = torch.randn([n + m for n, m in zip(sizes, more)])
    got, want = tcompile.compile(f)(x), f(x)
    tcompile.reset()
    assert [a.stride() for a in got] == [a.stride() for a in want]
