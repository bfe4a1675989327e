"""What torch's composite operators choose on CUDA is recorded as operators that have rules and decompositions."""

import pytest
import torch

from tcompile.compiler.graph.tensor import recording, trace_tensor_like

aten = torch.ops.aten


class Heard:
    def __init__(self):
        self.ops = []

    def record(self, info, args, kwargs, out):
        self.ops.append(info.op)


def traced(f, *tensors):
    heard = Heard()
    with recording(heard), torch.no_grad():
        out = f(*[trace_tensor_like(t) for t in tensors])
    return out, heard.ops


def test_batch_norm():
    x, c = torch.randn(4, 8, 5, 5), torch.rand(8)
    out, ops = traced(lambda x, w, b, m, v: aten.cudnn_batch_norm(x, w, b, m, v, True, 0.1, 1e-5), x, c, c, c, c)
    assert ops[0] is aten.native_batch_norm.default
    assert [tuple(t.shape) for t in out] == [(4, 8, 5, 5), (8,), (8,), (0,)] and out[3].dtype == torch.uint8
    out, ops = traced(lambda x, g, w, m: aten.cudnn_batch_norm_backward(x, g, w, m, m, m, m, 1e-5, m), x, x, c, c)
    assert ops == [aten.native_batch_norm_backward.default]
    assert [tuple(t.shape) for t in out] == [(4, 8, 5, 5), (8,), (8,)]


def test_batch_norm_of_a_gpu_compiles_as_one_graph():
    """The composite operator on a machine with a GPU; here the call that it makes."""
    import tcompile

    def f(x, w, b, m, v):
        return torch.relu(aten.cudnn_batch_norm(x, w, b, m, v, True, 0.1, 1e-5)[0])

    args = [torch.randn(4, 8, 5, 5), torch.rand(8), torch.rand(8), torch.rand(8), torch.rand(8)]
    want_m, want_v = args[3].clone(), args[4].clone()
    want = torch.relu(torch.nn.functional.batch_norm(args[0], want_m, want_v, args[1], args[2], True, 0.1, 1e-5))
    torch.testing.assert_close(tcompile.compile(f, fullgraph=True)(*args), want)
    torch.testing.assert_close(args[3:], [want_m, want_v])


@pytest.mark.parametrize("op, n", [(aten.cudnn_grid_sampler, 2), (aten.cudnn_grid_sampler_backward, 3)])
def test_grid_sampler(op, n):
    args = [torch.randn(2, 3, 8, 8), torch.rand(2, 6, 6, 2), torch.rand(2, 3, 6, 6)][:n]
    out, ops = traced(op, *args)
    assert [o.name().rpartition("::")[2] for o in ops] == ["grid_sampler_2d" + "_backward" * (n == 3)]
    shapes = [tuple(t.shape) for t in out] if n == 3 else tuple(out.shape)
    assert shapes == ([(2, 3, 8, 8), (2, 6, 6, 2)] if n == 3 else (2, 3, 6, 6))
