"""What forward keeps is freed in backward after its last use, where nobody else holds it."""

import gc
import weakref

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler.autograd.bridge import GradGraph
from tcompile.compiler.native import native
from tcompile.compiler.runtime import native_program, output_pool

pytestmark = pytest.mark.skipif(native is None, reason="plans run in C")


def compiled(fn, *inputs):
    """The plan of a function without gradients."""
    before = {id(o) for o in gc.get_objects() if type(o) is native.Program}
    tcompile.compile(fn, dynamic=False)(*inputs)
    return next(o for o in gc.get_objects() if type(o) is native.Program and id(o) not in before)


def test_inputs_that_are_given_away_leave_after_their_last_use():
    x, y = torch.randn(33, 17), torch.randn(33, 17)
    program = compiled(lambda x, y: torch.mm(torch.sin(x).t(), y), x, y)
    given = [x, y]
    (got,) = program.consume(given)
    torch.testing.assert_close(got, torch.sin(x).t() @ y)
    assert given == [], "the inputs leave the list"
    given = [x, y]
    torch.testing.assert_close(program(*given)[0], got)
    assert given[0] is x and given[1] is y, "an ordinary call keeps them"


def test_what_is_a_view_of_an_input_keeps_it():
    x = torch.randn(6, 8)
    program = compiled(lambda x: (x[1:3], x.sum()), x)
    given = [x]
    view, total = program.consume(given)
    torch.testing.assert_close(view, x[1:3])
    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_an_input_that_is_written_is_written():
    x = torch.randn(5, 5)
    want = x.clone().mul_(2)
    program = compiled(lambda x: x.mul_(2).sum(), x.clone())
    given = [x]
    program.consume(given)
    torch.testing.assert_close(x, want)


def test_only_a_list_can_be_consumed():
    program = compiled(lambda x: x + 1, torch.randn(3))
    with pytest.raises(TypeError, match="come as a list, got tuple"):
        program.consume((torch.randn(3),))
    with pytest.raises(TypeError, match="takes 1 inputs, got 2"):
        program.consume([torch.randn(3), torch.randn(3)])


def test_backward_twice():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    c, x = tcompile.compile(model), torch.randn(5, 8)
    loss = c(x).pow(2).sum()
    loss.backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    loss.backward()
    for p, g in zip(model.parameters(), first, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_are_eager_s(create_graph):
    w = torch.randn(6, 6, requires_grad=True)

    def f(w, x):
        return torch.tanh(w @ x).exp().sum()

    x = torch.randn(6, 6)
    (got,) = torch.autograd.grad(tcompile.compile(f)(w, x), w, create_graph=create_graph)
    (want,) = torch.autograd.grad(f(w, x), w, create_graph=create_graph)
    torch.testing.assert_close(got, want)
    if create_graph:
        torch.testing.assert_close(*(torch.autograd.grad(g.pow(2).sum(), w)[0] for g in (got, want)))


@pytest.mark.parametrize(
    "results", ["one", "a view of an input", "one that is written", "independent ones", "a large gradient"]
)
def test_nobody_else_holds_what_backward_was_given(results):
    layers = nn.ModuleList([nn.Linear(64, 64, bias=False) for _ in range(4)])
    weight, scale = torch.randn(3, 5, requires_grad=True), torch.ones(7, requires_grad=True)
    large = torch.ones(output_pool.LEAST_BYTES // 4, requires_grad=True)

    def f(x):
        for layer in layers:
            x = torch.tanh(layer(x))
        if results == "a view of an input":
            return x, weight.t()
        if results == "one that is written":
            total.add_(1)
        if results == "independent ones":
            return x, scale.exp().sin()
        if results == "a large gradient":
            return x * large.mean()
        return x

    def c(x):
        got = compiled(x)
        return got[0] if isinstance(got, tuple) else got

    before = {id(o) for o in gc.get_objects() if type(o) is GradGraph}
    compiled, x, total = tcompile.compile(f), torch.randn(32, 64), torch.zeros(3)
    c(x).sum().backward()
    (graph,) = (o for o in gc.get_objects() if type(o) is GradGraph and id(o) not in before)
    backward = next(iter(graph.backwards.values()))

    class Spy:
        def __init__(self, call):
            self.call = call

        def consume(self, given):
            held = [weakref.ref(t) for t in given if isinstance(t, torch.Tensor) and t.shape == (32, 64)]
            out = self.call.consume(given)
            self.alive, self.all = sum(r() is not None for r in held), len(held)
            return out

    spy = backward.call = Spy(backward.call)
    c(x).sum().backward()
    assert spy.all >= 4 and spy.alive <= 2, "the input and the tangent are held by others"
    loss = c(x).sum()
    loss.backward(retain_graph=True)
    assert spy.alive >= 4, "these are wanted again"


def test_what_backward_frees_serves_it(monkeypatch):
    """A block of scratch memory would lie beside all that forward kept, from the first step on."""
    model, placed, place = nn.Sequential(*[nn.Linear(256, 256), nn.GELU()] * 3), [], native_program._Block.place
    monkeypatch.setattr(native_program._Block, "place", lambda b, size, *at: placed.append(size) or place(b, size, *at))
    loss = tcompile.compile(model)(torch.randn(256, 256)).square().sum()
    assert max(placed) > native_program.GIVEN_SCRATCH_MOST, "of forward, which frees nothing"
    placed.clear()
    loss.backward()
    assert all(size <= native_program.GIVEN_SCRATCH_MOST for size in placed)
