"""Traps: modules, objects, hooks and numbers that change after compilation.

Each test runs the whole compiler and compares with eager after the change that a weaker compiler would miss."""

from __future__ import annotations

import math

import pytest
import tcompile
import torch
import torch.nn as nn

from .traps import follows, linear


# ---- what changes neither identity nor version
@pytest.mark.parametrize("to", ["double", "half", "bfloat16"])
def test_module_changes_dtype(to):
    m, x = linear(), torch.randn(4, 3)
    again = follows(m, x)
    getattr(m, to)()
    again(x.to(next(m.parameters()).dtype))
    m.float()
    again(x)


def test_module_dtype_seen_through_a_closure():
    m, x = linear(), torch.randn(4, 3)
    again = follows(lambda x: m(x.to(m.weight.dtype)) + 1, x)
    m.double()
    again(x)


def test_data_of_a_parameter_is_replaced():
    m, x = linear(), torch.randn(4, 3)
    again = follows(m, x)
    m.weight.data = torch.zeros(3, 3)
    again(x)
    m.weight.data = torch.randn(3, 3).t()  # other strides
    again(x)
    m.weight.data = torch.randn(3, 6)[:, ::2]  # not contiguous
    again(x)
    m.weight.data = torch.randn(5, 3)  # another shape, as pruning does
    m.bias.data = torch.randn(5)
    again(x)
    m.weight.data.fill_(0.25)
    again(x)


def test_requires_grad_changes():
    m, x = linear(), torch.randn(4, 3)
    again = follows(m, x)
    m.requires_grad_(False)
    again(x)
    x.requires_grad_()
    again(x)
    m.weight.requires_grad_()
    again(x)


def test_gradients_follow_requires_grad():
    m, x = linear(), torch.randn(4, 3)
    c = tcompile.compile(m)
    for wanted in (True, False, True):
        m.weight.requires_grad_(wanted)
        m.zero_grad()
        c(x).sum().backward()
        assert (m.weight.grad is not None) == wanted
        if wanted:
            torch.testing.assert_close(m.weight.grad, x.sum(0).expand(3, 3))


# ---- what bypasses watchers
def test_the_dict_of_an_object_is_replaced():
    class Settings:
        pass

    s = Settings()
    s.k = 2.0
    again = follows(lambda x: x * s.k, torch.randn(5))
    s.__dict__ = {"k": 5.0}
    again(torch.randn(5))
    s.__dict__["k"] = 7.0
    again(torch.randn(5))


def test_the_dict_of_a_module_is_replaced():
    m, other, x = linear(), nn.Linear(3, 3), torch.randn(4, 3)
    m.k, other.k = 1.0, 2.0

    def f(x):
        return m(x) * m.k

    again = follows(f, x)
    m.__dict__ = other.__dict__
    again(x)


def test_the_class_of_an_object_is_replaced():
    class One:
        def scale(self, x):
            return x * 2

    class Two:
        def scale(self, x):
            return x * 3

    o = One()
    again = follows(lambda x: o.scale(x), torch.randn(5))
    o.__class__ = Two
    again(torch.randn(5))
    Two.scale = lambda self, x: x * 4
    again(torch.randn(5))


def test_the_class_of_a_module_is_replaced():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    m, x = linear(), torch.randn(4, 3)
    outer = nn.Sequential(m, nn.ReLU())
    one, two = follows(m, x), follows(outer, x)
    m.__class__ = Doubled
    one(x)
    two(x)


def test_a_method_is_put_on_the_instance_and_taken_away():
    m, x = linear(), torch.randn(4, 3)
    outer = nn.Sequential(m)
    again = follows(outer, x)
    m.forward = lambda x: x - 1
    again(x)
    del m.forward
    again(x)


# ---- hooks registered after compilation: stock ignores them
@pytest.mark.parametrize("inner", [False, True], ids=["root", "inner"])
def test_forward_hooks_after_compilation(inner):
    m, x = nn.Sequential(linear(), nn.ReLU()), torch.randn(4, 3)
    target = m[0] if inner else m
    again = follows(m, x)
    h = target.register_forward_hook(lambda m, a, o: o + 10)
    again(x)
    p = target.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    again(x)
    k = target.register_forward_hook(lambda m, a, kw, o: o * 3, with_kwargs=True)
    again(x)
    h.remove()
    again(x)
    p.remove()
    k.remove()
    again(x)


def test_global_forward_hook_after_compilation():
    m, x = linear(), torch.randn(4, 3)
    again = follows(m, x)
    h = nn.modules.module.register_module_forward_hook(lambda m, a, o: o + 10)
    try:
        again(x)
    finally:
        h.remove()
    again(x)


def test_backward_hooks_after_compilation():
    def seen(compiled):
        m, x, log = linear(), torch.ones(4, 3, requires_grad=True), []
        c = tcompile.compile(m) if compiled else m
        c(x).sum().backward()
        h = m.register_full_backward_hook(lambda m, gi, go: log.append((gi[0].clone(), go[0].clone())))
        c(x).sum().backward()
        h.remove()
        m.weight.register_hook(lambda g: g * 2)
        c(x).sum().backward()
        c(x).sum().backward()
        return log, x.grad, m.weight.grad

    want, got = seen(False), seen(True)
    assert len(want[0]) == len(got[0]) == 1
    torch.testing.assert_close(got, want)


def test_a_hook_that_counts_runs_once_a_call():
    m, x, calls = linear(), torch.randn(4, 3), []
    c = tcompile.compile(m)
    c(x)
    m.register_forward_hook(lambda m, a, o: calls.append(tuple(o.shape)))
    for _ in range(3):
        c(x)
    assert calls == [(4, 3)] * 3


# ---- numbers that must not become constants
def test_adamw_step_count_is_no_constant():
    def train(compiled):
        m = linear()
        opt = torch.optim.AdamW(m.parameters(), lr=0.1, foreach=False, capturable=False)

        def step(x):
            loss = m(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss.detach()

        f = tcompile.compile(step) if compiled else step
        g = torch.Generator().manual_seed(1)
        return (
            [f(torch.randn(4, 3, generator=g)) for _ in range(5)]
            + [p.detach() for p in m.parameters()]
            + [s["step"] for s in opt.state.values()]
        )

    for got, want in zip(train(True), train(False)):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_a_tensor_that_is_read_as_a_number_is_read_again():
    step = torch.tensor(0.0)

    def f(x):
        step.add_(1)
        return x / (1 - 0.9 ** step.item())

    c, x = tcompile.compile(f), torch.randn(4)
    for i in range(1, 5):
        torch.testing.assert_close(c(x), x / (1 - 0.9**i))
    assert step.item() == 4


def test_found_inf_of_a_grad_scaler():
    def train(compiled):
        w = nn.Parameter(torch.ones(3))
        opt, scaler = torch.optim.SGD([w], lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

        def step(x):
            opt.zero_grad()
            scaler.scale((w * x).sum()).backward()
            scaler.step(opt)
            scaler.update()
            return w.detach().clone()

        f = tcompile.compile(step) if compiled else step
        return [(f(torch.full((3,), v)), scaler.get_scale()) for v in (1.0, 2.0, math.inf, 1.0, 1.0, math.nan, 1.0)]

    torch.testing.assert_close(train(True), train(False))
