"""Modules that change between calls of compiled code: every change is seen. Each program is run eager and compiled, on
twins.
"""

from __future__ import annotations

import copy

import pytest
import tcompile
import torch
import torch.nn as nn
import torch.nn.utils.parametrize as parametrize


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.second = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.parts = nn.ModuleList([nn.Linear(4, 4), nn.Tanh()])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Sigmoid()})
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))])
        self.table = nn.ParameterDict({"u": nn.Parameter(torch.ones(4)), "v": nn.Parameter(torch.ones(4))})
        self.register_buffer("shift", torch.zeros(4))
        self.plain = [nn.Linear(4, 4)]
        self.factor = 1.0
        self.extra = None
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    @property
    def doubled(self):
        return self.factor * 2

    def forward(self, x):
        x = self.second(self.act(self.first(x)))
        for part in self.parts:
            x = part(x)
        for name, part in self.named.items():
            x = part(x) + len(name)
        for w in self.weights:
            x = x * w
        for w in self.table.values():
            x = x + w
        x = self.plain[0](x) * self.doubled + self.shift
        if self.extra is not None:
            x = self.extra(x)
        if hasattr(self, "late"):
            x = x + self.late
        if self.training:
            x = x * 1.5
        return self.norm(x)


def set_weight(m):
    m.first.weight = nn.Parameter(torch.full((4, 4), 0.5))


def set_data(m):
    m.first.weight.data = torch.full((4, 4), 0.25)


def change_in_place(m):
    with torch.no_grad():
        m.second.bias.add_(3)


def load_assign(m):
    m.load_state_dict(
        {k: v.clone() * 0.5 if v.is_floating_point() else v.clone() for k, v in m.state_dict().items()}, assign=True
    )


def tie(m):
    m.second.weight = m.first.weight


def swap(m):
    m.first, m.second = m.second, m.first


def replace(m):
    m.act = nn.GELU()


def to_identity(m):
    m.named["b"] = nn.Identity()


def append(m):
    m.parts.append(nn.Softplus())


def insert(m):
    m.parts.insert(0, nn.ReLU())


def pop(m):
    m.parts.pop(0)


def set_item(m):
    m.parts[1] = nn.ReLU()


def add_named(m):
    m.named["c"] = nn.ReLU()


def drop_named(m):
    del m.named["a"]


def reorder(m):
    m.named["a"] = m.named.pop("a")


def append_weight(m):
    m.weights.append(nn.Parameter(torch.full((4,), 2.0)))


def set_weight_item(m):
    m.weights[0] = nn.Parameter(torch.full((4,), 3.0))


def add_table(m):
    m.table["w"] = nn.Parameter(torch.full((4,), 3.0))


def replace_plain(m):
    m.plain[0] = nn.Identity()


def grow_plain(m):
    m.plain.insert(0, nn.Tanh())


def factor(m):
    m.factor = 3.0


def buffer(m):
    m.shift = torch.ones(4)


def buffer_in_place(m):
    m.shift.add_(2)


def extra(m):
    m.extra = nn.Tanh()


def late(m):
    m.late = 2.0


def late_buffer(m):
    m.register_buffer("late", torch.ones(4))


def late_parameter(m):
    m.late = nn.Parameter(torch.ones(4))


def evaluate(m):
    m.eval()


def evaluate_part(m):
    m.norm.eval()


def momentum(m):
    m.norm.momentum, m.norm.eps = 0.5, 0.1


def no_stats(m):
    m.norm.track_running_stats = False


def freeze(m):
    m.requires_grad_(False)


def freeze_one(m):
    m.first.weight.requires_grad_(False)


def double(m):
    nn.ModuleList([m, *m.plain]).double()


def bfloat(m):
    nn.ModuleList([m, *m.plain]).to(torch.bfloat16)


def layout(m):
    m.first.weight.data = m.first.weight.data.t().contiguous().t()


def patch_forward(m):
    m.act.forward = lambda x: x * 5


def patch_class(m):
    m.act.__class__ = nn.Tanh


def hook(m):
    m.first.register_forward_hook(lambda mod, args, out: out * 2)


def hook_kwargs(m):
    m.second.register_forward_hook(lambda mod, args, kwargs, out: out + len(kwargs), with_kwargs=True)


def hook_first(m):
    m.act.register_forward_hook(lambda mod, args, out: out * 2)
    m.act.register_forward_hook(lambda mod, args, out: out + 1, prepend=True)


def hook_always(m):
    m.first.register_forward_hook(lambda mod, args, out: None, always_call=True)


def pre_hook(m):
    m.second.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))


def own_hook(m):
    m.register_forward_hook(lambda mod, args, out: out - 1)


def own_pre_hook(m):
    m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))


def hook_removed(m):
    m.first.register_forward_hook(lambda mod, args, out: out * 2).remove()


def parametrized(m):
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).T

    parametrize.register_parametrization(m.first, "weight", Symmetric())


def weight_norm(m):
    nn.utils.parametrizations.weight_norm(m.second)


def old_weight_norm(m):
    nn.utils.weight_norm(m.first)


def pruned(m):
    from torch.nn.utils import prune

    prune.l1_unstructured(m.first, "weight", amount=0.5)


def own_dict(m):
    m.first.__dict__ = dict(m.second.__dict__)


def modules_dict(m):
    m._modules["act"] = nn.Tanh()


def parameters_dict(m):
    m.first._parameters["bias"] = nn.Parameter(torch.full((4,), 9.0))


def delete(m):
    del m.extra
    m.extra = None


def nested_attribute(m):
    m.first.in_features = 99


CHANGES = [
    v
    for v in list(globals().values())
    if callable(v) and getattr(v, "__module__", "") == __name__ and not isinstance(v, type)
]


def twins():
    torch.manual_seed(0)
    m = Block()
    with torch.no_grad():
        for p in m.parameters():
            p.uniform_(-1, 1)
    return m, copy.deepcopy(m)


def run(fn, m, grad):
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(m.first.bias.dtype)
    m.zero_grad()
    torch.manual_seed(3)
    with torch.set_grad_enabled(grad):
        out = fn(x)
    if out.requires_grad:
        out.pow(2).sum().backward()
    return out.detach(), {n: p.grad for n, p in m.named_parameters()}, dict(m.named_buffers()), out.requires_grad


def same(a, b):
    torch.testing.assert_close(a[0], b[0], rtol=1e-3, atol=1e-4)
    assert a[3] == b[3] and list(a[1]) == list(b[1])
    torch.testing.assert_close(
        [g for g in a[1].values() if g is not None], [g for g in b[1].values() if g is not None], rtol=2e-2, atol=1e-3
    )
    torch.testing.assert_close(a[2], b[2], rtol=1e-3, atol=1e-4)


# What a gradient may depend on is run with gradients, the rest without.
TRAINED = {
    "set_weight",
    "set_data",
    "tie",
    "evaluate_part",
    "freeze",
    "freeze_one",
    "hook",
    "pre_hook",
    "parametrized",
    "weight_norm",
    "pruned",
    "load_assign",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.__name__)
def test_change(change):
    grad = change.__name__ in TRAINED
    eager, mine = twins()
    compiled = tcompile.compile(mine, backend="eager")
    for _ in range(2):
        same(run(compiled, mine, grad), run(eager, eager, grad))
    for m in (eager, mine):
        torch.manual_seed(0)
        change(m)
    for _ in range(2):
        same(run(compiled, mine, grad), run(eager, eager, grad))


def test_hooks_that_come_and_go():
    eager, mine = twins()
    compiled = tcompile.compile(lambda x: mine(x) + 1, backend="eager")
    calls: list[str] = []
    for _ in range(2):
        handles = []
        for m in (eager, mine):
            handles.append(m.act.register_forward_hook(lambda mod, args, out: calls.append(type(mod).__name__)))
        same(run(compiled, mine, False), run(lambda x: eager(x) + 1, eager, False))
        assert calls == ["ReLU"] * 2
        calls.clear()
        for h in handles:
            h.remove()
        same(run(compiled, mine, False), run(lambda x: eager(x) + 1, eager, False))
        assert calls == []


def test_global_hooks_that_come_and_go():
    eager, mine = twins()
    compiled = tcompile.compile(mine, backend="eager")
    for _ in range(2):
        handle = nn.modules.module.register_module_forward_hook(
            lambda mod, args, out: out * 2 if isinstance(mod, nn.Tanh) else None
        )
        try:
            same(run(compiled, mine, False), run(eager, eager, False))
        finally:
            handle.remove()
        same(run(compiled, mine, False), run(eager, eager, False))


@pytest.mark.parametrize("register", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_backward_hooks_that_come_and_go(register):
    eager, mine = twins()
    compiled = tcompile.compile(mine, backend="eager")
    same(run(compiled, mine, True), run(eager, eager, True))
    handles = []
    for m in (eager, mine):
        hook = (
            (lambda mod, gi, go: tuple(g * 3 for g in gi))
            if register.endswith("backward_hook")
            else (lambda mod, go: tuple(g * 3 for g in go))
        )
        handles.append(getattr(m.second, register)(hook))
    same(run(compiled, mine, True), run(eager, eager, True))
    for h in handles:
        h.remove()
    same(run(compiled, mine, True), run(eager, eager, True))


def test_class_forward_is_replaced():
    class Local(nn.Module):
        def forward(self, x):
            return x + 1

    m = Local()
    compiled, inside = tcompile.compile(m, backend="eager"), tcompile.compile(lambda x: m(x) * 1, backend="eager")
    x = torch.zeros(2)
    assert compiled(x).tolist() == inside(x).tolist() == [1, 1]
    Local.forward = lambda self, x: x + 5
    assert compiled(x).tolist() == inside(x).tolist() == [5, 5]


def test_modules_handed_over_as_arguments():
    def f(m, x):
        return m(x) + 1

    compiled = tcompile.compile(f, backend="eager")
    x = torch.ones(2, 4)
    for m in (nn.Linear(4, 4), nn.Linear(4, 2), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)):
        torch.testing.assert_close(compiled(m, x), m(x) + 1)


def test_state_made_while_running():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))
            self.count, self.last, self.log = 0, None, []

        def forward(self, x):
            self.count += 1
            self.seen += x.detach()
            if not hasattr(self, "mask"):
                self.register_buffer("mask", torch.ones(3), persistent=False)
            self.last = x * 2
            self.log.append(self.count)
            self.mask = self.mask * 2
            return x * self.mask + self.seen + (self.last if self.count > 1 else 0)

    eager, mine = Cache(), Cache()
    compiled = tcompile.compile(mine)
    for i in range(4):
        x = torch.full((3,), float(i + 1))
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(dict(mine.named_buffers()), dict(eager.named_buffers()))
        assert (mine.count, mine.log) == (eager.count, eager.log)
        torch.testing.assert_close(mine.last, eager.last)
    assert list(mine.state_dict()) == list(eager.state_dict()) == ["seen"]


def test_parts_replaced_while_running():
    class Swapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.w = nn.ReLU(), nn.Tanh(), nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.a, self.b = self.b, self.a
            self.w = nn.Parameter(self.w.detach() * 2)
            return self.a(x) * self.w - self.b(x)

    eager, mine = Swapper(), Swapper()
    compiled = tcompile.compile(mine)
    for _ in range(3):
        x = torch.linspace(-1, 1, 3)
        torch.testing.assert_close(compiled(x), eager(x))
        assert type(mine.a) is type(eager.a) and list(mine._modules) == list(eager._modules)


def test_lazy_modules():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.ReLU())

        def forward(self, x):
            return self.body(x)

    m = Lazy()
    compiled = tcompile.compile(m)
    x = torch.randn(5, 3)
    compiled(x)
    assert type(m.body[0]) is nn.Linear and m.body[0].weight.shape == (4, 3)
    m.eval()
    torch.testing.assert_close(compiled(x), m(x))


def test_getattr_of_a_module_class():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return nn.functional.linear(x, self.weight, self.bias) + self.in_features

    inner = nn.Linear(4, 4)
    m = Wrapper(inner)
    compiled = tcompile.compile(m, fullgraph=True)
    x = torch.ones(2, 4)
    torch.testing.assert_close(compiled(x), m(x))
    m.inner = nn.Linear(4, 4)
    torch.testing.assert_close(compiled(x), m(x))
    m.inner.weight = nn.Parameter(torch.zeros(4, 4))
    torch.testing.assert_close(compiled(x), m(x))


def test_a_rate_of_dropout_that_changes():
    m = nn.Dropout()
    compiled = tcompile.compile(m, backend="eager")
    x = torch.ones(100)
    for p in (0.5, 0.0, 1.0, 0.25):
        m.p = p
        torch.manual_seed(0)
        got = compiled(x)
        torch.manual_seed(0)
        torch.testing.assert_close(got, m(x))
