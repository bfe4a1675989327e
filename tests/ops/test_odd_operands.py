"""Operands that kernels of our own can't read as they lie: zeros without memory, complex numbers without elements."""

import pytest
import torch

import tcompile


@pytest.mark.parametrize("shape", [(), (5,), (20, 20), (0, 3)])
def test_gradients_that_are_zeros_without_memory(shape):
    def gradient(f):
        x = torch.randn(shape, requires_grad=True)
        y = f(x)
        (y * torch.linspace(-1, 2, y.numel()).reshape(shape)).sum().backward()
        return x.grad

    f = torch.sgn
    assert torch.equal(gradient(tcompile.compile(f)), gradient(f))


def test_complex_numbers_without_elements():
    def f(x):
        y = x.clone().diagonal(0, -2, -1)[:0]
        return torch.complex(y, y).reshape(-1)[:3].real, torch.complex(x, x).transpose(0, 1)[:0].reshape(-1).abs()

    x = torch.randn(1, 4, 33)
    for got, want in zip(tcompile.compile(f, fullgraph=True)(x), f(x)):
        assert torch.equal(got, want)


def test_distances_of_complex_numbers_are_real():
    x, y = torch.randn(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64)
    torch.testing.assert_close(tcompile.compile(torch.dist, fullgraph=True)(x, y), torch.dist(x, y))


VIEWS = {
    "flat": lambda x: x.transpose(0, 1).reshape(-1),
    "repeated": lambda x: x.repeat_interleave(2, 0),
    "repeated_last": lambda x: x.mT.repeat_interleave(2, -1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_complex_numbers_in_an_order_that_no_strides_give(name):
    """What follows is a kernel of torch's, which takes tensors: that nests have no complex numbers was an internal
    error.
    """

    def f(x):
        y = VIEWS[name](x * 2)
        return y.exp(), torch.cat([y, y * 2]), y.real

    whole = torch.randn(6, 5, 8, dtype=torch.complex64)
    compiled = tcompile.compile(f, fullgraph=True, dynamic=True)
    for x in (whole, whole[1:4, :, ::2], whole.permute(2, 0, 1)[3:]):
        for got, want in zip(compiled(x), f(x)):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("size", [(0, 0), (0, 2), (3, 0)])
def test_pools_of_nothing(size):
    x = torch.randn(2, 4, 6, 6)
    f = torch.nn.functional.adaptive_avg_pool2d
    assert tcompile.compile(f, fullgraph=True)(x, size).shape == f(x, size).shape


def test_nothing_scattered_into_nothing():
    f = lambda x: x.scatter_add(0, x.long()[:0], x)  # noqa: E731
    assert tcompile.compile(f, fullgraph=True)(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_pads_as_wide_as_what_they_repeat(width):
    x = torch.arange(2.0 * width).reshape(1, 2, width)
    for pad in ((width, width), (width, 0), (0, width), (2 * width, 1)):
        f = lambda t: torch.nn.functional.pad(t, pad, mode="replicate")  # noqa: E731, B023
        assert torch.equal(tcompile.compile(f, fullgraph=True)(x), f(x))


WINDOWS = {
    "select": lambda v: v.select_scatter(torch.zeros(v.shape[0]), 1, -1),
    "slice": lambda v: v.slice_scatter(torch.zeros(2, 2), 0, 1, 3),
    "diagonal": lambda v: v.diagonal_scatter(torch.zeros(2)),
    "in_place": lambda v: v[:, 1].fill_(0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_parts_of_windows_that_share_memory_are_replaced_as_eager_does(name):
    """Eager keeps a window's strides, and what is written into one is in its neighbours as well."""

    def f(x):
        y = x + 1
        return WINDOWS[name](y.unfold(0, 2, 1)) * 2, y

    for dynamic in (False, True):
        compiled = tcompile.compile(f, dynamic=dynamic)
        for n in (6, 9):
            x = torch.arange(float(n))
            for got, want in zip(compiled(x), f(x)):
                assert torch.equal(got, want)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.clamp(min=float("nan")),
        lambda x: x.clamp(-1, float("nan")),
        lambda x: torch.clamp_max(x, float("nan")),
        lambda x: x.clamp_min(float("nan")),
    ],
)
def test_bounds_that_are_nan_say_what_this_torch_says(f):
    x = torch.tensor([-2.0, 0.0, 3.0, float("nan")])
    assert torch.equal(tcompile.compile(f, fullgraph=True)(x).nan_to_num(nan=77), f(x).nan_to_num(nan=77))


@pytest.mark.parametrize("p", [2, 3, 1, float("inf"), 0, -1])
def test_norms_of_single_numbers_do_not_overflow(p):
    x = torch.tensor([[1.9e23], [-3e38], [0.0], [float("nan")]])
    for f in (
        lambda x: torch.linalg.vector_norm(x, p, dim=1),
        lambda x: x[:1].norm(p),
        lambda x: x.norm(p, dim=1, keepdim=True),
    ):
        assert torch.equal(tcompile.compile(f, fullgraph=True)(x).nan_to_num(nan=77), f(x).nan_to_num(nan=77))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.vander(x.flatten(), 3) + 1,
        lambda x: torch.vander(x.flatten(), 3, True),
        lambda x: torch.bernoulli(x.mT.abs() * 0),
    ],
)
def test_operators_that_write_into_tensors_of_their_own(f):
    """C++ makes a tensor without us and writes what is traced into it: it was a constant of the graph that nothing was
    written to.
    """
    x = torch.randn(3, 2)
    for dynamic in (False, True):
        got, want = tcompile.compile(f, dynamic=dynamic)(x), f(x)
        assert torch.equal(got, want) and got.stride() == want.stride()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.nn.functional.avg_pool2d(x, 9),
        lambda x: torch.nn.functional.pad(x, (-3, -3)),
        lambda x: torch.nn.functional.unfold(x, 9),
    ],
)
def test_an_entry_for_every_size_is_not_for_sizes_that_nothing_is_left_of(f):
    compiled = tcompile.compile(f, dynamic=True)
    for n in (20, 15):
        x = torch.randn(1, 2, n, n)
        torch.testing.assert_close(compiled(x), f(x))
    with pytest.raises(RuntimeError) as want:
        f(x[..., :4, :4])
    with pytest.raises(RuntimeError) as got:
        compiled(x[..., :4, :4])
    assert str(got.value) == str(want.value)
