"""Numbers of Python's, numpy's and torch's generators: drawn at each call, in the program's order, never fixed."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import tcompile

np = pytest.importorskip("numpy")
X = torch.arange(3.0, dtype=torch.float64)


def scaled(x):
    return (x + 1) * random.uniform(0, 1)


def several(x):
    return x * random.random() + random.gauss(0, 1), random.random(), 2 * random.uniform(1, 3) - 1


def unused(x):
    random.random()
    return x + random.random()


def arrays(x):
    return torch.from_numpy(np.random.randn(3)) + x, np.random.uniform(low=-1, high=1, size=(2, 1)), np.random.rand()


def branch(x):
    if random.random() < 0.5:
        return x + 1
    return x - 1


def broken(x):
    a = random.random()
    y = x * 2
    torch._dynamo.graph_break()
    return y + random.random() * a


def as_numbers(x):
    return (
        x * (1 / random.uniform(1, 2)),
        [random.random() for _ in range(3)],
        float(random.random()),
        x[random.randint(0, 2)],
    )


def fails(x):
    random.random()
    np.random.rand()
    return x.reshape(2, -1) + random.random() + torch.from_numpy(np.random.randn(3))


def fails_for_values(x):
    y = x * random.random()
    return y, torch.ones(3)[(x * 2).long()]


def _observe(fn):
    random.seed(1)
    np.random.seed(2)
    seen = []
    for _ in range(4):
        try:
            seen.append(str(fn(X)))
        except (RuntimeError, IndexError) as error:
            seen.append(type(error).__name__)
    return [*seen, random.random(), np.random.rand()]


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize("fn", [scaled, several, unused, arrays])
def test_draws_in_one_graph(fn, backend):
    assert _observe(tcompile.compile(fn, fullgraph=True, backend=backend)) == _observe(fn)


@pytest.mark.parametrize("fn", [branch, broken, as_numbers, fails, fails_for_values])
def test_draws_around_breaks_and_failures(fn):
    assert _observe(tcompile.compile(fn, backend="eager")) == _observe(fn)


def test_generators_of_the_users_own():
    def fn(x, generator):
        return x * generator.random() + random.random()

    compiled = tcompile.compile(fn, backend="eager")
    seen = []
    for f in (fn, compiled):
        random.seed(3)
        own = random.Random(5)
        seen.append([str(f(X, own)) for _ in range(3)])
    assert seen[0] == seen[1]


def _of_torch(x):
    n = len(x)
    return (
        torch.normal(0.0, 1.0, (3,)),
        torch.rand(2),
        torch.normal(mean=0, std=2, size=x.shape, dtype=torch.float64),
        torch.randint(0, 99, (n,)),
        torch.normal(mean=x, std=1.0),
        torch.normal(3.0, x.exp()),
        torch.randperm(n),
        torch.normal(mean=2.0, std=x),
    )


def _of_distributions(x):
    d = torch.distributions
    return (
        d.Dirichlet(x).rsample(),
        d.Gamma(x, x).sample((2,)),
        d.Beta(x, 2 * x).rsample(),
        d.Binomial(5, x.sigmoid()).sample(),
        d.Poisson(x).sample(),
        d.Gumbel(x, x).rsample(),
    )


@pytest.mark.parametrize("fn", [_of_torch, _of_distributions])
def test_torch_draws_at_each_call(fn):
    """Calls of no tensor at all are not drawn while the graph is made."""
    compiled, seen = tcompile.compile(fn, fullgraph=True), []
    for run in (fn, compiled):
        torch.manual_seed(0)
        seen.append([run(torch.ones(n, dtype=torch.float64)) for n in (3, 3, 5, 6)])
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize("jagged", [False, True])
def test_dropout_that_leaves_nothing_out_draws_as_in_eager(jagged):
    def run(f):
        torch.manual_seed(1)
        x = torch.randn(6, 3)
        if jagged:
            x = torch.nested.nested_tensor([x[:2], x[2:]], layout=torch.jagged)
        out = f(x)
        return out.values() if jagged else out, torch.rand(1)

    f = (lambda x: F.dropout(x, 0.0) * 2) if jagged else lambda x: torch.native_dropout(x, 0.0, True)[0] * 2
    for got, want in zip(run(tcompile.compile(f)), run(f)):
        assert torch.equal(got, want)
