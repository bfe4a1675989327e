"""Neural-network operators: convolution, pooling, normalisation, losses, resampling."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from ...symbolic import expr as E
from ...symbolic.expr import IntLike
from .core import (
    TensorMeta,
    channels_last_strides,
    contiguous_strides,
    fix,
    fold,
    is_channels_last,
    is_contiguous,
    is_zero,
    less,
    new,
    norm_dims,
    numel,
    rule,
    same,
    strides_for,
    suggest_format,
)
from .strides import like, preserve_strides
from .types import opmath

__all__: list[str] = []


# ---- convolution
def _spread(value: Sequence[IntLike] | IntLike, count: int) -> list[IntLike]:
    value = [value] if isinstance(value, (int, E.Expr)) else list(value)
    return value * count if len(value) == 1 else value


@rule("convolution", "_convolution", "convolution_overrideable")
def convolution(
    x: TensorMeta,
    weight: TensorMeta,
    bias: TensorMeta | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> TensorMeta:
    n = weight.ndim - 2
    if x.ndim == n + 1:
        raise RuntimeError(f"Expected {n + 2}D input to conv{n}d, but got input of size: {list(x.shape)}")
    if x.ndim != weight.ndim:
        raise RuntimeError(
            f"Expected {weight.ndim - 1}D (unbatched) or {weight.ndim}D (batched) input to conv{n}d, but got input of "
            f"size: {list(x.shape)}"
        )
    if x.dtype != weight.dtype:
        raise RuntimeError(f"Input type ({x.dtype}) and weight type ({weight.dtype}) should be the same")
    stride, padding, dilation = _spread(stride, n), _spread(padding, n), _spread(dilation, n)
    want = weight.shape[0] if transposed else fold(weight.shape[1] * groups)
    if not same(x.shape[1], want):
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{want} channels, but got {x.shape[1]} channels instead"
        )
    out: list[IntLike] = [x.shape[0], fold(weight.shape[1] * groups) if transposed else weight.shape[0]]
    output_padding = _spread(output_padding, n)
    for i in range(n):
        k, s = weight.shape[i + 2], x.shape[i + 2]
        if transposed:
            size = (s - 1) * stride[i] - 2 * padding[i] + dilation[i] * (k - 1) + output_padding[i] + 1
        else:
            size = (s + 2 * padding[i] - dilation[i] * (k - 1) - 1) // stride[i] + 1
        size = fold(size)
        if isinstance(size, int) and size < (0 if isinstance(s, int) and s == 0 else 1) and s != 0:
            raise RuntimeError(
                f"Calculated padded input size per channel: {[fold(s + 2 * padding[i])]}. Kernel size: {[k]}. "
                "Kernel size can't be greater than actual input size"
            )
        out.append(size)
    fmt = torch.contiguous_format
    for meta in (x, weight):
        wanted_format = suggest_format(meta)
        if wanted_format is not torch.contiguous_format and meta.ndim == 4:
            fmt = wanted_format
            break
    if x.ndim == 5 and torch.channels_last_3d in (suggest_format(x), suggest_format(weight)):
        fmt = torch.channels_last_3d
    if (
        x.ndim == 3
        and x.device.type == "cpu"
        and x.dtype is not torch.float64
        and torch.channels_last in map(suggest_format, (_as_image(x), _as_image(weight)))
    ):
        n_, c_, _, l_ = channels_last_strides((*out[:2], 1, out[2]))
        return new(out, x.dtype, x.device, (n_, c_, l_))
    if x.device.type == "cpu" and x.dtype is torch.float64 and x.ndim != 4:
        # float64 runs on the native kernels, not on oneDNN: they keep channels-last in two dimensions alone
        fmt = torch.contiguous_format
    return new(out, x.dtype, x.device, strides_for(out, fmt))


def _as_image(meta: TensorMeta) -> TensorMeta:
    """One dimension as two, as oneDNN's convolutions take it."""
    return TensorMeta(
        (*meta.shape[:2], 1, meta.shape[2]),
        (*meta.stride[:2], fold(meta.shape[2] * meta.stride[2]), meta.stride[2]),
        meta.dtype,
        meta.device,
    )


@rule("convolution_backward")
def convolution_backward(
    grad: TensorMeta,
    x: TensorMeta,
    weight: TensorMeta,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    mask: Sequence[bool],
) -> tuple:
    return (
        new(x.shape, x.dtype, x.device, strides_for(x.shape, _conv_format(x, weight))) if mask[0] else None,
        new(weight.shape, weight.dtype, weight.device, strides_for(weight.shape, _conv_format(x, weight)))
        if mask[1]
        else None,
        new((grad.shape[1],), grad.dtype, grad.device) if mask[2] else None,
    )


def _conv_format(x: TensorMeta, weight: TensorMeta) -> torch.memory_format:
    for meta in (x, weight):
        if meta.ndim == 4 and suggest_format(meta) is torch.channels_last:
            return torch.channels_last
    return torch.contiguous_format


# ---- pooling
def _pool_size(n: IntLike, k: IntLike, s: IntLike, p: IntLike, d: IntLike, ceil: bool) -> IntLike:
    top = n + 2 * p - d * (k - 1) - 1 + ((s - 1) if ceil else 0)
    out = fold(top // s + 1)
    if ceil and not less((out - 1) * s if isinstance(out, int) else fold((out - 1) * s), fold(n + p)):
        out = fold(out - 1)
    if less(out, 1):
        raise RuntimeError(f"Given input size {n}, kernel {k}: calculated output size: {out}. Output size is too small")
    return out


def _pool_args(n: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> tuple:
    kernel = _spread(kernel, n)
    stride = _spread(stride, n) if stride not in (None, [], ()) else kernel
    return kernel, stride, _spread(padding, n), _spread(dilation, n)


def _pooled(x: TensorMeta, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> TensorMeta:
    k, s, p, d = _pool_args(n, kernel, stride, padding, dilation)
    batched = x.ndim == n + 2 or n == 3  # (the first of four dimensions counts as a batch there, too)
    if any(map(is_zero, x.shape[1 if batched else 0 :])):
        raise RuntimeError(
            f"Expected {n + 1}D or {n + 2}D (batch mode) tensor with optional 0 dim batch size for input, but got:"
            f" {list(x.shape)}"
        )
    for i in range(n):
        if isinstance(p[i], int) and isinstance(k[i], int) and p[i] * 2 > (k[i] - 1) * d[i] + 1:
            raise RuntimeError(
                f"pad should be at most half of effective kernel size, but got pad={p[i]}, kernel_size={k[i]} "
                f"and dilation={d[i]}"
            )
    shape = [*x.shape[:-n], *(_pool_size(x.shape[x.ndim - n + i], k[i], s[i], p[i], d[i], ceil) for i in range(n))]
    fmt = suggest_format(x) if x.ndim == n + 2 else torch.contiguous_format
    return new(shape, x.dtype, x.device, strides_for(shape, fmt))


@rule("max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(
    x: TensorMeta, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[TensorMeta, TensorMeta]:
    n = len(kernel) if len(kernel) > 1 else (3 if x.ndim == 5 else 2)
    meta = _pooled(x, n, kernel, list(stride), padding, dilation, ceil_mode)
    return meta, meta.replace(dtype=torch.int64)


@rule("_transformer_encoder_layer_fwd")
def transformer_encoder_layer(x: TensorMeta, *_: Any) -> TensorMeta:
    """A whole layer in one call, as torch.nn.TransformerEncoderLayer makes it without gradients."""
    return new(x.shape, x.dtype, x.device)


@rule("max_pool2d_with_indices_backward", "avg_pool2d_backward", "max_pool3d_with_indices_backward")
@rule("adaptive_max_pool2d_backward")
@rule(*(f"{_kind}_pad{_n}d_backward" for _kind in ("reflection", "replication") for _n in (1, 2, 3)))
def pool_backward(grad: TensorMeta, x: TensorMeta, *_: Any) -> TensorMeta:
    return new(x.shape, x.dtype, x.device, strides_for(x.shape, suggest_format(x)))


@rule("avg_pool3d_backward", "adaptive_max_pool3d_backward")
def pool_backward_in_rows(grad: TensorMeta, x: TensorMeta, *_: Any) -> TensorMeta:
    return new(x.shape, x.dtype, x.device)


@rule("avg_pool2d", "avg_pool3d")
def avg_pool(
    x: TensorMeta, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any, **__: Any
) -> TensorMeta:
    n = len(kernel) if len(kernel) > 1 else (3 if x.ndim == 5 else 2)
    meta = _pooled(x, n, kernel, list(stride), padding, 1, ceil_mode)
    # of three dimensions only max_pool3d keeps the order of memory
    return meta if n == 2 else new(meta.shape, meta.dtype, meta.device)


@rule("avg_pool1d")
def avg_pool1d(
    x: TensorMeta, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, *_: Any, **__: Any
) -> TensorMeta:
    meta = _pooled(x, 1, kernel, list(stride), padding, 1, ceil_mode)
    return new(meta.shape, meta.dtype, meta.device)


@rule("max_unpool2d", "max_unpool3d")
def max_unpool(x: TensorMeta, idx: TensorMeta, size: Sequence[IntLike], *_: Any) -> TensorMeta:
    ndim = len(size)
    shape = (*x.shape[: x.ndim - ndim], *size)
    fmt = suggest_format(x) if ndim == 2 and x.ndim == 4 else torch.contiguous_format
    return new(shape, x.dtype, x.device, strides_for(shape, fmt))


def _adaptive(x: TensorMeta, size: Sequence[IntLike]) -> TensorMeta:
    ndim = len(size)
    shape = [*x.shape[:-ndim], *size]
    fmt = suggest_format(x) if ndim == 2 and x.ndim == 4 else torch.contiguous_format
    return new(shape, x.dtype, x.device, strides_for(shape, fmt))


@rule(
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_avg_pool1d"
)
def adaptive_avg_pool(x: TensorMeta, size: Sequence[IntLike]) -> TensorMeta:
    return _adaptive(x, size)


@rule("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(grad: TensorMeta, x: TensorMeta) -> TensorMeta:
    return new(
        x.shape, x.dtype, x.device, strides_for(x.shape, suggest_format(x) if x.ndim == 4 else torch.contiguous_format)
    )


@rule("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(x: TensorMeta, size: Sequence[IntLike]) -> tuple[TensorMeta, TensorMeta]:
    meta = _adaptive(x, size)
    return meta, meta.replace(dtype=torch.int64)


# ---- normalisation
@rule("native_layer_norm")
def native_layer_norm(
    x: TensorMeta, normalized_shape: Sequence[IntLike], weight: Any, bias: Any, eps: float
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    ndim = len(normalized_shape)
    _check_types(x, weight, bias)
    if ndim == 0 or len(x.shape) < ndim or not all(map(same, x.shape[x.ndim - ndim :], normalized_shape)):
        raise RuntimeError(
            f"Given normalized_shape={list(normalized_shape)}, expected input with shape [*, "
            f"{', '.join(map(str, normalized_shape))}], but got input of size{list(x.shape)}"
        )
    for parameter in (weight, bias):
        if parameter is not None and not (parameter.ndim == ndim and all(map(same, parameter.shape, normalized_shape))):
            raise RuntimeError(
                f"Expected weight and bias of shape {list(normalized_shape)}, but got {list(parameter.shape)}"
            )
    stat = (*x.shape[: x.ndim - ndim], *[1] * ndim)
    dt = _stat_dtype(x, weight)
    out_stride = contiguous_strides(x.shape) if x.device.type == "cpu" else preserve_strides(x)
    return (new(x.shape, x.dtype, x.device, out_stride), new(stat, dt, x.device), new(stat, dt, x.device))


def _check_types(x: TensorMeta, *parameters: TensorMeta | None) -> None:
    """Parameters are of the input's type; of float32 beside an input of 16 bits."""
    types = {param.dtype for param in parameters if param is not None} - {x.dtype}
    if types and not (x.dtype.itemsize == 2 and types == {torch.float32}):
        raise RuntimeError("mixed dtype: all inputs must share same datatype")


def _stat_dtype(x: TensorMeta, weight: TensorMeta | None) -> torch.dtype:
    """Mean and 1/std: of the input's dtype on the CPU, float32 where weights are of a wider type than the input, and on
    accelerators."""
    if x.device.type != "cpu" or (weight is not None and weight.dtype != x.dtype):
        return opmath(x.dtype)
    return x.dtype


@rule("_fused_rms_norm")
def fused_rms_norm(x: TensorMeta, normalized_shape: Sequence[IntLike], weight: Any, eps: float | None) -> tuple:
    ndim = len(normalized_shape)
    return (new(x.shape, x.dtype, x.device), new((*x.shape[: x.ndim - ndim], *[1] * ndim), opmath(x.dtype), x.device))


@rule("_fused_rms_norm_backward")
def fused_rms_norm_backward(
    grad: TensorMeta, x: TensorMeta, shape: Any, rstd: TensorMeta, weight: TensorMeta | None, mask: Sequence[bool]
) -> tuple:
    return (
        new(x.shape, x.dtype, x.device) if mask[0] else None,
        new(weight.shape, weight.dtype, weight.device) if mask[1] and weight is not None else None,
    )


@rule("native_layer_norm_backward")
def native_layer_norm_backward(
    grad: TensorMeta, x: TensorMeta, shape: Any, mean: Any, rstd: Any, weight: Any, b: Any, mask: Sequence[bool]
) -> tuple:
    return (
        new(x.shape, x.dtype, x.device) if mask[0] else None,
        new(weight.shape, weight.dtype, weight.device) if mask[1] and weight is not None else None,
        new(b.shape, b.dtype, b.device) if mask[2] and b is not None else None,
    )


@rule("native_group_norm")
def native_group_norm(
    x: TensorMeta, weight: Any, bias: Any, n: IntLike, c: IntLike, hxw: IntLike, group: int, eps: float
) -> tuple[TensorMeta, TensorMeta, TensorMeta]:
    _check_types(x, weight, bias)
    fmt = suggest_format(x) if x.device.type == "cpu" else torch.contiguous_format
    dt = _stat_dtype(x, weight)
    return (
        new(x.shape, x.dtype, x.device, strides_for(x.shape, fmt)),
        new((n, group), dt, x.device),
        new((n, group), dt, x.device),
    )


@rule("native_group_norm_backward")
def native_group_norm_backward(
    grad: TensorMeta,
    x: TensorMeta,
    mean: Any,
    rstd: Any,
    weight: Any,
    n: Any,
    c: IntLike,
    hxw: Any,
    group: int,
    mask: Sequence[bool],
) -> tuple:
    return (
        new(x.shape, x.dtype, x.device) if mask[0] else None,
        new((c,), x.dtype, x.device) if mask[1] else None,
        new((c,), x.dtype, x.device) if mask[2] else None,
    )


def _batch_norm_out(x: TensorMeta, *parameters: TensorMeta | None) -> TensorMeta:
    _check_types(x, *parameters)
    if is_contiguous(x.shape, x.stride) or is_channels_last(x.shape, x.stride):
        return new(x.shape, x.dtype, x.device, preserve_strides(x))
    return new(x.shape, x.dtype, x.device, strides_for(x.shape, suggest_format(x)))


def _bn_stats(x: TensorMeta, weight: Any, training: bool) -> tuple[TensorMeta, TensorMeta]:
    dt = _stat_dtype(x, weight)
    channels: IntLike = x.shape[1] if training else 0
    return new((channels,), dt, x.device), new((channels,), dt, x.device)


@rule("native_batch_norm", "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit")
def native_batch_norm(x: TensorMeta, weight: Any, bias: Any, *rest: Any) -> tuple:
    running = rest[: len(rest) - 3]  # one overload is without running statistics
    return (_batch_norm_out(x, weight, bias, *running), *_bn_stats(x, weight, rest[len(running)]))


@rule("_native_batch_norm_legit_no_training")
def batch_norm_inference(
    x: TensorMeta, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple:
    return (_batch_norm_out(x, weight, bias, mean, var), *_bn_stats(x, weight, False))


@rule("_native_batch_norm_legit_functional")
def batch_norm_functional(
    x: TensorMeta, weight: Any, bias: Any, mean: TensorMeta, var: TensorMeta, training: bool, *_: Any, **__: Any
) -> tuple:
    return (
        _batch_norm_out(x, weight, bias, mean, var),
        *_bn_stats(x, weight, training),
        new(mean.shape, mean.dtype, mean.device),
        new(var.shape, var.dtype, var.device),
    )


@rule("_batch_norm_with_update_functional", "_batch_norm_no_update")
def batch_norm_with_reserve(*_: Any) -> Any:
    raise NotImplementedError("this form of batch_norm is not traced")


@rule("native_batch_norm_backward")
def native_batch_norm_backward(
    grad: TensorMeta,
    x: TensorMeta,
    weight: Any,
    rm: Any,
    rv: Any,
    sm: Any,
    si: Any,
    train: bool,
    eps: float,
    mask: Sequence[bool],
) -> tuple:
    channels = x.shape[1]
    dt = weight.dtype if weight is not None else x.dtype
    return (
        _batch_norm_out(x) if mask[0] else None,
        new((channels,), dt, x.device) if mask[1] else None,
        new((channels,), dt, x.device) if mask[2] else None,
    )


# ---- losses
@rule("binary_cross_entropy")
def binary_cross_entropy(x: TensorMeta, target: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    if x.dtype != target.dtype:
        raise RuntimeError(f"found dtype {target.dtype} but expected {x.dtype}")
    return elementwise_loss(x, target, *args, **kwargs)


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss")
def elementwise_loss(x: TensorMeta, target: TensorMeta, *args: Any, **kwargs: Any) -> TensorMeta:
    from .pointwise_meta import pointwise
    from .types import result_type

    reduction = kwargs.get(
        "reduction", next((arg for arg in args if isinstance(arg, int) and not isinstance(arg, bool)), 1)
    )
    meta = pointwise([x, target], result_type([x, target]))
    return meta if reduction == 0 else new((), meta.dtype, meta.device)


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "binary_cross_entropy_backward")
def loss_backward(grad: TensorMeta, x: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return like(x)


def _check_classes(x: TensorMeta, target: TensorMeta, weight: TensorMeta | None) -> None:
    if target.dtype not in (torch.int64, torch.uint8):
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")
    if weight is not None and weight.dtype != x.dtype:
        raise RuntimeError(f"expected weights of {x.dtype} but found {weight.dtype}")


@rule("nll_loss_forward")
def nll_loss_forward(
    x: TensorMeta, target: TensorMeta, weight: Any, reduction: int, ignore_index: IntLike
) -> tuple[TensorMeta, TensorMeta]:
    _check_classes(x, target, weight)
    if not 0 < x.ndim <= 2:
        raise RuntimeError("input tensor should be 1D or 2D")
    if x.ndim == 2 and (target.ndim != 1 or not same(x.shape[0], target.shape[0])):
        raise RuntimeError(f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})")
    out = new((x.shape[0],) if reduction == 0 and x.ndim == 2 else (), x.dtype, x.device)
    return out, new((), x.dtype, x.device)


@rule("nll_loss2d_forward")
def nll_loss2d_forward(
    x: TensorMeta, target: TensorMeta, weight: Any, reduction: int, ignore_index: IntLike
) -> tuple[TensorMeta, TensorMeta]:
    _check_classes(x, target, weight)
    shape = (x.shape[0], x.shape[2], x.shape[3]) if reduction == 0 else ()
    return new(shape, x.dtype, x.device), new((), x.dtype, x.device)


@rule("nll_loss_backward", "nll_loss2d_backward")
def nll_loss_backward(
    grad: TensorMeta, x: TensorMeta, target: Any = None, weight: Any = None, reduction: int = 1, *_: Any
) -> TensorMeta:
    if isinstance(target, TensorMeta) and x.ndim > 1:  # (sizes that are equal are one symbol from here on)
        rows = (x.shape[0], *x.shape[2:])
        for given in (target, grad) if reduction == 0 else (target,):
            for row, size in zip(rows, given.shape):
                same(row, size)
    return new(x.shape, x.dtype, x.device)


# ---- activations with shapes of their own
@rule("glu")
def glu(x: TensorMeta, dim: int = -1) -> TensorMeta:
    (halved,) = norm_dims(dim, x.ndim)
    half = fold(x.shape[halved] // 2)
    if not same(fold(half * 2), x.shape[halved]):
        raise RuntimeError(f"Halving dimension must be even, but dimension {halved} is size {x.shape[halved]}")
    shape = (*x.shape[:halved], half, *x.shape[halved + 1 :])
    from .views_meta import slice_
    from .strides import elementwise_strides

    part = slice_(x, halved, 0, half)
    return TensorMeta(shape, elementwise_strides(shape, [part, part]), x.dtype, x.device)


@rule("_prelu_kernel")
def prelu(x: TensorMeta, weight: TensorMeta) -> TensorMeta:
    from .pointwise_meta import pointwise

    return pointwise([x, weight], x.dtype)


@rule("_prelu_kernel_backward")
def prelu_backward(grad: TensorMeta, x: TensorMeta, weight: TensorMeta) -> tuple[TensorMeta, TensorMeta]:
    from .pointwise_meta import pointwise

    return pointwise([grad, x], x.dtype), pointwise([grad, x], x.dtype)


@rule("glu_backward")
def glu_backward(grad: TensorMeta, x: TensorMeta, dim: int) -> TensorMeta:
    return new(x.shape, x.dtype, x.device)


@rule("rrelu_with_noise_functional")
def rrelu(x: TensorMeta, noise: TensorMeta, *_: Any, **__: Any) -> tuple:
    return new(x.shape, x.dtype, x.device), noise.replace()


# ---- resampling
def _resample(n: int) -> Any:
    def f(x: TensorMeta, size: Sequence[IntLike] | None, *args: Any, **__: Any) -> TensorMeta:
        if not size:
            scale = next(arg for arg in args if isinstance(arg, (list, tuple)))
            size = [int(fix(s) * f) for s, f in zip(x.shape[2:], scale)]
        if len(size) != n or x.ndim != n + 2 or not all(less(0, s) for s in (*size, *x.shape[1:])):
            raise RuntimeError(
                f"Input and output sizes should be greater than 0, but got input {list(x.shape)} output {list(size)}"
            )
        shape = [*x.shape[:2], *size]
        fmt = suggest_format(x) if n > 1 else torch.contiguous_format
        return new(shape, x.dtype, x.device, strides_for(shape, fmt))

    return f


for _n, _names in {
    1: "upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d",
    2: (
        "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ),
    3: "upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d",
}.items():
    rule(*_names.split())(_resample(_n))


def _resample_backward(channels_last: bool) -> Any:
    """Gradients of resampling have the shape of what was resampled, and may lie as the gradient does."""

    def f(grad: TensorMeta, output_size: Any, input_size: Sequence[IntLike], *_: Any) -> TensorMeta:
        if grad.ndim != len(input_size) or not all(map(same, grad.shape, (*input_size[:2], *output_size))):
            raise RuntimeError(f"Expected grad_output to have the shape of output; got {list(grad.shape)}")
        fmt = suggest_format(grad) if channels_last else torch.contiguous_format
        return new(input_size, grad.dtype, grad.device, strides_for(input_size, fmt))

    return f


for _keeps, _names in {
    True: (
        "upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d"
    ),
    False: (
        "upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d upsample_bicubic2d _upsample_bicubic2d_aa "
        "upsample_nearest3d _upsample_nearest_exact3d"
    ),
}.items():
    rule(*(f"{_name}_backward" for _name in _names.split()))(_resample_backward(_keeps))


@rule("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(
    grad: TensorMeta, x: TensorMeta, grid: TensorMeta, mode: int, padding: int, align: bool, mask: Sequence[bool]
) -> tuple[TensorMeta | None, TensorMeta]:
    return new(x.shape, x.dtype, x.device) if mask[0] else None, new(grid.shape, grid.dtype, grid.device)


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(x: TensorMeta, grid: TensorMeta, *_: Any) -> TensorMeta:
    shape = (*x.shape[:2], *grid.shape[1:-1])
    return new(shape, x.dtype, x.device)


@rule("im2col")
def im2col(x: TensorMeta, kernel: Any, dilation: Any, padding: Any, stride: Any) -> TensorMeta:
    if x.ndim == 3:
        batched = im2col(x.replace(shape=(1, *x.shape), stride=(0, *x.stride)), kernel, dilation, padding, stride)
        return new(batched.shape[1:], x.dtype, x.device)
    n, c = x.shape[:2]
    k, d, p, s = (_spread(pair, 2) for pair in (kernel, dilation, padding, stride))
    if x.ndim != 4 or not all(pair > 0 for pair in (*k, *d, *s)) or not all(pair >= 0 for pair in p):
        raise RuntimeError("im2col: kernel, dilation and stride are greater than zero, padding is not negative")
    blocks = [fold((x.shape[2 + i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1) for i in range(2)]
    if not all(less(0, pair) for pair in (c, x.shape[2], x.shape[3], *blocks)):
        raise RuntimeError(
            f"Given input with spatial size {list(x.shape[2:])}, the array of sliding blocks has shape {blocks}: it"
            " must be at least one"
        )
    return new((n, fold(c * k[0] * k[1]), numel(blocks)), x.dtype, x.device)


@rule("col2im")
def col2im(x: TensorMeta, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> TensorMeta:
    k, d, p, s = (_spread(pair, 2) for pair in (kernel, dilation, padding, stride))
    if x.ndim not in (2, 3) or not all(pair > 0 for pair in (*k, *d, *s)) or not all(pair >= 0 for pair in p):
        raise RuntimeError("col2im: kernel, dilation and stride are greater than zero, padding is not negative")
    blocks = [fold((size[i] + 2 * p[i] - d[i] * (k[i] - 1) - 1) // s[i] + 1) for i in range(2)]
    if not same(x.shape[-1], fold(blocks[0] * blocks[1])) or not same(fix(x.shape[-2]) % (k[0] * k[1]), 0):
        raise RuntimeError(f"col2im: {list(x.shape)} does not hold {blocks} blocks of {list(k)}")
    return new((*x.shape[:-2], fold(x.shape[-2] // (k[0] * k[1])), *size), x.dtype, x.device)


# ---- embedding bags
@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    weight: TensorMeta,
    indices: TensorMeta,
    offsets: TensorMeta,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: TensorMeta | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple:
    """What the kernel keeps for backward has shapes that depend on its fast paths and on torch's version: the kernel
    itself is asked, with a table of one row."""
    if weight.device.type != "cpu":
        raise NotImplementedError(f"embedding_bag on {weight.device}")

    def made(meta: TensorMeta, shape: Sequence[IntLike]) -> torch.Tensor:
        return torch.empty_strided(
            [fix(size) for size in shape], [fix(stride) for stride in meta.stride], dtype=meta.dtype
        ).zero_()

    weights = None if per_sample_weights is None else made(per_sample_weights, per_sample_weights.shape)
    with torch.no_grad():
        out = torch.ops.aten._embedding_bag.default(
            made(weight, (1, weight.shape[1])),
            made(indices, indices.shape),
            made(offsets, offsets.shape),
            False,
            mode,
            False,
            weights,
            include_last_offset,
            padding_idx if padding_idx < 0 else 0,
        )
    return tuple(new(tuple(tensor.shape), tensor.dtype, weight.device) for tensor in out)


@rule("_weight_norm_interface")
def weight_norm(v: TensorMeta, grad: TensorMeta, dim: int = 0) -> tuple[TensorMeta, TensorMeta]:
    if dim not in (0, v.ndim - 1):
        raise RuntimeError("fused kernels can only be applied for first or last dim")
    return new(v.shape, v.dtype, v.device), TensorMeta(grad.shape, grad.stride, norm_dtype(grad), grad.device)


@rule("_weight_norm_interface_backward")
def weight_norm_backward(
    grad: TensorMeta, v: TensorMeta, g: TensorMeta, norms: TensorMeta, dim: int
) -> tuple[TensorMeta, TensorMeta]:
    if dim not in (0, v.ndim - 1):
        raise RuntimeError("fused kernels can only be applied for first or last dim")
    return new(v.shape, v.dtype, v.device), TensorMeta(g.shape, g.stride, g.dtype, g.device)


def norm_dtype(grad: TensorMeta) -> torch.dtype:
    """The dtype in which torch keeps the norms of weights whose magnitudes are `grad`."""
    half = grad.dtype is torch.float16 and grad.device.type != "cpu"
    return torch.float32 if half or grad.dtype is torch.bfloat16 else grad.dtype
