"""The operators that an exported program may call: a closed list by name.

An operator is here if it is safe for any arguments. It checks indices, sizes and types itself, and reads and writes its
tensors' memory alone. It touches no file and no state of the process, and takes time in proportion to its tensors. What
is not:

    storages                    set_, resize_, _reinterpret_tensor, from_file, frombuffer, data_ptr, storage
    layouts that trust indices  sparse, nested, quantized and mkldnn tensors, and all that makes or reads them
    indices that none checks    lu_solve, ldl_solve, ctc_loss, gradients of pooling by indices, aten's private operators
    loops by a number           the orthogonal polynomials of torch.special
    the process                 manual_seed, set_default_dtype, record_stream, apply_, register_hook

`x_` is the change in place of `x`. Custom operators are called only where the loading program names them.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Iterator, Mapping, Sequence

from ..errors import ExportError

__all__ = [
    "is_listed",
    "base_name",
    "check_sizes",
    "NUMBERS",
    "SEVERAL",
    "NATIVE_SEVERAL",
    "WINDOWS",
    "SCALES",
    "LARGEST",
]

LARGEST = 2**32  # elements that a call's constants may ask for


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE = _names("""
    abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh asin asinh
    atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp
    clamp_max clamp_min clip complex conj conj_physical copysign cos cosh deg2rad digamma div divide eq erf erfc
    erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal gt
    heaviside hypot i0 igamma igammac imag isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp
    less less_equal lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit lt maximum minimum mul multiply mvlgamma nan_to_num ne neg negative nextafter not_equal polar polygamma
    positive pow rad2deg real reciprocal remainder round rsqrt rsub sgn sigmoid sign signbit sin sinc sinh sqrt square
    sub subtract tan tanh true_divide trunc where xlogy airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 entr erfcx
    expit gammainc gammaincc gammaln i0e i1 i1e log_ndtr modified_bessel_i0 modified_bessel_i1 modified_bessel_k0
    modified_bessel_k1 multigammaln ndtr ndtri psi scaled_modified_bessel_k0 scaled_modified_bessel_k1
    spherical_bessel_j0 xlog1py zeta and or xor iand ior ixor lshift rshift ilshift irshift invert truediv floordiv
    mod radd rmul rdiv rtruediv rfloordiv rpow rmod rmatmul ror rxor rlshift rrshift iadd isub imul idiv itruediv
    ifloordiv imod ipow""")
_REDUCTIONS = _names("""
    all allclose amax amin aminmax any argmax argmin argsort argwhere bincount bucketize corrcoef count_nonzero cov
    cummax cummin cumprod cumsum cumulative_trapezoid diff dist equal frobenius_norm gradient histc histogram
    histogramdd isin kthvalue logcumsumexp logsumexp max mean median min mode msort nanmean nanmedian nanquantile
    nansum native_norm nonzero nonzero_static norm norm_except_dim nuclear_norm prod quantile renorm searchsorted sort
    std std_mean sum sum_to_size topk trapezoid trapz unique unique_consecutive var var_mean""")
_LAYOUT = _names("""
    adjoint alias_copy as_strided as_strided_copy as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag
    broadcast_tensors broadcast_to cat channel_shuffle chunk column_stack concat concatenate constant_pad_nd
    contiguous detach detach_copy diag diag_embed diagflat diagonal diagonal_copy diagonal_scatter dsplit dstack
    expand expand_as expand_copy flatten flip fliplr flipud hsplit hstack meshgrid moveaxis movedim narrow narrow_copy
    permute permute_copy pixel_shuffle pixel_unshuffle ravel repeat repeat_interleave reshape reshape_as resolve_conj
    resolve_neg roll rot90 row_stack select select_copy select_scatter slice slice_copy slice_inverse slice_scatter
    split split_copy split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack swapaxes swapdims t t_copy
    take_along_dim tensor_split tile transpose transpose_copy unbind unbind_copy unflatten unfold unfold_copy
    unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy view view_as view_as_complex
    view_as_complex_copy view_as_real view_as_real_copy view_copy vsplit vstack""")
_INDICES = _names(
    """
        gather getitem index index_add index_copy index_fill index_put index_reduce index_select masked_fill
        masked_scatter masked_select put scatter scatter_add scatter_reduce setitem take tril tril_indices triu
        triu_indices unravel_index fill fill_diagonal zero copy"""
)
_PRODUCTS = _names("""
    addbmm addmm addmv addr baddbmm bilinear bmm cartesian_prod cdist chain_matmul combinations cosine_similarity
    cross dot einsum ger inner kron matmul mm mv outer pairwise_distance pdist tensordot trace vander vdot imatmul
    linear cholesky cholesky_ex cholesky_inverse cholesky_solve cond det eig eigh eigvals eigvalsh geqrf
    householder_product inv inv_ex inverse ldl_factor ldl_factor_ex logdet lstsq lu lu_factor lu_factor_ex lu_unpack
    matrix_exp matrix_norm matrix_power matrix_rank multi_dot orgqr ormqr pinv pinverse qr slogdet solve solve_ex
    solve_triangular svd svdvals tensorinv tensorsolve triangular_solve vecdot vector_norm fft fft2 fftfreq fftn
    fftshift hfft hfft2 hfftn ifft ifft2 ifftn ifftshift ihfft ihfft2 ihfftn irfft irfft2 irfftn rfft rfft2 rfftfreq
    rfftn stft istft""")
_NETWORKS = _names("""
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices
    adaptive_max_pool3d_with_indices affine_grid affine_grid_generator alpha_dropout avg_pool1d avg_pool2d avg_pool3d
    batch_norm binary_cross_entropy binary_cross_entropy_with_logits celu col2im conv1d conv2d conv3d conv_tbc
    conv_transpose1d conv_transpose2d conv_transpose3d convolution cosine_embedding_loss cross_entropy
    cross_entropy_loss dropout dropout1d dropout2d dropout3d elu embedding embedding_bag feature_alpha_dropout
    feature_dropout fold gaussian_nll_loss gelu glu grid_sample grid_sampler grid_sampler_2d grid_sampler_3d
    group_norm gru gru_cell gumbel_softmax hardshrink hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss
    im2col instance_norm interpolate kl_div l1_loss layer_norm leaky_relu linear_cross_entropy local_response_norm
    log_sigmoid log_softmax logsigmoid lp_pool1d lp_pool2d lp_pool3d lstm lstm_cell margin_ranking_loss max_pool1d
    max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d
    max_unpool2d max_unpool3d mish mse_loss multi_head_attention_forward multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss native_dropout native_group_norm native_layer_norm nll_loss nll_loss2d nll_loss_nd
    normalize one_hot pad pad_sequence poisson_nll_loss prelu reflection_pad1d reflection_pad2d reflection_pad3d relu
    relu6 replication_pad1d replication_pad2d replication_pad3d rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
    rrelu scaled_dot_product_attention selu silu smooth_l1_loss soft_margin_loss softmax softmin softplus softshrink
    softsign tanhshrink threshold triplet_margin_loss triplet_margin_with_distance_loss upsample upsample_bicubic2d
    upsample_bilinear upsample_bilinear2d upsample_linear1d upsample_nearest upsample_nearest1d upsample_nearest2d
    upsample_nearest3d upsample_trilinear3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d""")
_MADE = _names("""
    arange as_tensor bartlett_window bernoulli blackman_window clone cauchy empty empty_like empty_permuted
    empty_strided exponential eye full full_like geometric hamming_window hann_window kaiser_window linspace
    log_normal logspace multinomial new new_empty new_empty_strided new_full new_ones new_tensor new_zeros normal ones
    ones_like poisson rand rand_like randint randint_like randn randn_like random randperm range scalar_tensor tensor
    uniform zeros zeros_like""")
_CONVERSIONS = _names("""
    bfloat16 bool byte cdouble cfloat chalf char cpu cuda double float half int long short to type type_as detach
    requires_grad lift lift_fresh lift_fresh_copy alias""")
# What torch's own modules and torch-level graphs call beyond the public names.
_INTERNAL = _names(
    """
        _to_copy _unsafe_view _softmax _safe_softmax _log_softmax _weight_norm _standard_gamma _sample_dirichlet
        _shape_as_tensor"""
)
# What gives Python numbers or facts, and no tensor.
NUMBERS = _names("""
    size stride storage_offset dim ndimension numel nelement element_size len is_complex is_floating_point
    is_contiguous is_signed is_same_size is_conj is_neg is_nonzero get_device can_cast promote_types result_type
    broadcast_shapes sym_min sym_max sym_int sym_not sym_float sym_sqrt allclose equal""")
# What gives several tensors, always or where it is told a dimension or asked for indices.
SEVERAL = _names("""
    split split_copy split_with_sizes split_with_sizes_copy chunk unbind unbind_copy tensor_split hsplit vsplit dsplit
    unsafe_chunk unsafe_split unsafe_split_with_sizes broadcast_tensors meshgrid topk sort kthvalue mode cummax cummin
    aminmax frexp std_mean var_mean histogram histogramdd gradient unique unique_consecutive slogdet eig eigh svd qr
    lu lu_factor lu_factor_ex ldl_factor ldl_factor_ex cholesky_ex inv_ex solve_ex geqrf lstsq lu_unpack
    triangular_solve lstm gru rnn_tanh rnn_relu native_layer_norm native_group_norm native_dropout
    multi_head_attention_forward max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices""")
# The same of native functions that torch.nn.functional wraps in what gives one.
NATIVE_SEVERAL = _names("embedding_bag adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d lstm_cell")
_OPERATORS = (
    _ELEMENTWISE | _REDUCTIONS | _LAYOUT | _INDICES | _PRODUCTS | _NETWORKS | _MADE | _CONVERSIONS | _INTERNAL | NUMBERS
)
_OF_LISTS = _ELEMENTWISE | _names("norm copy zero max")  # torch._foreach_x: x of every tensor of a list

# Calls whose numbers are sizes. Of those in `_VALUES` that holds for lists alone: their other numbers are values.
_SIZED = _MADE | _names("""
    as_strided as_strided_copy unfold unfold_copy istft expand expand_copy broadcast_to repeat tile repeat_interleave
    pad constant_pad_nd one_hot nonzero_static bincount vander tril_indices triu_indices fold col2im interpolate
    upsample affine_grid affine_grid_generator fftfreq rfftfreq combinations mvlgamma multigammaln fft ifft rfft irfft
    hfft ihfft fft2 ifft2 rfft2 irfft2 hfft2 ihfft2 fftn ifftn rfftn irfftn hfftn ihfftn histc histogram histogramdd
    stft istft adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
    adaptive_max_pool3d""")
_VALUES = _names("""
    full new_full full_like randint randint_like random uniform normal tensor scalar_tensor as_tensor new_tensor
    log_normal cauchy exponential geometric bernoulli pad constant_pad_nd histc""")
# Calls that compute with the numbers they are given before they look at sizes: windows, their steps and margins,
# scales.
WINDOWS = _names("""
    avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
    max_pool3d_with_indices max_unpool1d max_unpool2d max_unpool3d lp_pool1d lp_pool2d lp_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d conv1d conv2d
    conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution fold unfold im2col col2im
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
    pixel_shuffle pixel_unshuffle channel_shuffle local_response_norm stft istft native_group_norm group_norm
    matrix_power""")  # (of the smallest whole number it never ends)
SCALES = _names("""
    interpolate upsample upsample_bilinear upsample_nearest upsample_bicubic2d upsample_bilinear2d upsample_linear1d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d _upsample_bicubic2d_aa
    _upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d""")


# how native functions are called that torch.linalg and others have by short names
_FAMILIES = ("_foreach_", "linalg_", "fft_", "special_")


def base_name(name: str) -> str:
    """`add` of add, add_, __add__ and _foreach_add_; `inv` of linalg_inv."""
    if name.startswith("__") and name.endswith("__"):
        return name[2:-2]
    family = next((f for f in _FAMILIES if name.startswith(f)), "")
    return name[len(family) :].removesuffix("_")


def is_listed(name: str) -> bool:
    """Whether an exported program may call the operator or method."""
    base = base_name(name)
    if name.startswith("_foreach_"):
        return base in _OF_LISTS and name != "_foreach_copy"  # which ends the process where lists differ in length
    return base in _OPERATORS


# Calls with one number that is a count: its position, its name, and how many elements it asks for.
_COUNTS: dict[str, tuple[int, str, Callable[[int], float]]] = {
    "linspace": (2, "steps", float),
    "logspace": (2, "steps", float),
    "histc": (1, "bins", float),
    "combinations": (1, "r", lambda r: 16.0 ** min(r, 64)),  # by way of all tuples of so many elements
}


def check_sizes(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """That the constants of a call ask for no more than LARGEST elements."""
    base = base_name(name)
    if base not in _SIZED:
        return
    asked: list[float]
    if base in ("arange", "range"):
        numbers = [
            v
            for v in (*args, kwargs.get("start"), kwargs.get("end"), kwargs.get("step"))
            if isinstance(v, (int, float))
        ]
        start, end, step = (*((0, *numbers) if len(numbers) < 2 else numbers), 1, 1)[:3]
        asked = [abs(end - start) / (abs(step) or 1)]
    elif base in _COUNTS:
        at, keyword, of = _COUNTS[base]
        asked = [of(v) for v in (*args[at : at + 1], kwargs.get(keyword)) if isinstance(v, int)]
    elif base == "eye":
        sides = [v for v in (*args[:2], kwargs.get("n"), kwargs.get("m")) if isinstance(v, int)]
        asked = [_product(sides if len(sides) > 1 else sides * 2)]
    else:
        asked = [_product(v) for v in (*args, *kwargs.values()) if isinstance(v, (list, tuple))]
        if base not in _VALUES:
            asked.append(_product([v for v in (*args, *kwargs.values())]))
    if any(not n <= LARGEST for n in asked):
        raise ExportError(f"the file calls {name} for more than {LARGEST} elements")


def _product(values: Sequence[Any]) -> float:
    return math.prod(max(1.0, abs(float(v))) for v in _flat(values) if isinstance(v, (int, float)) and v == v)


def _flat(values: Sequence[Any]) -> Iterator[Any]:
    for value in values:
        if not isinstance(value, (list, tuple)):
            yield value
