"""Attention's kernels read rows that lie in one piece each: a copy of the program's that makes such rows stays."""

from __future__ import annotations

from typing import Callable

import pytest
import torch
import torch.nn.functional as F

import tcompile

attention = F.scaled_dot_product_attention


def turned(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(-1, -2).contiguous()


CASES: dict[str, Callable] = {
    "groups of heads": lambda q, k, v: attention(turned(q), turned(k[:, :2]), v[:, :2], enable_gqa=True),
    "one head of keys": lambda q, k, v: attention(turned(q), turned(k[:, :1]), turned(v[:, :1])),
    "half": lambda q, k, v: attention(turned(q.bfloat16()), turned(k.bfloat16()), v.bfloat16(), is_causal=True),
    "elementwise between": lambda q, k, v: attention((turned(q.bfloat16()) * 2).sin(), k.bfloat16(), v.bfloat16()),
    "of views": lambda q, k, v: attention(turned(q.reshape(2, 64, 16)).view(2, 4, 16, 16), k[:, :1], v[:, :1]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "tcompile"])
@pytest.mark.parametrize("case", CASES)
def test_rows_stay_in_one_piece(case: str, backend: str) -> None:
    f = CASES[case]
    q, k, v = (torch.randn(2, 4, 16, 16, requires_grad=True) for _ in range(3))
    want = f(q, k, v)
    tangent = torch.randn_like(want)
    compiled = tcompile.compile(f, backend=backend)
    got = compiled(q, k, v)
    close = {"atol": 2e-2, "rtol": 2e-2} if want.dtype is torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-4}
    torch.testing.assert_close(got, want, **close)
    for a, b in zip(*(torch.autograd.grad(out, (q, k, v), tangent) for out in (got, want))):
        torch.testing.assert_close(a, b, **close)
    with torch.no_grad():
        torch.testing.assert_close(compiled(q, k, v), want, **close)
