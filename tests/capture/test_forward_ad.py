"""torch.autograd.forward_ad inside of captured functions: tangents, errors and the level are eager's, whatever runs the
graph.
"""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import tcompile
from tcompile.compiler.graph.torch_modes import dual_level_entered

F = torch.nn.functional
X = torch.arange(6.0).reshape(2, 3) / 5
W = torch.linspace(0, 1, 9).reshape(3, 3)


def product(x, t):
    with forward_ad.dual_level():
        y = forward_ad.make_dual(x, t)
        y = torch.softmax(y @ W, -1).log() * y.sum()
        return forward_ad.unpack_dual(y)


def left_as_it_is(x, t):
    with forward_ad.dual_level():
        return forward_ad.make_dual(x, t)


def beside_others(x, t):
    z = x * 2
    with forward_ad.dual_level():
        d = forward_ad.make_dual(z, t)
        p, tangent = forward_ad.unpack_dual(F.gelu(d) + F.layer_norm(d, (3,)))
        none = forward_ad.unpack_dual(x).tangent
    return p, tangent, none, z + 1, forward_ad.unpack_dual(d).tangent


def left_by_an_exception(x, t):
    try:
        with forward_ad.dual_level():
            d = forward_ad.make_dual(x, t)
            raise ValueError("no")
    except ValueError:
        return d.sin()


def without_a_level(x, t):
    return forward_ad.unpack_dual(x), forward_ad.make_dual(x, t)


@forward_ad.dual_level()
def decorated(x, t):
    return forward_ad.unpack_dual(forward_ad.make_dual(x, t).cos())[1]


def views_and_writes(x, t):
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, t).view(-1)[1:]
        e = d.clone()
        e.mul_(d)
        x.mul_(2)
        return forward_ad.unpack_dual(e)[1], forward_ad.unpack_dual(d * x.view(-1)[1:])


def nested(x, t):
    with forward_ad.dual_level():
        with forward_ad.dual_level():
            return x


def of_integers(x, t):
    with forward_ad.dual_level():
        return forward_ad.make_dual(x.long(), t)


def broken(x, t):
    with forward_ad.dual_level():
        d = forward_ad.make_dual(x, t)
        y = d * d
        if y.sum() > 3:
            y = y * 2
        return forward_ad.unpack_dual(y * 2).tangent


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e), str(e)


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, tuple):
        for x, y in zip(a, b, strict=True):
            same(x, y)
    else:
        assert a == b


def switched_off(x, t):
    with forward_ad._set_fwd_grad_enabled(False):
        with forward_ad._set_fwd_grad_enabled(True):
            first = torch.func.jvp(lambda v: v.sin(), (x,), (t,))
        with forward_ad.dual_level():
            none = forward_ad.unpack_dual(forward_ad.make_dual(x, t).sin())
        return first, torch.func.jvp(lambda v: v.cos(), (x,), (t,)), none, torch._C._is_fwd_grad_enabled()


def partly(x, t):
    def inner(v):
        with forward_ad._set_fwd_grad_enabled(False):
            y = v.sin()
        return y + v

    return torch.func.jvp(inner, (x,), (t,))


def broken_while_off(x, t):
    with forward_ad._set_fwd_grad_enabled(False):
        n = int(x.sum().item())
        return x[n - 3 :], torch._C._is_fwd_grad_enabled()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize(
    "fn",
    [
        switched_off,
        partly,
        broken_while_off,
        product,
        left_as_it_is,
        beside_others,
        left_by_an_exception,
        without_a_level,
        decorated,
        views_and_writes,
        nested,
        of_integers,
        broken,
    ],
)
def test_as_in_eager(fn, backend):
    compiled = tcompile.compile(fn, fullgraph=fn not in (broken, broken_while_off), backend=backend)
    for _ in range(2):
        want, got = X.clone(), X.clone()
        same(outcome(fn, want, X + 1), outcome(compiled, got, X + 1))
        same(want, got)
        assert not dual_level_entered() and torch._C._is_fwd_grad_enabled() and forward_ad._current_level == -1


def test_one_graph_whose_level_is_closed_if_it_fails():
    made = []

    def backend(gm, inputs):
        made.append(gm)

        def run(*args):
            out = gm.forward(*args)
            if len(made) > 1:
                raise RuntimeError("after all")
            return out

        return run

    fn = tcompile.compile(product, fullgraph=True, backend=backend)
    same(fn(X, X), product(X, X))
    assert len(made) == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_a_level_that_is_entered_outside(backend):
    def makes(x, t):
        return forward_ad.make_dual(x, t) * 2

    compiled, given = tcompile.compile(makes, backend=backend), tcompile.compile(lambda d: d.sin() * d, backend=backend)
    given(X)
    for _ in range(2):
        with forward_ad.dual_level():
            same(forward_ad.unpack_dual(compiled(X, X + 1)), forward_ad.unpack_dual(makes(X, X + 1)))
            d = forward_ad.make_dual(X, X + 1)
            same(forward_ad.unpack_dual(given(d)), forward_ad.unpack_dual(d.sin() * d))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_gradients_of_tangents(backend):
    def fn(x, t):
        with forward_ad.dual_level():
            y = forward_ad.make_dual(x, t)
            return forward_ad.unpack_dual((y @ W).sin() * y.sum())

    grads = []
    for f in (fn, tcompile.compile(fn, fullgraph=True, backend=backend)):
        x = X.clone().requires_grad_()
        p, t = f(x, X + 1)
        (p.sum() + t.sum()).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)
