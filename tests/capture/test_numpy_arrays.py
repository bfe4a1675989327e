"""numpy's arrays inside captured functions: results, classes, memory and changes as without the compiler, in one graph
where that is possible.
"""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.errors import FullGraphError

np = pytest.importorskip("numpy")


def _float() -> np.ndarray:
    return np.arange(12, dtype=np.float64).reshape(3, 4) / 7


def _int() -> np.ndarray:
    return np.arange(12).reshape(3, 4)


def _alike(a, b) -> None:
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, (np.ndarray, np.generic)):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            _alike(x, y)
    else:
        assert a == b


def _check(fn, *makers, fullgraph=True, sizes=1) -> None:
    compiled = tcompile.compile(fn, fullgraph=fullgraph)
    for _ in range(2):
        ours, theirs = [make() for make in makers], [make() for make in makers]
        _alike(fn(*theirs), compiled(*ours))
        _alike(theirs, ours)


PROGRAMS = {
    "arithmetic": (lambda x, y: x + y * 2 - 1.5 / (y + 3), _float, _float),
    "promotion": (lambda x: (x.astype(np.float32) * 2, x.astype("float32") * np.float64(2), np.float32(3) * x), _float),
    "reductions": (
        lambda x: (x.mean(), x.sum(axis=0), np.max(x, axis=1, keepdims=True), x.std(ddof=1), x.argmax(), np.prod(x)),
        _float,
    ),
    "reductions of integers": (lambda x: (x.mean(), x.sum(), x.max(axis=0), x.cumsum()), _int),
    "attributes": (lambda x: (x.shape, x.dtype, x.ndim, x.size, x.itemsize, x.nbytes, len(x), x.T), _float),
    "indexing": (lambda x: (x[0], x[0, 1], x[:, 1], x[..., None], x[[0, 1]], x[::2], x[-1, -1]), _float),
    "joining": (
        lambda x: (np.concatenate([x, x]), np.stack((x, x), 1), np.where(x > 0.5, x, 0.0), np.meshgrid(x[0], x[1])),
        _float,
    ),
    "linear algebra": (
        lambda x: (x @ x.T, np.dot(x[0], x[1]), np.einsum("ij,kj->ik", x, x), np.linalg.norm(x, axis=0)),
        _float,
    ),
    "constants": (
        lambda x: x + np.arange(4) * np.ones(4, dtype=np.float32) + np.array([1, 2, 3, 4]) + np.linspace(0, 1, 4),
        _float,
    ),
    "iteration": (lambda x: [row.sum() for row in x], _float),
    "comparison": (
        lambda x: (
            (x > 0.5).any(),
            np.isnan(x).all(),
            np.logical_and(x > 0, x < 1),
            isinstance(x, np.ndarray),
            isinstance(x.sum(), float),
        ),
        _float,
    ),
    "from numpy": (lambda x: torch.from_numpy(x).sin() + torch.as_tensor(x) + torch.tensor(x), _float),
    "to numpy": (lambda t: (t * 2).numpy().sum(axis=0) + 1, lambda: torch.arange(12.0).reshape(3, 4)),
    "constant to tensor": (
        lambda t: t + torch.tensor(np.array([1.0, 2.0, 3.0])),
        lambda: torch.ones(3, dtype=torch.float64),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_in_one_graph(name):
    fn, *makers = PROGRAMS[name]
    _check(fn, *makers)


def _writes_item(x):
    x[1] = 5
    return x.sum()


def _adds_in_place(x):
    x += 1
    return x


def _writes_view(x):
    x.reshape(4, 3)[0] = 7
    x.T[1] = 8
    np.ravel(x)[-1] = 9
    return x


def _writes_copy(x):
    y = x.flatten()
    y[0] = 7
    z = x.astype(x.dtype)
    z[1] = 8
    return x, y, z


@pytest.mark.parametrize("fn", [_writes_item, _adds_in_place, _writes_view, _writes_copy])
def test_changes_reach_the_memory_that_numpy_says(fn):
    _check(fn, _float)


def test_result_of_a_tensor_shares_its_memory():
    t = torch.zeros(3)
    out = tcompile.compile(lambda t: (t.numpy(), t + 1), fullgraph=True)(t)[0]
    t[0] = 4
    assert out[0] == 4


def test_other_dtype_shape_layout_and_flags_are_seen():
    compiled = tcompile.compile(lambda x: x * 2 + x.dtype.itemsize, fullgraph=True)
    for x in (
        _float(),
        _int(),
        _float()[:2],
        _float().T,
        _float()[:, ::2],
        np.float32(_float()),
        np.zeros((0, 3)),
        np.array(2.5),
    ):
        _alike(x * 2 + x.dtype.itemsize, compiled(x))


def test_sizes_that_change_become_symbols():
    graphs = []
    compiled = tcompile.compile(
        lambda x: (x * 2).sum(axis=0), backend=lambda gm, ex: graphs.append(gm) or gm.forward, fullgraph=True
    )
    for n in range(3, 12):
        x = np.arange(4.0 * n).reshape(n, 4)
        _alike((x * 2).sum(axis=0), compiled(x))
    assert len(graphs) == 2


def test_the_same_array_twice():
    def fn(x, y):
        return x is y, x + y

    compiled = tcompile.compile(fn)
    x, y = _float(), _float()
    for pair in ((x, y), (x, x), (x, y)):
        _alike(fn(*pair), compiled(*pair))


def test_a_break_at_the_call_of_a_method():
    fn = lambda x: (torch.from_numpy(x) + 1, (x > 0.5).astype(np.uint8).sum())  # noqa: E731   (the sum of small integers is numpy's own)
    _check(fn, _float, fullgraph=False)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.median(x),
        lambda x: x[x > 0.5],
        lambda x: x.tolist(),
        lambda x: np.argsort(x),
        lambda x: np.flip(x, 0),
        lambda x: np.sin(x, x),
        lambda x: np.broadcast_to(x, (2, 3, 4)),
        lambda x: (x > 0.5).astype(np.uint8).sum(),
        lambda x: x // 0.0,
    ],
)
def test_what_differs_from_numpy_breaks_or_is_right(fn):
    with np.errstate(all="ignore"):
        _check(lambda x: (fn(x), torch.from_numpy(x) + 1), _float, fullgraph=False)


def test_errors_are_numpys():
    def fn(x):
        try:
            return x + np.ones(5)
        except ValueError as error:
            return str(error)

    _check(fn, _float, fullgraph=False)
    with pytest.raises(FullGraphError):
        tcompile.compile(lambda x: (x.tobytes(), x + 1), fullgraph=True)(_float())


def test_read_only_arrays_stay_so():
    def fn(x):
        x[0] = 1
        return torch.from_numpy(np.ones(3)) + 1

    x = _float()
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        tcompile.compile(fn)(x)


def test_break_carries_arrays():
    def fn(x):
        y = np.sin(x) * 2
        total = y.sum()
        torch._dynamo.graph_break()
        return y + 1, total

    _check(fn, _float, fullgraph=False)


def test_a_translation_that_refuses_values_that_numpy_takes_is_not_relied_on():
    from tcompile.compiler.capture.arrays.array_value import make_array
    from tcompile.compiler.capture.arrays.numpy_samples import try_beside
    from tcompile.compiler.graph.tensor import trace_tensor_like
    from tcompile.compiler.symbolic.env import ShapeEnv

    def translation(x: torch.Tensor) -> torch.Tensor:
        if picky and not bool((x == 1).all()):
            raise NotImplementedError("only ones")
        return x + 1

    env = ShapeEnv()
    array = make_array(trace_tensor_like(torch.ones(3, dtype=torch.float64), env))
    for picky in (False, True):
        assert (try_beside(env, lambda x: x + 1, translation, [array], {}, [array._tensor], {}) is None) is picky


@pytest.mark.parametrize("backend", ["eager", "tcompile"])
def test_arrays_like_a_tensor_and_lists_of_an_array(backend):
    import numpy as np

    def like(x):
        return np.ones_like(x, dtype=np.float64), np.full_like(x, 2.4), np.zeros_like(x * 2) + x.numpy()

    def listed(a):
        numbers = (a * 2).tolist()
        return (a + 1).tolist(), a.tolist(), numbers, np.sin(a)

    given = [
        (like, torch.arange(6.0).reshape(2, 3)),
        (like, torch.arange(3)),
        (listed, np.arange(6.0).reshape(2, 3)),
        (listed, np.array(3)),
        (listed, np.zeros((0, 3))),
    ]
    for fn, value in given:
        compiled = tcompile.compile(fn, backend=backend, fullgraph=True)
        for _ in range(2):
            assert repr(compiled(value)) == repr(fn(value))


def test_an_array_that_is_written_beside_others():
    """Apart from each other in one graph; sharing memory, in later calls too, as without the compiler."""

    def fn(a, b):
        a += 1
        return a * b

    compiled = tcompile.compile(fn, options={"suppress_errors": False})
    entries: list = []
    makers = [
        lambda m: (m[:6].copy(), m[2:].copy()),
        lambda m: (m[:6], m[2:]),
        lambda m: (m[2:], m[:6]),
        lambda m: (m[:4], m[4:]),
        lambda m: (m, m),
        lambda m: (m[:6], torch.from_numpy(m)[2:].numpy()),
        lambda m: (m[:0], m[:0]),
        lambda m: (m[:6].copy(), m[2:].copy()),
    ]
    for make in makers:
        ours, theirs = np.arange(8.0), np.arange(8.0)
        with events.listen(lambda e: entries.append(e) if e.kind == "entry" else None):
            _alike(fn(*make(theirs)), compiled(*make(ours)))
        np.testing.assert_array_equal(ours, theirs)
    assert entries


def test_an_array_and_a_tensor_over_its_memory():
    def fn(a, t):
        a += 1
        return t * 2

    compiled = tcompile.compile(fn, options={"suppress_errors": False})
    for shared in (False, True, False):
        ours, theirs = np.arange(4.0), np.arange(4.0)
        tensors = [torch.from_numpy(x if shared else x.copy()) for x in (theirs, ours)]
        _alike(fn(theirs, tensors[0]), compiled(ours, tensors[1]))


def test_elements_of_an_array_are_set():
    def fn(a, value):
        a[0, ...] = value
        return a

    _check(fn, _float, lambda: np.ones(4))


def _indexed(x, n):
    y = x.clone()
    y[n] = 1.0
    y[:, n] += 2
    n = n.astype(np.int16)
    return x[n] * 2, x[n, n], x[n, None, 1:], x[n.reshape(1, -1)], x[np.array([0, 2])], y


def _written_after_indexing(x, n):
    first = x[n] * 2
    n[0] = 3
    return first + x[n]


def test_arrays_and_numbers_index_tensors_in_the_graph():
    x = torch.arange(16.0).reshape(4, 4)
    for fn in (_indexed, _written_after_indexing):
        _check(fn, x.clone, lambda: np.array([2, 0, 1]))
        _check(fn, x.clone, lambda: np.array([3, 3, 0], np.int32))
    _check(lambda x, i: (x[i:] * 2, x[:, : i - 1] + 1, x[i] * 3, x[[i, i - 1]]), x.clone, lambda: np.int64(2))
    w = x.clone().requires_grad_()
    f = tcompile.compile(lambda n: (w[n] * 2).sum(), fullgraph=True)
    f(np.array([1, 1])).backward()
    f(np.array([0, 1, 3])).backward()
    assert w.grad[:, 0].tolist() == [2, 6, 0, 2]


@pytest.mark.parametrize("n", [np.array([True, False, True, True]), np.array([1, 0, 0, 1], np.uint8), np.array(3)])
@pytest.mark.filterwarnings("ignore:indexing with dtype")
def test_masks_and_arrays_without_dimensions_as_indices_break(n):
    _check(lambda x, n: x[n] * 2, lambda: torch.arange(16.0).reshape(4, 4), n.copy, fullgraph=False)
