"""Windows over the last dimensions of a tensor: average pools, adaptive pools, unfolding into columns and folding back,
and pads that repeat what is inside. Small windows are written out; of large ones the elements are reduced axes."""

from __future__ import annotations

import itertools
from typing import Any, Sequence

import torch

from ...symbolic.expr import Expr, as_expr, maximum, minimum
from ..ir import Value, cast, const, index, prim
from ..context import Lowering, summed
from ..rule_table import NoRule, rule
from ..promote import compute_dtype, rounded
from ..ref import Ref, axis, dim_symbol, is_one, remap, reshape
from .scatters import on_cpu

__all__ = ["element_at"]

GPU_TAPS = 16  # elements of a window up to which a GPU looks at each
WRITTEN_OUT = 32  # elements of a window up to which it is a sum of terms

Condition = Value | None


def both(a: Condition, b: Condition) -> Condition:
    return b if a is None else a if b is None else prim("logical_and", a, b)


def element_at(
    x: Ref, shape: Sequence[Any], lead: int, at: Sequence[Any], inside: Condition = None, fill: Any = 0
) -> Value:
    """x[j..., at...] for the `lead` leading dimensions of `shape` and positions in the others; `fill` where not
    `inside`.
    """
    ndim = len(shape)
    m = {dim: as_expr(0) if is_one(shape[dim]) else dim_symbol(ndim, dim) for dim in range(lead)}
    m.update({lead + k: as_expr(p) for k, p in enumerate(at)})
    value = remap(x, shape, m).value
    return value if inside is None else prim("masked", inside, value, const(fill, value.dtype))


def within(expr: Expr, size: Any, least: Any, greatest: Any) -> Condition:
    """0 <= e < size, as far as the least and greatest value of e leave it open."""
    c: Condition = None
    if not (isinstance(least, int) and least >= 0):
        c = prim("ge", index(expr), const(0, torch.int64))
    if not (isinstance(greatest, int) and isinstance(size, int) and greatest < size):
        c = both(c, prim("lt", index(expr), index(as_expr(size))))
    return c


def _spread(x: Any, n: int, default: Any = None) -> list[Any]:
    if x is None or isinstance(x, (list, tuple)) and not x:
        return list(default)
    xs = list(x) if isinstance(x, (list, tuple)) else [x]
    return xs * n if len(xs) == 1 else xs


def _last(size: Any, step: Any) -> Any:
    """step * (size - 1), an int where it is known."""
    return (size - 1) * step if isinstance(size, int) and isinstance(step, int) else None


# ---- pools
@rule("aten.avg_pool2d.default", "aten.avg_pool3d.default")
def avg_pool(
    lo: Lowering,
    node: Any,
    x: Ref,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Ref:
    n = 2 if "2d" in str(node.target) else 3
    kernel = _spread(kernel, n)
    stride, padding = _spread(stride, n, kernel), _spread(padding, n)
    if not all(isinstance(v, int) for v in (*kernel, *stride, *padding)) or not x.dtype.is_floating_point:
        raise NoRule("averages of integers")
    shape = lo.out_shape()
    lead = len(shape) - n
    up = compute_dtype(x.dtype)
    sizes = x.shape[lead:]
    firsts = [axis(shape, lead + k) * stride[k] - padding[k] for k in range(n)]
    exact = not ceil_mode and not any(padding)  # every window lies inside

    def term(offsets: Sequence[Any], over: Sequence[Any], here: Sequence[Expr]) -> Value:
        inside: Condition = None
        for k in range(n):
            off = offsets[k]
            if not exact:
                least = -padding[k] + off if isinstance(off, int) else -padding[k]
                reach = _last(shape[lead + k], stride[k])
                most = None if reach is None else reach - padding[k] + (off if isinstance(off, int) else kernel[k] - 1)
                inside = both(inside, within(here[k] + off, sizes[k], least, most))
        return cast(element_at(x, over, lead, [h + offset for h, offset in zip(here, offsets)], inside), up)

    total = _sum_over(lo, shape, kernel, firsts, term)
    if divisor_override is not None:
        return lo.pointwise(rounded(prim("div", total, const(divisor_override, up)), x.dtype))
    fixed = 1
    count: Expr = as_expr(1)
    for k in range(n):
        if exact or (count_include_pad and not ceil_mode):
            fixed *= kernel[k]
            continue
        end = minimum(firsts[k] + kernel[k], as_expr(sizes[k]) + padding[k])
        begin = firsts[k]
        if not count_include_pad:
            begin, end = maximum(begin, as_expr(0)), minimum(end, as_expr(sizes[k]))
        count = count * (end - begin)
    divisor = const(fixed, up) if count.is_const and count.value == 1 else cast(index(count * fixed), up)
    return lo.pointwise(rounded(prim("div", total, divisor), x.dtype))


def _sum_over(lo: Lowering, shape: tuple, kernel: Sequence[int], firsts: Sequence[Expr], term: Any) -> Value:
    """The sum of `term` over the window, over j symbols of `shape`."""
    size = 1
    for k in kernel:
        size *= k
    if size <= WRITTEN_OUT:
        total: Value | None = None
        for offsets in itertools.product(*(range(k) for k in kernel)):
            t = term(offsets, shape, firsts)
            total = t if total is None else prim("add", total, t)
        assert total is not None
        return summed(total)
    return reduce_over(
        lo, "sum", shape, kernel, lambda offsets, over: term(offsets, over, shifted(firsts, shape, over))
    ).value


def shifted(es: Sequence[Expr], shape: Sequence[Any], over: Sequence[Any]) -> list[Expr]:
    """Expressions over the axes of `shape` as ones over `over`, which has further dimensions at its end."""
    m = {f"j{len(shape) - 1 - dim}": dim_symbol(len(over), dim) for dim in range(len(shape)) if not is_one(shape[dim])}
    return [e.subs(m) if m else e for e in es]


def reduce_over(
    lo: Lowering,
    op: str,
    shape: tuple,
    kernel: Sequence[Any],
    value: Any,
    suffix: str = "_window",
    logical: bool = False,
) -> Ref:
    """A reduction of value(offsets, over) over a window that stands in further dimensions at the end of `shape`."""
    over = (*shape, *kernel)
    n = len(over)
    offsets = [as_expr(0) if is_one(k) else dim_symbol(n, len(shape) + i) for i, k in enumerate(kernel)]
    dims = list(range(len(shape), n))
    return lo.reduce(op, value(offsets, over), over, dims, False, suffix=suffix, logical_order=logical)


@rule("aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default")
def adaptive_avg_pool(lo: Lowering, node: Any, x: Ref, size: Sequence[Any]) -> Ref:
    shape = lo.out_shape()
    ndim = len(size)
    lead = len(shape) - ndim
    if not x.dtype.is_floating_point:
        raise NoRule("averages of integers")
    up = compute_dtype(x.dtype)
    windows = [_window(x.shape[lead + k], shape[lead + k], axis(shape, lead + k)) for k in range(ndim)]
    kernel = [window[1] for window in windows]

    def term(offsets: Sequence[Any], over: Sequence[Any], here: Sequence[Expr]) -> Value:
        inside: Condition = None
        lengths = (
            shifted([window[2] for window in windows], shape, over)
            if len(over) != len(shape)
            else [window[2] for window in windows]
        )
        for k, (_, widest, length) in enumerate(windows):
            if not (length.is_const and length.value == widest) and length is not as_expr(widest):
                inside = both(inside, prim("lt", index(as_expr(offsets[k])), index(lengths[k])))
        return cast(element_at(x, over, lead, [h + offset for h, offset in zip(here, offsets)], inside), up)

    firsts = [window[0] for window in windows]
    if all(isinstance(k, int) for k in kernel):
        total = _sum_over(lo, shape, kernel, firsts, term)
    else:
        total = reduce_over(
            lo, "sum", shape, kernel, lambda offsets, over: term(offsets, over, shifted(firsts, shape, over))
        ).value
    for _, _, length in windows:
        total = prim("div", total, cast(index(length), up))
    return lo.pointwise(rounded(total, x.dtype))


def _window(size: Any, out: Any, expr: Expr) -> tuple[Expr, Any, Expr]:
    """(first element, widest window, this window's length) of an adaptive pool's o-th window."""
    if is_one(out):
        return as_expr(0), size, as_expr(size)
    if not (isinstance(size, int) and isinstance(out, int)):
        raise NoRule("an adaptive pool of unknown size")
    if out == 0:
        raise NoRule("an empty result")
    if size % out == 0:
        return expr * (size // out), size // out, as_expr(size // out)
    first = (expr * size) // out
    end = (expr * size + (size + out - 1)) // out
    widest = max((i * size + size + out - 1) // out - i * size // out for i in range(out))
    return first, widest, end - first


@rule("aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default")
def adaptive_max_pool(lo: Lowering, node: Any, x: Ref, size: Sequence[Any]) -> tuple[Ref, Ref]:
    shape = lo.out_shape(k=0)
    ndim = len(size)
    lead = len(shape) - ndim
    if not x.dtype.is_floating_point:
        raise NoRule("maxima of integers")
    windows = [_window(x.shape[lead + k], shape[lead + k], axis(shape, lead + k)) for k in range(ndim)]
    kernel, firsts = [window[1] for window in windows], [window[0] for window in windows]

    def value(offsets: Sequence[Any], over: Sequence[Any]) -> Value:
        inside: Condition = None
        here, lengths = shifted(firsts, shape, over), shifted([window[2] for window in windows], shape, over)
        for k, (_, widest, length) in enumerate(windows):
            if length is not as_expr(widest):
                inside = both(inside, prim("lt", index(as_expr(offsets[k])), index(lengths[k])))
        v = element_at(x, over, lead, [h + offset for h, offset in zip(here, offsets)], inside, float("-inf"))
        return cast(v, compute_dtype(x.dtype))

    best = reduce_over(lo, "max", shape, kernel, value, "_max")
    at = reduce_over(lo, "argmax", shape, kernel, value, "_at", logical=True).value
    i64 = torch.int64
    flat: Value | None = None
    inner: Any = 1
    for k in kernel[1:]:
        inner = k * inner
    for k in range(ndim):  # from the position in the window to the one in the plane
        step = index(as_expr(inner))
        here = at if is_one(inner) else prim("div_trunc", at, step)
        at = const(0, i64) if is_one(inner) else prim("sub", at, prim("mul", here, step))
        p = prim("add", here, index(firsts[k]))
        flat = p if flat is None else prim("add", prim("mul", flat, index(as_expr(x.shape[lead + k]))), p)
        if k + 1 < ndim:
            inner = (
                inner // kernel[k + 1]
                if isinstance(inner, int) and isinstance(kernel[k + 1], int)
                else as_expr(inner) // kernel[k + 1]
            )
    assert flat is not None and flat.dtype == i64
    return lo.pointwise(cast(best.value, x.dtype), 0), lo.pointwise(flat, 1)


@rule("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def max_pool(
    lo: Lowering,
    node: Any,
    x: Ref,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Ref, Ref]:
    """Values and positions in a nest each: positions that nobody reads cost nothing. Of equal values the first is
    taken, of NaNs the last.
    """
    n = 2 if "2d" in str(node.target) else 3
    kernel = _spread(kernel, n)
    stride, padding, dilation = _spread(stride, n, kernel), _spread(padding, n), _spread(dilation, n)
    size = 1
    for k in kernel:
        size = size * k
    if (
        not all(isinstance(v, int) for v in (*kernel, *stride, *padding, *dilation))
        or size > 2 * WRITTEN_OUT
        or x.dtype == torch.bool
    ):
        raise NoRule("pooling over large windows")
    if size > GPU_TAPS:
        on_cpu(lo, "pooling")
    shape = lo.out_shape(k=0)
    lead = len(shape) - n
    sizes = x.shape[lead:]
    up = compute_dtype(x.dtype)
    least = float("-inf") if up.is_floating_point else torch.iinfo(up).min
    exact = not ceil_mode and not any(padding)
    best: Value | None = None
    at: Value | None = None
    for offsets in itertools.product(*(range(k) for k in kernel)):
        inside: Condition = None
        here = [axis(shape, lead + k) * stride[k] + (offsets[k] * dilation[k] - padding[k]) for k in range(n)]
        if not exact:
            for k in range(n):
                reach, first = _last(shape[lead + k], stride[k]), offsets[k] * dilation[k] - padding[k]
                inside = both(inside, within(here[k], sizes[k], first, None if reach is None else reach + first))
        v = cast(element_at(x, shape, lead, here, inside, least), up)
        flat = as_expr(0)
        for k in range(n):
            flat = flat * sizes[k] + here[k]
        p = index(flat)
        if best is None:
            best, at = v, p
            if inside is not None:  # (a window may begin before the first element)
                begin = as_expr(0)
                for k in range(n):
                    first_in = (
                        here[k]
                        if padding[k] == 0
                        else maximum(here[k], here[k] + -(-(0 - here[k]) // dilation[k]) * dilation[k])
                    )
                    begin = begin * sizes[k] + first_in
                at = index(begin)
            continue
        better = prim("gt", v, best)
        if up.is_floating_point:
            better = prim("logical_or", better, prim("isnan", v))
        best, at = prim("where", better, v, best), prim("where", better, p, at)
    assert best is not None and at is not None
    return lo.pointwise(rounded(best, x.dtype) if up != x.dtype else best, 0), lo.pointwise(at, 1)


# ---- columns
@rule("aten.im2col.default")
def im2col(
    lo: Lowering,
    node: Any,
    x: Ref,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Ref:
    kernel, dilation, padding, stride = (_spread(v, 2) for v in (kernel, dilation, padding, stride))
    lead = x.ndim - 2
    sizes = x.shape[lead:]
    outs = [(as_expr(sizes[k]) + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in range(2)]
    outs_ = [out.value if out.is_const else out for out in outs]
    shape = (*x.shape[:lead], kernel[0], kernel[1], *outs_)
    at, inside = [], None
    for k in range(2):
        e = axis(shape, lead + 2 + k) * stride[k] - padding[k] + axis(shape, lead + k) * dilation[k]
        reach = _last(outs_[k], stride[k])
        most = None if reach is None else reach - padding[k] + dilation[k] * (kernel[k] - 1)
        inside = both(inside, within(e, sizes[k], -padding[k], most))
        at.append(e)
    return reshape(lo.store(element_at(x, shape, lead, at, inside), shape, x.dtype), lo.out_shape())  # (in whole rows)


@rule("aten.col2im.default")
def col2im(
    lo: Lowering,
    node: Any,
    x: Ref,
    size: Sequence[Any],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Ref:
    kernel, dilation, padding, stride = (_spread(v, 2) for v in (kernel, dilation, padding, stride))
    if (
        kernel[0] * kernel[1] > 2 * WRITTEN_OUT
        or not all(isinstance(s, int) for s in size)
        or not x.dtype.is_floating_point
    ):
        raise NoRule("folding of large windows")
    shape = lo.out_shape()
    lead = len(shape) - 2
    outs = [(size[k] + 2 * padding[k] - dilation[k] * (kernel[k] - 1) - 1) // stride[k] + 1 for k in range(2)]
    columns = reshape(x, (*shape[:lead], kernel[0], kernel[1], outs[0], outs[1]))
    up = compute_dtype(x.dtype)
    total: Value = const(0, up)
    for offsets in itertools.product(range(kernel[0]), range(kernel[1])):
        at, inside = [], None
        for k in range(2):
            e = axis(shape, lead + k) + (padding[k] - offsets[k] * dilation[k])
            step = stride[k]
            if step > 1:
                inside = both(inside, prim("eq", index(e % step), const(0, torch.int64)))
            q = e // step if step > 1 else e
            least, most = (
                padding[k] - offsets[k] * dilation[k],
                (size[k] - 1 + padding[k] - offsets[k] * dilation[k]) // step,
            )
            inside = both(inside, within(q, outs[k], least, most))
            at.append(q)
        total = prim("add", total, cast(element_at(columns, shape, lead, [*map(as_expr, offsets), *at], inside), up))
    return lo.pointwise(rounded(total, x.dtype))


# ---- pads
def _pad(source: Any) -> Any:
    def f(lo: Lowering, node: Any, x: Ref, pad: Sequence[Any]) -> Ref:
        shape = lo.out_shape()
        n = len(pad) // 2
        lead = x.ndim - n
        at = []
        for k in range(n):
            before, after = pad[2 * (n - 1 - k)], pad[2 * (n - 1 - k) + 1]
            e = axis(shape, lead + k) - before
            cut = isinstance(before, int) and isinstance(after, int) and before <= 0 and after <= 0
            at.append(e if cut else source(e, as_expr(x.shape[lead + k])))
        return lo.pointwise(element_at(x, shape, lead, at))

    return f


def _reflected(expr: Expr, size: Expr) -> Expr:
    expr = maximum(expr, 0 - expr)
    return minimum(expr, (size - 1) * 2 - expr)


def _clamped(expr: Expr, size: Expr) -> Expr:
    return minimum(maximum(expr, as_expr(0)), size - 1)


for _d in (1, 2, 3):
    rule(f"aten.reflection_pad{_d}d.default")(_pad(_reflected))
    rule(f"aten.replication_pad{_d}d.default")(_pad(_clamped))
