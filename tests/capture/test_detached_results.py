"""Results that lie in an input's memory: views where eager's are, plain tensors where detach() made them."""

from __future__ import annotations

import pytest
import torch

import tcompile


def detached(x):
    return x.detach()


def of_a_view(x):
    return x.view(-1).detach()


def both(x):
    d = x.detach()
    return d, d, x.view(-1), x * 2


def data(x):
    return x.data


def twice(x):
    return x.detach().detach()


def view_of_detached(x):
    return x.detach().view(-1)


def of_a_result(x):
    y = x * 2
    return y[1:].detach(), (x * 3)[0].detach(), y.detach()


@pytest.mark.parametrize("f", [detached, of_a_view, both, data, twice, of_a_result])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_what_a_result_is_to_autograd(f, grad, backend):
    x = torch.randn(3, 4, requires_grad=grad)
    fast = tcompile.compile(f, backend=backend)
    for _ in range(2):
        want, got = f(x), fast(x)
        want, got = (want, got) if isinstance(want, tuple) else ((want,), (got,))
        for a, b in zip(want, got, strict=True):
            assert (a._is_view(), a._base is x, a.requires_grad) == (b._is_view(), b._base is x, b.requires_grad)
            assert (a.data_ptr() == x.data_ptr()) == (b.data_ptr() == x.data_ptr())
            torch.testing.assert_close(b, a)
        if len(got) > 1:
            assert (got[0] is got[1]) == (want[0] is want[1])


@pytest.mark.parametrize("f", [detached, of_a_view, both, data, twice, view_of_detached])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_without_grad_mode_a_view_of_a_detached_input_requires_no_gradient(f, backend):
    x = torch.randn(3, 4, requires_grad=True)
    fast = tcompile.compile(f, backend=backend)
    with torch.no_grad():
        want, got = f(x), fast(x)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got)), strict=True):
        assert (a.requires_grad, a.data_ptr() == x.data_ptr()) == (b.requires_grad, b.data_ptr() == x.data_ptr())
        assert (a._base is x) == (b._base is x)


def test_writing_to_a_detached_result_writes_the_input():
    x = torch.zeros(3)
    fast = tcompile.compile(detached)
    for k in range(1, 3):
        fast(x).fill_(k)
        assert x.tolist() == [k] * 3


@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_a_detached_product_with_a_bias_has_no_gradient(backend):
    """Torch's addmm_out recorded its own history where gradients were on and the bias required one."""
    layer = torch.nn.Linear(3, 3)
    x = torch.arange(9.0).reshape(3, 3)
    fast = tcompile.compile(lambda x: layer(x).detach(), backend=backend)
    for _ in range(2):
        got = fast(x)
        assert not got.requires_grad and got.grad_fn is None and torch.is_grad_enabled()
        torch.testing.assert_close(got, layer(x).detach())


def only_a_leaf(x):
    return x.detach().requires_grad_()


def view_as_leaf(x):
    return x[:].requires_grad_()


def leaf_and_what_is_computed_of_it(x):
    y = x.detach().requires_grad_()
    return y, (y * y).sum()


def leaf_made_under_no_grad(x):
    with torch.no_grad():
        y = x[:]
    y.requires_grad_()
    return y, y * 3


@pytest.mark.parametrize("f", [only_a_leaf, view_as_leaf, leaf_and_what_is_computed_of_it, leaf_made_under_no_grad])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_a_leaf_that_is_made_of_an_input(f, grad, backend):
    """Such a result came out without requires_grad, and what was computed of it had no gradient."""
    fast, seen = tcompile.compile(f, backend=backend), []
    for call in (f, fast, fast):
        x = torch.arange(3.0, requires_grad=grad)
        out = call(x)
        out = out if isinstance(out, tuple) else (out,)
        out[-1].sum().backward()
        leaf = out[0] if out[0].is_leaf else None
        seen.append(
            (
                *((t.requires_grad, t.is_leaf, t._is_view()) for t in out),
                str(leaf.grad if leaf is not None else x.grad),
                str(x.grad),
            )
        )
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_writes_to_data_are_not_counted_as_changes(grad, backend):
    def f(x):
        return x.data, x.detach(), x.data[1:]

    fast = tcompile.compile(f, backend=backend)
    for _ in range(2):
        for k in range(3):
            versions = []
            for call in (f, fast):
                x = torch.zeros(3, requires_grad=grad)
                out = call(x)
                out[k].add_(1)
                versions.append(([t._version for t in (x, *out)], x.tolist()))
            assert versions[0] == versions[1]
