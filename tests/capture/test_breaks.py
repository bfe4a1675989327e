"""Graph breaks: the right line and remedy, the rest still captured, values equal to eager."""
import itertools
import time

import pytest
import torch

from .runner import Runner
from .test_basics import same

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
    v = y.sum().item()
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
        n = y.sum().item()
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
    return torch.from_numpy(y.numpy() + 1) * 2


CASES = [(branch, (X, -1e9), "if y.sum() > threshold:", "data_dependent_branch"),
         (item, (X,), "v = y.sum().item()", "item"), (printing, (X,), "print(y)", "print"),
         (break_in_callee, (X,), "n = int(y.abs().sum())", "item"),
         (data_loop, (X,), "while x.sum() < 100:", "data_dependent_branch"),
         (loop_with_item, (X,), "total += x.sum().item()", "item"),
         (loop_leaving, (X,), "if y.sum() > 0:", "data_dependent_branch"),
         (nested_loops, (X,), "out.append(float(x.mean()))", "item"),
         (in_with, (X,), "n = y.sum().item()", "item"), (in_try, (X,), "n = int(y.sum())", "item"),
         (clock, (X,), "t = time.time()", "time"), (numpy_call, (X,), "return torch.from_numpy(y.numpy() + 1) * 2", "numpy")]


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
        assert any("<loop" in r.code.co_qualname and r.graph is not None for r in run.captures), (run.skips, run.captures)


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
