"""Bytes that are alive while a graph runs: by the plan of the compiled graph, and in eager, operator by operator.

Eager's figures are a lower bound: each value is taken to be freed right after its last use, and what an operator
allocates for itself is not seen. Inputs and parameters count in neither: they are there in any case.
"""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from ..base.fx_nodes import is_call, is_input

__all__ = ["eager_live", "eager_memory", "plan_live", "thinned"]

_POINTS = 160  # of a curve that is kept

_VIEWS = set(
    """view view_as reshape reshape_as transpose swapaxes t T mT permute movedim expand expand_as unsqueeze squeeze
    select slice narrow chunk split unbind unflatten flatten diagonal detach contiguous getitem __getitem__ alias
    as_strided view_as_real view_as_complex real imag to requires_grad_ broadcast_to swapdims unfold tensor_split hsplit
    vsplit ravel""".split()
)
# where the memory does not already lie as wanted
_MAYBE_COPIES = {"reshape", "reshape_as", "flatten", "contiguous", "to", "ravel"}


def eager_memory(captured: Any, partition: Any) -> tuple[list[int], int | None] | None:
    """(the curve, its peak) of what eager would hold while it runs a captured graph; with gradients (`partition`) at
    least what autograd has kept so far. None where that is not known: of a graph with a backward pass inside."""
    if runs_backward(captured.graph_module):
        return None
    live = eager_live(captured.graph_module, getattr(captured.env, "hints", None) or {})
    live = at_least(live, (partition.eager_kept if partition is not None else None) or [])
    return thinned(live), max(live, default=None)


def eager_live(graph: Any, hints: dict[str, int]) -> list[int]:
    """Bytes alive after each operation of a captured graph (torch.fx, `meta["val"]` with shape, stride, dtype), were it
    run by eager without gradients. Sizes are those of the first call (`hints`)."""
    graph = getattr(graph, "graph", graph)
    nodes = [node for node in graph.nodes if not is_input(node)]
    base: dict[Any, Any] = {}  # node -> the node whose memory it looks into
    for n in nodes:
        source = _looks_into(n)
        base[n] = base.get(source, source) if source is not None else n
    last: dict[Any, int] = {}
    for i, n in enumerate(nodes):
        for used in n.all_input_nodes:
            last[base.get(used, used)] = i
    free_at: dict[int, list[int]] = {}
    live, out = 0, []
    for i, n in enumerate(nodes):
        if base[n] is n and n.op.startswith("call"):
            size = _bytes(n.meta.get("val"), hints)
            live += size
            free_at.setdefault(max(i, last.get(n, i)), []).append(size)
        if n.op.startswith("call"):
            out.append(live)
        live -= sum(free_at.pop(i, ()))
    return out


def runs_backward(graph: Any) -> bool:
    """Whether a captured graph calls backward() or torch.autograd.grad: eager then holds what autograd keeps for it."""
    graph = getattr(graph, "graph", graph)
    return any(is_call(node) and getattr(node.target, "__name__", "") in ("backward", "grad") for node in graph.nodes)


def at_least(curve: Sequence[int], other: Sequence[int]) -> list[int]:
    """The larger of two curves over the same run, in the steps of the first."""
    n, m = len(curve), len(other)
    return [max(v, other[(i + 1) * m // n - 1]) if (i + 1) * m >= n else v for i, v in enumerate(curve)]


def plan_live(buffers: Sequence[Any], steps: int) -> list[int]:
    """Bytes alive at each step of a plan. `buffers`: MemoryBuffer; one that takes another's memory begins where that
    one ends.
    """
    change = [0] * (steps + 2)
    for b in buffers:
        change[min(b.start, steps)] += b.bytes
        change[min(max(b.end, b.start), steps) + (b.end <= b.start)] -= b.bytes
    out, live = [], 0
    for i in range(steps):
        live += change[i]
        out.append(live)
    return out


def thinned(curve: Sequence[int]) -> list[int]:
    """The curve with few enough points to be kept; peaks stay."""
    if len(curve) <= _POINTS:
        return list(curve)
    edges = [round(i * len(curve) / _POINTS) for i in range(_POINTS + 1)]
    return [max(curve[a:b]) for a, b in zip(edges, edges[1:])]


def _looks_into(n: Any) -> Any:
    """The argument whose memory the result lies in, or None."""
    name = n.target if isinstance(n.target, str) else getattr(n.target, "__name__", "")
    name = name.split(".")[0]
    if not n.all_input_nodes or not n.op.startswith("call"):
        return None
    first = n.args[0] if n.args else None
    if not isinstance(first, torch.fx.Node):
        return None
    in_place = name.endswith("_") and not name.endswith("__") or name.startswith("__i") and name.endswith("__")
    if in_place or name in _VIEWS and (name not in _MAYBE_COPIES or _same_memory(first, n)):
        return first
    return None


def _same_memory(a: Any, b: Any) -> bool:
    """Whether a reshape or a cast can be a view: same dtype and device, and both lie densely in order."""
    x, y = a.meta.get("val"), b.meta.get("val")
    if getattr(x, "dtype", None) != getattr(y, "dtype", 0) or getattr(x, "device", None) != getattr(y, "device", 0):
        return False
    return all(_dense(v) for v in (x, y))


def _dense(v: Any) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(tuple(v.shape)), reversed(tuple(v.stride() if callable(v.stride) else v.stride))):
        if str(stride) != str(expected) and str(size) != "1":
            return False
        expected = expected * size
    return True


def _bytes(val: Any, hints: dict[str, int]) -> int:
    if isinstance(val, (tuple, list)):
        return sum(_bytes(v, hints) for v in val)
    if getattr(val, "shape", None) is None or not hasattr(val, "dtype"):
        return 0
    return math.prod(_size(s, hints) for s in val.shape) * val.dtype.itemsize


def _size(size: Any, hints: dict[str, int]) -> int:
    if type(size) is int:
        return size
    expr = getattr(getattr(size, "node", None), "expr", size)
    try:
        return int(expr.eval(hints))
    except (AttributeError, KeyError, ZeroDivisionError, TypeError):  # a size that is known only once the graph has run
        return 1
