"""Views are index arithmetic: no kernel and no copy of their own."""

import pytest
import torch
import torch.nn.functional as F

import tcompile

from .helper import check, externs, kernels

VIEWS = [
    lambda x: x.view(24),
    lambda x: x.view(6, 4),
    lambda x: x.reshape(3, 2, 4),
    lambda x: x.t() if x.dim() == 2 else x.transpose(0, 2),
    lambda x: x.permute(2, 0, 1),
    lambda x: x.permute(2, 0, 1).reshape(8, 3),
    lambda x: x.permute(1, 0, 2).reshape(6, 4).t(),
    lambda x: x[1],
    lambda x: x[:, -1],
    lambda x: x[:, 1:],
    lambda x: x[..., ::2],
    lambda x: x[1:, 1:3, 1::2],
    lambda x: x[:, :, -3:-1],
    lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(-1),
    lambda x: x.unsqueeze(2).squeeze(2),
    lambda x: x[:, :1].squeeze(1),
    lambda x: x[:, :1].expand(2, 5, 4),
    lambda x: x.unsqueeze(1).expand(2, 3, 3, 4).reshape(18, 4),
    lambda x: x.flatten(1),
    lambda x: x.unbind(1)[2],
    lambda x: x.split(2, 2)[1],
    lambda x: x.split([1, 3], -1)[1],
    lambda x: x.chunk(2, 0)[1],
    lambda x: torch.diagonal(x, 0, 1, 2),
    lambda x: torch.diagonal(x, 1, 2, 1),
    lambda x: x.unfold(2, 2, 1),
    lambda x: x.flip(0, 2),
    lambda x: x.roll(1, 0),
    lambda x: x.roll((1, -1), (1, 2)),
    lambda x: x.roll(5),
    lambda x: x.repeat(2, 1, 3),
    lambda x: x.tril(),
    lambda x: x.triu(1),
    lambda x: x.swapaxes(0, 1).contiguous().view(-1),
    lambda x: x.as_strided((2, 3), (12, 4), 2),
    lambda x: x.view(2, 3, 2, 2).permute(0, 2, 1, 3).reshape(4, 6),
    lambda x: x.movedim(0, -1),
    lambda x: x.narrow(1, 1, 2),
    lambda x: x.select(2, -1),
    lambda x: x[None, :, None],
    lambda x: x.permute(2, 1, 0).flatten(),
    lambda x: x.repeat_interleave(2, 1),
    lambda x: x.view(1, 2, 3, 1, 4),
    lambda x: x.reshape(4, 6).permute(1, 0).reshape(2, 12),
]


JOINED = (29, 30)  # of several parts, each a kernel: rolls along several dimensions, or along all as one


@pytest.mark.parametrize("k", range(len(VIEWS)))
def test_view_of_an_input_and_of_a_value(k):
    f = VIEWS[k]
    x = torch.arange(24.0).reshape(2, 3, 4)
    s = check(lambda x: f(x) * 2 + 1, x)
    assert len(kernels(s)) == (3 if k in JOINED else 1) and not externs(s)
    s = check(lambda x: f(x.sin() + 1) * 2, x)
    assert not externs(s)
    check(lambda x: f(x.sin()), x)  # the graph's output is the view


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.cat([x, x + 1], 0),
        lambda x: torch.cat([x, x * 2, x - 1], 1).relu(),
        lambda x: torch.cat([x] * 7, -1) * 2,
        lambda x: torch.stack([x, x + 1], 1) + 1,
        lambda x: torch.cat([x[:, :1], x[:, 1:].exp()], 1).sum(1),
        lambda x: F.pad(x, (1, 2)) + 1,
        lambda x: F.pad(x, (1, -1, 2, 0), value=3.0),
        lambda x: F.pad(x, (-1, -1)),
        lambda x: torch.cat([x, torch.zeros(0)], 0) if x.dim() == 1 else x.clone(),
        lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * x + x,
        lambda x: torch.cat([x, x.to(torch.float64)], 0),
        lambda x: F.pad(x.sin(), (1, 1)).cos().sum(),
        lambda x: torch.hstack([x, x]),
        lambda x: torch.cat([x, torch.ones(3, 0)], 1),
        lambda x: torch.cat([x.t(), x.t() * 2], 1),
    ],
)
def test_joins(f):
    s = check(f, torch.randn(3, 4))
    assert not externs(s)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.arange(4) + x,
        lambda x: torch.arange(1, 9, 2) * x,
        lambda x: torch.full((3, 4), 2.5) + x,
        lambda x: torch.zeros_like(x) - x,
        lambda x: torch.ones(4, dtype=torch.int32) * x,
        lambda x: torch.eye(4) @ torch.eye(4) + torch.eye(4),
        lambda x: torch.arange(4.0),
        lambda x: torch.full((2, 2), 7),
        lambda x: torch.linspace(0, 1, 4) * x,
        lambda x: torch.arange(0, 1, 0.25) + x,
        lambda x: x.new_ones(3, 4) * x,
        lambda x: torch.arange(3)[:, None] >= torch.arange(4)[None],
        lambda x: x.masked_fill(torch.ones(3, 4).tril() == 0, float("-inf")),
        lambda x: torch.zeros(3, 4),
        lambda x: torch.scalar_tensor(3.0) + x,
        lambda x: torch.full_like(x, 2).long(),
    ],
)
def test_creation(f):
    check(f, torch.randn(3, 4))


def test_constants_cost_nothing():
    s = check(lambda x: x + x.new_ones(3, 4) * 2 + torch.full_like(x, 3), torch.randn(3, 4), n_kernels=1)
    assert len(kernels(s)[0].inputs) == 1


def test_scatter_of_slices():
    def f(x, y):
        z = x * 2
        z[:, 1:3] = y
        z[0] = 7
        return z + 1

    check(f, torch.randn(3, 4), torch.randn(3, 2))

    def g(x, y):
        z = x.clone()
        z[:, ::2] += y
        return z

    check(g, torch.randn(3, 4), torch.randn(3, 2))


@pytest.mark.parametrize(
    "f",
    [
        lambda w, i: F.embedding(i, w),
        lambda w, i: w[i],
        lambda w, i: w[:, i[:, 0]],
        lambda w, i: w[i, i],
        lambda w, i: w[i[:, None], i[None]].sum(),
        lambda w, i: w.index_select(0, i.reshape(-1)),
        lambda w, i: torch.gather(w, 0, i),
        lambda w, i: torch.gather(w, 1, i),
        lambda w, i: w[-i],
        lambda w, i: (w * 2)[i] + 1,
        lambda w, i: w[i.int()],
        lambda w, i: F.embedding(i, w).sum(-1),
        lambda w, i: w.t()[i],
        lambda w, i: w[i % 2, 1:],
        lambda w, i: w.unsqueeze(1)[i[:, 0], :, i[:, 0]],
    ],
)
def test_indexing(f):
    s = check(f, torch.randn(6, 5), torch.tensor([[0, 1, 4], [3, 2, 0]]))
    assert not externs(s)


@pytest.mark.parametrize(
    "f,error",
    [
        (lambda w, i: F.embedding(i, w), IndexError),
        (lambda w, i: w[i], IndexError),
        (lambda w, i: torch.gather(w, 0, i), RuntimeError),
        (lambda w, i: w.index_select(0, i[0]), IndexError),
    ],
)
def test_an_index_out_of_range_raises_as_in_eager(f, error):
    from ..oracles.loop_interpreter import run_schedule

    from .helper import compile_fn

    w, good, bad = torch.randn(4, 3), torch.tensor([[0, 1, 3]]), torch.tensor([[0, 9, 1]])
    s = compile_fn(f, w, good)
    run_schedule(s, [w, good])
    with pytest.raises(error):
        f(w, bad)
    with pytest.raises(error):
        run_schedule(s, [w, bad])


def test_a_part_of_another_dtype_is_cast_as_eager_does():
    for dtype, other in ((torch.float32, torch.float64), (torch.bfloat16, torch.float32), (torch.int32, torch.float32)):
        s = check(lambda x, part: torch.diagonal_scatter(x, part, 1, -1, 0), *parts_of(dtype, other))
        assert not externs(s)


def parts_of(dtype, other):
    return (torch.randn(5, 4) * 9).to(dtype), (torch.randn(4) * 9).to(other)


def test_roll_where_sizes_vary():
    """Shifts that are greater than a size, that a size divides, and along all dimensions as one."""

    def rolled(x):
        return x.roll(6, 0), x.roll(-7, 1) + 1, x.roll((1, -2), (0, 1)), x.roll(5), x.roll((2, 3), (1, 1))

    compiled = tcompile.compile(rolled, dynamic=True, fullgraph=True)
    for shape in ((6, 4), (5, 7), (3, 2), (2, 3), (7, 7)):
        x = torch.randn(shape)
        for ours, eager in zip(compiled(x), rolled(x)):
            torch.testing.assert_close(ours, eager, rtol=0, atol=0)
            assert ours.stride() == eager.stride()


@pytest.mark.parametrize(
    "of",
    ["torch.ones(3, 2)", "torch.zeros(3, 2)", "w[:1].expand(3, 2)", "w[:, :1].expand(3, 2)", "w.sum().expand(3, 2)"],
)
def test_positions_are_checked_where_all_elements_are_one(of):
    """What is the same everywhere is not read at a position; a wrong one is refused all the same."""
    table = eval(f"lambda w: {of}")
    program = tcompile.compile(lambda w, i: (table(w)[i], F.embedding(i, table(w)), table(w).gather(0, i[:, None])))
    w = torch.randn(3, 2)
    for ours, eager in zip(
        program(w, torch.tensor([2, 0])), (table(w)[[2, 0]], table(w)[[2, 0]], table(w)[[2, 0], :1])
    ):
        assert torch.equal(ours, eager)
    for wrong in (3, 9):
        with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
            program(w, torch.tensor([1, wrong]))
