"""Tensors made of numbers that the program writes down: reading one into Python ends no graph, unless it was written
to.
"""

import pytest
import torch

import tcompile


def half(x):
    return torch.div(x.shape[0], 2, rounding_mode="trunc")


def sliced(x):
    return x[: torch.tensor(3).item()] * 2


def sized(x):
    return x.new_zeros((half(x) + 1, 2)) + x.new_zeros(half(x) + 1, 2)


def strided(x):
    n = half(x) - 1
    return x.as_strided((n, 2), (1, 1)) + 1


def looped(x):
    return [x * i for i in range(half(x))]


def branched(x):
    n = half(x)
    return x.view(-1)[:n] + (1 if n > 2 else 2)


def listed(x):
    return [x * s for s in torch.tensor([3, 1]).tolist()]


def cut(x):
    return x[: torch.tensor([2, 3])[1]], x[: torch.arange(4).max()]


def converted(x):
    n = torch.tensor(2.75)
    return x * float(n), x * int(torch.tensor(3)), x * bool(torch.ones(1))


def stepped(x):
    """A solver's steps, whose grid is checked as it goes through it."""
    grid = torch.linspace(0.0, 1.0, 4)
    assert (grid[1:] > grid[:-1]).all()
    j = 0
    while j < len(grid) and grid[j] < 0.5:
        x = x + x.sin() * (grid[j + 1] - grid[j])
        j += 1
    return x, j


def counted(x):
    """Keywords of a factory, as tapas makes its segments."""
    n = torch.prod(torch.tensor(list(x.shape[:1])))
    return torch.arange(start=0, end=n, step=torch.tensor(2)) + torch.full((4,), fill_value=n) + x.view(8, 4)


@pytest.mark.parametrize(
    "fn", [counted, stepped, sliced, sized, strided, looped, branched, listed, cut, converted], ids=lambda f: f.__name__
)
def test_one_graph(fn):
    x = torch.randn(8, 4)
    with tcompile.record() as r:
        got = tcompile.compile(fn, fullgraph=True, dynamic=False)(x)
    torch.testing.assert_close(got, fn(x))
    report = r.report()
    assert len(report.graphs) == 1 and not report.graph_breaks and not report.fallbacks


def added(x):
    n = torch.tensor(3)
    n.add_(1)
    return x[: n.item()] * 2


def added_by_a_view(x):
    n = torch.tensor([3, 1])
    v = n[0]
    v += 2
    return x[: int(n[0])] * 2


def set_by_index(x):
    n = torch.tensor(3)
    n[...] = 5
    return x[:n]


def copied(x):
    n = torch.zeros((), dtype=torch.long)
    n.copy_(x.sum() > -100)
    return x[: n.item() + 1]


def filled(x):
    n = torch.tensor([2, 3])
    k = n.clone()
    k.fill_(x.shape[0] // 2)
    return x[: n[0]], x[: k[0]]


def by_numpy(x):
    n = torch.tensor(2)
    a = n.numpy()
    a += 1
    return x[: n.item()]


def out(x):
    n = torch.tensor(2)
    torch.add(n, 1, out=n)
    return x[: n.item()]


def by_data(x):
    n = torch.tensor(2)
    n.data = torch.tensor(4)
    return x[: n.item()]


def after_a_break(x):
    n = torch.tensor(2)
    m = n + 1
    torch._dynamo.graph_break()
    n += 2
    return x[: m.item()], x[: n.item()]


WRITES = [added, added_by_a_view, set_by_index, copied, filled, by_numpy, out, by_data, after_a_break]


@pytest.mark.parametrize("fn", WRITES, ids=lambda f: f.__name__)
def test_what_was_written_to_is_read_anew(fn):
    compiled = tcompile.compile(fn)
    for rows in (8, 8, 10):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), fn(x))


def test_a_tensor_from_outside_is_never_known():
    n = torch.tensor(3)

    def f(x):
        return x[: n.item()] * 2

    def g(x):
        return torch.arange(end=n, device=x.device) + x.sum()

    compiled, made, x = tcompile.compile(f), tcompile.compile(g), torch.randn(8, 4)
    torch.testing.assert_close(compiled(x), f(x))
    torch.testing.assert_close(made(x), g(x))
    n += 2
    torch.testing.assert_close(made(x), g(x))
    torch.testing.assert_close(compiled(x), f(x))


def test_a_number_that_varies_is_never_known():
    def f(x, k):
        return x[: torch.tensor(k).item()] * torch.tensor(k * 0.5).item()

    compiled, x = tcompile.compile(f), torch.randn(8, 4)
    for k in (2, 3, 5, 2, 7):
        torch.testing.assert_close(compiled(x, k), f(x, k))
