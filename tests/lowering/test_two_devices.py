"""Graphs that hold tensors of a CPU and of a GPU: what is computed on the CPU, and the copies, are torch's calls.
Without a GPU: the aten graph's devices are set before lowering."""

import pytest
import torch

import tcompile
from tcompile.compiler.errors import InternalError
from tcompile.compiler.fusion.fuse import schedule
from tcompile.compiler.fusion.schedule import Extern, Launch
from tcompile.compiler.fusion.verify_schedule import verify_schedule
from tcompile.compiler.graph.meta.core import TensorMeta
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.verify_loops import verify_lowered

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
aten = torch.ops.aten


class _Made(Exception):
    pass


def moved(m, device):
    return TensorMeta(m.shape, m.stride, m.dtype, device, m.storage_offset, m.requires_grad)


def scheduled(fn, *inputs, host):
    """The schedule of fn(*inputs) where what `host(node)` says is on the CPU, all else on a GPU. A cast from one to the
    other is a copy between them."""
    made = []

    def lowering(graph, opts):
        for n in graph.graph.nodes:
            if isinstance(n.meta.get("val"), TensorMeta):
                n.meta["val"] = moved(n.meta["val"], CPU if host(n) else CUDA)
            if n.target is aten._to_copy.default and n.meta["val"].device != n.args[0].meta["val"].device:
                n.kwargs = {**n.kwargs, "device": n.meta["val"].device}
        lowered = lower(graph, opts)
        verify_lowered(lowered)
        made.append(schedule(lowered, opts))
        verify_schedule(made[0])
        raise _Made

    with tcompile.stages.replace("lowering", lowering), torch.no_grad():
        with pytest.raises(InternalError):
            tcompile.compile(fn)(*inputs)
    return made[0]


def calls(s):
    return [str(step.op) for step in s.steps if isinstance(step, Extern)]


def devices_of_kernels(s):
    return {torch.device(b.device).type for k in s.steps if isinstance(k, Launch) for b in (*k.inputs, *k.outputs)}


def test_a_batch_comes_from_the_cpu():
    s = scheduled(
        lambda x, w: torch.relu(x.double() * w).sum(),
        torch.randn(8, 16),
        torch.randn(16, dtype=torch.float64),
        host=lambda n: n.name == "x",
    )
    assert calls(s) == ["aten._to_copy.default"] and devices_of_kernels(s) == {"cuda"}


def test_what_is_computed_on_the_cpu_is_called():
    s = scheduled(
        lambda x, w: (torch.relu(x * 2).double() + w).exp(),
        torch.randn(8, 16),
        torch.randn(16, dtype=torch.float64),
        host=lambda n: n.name in ("x", "mul", "relu"),
    )
    assert calls(s) == ["aten.mul.Tensor", "aten.relu.default", "aten._to_copy.default"]
    assert devices_of_kernels(s) == {"cuda"}


def test_a_result_goes_back():
    s = scheduled(
        lambda x: (torch.relu(x).double().view(-1) + 1).sum(),
        torch.randn(8, 16),
        host=lambda n: n.meta.get("val") is not None and n.meta["val"].dtype == torch.float64,
    )
    assert [c.split(".")[1] for c in calls(s)] == ["_to_copy", "add", "sum"]
    assert devices_of_kernels(s) == {"cuda"}


def test_numbers_in_the_memory_of_the_cpu_are_brought():
    """A 0-dim tensor of the CPU beside tensors of the GPU, and indices."""
    s = scheduled(
        lambda x, rate, i: (x * rate + rate)[i],
        torch.randn(8, 16),
        torch.tensor(2.0),
        torch.tensor([1, 5]),
        host=lambda n: n.name in ("rate", "i"),
    )
    assert calls(s) == ["aten._to_copy.default"] * 2 and devices_of_kernels(s) == {"cuda"}


def test_an_input_on_the_cpu_that_is_written_is_copied_by_torch():
    def f(x, y):
        x.add_(1)
        return y * 2, x.t()

    s = scheduled(f, torch.randn(4, 4), torch.randn(4), host=lambda n: n.name in ("x", "add", "permute", "t"))
    assert devices_of_kernels(s) == {"cuda"} and "aten.add.Tensor" in calls(s)


def test_products_on_the_cpu_take_no_memory_of_the_gpu():
    s = scheduled(
        lambda x, w, y: ((x @ w).double() + (y * 2).exp().sum()).sin(),
        torch.randn(8, 8),
        torch.randn(8, 8),
        torch.randn(8, 8, dtype=torch.float64),
        host=lambda n: n.name in ("x", "w", "mm"),
    )
    mm = next(step for step in s.steps if isinstance(step, Extern) and "mm" in str(step.op))
    assert mm.out_variant is None and devices_of_kernels(s) == {"cuda"}


@pytest.mark.parametrize(
    "fn, names, called",
    [
        (lambda x: (x.relu() + 1, torch.arange(4)), "arange", "arange"),
        (lambda x: (x.relu() + 1, torch.zeros(4)), "full", "full"),
        (lambda x: (x.relu() + 1, torch.arange(4) * 2), "arange mul", "arange mul"),
        (lambda x: x.relu() + torch.full((8,), 2.0).exp(), "full exp", "full exp _to_copy"),
    ],
)
def test_what_the_cpu_makes_of_numbers_is_called(fn, names, called):
    s = scheduled(fn, torch.randn(8, 8), host=lambda n: n.name in names.split())
    assert [c.split(".")[1] for c in calls(s)] == called.split() and devices_of_kernels(s) == {"cuda"}


def test_functions_of_numbers_on_the_cpu_are_numbers():
    """As a model divides its scores by the root of a width, which it makes a tensor of the CPU."""
    s = scheduled(
        lambda x: x.relu() / torch.sqrt(torch.tensor(32.0) * 3) - torch.log(torch.tensor(15.75)),
        torch.randn(8, 8),
        host=lambda n: n.meta["val"].shape == (),
    )
    assert calls(s) == [] and devices_of_kernels(s) == {"cuda"}


def test_a_graph_of_the_cpu_may_end_on_a_gpu():
    s = scheduled(
        lambda x: (torch.relu(x) * 2 + 1).double().view(-1),
        torch.randn(8, 16),
        host=lambda n: n.meta.get("val") is not None and n.meta["val"].dtype == torch.float32,
    )
    assert calls(s) == ["aten._to_copy.default"] and devices_of_kernels(s) == {"cpu"}


def test_a_cast_behind_the_copy_is_computed_on_the_gpu():
    s = scheduled(
        lambda x: torch.relu(x).double().half(),
        torch.randn(8, 16),
        host=lambda n: n.meta.get("val") is not None and n.meta["val"].dtype == torch.float32,
    )
    assert calls(s) == ["aten.relu.default", "aten._to_copy.default"] and devices_of_kernels(s) == {"cuda"}


def test_a_tensor_on_the_gpu_is_written_from_the_cpu():
    def f(x, y):
        return torch.ops.aten.copy.default(x * 2, y) + 1

    s = scheduled(f, torch.randn(4, 4), torch.randn(4, 4, dtype=torch.float64), host=lambda n: n.name == "y")
    assert "aten._to_copy.default" in calls(s) and devices_of_kernels(s) == {"cuda"}
