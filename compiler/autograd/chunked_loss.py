"""Linear + cross entropy in chunks of rows, so that the logits of a large vocabulary never lie in memory as a whole.

Eager keeps the logits (rows x vocabulary), their log softmax and their gradient. Here one node takes the place of the
chain in the captured graph. It does so where gradients are asked for, nothing but a cross entropy reads the linear
layer's result, and that is more than `chunked_loss_mb`. For a chunk of rows after the other the node computes logits,
their share of the loss and, by autograd's own formulas, their share of the gradients of rows, weight and bias. Backward
only scales those. The gradients of weight and bias are summed in float32.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from ..base.fx_nodes import is_call, is_method, is_output
from ..graph.captured import CapturedGraph
from ..graph.higher_order import in_this_thread

__all__ = ["ChunkedLoss", "chunk_losses"]

MOST_CHUNKS = 16
_LINEAR = (F.linear, torch._C._nn.linear)
_SHAPES = ("view", "reshape", "contiguous", "flatten")  # methods that keep rows in order
_CASTS = {"float": torch.float32}
_DTYPES = (torch.float32, torch.bfloat16)  # float16 would lose small probabilities without the loss's scale


@dataclass
class _Match:
    """linear -> steps (in order; on rows alone, or casts) -> loss"""

    linear: torch.fx.Node
    steps: list[torch.fx.Node]
    loss: torch.fx.Node
    options: dict[str, Any]


def chunk_losses(captured: CapturedGraph, opts: Any) -> CapturedGraph:
    """The captured graph with large linear + cross entropy pairs in chunks; the same object where it has none."""
    limit = int(opts.get("chunked_loss_mb", 0)) << 20 if opts is not None else 0
    graph = captured.graph_module.graph
    losses = [node for node in graph.nodes if is_call(node) and node.target is F.cross_entropy] if limit else []
    found = [m for m in map(_match, losses) if m is not None and _chunks(m, limit) > 1]
    if not found:
        return captured
    new = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    of_loss = {m.loss: m for m in found}
    for n in graph.nodes:
        copies[n] = (
            _chunked(new, of_loss[n], copies, _chunks(of_loss[n], limit))
            if n in of_loss
            else new.node_copy(n, copies.__getitem__)
        )
    for n in reversed([copies[x] for m in found for x in (m.linear, *m.steps)]):
        if not n.users:
            new.erase_node(n)
    return replace(captured, graph_module=torch.fx.GraphModule(captured.graph_module, new))


def _chunks(m: _Match, limit: int) -> int:
    """How many chunks: each a quarter of the limit, of equal size where a number near that allows it. 1 where the
    logits are small, or smaller than twice what chunks would keep instead."""
    rows, classes = m.loss.args[0].meta["val"].shape
    width = m.linear.args[1].meta["val"].shape[1]
    logits = rows * classes
    if logits * 4 <= limit or logits <= 2 * width * (rows + classes):
        return 1
    least = min(MOST_CHUNKS, rows, -(-logits * 16 // limit))
    return next((k for k in range(least, 2 * least) if rows % k == 0), least)


def _match(loss: torch.fx.Node) -> _Match | None:
    options = dict(
        zip(
            ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing"),
            loss.args,
        ),
        **loss.kwargs,
    )
    logits, target, weight = options["input"], options["target"], options.get("weight")
    if (
        options.get("size_average") is not None
        or options.get("reduce") is not None
        or options.get("reduction", "mean") not in ("mean", "sum")
    ):
        return None
    steps: list[torch.fx.Node] = []
    node = logits
    while isinstance(node, torch.fx.Node) and not (is_call(node) and node.target in _LINEAR):
        if not _keeps_rows(node):
            return None
        steps.insert(0, node)
        node = node.args[0]
    if (
        not isinstance(node, torch.fx.Node)
        or any(_read(x) != 1 for x in (node, *steps))
        or len(node.args) < 2
        or node.kwargs
    ):
        return None
    x, w, at, tensor = (
        v.meta.get("val") for v in (node.args[0], node.args[1], logits, target) if isinstance(v, torch.fx.Node)
    )
    if any(
        not isinstance(v, torch.Tensor) or any(not isinstance(size, int) for size in v.shape)
        for v in (x, w, at, tensor)
    ):
        return None
    if (
        at.ndim != 2
        or tensor.ndim != 1
        or tensor.is_floating_point()
        or any(v.dtype not in _DTYPES for v in (x, w, at, node.meta["val"]))
    ):
        return None
    if (
        w.ndim != 2
        or not (x.requires_grad or w.requires_grad)
        or isinstance(weight, torch.fx.Node)
        and weight.meta["val"].requires_grad
    ):
        return None
    return _Match(
        node,
        steps,
        loss,
        {
            "weight": weight,
            "target": target,
            "ignore_index": options.get("ignore_index", -100),
            "mean": options.get("reduction", "mean") == "mean",
            "label_smoothing": options.get("label_smoothing", 0.0),
        },
    )


def _read(node: torch.fx.Node) -> int:
    """How many nodes read `node`; those that nobody reads do not count (x.float() of a float32 tensor gives x)."""
    return sum(bool(user.users) or is_output(user) for user in node.users)


def _keeps_rows(node: torch.fx.Node) -> bool:
    """Whether `node` is a cast, or rearranges or leaves out rows, the last dimension being the same."""
    source = node.args[0] if node.args else None
    before, after = (
        getattr(x.meta.get("val"), "shape", ()) if isinstance(x, torch.fx.Node) else () for x in (source, node)
    )
    if not before or not after or before[-1] != after[-1]:
        return False
    if is_method(node):
        return (
            node.target in _SHAPES
            or node.target in _CASTS
            and len(node.args) == 1
            and not node.kwargs
            or node.target == "to"
            and len(node.args) == 2
            and isinstance(node.args[1], torch.dtype)
            and not node.kwargs
        )
    if node.target is not operator.getitem:
        return False
    index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    plain = all(
        i is Ellipsis or isinstance(i, slice) and all(x is None or type(x) is int for x in (i.start, i.stop, i.step))
        for i in index
    )
    last = index[-1] if Ellipsis in index or len(index) == len(before) else slice(None)
    return plain and len(after) == len(before) and last in (slice(None), Ellipsis)


def _chunked(
    graph: torch.fx.Graph, m: _Match, copies: dict[torch.fx.Node, torch.fx.Node], chunks: int
) -> torch.fx.Node:
    """The loss's node in the new graph: the steps on rows applied to the linear layer's input, then the one node."""
    x, w, *bias = (copies[arg] if isinstance(arg, torch.fx.Node) else arg for arg in m.linear.args)
    width = m.linear.args[1].meta["val"].shape[1]
    dtype = None
    for step in m.steps:
        if is_method(step) and step.target in _CASTS or step.target == "to":
            dtype = _CASTS.get(step.target) or step.args[1]
            continue
        if step.target == "contiguous":
            continue
        shape = tuple(step.meta["val"].shape[:-1]) + (width,)
        x = (
            graph.call_function(operator.getitem, (x, step.args[1]))
            if step.target is operator.getitem
            else graph.call_method("reshape", (x, shape))
        )
        x.meta.update({key: value for key, value in step.meta.items() if key != "val"})
    options = m.options
    target, weight = (
        copies[options["target"]],
        copies[options["weight"]] if isinstance(options["weight"], torch.fx.Node) else None,
    )
    call = ChunkedLoss(chunks, dtype, options["ignore_index"], options["mean"], options["label_smoothing"])
    out = graph.call_function(call, (x, w, bias[0] if bias else None, target, weight))
    out.meta.update(m.loss.meta)
    return out


class ChunkedLoss:
    """cross_entropy(linear(x, w, b).to(dtype), target) by chunks of rows. x: (rows, width); w: (classes, width);
    target: class of each row.
    """

    __name__ = "chunked_linear_cross_entropy"

    def __init__(self, chunks: int, dtype: torch.dtype | None, ignore_index: int, mean: bool, label_smoothing: float):
        self.chunks, self.dtype, self.mean = chunks, dtype, mean
        self.loss = {"reduction": "sum", "ignore_index": ignore_index, "label_smoothing": label_smoothing}

    def __repr__(self) -> str:
        return f"{self.__name__}[{self.chunks}]"

    def __call__(self, x: Any, w: Any, b: Any, target: Any, weight: Any) -> Any:
        return _Chunked.apply(self, x, w, b, target, weight)

    def count(self, target: Any, weight: Any) -> Any:
        """What a mean divides by: rows that count, each with the weight of its class."""
        counts = target != self.loss["ignore_index"]
        return counts.sum() if weight is None else (weight[target.where(counts, 0)] * counts).sum()


class _Chunked(torch.autograd.Function):
    """Forward computes the gradients, too; they are there before backward knows by what to multiply them."""

    @staticmethod
    def forward(ctx: Any, call: ChunkedLoss, x: Any, w: Any, b: Any, target: Any, weight: Any) -> Any:
        leaves = [
            tensor.detach().requires_grad_() if tensor is not None and tensor.requires_grad else tensor
            for tensor in (w, b)
        ]
        wanted = [tensor is not None and tensor.requires_grad for tensor in (x, w, b)]
        rows = -(-x.shape[0] // call.chunks)
        total: Any = None
        parts: list[Any] = []  # gradients of rows
        sums: list[Any] = [None, None]  # of weight and bias
        for at in range(0, x.shape[0], rows):
            chunk = x[at : at + rows].detach().requires_grad_(wanted[0])
            with torch.enable_grad():
                logits = F.linear(chunk, *leaves)
                loss = F.cross_entropy(
                    logits if call.dtype is None else logits.to(call.dtype), target[at : at + rows], weight, **call.loss
                )
            with in_this_thread(), _without_autocast(x.device.type):
                grads = iter(torch.autograd.grad([loss], [t for t, want in zip((chunk, *leaves), wanted) if want]))
            if wanted[0]:
                parts.append(next(grads))
            for k in range(2):
                if wanted[1 + k]:
                    g = next(grads).float()
                    sums[k] = g if sums[k] is None else sums[k] + g
            total = loss.detach() if total is None else total + loss.detach()
        count = call.count(target, weight) if call.mean else None
        ctx.n_parts, ctx.dtypes = len(parts), [None if t is None else t.dtype for t in (x, w, b)]
        # rows' gradients are joined in backward: until then those of a chunk may go as soon as they are used
        ctx.save_for_backward(count, *parts, *sums)
        return total / count if call.mean else total

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        count, *gradients = ctx.saved_tensors
        if count is not None:
            g = torch.where(count == 0, 0.0, g / count)  # no row counts: the gradients are zeros, not 0 / 0
        parts, sums = gradients[: ctx.n_parts], gradients[ctx.n_parts :]
        every = [
            torch.cat([part * g for part in parts]) if parts else None,
            *(None if s is None else s * g for s in sums),
        ]
        return (
            None,
            *(None if tensor is None else tensor.to(dtype) for tensor, dtype in zip(every, ctx.dtypes)),
            None,
            None,
        )


def _without_autocast(device: str) -> Any:
    """Backward's formulas run outside of the autocast region."""
    return torch.autocast(device, enabled=False) if torch._C.is_autocast_enabled(device) else nullcontext()
