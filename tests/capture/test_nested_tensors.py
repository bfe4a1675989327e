"""Jagged nested tensors are captured down to values, offsets and lengths. Results, gradients and errors are eager's.
Batches of other lengths share an entry.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nested import nested_tensor_from_jagged

import tcompile

from .wrapper_classes import compilations, report_of

BATCHES = ([3, 5, 2], [4, 1, 6], [2, 2, 9])
W, G = torch.randn(6, 8, requires_grad=True), torch.randn(8, requires_grad=True)


@pytest.fixture(autouse=True)
def without_cudnn():
    """torch asks cuDNN about nested tensors on the CPU, too, and it raises where there is no driver."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


def offsets_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])


def jagged(lengths, grad=False, width=8):
    """Values and a nested tensor over them, whose lengths torch does not keep."""
    values = torch.randn(sum(lengths), width, requires_grad=grad)
    return nested_tensor_from_jagged(values, offsets_of(lengths))


def parts(y):
    """The tensors in a result, those of nested tensors by values and offsets."""
    if isinstance(y, (list, tuple)):
        return [p for x in y for p in parts(x)]
    if isinstance(y, torch.Tensor) and y.is_nested:
        return [y.values(), y.offsets()]
    return [y]


def same(a, b):
    assert type(a) is type(b), (type(a), type(b))
    a, b = parts(a), parts(b)
    assert len(a) == len(b)
    for x, y in zip(a, b):
        if isinstance(x, torch.Tensor):
            assert (x.dtype, x.shape, x.requires_grad) == (y.dtype, y.shape, y.requires_grad)
            torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-4)
        else:
            assert x == y


def outcome(f, x, leaf):
    """The result, and the gradients of it, of a nested tensor's values and of W and G."""
    for t in (W, G):
        t.grad = None
    values = x.values().detach().requires_grad_()
    given = nested_tensor_from_jagged(values, x.offsets(), x.lengths())
    if leaf:
        given = given.detach().requires_grad_()
    result = f(given)
    ends = [t for t in parts(result) if t.requires_grad]
    if ends:
        sum(t.square().sum() for t in ends).backward()
    own = given.grad.values() if leaf and given.grad is not None else values.grad
    return result, [own, W.grad, G.grad]


def heads(x):
    return x.unflatten(-1, [2, -1]).transpose(1, 2)


def attention(x, causal=False):
    q, k, v = heads(x), heads(x.sin()), heads(x * 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(-2)


ALIKE = {
    "pointwise": lambda x: (x * 2 + x.sin()).relu() / G,
    "linear": lambda x: F.gelu(F.linear(x, W)),
    "product": lambda x: x @ W.t(),
    "softmax": lambda x: x.softmax(-1),
    "ragged softmax": lambda x: x.detach().softmax(1),
    "sum": lambda x: (x.sum(), x.mean(-1)),
    "ragged amax": lambda x: x.amax(1),
    "layer norm": lambda x: F.layer_norm(x, (8,), G),
    "rms norm": lambda x: F.rms_norm(x, (8,), G),
    "padded": lambda x: (torch.nested.to_padded_tensor(x, -1.0), x.to_padded_tensor(0.0, (3, 12, 8))),
    "attention": attention,
    "views": lambda x: (heads(x), x.unsqueeze(2).squeeze(2), x.chunk(2, -1), x.view(*x.shape[:2], 2, 4)),
    "inner": lambda x: (x.values() * 2, x.offsets(), nested_tensor_from_jagged(x.values().cos(), x.offsets()) + x),
    "where": lambda x: torch.where(x > 0, x, x.masked_fill(x < 0, 0.5)),
    "numbers": lambda x: (torch.where((x > 0) & (x < 1), x, 0.0), torch.where(x > 0, 1.0, 0.0), ((x > 0) | (x < 1))),
    "likes": lambda x: (torch.zeros_like(x) + x, x.clone(), x.detach() * x, x.double()),
    "facts": lambda x: x * x.size(0) * x.dim() * x.size(-1) if x.is_nested and x.shape == (x + 1).shape else x,
}


@pytest.mark.parametrize("name", ALIKE)
def test_equal_to_eager(name):
    f = ALIKE[name]
    assert report_of(f, jagged([2, 3])).graphs  # (what raises while it is captured runs eagerly, and would be equal)
    compiled = tcompile.compile(f, fullgraph=True)
    for leaf in (False, True):
        for lengths in BATCHES:
            x = jagged(lengths)
            (wanted, wanted_grads), (found, grads) = outcome(f, x, leaf), outcome(compiled, x, leaf)
            same(found, wanted)
            for g, w in zip(grads, wanted_grads, strict=True):
                assert (g is None) == (w is None)
                if g is not None:
                    torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-4)


def test_gradients_of_a_ragged_softmax():
    """Those of eager are wrong up to torch 2.14 (as if each row were alone): each sequence by itself says what is
    right."""
    compiled = tcompile.compile(lambda x: x.softmax(1), fullgraph=True)
    for lengths in BATCHES:
        x = jagged(lengths)
        values, again = (x.values().detach().requires_grad_() for _ in range(2))
        found = compiled(nested_tensor_from_jagged(values, x.offsets())).values()
        wanted = torch.cat([part.softmax(0) for part in again.split(lengths)])
        for t in (found, wanted):
            t.square().sum().backward()
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(values.grad, again.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_that_eager_has_not(reduce):
    """torch has no formula for the sum over the ragged dimension: what is padded by hand says what is right."""
    compiled = tcompile.compile(lambda x: getattr(x, reduce)(1), fullgraph=True)
    for lengths in BATCHES:
        x = jagged(lengths)
        values = x.values().detach().requires_grad_()
        found = compiled(nested_tensor_from_jagged(values, x.offsets()))
        assert torch.equal(found.detach(), getattr(x, reduce)(1)) or torch.allclose(found, getattr(x, reduce)(1))
        found.square().sum().backward()
        again = x.values().detach().requires_grad_()
        scale = torch.tensor(lengths)[:, None] if reduce == "mean" else 1
        rows = torch.stack([part.sum(0) for part in again.split(lengths)])
        (rows / scale).square().sum().backward()
        torch.testing.assert_close(values.grad, again.grad, atol=1e-5, rtol=1e-4)


def test_causal_attention():
    """On the CPU eager has none: each sequence by itself says what is right."""
    compiled = tcompile.compile(lambda x: attention(x, True), fullgraph=True)
    for lengths in BATCHES:
        x = jagged(lengths)
        values = x.values().detach().requires_grad_()
        found = compiled(nested_tensor_from_jagged(values, x.offsets())).values()
        again = x.values().detach().requires_grad_()
        wanted = torch.cat([attention(part[None], True)[0] for part in again.split(lengths)])
        for t in (found, wanted):
            t.square().sum().backward()
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(values.grad, again.grad, atol=1e-5, rtol=1e-4)


def test_other_lengths_share_an_entry():
    for f in (lambda x: (x * 2).relu(), lambda x: x.softmax(1).sum(1), attention):
        compiled = tcompile.compile(f, fullgraph=True)
        for lengths in BATCHES:
            x = jagged(lengths)
            same(compiled(x), f(x))
        for lengths in ([5, 6, 7], [2, 3, 21]):
            assert not compilations(compiled, jagged(lengths))
        compiled(jagged([2, 3, 4, 5]))
        for lengths in ([9, 3], [5, 6, 7, 8, 2]):
            assert not compilations(compiled, jagged(lengths))


def test_other_lengths_share_an_entry_in_training():
    m = nn.Linear(8, 8)
    compiled = tcompile.compile(lambda x: attention(m(x)).softmax(1), fullgraph=True)

    def run(x):
        compiled(x).values().square().sum().backward()

    for lengths in BATCHES:
        run(jagged(lengths))
    with tcompile.record() as recorded:
        for lengths in ([5, 6, 7], [2, 3, 21], [8, 2, 9]):
            run(jagged(lengths))
    assert not recorded.report().entries and not recorded.report().kernels


def test_sequences_without_elements():
    f = lambda x: (x.sum(1), x.to_padded_tensor(0.0), x + 1)  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    for lengths in ([0, 3, 2], [2, 0, 0], [4, 2, 1]):
        x = jagged(lengths)
        same(compiled(x), f(x))


def test_how_far_torch_pads():
    """To the longest sequence where torch keeps its length, else to the number of rows: softmax makes it keep it."""

    def f(x):
        first = x.to_padded_tensor(0.0)
        return first, x.softmax(1), x.to_padded_tensor(0.0)

    compiled = tcompile.compile(f, fullgraph=True)
    for lengths in BATCHES:
        x, y = jagged(lengths), jagged(lengths)
        wanted, found = f(x), compiled(y)
        assert [t.shape for t in (found[0], found[2])] == [t.shape for t in (wanted[0], wanted[2])]
        assert y.to_padded_tensor(0.0).shape == x.to_padded_tensor(0.0).shape
        again = [[g(t)[k].shape for k in (0, 2)] for g, t in ((f, x), (compiled, y))]
        assert again[0] == again[1]


def test_offsets_that_change():
    """The same tensor of offsets, written to: nothing is relied on that it says."""
    f = lambda x: (x.sum(1), attention(x))  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    offsets, values = offsets_of([3, 5, 2]), torch.randn(10, 8)
    same(compiled(nested_tensor_from_jagged(values, offsets)), f(nested_tensor_from_jagged(values, offsets)))
    offsets[1], offsets[2] = 1, 9
    same(compiled(nested_tensor_from_jagged(values, offsets)), f(nested_tensor_from_jagged(values, offsets)))


def test_two_nested_tensors():
    f = lambda x, y: x + y  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    x = jagged([3, 4, 2])
    same(compiled(x, x * 3), f(x, x * 3))
    # the same lengths are not the same size
    other = nested_tensor_from_jagged(torch.randn(9, 8), offsets_of([3, 4, 2]))
    for g in (f, compiled):
        with pytest.raises(RuntimeError, match="add"):
            g(x, other)
    same(x + compiled(x, x), x + f(x, x))  # a result has its argument's ragged size in eager code, too


def test_keys_of_other_lengths():
    f = lambda q, k: F.scaled_dot_product_attention(heads(q), heads(k), heads(k * 2))  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    for a, b in (([2, 3, 4], [5, 1, 2]), ([7, 1, 1], [3, 3, 9])):
        q, k = jagged(a), jagged(b)
        same(compiled(q, k), f(q, k))


def test_holes():
    f = lambda x: (x * 2).sin()  # noqa: E731
    compiled = tcompile.compile(f, fullgraph=True)
    for lengths in ([2, 3, 1], [4, 4, 4]):
        x = nested_tensor_from_jagged(torch.randn(12, 8), torch.tensor([0, 4, 8, 12]), torch.tensor(lengths))
        found, wanted = compiled(x), f(x)
        assert found.lengths() is x.lengths()
        for a, b in zip(found.unbind(), wanted.unbind(), strict=True):
            torch.testing.assert_close(a, b)


def test_a_block_is_one_graph():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.LayerNorm(8), nn.Linear(8, 8)
            self.qkv = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            y = self.norm(x)
            q, k, v = (heads(project(y)) for project in self.qkv)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))
            return x + self.down(F.gelu(self.up(x)))

    block = Block()
    compiled = tcompile.compile(block, fullgraph=True)
    found = []
    for f in (block, compiled):
        for lengths in BATCHES:
            torch.manual_seed(sum(lengths))
            f(jagged(lengths)).values().square().mean().backward()
        found.append([p.grad.clone() for p in block.parameters()])
        block.zero_grad()
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert len(report_of(block, jagged([3, 4])).entries) == 1


def test_a_whole_step():
    m = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    start = {k: v.clone() for k, v in m.state_dict().items()}

    def step(x):
        optimizer.zero_grad()
        loss = m(x).softmax(-1).to_padded_tensor(0.0).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches = [jagged(lengths) for lengths in BATCHES]
    wanted = [step(x) for x in batches]
    m.load_state_dict(start)
    compiled = tcompile.compile(step)
    for x, loss in zip(batches, wanted):
        torch.testing.assert_close(compiled(x), loss)


def below(x):
    with torch.no_grad():
        x.mul_(3)
    return x


def of_views(x):
    y = x * 1
    z, v = y.transpose(1, 2), y.values()
    y.add_(1).mul_(2)
    return y, z * 1, v * 2


def of_given_values(x):
    v = x.values() * 1
    y = nested_tensor_from_jagged(v, x.offsets(), x.lengths())
    y.sub_(1)
    return y, v


WRITES = {
    "pointwise": lambda x: F.relu((x * 1).add_(1).neg_(), inplace=True),
    "of two": lambda x: torch.add(x, 1).copy_(x).add_(x, alpha=2),
    "filled": lambda x: torch.empty_like(x).fill_(3.0).mul_(x),
    "zeroed": lambda x: (x * 1).zero_() + 1,
    "operators": lambda x: (x.clone().__iadd__(1).__imul__(2), x * 1),
    "without gradients": lambda x: below(x * 1) * 2,
    "of a detached one": lambda x: (x * 1).detach().mul_(3),
    "views": of_views,
    "given values": of_given_values,
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name):
    f = WRITES[name]
    compiled = tcompile.compile(f, fullgraph=True)
    for lengths in BATCHES:
        torch.manual_seed(1)
        x = jagged(lengths, grad=True).detach()
        for leaf in (True, False):
            (wanted, gradients), (got, own) = outcome(f, x, leaf), outcome(compiled, x, leaf)
            same(got, wanted)
            same(own[:1], gradients[:1])
    x = nested_tensor_from_jagged(torch.randn(12, 8), torch.tensor([0, 4, 8, 12]), lengths=torch.tensor([3, 2, 4]))
    same(compiled(x), f(x))


def test_a_write_returns_what_it_wrote_to():
    def f(x):
        y = x * 1
        return y.mul_(2) is y

    assert tcompile.compile(f, fullgraph=True)(jagged([2, 3]))


@pytest.mark.parametrize("grad", [False, True])
def test_writes_to_one_from_outside_are_eagers(grad):
    def f(x):
        y = x.detach()
        y.mul_(3)
        return x + 1, y

    def g(x):
        x.mul_(3)
        return x + 1

    for fn in (f, g) if not grad else (f,):
        torch.manual_seed(1)
        values = torch.randn(5, 8)
        x, y = [nested_tensor_from_jagged(values.clone(), offsets_of([2, 3])).detach() for _ in range(2)]
        if grad:
            x.requires_grad_(), y.requires_grad_()
        same(tcompile.compile(fn)(y), fn(x))
        same(y.detach(), x.detach())
        assert fn is f or y._version == x._version


SEQUENCES = {
    "unbind": lambda x: [t * 2 for t in (x * 3).unbind()],
    "iteration": lambda x: torch.stack([t.sum(0) for t in x]),
    "index": lambda x: (x[-1].cos(), F.linear(x, W)[0].amax(0)),
    "select": lambda x: torch.select(x, 0, 1) + 1,
    "turned": lambda x: [t.sum(-1) for t in x.transpose(1, 2).unbind(0)],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_sequences_one_by_one(name):
    f = SEQUENCES[name]
    compiled = tcompile.compile(f, fullgraph=True)
    for lengths in ([3, 4], [5, 2], [1, 6]):
        torch.manual_seed(1)
        x = jagged(lengths, grad=True).detach()
        for leaf in (True, False):
            (wanted, gradients), (got, own) = outcome(f, x, leaf), outcome(compiled, x, leaf)
            same(got, wanted)
            same(own[:1], gradients[:1])


def test_sequences_of_other_lengths_share_an_entry():
    f = SEQUENCES["unbind"]
    compiled = tcompile.compile(f)
    compiled(jagged([3, 4]))
    with tcompile.record() as r:
        for lengths in ([7, 2], [5, 9]):
            x = jagged(lengths)
            same(compiled(x), f(x))
    assert not r.report().recompiles
    x = jagged([3, 4])
    short = nested_tensor_from_jagged(x.values(), offsets_of([3, 2]))  # its offsets end before its values do
    with pytest.raises(RuntimeError) as wanted:
        f(short)
    with pytest.raises(RuntimeError) as found:
        compiled(short)
    assert str(found.value) == str(wanted.value)


def test_what_is_not_captured_breaks():
    def f(x, y):
        z = x.detach()
        z.add_(1)
        return [t.sum() for t in (x * 2 + z).unbind()], [t * 2 for t in y.unbind()]

    def holes():
        return nested_tensor_from_jagged(
            torch.ones(12, 8), torch.tensor([0, 4, 8, 12]), lengths=torch.tensor([3, 2, 4])
        )

    compiled = tcompile.compile(f)
    for lengths in BATCHES:
        x = jagged(lengths)
        y = nested_tensor_from_jagged(x.values().clone(), x.offsets())
        same(compiled(y, holes()), f(x, holes()))
    kinds = {b.kind for b in tcompile.explain(f)(jagged([2, 3]), holes()).graph_breaks}
    assert kinds == {"unsupported", "data_dependent_shape"}


def test_made_inside():
    def f(a, b):
        return nn.functional.relu(torch.nested.nested_tensor([a, b], layout=torch.jagged)) * 2

    compiled = tcompile.compile(f)
    for n in (3, 4):
        a, b = torch.randn(n, 4), torch.randn(2 * n, 4)
        same(compiled(a, b), f(a, b))


@pytest.mark.parametrize("dynamic", [True, False])
def test_dynamic(dynamic):
    f = lambda x: (heads(x).transpose(1, 2) * 2, x.sum(1))  # noqa: E731
    compiled = tcompile.compile(f, dynamic=dynamic, fullgraph=True)
    for lengths, width in (([3, 4], 8), ([1, 7, 2], 12), ([5, 5], 16)):
        x = jagged(lengths, width=width)
        same(compiled(x), f(x))


def test_errors_are_eagers():
    for f in (lambda x: x.log_softmax(1), lambda x: x.sum(dim=(1, 2)), lambda x: F.linear(x, torch.ones(3, 5))):
        with pytest.raises(RuntimeError) as wanted:
            f(jagged([2, 3]))
        with pytest.raises(RuntimeError) as found:
            tcompile.compile(f, fullgraph=True)(jagged([2, 3]))
        assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_other_backends(backend):
    f = lambda x: (F.linear(x, W) * 2).relu()  # noqa: E731
    compiled = tcompile.compile(f, backend=backend)
    for lengths in BATCHES[:2]:
        x = jagged(lengths)
        (wanted, wanted_grads), (found, grads) = outcome(f, x, False), outcome(compiled, x, False)
        same(found, wanted)
        for g, w in zip(grads[:2], wanted_grads[:2], strict=True):
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-4)


def test_gradients_of_gradients():
    """torch has none through the view of values that a nested tensor is, so that it is made and read inside."""

    def f(values, offsets):
        return F.linear(nested_tensor_from_jagged(values, offsets), W).softmax(1).values()

    compiled = tcompile.compile(f, fullgraph=True)
    x = jagged([3, 4])
    values, again = (x.values().detach().requires_grad_() for _ in range(2))
    rows = torch.cat([F.linear(part, W).softmax(0) for part in again.split([3, 4])])
    found = compiled(values, x.offsets())
    (g,) = torch.autograd.grad(rows.square().sum(), again, create_graph=True)
    (h,) = torch.autograd.grad(found.square().sum(), values, create_graph=True)
    torch.testing.assert_close(h, g, atol=1e-5, rtol=1e-4)
    (g2,), (h2,) = torch.autograd.grad(g.square().sum(), again), torch.autograd.grad(h.square().sum(), values)
    torch.testing.assert_close(h2, g2, atol=1e-4, rtol=1e-3)


def test_a_nested_tensor_that_is_written_to_inside():
    def f(x):
        x.values().mul_(2)
        return x + 1

    x = jagged([2, 3])
    y = nested_tensor_from_jagged(x.values().clone(), x.offsets())
    same(tcompile.compile(f, fullgraph=True)(y), f(x))
    torch.testing.assert_close(x.values(), y.values())


def asked_inside(x):
    y = x.sin() * x
    z = y.exp()
    of_x, of_y = torch.autograd.grad(z, (x, y), torch.ones_like(z))
    return of_x, of_y * 2, of_x.values().sum() + z.detach().values().mean()


def penalty(x):
    (of_x,) = torch.autograd.grad((x.sin() * x).values().sum(), x, create_graph=True)
    return (of_x.values().norm(dim=-1) - 1).square().mean()


def test_gradients_that_the_function_asks_for():
    compiled = tcompile.compile(asked_inside, fullgraph=True)
    for lengths in ((3, 1, 4), (2, 5), (6, 2, 2, 1)):
        x = jagged(lengths, True)
        got, want = compiled(x), asked_inside(x)
        assert got[0].shape[0] == len(lengths) and got[0].offsets().tolist() == x.offsets().tolist()
        same([t.values() for t in got[:2]] + [got[2]], [t.values() for t in want[:2]] + [want[2]])
        assert not got[0].requires_grad
    compiled = tcompile.compile(penalty, fullgraph=True)
    grads = []
    for f in (compiled, penalty):
        torch.manual_seed(0)
        x = jagged((3, 1, 4)).detach().requires_grad_()
        f(x).backward()
        grads.append(x.grad.values())
    same(*grads)


def test_hooks_of_a_nested_tensor_are_called_where_its_gradient_is_asked_for():
    def f(x):
        return torch.autograd.grad((x.sin() * x).values().sum(), x)[0].values()

    x, heard = jagged((3, 1, 4), True), []
    compiled = tcompile.compile(f)
    same(compiled(x), f(x))
    x.register_hook(lambda g: heard.append(1))
    same(compiled(x), f(x))
    assert len(heard) == 2


def step_of_a_leaf(x, w):
    loss = F.linear(x, w).tanh().values().square().sum()
    loss.backward()
    return loss.detach()


def test_backward_inside_gives_nested_leaves_gradients():
    compiled, leaves = tcompile.compile(step_of_a_leaf, fullgraph=True), {}
    w = torch.randn(6, 8).requires_grad_()
    for lengths in (*BATCHES, BATCHES[0]):
        for f in (compiled, step_of_a_leaf):
            torch.manual_seed(0)
            x, w.grad = jagged(lengths).detach().requires_grad_(), None
            loss, g = f(x, w), x.grad
            assert type(g) is type(x) and g.shape == x.shape and not g.requires_grad and g.is_leaf
            leaves[f] = [loss, g.values(), g.offsets(), (g + x).values(), w.grad]
        same(leaves[compiled], leaves[step_of_a_leaf])


def test_backward_inside_where_a_nested_leaf_has_a_gradient_or_a_hook():
    w, compiled = torch.randn(6, 8), tcompile.compile(step_of_a_leaf)
    for f in (compiled, step_of_a_leaf):
        x = jagged([3, 1]).detach().requires_grad_()
        f(x, w)
        with pytest.raises(RuntimeError, match="stride"):  # (torch has no sum of nested gradients there)
            f(x, w)
    heard = []
    x = jagged([3, 1]).detach().requires_grad_()
    x.register_hook(lambda g: heard.append(type(g)))
    compiled(x, w)
    assert heard == [type(x)] and x.grad is not None


def test_a_nested_leaf_behind_a_break():
    def f(x, w):
        y = x * 2
        print(end="")
        F.linear(y, w).tanh().values().sum().backward()

    got = []
    for run in (tcompile.compile(f), f):
        torch.manual_seed(0)
        x = jagged([3, 1]).detach().requires_grad_()
        run(x, torch.ones(6, 8))
        got.append(x.grad.values())
    same(*got)
