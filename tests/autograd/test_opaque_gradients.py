"""Custom operators whose registered backward can't be traced."""

import torch

import tcompile


@torch.library.custom_op(
    "tcompile_tests::by_groups", mutates_args=(), schema="(Tensor x, Tensor w, Tensor ends) -> Tensor"
)
def by_groups(x, w, ends):
    out = torch.zeros(x.shape[0], w.shape[2], dtype=x.dtype)
    start = 0
    for i, end in enumerate(ends.tolist()):
        out[start:end] = x[start:end] @ w[i]
        start = end
    return out


@by_groups.register_fake
def _(x, w, ends):
    return x.new_empty(x.shape[0], w.shape[2])


def setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.ends = inputs[2]


def backward(ctx, gradient):
    x, w = ctx.saved_tensors
    dx, dw = torch.zeros_like(x), torch.zeros_like(w)
    start = 0
    for i, end in enumerate(ctx.ends.tolist()):
        dx[start:end] = gradient[start:end] @ w[i].T
        dw[i] = x[start:end].T @ gradient[start:end]
        start = end
    return dx, dw, None


by_groups.register_autograd(backward, setup_context=setup)


def experts(x, w, ends):
    return (by_groups((x * 2).sin(), w, ends).relu() + 1).square().sum()


def test_only_the_operator_itself_runs_opaque():
    ends = torch.tensor([2, 2, 7])
    with tcompile.record() as r:
        compiled = tcompile.compile(experts)
        for seed in range(3):
            torch.manual_seed(seed)
            x, w = torch.randn(7, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
            y = compiled(x, w, ends)
            got = torch.autograd.grad(y, (x, w))
            want = torch.autograd.grad(experts(x, w, ends), (x, w))
            torch.testing.assert_close(got, want)
            ends = torch.tensor([1, 5, 7])  # values alone: the same graph
    report = r.report()
    assert not report.graph_breaks and not report.recompiles
    assert not report.fallbacks, "operators of other packages are called as they are"
    assert len(report.kernels) >= 3  # before it and behind it, in both passes
    assert by_groups._backward_fn is backward and by_groups._setup_context_fn is setup


def test_numbers_of_rows_that_vary_are_one_program():
    """What is registered for shapes is Python, and is asked with symbols: no number of rows is fixed."""
    with tcompile.record() as r:
        compiled = tcompile.compile(experts)
        for rows in (7, 9, 12, 5):
            x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(3, 4, 5, requires_grad=True)
            ends = torch.tensor([2, 3, rows])
            got = torch.autograd.grad(compiled(x, w, ends), (x, w))
            torch.testing.assert_close(got, torch.autograd.grad(experts(x, w, ends), (x, w)))
    assert len(r.report().recompiles) == 1


@torch.library.custom_op("tcompile_tests::halves", mutates_args=())
def halves(x: torch.Tensor) -> torch.Tensor:
    return x[: x.shape[0] // 2].clone()


@halves.register_fake
def _(x):
    return x.new_empty(int(x.shape[0]) // 2, *map(int, x.shape[1:]))


def test_shapes_that_are_asked_for_as_numbers_are_fixed():
    compiled = tcompile.compile(lambda x: halves(x * 2) + 1)
    for rows in (6, 8, 11):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), halves(x * 2) + 1)


def test_frozen_weights_ask_for_fewer_gradients():
    x, w, ends = torch.randn(7, 4, requires_grad=True), torch.randn(3, 4, 5), torch.tensor([2, 4, 7])
    got = torch.autograd.grad(tcompile.compile(experts, fullgraph=True)(x, w, ends), x)
    torch.testing.assert_close(got, torch.autograd.grad(experts(x, w, ends), x))


@torch.library.custom_op("tcompile_tests::two_ways", mutates_args=())
def two_ways(x: torch.Tensor, times: int, bias: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    return x * times + (0 if bias is None else bias), x.sign()


@two_ways.register_fake
def _(x, times, bias=None):
    return torch.empty_like(x), torch.empty_like(x)


def two_setup(ctx, inputs, output):
    x, ctx.times, bias = inputs
    ctx.biased = bias is not None
    ctx.save_for_backward(x, output[1])


def two_backward(ctx, gradient, _):
    x, sign = ctx.saved_tensors
    if x.abs().max().item() > 100:
        raise ValueError
    return gradient * ctx.times, None, gradient if ctx.biased else None


two_ways.register_autograd(two_backward, setup_context=two_setup)


def test_numbers_missing_tensors_and_gradients_that_are_passed_on():
    def f(x, bias):
        a, _ = two_ways(x.cos(), 3, bias)
        b, sign = two_ways(x, 2)
        return (a * 2 + b).sin() * sign

    x, bias = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    compiled = tcompile.compile(f, fullgraph=True)
    for _ in range(2):
        got = torch.autograd.grad(compiled(x, bias).sum(), (x, bias))
        torch.testing.assert_close(got, torch.autograd.grad(f(x, bias).sum(), (x, bias)))
