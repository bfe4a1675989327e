"""Views, aliases, in-place writes and layouts: gradients as eager's."""

from __future__ import annotations

import pytest
import torch

import tcompile

from .harness import Programs, check, leaf, randn

program = Programs()


@program
def view_out(compiled):
    x = leaf(4, 6)
    f = compiled(lambda x: x.view(2, 12))
    y = f(x)
    (y * randn(2, 12)).sum().backward()
    return (y, x.grad)


@program
def view_and_loss(compiled):
    x = leaf(4, 6)
    w = leaf(6, 6)
    f = compiled(lambda x, w: (x[1], (x @ w).sum()))
    y, loss = f(x, w)
    (loss + y.sum()).backward()
    return (y, loss, x.grad, w.grad)


@program
def chunks(compiled):
    x = leaf(4, 6)
    w = leaf(6, 6)
    f = compiled(lambda x, w: (x @ w).chunk(3, -1))
    a, b, d = f(x, w)
    (a * b + d).sum().backward()
    return (a, b, d, x.grad, w.grad)


@program
def chunks_one_used(compiled):
    x = leaf(4, 6)
    w = leaf(6, 6)
    u = leaf(6)
    f = compiled(lambda x, w, u: ((x @ w).chunk(3, -1), x * u))
    (a, b, d), e = f(x, w, u)
    a.sum().backward()
    return (a, b, d, x.grad, w.grad, u.grad)


@program
def unused_output_none_grad(compiled):
    x = leaf(4, 6)
    w = leaf(6, 6)
    u = leaf(6)
    f = compiled(lambda x, w, u: ((x @ w).sum(), x * u))
    loss, e = f(x, w, u)
    loss.backward()
    return (x.grad, w.grad, u.grad)


@program
def unused_output_inf(compiled):
    x = torch.zeros(4, requires_grad=True)
    f = compiled(lambda x: ((x * 3).sum(), x.log(), x.sqrt()))
    loss, e, s = f(x)
    loss.backward()
    return x.grad


@program
def inplace_nonleaf_input(compiled):
    x = leaf(4, 6)

    def g(h):
        h.mul_(2)
        return h.sin()

    h = x + 1
    y = compiled(g)(h)
    (y.sum() + h.sum()).backward()
    return (y, h, x.grad)


@program
def inplace_view_of_nonleaf_input(compiled):
    x = leaf(4, 6)

    def g(h):
        h[0].mul_(2)
        h[:, 1].relu_()
        return h.sin()

    h = x + 1
    y = compiled(g)(h)
    (y.sum() + h.sum()).backward()
    return (y, h, x.grad)


@program.breaks
def inplace_leaf_error(compiled):
    x = leaf(4, 6)

    def g(h):
        h.mul_(2)
        return h.sin()

    return compiled(g)(x)


@program
def inplace_leaf_nograd(compiled):
    x = leaf(4, 6)

    def g(h):
        with torch.no_grad():
            h.mul_(2)
        return h.sin()

    y = compiled(g)(x)
    y.sum().backward()
    return (y, x, x.grad)


@program
def inplace_buffer_from_grad(compiled):
    x = leaf(4, 6)
    b = torch.zeros(6)

    def g(x, b):
        y = x * 2
        b.add_(y.detach().sum(0))
        return y.sin()

    y = compiled(g)(x, b)
    y.sum().backward()
    return (y, b, x.grad)


@program
def inplace_buffer_gets_grad(compiled):
    x = leaf(4, 6)
    b = torch.zeros(6)

    def g(x, b):
        b.add_((x * 2).sum(0))
        return x.sin()

    y = compiled(g)(x, b)
    (y.sum() + (b * b).sum()).backward()
    return (y, b, x.grad)


@program
def setitem_buffer_gets_grad(compiled):
    x = leaf(4, 6)
    b = torch.zeros(4, 12)

    def g(x, b):
        b[:, 2:8] = x * 2
        return b

    y = compiled(g)(x, b)
    (y * y).sum().backward()
    return (y, b, x.grad, y is b)


@program
def alias_args(compiled):
    x = leaf(4, 6)
    f = compiled(lambda a, b: (a * b).sin())
    y = f(x, x)
    y.sum().backward()
    g1 = x.grad.clone()
    z = leaf(4, 6)
    y2 = f(x, z)
    y2.sum().backward()
    return (y, g1, x.grad, z.grad, y2)


@program
def alias_args_views(compiled):
    x = leaf(8, 6)
    f = compiled(lambda a, b: (a * b).sin())
    y = f(x[:4], x[2:6])
    y.sum().backward()
    return (y, x.grad)


@program.breaks
def alias_mutated(compiled):
    x = randn(8)
    w = leaf(4)

    def g(a, b, w):
        a.mul_(2)
        return (b * w).sum()

    y = compiled(g)(x[:4], x[2:6], w)
    y.backward()
    return (y, x, w.grad)


@program
def output_is_input(compiled):
    x = leaf(4)
    f = compiled(lambda x: (x, x * 2, x.detach()))
    a, b, d = f(x)
    (a + b).sum().backward()
    return (a is x, b, d, x.grad)


@program
def same_output_twice(compiled):
    x = leaf(4)

    def g(x):
        y = x.exp()
        return (y, y, y.view(2, 2), y.detach())

    a, b, v, d = compiled(g)(x)
    (a + b).sum().backward()
    return (a is b, a, v, d, d.data_ptr() == a.data_ptr(), v.data_ptr() == a.data_ptr(), x.grad)


@program
def out_inplace_after(compiled):
    x = leaf(4)
    y = compiled(lambda x: x * 2 + 1)(x)
    y.add_(1)
    y.mul_(3)
    y.sum().backward()
    return (y, x.grad)


@program
def out_view_inplace_after(compiled):
    x = leaf(4)
    y = compiled(lambda x: (x * 2 + 1).view(2, 2))(x)
    y.add_(1)
    y.mul_(3)
    y.sum().backward()
    return (y, x.grad)


@program
def out_views_inplace_after(compiled):
    x = leaf(4)

    def g(x):
        y = x * 2
        return (y, y.view(2, 2))

    a, v = compiled(g)(x)
    v.add_(1)
    v.mul_(3)
    (a * a).sum().backward()
    return (a, v, x.grad)


@program
def input_saved_inplace_after(compiled):
    x = leaf(4)
    z = randn(4)
    y = compiled(lambda x, z: x * z)(x, z)
    z.add_(1)
    y.sum().backward()
    return (y, x.grad)


@program
def input_unsaved_inplace_after(compiled):
    x = leaf(4)
    z = randn(4)
    y = compiled(lambda x, z: torch.relu(x + z))(x, z)
    z.add_(1)
    y.sum().backward()
    return (y, x.grad)


@program
def nograd_inside(compiled):
    x = leaf(4)

    def g(x):
        with torch.no_grad():
            a = x.exp()
        b = x * a
        return (a, b, b.detach())

    a, b, d = compiled(g)(x)
    b.sum().backward()
    return (a, b, d, x.grad)


@program.breaks
def conj_tangent(compiled):
    x = torch.randn(4, dtype=torch.cfloat, requires_grad=True)
    y = compiled(lambda x: x * x * 2)(x)
    z = y.conj() * randn(4)
    (z.real + z.imag * 2).sum().backward()
    return (y, x.grad)


@program.breaks
def neg_tangent(compiled):
    x = torch.randn(4, dtype=torch.cfloat, requires_grad=True)
    y = compiled(lambda x: x * x * 2)(x)
    z = y.conj().imag
    (z * randn(4)).sum().backward()
    return (y, x.grad)


@program.breaks
def conj_tangent_direct(compiled):
    x = torch.randn(4, dtype=torch.cfloat, requires_grad=True)
    y = compiled(lambda x: x * x * 2)(x)
    y.backward(torch.randn(4, dtype=torch.cfloat).conj())
    return (y, x.grad)


@program
def neg_tangent_direct(compiled):
    x = leaf(4)
    t = torch.randn(4, dtype=torch.cfloat).conj().imag
    assert t.is_neg()
    y = compiled(lambda x: x * x * 2)(x)
    y.backward(t)
    return (y, x.grad)


@program
def expanded_tangent(compiled):
    x = leaf(4, 3)
    y = compiled(lambda x: x * x * 2)(x)
    y.sum().backward()
    g = x.grad.clone()
    y = compiled(lambda x: x + 1)(x)
    y.backward(randn(3, 4).t())
    return (g, x.grad)


@program
def expanded_input(compiled):
    x = leaf(1, 3)
    y = compiled(lambda x: x * x * 2)(x.expand(4, 3))
    y.sum().backward()
    return (y, x.grad)


@program
def grad_strides(compiled):
    x = torch.randn(3, 4).t().requires_grad_()
    w = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    z = torch.randn(3, 4).t().requires_grad_()
    y = compiled(lambda x, w, z: (x * 2).sum() + (w.sin() * w).sum() + (z.t() @ x).sum())(x, w, z)
    y.backward()
    return (x.grad, w.grad, z.grad)


@program
def nonfloat_outputs(compiled):
    x = leaf(4, 5)

    def g(x):
        v, i = x.topk(2)
        m = x > 0
        return (v, i, m, x.argmax(), x.size(0), None)

    v, i, m, a, s, n = compiled(g)(x)
    v.sum().backward()
    return (v, i, m, a, s, n, x.grad)


@program
def no_output_needs_grad(compiled):
    x = leaf(4)
    y = compiled(lambda x: x.detach() * 2)(x)
    return (y, x.grad)


@program
def list_dict_outputs(compiled):
    x = leaf(4)
    y = compiled(lambda x: {"a": x * 2, "b": [x.sin(), (x.cos(), 3)]})(x)
    (y["a"] + y["b"][1][0]).sum().backward()
    return (y, x.grad)


@program
def leaf_view_out_of_nograd(compiled):
    x = leaf(4, 2)

    def g(x):
        with torch.no_grad():
            v = x.view(-1)
        return (v, x.sum())

    v, s = compiled(g)(x)
    s.backward()
    return (v, v._base is x, x.grad)


@program
def detached_view_mutation(compiled):
    x = leaf(4)

    def g(x):
        y = x * 2
        y.detach().add_(1)
        return (y, y.sum())

    y, s = compiled(g)(x)
    (s + y.sum()).backward()
    return (y, s, x.grad)


@program
def zero_dim_and_empty(compiled):
    x = leaf(0, 3)
    s = torch.randn(()).requires_grad_()
    y = compiled(lambda x, s: (x * s).sum() + s.sin())(x, s)
    y.backward()
    return (y, x.grad, s.grad)


@program
def version_bumps(compiled):
    x = leaf(4)
    b = torch.zeros(4)

    def g(x, b):
        b.add_(1)
        return x * 2 + b

    v = b._version
    y = compiled(g)(x, b)
    y.sum().backward()
    return (y, b, b._version > v)


@program
def grad_fn_exists(compiled):
    x = leaf(4)
    y = compiled(lambda x: x * 2)(x)
    return (y.grad_fn is not None, y.is_leaf, y._version)


@program
def write_into_a_fresh_result(compiled):
    """What the graph made without gradient is a plain tensor afterwards: a mixture of experts adds into such zeros."""
    x, w = randn(6, 8), leaf(8, 8)
    out, p = compiled(lambda x: (torch.zeros_like(x), (x @ w).softmax(-1)))(x)
    out.index_add_(0, torch.tensor([1, 2]), p[:2])
    out.sum().backward()
    return (out, w.grad)


@program
def write_into_a_view_without_gradient(compiled):
    """The base that is a result too has the history of what is written into its part."""
    x, w = randn(6, 8), leaf(4, 8)

    def f(x):
        y = x * 2
        return y[1:5], y, (x @ w.t()).sum()

    part, y, loss = compiled(f)(x)
    part.add_(w)
    (loss + y.sum() + part.prod(0).sum()).backward()
    return (part, y, w.grad)


@program
def write_into_overlapping_views_of_a_hidden_base(compiled):
    x, w = randn(6, 8), leaf(3, 8)

    def f(x):
        y = x * 2
        return y[0:3], y[2:5], (x @ w.t()).sum()

    a, b, loss = compiled(f)(x)
    b.mul_(w)
    (loss + (a * b).sum()).backward()
    return (a, b, w.grad)


@program
def write_into_views_where_nothing_has_a_gradient_yet(compiled):
    x, w = randn(6, 8), leaf(5, 8)

    def f(x):
        y = x @ torch.ones(8, 8)
        return y[1:], y, y.t().contiguous().t()

    a, y, c = compiled(f)(x)
    a.add_(w)
    c.mul_(w[:1])
    (y * c).sum().backward()
    return (a, y, c, w.grad)


@program
def write_into_a_view_of_an_input_without_gradient(compiled):
    x, w = randn(6, 8), leaf(5, 8)
    part, loss = compiled(lambda x: (x[1:], (x @ w.t()).sum()))(x)
    part.add_(w)
    (x * x).sum().backward()
    return (part, x, w.grad)


@program
def view_of_an_input_beside_a_product_without_gradient(compiled):
    x, w = leaf(4, 6), randn(6, 6)
    v, part, p = compiled(lambda x: (x.view(2, 12), x.unbind(0)[1], w @ w))(x)
    (v.sum() * part.sum()).backward()
    return (v, part, p, x.grad)


@program
def detached_views_of_an_input_that_requires_grad(compiled):
    x, w = leaf(4, 6), randn(6, 6)

    def f(x):
        with torch.no_grad():
            v = x[1:]
        return v, x.detach()[2:], w @ w

    v, d, p = compiled(f)(x)
    return (v, d, p, v.requires_grad, d.requires_grad)


@program.breaks
def detached_alias_of_an_input_with_a_gradient(compiled):
    w = leaf(4, 4)

    def f(w):
        t = w.detach()
        t.mul_(w.mean())
        return t

    t = compiled(f)(w)
    t.sin().sum().backward()
    return t, w.grad


@program
def input_that_a_write_made_require_grad(compiled):
    x, w = randn(2, 2), leaf(2, 2)

    def f(x, w):
        x.copy_(x.exp())
        t = x * 2
        x.add_(w.sum())
        return x, t

    x, t = compiled(f)(x, w * 1.5)
    x.sin().sum().backward()
    return x, t, t.requires_grad, w.grad


@program
def input_read_before_it_is_written(compiled):
    x, w = randn(4, 4), leaf(4, 4)

    def f(x, w):
        x.mul_(w.mean())
        return x.exp().tanh()[1:].tanh()

    t = compiled(f)(x, w * 1.5)
    t.sum().backward()
    return x, t, w.grad


@pytest.mark.parametrize(("run", "whole"), program.params)
def test_like_eager(run, whole):
    check(run, quiet=whole)


@pytest.mark.parametrize("backend", ["aot_eager", "tcompile"])
def test_gradient_of_a_filled_diagonal_whose_sum_lies_transposed(backend):
    def f(x):
        y = x.clone().fill_diagonal_(1)
        return torch.cat([y, y], -2).mT.contiguous()[:, :-5], x[:, 7:] * 1

    grads = []
    for fn in (f, tcompile.compile(f, backend=backend)):
        x = torch.arange(56.0).reshape(7, 8).requires_grad_()
        sum(t.sum() for t in fn(x)).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "windows",
    [
        lambda x: (x * 2).unfold(0, 2, 1),
        lambda x: (x * 2).unfold(0, 3, 2),
        lambda x: (x * 2).as_strided((2, 3), (1, 1)),
        lambda x: (x * 2).expand(3, -1),
        lambda x: (x * 2, (x * 3).unfold(0, 3, 1))[1],
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", "tcompile"])
def test_gradients_of_results_whose_elements_share_memory(windows, backend, dynamic):
    """Each element of the gradient that comes in has a place of its own, whatever the result's have."""
    compiled = tcompile.compile(windows, backend=backend, dynamic=dynamic)
    for n in (7, 9):
        found = []
        for fn in (windows, compiled):
            x = torch.arange(float(n), requires_grad=True)
            y = fn(x)
            y.backward(torch.arange(float(y.numel())).reshape(y.shape) ** 2)
            found.append(x.grad)
        assert torch.equal(*found)
