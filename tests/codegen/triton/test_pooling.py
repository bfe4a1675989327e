"""Maximum pooling and dropout as they are lowered on a GPU."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from tcompile.compiler.fusion.schedule import Extern  # noqa: E402
from tcompile.compiler.graph.decompose.table import TABLE, Builder  # noqa: E402
from tcompile.compiler.graph.meta import TensorMeta  # noqa: E402
from tcompile.compiler.lowering.ref import contiguous_strides  # noqa: E402

from .as_gpu import as_gpu, check_as_gpu  # noqa: E402

aten = torch.ops.aten


def test_backward_of_maximum_pooling_on_a_gpu_is_left_to_its_rule():
    graph = torch.fx.Graph()

    def image(size, dtype=torch.float32):
        node = graph.placeholder("x")
        shape = (2, 3, size, size)
        node.meta["val"] = TensorMeta(shape, contiguous_strides(shape), dtype, torch.device("cuda", 0))
        return node

    args = image(4), image(8), [2, 2], [2, 2], [0, 0], [1, 1], False, image(4, torch.int64)
    taken_apart = TABLE.get(aten.max_pool2d_with_indices_backward.default)
    assert taken_apart is None or taken_apart(Builder(graph), *args) is NotImplemented


@pytest.mark.parametrize(
    "kernel, stride, padding, size",
    [(3, 2, 1, (9, 12)), (2, 2, 0, (8, 8)), (3, 1, 1, (6, 5)), ((3, 2), (2, 2), (1, 0), (8, 7))],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_backward_of_maximum_pooling(kernel, stride, padding, size, channels_last, monkeypatch):
    # (of tensors on a CPU alone)
    monkeypatch.delitem(TABLE, aten.max_pool2d_with_indices_backward.default, raising=False)
    x = torch.randn(2, 3, *size).round(decimals=1)  # some elements are equal
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    y, indices = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    g = torch.randn_like(y)

    def backward(g, x, indices):
        return (
            aten.max_pool2d_with_indices_backward(
                g,
                x,
                list(torch.nn.modules.utils._pair(kernel)),
                list(torch.nn.modules.utils._pair(stride)),
                list(torch.nn.modules.utils._pair(padding)),
                [1, 1],
                False,
                indices,
            )
            * 2
        )

    out = check_as_gpu(backward, g, x, indices)
    assert not any(isinstance(s, Extern) for s in out.schedule.steps) and len(out.kernels) == 1


def test_dropout_draws_inside_of_the_kernel_that_uses_it():
    x = torch.randn(200, 50)
    g = as_gpu(lambda x: F.dropout(torch.relu(x) + 1, 0.25, True) * 2, x, options={"fallback_random": False})
    assert [s.op for s in g.schedule.steps if isinstance(s, Extern)] == [aten.randint.low] and len(g.kernels) == 1
