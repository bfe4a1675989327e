"""contextvars.ContextVar in captured code: read at each call, in the context of that call."""

from __future__ import annotations

import contextvars
import threading

import pytest
import torch

import tcompile

SCALE: contextvars.ContextVar = contextvars.ContextVar("scale", default=2.0)
BARE: contextvars.ContextVar = contextvars.ContextVar("bare")
X = torch.linspace(-1, 1, 6)


def by_scale(x):
    return x.sin() * SCALE.get() + 1


def in_context(fn, *settings):
    """fn() in a new context, with these variables set."""

    def run():
        for variable, value in settings:
            variable.set(value)
        return fn()

    return contextvars.copy_context().run(run)


def test_the_value_of_each_call_counts():
    f = tcompile.compile(by_scale, fullgraph=True, backend="eager")
    torch.testing.assert_close(f(X), X.sin() * 2 + 1)
    for value in (3.0, 0.5, 2.0, 7.0):
        torch.testing.assert_close(in_context(lambda: f(X), (SCALE, value)), X.sin() * value + 1)
        torch.testing.assert_close(f(X), X.sin() * 2 + 1)


def test_each_thread_has_its_own():
    f = tcompile.compile(by_scale, fullgraph=True, backend="eager")
    token, found = SCALE.set(5.0), []
    try:
        torch.testing.assert_close(f(X), X.sin() * 5 + 1)
        thread = threading.Thread(target=lambda: found.append(f(X)))
        thread.start()
        thread.join()
    finally:
        SCALE.reset(token)
    torch.testing.assert_close(found[0], X.sin() * 2 + 1)
    torch.testing.assert_close(f(X), X.sin() * 2 + 1)


def test_objects_modes_and_defaults():
    def f(x):
        mode = BARE.get(None)
        if mode is None:
            return x + SCALE.get(100.0)
        mode["seen"] = mode.get("seen", 0) + 1
        return x * mode["weight"]

    compiled = tcompile.compile(f, fullgraph=True, backend="eager")
    mode = {"weight": torch.ones(6) * 3}
    for _ in range(2):
        torch.testing.assert_close(compiled(X), X + 100)
        torch.testing.assert_close(in_context(lambda: compiled(X), (SCALE, 4.0)), X + 4)
        torch.testing.assert_close(in_context(lambda: compiled(X), (BARE, mode)), X * 3)
    assert mode["seen"] == 2


def test_a_variable_that_is_not_set_raises():
    def f(x):
        try:
            return x * BARE.get()
        except LookupError:
            return x - 1

    compiled = tcompile.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), X - 1)
        torch.testing.assert_close(in_context(lambda: compiled(X), (BARE, 3.0)), X * 3)
    with pytest.raises(LookupError):
        tcompile.compile(lambda x: x * BARE.get(), backend="eager")(X)


def test_setting_parts_the_graph_and_is_seen():
    def f(x):
        y = x * SCALE.get()
        token = SCALE.set(10.0)
        y = y + SCALE.get()
        SCALE.reset(token)
        return y * SCALE.get()

    compiled = tcompile.compile(f, backend="eager")
    for value in (2.0, 3.0, 2.0):
        want = in_context(lambda: f(X), (SCALE, value))
        torch.testing.assert_close(in_context(lambda: compiled(X), (SCALE, value)), want)
        torch.testing.assert_close(want, (X * value + 10) * value)


def test_another_variable_under_the_same_name():
    holder = {"v": SCALE}

    def f(x):
        return x * holder["v"].get()

    compiled = tcompile.compile(f, backend="eager")
    torch.testing.assert_close(compiled(X), X * 2)
    holder["v"] = contextvars.ContextVar("other", default=9.0)
    torch.testing.assert_close(compiled(X), X * 9)
    holder["v"] = SCALE
    torch.testing.assert_close(compiled(X), X * 2)
