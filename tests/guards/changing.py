"""What the tests of changes between calls share: compile by capture alone, compare with eager."""

from __future__ import annotations

import tcompile
import torch

x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def run(f):
    return tcompile.compile(f, backend="eager")


def eq(a, b, msg=""):
    assert type(a) is type(b), msg
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, msg
        assert torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)), msg
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for u, v in zip(a, b):
            eq(u, v, msg)
    else:
        assert a == b or a != a, msg
