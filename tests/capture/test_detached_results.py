"""Results that lie in an input's memory: views where eager's are, plain tensors where detach() made them."""

from __future__ import annotations

import pytest
import torch

import tcompile


def detached(x):
    return x.detach()


def of_a_view(x):
    return x.view(-1).detach()


def both(x):
    d = x.detach()
    return d, d, x.view(-1), x * 2


def data(x):
    return x.data


def twice(x):
    return x.detach().detach()


def view_of_detached(x):
    return x.detach().view(-1)


def of_a_result(x):
    y = x * 2
    return y[1:].detach(), (x * 3)[0].detach(), y.detach()


@pytest.mark.parametrize("f", [detached, of_a_view, both, data, twice, of_a_result])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_what_a_result_is_to_autograd(f, grad, backend):
    x = torch.randn(3, 4, requires_grad=grad)
    fast = tcompile.compile(f, backend=backend)
    for _ in range(2):
        want, got = f(x), fast(x)
        want, got = (want, got) if isinstance(want, tuple) else ((want,), (got,))
        for a, b in zip(want, got, strict=True):
            assert (a._is_view(), a._base is x, a.requires_grad) == (b._is_view(), b._base is x, b.requires_grad)
            assert (a.data_ptr() == x.data_ptr()) == (b.data_ptr() == x.data_ptr())
            torch.testing.assert_close(b, a)
        if len(got) > 1:
            assert (got[0] is got[1]) == (want[0] is want[1])


@pytest.mark.parametrize("f", [detached, of_a_view, both, data, twice, view_of_detached])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_without_grad_mode_a_view_of_a_detached_input_requires_no_gradient(f, backend):
    x = torch.randn(3, 4, requires_grad=True)
    fast = tcompile.compile(f, backend=backend)
    with torch.no_grad():
        want, got = f(x), fast(x)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got)), strict=True):
        assert (a.requires_grad, a.data_ptr() == x.data_ptr()) == (b.requires_grad, b.data_ptr() == x.data_ptr())
        assert (a._base is x) == (b._base is x)


def test_writing_to_a_detached_result_writes_the_input():
    x = torch.zeros(3)
    fast = tcompile.compile(detached)
    for k in range(1, 3):
        fast(x).fill_(k)
        assert x.tolist() == [k] * 3


@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_a_detached_product_with_a_bias_has_no_gradient(backend):
    """Torch's addmm_out recorded its own history where gradients were on and the bias required one."""
    layer = torch.nn.Linear(3, 3)
    x = torch.arange(9.0).reshape(3, 3)
    fast = tcompile.compile(lambda x: layer(x).detach(), backend=backend)
    for _ in range(2):
        got = fast(x)
        assert not got.requires_grad and got.grad_fn is None and torch.is_grad_enabled()
        torch.testing.assert_close(got, layer(x).detach())


def only_a_leaf(x):
    return x.detach().requires_grad_()


def view_as_leaf(x):
    return x[:].requires_grad_()


def leaf_and_what_is_computed_of_it(x):
    y = x.detach().requires_grad_()
    return y, (y * y).sum()


def leaf_made_under_no_grad(x):
    with torch.no_grad():
        y = x[:]
    y.requires_grad_()
    return y, y * 3


@pytest.mark.parametrize("f", [only_a_leaf, view_as_leaf, leaf_and_what_is_computed_of_it, leaf_made_under_no_grad])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_a_leaf_that_is_made_of_an_input(f, grad, backend):
    """Such a result came out without requires_grad, and what was computed of it had no gradient."""
    fast, seen = tcompile.compile(f, backend=backend), []
    for call in (f, fast, fast):
        x = torch.arange(3.0, requires_grad=grad)
        out = call(x)
        out = out if isinstance(out, tuple) else (out,)
        out[-1].sum().backward()
        leaf = out[0] if out[0].is_leaf else None
        seen.append(
            (
                *((t.requires_grad, t.is_leaf, t._is_view()) for t in out),
                str(leaf.grad if leaf is not None else x.grad),
                str(x.grad),
            )
        )
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_writes_to_data_are_not_counted_as_changes(grad, backend):
    def f(x):
        return x.data, x.detach(), x.data[1:]

    fast = tcompile.compile(f, backend=backend)
    for _ in range(2):
        for k in range(3):
            versions = []
            for call in (f, fast):
                x = torch.zeros(3, requires_grad=grad)
                out = call(x)
                out[k].add_(1)
                versions.append(([t._version for t in (x, *out)], x.tolist()))
            assert versions[0] == versions[1]


def views_of_an_input(x):
    return x.view(-1), x.reshape(-1), x[0], x.T, x.detach(), x.unbind()[1], x.expand_as(x), x.real, (x * 1)[0], x


@pytest.mark.parametrize("kind", ["plain", "leaf", "result", "of inference mode"])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_views_under_inference_mode(kind, backend):
    """They were no views of the input to autograd, and required no gradient where it did."""
    fast, seen = tcompile.compile(views_of_an_input, backend=backend), []
    for call in (views_of_an_input, fast, fast):
        with torch.inference_mode(kind == "of inference mode"):
            x = torch.ones(2, 2, requires_grad=kind in ("leaf", "result"))
            x = x * 1 if kind == "result" else x
        with torch.inference_mode():
            out = call(x)
        seen.append([(t._is_view(), t._base is x, t.requires_grad, t.is_inference(), t.is_leaf) for t in out])
        before = x.is_inference() or x._version
        with torch.inference_mode():
            out[0].add_(1)
        assert x.is_inference() or x._version == before + 1
        assert x[0, 0] == 2
    assert seen[0] == seen[1] == seen[2]


OF_MADE_MEMORY = {
    "view": lambda y: y.view(-1),
    "of the same shape": lambda y: y.view(y.shape),
    "part": lambda y: y[1],
    "turned": lambda y: y.t(),
    "whole": lambda y: y[:],
    "detached": lambda y: y.detach(),
    "twice": lambda y: (lambda v: (v, v))(y.view(-1)),
    "with its base": lambda y: (y, y.view(-1)),
    "apart": lambda y: (y[0], y[1]),
}


@pytest.mark.parametrize("name", OF_MADE_MEMORY)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_the_only_views_of_what_a_graph_made_are_views(name, grad, backend):
    """With gradients they were plain tensors; so was a view of the base's own shape."""

    def f(x):
        return OF_MADE_MEMORY[name](x * 2)

    fast, seen = tcompile.compile(f, backend=backend), []
    for call in (f, fast, fast):
        x = torch.arange(4.0).view(2, 2).requires_grad_(grad)
        out = call(x)
        out = out if isinstance(out, tuple) else (out,)
        row = [(t._is_view(), t.requires_grad, t.is_leaf, t._version, t.tolist()) for t in out]
        row.append([[a is b for a in out] for b in out])
        if grad and out[0].requires_grad:
            out[0].mul_(3)
            sum(t.square().sum() for t in out).backward()
            row.append(([t._version for t in out], x.grad.tolist()))
        seen.append(row)
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    "parts",
    [lambda t: t.unbind(0), lambda t: t.split(1), lambda t: t.chunk(2, 1), lambda t: [t.split([1, 1])[1]]],
    ids=["unbind", "split", "chunk", "only one"],
)
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_one_of_several_views_is_not_written_to_behind_the_graph(parts, backend):
    """It was: such a result was no view where nothing else of its memory was returned."""

    def f(x):
        return list(parts(x * 2))

    fast = tcompile.compile(f, backend=backend)
    for call in (f, fast, fast):
        x = torch.ones(2, 2, requires_grad=True)
        for write in (lambda t: t.add_(1), lambda t: t[:1].zero_(), lambda t: t.copy_(t * 2)):
            with pytest.raises(RuntimeError, match="This view is the output of a function that returns multiple views"):
                write(call(x)[0])
        out = call(x)
        out[-1].sum().backward()
        want = torch.zeros(2, 2, requires_grad=True)
        f(want)[-1].sum().backward()
        assert x.grad.tolist() == want.grad.tolist()
        f(torch.ones(2, 2))[0].add_(1)
        call(torch.ones(2, 2))[0].add_(1)


def test_what_is_no_view_to_autograd_may_be_written_to():
    def f(x):
        y = x * 1
        return y, y.unsafe_split(1)

    for call in (f, tcompile.compile(f)):
        y, (first, _) = call(torch.ones(2, 2, requires_grad=True))
        first.add_(1)
        assert y.tolist() == [[2.0, 2.0], [1.0, 1.0]]


def written_before_it_is_returned(x):
    made = torch.zeros_like(x)
    made[0] = x[0]
    made.mul_(2)
    return made, made[1:], x * 1


def an_input_too(x):
    return x.add_(1).mul_(2), x[:1].zero_()


@pytest.mark.parametrize("program", [written_before_it_is_returned, an_input_too], ids=lambda f: f.__name__)
@pytest.mark.parametrize("inside", [False, True])
def test_writes_under_inference_mode(program, inside):
    """Tensors of inference mode have no version that could say how often they were written."""
    decorated = torch.inference_mode()(program) if inside else program
    seen = []
    with tcompile.record() as record:
        for f in (decorated, tcompile.compile(decorated)):
            x = torch.arange(6.0).view(3, 2)
            with torch.inference_mode(not inside):
                results = f(x)
            seen.append((*results, x))
    torch.testing.assert_close(seen[1], seen[0])
    assert [t.is_inference() for t in seen[1]] == [t.is_inference() for t in seen[0]]
    assert seen[0][-1]._version == seen[1][-1]._version
    assert not record.report().fallbacks
