"""The gradient of the image of a depthwise convolution with a stride, on a GPU: a loop over the image. Each element
collects what the windows that cover it give back; with a stride these are the taps of one remainder.

cuDNN's kernel goes through all taps of every element: on an H200 it takes 2.1 to 2.3 times as long.
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
from ...ref import Ref, axis, ref_of_buffer, remap
from ..windows import both, element_at, within

__all__ = ["image_gradient_fits", "image_gradient"]

MOST_TAPS = 49  # of a kernel: an element reads what those of one remainder multiply
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


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
