"""The optimizers, a model trained by one of them, and what its steps leave behind."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .harness import mlp, randn


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


class Signs(torch.optim.Optimizer):
    """Somebody's own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for g in self.param_groups for p in g["params"] if p.grad is not None):
            self.state[p]["n"] = self.state[p].get("n", 0) + 1
            p.sub_(p.grad.sign(), alpha=self.param_groups[0]["lr"])
