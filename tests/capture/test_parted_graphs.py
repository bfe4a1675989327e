"""What only tensors outside of graphs have: fullgraph parts the graph there, in the program's order."""

from __future__ import annotations

import pytest
import tcompile
import torch
import torch.nn as nn

from .runner import same

X = torch.arange(6.0).reshape(2, 3) / 5


def both(make, *inputs, backend="eager"):
    """What eager and compiled code give for inputs that want gradients: results, gradients and what `make`'s function
    noted.
    """
    out = []
    for compile in (lambda f: f, lambda f: tcompile.compile(f, backend=backend, fullgraph=True)):
        noted: list = []
        fn = compile(make(noted))
        leaves = []
        results = []
        for x in inputs:
            leaf = x.clone().requires_grad_()
            y = fn(leaf)
            y.sum().backward()
            leaves.append(leaf.grad)
            results.append(y.detach())
        out.append((results, leaves, [n.clone() if isinstance(n, torch.Tensor) else n for n in noted]))
    return out


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_hooks_on_tensors(backend):
    def make(noted):
        def fn(x):
            x.register_hook(lambda g: g * 2)
            y = x * 3
            y.register_hook(noted.append)
            handle = y.register_hook(lambda g: g + 1)
            handle.remove()
            return y.sin() * y

        return fn

    eager, compiled = both(make, X, X + 1, backend=backend)
    same(compiled, eager)


def test_hooks_read_what_there_is_when_they_run():
    scale = [2.0]

    def make(noted):
        def fn(x):
            y = x * 3
            y.register_hook(lambda g: g * scale[0])
            scale[0] = 5.0 if scale[0] == 2.0 else 2.0
            return y.sin()

        return fn

    eager, compiled = both(make, X, X, X, X)
    same(compiled, eager)


def test_retained_gradients_and_hooks_behind_accumulation():
    def make(noted):
        def fn(x):
            x.register_post_accumulate_grad_hook(lambda t: noted.append(t.grad))
            y = x * 3
            y.retain_grad()
            noted.append(y)
            return y.cos()

        return fn

    eager, compiled = both(make, X)
    same(compiled, eager)


def test_parameters_made_inside():
    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            self.w = nn.Parameter(self.w.detach() * 2)
            self.late = nn.Parameter(x.sum(0).detach(), requires_grad=False)
            return x * self.w + self.late + len(list(self.parameters()))

    plain, module = Grows(), Grows()
    compiled = tcompile.compile(module, backend="eager", fullgraph=True)
    for x in (X, X + 1):
        y, z = plain(x), compiled(x)
        y.sum().backward()
        z.sum().backward()
        same(z, y)
        same(
            [(n, p.detach(), p.grad) for n, p in module.named_parameters()],
            [(n, p.detach(), p.grad) for n, p in plain.named_parameters()],
        )


def test_a_module_made_inside():
    def fn(x):
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        return layer(x), layer.weight, sorted(layer.state_dict())

    compiled = tcompile.compile(fn, backend="eager", fullgraph=False)
    for _ in range(2):
        (y, w, names), (y2, w2, names2) = fn(X), compiled(X)
        y.sum().backward()
        y2.sum().backward()
        same((y2, w2.detach(), w2.grad, names2), (y, w.detach(), w.grad, names))


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_memory_that_is_exchanged(backend):
    def fn(x, y):
        z = x * 2
        x.data = y
        return z + x

    compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        a, b, other = X.clone(), X.clone(), X + 5
        same(compiled(a, other), fn(b, other))
        assert a.data_ptr() == other.data_ptr()


def test_an_exception_that_leaves_is_the_programs_own():
    class Own(Exception):
        def __init__(self, text, rows):
            super().__init__(text)
            self.rows = rows

    def raises(x):
        y = x + 1
        raise Own("own", y.shape[0])

    def checks(x):
        torch._check(x.shape[1] > 10, lambda: f"no {x.shape[1]} columns")
        return x

    for backend in ("eager", "tcompile"):
        with pytest.raises(Own, match="own") as got:
            tcompile.compile(raises, backend=backend, fullgraph=True)(X)
        assert got.value.rows == 2
        with pytest.raises(RuntimeError, match="no 3 columns"):
            tcompile.compile(checks, backend=backend, fullgraph=True)(X)


LINEAR = torch.nn.Linear(3, 3)


def part_of_a_function(x):
    y = x * 2
    with torch.inference_mode():
        z, w = LINEAR(y) + 1, torch.ones(3)
    return y, z, w, z.is_inference()


@torch.inference_mode()
def whole_function(x):
    return [LINEAR(x).relu()]


def within(x):
    return [*whole_function(x + 1), x * 2]


def switched_off(x):
    with torch.inference_mode():
        with torch.inference_mode(False):
            z = x * 2
        q = z + 1
    return z, q


def left_by_an_exception(x):
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError("left")
    except ValueError:
        pass
    return y, x * 2, torch.is_inference_mode_enabled()


def in_a_loop(x):
    results = []
    for i in range(3):
        with torch.inference_mode(i % 2 == 0):
            results.append(LINEAR(x) * i)
    return results


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize(
    "fn", [part_of_a_function, whole_function, within, switched_off, left_by_an_exception, in_a_loop]
)
def test_tensors_made_in_inference_mode(fn, backend):
    c = tcompile.compile(fn, backend=backend, fullgraph=True)
    for x in (torch.ones(3), torch.ones(3, requires_grad=True)):
        for _ in range(2):
            want, got = fn(x), c(x)
            torch.testing.assert_close(got, want)
            assert [(v.is_inference(), v.requires_grad) for v in got if isinstance(v, torch.Tensor)] == [
                (v.is_inference(), v.requires_grad) for v in want if isinstance(v, torch.Tensor)
            ]
