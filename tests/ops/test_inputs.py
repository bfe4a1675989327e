"""The common operators on inputs that hurt: strided, broadcast, offset, NaN and infinity; and with symbolic sizes, two
shapes each.
"""

from __future__ import annotations

import pytest
import torch

import tcompile

from ..oracles.opdb import COMMON, SEED, compare, op_infos, samples
from .harness import describe, run

COMMON_DTYPE = torch.float32
AT_INFINITY = ("nn.functional.gelu", "nn.functional.group_norm")


def strided(t: torch.Tensor) -> torch.Tensor:
    """Every other element of larger memory, dimensions in reverse order, not at its beginning."""
    if t.dim() == 0:
        return torch.stack([t, t])[1]
    t = t.mT if t.dim() > 1 else t
    wide = torch.stack([t, torch.zeros_like(t)], -1)
    out = wide.reshape(*t.shape[:-1], 2 * t.shape[-1])[..., ::2]
    return out.mT if t.dim() > 1 else out


def hostile(t: torch.Tensor) -> torch.Tensor:
    """NaN, infinities and signed zeros among the values."""
    if not t.is_floating_point():
        return t
    out = t.clone().flatten()
    for k, v in enumerate((float("nan"), float("inf"), -float("inf"), -0.0, 0.0)):
        out[k * 3 + 1 :: 17] = v
    return out.reshape(t.shape)


@pytest.mark.parametrize("change", [strided, hostile], ids=["strided", "hostile"])
@pytest.mark.parametrize("name", COMMON)
def test_changed_inputs(name, change):
    if change is hostile and name in AT_INFINITY:
        pytest.skip("eager's formula gives NaN at infinity, where the limit is finite or infinite")
    row = run(op_infos()[name], COMMON_DTYPE, 2, spread=True, change=change)
    assert not row.outcome.failed, describe(row)


def grown(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """The same call three larger in each dimension of that size."""
    out = []
    for t in tensors:
        for d, n in enumerate(t.shape):
            if n == size:
                t = t.index_select(d, torch.arange(n + 3) % n)
        out.append(t)
    return out


@pytest.mark.parametrize("name", COMMON)
def test_two_shapes(name):
    """dynamic=True: one entry serves both shapes, or a second one is made; the results are eager's."""
    for s in samples(op_infos()[name], COMMON_DTYPE, limit=2, spread=True):
        sizes = sorted({n for t in s.tensors for n in t.shape if n > 1})
        if not sizes:
            continue
        tcompile.reset()
        f = tcompile.compile(s.fn, fullgraph=True, dynamic=True)
        for tensors in (s.tensors, grown(s.tensors, sizes[-1]), s.tensors):
            try:
                want = s.fn(*tensors)
            except (RuntimeError, IndexError, ValueError):  # the call names sizes itself
                continue
            torch.manual_seed(SEED)
            problem = compare(want, f(*tensors), tensors, tensors)
            assert not problem, f"{s.text}: {problem}"
