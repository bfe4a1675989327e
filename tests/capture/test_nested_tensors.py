"""Jagged nested tensors as arguments, parameters, results and gradients: what eager gives, whatever runs them."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from torch import nn

import tcompile

Compiled = Callable[[Callable], Callable]
PROGRAMS: list[Callable[[Compiled], Any]] = []


def program(f: Callable[[Compiled], Any]) -> Callable[[Compiled], Any]:
    PROGRAMS.append(f)
    return f


def jagged(*lengths: int, grad: bool = False, width: int = 4) -> torch.Tensor:
    rows = [torch.randn(n, width) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=grad)


@program
def pointwise(compiled):
    return compiled(lambda x: torch.sin(x) * 2)(jagged(2, 3, 1))


@program
def a_linear_and_its_gradients(compiled):
    layer, x = nn.Linear(4, 5), jagged(2, 3, 1, grad=True)
    y = compiled(lambda x: layer(x).relu())(x)
    y.values().sum().backward()
    return y, x.grad, layer.weight.grad, layer.bias.grad


@program
def two_of_the_same_lengths(compiled):
    x = jagged(2, 3, 1, grad=True)
    y = torch.nested.nested_tensor_from_jagged(torch.randn(6, 4), x.offsets())
    r = compiled(lambda x, y: x * y + x)(x, y)
    r.values().square().sum().backward()
    return r, x.grad


@program
def two_that_do_not_fit(compiled):
    with pytest.raises(RuntimeError):
        compiled(lambda x, y: x + y)(jagged(2, 3), jagged(3, 2))
    return 0


@program
def made_inside(compiled):
    f = compiled(lambda v, o: torch.nested.nested_tensor_from_jagged(v, o).cos())
    return [f(torch.randn(6, 4), torch.tensor(o)) for o in ([0, 2, 5, 6], [0, 1, 2, 6])]


@program
def made_and_taken_apart_inside(compiled):
    v = torch.randn(6, 4).requires_grad_()
    f = compiled(lambda v, o: (torch.nested.nested_tensor_from_jagged(v, o).cos() * 2).values())
    f(v, torch.tensor([0, 2, 5, 6])).sum().backward()
    return v.grad


@program
def attention(compiled):
    def f(x):
        q = x.unflatten(-1, (2, 2)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(-2)

    x = jagged(2, 3, 1, grad=True)
    y = compiled(f)(x)
    y.values().sum().backward()
    return y, x.grad


@program
def sums_over_the_ragged_dimension(compiled):
    return compiled(lambda x: x.sum(1) * 2)(jagged(2, 3, 1))  # eager has no gradient of it


@program
def padded(compiled):
    return compiled(lambda x: torch.nested.to_padded_tensor(x, 0.5).sum(1))(jagged(2, 3, 1))


@program
def norms_and_softmax(compiled):
    layer, x = nn.LayerNorm(4), jagged(2, 3, 1, grad=True)
    y = compiled(lambda x: torch.softmax(layer(x), -1))(x)
    y.values().square().sum().backward()
    return y, x.grad, layer.weight.grad


@program
def embeddings(compiled):
    table = nn.Embedding(10, 4)
    ids = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged)
    y = compiled(table)(ids)
    y.values().sum().backward()
    return y, table.weight.grad


@program
def lengths_that_change(compiled):
    f = compiled(lambda x: x * 2 + 1)
    return [f(jagged(*lengths)) for lengths in ((2, 3, 1), (5, 1), (1, 1, 1, 7), (2, 3, 1))]


@program
def lengths_that_change_in_training(compiled):
    layer = nn.Linear(4, 4)
    f = compiled(lambda x: layer(x).values().square().mean())
    for lengths in ((2, 3), (4, 1, 1), (1,)):
        f(jagged(*lengths)).backward()
    return layer.weight.grad


@program
def a_parameter(compiled):
    p = nn.Parameter(jagged(2, 3))
    y = compiled(lambda p: p * p)(p)
    y.values().sum().backward()
    return y, p.grad


@program
def a_module_with_one_inside(compiled):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(jagged(2, 3))
            self.out = nn.Linear(4, 2)

        def forward(self, scale):
            return self.out(self.weight * scale)

    model = Model()
    y = compiled(model)(torch.tensor(3.0))
    y.values().sum().backward()
    return y, model.weight.grad, model.out.weight.grad


@program
def sizes_and_parts(compiled):
    x = jagged(2, 3, 1)
    f = compiled(lambda x: (x.size(0), x.shape[-1], x.dim(), x * x.size(0), [t.sum() for t in x.unbind()]))
    return f(x)


@program
def values_changed_outside(compiled):
    x, d = jagged(2, 3, 1), torch.randn(6, 4)
    f = compiled(lambda x, d: torch.nested.nested_tensor_from_jagged(x.values() + d, x.offsets()))
    return f(x, d) * x  # equal lengths by the same offsets


@program
def changed_in_place(compiled):
    x = jagged(2, 3)

    def f(x):
        x.mul_(2)
        return x + 1

    return compiled(f)(x), x


@program
def mixed_with_plain_tensors(compiled):
    x, w = jagged(2, 3, grad=True), torch.randn(4, 4).requires_grad_()
    f = compiled(lambda x, w: ((x @ w.tanh()).relu() @ w.exp()).values().sum())
    f(x, w).backward()
    return x.grad, w.grad


def same(want: Any, got: Any) -> None:
    if isinstance(want, (list, tuple)):
        assert len(want) == len(got)
        for w, g in zip(want, got):
            same(w, g)
    elif isinstance(want, torch.Tensor):
        assert type(got) is type(want) and got.requires_grad == want.requires_grad and got.dtype == want.dtype
        if want.is_nested:
            assert got.layout is want.layout and torch.equal(got.offsets(), want.offsets())
            want, got = want.values(), got.values()
        torch.testing.assert_close(got.detach(), want.detach())
    else:
        assert want == got


@pytest.mark.parametrize("run", PROGRAMS, ids=lambda f: f.__name__)
def test_like_eager(run: Callable[[Compiled], Any]) -> None:
    torch.manual_seed(0)
    want = run(lambda f: f)
    tcompile.reset()
    torch.manual_seed(0)
    same(want, run(tcompile.compile))
