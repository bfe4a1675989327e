"""What training programs do around a compiled part: averages of parameters, hooks that come and go, inner loops, more
optimizers, resuming.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn

from .harness import Programs, check, leaf, randn

program = Programs()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))


def left(m: nn.Module) -> tuple:
    """Parameters and gradients."""
    return [p.detach().clone() for p in m.parameters()], [
        None if p.grad is None else p.grad.clone() for p in m.parameters()
    ]


def whole_step(m, optimizer):
    def step(x):
        optimizer.zero_grad()
        loss = m(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


@program.breaks
def average_of_parameters(compiled):
    m = mlp()
    average = copy.deepcopy(m)
    f, g = compiled(m), compiled(average)
    optimizer, out = torch.optim.AdamW(m.parameters(), 1e-2), []
    for _ in range(4):
        optimizer.zero_grad()
        f(randn(4, 8)).pow(2).mean().backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(average.parameters(), m.parameters()):
                a.lerp_(b, 0.1)
            out.append(g(randn(4, 8)))
    return out, left(m), left(average)


@program.breaks
def policy_gradient(compiled):
    m = mlp()
    optimizer, out = torch.optim.Adam(m.parameters(), 1e-2), []

    def act(x):
        d = torch.distributions.Categorical(logits=m(x))
        action = d.sample()
        return action, d.log_prob(action), d.entropy()

    f = compiled(act)
    for k in range(4):
        taken = [f(randn(8)) for _ in range(3)]
        loss = (
            -sum(log * (float(a.item() % 3) - 1) for a, log, _ in taken)
            - 0.01 * torch.stack([e for _, _, e in taken]).sum()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.detach())
    return out, left(m)


def sparse_gradients(compiled, make):
    torch.manual_seed(0)
    table, head = nn.Embedding(12, 4, sparse=True), nn.Linear(4, 2)
    bag = nn.EmbeddingBag(12, 4, sparse=True)
    optimizers = make([table.weight, bag.weight], [*head.parameters()])

    def step(i):
        loss = head(table(i).mean(1) + bag(i)).pow(2).mean()
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        for o in optimizers:
            o.step()
        return loss.detach()

    f = compiled(step)
    out = [f(torch.tensor([[k, k + 3], [2, k]])) for k in range(4)]
    return out, table.weight.grad.to_dense(), table.weight.detach(), bag.weight.detach(), left(head)


@program.breaks
def sparse_gradients_and_one_optimizer(compiled):
    return sparse_gradients(compiled, lambda sparse, dense: [torch.optim.SGD([*sparse, *dense], 0.1)])


@program.breaks
def sparse_gradients_and_an_optimizer_for_them(compiled):
    return sparse_gradients(
        compiled, lambda sparse, dense: [torch.optim.SparseAdam(sparse, 0.1), torch.optim.Adam(dense, 0.1)]
    )


@program.breaks
def every_third_step_updates(compiled):
    m = mlp()
    optimizer, out = torch.optim.Adam(m.parameters(), 1e-2), []

    def micro(x, last):
        m(x).pow(2).mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()

    f = compiled(micro)
    for k in range(7):
        f(randn(4, 8), k % 3 == 2)
        out.append(left(m))
    return out


@program.breaks
def weights_untied(compiled):
    torch.manual_seed(0)
    table, out_layer, out = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False), []
    out_layer.weight = table.weight
    m = nn.Sequential(table, nn.Tanh(), out_layer)
    f = compiled(m)
    for k in range(4):
        if k == 2:
            out_layer.weight = nn.Parameter(table.weight.detach().clone())
        m.zero_grad()
        f(torch.randint(0, 11, (3, 4))).pow(2).mean().backward()
        out.append(left(m))
    return out


@program
def optimizers_in_hooks(compiled):
    m, seen = mlp(), []
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def hook(p):
        optimizers[p].step()
        optimizers[p].zero_grad()
        seen.append(tuple(p.shape))

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(hook)
    f = compiled(m)
    for _ in range(3):
        f(randn(4, 8)).mean().backward()
    return sorted(seen), left(m)


@pytest.mark.parametrize("whole", [False, True], ids=["model", "step"])
def test_hooks_come_and_go(whole):
    def run(compiled):
        m, out = mlp(), []
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        step = compiled(whole_step(m, optimizer)) if whole else whole_step(compiled(m), optimizer)
        for k in range(5):
            if k == 1:
                tensor_hook = m[0].weight.register_hook(lambda g: g * 3)
            if k == 2:
                module_hook = m[1].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.5,))
            if k == 3:
                tensor_hook.remove()
            if k == 4:
                module_hook.remove()
            step(randn(4, 8))
            out.append(left(m))
        return out

    check(run, quiet=False)


@pytest.mark.parametrize("whole", [False, True], ids=["model", "step"])
def test_hooks_where_gradients_are_accumulated(whole):
    """As libraries put them that exchange gradients themselves: no attribute of a parameter tells of them."""

    def run(compiled):
        m, out, called = mlp(), [], []
        optimizer = torch.optim.SGD(m.parameters(), 0.1)
        step = compiled(whole_step(m, optimizer)) if whole else whole_step(compiled(m), optimizer)
        node = m[0].weight.view_as(m[0].weight).grad_fn.next_functions[0][0]
        for k in range(4):
            if k == 1:
                hook = node.register_hook(lambda *given: called.append(1))
            if k == 3:
                hook.remove()
            step(randn(4, 8))
            out.append((left(m), len(called)))
        return out

    check(run, quiet=False)


@program.breaks
def inner_loop_with_gradients(compiled):
    m = mlp()
    f = compiled(lambda p, x: torch.func.functional_call(m, p, (x,)).pow(2).mean())
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    g = torch.autograd.grad(f(p, randn(4, 8)), list(p.values()), create_graph=True)
    q = {k: v - 0.1 * gk for (k, v), gk in zip(p.items(), g)}
    f(q, randn(4, 8)).backward()
    return {k: v.grad for k, v in p.items()}


@program.breaks
def gradients_of_samples(compiled):
    m = mlp()
    p = {k: v.detach() for k, v in m.named_parameters()}

    def loss(p, x):
        return torch.func.functional_call(m, p, (x[None],)).pow(2).mean()

    f = compiled(lambda p, x: torch.vmap(torch.func.grad(loss), (None, 0))(p, x))
    return f(p, randn(4, 8)), f(p, randn(5, 8))


@program.breaks
def selective_checkpoint(compiled):
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    m, x = mlp(), leaf(4, 8)
    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.mm.default, torch.ops.aten.addmm.default]
    )
    compiled(lambda x: checkpoint(m, x, use_reentrant=False, context_fn=contexts))(x).sum().backward()
    return x.grad, left(m)


@program
def gradient_penalty_between_samples(compiled):
    """backward() reaches a leaf that was made inside, whose gradient nobody reads."""
    m = mlp()
    optimizer = torch.optim.SGD(m.parameters(), 1e-3)

    def step(real, fake):
        share = torch.rand(len(real), 1)
        between = (share * real + (1 - share) * fake).requires_grad_(True)
        score = m(between)
        (slope,) = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
        loss = m(fake).mean() - m(real).mean() + 10 * (slope.norm(2, 1) - 1).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = compiled(step)
    return [f(randn(4, 8), randn(4, 8)) for _ in range(3)], left(m)


@program
def adversarial_examples(compiled):
    """The gradient of a leaf that was made inside is read, accumulated and reset."""
    m = mlp()

    def step(x):
        d = torch.zeros_like(x, requires_grad=True)
        m(x + d).pow(2).mean().backward()
        m(x + 2 * d).pow(2).mean().backward()
        first = d.grad.clone()
        d.grad.zero_()
        m(x - d).pow(2).mean().backward()
        second, d.grad = d.grad, None
        m(x - 3 * d).mean().backward()
        return first, second, d.grad

    f = compiled(step)
    return [f(randn(4, 8)) for _ in range(3)], left(m)


@program.breaks
def leaves_that_leave_with_gradients(compiled):
    m, kept = mlp(), []

    def step(x):
        d, e = torch.ones(8, requires_grad=True), torch.ones(8).requires_grad_()
        loss = m(x * d * e).pow(2).mean()
        loss.backward()
        kept.append(d)
        return loss.detach(), d.grad.sum(), e

    f = compiled(step)
    out = [f(randn(4, 8)) for _ in range(3)]
    return out, [e.grad for _, _, e in out], [(d, d.grad) for d in kept], left(m)


def test_parameters_in_one_buffer():
    """The buffer is read where parameters change: forward and step are graphs of their own, and nothing is skipped."""

    def run(compiled):
        m = mlp()
        buffer, start = torch.cat([p.detach().flatten() for p in m.parameters()]), 0
        for p in m.parameters():
            p.data = buffer[start : start + p.numel()].view_as(p)
            start += p.numel()
        optimizer = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
        f = compiled(whole_step(lambda x: m(x) + buffer.pow(2).sum() * 1e-3, optimizer))
        return [f(randn(4, 8)).detach() for _ in range(3)], left(m), buffer

    check(run, quiet=False, allowed=("break",))


def test_gradients_in_one_buffer():
    def run(compiled):
        m, start = mlp(), 0
        buffer = torch.zeros(sum(p.numel() for p in m.parameters()))
        for p in m.parameters():
            p.grad = buffer[start : start + p.numel()].view_as(p)
            start += p.numel()

        def step(x):
            buffer.zero_()
            loss = m(x).pow(2).mean()
            loss.backward()
            norm = buffer.norm()
            with torch.no_grad():
                for p in m.parameters():
                    p.sub_(0.1 * p.grad / norm)
            return loss.detach(), norm

        f = compiled(step)
        return [f(randn(4, 8)) for _ in range(3)], left(m), buffer

    check(run, quiet=False, allowed=("break",))


OPTIMIZERS = {
    "lbfgs": lambda p: torch.optim.LBFGS(p, 0.1, max_iter=3),
    "muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], 0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_that_break(name):
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")

    def run(compiled):
        m = mlp()
        optimizer, x = OPTIMIZERS[name](m.parameters()), randn(4, 8)

        def closure():
            optimizer.zero_grad()
            loss = m(x).pow(2).mean()
            loss.backward()
            return loss

        f = compiled(lambda: optimizer.step(closure))
        return [f().detach() for _ in range(3)], left(m)

    check(run, quiet=False)


@program.breaks
def parameters_added(compiled):
    m, extra, out = mlp(), nn.Parameter(torch.ones(8)), []
    optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
    f = compiled(whole_step(lambda x: m(x) * extra, optimizer))
    for k in range(4):
        if k == 2:
            optimizer.add_param_group({"params": [extra], "lr": 0.5})
        out.append(f(randn(4, 8)).detach())
    return out, left(m), extra.detach()


@program.breaks
def state_loaded(compiled):
    m = mlp()
    optimizer = torch.optim.AdamW(m.parameters(), 1e-2)
    f = compiled(whole_step(m, optimizer))
    for _ in range(2):
        f(randn(4, 8))
    saved = copy.deepcopy((m.state_dict(), optimizer.state_dict()))
    f(randn(4, 8))
    m.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    return [f(randn(4, 8)).detach() for _ in range(2)], left(m), optimizer.state_dict()["state"]


@pytest.mark.parametrize("run, whole", program.params)
def test_like_eager(run, whole):
    check(run, whole)
