"""torch.compiler.set_stance, and fullgraph=True at the recompile limit: what users of torch.compile know."""

import pytest
import torch
import tcompile
from tcompile.compiler.frontend import engine
from tcompile.compiler.errors import FullGraphError

X = torch.randn(4, 3)


def by_text(x, text):
    return x + len(text)


def counted():
    asked = []

    def backend(gm, inputs):
        asked.append(gm)
        return gm.forward

    return tcompile.compile(by_text, backend=backend), asked


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_nothing_is_compiled(stance):
    f, asked = counted()
    f(X, "a")
    with torch.compiler.set_stance(stance):
        torch.testing.assert_close(f(X, "a"), X + 1)
        torch.testing.assert_close(f(X, "ab"), X + 2)
    assert len(asked) == 1
    torch.testing.assert_close(f(X, "ab"), X + 2)
    assert len(asked) == 2


@pytest.mark.parametrize("native", [True, False])
def test_entries_do_not_serve_where_all_is_to_run_eager(native, monkeypatch):
    from tcompile.compiler.runtime import dispatch

    calls = []

    def backend(gm, inputs):
        def run(*args):
            calls.append(None)
            return gm.forward(*args)

        return run

    if not native:
        for name in ("Dispatcher", "CodeCache", "Entry"):
            monkeypatch.setattr(dispatch, name, getattr(dispatch, "Python" + name))
            monkeypatch.setattr(engine, name, getattr(dispatch, "Python" + name))

    def fn(x):
        y = x * 2
        print(end="")
        return y + 1

    f = tcompile.compile(fn, backend=backend)
    n = [f(X) is not None and len(calls)]
    for stance in ("force_eager", "default", "eager_on_recompile"):
        with torch.compiler.set_stance(stance):
            torch.testing.assert_close(f(X), X * 2 + 1)
        n.append(len(calls))
    assert n[0] > 0
    assert [b - a for a, b in zip(n, n[1:])] == [0, n[0], n[0]]


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_the_first_call_is_eager_and_tells_what_varies(stance):
    asked = []

    def backend(gm, inputs):
        asked.append(inputs)
        return gm.forward

    def fn(x, n, factor):
        return x * n + factor

    f = tcompile.compile(fn, backend=backend)
    with torch.compiler.set_stance(stance):
        for rows, made in ((4, 0), (5, 1), (7, 1), (9, 1)):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(f(x, rows + 1, rows / 8), fn(x, rows + 1, rows / 8))
            assert len(asked) == made
        x = torch.randn(5, 4)  # a size that did not vary until now
        torch.testing.assert_close(f(x, 3, 0.5), fn(x, 3, 0.5))
        assert len(asked) == 2
    g = tcompile.compile(fn, backend=backend)
    g(torch.randn(4, 3), 2, 0.5)
    assert len(asked) == 3


def test_a_backend_that_is_forced():
    f, asked = counted()
    with torch.compiler.set_stance(force_backend="eager"):
        torch.testing.assert_close(f(X, "a"), X + 1)
    assert not asked
    with (
        torch.compiler.set_stance(force_backend="inductor"),
        pytest.raises(RuntimeError, match="force_backend='inductor'"),
    ):
        f(X, "a")
    with torch.compiler.set_stance(force_backend="tcompile"):
        torch.testing.assert_close(f(X, "a"), X + 1)
    assert len(asked) == 1


def test_a_recompilation_is_an_error():
    f, asked = counted()
    f(X, "a")
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(f(X, "a"), X + 1)
        with pytest.raises(RuntimeError, match="by_text.*fail_on_recompile"):
            f(X, "ab")
    torch.testing.assert_close(f(X, "ab"), X + 2)


def test_fullgraph_at_the_recompile_limit():
    f = tcompile.compile(by_text, backend="eager", fullgraph=True)
    limit = tcompile.config.recompile_limit
    for n in range(limit):
        f(X, "a" * n)
    for _ in range(2):
        with pytest.raises(FullGraphError, match=f"compiled {limit} times.*text"):
            f(X, "b")
    torch.testing.assert_close(f(X, "aa"), X + 2)
    plain = tcompile.compile(by_text, backend="eager")
    for n in range(limit + 2):
        torch.testing.assert_close(plain(X, "a" * n), X + n)
