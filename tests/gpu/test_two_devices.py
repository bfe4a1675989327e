"""Batches that come from the CPU, and results that go back, inside of compiled functions."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tcompile

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.LayerNorm(96), nn.Linear(96, 10)).cuda()


WAYS = {
    "device": lambda t: t.to(torch.device("cuda")),
    "text": lambda t: t.to("cuda:0", non_blocking=True),
    "cuda()": lambda t: t.cuda(),
    "dtype": lambda t: t.to("cuda", torch.float32),
    "accelerator": lambda t: t.to(torch.accelerator.current_accelerator()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pinned", [False, True], ids=["pageable", "pinned"])
def test_a_step_brings_its_batch(way, pinned):
    bring = WAYS[way]
    batches = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(4)]
    if pinned:
        batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]

    def trained(compiled):
        m = network()
        opt = torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.9)

        def step(x, y):
            x, y = bring(x), bring(y).long()
            opt.zero_grad()
            loss = F.cross_entropy(m(x), y)
            loss.backward()
            opt.step()
            return loss

        run = tcompile.compile(step) if compiled else step
        with tcompile.record() as recording:
            losses = [run(*b).item() for b in batches]
        if compiled:
            report = recording.report()
            assert len(report.graphs) == 1 and not report.graph_breaks and not report.fallbacks, report
        return losses, [p.detach().clone() for p in m.parameters()]

    for a, b in zip(trained(True), trained(False)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_of_a_module_that_brings_its_input():
    class Bringing(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x.to(self.net[0].weight.device))

    eager, x = Bringing(), torch.randn(8, 64, requires_grad=True)
    ours, z = copy.deepcopy(eager), x.detach().clone().requires_grad_()
    with tcompile.record() as recording:
        got = tcompile.compile(ours)(z)
        got.square().sum().backward()
    want = eager(x)
    want.square().sum().backward()
    assert not recording.report().fallbacks
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(z.grad, x.grad, rtol=1e-4, atol=1e-4)
    for a, b in zip(ours.parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_what_is_computed_on_the_cpu():
    m, host, rows = network(), torch.randn(10), torch.tensor([3, 1])

    def f(x, rate):
        y = m(x)
        back = y.cpu() * host + host.exp()
        host_sum = (host * 2).sum()
        return y[rows] * rate, back.relu(), y * host_sum, y.detach().to("cpu").argmax(-1), host @ host

    x, rates = torch.randn(16, 64, device="cuda"), [torch.tensor(v) for v in (0.5, 2.5, 3.5, -1.0)]
    with torch.no_grad(), tcompile.record() as recording:
        compiled = tcompile.compile(f)
        results = [compiled(x, rate) for rate in rates]
    report = recording.report()
    assert len(report.graphs) <= 2, (report.recompiles, report.decisions, report.timeline)
    with torch.no_grad():
        for rate, got in zip(rates, results):
            for mine, theirs in zip(got, f(x, rate), strict=True):
                assert mine.device == theirs.device
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_an_input_of_the_cpu_is_written():
    m = network()

    def f(x, seen):
        seen.add_(1)
        y = m(x.cuda())
        x.mul_(2)
        return y

    mine, theirs = (
        (torch.arange(128.0).view(2, 64) / 50, torch.zeros(3)),
        (torch.arange(128.0).view(2, 64) / 50, torch.zeros(3)),
    )
    compiled = tcompile.compile(f)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*mine), f(*theirs), rtol=1e-4, atol=1e-4)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_other_modes(mode):
    m = network()
    f = tcompile.compile(lambda x: m(x.cuda()).softmax(-1), mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(8, 64)
            torch.testing.assert_close(f(x), m(x.cuda()).softmax(-1), rtol=1e-3, atol=1e-3)
