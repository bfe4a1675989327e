"""Numbers that vary where torch's kernels take constants: eager's results and gradients, and no entry for each
value.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tcompile

G = torch.Generator().manual_seed(0)
X = torch.cat([torch.randn(5, 6, generator=G), torch.tensor([[0.0, -0.0, 0.25, -0.25, 90.0, -90.0]])])
Q = torch.randn(2, 3, 4, 8, generator=G)
INDEX = torch.tensor([[0, 1], [2, 3]])
SCALES = (0.25, 0.4, 0.55, 0.7, 0.9)

OF_FLOATS = {
    "leaky_relu": lambda x, s: F.leaky_relu(x, s),
    "elu": lambda x, s: F.elu(x, s),
    "celu": lambda x, s: F.celu(x, s),
    "softplus": lambda x, s: F.softplus(x, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -1.0, s),
    "threshold": lambda x, s: F.threshold(x, s, s * 3),
    "softshrink": lambda x, s: F.softshrink(x, s),
    "hardshrink": lambda x, s: F.hardshrink(x, s),
    "logit": lambda x, s: torch.logit(x.sigmoid(), s),
    "nan_to_num": lambda x, s: (x / x * x.exp().exp()).nan_to_num(s, posinf=s * 2),
    "isclose": lambda x, s: torch.isclose(x, x + 0.5, s, s),
    "rsub": lambda x, s: torch.rsub(x, s),
    "scatter": lambda x, s: x.scatter(1, INDEX, s),
    "pad": lambda x, s: F.pad(x, (1, 2), value=s),
    "addmm": lambda x, s: torch.addmm(x[0], x, x, beta=s, alpha=s * 2),
    "addmv": lambda x, s: torch.addmv(x[0], x, x[1], alpha=s),
    "addr": lambda x, s: torch.addr(x, x[0], x[1], beta=s),
    "index_add": lambda x, s: x.index_add(0, INDEX[0], x[:2], alpha=s),
    "attention": lambda x, s: F.scaled_dot_product_attention(Q * x[0, 0], Q, Q, scale=s, is_causal=True),
    "layer_norm": lambda x, s: F.layer_norm(x, (6,), x[0], x[1], s),
    "rms_norm": lambda x, s: F.rms_norm(x, (6,), x[0], s),
    "batch_norm": lambda x, s: F.batch_norm(x, x[0].detach(), x[1].detach().abs(), x[2], eps=s),
    "huber_loss": lambda x, s: F.huber_loss(x, x.detach() * 1.5, delta=s),
    "smooth_l1_loss": lambda x, s: F.smooth_l1_loss(x, x.detach() * 1.5, reduction="none", beta=s),
    "normalize": lambda x, s: F.normalize(x, eps=s),
    "linspace": lambda x, s: x[0] * torch.linspace(s, 2, 6),
    "xlogy": lambda x, s: torch.xlogy(x.abs(), s),
    "copysign": lambda x, s: torch.copysign(x, s - 0.5),
}
OF_INTS = {
    "diagonal": lambda x, n: x.diagonal(n) * 2,
    "diagonal_below": lambda x, n: torch.diagonal(x, -n, 1, 0) * 2,
    "diag": lambda x, n: x.diag(n),
    "diag_of_row": lambda x, n: x[0].diag(n),
    "diag_embed": lambda x, n: torch.diag_embed(x, -n),
    "linspace": lambda x, n: torch.linspace(0, 1, n),
    "linspace_end": lambda x, n: torch.linspace(-1, n, 5),
    "linspace_double": lambda x, n: torch.linspace(0, 1, steps=n, dtype=torch.float64),
}


def gradient(f, x, s):
    x = x.clone().requires_grad_()
    y = f(x, s)
    return torch.autograd.grad(y.sum(), x)[0] if y.requires_grad else None


@pytest.mark.parametrize(
    "f", [lambda x, s: F.softplus(x, s, 0.5), lambda x, s: F.elu(x - 0.5, s), lambda x, s: F.celu(x - 0.5, s)]
)
def test_gradients_where_two_branches_meet(f):
    x = torch.tensor([0.5, 0.0, -0.5, 1.0])
    compiled = tcompile.compile(f, backend="aot_eager", fullgraph=True)
    for s in (2.0, 1.0, 0.5, 0.25):
        torch.testing.assert_close(gradient(compiled, x, s), gradient(f, x, s))


@pytest.mark.parametrize("name", OF_FLOATS)
def test_floats(name):
    f = OF_FLOATS[name]
    compiled = tcompile.compile(f, backend="aot_eager", fullgraph=True)
    for s in SCALES:
        torch.testing.assert_close(compiled(X, s), f(X, s), equal_nan=True)
    assert len(compiled.cache.entries) == 2
    for s in SCALES[:3]:
        torch.testing.assert_close(gradient(compiled, X, s), gradient(f, X, s), equal_nan=True)


@pytest.mark.parametrize(
    "name",
    [
        "leaky_relu",
        "elu",
        "softplus",
        "hardtanh",
        "softshrink",
        "layer_norm",
        "huber_loss",
        "pad",
        "attention",
        "addmm",
    ],
)
def test_floats_with_narrow_types(name):
    f = OF_FLOATS[name]
    compiled = tcompile.compile(f, backend="aot_eager")
    x = X[:5].bfloat16()
    for s in SCALES[:3]:
        try:
            want = f(x, s)
        except RuntimeError as e:  # attention: dtypes differ
            with pytest.raises(type(e)):
                compiled(x, s)
        else:
            torch.testing.assert_close(compiled(x, s), want)


@pytest.mark.parametrize("name", OF_INTS)
def test_ints(name):
    f = OF_INTS[name]
    compiled = tcompile.compile(f, backend="aot_eager", fullgraph=True)
    for n in (2, 3, 4, 5, 1, 0, 9):
        torch.testing.assert_close(compiled(X, n), f(X, n))
        assert compiled(X, n).stride() == f(X, n).stride()
    assert len(compiled.cache.entries) <= 6  # 0 and 1, a diagonal of one element, an empty one
    before = len(compiled.cache.entries)
    compiled(X, 3), compiled(X, 4)
    assert len(compiled.cache.entries) == before


@pytest.mark.parametrize(
    "f, good, bad",
    [
        (lambda x, s: F.softshrink(x, s), (0.5, 0.6, 0.7), -1.0),
        (lambda x, s: F.smooth_l1_loss(x, x + 1, beta=s), (0.5, 0.6, 0.7), -1.0),
        (lambda x, s: F.huber_loss(x, x + 1, delta=s), (0.5, 0.6, 0.7), 0.0),
        (lambda x, s: F.hardtanh(x, 0.0, s), (0.5, 0.6, 0.7), -1.0),
        (lambda x, s: torch.logit(x.sigmoid(), s), (0.1, 0.2, 0.3), -1.0),
        (lambda x, s: torch.addmm(x, x, x, beta=s), (0.1, 0.2, 0.3), 0.0),
        (lambda x, s: F.leaky_relu(x.long(), s), (0.1,), 0.2),
        (lambda x, s: torch.addmm(x[None], x, x, beta=s), (0.1,), 0.2),
        (lambda x, s: F.layer_norm(x, (5,), eps=s), (0.1,), 0.2),
        (lambda x, s: F.celu(x, s), (0.5, 0.6), 0.0),
        (lambda x, s: x.diagonal(s), (1, 2, 3), -8),
    ],
)
def test_numbers_that_are_refused_or_mean_something_else(f, good, bad):
    compiled = tcompile.compile(f, backend="eager")
    x = torch.full_like(X, float("nan")) if bad == 0.0 else X
    for s in (*good, bad, *good):
        seen = []
        for fn in (f, compiled):
            try:
                seen.append(fn(x, s))
            except Exception as e:
                seen.append((type(e), str(e).splitlines()[0]))
        if isinstance(seen[0], torch.Tensor):
            torch.testing.assert_close(seen[1], seen[0], equal_nan=True)
        else:
            assert seen[1] == seen[0]


def written_by_steps(x, n):
    y = x.clone()
    y[::n] = 0
    y[:, 1::n] += 2
    return y


@pytest.mark.parametrize(
    "f",
    [
        lambda x, n: x[1::n, ::n] + 1,
        lambda x, n: (x[:, 1:7:n] * 2).exp().cumsum(0),
        lambda x, n: x[::n].T @ x[::n],
        written_by_steps,
    ],
)
def test_steps_of_slices(f):
    compiled = tcompile.compile(f)
    for n in (2, 3, 4, 5, 9, 1, 0, -1, 3):
        try:
            want = f(X, n)
        except ValueError as e:
            with pytest.raises(ValueError, match=str(e)):
                compiled(X, n)
            continue
        torch.testing.assert_close(compiled(X, n), want)
        assert compiled(X, n).stride() == want.stride()
        if n in (3, 4):
            torch.testing.assert_close(gradient(compiled, X, n), gradient(f, X, n))
    calm = tcompile.compile(f, backend="eager")
    for n in (2, 3, 4):  # (5 leaves one column)
        calm(X, n)
    assert len(calm.cache.entries) == 2


def test_a_step_divided_by_what_symbols_make():
    def f(x, n, k):
        return x[1:, :: k * k // (k ^ n)].sum(0)

    compiled = tcompile.compile(f, dynamic=True)
    for n, k in ((5, 6), (7, 9), (4, 6)):
        torch.testing.assert_close(compiled(X, n, k), f(X, n, k))
