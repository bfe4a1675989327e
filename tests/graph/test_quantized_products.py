"""Products with 8-bit floats and with packed weights: torch's kernels, as nodes of one graph without a fallback."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler.events import listen

A = torch.ops.aten


def scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    by_place = A._scaled_mm(x, w, scale, scale, None, None, torch.bfloat16, True)
    return torch._scaled_mm(x, w, scale, scale, out_dtype=torch.bfloat16) * 2 + by_place


def int4(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return A._weight_int4pack_mm_for_cpu(x.relu(), w, 32, scales) + 1


def int8(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return A._weight_int8pack_mm(x.relu(), w, scales) + 1


def inputs(fn: object) -> tuple:
    x = torch.randn(16, 64, dtype=torch.bfloat16)
    if fn is scaled:
        weights = torch.randn(32, 64).to(torch.float8_e4m3fn).t()
        return x.to(torch.float8_e4m3fn), weights, torch.tensor(0.5)
    if fn is int4:
        packed = A._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (32, 64), dtype=torch.int32), 2)
        return x, packed, torch.rand(2, 32, 2, dtype=torch.bfloat16)
    return x, torch.randint(-128, 127, (32, 64), dtype=torch.int8), torch.rand(32, dtype=torch.bfloat16)


@pytest.mark.parametrize("fn", [scaled, int4, int8])
def test_as_eager_without_a_fallback(fn):
    given, fallbacks = inputs(fn), []
    with listen(lambda e: fallbacks.append(e) if e.kind == "fallback" else None):
        got = tcompile.compile(fn, fullgraph=True)(*given)
    torch.testing.assert_close(got, fn(*given))
    assert not fallbacks
