"""guard_filter_fn: what stays guarded is the program's choice, but for what kernels read memory by."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import tcompile

X = torch.arange(6.0).reshape(2, 3)
FACTOR = 3
WEIGHT = torch.ones(3)


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.scale = 2

    def forward(self, x):
        return self.linear(x) * self.scale


def scaled(x):
    return x * FACTOR


def with_filter(choose: Any, **options: Any) -> dict[str, Any]:
    return {"guard_filter_fn": choose, **options}


def entries(fn: Any) -> int:
    return len(fn.cache)


def test_the_filter_sees_every_guard_as_stock_shows_it() -> None:
    seen: list[Any] = []

    def choose(guards):
        seen.extend(guards)
        return [True] * len(guards)

    def f(x, n, items):
        return x * n * FACTOR + items[1]

    fn = tcompile.compile(f, options=with_filter(choose))
    items = [1, 2.5]
    torch.testing.assert_close(fn(X, 2, items), f(X, 2, items))
    by_name = {(g.name, g.guard_type): g for g in seen}
    x, n, factor = by_name["x", "TENSOR_MATCH"], by_name["n", "CONSTANT_MATCH"], by_name["FACTOR", "CONSTANT_MATCH"]
    assert x.has_value and x.value is X and not x.is_global and x.derived_guard_types == ("TENSOR_MATCH",)
    assert n.value == 2 and not n.is_global and n.derived_guard_types == ("EQUALS_MATCH",)
    assert factor.value == 3 and factor.is_global
    assert by_name["items", "TYPE_MATCH"].value is items
    state = by_name["", "GLOBAL_STATE"]
    assert not state.has_value and not state.is_global and state.orig_guard.name == ""
    assert x.orig_guard.name == "x" and x.orig_guard.source.name() == "x"


def test_what_was_dropped_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    fn = tcompile.compile(scaled, options=with_filter(torch.compiler.skip_guard_on_globals_unsafe))
    plain = tcompile.compile(scaled)
    assert torch.equal(fn(X), X * 3) and torch.equal(plain(X), X * 3)
    monkeypatch.setitem(globals(), "FACTOR", 5)
    assert torch.equal(fn(X), X * 3)  # stale, as the program asked for
    assert torch.equal(plain(X), X * 5)
    assert entries(fn) == 1
    assert torch.equal(fn(X.double()), X.double() * 5)  # what it kept is looked at
    assert entries(fn) == 2


def test_the_report_counts_and_names_what_was_dropped() -> None:
    report = tcompile.explain(scaled, options=with_filter(lambda gs: [g.name != "FACTOR" for g in gs]))(X)
    dropped = [g for g in report.guards if g.cls == "dropped"]
    assert [g.source for g in dropped] == ["FACTOR"]
    assert dropped[0].why == "left out by guard_filter_fn"
    assert "1 more left out by guard_filter_fn" in str(report)
    assert report.entries[0].guards == len([g for g in report.guards if g.cls != "dropped"])
    plain = tcompile.explain(scaled)(X)
    assert all(g.cls != "dropped" for g in plain.guards) and "guard_filter_fn" not in str(plain)


@pytest.mark.parametrize("which", ["skip_guard_on_all_nn_modules_unsafe", "skip_guard_on_inbuilt_nn_modules_unsafe"])
def test_stocks_filters_for_modules(which: str) -> None:
    model = Scaled()
    fn = tcompile.compile(model, options=with_filter(getattr(torch.compiler, which)))
    before = model(X)
    torch.testing.assert_close(fn(X), before)
    model.scale = 7
    skips_all = which == "skip_guard_on_all_nn_modules_unsafe"
    torch.testing.assert_close(fn(X), before if skips_all else model(X))
    model.scale = 2
    with torch.no_grad():
        model.linear.weight.mul_(2)
    torch.testing.assert_close(fn(X), model(X))
    model.linear.weight = torch.nn.Parameter(torch.ones(4, 3))  # of another size: such guards stay
    model.linear.bias = torch.nn.Parameter(torch.ones(4))
    torch.testing.assert_close(fn(X), model(X))


@pytest.mark.parametrize("which", ["keep_tensor_guards_unsafe", "keep_portable_guards_unsafe"])
def test_stocks_filters_that_keep_tensors(which: str) -> None:
    model = Scaled()
    options = with_filter(getattr(torch.compiler, which))
    report = tcompile.explain(model, options=options)(X)
    torch.testing.assert_close(report.result, model(X))
    assert sum(g.count for g in report.guards if g.cls == "dropped") > 5
    fn = tcompile.compile(model, options=options)
    for x in (X, X.double()[:1].float(), X.t().contiguous().t()[:, :3]):
        torch.testing.assert_close(fn(x), model(x))


def global_tensor(x):
    return x + WEIGHT


@pytest.mark.parametrize(
    "choose, fn, args, word",
    [
        (torch.compiler.skip_all_guards_unsafe, scaled, (X,), "`x`"),
        (torch.compiler.skip_guard_on_globals_unsafe, global_tensor, (X,), "`WEIGHT`"),
        (lambda gs: [g.guard_type != "SHAPE_ENV" for g in gs], lambda x, y: x + y, (X, X + 1), "sizes"),
        (lambda gs: [not g.name.startswith("a") for g in gs], lambda a: torch.from_numpy(a) * 2, (np.ones(4),), "`a"),
    ],
    ids=["all", "a global tensor", "sizes", "an array"],
)
def test_what_kernels_read_memory_by_never_goes(choose: Any, fn: Any, args: tuple, word: str) -> None:
    compiled = tcompile.compile(fn, dynamic=True, options=with_filter(choose))
    for _ in range(2):  # nothing is kept of the refused entry
        with pytest.raises(tcompile.OptionError, match="Kernels read memory by") as caught:
            compiled(*args)
        assert word in str(caught.value) and "What to do" in str(caught.value)


@pytest.mark.parametrize(
    "choose, words",
    [
        (lambda gs: [True], "1 answers"),
        (lambda gs: [1] * len(gs), "got 1 among the answers"),
        (lambda gs: None, "raised TypeError"),
        (lambda gs: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_filter_at_fault_is_told(choose: Any, words: str) -> None:
    with pytest.raises(tcompile.OptionError, match=words):
        tcompile.compile(scaled, options=with_filter(choose))(X)


class WithoutHash:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, guards):
        return [True] * len(guards)


@pytest.mark.parametrize("value", [True, "keep", 3, [], WithoutHash()])
def test_only_functions_are_taken(value: Any) -> None:
    with pytest.raises(tcompile.OptionError, match="'guard_filter_fn' is a function or None"):
        tcompile.compile(scaled, options=with_filter(value))
    assert torch.equal(tcompile.compile(scaled, options=with_filter(None))(X), X * FACTOR)


def test_cells_and_blocks_take_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    options = with_filter(torch.compiler.skip_guard_on_globals_unsafe)
    for factor in (3, 4):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        with tcompile.enable(options=options):
            assert torch.equal(scaled(X), X * 3)


def test_a_filter_is_not_kept_alive() -> None:
    class Choose:
        def __call__(self, guards):
            return [True] * len(guards)

    choose = Choose()
    fn = tcompile.compile(scaled, options=with_filter(choose))
    assert torch.equal(fn(X), X * FACTOR)
    gone = weakref.ref(choose)
    del fn, choose
    gc.collect()
    assert gone() is None


def test_gradients_states_and_graph_modes_of_torch() -> None:
    """Without the global state's guard the entry serves calls under no_grad, too. vmap still takes tensors apart."""

    def f(x):
        return (x * 2).sum(-1)

    fn = tcompile.compile(f, options=with_filter(lambda gs: [g.guard_type != "GLOBAL_STATE" for g in gs]))
    x = X.clone().requires_grad_()
    torch.testing.assert_close(fn(x), f(x))
    with torch.no_grad():
        torch.testing.assert_close(fn(x), f(x))
    assert entries(fn) == 1
    torch.testing.assert_close(torch.vmap(fn)(X), torch.vmap(f)(X))
    seen: list[Any] = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Watch():
        fn(x)
    assert torch.Tensor.sum in seen


def test_two_filters_of_one_text_have_entries_of_their_own() -> None:
    def choose(word: str) -> Any:
        return lambda gs: [g.name != word for g in gs]

    def f(x, n):
        return x * n

    with tcompile.config.patch(guard_filter_fn=choose("n")):
        fn = tcompile.compile(f)
        assert torch.equal(fn(X, 2), X * 2) and torch.equal(fn(X, 3), X * 2)
    first = tcompile.compile(f, options=with_filter(choose("n")))
    second = tcompile.compile(f, options=with_filter(choose("other")))
    assert torch.equal(first(X, 2), X * 2) and torch.equal(second(X, 2), X * 2)
    assert torch.equal(first(X, 3), X * 2) and torch.equal(second(X, 3), X * 3)


def test_whatever_goes_nothing_crashes() -> None:
    """Random filters, then calls of every other form: an answer, or an error of Python's."""

    class Box:
        def __init__(self, w: Any, names: dict) -> None:
            self.w, self.names = w, names

    def f(x, items, box, n=2, *rest, flag=True):
        y = x @ box.w + items[0] * n
        if flag and len(items) > 1:
            y = y + items[1]["k"]
        for r in rest:
            y = y + r
        return y + box.names.get("bias", 0)

    calls = [
        ((X, [1.0, {"k": torch.ones(3)}], Box(torch.ones(3, 3), {"bias": 1})), {}),
        ((X, [2.0], Box(torch.ones(3, 3), {})), {"flag": False}),
        ((X, (1.0, {"k": torch.ones(1)}), Box(torch.ones(3, 5)[:, :3], {"bias": torch.ones(3)})), {}),
        ((X[:1], [1, None], None), {}),
        ((X, {}, Box(None, []), "2"), {}),
        ((X, [1.0, {"k": torch.ones(3)}], Box(torch.ones(3, 3), {"bias": 1}), 2, X, X), {"flag": None}),
    ]
    memory = ("TENSOR_MATCH", "SHAPE_ENV")
    for seed in range(8):
        rng = random.Random(seed)
        fn = tcompile.compile(
            f, options=with_filter(lambda gs: [g.guard_type in memory or rng.random() < 0.3 for g in gs])
        )
        args, kwargs = calls[0]
        torch.testing.assert_close(fn(*args, **kwargs), f(*args, **kwargs))
        for args, kwargs in calls:
            try:
                fn(*args, **kwargs)
            except (TypeError, AttributeError, IndexError, KeyError, ValueError, RuntimeError):
                continue
