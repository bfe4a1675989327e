"""Torch's functions that take a number which varies from call to call, where a kernel takes it as a constant: in
operators that take it from the graph.

`F.leaky_relu(x, slope)` is `torch.where(x > 0, x, x * slope)`, `x.diagonal(n)` is `x[:, n:].diagonal()`. Each form is a
function of Python that capture interprets in the place of the call where one of the named numbers varies. With plain
numbers the call is one node as ever. Branches in a form are guards. Forms of floats compute as eager's kernels do, in
float32 for narrower types; their gradients are eager's at the ends of ranges too.
"""

# mypy: allow-untyped-defs
# (the forms have the parameters of the functions that they stand for, of any type)
from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

import torch

from ...graph.tensor import TraceTensor
from . import scalars
from ..tensors import tensor_calls
from ..kinds.calls import call_torch_function
from ..kinds.callables import FUNCTIONS
from ..kinds.parameters import interpret
from .tensor_reads import is_read
from ..machine.signals import Raised

if TYPE_CHECKING:
    from ..machine.machine import Machine

__all__: list[str] = []

_NARROW = (torch.bfloat16, torch.float16)
_nn = torch._C._nn


class _Form:
    """`written` in the place of `fn` where a parameter of it among `names` varies. `narrow`: of tensors of 16 bits,
    too.
    """

    def __init__(self, fn: Callable, written: Callable, names: tuple[str, ...], narrow: bool):
        self.fn, self.written, self.names, self.narrow = fn, written, names, narrow
        self.signature = inspect.signature(written)

    def function(self, machine: Machine, *args: Any, **kwargs: Any) -> Any:
        result = self.apply(machine, args, kwargs)
        return call_torch_function(machine, self.fn, list(args), kwargs) if result is NotImplemented else result

    def apply(self, machine: Machine, args: tuple, kwargs: dict) -> Any:
        """The result, or NotImplemented where the call stays as it is."""
        if not any(type(a) in (torch.SymFloat, torch.SymInt) for a in (*args, *kwargs.values())):
            return NotImplemented
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError:
            return NotImplemented
        if not any(
            type(given.get(name)) is torch.SymFloat
            or type(given.get(name)) is torch.SymInt
            and not is_read(given[name])
            for name in self.names
        ):
            return NotImplemented
        given = {
            key: value if key in self.names else scalars.pinned(value) if scalars.holds_float((value,)) else value
            for key, value in given.items()
        }
        tensors = {key: value for key, value in given.items() if type(value) is TraceTensor}
        numbers = {
            tensor.dtype for tensor in tensors.values() if tensor.dtype.is_floating_point or tensor.dtype.is_complex
        }
        if (
            len(numbers) != 1
            and any(type(given[name]) is torch.SymFloat for name in self.names if name in given)
            and tensors
        ):
            return NotImplemented
        if (
            len(numbers) > 1
            or any(number.is_complex for number in numbers)
            or any(isinstance(v, torch.Tensor) and type(v) is not TraceTensor for v in given.values())
            or _autocasts(tensors)
        ):
            return NotImplemented
        narrow = next((number for number in numbers if number in _NARROW), None)
        if narrow is not None and not self.narrow:
            return NotImplemented
        if narrow is not None:
            given.update(
                {
                    key: tensor_calls.call_method(machine, tensor, "to", [torch.float32], {})
                    for key, tensor in tensors.items()
                    if tensor.dtype == narrow
                }
            )
        try:
            result = interpret(machine, self.written, [], given)
        except Raised:
            return NotImplemented  # the error is for the call itself to raise
        return (
            tensor_calls.call_method(machine, result, "to", [narrow], {})
            if narrow is not None and type(result) is TraceTensor
            else result
        )


def _autocasts(tensors: dict[str, TraceTensor]) -> bool:
    return any(torch._C.is_autocast_enabled(tensor.device.type) for tensor in tensors.values())


def _form(*fns: Callable, method: str = "", numbers: tuple[str, ...], narrow: bool = True) -> Callable:
    def register(written: Callable) -> Callable:
        for fn in fns:
            FUNCTIONS[fn] = _Form(fn, written, numbers, narrow).function
        if method:
            form = _Form(fns[0], written, numbers, narrow)
            tensor_calls.METHODS[method] = lambda machine, *args, **kwargs: form.apply(machine, args, kwargs)
        return written

    return register


# --- activations (a bound by `where`: from torch 2.14 on clamp has no gradient where a value is the bound itself, and
# these have one)
@_form(_nn.leaky_relu, numbers=("negative_slope",))
def _leaky_relu(input, negative_slope=0.01):
    return torch.where(input > 0, input, input * negative_slope)


@_form(_nn.elu, numbers=("alpha",))
def _elu(input, alpha=1.0, scale=1, input_scale=1):
    return torch.where(
        input > 0, input * scale, torch.expm1(torch.where(input > 0, 0, input) * input_scale) * (alpha * scale)
    )


@_form(torch.celu, method="celu", numbers=("alpha",))
def _celu(input, alpha=1.0):
    if alpha == 0:
        raise RuntimeError
    return torch.where(input > 0, input, torch.expm1(torch.where(input > 0, 0, input) * (1 / alpha)) * alpha)


@_form(_nn.softplus, numbers=("beta",))
def _softplus(input, beta=1, threshold=20):
    scaled = input * beta
    return torch.where(
        scaled > threshold, input, torch.log1p(torch.exp(torch.where(scaled > threshold, threshold, scaled))) / beta
    )


@_form(_nn.hardtanh, numbers=("min_val", "max_val"))
def _hardtanh(input, min_val=-1.0, max_val=1.0):
    return torch.where(input <= min_val, min_val, torch.where(input >= max_val, max_val, input))


@_form(torch.threshold, method="threshold", numbers=("threshold", "value"))
def _threshold(input, threshold, value):
    return torch.where(input <= threshold, value, input)


@_form(_nn.softshrink, numbers=("lambd",))
def _softshrink(input, lambd=0.5):
    if lambd < 0:
        raise RuntimeError
    return torch.where(input > lambd, input - lambd, torch.where(input < -lambd, input + lambd, input * 0))


@_form(torch.hardshrink, method="hardshrink", numbers=("lambd",))
def _hardshrink(input, lambd=0.5):
    return input.masked_fill((input >= -lambd) & (input <= lambd), 0)


# --- elementwise
@_form(torch.logit, torch.special.logit, method="logit", numbers=("eps",), narrow=False)
def _logit(input, eps=None):
    if eps < 0:
        raise RuntimeError  # of every number
    inside = torch.where(input < eps, eps, torch.where(input > 1 - eps, 1 - eps, input))
    return torch.log(inside / (1 - inside))


@_form(torch.nan_to_num, method="nan_to_num", numbers=("nan", "posinf", "neginf"))
def _nan_to_num(input, nan=None, posinf=None, neginf=None):
    limits = torch.finfo(input.dtype)
    finite = torch.where(input == float("inf"), limits.max if posinf is None else posinf, input)
    finite = torch.where(input == float("-inf"), limits.min if neginf is None else neginf, finite)
    return torch.where(torch.isnan(input), 0.0 if nan is None else nan, finite)


@_form(torch.isclose, method="isclose", numbers=("rtol", "atol"), narrow=False)
def _isclose(input, other, rtol=1e-05, atol=1e-08, equal_nan=False):
    if rtol < 0 or atol < 0:
        raise RuntimeError
    close = input == other
    if equal_nan:
        close = close | input.isnan() & other.isnan()
    apart = (input - other).abs()
    return close | torch.isfinite(apart) & (apart <= (other * rtol).abs() + atol)


@_form(torch.rsub, numbers=("other", "alpha"))
def _rsub(input, other, alpha=1):
    return other - input * alpha


@_form(torch.scatter, method="scatter", numbers=("value",))
def _scatter(input, dim, index, value):
    return torch.scatter(
        input, dim, index, torch.full((), value, dtype=input.dtype, device=input.device).expand(index.shape)
    )


@_form(_nn.pad, numbers=("value",))
def _pad(input, pad, mode="constant", value=None):
    if mode != "constant":
        raise RuntimeError
    inside = _nn.pad(torch.ones_like(input, dtype=torch.bool), pad, mode, 0.0)
    return torch.where(inside, _nn.pad(input, pad, mode, 0.0), value)


# --- products
def _sum(input, product, beta, alpha):
    if input.dtype != product.dtype:
        raise RuntimeError
    return product * alpha if beta == 0 else input.expand(product.shape) * beta + product * alpha


@_form(torch.addmm, method="addmm", numbers=("beta", "alpha"), narrow=False)
def _addmm(input, mat1, mat2, *, beta=1, alpha=1):
    return _sum(input, torch.mm(mat1, mat2), beta, alpha)


@_form(torch.addmv, method="addmv", numbers=("beta", "alpha"), narrow=False)
def _addmv(input, mat, vec, *, beta=1, alpha=1):
    return _sum(input, torch.mv(mat, vec), beta, alpha)


@_form(torch.addr, method="addr", numbers=("beta", "alpha"), narrow=False)
def _addr(input, vec1, vec2, *, beta=1, alpha=1):
    return _sum(input, torch.outer(vec1, vec2), beta, alpha)


@_form(torch.baddbmm, method="baddbmm", numbers=("beta", "alpha"), narrow=False)
def _baddbmm(input, batch1, batch2, *, beta=1, alpha=1):
    return _sum(input, torch.bmm(batch1, batch2), beta, alpha)


@_form(torch.index_add, method="index_add", numbers=("alpha",), narrow=False)
def _index_add(input, dim, index, source, *, alpha=1):
    return torch.index_add(input, dim, index, source * alpha)


@_form(_nn.scaled_dot_product_attention, numbers=("scale",), narrow=False)
def _attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    return torch.nn.functional.scaled_dot_product_attention(
        query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa
    )


# --- norms
@_form(torch.layer_norm, numbers=("eps",))
def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-05, cudnn_enable=True):
    dims = tuple(range(-len(normalized_shape), 0))
    if tuple(input.shape[dims[0] :]) != tuple(normalized_shape):
        raise RuntimeError
    centred = input - input.mean(dims, keepdim=True)
    result = centred * torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


@_form(torch.rms_norm, numbers=("eps",))
def _rms_norm(input, normalized_shape, weight=None, eps=None):
    dims = tuple(range(-len(normalized_shape), 0))
    if tuple(input.shape[dims[0] :]) != tuple(normalized_shape):
        raise RuntimeError
    result = input * torch.rsqrt((input * input).mean(dims, keepdim=True) + eps)
    return result if weight is None else result * weight


@_form(torch.batch_norm, numbers=("eps",))
def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled):
    if training or running_mean is None or input.dim() < 2:
        raise RuntimeError  # statistics of the batch: the kernel's
    shape = [1, -1] + [1] * (input.dim() - 2)
    result = (input - running_mean.view(shape)) * torch.rsqrt(running_var + eps).view(shape)
    result = result if weight is None else result * weight.view(shape)
    return result if bias is None else result + bias.view(shape)


# --- losses
def _reduced(loss, reduction):
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@_form(_nn.huber_loss, numbers=("delta",))
def _huber_loss(input, target, reduction=1, delta=1.0):
    if delta <= 0:
        raise RuntimeError
    apart = (input - target).abs()
    return _reduced(torch.where(apart <= delta, apart * apart * 0.5, (apart - 0.5 * delta) * delta), reduction)


@_form(_nn.smooth_l1_loss, numbers=("beta",))
def _smooth_l1_loss(input, target, reduction=1, beta=1.0):
    if beta <= 0:
        raise RuntimeError
    apart = (input - target).abs()
    return _reduced(torch.where(apart < beta, apart * apart * 0.5 / beta, apart - 0.5 * beta), reduction)


# --- diagonals and steps
@_form(torch.diagonal, method="diagonal", numbers=("offset",))
def _diagonal(input, offset=0, dim1=0, dim2=1):
    if offset >= 0:
        return input.narrow(dim2, offset, max(input.shape[dim2] - offset, 0)).diagonal(0, dim1, dim2)
    return input.narrow(dim1, -offset, max(input.shape[dim1] + offset, 0)).diagonal(0, dim1, dim2)


@_form(torch.diag_embed, method="diag_embed", numbers=("offset",))
def _diag_embed(input, offset=0, dim1=-2, dim2=-1):
    if (dim1, dim2) != (-2, -1):
        raise RuntimeError
    n = input.shape[-1] + abs(offset)
    made = input.new_zeros((*input.shape[:-1], n, n))
    made.diagonal(offset, -2, -1).copy_(input)
    return made


@_form(torch.diag, method="diag", numbers=("diagonal",))
def _diag(input, diagonal=0):
    return (
        torch.diag_embed(input, diagonal)
        if input.dim() == 1
        else input.diagonal(diagonal).clone(memory_format=torch.contiguous_format)
    )


@_form(torch.linspace, numbers=("start", "end", "steps"))
def _linspace(start, end, steps, *, dtype=None, device=None, requires_grad=False):
    if requires_grad or steps < 2 or dtype is not None and not dtype.is_floating_point:
        raise RuntimeError
    i = torch.arange(steps, dtype=dtype or torch.get_default_dtype(), device=device)
    step = (end - start) / (steps - 1)
    return torch.where(i < steps // 2, i * step + start, end - (steps - 1 - i) * step)
