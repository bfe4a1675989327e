"""Numbers read from tensors and results of unknown size under fullgraph: numbers stay in one graph, sizes part it,
branches are refused.
"""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler.errors import FullGraphError

SCALARS = {"capture_scalar_outputs": False}
SHAPES = {"capture_dynamic_output_shape_ops": False}


def sized(x, n):
    return torch.zeros(n.item()) + x.sum(), x[: n.item()] * 2


def split(x, sizes):
    return [p.sum() * 2 for p in torch.split(x + 1, sizes.tolist())]


def checked(x, n):
    k = n.item()
    torch._check_is_size(k)
    torch._check(k <= x.shape[0])
    return x.narrow(0, 0, k) + k


def scaled(x, n):
    y = x * 2
    return torch.full((int(x.sum()) % 3 + 1,), 1) * float(n) + int(n), y


def experts(x, n):
    out = torch.zeros_like(x)
    for e in range(3):
        rows = (x[:, 0].long() % 3 == e).nonzero().squeeze(1)
        out.index_add_(0, rows, x[rows] * (e + 1))
    return out


def masked(x, n):
    return x[x > n].sum() * 2, torch.unique(x).numel() + x


X = torch.arange(12.0).reshape(6, 2)


def alike(a, b):
    if isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for p, q in zip(a, b):
            alike(p, q)
    else:
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "fn,options", [(sized, SCALARS), (checked, SCALARS), (scaled, SCALARS), (experts, SHAPES), (masked, SHAPES)]
)
def test_values_differ_from_call_to_call(fn, options):
    compiled = tcompile.compile(fn, fullgraph=True)
    for n in (3, 2, 5, 1, 4, 0, 6, 3):
        alike(compiled(X + n, torch.tensor(n)), fn(X + n, torch.tensor(n)))
    with pytest.raises(FullGraphError):
        tcompile.compile(fn, fullgraph=True, options=options)(X, torch.tensor(2))


def test_split_by_sizes():
    compiled = tcompile.compile(split, fullgraph=True)
    for sizes in ([2, 4], [3, 3], [1, 5], [6, 0], [4, 2]):
        alike(compiled(X, torch.tensor(sizes)), split(X, torch.tensor(sizes)))


def test_sizes_become_symbols():
    graphs = []
    compiled = tcompile.compile(
        lambda x, n: x[: n.item()] * 2, fullgraph=True, backend=lambda gm, ex: graphs.append(gm) or gm.forward
    )
    for n in (2, 3, 4, 5, 2):
        compiled(X, torch.tensor(n))
    assert len(graphs) <= 3


def test_gradients_pass_through():
    compiled = tcompile.compile(sized, fullgraph=True)
    grads = []
    for fn in (sized, compiled):
        x = X.clone().requires_grad_()
        a, b = fn(x, torch.tensor(3))
        (a.sum() + b.sin().sum()).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_the_other_breaks_are_still_refused():
    def fn(x, n):
        if x.sum() > 0:
            return x + n.item()
        return x

    with pytest.raises(FullGraphError):
        tcompile.compile(fn, fullgraph=True, options={**SCALARS, **SHAPES})(X, torch.tensor(2))
