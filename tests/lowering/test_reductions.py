"""Reductions, softmax, norms and losses against eager."""

import pytest
import torch
import torch.nn.functional as F

from .helper import check, externs, kernels

REDUCTIONS = [
    lambda x, d, k: x.sum(d, keepdim=k),
    lambda x, d, k: x.mean(d, keepdim=k),
    lambda x, d, k: x.amax(d, keepdim=k),
    lambda x, d, k: x.amin(d, keepdim=k),
    lambda x, d, k: (x > 0).any(d, keepdim=k),
    lambda x, d, k: (x > -9).all(d, keepdim=k),
    lambda x, d, k: x.argmax(d, keepdim=k),
    lambda x, d, k: x.argmin(d, keepdim=k),
    lambda x, d, k: x.prod(d, keepdim=k),
    lambda x, d, k: x.max(d, keepdim=k)[1],
    lambda x, d, k: x.min(d, keepdim=k)[0],
    lambda x, d, k: x.var(d, keepdim=k),
    lambda x, d, k: x.std(d, correction=0, keepdim=k),
    lambda x, d, k: torch.var_mean(x, d, keepdim=k),
    lambda x, d, k: torch.logsumexp(x, d, keepdim=k),
    lambda x, d, k: torch.linalg.vector_norm(x, dim=d, keepdim=k),
    lambda x, d, k: torch.linalg.vector_norm(x, 3, dim=d, keepdim=k),
    lambda x, d, k: x.norm(1, dim=d, keepdim=k),
    lambda x, d, k: x.aminmax(dim=d, keepdim=k),
    lambda x, d, k: x.nansum(d, keepdim=k),
    lambda x, d, k: x.sum(d, keepdim=k, dtype=torch.float64),
]


@pytest.mark.parametrize("f", REDUCTIONS)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_one_dimension(f, dim, keep):
    torch.manual_seed(0)
    s = check(lambda x: f(x, dim, keep), torch.randn(3, 4, 5), n_externs=0)
    assert len(kernels(s)) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.sum(),
        lambda x: x.mean(),
        lambda x: x.max(),
        lambda x: x.min(),
        lambda x: x.argmax(),
        lambda x: x.sum((0, 2)),
        lambda x: x.mean((1, 2)),
        lambda x: x.var(),
        lambda x: x.std((0, 1)),
        lambda x: x.amax((0, 2), True),
        lambda x: (x > 0).all(),
        lambda x: x.prod(),
        lambda x: x.norm(),
        lambda x: x.transpose(0, 2).sum(1),
        lambda x: x.permute(1, 2, 0).argmax(),
        lambda x: x[:, ::2].sum(1),
        lambda x: x.sum(1).sum(),
        lambda x: x.amax(),
    ],
)
def test_many_dimensions(f):
    torch.manual_seed(0)
    check(f, torch.randn(3, 4, 5), n_externs=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_dtypes(dtype):
    x = (torch.arange(60).reshape(3, 20) % 7).to(dtype)
    check(lambda x: x.sum(1), x, n_externs=0)
    check(lambda x: (x.amax(1), x.any(1), x.sum()), x, n_externs=0)
    check(lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True), x[:0].logsumexp(0)), x, n_externs=0)
    if dtype.is_floating_point:
        check(lambda x: (x.mean(1), x.var(1), torch.softmax(x, 1), x.argmax(0)), x, n_externs=0, atol=2e-2, rtol=2e-2)


def test_nan_wins_and_ties_go_first():
    x = torch.tensor([[1.0, float("nan"), 3.0], [2.0, 2.0, 1.0]])
    check(lambda x: (x.amax(1), x.argmax(1), x.amin(1), x.argmin(1), x.max(1)), x)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1,), ()])
def test_empty_and_tiny(shape):
    x = torch.randn(shape)
    check(lambda x: (x.sum(), x.sum(-1), x.prod(), (x > 0).any(), (x > 0).all(-1)), x, n_externs=0)
    check(lambda x: torch.softmax(x, -1), x, n_externs=0)
    check(lambda x: x.mean(-1), x, n_externs=0)


def test_few_long_sums_are_split():
    x = torch.rand(3, 40000)
    s = check(lambda x: x.sum(1), x, n_kernels=2)
    assert kernels(s)[0].outer[0].size == 75  # 25 parts of each of 3 sums
    check(lambda x: (x * 2 + 1).amax(1), x, n_kernels=2)
    check(lambda x: x.var(1), x)
    check(lambda x: x.reshape(-1).mean(), x, n_kernels=1)
    check(lambda x: x.sum((0, 1), keepdim=True), x, n_kernels=1)


SOFTMAX = [
    lambda x, d: torch.softmax(x, d),
    lambda x, d: torch.log_softmax(x, d),
    lambda x, d: torch.softmax(x * 2 + 1, d) * 3,
    lambda x, d: torch.softmax(x.float(), d).to(x.dtype),
    lambda x, d: F.softmin(x, d),
]


@pytest.mark.parametrize("f", SOFTMAX)
@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_softmax_is_one_kernel(f, dim):
    check(lambda x: f(x, dim), torch.randn(3, 4, 5), n_kernels=1, n_externs=0)


def test_norms_are_one_kernel():
    torch.manual_seed(0)
    x, w, b = torch.randn(4, 6, 8), torch.randn(8), torch.randn(8)
    check(lambda x, w, b: F.layer_norm(x, (8,), w, b), x, w, b, n_kernels=1)
    check(lambda x: F.layer_norm(x, (6, 8)), x, n_kernels=1)
    check(
        lambda x, w, b: F.layer_norm(x.bfloat16(), (8,), w.bfloat16(), b.bfloat16()),
        x,
        w,
        b,
        n_kernels=1,
        atol=2e-2,
        rtol=2e-2,
    )
    check(lambda x, w, b: F.gelu(F.layer_norm(x + 1, (8,), w, b)), x, w, b, n_kernels=1)
    check(lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, x, w, n_kernels=1)
    img, cw, cb = torch.randn(2, 6, 4, 4), torch.randn(6), torch.randn(6)
    check(lambda x, w, b: F.group_norm(x, 3, w, b), img, cw, cb)
    check(lambda x, w, b: F.group_norm(x.transpose(2, 3), 3, w, b), img, cw, cb)  # as attention in images does
    check(lambda x, w, b: F.group_norm(x.flatten(2).permute(2, 1, 0)[:, :, 0], 3, w, b), img, cw, cb)
    check(lambda x, w, b: F.batch_norm(x, w, w.abs(), w, b, False), img, cw, cb, n_kernels=2)
    check(
        lambda x, w, b: F.relu(F.batch_norm(x, w, w.abs(), None, None, False)),
        img.to(memory_format=torch.channels_last),
        cw,
        cb,
        n_kernels=2,
    )

    def batch_norm_by_hand(x):
        m = x.mean((0, 2, 3), keepdim=True)
        return (x - m) / (x.var((0, 2, 3), keepdim=True, correction=0) + 1e-5).sqrt()

    check(batch_norm_by_hand, img)


def test_losses():
    torch.manual_seed(0)
    x, t = torch.randn(6, 9), torch.randint(0, 9, (6,))
    check(lambda x, t: F.cross_entropy(x, t), x, t)
    check(lambda x, t: F.cross_entropy(x, t, reduction="sum"), x, t)
    check(lambda x, t: F.cross_entropy(x, t, reduction="none", ignore_index=3), x, t)
    check(lambda x, t: F.cross_entropy(x, t, weight=torch.arange(9.0)), x, t)
    check(lambda x, t: F.mse_loss(x, x * 2), x, t, n_kernels=1)
    check(lambda x, t: F.binary_cross_entropy_with_logits(x, (x > 0).float()), x, t)
    check(lambda x, t: F.kl_div(torch.log_softmax(x, 1), torch.softmax(x, 1), reduction="batchmean"), x, t)


def test_no_rule_is_an_extern_with_a_reason():
    s = check(lambda x: torch.sort(x, 1)[0] * 2, torch.randn(3, 4))
    assert [e for e in externs(s)] == ["aten.sort.default"]


def test_fallbacks_are_counted_and_stated():
    from tcompile.compiler import events

    from .helper import aten_graph, lower

    heard = []
    with events.listen(lambda e: heard.append((e.kind, e.facts))):
        g = lower(aten_graph(lambda x: torch.igamma(x, x) + torch.igamma(x, x + 1), torch.rand(4) + 1), {})
    assert g.fallbacks == {"aten.igamma.default": 2}
    assert [(k, f["what"], f["count"]) for k, f in heard if k == "fallback"] == [("fallback", "aten.igamma.default", 2)]
