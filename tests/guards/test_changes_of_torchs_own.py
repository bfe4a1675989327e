"""Attributes of torch's own classes and functions of its modules are exchanged between calls: the result is eager's."""

from __future__ import annotations

import functools

from typing import Any, Callable

import pytest
import tcompile
import torch
import torch.nn.functional as F
from torch import nn

x = torch.arange(1.0, 13.0).reshape(4, 3)
first, second = torch.full((4, 3), 7.0), torch.full((4, 3), 9.0)
torch_abs, torch_sum, torch_split = torch.Tensor.abs, torch.Tensor.sum, torch.Tensor.split
linear = nn.Linear(3, 3)
relu = nn.ReLU()
both = nn.Sequential(linear, relu)
parameter = nn.Parameter(x.clone())


def compiled(f: Callable) -> Callable:
    return tcompile.compile(f, backend="aot_eager")


def compare(f: Callable, c: Callable) -> None:
    expected, got = f(x.clone()), c(x.clone())
    assert type(expected) is type(got)
    torch.testing.assert_close(expected, got)


METHODS: dict[str, Callable] = {
    "abs": lambda x: x.abs(),
    "softmax": lambda x: x.softmax(-1),
    "sum": lambda x: x.sum(0),
    "view": lambda x: x.view(-1),
    "split": lambda x: x.split(2)[0],
    "new_zeros": lambda x: x.new_zeros(2) + 1,
    "item": lambda x: x * x.sum().item(),
    "numel": lambda x: x + x.numel(),
    "size": lambda x: x + x.size(0),
    "__mul__": lambda x: x * 2,
    "__rmul__": lambda x: 2 * x,
    "__matmul__": lambda x: x @ x.T,
    "__getitem__": lambda x: x[0],
    "__neg__": lambda x: -x,
    "__lt__": lambda x: x < 2,
    "__pow__": lambda x: x**2,
    "__abs__": lambda x: abs(x),
    "__iadd__": lambda x: x.__iadd__(2),
    "__invert__": lambda x: ~(x > 2),
    "mine": lambda x: x + 1 if hasattr(x, "mine") else x + 2,
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = METHODS[name]
    c = compiled(f)
    compare(f, c)
    for value in (first, second):
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, name, lambda self, *args, value=value, **named: value, raising=False)
            expected, got = f(x.clone()), c(x.clone())
        torch.testing.assert_close(expected, got)
    compare(f, c)


def test_an_attribute_of_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, f in (("T", lambda x: x.T + 1), ("mine", lambda x: x * x.mine)):
        c = compiled(f)
        for factor in (3.0, 4.0):
            for value in (property(lambda self, factor=factor: self.add(factor)), factor):
                monkeypatch.setattr(torch.Tensor, name, value, raising=False)
                compare(f, c)
        monkeypatch.undo()


def test_a_method_that_the_program_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        try:
            return x.mine(2)
        except AttributeError:
            return x * 50

    c = compiled(f)
    compare(f, c)
    for factor in (3.0, 4.0):
        monkeypatch.setattr(torch.Tensor, "mine", lambda self, n, factor=factor: self * n * factor, raising=False)
        compare(f, c)
    monkeypatch.undo()
    compare(f, c)


scale = 2.0


def test_what_an_exchanged_method_reads_is_relied_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "abs", lambda self: torch_abs(self) * scale)
    monkeypatch.setattr(torch.Tensor, "split", lambda self, n: [part * scale for part in torch_split(self, n)])

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.abs() + x.split(2)[0].sum()

    for backend in ("eager", "aot_eager", "tcompile"):
        c = tcompile.compile(f, backend=backend)
        for value in (2.0, 5.0):
            monkeypatch.setitem(globals(), "scale", value)
            compare(f, c)


def test_an_exchanged_method_may_be_another_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.abs()

    c = compiled(f)
    for other in (torch.Tensor.neg, torch.Tensor.exp, staticmethod(lambda: first)):
        monkeypatch.setattr(torch.Tensor, "abs", other)
        compare(f, c)
    monkeypatch.undo()
    compare(f, c)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_torchs_own_function_by_another_name(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch_relu, f_softmax = torch.relu, F.softmax

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch_relu(x - 5) + f_softmax(x, -1) + torch_abs(x)

    c = tcompile.compile(f, backend=backend)
    compare(f, c)
    monkeypatch.setattr(torch, "relu", lambda x: first)
    monkeypatch.setattr(F, "softmax", lambda x, dim: first)
    monkeypatch.setattr(torch.Tensor, "abs", lambda self: first)
    compare(f, c)
    compare(f, tcompile.compile(f, backend=backend))


FUNCTIONS: dict[str, tuple[Any, str, Callable]] = {
    "torch.relu": (torch, "relu", lambda x: torch.relu(x)),
    "torch.relu, by F.relu": (torch, "relu", lambda x: F.relu(x)),
    "torch.relu, by nn.ReLU": (torch, "relu", relu),
    "torch.zeros": (torch, "zeros", lambda x: torch.zeros(4, 3) + x),
    "F.softmax": (F, "softmax", lambda x: F.softmax(x, -1)),
    "F.relu, by nn.ReLU": (F, "relu", relu),
    "F.linear, by nn.Linear": (F, "linear", lambda x: linear(x).detach()),
    "Tensor.softmax, by F.softmax": (torch.Tensor, "softmax", lambda x: F.softmax(x, -1)),
    "Tensor.abs, by the class": (torch.Tensor, "abs", lambda x: torch.Tensor.abs(x)),
    "Linear.forward": (nn.Linear, "forward", lambda x: linear(x).detach()),
    "ReLU.forward": (nn.ReLU, "forward", lambda x: both(x).detach()),
    "ReLU.__call__": (nn.ReLU, "__call__", lambda x: both(x).detach()),
    "Module.__call__": (nn.Module, "__call__", lambda x: linear(x).detach()),
    "Module._call_impl": (nn.Module, "_call_impl", lambda x: linear(x).detach()),
    "Module.__getattr__": (nn.Module, "__getattr__", lambda x: x + linear.weight.detach()[0]),
    "Sequential.__len__": (
        nn.Sequential,
        "__len__",
        lambda x: x + (len(both) if nn.Sequential.__len__.__module__ != __name__ else 5),
    ),
    "Parameter.sum": (nn.Parameter, "sum", lambda x: x + parameter.sum().detach()),
    "Parameter.__mul__": (nn.Parameter, "__mul__", lambda x: (parameter * x).detach()),
    "torch.linalg.norm": (torch.linalg, "norm", lambda x: torch.linalg.norm(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_modules_and_methods_of_classes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, f = FUNCTIONS[name]
    c = compiled(f)
    compare(f, c)
    for value in (first, second):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, lambda *args, value=value, **named: value, raising=False)
            expected, got = f(x.clone()), c(x.clone())
        torch.testing.assert_close(expected, got)
    compare(f, c)


def test_parameters_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + sum(p.sum().detach() for p in linear.parameters())

    c = compiled(f)
    compare(f, c)
    monkeypatch.setattr(nn.Module, "parameters", lambda self: [first])
    compare(f, c)
    monkeypatch.setattr(nn.Module, "parameters", lambda self: [second])
    compare(f, c)


def test_a_class_attribute_of_a_module_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * getattr(relu, "factor", 2.0)

    c = compiled(f)
    compare(f, c)
    for owner in (nn.Module, nn.ReLU):
        for factor in (3.0, 4.0):
            monkeypatch.setattr(owner, "factor", factor, raising=False)
            compare(f, c)
    monkeypatch.undo()
    compare(f, c)


def test_metadata_that_the_program_exchanges_leaves_frames_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + x.dim()

    c = compiled(f)
    compare(f, c)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "dim", lambda self: 50)
        expected, got = f(x), c(x)
        with pytest.raises(tcompile.FullGraphError, match="Tensor.dim"):
            tcompile.compile(f, fullgraph=True)(x)
    torch.testing.assert_close(expected, got)
    compare(f, c)


def test_entries_serve_while_nothing_is_exchanged() -> None:
    made = []

    def backend(gm: Any, inputs: Any) -> Any:
        made.append(gm)
        return gm.forward

    f = tcompile.compile(lambda x: both(x.abs()) * 2, backend=backend)
    for _ in range(3):
        f(x)
        torch.Tensor.unrelated = 1  # type: ignore[attr-defined]
        del torch.Tensor.unrelated
    assert len(made) == 1


def test_an_optimizers_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    def observed(wrap: Callable) -> list:
        layer = nn.Linear(3, 1, bias=False)
        nn.init.ones_(layer.weight)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def train(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = layer(x).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = wrap(train)
        out = [f(x), f(x)]
        for name in ("zero_grad", "step"):
            owner = torch.optim.Optimizer if name == "zero_grad" else torch.optim.SGD
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, lambda self, *args: None)
                out += [f(x), f(x)]
        return [*out, f(x), layer.weight.detach()]

    torch.testing.assert_close(observed(compiled), observed(lambda f: f))


def test_globals_by_their_dict() -> None:
    source = "K, D = 1, globals()\ndef f(x):\n    {}\n    return x * {}"
    for write, read in (("global K; K = K + 1", "D['K']"), ("D['K'] = D['K'] + 1", "K")):
        mine: dict = {}
        theirs: dict = {}
        exec(source.format(write, read), mine)
        exec(source.format(write, read), theirs)
        c = compiled(mine["f"])
        for _ in range(3):
            torch.testing.assert_close(c(x), theirs["f"](x))


SWITCHES: dict[str, Callable] = {
    "is_grad_enabled": lambda x: x * 3 if torch.is_grad_enabled() else x * 5,
    "is_autocast_enabled": lambda x: x * 3 if torch.is_autocast_enabled("cpu") else x * 5,
}


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("grad", [False, True])
def test_what_says_how_torch_is_set(name: str, grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the compiler asks torch for itself must not come from the user's function. (One that says wrongly that
    gradients are off misleads torch.no_grad, which asks it what to go back to.)"""
    f, said = SWITCHES[name], getattr(torch, name)
    c = tcompile.compile(f)
    wrong = (lambda *args: False, lambda *args: not said(*args)) if name == "is_autocast_enabled" else ()
    for function in (said, *wrong, lambda *args: True, lambda *args: 0 if args == ("none",) else said(*args), said):
        monkeypatch.setattr(torch, name, function)
        for _ in range(2):
            given = torch.ones(3, requires_grad=grad)
            expected, got = f(given), c(given)
            assert expected.tolist() == got.tolist() and expected.requires_grad == got.requires_grad


class OwnLinear(torch.nn.Linear):
    pass


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
@pytest.mark.parametrize("where", ["Module", "class", "inner module", "module"])
def test_what_a_call_of_a_module_goes_through(name, where):
    """A compiled module's own call went on with torch's."""
    m = torch.nn.Sequential(OwnLinear(2, 2), torch.nn.ReLU())
    whole, inside = tcompile.compile(m, backend="eager"), tcompile.compile(lambda x: m(x) + 1, backend="eager")
    inner = tcompile.compile(m[0], backend="eager")
    holder = {"Module": torch.nn.Module, "class": OwnLinear, "inner module": m[0], "module": m}[where]
    x, original = torch.ones(1, 2), getattr(torch.nn.Module, name)

    def agree():
        want = m(x)
        torch.testing.assert_close((whole(x), inside(x), inner(x)), (want, want + 1, m[0](x)))
        return want

    before = agree()
    own = () if isinstance(holder, type) else (m,)  # what an instance holds is not bound
    try:
        for exchanged in (lambda s, x: x * 100, lambda s, x: original(s, x * 2)):
            setattr(holder, name, functools.partial(exchanged, holder) if own else exchanged)
            assert torch.equal(agree(), before) is bool(own and name == "__call__")
    finally:
        setattr(holder, name, original) if holder is torch.nn.Module else delattr(holder, name)
    torch.testing.assert_close(agree(), before)
