"""Python's number types where torch takes a dtype."""

import pytest
import torch

import tcompile


@pytest.mark.parametrize(
    "f",
    [
        lambda x, t: torch.zeros(3, dtype=t) + x,
        lambda x, t: x.to(t),
        lambda x, t: x.to(dtype=t),
        lambda x, t: torch.full((2,), 1, dtype=t),
        lambda x, t: x.new_ones(2, dtype=t),
        lambda x, t: torch.tensor([1, 0, 3], dtype=t),
        lambda x, t: torch.zeros_like(x, dtype=t),
        lambda x, t: torch.ones(x.shape[0], dtype=t).cumsum(0),
        lambda x, t: x.to("cpu", t),
        lambda x, t: x.long().sum(dtype=t),
        lambda x, t: x.abs().prod(dtype=t),
    ],
)
@pytest.mark.parametrize("t", [int, float, bool, complex])
def test_as_eager(f, t):
    x = torch.tensor([1.5, -2.0, 0.0])
    try:
        want = f(x, t)
    except Exception as e:
        with pytest.raises(type(e)):
            tcompile.compile(f)(x, t)
        return
    report = tcompile.explain(f, fullgraph=True)(x, t)
    assert len(report.graphs) == 1 and report.result.dtype is want.dtype
    torch.testing.assert_close(report.result, want)


def test_another_type_in_the_next_call():
    c = tcompile.compile(lambda x, t: x.to(t) * 2)
    x = torch.tensor([1.5, -2.0])
    for t in (int, float, int, bool):
        assert torch.equal(c(x, t), x.to(t) * 2)
