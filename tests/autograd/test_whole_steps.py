"""Training steps that are captured as a whole: forward, backward and update in one graph, as eager leaves everything
behind.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tcompile
from tcompile.compiler import events

from .harness import Programs, check, leaf, mlp, randn

program = Programs()


def state_of(opt):
    return [
        [(k, v.clone() if isinstance(v, torch.Tensor) else v) for k, v in opt.state[p].items()]
        for g in opt.param_groups
        for p in g["params"]
    ]


def all_of(m, opt):
    return (
        [p.detach().clone() for p in m.parameters()],
        [None if p.grad is None else p.grad.clone() for p in m.parameters()],
        state_of(opt),
    )


def train(compiled, make, steps=5, change=None, scheduler=None):
    """Train a small model by a compiled step; what is left of it."""
    m = mlp()
    opt = make(m.parameters())
    schedule = scheduler(opt) if scheduler else None

    def step(x, y):
        opt.zero_grad()
        loss = F.mse_loss(m(x), y)
        loss.backward()
        opt.step()
        return loss

    f, out = compiled(step), []
    for k in range(steps):
        if change is not None:
            change(k, m, opt)
        out.append(f(randn(6, 4), randn(6, 2)).detach())
        if schedule is not None:
            schedule.step()
    return out, *all_of(m, opt)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01, dampening=0.1),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam_amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.1),
    "adam_foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    "adam_fused": lambda p: torch.optim.Adam(p, 0.01, fused=True),
    "adam_tensor_lr": lambda p: torch.optim.Adam(p, torch.tensor(0.01)),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "rmsprop_all": lambda p: torch.optim.RMSprop(p, 0.01, centered=True, momentum=0.9, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, 1.0),
    "rprop": lambda p: torch.optim.Rprop(p, 0.01),
    "radam": lambda p: torch.optim.RAdam(p, 0.01),  # rectified from the sixth step on
    "radam_decoupled": lambda p: torch.optim.RAdam(
        p, 0.01, weight_decay=0.1, decoupled_weight_decay=True, betas=(0.8, 0.9)
    ),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01, t0=3, lambd=0.1, weight_decay=0.01),
    "sgd_momentum_alone": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    check(functools.partial(train, make=OPTIMIZERS[name], steps=8), quiet=True)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "muon"])
def test_a_parameter_without_dimensions(name):
    """A temperature, a logit scale."""

    def run(compiled):
        m, scale = mlp(), nn.Parameter(torch.tensor(1.5))
        opt = OPTIMIZERS[name]([*m.parameters(), scale])

        def step(x):
            opt.zero_grad()
            loss = (m(x) * scale.exp()).pow(2).mean()
            loss.backward()
            opt.step()
            return loss.detach()

        f = compiled(step)
        return (
            [f(randn(6, 4)) for _ in range(7)],
            scale.detach(),
            scale.grad,
            all_of(m, opt),
            list(opt.state[scale].items()),
        )

    check(run, quiet=name != "sgd_momentum")  # (dampened: its first step makes the state)


def test_an_optimizer_that_breaks():
    check(functools.partial(train, make=lambda p: torch.optim.Adafactor(p, 0.01), steps=8), quiet=False)


class Signs(torch.optim.Optimizer):
    """Somebody's own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            self.state[p]["n"] = self.state[p].get("n", 0) + 1
            p.sub_(p.grad.sign(), alpha=self.param_groups[0]["lr"])


def test_an_optimizer_of_the_programs_own():
    check(functools.partial(train, make=lambda p: Signs(p, 0.01), steps=4), quiet=False)


@pytest.mark.parametrize("name", ["sgd_momentum_alone", "radam", "adamw"])
def test_the_first_step_and_the_later_ones_are_one_entry(name):
    made = []

    def hear(e):
        if e.kind == "entry":
            made.append(e)

    tcompile.reset()
    events.subscribe(hear)
    try:
        train(tcompile.compile, OPTIMIZERS[name], steps=4)
    finally:
        events.unsubscribe(hear)
    assert len(made) == 1


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["sgd_momentum", "adamw"])
def test_schedules(name, schedule):
    check(functools.partial(train, make=OPTIMIZERS[name], scheduler=SCHEDULES[schedule], steps=8), quiet=False)


def test_a_schedule_compiles_nothing_anew():
    seen = []

    def hear(e):
        if e.kind in ("recompile", "break", "skip"):
            seen.append((e.kind, str(e.facts)))

    tcompile.reset()
    events.subscribe(hear)
    try:
        train(tcompile.compile, OPTIMIZERS["adamw"], scheduler=SCHEDULES["cosine"], steps=6)
    finally:
        events.unsubscribe(hear)
    assert not seen


@program
def frozen_between_steps(compiled):
    def change(k, m, opt):
        m[0].weight.requires_grad_(k not in (2, 3))

    return train(compiled, OPTIMIZERS["adam"], change=change)


@program
def momentum_and_rate_changed_by_hand(compiled):
    def change(k, m, opt):
        if k == 3:
            opt.param_groups[0]["lr"] = 0.5
            opt.param_groups[0]["weight_decay"] = 0.3

    return train(compiled, OPTIMIZERS["adamw"], change=change)


@program
def state_replaced(compiled):
    def change(k, m, opt):
        if k == 2:
            opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        if k == 3:
            for s in opt.state.values():
                s["step"].fill_(100.0)
                s["exp_avg"] = torch.ones_like(s["exp_avg"])

    return train(compiled, OPTIMIZERS["adam"], change=change)


@program
def state_cleared(compiled):
    def change(k, m, opt):
        if k == 3:
            opt.state.clear()

    return train(compiled, OPTIMIZERS["adam"], change=change)


@program
def groups(compiled):
    m = mlp()
    opt = torch.optim.AdamW(
        [{"params": m[0].parameters(), "lr": 0.1}, {"params": m[2].parameters(), "weight_decay": 0.0}], lr=0.01
    )

    def step(x):
        opt.zero_grad(set_to_none=False)
        m(x).pow(2).sum().backward()
        opt.step()

    f = compiled(step)
    for k in range(4):
        f(randn(3, 4))
        opt.param_groups[k % 2]["lr"] *= 0.5
    return all_of(m, opt)


@program
def accumulation(compiled):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def part(x):
        (m(x).pow(2).sum() / 2).backward()

    def step():
        opt.step()
        opt.zero_grad()

    f, g, out = compiled(part), compiled(step), []
    for _ in range(3):
        f(randn(3, 4))
        first = m[0].weight.grad
        f(randn(3, 4))
        out += [first is m[0].weight.grad, first.clone()]
        g()
        out.append(m[0].weight.grad)
    return out, all_of(m, opt)


@program
def two_losses_in_one_step(compiled):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def step(x):
        opt.zero_grad()
        a, b = m(x).pow(2).mean(), m(x * 2).abs().mean()
        a.backward(retain_graph=True)
        b.backward()
        norm = nn.utils.clip_grad_norm_(m.parameters(), 0.1)
        opt.step()
        return a, norm

    f = compiled(step)
    return [[t.detach() for t in f(randn(3, 4))] for _ in range(3)], all_of(m, opt)


@program
def gan_step(compiled):
    d, g = (
        nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)),
    )
    od, og = torch.optim.Adam(d.parameters(), 0.01), torch.optim.SGD(g.parameters(), 0.1)

    def step(z, real):
        fake = g(z)
        od.zero_grad()
        d_loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        d_loss.backward()
        od.step()
        og.zero_grad()
        g_loss = F.softplus(-d(fake)).mean()
        g_loss.backward()
        og.step()
        return d_loss, g_loss, fake

    f = compiled(step)
    return [f(randn(5, 3), randn(5, 4)) for _ in range(3)], all_of(d, od), all_of(g, og)


@program
def closure(compiled):
    m = mlp()
    opt = torch.optim.Adam(m.parameters(), 0.01)

    def step(x):
        def loss():
            opt.zero_grad()
            value = m(x).pow(2).sum()
            value.backward()
            return value

        return opt.step(loss)

    f = compiled(step)
    return [f(randn(3, 4)).detach() for _ in range(3)], all_of(m, opt)


@program
def gradient_penalty(compiled):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def step(x):
        opt.zero_grad()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        loss = y.pow(2).mean() + (g.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        opt.step()
        return loss.detach(), g.detach()

    f = compiled(step)
    return [f(leaf(3, 4)) for _ in range(3)], all_of(m, opt)


@program
def backward_alone(compiled):
    x, w, v = randn(3, 4), leaf(4, 4), leaf(4)

    def f(x, w, v):
        y = x @ w + v
        y.backward(torch.ones_like(y))
        return y, v.grad

    g, out = compiled(f), []
    for _ in range(3):
        y, seen = g(x, w, v)
        out += [y, seen.clone(), seen is v.grad, w.grad.clone(), v.grad.clone()]
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    return out


@program
def gradients_of_their_own(compiled):
    a, b, g = leaf(3, 3), leaf(3, 3), randn(3, 3)

    def f(a, b, g):
        (a + b.t()).backward(g)
        return g

    h = compiled(f)
    h(a, b, g)
    a.grad.add_(1)
    return a.grad, b.grad, g, a.grad.stride(), b.grad.stride(), h(a, b, g) is g, a.grad


@program
def inputs_named(compiled):
    w, v = leaf(4), leaf(4)

    def f(w, v):
        (w * v).sum().backward(inputs=[w])

    g = compiled(f)
    g(w, v)
    g(w, v)
    return w.grad, v.grad


@program
def gradients_asked_for(compiled):
    x, w = leaf(4), leaf(4)

    def f(x, w):
        y = (x * w).sin().sum()
        g = torch.autograd.grad(y, (x, w))
        h = torch.autograd.grad((x * x).sum(), [x, w], allow_unused=True)
        return y, g, h, torch.autograd.grad(w.exp().sum(), w, retain_graph=True)[0]

    y, g, h, k = compiled(f)(x, w)
    return y, g, h, k, x.grad


@program
def part_of_the_history_lives_on(compiled):
    x, w = leaf(4), leaf(4)

    def f(x, w):
        x.sin().sum().backward()
        return w.cos() * 2

    y = compiled(f)(x, w)
    y.sum().backward()
    return y, x.grad, w.grad


@program
def rates_of_ones_own(compiled):
    w = leaf(4)

    def step(x, lr):
        loss = (w * x).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=lr)
            w.grad = None
        return loss

    f = compiled(step)
    return [f(randn(4), 0.1 / (k + 1)).detach() for k in range(4)], w


@program
def norms_and_batch_statistics(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3), nn.Dropout(0.3)
    )
    opt = torch.optim.AdamW(m.parameters(), 0.01)

    def step(x, y):
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    f = compiled(step)
    losses = [f(randn(5, 3, 4, 4), torch.arange(5) % 3).detach() for _ in range(3)]
    return losses, all_of(m, opt), [b.clone() for b in m.buffers()]


@program
def tied_weights(compiled):
    torch.manual_seed(0)
    e, h = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    h.weight = e.weight
    opt = torch.optim.Adam(e.parameters(), 0.01)

    def step(i):
        opt.zero_grad()
        loss = F.cross_entropy(h(e(i)), i)
        loss.backward()
        opt.step()
        return loss

    f = compiled(step)
    return [f(torch.arange(5)).detach() for _ in range(3)], all_of(e, opt)


@program
def autocast_inside(compiled):
    m = mlp()
    opt = torch.optim.AdamW(m.parameters(), 0.01)

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = m(x).float().pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    f = compiled(step)
    return [f(randn(3, 4)).detach() for _ in range(2)], [p.dtype for p in m.parameters()]


# --- what breaks
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


@program
def step_that_may_fail_later(compiled):
    """Writes wait for what may fail; the call that failed is run again as it is, and changes everything once."""
    e = nn.Embedding(5, 4)
    opt = torch.optim.SGD(e.parameters(), 0.1, momentum=0.9)

    def step(i):
        opt.zero_grad()
        e(i).sum().backward()
        opt.step()
        return e(i + 1)

    f = compiled(step)
    out = [f(torch.tensor([0, 1])).detach(), e.weight.detach().clone()]
    try:
        f(torch.tensor([3, 4]))
    except IndexError as error:
        out.append(str(error))
    return out, e.weight, e.weight.grad, state_of(opt)


@program
def sharpness_aware(compiled):
    """Parameters are moved by hand between two backward passes."""
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)

    def step(x, y):
        F.cross_entropy(m(x), y).backward()
        with torch.no_grad():
            norm = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
            moves = [p.grad * (0.05 / (norm + 1e-12)) for p in m.parameters()]
            for p, e in zip(m.parameters(), moves):
                p.add_(e)
        opt.zero_grad()
        loss = F.cross_entropy(m(x), y)
        loss.backward()
        with torch.no_grad():
            for p, e in zip(m.parameters(), moves):
                p.sub_(e)
        opt.step()
        return loss.detach()

    f = compiled(step)
    return [f(randn(6, 4), torch.tensor([0, 1] * 3)) for _ in range(4)], all_of(m, opt)


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


@program
def gradients_unscaled(compiled):
    def unscale(grads, found, inverse):
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
        return [g + 0 for g in grads], found.clone()

    f, out = compiled(unscale), []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for bad in (None, float("inf"), float("-inf"), float("nan")):
            for inverse in (1.0, 2.0**-20, 0.3):
                grads = [
                    (torch.randn(3, 5) * 100).to(dtype),
                    torch.randn(4).to(dtype).t(),
                    torch.zeros(0, dtype=dtype),
                    torch.tensor(-0.0, dtype=dtype),
                ]
                if bad is not None:
                    grads[0][1, 2] = bad
                found = torch.zeros(1) if dtype == torch.float16 else torch.zeros(())
                out += [grads, found, f(grads, found, torch.full_like(found, inverse))]
    found = torch.ones(())
    return out, f([torch.randn(3)], found, torch.ones(())), found


@program
def lists_of_tensors(compiled):
    """torch's operators on lists, which clip_grad_norm_ and optimizers use."""

    def f(xs, ys, number):
        a = torch._foreach_add(torch._foreach_mul(xs, ys), number)
        norms = torch._foreach_norm(a, 2)
        torch._foreach_addcdiv_(a, xs, torch._foreach_add(torch._foreach_abs(ys), 1.0), 0.5)
        torch._foreach_lerp_(a, xs, 0.25)
        torch._foreach_mul_(a, 1 / (torch.stack(norms).norm() + 1))
        return (
            a,
            norms,
            torch._foreach_maximum(a, ys),
            torch._foreach_pow(torch._foreach_abs(a), 0.5),
            torch._foreach_max(a),
        )

    xs, ys = [randn(3, 4), randn(5), randn(())], [randn(3, 4), randn(5), randn(())]
    leaves = [leaf(3, 4), leaf(5), leaf(1)]

    def with_gradients(xs):
        return sum(n * n for n in torch._foreach_norm(torch._foreach_mul(torch._foreach_sigmoid(xs), 2.0)))

    compiled(with_gradients)(leaves).backward()
    return compiled(f)(xs, ys, 0.5), xs, [x.grad for x in leaves]


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


@program
def parameters_exchanged(compiled):
    def change(k, m, opt):
        if k == 2:
            m[0].weight = nn.Parameter(torch.ones(8, 4))  # the optimizer keeps the old one
        if k == 3:
            opt.add_param_group({"params": [m[0].weight], "lr": 0.3})

    return train(compiled, OPTIMIZERS["adam"], change=change)


@program
def gradients_kept_between(compiled):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)

    def step(x, again):
        m(x).pow(2).mean().backward()
        if again:
            opt.step()
            m.zero_grad(set_to_none=False)

    f, out = compiled(step), []
    for k in range(6):
        f(randn(3, 4), k % 2 == 1)
        out.append(m[0].weight.grad.clone())
    return out, all_of(m, opt)


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


# --- opt.step compiled by itself
@pytest.mark.parametrize("name", ["sgd_momentum", "adam", "adamw", "rmsprop_all"])
def test_a_compiled_step_method(name):
    def run(compiled):
        m = mlp()
        opt = OPTIMIZERS[name](m.parameters())
        step = compiled(opt.step)
        for _ in range(4):
            opt.zero_grad()
            m(randn(3, 4)).pow(2).sum().backward()
            step()
        return all_of(m, opt)

    check(run, quiet=True)
