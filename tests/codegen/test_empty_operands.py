"""Operands without elements."""

import pytest
import torch

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
