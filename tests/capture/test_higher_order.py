"""Custom autograd functions, checkpoints, control-flow operators and torch.func inside captured code, against eager."""

from __future__ import annotations

import contextlib

import pytest
import tcompile
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_op
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
)

BACKENDS = ("eager", "tcompile")


def tensor(*shape, grad=False, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(grad)


def tensors(value):
    return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


def outcome(fn, args):
    """Results and gradients of one call."""
    args = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args]
    torch.manual_seed(7)
    out = fn(*args)
    loss = [t.sum() for t in tensors(out) if t.requires_grad]
    if loss:
        sum(loss).backward()
    return out, [a.grad for a in args if isinstance(a, torch.Tensor) and a.requires_grad]


def agree(fn, *args, fullgraph=True, backends=BACKENDS):
    expected, grads = outcome(fn, args)
    for backend in backends:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=fullgraph)
        for _ in range(2):
            got, got_grads = outcome(compiled, args)
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
            assert [t.requires_grad for t in tensors(got)] == [t.requires_grad for t in tensors(expected)]
            torch.testing.assert_close(got_grads, grads, rtol=1e-4, atol=1e-5)


# --- torch.autograd.Function
class WrongSquare(torch.autograd.Function):
    """Its gradient is 3 x, so that it is told from what autograd would make of its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * x * grad


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, y):
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.save_for_backward(x, y)
        ctx.scale, ctx.wide = scale, y.sigmoid()
        return x * y * scale, mask

    @staticmethod
    def backward(ctx, grad, _):
        x, y = ctx.saved_tensors
        assert ctx.needs_input_grad[1] is False
        return grad * y * ctx.scale, None, grad * x * ctx.wide if ctx.needs_input_grad[2] else None


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


class WithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, grad):
        x, y, out = ctx.saved_tensors
        return grad * y + out, grad * x


class AddsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.add_(1)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 5


def test_custom_gradient():
    agree(lambda x: WrongSquare.apply(x) + x, tensor(3, 4, grad=True))


def test_custom_function_without_gradient():
    agree(lambda x: WrongSquare.apply(x).sin(), tensor(3, 4))
    with torch.no_grad():
        agree(lambda x: WrongSquare.apply(x).sin(), tensor(3, 4, grad=True))


@pytest.mark.parametrize("second", [False, True])
def test_several_results_and_constants(second):
    def f(x, y):
        a, mask = Pair.apply(x, 2.0, y)
        return a.sin(), mask, mask.requires_grad

    agree(f, tensor(4, grad=True), tensor(4, grad=second, seed=1))


def test_same_tensor_twice_sums_gradients():
    agree(lambda x: WithSetup.apply(x, x), tensor(4, grad=True))


def test_setup_context_and_result_saved():
    agree(lambda x, y: WithSetup.apply(x, y) * 2, tensor(4, grad=True), tensor(4, grad=True, seed=1))


def test_result_that_is_the_input():
    def f(x):
        y = Reverse.apply(x)
        return y * 2, y is x

    agree(f, tensor(4, grad=True))
    agree(f, tensor(4))


def test_input_changed_in_place():
    def f(x):
        y = x * 2
        z = AddsInPlace.apply(y)
        return z * 3, y

    agree(f, tensor(4, grad=True))


def test_inside_a_module_and_twice():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def f(x):
        return WrongSquare.apply(model(WrongSquare.apply(x))).sum()

    agree(f, tensor(2, 4, grad=True))


def test_closed_over_parameter_gets_no_gradient():
    weight = nn.Parameter(torch.full((4,), 3.0))

    class UsesGlobal(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            return grad * weight * 2

    agree(lambda x: UsesGlobal.apply(x), tensor(4, grad=True))
    assert weight.grad is None


SCALE = 2.0


class ReadsGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * SCALE


def test_what_backward_reads_is_guarded():
    global SCALE
    SCALE = 2.0
    compiled = tcompile.compile(lambda x: ReadsGlobal.apply(x), backend="eager", fullgraph=True)
    for value in (2.0, 5.0):
        SCALE = value
        x = tensor(3, grad=True)
        compiled(x).sum().backward()
        assert x.grad.tolist() == [value] * 3
    SCALE = 2.0


def test_effects_of_forward_are_kept_and_those_of_backward_break():
    class Notes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, log):
            log.append("forward")
            ctx.log = log
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            ctx.log.append("backward")
            return grad * 7, None

    def f(x, log):
        return Notes.apply(x, log) + 1

    def run(g):
        x, log = tensor(3, grad=True), []
        g(x, log).sum().backward()
        return log, x.grad.tolist()

    assert run(tcompile.compile(f, backend="eager")) == run(f)
    with pytest.raises(tcompile.FullGraphError, match="side effects"):
        run(tcompile.compile(f, backend="eager", fullgraph=True))


def test_double_backward():
    def f(x):
        return WrongSquare.apply(x)

    def second(g):
        x = tensor(3, grad=True)
        (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    torch.testing.assert_close(second(tcompile.compile(f, backend="eager", fullgraph=True)), second(f))


def test_once_differentiable():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x.exp()

    agree(lambda x: Once.apply(x), tensor(3, grad=True))

    def second(g):
        x = tensor(3, grad=True)
        (first,) = torch.autograd.grad((g(x) * x).sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()

    f = lambda x: Once.apply(x)
    second(f)
    second(tcompile.compile(f, backend="eager", fullgraph=True))


def test_wrong_number_of_gradients_raises_as_eager():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, grad):
            return grad

    def run(g):
        with pytest.raises(RuntimeError) as info:
            g(tensor(3, grad=True), tensor(3)).sum().backward()
        return str(info.value)

    f = lambda x, y: Wrong.apply(x, y)
    assert run(tcompile.compile(f, backend="eager")) == run(f)


# --- torch.utils.checkpoint
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    def f(x, y):
        return checkpoint(lambda a, b: layer(a).sin() * b, x, y, use_reentrant=reentrant) + 1

    agree(f, tensor(2, 4, grad=True), tensor(2, 4, seed=1))


def test_a_checkpoint_that_is_not_told_which_kind():
    """Eager warns at each call, and takes the reentrant one. Its warning names a line of torch's wrapper, ours the
    program's.
    """
    layer = nn.Linear(4, 4)

    def fn(x):
        return checkpoint(layer, x) * 2

    compiled, found = tcompile.compile(fn, fullgraph=True, backend="eager"), []
    for run in (fn, compiled, compiled):
        x = tensor(2, 4, grad=True)
        with pytest.warns(UserWarning, match="use_reentrant parameter should be passed") as given:
            run(x).sum().backward()
        found.append((x.grad.tolist(), [str(w.message) for w in given]))
    assert given[0].filename == __file__
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("enabled", [False, True])
def test_a_reentrant_checkpoint_of_inputs_without_gradient(enabled):
    """Eager warns, and gives results without a gradient: of the function's weights, too."""
    w = tensor(3, grad=True)

    def fn(x):
        return checkpoint(lambda a, b: (a, a * w, b), x, 2, use_reentrant=True), torch.is_grad_enabled()

    compiled, x = tcompile.compile(fn, fullgraph=True, backend="eager"), torch.ones(3)
    with torch.set_grad_enabled(enabled):
        for run in (fn, compiled, compiled):
            with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
                (same, product, two), now = run(x)
            assert same is not x and same.data_ptr() == x.data_ptr() and two == 2 and now is enabled
            assert not product.requires_grad
            torch.testing.assert_close(product, w.detach())


def test_whether_a_backward_pass_lets_checkpoints_compute_again():
    asked = []

    def ask(grad):
        asked.append(torch.autograd._is_checkpoint_valid())
        return grad * (2 if torch.autograd._is_checkpoint_valid() else 3)

    def outcomes(hook):
        found = []
        for by_inputs in (False, True, False):
            x = torch.ones(2, requires_grad=True)
            y = x * 1
            y.register_hook(hook)
            y.sum().backward(inputs=[x] if by_inputs else None)
            found.append(x.grad.tolist())
        return found

    compiled = tcompile.compile(ask, backend="eager", fullgraph=True)
    assert outcomes(compiled) == outcomes(ask) == [[2, 2], [3, 3], [2, 2]]
    assert asked == [True, False, True] * 2


def test_checkpoint_draws_the_same_numbers():
    def f(x):
        return checkpoint(lambda a: F.dropout(a, 0.5).sin(), x, use_reentrant=False), torch.rand(3)

    agree(f, tensor(64, grad=True), backends=("eager",))


def test_checkpoint_sequential():
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    agree(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=False), tensor(2, 4, grad=True))


def test_checkpointed_function_runs_again_in_backward_and_saves_nothing():
    saved = []

    def f(x):
        return checkpoint(lambda a: a.sin().exp().cos(), x, use_reentrant=False)

    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    x = tensor(8, grad=True)
    compiled(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        compiled(x).sum()
    assert sum(t.numel() for t in saved) <= 8  # (torch 2.11 keeps an empty one beside it)


# --- torch.cond
def test_cond_takes_both_branches():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compiled = tcompile.compile(f, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(x), x.sin() if x.sum() > 0 else x.cos())


def test_cond_closures_modules_nesting_and_structure():
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(x, y):
        a = torch.cond(x.sum() > 0, lambda: x + y, lambda: x - y, ())
        b = torch.cond(x.mean() > 10, one, two, (x,))
        inner = lambda x: torch.cond(x.max() > 1, lambda x: {"v": x * 2}, lambda x: {"v": x * 3}, (x,))
        c = torch.cond(x.sum() > 0, inner, lambda x: {"v": x.cos()}, (x,))
        return a, b, c["v"]

    agree(f, tensor(2, 4), tensor(2, 4, seed=1))
    agree(f, tensor(2, 4, grad=True), tensor(2, 4, seed=1))


def test_cond_gradient_of_the_other_branch_is_not_seen():
    def f(x):
        return torch.cond((x > 0).all(), lambda x: x.sqrt(), lambda x: x * 2, (x,))

    x = torch.zeros(3, requires_grad=True)
    tcompile.compile(f)(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_cond_runs_one_branch():
    table = torch.arange(6.0).reshape(3, 2)

    def f(i):
        return torch.cond((i < 3).all(), lambda i: F.embedding(i, table), lambda i: torch.zeros(2, 2), (i,))

    compiled = tcompile.compile(f, fullgraph=True)
    assert compiled(torch.tensor([1, 2])).tolist() == [[2, 3], [4, 5]]
    assert compiled(torch.tensor([1, 99])).tolist() == [[0, 0], [0, 0]]


def test_cond_with_effects_breaks():
    def f(x):
        log = []
        y = torch.cond(x.sum() > 0, lambda x: (log.append(1), x + 1)[1], lambda x: x - 1, (x,))
        return y, log

    with pytest.raises(tcompile.FullGraphError, match="side effects"):
        tcompile.compile(f, fullgraph=True)(torch.ones(3))


# --- loops
def test_while_loop_and_closure():
    step = torch.tensor(1.5)

    def f(x, i, n):
        return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * step), (i, x))

    compiled = tcompile.compile(f, fullgraph=True)
    for n in (5, 2, 0):
        i, x = compiled(torch.ones(3), torch.tensor(0), torch.tensor(n))
        assert (int(i), x.tolist()) == (n, [1.5**n] * 3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_scan(reverse, dim):
    def f(x):
        return scan(lambda c, v: (c + v, c * v), torch.zeros(4), x, dim=dim, reverse=reverse)

    def loop(x):
        c, ys = torch.zeros(4), []
        parts = x.unbind(dim)
        for v in reversed(parts) if reverse else parts:
            ys.append(c * v)
            c = c + v
        return c, torch.stack(ys[::-1] if reverse else ys, dim)

    x = tensor(4, 4)
    for backend in BACKENDS:
        torch.testing.assert_close(tcompile.compile(f, backend=backend, fullgraph=True)(x), loop(x))


def test_map_and_associative_scan():
    x = tensor(5, 3)
    for backend in BACKENDS:
        c = tcompile.compile(lambda x: map_op(lambda v: v.sin() + 1, x), backend=backend, fullgraph=True)
        torch.testing.assert_close(c(x), x.sin() + 1)
        c = tcompile.compile(
            lambda x: associative_scan(lambda a, b: a + b, x, dim=0, combine_mode="generic"),
            backend=backend,
            fullgraph=True,
        )
        torch.testing.assert_close(c(x), x.cumsum(0))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 33])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_any_length(n, reverse):
    x = tensor(3, n).exp() * 0.5

    def f(x):
        combine = lambda a, b: {"p": a["p"] * b["p"], "s": b["p"] * a["s"] + b["s"]}
        return associative_scan(combine, {"p": x, "s": x * 2}, dim=1, reverse=reverse, combine_mode="generic")

    got = tcompile.compile(f, backend="eager", fullgraph=True)(x)
    p, s, ps, ss = None, None, [], []
    for v in x.unbind(1)[::-1] if reverse else x.unbind(1):
        p, s = (v, v * 2) if p is None else (p * v, v * s + v * 2)
        ps.append(p)
        ss.append(s)
    order = slice(None, None, -1 if reverse else 1)
    torch.testing.assert_close(
        got, {"p": torch.stack(ps[order], 1), "s": torch.stack(ss[order], 1)}, rtol=1e-4, atol=1e-5
    )


def test_associative_scan_that_is_not_elementwise():
    x = tensor(6, 3, 3) * 0.5
    got = tcompile.compile(
        lambda x: associative_scan(lambda a, b: b @ a, x, dim=0, combine_mode="generic"),
        backend="eager",
        fullgraph=True,
    )(x)
    want = [x[0]]
    for v in x[1:]:
        want.append(v @ want[-1])
    torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-5)


# --- torch.func
W = tensor(4, seed=3)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.vmap(lambda v: v.sin().sum())(x),
        lambda x: torch.vmap(lambda v, w: v @ w, in_dims=(0, None))(x, W),
        lambda x: torch.vmap(lambda d: d["a"] * 2 + d["b"], in_dims=({"a": 0, "b": None},), out_dims=1)(
            {"a": x, "b": W}
        ),
        lambda x: torch.vmap(torch.vmap(lambda v: v.exp()), in_dims=1)(x),
        lambda x: torch.func.grad(lambda v: (v**3).sum())(x),
        lambda x: torch.func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x * 2),
        lambda x: torch.func.grad_and_value(lambda a: ((a * a).sum(), a + 1), has_aux=True)(x),
        lambda x: torch.vmap(torch.func.grad(lambda v: (v * W).sin().sum()))(x),
        lambda x: torch.func.grad(lambda v: torch.func.grad(lambda u: (u**4).sum())(v).sum())(x),
        lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)),
        lambda x: torch.func.jacrev(lambda a: a.sin() * W)(x),
        lambda x: torch.func.jacfwd(lambda a: a.sin() * a)(x),
        lambda x: torch.func.hessian(lambda a: (a**3).sum())(x),
    ],
    ids=range(13),
)
def test_transforms(f):
    agree(f, tensor(4, 4))


def test_vjp_and_its_function_used_twice():
    def f(x):
        out, pullback = torch.func.vjp(lambda a: (a.sin(), a * 2), x)
        return out, pullback((torch.ones_like(x), x)), pullback((x, x))

    agree(f, tensor(4))


def test_pullback_that_leaves_the_function():
    def f(x):
        y, pullback = torch.func.vjp(torch.sin, x * 2)
        return y + 1, pullback

    x = tensor(4)
    y, pullback = tcompile.compile(f)(x)
    torch.testing.assert_close(pullback(torch.ones(4))[0], (x * 2).cos())


OUTSIDE = [
    torch.vmap(lambda v: v.sin().sum()),
    torch.func.grad(lambda v: (v**3).sum()),
    torch.func.jacrev(lambda v: v.sin()),
    torch.func.hessian(lambda v: (v**3).sum()),
    torch.func.grad_and_value(lambda v: (v * 2).sum()),
]


@pytest.mark.parametrize("index", range(len(OUTSIDE)))
def test_transforms_made_outside(index):
    transformed = OUTSIDE[index]
    agree(lambda x: transformed(x * 2), tensor(4, 4))


def test_functional_call_and_per_sample_gradients():
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    params = {k: v.detach() * 2 for k, v in layer.named_parameters()}

    def loss(p, x):
        return torch.func.functional_call(layer, p, (x[None],)).pow(2).sum()

    def f(x):
        return (
            torch.func.functional_call(layer, params, (x,)),
            layer(x),
            torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(params, x),
        )

    agree(f, tensor(3, 4))


def test_functional_call_ties_weights():
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    model, weight = Tied(), tensor(4, 4, seed=5)
    agree(lambda x: torch.func.functional_call(model, {"a.weight": weight}, (x,)), tensor(2, 4))


def test_random_numbers_in_vmap_raise_as_eager():
    def f(x):
        return torch.vmap(lambda v: v + torch.rand_like(v))(x)

    def message(g):
        with pytest.raises(RuntimeError) as info:
            g(tensor(3, 4))
        return str(info.value)

    assert message(tcompile.compile(f, backend="eager")) == message(f)


def test_stock_compiler_is_not_imported():
    import subprocess
    import sys

    code = (
        "import sys, torch, tcompile\n"
        "def f(x):\n"
        "    with torch.no_grad():\n"
        "        y = torch.vmap(lambda v: v.sin().sum())(x)\n"
        "    return y + torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)\n"
        "import torch.utils.checkpoint\n"
        "print(tcompile.compile(f, fullgraph=True)(torch.ones(2, 2)).shape, 'torch._dynamo' in sys.modules)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.split()[-1] == "False", out.stdout


_ = contextlib


# --- bodies make tensors from nothing
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.rand(3) + torch.arange(x.shape[0])[:, None]

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand(3) + torch.arange(g.shape[0])[:, None]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: checkpoint(lambda y: y.sin() * torch.rand(3), x, use_reentrant=False),
        Noisy.apply,
        lambda x: torch.func.grad(lambda y: (y.sin() * torch.randn(3)).sum())(x),
        lambda x: torch.vmap(lambda y: y * torch.rand(3), randomness="different")(x),
        lambda x: torch.vmap(lambda y: y * torch.rand(3), randomness="same")(x),
        lambda x: torch.vmap(torch.func.grad(lambda y: (y * torch.rand(3)).sum()), randomness="different")(x),
    ],
)
def test_random_numbers_of_a_body_are_drawn_in_each_call(fn):
    def twice(f):
        torch.manual_seed(3)
        x, out = tensor(2, 3, grad=True), []
        for _ in range(2):
            y = f(x)
            out += [y, *torch.autograd.grad(y.sum(), x)] if y.requires_grad else [y]
        return out

    got, want = twice(tcompile.compile(fn)), twice(fn)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(got[0], got[len(got) // 2])


def test_random_numbers_that_vmap_refuses():
    with pytest.raises(RuntimeError, match="randomness error mode"):
        tcompile.compile(lambda x: torch.vmap(lambda y: y * torch.rand(3))(x))(tensor(2, 3))


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n, scale):
        ctx.n, ctx.scale = n, scale
        return x * scale + torch.arange(n)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale + torch.ones(ctx.n), None, None


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: Scaled.apply(x, x.shape[0], 1 / x.shape[0] ** 0.5),
        lambda x: checkpoint(lambda y: y + torch.zeros(y.shape[0]), x, use_reentrant=False),
        lambda x: torch.func.grad(lambda y: (y * torch.arange(y.shape[0])).sum())(x) + x,
    ],
)
def test_sizes_that_vary_inside_of_bodies(fn):
    compiled = tcompile.compile(fn, fullgraph=True)
    with tcompile.record() as builder:
        for n in (3, 5, 7, 8, 3):
            for a, b in zip(
                *[
                    (y, *torch.autograd.grad(y.sum(), x))
                    for f in (compiled, fn)
                    for x in [tensor(n, grad=True)]
                    for y in [f(x)]
                ],
                strict=True,
            ):
                torch.testing.assert_close(a, b)
    assert sum(not g.name.endswith("backward") for g in builder.report().graphs) == 2


class Narrow(torch.autograd.Function):
    """Keeps its operands alone, and makes the product again in backward."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return (x @ w).sin().sum(1), x.sum(1)

    @staticmethod
    def backward(ctx, g, h):
        x, w = ctx.saved_tensors
        d = (x @ w).cos() * g[:, None]
        return d @ w.T + h[:, None], x.T @ d


def test_what_a_backward_makes_again_is_not_kept():
    x, w = tensor(8, 4, grad=True), tensor(4, 64, grad=True, seed=1)
    agree(lambda x, w: Narrow.apply(x, w)[0], x, w)
    agree(lambda x, w: Narrow.apply(x, w), x, w)
    report = tcompile.explain(lambda x, w: Narrow.apply(x, w)[0])(x, w)
    assert report.partitions[0].saved_bytes == 0, report.partitions


class UnderAutocast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = g.float()
        d = g @ w.T
        return d * (d.dtype == torch.float32), x.T @ g


def test_a_backward_is_outside_of_autocast():
    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return UnderAutocast.apply(x, w)

    agree(f, tensor(8, 4, grad=True), tensor(4, 6, grad=True, seed=1))


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x, y, z)
        return torch.vmap(lambda a: (a * y * z).cos())(x)

    @staticmethod
    def backward(ctx, g):
        x, y, z = ctx.saved_tensors
        return torch.func.vjp(lambda a: (a * y * z).cos(), x)[1](g)[0], None, None


def test_bodies_inside_of_bodies_that_use_their_surroundings():
    """Their parameters have names of their own, those that are lifted too."""
    agree(lambda x, y, z: Twice.apply(x, y, z), tensor(2, 3, grad=True), tensor(3, seed=1), tensor(3, seed=2))
