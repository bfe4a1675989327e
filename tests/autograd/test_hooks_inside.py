"""Hooks on gradients that a captured function puts there itself, or finds there when it calls backward(): values, order
and number of calls are eager's, in one graph where the hook only computes or the pass is inside."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from .harness import Programs, check, leaf, mlp, randn

program = Programs()


# -- on tensors that the function makes; the pass is outside
@program
def only_computes(compiled):
    def f(x, w):
        h = (x @ w).tanh()
        scale = h.detach().abs().mean()
        handle = h.register_hook(lambda g: torch.clamp(g, -0.1, 0.1) * scale)
        del handle
        return h.square().sum()

    f, w = compiled(f), leaf(4, 4)
    for _ in range(2):
        f(randn(3, 4), w).backward()
    return w.grad


@program
def reverses_a_gradient(compiled):
    features, domain = nn.Linear(4, 4), nn.Linear(4, 1)

    def f(x):
        h = features(x).tanh()
        reversed = h * 1.0
        reversed.register_hook(lambda g: -0.5 * g)
        return domain(reversed).sum() + h.square().sum()

    f = compiled(f)
    for n in (3, 5, 6):  # (sizes that vary)
        f(randn(n, 4)).backward()
    return [p.grad for p in (*features.parameters(), *domain.parameters())]


@program
def two_on_one_tensor(compiled):
    def f(x):
        h = x.sin()
        h.register_hook(lambda g: g + 1)
        h.register_hook(lambda g: None)
        h.register_hook(lambda g: g * 2)
        return h.exp().sum()

    x = leaf(4)
    compiled(f)(x).backward()
    return x.grad


@program
def passes_from_several_results(compiled):
    """A hook that is not linear is called in each pass that comes to its tensor, and in no other."""

    def f(x, y):
        h = x.sin()
        h.register_hook(lambda g: g + 1)
        return h.exp().sum(), (h * y).sum(), y.cos().sum()

    x, y, out = leaf(4), leaf(4), []
    a, b, c = compiled(f)(x, y)
    for loss in (c, a, b):
        loss.backward(retain_graph=True)
        out.append(x.grad if x.grad is None else x.grad.clone())
    (a + b + c).backward()
    return out, x.grad, y.grad


@program
def in_place_after_it_is_put_there(compiled):
    def f(x):
        h = x.sin()
        h.register_hook(lambda g: g * 3)
        h.mul_(2)
        h[0] = 1.0
        h.register_hook(lambda g: g + 0.5)
        return h.exp().sum()

    x = leaf(4)
    compiled(f)(x).backward()
    return x.grad


@program
def on_views(compiled):
    def f(x):
        a, b = x.sin().chunk(2)
        a = a.t()
        a.register_hook(lambda g: g.cumsum(0))
        return (a * 2).sum() + b.exp().sum() + (a.t() @ b.t()).sum()

    x = leaf(4, 3)
    compiled(f)(x).backward()
    return x.grad


@program
def gradients_of_gradients(compiled):
    def f(x):
        h = x.sin()
        h.register_hook(lambda g: g.square())
        return h.exp().sum()

    x = leaf(4)
    (g,) = torch.autograd.grad(compiled(f)(x), x, create_graph=True)
    g.sum().backward()
    return g, x.grad


@program.breaks
def what_it_reads_changes_before_the_pass(compiled):
    def f(x, how):
        scale, table = 2.0, {"by": 3.0}

        def hook(g):
            return g * scale * table["by"] * how.by

        h = x.sin()
        h.register_hook(hook)
        y = h.exp().sum()
        scale, table["by"] = 5.0, 7.0
        return y

    class How:
        by = 1.0

    f, x, how = compiled(f), leaf(4), How()
    for by in (1.0, 2.0):
        y = f(x, how)
        how.by = by
        y.backward()
    return x.grad


@program.breaks
def what_it_reads_is_written_to_by_the_caller(compiled):
    def f(x, scale):
        h = x.sin()
        h.register_hook(lambda g: g * scale)
        return h.exp().sum()

    f, x, scale = compiled(f), leaf(4), torch.ones(4)
    for _ in range(2):
        y = f(x, scale)
        scale.add_(2)
        y.backward()
    return x.grad


@program.breaks
def what_it_reads_is_written_to(compiled):
    def f(x, inside):
        scale = torch.ones(4)
        h = x.sin()
        h.register_hook(lambda g: g * scale)
        y = h.exp().sum()
        if inside:
            scale.mul_(3)
        return y, scale

    f, x = compiled(f), leaf(4)
    for inside in (True, False):
        y, scale = f(x, inside)
        scale.mul_(2)
        y.backward()
    return x.grad


@program.breaks
def keeps_what_it_is_given(compiled):
    got = []

    def f(x):
        h = x.sin()
        h.register_hook(got.append)
        handle = h.register_hook(lambda g: got.append(g * 2))
        y = h.exp().sum()
        return y, handle

    f, x = compiled(f), leaf(4)
    for _ in range(2):
        y, handle = f(x)
        y.backward(retain_graph=True)
        handle.remove()
        y.backward()
    return got, x.grad


@program.breaks
def without_a_gradient(compiled):
    def f(x):
        h = x.sin()
        try:
            h.register_hook(lambda g: g)
        except RuntimeError as e:
            return h, str(e)
        return h, None

    return compiled(f)(randn(4))


# -- the pass is inside
@program
def keeps_the_gradient_of_an_activation(compiled):
    model, got, names = mlp(), {}, []
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: names.append(name))

    def step(x):
        h = model[0](x)
        h.register_hook(lambda g: (names.append("h"), got.update(h=g))[2:] or None)
        h.retain_grad()
        loss = model[2](model[1](h)).square().mean()
        loss.backward()
        return loss.detach(), h.grad * 2

    f = compiled(step)
    losses = [f(randn(5, 4)) for _ in range(3)]
    return losses, got, names, [p.grad for p in model.parameters()]


@program
def reads_the_world_inside(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.limit = nn.Linear(4, 4), nn.Linear(4, 2), 0.01

        def clip(self, g):
            return g.clamp(-self.limit, self.limit)

        def forward(self, x):
            h = self.a(x).tanh()
            h.register_hook(self.clip)
            return self.b(h)

    model = Model()

    def step(x):
        loss = model(x).square().sum()
        loss.backward()
        return loss.detach()

    f, out = compiled(step), []
    for limit in (0.01, 0.01, 0.5):
        model.limit = limit
        out.append(f(randn(3, 4)))
    return out, [p.grad for p in model.parameters()]


@program.breaks
def changes_between_two_passes_inside(compiled):
    def step(x):
        table = {"by": 3.0}
        h = x.sin()
        h.register_hook(lambda g: g * table["by"])
        a, b = h.exp().sum(), h.square().sum()
        a.backward(retain_graph=True)
        table["by"] = 7.0
        b.backward()

    f, x = compiled(step), leaf(4)
    f(x)
    f(x)
    return x.grad


@program
def removed_before_the_second_pass(compiled):
    log = []

    def step(x):
        h = x.sin()
        with h.register_hook(lambda g: log.append(g.sum())):
            h.exp().sum().backward(retain_graph=True)
        h.square().sum().backward()

    f, x = compiled(step), leaf(4)
    f(x)
    f(x)
    return log, x.grad


@program
def one_hook_changes_what_another_reads(compiled):
    def step(x):
        seen = {}
        h = x.sin()
        k = h * 2
        h.register_hook(lambda g: seen.update(h=seen["k"] + g) if "k" in seen else None)
        k.register_hook(lambda g: seen.update(k=g))
        k.exp().sum().backward()
        return seen["h"]

    f, x = compiled(step), leaf(4)
    return [f(x) for _ in range(2)], x.grad


@program.breaks
def writes_to_the_gradient(compiled):
    def step(x):
        h = x.sin()

        def hook(g):
            g.mul_(2)

        h.register_hook(hook)
        h.exp().sum().backward()

    f, x = compiled(step), leaf(4)
    f(x)
    return x.grad


@program.breaks
def changes_the_gradient_and_logs(compiled):
    log = []

    def step(x):
        h = x.sin()
        h.register_hook(lambda g: (log.append(g), g * 2)[1])
        h.exp().sum().backward()

    f, x = compiled(step), leaf(4)
    f(x)
    f(x)
    return log, x.grad


@program.breaks
def a_part_of_the_history_leaves(compiled):
    log = []

    def step(x):
        h = x.sin()
        h.register_hook(lambda g: log.append(g))
        k = h + 1
        h.exp().sum().backward()
        return k

    x = leaf(4)
    k = compiled(step)(x)
    try:
        k.sum().backward()
    except RuntimeError as e:
        return str(e)[:30], x.grad
    return log, x.grad


@program
def in_a_loop_under_autocast(compiled):
    layers, norms = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), []

    def step(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for i, layer in enumerate(layers):
                x = layer(x).tanh()
                x.register_hook(lambda g, i=i: norms.append((i, g.dtype, g.float().norm())))
        loss = x.float().square().sum()
        loss.register_hook(lambda g: g * 128)
        loss.backward()

    f = compiled(step)
    f(randn(3, 4))
    f(randn(5, 4))
    return [n[:2] for n in norms], [n[2] > 0 for n in norms]


@program
def a_tied_parameter_and_a_part_that_is_not_reached(compiled):
    w, log = leaf(4, 4), []
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    w.register_hook(lambda g: g * 0.5)

    def step(x):
        h = x @ w
        u = h.exp()
        u.register_hook(lambda g: log.append("never"))
        (h @ w.t()).tanh().sum().backward()

    f = compiled(step)
    for _ in range(3):
        f(randn(2, 4))
    return log, w.grad


@program
def asked_for_by_grad(compiled):
    w, log = leaf(4, 4), []
    w.register_hook(lambda g: g * 2)

    def f(x):
        h = (x @ w).tanh()
        h.register_hook(lambda g: log.append(g))
        gh, gw = torch.autograd.grad(h.square().sum(), (t for t in (h, w)))
        return gh, gw

    f = compiled(f)
    return [f(randn(3, 4)) for _ in range(2)], log, w.grad


# -- on leaves, before the function is called
@program
def clips_the_gradients_of_parameters(compiled):
    model = mlp()
    for p in model.parameters():
        p.register_hook(lambda g: g.clamp(-0.01, 0.01))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = compiled(step)
    return [f(randn(5, 4)) for _ in range(4)], list(model.parameters()), [p.grad for p in model.parameters()]


@program
def an_optimizer_for_each_parameter(compiled):
    model, names = mlp(), []
    optimizers = {p: torch.optim.SGD([p], 0.1, momentum=0.9) for p in model.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(update)
        p.register_post_accumulate_grad_hook(lambda p, name=name: names.append((name, p.grad)))

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    f = compiled(step)
    losses = [f(randn(5, 4)) for _ in range(4)]
    optimizers[model[0].weight] = torch.optim.SGD([model[0].weight], 0.5)  # another one
    losses.append(f(randn(5, 4)))
    return losses, names, list(model.parameters()), [p.grad for p in model.parameters()]


@program
def gradients_are_kept_by_a_hook(compiled):
    """What the hook keeps is no memory of `.grad`."""
    w, got = leaf(4), []
    w.register_hook(lambda g: got.append(g))

    def step(x):
        (x * w).sum().backward()

    f = compiled(step)
    f(randn(4))
    w.grad.zero_()
    f(randn(4))
    return got, w.grad


@program
def hooks_of_modules(compiled):
    model, log = mlp(), []
    model[0].register_full_backward_hook(lambda m, gi, go: log.append((gi[0], go[0])))
    model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 3,))
    model[2].register_full_backward_hook(lambda m, gi, go: log.append((gi[0], go[0])))

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    f = compiled(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        losses = [f(leaf(5, 4) if n else randn(5, 4)) for n in (0, 1, 1)]
    return losses, log, [p.grad for p in model.parameters()]


@program.breaks
def hooks_of_modules_that_change_gradients(compiled):
    model = mlp()
    model[2].register_full_backward_hook(lambda m, gi, go: (gi[0] * 2 + go[0].sum(),))
    f = compiled(lambda x: model(x).square().mean())
    for _ in range(2):
        f(randn(5, 4)).backward()
    return [p.grad for p in model.parameters()]


@program.breaks
def a_hook_that_returns_something_after_accumulation(compiled):
    w = leaf(4)
    w.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))

    def step(x):
        (x * w).sum().backward()

    return compiled(step)(randn(4))


@program.breaks
def a_hook_that_raises_inside(compiled):
    w = leaf(4)

    def hook(g):
        raise ValueError("from the hook")

    def step(x):
        h = x * w
        h.register_hook(hook)
        h.sum().backward()

    try:
        compiled(step)(randn(4))
    except ValueError as e:
        return str(e), w.grad
    return None


@pytest.mark.parametrize("run, whole", program.params)
def test_like_eager(run, whole):
    check(run, whole)
