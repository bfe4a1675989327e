"""The gradient of windows by `as_strided`: no table of positions is kept where these are regular."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

import tcompile
from tcompile import stages
from tcompile.compiler.rewrite.strided_gradients import regular

WINDOWS = {
    "overlap by half": ((2, 3, 16, 8), (256, 64, 8, 1), 0),
    "overlap by a part": ((2, 4, 10, 8), (256, 32, 8, 1), 0),
    "overlap thrice": ((5, 9), (4, 1), 3),
    "apart": ((3, 4), (100, 2), 7),
    "one above the other": ((4, 3, 5), (0, 20, 2), 1),
    "transposed": ((6, 5), (1, 4), 0),
    "a line": ((7,), (3,), 2),
}


def gradient(f, x, w):
    x = x.detach().clone().requires_grad_()
    (f(x) * w).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_equal_to_eager_without_a_constant(name, dtype):
    size, stride, offset = WINDOWS[name]

    def f(x):
        return torch.sin(x).as_strided(size, stride, offset)

    kept = []
    real = stages.original("lowering")

    def lowering(aten, opts):
        kept.extend(aten.constants)
        return real(aten, opts)

    x, w = torch.randn(2, 32, 8, dtype=dtype), torch.randn(size, dtype=dtype)
    with stages.replace("lowering", lowering):
        got = gradient(tcompile.compile(f, fullgraph=True), x, w)
    torch.testing.assert_close(got.double(), gradient(f, x.double(), w.double()), rtol=0.05, atol=0.05)
    if dtype is torch.float64:
        torch.testing.assert_close(got, gradient(f, x, w))
    assert not kept


def test_windows_that_are_cut_too_often_stay_a_table():
    def f(x):
        return x.as_strided((30, 30), (1, 1))

    x, w = torch.randn(100, dtype=torch.float64), torch.randn(30, 30, dtype=torch.float64)
    torch.testing.assert_close(gradient(tcompile.compile(f), x, w), gradient(f, x, w))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=4), st.integers(0, 20))
def test_what_is_found_in_positions_gives_them_again(axes, first):
    at = torch.tensor(first)
    for size, step in axes:
        at = at.unsqueeze(-1) + torch.arange(size) * step
    found = regular(at.flatten())
    if found is None:
        assert at.numel() < 2
        return
    again = torch.tensor(found[2])
    for size, step in zip(found[0], found[1]):
        again = again.unsqueeze(-1) + torch.arange(size) * step
    assert torch.equal(again.flatten(), at.flatten())


@pytest.mark.parametrize("at", [[0, 2, 1, 3, 9], [3, 2, 1], [5], [0, 1, 2, 0, 1, 2, 1, 2, 4], []])
def test_other_positions_are_not_regular(at):
    assert regular(torch.tensor(at, dtype=torch.int64)) is None
