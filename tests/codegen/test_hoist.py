"""What follows from reductions along another axis than the vectors' own is computed once, not at every step of the
loops that use it.
"""

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler import events

CASES = {
    "log_softmax": lambda x: x.log_softmax(0),
    "softmax": lambda x: x.softmax(0),
    "standardised": lambda x: (x - x.mean(0)) / x.std(0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "two of them": lambda x: x * x.exp().sum(0).log() + x.sum(0).sqrt(),
    "of a condition": lambda x: torch.where(x > x.amax(0) / 3, x, x.amin(0).exp()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_values(name, dtype):
    fn = CASES[name]
    for shape in ((5, 3), (40, 301)):
        x = torch.randn(shape).to(dtype)
        x[0, 0] = float("nan") if name != "batch_norm" else 0.0
        tol = {torch.float32: (1e-4, 1e-5), torch.float64: (1e-10, 1e-12), torch.bfloat16: (3e-2, 3e-2)}[dtype]
        torch.testing.assert_close(
            tcompile.compile(fn)(x), fn(x.double()).to(dtype), rtol=tol[0], atol=tol[1], equal_nan=True
        )


def test_the_logarithm_of_a_column_is_computed_once():
    sources = []
    with events.listen(lambda e: sources.append(e.source) if e.kind == "kernel" else None):
        tcompile.compile(CASES["log_softmax"], dynamic=False)(torch.randn(64, 320))
    text = next(s for s in sources if "tc::log(" in s)
    last = text[text.rindex("for (i64 r0 = ") :]  # the loop that writes the result
    assert "tc::log(" not in last and "kept0" in last
