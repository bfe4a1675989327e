"""Hooks, modes, checkpoints, frozen parameters, random numbers, double backward: training programs as eager runs
them.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .harness import Programs, check, leaf, randn

program = Programs()


@program
def frozen(compiled):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    x = randn(3, 4)
    f = compiled(m)
    out = []
    for k in range(6):
        m[0].weight.requires_grad_(k % 2 == 0)
        m[2].bias.requires_grad_(k % 3 == 0)
        m.zero_grad()
        y = f(x)
        y.sum().backward()
        out.append([y] + [None if p.grad is None else p.grad.clone() for p in m.parameters()])
    for p in m.parameters():
        p.requires_grad_(False)
    y = f(x)
    out.append([y, y.requires_grad])
    m.requires_grad_(True)
    m.zero_grad()
    y = f(x)
    y.sum().backward()
    out.append([y] + [p.grad for p in m.parameters()])
    return out


@program
def retain(compiled):
    x = leaf(4)
    y = compiled(lambda x: (x.exp() * x.sin()).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    g = x.grad
    try:
        y.backward()
        e = None
    except RuntimeError as ex:
        e = "second time" in str(ex)
    return (g, e)


@program.breaks
def double_backward(compiled):
    x = leaf(4)
    w = leaf(4)
    y = compiled(lambda x, w: (x.exp() * w.sin()).sum())(x, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (g * g).sum().backward()
    return (g, x.grad, w.grad)


@program.breaks
def double_backward_intermediate(compiled):
    x = leaf(4)
    w = leaf(4)
    f = compiled(lambda x, w: (x.exp() * w.sin()).sum())
    y = f(x * 2, w)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (g * g).sum().backward()
    return (g, x.grad, w.grad)


@program
def grad_inputs_subset(compiled):
    x = leaf(4)
    w = leaf(4)
    y = compiled(lambda x, w: (x.exp() * w.sin()).sum())(x, w)
    (g,) = torch.autograd.grad(y, x)
    return (g, x.grad, w.grad)


@program
def hooks_on_tensors(compiled):
    x = leaf(4)
    w = leaf(4)
    log = []
    x.register_hook(lambda g: g * 2)
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    y = compiled(lambda x, w: x.exp() * w.sin())(x, w)
    y.register_hook(lambda g: (log.append(g), g * 3)[1])
    y.sum().backward()
    return (x.grad, w.grad, log)


@program.breaks
def hook_inside(compiled):
    x = leaf(4)
    log = []

    def g(x):
        h = x * 2
        h.register_hook(lambda g: (log.append(g.clone()), g * 5)[1])
        return h.sin()

    f = compiled(g)
    for _ in range(2):
        y = f(x)
        y.sum().backward()
    return (x.grad, log)


@program.breaks
def retain_grad_inside(compiled):
    x = leaf(4)

    def g(x):
        h = x * 2
        h.retain_grad()
        return (h.sin(), h)

    y, h = compiled(g)(x)
    y.sum().backward()
    return (x.grad, h.grad)


@program.breaks
def module_hooks(compiled):
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = leaf(3, 4)
    log = []
    f = compiled(m)
    y = f(x)
    y.sum().backward()
    h1 = m[1].register_full_backward_hook(lambda mod, gi, go: log.append((gi[0].clone(), go[0].clone())))
    y = f(x)
    y.sum().backward()
    h2 = m[0].register_forward_hook(lambda mod, i, o: o * 2)
    y2 = f(x)
    y2.sum().backward()
    h1.remove()
    h2.remove()
    y3 = f(x)
    y3.sum().backward()
    return (y, y2, y3, x.grad, log, [p.grad for p in m.parameters()])


@program.breaks
def module_backward_hook_changes(compiled):
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    x = leaf(3, 4)
    m[1].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 3,))
    m[0].register_full_backward_pre_hook(lambda mod, go: (go[0] * 2,))
    y = compiled(m)(x)
    y.sum().backward()
    return (y, x.grad, [p.grad for p in m.parameters()])


@program
def post_acc_optim(compiled):
    m = nn.Linear(4, 4)
    x = randn(3, 4)

    def hook(p):
        with torch.no_grad():
            p.add_(p.grad, alpha=-0.1)
            p.grad = None

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(hook)
    f = compiled(m)
    out = []
    for _ in range(4):
        loss = f(x).pow(2).sum()
        loss.backward()
        out.append(loss.detach())
    return (out, [p.detach() for p in m.parameters()], m.weight.grad)


@program
def modes(compiled):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.0), nn.Linear(4, 2))
    x = randn(5, 4)
    f = compiled(m)
    out = []
    for k in range(2):
        m.train()
        y = f(x)
        y.sum().backward()
        out.append(y)
        with torch.no_grad():
            out.append(f(x))
        m.eval()
        out.append(f(x))
        with torch.inference_mode():
            z = f(x)
            out.append((z.is_inference(), z.clone()))
        y = f(x)
        y.sum().backward()
        out.append(y)
        m.train()
        m.zero_grad()
        y = f(x)
        (y * y).sum().backward()
        out += [p.grad for p in m.parameters()]
    return (out, m.state_dict())


@program
def enable_grad_inside(compiled):
    x = leaf(4)

    def g(x):
        with torch.enable_grad():
            return x.exp() * 2

    f = compiled(g)
    with torch.no_grad():
        y = f(x)
    y.sum().backward()
    return (y, x.grad)


@program
def nograd_decorated(compiled):
    x = leaf(4)

    @torch.no_grad()
    def g(x):
        return x.exp()

    return compiled(g)(x)


@program
def set_grad_enabled_leaks(compiled):
    x = leaf(4)

    def g(x):
        torch.set_grad_enabled(False)
        return x.exp()

    y = compiled(g)(x)
    e = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return (y, e)


@program.breaks
def autograd_grad_inside(compiled):
    x = leaf(4)

    def g(x):
        e = (x**3).sum()
        (gr,) = torch.autograd.grad(e, x, create_graph=True)
        return (e, gr)

    e, gr = compiled(g)(x)
    (gr * gr).sum().backward()
    return (e, gr, x.grad)


@program.breaks
def requires_grad_inside(compiled):
    x = randn(4)

    def g(x):
        y = x * 2
        y.requires_grad_()
        z = (y**2).sum()
        z.backward()
        return y.grad

    return compiled(g)(x)


@program.breaks
def forces(compiled):
    x = randn(4, 3)

    def g(x):
        x = x.detach().requires_grad_()
        e = (x**3).sum()
        (f,) = torch.autograd.grad(e, x)
        return (e, -f)

    e, f = compiled(g)(x)
    return (e, f)


@program
def accumulate(compiled):
    m = nn.Linear(4, 4)
    f = compiled(m)
    out = []
    for i in range(3):
        for j in range(2):
            (f(randn(2, 4)).pow(2).sum() / 2).backward()
        out.append([p.grad.clone() for p in m.parameters()])
        m.zero_grad(set_to_none=i % 2 == 0)
    return (out, [p.grad for p in m.parameters()])


@program
def saved_hooks(compiled):
    x = leaf(4)
    n = []
    f = compiled(lambda x: (x.exp() * x.sin()).sum())
    f(x).backward()
    x.grad = None
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t * 1)[1], lambda t: t):
        y = f(x)
    y.backward()
    return (x.grad, len(n) > 0)


@program
def save_on_cpu(compiled):
    x = leaf(4)
    f = compiled(lambda x: (x.exp() * x.sin()).sum())
    with torch.autograd.graph.save_on_cpu():
        y = f(x)
    y.backward()
    return x.grad


@program.breaks
def checkpoint_in(compiled):
    from torch.utils.checkpoint import checkpoint

    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))
    x = leaf(3, 4)
    f = compiled(lambda x: checkpoint(m, x, use_reentrant=False))
    torch.manual_seed(3)
    y = f(x)
    y.sum().backward()
    return (y, x.grad, [p.grad for p in m.parameters()])


@program
def checkpoint_around(compiled):
    from torch.utils.checkpoint import checkpoint

    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 4))
    x = leaf(3, 4)
    f = compiled(m)
    torch.manual_seed(3)
    y = checkpoint(f, x, use_reentrant=False)
    y.sum().backward()
    g = x.grad.clone()
    y = checkpoint(f, x, use_reentrant=True)
    y.sum().backward()
    return (y, g, x.grad, [p.grad for p in m.parameters()])


@program.breaks
def custom_function(compiled):

    class Sq(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k):
            ctx.save_for_backward(x)
            ctx.k = k
            return x * x * k

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (g * x * 100 * ctx.k, None)

    x = leaf(4)
    y = compiled(lambda x: Sq.apply(x * 2, 3).sin())(x)
    y.sum().backward()
    return (y, x.grad)


@program
def dropout_seed(compiled):
    m = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU(), nn.Dropout(0.5))
    x = leaf(4, 8)
    f = compiled(m)
    out = []
    for k in range(3):
        torch.manual_seed(k)
        y = f(x)
        y.sum().backward()
        out.append((y, x.grad.clone()))
    return (out, torch.rand(2))


@program
def inference_tensor_input(compiled):
    m = nn.Linear(4, 4)
    f = compiled(m)
    f(randn(2, 4)).sum().backward()
    with torch.inference_mode():
        x = randn(2, 4)
    y = f(x)
    y.sum().backward()
    return y


@program
def int_param(compiled):
    e = nn.Embedding(10, 4, padding_idx=0, scale_grad_by_freq=True)
    i = torch.randint(0, 10, (3, 5))
    y = compiled(e)(i)
    (y * randn(3, 5, 4)).sum().backward()
    return (y, e.weight.grad)


@program.breaks
def sparse_embedding(compiled):
    e = nn.Embedding(10, 4, sparse=True)
    i = torch.randint(0, 10, (3, 5))
    y = compiled(e)(i)
    (y * randn(3, 5, 4)).sum().backward()
    return (y, e.weight.grad.to_dense(), e.weight.grad.is_sparse)


@program
def gradients_that_no_tangent_reaches(compiled):
    x, w, b, v = leaf(2, 4, 9), leaf(4, 4, 3), leaf(4), leaf(9)
    f = compiled(lambda x, w, b, v: torch.ceil(torch.exp(nn.functional.conv1d(x * v, w, b, padding=1) * v) * v))
    y = f(x, w, b, v)
    y.sum().backward()
    return (y, x.grad, w.grad, b.grad, v.grad)


@program
def weight_norm(compiled):
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    x = randn(2, 4)
    y = compiled(m)(x)
    y.sum().backward()
    return (y, [p.grad for p in m.parameters()])


@program
def spectral(compiled):
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    x = randn(2, 4)
    f = compiled(m)
    o = []
    for _ in range(2):
        y = f(x)
        y.sum().backward()
        o.append(y)
    return (o, [p.grad for p in m.parameters()], m.state_dict())


@program
def checkpointed_dropout(compiled):
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(4, 4))
    x = leaf(3, 4)
    f = compiled(
        lambda x: (
            checkpoint(m, x, use_reentrant=False).sin().sum()
            + checkpoint_sequential(m, 2, x, use_reentrant=False).sum()
        )
    )
    out = []
    for _ in range(2):
        y = f(x)
        y.backward()
        out += [y, x.grad.clone(), [p.grad.clone() for p in m.parameters()]]
    return out


@program.breaks
def checkpointed_batch_norm(compiled):
    from torch.utils.checkpoint import checkpoint

    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    mean, var, x = torch.zeros(4), torch.ones(4), leaf(3, 4)
    f = compiled(lambda x: checkpoint(m, x, use_reentrant=False).sin().sum())
    g = compiled(
        lambda x: (
            checkpoint(lambda t: torch.nn.functional.batch_norm(t, mean, var, training=True), x, use_reentrant=False)
            .sin()
            .sum()
        )
    )
    for _ in range(2):
        f(x).backward()
        g(x).backward()
    return x.grad, [b.clone() for b in m.buffers()], mean, var


@pytest.mark.parametrize(("run", "whole"), program.params)
def test_like_eager(run, whole):
    check(run, quiet=whole)
