"""Lookups that classes do in their own way: torch.ops makes what it is asked for, modules with a __getattribute__,
paths that keep parts in slots, modules that learn their shapes from the first call."""

import pathlib
from unittest import mock

import pytest
import torch

import tcompile

X = torch.arange(4.0).reshape(2, 2)


@torch.library.custom_op("tcompile_test_lookups::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x, k):
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_an_operator_that_nobody_has_looked_up_yet(backend):
    library = torch.library.Library(f"tcompile_test_{backend}", "DEF")
    library.define("times(Tensor x, int k) -> Tensor")
    library.impl("times", lambda x, k: x * k, "CompositeExplicitAutograd")
    space = f"tcompile_test_{backend}"

    def f(x):
        operators = torch.ops.__getattr__(space) if backend == "eager" else getattr(torch.ops, space)
        return operators.times(x, 3) + operators.times.default(x, 2) + torch.ops.tcompile_test_lookups.scaled(x, 2)

    compiled = tcompile.compile(f, backend=backend, fullgraph=backend == "tcompile")
    for _ in range(2):
        assert torch.equal(compiled(X), X * 7)


class OwnLookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.number = 42

    def __getattribute__(self, name):
        return 2.0 if name == "special" else super().__getattribute__(name)

    def forward(self, x):
        return self.number * x + self.special


def test_a_module_that_looks_up_attributes_itself():
    module, seen = OwnLookup(), []
    compiled = tcompile.compile(lambda m, x: m(x), backend="eager")
    assert torch.equal(compiled(module, X), 42 * X + 2)
    module.register_forward_hook(lambda *a: seen.append(1))
    module.number = 3
    assert torch.equal(compiled(module, X), 3 * X + 2) and seen == [1]


def test_paths():
    def f(x, name):
        return (
            x + 1,
            pathlib.PurePosixPath("a") / name,
            pathlib.Path(name).with_suffix(".z"),
            pathlib.PureWindowsPath("c:/", name),
        )

    compiled = tcompile.compile(f, backend="eager")
    assert compiled(X, "b.y")[1:] == f(X, "b.y")[1:] and compiled(X, "c.y")[1:] == f(X, "c.y")[1:]


class LearnsItsSize(torch.nn.modules.lazy.LazyModuleMixin, torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = None

    def initialize_parameters(self, x):
        self.w = torch.nn.Parameter(torch.ones(x.shape[-1]))

    def forward(self, x):
        return x * self.w


@pytest.mark.parametrize(
    "make",
    [
        LearnsItsSize,
        lambda: torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.ReLU(), torch.nn.LazyLinear(3)),
        lambda: torch.nn.LazyBatchNorm1d(),
    ],
)
def test_lazy_modules(make):
    """The first call learns the shapes and runs as it is, fullgraph or not; the second is compiled."""
    graphs = []

    def backend(gm, examples):
        graphs.append(gm)
        return gm.forward

    torch.manual_seed(0)
    module = make()
    compiled = tcompile.compile(module, backend=backend, fullgraph=True)
    first = compiled(X)
    torch.manual_seed(0)
    eager = make()
    assert torch.equal(first, eager(X)) and not graphs
    assert torch.equal(compiled(X), eager(X)) and len(graphs) == 1
    inside = make()
    function = tcompile.compile(lambda x: inside(x) + 1, backend="eager", fullgraph=True)
    function(X)
    assert torch.equal(function(X), inside(X) + 1)


class Mocked:
    pass


class HasMocked:
    value = Mocked()


def test_descriptors_whose_methods_are_mocks():
    """They are called each time, not once while capturing."""
    Mocked.__get__, Mocked.__set__ = mock.Mock(return_value=5), mock.Mock()
    try:
        owner = HasMocked()

        def f(x, owner):
            owner.value = 3
            return x + owner.value + HasMocked.value

        compiled = tcompile.compile(f, backend="eager")
        for n in range(1, 4):
            assert torch.equal(compiled(X, owner), X + 10)
            assert Mocked.__get__.call_count == 2 * n and Mocked.__set__.call_count == n
    finally:
        del Mocked.__get__, Mocked.__set__
