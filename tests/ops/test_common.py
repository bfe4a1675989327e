"""The operators that most programs are made of, through the whole compiler, against eager."""

from __future__ import annotations

import pytest
import torch

from ..oracles.opdb import COMMON, op_infos
from .harness import describe, run

SAMPLES = 4


@pytest.mark.parametrize("name", COMMON)
def test_float32(name):
    row = run(op_infos()[name], torch.float32, SAMPLES)
    assert not row.outcome.failed, describe(row)
    assert row.outcome.agreed, row.outcome.refused[:2]


OTHER = [
    (n, d)
    for n in ("add", "mul", "sub", "maximum", "where", "sum", "amax", "clamp", "eq", "abs")
    for d in (torch.int64, torch.bfloat16, torch.float64, torch.float16, torch.uint8, torch.bool)
]


@pytest.mark.parametrize("name,dtype", OTHER, ids=lambda x: str(x).removeprefix("torch."))
def test_other_dtypes(name, dtype):
    info = op_infos()[name]
    if dtype not in info.supported_dtypes("cpu"):
        pytest.skip("eager does not support this")
    row = run(info, dtype, 3)
    assert not row.outcome.failed, describe(row)
