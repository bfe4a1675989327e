"""as_strided looks at memory: whatever view it is asked of, and whatever copies were left out, it reads and writes
where eager does.
"""

from __future__ import annotations

import pytest
import torch

import tcompile

a = torch.arange(165.0).view(33, 5)


def read_of_a_clone(x):
    return (x * 2)[30:].clone().as_strided((2, 2), (5, 1), 1) + 1


def read_of_a_narrow_clone(x):
    return (x * 2)[:, :2].clone().as_strided((3, 2), (2, 1), 1) + 1


def read_of_an_inputs_view(x):
    return x[30:].as_strided((2, 2), (5, 1), 1) + 1, x.t().as_strided((2, 2), (5, 1)) + 1


def read_before_the_view(x):
    return (x * 2)[3:].as_strided((2, 2), (5, 1), 1) + 1, (x * 2)[3:].t().as_strided((2, 2), (5, 1)) + 1


def write_around_the_view(x):
    y = (x + 1)[:, 1:]
    y.as_strided((2, 2), (5, 1), 3).mul_(3)
    return y


def write_into_a_transposed_clone(x):
    y = (x + 1)[:, 1:].clone().t()
    y.as_strided((2, 2), (4, 1), 3).mul_(3)
    return y


def write_into_the_input(x):
    x = x.clone()
    x.as_strided((2, 2), (5, 1), 12).mul_(3)
    return x + 1


def diagonal_of_a_part(x):
    return (
        (x * 2)[32:].clone().fill_diagonal_(1),
        (x * 2)[30:].clone().fill_diagonal_(7),
        (x + 1).fill_diagonal_(0, wrap=True),
    )


FUNCTIONS = [
    read_of_a_clone,
    read_of_a_narrow_clone,
    read_of_an_inputs_view,
    read_before_the_view,
    write_around_the_view,
    write_into_a_transposed_clone,
    write_into_the_input,
    diagonal_of_a_part,
]


@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_like_eager(function, dynamic, backend):
    torch.testing.assert_close(tcompile.compile(function, backend=backend, dynamic=dynamic)(a), function(a))


@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_outside_of_the_argument(backend):
    """The argument is the rest of a larger tensor: what lies before it can be seen, and written."""

    def f(x):
        x.as_strided((2, 2), (5, 1), 3).mul_(3)
        return x + 1

    mine, theirs = a.clone(), a.clone()
    torch.testing.assert_close(tcompile.compile(f, backend=backend)(mine[2:]), f(theirs[2:]))
    assert torch.equal(mine, theirs)


def test_a_reduction_over_one_element_in_another_order_of_memory():
    x = torch.arange(14.0).sin().view(2, 7, 1)

    def f(x):
        y = x.unfold(0, 2, 1).movedim(0, 3)
        return y.amax(1) * 2, y.sum((1, 3)) + 1, y.transpose(0, 2).prod(3, keepdim=True).exp()

    torch.testing.assert_close(tcompile.compile(f)(x), f(x))


@pytest.mark.parametrize("pad", [(0, 0), (-1, 0), (-1, -1, 0, -1), (0,) * 6, (1, -1)])
@pytest.mark.parametrize(
    "x",
    [torch.ones(2, 3, 4).transpose(0, 2), torch.ones(2, 1, 4).expand(2, 3, 4), torch.ones(2, 3, 8)[..., ::2]],
    ids=["transposed", "expanded", "stepped"],
)
def test_a_pad_that_adds_nothing_keeps_the_order_of_memory(x, pad):
    def f(x):
        return torch.nn.functional.pad(x, pad)

    got, want = tcompile.compile(f)(x), f(x)
    assert got.stride() == want.stride() and torch.equal(got, want)


def test_nothing_is_out_of_bounds_where_nothing_is_read():
    x = torch.ones(2, 3, 0)

    def f(x):
        return x[torch.tensor([5])], x.gather(0, torch.full((2, 3, 0), 7))

    torch.testing.assert_close(tcompile.compile(f)(x), f(x))
