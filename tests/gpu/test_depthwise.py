"""Depthwise convolutions on a GPU: training equals eager, and first calls are made while kernels compile."""

import copy

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.runtime.gpu import first_calls

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(8, 48, 1, bias=False),
        nn.BatchNorm2d(48),
        nn.Hardswish(),
        nn.Conv2d(48, 48, 5, padding=2, groups=48, bias=False),
        nn.BatchNorm2d(48),
        nn.Conv2d(48, 48, 3, stride=2, padding=1, groups=48),
        nn.Hardswish(),
        nn.Conv2d(48, 8, 1),
    ).cuda()


@pytest.mark.parametrize("shape", [(4, 8, 31, 17), (16, 8, 112, 112)], ids=str)
@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
def test_training_equals_eager(shape, half):
    eager = network()
    double = copy.deepcopy(eager).double()
    ours = copy.deepcopy(eager)
    x = torch.randn(shape, device="cuda")

    def gradients(m, x):
        x = x.detach().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half and x.dtype is torch.float32):
            loss = m(x).float().square().mean()
        loss.backward()
        return [x.grad, *(p.grad for p in m.parameters())]

    exact = gradients(double, x.double())
    with tcompile.record() as recording:
        got = gradients(tcompile.compile(ours), x)
    assert not recording.report().fallbacks
    for a, b, c in zip(got, gradients(eager, x), exact, strict=True):
        scale = c.norm() + 1e-12
        assert (a - c).norm() / scale <= 2 * (b - c).norm() / scale + 1e-5


def test_first_calls_are_made_and_change_nothing(monkeypatch, tmp_path):
    made = []
    call = first_calls.FirstCalls._made_up

    def made_up(self, a):
        made.append(a)
        return call(self, a)

    monkeypatch.setattr(first_calls.FirstCalls, "_made_up", made_up)
    m, x = network().eval(), torch.randn(3, 8, 40, 24, device="cuda")
    before = torch.cuda.get_rng_state()
    with torch.no_grad():
        got = tcompile.compile(m, options={"cache_dir": str(tmp_path)})(x)
        assert made and torch.equal(before, torch.cuda.get_rng_state())
        torch.testing.assert_close(got, m(x), rtol=1e-3, atol=1e-3)
