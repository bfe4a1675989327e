"""What native objects hold is changed between calls, or another of their methods is given: the result is always
eager's.
"""

from __future__ import annotations

import decimal
import inspect
import operator
from typing import Any, Callable

import pytest
import tcompile
import torch

from .changing import eq, run, x

numpy = pytest.importorskip("numpy")


class Holder:
    held: Any = None


class Meta(type):
    factor = 1.0

    def __len__(cls) -> int:
        return int(cls.factor)


class WithMeta(metaclass=Meta):
    pass


class Registered:
    pass


def number(value: Any) -> Any:
    return value if isinstance(value, (int, float, torch.Tensor)) else len(str(value)) + sum(map(ord, str(value)))


# makes a bound method of an object of its own for a number; what it is called with
METHODS: dict[str, tuple[Callable[[int], Any], tuple]] = {
    "str.count": (lambda k: ("a" * k).count, ("a",)),
    "str.join": (lambda k: ("a" * k).join, (["x", "y"],)),
    "str.__mod__": (lambda k: ("%d" + "a" * k).__mod__, (1,)),
    "int.__add__": (lambda k: k.__add__, (1,)),
    "float.as_integer_ratio": (lambda k: float(k).as_integer_ratio, ()),
    "bytes.hex": (lambda k: (b"a" * k).hex, ()),
    "range.__len__": (lambda k: range(k).__len__, ()),
    "tuple.index": (lambda k: (5, k).index, (5,)),
    "list.pop": (lambda k: [k, k + 1].pop, ()),
    "dict.get": (lambda k: {"a": k}.get, ("a",)),
    "np.float64.item": (lambda k: numpy.float64(k).item, ()),
    "Tensor.sum": (lambda k: torch.ones(k).sum, ()),
    "itemgetter": (lambda k: operator.itemgetter(k), (list(range(8)),)),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("given", ["argument", "attribute", "behind a break"])
def test_a_bound_method_of_another_object(name: str, given: str) -> None:
    make, args = METHODS[name]

    def argument(x: torch.Tensor, method: Any) -> Any:
        return x * number(method(*args))

    def attribute(x: torch.Tensor, method: Any) -> Any:
        return x * number(Holder.held(*args))

    def behind(x: torch.Tensor, method: Any) -> Any:
        y = x.sin()
        return y * number(tcompile.disable(lambda: method)()(*args))

    f = {"argument": argument, "attribute": attribute, "behind a break": behind}[given]
    compiled = run(f)
    for k in (2, 3, 5, 2):
        Holder.held = make(k)
        got = compiled(x, Holder.held)
        Holder.held = make(k)
        eq(f(x, Holder.held), got)


def test_methods_of_containers_from_outside_are_in_the_graph() -> None:
    names, table, log = frozenset(("a", "b")), {"a": 2.0}, [0]
    has, get, note = names.__contains__, table.get, log.append

    def f(x: torch.Tensor, name: str) -> Any:
        note(len(log))
        return x * get(name, 5.0) + has(name)

    compiled = tcompile.compile(f, backend="eager", fullgraph=True)
    for name, value in (("a", 2.0), ("a", 3.0), ("c", 3.0), ("a", 3.0)):
        table["a"] = value
        before = list(log)
        got, after = compiled(x, name), list(log)
        log[:] = before
        eq(f(x, name), got)
        assert log == after


def test_an_element_of_an_array() -> None:
    a = numpy.array([1.0, 2.0])

    def f(x: torch.Tensor) -> Any:
        return x * a[1].item(), x + a.max().item(), a[0]

    compiled = run(f)
    for k in range(3):
        a[:] = k, k + 2
        eq(f(x), compiled(x))


def test_the_context_of_decimals() -> None:
    def f(x: torch.Tensor, d: decimal.Decimal) -> Any:
        return x * float(decimal.Decimal(1) / decimal.Decimal(3) * 10**6 % 1), x * float(d / 7)

    compiled, d = run(f), decimal.Decimal("1.25")
    for precision in (28, 8, 28):
        with decimal.localcontext() as context:
            context.prec = precision
            eq(f(x, d), compiled(x, d))


def test_an_attribute_of_a_metaclass(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> Any:
        return x * WithMeta.factor, len(WithMeta)

    compiled = run(f)
    for factor in (1.0, 3.0, 1.0):
        monkeypatch.setattr(Meta, "factor", factor)
        eq(f(x), compiled(x))
    WithMeta.factor = 7.0
    try:
        eq(f(x), compiled(x))
    finally:
        del WithMeta.factor


def test_the_subclasses_of_a_class() -> None:
    def f(x: torch.Tensor) -> Any:
        return x * len(Registered.__subclasses__())

    compiled, kept = run(f), []
    for k in range(3):
        eq(f(x), compiled(x))
        kept.append(type(f"R{k}", (Registered,), {}))


def test_the_signature_of_a_function() -> None:
    def g(a: Any, b: Any = 1, *, k: Any = 2) -> Any:
        return a

    def f(x: torch.Tensor) -> Any:
        parameters = inspect.signature(g).parameters
        return x * len(parameters), parameters["a"].default is inspect.Parameter.empty or x * parameters["a"].default

    compiled = run(f)
    eq(f(x), compiled(x))
    g.__defaults__ = (5, 6)
    eq(f(x), compiled(x))
    g.__code__ = (lambda a, b, c: a).__code__
    eq(f(x), compiled(x))


class Activated(torch.nn.Module):
    activation = torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(x)


class Inherited(Activated):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().activation(x) + Activated.activation(x)


@pytest.mark.parametrize("cls", [Activated, Inherited])
def test_a_native_function_that_a_class_holds(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    module = cls()
    compiled = run(module)
    for activation in (torch.relu, torch.sin, torch.cos, torch.relu):
        monkeypatch.setattr(Activated, "activation", activation)
        eq(module(x), compiled(x))
    module.activation = torch.tanh
    eq(module(x), compiled(x))
