"""What stock's compiled autograd is for: hooks on gradients and nodes, gradients of gradients, and backward() called
over several compiled parts. Each is equal to eager, with the hooks' order and their number."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.autograd.graph import (
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import checkpoint

import tcompile

from .harness import Programs, check, leaf, mlp, randn

program = Programs()


# -- hooks on accumulated gradients
@program.breaks
def post_accumulate_hooks_outside(compiled):
    model, log = mlp(), []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(
            functools.partial(lambda name, p: log.append((name, p.grad.clone())), name)
        )
    f = compiled(lambda x: model(x).square().mean())
    for _ in range(3):
        f(randn(5, 4)).backward()
    return log


@program.breaks
def post_accumulate_hooks_in_the_step(compiled):
    model, log = mlp(), []
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.norm().item()))

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    f = compiled(step)
    losses = [f(randn(5, 4)) for _ in range(3)]
    steps = [sorted(log[i : i + 4]) for i in range(0, len(log), 4)]
    return losses, torch.tensor(steps), [p.grad for p in model.parameters()]


def told_of_by(kind):
    """Which leaf comes when, by hooks of a kind. What the compiled function takes depends on one of its leaves, too."""

    def run(compiled):
        layer, w, u, log = nn.Linear(4, 4), leaf(4, 4), leaf(4), []
        leaves = {"w": w, "u": u, "weight": layer.weight, "bias": layer.bias}
        nodes = [t.view_as(t).grad_fn.next_functions[0][0] for t in leaves.values()]
        for (name, t), node in zip(leaves.items(), nodes):
            if kind == "node":
                node.register_hook(lambda *grads, name=name: log.append(name))
            else:
                getattr(t, kind)(lambda t, name=name: log.append(name))
        f = compiled(lambda a, b: torch.where(a > 0, layer(b), u).square().mean() + b.sum())
        for _ in range(2):
            a = randn(3, 4) @ w
            f(a, a + u).backward(retain_graph=True)
            log.append("next")
        return log, [t.grad for t in leaves.values()]

    run.__name__ = f"told_of_by_{kind}"
    return run


for kind in ("node", "register_hook", "register_post_accumulate_grad_hook"):
    program(told_of_by(kind))


@program.breaks
def optimizer_in_backward(compiled):
    """The gradient is used and freed as soon as it is there."""
    model = mlp()
    optimizers = {p: torch.optim.Adam([p], 0.1) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    f = compiled(lambda x: model(x).square().mean())
    losses = []
    for _ in range(4):
        loss = f(randn(5, 4))
        loss.backward()
        losses.append(loss.detach())
    return losses, list(model.parameters()), [p.grad for p in model.parameters()]


@program.breaks
def optimizer_in_backward_of_the_step(compiled):
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    f = compiled(step)
    return [f(randn(5, 4)) for _ in range(4)], list(model.parameters()), [p.grad for p in model.parameters()]


@program.breaks
def a_hook_that_changes_the_gradient(compiled):
    w, x = leaf(4, 4), randn(3, 4)
    w.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    f = compiled(lambda x, w: (x @ w).tanh().sum())
    f(x, w).backward()
    first = w.grad.clone()
    f(x, w).backward()
    return first, w.grad


@program.breaks
def a_hook_that_is_removed_and_one_that_comes(compiled):
    w, x, log = leaf(4, 4), randn(3, 4), []
    f = compiled(lambda x, w: (x @ w).tanh().sum())
    handle = w.register_post_accumulate_grad_hook(lambda p: log.append("first"))
    f(x, w).backward()
    handle.remove()
    f(x, w).backward()
    w.register_post_accumulate_grad_hook(lambda p: log.append("second"))
    f(x, w).backward()
    return log, w.grad


@program.breaks
def a_hook_that_comes_between_calls_of_the_step(compiled):
    w, log = leaf(4, 4), []

    def step(x):
        loss = (x @ w).tanh().sum()
        loss.backward()
        return loss.detach()

    f, x = compiled(step), randn(3, 4)
    f(x)
    handle = w.register_post_accumulate_grad_hook(lambda p: (log.append("here"), p.grad.mul_(0.5))[0])
    f(x)
    handle.remove()
    f(x)
    return log, w.grad


@program.breaks
def a_hook_that_raises(compiled):
    w, x = leaf(4, 4), randn(3, 4)

    def hook(p):
        raise ValueError("from the hook")

    w.register_post_accumulate_grad_hook(hook)
    f = compiled(lambda x, w: (x @ w).tanh().sum())
    try:
        f(x, w).backward()
    except ValueError as e:
        return str(e), w.grad
    return None


# -- tensor and node hooks
@program.breaks
def multi_grad_hooks(compiled):
    a, b, c, log = leaf(4), leaf(4), leaf(4), []
    handle = register_multi_grad_hook(
        [a, b, c], lambda grads: log.append([None if g is None else g.clone() for g in grads])
    )
    any_handle = register_multi_grad_hook([a, b], lambda g: log.append(g.clone()), mode="any")
    f = compiled(lambda a, b: (a.sin() * b).sum())
    f(a, b).backward()
    f(a, b).backward()
    handle.remove()
    any_handle.remove()
    f(a, b).backward()
    return len(log), a.grad, b.grad, c.grad


@program.breaks
def node_hooks_on_a_compiled_result(compiled):
    x, w, log = randn(3, 4), leaf(4, 4), []
    y = compiled(lambda x, w: (x @ w).tanh())(x, w)
    y.grad_fn.register_prehook(lambda grads: (log.append("pre"), tuple(2 * g for g in grads))[1])
    y.grad_fn.register_hook(lambda inputs, outputs: log.append("post"))
    y.sum().backward()
    return log, w.grad


@program.breaks
def a_hook_between_compiled_parts(compiled):
    x, w, v, log = randn(3, 4), leaf(4, 4), leaf(4, 4), []
    f, g = compiled(lambda x, w: (x @ w).tanh()), compiled(lambda h, v: (h @ v).sigmoid().sum())
    h = f(x, w)
    h.retain_grad()
    h.register_hook(lambda grad: (log.append(grad.clone()), grad * 3)[1])
    g(h, v).backward()
    return log, h.grad, w.grad, v.grad


@program.breaks
def a_tensor_hook_made_inside(compiled):
    log = []

    def f(x, w):
        h = (x @ w).tanh()
        h.register_hook(lambda g: (log.append(g.clone()), g * 2)[1])
        return h.square().sum()

    x, w = randn(3, 4), leaf(4, 4)
    compiled(f)(x, w).backward()
    return log, w.grad


@program.breaks
def full_backward_hooks_of_modules(compiled):
    model, log = mlp(), []
    model[0].register_full_backward_hook(lambda m, gi, go: log.append(("post", go[0].clone())))
    model[2].register_full_backward_pre_hook(lambda m, go: (log.append(("pre", go[0].clone())), (go[0] * 2,))[1])
    f = compiled(model)
    for _ in range(2):
        f(randn(5, 4)).square().mean().backward()
    return [n for n, _ in log], [g for _, g in log], [p.grad for p in model.parameters()]


# -- saved tensors
@program.breaks
def saved_tensor_hooks_that_change_what_is_saved(compiled):
    x, w, log = randn(3, 4), leaf(4, 4), []

    def pack(t):
        log.append(t.shape)
        return t.to(torch.float64)

    f = compiled(lambda x, w: (x @ w).tanh().exp())
    with saved_tensors_hooks(pack, lambda t: t.to(torch.float32)):
        y = f(x, w)
    y.sum().backward()
    return bool(log), w.grad


@program.breaks
def saved_tensor_hooks_inside(compiled):
    def f(x, w):
        with saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            h = (x @ w).tanh()
        return h.exp().sum()

    x, w = randn(3, 4), leaf(4, 4)
    compiled(f)(x, w).backward()
    return w.grad


@program.breaks
def saved_on_cpu_and_checkpointed(compiled):
    model = mlp()
    f = compiled(lambda x: checkpoint(model, x, use_reentrant=False).square().mean())
    x = leaf(5, 4)
    with save_on_cpu():
        loss = f(x)
    loss.backward()
    return x.grad, [p.grad for p in model.parameters()]


# -- gradients of gradients
@program.breaks
def double_backward(compiled):
    x, w = leaf(3, 4), leaf(4, 4)
    y = compiled(lambda x, w: (x @ w).tanh().square().sum())(x, w)
    gx, gw = torch.autograd.grad(y, (x, w), create_graph=True)
    (gx.square().sum() + gw.exp().sum()).backward()
    return gx, gw, x.grad, w.grad


@program.breaks
def double_backward_through_two_parts(compiled):
    x, w = leaf(3, 4), leaf(4, 4)
    f, g = compiled(lambda x, w: (x @ w).sin()), compiled(lambda h: h.exp().sum())
    y = g(f(x, w))
    (gx,) = torch.autograd.grad(y, x, create_graph=True)
    penalty = compiled(lambda t: (t.norm(dim=1) - 1).square().mean())(gx)
    penalty.backward()
    return gx, penalty, x.grad, w.grad


@program.breaks
def a_gradient_penalty_inside(compiled):
    model = mlp()

    def step(x):
        x = x.requires_grad_()
        out = model(x).sum()
        (g,) = torch.autograd.grad(out, x, create_graph=True)
        loss = out.square() + (g.norm(dim=1) - 1).square().mean()
        loss.backward()
        return loss.detach(), g.detach()

    f = compiled(step)
    return [f(randn(5, 4)) for _ in range(2)], [p.grad for p in model.parameters()]


@program.breaks
def a_third_derivative(compiled):
    x = leaf(5)
    y = compiled(lambda x: (x.sin() * x.exp()).sum())(x)
    out = [y]
    for _ in range(3):
        (g,) = torch.autograd.grad(out[-1].sum(), x, create_graph=True)
        out.append(g)
    return out


@program.breaks
def hessian_of_a_compiled_function(compiled):
    x = randn(4)
    f = compiled(lambda x: (x.sin() * x.square()).sum())
    return torch.autograd.functional.hessian(f, x), torch.autograd.functional.hvp(f, x, torch.ones(4))[1]


@program.breaks
def double_backward_with_hooks(compiled):
    x, w, of_x, of_w = leaf(3, 4), leaf(4, 4), [], []
    w.register_post_accumulate_grad_hook(lambda p: of_w.append(p.grad.clone()))
    x.register_hook(lambda g: of_x.append(g.clone()))
    y = compiled(lambda x, w: (x @ w).tanh().sum())(x, w)
    (gx,) = torch.autograd.grad(y, x, create_graph=True)
    gx.square().sum().backward()
    return of_x, of_w, x.grad, w.grad


@program.breaks
def a_hook_on_an_input_runs_once_in_double_backward(compiled):
    a, w, out = leaf(3, 4), leaf(4, 4), []
    w.register_hook(lambda g: g * 3)
    for x in (a, a * 1):
        x.register_hook(lambda g: g * 2)
        y = compiled(lambda x, w: (x @ w).tanh().sum())(x, w)
        gx, gw = torch.autograd.grad(y, (x, w), create_graph=True)
        (gx.square().sum() + gw.sum()).backward()
        out += [gx, gw, a.grad.clone(), w.grad.clone()]
    return out


@program.breaks
def one_tensor_twice_in_double_backward(compiled):
    x = leaf(4)
    y = compiled(lambda a, b: (a.sin() * b.exp()).sum())(x, x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.square().sum().backward()
    return g, x.grad


@program.breaks
def a_view_as_a_result_in_double_backward(compiled):
    x = leaf(4, 3)
    v, y = compiled(lambda x: (x.t(), x.sin()))(x)
    (g,) = torch.autograd.grad((v.square().sum() + y.sum()), x, create_graph=True)
    g.square().sum().backward()
    return v, g, x.grad


# -- backward over several parts
@program.breaks
def one_backward_over_many_parts(compiled):
    blocks = nn.ModuleList(mlp().append(nn.Linear(2, 4)) for _ in range(4))
    parts = [compiled(b) for b in blocks]
    x = leaf(5, 4)
    h = x
    for i, part in enumerate(parts):
        h = part(h) + (h if i % 2 else 0)  # eager between
    h.square().mean().backward()
    return x.grad, [p.grad for p in blocks.parameters()]


@program.breaks
def a_shared_part_and_a_retained_graph(compiled):
    w, x = leaf(4, 4), randn(3, 4)
    f = compiled(lambda x, w: (x @ w).tanh())
    y = f(f(f(x, w), w), w)
    y.sum().backward(retain_graph=True)
    first = w.grad.clone()
    y.square().sum().backward()
    return first, w.grad


@program.breaks
def backward_of_some_inputs(compiled):
    w, v, x = leaf(4, 4), leaf(4, 4), leaf(3, 4)
    y = compiled(lambda x, w, v: ((x @ w).tanh() @ v).sum())(x, w, v)
    y.backward(inputs=[w])
    return x.grad, w.grad, v.grad


@program.breaks
def accumulation_over_steps(compiled):
    model = mlp()
    f = compiled(lambda x: model(x).square().mean() / 4)
    for _ in range(4):
        f(randn(5, 4)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    return [p.grad for p in model.parameters()]


# -- the parts of a function that breaks, and the hooks between them
@program.breaks
def hooks_of_accumulation_in_eager_s_order(compiled):
    model, log = mlp(), []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: log.append(name))
        p.register_hook(lambda g, name=name: log.append(name + " comes"))
    f = compiled(lambda x: model(x).square().mean())
    for n in (5, 5, 7):
        f(leaf(n, 4)).backward()
    return log


@program.breaks
def a_hook_of_what_no_result_depends_on(compiled):
    """It is not called: neither without a gradient."""
    a, b, log = leaf(4), leaf(4), []
    a.register_hook(lambda g: log.append(g * 2))
    b.register_hook(lambda g: log.append(g * 3))
    hooked = nn.Parameter(torch.randn(4))
    hooked.register_hook(lambda g: log.append(g * 4))

    def f():
        unused = (a.exp() + hooked).detach()
        return b.sin() * unused

    compiled(f)().sum().backward()
    return log, a.grad, b.grad, hooked.grad


@program.breaks
def gradients_behind_a_break(compiled):
    w, v, log = leaf(4, 4), leaf(4, 4), []

    def f(x, how):
        h = (x @ w).tanh()
        h.register_hook(lambda g: log.append(g))
        y = (h @ v).sum()
        if how == "grad":
            return torch.autograd.grad(y, (w, v), allow_unused=True)
        y.backward(inputs=[w, v])
        return None

    f = compiled(f)
    out = [f(randn(3, 4), how) for how in ("grad", "backward", "grad")]
    return out, log, w.grad, v.grad


@program.breaks
def hooks_on_nodes_inside(compiled):
    w, v, log = leaf(4, 4), leaf(4, 4), []

    def f(x):
        h = x @ w
        k = h.tanh()
        h.grad_fn.register_prehook(lambda grads: tuple(2 * g for g in grads))
        k.grad_fn.register_hook(lambda inputs, outputs: log.append((inputs[0], outputs[0])))
        return (k @ v).sum() + h.sum()

    f = compiled(f)
    for _ in range(2):
        f(randn(3, 4)).backward()
    return log, w.grad, v.grad


@program.breaks
def a_hook_on_what_others_were_computed_from(compiled):
    """It is told the gradients that come by all of them, at once."""
    w, log = leaf(4, 4), []

    def f(x):
        h = x @ w
        k = h.sin()
        h.register_hook(lambda g: (log.append(g), g * 2)[1])
        u = k * h
        k.retain_grad()
        return (u * k).sum() + h.sum()

    f = compiled(f)
    for _ in range(2):
        f(randn(3, 4)).backward()
    return log, w.grad


@program.breaks
def hooks_in_the_order_in_which_they_were_put(compiled):
    w, log = leaf(4, 4), []

    def f(x):
        h = x @ w
        h.register_hook(lambda g: g.clamp(-0.5, 0.5))
        h.register_hook(lambda g: (log.append(g), g * 2)[1])
        y = h.square().sum()
        y.register_hook(lambda g: g.clamp(max=0.25))
        return y

    f = compiled(f)
    for _ in range(2):
        y = f(randn(3, 4))
        y.register_hook(lambda g: g * 2)
        y.backward()
    return log, w.grad


@program.breaks
def double_backward_over_parts_with_sizes_that_vary(compiled):
    """What lies between the parts is nobody's, and is there all the same."""
    w, v, log = leaf(4, 4), leaf(4, 4), []

    def f(x):
        h = (x @ w).tanh()
        h.retain_grad()
        return (h @ v).square().mean() + h.sum()

    f, out = compiled(f), []
    for n in (3, 3, 5, 6):
        y = f(randn(n, 4))
        (g,) = torch.autograd.grad(y, v, create_graph=True)
        g.square().sum().backward()
        out.append(g)
    return out, w.grad, v.grad


@pytest.mark.parametrize("run, whole", program.params)
def test_like_eager(run, whole):
    check(run, whole)


def test_double_backward_where_a_hook_would_be_told_parts_is_refused():
    """The hook is not linear: what it makes of two parts of a gradient is not what it makes of their sum."""

    def of_a_result(w):
        h = tcompile.compile(lambda w: w.tanh())(w)
        h.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return h.square().sum()

    def inside(w):
        def f(w):
            h = w.sin()
            h.register_hook(lambda g: g.clamp(-0.5, 0.5))
            return h.square().sum()

        return tcompile.compile(f)(w)

    for f in (of_a_result, inside):
        w = leaf(4)
        y = f(w)
        with pytest.raises(RuntimeError, match="told two parts"):
            (g,) = torch.autograd.grad(y, w, create_graph=True)
            (g.square().sum() + y).backward()
    y = inside(w)
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    g.square().sum().backward(retain_graph=True)  # (the hook is told all that there is in each of the passes)
    y.backward()
