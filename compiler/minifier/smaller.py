"""Smaller programs, made of a failing one. Each function gives candidates; what still fails takes its place.

Delta debugging over the graph: cut what follows, turn what comes before into inputs, put an operand in the place of a
result, shrink sizes, simplify inputs and options. Cutting goes by halves first, then node by node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Callable, Iterator

import torch
import torch.fx
from torch.fx.node import map_aggregate

from ..reproduce.specs import InputSpec
from .candidate import Candidate, Values

__all__ = ["reduce"]

Fails = Callable[[Candidate], bool]


def reduce(candidate: Candidate, fails: Fails, exact: bool = False) -> Candidate:
    """The smallest program that was found. `fails` may raise StopIteration where time is up."""
    while True:
        before = _measure(candidate)
        for step in _STEPS:
            candidate = step(candidate, fails, exact)
        if _measure(candidate) >= before:
            return candidate


def _measure(candidate: Candidate) -> tuple:
    numbers = sum(sum(spec.shape) + (spec.requires_grad or bool(spec.data)) for spec in candidate.specs)
    return len(candidate.calls), len(candidate.specs), numbers, len(str(candidate.how))


def _first(candidate: Candidate, candidates: Iterator[Candidate], fails: Fails) -> Candidate | None:
    size = _measure(candidate)
    return next((new for new in candidates if _measure(new) < size and fails(new)), None)


def _repeat(candidate: Candidate, make: Callable[[Candidate], Iterator[Candidate]], fails: Fails) -> Candidate:
    while (new := _first(candidate, make(candidate), fails)) is not None:
        candidate = new
    return candidate


def _one_result(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        results = candidate.results
        if len(results) > 1:
            for part in (results[: len(results) // 2], results[len(results) // 2 :]):
                yield candidate.with_results(part)
            for result in results:
                yield candidate.with_results([result])

    return _repeat(candidate, candidates, fails)


def _cut_end(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """The first node whose value is wrong, by halves; then the one that really is, since not all lie on one path."""
    values = candidate.values()
    calls = [call for call in candidate.calls if call.name in values and values[call.name].is_tensor]
    low, high = 0, len(calls) - 1
    best = candidate
    while low < high:
        middle = (low + high) // 2
        new = candidate.with_results(
            [call for call in calls[: middle + 1] if not set(call.users) & set(calls[: middle + 1])]
        )
        if fails(new):
            best, high = new, middle
        else:
            low = middle + 1
    return _one_result(best, fails, exact) if best is not candidate else candidate


def _cut_begin(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """As many of the first nodes as possible become inputs, by halves."""
    values = candidate.values(exact)
    calls = candidate.calls
    low, high = 0, len(calls)  # the first `low` can be inputs; `high` can't
    best = candidate
    while low + 1 < high:
        middle = (low + high) // 2
        new = _without(candidate, calls[:middle], values)
        if new is not None and fails(new):
            best, low = new, middle
        else:
            high = middle
    return best


def _without(candidate: Candidate, nodes: list[torch.fx.Node], values: Values) -> Candidate | None:
    """The program where these are inputs, as far as they are read by what stays."""
    gone = set(nodes)
    border = [node for node in nodes if any(user not in gone for user in node.users)]
    if any(n.name not in values for n in border):
        return None
    return candidate.replacing({n: values[n.name] for n in border})


def _drop_unread(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """Writes and switches of modes: all of them, then one by one."""

    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        unread = [call for call in candidate.calls if not call.users]
        if len(unread) > 1:
            yield candidate.dropping(unread)
        for node in unread:
            yield candidate.dropping([node])

    return _repeat(candidate, candidates, fails)


def _cut_nodes(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        values = candidate.values(exact)
        for call in candidate.calls:
            if call.name in values and not (len(candidate.results) == 1 and candidate.results[0] is call):
                yield candidate.replacing({call: values[call.name]})

    return _repeat(candidate, candidates, fails)


def _put_operands(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """`y = f(x)` where x looks like y: use x."""

    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        values = candidate.values()
        for call in reversed(candidate.calls):
            mine = values.get(call.name)
            for operand in call.all_input_nodes:
                other = values.get(operand.name)
                alike = mine and other and (mine.shape, mine.dtype) == (other.shape, other.dtype)
                if alike and mine.is_tensor:  # type: ignore[union-attr]
                    yield candidate.replacing({call: operand})

    return _repeat(candidate, candidates, fails)


def _shrink_sizes(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """One size at a time, wherever it stands: in inputs, and in numbers of the program."""

    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        sizes = Counter(n for spec in candidate.specs for n in spec.shape if n > 1)
        for size in sorted(sizes, reverse=True):
            for smaller in dict.fromkeys((1, 2, 3, 4, 8, 16, size // 4, size // 2)):
                if 0 < smaller < size:
                    yield _resized(candidate, size, smaller)

    return _repeat(candidate, candidates, fails)


def _resized(candidate: Candidate, size: int, smaller: int) -> Candidate:
    def number(value: Any) -> Any:
        return smaller if type(value) is int and value == size else value

    graph = torch.fx.Graph()
    new: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in candidate.graph.nodes:
        copy = new[node] = graph.node_copy(node, new.__getitem__)
        if node.op.startswith("call_"):
            copy.args = map_aggregate(copy.args, number)  # type: ignore[assignment]
            copy.kwargs = map_aggregate(copy.kwargs, number)  # type: ignore[assignment]
    specs = []
    for spec in candidate.specs:
        shape = tuple(map(number, spec.shape))
        specs.append(spec.resized(shape) if shape != spec.shape else replace(spec, value=number(spec.value)))
    return replace(candidate, graph=graph, specs=tuple(specs))


def _simplify(candidate: Candidate, fails: Fails, exact: bool) -> Candidate:
    """Inputs without gradients, values and odd layouts; fewer options; numbers as plain constants stay."""

    def candidates(candidate: Candidate) -> Iterator[Candidate]:
        for i, spec in enumerate(candidate.specs):
            for new in _simpler(spec):
                yield replace(candidate, specs=(*candidate.specs[:i], new, *candidate.specs[i + 1 :]))
        for key in candidate.how:
            yield replace(candidate, how={name: value for name, value in candidate.how.items() if name != key})
        for key in candidate.how.get("options", {}):
            rest = {name: value for name, value in candidate.how["options"].items() if name != key}
            yield replace(candidate, how={**candidate.how, "options": rest})

    return _repeat(candidate, candidates, fails)


def _simpler(spec: InputSpec) -> Iterator[InputSpec]:
    if spec.requires_grad:
        yield replace(spec, requires_grad=False)
    if spec.data and spec.dtype.is_floating_point:
        yield replace(spec, data="")


_STEPS = (_one_result, _cut_end, _cut_begin, _drop_unread, _cut_nodes, _put_operands, _shrink_sizes, _simplify)
