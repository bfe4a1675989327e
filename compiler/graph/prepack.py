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


def pack_products(aten_graph: AtenGraph, opts: Any) -> None:
    """Products with frozen weights as oneDNN's over packed weights, where these were measured faster than generated
    code and the library's own.
    """
    if (
        opts.get("emulate_precision")
        or not torch.backends.mkldnn.is_available()
        or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    ):
        return
    outer, state.env = state.env, aten_graph.env
    try:
        _pack(aten_graph, opts)
    finally:
        state.env = outer


def _pack(aten_graph: AtenGraph, opts: Any) -> None:
    made, _ = made_of_parameters(aten_graph)
    results = set(aten_graph.results)
    packed: dict[tuple[Node, Any], Node] = {}
    for n in [
        node
        for node in aten_graph.graph.nodes
        if node.target in (aten.mm.default, aten.addmm.default) and not node.kwargs
    ]:
        *bias, x, weight = n.args
        if (
            weight not in made
            or not _gains(n, x, weight, opts)
            or bias
            and bias[0].meta["val"].shape != (n.meta["val"].shape[1],)
        ):
            continue
        build = Builder(aten_graph.graph)
        build.where_meta = {name: value for name, value in n.meta.items() if name != "val"}
        rows = x.meta["val"].shape[0]
        key = (weight, rows)
        if key not in packed:
            with aten_graph.graph.inserting_before(n):
                packed[key] = _packed(build, weight, rows if isinstance(rows, int) else None)
        _replace(
            aten_graph,
            build,
            n,
            results,
            torch.ops.mkldnn._linear_pointwise.default,
            (x, packed[key], bias[0] if bias else None),
            "",
        )
    for n in [node for node in aten_graph.graph.nodes if node.target is aten.convolution.default and not node.kwargs]:
        _pack_convolution(aten_graph, n, made, packed, results)


def _replace(
    aten_graph: AtenGraph, build: Builder, node: Node, results: set[Node], op: Any, args: tuple, algorithm: str | None
) -> None:
    """The library's `op` instead of `node` and of a relu that alone reads it."""
    relu = next(iter(node.users)) if len(node.users) == 1 and node not in results else None
    last = (
        relu
        if relu is not None and relu.target is aten.relu.default and relu.meta["val"].stride == node.meta["val"].stride
        else node
    )
    with aten_graph.graph.inserting_before(node):
        out = build.emit(op, *args, "none" if last is node else "relu", [], algorithm, val=last.meta["val"])
    last.replace_all_uses_with(out)
    aten_graph.graph.erase_node(last)
    if last is not node:
        aten_graph.graph.erase_node(node)


def _pack_convolution(
    aten_graph: AtenGraph, node: Node, made: Any, packed: dict[tuple[Node, Any], Node], results: set[Node]
) -> None:
    """A convolution whose result lies channels last, as over packed weights it always does. In float32 kernels of one
    element may become products.
    """
    x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
    meta, w = node.meta["val"], weight.meta["val"]
    if (
        weight not in made
        or transposed
        or len(w.shape) != 4
        or len(x.meta["val"].shape) != 4
        or meta.device.type != "cpu"
        or not is_channels_last(meta.shape, meta.stride)
        or meta.dtype not in (torch.float32, torch.bfloat16)
        or any(y.meta["val"].dtype is not meta.dtype for y in node.all_input_nodes)
        or any(not isinstance(size, int) or size == 0 for size in w.shape)
        or meta.dtype is torch.float32
        and all(s == 1 for s in (*w.shape[2:], *stride))
        or meta.dtype is torch.bfloat16
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return
    build = Builder(aten_graph.graph)
    build.where_meta = {name: value for name, value in node.meta.items() if name != "val"}
    sizes = tuple(x.meta["val"].shape)
    key = (weight, (*stride, *padding, *dilation, groups, *sizes))
    how = (list(padding), list(stride), list(dilation), groups)
    if key not in packed:
        with aten_graph.graph.inserting_before(node):
            packed[key] = build.emit(
                torch.ops.mkldnn._reorder_convolution_weight.default,
                weight,
                *how,
                list(sizes) if all(isinstance(size, int) for size in sizes) else None,
                val=w,
            )
    _replace(
        aten_graph,
        build,
        node,
        results,
        torch.ops.mkldnn._convolution_pointwise.default,
        (x, packed[key], bias, *how),
        None,
    )


def _gains(node: Node, x: Node, weight: Node, opts: Any) -> bool:
    meta, rows = node.meta["val"], x.meta["val"].shape[0]
    if (
        meta.device.type != "cpu"
        or len({y.meta["val"].dtype for y in node.all_input_nodes}) != 1
        or any(not isinstance(size, int) or size == 0 for size in weight.meta["val"].shape)
        or rows == 0
    ):
        return False
    if meta.dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return (
        meta.dtype is torch.float32
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
