"""Training steps that break, and do what eager does all the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .harness import Programs, check, leaf, mlp, randn
from .steps import OPTIMIZERS, all_of, train

program = Programs()


@program.breaks
def hooks_on_parameters(compiled):
    def change(k, m, opt):
        if k == 2:
            m[0].weight.register_hook(lambda g: g * 2)
        if k == 3:
            m[2].bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(3))

    return train(compiled, OPTIMIZERS["sgd"], change=change)


@program.breaks
def hooks_on_the_optimizer(compiled):
    log = []

    def change(k, m, opt):
        if k == 2:
            opt.register_step_pre_hook(lambda o, a, kw: log.append("before"))
            opt.register_step_post_hook(lambda o, a, kw: log.append("after"))

    return train(compiled, OPTIMIZERS["adam"], change=change), log


@program.breaks
def an_optimizer_of_ones_own(compiled):
    class Signs(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.01})

        @torch.no_grad()
        def step(self):
            for g in self.param_groups:
                for p in g["params"]:
                    p.sub_(p.grad.sign() * g["lr"])

    class Loud(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            for g in self.param_groups:
                g["lr"] *= 0.5

    return train(compiled, Signs), train(compiled, lambda p: Loud(p, 0.1))


@program.breaks
def backward_through_what_came_in(compiled):
    w = leaf(4)
    f, out = compiled(lambda h: h.sin().sum().backward()), []
    for _ in range(2):
        f(w.exp())
        out.append(w.grad.clone())
    return out


@program.breaks
def a_loop_of_steps(compiled):
    m = mlp()
    opt = torch.optim.AdamW(m.parameters(), 0.01)

    def loop(data):
        losses = []
        for x in data:
            opt.zero_grad()
            loss = m(x).pow(2).mean()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return losses

    f = compiled(loop)
    return [torch.tensor(f([randn(3, 4) for _ in range(4)])) for _ in range(2)], all_of(m, opt)


@program.breaks
def a_leaf_made_inside(compiled):
    def f(x):
        w = torch.ones(4, requires_grad=True)
        (w * x).sum().backward()
        return w.grad

    return compiled(f)(randn(4))


@program.breaks
def saved_tensor_hooks_around(compiled):
    w, log = leaf(4), []
    f = compiled(lambda w: w.exp().sin().sum().backward())
    for on in (False, True, False):
        if on:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append(1), t)[1], lambda t: t):
                f(w)
        else:
            f(w)
    return w.grad, bool(log)


@program.breaks
def second_pass_inside(compiled):
    w = leaf(4)

    def f(w):
        y = w.exp().sum()
        y.backward()
        try:
            y.backward()
        except RuntimeError as e:
            return "second time" in str(e)

    return compiled(f)(w), w.grad


@program.breaks
def gradient_with_a_history(compiled):
    w = leaf(4)
    f = compiled(lambda w: w.exp().sum().backward())
    w.pow(3).sum().backward(create_graph=True)
    f(w)
    return w.grad


@program.breaks
def scaled_losses(compiled):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=False):
            loss = m(x).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        scaler.step(opt)
        scaler.update()
        return loss.detach(), norm

    f, out = compiled(step), []
    for k in range(5):
        x = randn(3, 4)
        if k == 2:
            x[0, 0] = float("inf")
        out += [*f(x), scaler.get_scale()]
    return out, all_of(m, opt)


@program.breaks
def schedule_inside(compiled):
    m = mlp()
    opt = torch.optim.AdamW(m.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)

    def step(x):
        opt.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        opt.step()
        schedule.step()
        return loss

    f = compiled(step)
    return [f(randn(3, 4)).detach() for _ in range(4)], opt.param_groups[0]["lr"], all_of(m, opt)


@program.breaks
def half_precision_parameters(compiled):
    m = mlp().bfloat16()
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)

    def step(x):
        opt.zero_grad()
        loss = m(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    f = compiled(step)
    return [f(randn(3, 4).bfloat16()).detach().round(decimals=1) for _ in range(2)], [p.dtype for p in m.parameters()]


@program.breaks
def state_read_between(compiled):
    m = mlp()
    opt = torch.optim.Adam(m.parameters(), 0.1)

    def step(x):
        m(x).pow(2).mean().backward()
        opt.step()
        opt.zero_grad()
        return float(opt.state[m[0].weight]["step"])

    f = compiled(step)
    return [f(randn(3, 4)) for _ in range(3)], all_of(m, opt)


@program.breaks
def inputs_that_share_memory(compiled):
    """The last call runs as it is: it is given what it changes."""
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def step(x, y, z):
        opt.zero_grad()
        loss = (m(x) - m(y)[:, :1] * m(z)).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    f, x = compiled(step), randn(6, 4)
    out = [f(x[:3], x[:3], x[1:4]).detach(), f(x[:3], x[2:5], x[3:]).detach()]
    before = m[0].weight.detach()[:3]  # what is changed itself
    return out, f(before, before * 2, x[:3]).detach(), all_of(m, opt)


@pytest.mark.parametrize("run, whole", program.params)
def test_like_eager(run, whole):
    check(run, whole)
