"""A graph that fails leaves nothing of itself: modes that it switched, tensors that it wrote. The call runs again as
plain Python.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import tensor as T
from torch.nn.attention import SDPBackend, sdpa_kernel

import tcompile
from tcompile.compiler.runtime import build_graph
from tcompile.compiler.graph.torch_modes import TorchModes

BACKENDS = pytest.mark.parametrize("backend", ["eager", "tcompile", "aot_eager"])


def modes():
    return vars(TorchModes())


@BACKENDS
@pytest.mark.parametrize("grad", [False, True])
def test_autocast_is_left(backend, grad):
    def f(x, i):
        try:
            with torch.autocast("cpu", dtype=torch.float16):
                y = x @ x.t()
                z = F.embedding(i, y)
            return z, True
        except IndexError:
            return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), (x @ x).dtype

    c = tcompile.compile(f, backend=backend)
    x, before = torch.ones(3, 3, requires_grad=grad), modes()
    for i in (T([0, 1]), T([0, 9]), T([0, 9])):
        want, got = f(x, i), c(x, i)
        assert [v for v in got[1:]] == [v for v in want[1:]]
        assert modes() == before


@BACKENDS
def test_kernels_of_attention_and_gradients_are_put_back(backend):
    def f(x, i):
        with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            y = x * 2
            return F.embedding(i, y)

    c = tcompile.compile(f, backend=backend)
    x, before = torch.ones(3, 3, requires_grad=True), modes()
    c(x, T([0, 1]))
    with pytest.raises(IndexError):
        c(x, T([0, 9]))
    assert modes() == before


@BACKENDS
@pytest.mark.parametrize("sparse", [False, True])
def test_a_write_is_done_once(backend, sparse):
    """sparse: a graph whose gradients cannot be traced runs with torch's own kernels, call by call, also under backend
    tcompile.
    """

    def f(x, b, i):
        b.add_(1)
        y = x * 2
        return F.embedding(i, y, sparse=sparse) + b.sum()

    c = tcompile.compile(f, backend=backend)
    for i in (T([0, 1]), T([0, 9]), T([0, 2])):
        x, b = torch.ones(3, 3, requires_grad=True), torch.zeros(3)
        try:
            c(x, b, i)
        except IndexError:
            assert i[1] == 9
        assert b.tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("error")
def test_autocast_warns_of_nothing():
    def f(x):
        with torch.autocast("cpu", dtype=torch.float16):
            return x @ x

    assert tcompile.compile(f, backend="eager")(torch.ones(3, 3)).dtype == torch.float16


@pytest.fixture
def bang():
    """An operator of somebody else's that raises where its switch is on."""
    with torch.library._scoped_library("failing_graphs", "DEF") as library:
        on = []
        library.define("bang(Tensor x) -> Tensor")

        def run(x):
            if on:
                raise RuntimeError("bang")
            return x.clone()

        library.impl("bang", run, "CPU")
        library.impl("bang", torch.empty_like, "Meta")
        yield on


@BACKENDS
@pytest.mark.parametrize("host", ["c", "python"])
@pytest.mark.parametrize("n", [8, 1 << 20])
def test_a_write_before_an_error_that_nobody_expects_is_done_once(backend, host, n, bang, monkeypatch):
    if host == "python":
        monkeypatch.setattr(build_graph, "make_program", lambda *args: None)

    def early(x, y):
        x.add_(y)
        return torch.ops.failing_graphs.bang(y) + x.sum()

    def after(x, y):
        x.add_(y)
        return torch.ops.failing_graphs.bang(x * 2)

    def between(x, y):
        x.add_(y)
        y.mul_(2)
        z = torch.ops.failing_graphs.bang(x * 2)
        x.add_(z)
        return z

    for f in (early, after, between):
        bang.clear()
        c = tcompile.compile(f, backend=backend)
        (x, y), (v, w) = ((torch.zeros(n), torch.ones(n)) for _ in range(2))
        assert torch.equal(f(x, y), c(v, w))
        bang.append(True)
        for g, args in ((f, (x, y)), (c, (v, w))):
            with pytest.raises(RuntimeError, match="bang"):
                g(*args)
        if n == 8 or f is not between:
            assert torch.equal(x, v) and torch.equal(y, w)
        else:  # large inputs are written where it is fastest: then the error leaves some writes undone, none done twice
            assert v[0] in (3, 5) and w[0] in (2, 4)
