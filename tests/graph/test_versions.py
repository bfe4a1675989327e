"""How often a call changes a tensor is how far its version moves, as in eager: autograd compares versions. That holds for
inputs and for what the call makes.
"""

import numpy
import pytest
import torch
import tcompile


def several(x, y):
    x.add_(1)
    x.mul_(2)
    y[0] = 3
    return x.sum()


def views(x, y):
    x[1:].add_(1)
    x.view(-1)[0] = 5
    y.t().mul_(2)
    y.copy_(x)
    return x


def outputs(x, y):
    torch.add(x, 1, out=y)
    torch.mul(y, 2, out=y)
    torch._foreach_add_([x, y], 1)


def one(x, y):
    x.sigmoid_()
    return y + x


library = torch.library.Library("tc_versions", "FRAGMENT")
library.define("grow_(Tensor(a!) x, *, Tensor(b!)[] out) -> ()")
for key in ("CPU", "Meta"):

    @torch.library.impl(library, "grow_", key)
    def grow_(x, out):
        x.add_(1)
        out[0].copy_(x)


def own_operator(x, y):
    torch.ops.tc_versions.grow_(x, out=[y])
    torch.ops.tc_versions.grow_(x[1:], out=[y[1:]])


@pytest.mark.parametrize("f", [several, views, outputs, one, own_operator])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_versions_after_a_call(f, backend):
    compiled = tcompile.compile(f, backend=backend)
    moved = []
    for g in (f, compiled):
        x, y = torch.ones(3, 3), torch.ones(3, 3)
        with torch.no_grad():
            for _ in range(2):
                g(x, y)
        moved.append((x._version, y._version, x, y))
    assert moved[0][:2] == moved[1][:2]
    for a, b in zip(moved[0][2:], moved[1][2:]):
        torch.testing.assert_close(a, b)


def test_a_step_of_training():
    def step(w, momentum, x):
        loss = (x @ w).square().sum()
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            momentum.mul_(0.9).add_(g)
            w.sub_(momentum, alpha=0.1)
        return loss

    versions = []
    for g in (step, tcompile.compile(step)):
        w, momentum = torch.ones(3, 2, requires_grad=True), torch.zeros(3, 2)
        g(w, momentum, torch.ones(4, 3))
        versions.append((w._version, momentum._version))
    assert versions[0] == versions[1]


def made_inside(x):
    y = x * 1
    y.add_(1)
    y.mul_(2)
    return y, y.detach()


def through_a_view(x):
    y = x * 2
    z = y[1:]
    z.add_(1)
    torch._foreach_mul_([y], 2)
    return z


def filled(x):
    y = torch.empty(3)
    y.copy_(x)
    z = torch.zeros(3)
    z[0] = 1
    z[1] = 2
    return y, z, y, torch.tensor([1.0, 2.0]).add_(1), torch.add(x, 1, out=torch.empty(3)) if not x.requires_grad else 0


def looked_at(x):
    y = x * 1
    before = y._version
    y.add_(1)
    after = y._version
    y.data.mul_(2)
    return y, before, after, y._version, y[1:]._version


def behind_the_back(x):
    x.data.add_(1)
    return x * 2


def of_a_written_input(x):
    x.add_(1)
    x.mul_(2)
    return x.view(-1)


def by_own_operator(x):
    y, z = x * 1, x * 2
    torch.ops.tc_versions.grow_(y, out=[z])
    torch.ops.tc_versions.grow_(z, out=[y])
    return y, z


@pytest.mark.parametrize(
    "f",
    [
        made_inside,
        through_a_view,
        filled,
        looked_at,
        by_own_operator,
        behind_the_back,
        of_a_written_input,
        lambda x: x.exp_(),
    ],
)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_versions_of_results(f, grad, backend):
    # (nobody has registered the operator's gradients: with some it runs outside of graphs)
    compiled = tcompile.compile(f, backend=backend, fullgraph=not (grad and f is by_own_operator))
    for _ in range(2):
        seen = []
        for g in (f, compiled):
            x = torch.tensor([1.0, 2.0, 3.0], requires_grad=grad)
            x = x * 1 if grad else x
            results = g(x)
            results = results if isinstance(results, tuple) else (results,)
            seen.append([(x._version, x.tolist())])
            seen[-1] += [(t._version, t._is_view(), t.tolist()) if isinstance(t, torch.Tensor) else t for t in results]
        if grad:  # a result that requires gradients is no view where nothing else shares its memory
            seen = [[r[::2] if isinstance(r, tuple) else r for r in s] for s in seen]
        assert seen[0] == seen[1]


library.define("rest(Tensor(a) x) -> Tensor(a)")
library.define("twice(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.define("sin(Tensor x) -> Tensor")
for key in ("CPU", "Meta"):
    library.impl("rest", lambda x: x[1:], key)
library.impl("twice", lambda x, *, out: out.copy_(x * 2), "CPU")
library.impl("twice", lambda x, *, out: out, "Meta")
library.impl("sin", torch.sin, "CPU")
library.impl("sin", torch.empty_like, "Meta")
own = torch.ops.tc_versions


def through_an_own_view(x):
    own.rest(x).add_(1)
    y = own.rest(own.rest(x))
    y.mul_(2)
    return x * 1


def into_an_own_output(x):
    out = torch.zeros(3)
    return own.twice(x, out=out), out + 1


@pytest.mark.parametrize("f", [through_an_own_view, into_an_own_output])
def test_what_own_operators_write_to(f):
    seen = []
    for g in (f, tcompile.compile(f, fullgraph=f is into_an_own_output)):  # (nobody knows where an own view lies)
        x = torch.tensor([1.0, 2.0, 3.0])
        results = g(x)
        seen.append([x._version, x.tolist(), [t.tolist() for t in (results if type(results) is tuple else (results,))]])
    assert seen[0] == seen[1]


def test_a_view_of_a_leaf_by_an_own_operator_is_not_written_to():
    for g in (through_an_own_view, tcompile.compile(through_an_own_view)):
        with pytest.raises(RuntimeError, match="a view of a leaf Variable"):
            g(torch.ones(3, requires_grad=True))


OF_THE_KERNEL = {
    "functional": lambda x: own.sin(x) * 2,
    "written": lambda x: by_own_operator(x)[0] * 3,
    "output": lambda x: into_an_own_output(x)[1],
}


@pytest.mark.parametrize("name", OF_THE_KERNEL)
def test_gradients_that_nobody_registered_are_those_of_the_kernel(name):
    """Eager records what such an operator's kernel calls. They were taken to have none."""
    f, seen = OF_THE_KERNEL[name], []
    for g in (f, tcompile.compile(f)):
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        g(x).sum().backward()
        seen.append(x.grad.tolist())
    assert seen[0] == pytest.approx(seen[1])
    (b, *_) = tcompile.explain(f)(torch.ones(3, requires_grad=True)).graph_breaks
    assert "has no registered gradients" in b.reason
    assert not tcompile.explain(f)(torch.ones(3)).graph_breaks


def test_running_statistics():
    """Torch writes them without counting, and autograd says so where a number disagrees."""
    nets = [torch.nn.BatchNorm1d(3) for _ in range(2)]
    x = torch.randn(4, 3)
    for net, g in zip(nets, (nets[0], tcompile.compile(nets[1]))):
        net.eval()
        kept = g(x).sum()
        net.train()
        g(x)
        kept.backward()
    assert [b._version for b in nets[0].buffers()] == [b._version for b in nets[1].buffers()]


def test_what_is_copied_from_another_result_is_a_tensor_of_its_own():
    """They were one object."""

    def f(x):
        y, z, w = x + 1, torch.empty(3), torch.empty(3)
        z.copy_(y)
        w.copy_(z)
        return y, z, w[1:]

    for backend in ("tcompile", "aot_eager"):
        y, z, w = tcompile.compile(f, backend=backend)(torch.zeros(3))
        y.fill_(5)
        w.fill_(7)
        assert z.tolist() == [1, 1, 1] and y.tolist() == [5, 5, 5]


LAID_OUT_ANEW = {
    "qr": ([(5, 3), (3, 3)], lambda x, *out: torch.linalg.qr(x, out=out)),
    "svd": ([(5, 3), (3,), (3, 3)], lambda x, *out: torch.linalg.svd(x, full_matrices=False, out=out)),
    "eigh": ([(3,), (3, 3)], lambda x, *out: torch.linalg.eigh(x.T @ x, out=out)),
    "geqrf": ([(5, 3), (3,)], lambda x, *out: torch.geqrf(x, out=out)),
    "cholesky_inverse": ([(3, 3)], lambda x, out: torch.cholesky_inverse(x.T @ x, out=out)),
}


@pytest.mark.parametrize("name", LAID_OUT_ANEW)
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager"])
def test_a_result_that_is_laid_out_anew_has_not_changed(name, backend):
    """LAPACK's results lie by columns, out= arguments by rows: to copy them is no change of the program's."""
    shapes, op = LAID_OUT_ANEW[name]

    def f(x):
        out = [torch.empty(shape) for shape in shapes]
        op(x, *out)
        return out

    x = torch.randn(5, 3)
    want, got = f(x), tcompile.compile(f, backend=backend)(x)
    assert [t._version for t in got] == [t._version for t in want]
    torch.testing.assert_close(got, want)


@torch.library.custom_op("tc_versions::grow", mutates_args=("x",))
def grow(x: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        x.add_(1)
    return x.clone()


@torch.library.custom_op("tc_versions::grow_all", mutates_args=("xs",))
def grow_all(xs: list[torch.Tensor], times: int) -> None:
    for k, x in enumerate(xs):
        grow(x, times + k)


@torch.library.custom_op("tc_versions::behind", mutates_args=("x",))
def behind(x: torch.Tensor) -> None:
    x.numpy()[:] = 7


@grow.register_fake
def _(x, times):
    return torch.empty_like(x)


def an_input(x, times):
    grow(x, times)
    grow(x[1:], times)
    x.mul_(2)
    return x * 2


def results_and_views(x, times):
    y = x * 1
    copy = grow(y[1:], times)
    return y, copy, y[:2], y.detach()


def a_list(x, times):
    y, z = x * 1, x * 2
    grow_all([y, x, z[1:]], times)
    return y, z


def seen_by_nobody(x, times):
    y = x + 1
    behind(y)
    grow(x.data, times)
    return y


def read_inside(x, times):
    y = x * 1
    a = y._version
    grow(y, times)
    b = y._version
    y.mul_(2)
    return y, a, b, y._version


@pytest.mark.parametrize("f", [an_input, results_and_views, a_list, seen_by_nobody, read_inside])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_versions_where_an_own_operator_writes_as_often_as_it_likes(f, backend):
    """Each call counted as one change, whatever its body did."""
    fast, seen = tcompile.compile(f, backend=backend), []
    for g in (f, fast):
        x = torch.tensor([1.0, 2.0, 3.0])
        seen.append([])
        for times in (1, 3, 0, 2):
            out = g(x, times)
            out = out if isinstance(out, tuple) else (out,)
            seen[-1].append([(t._version, t.tolist()) if isinstance(t, torch.Tensor) else t for t in (x, *out)])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("times", [0, 2])
def test_backward_after_an_own_operator_changed_what_it_needs(times):
    @torch.no_grad()
    def change(x):
        grow(x, times)

    fast, words = tcompile.compile(change), []
    for g in (change, fast):
        w, x = torch.ones(3, requires_grad=True), torch.ones(3)
        y = (w * x).sum()
        g(x)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as said:
            y.backward()
        words.append(str(said.value))
    assert words[0] == words[1]


def numpy_in_place(x):
    a = x.numpy()
    a += 1
    return x * 2


def numpy_of_a_result(x):
    y = x * 2
    y.numpy()[0] = 7
    return y, y._version


def numpy_and_back(x):
    a = x.numpy()
    a *= 2
    return torch.from_numpy(a)


@pytest.mark.parametrize("f", [numpy_in_place, numpy_of_a_result, numpy_and_back])
@pytest.mark.parametrize("backend", ["tcompile", "aot_eager", "eager"])
def test_what_numpy_writes_is_not_counted(f, backend):
    """It was, so that backward raised where eager goes on."""
    fast, seen = tcompile.compile(f, backend=backend), []
    for g in (f, fast):
        w, x = torch.ones(3, requires_grad=True), torch.ones(3)
        y = (w * x).sum()
        out = g(x)
        out = out if isinstance(out, tuple) else (out,)
        y.backward()
        seen.append([(t._version, t.tolist()) if isinstance(t, torch.Tensor) else t for t in (x, *out, w.grad)])
    assert seen[0] == seen[1]


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, marks):
        x.add_(1)
        ctx.mark_dirty(*[x] * marks)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 3, None


class MarkedInVain(Marked):
    @staticmethod
    def forward(ctx, x, marked):
        ctx.mark_dirty(x if marked else 5)
        return x * 2


def marked(x):
    y = x * 1
    result = Marked.apply(y, 2)
    return result, y, y._version


def a_marked_input(x):
    Marked.apply(x, 1)
    return Marked.apply(x[1:], 1)


@pytest.mark.parametrize("f", [marked, a_marked_input])
@pytest.mark.parametrize("mode", ["plain", "gradients", "no_grad"])
@pytest.mark.parametrize("backend", ["tcompile", "eager"])
def test_each_mark_of_mark_dirty_counts(f, mode, backend):
    seen = []
    for g in (f, tcompile.compile(f, backend=backend, fullgraph=True)):
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=mode != "plain")
        y = x if mode == "plain" else x * 1
        with torch.set_grad_enabled(mode != "no_grad"):
            results = g(y)
        results = results if isinstance(results, tuple) else (results,)
        seen.append([(y._version, y.tolist(), y.requires_grad)])
        for t in results:
            seen[-1].append((t._version, t.requires_grad, t.tolist()) if isinstance(t, torch.Tensor) else t)
        if mode == "gradients":
            results[0].sum().backward()
            seen[-1].append(x.grad.tolist())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("marked", [True, False])
def test_what_mark_dirty_refuses(marked):
    def f(x):
        return MarkedInVain.apply(x * 1, marked)

    for g in (f, tcompile.compile(f, backend="eager")):
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match="not returned as output" if marked else "accept variables, but argument"
            ):
                g(torch.ones(3))


def beside_its_data(x):
    y = x * 1
    first, second = y.data, y.data
    part = first[1:]
    part.add_(1)
    y.mul_(2)
    return part, y, first, second, y.detach()


def data_of_an_input(x):
    data = x.data
    data.mul_(2)
    return data, x.data, data[1:]


@pytest.mark.parametrize("f", [beside_its_data, data_of_an_input])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["tcompile", "eager"])
def test_what_data_gives_counts_by_itself(f, grad, backend):
    """Results of both kinds had one counter, or those of an input's data had none."""
    seen = []
    for g in (f, tcompile.compile(f, backend=backend, fullgraph=True)):
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=grad)
        results = g(x)
        kinds = [(t._version, t._is_view(), t.requires_grad, t.tolist()) for t in results]
        counts = []
        for t in results:
            with torch.no_grad():
                t.add_(1)
            counts.append([u._version for u in (x, *results)])
        seen.append((kinds, counts, x.tolist()))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("backend", ["tcompile", "eager"])
def test_tensors_of_arrays(backend):
    def f(array):
        t = torch.from_numpy(array)
        t.add_(1)
        part = t[1:]
        part.mul_(2)
        other = torch.as_tensor(array)
        return t, part, other, torch.from_numpy(array + 1).add_(1)

    seen = []
    for g in (f, tcompile.compile(f, backend=backend, fullgraph=True)):
        array = numpy.ones(3, dtype=numpy.float32)
        results = g(array)
        array[0] = 9
        seen.append([(t._version, t._is_view(), t.tolist()) for t in results])
    assert seen[0] == seen[1]
