"""Depthwise convolutions on a GPU as loops over images whose channels lie side by side.

The convolution itself is a sum over windows, which has a printer of its own (codegen/triton/tiles/windows.py). In the
gradient of its image with a stride, each element collects what the windows that cover it give back: the taps of one
remainder. cuDNN's kernel goes through all taps of every element: on an H200 it takes 2.1 to 2.3 times as long. Without
a stride the gradient is a convolution itself (rewrite/depthwise_gradients.py).
"""

from __future__ import annotations

import itertools
from typing import Any, Sequence

import torch

from ....symbolic.expr import Expr, as_expr, floordiv, mod
from ...buffer_strides import same_strides, strides_of
from ...context import Lowering, summed
from ...ir import Value, cast, const, prim
from ...promote import rounded
from ...ref import Ref, axis, is_one, ref_of_buffer, remap, strided
from ..windows import both, element_at, within
from .gpu_products import in_memory

__all__ = [
    "convolution_fits",
    "convolved",
    "image_gradient",
    "image_gradient_fits",
    "weight_gradient",
    "weight_gradient_fits",
]

MOST_TAPS = 49  # of a kernel: an element reads what those of one remainder multiply
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_HALVES = (torch.float16, torch.bfloat16)
MOST_ALONG = 5  # taps in one direction whose gradients a program adds up at once
PROGRAMS = 2048  # that fill a GPU: the sums of weights' gradients are parted into as many


def convolution_fits(
    lo: Lowering,
    x: Ref,
    w: Ref,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    groups: Any,
) -> bool:
    """Whether ours is the better one: numbers of 16 bits, and several rows of taps, which share what they read."""
    sizes = (*w.shape[2:], *stride, *padding, *dilation)
    return (
        not transposed
        and _slides(lo, x, w, sizes, groups)
        and w.shape[2] * w.shape[3] <= MOST_TAPS
        and max(stride) <= 2
        and all(d == 1 for d in dilation)
        and _last(lo.meta())
        and not is_one(lo.out_shape()[2])
    )


def weight_gradient_fits(
    lo: Lowering,
    g: Ref,
    x: Ref,
    w: Ref,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    groups: Any,
) -> bool:
    sizes = (*w.shape[2:], *stride, *padding, *dilation, *g.shape, *x.shape)
    return (
        _slides(lo, x, w, sizes, groups)
        and max(w.shape[2:]) <= MOST_ALONG
        and max(stride) <= 2
        and all(d == 1 for d in dilation)
        and g.dtype == x.dtype
        and _channels_beside(g)
        and all(g.shape)
        and g.shape[2] > 1
    )


def _slides(lo: Lowering, x: Ref, w: Ref, sizes: Sequence[Any], groups: Any) -> bool:
    """Whether this is a depthwise convolution of 16 bits whose windows have several rows; `sizes` have to be known."""
    return (
        lo.on_gpu
        and not lo.emulate
        and lo.opts.get("gpu_products", "auto") != "library"
        and w.ndim == x.ndim == 4
        and w.shape[:2] == (groups, 1)
        and x.shape[1] == groups
        and all(type(size) is int for size in sizes)
        and w.shape[2] > 1
        and x.dtype in _HALVES
        and w.dtype == x.dtype
        and _channels_beside(x)
    )


def _channels_beside(x: Ref) -> bool:
    return (view := strided(x)) is not None and is_one(view[1][1])


def convolved(lo: Lowering, x: Ref, w: Ref, stride: Sequence[int], padding: Sequence[int]) -> Ref:
    """The convolution in float32, before its bias."""
    batch, channels, *result = lo.out_shape()
    shape = (batch, *result, channels, *w.shape[2:])
    channel = axis(shape, 3)
    image, by_taps = in_memory(lo, x), ref_of_buffer(lo.realise(w, _channels_together(w)))
    assert image is not None  # (its channels lie side by side)
    inside = None
    places: dict[int, Expr] = {0: axis(shape, 0), 1: channel}
    for d in (0, 1):
        here = axis(shape, 1 + d) * stride[d] + axis(shape, 4 + d) - padding[d]
        size, reach = x.shape[2 + d], result[d]
        most = (reach - 1) * stride[d] + w.shape[2 + d] - 1 - padding[d] if type(reach) is int else None
        inside = both(inside, within(here, size, -padding[d], most))
        places[2 + d] = here
    value = _masked(inside, remap(image, shape, places).value)
    weight = remap(by_taps, shape, {0: channel, 1: as_expr(0), 2: axis(shape, 4), 3: axis(shape, 5)}).value
    product = prim("mul", cast(value, torch.float32), cast(weight, torch.float32))
    out = lo.reduce("sum", product, shape, [4, 5], False, suffix="_product", logical_order=True)
    lo.steps[-1].product = True
    to = lo.out_shape()
    return remap(out, to, {0: axis(to, 0), 1: axis(to, 2), 2: axis(to, 3), 3: axis(to, 1)})


def weight_gradient(lo: Lowering, g: Ref, x: Ref, w: Ref, stride: Sequence[int], padding: Sequence[int]) -> Ref:
    """Sums over a few rows of some images, and then the sum of those."""
    (batch, channels, height, width), taps = g.shape, w.shape[2:]
    rows, together = (4, 32) if max(taps) <= 3 else (2, 16)  # (channels of a program)
    rows = min(height, rows)
    bands = -(-height // rows)
    images = _images(batch, bands * -(-channels // together))
    shape = (batch // images, bands, *taps, channels, images, rows, width)
    image = axis(shape, 0) * images + axis(shape, 5)
    at = (axis(shape, 1) * rows + axis(shape, 6), axis(shape, 7))
    channel = axis(shape, 4)
    inside, places = None, {0: image, 1: channel}
    for d, reach in ((0, bands * rows), (1, width)):
        here = at[d] * stride[d] + axis(shape, 2 + d) - padding[d]
        most = (reach - 1) * stride[d] + taps[d] - 1 - padding[d]
        inside = both(inside, within(here, x.shape[2 + d], -padding[d], most))
        places[2 + d] = here
    met, made = in_memory(lo, x), in_memory(lo, g)
    assert met is not None and made is not None  # (their channels lie side by side)
    pixel = _masked(inside, remap(met, shape, places).value)
    gradient = remap(made, shape, {0: image, 1: channel, 2: at[0], 3: at[1]}).value
    gradient = _masked(within(at[0], height, 0, bands * rows - 1), gradient)
    product = prim("mul", cast(pixel, torch.float32), cast(gradient, torch.float32))
    parts = lo.reduce("sum", product, shape, [5, 6, 7], False, suffix="_parts", logical_order=True)
    lo.steps[-1].product = True
    total = lo.reduce("sum", parts.value, parts.shape, [0, 1], False, suffix="_1")
    to = lo.out_shape(k=1)
    out = remap(total, to, {0: axis(to, 2), 1: axis(to, 3), 2: axis(to, 0)})
    return lo.pointwise(rounded(out.value, w.dtype), k=1)


def _images(batch: int, programs: int) -> int:
    """How many images one program goes through: as many as leave enough programs, in equal parts."""
    return max(n for n in range(1, batch + 1) if batch % n == 0 and (n == 1 or batch // n * programs >= PROGRAMS))


def _masked(inside: Value | None, value: Value) -> Value:
    return value if inside is None else prim("masked", inside, value, const(0, value.dtype))


def image_gradient_fits(
    lo: Lowering, g: Ref, w: Ref, stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any], groups: Any
) -> bool:
    sizes = (*w.shape[2:], *stride, *padding, *dilation)
    return (
        lo.on_gpu
        and w.ndim == 4
        and w.shape[:2] == (groups, 1)
        and g.shape[1] == groups
        and all(type(size) is int for size in sizes)
        and any(s > 1 for s in stride)
        and all(d == 1 for d in dilation)
        and w.shape[2] * w.shape[3] <= MOST_TAPS
        and g.dtype in _DTYPES
        and w.dtype == g.dtype
        and _last(lo.meta(k=0))
    )


def _last(m: Any) -> bool:
    n, c, height, width = m.shape
    return same_strides(m.shape, strides_of(m), (height * width * c, 1, width * c, c))


def image_gradient(lo: Lowering, g: Ref, w: Ref, stride: Sequence[int], padding: Sequence[int]) -> Ref:
    shape = lo.out_shape(k=0)
    by_taps = ref_of_buffer(lo.realise(w, _channels_together(w)))
    f32 = torch.float32
    terms: list[Value] = []
    for nth in itertools.product(*(range(-(-k // s)) for k, s in zip(w.shape[2:], stride))):
        taps: list[Expr] = []
        windows: list[Expr] = []
        inside = None
        for d, t in enumerate(nth):
            k, step, size = w.shape[2 + d], stride[d], shape[2 + d]
            here = axis(shape, 2 + d) + padding[d]
            tap, window = mod(here, as_expr(step)) + t * step, floordiv(here, as_expr(step)) - t
            most = (size - 1 + padding[d]) // step - t if type(size) is int else None
            inside = both(inside, within(tap, k, 0, (t + 1) * step - 1))
            inside = both(inside, within(window, g.shape[2 + d], padding[d] // step - t, most))
            taps.append(tap)
            windows.append(window)
        weight = remap(by_taps, shape, {0: axis(shape, 1), 1: as_expr(0), 2: taps[0], 3: taps[1]}).value
        product = prim("mul", cast(element_at(g, shape, 2, windows), f32), cast(weight, f32))
        terms.append(product if inside is None else prim("masked", inside, product, const(0.0, f32)))
    total = terms[0]
    for term in terms[1:]:
        total = prim("add", total, term)
    return lo.pointwise(rounded(summed(total), g.dtype), k=0)


def _channels_together(w: Ref) -> tuple:
    """Strides of a weight whose channels lie side by side, as those of an image do: a tap reads them in one piece."""
    c, height, width = w.shape[0], w.shape[2], w.shape[3]
    return (1, c * height * width, width * c, c)
