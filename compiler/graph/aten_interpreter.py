"""Run an AtenGraph with torch's own kernels: the reference for what the graph means, used by tests and by
`backend="aten"`-like checks. Slow and simple; results have the layout that the graph's metadata says."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import torch
from torch.fx.node import map_arg

from ..base.fx_nodes import is_call, is_constant, is_input, is_output
from ..ops.closed_set import extern_reason
from ..symbolic.expr import Expr
from .aten import AtenGraph
from .meta.core import TensorMeta

__all__ = ["interpret", "node_values"]

aten = torch.ops.aten

# A graph says each conversion that autocast makes: the region that a call finds itself in makes no other.
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def _bind(val: Any, actual: Any, sizes: dict[str, int]) -> None:
    if isinstance(val, TensorMeta):
        for s, n in (*zip(val.shape, actual.shape), *zip(val.stride, actual.stride())):
            if isinstance(s, Expr) and s.is_symbol:
                sizes.setdefault(s.name, int(n))
    elif isinstance(val, Expr) and val.is_symbol:
        sizes.setdefault(val.name, int(actual))


def _concrete(x: Any, sizes: dict[str, int]) -> Any:
    if isinstance(x, Expr):
        return x.eval(sizes)
    if isinstance(x, (list, tuple)):
        return [_concrete(y, sizes) for y in x]
    return x


def _laid_out(tensor: torch.Tensor, meta: TensorMeta, sizes: dict[str, int]) -> torch.Tensor:
    if tensor.layout is not torch.strided:  # packed for a library
        return tensor
    stride = _concrete(meta.stride, sizes)
    if list(tensor.stride()) == list(stride) or tensor.numel() == 0 and tensor.dim() == 0:
        return tensor
    once = tensor[tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)]  # expanded: written once
    out = torch.empty_strided(tuple(once.shape), stride, dtype=tensor.dtype, device=tensor.device)
    out.data.copy_(once)  # to autograd no change of the result
    return out.expand(tensor.shape)


def _call(node: torch.fx.Node, args: tuple, kwargs: dict, sizes: dict[str, int]) -> Any:
    target = node.target
    if target is aten.view.default:
        return args[0].reshape(args[1])
    if target is aten.clone.default:
        return _laid_out(args[0].clone(), node.meta["val"], sizes)
    if target is aten.as_strided.default:
        x = _laid_out(args[0], node.args[0].meta["val"], sizes)
        return x.as_strided(args[1], args[2], x.storage_offset() + (args[3] or 0))
    if target is aten.as_strided_scatter.default:
        # positions count in the layout of the result: a copy in front may have been left out
        return target(_laid_out(args[0].clone(), node.meta["val"], sizes), *args[1:], **kwargs)
    if isinstance(target, torch._ops.OpOverload) and extern_reason(target) == "attention":
        # (a GPU's misreads other masks)
        return target(*map(_with_rows, args), **{name: _with_rows(value) for name, value in kwargs.items()})
    return target(*args, **kwargs)


def _with_rows(x: Any) -> Any:
    """A tensor with each of its rows in one piece."""
    apart = isinstance(x, torch.Tensor) and x.ndim > 1 and x.shape[-1] != 1 and x.stride(-1) != 1
    return x.contiguous() if apart else x


def node_values(
    aten_graph: AtenGraph,
    inputs: Sequence[Any],
    *,
    double: bool = False,
    given: Mapping[torch.fx.Node, Any] | None = None,
) -> dict[torch.fx.Node, Any]:
    """The value of every node on real inputs. `double`: floating point values, constants and dtype arguments are
    float64. `given`: values of nodes that are taken as they are, instead of being computed.
    """
    values, _ = _evaluate(aten_graph, inputs, double, keep=True, given=given)
    return values


def _evaluate(
    aten_graph: AtenGraph,
    inputs: Sequence[Any],
    double: bool = False,
    keep: bool = False,
    given: Mapping[torch.fx.Node, Any] | None = None,
) -> tuple[dict[torch.fx.Node, Any], dict[str, int]]:
    """The values of nodes, and of sizes. `keep`: of all nodes; else a value goes after its last use, unless it is a
    result of the graph.
    """
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return _evaluate_as_recorded(aten_graph, inputs, double, {} if keep else _last_uses(aten_graph), given or {})


def _last_uses(aten_graph: AtenGraph) -> dict[torch.fx.Node, list[torch.fx.Node]]:
    """node -> the values that nobody reads after it."""
    seen = set(aten_graph.results)
    out: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for node in reversed(aten_graph.graph.nodes):
        if not is_output(node):
            out[node] = [x for x in dict.fromkeys((*node.all_input_nodes, node)) if x not in seen]
            seen.update(out[node])
        else:
            seen.update(node.all_input_nodes)
    return out


def _evaluate_as_recorded(
    aten_graph: AtenGraph,
    inputs: Sequence[Any],
    double: bool,
    last: dict[torch.fx.Node, list[torch.fx.Node]],
    given: Mapping[torch.fx.Node, Any],
) -> tuple[dict[torch.fx.Node, Any], dict[str, int]]:
    values: dict[torch.fx.Node, Any] = {}
    sizes: dict[str, int] = {}
    it = iter(inputs)
    for node in aten_graph.graph.nodes:
        if is_input(node):
            x = next(it)
            _bind(node.meta.get("val"), x, sizes)
            values[node] = _doubled(x) if double else x
        elif is_constant(node):
            values[node] = _doubled(aten_graph.constants[node.target]) if double else aten_graph.constants[node.target]
        elif node in given:
            values[node] = _doubled(given[node]) if double else given[node]
        elif is_call(node):
            args = _concrete(map_arg(node.args, values.__getitem__), sizes)
            kwargs = {name: _concrete(map_arg(value, values.__getitem__), sizes) for name, value in node.kwargs.items()}
            if double:
                args, kwargs = (
                    [_doubled(arg) for arg in args],
                    {name: _doubled(value) for name, value in kwargs.items()},
                )
            values[node] = _call(node, args, kwargs, sizes)
            args = kwargs = None
        for x in last.get(node, ()):
            del values[x]
    return values, sizes


def _doubled(x: Any) -> Any:
    """A floating point tensor or dtype in float64; anything else as it is."""
    if isinstance(x, torch.Tensor):
        return x.to(torch.float64) if x.is_floating_point() else x
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def interpret(aten_graph: AtenGraph, inputs: Sequence[Any]) -> tuple:
    """The graph's outputs on real inputs, in place writes to inputs included."""
    values, sizes = _evaluate(aten_graph, inputs)
    results = []
    for result in aten_graph.results:
        meta, v = result.meta["val"], values[result]
        results.append(_laid_out(v, meta, sizes) if is_call(result) else v)
    for i, slot in aten_graph.mutation_slots:
        changes = aten_graph.writes.get(i, 1)
        (inputs[i] if changes else inputs[i].data).copy_(results[slot])
        torch.autograd.graph.increment_version([inputs[i]] * (changes - 1))
    for slot, value in {
        output.value if output.kind == "buffer" else output.value[1]: output.changes
        for output in aten_graph.plan
        if output.changes
    }.items():
        torch._C._autograd._unsafe_set_version_counter((results[slot],), (value,))
    out: list[Any] = []
    for spec in aten_graph.plan:
        if spec.kind == "buffer":
            out.append(results[spec.value])
        elif spec.kind == "input":
            out.append(inputs[spec.value])
        elif spec.kind == "view":
            base = inputs[spec.value[1]] if spec.value[0] == "input" else results[spec.value[1]]
            meta = spec.meta
            shape, stride = _concrete(meta.shape, sizes), _concrete(meta.stride, sizes)
            parts = base.is_complex() and not meta.dtype.is_complex
            b = base if base.dtype == meta.dtype else torch.view_as_real(base) if parts else base.view(meta.dtype)
            view = b.as_strided(shape, stride, b.storage_offset() + _concrete(meta.storage_offset, sizes))
            out.append(view.detach() if spec.detached else view)
        else:
            out.append(_concrete(spec.value, sizes))
    return tuple(out)
