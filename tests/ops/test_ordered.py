"""Scans and scattered writes: loops whose iterations have an order, on every kind of input, against eager."""

from __future__ import annotations

import pytest
import torch

import tcompile


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


SHAPES = [(5, 7), (64, 33), (1000,), (3, 8, 50)]


def same(fn, *args, calls=(), **options):
    """fn on clones of the arguments, compiled in one graph without calls of torch's kernels (but for `calls`), gives
    what eager gives.
    """

    def clones():
        return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]

    want = fn(*clones())
    tcompile.reset()
    with tcompile.record() as r:
        got = tcompile.compile(fn, fullgraph=True, **options)(*clones())
    assert [e.op for e in r.report().externs] == list(calls)
    for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (got, want))):
        low = a.dtype in (torch.bfloat16, torch.float16)  # (rounded after each of several sums, in another order)
        torch.testing.assert_close(a, b, equal_nan=True, **({"rtol": 2e-2, "atol": 2e-2} if low else {}))
        assert a.stride() == b.stride()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scans(shape):
    x = torch.randn(shape)
    special = (x * 3).round()
    special.view(-1)[[3, 7]] = torch.tensor([float("inf"), float("nan")])

    def scans(x):
        d = range(x.ndim)
        return (
            *((x * 2).cumsum(k) - 1 for k in d),
            *(x.cumprod(k) for k in d),
            *(x.logcumsumexp(k) for k in d),
            *(y for k in d for y in (*x.cummax(k), *x.cummin(k))),
        )

    same(scans, x)
    same(scans, special)
    same(lambda x: (*x.cummax(0), x.cumsum(-1), x.cumprod(0)), (x * 3).to(torch.int8))
    same(lambda x: (*x.cummin(-1), x.cumsum(0)), x > 0)
    same(lambda x: x.cumsum(0), x.bfloat16())
    same(lambda x: x.cumsum(-1, dtype=torch.float64), x.t() if x.ndim == 2 else x)


def test_scans_without_elements_or_dimensions():
    same(lambda x: x.cumsum(0), torch.tensor(3.0))
    same(lambda x: (*x.cummax(1), x.cumsum(1)), torch.zeros(2, 1))
    same(lambda x: x.cumsum(0), torch.zeros(0, 3))
    same(lambda x: x.cumsum(1), torch.zeros(3, 0))


def test_a_long_sum_is_added_up_in_double():
    x = torch.full((1_000_000,), 0.1)
    got = tcompile.compile(lambda x: x.cumsum(0), fullgraph=True)(x)
    assert abs(got[-1].item() - 100_000.0) < 0.01


@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin", "mean"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce, include_self):
    x, i, s = torch.randn(5, 7), torch.randint(0, 5, (4, 7)), torch.randn(6, 7)
    same(lambda x, i, s: torch.scatter_reduce(x, 0, i, s, reduce, include_self=include_self), x, i, s)
    same(
        lambda x, i, s: torch.index_reduce(x, 1, i, s, reduce, include_self=include_self) if reduce != "sum" else x * 2,
        x,
        torch.tensor([1, 6, 1]),
        torch.randn(5, 3),
    )
    ints = (x * 10).to(torch.int32)
    same(
        lambda x, i, s: torch.scatter_reduce(x, 0, i, s, reduce, include_self=include_self),
        ints,
        i,
        (s * 10).to(torch.int32),
    )


def test_scatters():
    x, i, s = torch.randn(5, 7), torch.randint(0, 5, (4, 7)), torch.randn(6, 7)
    once = torch.stack([torch.randperm(5)[:4] for _ in range(7)], 1)
    same(lambda x, i, s: torch.scatter(x, 0, i, s) * 2, x, once, s)
    same(lambda x, i, s: (x * 2).scatter_add(0, i, s.sin()).relu(), x, i, s)
    same(lambda x, i: torch.scatter(x, 0, i, 1.5), x, i)
    same(lambda x, i, s: torch.scatter(x, 0, i, s, reduce="multiply"), x, i, s)
    same(lambda x, i, s: x.scatter_add(0, i, s), x.bfloat16(), i, s.bfloat16())
    same(lambda x, i, s: x.scatter_add(0, i, s), x > 0, i, s > 0)
    same(lambda x, i, s: x.scatter_add(1, i, s), x.t(), i[:, :4].t() % 5, s.t())
    same(lambda x, i, s: x.scatter_add(0, i, s), torch.zeros(()), torch.tensor(0), torch.ones(()))
    same(lambda x, i: x.scatter_add(0, i, torch.ones(i.shape[0])), torch.zeros(10), torch.randint(0, 10, (1000,)))
    same(lambda x, i, s: x.scatter_add(0, i, s), x, i[:0], s)


def test_of_equal_positions_the_last_one_stays():
    x, i = torch.zeros(4), torch.tensor([2, 1, 2, 2, 1])
    same(lambda x, i, s: x.scatter(0, i, s), x, i, torch.arange(5.0))
    same(lambda x, i, s: x.index_put((i,), s), x, i, torch.arange(5.0))
    same(lambda x, i, s: x.index_copy(0, i, s), torch.zeros(4, 3), i, torch.arange(15.0).view(5, 3))


def test_index_writes():
    x = torch.randn(5, 7)
    i = torch.tensor([0, 3, 3, -1])
    same(lambda x, i, s: x.index_put((i,), s, accumulate=True), x, i, torch.randn(4, 7))
    same(lambda x, i, s: x.index_put((i,), s, accumulate=True), x, i, torch.randn(7))
    same(lambda x, i, s: x.index_put((i, i), s, accumulate=True), x, i.view(2, 2), torch.randn(2, 2))

    def columns(x, i, s):
        x[:, i] = s
        x[1:3, i] += 1
        return x

    same(columns, x, torch.tensor([2, 0]), torch.randn(5, 2))
    same(lambda x, i, s: x.index_add(0, i, s, alpha=0.5), x, i.abs(), torch.randn(4, 7))
    same(lambda x, i, s: x.index_copy(1, i, s), x, torch.tensor([0, 3, 1]), torch.randn(5, 3))
    same(lambda x, i: x.index_fill(1, i, 3.0), x, torch.tensor([0, 3, -1]))
    same(lambda x, i, s: x.put(i, s), x, torch.tensor([0, 33, 12]), torch.randn(3))
    same(lambda x, s: torch.diagonal_scatter(x, s, 1), torch.randn(5, 5), torch.randn(4))
    same(lambda x, m, s: x.masked_scatter(m, s), x, torch.randn(5, 7) > 0, torch.randn(50))
    same(lambda x, m, s: x.masked_scatter(m, s), x, torch.randn(7) > 0, torch.randn(50))

    def in_place(x, i, s):
        x[i] += s
        x.scatter_(0, i[:, None], 7.0)
        return x * 2

    same(in_place, x, i.abs(), torch.randn(4, 7))


def test_positions_out_of_range_raise_as_eager_does():
    x, s = torch.randn(5, 7), torch.randn(4, 7)
    for fn, i in (
        (lambda x, i, s: x.scatter_add(0, i, s), torch.full((4, 7), 5)),
        (lambda x, i, s: x.scatter(0, i, s), torch.full((4, 7), -1)),
        (lambda x, i, s: x.index_put((i,), s), torch.tensor([0, 1, 2, 5])),
        (lambda x, i, s: x.index_add(0, i, s), torch.tensor([0, 1, 2, 9])),
        (lambda x, i, s: x.masked_scatter(x == x, s), torch.tensor(0)),
    ):
        with pytest.raises(Exception) as want:
            fn(x, i, s)
        with pytest.raises(type(want.value)) as got:
            tcompile.compile(fn, fullgraph=True)(x, i, s)
        assert str(got.value) == str(want.value)


def test_sizes_that_change():
    f = tcompile.compile(
        lambda x, i, s: (x.index_add(0, i, s).cumsum(1), x.scatter(1, i[:, None], 2.0)), fullgraph=True, dynamic=True
    )
    for n in (4, 9, 30):
        x, i, s = torch.randn(n, n + 1), torch.randint(0, n, (n,)), torch.randn(n, n + 1)
        torch.testing.assert_close(f(x, i, s), (x.index_add(0, i, s).cumsum(1), x.scatter(1, i[:, None], 2.0)))


@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_gradients_of_losses_by_name_with_sizes_that_change(reduction):
    def f(g, x, target):
        total = torch.ones(()) if reduction == 1 else torch.zeros(())
        return torch.ops.aten.nll_loss_backward.default(g, x, target, None, reduction, -100, total * x.shape[0])

    h = tcompile.compile(f, fullgraph=True, dynamic=True)
    for n, c in ((4, 5), (6, 3)):
        args = torch.randn(n) if reduction == 0 else torch.randn(()), torch.randn(n, c), torch.randint(0, c, (n,))
        torch.testing.assert_close(h(*args), f(*args))


def test_means_of_what_is_written_in_small_dtypes():
    i = torch.tensor([[0, 0, 2], [0, 3, 2]])
    for dtype in (torch.int8, torch.float64):
        x, s = torch.arange(-6, 6).reshape(4, 3).to(dtype), torch.tensor([[5, -4, 1], [-8, 2, 9]], dtype=dtype)
        same(lambda x, i, s: torch.scatter_reduce(x, 0, i, s, "mean", include_self=False), x, i, s)
        same(lambda x, i, s: torch.index_reduce(x, 0, i[0], s.mT[:, :1].expand(3, 3), "mean"), x, i, s)


def test_a_dropout_outside_of_training_draws_nothing():
    same(lambda x: torch.native_dropout(x, 0.5, False), torch.randn(3, 4).t())
