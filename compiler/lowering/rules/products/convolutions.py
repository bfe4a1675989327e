"""Convolutions with kernels of one element are matrix products over the channels: loop nests where generated code
multiplies faster than the library; some gradients of depthwise ones are loops (depthwise.py). Others are library
calls."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ....symbolic.expr import as_expr
from ...ir import Value, prim, round_to
from ...context import Lowering
from ...rule_table import rule
from ...buffer_strides import same_strides, strides_of
from ...promote import operand
from ...ref import Ref, axis, contiguous_strides, is_one, numel, ref_of_buffer, remap, same, strided
from .depthwise import (
    convolution_fits,
    convolved,
    image_gradient,
    image_gradient_fits,
    weight_gradient,
    weight_gradient_fits,
)
from .products import LEAST, in_memory, worth_it

__all__: list[str] = []


def _is_product(w: Ref, stride: Sequence[Any], padding: Sequence[Any], transposed: bool, groups: Any) -> bool:
    """Kernels of one element, in one group, over every pixel."""
    return (
        w.ndim >= 3
        and all(is_one(size) for size in w.shape[2:])
        and not transposed
        and is_one(groups)
        and all(map(is_one, stride))
        and all(type(p) is int and p == 0 for p in padding)
    )


def _pixels(x: Ref) -> Any:
    return numel(x.shape[2:])


def _merges(x: Ref) -> bool:
    """Whether the pixels of an image lie evenly spaced, so that they are one axis."""
    v = strided(x)
    if v is None:
        return False
    dims = [dim for dim in range(2, x.ndim) if not is_one(x.shape[dim])]
    return all(same(as_expr(v[1][dim]), as_expr(v[1][e]) * x.shape[e]) for dim, e in zip(dims, dims[1:]))


def _image(lo: Lowering, x: Ref) -> Ref | None:
    if not _merges(x):
        x = ref_of_buffer(lo.realise(x, None if strided(x) is None else _contiguous(x)))
    return in_memory(lo, x)


def _contiguous(x: Ref) -> tuple:
    out: list[Any] = []
    n: Any = 1
    for size in reversed(x.shape):
        out.insert(0, n)
        n = size * n
    return tuple(out)


def _product(
    lo: Lowering,
    left: Ref,
    right: Ref,
    shape: Sequence[Any],
    at: tuple[dict, dict],
    reduced: Sequence[int],
    stride: Any,
    suffix: str,
) -> Ref:
    """The sum over `reduced` dimensions of `shape` of left * right, which are read where `at` says: dimension of the
    operand -> symbol.
    """
    a, b = (remap(x, shape, {key: axis(shape, value) for key, value in m.items()}) for x, m in zip((left, right), at))
    out = lo.reduce(
        "sum", prim("mul", a.value, b.value), shape, reduced, False, stride=stride, suffix=suffix, logical_order=True
    )
    lo.steps[-1].product = True
    return out


def _to_pixels(lo: Lowering, weight: Ref, image: Ref, to: int, stride: Any, inner: bool, suffix: str) -> Ref:
    """Each pixel's channels times the weight, whose dimension `to` is the result's channels. `inner`: the result is no
    tensor of the graph, its strides are free. Its axes stand in the order of memory, channels last where they lie so,
    as those of what joins the kernel do.
    """
    ndim, pixels = image.ndim, range(2, image.ndim)
    batch, many, channels, reduced = image.shape[0], image.shape[2:], weight.shape[to], weight.shape[1 - to]
    result = (batch, channels, *many)
    last = (batch, *many, channels)
    if same_strides(last, (stride[0], *stride[2:], stride[1]), contiguous_strides(last)):
        shape = (*last, reduced)
        out = _product(
            lo,
            image,
            weight,
            shape,
            ({0: 0, 1: ndim, **{pixel: pixel - 1 for pixel in pixels}}, {to: ndim - 1, 1 - to: ndim}),
            [ndim],
            None,
            suffix,
        )
        return remap(out, result, {ndim - 1: axis(result, 1), **{pixel - 1: axis(result, pixel) for pixel in pixels}})
    shape = (batch, channels, *many, reduced)
    return _product(
        lo,
        weight,
        image,
        shape,
        ({to: 1, 1 - to: ndim}, {0: 0, 1: ndim, **{pixel: pixel for pixel in pixels}}),
        [ndim],
        None if inner else stride,
        suffix,
    )


@rule("aten.convolution.default")
def convolution(
    lo: Lowering,
    node: Any,
    x: Ref,
    w: Ref,
    bias: Ref | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Any:
    args = (x, w, bias, stride, padding, dilation, transposed, output_padding, groups)
    meta = lo.meta()
    if convolution_fits(lo, x, w, stride, padding, dilation, transposed, groups):
        value = _with_bias(convolved(lo, x, w, stride, padding), bias)
        return lo.pointwise(round_to(value, meta.dtype))
    if x.ndim != w.ndim or not _is_product(w, stride, padding, transposed, groups) or not _worth(lo, meta, x, w):
        return lo.extern(node, args, {}, "convolution")
    image, weight = _image(lo, x), in_memory(lo, w)
    if image is None or weight is None:
        return lo.extern(node, args, {}, "convolution")
    out = _to_pixels(lo, weight, image, 0, strides_of(meta), bias is not None, "_product" if bias is not None else "")
    if bias is None:
        return out
    return lo.pointwise(_with_bias(out, bias))


def _with_bias(out: Ref, bias: Ref | None) -> Value:
    if bias is None:
        return out.value
    b = remap(bias, out.shape, {0: axis(out.shape, 1)})
    return prim("add", out.value, operand(b, torch.float32))


@rule("aten.convolution_backward.default")
def convolution_backward(
    lo: Lowering,
    node: Any,
    g: Ref,
    x: Ref,
    w: Ref,
    bias_sizes: Any,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
    mask: Sequence[bool],
) -> Any:
    args = (g, x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask)
    alone = list(mask) == [True, False, False] and not transposed
    if alone and image_gradient_fits(lo, g, w, stride, padding, dilation, groups):
        return image_gradient(lo, g, w, stride, padding), None, None
    if list(mask) == [False, True, False] and not transposed:
        if weight_gradient_fits(lo, g, x, w, stride, padding, dilation, groups):
            return None, weight_gradient(lo, g, x, w, stride, padding), None
    if (
        x.ndim != w.ndim
        or mask[2]
        or not any(mask[:2])
        or not _is_product(w, stride, padding, transposed, groups)
        or not _worth(lo, lo.meta(k=0 if mask[0] else 1), x, w)
    ):
        return lo.extern(node, args, {}, "convolution")
    gradient, image, weight = _image(lo, g), _image(lo, x), in_memory(lo, w)
    if gradient is None or image is None or weight is None:
        return lo.extern(node, args, {}, "convolution")
    ndim, pixels = x.ndim, range(2, x.ndim)
    dx = dw = None
    if mask[0]:
        dx = _to_pixels(lo, weight, gradient, 1, strides_of(lo.meta(k=0)), False, "_0")
    if mask[1]:
        shape = (w.shape[0], w.shape[1], x.shape[0], *x.shape[2:])  # to, from, batch, pixels
        where = {0: 2, **{pixel: pixel + 1 for pixel in pixels}}
        flat = _product(
            lo, gradient, image, shape, ({1: 0, **where}, {1: 1, **where}), list(range(2, ndim + 1)), None, "_1"
        )
        to = lo.meta(k=1)
        dw = remap(flat, to.shape, {0: axis(to.shape, 0), 1: axis(to.shape, 1)})
    return dx, dw, None


def _worth(lo: Lowering, m: Any, x: Ref, w: Ref) -> bool:
    sizes = (w.shape[0], w.shape[1], _pixels(x))
    if any(r.dtype != torch.float32 for r in (x, w)) or any(type(size) is int and size < LEAST for size in sizes):
        return False
    return worth_it(lo, m, sizes, same(w.shape[1], x.shape[1]))
