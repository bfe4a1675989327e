"""Metadata of operators without a rule: run them on meta tensors.

This is the slow path: some of torch's meta functions are Python and import a good part of torch when they first run.
Symbolic sizes are fixed to their hints first, by guards. What is registered for the program's own operators is Python
as a rule, and gets them as they are. Each operator of torch's that is met is said once per process (event "fallback").
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from .. import events
from ..ops.closed_set import CUSTOM, extern_reason, gives_views
from ..symbolic.expr import Expr, IntLike, maybe_int
from .meta.core import DataDependentError, TensorMeta, fix, state

__all__ = ["meta_by_running", "taken_apart"]

_said: set[str] = set()
taken_apart: set[Any] = set()  # operators that never run as such: what this costs is a moment of compilation


def _to_meta(x: Any, number: Callable[[IntLike], Any] = fix) -> Any:
    if isinstance(x, TensorMeta):
        return torch.empty_strided(
            [number(size) for size in x.shape], [number(stride) for stride in x.stride], dtype=x.dtype, device="meta"
        )
    if isinstance(x, Expr):
        return number(x)
    if isinstance(x, torch.device):
        return torch.device("meta")
    return x


def meta_by_running(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Any:
    """TensorMetas of op(*args, **kwargs), whose tensors are TensorMetas and sizes Exprs."""
    name = str(op)
    if op.namespace not in ("aten", "prims") and all(str(r.type) == "NoneType" for r in op._schema.returns):
        return None  # of the program's, for its effect: nothing is to be known of it
    if name not in _said and op not in taken_apart and extern_reason(op) != CUSTOM:  # (theirs are run on purpose)
        _said.add(name)
        events.fallback(name, "no metadata rule: torch's meta kernel tells its shape")
    if torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags:
        raise DataDependentError(f"{name}: the result depends on the data")
    if _reads_blobs(op):
        raise NotImplementedError(f"{name} reads memory that a library laid out")
    leaves, spec = pytree.tree_flatten((args, kwargs))
    device = next((leaf.device for leaf in leaves if isinstance(leaf, TensorMeta)), None)
    device = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), device) or torch.get_default_device()
    try:
        out = _run_on_meta(op, leaves, spec, device)
    except NotImplementedError as e:
        if not op._schema.returns:  # it only writes: nothing is to be known of it
            return None
        metas = _by_kernel(op, leaves, spec)
        if metas is None:
            raise NotImplementedError(f"{name} has no metadata rule here and no meta kernel in torch: {e}") from None
        return metas
    except RuntimeError as e:
        if "data-dependent shape" in str(e):  # torch.library.get_ctx().new_dynamic_size()
            raise DataDependentError(f"{name}: the size of the result depends on the data") from None
        raise

    def back(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        shape, stride = (tuple(map(_size_of, sizes)) for sizes in (tensor.shape, tensor.stride()))
        return TensorMeta(shape, stride, tensor.dtype, device, _size_of(tensor.storage_offset()))

    metas = pytree.tree_map(back, out)
    if (
        device is not None
        and device.type == "cpu"
        and torch.Tag.nondeterministic_seeded not in op.tags
        and op.namespace == "aten"
        and "mkldnn" not in name
    ):
        metas = _layout_of_kernel(op, leaves, spec, metas)
    return metas


def _size_of(x: Any) -> IntLike:
    return x if type(x) is int else maybe_int(x)


def _run_on_meta(op: torch._ops.OpOverload, leaves: list, spec: Any, device: Any) -> Any:
    def ran(number: Callable[[IntLike], Any]) -> Any:
        args, kwargs = pytree.tree_unflatten([_to_meta(leaf, number) for leaf in leaves], spec)
        if "device" in {arg.name for arg in op._schema.arguments} and device is not None:
            kwargs["device"] = torch.device("meta")
        return op(*args, **kwargs)

    if extern_reason(op) == CUSTOM and any(map(_varies, leaves)):
        try:
            return ran(state.env.wrap)
        except (RuntimeError, TypeError):  # it is C++ that asks for numbers; what else is wrong shows again
            pass
    return ran(fix)


def _varies(x: Any) -> bool:
    """Whether a size of the tensor, or the number, is a symbol."""
    sizes = (*x.shape, *x.stride) if isinstance(x, TensorMeta) else (x,)
    return any(isinstance(size, Expr) for size in sizes)


PROBE_LIMIT = 1 << 16  # elements


def _reads_blobs(op: torch._ops.OpOverload) -> bool:
    """Whether the kernel takes memory that a library laid out in forward: no metadata describes it, and made-up values
    crash the process.
    """
    return any(
        arg.name in ("workspace", "reserve", "packed_weight", "packed", "dropout_state") for arg in op._schema.arguments
    )


def _on_made_up_values(op: torch._ops.OpOverload, leaves: list, spec: Any, least: float, integer: int) -> Any:
    """What the CPU's kernel gives for small tensors of other values; None where these are not fit for it."""

    def fill(x: Any) -> Any:
        if isinstance(x, TensorMeta):
            shape = [fix(size) for size in x.shape]
            n = math.prod(shape)
            if n > PROBE_LIMIT:
                raise OverflowError
            tensor = torch.empty_strided(shape, [fix(stride) for stride in x.stride], dtype=x.dtype)
            values = torch.frac(torch.arange(n, dtype=torch.float64) * 0.6180339887) + least
            return tensor.copy_(
                (
                    values if x.dtype.is_floating_point or x.dtype.is_complex else torch.full_like(values, integer)
                ).reshape(shape)
            )
        return fix(x) if isinstance(x, Expr) else x

    try:
        with torch.no_grad():
            args, kwargs = pytree.tree_unflatten([fill(leaf) for leaf in leaves], spec)
            return op(*args, **kwargs)
    except (RuntimeError, IndexError, OverflowError, NotImplementedError):
        return None


def _by_kernel(op: torch._ops.OpOverload, leaves: list, spec: Any) -> Any:
    """TensorMetas of an operator of torch's that has no meta kernel: what the kernel gives, if that is the same for two
    sets of values.
    """
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, TensorMeta)}
    if (
        op.namespace != "aten"
        or devices != {"cpu"}
        or op._schema.is_mutable
        or torch.Tag.nondeterministic_seeded in op.tags
        or gives_views(op)
    ):
        return None
    found = []
    for least in (0.1, 2.5):
        real = _on_made_up_values(op, leaves, spec, least, 0)
        if real is None or not all(
            isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.device.type == "cpu"
            for tensor in pytree.tree_leaves(real)
        ):
            return None
        found.append(
            pytree.tree_map(
                lambda t: TensorMeta(tuple(t.shape), tuple(t.stride()), t.dtype, t.device, t.storage_offset()), real
            )
        )
    return found[0] if found[0] == found[1] else None


def _layout_of_kernel(op: torch._ops.OpOverload, leaves: list, spec: Any, metas: Any) -> Any:
    """Meta functions and CPU kernels disagree on strides for some operators (linear algebra, FFT). Where the tensors
    are small, run the kernel once on made-up values and believe its strides. (One of the program's own may do more than
    compute.)
    """
    # LAPACK's count from one, and lead it astray where they are not
    integer = int(any("pivots" in arg.name for arg in op._schema.arguments))
    real = _on_made_up_values(op, leaves, spec, 0.1, integer)
    if real is None:
        return metas
    flat, tree = pytree.tree_flatten(metas)
    got = pytree.tree_leaves(real)
    if len(flat) != len(got) or any(
        isinstance(m, TensorMeta) and isinstance(r, torch.Tensor) and tuple(r.shape) != m.shape
        for m, r in zip(flat, got)
    ):
        return metas
    return pytree.tree_unflatten(
        [
            meta.replace(stride=tuple(r.stride()))
            if isinstance(meta, TensorMeta) and isinstance(r, torch.Tensor)
            else meta
            for meta, r in zip(flat, got)
        ],
        tree,
    )
