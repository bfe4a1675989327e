"""Breaks inside of calls: what lies before the break in all the frames is one graph, and so is what follows it."""

import functools
import itertools
import sys
import traceback
import types

import pytest
import torch

import tcompile
from tcompile.compiler.graph.torch_modes import autocast_nesting

stop = tcompile.disable(lambda *args: args[0] if args else None)  # every call of it is a break


def _graphs(fn, *args, calls=1):
    """The result of the last of `calls` calls, and how many operators each graph has."""
    sizes = []

    def backend(gm, inputs):
        sizes.append(sum(n.op == "call_function" or n.op == "call_method" for n in gm.graph.nodes))
        return gm.forward

    compiled = tcompile.compile(fn, backend=backend)
    for _ in range(calls):
        result = compiled(*args)
    return result, sizes


def _inner(x):
    x = x + 1
    stop()
    return x + 2


def _middle(x):
    return _inner(x + 4) + 8


def _outer(x):
    return _middle(x + 16) + 32


def test_one_graph_before_and_one_after():
    x = torch.zeros(3)
    result, sizes = _graphs(_outer, x, calls=3)
    assert sizes == [3, 3]
    assert torch.equal(result, _outer(x))


def test_the_same_function_twice():
    def twice(x):
        return _middle(x) + _middle(x * 2) * 3

    def outer(x):
        return twice(x) + 1

    x = torch.ones(3)
    result, sizes = _graphs(outer, x, calls=2)
    assert len(sizes) == 3
    assert torch.equal(result, outer(x))


def test_every_level_breaks():
    def middle(x):
        x = x + 4
        stop()
        return _inner(x + 8) + 16

    def outer(x):
        x = x * 2
        stop()
        return middle(x + 32) + 64

    x = torch.ones(3)
    result, sizes = _graphs(outer, x, calls=2)
    assert sizes == [1, 2, 2, 3]
    assert torch.equal(result, outer(x))


class _Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = []

    def forward(self, x):
        y = self.linear(x)
        self.calls.append(x.shape)
        if y.sum() > 0:
            return y.relu() + x
        return y.tanh() + x


class _Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = _Block(), _Block()
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.second(self.first(x + 1) * 2))


def test_modules_that_branch_on_values():
    torch.manual_seed(0)
    model, model2 = _Model(), _Model()
    model2.load_state_dict(model.state_dict())
    sizes = []

    def backend(gm, inputs):
        sizes.append(1)
        return gm.forward

    compiled = tcompile.compile(model, backend=backend)
    for k in range(12):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(k)) * 3
        torch.testing.assert_close(compiled(x), model2(x))
    assert len(model.first.calls) == len(model.second.calls) == 12
    assert len(sizes) <= 7  # of the tree of two branches: no block on its own


def test_closures_keep_their_cells():
    def outer(x):
        total = x + 1
        count = [0]

        def middle(y):
            nonlocal total
            own = y + 4
            total = total + 8

            def inner(z):
                nonlocal total, own
                total = total + 16
                own = own + 32
                stop()
                count[0] += 1
                return z + total + own

            return inner(y + own), own

        result = middle(x + 64)
        return (*result, total, count)

    x = torch.zeros(3)
    result, sizes = _graphs(outer, x, calls=2)
    assert len(sizes) == 2
    expected = outer(x)
    assert all(torch.equal(a, b) for a, b in zip(result[:3], expected[:3])) and result[3] == expected[3] == [1]


def test_globals_of_another_module():
    other = types.ModuleType("nested_breaks_other")
    exec(
        "def calls(fn, x):\n    global seen\n    seen = seen + 1\n    y = fn(x * 2)\n    return y + seen\nseen = 1",
        other.__dict__,
    )
    sys.modules["nested_breaks_other"] = other
    try:

        def outer(x):
            return other.calls(_inner, x) * 3

        x = torch.ones(3)
        expected = outer(x)
        other.seen = 1
        result, sizes = _graphs(outer, x)
        assert torch.equal(result, expected) and other.seen == 2 and len(sizes) == 2
        assert torch.equal(_graphs(outer, x)[0], outer(x) - 3) and other.seen == 4
    finally:
        del sys.modules["nested_breaks_other"]


def _trace(fn, *args):
    """What a call raises: type, words, and the functions and lines of the test's own that it passed (a function that
    was parted stands there twice).
    """
    try:
        fn(*args)
    except Exception as error:
        places = [(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][1:]
        return type(error), str(error), [place for place, _ in itertools.groupby(places)]
    raise AssertionError("it does not raise")


@tcompile.disable
def _fails(x):
    raise KeyError("here")


@pytest.mark.parametrize("where", ["at the break", "after it"])
def test_tracebacks_name_every_caller(where):
    def inner(x):
        x = x + 1
        if where == "at the break":
            _fails(x)
        stop()
        return x.reshape(7)

    def middle(x):
        y = inner(x * 2)
        return y + 1

    def outer(x):
        return middle(x) * 3

    x = torch.ones(3)
    assert _trace(tcompile.compile(outer), x) == _trace(outer, x)


@pytest.mark.parametrize("level", ["inner", "middle", "outer"])
@pytest.mark.parametrize("failing", [False, True])
def test_handlers_at_every_level(level, failing):
    log = []

    def guarded(name, body, x):
        if name != level:
            return body(x)
        try:
            y = body(x)
            log.append("went well")
        except KeyError as error:
            log.append(str(error))
            y = x * 100
        finally:
            log.append("finally")
        return y + 1

    def inner(x):
        def body(x):
            x = x + 1
            return _fails(x) if failing else stop(x) * 5

        return guarded("inner", body, x) + 2

    def middle(x):
        return guarded("middle", inner, x * 2) + 4

    def outer(x):
        return guarded("outer", middle, x * 3) + 8

    x = torch.ones(3)
    if failing:
        expected, words = outer(x), log[:]
        log.clear()
        assert torch.equal(tcompile.compile(outer)(x), expected) and log == words
        return
    expected, words = outer(x), log[:]
    log.clear()
    result, sizes = _graphs(outer, x)
    assert torch.equal(result, expected) and log == words
    assert len(sizes) == 4  # what lies under a handler goes on there


def test_with_statements_within():
    modes = []

    def inner(x):
        with torch.no_grad():
            y = x * 2
            modes.append(torch.is_grad_enabled())
            stop()
            modes.append(torch.is_grad_enabled())
            return y + 1

    def middle(x):
        y = inner(x) * 3
        modes.append(torch.is_grad_enabled())
        return y

    def outer(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = middle(x @ x)
        modes.append(torch.is_autocast_enabled("cpu"))
        return y

    x = torch.eye(3)
    expected, words = outer(x), modes[:]
    modes.clear()
    assert torch.equal(tcompile.compile(outer)(x), expected) and modes == words


def test_a_loop_within():
    def middle(x):
        y = x * 2
        for _ in range(4):
            y = y + 1
            stop()
            y = y * 2
        return y - 1

    def outer(x):
        z = x + 1
        return middle(z + 1).relu() + z

    x = torch.ones(3)
    result, sizes = _graphs(outer, x, calls=2)
    assert torch.equal(result, outer(x))
    assert sizes == [3, 1, 1, 3]  # before the loop, the two parts of its body, behind it


def test_a_comprehension_within():
    def middle(x):
        return [stop(x + k) * 2 for k in range(3)]

    def outer(x):
        return sum(middle(x + 1)) + 1

    x = torch.ones(3)
    result, _ = _graphs(outer, x, calls=2)
    assert torch.equal(result, outer(x))


def test_recursion():
    def deep(x, n):
        if n == 0:
            stop()
            return x + 1
        return deep(x * 2, n - 1) + n

    def outer(x):
        return deep(x, 6) * 2

    x = torch.ones(3)
    result, sizes = _graphs(outer, x, calls=2)
    assert torch.equal(result, outer(x)) and len(sizes) == 2
    result, sizes = _graphs(lambda x: deep(x, 60), x, calls=2)
    assert torch.equal(result, deep(x, 60))


class _Managed:
    """Frames whose result goes to capture's own code, which has more to do then: the break lies at the call."""

    def __init__(self, x):
        self.x = stop(x) + 1

    @property
    def doubled(self):
        return stop(self.x) * 2

    def __add__(self, other):
        return stop(self.x) + other

    def __enter__(self):
        self.x = stop(self.x) + 1
        return self

    def __exit__(self, *details):
        self.x = stop(self.x) * 3

    def __getitem__(self, k):
        return stop(self.x)[k]

    def __call__(self, x):
        return stop(x + self.x) * 2


@pytest.mark.parametrize(
    "use",
    [
        lambda x: _Managed(x).x,
        lambda x: _Managed(x).doubled,
        lambda x: _Managed(x) + x,
        lambda x: _Managed(x)[0],
        lambda x: _Managed(x)(x),
        lambda x: sorted([3, 1, 2], key=lambda k: stop(-k))[0] + x,
        lambda x: sum(map(lambda k: stop(k) * x, [1, 2])),
        lambda x: max([x, x + 1], key=lambda t: float(stop(t).sum())),
        lambda x: functools.partial(_inner)(x=x),
        lambda x: functools.reduce(lambda a, b: stop(a) + b, [x, x, x]),
        lambda x: _inner(*[x]),
        lambda x: _inner(**{"x": x}),
        lambda x: functools.lru_cache(lambda k: stop(k) * 2)(3) * x,
        lambda x: next(stop(x) * k for k in [5]),
    ],
)
def test_results_that_go_through_other_code(use):
    def managed(x):
        return use(x + 1) * 2

    def outer(x):
        with _Managed(x) as m:
            y = managed(x)
        return y + m.x

    x = torch.ones(3)
    expected = outer(x)
    compiled = tcompile.compile(outer)
    for _ in range(2):
        assert torch.equal(compiled(x), expected)


def test_sizes_that_vary():
    def outer(x):
        return _middle(x.sum(0, keepdim=True) * x) + x.shape[0]

    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled = tcompile.compile(outer, backend=backend)
    for n in range(3, 12):
        x = torch.arange(2.0 * n).reshape(n, 2)
        assert torch.equal(compiled(x), outer(x))
    assert len(graphs) <= 4


def test_gradients_go_through():
    def outer(x):
        return (_middle(x * x) * x).sum()

    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    tcompile.compile(outer)(x).backward()
    outer(y).backward()
    assert torch.equal(x.grad, y.grad)


def test_a_result_that_nobody_uses():
    log = []

    def inner(x):
        stop()
        log.append(x + 1)

    def outer(x):
        inner(x)
        inner(x * 2)
        return x * 3

    x = torch.ones(3)
    result, _ = _graphs(outer, x)
    assert torch.equal(result, outer(x))
    assert len(log) == 4 and all(torch.equal(log[k], log[k + 2]) for k in range(2))


def test_a_break_that_asks_for_its_callers():
    @tcompile.disable
    def callers(depth):
        return [sys._getframe(k).f_code.co_name for k in range(1, depth)], sys._getframe(1).f_locals.get("own")

    def inner(x):
        own = 7
        x = x + own
        return callers(4), x * 2

    def middle(x):
        found, y = inner(x + 1)
        return found, y + 1

    def outer(x):
        return middle(x)

    x = torch.ones(3)
    assert tcompile.compile(outer)(x)[0] == outer(x)[0]


def test_state_that_no_entry_can_make():
    """A generator that lives across the break, in the frame within: the call of that frame is the break, and many such
    breaks are no reason to give up.
    """

    def inner(x, k):
        numbers = (stop(n) for n in (k, k + 1))
        first = next(numbers)
        return x * first + next(numbers)

    def middle(x, k):
        return inner(x + 1, k) * 2

    def outer(x):
        for k in (1, 2, 3):
            x = middle(x, k)
        return middle(middle(x, 4), 5)

    x = torch.ones(3)
    with tcompile.record() as record:
        compiled = tcompile.compile(outer)
        assert torch.equal(compiled(x), outer(x))
        assert torch.equal(compiled(x), outer(x))
    assert not record.report().fallbacks


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_break_in_an_autocast_region_leaves_none_open(backend, in_a_loop):
    """One left open keeps the casts of weights for good: what an optimizer writes into them would not be seen under
    autocast any more.
    """
    linear = torch.nn.Linear(3, 3)

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2 if in_a_loop else 1):
                x = linear(x)
                stop()
                x = linear(x)
        return x * 2

    compiled, x = tcompile.compile(fn, backend=backend), torch.eye(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), fn(x), rtol=0.02, atol=0.02)
        assert autocast_nesting() == 0
        with torch.no_grad():
            linear.weight.mul_(2)
