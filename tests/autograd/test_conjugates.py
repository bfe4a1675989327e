"""Gradients of complex numbers: their formulas take conjugates, which are computed in the graph."""

import pytest
import torch

import tcompile

SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 6, 3, 8, generator=SEED)
TURNS = torch.polar(torch.ones(6, 4), torch.randn(6, 4, generator=SEED))


def rotary(x):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * TURNS[:, None, :]).flatten(3).type_as(x)


PROGRAMS = {
    "rotary": rotary,
    "spectrum": lambda x: torch.fft.ifft(torch.fft.fft(x) * 2j).imag,
    "products": lambda x: torch.view_as_real(
        torch.view_as_complex(x.reshape(36, 4, 2) + 1) @ torch.view_as_complex((x * 2).reshape(4, 36, 2)).exp()
    ),
    "quotient": lambda x: (torch.complex(x, x + 1) / torch.complex(x * 2, x - 3)).abs(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name):
    program = PROGRAMS[name]
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    with tcompile.record() as record:
        got = tcompile.compile(program, fullgraph=True)(ours)
        got.square().sum().backward()
    want = program(theirs)
    want.square().sum().backward()
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    report = record.report()
    assert len(report.graphs) == 2 and not [f for f in report.fallbacks if f.what.startswith("gradients")]
