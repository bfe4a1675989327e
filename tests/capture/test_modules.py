"""torch.nn modules are interpreted down to torch functions: one graph each; hooks, containers, the call machinery
itself as a root frame.
"""

import pytest
import torch
from torch import nn

from .runner import Runner, same
from .test_basics import Block

X = torch.linspace(-2, 2, 12).reshape(3, 4)
MODULES = {
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True).eval(),
        lambda m, x: m(x[None], x[None], x[None])[0],
    ),
    "encoder_layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), lambda m, x: m(x[None])),
    "transformer": (lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval(), lambda m, x: m(x[None], x[None])),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1),
            nn.BatchNorm2d(2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        lambda m, x: m(x[None, None]),
    ),
    "embedding": (lambda: nn.Embedding(10, 3), lambda m, x: m(torch.tensor([[1, 2], [3, 4]]))),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4)), lambda m, x: m(x)),
    "cross_entropy": (lambda: nn.CrossEntropyLoss(), lambda m, x: m(x, torch.tensor([0, 1, 2]))),
    "activations": (
        lambda: nn.Sequential(
            nn.Hardswish(), nn.SiLU(), nn.Mish(), nn.ELU(), nn.LeakyReLU(), nn.PReLU(), nn.Softplus(), nn.GLU()
        ),
        lambda m, x: m(x),
    ),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)), lambda m, x: m(x)),
    "cell": (lambda: nn.LSTMCell(4, 3), lambda m, x: m(x)[0]),
    "bilinear": (lambda: nn.Bilinear(4, 4, 2), lambda m, x: m(x, x)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), lambda m, x: m(x[None])),
}


@pytest.mark.parametrize("name", MODULES)
def test_one_graph(name):
    make, call = MODULES[name]
    torch.manual_seed(0)
    a = make()
    torch.manual_seed(0)
    b = make()

    def fn(m, x):
        return call(m, x)

    run = Runner()
    for k in range(2):
        same(run(fn, a, X + k), fn(b, X + k))
        same(dict(a.state_dict()), dict(b.state_dict()))
    assert not run.breaks and not run.skips, run.breaks[:1] or run.skips
    assert len(run.captures) == 1


def test_the_call_machinery_as_root():
    m = Block(4).eval()
    for root in (nn.Module._wrapped_call_impl, nn.Module._call_impl):
        run = Runner()
        same(run.run(root, m, (X,), {}), m(X))
        same(run.run(root, m, (X,), {"residual": False}), m(X, residual=False))
        assert not run.breaks and len(run.captures) == 2


def test_forward_hooks_are_interpreted():
    m = Block(4).eval()
    seen = []
    m.layers[0].register_forward_hook(lambda mod, args, out: out * 2)
    m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
    m.norm.register_forward_hook(lambda mod, args, out: seen.append(type(mod).__name__))

    def fn(x):
        return m(x)

    run = Runner()
    expected = fn(X)
    same(run(fn, X), expected)
    same(run(fn, X), expected)
    assert not run.breaks and len(run.captures) == 1 and seen == ["LayerNorm"] * 3


def test_walking_over_a_module():
    m = Block(4).eval()

    def fn(x):
        return (
            sum(p.sum() for p in m.parameters()) + x,
            [n for n, _ in m.named_modules()][:2],
            len(list(m.buffers())),
            [type(c).__name__ for c in m.children()],
            "norm" in dict(m.named_children()),
        )

    run = Runner()
    same(run(fn, X), fn(X))
    assert not run.breaks


def test_train_and_eval_inside():
    m = Block(4).eval()
    other = Block(4).eval()
    other.load_state_dict(m.state_dict())

    def fn(m, x):
        m.eval()
        y = m(x)
        m.train()
        return y, m.training, m.norm.training

    run = Runner()
    same(run(fn, m, X), fn(other, X))
    assert m.training and m.norm.training and m.layers[0].training
    same(run(fn, m, X), fn(other, X))


def test_conditional_of_torch():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda v: v + 1, lambda v: v - 1, (x,))

    run = Runner()
    for x in (X + 1, X - 1):
        expected = torch.where(x.sum() > 0, x + 1, x - 1)
        same(run(fn, x), expected)
    assert len(run.captures) == 1 and not run.breaks
