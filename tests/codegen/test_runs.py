"""Loads at positions that mostly follow each other: whole vectors where they lie side by side, up or down, whatever the
edges.
"""

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.codegen.cpp.pieces import in_long_pieces, step_in_pieces
from tcompile.compiler.codegen.cpp.runs import DOWN, UP, run_directions
from tcompile.compiler.symbolic.expr import floordiv, maximum, minimum, mod, symbol

i, n = symbol("i"), symbol("n")


@pytest.mark.parametrize(
    "e, directions",
    [
        (i + 3, UP),
        (7 - i, DOWN),
        (mod(i, n), UP),
        (mod(i + 5, 30), UP),
        (minimum(i, 9), UP),
        (maximum(i - 3, 3 - i), UP | DOWN),
        (floordiv(i, 2), UP),
        (2 * i, 0),
        (i * n, 0),
        (floordiv(3 * i, 2), 0),
        (mod(7 - i, 30), 0),
        (mod(i, 8) + 8 * floordiv(i, 16), 0),
        (n + 2, 0),
    ],
)
def test_directions(e, directions):
    assert run_directions(e, "i") == directions


@pytest.mark.parametrize(
    "e, step, long",
    [
        (mod(i, 32) + 1568 * floordiv(i, 32), 1, True),
        (mod(i, 16) + 7 * floordiv(i, 16), 1, True),  # a vector is a piece
        (mod(i, 24) + 7 * floordiv(i, 24), 1, False),
        (mod(i, 32) + 1568 * mod(floordiv(i, 32), 3), 1, True),  # what is made of a number of pieces is as long
        (mod(i, 32) + 5 * mod(i, 3), 6, False),
        (3 * mod(i, 64) - 4 * i, -1, True),
        (mod(i, 64) * n, None, False),
        (floordiv(i, 64), 0, True),
        (minimum(i, 9), None, True),
    ],
)
def test_steps_in_pieces(e, step, long):
    assert step_in_pieces(e, "i") == step
    assert in_long_pieces(e, "i", 16, {"n": 5}) == long


@pytest.mark.parametrize(
    "dtype, heads, width",
    [
        (torch.float32, 3, 32),
        (torch.bfloat16, 5, 32),
        (torch.bool, 12, 64),
        (torch.float64, 2, 24),
        (torch.int64, 5, 16),
        (torch.bfloat16, 7, 5),
        (torch.float32, 1, 33),
    ],
)
def test_heads_beside_each_other_are_read_as_vectors(dtype, heads, width):
    def f(x, five):
        # what goes back to queries, keys and values of windows
        y = five.permute(1, 3, 0, 2, 4).flatten(0, 1).flatten(1)
        return x.transpose(1, 2).flatten(2) * 2, y.clone(), y.float().sum(0)

    x, five = torch.randn(2, heads, 7, width).mul(9).to(dtype), torch.randn(3, 2, heads, 7, width).mul(9).to(dtype)
    report = tcompile.explain(f)(x, five)
    for got, want in zip(report.result, f(x, five)):
        torch.testing.assert_close(got, want)
    if width in (16, 32, 64):
        assert not any("tc::gather<" in k.source.rpartition('extern "C" int')[2] for k in report.kernels)


@pytest.mark.parametrize("width", [1, 2, 7, 15, 16, 17, 30, 31, 33, 64, 100])
def test_elements(width):
    def f(x):
        return (
            x.flip(1),
            x.repeat(2, 3),
            x.roll(5, 1),
            torch.nn.functional.pad(x.float()[None], (2, 3), mode="replicate"),
            x.repeat_interleave(2, 1),
            x.flip(0, 1) + x,
            torch.cat([x, x.flip(1)], 1),
        )

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        x = torch.randn(5, width).mul(9).to(dtype)
        for got, want in zip(tcompile.compile(f, fullgraph=True)(x), f(x)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("width", [1, 2, 15, 16, 17, 32, 33, 63, 100])
def test_every_second_element(width):
    def f(x):
        return (
            x[:, ::2] + 1,
            x[:, 1::2],
            torch.nn.functional.max_pool1d(x.float(), 2, 2, ceil_mode=True),
            torch.nn.functional.avg_pool1d(x.float()[None], 3, 2, 1),
        )

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int8):
        x = torch.randn(5, 2 * width).mul(9).to(dtype)
        for got, want in zip(tcompile.compile(f, fullgraph=True)(x), f(x)):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=0)


def test_nothing_is_read_behind_the_last_element():
    import mmap

    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)  # the second page is taken away: to touch it is a fault
    import ctypes

    libc, at = ctypes.CDLL(None, use_errno=True), ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(at + page), ctypes.c_size_t(page), 0) == 0
    try:
        x = torch.frombuffer(memory, dtype=torch.float32, count=page // 4)[-66:]
        x.copy_(torch.arange(66.0))
        f = tcompile.compile(
            lambda t: (t[::2] * 2, t[1::2] + 1, t.flip(0) + 1, t[:65].view(5, 13).repeat(1, 2)), dynamic=False
        )
        for got, want in zip(f(x), (x[::2] * 2, x[1::2] + 1, x.flip(0) + 1, x[:65].view(5, 13).repeat(1, 2))):
            assert torch.equal(got, want)
    finally:
        libc.mprotect(ctypes.c_void_p(at + page), ctypes.c_size_t(page), 3)


def test_positions_are_compared_alike_for_any_size():
    def f(x, k):
        i = torch.arange(x.shape[1])
        return (
            torch.where(i >= x.shape[1] - k, x, 0),
            x.tril(k),
            x.triu(-k),
            torch.where(i == 3, x, -x),
            torch.where(i - 2 < 5 - i, x, 1),
            x.roll(k, 1),
        )

    g = tcompile.compile(f, dynamic=True, fullgraph=True)
    for rows, columns, k in ((3, 5, 1), (7, 40, 3), (40, 7, 2), (33, 33, 9)):
        x = torch.randn(rows, columns)
        for got, want in zip(g(x, k), f(x, k)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
def test_positions_beside_lengths_of_rows(simd):
    """The lengths are held within what 32 bits can tell apart from positions; no length is too large or too small for
    that.
    """

    def f(x, n):
        i = torch.arange(x.shape[-1])
        return [
            torch.softmax(x.masked_fill(i >= n[:, None], -1e30), -1),
            torch.where(i + 2 == n[:, None], x, 0),
            torch.where(n[:, None] > 2 * i - 9, x, 1),
        ]

    least = -(2**63)
    n = torch.tensor([0, 1, 17, 70, least, -(least + 1), least + 1, 2**31, -(2**31), 2**32 + 5, 2**30, -(2**30)])
    x = torch.randn(len(n), 70)
    g = tcompile.compile(f, fullgraph=True, dynamic=False, options={"simd": simd})
    for lengths in (n, n.roll(5), n.remainder(75).to(torch.int32)):
        for got, want in zip(g(x, lengths), f(x, lengths)):
            torch.testing.assert_close(got, want)
    by_column = torch.arange(70).roll(3)  # a number for each lane
    assert torch.equal(
        tcompile.compile(lambda x, n: torch.where(torch.arange(70) < n, x, 0))(x, by_column),
        torch.where(torch.arange(70) < by_column, x, 0),
    )


@pytest.mark.parametrize("simd", ["auto", "avx2", "none"])
def test_reversed_parts_of_a_join(simd):
    def f(x):
        return torch.cat([x.flip(-1), x, x.roll(3, -1)], -1) * 2, torch.nn.functional.pad(x, (9, 5), mode="reflect") + 1

    for width in (12, 16, 33, 100):
        x = torch.randn(1, 5, width)
        for got, want in zip(tcompile.compile(f, dynamic=False, options={"simd": simd})(x), f(x)):
            assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("width", [40, 256, 301])
def test_pieces(width, dtype):
    """Rows long enough to be parted where an index or a condition of reads turns, alone, joined and summed; sizes that
    vary, too.
    """
    pad = torch.nn.functional.pad

    def f(x):
        y = x.float()
        return (
            x.roll(7, 1),
            x.roll((3, -9), (0, 1)),
            x.roll(1001),
            x.repeat(2, 3),
            torch.cat([x[:, 5:], x.flip(1), x[:, :3]], 1),
            pad(x, (9, 2, 1, 3)),
            pad(y[None], (9, 7), mode="reflect"),
            pad(y[None, None], (9, 7, 2, 2), mode="replicate") * 2,
            pad(y[None], (5, 6), mode="circular"),
            y.roll(5, 1).sum(1),
            pad(y, (3, 40)).amax(1),
            (y.roll(1, 1) + y.roll(-1, 1) - y.flip(1)).argmax(1),
        )

    for dynamic in (False, True):
        x = torch.randn(6, width).mul(9).to(dtype)
        for got, want in zip(tcompile.compile(f, fullgraph=True, dynamic=dynamic)(x), f(x)):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["replicate", "reflect", "constant"])
def test_reductions_over_rows_of_pieces(mode, dtype):
    """Accumulators of a piece's last vector reach over the next piece."""
    x = torch.randn(1, 5, 3, 37).to(dtype)

    def fn(x):
        y = F.pad(x, (1, 2, 1, 1), mode=mode)
        return y.exp().sum(-2), y.amax(-2), y.argmax(-2), y.cumsum(-2)

    for got, want in zip(tcompile.compile(fn)(x), fn(x), strict=True):
        torch.testing.assert_close(got, want)
