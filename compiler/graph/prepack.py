"""Linear layers and convolutions over frozen weights on the CPU (option `freezing`): each weight once more in the
layout that oneDNN reads, made when it is frozen.

A product of a few rows is bound by reading its weight, and the library would lay out a weight in bfloat16, or of a
convolution, anew in each call. What is packed is a node of parameters alone, so that freeze.py keeps it exactly as long
as the parameters hold. A relu behind is the library's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from .aten import AtenGraph
from .decompose.table import Builder
from .freeze import made_of_parameters
from .meta.core import TensorMeta, contiguous_strides, is_channels_last, state

__all__ = ["pack_products"]

aten = torch.ops.aten
ROWS = range(9, 65)  # of a float32 product: fewer are read as they lie, more make packing cheap beside the work


def pack_products(a: AtenGraph, opts: Any) -> None:
    """Products with frozen weights as oneDNN's over packed weights, where these were measured faster than generated
    code and the library's own.
    """
    if (
        opts.get("emulate_precision")
        or not torch.backends.mkldnn.is_available()
        or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    ):
        return
    outer, state.env = state.env, a.env
    try:
        _pack(a, opts)
    finally:
        state.env = outer


def _pack(a: AtenGraph, opts: Any) -> None:
    made, _ = made_of_parameters(a)
    results = set(a.results)
    packed: dict[tuple[Node, Any], Node] = {}
    for n in [n for n in a.graph.nodes if n.target in (aten.mm.default, aten.addmm.default) and not n.kwargs]:
        *bias, x, weight = n.args
        if (
            weight not in made
            or not _gains(n, x, weight, opts)
            or bias
            and bias[0].meta["val"].shape != (n.meta["val"].shape[1],)
        ):
            continue
        build = Builder(a.graph)
        build.where_meta = {k: v for k, v in n.meta.items() if k != "val"}
        rows = x.meta["val"].shape[0]
        key = (weight, rows)
        if key not in packed:
            with a.graph.inserting_before(n):
                packed[key] = _packed(build, weight, rows if isinstance(rows, int) else None)
        _replace(
            a,
            build,
            n,
            results,
            torch.ops.mkldnn._linear_pointwise.default,
            (x, packed[key], bias[0] if bias else None),
            "",
        )
    for n in [n for n in a.graph.nodes if n.target is aten.convolution.default and not n.kwargs]:
        _pack_convolution(a, n, made, packed, results)


def _replace(
    a: AtenGraph, build: Builder, n: Node, results: set[Node], op: Any, args: tuple, algorithm: str | None
) -> None:
    """The library's `op` instead of `n` and of a relu that alone reads it."""
    relu = next(iter(n.users)) if len(n.users) == 1 and n not in results else None
    last = (
        relu
        if relu is not None and relu.target is aten.relu.default and relu.meta["val"].stride == n.meta["val"].stride
        else n
    )
    with a.graph.inserting_before(n):
        out = build.emit(op, *args, "none" if last is n else "relu", [], algorithm, val=last.meta["val"])
    last.replace_all_uses_with(out)
    a.graph.erase_node(last)
    if last is not n:
        a.graph.erase_node(n)


def _pack_convolution(
    a: AtenGraph, n: Node, made: Any, packed: dict[tuple[Node, Any], Node], results: set[Node]
) -> None:
    """A convolution whose result lies channels last, as over packed weights it always does. In float32 kernels of one
    element may become products.
    """
    x, weight, bias, stride, padding, dilation, transposed, _, groups = n.args
    m, w = n.meta["val"], weight.meta["val"]
    if (
        weight not in made
        or transposed
        or len(w.shape) != 4
        or len(x.meta["val"].shape) != 4
        or m.device.type != "cpu"
        or not is_channels_last(m.shape, m.stride)
        or m.dtype not in (torch.float32, torch.bfloat16)
        or any(y.meta["val"].dtype is not m.dtype for y in n.all_input_nodes)
        or any(not isinstance(s, int) or s == 0 for s in w.shape)
        or m.dtype is torch.float32
        and all(s == 1 for s in (*w.shape[2:], *stride))
        or m.dtype is torch.bfloat16
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return
    build = Builder(a.graph)
    build.where_meta = {k: v for k, v in n.meta.items() if k != "val"}
    sizes = tuple(x.meta["val"].shape)
    key = (weight, (*stride, *padding, *dilation, groups, *sizes))
    how = (list(padding), list(stride), list(dilation), groups)
    if key not in packed:
        with a.graph.inserting_before(n):
            packed[key] = build.emit(
                torch.ops.mkldnn._reorder_convolution_weight.default,
                weight,
                *how,
                list(sizes) if all(isinstance(s, int) for s in sizes) else None,
                val=w,
            )
    _replace(a, build, n, results, torch.ops.mkldnn._convolution_pointwise.default, (x, packed[key], bias, *how), None)


def _gains(n: Node, x: Node, weight: Node, opts: Any) -> bool:
    m, rows = n.meta["val"], x.meta["val"].shape[0]
    if (
        m.device.type != "cpu"
        or len({y.meta["val"].dtype for y in n.all_input_nodes}) != 1
        or any(not isinstance(s, int) or s == 0 for s in weight.meta["val"].shape)
        or rows == 0
    ):
        return False
    if m.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return (
        m.dtype is torch.float32
        and isinstance(rows, int)
        and rows in ROWS
        and opts.get("cpu_products", "auto") != "generated"
    )


def _packed(build: Builder, weight: Node, rows: int | None) -> Node:
    """The weight (inputs by outputs) as oneDNN wants it: opaque, of shape (outputs, inputs)."""
    k, columns = weight.meta["val"].shape
    val = TensorMeta(
        (columns, k), contiguous_strides((columns, k)), weight.meta["val"].dtype, weight.meta["val"].device
    )
    turned = build.emit(
        aten.clone.default, build.emit(aten.permute.default, weight, [1, 0]), memory_format=torch.contiguous_format
    )
    return build.emit(torch.ops.mkldnn._reorder_linear_weight.default, turned, rows, val=val)
