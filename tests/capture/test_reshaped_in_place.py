"""x.unsqueeze_(d), x.t_() and the like of tensors that the graph makes: no break, and what eager gives."""

import pytest
import torch

import tcompile


def of_no_view(x):
    y = x * 2
    y.unsqueeze_(0)
    y.squeeze_(0).t_()
    return y + 1, y


def of_a_view(x):
    y = (x @ x.t()).view(1, 3, 3)
    y.unsqueeze_(2)
    return torch.cat([y, y], 2) * 3, y


def other_name(x):
    y = (x * 3).transpose(0, 1)
    z = y
    z.transpose_(0, 1)
    return y * 2, y.sum(0), z.shape[0]


def held_by_a_list(x):
    rows = [x[0] + x[1]]
    rows[0].unsqueeze_(-1)
    return rows[0] @ rows[0].t(), rows[0]


def by_keyword(x):
    y = x * 2
    y.swapaxes_(0, 1)
    y.transpose_(dim0=0, dim1=1)
    y.unsqueeze_(dim=-1)
    y.squeeze_()
    return (y.contiguous() + x,)


def then_written(x):
    y = x + x
    y.t_()
    y.mul_(2)
    row = y[0]
    row.add_(1)
    return y, row


def then_broken(x):
    y = x + 1
    y.unsqueeze_(0)
    y.data_ptr()  # a break
    return (y * 2,)


def run(f, x, gradients):
    x = x.clone().requires_grad_(gradients)
    results = f(x)
    if gradients:
        sum(r.square().sum() for r in results if isinstance(r, torch.Tensor)).backward()
    return results, x.grad


FUNCTIONS = (of_no_view, of_a_view, other_name, held_by_a_list, by_keyword, then_written, then_broken)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_the_graph_goes_on_and_gives_what_eager_does(f, gradients):
    x = torch.randn(3, 4)
    with tcompile.record() as builder:
        got, gradient = run(tcompile.compile(f), x, gradients)
    breaks = [b for b in builder.report().graph_breaks if b.kind == "tensor_attribute"]
    wanted, wanted_gradient = run(f, x, gradients)
    assert not breaks, breaks
    for a, b in zip(got, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride() and a._is_view() == b._is_view()
        else:
            assert a == b
    if gradients:
        torch.testing.assert_close(gradient, wanted_gradient)


def test_sizes_that_vary():
    def f(x):
        y = (x @ x.t()).view(1, -1, x.shape[0])
        y.unsqueeze_(2)
        z = x * 2
        z.t_()
        return y, z

    compiled = tcompile.compile(f, dynamic=True)
    for n in (3, 5, 9):
        x = torch.randn(n, 4)
        for a, b in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def input_itself(x):
    x.unsqueeze_(0)
    return x + 1


def view_of_a_leaf(x):
    y = x.view(-1)
    y.unsqueeze_(0)
    return y * 2


def one_of_several(x):
    y = (x * 2).unbind(0)[0]
    y.unsqueeze_(0)
    return y * 2


def no_such_dimension(x):
    y = x * 2
    y.unsqueeze_(7)
    return y


@pytest.mark.parametrize(
    "f", [input_itself, view_of_a_leaf, one_of_several, no_such_dimension], ids=lambda f: f.__name__
)
def test_what_eager_refuses_is_refused(f):
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(Exception) as wanted:
        f(x)
    with pytest.raises(type(wanted.value)) as got:
        tcompile.compile(f)(x)
    assert str(got.value) == str(wanted.value)
    assert x.shape == (3, 4)


def test_an_input_is_reshaped_for_its_caller():
    x, y = torch.arange(6.0).view(2, 3).clone(), torch.arange(6.0).view(2, 3).clone()
    torch.testing.assert_close(tcompile.compile(input_itself)(x), input_itself(y))
    assert x.shape == y.shape == (1, 2, 3)
