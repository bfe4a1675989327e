"""How often a call changes a tensor is how far its version moves, as in eager: autograd compares versions."""

import pytest
import torch
import tcompile


def several(x, y):
    x.add_(1)
    x.mul_(2)
    y[0] = 3
    return x.sum()


def views(x, y):
    x[1:].add_(1)
    x.view(-1)[0] = 5
    y.t().mul_(2)
    y.copy_(x)
    return x


def outputs(x, y):
    torch.add(x, 1, out=y)
    torch.mul(y, 2, out=y)
    torch._foreach_add_([x, y], 1)


def one(x, y):
    x.sigmoid_()
    return y + x


@pytest.mark.parametrize("f", [several, views, outputs, one])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_versions_after_a_call(f, backend):
    compiled = tcompile.compile(f, backend=backend)
    moved = []
    for g in (f, compiled):
        x, y = torch.ones(3, 3), torch.ones(3, 3)
        with torch.no_grad():
            for _ in range(2):
                g(x, y)
        moved.append((x._version, y._version, x, y))
    assert moved[0][:2] == moved[1][:2]
    for a, b in zip(moved[0][2:], moved[1][2:]):
        torch.testing.assert_close(a, b)


def test_a_step_of_training():
    def step(w, momentum, x):
        loss = (x @ w).square().sum()
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            momentum.mul_(0.9).add_(g)
            w.sub_(momentum, alpha=0.1)
        return loss

    versions = []
    for g in (step, tcompile.compile(step)):
        w, momentum = torch.ones(3, 2, requires_grad=True), torch.zeros(3, 2)
        g(w, momentum, torch.ones(4, 3))
        versions.append((w._version, momentum._version))
    assert versions[0] == versions[1]
