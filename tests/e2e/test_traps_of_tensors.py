"""Traps: how floats are rounded, which memory is whose, and which kinds of tensors come in.

Each test runs the whole compiler and compares with eager after the change that a weaker compiler would miss."""

from __future__ import annotations

import gc
import math

import pytest
import tcompile
import torch
import torch.autograd.forward_ad as fwAD
import torch.nn as nn
import torch.nn.functional as F

from .traps import follows, same


# ---- numerics
def test_gelu_is_erf_unless_tanh_is_asked_for():
    x = torch.linspace(-6, 6, 10001, dtype=torch.float64)
    same(tcompile.compile(lambda x: F.gelu(x))(x), F.gelu(x), 1e-12)
    same(tcompile.compile(lambda x: F.gelu(x, approximate="tanh"))(x), F.gelu(x, approximate="tanh"), 1e-12)
    m = nn.Sequential(nn.Linear(8, 8), nn.GELU()).double()
    y = torch.randn(16, 8, dtype=torch.float64)
    with torch.no_grad():
        same(tcompile.compile(m)(y), m(y), 1e-12)


def test_a_thousand_additions_are_rounded_one_by_one():
    def f(x):
        for _ in range(1000):
            x = x + 1
        return x

    for x in (torch.full((37,), 2.0**24), torch.full((37,), 1e-3), torch.randn(37) * 1000):
        assert torch.equal(tcompile.compile(f)(x), f(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 0.0,
        lambda x: x - x,
        lambda x: x * 0,
        lambda x: (x + 1) - 1,
        lambda x: x / x,
        lambda x: 0.0 - x,
        lambda x: -(-x),
        lambda x: x * 3 / 3,
        lambda x: torch.maximum(x, -x),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.clamp(min=0),
        lambda x: x.sign(),
        lambda x: (x != x).float(),
        lambda x: x**0,
        lambda x: 1 / x,
        lambda x: torch.relu(x),
        lambda x: x.abs().sqrt(),
        lambda x: x**0.5,
    ],
    ids=lambda f: "f",
)
def test_no_algebra_that_floats_do_not_have(f):
    x = torch.tensor(
        [
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            1e30,
            -1e30,
            math.inf,
            -math.inf,
            math.nan,
            0.1,
            1e-8,
            3.0,
            -7.5,
            2.0**24,
            1e38,
            -1e38,
            0.3,
        ]
    )
    got, want = tcompile.compile(f)(x), f(x)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(got) | got.isnan(), torch.signbit(want) | want.isnan())


def test_denormals_live_on_after_kernels_are_loaded():
    tiny = torch.tensor([1e-40, -3e-42, 1e-45])
    before = (tiny * 1).tolist(), (tiny / 2).tolist()
    big = torch.full((100_000,), 1e-40)
    c = tcompile.compile(lambda x: torch.sin(x) * 2 + x.exp() - 1)
    c(torch.randn(100_000))
    got = tcompile.compile(lambda x: x * 2)(big)
    assert (got == torch.tensor(1e-40) * 2).all() and (got > 0).all()
    assert ((tiny * 1).tolist(), (tiny / 2).tolist()) == before
    assert (big * 2 == got).all()  # torch's own threads as well
    assert 5e-324 / 1 == 5e-324 and 1e-310 * 0.5 > 0


def test_thread_counts_and_rng_are_left_alone():
    threads = torch.get_num_threads(), torch.get_num_interop_threads()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tcompile.compile(lambda x, y: (x @ y).softmax(-1).sum(0))(torch.ones(64, 64), torch.ones(64, 64))
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == threads
    import random

    random.seed(5)
    r = random.getstate()
    tcompile.compile(lambda x: x.cos() + 3)(torch.ones(7))
    assert random.getstate() == r


def test_random_numbers_are_eagers():
    f = lambda x: F.dropout(x, 0.5) + torch.rand(5) + torch.randn_like(x)  # noqa: E731
    c, x = tcompile.compile(f), torch.ones(5)
    torch.manual_seed(0)
    want = [f(x) for _ in range(4)]
    torch.manual_seed(0)
    got = [c(x) for _ in range(4)]
    torch.testing.assert_close(got, want)


# ---- buffers
def test_results_kept_by_the_user_are_not_written_again():
    c = tcompile.compile(lambda x: ((x + 1), (x + 1)[1:], (x * 2).t(), (x * 3).view(-1)[::2]))
    kept = [c(torch.full((4, 3), float(i))) for i in range(6)]
    gc.collect()
    for i, (a, b, t, v) in enumerate(kept):
        assert (a == i + 1).all() and (b == i + 1).all() and (t == i * 2).all() and (v == i * 3).all()
        assert b.shape == (3, 3) and t.shape == (3, 4) and t.stride() == (1, 3)


def test_views_of_results_are_views():
    def f(x):
        y = x + 1
        return y, y[1:], y.t()

    a, b, t = tcompile.compile(f)(torch.zeros(3, 3))
    a.add_(5)
    assert (b == 6).all() and (t == 6).all()
    assert b._is_view() and t._is_view()


def test_views_of_inputs_are_views():
    f = tcompile.compile(lambda x: (x[1:], x.t() + 0, x, x.view(-1)))
    x = torch.zeros(3, 3)
    for _ in range(2):
        b, _, same_x, flat = f(x)
        assert same_x is x
        x.add_(1)
        assert torch.equal(b, x[1:]) and torch.equal(flat, x.view(-1))


def test_grad_and_saved_tensors_keep_their_values():
    m = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
    c = tcompile.compile(m)
    xs = [torch.randn(4, 3, requires_grad=True) for _ in range(3)]
    losses = [c(x).pow(2).sum() for x in xs]  # three forwards are open at once
    for x, loss in zip(reversed(xs), reversed(losses)):
        loss.backward()
    for x in xs:
        y = x.detach().requires_grad_()
        got = x.grad
        m(y).pow(2).sum().backward()
        torch.testing.assert_close(got, y.grad)


def test_grad_is_accumulated_and_aliases_nothing():
    w = nn.Parameter(torch.ones(3))
    c = tcompile.compile(lambda x: (w * x).sum())
    c(torch.ones(3)).backward()
    first = w.grad
    c(torch.full((3,), 2.0)).backward()
    assert w.grad is first and torch.equal(first, torch.full((3,), 3.0))
    kept, w.grad = w.grad, None
    c(torch.full((3,), 5.0)).backward()
    assert torch.equal(kept, torch.full((3,), 3.0)) and torch.equal(w.grad, torch.full((3,), 5.0))


def test_saved_tensor_changed_in_place_is_an_error():
    def f(x):
        return (x.sin() * x).sum()

    for g in (f, tcompile.compile(f)):
        x = torch.randn(3, requires_grad=True)
        z = x * 1
        loss = g(z)
        with torch.no_grad():
            z.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


# ---- inputs: alignment, overlap, and kinds of tensors
def test_alignment_of_inputs():
    base, c = torch.randn(4099), tcompile.compile(lambda x: torch.sin(x) * 2 + 1)
    for start in (0, 1, 2, 3, 5, 7, 13):
        x = base[start : start + 4000]
        same(c(x), torch.sin(x) * 2 + 1)


def test_unaligned_memory():
    import numpy as np

    raw = np.zeros(4 * 1000 + 4, np.uint8)
    odd = raw[1 : 1 + 4 * 1000].view(np.float32)
    odd[:] = np.arange(1000)
    c = tcompile.compile(lambda x: x * 2 + 1)
    c(torch.zeros(1000))
    x = torch.from_numpy(odd)
    same(c(x), x.clone() * 2 + 1)


def overlapping(kind):
    base = torch.arange(12.0)
    return {
        "same": (base, base),
        "shifted": (base[:8], base[4:]),
        "apart": (base[:6], base[6:]),
        "transposed": (base[:9].view(3, 3), base[:9].view(3, 3).t()),
        "clone": (base, base.clone()),
    }[kind]


@pytest.mark.parametrize("kind", ["same", "shifted", "apart", "transposed", "clone"])
def test_overlap_of_inputs(kind):
    def f(x, y):
        x.add_(1)
        y.mul_(2)
        return x + y, x * 1

    c = tcompile.compile(f)
    for k in ("clone", kind, "clone", kind):
        a, b = overlapping(k), overlapping(k)
        for got, want in zip(c(*a), f(*b)):
            same(got, want)
        same(a[0], b[0])
        same(a[1], b[1])


def test_an_input_that_overlaps_itself():
    c = tcompile.compile(lambda x: x + 1)
    x = torch.arange(3.0).expand(4, 3)
    same(c(x), x + 1)
    y = torch.arange(6.0).as_strided((3, 3), (1, 1))
    torch.testing.assert_close(c(y), y + 1)


def test_writing_into_an_expanded_input_is_eagers_error():
    def f(x):
        x.add_(1)
        return x * 2

    c = tcompile.compile(f)
    for _ in range(2):
        with pytest.raises(RuntimeError) as got:
            c(torch.zeros(3).expand(4, 3))
        with pytest.raises(RuntimeError) as want:
            f(torch.zeros(3).expand(4, 3))
        assert str(got.value).splitlines()[0] == str(want.value).splitlines()[0]
    x = torch.zeros(4, 3)
    same(c(x), torch.full((4, 3), 2.0))


def test_a_parameter_that_aliases_an_input():
    w = torch.zeros(3)

    def f(x):
        x.add_(1)
        return w * 2

    c = tcompile.compile(f)
    same(c(torch.zeros(3)), torch.zeros(3))
    for i in range(1, 4):
        same(c(w), torch.full((3,), 2.0 * i))


def test_conj_and_neg_views():
    f = lambda x: x * 2 + 1  # noqa: E731
    z = torch.randn(5, dtype=torch.complex64)
    again = follows(f, z)
    again(z.conj())
    again(torch.view_as_real(z)[:, 0])
    again(z.conj().imag)
    again(z.imag)
    g = follows(lambda x: torch.sin(x) + x.abs(), z.imag)
    assert z.conj().imag.is_neg()
    g(z.conj().imag)
    same(tcompile.compile(lambda z: z.conj())(z).resolve_conj(), z.conj().resolve_conj())
    assert tcompile.compile(lambda z: z.conj())(z).is_conj()


def test_zero_tensors():
    c = tcompile.compile(lambda x: x * 2 + 1)
    c(torch.zeros(3))
    z = torch._efficientzerotensor((3,))
    same(c(z), z * 2 + 1)


def test_forward_mode_duals():
    f = lambda x: torch.sin(x) * x  # noqa: E731
    c, x, t = tcompile.compile(f), torch.randn(4), torch.randn(4)
    c(x)
    with fwAD.dual_level():
        got, want = fwAD.unpack_dual(c(fwAD.make_dual(x, t))), fwAD.unpack_dual(f(fwAD.make_dual(x, t)))
        torch.testing.assert_close(got.primal, want.primal)
        torch.testing.assert_close(got.tangent, want.tangent)
    same(c(x), f(x))


class Wrapper(torch.Tensor):
    """Counts the operators that it sees."""

    seen: list = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        args = tuple(a.inner if isinstance(a, cls) else a for a in args)
        out = func(*args, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


class Named(torch.Tensor):
    """A subclass by __torch_function__ alone: its class stays with every result."""


@pytest.mark.parametrize("grad", [False, True])
def test_tensor_subclasses(grad):
    f = lambda x: torch.sin(x) * 2 + 1  # noqa: E731
    c, x = tcompile.compile(f), torch.randn(4)
    with torch.set_grad_enabled(grad):
        c(x)
        Wrapper.seen.clear()
        got = c(Wrapper(x))
        assert type(got) is Wrapper and Wrapper.seen
        torch.testing.assert_close(got.inner, f(x))
        n = x.as_subclass(Named)
        same(c(n), f(n))
        same(c(nn.Parameter(x)), f(nn.Parameter(x)))
        same(c(x), f(x))


def test_functional_transforms_around_and_inside():
    f = lambda x: (torch.sin(x) * x).sum()  # noqa: E731
    c, x = tcompile.compile(f), torch.randn(4, 3)
    c(x)
    c(x[0])
    torch.testing.assert_close(torch.func.grad(c)(x), torch.func.grad(f)(x))
    torch.testing.assert_close(torch.func.vmap(c)(x), torch.func.vmap(f)(x))
    torch.testing.assert_close(torch.func.jvp(c, (x,), (x,)), torch.func.jvp(f, (x,), (x,)))
    same(tcompile.compile(lambda x: torch.func.grad(f)(x))(x), torch.func.grad(f)(x))
    same(tcompile.compile(lambda x: torch.vmap(f)(x))(x), torch.vmap(f)(x))
    same(c(x), f(x))
