"""mark_unbacked: sizes of which nothing is known, 0 and 1 among them. Results are eager's, whatever the size is."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch._dynamo.decorators as decorators
import torch.nn.functional as F

import tcompile
from tcompile.compiler.symbolic.env import ShapeEnv

MARKS = pytest.mark.parametrize("mark", [tcompile.mark_unbacked, decorators.mark_unbacked], ids=["ours", "stock's"])
WEIGHT, BIAS = torch.randn(5, 4), torch.randn(4)
NORM, CONVOLUTION = torch.nn.LayerNorm(5), torch.nn.Conv2d(3, 4, 3)


def marked(mark: Any, *shape: int, dim: int = 0) -> torch.Tensor:
    x = torch.randn(shape)
    mark(x, dim)
    return x


# Programs of one entry for every size; the shape behind the marked dimension.
ALIKE: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "elementwise": (lambda x: torch.relu(x * 2 + 1), (5,)),
    "sum over it": (lambda x: x.sum(0), (5,)),
    "mean over it": (lambda x: x.mean(0), (5,)),
    "variance over it": (lambda x: x.var(0), (5,)),
    "product": (lambda x: F.gelu(x @ WEIGHT + BIAS), (5,)),
    "product over it": (lambda x: x.t() @ x, (5,)),
    "softmax": (lambda x: x.softmax(-1), (5,)),
    "view": (lambda x: x.view(-1) * 2, (5,)),
    "reshape": (lambda x: x.reshape(x.shape[0], 5, 1).transpose(0, 1) + 1, (5,)),
    "cat": (lambda x: torch.cat([x, x * 2]), (5,)),
    "broadcast": (lambda x: x + torch.ones(x.shape[0], 1), (5,)),
    "the size itself": (lambda x: x * x.shape[0], (5,)),
    "convolution": (lambda x: F.relu(CONVOLUTION(x)), (3, 8, 8)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (2, 6, 8)),
}
# Programs whose operators ask whether there is none, or one: these sizes have entries of their own.
ASKING: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "softmax over it": (lambda x: x.softmax(0), (5,)),
    "squeeze": (lambda x: x.squeeze(0) * 2, (5,)),
    "a row": (lambda x: x[0] * 2, (5,)),
    "rest": (lambda x: x[1:] + 1, (5,)),
    "another order": (lambda x: x.t().contiguous() + 1, (5,)),
    "a size to meet": (lambda x: x + torch.ones(17, 5), (5,)),
    "norm": (lambda x: NORM(x), (5,)),
    "largest": (lambda x: x.amax(0), (5,)),
}
ORDERS = pytest.mark.parametrize("order", [(17, 1, 0, 2), (1, 0, 17), (0, 9, 1)], ids=str)


@MARKS
@ORDERS
@pytest.mark.parametrize("name", ALIKE)
def test_one_entry_serves_every_size(name: str, order: tuple[int, ...], mark: Any) -> None:
    f, rest = ALIKE[name]
    fn = tcompile.compile(f, fullgraph=True)
    with torch.no_grad():
        for n in order:
            x = marked(mark, n, *rest)
            torch.testing.assert_close(fn(x), f(x), equal_nan=True)
    assert len(fn.cache) == 1


@ORDERS
@pytest.mark.parametrize("name", ASKING)
def test_what_operators_ask_is_guarded(name: str, order: tuple[int, ...]) -> None:
    f, rest = ASKING[name]
    fn = tcompile.compile(f, options={"suppress_errors": False})
    with torch.no_grad():
        for n in (*order, *order):
            x = marked(tcompile.mark_unbacked, n, *rest)
            try:
                expected = f(x)
            except Exception as error:
                with pytest.raises(type(error)):
                    fn(x)
                continue
            torch.testing.assert_close(fn(x), expected, equal_nan=True)
    assert len(fn.cache) <= 3


def test_a_size_that_has_to_be_fixed_is_told_of() -> None:
    x = marked(tcompile.mark_unbacked, 0, 5)
    report = tcompile.explain(lambda x: x.softmax(0))(x)
    assert report.result.shape == (0, 5)
    assert any("x.shape[0] is fixed, though mark_unbacked named it" in f.reason for f in report.fallbacks)


@pytest.mark.parametrize("order", [(7, 1, 3), (1, 4, 1)], ids=str)
def test_gradients(order: tuple[int, ...]) -> None:
    def f(x, w):
        return torch.tanh(x @ w).pow(2).sum()

    fn = tcompile.compile(f, fullgraph=True, options={"suppress_errors": False})
    for n in order:
        w = WEIGHT.clone().requires_grad_()
        x = marked(tcompile.mark_unbacked, n, 5)
        expected = torch.autograd.grad(f(x, w), w)
        got = torch.autograd.grad(fn(x, w), w)
        torch.testing.assert_close(got, expected)
    assert len(fn.cache) <= 2


@pytest.mark.parametrize("order", [(9, 1, 0, 4), (1, 6)], ids=str)
def test_an_inner_dimension(order: tuple[int, ...]) -> None:
    fn = tcompile.compile(lambda x: (x * 2).sum(0), options={"suppress_errors": False})
    for n in order:
        x = marked(tcompile.mark_unbacked, 3, n, dim=-1)
        torch.testing.assert_close(fn(x), (x * 2).sum(0))
    assert len(fn.cache) <= 2  # without elements strides do not tell of the size


def test_memory_that_lies_apart() -> None:
    """One row is contiguous whatever its stride is: contiguous() gives the row itself."""

    def f(x):
        y = x.contiguous()
        y.add_(1)
        return y

    base = torch.zeros(6, 8)
    fn = tcompile.compile(f, options={"suppress_errors": False})
    for n in (4, 1, 0, 3):
        ours, eager = base.clone()[:n, :5], base.clone()[:n, :5]
        tcompile.mark_unbacked(ours, 0)
        torch.testing.assert_close(fn(ours), f(eager))
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("order", [(4, 1, 0, 3), (1, 3), (0, 1, 2)], ids=str)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x + 1 if x.is_contiguous() else x - 1,
        lambda x: torch.empty_like(x).stride()[0] + x,
        lambda x: x * x.stride(0),
        lambda x: x.reshape(-1).add_(1),
        lambda x: x.clone().view(-1) * 2,
    ],
    ids=["is_contiguous", "empty_like", "stride", "reshape", "clone"],
)
def test_layouts_are_told_truly(f: Callable, order: tuple[int, ...]) -> None:
    """One row, and none, lie in one piece whatever the stride is."""
    fn = tcompile.compile(f, options={"suppress_errors": False})
    base = torch.randn(6, 8)
    for n in order:
        for part in (slice(None), slice(5)):
            ours, eager = base.clone()[:n, part], base.clone()[:n, part]
            tcompile.mark_unbacked(ours, 0)
            torch.testing.assert_close(fn(ours), f(eager))
            assert torch.equal(ours, eager)


@MARKS
def test_a_branch_is_a_break_in_words(mark: Any) -> None:
    def f(x):
        y = x * 2
        if x.shape[0] > 5:
            y = y + 1
        return y - x

    for n in (9, 3, 1, 0):
        x = marked(mark, n, 5)
        report = tcompile.explain(f)(x)
        torch.testing.assert_close(report.result, f(x))
        (brk,) = report.graph_breaks
        assert brk.kind == "unbacked_size" and "mark_unbacked" in brk.reason and "torch._check" in brk.remedy
    with pytest.raises(tcompile.FullGraphError, match="mark_unbacked"):
        tcompile.compile(f, fullgraph=True)(marked(mark, 9, 5))
    plain = tcompile.compile(f, fullgraph=True)  # without the mark, or by mark_dynamic: this call's side
    x = torch.randn(9, 5)
    tcompile.mark_dynamic(x, 0)
    torch.testing.assert_close(plain(x), f(x))


@pytest.mark.parametrize("condition", ["n == 1", "n", "not n", "n % 2 == 0", "n * 2 > m", "n == 0 or m > 2"])
def test_every_form_of_a_branch(condition: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def f(x):\n    n, m = x.shape\n    return x + 1 if {condition} else x - 1\n", namespace)
    f = namespace["f"]
    fn = tcompile.compile(f)
    for n in (4, 1, 0, 7):
        x = marked(tcompile.mark_unbacked, n, 3)
        torch.testing.assert_close(fn(x), f(x))
        with pytest.raises(tcompile.FullGraphError, match="mark_unbacked"):
            tcompile.compile(f, fullgraph=True)(x)


def test_what_is_certain_is_no_branch() -> None:
    def f(x):
        n = x.shape[0]
        return x * 2 if n >= 0 and n + 1 > 0 and n == n else x

    fn = tcompile.compile(f, fullgraph=True)
    for n in (4, 1, 0):
        x = marked(tcompile.mark_unbacked, n, 3)
        torch.testing.assert_close(fn(x), f(x))
    assert len(fn.cache) == 1


def test_checks_hold_at_each_call() -> None:
    def asserted(x):
        assert x.shape[0] > 2
        return x * 2 if x.shape[0] > 1 else x

    def checked(x):
        torch._check(x.shape[0] > 2)
        return x * 2

    for f, error in ((asserted, AssertionError), (checked, RuntimeError)):
        fn = tcompile.compile(f)
        for n in (5, 3):
            x = marked(tcompile.mark_unbacked, n, 3)
            torch.testing.assert_close(fn(x), f(x))
        assert len(fn.cache) == 1
        for n in (2, 1, 0):
            with pytest.raises(error):
                fn(marked(tcompile.mark_unbacked, n, 3))
        x = marked(tcompile.mark_unbacked, 3, 3)
        torch.testing.assert_close(tcompile.compile(f, fullgraph=True)(x), f(x))


@MARKS
def test_a_number_that_is_needed_is_fixed_or_refused(mark: Any) -> None:
    def f(x, y):
        return x + y

    fn = tcompile.compile(f)
    for n in (4, 1, 3):
        x = marked(mark, n, 3)
        torch.testing.assert_close(fn(x, torch.ones(n, 3)), x + 1)
    x = torch.randn(4, 3)
    mark(x, 0, strict=True)
    with pytest.raises(tcompile.ConstraintViolationError):
        tcompile.compile(f)(x, torch.ones(4, 3))


def test_two_marked_sizes_and_marks_beside_others() -> None:
    fn = tcompile.compile(lambda x, y: (x @ y).relu(), fullgraph=True)
    for n, m in ((3, 4), (1, 1), (0, 5), (4, 0), (1, 7)):
        x, y = marked(tcompile.mark_unbacked, n, 5), marked(tcompile.mark_unbacked, 5, m, dim=1)
        torch.testing.assert_close(fn(x, y), (x @ y).relu())
    assert len(fn.cache) <= 2


def test_sizes_of_accelerators_are_two_or_more() -> None:
    """Nothing is launched there for no elements: sizes of 0 and 1 are plain, others a guarded symbol."""
    env = ShapeEnv()
    assert env.create_unbacked(1, "a", 2) == 1 and env.create_unbacked(0, "b", 2) == 0
    size = env.create_unbacked(7, "c", 2)
    assert isinstance(size, torch.SymInt) and env.is_open(size > 5) and not env.is_open(size > 1)
    assert [str(p) for p, *_ in env.guards] == ["2 <= u0"]
    assert env.create_unbacked(7, "c", 2).node.expr is size.node.expr


def test_export_takes_the_mark_for_a_size_that_varies() -> None:
    x = marked(tcompile.mark_unbacked, 4, 3)
    program = tcompile.export(lambda x: x * 2, (x,), dynamic={"x": [0]})
    for n in (4, 9):
        torch.testing.assert_close(program(torch.ones(n, 3)), torch.full((n, 3), 2.0))


@pytest.mark.parametrize("dim", [2, -3, "0", None, 1.0])
def test_wrong_dimensions(dim: Any) -> None:
    with pytest.raises(IndexError, match="mark_unbacked"):
        tcompile.mark_unbacked(torch.ones(2, 2), dim)
    with pytest.raises(TypeError, match="mark_unbacked"):
        tcompile.mark_unbacked(3, 0)
    with pytest.raises(tcompile.OptionError, match="strict"):
        tcompile.mark_unbacked(torch.ones(2, 2), 0, strict=1)  # type: ignore[arg-type]
