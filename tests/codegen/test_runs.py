"""Loads at positions that mostly follow each other: whole vectors where they lie side by side, up or down, whatever the edges."""
import pytest
import torch

import tcompile
from tcompile.compiler.codegen.cpp.runs import DOWN, UP, run_directions
from tcompile.compiler.symbolic.expr import floordiv, maximum, minimum, mod, symbol

i, n = symbol("i"), symbol("n")


@pytest.mark.parametrize("e, directions", [
    (i + 3, UP), (7 - i, DOWN), (mod(i, n), UP), (mod(i + 5, 30), UP), (minimum(i, 9), UP), (maximum(i - 3, 3 - i), UP | DOWN), (floordiv(i, 2), UP),
    (2 * i, 0), (i * n, 0), (floordiv(3 * i, 2), 0), (mod(7 - i, 30), 0), (mod(i, 8) + 8 * floordiv(i, 16), 0), (n + 2, 0)])
def test_directions(e, directions):
    assert run_directions(e, "i") == directions


@pytest.mark.parametrize("width", [1, 2, 7, 15, 16, 17, 30, 31, 33, 64, 100])
def test_elements(width):
    def f(x):
        return (x.flip(1), x.repeat(2, 3), x.roll(5, 1), torch.nn.functional.pad(x[None], (2, 3), mode="replicate"), x.repeat_interleave(2, 1),
                x.flip(0, 1) + x, torch.cat([x, x.flip(1)], 1))
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = torch.randn(5, width).mul(9).to(dtype)
        for got, want in zip(tcompile.compile(f, fullgraph=True)(x), f(x)):
            assert torch.equal(got, want)
