"""The closed set: what operators may stand in an AtenGraph after decomposition, and what they mean exactly.

Operands of element-wise operators have been brought to one dtype by explicit casts (`_to_copy`); Python numbers and
size expressions beside them are taken in that dtype (float16/bfloat16: in float32, in which such operators compute
before they round once). Shapes broadcast. Views may be applied to values of any layout: `view` means "the same elements
in row-major order in another shape".

Every other operator that still stands in the graph is *extern*: lowering calls torch's kernel. Those of LIBRARY are
expected (products, convolutions, sorts, ...); the rest is counted as a fallback.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from . import messages

__all__ = [
    "POINTWISE",
    "REDUCTIONS",
    "VIEWS",
    "DATA_MOVEMENT",
    "FACTORIES",
    "CUSTOM",
    "LIBRARY",
    "OPSET",
    "is_extern",
    "contents_of_empty",
    "gives_views",
    "extern_reason",
    "NO_RULE",
    "takes_any_layout",
]

aten = torch.ops.aten

# one element of the result from one element of each operand; the name is that of the IR primitive
# (lowering/primitives.py)
POINTWISE: dict[Any, str] = {
    **{
        getattr(aten, n).default: n
        for n in """neg abs sign reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin
        acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma sigmoid floor ceil round trunc frac relu isnan isinf
        signbit logical_not bitwise_not logical_and logical_or logical_xor maximum minimum fmax fmin atan2 hypot
        nextafter""".split()
    },
    aten.add.Tensor: "add",  # without alpha
    aten.sub.Tensor: "sub",  # without alpha
    aten.mul.Tensor: "mul",
    aten.div.Tensor: "div",  # true division; operands are floats
    aten.div.Tensor_mode: "div_mode",  # rounding_mode "trunc" -> div_trunc, "floor" -> div_floor
    aten.remainder.Tensor: "remainder",
    aten.remainder.Scalar: "remainder",
    aten.fmod.Tensor: "fmod",
    aten.fmod.Scalar: "fmod",
    aten.pow.Tensor_Tensor: "pow",
    aten.pow.Tensor_Scalar: "pow",
    aten.pow.Scalar: "pow",
    aten.copysign.Tensor: "copysign",
    aten.copysign.Scalar: "copysign",
    **{getattr(getattr(aten, n), o): n for n in ("eq", "ne", "lt", "le", "gt", "ge") for o in ("Tensor", "Scalar")},
    **{
        getattr(aten, n).Tensor: n
        for n in ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift")
    },
    **{getattr(aten, n).Scalar: n for n in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{getattr(aten, n).Tensor_Scalar: n for n in ("bitwise_left_shift", "bitwise_right_shift")},
    aten.where.self: "where",  # where(cond, a, b), a and b tensors of one dtype
    aten._to_copy.default: "cast",  # dtype= only; with device= it is extern
    aten.clone.default: "clone",  # the same values in fresh memory with exactly the strides of meta["val"]
}

# dims are a list of non-negative ints, never empty; values are reduced in the operand's dtype
REDUCTIONS: dict[Any, str] = {
    aten.sum.dim_IntList: "sum",  # (x, dims, keepdim)
    aten.prod.dim_int: "prod",  # (x, dim, keepdim)
    aten.amax.default: "max",  # (x, dims, keepdim); NaN wins
    aten.amin.default: "min",
    aten.any.dim: "any",  # (x, dim, keepdim), x bool
    aten.all.dim: "all",
    aten.argmax.default: "argmax",  # (x, dim, keepdim): first of equals; NaN wins; x has that one dimension
    aten.argmin.default: "argmin",
    aten.var_mean.correction: "welford",  # (x, dims, correction=number, keepdim=bool) -> (var, mean); x float32/64
}

VIEWS: dict[Any, str] = {
    aten.view.default: "view",  # (x, shape); no -1
    aten.permute.default: "permute",  # (x, dims); non-negative
    aten.expand.default: "expand",  # (x, shape); no -1
    aten.slice.Tensor: "slice",  # (x, dim, start, end, step): 0 <= start <= end <= size, step int > 0
    aten.select.int: "select",  # (x, dim, index): 0 <= index < size
    aten.squeeze.dims: "squeeze",  # (x, dims): dimensions of size 1
    aten.unsqueeze.default: "unsqueeze",  # (x, dim): non-negative
    aten.diagonal.default: "diagonal",  # (x, offset, dim1, dim2)
    aten.unfold.default: "unfold",  # (x, dim, size, step)
    aten.as_strided.default: "as_strided",  # (x, size, stride, offset): x is laid out as its meta["val"] says
    aten.view.dtype: "bitcast",  # (x, dtype): the same bits
    aten.view_as_real.default: "view_as_real",  # (x): complex to pairs
    aten.view_as_complex.default: "view_as_complex",  # (x): pairs to complex; x's last stride is 1
}

DATA_MOVEMENT: dict[Any, str] = {
    aten.cat.default: "cat",  # (xs, dim): at least two, none of size 0 in one dimension only
    aten.gather.default: "gather",  # (x, dim, index): 0 <= index < size
    aten.index.Tensor: "index",  # (x, [index or None, ...]): int64 indices, -size <= index < size
    aten.index_select.default: "index_select",  # (x, dim, index): int64 indices in one dimension, 0 <= index < size
    aten.embedding.default: "embedding",  # (weight, index): int64, 0 <= index < rows
    aten.slice_scatter.default: "slice_scatter",  # (x, src, dim, start, end, step), as slice
    aten.select_scatter.default: "select_scatter",  # (x, src, dim, index), as select
    aten.constant_pad_nd.default: "pad",  # (x, pad, value); pad may be negative
    aten.flip.default: "flip",  # (x, dims)
}

FACTORIES: dict[Any, str] = {
    aten.full.default: "full",  # (shape, number); dtype=, device=
    aten.arange.start_step: "iota",  # (start, end, step); dtype=, device=: start + i * step
}

# What is left to a library's kernel by choice, and why, as reports say it. A rule may still take some of the calls.
# Whatever else has no rule is a fallback.
LIBRARY: dict[str, str] = {
    **dict.fromkeys(
        """mm bmm addmm baddbmm addbmm mv addmv dot vdot linear _int_mm _addmm_activation _linear_pointwise
        _grouped_mm _scaled_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int8pack_mm""".split(),
        "matrix product",
    ),
    **dict.fromkeys("convolution _convolution convolution_backward mkldnn_convolution".split(), "convolution"),
    **dict.fromkeys(
        """
            _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
            _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
            _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_backward
            _scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward
            _scaled_dot_product_flash_attention_for_cpu_backward scaled_dot_product_attention
            dropout_attention dropout_attention_backward""".split(),
        "attention",
    ),
    **dict.fromkeys("_linalg_check_errors _assert_async _assert_scalar".split(), "check of values"),
    **dict.fromkeys("sort topk kthvalue median nanmedian mode searchsorted bucketize argsort".split(), "sort"),
    **dict.fromkeys("cumsum cumprod cummax cummin logcumsumexp".split(), "scan"),
    **dict.fromkeys(
        """scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy index_reduce
        masked_scatter embedding_dense_backward put as_strided_scatter diagonal_scatter""".split(),
        "scattered writes",
    ),
    **dict.fromkeys(
        """max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d _adaptive_avg_pool2d
        _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d max_pool2d_with_indices_backward
        max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d
        fractional_max_pool3d fractional_max_pool2d_backward fractional_max_pool3d_backward""".split(),
        "pooling",
    ),
    **dict.fromkeys(
        """rand randn randint rand_like randn_like randint_like bernoulli native_dropout normal normal_functional
        uniform random multinomial randperm exponential geometric cauchy log_normal keep_bits""".split(),
        "random numbers",
    ),
    **dict.fromkeys(
        """upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d
        upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d im2col
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
        upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward
        upsample_trilinear3d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward
        grid_sampler_2d_backward grid_sampler_3d_backward col2im""".split(),
        "resampling",
    ),
    **dict.fromkeys(
        (f"{kind}_pad{n}d_backward" for kind in ("reflection", "replication") for n in (1, 2, 3)), "padding at edges"
    ),
    **dict.fromkeys("histc bincount".split(), "counting"),
    **dict.fromkeys("_cdist_forward _cdist_backward _pdist_forward _pdist_backward".split(), "distances"),
    **dict.fromkeys("_fft_r2c _fft_c2c _fft_c2r".split(), "Fourier transform"),
    **dict.fromkeys(
        """_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky cholesky_inverse
        cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
        linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr
        linalg_solve_triangular lu_unpack ormqr triangular_solve""".split(),
        "linear algebra",
    ),
    **dict.fromkeys(
        """all_reduce all_reduce_ all_reduce_coalesced all_gather_into_tensor all_gather_into_tensor_coalesced
        reduce_scatter_tensor reduce_scatter_tensor_coalesced all_to_all_single broadcast broadcast_ wait_tensor
        send receive gather_to scatter_from reduce_to barrier""".split(),
        "exchange between processes",
    ),
}
NO_RULE = "no lowering rule"
CUSTOM = "custom operator"  # of the program's or of its libraries': called as it is, which is what it is for
_OURS = (
    *("aten", "prims", "mkldnn", "quantized", "_c10d_functional", "c10d", "_c10d_functional_autograd", "tcompile"),
    messages.SPACE,
)
# Of LIBRARY, those that are no part of torch's public interface, or may go on to such.
_PRIVATE = frozenset("linear _int_mm _linear_pointwise mkldnn_convolution scaled_dot_product_attention".split())

_PRODUCTS_BY_ROWS = frozenset(("_grouped_mm", "_scaled_mm"))
_MASKS = frozenset(("attn_mask", "attn_bias"))  # parameters of attention whose operands lowering lays out by itself

OPSET = frozenset({*POINTWISE, *REDUCTIONS, *VIEWS, *DATA_MOVEMENT, *FACTORIES, operator.getitem})


def is_extern(node: torch.fx.Node) -> bool:
    """Whether a call_function node is run by torch's own kernel."""
    if node.target is aten._to_copy.default:
        return "device" in node.kwargs
    return node.target not in OPSET


def contents_of_empty(dtype: torch.dtype) -> float:
    """What stands in memory without contents. Zeros are as good as anything, and the same each time; deterministic
    algorithms fill it with NaN or the greatest integer, to be noticed."""
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not (filled and torch.are_deterministic_algorithms_enabled()):
        return 0
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def gives_views(op: Any) -> bool:
    """Whether a result of an operator shares memory with an argument, by its schema."""
    return isinstance(op, torch._ops.OpOverload) and any(r.alias_info is not None for r in op._schema.returns)


def extern_reason(op: Any) -> str:
    """Why an operator is extern: "matrix product", ...; CUSTOM for those of other packages, NO_RULE for what nobody
    expected.
    """
    namespace, _, name = op._schema.name.partition("::")
    return LIBRARY.get(name, NO_RULE) if namespace in _OURS else CUSTOM


def takes_any_layout(op: Any) -> bool:
    """Whether an extern operator is known to read its operands wherever they lie. Those that are no part of torch's
    public interface may take contiguous operands for granted (mkldnn_rnn_layer does)."""
    return extern_reason(op) not in (CUSTOM, NO_RULE) and op._schema.name.partition("::")[2] not in _PRIVATE


def rows_read(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands of an extern operator whose rows (their last dimension) have to lie in one piece each. Attention's
    kernels read others wrongly, without a word; some products refuse them."""
    op: Any = node.target
    if extern_reason(op) != "attention" and op._schema.name.partition("::")[2] not in _PRODUCTS_BY_ROWS:
        return []
    given = {arg.name: value for arg, value in zip(op._schema.arguments, node.args)} | node.kwargs
    return [value for name, value in given.items() if name not in _MASKS and isinstance(value, torch.fx.Node)]
