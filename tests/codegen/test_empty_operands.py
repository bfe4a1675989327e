"""Operands without elements."""

import pytest
import torch
import torch.nn.functional as F

import tcompile


@pytest.mark.parametrize("shape, stride", [((0, 4), (0, 0)), ((0, 3), (0, 1)), ((3, 0), (0, 0)), ((3, 0), (1, 0))])
def test_empty_tensors_that_repeat_nothing(shape, stride):
    """An element that is the same everywhere is read once, outside of loops; where it is repeated no times, there is
    none.
    """
    for f in (lambda x, y: x * 2 + y, lambda x, y: (x * 2 + y).sum(1)):
        c = tcompile.compile(f)
        for rows, columns in ((3, 4), (5, 6)):
            x = torch.arange(20.0).as_strided((rows, columns), stride)
            torch.testing.assert_close(c(x, torch.ones(rows, columns)), f(x, torch.ones(rows, columns)))
        x = torch.empty_strided(shape, stride)
        assert x.data_ptr() == 0
        torch.testing.assert_close(c(x, torch.ones(shape)), f(x, torch.ones(shape)))


@pytest.mark.parametrize(
    "f, shapes",
    [
        (lambda x: F.avg_pool2d(x, 1), [(1, 0, 2, 3), (1, 2, 0, 3), (0, 2, 3), (0, 2, 2, 3)]),
        (lambda x: F.max_pool2d(x, 1), [(1, 0, 2, 3), (1, 2, 0, 3), (0, 2, 3), (0, 2, 2, 3)]),
        (lambda x: F.avg_pool1d(x, 2), [(2, 0, 3), (0, 2, 3), (0, 3)]),
        (lambda x: F.avg_pool3d(x, 1), [(1, 0, 2, 2, 2), (0, 1, 2, 2, 2)]),
        (lambda x: F.pad(x, (1, 1), mode="reflect"), [(2, 0, 3), (0, 2, 3), (2, 0)]),
        (lambda x: F.pad(x, (1, 1), mode="replicate"), [(2, 0, 3), (0, 2, 3), (2, 0)]),
        (lambda x: torch.stack([x, x]), [(0, 2, 3), (2, 0, 3)]),
        (lambda x: torch.stack([x, x], -1), [(0, 2, 3), (2, 0, 3)]),
    ],
)
def test_what_eager_refuses_or_gives_of_nothing(f, shapes):
    for shape in shapes:
        x = torch.empty(shape)
        try:
            want = f(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                tcompile.compile(f)(x)
        else:
            got = tcompile.compile(f, fullgraph=True)(x)
            assert (got.shape, got.stride()) == (want.shape, want.stride())
