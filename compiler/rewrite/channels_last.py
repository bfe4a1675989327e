"""Channels last for convolutions. On a GPU the tensor cores' kernels want it. On a CPU oneDNN's are up to ten times
faster where channels are few or each by itself. Eager converts to what the library wants and back around every one.

Only what nobody sees changes its layout: results of convolutions and pooling, what is computed from them element by
element, and weights (on a CPU inputs, too) that are converted for a convolution. Results of the graph keep eager's
strides, and so does what an operator reads by its strides. In a joint graph this comes before it is split, so that
what is saved for backward lies in the same order.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Callable

import torch
from torch.fx import Node

from ..base.fx_nodes import is_call, is_input, is_output
from ..graph.aten import AtenGraph
from ..graph.meta.core import TensorMeta, channels_last_strides, contiguous_strides

__all__ = ["channels_last"]

aten = torch.ops.aten
_CONVOLUTIONS = frozenset((aten.convolution.default, aten.convolution_backward.default))
_POOLS = frozenset(
    (
        aten.max_pool2d_with_indices.default,
        aten.max_pool2d_with_indices_backward.default,
        aten.avg_pool2d.default,
        aten.avg_pool2d_backward.default,
    )
)
_RESAMPLED = frozenset(
    (aten.upsample_nearest2d.default, aten.upsample_bilinear2d.default, aten.constant_pad_nd.default)
)
_BY_STRIDES = frozenset((aten.as_strided.default, aten.view.dtype))  # what these read depends on how it lies
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LEAST_CHANNELS = 16
LEAST_ON_CPU = 3  # channels of the image: with one the two orders are the same
MUCH_WEIGHT = 6  # elements of a weight for each of its images, from which on turning the weight costs more on a CPU


def channels_last(aten_graph: AtenGraph) -> None:
    nodes = list(aten_graph.graph.nodes)
    worth = [n for n in nodes if _worth_it(n)]
    if not worth or _on_cpu(worth[0]) and any(n.target is aten.convolution_backward.default for n in nodes):
        return  # (on a CPU a training step of ResNet-50 took 1.1 times as long)
    it = _Turning(aten_graph, nodes, _seen(nodes), set(), {}, {}, {})
    for node in nodes:
        if not is_call(node) or node in it.fixed:
            continue
        turn, is_image = next(((turn, is_image) for holds, turn, is_image in _KINDS if holds(node, it)), (None, False))
        if turn is not None:
            it.before[node] = node.meta["val"]
            turn(node, it)
            if is_image:
                it.chosen.add(node)


@dataclass
class _Turning:
    """A graph while its images are turned. `fixed`: what keeps eager's strides; `chosen`: images that are turned
    already; `weights`, `images`: each with its turned copy; `before`: of what is turned, the metadata that it had."""

    graph: AtenGraph
    nodes: list[Node]
    fixed: set[Node]
    chosen: set[Node]
    weights: dict[Node, Node]
    images: dict[Node, Node]
    before: dict[Node, Any]

    def last(self, x: Node) -> bool:
        """Whether channels come last, by choice or already."""
        return x in self.chosen or _lies_last(x)


def _is_convolution(node: Node, it: _Turning) -> bool:
    return node.target in _CONVOLUTIONS and _is_2d(node) and _follows(node, it)


def _turn_convolution(node: Node, it: _Turning) -> None:
    _turn_weight(node, it)
    _turn_images(node, it)
    if node.target is aten.convolution_backward.default:
        it.fixed -= _turn_gradient(it.graph, node, it.fixed)
    _turn_results(node, it)


def _is_turned_too_far(node: Node, it: _Turning) -> bool:
    """A convolution of another order than its gradient, as of images of one channel: the library turns it back. So it
    is with images that are small beside their weight on a CPU: the weight would be turned to lie as they do.
    """
    if node.target is aten.convolution.default:
        return _is_2d(node) and _on_cpu(node) and _weighs_more(node) and it.last(node.args[0])
    return (
        node.target is aten.convolution_backward.default
        and _is_2d(node)
        and not _on_cpu(node)
        and _groups(node) == 1
        and node.args[0] in it.chosen
    )


def _turn_back(node: Node, it: _Turning) -> None:
    meta = node.args[0].meta["val"]
    with it.graph.graph.inserting_before(node):
        copy = it.graph.graph.call_function(aten.clone.default, (node.args[0],))
    copy.meta = {**node.meta, "val": meta.replace(stride=tuple(contiguous_strides(meta.shape)))}
    node.update_arg(0, copy)


def _is_pool(node: Node, it: _Turning) -> bool:
    return node.target in _POOLS and any(x in it.chosen for x in node.all_input_nodes)


def _turn_results(node: Node, it: _Turning) -> None:
    _relay(node, node.users if isinstance(node.meta["val"], (tuple, list)) else (), it.fixed)


def _is_item(node: Node, it: _Turning) -> bool:
    return node.target is operator.getitem and node.args[0] in it.chosen and _four(node.meta["val"])


def _take_item(node: Node, it: _Turning) -> None:
    node.meta["val"] = node.args[0].meta["val"][node.args[1]]


def _moves_pixels(node: Node, it: _Turning) -> bool:
    return _joins(node) and all(it.last(x) for x in node.all_input_nodes) and _four(node.meta["val"])


def _computes_on_pixels(node: Node, it: _Turning) -> bool:
    """Element by element, of a value that is turned, or for convolutions alone."""
    if not (_elementwise(node) and _four(node.meta["val"])):
        return False
    return any(it.last(x) and _same(x, node) for x in node.all_input_nodes) or _feeds_convolution(node)


def _turn_elements(node: Node, it: _Turning) -> None:
    node.meta["val"] = _turned(node.meta["val"])
    node.kwargs = {name: value for name, value in node.kwargs.items() if name != "memory_format"}


def _is_permuted(node: Node, it: _Turning) -> bool:
    return node.target is aten.permute.default and _lay_otherwise(node.args[0], it)


def _permute(node: Node, it: _Turning) -> None:
    strides = node.args[0].meta["val"].stride
    node.meta["val"] = node.meta["val"].replace(stride=tuple(strides[d] for d in node.args[1]))


def _lies_like_operand(node: Node, it: _Turning) -> bool:
    """Element by element, as an operand that lies otherwise now: a norm over channels, between two permutes."""
    return _elementwise(node) and any(_lay_like(x, node, it) for x in node.all_input_nodes)


def _lie_like_operand(node: Node, it: _Turning) -> None:
    like = next(x for x in node.all_input_nodes if _lay_like(x, node, it))
    node.meta["val"] = node.meta["val"].replace(stride=like.meta["val"].stride)


def _lay_like(x: Node, node: Node, it: _Turning) -> bool:
    return _lay_otherwise(x, it) and _same(x, node) and it.before[x].stride == node.meta["val"].stride


def _lay_otherwise(x: Node, it: _Turning) -> bool:
    return x in it.before and isinstance(x.meta["val"], TensorMeta) and it.before[x].stride != x.meta["val"].stride


# (whether an operator is of this kind and takes the layout, what is done with it, whether the result is an image whose
# channels come last): the first kind that holds
_KINDS: tuple[tuple[Callable[[Node, _Turning], bool], Callable[[Node, _Turning], None], bool], ...] = (
    (_is_convolution, _turn_convolution, True),
    (_is_turned_too_far, _turn_back, False),
    (_is_pool, _turn_results, True),
    (_is_item, _take_item, True),
    (_moves_pixels, lambda n, it: n.meta.update(val=_turned(n.meta["val"])), True),
    (_computes_on_pixels, _turn_elements, True),
    (_is_permuted, _permute, False),
    (_lies_like_operand, _lie_like_operand, False),
)


def _worth_it(node: Node) -> bool:
    if node.target not in _CONVOLUTIONS or not _is_2d(node):
        return False
    at = 2 if node.target is aten.convolution_backward.default else 1
    meta = node.args[at].meta["val"]
    if _on_cpu(node):
        few = node.args[at - 1].meta["val"].shape[1] < LEAST_ON_CPU
        return not (few or _is_product(node) or at == 1 and _weighs_more(node))
    return (
        _groups(node) == 1
        and all(isinstance(size, int) and size >= LEAST_CHANNELS for size in meta.shape[:2])
        and meta.dtype in _FLOATS
    )


def _groups(node: Node) -> Any:
    return node.args[-2 if node.target is aten.convolution_backward.default else -1]


def _is_2d(node: Node) -> bool:
    """A convolution over images whose layout may be chosen."""
    at = 2 if node.target is aten.convolution_backward.default else 1
    weight = node.args[at]
    transposed = node.args[-4 if at == 2 else 6]
    if not isinstance(weight, Node) or len(weight.meta["val"].shape) != 4:
        return False
    if _on_cpu(node):
        meta = node.args[at - 1].meta["val"]
        return (
            len(meta.shape) == 4
            and meta.dtype is weight.meta["val"].dtype
            and meta.dtype in _FLOATS[1:]
            and all(type(size) is int for size in weight.meta["val"].shape)
            and torch.backends.mkldnn.is_available()
            and torch.backends.mkldnn.enabled
        )
    return not transposed


def _on_cpu(node: Node) -> bool:
    return node.args[0].meta["val"].device.type == "cpu"


def _is_product(node: Node) -> bool:
    """One tap, and every pixel: a matrix product, which is as fast in either layout."""
    at = 2 if node.target is aten.convolution_backward.default else 1
    stride = node.args[at + 2]
    return all(size == 1 for size in (*node.args[at].meta["val"].shape[2:], *stride))


def _weighs_more(node: Node) -> bool:
    """Whether a convolution on a CPU reads a weight beside which its images are small. It is in plain order: oneDNN
    takes weights in an order of its own, and makes that of the plain one or of a turned one.
    """
    x, weight = (node.args[i].meta["val"] for i in (0, 1))
    sizes = (*x.shape, *node.meta["val"].shape)
    if not _many_taps(weight) or not all(type(size) is int for size in sizes):
        return False
    return math.prod(weight.shape) >= MUCH_WEIGHT * (math.prod(x.shape) + math.prod(node.meta["val"].shape))


def _follows(node: Node, it: _Turning) -> bool:
    """Whether a convolution takes the layout. A product on a CPU, and one in groups on a GPU, take it where their
    images have it. Other convolutions on a CPU take it where it pays. On a GPU the library computes in the order that
    the images or the weight lie in, and gives results in it.
    """
    at = 2 if node.target is aten.convolution_backward.default else 1
    last = any(it.last(arg) for arg in node.args[:at])
    if _on_cpu(node):
        return last if _is_product(node) else _worth_it(node)
    if _groups(node) != 1:
        return last
    return it.last(node.args[at - 1]) or it.last(node.args[at]) or _many_taps(node.args[at].meta["val"])


def _joins(node: Node) -> bool:
    """What moves whole pixels: they are copied in one piece where the channels lie together."""
    return node.target in _RESAMPLED or node.target is aten.cat.default and node.args[1:] in ((1,), (-3,))


def _seen(nodes: list[Node]) -> set[Node]:
    return {x for node in nodes if is_output(node) or node.target in _BY_STRIDES for x in node.all_input_nodes}


def _four(meta: Any) -> bool:
    return (
        isinstance(meta, TensorMeta)
        and len(meta.shape) == 4
        and meta.dtype in (*_FLOATS, torch.bool, torch.int64)
        and meta.device.type in ("cuda", "cpu")
        and tuple(meta.stride) == tuple(contiguous_strides(meta.shape))
    )


def _turned(meta: TensorMeta) -> TensorMeta:
    return TensorMeta(meta.shape, channels_last_strides(meta.shape), meta.dtype, meta.device)


def _same(x: Node, node: Node) -> bool:
    meta = x.meta["val"]
    return isinstance(meta, TensorMeta) and tuple(meta.shape) == tuple(node.meta["val"].shape)


def _elementwise(node: Node) -> bool:
    op = node.target
    return (
        isinstance(op, torch._ops.OpOverload)
        and (torch.Tag.pointwise in op.tags or op is aten._to_copy.default or op is aten.clone.default)
        and "device" not in node.kwargs
    )


def _lies_last(x: Node) -> bool:
    """Channels last already: what is made contiguous of it (eager's group norm takes nothing else) need not be."""
    meta = x.meta["val"]
    return (
        isinstance(meta, TensorMeta)
        and len(meta.shape) == 4
        and tuple(meta.stride) == tuple(channels_last_strides(meta.shape)) != tuple(contiguous_strides(meta.shape))
    )


def _feeds_convolution(node: Node) -> bool:
    """A conversion (autocast's) of what convolutions alone read."""
    return (
        node.target is aten._to_copy.default
        and bool(node.users)
        and all(user.target in _CONVOLUTIONS and _is_2d(user) for user in node.users)
    )


def _turn_weight(node: Node, it: _Turning) -> None:
    """A weight that lies in another order is turned once, by a kernel of ours, for the forward and the backward
    convolution alike: the library would do so in each call, element by element."""
    at = 2 if node.target is aten.convolution_backward.default else 1
    weight = node.args[at]
    if not _many_taps(weight.meta["val"]) or _on_cpu(node) and not is_input(weight):
        return
    first = next(x for x in it.nodes if not is_input(x)) if is_input(weight) else node
    node.update_arg(at, _turned_copy(weight, first, node, it, it.weights))


def _turn_images(node: Node, it: _Turning) -> None:
    """What a convolution reads is turned by a kernel of ours where it lies in another order: that of what makes it,
    where this is computed. On a GPU the library turns the program's own images.
    """
    if _on_cpu(node) and _is_product(node):
        return
    for i in range(2 if node.target is aten.convolution_backward.default else 1):
        x = node.args[i]
        if x not in it.chosen and _four(x.meta["val"]) and (_on_cpu(node) or is_call(x)):
            node.update_arg(i, _turned_copy(x, node, node, it, it.images))


def _turned_copy(x: Node, before: Node, like: Node, it: _Turning, copies: dict[Node, Node]) -> Node:
    copy = copies.get(x)
    if copy is None:
        with it.graph.graph.inserting_before(before):
            copy = copies[x] = it.graph.graph.call_function(aten.clone.default, (x,))
        copy.meta = {**like.meta, "val": _turned(x.meta["val"])}
    return copy


def _turn_gradient(aten_graph: AtenGraph, node: Node, fixed: set[Node]) -> set[Node]:
    """The library makes a weight's gradient in the order of the operands; the one that leaves the graph has the
    weight's own order, and a kernel of ours turns it. Gives the results that no longer leave."""
    gone: set[Node] = set()
    for u in [
        user
        for user in node.users
        if user in fixed and user.target is operator.getitem and user.args[1] == 1 and _many_taps(user.meta["val"])
    ]:
        with aten_graph.graph.inserting_after(u):
            copy = aten_graph.graph.call_function(aten.clone.default, (u,))
        copy.meta = dict(u.meta)
        u.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)
        gone.add(u)
    return gone


def _many_taps(meta: Any) -> bool:
    return (
        _four(meta)
        and meta.dtype in _FLOATS
        and all(type(size) is int for size in meta.shape)
        and meta.shape[2] * meta.shape[3] > 1
        and meta.shape[1] > 1
    )


def _relay(node: Node, items: Any, fixed: set[Node]) -> None:
    """Give an operator's results the layout, except those that leave the graph."""
    val = node.meta["val"]
    if isinstance(val, TensorMeta):
        if _four(val):
            node.meta["val"] = _turned(val)
        return
    leave = {item.args[1] for item in items if item.target is operator.getitem and item in fixed}
    node.meta["val"] = type(val)(
        _turned(meta) if _four(meta) and k not in leave else meta for k, meta in enumerate(val)
    )
