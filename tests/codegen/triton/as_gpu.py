"""A function compiled as for a GPU, without one: the aten graph's device is changed before the GPU's passes and
lowering, and the kernels run through Triton's interpreter, on the CPU."""

from __future__ import annotations

import inspect
from typing import Any, Callable
from unittest import mock

import torch

import tcompile
from tcompile.compiler.autograd import joint as joint_module
from tcompile.compiler.autograd.partition import partition
from tcompile.compiler.codegen.generated import Generated
from tcompile.compiler.codegen.generate import generate_triton
from tcompile.compiler.codegen.triton.layout import GpuTarget
from tcompile.compiler.config import Options
from tcompile.compiler.errors import InternalError
from tcompile.compiler.fusion.fuse import schedule
from tcompile.compiler.fusion.verify_schedule import verify_schedule
from tcompile.compiler import rewrite
from tcompile.compiler.graph.meta.core import TensorMeta
from tcompile.compiler.lowering.lower import lower
from tcompile.compiler.lowering.verify_loops import verify_lowered

from .interpreter import SMALL, run

CUDA = torch.device("cuda", 0)
GPU_PASSES = (
    "broadcast_products",
    "turned_products",
    "attention_calls",
    "attention_gradients",
    "known_masks",
    "dropout_attention",
    "convolution_bias",
    "depthwise_gradients",
    "channels_last",
    "padded_groups",
    "pad_products",
    "bias_products",
    "merge_products",
)


class _Made(Exception):
    pass


def _turned(m: Any) -> Any:
    if isinstance(m, TensorMeta):
        return TensorMeta(m.shape, m.stride, m.dtype, CUDA, m.storage_offset, m.requires_grad)
    return type(m)(map(_turned, m)) if isinstance(m, (tuple, list)) else m


def turn(aten: Any) -> None:
    """Have a graph be one for a GPU."""
    for n in aten.graph.nodes:
        if (
            n.op == "get_attr"
            and aten.constants[n.target].ndim == 0
            or n.target is torch.ops.aten.full.default
            and n.args[0] == []
        ):
            continue
        if "val" in n.meta:
            n.meta["val"] = _turned(n.meta["val"])
        if "device" in n.kwargs:
            n.kwargs = {**n.kwargs, "device": CUDA}
    for o in aten.plan:
        o.meta = _turned(o.meta)
    for name, _, f, _ in rewrite.PASSES:
        if name in GPU_PASSES:
            f(aten)


def kinds(g: Any) -> list[str]:
    """The shapes of a graph's kernels, and the operators that are left to libraries."""
    return [k.source.choices["shape"] for k in g.kernels] + [str(s.op) for s in g.schedule.steps if hasattr(s, "op")]


def as_gpu(
    fn: Callable,
    *inputs: Any,
    target: GpuTarget = SMALL,
    options: dict | None = None,
    grad: bool = False,
    dynamic: bool = False,
) -> Generated:
    """What is generated for the first graph of fn(*inputs)."""
    made: list[Generated] = []

    def lowering(aten: Any, opts: Any) -> Any:
        turn(aten)
        lowered = lower(aten, opts)
        verify_lowered(lowered)
        s = schedule(lowered, opts)
        verify_schedule(s)
        made.append(generate_triton(s, opts, None, target))
        raise _Made

    with tcompile.stages.replace("lowering", lowering), torch.set_grad_enabled(grad):
        try:
            tcompile.compile(fn, dynamic=dynamic, options=options)(*inputs)
        except InternalError:
            assert made, "the graph did not come to lowering"
    return made[0]


def train_as_gpu(
    fn: Callable, *inputs: torch.Tensor, target: GpuTarget = SMALL, options: dict | None = None, dynamic: bool = False
) -> tuple[Any, Generated, Generated]:
    """(the partition, what is generated for forward, and for backward) of the first graph of fn(*inputs)."""
    made: list[Any] = []

    def parted(joint: Any, *args: Any, **kwargs: Any) -> Any:
        turn(joint)
        made.append(partition(joint, *args, **kwargs))
        raise _Made

    with mock.patch.object(joint_module, "partition", parted):
        try:
            tcompile.compile(fn, dynamic=dynamic, options=options)(*inputs)
        except InternalError:
            assert made, "the graph did not come to its partition"
    opts = Options.make(options=options)

    def generated(aten: Any) -> Generated:
        lowered = lower(aten, opts)
        verify_lowered(lowered)
        s = schedule(lowered, opts)
        verify_schedule(s)
        return generate_triton(s, opts, None, target)

    return made[0], generated(made[0].forward), generated(made[0].backward)


def check_as_gpu(
    fn: Callable,
    *inputs: torch.Tensor,
    rtol: float | None = None,
    atol: float | None = None,
    options: dict | None = None,
) -> Generated:
    """Interpreted equals eager."""
    g = as_gpu(fn, *inputs, options=options)
    named = dict(zip(inspect.signature(fn).parameters, inputs))
    # (graphs take their inputs in the order of their use)
    order = [getattr(b, "name", None) for b in g.schedule.inputs]
    with torch.no_grad():
        want, got = fn(*inputs), run(g, [named[n] for n in order] if all(n in named for n in order) else inputs)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        assert a.stride() == b.stride()
    return g
