"""Moments of values whose sums and squares float32 does not hold: finite where eager's are."""

import pytest
import torch
import torch.nn.functional as F
import tcompile

torch.manual_seed(0)
NOISE = torch.randn(6, 12)
VALUES = {
    "all 1e38": torch.full((6, 12), 1e38),
    "near 1e38": 1e38 * (1 + 1e-3 * NOISE),
    "1e25": 1e25 * NOISE,
    "1e-25": 1e-25 * NOISE,
    "1e-40": 1e-40 * NOISE,
}
SPREADS = {
    "var": lambda x: x.var(1),
    "var of columns": lambda x: x.var(0),
    "std": lambda x: x.std(1),
    "std of columns": lambda x: x.std(0),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std_mean": lambda x: torch.std_mean(x, 0),
    "std of bfloat16": lambda x: x.bfloat16().std(1),
}
NORMS = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("name", [*SPREADS, *NORMS])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_as_eager(name, dynamic):
    f = {**SPREADS, **NORMS}[name]
    compiled = tcompile.compile(f, dynamic=dynamic)
    for kind, x in VALUES.items():
        got, want = compiled(x), f(x)
        finite = [bool(w.isfinite().all()) for w in (want if isinstance(want, tuple) else (want,))]
        if all(finite) or name in SPREADS:  # (norms whose squares overflow in eager, too, may be better here)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-6 if name in NORMS else 0.0, msg=kind)


def test_an_ordinary_mean_is_what_it_was():
    """The power of two that keeps a sum small changes no bit."""
    x = torch.randn(5, 1000)
    want = torch.nn.functional.layer_norm(x.double(), (1000,)).float()
    torch.testing.assert_close(tcompile.compile(F.layer_norm)(x, (1000,)), want, rtol=1e-5, atol=1e-6)
