"""Metadata of linear algebra and Fourier transforms: shapes, strides and dtypes are those that eager gives."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.graph.meta import lookup
from tcompile.compiler.graph.meta.core import TensorMeta
from tcompile.compiler.graph.meta.linalg_meta import RESULTS

aten = torch.ops.aten
SEED = torch.Generator().manual_seed(0)
DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def as_meta(x):
    if not isinstance(x, torch.Tensor):
        return x
    return TensorMeta(tuple(x.shape), tuple(x.stride()), x.dtype, x.device, x.storage_offset())


def facts(result):
    results = result if isinstance(result, (tuple, list)) else (result,)
    return [(tuple(t.shape), tuple(t.stride() if callable(t.stride) else t.stride), t.dtype) for t in results]


def check(op, *args, **kwargs):
    """The rule says what eager gives, and did not ask torch's meta kernel."""
    said = []
    events.subscribe(said.append)
    try:
        got = lookup(op)(*map(as_meta, args), **{k: as_meta(v) for k, v in kwargs.items()})
    finally:
        events.unsubscribe(said.append)
    assert facts(got) == facts(op(*args, **kwargs)), (op, [a.shape for a in args if isinstance(a, torch.Tensor)])
    assert not said, said


def layouts(*shape, dtype=torch.float64):
    """One tensor of this shape as it may lie in memory."""
    x = torch.randn(*shape, dtype=dtype, generator=SEED)
    yield x
    if x.ndim > 1:
        yield x.mT.contiguous().mT
        yield torch.randn(*shape[:-1], 2 * shape[-1], dtype=dtype, generator=SEED)[..., ::2]
        yield x[..., :1, :].expand(shape)
    if x.ndim > 2:
        yield x.movedim(0, -1).contiguous().movedim(-1, 0)


def factors(a):
    return torch.linalg.lu_factor_ex(a)[:2]


MATRICES = {
    "_linalg_svd": [(f, v) for f in (False, True) for v in (False, True)],
    "linalg_qr": [("reduced",), ("complete",), ("r",)],
    "geqrf": [()],
    "linalg_lu_factor_ex": [()],
    "linalg_lu": [()],
}
SQUARES = {
    **{name: [()] for name in ("_linalg_det", "_linalg_slogdet", "linalg_eig", "linalg_eigvals", "linalg_inv_ex")},
    **{name: [()] for name in ("linalg_cholesky_ex", "linalg_matrix_exp", "linalg_ldl_factor_ex")},
    "cholesky_inverse": [(), (True,)],
    "_linalg_eigh": [(), ("U", False)],
}


@pytest.mark.parametrize("name", [*MATRICES, *SQUARES])
def test_of_one_matrix(name):
    op, ways = getattr(aten, name).default, {**MATRICES, **SQUARES}[name]
    square = [(4, 4), (3, 4, 4), (2, 3, 2, 2), (1, 1), (2, 1, 1), (0, 3, 3)]
    shapes = square if name in SQUARES else [*square, (5, 3), (3, 5), (2, 6, 2), (1, 4), (4, 1)]
    for shape, dtype in itertools.product(shapes, DTYPES if name != "cholesky_inverse" else DTYPES[:2]):
        for x, args in itertools.product(layouts(*shape, dtype=dtype), ways):
            try:
                op(x, *args)
            except RuntimeError:
                continue  # (equal rows have no inverse)
            check(op, x, *args)


def test_of_factors():
    for shape in ((4, 4), (3, 4, 4), (2, 3, 5, 3), (3, 5)):
        for x in layouts(*shape):
            lu, pivots = factors(x)
            for data, rows in itertools.product((False, True), repeat=2):
                check(aten.lu_unpack.default, lu, pivots, data, rows)
            if shape[-2] >= shape[-1]:
                check(aten.linalg_householder_product.default, *torch.geqrf(x))


@pytest.mark.parametrize("batch, other", [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((), (2,)), ((3, 1), (2,))])
def test_of_systems(batch, other):
    for a, b in itertools.product(layouts(*batch, 4, 4), layouts(*other, 4, 2)):
        if a.stride(-2) == 0:
            continue
        spd, row = a @ a.mT + 4 * torch.eye(4, dtype=a.dtype), b.mT
        lu, pivots = factors(spd)
        check(aten._linalg_solve_ex.default, spd, b)
        check(aten._linalg_solve_ex.default, spd, row, left=False)
        check(aten._linalg_solve_ex.default, spd, b[..., 0] if batch == other else b[(0,) * len(other)][:, 0])
        check(aten.linalg_lu_solve.default, lu, pivots, b)
        check(aten.linalg_lu_solve.default, lu, pivots, row, left=False)
        check(aten.cholesky_solve.default, b, torch.linalg.cholesky(spd))
        check(aten.linalg_solve_triangular.default, a, b, upper=True)
        check(aten.linalg_solve_triangular.default, a, row, upper=False, left=False)
        check(aten.triangular_solve.default, b, a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_fourier_transforms(dtype):
    for shape in ((6,), (4, 6), (2, 4, 6), (2, 3, 4, 5), (1, 4, 1), (3, 1, 4)):
        orders = [p for n in range(1, len(shape) + 1) for p in itertools.permutations(range(len(shape)), n)][:24]
        for x, dims in itertools.product(layouts(*shape, dtype=dtype), orders):
            if dtype.is_complex:
                check(aten._fft_c2c.default, x, dims, 0, True)
                for n in (2 * shape[dims[-1]] - 2, 2 * shape[dims[-1]] - 1):
                    if n > 0:
                        check(aten._fft_c2r.default, x, dims, 1, n)
            else:
                check(aten._fft_r2c.default, x, dims, 2, True)
                check(aten._fft_r2c.default, x, dims, 0, False)


@pytest.mark.parametrize(
    "run",
    [
        lambda: torch.linalg.inv(torch.ones(3, 2)),
        lambda: torch.linalg.qr(torch.ones(3)),
        lambda: torch.linalg.solve(torch.ones(3, 3), torch.ones(4)),
        lambda: torch.linalg.svd(torch.ones(3, 3, dtype=torch.int64)),
        lambda: torch.fft.fft(torch.ones(3, 3), dim=4),
        lambda: torch.fft.irfft(torch.ones(3, dtype=torch.complex64), n=0),
    ],
)
def test_refusals_are_eagers(run):
    with pytest.raises(Exception) as want:
        run()
    with pytest.raises(type(want.value)) as got:
        tcompile.compile(lambda: run())()
    assert str(got.value) == str(want.value)


def test_sizes_that_vary():
    def f(x):
        y = torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=x.shape[-2:])
        u, s, v = torch.linalg.svd(x, full_matrices=False)
        return y + (u * s) @ v, torch.linalg.inv(x @ x.mT + torch.eye(x.shape[0]))

    compiled = tcompile.compile(f, dynamic=True)
    for n in (4, 5, 7):
        for m in (4, 6):
            x = torch.randn(n, m, generator=SEED)
            for got, want in zip(compiled(x), f(x)):
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
                assert got.stride() == want.stride()


def test_a_first_call_imports_no_algebra():
    """torch's meta kernels of transforms bring sympy along, a third of a second."""
    code = (
        "import sys, torch, tcompile\n"
        "f = lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1]) + torch.linalg.qr(x)[0]\n"
        "tcompile.compile(f)(torch.randn(4, 4))\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "False", done.stderr[-2000:]


def test_every_row_is_an_operator():
    assert all(lookup(getattr(aten, row.split()[0]).default) for row in RESULTS)
