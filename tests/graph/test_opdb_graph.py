"""The op_db oracle over the graph stage: recorded, decomposed and cleaned graphs, run with torch's kernels, equal
eager.

TCOMPILE_OPDB=all runs every operator of op_db (a minute per dtype) instead of the common ones."""

from __future__ import annotations

import os

import pytest
import torch
from tcompile.compiler.graph.tensor import DataDependentError
from tcompile.compiler.graph.aten_interpreter import interpret
from tests.graph.helpers import compiled, graph_of
from tests.oracles.opdb import COMMON, check, op_infos

ALL = os.environ.get("TCOMPILE_OPDB") == "all"
MORE = """
    div.no_rounding_mode div.floor_rounding div.trunc_rounding rsub remainder fmod floor_divide addcmul lerp
    bitwise_and logical_not isnan isinf nan_to_num logsumexp linalg.vector_norm norm any all argmin
    min.reduction_with_dim max.reduction_with_dim aminmax var_mean std_mean count_nonzero cumprod sort
    nn.functional.leaky_relu nn.functional.elu nn.functional.hardswish nn.functional.hardsigmoid nn.functional.mish
    nn.functional.softplus nn.functional.relu6 nn.functional.hardtanh nn.functional.threshold nn.functional.hardshrink
    nn.functional.softshrink nn.functional.logsigmoid nn.functional.glu nn.functional.prelu nn.functional.celu
    nn.functional.selu nn.functional.smooth_l1_loss nn.functional.huber_loss nn.functional.binary_cross_entropy
    nn.functional.nll_loss nn.functional.kl_div nn.functional.instance_norm nn.functional.rms_norm
    nn.functional.pad.constant nn.functional.conv2d nn.functional.max_pool2d nn.functional.avg_pool2d
    nn.functional.adaptive_avg_pool2d nn.functional.interpolate.nearest nn.functional.scaled_dot_product_attention
    nn.functional.dropout nn.functional.normalize nn.functional.cosine_similarity nn.functional.one_hot
    nn.functional.unfold nn.functional.pixel_shuffle baddbmm addmv mv dot einsum inner outer hstack vstack repeat tile
    broadcast_to diagonal unbind unfold narrow select slice as_strided select_scatter slice_scatter diagonal_scatter
    index_put scatter scatter_add take triu eye full arange zeros_like full_like new_full empty_like clone contiguous
    to copysign nextafter atan2 hypot logaddexp logit square sgn signbit frac trunc round floor ceil""".split()
NAMES = [n for n in dict.fromkeys([*COMMON, *MORE]) if n in op_infos()] if not ALL else list(op_infos())

# What the graph stage does not agree with eager on, and why.
KNOWN = {
    "empty_strided": "results that overlap themselves",
    "new_empty_strided": "results that overlap themselves",
    "sparse.sampled_addmm": "sparse",
    "sparse.mm.reduce": "sparse",
}


_SLOW = (torch.int64, torch.bfloat16, torch.bool)
DTYPES = (torch.float32, *(pytest.param(d, marks=pytest.mark.slow) for d in _SLOW))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("name", NAMES)
def test_graph_equals_eager(name: str, dtype: torch.dtype) -> None:
    info = op_infos()[name]
    if dtype not in info.dtypes:
        pytest.skip(f"no {dtype}")
    if dtype not in (torch.float32, torch.bfloat16) and not ALL and name.startswith("nn."):
        pytest.skip("floats say enough")
    if name in KNOWN:
        pytest.skip(KNOWN[name])
    out = check(
        info,
        dtype,
        compiled,
        refusals=(NotImplementedError, DataDependentError),
        limit=60 if ALL else 10 if dtype is torch.float32 else 5,
    )
    assert out.ok, "\n".join(out.failed[:5])
    if not ALL:
        assert not [r for r in out.refused if "DataDependent" not in r], out.refused[:3]


def compiled_symbolic(fn, tensors):
    """Every dimension of size 2 and more is a symbol; what tracing guarded must hold for the sizes it saw."""
    a = graph_of(fn, tensors, {i: range(t.dim()) for i, t in enumerate(tensors)})
    for g in a.env.guards:
        assert g[0].eval(a.env.hints) is True, g
    return lambda *xs: interpret(a, list(xs))


_SYMBOLIC = [n for n in COMMON if n in op_infos()]


@pytest.mark.parametrize("name", _SYMBOLIC if not ALL else NAMES)
def test_graph_with_symbolic_sizes_equals_eager(name: str) -> None:
    out = check(
        op_infos()[name],
        torch.float32 if torch.float32 in op_infos()[name].dtypes else torch.int64,
        compiled_symbolic,
        refusals=(NotImplementedError, DataDependentError),
        limit=8,
    )
    assert out.ok, "\n".join(out.failed[:5])


def test_common_names_exist() -> None:
    missing = [n for n in COMMON if n not in op_infos()]
    assert len(missing) <= 2, missing
