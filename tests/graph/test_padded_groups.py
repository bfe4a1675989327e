"""Convolutions in groups of an odd width are padded on a GPU: the same values, in the joint graph too."""

from __future__ import annotations

from typing import Any, Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import tcompile
from tcompile.compiler.autograd import joint as joint_module
from tcompile.compiler.errors import InternalError

pytest.importorskip("triton")

from ..codegen.triton.as_gpu import _Made, as_gpu, check_as_gpu, turn  # noqa: E402

aten = torch.ops.aten


def values(graph: torch.fx.Graph, inputs: list[torch.Tensor]) -> list:
    class Reshaping(torch.fx.Interpreter):  # (a view of what is laid otherwise by now copies)
        def call_function(self, target: Any, args: tuple, kwargs: dict) -> Any:
            if target is aten.view.default:
                return args[0].reshape(args[1])
            kwargs = {k: v for k, v in kwargs.items() if k != "device"}
            return super().call_function(target, args, kwargs)

    return list(Reshaping(torch.fx.GraphModule({}, graph)).run(*inputs))


def joint_values(f: Callable, *args: torch.Tensor) -> tuple[list, list, list[torch.fx.Node]]:
    """What the joint graph of f gives before the passes of a GPU, and after them; its convolutions after them."""
    found: list[Any] = []

    def parted(joint: Any, *rest: Any, **options: Any) -> Any:
        before = torch.fx.Graph()
        before.output(before.graph_copy(joint.graph, {}))
        metas = [n.meta["val"] for n in joint.graph.nodes if n.op == "placeholder"]
        torch.manual_seed(0)
        inputs = [torch.randn(m.shape, dtype=m.dtype).as_strided(m.shape, m.stride) for m in metas]
        found.append(values(before, inputs))
        turn(joint)
        found.append(values(joint.graph, inputs))
        found.append([n for n in joint.graph.nodes if "convolution" in str(n.target)])
        raise _Made

    with mock.patch.object(joint_module, "partition", parted), pytest.raises(InternalError):
        tcompile.compile(f)(*args)
    return tuple(found)


@pytest.mark.parametrize("cin, cout", [(20, 24), (24, 32), (32, 24)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_inference_equals_eager(cin, cout, dtype) -> None:
    def f(x, first, w):
        y = F.conv2d(F.relu(F.conv2d(x, first, padding=1)), w, padding=1, groups=2)
        return (y * y.sigmoid()).mean((2, 3)), F.relu(y)

    # (one tap would leave the library the order of the image, and images in groups follow that)
    x, first = torch.randn(2, 16, 9, 8, dtype=dtype), torch.randn(2 * cin, 16, 3, 3, dtype=dtype) * 0.04
    g = check_as_gpu(f, x, first, torch.randn(2 * cout, cin, 3, 3, dtype=dtype) * 0.1, rtol=4e-2, atol=4e-2)
    widths = [
        tuple(s.args[1].shape[:2]) for s in g.schedule.steps if getattr(s, "op", None) is aten.convolution.default
    ]
    assert (64, 32) in widths


@pytest.mark.parametrize("groups, width", [(2, 16), (32, 1), (4, 8), (1, 24)])
def test_widths_that_the_library_takes_are_left(groups, width) -> None:
    def f(x, first, w):
        return F.relu(F.conv2d(F.relu(F.conv2d(x, first)), w, padding=1, groups=groups))

    c = groups * width
    shapes = ((2, 16, 9, 8), (c, 16, 1, 1), (c, width, 3, 3))
    g = as_gpu(f, *(torch.randn(s, dtype=torch.float16) for s in shapes))
    widths = [
        tuple(s.args[1].shape[:2]) for s in g.schedule.steps if getattr(s, "op", None) is aten.convolution.default
    ]
    assert widths[-1] == (c, width)


def test_float32_and_results_of_the_graph() -> None:
    w = torch.randn(48, 24, 3, 3)

    def f(x, w):
        return F.conv2d(x, w, padding=1, groups=2)

    for dtype in (torch.float32, torch.float16):
        x = torch.randn(2, 48, 5, 7).to(dtype).contiguous(memory_format=torch.channels_last)
        check_as_gpu(f, x, w.to(dtype), rtol=4e-2, atol=4e-1)


def test_gradients_of_image_and_weight() -> None:
    first = (torch.randn(40, 16, 1, 1, dtype=torch.bfloat16) * 0.1).requires_grad_()
    w = (torch.randn(48, 20, 3, 3, dtype=torch.bfloat16) * 0.1).requires_grad_()
    last = (torch.randn(48, 24, 3, 3, dtype=torch.bfloat16) * 0.1).requires_grad_()

    def f(x, first, w, last):
        y = F.conv2d(F.relu(F.conv2d(x, first)), w, padding=1, groups=2).relu()
        return F.conv2d(y, last, padding=1, stride=2, groups=2).float().square().mean()

    before, after, convolutions = joint_values(f, torch.randn(2, 16, 9, 8, dtype=torch.bfloat16), first, w, last)
    for a, b in zip(before, after, strict=True):
        torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)
    backward = [n for n in convolutions if n.target is aten.convolution_backward.default]
    assert [tuple(n.args[2].meta["val"].shape[:2]) for n in backward[:2]] == [(64, 32)] * 2
