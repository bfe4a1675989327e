"""Calls under fullgraph, each with its siblings: torch functions on numbers, aten's factories, legacy constructors,
operators without a meta kernel, storages, modules with a __new__ of their own."""

from __future__ import annotations

import inspect
import types

import pytest
import torch

import tcompile

F, aten = torch.nn.functional, torch.ops.aten
X = torch.arange(6.0).reshape(2, 3) / 5
SHAPES = [(2, 3), (4, 3), (3, 5)]


def same(a, b):
    assert type(a) is type(b), (a, b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, equal_nan=True)
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b


def check(fn, *calls, **options):
    compiled = tcompile.compile(fn, fullgraph=True, **{"backend": "eager", **options})
    for args in (*calls, calls[0]):
        want, got = [a.clone() for a in args], [a.clone() for a in args]
        torch.manual_seed(3)
        result = fn(*want)
        torch.manual_seed(3)
        same(result, compiled(*got))
        same(want, got)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, t: (torch.div(x.shape[0], 2, rounding_mode="trunc"), torch.floor_divide(x.shape[1], 2), x + 1),
        lambda x, t: (
            torch.add(2, 3),
            torch.add(x.shape[0], 2.5),
            torch.add(2, x.shape[0], alpha=2),
            torch.mul(True, 2),
            torch.add(input=2, other=3),
        ),
        lambda x, t: x * torch.true_divide(x.shape[0], x.shape[1]) + torch.mul(1j, 2),
        lambda x, t: (torch.add(2, x.shape[0], out=t), t + 1, torch.sub(2.5, x)),
    ],
    ids=range(4),
)
def test_functions_of_numbers(fn, dynamic):
    check(fn, *((torch.rand(s), torch.zeros(())) for s in SHAPES), dynamic=dynamic)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: aten.full([1, x.shape[0]], 2.0, dtype=torch.float32, device="cpu", pin_memory=False) + x.sum(),
        lambda x: (
            aten.zeros([x.shape[0], 3]),
            aten.arange(x.shape[1]),
            aten.arange.start(2, x.shape[1] + 2),
            aten.eye(x.shape[0]),
            aten.scalar_tensor(x.shape[0]),
        ),
        lambda x: (
            aten.rand([x.shape[0], 3]),
            aten.randn.default([x.shape[0]]),
            aten.randint(10, [x.shape[1]]),
            aten.randint.low(2, 10, [x.shape[1]]),
        ),
    ],
    ids=range(3),
)
def test_factories_of_aten(fn, backend):
    """Random ones draw at each call, and never while they are captured."""
    for dynamic in (False, True):
        check(fn, *((torch.rand(s),) for s in SHAPES[:2]), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.fractional_max_pool2d_with_indices(x, (4, 3), (3, 2)),
        lambda x: F.fractional_max_pool2d(x, 3, output_ratio=(0.5, 0.5)),
        lambda x: F.fractional_max_pool3d(x.unsqueeze(2).expand(-1, -1, 8, -1, -1), 2, output_size=3),
    ],
    ids=range(3),
)
def test_pools_that_draw(fn, dynamic):
    check(fn, (torch.rand(1, 4, 16, 16),), (torch.rand(2, 4, 12, 16),), dynamic=dynamic)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.view_as_complex(x * 2),
        lambda x: torch.view_as_complex(x[1:]) * 2,
        lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(-1, 2))) + 1,
    ],
    ids=range(3),
)
def test_a_size_that_must_be_two(fn, backend):
    check(fn, *((torch.rand(n, 2),) for n in (3, 4, 5)), dynamic=True, backend=backend)
    with pytest.raises(RuntimeError, match="size 2"):
        tcompile.compile(torch.view_as_complex, dynamic=True, backend=backend)(torch.rand(3, 4))


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.histogramdd(x, bins=[3, 3], weight=y),
        lambda x, y: torch.histogram(y, 4, range=(0.0, 1.0), density=True),
        lambda x, y: torch.histogramdd(x, bins=[torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0.0, 0.2, 1.0])]),
        lambda x, y: torch.histogram(y, torch.tensor([0.0, 0.3, 1.0])),
    ],
    ids=range(4),
)
def test_operators_without_a_meta_kernel(fn, backend):
    x, y = torch.rand(4, 2), torch.rand(4)
    check(lambda x, y: tuple(fn(x, y)), (x, y), backend=backend)
    assert type(tcompile.compile(fn, fullgraph=True, backend=backend)(x, y)) is type(fn(x, y))


def test_legacy_constructors_and_factories_of_numpys_numbers():
    np = pytest.importorskip("numpy")
    check(
        lambda x: (
            torch.LongTensor([np.int64(1), 2]),
            torch.FloatTensor((np.float32(1.5),)),
            torch.Tensor([np.float64(0.1)]),
            torch.Tensor([[np.int8(1)], [2]]),
            torch.IntTensor(np.int64(3)).shape,
            torch.DoubleTensor(np.int64(2), 3).shape,
            x + 1,
        ),
        (X,),
    )
    check(
        lambda x: (
            torch.tensor([np.int64(1), 2]),
            torch.tensor(np.float32(2)),
            torch.tensor([np.int8(1)], dtype=torch.float64),
            torch.full((2,), np.int32(3)),
            torch.as_tensor([np.float64(2)]),
            torch.arange(np.int64(4)),
            torch.zeros(np.int64(2)),
            x.new_tensor([np.int64(1)]),
            x + np.int16(3),
        ),
        (X,),
    )


def test_variables():
    """torch.autograd.Variable(x): a tensor without x's history, in x's memory."""
    variable = torch.autograd.Variable

    def fn(x):
        y = variable(x * 2, requires_grad=True)
        gradient = torch.autograd.grad((y * x).sum(), y)[0]
        z = variable(x)
        z.add_(1)
        return y.detach(), gradient.detach(), z, z.requires_grad, isinstance(z, variable), x + variable(torch.ones(3))

    compiled, seen = tcompile.compile(fn, fullgraph=True, backend="eager"), []
    for f in (fn, compiled):
        x = torch.ones(3) * 2
        result = f(x)
        seen.append((result, x, result[2].data_ptr() == x.data_ptr()))
    torch.testing.assert_close(*seen)


def test_new_tells_sizes_from_values():
    """A torch.Size is a size, where every other sequence holds values: of distributions' samples, too."""

    def sizes(x):
        news = x.new(x.shape), x.new(x.shape[1:]), x.new(torch.Size([])), x.new(size=x.size()), x.new(*x.shape, 2)
        sample = torch.distributions.Laplace(0.0, 1.0).sample((2,)), torch.distributions.Exponential(x.exp()).rsample()
        return [t.fill_(3) for t in (*news, x.long().new(len(x), 1))], sample, x.new((5, 6)), x.new([len(x)]), x.new()

    compiled, seen = tcompile.compile(sizes, fullgraph=True, backend="eager"), []
    for fn in (sizes, compiled):
        torch.manual_seed(0)
        seen.append([fn(torch.ones(n, 2)) for n in (3, 4, 5)])
    torch.testing.assert_close(*seen)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: torch.LongTensor([a[0, 0], a[1, 2]]),
        lambda a: torch.tensor([[a[0, 0], a[0, 1]], [a[1, 0], a[1, 1]]]),
        lambda a: torch.FloatTensor([a[0], a[1]]),
        lambda a: torch.tensor(list(a)),
        lambda a: torch.tensor([a.sum(), a.mean()], dtype=torch.float32),
        lambda a: torch.as_tensor([a[0, 0]]) + 1,
    ],
    ids=range(6),
)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list")
def test_tensors_of_lists_of_numpys_arrays(fn):
    np = pytest.importorskip("numpy")
    a = np.arange(6.0).reshape(2, 3)
    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for array in (a, a + 1):
        same(compiled(array), fn(array))


def test_imaginary_parts_of_numpys_arrays():
    np = pytest.importorskip("numpy")
    a = np.arange(6.0).reshape(2, 3)

    def written(a):
        part = a.imag.T
        part += 1
        return part

    for fn in (lambda a: a.imag, lambda a: a.imag.T, lambda a: (a.imag + a, np.sin(a.imag)), lambda a: a.real[0]):
        for array in (a, a.T, a.astype(np.int32), a + 1j, np.asfortranarray(np.ones((2, 3, 4))), a[:, ::2]):
            want, got = fn(array), tcompile.compile(fn, fullgraph=True, backend="eager")(array)
            for w, g in zip(want, got) if isinstance(want, tuple) else ((want, got),):
                assert (
                    type(w) is type(g)
                    and w.dtype == g.dtype
                    and w.strides == g.strides
                    and w.flags.writeable == g.flags.writeable
                )
                assert (w == g).all() and np.shares_memory(w, array) == np.shares_memory(g, array)
    torch.testing.assert_close(
        tcompile.compile(lambda a: torch.from_numpy(a.real) + 1, fullgraph=True, backend="eager")(a),
        torch.from_numpy(a) + 1,
    )
    with pytest.raises(ValueError, match="read-only"):
        tcompile.compile(written, fullgraph=True, backend="eager")(a)
    assert tcompile.compile(written, fullgraph=True, backend="eager")(a + 1j).sum() == 12


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_storages_part_the_graph(backend):
    def emptied(x):
        y = torch.sin(x + 1)
        storage = x.untyped_storage()
        storage.resize_(0)
        return y.cos(), storage

    def resized(x):
        storage = x.untyped_storage()
        n = storage.size()
        storage.resize_(0)
        storage.resize_(n)
        x.fill_(3)
        return x + n, storage.nbytes(), len(storage), storage.data_ptr() == x.view(-1).untyped_storage().data_ptr()

    x = torch.rand(10)
    got, storage = tcompile.compile(emptied, fullgraph=True, backend=backend)(x)
    assert storage is x.untyped_storage() and storage.size() == 0 and got.shape == (10,)
    same(tcompile.compile(resized, fullgraph=True, backend=backend)(torch.rand(10)), resized(torch.rand(10)))


class Scaled(torch.nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, n):
        super().__init__()
        self.n = n

    def forward(self, x):
        return x * self.n


class Prepared(Scaled):
    def __new__(cls, n, twice=False):
        self = super().__new__(cls, n)
        self.__dict__["twice"] = twice
        return self

    def __init__(self, n, twice=False):
        before = self.twice
        super().__init__(n)
        self.factor = 2 if before else 1

    def forward(self, x):
        return super().forward(x) * self.factor


class Another(Scaled):
    def __new__(cls, n):
        return torch.nn.ReLU()


class Weighted(Scaled):
    def __init__(self, n):
        super().__init__(n)
        self.weight = torch.nn.Parameter(torch.ones(3) * n)

    def forward(self, x):
        return super().forward(x) * self.weight.detach()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: Scaled(3)(x),
        lambda x: Prepared(3, True)(x) + Prepared(2)(x),
        lambda x: Another(3)(x),
        lambda x: torch.nn.Sequential(Scaled(2), torch.nn.Tanh())(x),
        lambda x: Weighted(2)(x),
    ],
    ids=range(5),
)
def test_modules_with_a_new_of_their_own(fn):
    check(fn, (X,))


def test_a_module_made_inside_is_a_module():
    def fn(x):
        made = Prepared(3, twice=True)
        return made(x), made

    y, made = tcompile.compile(fn, fullgraph=True, backend="eager")(X)
    assert type(made) is Prepared and made.factor == 2 and made.training and not list(made.parameters())
    same(made(X), y)


CALLS: list[str] = []


@torch.library.custom_op("tcompile_tests::places", mutates_args=())
def places(x: torch.Tensor) -> torch.Tensor:
    CALLS.append("places")
    return x.nonzero()


@places.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), x.dim(), dtype=torch.int64)


@torch.library.custom_op("tcompile_tests::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append("counted")
    return x.clone()


@counted.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("tcompile_tests::strided", mutates_args=())
def strided(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided((1,), (int(x.item()),))


@strided.register_fake
def _(x):
    return torch.empty_strided((1,), (torch.library.get_ctx().new_dynamic_size(),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
def test_operators_whose_sizes_are_values(backend):
    options = {"capture_dynamic_output_shape_ops": True}
    check(lambda x: counted(places(x)) * 2, (X,), (X * 0,), (X - 0.5,), backend=backend, options=options)
    check(
        lambda x: torch.ops.tcompile_tests.places(x * 2).shape[0] + x, (X,), (X * 0,), backend=backend, options=options
    )
    check(
        lambda t: torch.empty(strided(t).stride(0)).shape,
        (torch.tensor([3]),),
        (torch.tensor([5]),),
        backend=backend,
        options=options,
    )


LIBRARY = torch.library.Library("tcompile_tests_whole", "DEF")
LIBRARY.define("ones(Tensor x, int n) -> Tensor")
LIBRARY.impl("ones", lambda x, n: x.new_ones(n * int(x.sum())), "CPU")  # a kernel that could be no graph itself
torch.library.register_fake(
    "tcompile_tests_whole::ones", lambda x, n: x.new_empty(torch.library.get_ctx().new_dynamic_size())
)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_python_kernels_are_no_part_of_the_graph(backend):
    check(lambda x: torch.ops.tcompile_tests_whole.ones(x, 2).cumsum(0) + 1, (X.abs() + 1,), (X * 0,), backend=backend)


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_operators_of_the_program_run_once_a_call(backend):
    CALLS.clear()
    compiled = tcompile.compile(lambda x: counted(x) + 1, fullgraph=True, backend=backend)
    compiled(X)
    compiled(X)
    assert CALLS == ["counted"] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.vmap(lambda t: torch.tensor(0.5))(x),
        lambda x: torch.vmap(lambda t: (torch.zeros(2), t + 1))(x),
        lambda x: torch.vmap(lambda t: W)(x),
        lambda x: torch.func.grad_and_value(lambda t: t.sum() * 0 + torch.tensor(2.0))(x),
        lambda x: torch.func.jacrev(lambda t: torch.tensor([2.0]) + t.sum())(x),
    ],
    ids=range(5),
)
def test_transforms_of_what_does_not_depend_on_their_arguments(fn, backend):
    compiled = tcompile.compile(fn, fullgraph=True, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))


W = torch.tensor([1.0, 2.0])


class TooFew(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g


class TooMany(TooFew):
    @staticmethod
    def backward(ctx, g):
        return g, g, g


class WithNone(TooFew):
    @staticmethod
    def backward(ctx, g):
        return g, g, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "tcompile"])
@pytest.mark.parametrize("function", [TooFew, TooMany, WithNone])
def test_backwards_that_give_another_number_of_gradients(function, backend):
    """Forward runs; backward says what autograd says."""

    def fn(x, y):
        return function.apply(x, y).sin()

    said = []
    for f in (fn, tcompile.compile(fn, fullgraph=True, backend=backend)):
        x = X.clone().requires_grad_()
        out = f(x, X)
        torch.testing.assert_close(out, (X * X).sin())
        try:
            out.sum().backward()
            said.append(x.grad)
        except RuntimeError as e:
            said.append(str(e))
    same(*said)
    assert isinstance(said[0], str) == (function is not WithNone)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_views_of_dicts_that_are_read_only(fullgraph):
    def fn(x):
        d = {"a": x + 1}
        view = types.MappingProxyType(d)
        d["b"] = x
        return view, d, view["a"]

    def bound(x):
        arguments = inspect.signature(fn).bind(x).arguments
        return inspect.signature(fn), arguments["x"] + 1

    view, d, part = tcompile.compile(fn, fullgraph=fullgraph, backend="eager")(X)
    d["c"] = 1
    assert type(view) is types.MappingProxyType and list(view) == ["a", "b", "c"] and view["a"] is part
    signature, y = tcompile.compile(bound, fullgraph=fullgraph, backend="eager")(X)
    assert signature == inspect.signature(fn)
    same(y, X + 1)


def test_settings_of_torch_part_the_graph():
    def fn(x):
        torch.use_deterministic_algorithms(True)
        y, inside = x + 1, torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(False)
        torch.set_default_dtype(torch.float64)
        z = torch.ones(2)
        torch.set_default_dtype(torch.float32)
        return y, inside, z, torch.ones(1)

    compiled = tcompile.compile(fn, fullgraph=True, backend="eager")
    for _ in range(2):
        same(fn(X), compiled(X))
        assert torch.get_default_dtype() is torch.float32 and not torch.are_deterministic_algorithms_enabled()
