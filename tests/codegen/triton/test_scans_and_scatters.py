"""Scans and writes at computed positions as Triton kernels, interpreted, against eager."""

import pytest
import torch

pytest.importorskip("triton")

from tcompile.compiler.lowering.ir import Kernel  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402

f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16


def kernels(g) -> list[Kernel]:
    """The kernels, of a plan that calls nothing of torch's."""
    assert not [s for s in g.schedule.steps if hasattr(s, "op")], g.schedule.steps
    return [k.kernel for k in g.kernels]


@pytest.mark.parametrize(
    "shape,dim", [((5, 7), 1), ((5, 7), 0), ((3, 200, 4), 1), ((2, 3000), -1), ((70,), 0), ((6, 1), 1), ((), 0)]
)
def test_running_sums_and_products(shape, dim):
    x = torch.rand(shape) + 0.5
    g = check_as_gpu(lambda a: (torch.cumsum(a * 2, dim) + 1, torch.cumprod(a, dim)), x, rtol=1e-4, atol=1e-4)
    kernels(g)


def test_what_surrounds_a_scan_is_computed_in_its_tiles():
    g = check_as_gpu(
        lambda a, b: torch.relu(torch.cumsum(torch.sigmoid(a) * b, 1) - b),
        torch.randn(4, 70),
        torch.randn(4, 70),
        rtol=1e-4,
        atol=1e-4,
    )
    assert len(kernels(g)) == 1
    assert (
        len(
            kernels(
                check_as_gpu(
                    lambda a: torch.cumsum(torch.cumsum(a, 0) + 1, 1).sum(0), torch.randn(6, 50), rtol=1e-4, atol=1e-3
                )
            )
        )
        == 3
    )


@pytest.mark.parametrize("dtype", [f64, bf16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8])
def test_running_sums_of_dtypes(dtype):
    x = torch.randint(0, 5, (3, 300)).to(dtype)
    kernels(check_as_gpu(lambda a: (torch.cumsum(a, 1), torch.cumsum(a, 0)), x))


def test_running_sums_of_booleans():
    kernels(check_as_gpu(lambda a: torch.cumsum(a, -1), torch.rand(3, 50) > 0.5))


@pytest.mark.parametrize("dim", [0, 1])
def test_running_extrema_give_the_last_of_equals_and_nan(dim):
    x = torch.randint(-3, 4, (10, 40)).float()
    x[2, 20] = x[7, 0] = torch.nan
    x[9, :5] = -torch.inf
    kernels(check_as_gpu(lambda a: (*torch.cummax(a, dim), *torch.cummin(a, dim)), x))
    kernels(check_as_gpu(lambda a: (*torch.cummax(a, dim), *torch.cummin(a, dim)), x.nan_to_num().long()))


def test_logarithms_of_running_sums_of_exponentials():
    x = torch.randn(4, 50) * 30
    x[0, :3] = -torch.inf
    x[1, 5] = torch.inf
    x[2, 9] = torch.nan
    kernels(check_as_gpu(lambda a: (torch.logcumsumexp(a, 1), torch.logcumsumexp(a, 0)), x))


def test_a_long_row_is_torch_s():
    g = as_gpu(lambda a: torch.cumsum(a, 0), torch.randn(1 << 15))
    assert [s.op for s in g.schedule.steps if hasattr(s, "op")] == [torch.ops.aten.cumsum.default]


def test_added_rows_and_elements():
    x, s = torch.randn(20, 6), torch.randn(50, 6)
    i, e = torch.randint(0, 20, (50,)), torch.randint(0, 20, (50, 6))
    kernels(check_as_gpu(lambda x, s, i: x.index_add(0, i, s * 2, alpha=3), x, s, i, rtol=1e-4, atol=1e-4))
    kernels(check_as_gpu(lambda x, s, e: x.scatter_add(0, e, s.exp()), x, s, e, rtol=1e-4, atol=1e-4))
    kernels(
        check_as_gpu(
            lambda x, s, e: x.scatter_reduce(0, e, s, "sum", include_self=False), x, s, e, rtol=1e-4, atol=1e-4
        )
    )
    kernels(check_as_gpu(lambda x, i: x.index_put((i, i % 6), torch.ones(()), accumulate=True), x, i))
    kernels(check_as_gpu(lambda x, i: x.index_add(0, i, torch.ones(50, 6, dtype=torch.int64)), x.long(), i))


def test_gathered_and_added_in_one_kernel():
    x, a, b = torch.randn(20, 8), torch.randint(0, 20, (60,)), torch.randint(0, 20, (60,))
    g = check_as_gpu(lambda x, a, b: torch.zeros_like(x).index_add(0, b, x[a] * 2), x, a, b, rtol=1e-4, atol=1e-4)
    assert len(kernels(g)) == 2


def test_written_at_positions():
    x, s, i = torch.randn(20, 6), torch.randn(9, 6), torch.randperm(20)[:9]
    kernels(
        check_as_gpu(lambda x, s, i: (x.index_copy(0, i, s), x.index_put((i,), s), x.index_fill(0, i, 3.0)), x, s, i)
    )
    e = torch.rand(9, 6).argsort(1)
    kernels(check_as_gpu(lambda x, s, e: (x.scatter(1, e, s), x.scatter(1, e, 2.0)), x, s, e))


def test_gradients_of_embeddings():
    w, i = torch.randn(30, 8, requires_grad=True), torch.randint(0, 30, (5, 12))

    def f(g, i):
        return torch.ops.aten.embedding_dense_backward(g, i, 30, 3, False)

    kernels(check_as_gpu(f, torch.randn(5, 12, 8), i, rtol=1e-4, atol=1e-4))
    assert w.grad is None


@pytest.mark.parametrize(
    "f",
    [
        lambda x, s, i: x.bfloat16().index_add(0, i, s.bfloat16()),
        lambda x, s, i: x.index_reduce(0, i, s, "amax"),
        lambda x, s, i: x.to(torch.int8).index_add(0, i, s.to(torch.int8)),
    ],
)
def test_what_memory_cannot_add_is_torch_s(f):
    g = as_gpu(f, torch.randn(20, 6), torch.randn(50, 6), torch.randint(0, 20, (50,)))
    assert len([s for s in g.schedule.steps if hasattr(s, "op")]) == 1


def test_deterministic_algorithms_are_torch_s():
    torch.use_deterministic_algorithms(True)
    try:
        g = as_gpu(
            lambda x, s, i: x.index_add(0, i, s), torch.randn(20, 6), torch.randn(50, 6), torch.randint(0, 20, (50,))
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert [s.op for s in g.schedule.steps if hasattr(s, "op")] == [torch.ops.aten.index_add.default]
