"""A position that is read from memory is printed once per guard: where parts of a concatenation are gathered from, each
part has its own.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

from .triton import interpreter


def picked_of_log_softmax(a, b, c, y):
    return F.log_softmax(torch.cat([a, b, c], 1), -1).view(-1, 10).gather(1, y[:, None])


def rows_of_differences(a, b, c, y):
    z = torch.cat([a, b, c], 1)
    return (z - z.amax(-1, keepdim=True)).view(-1, 10)[torch.arange(9), y]


def embedded_parts(a, b, c, y):
    return F.embedding(y, torch.cat([a, b, c], 0).flatten(0, 1).cos()) * 2


FUNCTIONS = [picked_of_log_softmax, rows_of_differences, embedded_parts]


def inputs():
    torch.manual_seed(3)
    return [torch.randn(3, 1, 10) for _ in range(3)] + [torch.randint(0, 9, (9,))]


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_on_the_cpu(function, simd):
    args = inputs()
    torch.testing.assert_close(tcompile.compile(function, options={"simd": simd})(*args), function(*args))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_for_the_gpu(function):
    pytest.importorskip("triton")
    interpreter.check(function, *inputs())


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
def test_one_position_for_all_lanes(simd):
    """In a row that is joined of parts of two tables, each part's row number is read once, where any lane wants the
    part; a wrong number is an error only there.
    """

    def f(x, y, i, j):
        return (torch.cat([x[i], y[j], x[j]], 1) * 2).sum(1), torch.nn.functional.pad(x[i], (3, 5)) * 2

    g = tcompile.compile(f, fullgraph=True, dynamic=False, options={"simd": simd})
    x, y, i = torch.randn(7, 20), torch.randn(9, 37), torch.randint(0, 7, (50,))
    for got, want in zip(g(x, y, i, i - 7), f(x, y, i, i - 7)):
        torch.testing.assert_close(got, want)
    for wrong in (7, -8):
        bad = i.clone()
        bad[-1] = wrong
        with pytest.raises(IndexError):
            g(x, y, bad, i)


TARGETS = torch.tensor([0, 5, 1, 1])
READS_OF_CONSTANTS = {
    "index": lambda x, t: (torch.zeros(4, 5) + 1)[torch.arange(4), t],
    "gather": lambda x, t: (torch.ones_like(x) / 3).gather(1, t[:, None]),
    "the same in a row": lambda x, t: x[:, :1].exp().expand(4, 5).gather(1, t[:, None]) + 1,
    "loss of equal classes": lambda x, t: torch.nn.functional.cross_entropy(torch.zeros_like(x), t),
}


@pytest.mark.parametrize("name", READS_OF_CONSTANTS)
def test_positions_are_checked_where_every_element_is_the_same(name):
    """A producer that is moved into its reader may not depend on the position."""
    program, x = READS_OF_CONSTANTS[name], torch.randn(4, 5)
    for targets in (TARGETS % 5, TARGETS):
        compiled = tcompile.compile(program, fullgraph=True)
        if targets is TARGETS:
            with pytest.raises((IndexError, RuntimeError), match="out of"):
                compiled(x, targets)
        else:
            torch.testing.assert_close(compiled(x, targets), program(x, targets))
