"""error_on_graph_break: ours and stock's, as a with-block, a decorator and an option. Results are eager's."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch._dynamo

import tcompile
from tcompile.compiler.base import break_errors

OURS_AND_STOCKS = pytest.mark.parametrize(
    "toggle", [tcompile.error_on_graph_break, torch._dynamo.error_on_graph_break], ids=["ours", "stock's"]
)
X = torch.tensor([1.0, -2.0, 3.0])


@pytest.fixture(autouse=True)
def _as_before():
    assert not break_errors.are_errors()
    yield
    assert not break_errors.are_errors()  # nothing leaves it on, whatever was raised


def breaks_of(fn: Callable, *args: Any, **kwargs: Any) -> int:
    expected = fn(*args)
    report = tcompile.explain(fn, **kwargs)(*args)
    torch.testing.assert_close(report.result, expected)
    return len(report.graph_breaks)


@OURS_AND_STOCKS
def test_a_break_in_the_part_is_an_error_that_names_the_line(toggle: Any) -> None:
    def f(x):
        y = x + 1
        with toggle(True):
            y = y * 2
            torch._dynamo.graph_break()
        return y - 3

    with pytest.raises(tcompile.FullGraphError) as caught:
        tcompile.compile(f)(X)
    assert "error_on_graph_break is True here" in str(caught.value)
    assert "torch._dynamo.graph_break()" in str(caught.value)
    assert caught.value.breaks[0].line == f.__code__.co_firstlineno + 4
    assert "fullgraph" not in str(caught.value)


@OURS_AND_STOCKS
def test_breaks_before_and_after_the_part_are_none(toggle: Any) -> None:
    def f(x):
        torch._dynamo.graph_break()
        with toggle(True):
            y = x * 2
        torch._dynamo.graph_break()
        return y - 3

    assert breaks_of(f, X) == 2


@OURS_AND_STOCKS
def test_a_part_where_breaks_are_allowed_lies_in_one_where_they_are_not(toggle: Any) -> None:
    def f(x, outside):
        with toggle(True):
            y = x + 1
            with toggle(False):
                y = y * 2
                torch._dynamo.graph_break()
                y = y.relu()
            y = y - 1
            if outside:
                torch._dynamo.graph_break()
            return y + x

    assert breaks_of(f, X, False) == 1
    with pytest.raises(tcompile.FullGraphError):
        tcompile.compile(f)(X, True)
    assert not break_errors.are_errors()


@OURS_AND_STOCKS
def test_the_rest_of_a_frame_knows_what_holds(toggle: Any) -> None:
    """The break leaves the block open: what follows it is captured by itself."""

    def f(x):
        torch._dynamo.graph_break()
        with toggle(True):
            y = x + 1
            torch._dynamo.graph_break()
        return y

    def g(x):
        with toggle(False):
            y = x + 1
            torch._dynamo.graph_break()
            y = y * 2
            torch._dynamo.graph_break()
        return y.relu()

    with pytest.raises(tcompile.FullGraphError):
        tcompile.compile(f)(X)
    assert breaks_of(g, X) == 2


@OURS_AND_STOCKS
def test_a_decorated_function_is_such_a_part(toggle: Any) -> None:
    @toggle(True)
    def strict(x):
        torch._dynamo.graph_break()
        return x * 2

    @toggle(False)
    def lenient(x):
        x = x * 2
        torch._dynamo.graph_break()
        return x + 1

    def f(x):
        return strict(x + 1) - 1

    def g(x):
        with toggle(True):
            return lenient(x + 1) - 1

    for fn in (f, strict):
        with pytest.raises(tcompile.FullGraphError):
            tcompile.compile(fn)(X)
    assert breaks_of(g, X) == 1
    assert breaks_of(lenient, X) == 1


@OURS_AND_STOCKS
def test_what_is_called_there_belongs_to_the_part(toggle: Any) -> None:
    def inner(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    class Layer(torch.nn.Module):
        def forward(self, x):
            return inner(x)

    layer = Layer()

    def f(x):
        with toggle(True):
            return layer(x) + 1

    with pytest.raises(tcompile.FullGraphError) as caught:
        tcompile.compile(f)(X)
    assert caught.value.breaks[0].function.endswith("inner")


@OURS_AND_STOCKS
def test_code_around_the_compiled_function(toggle: Any) -> None:
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    fn = tcompile.compile(f)
    with toggle(True), pytest.raises(tcompile.FullGraphError):
        fn(X)
    torch.testing.assert_close(fn(X), f(X))
    with toggle(True):  # as stock's: it counts when something is compiled
        torch.testing.assert_close(fn(X), f(X))


def test_the_option_is_the_default() -> None:
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    def lenient(x):
        with tcompile.error_on_graph_break(False):
            y = x + 1
            torch._dynamo.graph_break()
            y = y * 2
            torch._dynamo.graph_break()
        return y

    def late(x):
        y = lenient(x)
        torch._dynamo.graph_break()
        return y * 2

    options = {"error_on_graph_break": True}
    with pytest.raises(tcompile.FullGraphError) as caught:
        tcompile.compile(f, options=options)(X)
    assert "error_on_graph_break" in str(caught.value)
    assert breaks_of(lenient, X, options=options) == 2
    fn = tcompile.compile(lenient, options=options)
    for x in (X, X * 2, torch.ones(5)):  # a hit switches as the call that was captured
        torch.testing.assert_close(fn(x), lenient(x))
        assert not break_errors.are_errors()
    with pytest.raises(tcompile.FullGraphError):
        tcompile.compile(late, options=options)(X)
    with tcompile.config.patch(error_on_graph_break=True), pytest.raises(tcompile.FullGraphError):
        tcompile.compile(f)(X)
    assert breaks_of(f, X, options={"error_on_graph_break": False}) == 1


def test_the_option_of_the_function_wins_over_code_around_it() -> None:
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        y = y * 2
        torch._dynamo.graph_break()
        return y

    with tcompile.error_on_graph_break(True):
        assert breaks_of(f, X, options={"error_on_graph_break": False}) == 2
        assert break_errors.are_errors()


def test_fullgraph_wins() -> None:
    def f(x):
        with tcompile.error_on_graph_break(False):
            y = x + 1
            torch._dynamo.graph_break()
        return y

    with pytest.raises(tcompile.FullGraphError) as caught:
        tcompile.compile(f, fullgraph=True)(X)
    assert "fullgraph=True" in str(caught.value)


def test_one_graph_is_not_asked_for() -> None:
    """What has no graph at all, and what parts a graph under fullgraph, is no error."""

    def words(x):
        print("no tensor work")
        return len(str(x))

    def number(x):
        return x * x.sum().item()

    options = {"error_on_graph_break": True}
    tcompile.compile(words, options=options)(3)
    torch.testing.assert_close(tcompile.compile(number, options=options)(X), number(X))


def test_an_exception_leaves_the_switch_as_it_was() -> None:
    def f(x, fail):
        with tcompile.error_on_graph_break(False):
            y = x + 1
            torch._dynamo.graph_break()
            if fail:
                raise ValueError("the program's own")
            y = y * 2
        return y

    fn = tcompile.compile(f, options={"error_on_graph_break": True})
    torch.testing.assert_close(fn(X, False), f(X, False))
    with pytest.raises(ValueError, match="the program's own"):
        fn(X, True)


def test_an_entry_is_not_taken_where_it_would_put_back_another_state() -> None:
    def f(x):
        with tcompile.error_on_graph_break(False):
            y = x + 1
            torch._dynamo.graph_break()
            y = y.relu()
        return y * 2, break_errors.are_errors()

    fn = tcompile.compile(f)
    assert fn(X)[1] is False
    with tcompile.error_on_graph_break(True):
        assert fn(X)[1] is True


def test_cells_and_enabled_blocks() -> None:
    def f(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    with pytest.raises(tcompile.FullGraphError), tcompile.enable(options={"error_on_graph_break": True}):
        f(X)
    with tcompile.enable():
        torch.testing.assert_close(f(X), torch.add(X, 1) * 2)


@pytest.mark.parametrize("value", [1, None, "True", 0.0])
def test_only_bools_are_taken(value: Any) -> None:
    with pytest.raises(tcompile.OptionError, match="error_on_graph_break is True or False"):
        tcompile.error_on_graph_break(value)
    if value != "True":  # a cell's option is written
        with pytest.raises(tcompile.OptionError, match="error_on_graph_break"):
            tcompile.compile(lambda x: x, options={"error_on_graph_break": value})
    with pytest.raises(TypeError, match="decorates a function"):
        tcompile.error_on_graph_break(True)(3)  # type: ignore[arg-type]
