"""Backends of other people's get graphs with symbolic sizes as stock gives them, and what they rely on is looked at
before each call.
"""

import pytest
import torch
import tcompile
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import lookup_backend
from functorch.compile import make_boxed_func


def scaled(x, a):
    return torch.add(x, x, alpha=a)


def by_size(x):
    return x.reshape(-1) * x.shape[0] + x.sum()


def product(x, y):
    return (x @ y).view(-1, x.shape[0]).transpose(0, 1) + x.shape[0]


def counted(inner):
    def backend(gm, example_inputs):
        backend.asked.append(example_inputs)
        return inner(gm, example_inputs)

    backend.asked = []
    return backend


AOT = aot_autograd(fw_compiler=lambda gm, inputs: make_boxed_func(gm.forward))
BACKENDS = {
    "aot_autograd": AOT,
    "aot_eager": lookup_backend("aot_eager"),
    "inductor": lookup_backend("inductor"),
    "forward": lambda gm, inputs: gm.forward,
}


@pytest.mark.parametrize(
    "name, dynamic", [(name, d) for name in BACKENDS for d in (True, None) if name != "inductor" or d]
)
def test_no_number_is_baked_in(name, dynamic):
    backend = counted(BACKENDS[name])
    f = tcompile.compile(scaled, backend=backend, dynamic=dynamic)
    x = torch.randn(4, 3)
    for a in (20, 30, 5, -4, 0):
        torch.testing.assert_close(f(x, a), scaled(x, a))
    g = tcompile.compile(by_size, backend=backend, dynamic=dynamic)
    for n in (5, 7, 6, 2, 1, 0):
        x = torch.randn(n, 3)
        torch.testing.assert_close(g(x), by_size(x))


@pytest.mark.parametrize("name", ["aot_autograd", "aot_eager"])
def test_gradients_follow_the_sizes(name):
    f = tcompile.compile(product, backend=BACKENDS[name], dynamic=True)
    for n, m in ((5, 4), (7, 4), (7, 8), (6, 6)):
        x, y = torch.randn(n, 3, requires_grad=True), torch.randn(3, m)
        torch.testing.assert_close(f(x, y), product(x, y))
        (grad,) = torch.autograd.grad(f(x, y).square().sum(), x)
        torch.testing.assert_close(grad, torch.autograd.grad(product(x, y).square().sum(), x)[0])


def test_a_backend_is_asked_once_for_sizes_that_vary():
    backend = counted(AOT)
    f = tcompile.compile(by_size, backend=backend, dynamic=True)
    for n in (5, 7, 6, 9):
        f(torch.randn(n, 3))
    ((x, n),) = backend.asked
    assert type(x) is torch.Tensor and type(n) is torch.SymInt


def test_a_backend_that_relies_on_sizes_is_asked_again_up_to_the_limit():
    def fixed(gm, inputs):
        size = int(inputs[1])  # a guard of torch's ShapeEnv
        return lambda x, n: gm.forward(x, size)

    backend = counted(fixed)
    f = tcompile.compile(by_size, backend=backend, dynamic=True)
    for n in (*range(3, 15), 4, 3, 14):
        x = torch.randn(n, 3)
        torch.testing.assert_close(f(x), by_size(x))
    assert len(backend.asked) == tcompile.config.recompile_limit


def test_a_backend_may_change_the_graph_that_it_is_given():
    def greedy(gm, inputs):
        n, graph = int(inputs[1]), torch.fx.Graph()
        graph.output(graph.graph_copy(gm.graph, {}))
        run = torch.fx.GraphModule(gm, graph)
        for node in reversed(list(gm.graph.nodes)):
            gm.graph.erase_node(node)
        return lambda x, size: run(x, n)

    f = tcompile.compile(by_size, backend=greedy, dynamic=True)
    for n in (3, 5, 4):
        x = torch.randn(n, 3)
        torch.testing.assert_close(f(x), by_size(x))


def add_in_place(*views):
    for k, v in enumerate(views):
        v.add_(k + 1)


def windows(n, length, step):
    """Memory, and `n` windows of it."""
    x = torch.zeros((n - 1) * step + length)
    return x, [x[i * step : i * step + length] for i in range(n)]


def separate(n, length):
    parts = [torch.zeros(length) for _ in range(n)]
    return parts, parts


@pytest.mark.parametrize("name", ["aot_autograd", "aot_eager"])
def test_written_views_of_one_memory_are_one_relation(name):
    envs = []

    def backend(gm, inputs):
        from torch._guards import TracingContext

        made = BACKENDS[name](gm, inputs)
        envs.append(TracingContext.get())
        return made

    f = tcompile.compile(add_in_place, backend=backend, dynamic=True)
    with torch.no_grad():
        for made in (
            windows(24, 5, 5),
            windows(24, 7, 7),
            windows(24, 7, 5),
            windows(24, 4, 9),
            separate(24, 3),
            windows(24, 5, 5),
        ):
            memory, views = made
            f(*views)
            got = [m.clone() for m in memory]
            for m in memory:
                m.zero_()
            add_in_place(*views)
            assert all(map(torch.equal, got, memory))
    assert envs and all(len(c.fake_mode.shape_env.guards) < 24 for c in envs)


def test_windows_that_begin_to_share_elements():
    """What the backend relied on is looked at before each call: the sizes are the same, the windows overlap."""
    f = tcompile.compile(lambda a, b: (a.add_(1), b.mul_(2)), backend=AOT, dynamic=True)
    for second in (6, 3, 6, 2, 5):
        with torch.no_grad():
            x, y = torch.arange(12.0), torch.arange(12.0)
            f(x[:5], x[second : second + 5])
            y[:5].add_(1)
            y[second : second + 5].mul_(2)
            assert torch.equal(x, y), second


def test_one_tensor_twice():
    f = tcompile.compile(lambda a, b: (a.add_(1), b * 2), backend=AOT, dynamic=True)
    for same in (True, False, True):
        a = torch.zeros(4)
        b = a if same else torch.zeros(4)
        assert f(a, b)[1].tolist() == [2.0 * same] * 4
