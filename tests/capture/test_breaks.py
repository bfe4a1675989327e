"""Graph breaks: the right line and remedy, the rest still captured, values equal to eager."""

import itertools
import re
import time

import numpy as np
import pytest
import tcompile
import torch
from tcompile.compiler import events

from .runner import Runner, same

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def line_of(brk):
    return brk.code


def branch(x, threshold):
    y = x * 2
    if y.sum() > threshold:
        z = y + 1
    else:
        z = y - 1
    return z * 3


def item(x):
    y = torch.sin(x)
    v = int(y.sum())
    return x * v + 1


def printing(x):
    y = x + 1
    print(y)
    return y * 2


def helper(x):
    y = x.cos()
    n = int(y.abs().sum())
    return y * n


def break_in_callee(x):
    a = x * 2
    b = helper(a)
    return b + a


def data_loop(x):
    n = 0
    while x.sum() < 100:
        x = x + 10
        n += 1
    return x * 2, n


def loop_with_item(x):
    total = 0.0
    for i in range(4):
        x = torch.sin(x) + 1
        total += x.sum().item()
    return x * 2, total


def loop_leaving(x):
    seen = []
    for i, row in enumerate(x):
        y = row * 2
        if y.sum() > 0:
            seen.append(i)
            break
        seen.append(y)
    else:
        return None
    return seen, y + 1


def nested_loops(x):
    out = []
    for i in range(2):
        for j in range(3):
            x = x + j
            out.append(float(x.mean()))
        x = x * 2
    return x, out


def in_with(x):
    with torch.no_grad():
        y = x * 2
        n = int(y.sum())
        z = y * n
    return z + x


def in_try(x):
    try:
        y = x * 2
        n = int(y.sum())
        y = y / n if n else y
    except ZeroDivisionError:
        y = x
    finally:
        y = y + 1
    return y


def clock(x):
    y = x + 1
    t = time.time()
    return y * 2, t > 0


def numpy_call(x):
    y = x * 2
    return torch.from_numpy(np.flip(y.numpy()) + 1) * 2


CASES = [
    (branch, (X, -1e9), "if y.sum() > threshold:", "data_dependent_branch"),
    (item, (X,), "v = int(y.sum())", "item"),
    (printing, (X,), "print(y)", "print"),
    (break_in_callee, (X,), "n = int(y.abs().sum())", "item"),
    (data_loop, (X,), "while x.sum() < 100:", "data_dependent_branch"),
    (loop_with_item, (X,), "total += x.sum().item()", "item"),
    (loop_leaving, (X,), "if y.sum() > 0:", "data_dependent_branch"),
    (nested_loops, (X,), "out.append(float(x.mean()))", "item"),
    (in_with, (X,), "n = int(y.sum())", "item"),
    (in_try, (X,), "n = int(y.sum())", "item"),
    (clock, (X,), "t = time.time()", "time"),
    (numpy_call, (X,), "return torch.from_numpy(np.flip(y.numpy()) + 1) * 2", "numpy"),
]


@pytest.mark.parametrize("fn,args,code,kind", CASES, ids=lambda c: c.__name__ if callable(c) else "")
def test_break(fn, args, code, kind):
    run = Runner()
    expected = fn(*args)
    for _ in range(2):
        same(run(fn, *args), expected)
    assert run.breaks, [str(s) for s in run.skips]
    first = run.breaks[0]
    assert first.code == code and first.kind == kind and first.file == __file__, first
    assert first.remedy and first.reason.endswith(".")
    assert run.graphs, "what lies around the break is still captured"


def test_both_branches_and_back():
    run = Runner()
    for threshold in (-1e9, 1e9, -1e9):
        same(run(branch, X, threshold), branch(X, threshold))
    assert len(run.graphs) >= 3


def test_call_chain_names_the_callee():
    run = Runner()
    run(break_in_callee, X)
    assert [c[0] for c in run.breaks[0].call_chain] == ["break_in_callee", "helper"]


def test_the_loop_body_is_a_region():
    run = Runner()
    same(run(loop_with_item, X), loop_with_item(X))
    regions = [r for r in run.captures if "<loop" in r.code.co_qualname]
    assert regions and all(r.graph is not None for r in regions[:1])


def test_exception_leaves_with_its_own_traceback():
    def bad(x):
        y = x + 1
        raise ValueError("no")

    run = Runner()
    with pytest.raises(ValueError, match="no"):
        run(bad, X)

    def wrong_shape(x):
        y = x + 1
        return y @ torch.ones(7, 7)

    with pytest.raises(RuntimeError):
        run(wrong_shape, X)


def _deep(layers, dtype=torch.float64):
    block = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)) for _ in range(layers)]
    return torch.nn.Sequential(*block).to(dtype)


@pytest.mark.slow
def test_a_loop_over_batches_is_compiled_once_whatever_their_number():
    model = _deep(20)

    def encode(batches):
        out = []
        for batch in batches:
            out.append(torch.nn.functional.normalize(model(batch) * (batch > 0), dim=-1))
        return torch.cat(out)

    for count in (12, 24):
        batches = [torch.randn(3 + i % 5, 4, dtype=torch.float64) for i in range(count)]
        graphs = []
        with events.listen(lambda e: e.kind == "graph" and graphs.append(len(e.graph.graph_module.graph.nodes))):
            fast = tcompile.compile(encode)
            got = fast(batches)
        torch.testing.assert_close(got, encode(batches))
        assert len(graphs) <= 3 and max(graphs) < 200, graphs
        weights = list(model.parameters())
        mine, eager = (torch.autograd.grad(f(batches).square().sum(), weights) for f in (fast, encode))
        torch.testing.assert_close(mine, eager)


def test_a_loop_over_layers_stays_one_graph():
    layers = list(_deep(60))

    def run_through(x):
        for layer in layers:
            x = torch.relu(layer(x) * 2 - 1) + layer[0](x).sigmoid() * 0.5 + torch.tanh(x) * x.exp().clamp(max=2)
        return x

    run = Runner()
    x = torch.randn(2, 4, dtype=torch.float64)
    same(run(run_through, x), run_through(x))
    assert not run.breaks and len(run.captures) == 1


def test_a_long_loop_is_captured_per_iteration():
    def long(x):
        for _ in range(5000):
            x = x + 1
        return x * 2

    run = Runner()
    same(run(long, torch.zeros(2)), torch.full((2,), 10000.0))
    assert run.breaks[0].kind == "long_loop" and len(run.captures) == 3


def test_a_loop_inside_a_with_or_try_statement():
    def evaluate(xs, w):
        total = 0.0
        with torch.no_grad():
            for x in xs:
                y = torch.sin(x * w) + 1
                total += y.sum().item()
        return total, (w * 2).requires_grad

    def guarded(xs):
        seen = []
        try:
            for x in xs:
                y = torch.cos(x)
                seen.append(float(y.sum()))
                if len(seen) == 2:
                    raise KeyError("stop")
        except KeyError:
            seen.append("caught")
        finally:
            seen.append("done")
        return seen

    w = torch.ones(4, requires_grad=True)
    for fn, args in ((evaluate, ([X, X + 1, X + 2], w)), (guarded, ([X, X + 1, X + 2],))):
        run = Runner()
        for _ in range(2):
            same(run(fn, *args), fn(*args))
        assert torch.is_grad_enabled()
        assert any("<loop" in r.code.co_qualname and r.graph is not None for r in run.captures), (
            run.skips,
            run.captures,
        )


def test_a_generator_carried_over_a_break_is_not_advanced_by_capture():
    def fn(x):
        def values():
            for i in range(3):
                yield (x * i).sum().item()

        y = x + 1
        return sum(values()), list(values()), [v for v in values()], y, max(values()), dict(enumerate(values()))

    run = Runner()
    for _ in range(2):
        same(run(fn, X + 1), fn(X + 1))


def test_an_iterator_as_an_argument():
    def fn(it, x):
        y = x * 2
        first = next(it)
        rest = list(it)
        return y + first, rest

    run = Runner()
    for _ in range(2):
        same(run(fn, iter([1, 2, 3]), X), fn(iter([1, 2, 3]), X))
        same(run(fn, (i for i in range(3)), X), fn((i for i in range(3)), X))

    def consume(it, x):
        return sum(it) + x, [*it], tuple(zip(it, it))

    run = Runner()
    same(run(consume, iter([1, 2, 3]), X), consume(iter([1, 2, 3]), X))
    same(run(consume, map(abs, [1, 2, 3]), X), consume(map(abs, [1, 2, 3]), X))
    same(run(fn, itertools.islice(range(9), 4), X), fn(itertools.islice(range(9), 4), X))


def graphs_by_line(run):
    """For each graph, the lines of its nodes, in the order of capture."""
    return [
        sorted({n.meta["stack"][-1].line for n in g.graph_module.graph.nodes if n.meta.get("stack")})
        for g in run.graphs
    ]


def line(fn, text):
    import inspect

    lines, start = inspect.getsourcelines(fn)
    return start + next(i for i, at in enumerate(lines) if text in at)


class Diary:
    def __init__(self, notes):
        self.notes = notes

    def __enter__(self):
        self.notes.append("in")

    def __exit__(self, kind, *rest):
        self.notes.append(kind and kind.__name__)


def loop_in_with(xs, notes):
    with Diary(notes):
        for x in xs:
            y = torch.sin(x)
            notes.append(y.sum().item())
        z = torch.cos(y) * 3  # after
    return z + torch.exp(y)  # end


def loop_in_try(xs, notes):
    try:
        for x in xs:
            y = torch.sin(x)
            if y.sum() > 1e9:
                break
        else:
            y = y * 2
        z = torch.cos(y) * 3  # after
    finally:
        notes.append("done")
    return z + torch.exp(z)  # end


def loop_in_except(xs, notes):
    try:
        [][1]
    except IndexError as e:
        for x in xs:
            y = torch.sin(x)
            notes.append((y.sum().item(), str(e)))
        z = torch.cos(y) * 3  # after
    return z + torch.exp(y)  # end


def while_in_with(xs, notes):
    y = xs[0].abs() + 1
    with Diary(notes), torch.no_grad():
        while y.sum() < 200:
            with Diary(notes):
                y = y * 2
                if y.max() > 10:
                    continue
            y = y + 1
        z = torch.cos(y)  # after
    return z + torch.exp(z)  # end


def nested_in_with(xs, notes):
    with Diary(notes):
        for x in xs:
            try:
                for k in range(3):
                    with Diary(notes):
                        x = torch.sin(x) + k
                        if x.sum() > 5:
                            notes.append(k)
                            break
                x = x * 2
            finally:
                notes.append("inner")
        z = torch.cos(x)  # after
    return z + torch.exp(x)  # end


@pytest.mark.parametrize("fn", [loop_in_with, loop_in_try, loop_in_except, while_in_with, nested_in_with])
def test_what_follows_a_loop_under_handlers_is_captured(fn):
    run = Runner()
    for _ in range(2):
        a, b = [], []
        same(run(fn, [X, X + 1], a), fn([X, X + 1], b))
        assert repr(a) == repr(b)
    assert torch.is_grad_enabled()
    lines = set().union(*graphs_by_line(run))
    assert {line(fn, "# after"), line(fn, "# end")} <= lines, run.skips


def test_an_exception_out_of_a_loop_reaches_the_handlers_around_it():
    def fn(xs, n, notes):
        try:
            with Diary(notes):
                for k, x in enumerate(xs):
                    y = torch.sin(x)
                    notes.append(y.sum().item())
                    if k == n:
                        raise KeyError(k)
                z = y * 2
        except KeyError as e:
            notes.append(e.args)
            z = y * 3
        return z

    run = Runner()
    for n in (5, 0, 1, 5):
        a, b = [], []
        same(run(fn, [X, X + 1], n, a), fn([X, X + 1], n, b))
        assert repr(a) == repr(b)


def deep(x, notes):
    for k in range(2):
        with Diary(notes):
            x = torch.sin(x)
            if x.sum() > 100:
                break
            x = x + k  # region
    return torch.tanh(x)  # rest


def around(x, notes):
    y = torch.cos(x)  # before
    return torch.exp(deep(y, notes))  # behind


def test_a_break_in_a_with_in_a_loop_in_an_inlined_call():
    """What is around the call is kept, and the callee is compiled by the hook."""
    tcompile = pytest.importorskip("tcompile")
    from tcompile.compiler import events
    from tcompile.compiler.runtime import frame_hook

    graphs = []
    c = tcompile.compile(around, backend="eager")
    with events.listen(lambda e: graphs.append(e.graph) if e.kind == "graph" else None):
        for _ in range(2):
            a, b = [], []
            same(c(X, a), around(X, b))
            assert a == b
    lines = {n.meta["stack"][-1].line for g in graphs for n in g.graph_module.graph.nodes if n.meta.get("stack")}
    assert {line(around, "# before"), line(around, "# behind")} <= lines
    if frame_hook.available():
        assert {line(deep, "# region"), line(deep, "# rest")} <= lines


def in_lambda(x):
    y = x * 2
    f = lambda q: q * float(q.sum() > 0)  # noqa: E731
    return f(y) + torch.sin(y)


def in_comprehension(x):
    y = x * 2
    z = sum([q + 1 if q.sum() > 0 else q for q in (y, x)])
    return z + torch.sin(y)


def in_generator(x):
    y = x * 2

    def rows():
        for k in range(3):
            yield y * k if y.sum() > k else y

    z = sum(rows())
    return z + torch.sin(y)


def in_match(x):
    y = x * 2
    match (3, y):
        case (k, q) if q.sum() > 0:
            z = q + k
        case _:
            z = y
    return z + torch.sin(y)


def in_finally(x):
    y = x * 2
    try:
        z = y + 1
    finally:
        if y.sum() > 0:
            y = y + 3
    return z + torch.sin(y)


def in_nested_handlers(x):
    notes, y = [], x * 2
    for k in range(3):
        try:
            try:
                with Diary(notes):
                    y = y + k
                    if y.sum() > 0:
                        raise KeyError(k)
            finally:
                notes.append(bool(y.max() > 3))
        except KeyError as e:
            y = y * e.args[0]
            continue
        y = y - 1
    return y, notes, torch.sin(y)


def in_dict_comprehension(x):
    y = x * 2
    return {k: v.sum().item() for k, v in {"a": y, "b": x}.items()}, torch.sin(y)


@pytest.mark.parametrize(
    "fn", [in_lambda, in_comprehension, in_generator, in_match, in_finally, in_nested_handlers, in_dict_comprehension]
)
def test_breaks_in_odd_places(fn):
    run = Runner()
    for x in (X, X + 1, X - 1, X):
        same(run(fn, x), fn(x))
    assert run.breaks and len(run.graphs) >= 2, "what lies before and behind is captured"


def parse(text):
    """Native code that fails for some texts, and that capture knows nothing about."""
    return re.compile(text).groups


def handler_after_native_error(x, text, notes):
    y = torch.sin(x)
    try:
        n = parse(text)
        y = y + n
    except re.error as e:
        notes.append(str(e))
        y = torch.cos(y)  # handler
    finally:
        notes.append("finally")
    return torch.tanh(y)  # end


def handler_around_a_loop(x, texts, notes):
    n = 0
    try:
        for text in texts:
            x = torch.sin(x)
            n = n + parse(text) + bool(x.sum() > 100)
        y = x * 2
    except re.error as e:
        notes.append((str(e), n))
        y = torch.cos(x)  # handler
    return torch.tanh(y) + n  # end


@pytest.mark.parametrize(
    "fn,good,bad",
    [(handler_after_native_error, "(a)", "("), (handler_around_a_loop, ["(a)", "b"], ["(a)", "(", "c"])],
    ids=["call", "loop"],
)
def test_handlers_of_native_errors_are_captured(fn, good, bad):
    run = Runner()
    for text in (good, bad, good, bad):
        a, b = [], []
        same(run(fn, X, text, a), fn(X, text, b))
        assert a == b
    lines = set().union(*graphs_by_line(run))
    assert {line(fn, "# handler"), line(fn, "# end")} <= lines, run.skips


def captured_in_comprehensions(x):
    def stop(v):
        return v if id(v) else v

    k = 2
    first = [k * v + stop(1) for v in [x]]
    second = [lambda: v for v in (1, 2)][0]() + k
    third = [(lambda: (v, stop(v)))() for v in (3, 4)]
    return first, second, third, [[lambda: a + b for a in (1, 2)][b]() for b in (0, 1)]


def test_breaks_before_a_comprehension_makes_its_cells():
    run = Runner()
    for _ in range(2):
        same(run(captured_in_comprehensions, X.clone()), captured_in_comprehensions(X.clone()))
    assert run.breaks


def test_switches_of_attention_read_after_a_break_under_them():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def f(x):
        with sdpa_kernel([SDPBackend.MATH]):
            y = x * 2
            torch._dynamo.graph_break()
            inside = torch._C._get_flash_sdp_enabled()
            y = torch.nn.functional.scaled_dot_product_attention(y, x, x)
        return y, inside, torch._C._get_flash_sdp_enabled(), torch._C._get_math_sdp_enabled()

    compiled = tcompile.compile(f, backend="eager")
    x = torch.randn(1, 2, 3, 4)
    for _ in range(2):
        same(compiled(x), f(x))
