"""A graph says each conversion that autocast makes; the region that a call finds itself in makes no other."""

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.errors import ToolchainError
from tcompile.compiler.runtime import build_graph

PROGRAMS = {
    "product": lambda a: torch.addmm(a, a, a),
    "batch": lambda a: torch.baddbmm(a[None], a[None], a[None]),
    "convolution": lambda a: F.conv2d(a[None, None], a[None, None, :3, :3]),
}


def outside(f):
    """f where an inner region has autocast off."""

    def run(a):
        with torch.autocast("cpu", enabled=False):
            return f(a)

    return run


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("how", ["waiting", "aot_eager", "tcompile", "library"])
def test_conversions_are_those_of_the_program(name, how, monkeypatch):
    f, a = outside(PROGRAMS[name]), torch.randn(40, 40)
    if how == "waiting":

        def fails(*args):
            raise ToolchainError("no compiler today")

        monkeypatch.setattr(build_graph, "_build", fails)
    options = {"suppress_errors": True} | ({"cpu_products": "library"} if how == "library" else {})
    how_to = {"backend": "aot_eager"} if how == "aot_eager" else {"options": options}
    with torch.autocast("cpu", torch.bfloat16):
        got, want = tcompile.compile(f, **how_to)(a), f(a)
    assert got.dtype == want.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_values_go_after_their_last_use(monkeypatch):
    """Torch's own kernels hold what is read later, no more."""
    import gc

    from tcompile.compiler.graph import aten_interpreter

    most, call = 0, aten_interpreter._call

    def counting(n, args, kwargs, sizes):
        nonlocal most
        most = max(most, sum(type(x) is torch.Tensor and x.shape == (977, 3) for x in gc.get_objects()))
        return call(n, args, kwargs, sizes)

    monkeypatch.setattr(aten_interpreter, "_call", counting)

    def f(x):
        for k in range(20):
            x = torch.sin(x) * k
        return x

    x = torch.randn(977, 3)
    compiled = tcompile.compile(f, backend="aot_eager")
    torch.testing.assert_close(compiled(x), f(x))
    most = 0
    compiled(x)
    assert 0 < most <= 6
