"""Small programs on which compiled code once differed from eager, most found by the fuzzers beside this file."""

from __future__ import annotations

import io

import pytest
import torch

import tcompile

from .changes import World
from .oracle import same


def check(f, *calls, backend="tcompile"):
    """Call after call, compiled gives what eager gives, and changes its arguments alike."""
    c = tcompile.compile(f, backend=backend)
    for call in calls:
        mine = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in call]
        same(f(*call), c(*mine))
        same(list(call), mine)


NUMBERS = {
    "n+1": lambda a, n: a + (n + 1),
    "2n": lambda a, n: a * (n * 2) + n // 2,
    "mod": lambda a, n: a + n % 3,
    "full": lambda a, n: torch.full((3,), n + 1) + a,
    "power": lambda a, n: a + n**2,
    "abs": lambda a, n: a + abs(n - 5),
    "neg": lambda a, n: a + (-n),
    "roll": lambda a, n: a.roll(n) + a,
    "max": lambda a, n: a + max(n, 4),
    "pow": lambda a, n: torch.pow(a + 2, n),
    "alpha": lambda a, n: torch.add(a, 1, alpha=n + 1),
    "arange": lambda a, n: torch.arange(n + 1).sum() + a,
    "size": lambda a, n: a.new_full((2,), n + 2),
    "where": lambda a, n: torch.where(a > n - 5, n + 1, a),
    "lerp": lambda a, n: torch.lerp(a, a + 1, n + 1),
    "repeat": lambda a, n: a.repeat(n + 1),
    "zeros": lambda a, n: torch.zeros(n + 1, 3) + a,
    "addcmul": lambda a, n: torch.addcmul(a, a + 1, a + 2, value=n + 1),
    "pad": lambda a, n: torch.nn.functional.pad(a, (n, n + 1), value=n + 1),
    "masked": lambda a, n: a.masked_fill(a > 0, n + 1),
    "pow_": lambda a, n: (a + 1).abs().pow_(n + 1),
    "inplace": lambda a, n: (a * 1).add_(n + 1) * 1,
    "reverse": lambda a, n: (n + 1) / (a.abs() + 1),
    "base": lambda a, n: (n + 1) ** (a + 1),
    "clamp": lambda a, n: torch.clamp(a, n - 2, n + 1),
    "softplus": lambda a, n: torch.nn.functional.softplus(a, n + 1),
    "index_fill": lambda a, n: a.index_fill(0, torch.tensor([1]), n + 1),
}


@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
@pytest.mark.parametrize("name", NUMBERS)
def test_expressions_of_an_int_that_changes(name, grad):
    """An int that changed is a symbol; what is computed from it was once frozen at the value of that call."""
    check(NUMBERS[name], *[(torch.arange(3.0).requires_grad_(grad), n) for n in (3, 4, 5, 6, 3)])


@pytest.mark.parametrize(
    "f",
    [lambda a, n: a.fill_(n + 1) + 0, lambda a, n: a.add_(n) * 1, lambda a, n: a[0].zero_() + a],
    ids=["fill", "add", "view"],
)
def test_input_that_requires_grad_is_changed_in_place(f):
    c = tcompile.compile(f)
    for n in (3, 4, 5):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        same(f(x * 1, n), c(y * 1, n))
        a, b = x * 2, y * 2
        f(a, n).sum().backward()
        c(b, n).sum().backward()
        same(x.grad, y.grad)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_dicts_with_devices_and_dtypes_as_keys(backend):
    table = {torch.device("cpu"): torch.ones(3), torch.float32: 2.0, ("a", torch.device("cpu")): 3}

    def f(x):
        return x + table[x.device] * table[x.dtype] + table["a", x.device] + len(table)

    check(f, (torch.zeros(3),), (torch.ones(3),), backend=backend)
    table[torch.device("cpu")] = torch.zeros(3)
    c = tcompile.compile(f, backend=backend)
    for value in (1.0, 5.0, 1.0):
        table[torch.float32] = value
        table[torch.device("cpu")] = torch.full((3,), value)
        same(f(torch.ones(3)), c(torch.ones(3)))
    table[torch.device("meta")] = 0
    same(f(torch.ones(3)), c(torch.ones(3)))


def test_call_of_a_module_class_is_replaced():
    class Block(torch.nn.Module):
        def forward(self, x):
            return x + 1

    net = torch.nn.Sequential(torch.nn.Sequential(Block(), Block()), torch.nn.ReLU())
    c = tcompile.compile(net)
    same(net(torch.ones(3)), c(torch.ones(3)))
    Block.__call__ = lambda self, x: torch.nn.Module.__call__(self, x) * 2
    same(net(torch.ones(3)), c(torch.ones(3)))
    del Block.__call__
    same(net(torch.ones(3)), c(torch.ones(3)))


def test_backward_inside_leaves_the_history_of_what_is_only_read_detached():
    """The loss's backward pass went through inputs that have no gradient from it, and freed what their own operators
    had saved.
    """

    def f(a, c):
        t = c.detach().clone().requires_grad_()
        with torch.enable_grad():
            (torch.sin(t) * c.detach()).sum().backward()
        return [c, t.grad * 2, a]

    g = tcompile.compile(f)
    for _ in range(2):
        x, y = torch.arange(3.0, requires_grad=True), torch.arange(3.0, requires_grad=True)
        for call, root in ((f, x), (g, y)):
            sum(r.sum() for r in call(root * 1, root * root)).backward()
        same(x.grad, y.grad)


def test_double_backward_beside_an_input_that_is_only_read_detached():
    def f(a, c):
        return (a * a * c.detach()).sum()

    g = tcompile.compile(f)
    for _ in range(2):
        found = []
        for call in (f, g):
            a, c = torch.arange(3.0, requires_grad=True), torch.arange(3.0, requires_grad=True)
            (first,) = torch.autograd.grad(call(a, c * 2), a, create_graph=True)
            found.append(torch.autograd.grad(first.sum(), a)[0])
        same(*found)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_graph_fails_after_it_left_a_no_grad_region(backend):
    """The call runs again as it is, in the grad mode that it was made in, not in the one that the failing graph had
    reached.
    """

    def f(a, index):
        with torch.no_grad():
            b = torch.sin(a)
            if b.sum() > 100:
                b = b + 1
            c = b * a
        try:
            a = torch.index_select(a, 0, index) + a
        except IndexError:
            a = a - 1
        return c * 2, a

    c = tcompile.compile(f, backend=backend)
    for at in (0, 2, 5, 5, 1):
        results = []
        for call in (f, c):
            results.append(call(torch.ones(3, requires_grad=True) * 1, torch.tensor([at])))
            assert torch.is_grad_enabled()
        same(*results)


# Sequences of changes after which the oracle of changes once called rounding a difference, or an input that cannot be
# made an error.
ROUNDED = {
    "bfloat16 input": [("shape", (4, 3)), ("dtype", torch.bfloat16)],
    "autocast": [("autocast", True)],
    "gradients of sums that cancel": [("grad", True), ("n", 3)],
    "no layout": [("shape", (2, 5, 3)), ("layout", "t")],
    "no gradient": [("requires_grad", True), ("dtype", torch.int64)],
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_no_difference(name):
    """The compiled numbers were as near to those of float64 as eager's were."""
    eager, compiled = World(lambda f: f), World(tcompile.compile)
    for seed, (attribute, value) in enumerate(ROUNDED[name]):
        for w in (eager, compiled):
            setattr(w, attribute, value)
        same(eager.run(seed), compiled.run(seed), rtol=eager.rounding(), scaled=True)


def test_more_than_rounding_is_a_difference():
    """A tolerance that grows with a result must still see what is stale: a scale, a single wrong number, another type,
    nan.
    """
    want, w = torch.tensor([50.0, 0.5, -3.0]), World(lambda f: f)
    assert w.rounding() == 1e-4
    w.autocast = True
    coarse = w.rounding()
    assert coarse < 0.04
    for rtol in (1e-4, coarse):
        same([want], [want + 0.3 * rtol * 50], rtol=rtol, scaled=True)
        for got in (want * 1.1, want + torch.tensor([0, 0, 3.0]), want.double(), want.where(want > 0, torch.nan)):
            with pytest.raises(AssertionError):
                same([want], [got], rtol=rtol, scaled=True)
    with pytest.raises(AssertionError):
        same([want], [want + torch.tensor([0, 1e-3, 0])])


@pytest.mark.parametrize(
    "parts",
    [lambda t: t.unbind(1), lambda t: t.split(2), lambda t: t.split([1, 3]), lambda t: [p[1:] for p in t.chunk(2)]],
    ids=["unbind", "split", "sizes", "view"],
)
def test_writes_to_one_of_several_views_are_refused_with_gradients(parts):
    def f(a):
        t = a.clone()
        p = parts(t)[1]
        p.add_(1)
        return t * 2

    c = tcompile.compile(f)
    same(f(torch.ones(4, 3)), c(torch.ones(4, 3)))
    for call in (f, c):
        with pytest.raises(RuntimeError, match="multiple views"):
            call(torch.ones(4, 3, requires_grad=True) * 1)
    with torch.no_grad():
        same(f(torch.ones(4, 3, requires_grad=True)), c(torch.ones(4, 3, requires_grad=True)))


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_variable_of_a_closure_that_is_unbound_behind_a_break(backend):
    """Behind a break a cell variable was a free variable, and an empty one of those raises NameError only."""

    def f(x, n):
        for v in x.unbind()[:n]:
            print(end="")
            last = v + 1
        get = lambda: last
        print(end="")
        y = x * 2
        if n == 2:
            del last
            get()
        return y + last

    c = tcompile.compile(f, backend=backend)
    for n in (1, 0, 2, 1):
        results = []
        for g in (f, c):
            try:
                results.append(g(torch.ones(2), n))
            except NameError as e:
                results.append((type(e), str(e)))
        same(*results)


ERRORS = {
    "reshape": lambda a, n: a.reshape(3, n + 1),
    "function": lambda a, n: torch.reshape(a, (n + 1, 3)),
    "operator": lambda a, n: a @ torch.ones(n + 5, 2),
    "index": lambda a, n: a[n + 5],
    "factory": lambda a, n: torch.zeros(n, -n - 2),
    "dim": lambda a, n: a.sum(n + 5),
    "named": lambda a, n: a.unflatten(dim=0, sizes=(n + 5, 2)),
    "sequence": lambda a, n: a.expand((n + 5, 5)),
    "setitem": lambda a, n: a.__setitem__(slice(n - n, 2), torch.ones(n + 5)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_words_of_an_operators_error_name_this_calls_numbers(name):
    """An error that the program caught kept the numbers of the call that was captured, though they vary."""

    def f(a, n):
        try:
            return ERRORS[name](a, n) * 2, "went"
        except Exception as e:
            return a + 1, type(e).__name__, str(e)

    check(f, *[(torch.arange(4.0), n) for n in (0, 3, 5, 9, 3)], backend="eager")


def test_words_of_an_operators_error_name_this_calls_sizes():
    def f(a, b):
        try:
            return a + b, "went"
        except RuntimeError as e:
            return a + 1, str(e)

    check(f, *[(torch.ones(n), torch.ones(n + 1)) for n in (3, 4, 6, 9)], backend="eager")


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_a_view_that_autograd_refuses_is_an_argument(backend):
    """One of chunk()'s views, whose base was written into since: it may be handed on, and what follows a break was not
    compiled but raised.
    """

    def handed_on(c, part):
        return [part], c * 2

    def used(c, part):
        return part * 2, c

    def broken(c, part):
        part, b = c.chunk(2)[0], c * 2
        c[1:].sub_(0.5)
        print((b.sum() > 0).tolist(), file=io.StringIO())
        return [part], (b + 1) * 2

    def outcome(f, writes):
        c = torch.arange(4.0, requires_grad=True) * 1
        part = c.chunk(2)[0]
        if writes:
            c.add_(1)
        try:
            made = f(c, part)
            return made, made[0][0].grad_fn is None
        except RuntimeError as e:
            return str(e)

    for f in (handed_on, used, broken):
        g = tcompile.compile(f, backend=backend)
        for writes in (True, False, True, False):
            same(outcome(f, writes), outcome(g, writes))


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_parts_of_nothing(backend):
    """split() of a slice that is empty in one call gives one empty part; numbers that are no sizes of parts are
    refused.
    """

    def fn(x, n, k):
        parts = x[:n].split(k)
        return len(parts), parts[0] * 2, parts[-1] + 1

    def outcome(f, *args):
        try:
            return f(*args)
        except RuntimeError as error:
            return str(error)

    compiled, x = tcompile.compile(fn, backend=backend), torch.arange(12.0).reshape(6, 2)
    for n, k in ((4, 2), (5, 3), (0, 3), (0, 2), (-6, 1), (-7, 4), (3, -1), (3, 0), (0, 0), (0, -2), (2, 5), (6, 4)):
        wanted, got = outcome(fn, x, n, k), outcome(compiled, x, n, k)
        assert str(got) == str(wanted), (n, k)


KEEPING = {
    "sin": torch.sin,
    "exp": torch.exp,
    "gates": lambda c: torch.sigmoid(c) * torch.tanh(c),
    "square": lambda c: c * c,
    "both": lambda c: (c.sin() * c.cos()).sum(),
    "softmax": lambda c: c.softmax(0),
    "product": lambda c: c @ c,
    "gelu": torch.nn.functional.gelu,
    "amax": lambda c: c.amax(0),
    "norm": torch.norm,
    "variance": lambda c: (c - c.mean(0)).pow(2).mean(0),
    "root": lambda c: (c * c + 1).sqrt(),
    "copy": lambda c: c.clone().sin(),
}


@pytest.mark.parametrize("name", KEEPING)
def test_what_was_kept_is_written_over(name):
    """Compiled code may keep other tensors for the backward pass than eager: it gives what was computed or refuses, and
    does that only where eager does.
    """
    f = KEEPING[name]

    def gradient(f, writes):
        torch.manual_seed(0)
        x = torch.randn(4, 4, requires_grad=True)
        c = x * 1
        result = f(c)
        if writes:
            c.add_(1)
        try:
            result.sum().backward()
        except RuntimeError as e:
            return str(e)[:40]
        return x.grad

    wanted, eager = gradient(f, False), gradient(f, True)
    compiled = tcompile.compile(f)
    for _ in range(2):
        got = gradient(compiled, True)
        same(wanted if isinstance(got, torch.Tensor) else eager, got)
