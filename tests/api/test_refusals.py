"""What torch's kernels refuse for its dtypes, compiled code refuses in the same words."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

f32, f64, i64 = torch.ones(4, 8), torch.ones(8, dtype=torch.float64), torch.ones(4, 8, dtype=torch.int64)
classes = torch.zeros(4, dtype=torch.int32)


@pytest.mark.parametrize(
    "f",
    [
        lambda: F.layer_norm(f32, (8,), f64),
        lambda: F.layer_norm(i64, (8,)),
        lambda: F.layer_norm(f32, (8,), f32[0, :7]),
        lambda: F.layer_norm(f32.bfloat16(), (8,), f64),
        lambda: F.group_norm(f32, 2, f64),
        lambda: F.batch_norm(f32, f64, f64),
        lambda: F.batch_norm(f32.double(), f32[0], f32[0], f32[0], f32[0], training=True),
        lambda: F.cross_entropy(f32, classes),
        lambda: F.cross_entropy(f32, classes.long(), f64),
        lambda: F.binary_cross_entropy(f32, f32.double()),
        lambda: F.gelu(i64),
        lambda: F.silu(i64),
        lambda: F.relu(i64 > 0),
        lambda: (i64 > 0).abs(),
        lambda: f32 & f32,
        lambda: ~f32,
        lambda: torch.addcdiv(i64, i64, i64),
        lambda: i64.norm(),
        lambda: (i64 > 0).argmax(),
    ],
)
def test_dtypes_that_eager_refuses(f):
    with pytest.raises((RuntimeError, TypeError)) as eager:
        f()
    with pytest.raises(type(eager.value)) as compiled:
        tcompile.compile(f)()
    assert type(compiled.value) is type(eager.value) and str(compiled.value) == str(eager.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda: F.layer_norm(f32.bfloat16(), (8,), f32[0], f32[0]),
        lambda: F.group_norm(f32.bfloat16(), 2, f32[0]),
        lambda: F.batch_norm(f32.bfloat16(), f32[0], f32[0]),
        lambda: F.cross_entropy(f32, classes.to(torch.uint8)),
        lambda: F.relu(i64),
        lambda: i64.abs(),
        lambda: i64 & i64,
        lambda: (i64 > 0) | (i64 > 1),
        lambda: torch.addcdiv(f32, f32, i64),
        lambda: i64.argmax(),
    ],
)
def test_dtypes_that_eager_takes(f):
    report = tcompile.explain(f)()
    torch.testing.assert_close(report.result, f())
    assert not report.fallbacks
