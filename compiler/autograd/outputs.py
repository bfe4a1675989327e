"""What the bridge's autograd.Function returns, and how the captured graph's results are made of that.

Eager autograd knows views and in-place writes; an autograd.Function knows neither. So the Function returns tensors that
share memory with nothing else the caller can reach (the *differentiable outputs*), and after it, with gradients
recorded as in eager,

    an input written under grad mode     gets its new value by `input.copy_(value)`
    a result that is a view of an input  is a view of the real input
    results that overlap                 are views of one differentiable output
    a result without gradient            is detached from the memory that it shares
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..graph.functionalize import Functionalizer
from ..graph.tensor import TraceTensor

__all__ = ["CannotTrace", "OutputPlan", "plan_outputs"]


class CannotTrace(Exception):
    """This graph's gradients are left to eager autograd; the message says why, in words for the report."""


@dataclass
class OutputPlan:
    """
    tensors    the differentiable outputs as traced
    at         their positions among forward's outputs (results, then extras)
    extra      indices into `tensors` that are not among the results: bases of overlapping results, new values of
               written inputs
    recipes    per result: ("side", k) forward's output k as it is; ("detach", k); ("diff", d); ("alias", d) a view of
               all of it, where eager's is a view of what nobody else sees; ("view", d, k) a view of differentiable
               output d with the geometry of forward's output k; ("input", i); ("input_view", i, k); ("part", first, k)
               a view, with the geometry of forward's output k, of the memory that it shares with other results without
               gradient, `first` the first of them
    parts      results that are one of several views made at once, and the operator (unbind, split) that eager names
               when it refuses to write
               into them where gradients are recorded
    writes     [(input, d)]: input.copy_(differentiable output d) under grad mode, before the views are taken
    origin     per differentiable output, where the same tensor is after an eager run: ("result", k) | ("base", k) |
               ("write", input)
    """

    tensors: list[torch.Tensor] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    extra: list[int] = field(default_factory=list)
    recipes: list[tuple] = field(default_factory=list)
    parts: dict[int, str] = field(default_factory=dict)
    writes: list[tuple[int, int]] = field(default_factory=list)
    origin: list[tuple[str, int]] = field(default_factory=list)

    @property
    def write_of(self) -> dict[int, int]:
        """differentiable output -> the input whose new value it is."""
        return {d: i for i, d in self.writes}

    @property
    def plain(self) -> bool:
        """Whether nothing is left to do after the Function but to put results in order."""
        return not self.writes and all(recipe[0] in ("side", "diff", "alias", "input") for recipe in self.recipes)


def plan_outputs(functionalizer: Functionalizer, inputs: list[Any], results: tuple) -> OutputPlan:
    """Sort the results of a traced graph. Raises CannotTrace where autograd's state can't be expressed so."""
    plan = OutputPlan()
    written = [
        i
        for i, t in enumerate(inputs)
        if isinstance(t, TraceTensor) and functionalizer.alias_of(t).memory.written and _recorded(t)
    ]
    groups: dict[int, list[int]] = {}  # memory -> results that are made of it and require grad, each object once
    first: dict[int, int] = {}  # id of a result -> where it comes first
    for k, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            first.setdefault(id(result), k)
            if result.grad_fn is not None and first[id(result)] == k:
                memory = functionalizer.alias_of(result).memory
                if memory.input is None:
                    groups.setdefault(id(memory), []).append(k)
                elif _has_own_history(result, inputs[memory.input]):
                    groups[id(result)] = [k]
    diff: dict[int, int] = {}  # id of a traced tensor -> differentiable output
    view_of: dict[int, int] = {}  # result -> the differentiable output that it is a view of
    for ks in groups.values():
        if len(ks) == 1 or _disjoint(functionalizer, [results[k] for k in ks]):
            for k in ks:
                diff[id(results[k])] = len(plan.tensors)
                plan.tensors.append(results[k])
                plan.at.append(k)
                plan.origin.append(("result", k))
            continue
        memory = functionalizer.alias_of(results[ks[0]]).memory
        root = memory.root.tensor if memory.root is not None else None
        if not isinstance(root, torch.Tensor) or not root.requires_grad:
            raise CannotTrace("results that require grad share memory whose base does not")
        if any(results[k].dtype != root.dtype for k in ks):
            raise CannotTrace("results that share memory have different dtypes")
        if not all(_only_views_between(results[k], root) for k in ks):
            raise CannotTrace("results that share memory have gradients of their own")
        diff[id(root)] = len(plan.tensors)
        view_of |= {k: len(plan.tensors) for k in ks if results[k] is not root}
        plan.tensors.append(root)
        if id(root) in first:
            plan.at.append(first[id(root)])
            plan.origin.append(("result", first[id(root)]))
        else:
            plan.at.append(-1)
            plan.extra.append(len(plan.tensors) - 1)
            plan.origin.append(("base", ks[0]))
    for i in written:
        d = len(plan.tensors)
        plan.tensors.append(inputs[i])
        plan.at.append(-1)
        plan.extra.append(d)
        plan.origin.append(("write", i))
        plan.writes.append((i, d))
    for n, d in enumerate(plan.extra):
        plan.at[d] = len(results) + n
    shared = {id(functionalizer.alias_of(tensor).memory) for tensor in plan.tensors}
    plan.recipes = [_recipe(functionalizer, inputs, k, t, first, diff, view_of, shared) for k, t in enumerate(results)]
    _join_parts(functionalizer, results, plan.recipes)
    plan.parts = {
        k: name
        for k, recipe in enumerate(plan.recipes)
        if recipe[0] in ("view", "alias", "input_view")
        and results[k]._is_view()
        and (name := functionalizer.several_views_of(results[k]))
    }
    return plan


def _recorded(tensor: torch.Tensor) -> bool:
    """Whether the writes to an input are part of autograd's graph: it computes now what it did not before."""
    step = getattr(tensor, "_tcompile_step", None)
    return tensor.grad_fn is not None and tensor.grad_fn is not step


def _recipe(
    functionalizer: Functionalizer,
    inputs: list,
    k: int,
    tensor: Any,
    first: dict,
    diff: dict,
    view_of: dict,
    shared: set,
) -> tuple:
    if not isinstance(tensor, torch.Tensor):
        return ("side", k)
    memory = functionalizer.alias_of(tensor).memory
    if memory.input is not None and id(tensor) not in diff:
        source = inputs[memory.input]
        if source is tensor:
            return ("input", memory.input)
        if tensor.requires_grad and tensor.grad_fn is None:
            if source.requires_grad and tensor._is_view() and not shared:
                return ("side", k)  # a view made under no_grad: to eager a leaf that requires grad
            raise CannotTrace("a result that requires grad is an input's memory, and a leaf that was made inside")
        if tensor.requires_grad:
            if tensor.dtype != source.dtype:
                raise CannotTrace("a result that requires grad is an input's memory in another dtype")
            if (
                not tensor._is_view() or tensor._base is not source
            ):  # by way of detach(): its gradients do not go to the input
                raise CannotTrace("a result that requires grad shares an input's memory, but not its history")
            return ("input_view", memory.input, k)
        return (
            ("detach", k)
            if source.requires_grad
            else ("input_view", memory.input, k)
            if tensor.dtype == source.dtype
            else ("side", k)
        )
    k = first[id(tensor)]
    if id(tensor) in diff:
        return ("alias" if tensor._is_view() else "diff", diff[id(tensor)])
    if k in view_of:
        return ("view", view_of[k], k)
    if tensor.requires_grad:
        raise CannotTrace("a result that requires grad is a leaf, or a view of one, that was made inside")
    return ("detach", k) if id(memory) in shared and not tensor.requires_grad else ("side", k)


def _has_own_history(result: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether a result that is an input's memory is more than a view of it to autograd: by a custom function."""
    return (
        result is not source
        and result.dtype == source.dtype
        and result._is_view()
        and result._base is source
        and not _only_views_between(result, source)
    )


def _only_views_between(view: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether the gradient of `view` goes to `base` by view operators alone. A custom function that returns one of its
    inputs gives a view of it, too: its backward may go elsewhere."""
    end, (node, output) = torch.autograd.graph.get_gradient_edge(base), (view.grad_fn, view.output_nr)
    while (node, output) != (end.node, end.output_nr):
        if node is None or isinstance(node, torch.autograd.function.BackwardCFunction) or len(node.next_functions) != 1:
            return False
        node, output = node.next_functions[0]
    return True


def _join_parts(functionalizer: Functionalizer, results: tuple, recipes: list[tuple]) -> None:
    """Results without gradient that share memory are views of one tensor: what is written into one of them, the others'
    history has too.
    """
    sharing: dict[int, list[int]] = {}
    for k, recipe in enumerate(recipes):
        if recipe == ("side", k) and isinstance(results[k], torch.Tensor):
            memory = functionalizer.alias_of(results[k]).memory
            if memory.input is None and not memory.constant:
                sharing.setdefault(id(memory), []).append(k)
    for ks in sharing.values():
        if len(ks) > 1 and len({results[k].dtype for k in ks}) == 1:
            for k in ks:
                recipes[k] = ("part", ks[0], k)


def _disjoint(functionalizer: Functionalizer, tensors: list[torch.Tensor]) -> bool:
    """Whether no two of these views of one memory have an element in common, by the view operators that made them."""
    paths = []
    for tensor in tensors:
        path, a = [], functionalizer.alias_of(tensor)
        while a.parent is not None:
            path.append(a)
            a = a.parent
        paths.append(path[::-1])
    return all(_part(path, q) for n, path in enumerate(paths) for q in paths[:n])


def _part(p: list, q: list) -> bool:
    for a, b in zip(p, q):
        if a is b:
            continue
        name = a.op._schema.name
        if name != b.op._schema.name:
            return False
        if a.index is not None:  # split, chunk, unbind: by the same arguments, another part
            if str(a.args) == str(b.args) and str(a.kwargs) == str(b.kwargs) and a.index != b.index:
                return True
        elif (
            name == "aten::select"
            and a.args[0] == b.args[0]
            and all(type(x) is int and x >= 0 for x in (a.args[1], b.args[1]))
        ):
            if a.args[1] != b.args[1]:
                return True
        elif name == "aten::slice" and (bounds := [_bounds(x) for x in (a, b)]) and None not in bounds:
            (d, lo, hi), (e, low, high) = bounds
            if d == e and (hi <= low or high <= lo):
                return True
        if str((a.args, a.kwargs, a.index)) != str((b.args, b.kwargs, b.index)):
            return False  # not the same step either
    return False


def _bounds(a: Any) -> tuple[int, int, int] | None:
    """(dimension, from, to) of a slice whose bounds are plain numbers."""
    d, lo, hi = [*a.args, *(None,) * 3][:3]
    if not all(x is None or type(x) is int for x in (d, lo, hi)) or (lo or 0) < 0 or hi is not None and hi < 0:
        return None
    return d or 0, lo or 0, 1 << 62 if hi is None else hi
