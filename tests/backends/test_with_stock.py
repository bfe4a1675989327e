"""Our compiler and stock torch.compile in one process: each calls what the other compiled, and either serves as the
other's backend.
"""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import tcompile
import torch
import torch._dynamo
import torch.nn as nn


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    tcompile.reset()
    yield
    torch._dynamo.reset()


X = torch.linspace(-1, 1, 6).reshape(2, 3)


@torch.compile(backend="eager")
def by_stock(x):
    return x.sin() + 1


@tcompile.compile(backend="eager")
def by_us(x):
    return x.cos() + 2


def twice(fn, *args):
    first, second = fn(*args), fn(*args)
    torch.testing.assert_close(first, second)
    return first


def test_ours_calls_stock():
    def f(x):
        return by_stock(x * 2) + 1

    torch.testing.assert_close(twice(tcompile.compile(f), X), (X * 2).sin() + 2)
    report = tcompile.explain(f)(X)
    assert "compiled by torch.compile already" in report.graph_breaks[0].reason


def test_stock_calls_ours():
    def f(x):
        return by_us(x * 2) + 1

    torch.testing.assert_close(twice(torch.compile(f, backend="eager"), X), (X * 2).cos() + 3)


def test_ours_calls_ours_in_one_graph():
    def f(x):
        return by_us(x * 2) + 1

    torch.testing.assert_close(twice(tcompile.compile(f, fullgraph=True), X), (X * 2).cos() + 3)


def test_modules_both_ways():
    torch.manual_seed(0)
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    stock, ours = torch.compile(a, backend="eager"), tcompile.compile(b)
    torch.testing.assert_close(twice(tcompile.compile(lambda x: stock(x) + 1), X), a(X) + 1)
    torch.testing.assert_close(twice(torch.compile(lambda x: ours(x) + 1, backend="eager"), X), b(X) + 1)
    torch.testing.assert_close(twice(tcompile.compile(lambda x: ours(x) + 1, fullgraph=True), X), b(X) + 1)
    whole = tcompile.compile(nn.Sequential(ours, nn.ReLU()), fullgraph=True)
    torch.testing.assert_close(twice(whole, X), b(X).relu())


def test_inside_enable_and_around_it():
    def f(x):
        return by_stock(x * 2) + by_us(x)

    def cell(x):
        with tcompile.enable():
            return f(x)

    want = (X * 2).sin() + X.cos() + 3
    for _ in range(3):
        with tcompile.enable():
            torch.testing.assert_close(f(X), want)
            torch.testing.assert_close(torch.compile(f, backend="eager")(X), want)
        torch.testing.assert_close(by_stock(X), X.sin() + 1)
        torch.testing.assert_close(torch.compile(cell, backend="eager")(X), want)
        torch._dynamo.reset()


@pytest.mark.slow
def test_hooks_on_top_of_each_other_end_in_any_order():
    """Frame hooks put on and taken off in turn must never come to call each other."""
    program = """
import torch, tcompile
x = torch.ones(3)
def body(x): return x.sin() + 1
def cell(x):
    with tcompile.enable(backend='eager'):
        return body(x)
for _ in range(3):
    stock = torch.compile(cell, backend='eager')
    a = stock(x)
    with tcompile.enable(backend='eager'):
        b = stock(x); c = torch.compile(body, backend='eager')(x); d = body(x)
    torch._dynamo.reset()
    assert all(torch.equal(v, body(x)) for v in (a, b, c, d))
print('fine')
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert out.stdout.strip() == "fine", out.stderr[-2000:]


# --- backends
@pytest.mark.parametrize("backend", ["aot_eager", "eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_backends_of_torch_on_our_graphs(backend):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    compiled = tcompile.compile(net, backend=backend, fullgraph=True)
    torch.testing.assert_close(twice(compiled, X), net(X))
    compiled(X).sum().backward()
    got = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()])


def test_stock_capture_our_kernels():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
    compiled = torch.compile(net, backend="tcompile")
    torch.testing.assert_close(twice(compiled, X), net(X))
    torch.testing.assert_close(compiled(X.repeat(3, 1)), net(X.repeat(3, 1)))
    compiled(X).sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert "tcompile" in torch._dynamo.list_backends()
    assert torch.compile(lambda x: x + 1, backend="tcompile", options={"recompile_limit": 4})(X).shape == X.shape


@pytest.mark.slow
def test_stock_knows_the_backend_after_import():
    code = (
        "import torch, tcompile\n"
        "print(torch.compile(lambda x: x.sin() + 1, backend='tcompile')(torch.zeros(2)).tolist())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert out.stdout.strip() == "[1.0, 1.0]", out.stderr[-2000:]


def test_own_backends_by_name():
    seen = []

    @tcompile.register_backend(name="counting")
    def count(gm, example_inputs, *, factor=1):
        seen.append((type(gm).__name__, len(example_inputs), factor))
        return gm.forward

    assert "counting" in tcompile.list_backends() and {"tcompile", "eager"} <= set(tcompile.list_backends())
    torch.testing.assert_close(tcompile.compile(lambda x: x + 1, backend="counting")(X), X + 1)
    torch.testing.assert_close(tcompile.compile(lambda x: x + 1, backend=count, factor=3)(X), X + 1)
    assert [s[1:] for s in seen] == [(1, 1), (1, 3)]
    with pytest.raises(tcompile.OptionError, match="Did you mean 'counting'"):
        tcompile.compile(lambda x: x, backend="countin")
    with pytest.raises(tcompile.BackendError, match="returned int"):
        tcompile.compile(lambda x: x + 1, backend=lambda gm, inputs: 3)(X)


def test_stock_backend_gets_higher_order_operators():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 5 * x * grad

    x = X.clone().requires_grad_()
    tcompile.compile(lambda x: Square.apply(x) + 1, backend="aot_eager", fullgraph=True)(x).sum().backward()
    torch.testing.assert_close(x.grad, 5 * X)


# --- compiled modules as objects
def test_state_pickling_and_copies():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = tcompile.compile(net)
    want = compiled(X)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert compiled.training is net.training and compiled.eval().training is net.training is False
    loaded = pickle.loads(pickle.dumps(compiled))
    assert type(loaded) is nn.Sequential
    torch.testing.assert_close(loaded(X), want)
    buffer = io.BytesIO()
    torch.save(compiled, buffer)
    buffer.seek(0)
    again = torch.load(buffer, weights_only=False)
    assert type(again) is nn.Sequential
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin[0].weight.zero_()
        twin[0].bias.fill_(1.0)
    assert twin(X).tolist() == [[1.0] * 3] * 2
    torch.testing.assert_close(compiled(X), want)
    shallow = copy.copy(compiled)
    torch.testing.assert_close(shallow(X), want)
    fresh = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    fresh.load_state_dict(compiled.state_dict())
    torch.testing.assert_close(fresh(X), want)
    compiled.load_state_dict({k: torch.zeros_like(v) for k, v in compiled.state_dict().items()})
    assert compiled(X).abs().sum() == 0


def test_compiled_functions_as_objects():
    def f(x):
        "adds one"
        return x + 1

    compiled = tcompile.compile(f)
    assert compiled.__name__ == "f" and compiled.__doc__ == "adds one" and compiled.__wrapped__ is f
    assert copy.deepcopy(by_us)(X).shape == X.shape
    assert pickle.loads(pickle.dumps(by_us))(X).shape == X.shape


def test_whole_steps_stay_whole_after_stock_was_used():
    """Stock marks what optimizers are made of as not to be captured, at its first use in a process."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    p = torch.nn.Parameter(torch.ones(3))
    opt = torch.optim.Adam([p], 0.1)

    def step(x):
        opt.zero_grad()
        (p * x).sum().backward()
        opt.step()

    with tcompile.record() as r:
        tcompile.compile(step)(torch.ones(3))
    assert not r.report().graph_breaks
    torch.testing.assert_close(p.detach(), torch.full((3,), 0.9))


def test_cudagraphs_is_a_backend_of_its_own():
    """Without stock: this compiler's kernels, replayed as one graph where there is a GPU, plain where there is none."""
    c = tcompile.compile(lambda x: torch.sin(x) * 2, backend="cudagraphs")
    x = torch.randn(10)
    torch.testing.assert_close(c(x), torch.sin(x) * 2)
    assert "cudagraphs" in tcompile.list_backends()
