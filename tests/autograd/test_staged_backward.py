"""A backward pass in stages, as it is where DistributedDataParallel waits for gradients. The gradients are the same,
each stage's come before the next one runs, and autograd may be asked for anything else.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import tcompile
from tcompile.compiler.autograd import bridge, staged_backward


@pytest.fixture(autouse=True)
def waited_for(monkeypatch):
    """Each gradient of some size is a bucket of its own."""
    monkeypatch.setattr(bridge, "bucket_bytes", lambda: (64, 256))
    tcompile.reset()


@pytest.fixture
def log(monkeypatch):
    events: list[str] = []
    run_stage = staged_backward._Run.stage

    def stage(self, k):
        events.append(f"stage {k}")
        return run_stage(self, k)

    monkeypatch.setattr(staged_backward._Run, "stage", stage)
    return events


class Net(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, i, x):
        y = self.norm(x + self.table(i))
        for layer in self.layers:
            y = y + F.gelu(layer(y)) * self.scale
        return y @ self.table.weight.t(), y.mean()


def batch(n=5):
    return torch.randint(0, 7, (n,)), torch.randn(n, 8, requires_grad=True)


def both(ask, n=5, atol=1e-5):
    """What `ask(net, i, x)` gives of the plain and of the compiled net."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Net()
        f = tcompile.compile(net, fullgraph=True) if compiled else net
        i, x = batch(n)
        found.append([t.detach().clone() for t in ask(f, net, i, x)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4)


def loss_of(f, i, x):
    logits, mean = f(i, x)
    return F.cross_entropy(logits, i) + mean


def test_gradients(log):
    def ask(f, net, i, x):
        for _ in range(2):
            loss_of(f, i, x).backward()
        return [x.grad, *(p.grad for p in net.parameters())]

    both(ask)
    stages = [e for e in log if e.startswith("stage")]
    assert len(stages) > 6 and stages[: len(stages) // 2] == stages[len(stages) // 2 :]


def test_gradients_are_handed_on_before_the_next_stage(log):
    net = Net()
    for name, p in net.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: log.append(name))
    i, x = batch()
    loss_of(tcompile.compile(net, fullgraph=True), i, x).backward()
    last = max(k for k, e in enumerate(log) if e.startswith("stage"))
    assert log[0] == "stage 0" and sum(not e.startswith("stage") for e in log[:last]) >= 4
    assert log.index("layers.2.weight") < log.index("layers.1.weight") < log.index("layers.0.weight") < last
    assert sorted(e for e in log if not e.startswith("stage")) == sorted(n for n, _ in net.named_parameters())


def test_other_questions():
    def ask(f, net, i, x):
        loss = loss_of(f, i, x)
        ps = [net.layers[0].weight, net.layers[2].bias]
        out = [*torch.autograd.grad(loss, ps, retain_graph=True), *torch.autograd.grad(loss, ps[1:], retain_graph=True)]
        loss.backward(retain_graph=True)
        loss.backward()
        return [*out, x.grad, *(p.grad for p in net.parameters())]

    both(ask)


def test_some_results_have_no_tangent():
    both(lambda f, net, i, x: torch.autograd.grad(f(i, x)[1], [net.layers[1].weight, net.norm.bias]))
    both(lambda f, net, i, x: torch.autograd.grad(f(i, x)[0].sum(), [x, net.table.weight]))


def test_gradients_of_gradients():
    def ask(f, net, i, x):
        net.eval()
        (g,) = torch.autograd.grad(loss_of(f, i, x), net.layers[1].weight, create_graph=True)
        return [g, *torch.autograd.grad(g.square().sum(), [net.layers[0].weight, net.layers[2].weight])]

    both(ask, atol=1e-3)


def test_sizes_that_vary():
    net, other = Net(), Net()
    other.load_state_dict(net.state_dict())
    f = tcompile.compile(net, fullgraph=True, dynamic=True)
    for n in (5, 6, 9):
        i, x = batch(n)
        for g, m in ((f, net), (other, other)):
            m.zero_grad()
            loss_of(g, i, x).backward()
        for p, q in zip(net.parameters(), other.parameters()):
            torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4)


def test_a_second_backward_says_what_eager_says():
    i, x = batch()
    loss = loss_of(tcompile.compile(Net(), fullgraph=True), i, x)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradients_are_nobody_elses():
    """Those of a stage become `.grad` as they are, without a copy: nothing else holds them."""
    net = Net()
    pointers = {}
    net.layers[2].weight.register_hook(lambda g: pointers.update(given=g.data_ptr()))
    i, x = batch()
    loss_of(tcompile.compile(net, fullgraph=True), i, x).backward()
    assert net.layers[2].weight.grad.data_ptr() == pointers["given"]


def test_random_numbers_are_those_of_forward():
    w, v = (torch.rand(8, 8) + 0.5).requires_grad_(), (torch.rand(8, 8) + 0.5).requires_grad_()

    def f(x):
        return torch.utils.checkpoint.checkpoint(lambda t: F.dropout(t, 0.5) * w, x, use_reentrant=False) * v

    x = torch.rand(8, 8, requires_grad=True)
    y = tcompile.compile(f, fullgraph=True)(x)
    y.sum().backward()
    assert 0 < (y == 0).sum() < 64
    for t in (w, v, x):
        torch.testing.assert_close(t.grad * t, y)


def test_the_cut_of_the_whole_is_made_once(monkeypatch):
    cuts = []

    def counted(*args):
        cuts.append(args)
        return staged_backward.stages_of(*args)

    monkeypatch.setattr(bridge, "stages_of", counted)
    net, (i, x) = Net(), batch()
    step = tcompile.compile(lambda i, x: net(i, x)[0].square().mean())
    step(i, x).backward()
    assert len(cuts) == 1
