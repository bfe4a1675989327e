"""Several backward passes through what one compiled call returned: what they free, what they reach, what they raise is
eager's.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .harness import Programs, check, leaf, randn

program = Programs()


def second(run):
    """What a backward pass says: nothing, or that it came a second time."""
    try:
        run()
    except RuntimeError as e:
        return "second time" in str(e) or str(e)
    return None


@program
def independent_results(compiled):
    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: (x.sin(), y.cos() * y))(x, y)
    a.sum().backward()
    only_x = (x.grad.clone(), y.grad)
    b.sum().backward()
    return only_x, x.grad, y.grad, second(a.sum().backward), second(b.sum().backward)


@program
def results_that_meet_in_a_leaf(compiled):
    w, x = leaf(4, 4), randn(3, 4)
    a, b = compiled(lambda x, w: ((x @ w).tanh().sum(), (x * 2 @ w).sigmoid().sum()))(x, w)
    b.backward()
    first = w.grad.clone()
    a.backward()
    return first, w.grad


def that_meet(x):
    h = x.exp()
    return (h * 2).sum(), h.sin().sum()


@program
def results_that_meet_in_saved_values(compiled):
    x = leaf(4)
    a, b = compiled(that_meet)(x)
    a.backward()
    return x.grad, second(b.backward)


@program
def retained_for_the_second(compiled):
    x = leaf(4)
    a, b = compiled(that_meet)(x)
    a.backward(retain_graph=True)
    b.backward()
    return x.grad, second(a.backward)


@program
def both_at_once(compiled):
    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: (x.sin() * y, y.cos()))(x, y)
    (a.sum() * 2 + b.sum()).backward()
    return x.grad, y.grad


@program
def history_of_the_other_input_stays(compiled):
    x, y = leaf(4), leaf(4)
    u, v = x.exp(), y.exp()
    a, b = compiled(lambda u, v: (u.sin(), v.cos()))(u, v)
    a.sum().backward()
    v.sum().backward(retain_graph=True)
    b.sum().backward()
    return x.grad, y.grad, second(u.sum().backward)


@program
def gan(compiled):
    d, g = (
        nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)),
    )
    od, og = torch.optim.SGD(d.parameters(), 0.1), torch.optim.SGD(g.parameters(), 0.1)
    bce = nn.BCEWithLogitsLoss()

    def losses(z, real):
        fake = g(z)
        d_loss = bce(d(real), torch.ones(6, 1)) + bce(d(fake.detach()), torch.zeros(6, 1))
        return d_loss, bce(d(fake), torch.ones(6, 1)), fake

    f, out = compiled(losses), []
    for _ in range(3):
        z, real = randn(6, 3), randn(6, 4)
        d_loss, g_loss, fake = f(z, real)
        od.zero_grad()
        og.zero_grad()
        g_loss.backward()
        og.step()
        od.zero_grad()
        d_loss.backward()
        od.step()
        out += [d_loss, g_loss, fake]
    return out, list(d.parameters()), list(g.parameters())


@program
def weights_changed_between(compiled):
    w, v = leaf(4, 4), leaf(4)
    a, b = compiled(lambda x, w, v: ((x @ w * v).sum(), (x @ w.sin()).sum()))(randn(3, 4), w, v)
    a.backward()
    with torch.no_grad():
        w.add_(1)
    return w.grad.clone(), isinstance(second(b.backward), str)


@program
def several_results_of_each_part(compiled):
    x, y = leaf(4, 4), leaf(4, 4)

    def f(x, y):
        h, k = x @ x, y @ y
        return h, h.sin(), k, k.cos(), x.t(), y.detach()

    r = compiled(f)(x, y)
    (r[0] * r[1]).sum().backward()
    first = x.grad.clone(), y.grad
    (r[2].sum() + r[3].exp().sum()).backward()
    return first, x.grad, y.grad, [t.requires_grad for t in r]


@program
def hooks_and_retained_gradients(compiled):
    x, y, log = leaf(4), leaf(4), []
    a, b = compiled(lambda x, y: (x.sin(), y.cos()))(x, y)
    a.register_hook(lambda g: log.append(g.clone()))
    b.retain_grad()
    y.register_hook(lambda g: g * 3)
    a.sum().backward()
    b.pow(2).sum().backward()
    return x.grad, y.grad, log, b.grad


@program
def gradients_of_one_input(compiled):
    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: ((x * y).sin(), y.cos() * x.exp()))(x, y)
    (g,) = torch.autograd.grad(a.sum(), x, retain_graph=True)
    (h,) = torch.autograd.grad(b.sum(), y)
    k = torch.autograd.grad(a.sum(), (x, y))
    return g, h, k, x.grad


@program
def not_connected(compiled):
    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: (x.sin(), y.cos()))(x, y)
    g = torch.autograd.grad(a.sum(), (x, y), allow_unused=True)
    try:
        torch.autograd.grad(b.sum(), (x, y))
    except RuntimeError as e:
        return g, "not have been used" in str(e)
    return g, None


@program
def nothing_saved_is_never_freed(compiled):
    x, y = leaf(4), leaf(4)
    a = compiled(lambda x, y: (x + y).sum())(x, y)
    a.backward()
    again = second(a.backward)
    return x.grad, y.grad, again


@program
def sizes_that_change(compiled):
    w, f = leaf(4, 4), None
    f = compiled(lambda x, w: ((x @ w).tanh().sum(), (x @ w.sin()).relu().sum()))
    out = []
    for n in (3, 5, 7, 9):
        a, b = f(randn(n, 4), w)
        b.backward()
        a.backward()
        out += [a, b, w.grad.clone()]
    return out


@program
def written_inputs_of_two_parts(compiled):
    x, y = leaf(4), leaf(4)

    def f(u, v):
        u.mul_(2)
        v.sin_()
        return u * u

    u, v = x.clone(), y.clone()
    r = compiled(f)(u, v)
    r.sum().backward()
    v.sum().backward()
    return x.grad, y.grad, u, v


@program.breaks
def gradients_of_gradients(compiled):
    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: (x.sin() * x, y.cos() * y))(x, y)
    (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    (g * g).sum().backward()
    first = x.grad.clone(), y.grad
    (h,) = torch.autograd.grad(b.sum(), y, create_graph=True)
    h.sum().backward()
    return g, first, x.grad, y.grad


@program
def saved_tensor_hooks(compiled):
    x, y, log = leaf(4), leaf(4), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append("pack"), t * 1)[1], lambda t: t):
        a, b = compiled(lambda x, y: (x.sin(), y.cos() * y))(x, y)
    with torch.autograd.graph.save_on_cpu():
        c, d = compiled(lambda x, y: (x.exp(), y.tanh()))(x, y)
    a.sum().backward()
    (b.sum() + d.sum()).backward()
    c.sum().backward()
    return x.grad, y.grad, bool(log)


@program.breaks
def batched_tangents(compiled):
    w, x = leaf(4, 5), leaf(3, 4)
    f = compiled(lambda x, w: torch.nn.functional.layer_norm(x @ w, (5,)).relu())
    y = f(x, w)
    at_once = torch.autograd.grad(y, (x, w), torch.eye(15).reshape(15, 3, 5), is_grads_batched=True)
    return at_once, torch.autograd.functional.jacobian(f, (x, w), vectorize=True)


@program.breaks
def tangents_of_a_subclass(compiled):
    class Named(torch.Tensor):
        pass

    x = leaf(3, 4)
    y = compiled(lambda x: x.tanh() * 2)(x)
    (g,) = torch.autograd.grad(y, x, torch.ones(3, 4).as_subclass(Named))
    return g.as_subclass(torch.Tensor)


@program
def anomaly(compiled):
    x, y = leaf(4), leaf(4)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        a, b = compiled(lambda x, y: (x.sin(), y.cos() * y))(x, y)
        a.sum().backward()
        b.sum().backward()
    return x.grad, y.grad


@program
def dropout_in_both(compiled):
    w, x = leaf(4, 4), randn(6, 4)
    drop = torch.nn.functional.dropout
    a, b = compiled(lambda x, w: (drop(x @ w).sum(), drop(x * w.sum()).sum()))(x, w)
    b.backward()
    a.backward()
    return a, b, w.grad


@program
def kept_alive_by_one(compiled):
    import gc

    x, y = leaf(4), leaf(4)
    a, b = compiled(lambda x, y: (x.sin(), y.cos() * y))(x, y)
    del a
    gc.collect()
    b.sum().backward()
    return x.grad, y.grad


@pytest.mark.parametrize("run, whole", program.params)
def test_like_eager(run, whole):
    check(run, whole)
