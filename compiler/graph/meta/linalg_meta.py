"""Metadata of linear algebra and Fourier transforms.

Matrices that LAPACK made lie by columns. `RESULTS` says which results an operator has, in letters; `_of` reads it.
What eager may refuse is run on meta tensors, for its words; so is what lies otherwise on another device.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch

from ...symbolic.expr import IntLike
from .core import TensorMeta, broadcast_shapes, contiguous_strides, fold, less, new, norm_dim, rule, same
from .strides import preserve_strides

__all__: list[str] = []

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.float64)
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {value: key for key, value in _COMPLEX.items()}

# operator -> its results. Dimensions behind those of the batch: m rows and n columns of the argument, k the fewer of
# both; `0` is an empty tensor. Behind a colon, what is not the argument's dtype: i int32, r real, c complex. With `'` a
# matrix lies by columns. In brackets: on the CPU alone.
RESULTS = {
    "_linalg_det": "-, nn', n:i",
    "_linalg_slogdet": "-, -:r, nn', n:i",
    "_linalg_eigh": "n:r, nn'",
    "_linalg_eigh without vectors": "n:r, 0",
    "linalg_eig": "[n:c, nn':c]",
    "linalg_eigvals": "[n:c]",
    "linalg_inv_ex": "nn', -:i",
    "linalg_cholesky_ex": "nn', -:i",
    "linalg_ldl_factor_ex": "nn', n:i, -:i",
    "linalg_matrix_exp": "[nn]",
    "cholesky_inverse": "[nn']",
    "linalg_lu_factor_ex": "mn', k:i, -:i",
    "linalg_lu": "mm, mk, kn",
    "linalg_lu without pivots": "0, mk, kn",
    "linalg_qr reduced": "mk', kn'",
    "linalg_qr complete": "mm', mn'",
    "linalg_qr r": "0, kn'",
    "geqrf": "[mn', k]",
    "linalg_householder_product": "[mn']",
    "_linalg_svd": "[mk', k:r, kn']",
    "_linalg_svd full": "[mm', k:r, nn']",
    "_linalg_svd without vectors": "0, k:r, 0",
}
_OF_SQUARES = frozenset(
    """_linalg_det _linalg_slogdet _linalg_eigh linalg_eig linalg_eigvals linalg_inv_ex linalg_cholesky_ex
    linalg_ldl_factor_ex linalg_matrix_exp cholesky_inverse""".split()
)


def _by_running(name: str, args: tuple, kwargs: dict) -> Any:
    from ..fallback import meta_by_running

    return meta_by_running(getattr(aten, name).default, args, kwargs)


def by_columns(shape: Sequence[IntLike]) -> tuple:
    """The strides of matrices that lie one behind the other, each by columns."""
    *batch, m, n = shape
    *outer, b, a = contiguous_strides((*batch, n, m))
    return (*outer, a, b)


def _of(results: str, a: TensorMeta) -> Any:
    """The results of an operator on the matrices `a`."""
    *batch, m, n = a.shape
    sizes = {"m": m, "n": n, "k": n if m is n or not less(m, n) else m}
    out = []
    for text in results.strip("[]").split(", "):
        dims, _, kind = text.partition(":")
        dtype = {"i": torch.int32, "r": _REAL.get(a.dtype, a.dtype), "c": _COMPLEX.get(a.dtype, a.dtype)}.get(
            kind, a.dtype
        )
        shape = (0,) if dims == "0" else (*batch, *(sizes[d] for d in dims.strip("-'")))
        out.append(new(shape, dtype, a.device, by_columns(shape) if dims.endswith("'") else None))
    return out[0] if len(out) == 1 else tuple(out)


def _is_plain(*tensors: TensorMeta) -> bool:
    """Matrices that are not refused, of one dtype and device."""
    first = tensors[0]
    return all(
        tensor.ndim > 1 and tensor.dtype is first.dtype and tensor.device == first.device for tensor in tensors
    ) and (first.dtype in _FLOATS or first.dtype in _REAL)


def _row(name: str, a: TensorMeta, args: tuple, kwargs: dict, way: str = "") -> Any:
    results = RESULTS.get(f"{name} {way}".strip())
    if (
        results is None
        or not _is_plain(a)
        or results.startswith("[")
        and a.device.type != "cpu"
        or name in _OF_SQUARES
        and not same(a.shape[-2], a.shape[-1])
    ):
        return _by_running(name, (a, *args), kwargs)
    return _of(results, a)


def _declared(name: str) -> None:
    @rule(f"{name}.default")
    def of_table(a: TensorMeta, *args: Any, **kwargs: Any) -> Any:
        return _row(name, a, args, kwargs)


for (
    _name
) in """_linalg_det _linalg_slogdet linalg_eig linalg_eigvals linalg_inv_ex linalg_cholesky_ex linalg_ldl_factor_ex
    linalg_matrix_exp cholesky_inverse linalg_lu_factor_ex geqrf""".split():
    _declared(_name)


@rule("_linalg_eigh.default")
def eigh(a: TensorMeta, UPLO: str = "L", compute_v: bool = True) -> Any:
    return _row("_linalg_eigh", a, (UPLO, compute_v), {}, "" if compute_v else "without vectors")


@rule("linalg_lu.default")
def lu(a: TensorMeta, *, pivot: bool = True) -> Any:
    return _row("linalg_lu", a, (), {"pivot": pivot}, "" if pivot else "without pivots")


@rule("linalg_qr.default")
def qr(a: TensorMeta, mode: str = "reduced") -> Any:
    return _row("linalg_qr", a, (mode,), {}, mode)


@rule("_linalg_svd.default")
def svd(a: TensorMeta, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> Any:
    way = "without vectors" if not compute_uv else "full" if full_matrices else ""
    return _row("_linalg_svd", a, (full_matrices, compute_uv), {"driver": driver}, way if driver is None else "?")


@rule("linalg_householder_product.default")
def householder_product(a: TensorMeta, tau: TensorMeta) -> Any:
    fits = tau.ndim == a.ndim - 1 and tau.dtype is a.dtype and tau.device == a.device
    fits = fits and a.ndim > 1 and not less(a.shape[-2], a.shape[-1]) and not less(a.shape[-1], tau.shape[-1])
    fits = fits and all(map(same, tau.shape[:-1], a.shape[:-2]))
    return _row("linalg_householder_product", a, (tau,), {}, "" if fits else "?")


@rule("lu_unpack.default")
def lu_unpack(lu: TensorMeta, pivots: TensorMeta, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    if not _is_plain(lu) or pivots.dtype is not torch.int32:
        return _by_running("lu_unpack", (lu, pivots, unpack_data, unpack_pivots), {})
    p, lower, upper = _of("mm, mk, kn", lu)
    nothing = new((0,), lu.dtype, lu.device)
    return p if unpack_pivots else nothing, *((lower, upper) if unpack_data else (nothing, nothing))


# --- systems of equations
def _solved(a: TensorMeta, b: TensorMeta, left: bool) -> tuple | None:
    """The shape of the solution of a x = b, or of x a = b; None where they do not fit."""
    if not _is_plain(a, b) or not same(a.shape[-1], a.shape[-2]):
        return None
    if not same(b.shape[-2 if left else -1], a.shape[-1]):
        return None
    return (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])


@rule("_linalg_solve_ex.default")
def solve(a: TensorMeta, b: TensorMeta, *, left: bool = True, check_errors: bool = False) -> Any:
    vectors = b.ndim == 1 or b.ndim == a.ndim - 1 and all(map(same, b.shape, a.shape[:-1]))
    as_matrix = b.replace(shape=(*b.shape, 1), stride=(*b.stride, 1)) if vectors else b
    shape = _solved(a, as_matrix, left)
    if shape is None or vectors and not left:
        return _by_running("_linalg_solve_ex", (a, b), {"left": left, "check_errors": check_errors})
    shape = shape[:-1] if vectors else shape
    by = by_columns(shape) if left and len(shape) > 1 else None
    return new(shape, a.dtype, a.device, by), *_of("nn', n:i, -:i", a)


@rule("linalg_lu_solve.default")
def lu_solve(lu: TensorMeta, pivots: TensorMeta, b: TensorMeta, *, left: bool = True, adjoint: bool = False) -> Any:
    shape = _solved(lu, b, left)
    if shape is None or pivots.dtype is not torch.int32 or not all(map(same, pivots.shape, lu.shape[:-1])):
        return _by_running("linalg_lu_solve", (lu, pivots, b), {"left": left, "adjoint": adjoint})
    return new(shape, b.dtype, b.device, by_columns(shape) if left else None)


@rule("cholesky_solve.default")
def cholesky_solve(b: TensorMeta, a: TensorMeta, upper: bool = False) -> Any:
    shape = _solved(a, b, True)
    if shape is None or a.device.type != "cpu":
        return _by_running("cholesky_solve", (b, a, upper), {})
    return new(shape, b.dtype, b.device, by_columns(shape))


@rule("linalg_solve_triangular.default")
def solve_triangular(
    a: TensorMeta, b: TensorMeta, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    shape = _solved(a, b, left)
    if shape is None or a.device.type != "cpu":
        how = {"upper": upper, "left": left, "unitriangular": unitriangular}
        return _by_running("linalg_solve_triangular", (a, b), how)
    return new(shape, b.dtype, b.device, by_columns(shape))


@rule("triangular_solve.default")
def triangular_solve(
    b: TensorMeta, a: TensorMeta, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    shape = _solved(a, b, True)
    if shape is None:
        return _by_running("triangular_solve", (b, a, upper, transpose, unitriangular), {})
    copy = (*shape[:-2], *a.shape[-2:])
    return new(shape, b.dtype, b.device, by_columns(shape)), new(copy, a.dtype, a.device, by_columns(copy))


# --- Fourier transforms
def _is_transformed_here(x: TensorMeta, dims: Sequence[int]) -> bool:
    """On the CPU, of what is not refused."""
    return (
        x.device.type == "cpu"
        and (x.dtype in _FLOATS or x.dtype in _REAL)
        and bool(dims)
        and len({norm_dim(dim, x.ndim) for dim in dims}) == len(dims)
        and all(type(size) is not int or size > 0 for size in x.shape)
    )


def _by_stride(x: TensorMeta, dims: Sequence[int]) -> list[int]:
    """Dimensions, that with the largest stride first."""

    def order(a: int, b: int) -> int:
        s, t = x.stride[a], x.stride[b]
        return 0 if s is t or same(s, t) else -1 if less(t, s) else 1

    return sorted(dims, key=functools.cmp_to_key(order))


def _batch(ndim: int, dims: Sequence[int]) -> list[int]:
    """The other dimensions, in the order in which std::partition leaves them: it fills gaps from the end."""
    order = list(range(ndim))
    first, last = 0, ndim
    while True:
        while first < last and order[first] not in dims:
            first += 1
        last -= 1
        while first < last and order[last] in dims:
            last -= 1
        if first >= last:
            return order[:first]
        order[first], order[last] = order[last], order[first]
        first += 1


def _transformed(x: TensorMeta, shape: tuple, dtype: torch.dtype, dims: Sequence[int]) -> TensorMeta:
    """MKL computes a batch of transforms, contiguous: the batch's dimensions in the order in which they lie, then
    `dims`."""
    if not torch.backends.mkl.is_available():
        return new(shape, dtype, x.device)
    order = [*_by_stride(x, _batch(x.ndim, dims)), *dims]
    stride: list[IntLike] = [0] * x.ndim
    n: IntLike = 1
    for dim in reversed(order):
        stride[dim] = n
        n = fold(n * shape[dim])
    return new(shape, dtype, x.device, stride)


@rule("_fft_c2c.default")
def fft_c2c(x: TensorMeta, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    if not dim and x.dtype.is_complex:
        return new(x.shape, x.dtype, x.device, preserve_strides(x))
    if not _is_transformed_here(x, dim) or not x.dtype.is_complex:
        return _by_running("_fft_c2c", (x, dim, normalization, forward), {})
    return _transformed(x, x.shape, x.dtype, _by_stride(x, [norm_dim(d, x.ndim) for d in dim]))


@rule("_fft_r2c.default")
def fft_r2c(x: TensorMeta, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    if not _is_transformed_here(x, dim) or x.dtype.is_complex:
        return _by_running("_fft_r2c", (x, dim, normalization, onesided), {})
    *dims, last = (norm_dim(d, x.ndim) for d in dim)
    shape = list(x.shape)
    if onesided:
        shape[last] = fold(shape[last] // 2 + 1)
    return _transformed(x, tuple(shape), _COMPLEX[x.dtype], [*_by_stride(x, dims), last])


@rule("_fft_c2r.default")
def fft_c2r(x: TensorMeta, dim: Sequence[int], normalization: int, last_dim_size: IntLike) -> Any:
    if not _is_transformed_here(x, dim) or not x.dtype.is_complex:
        return _by_running("_fft_c2r", (x, dim, normalization, last_dim_size), {})
    *dims, last = (norm_dim(d, x.ndim) for d in dim)
    if dims:
        x = _transformed(x, x.shape, x.dtype, _by_stride(x, dims))
    shape = list(x.shape)
    shape[last] = last_dim_size
    return _transformed(x, tuple(shape), _REAL[x.dtype], [last])
