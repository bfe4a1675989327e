"""A program as minifying changes it: a graph without state, a spec for each input, and the file that it becomes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Sequence

import torch
import torch.fx

from ..base.fx_nodes import is_call, is_input, is_method, is_output
from ..errors import ReproduceError
from ..reproduce.from_report import written
from ..reproduce.reproducer import Reproducer
from ..reproduce.specs import Autocast, InputSpec, spec_of

__all__ = ["Candidate", "Values"]

Values = dict[str, InputSpec]  # node -> what is known of its value
_IN_PLACE = ("setitem", "_set_grad_enabled", "clear_autocast_cache")
_SWITCHES = ("set_autocast_", "autocast_increment", "autocast_decrement")


@dataclass(frozen=True)
class Candidate:
    """`graph` has placeholders, calls and one output of a tuple; `specs` are in the order of the placeholders."""

    graph: torch.fx.Graph
    specs: tuple[InputSpec, ...]
    how: dict[str, Any]
    title: str
    setup: str = ""
    autocast: Autocast = ()

    def reproducer(self) -> Reproducer:
        more: dict[str, Any] = {"kind": "program", "title": self.title, "how": self.how, "setup": self.setup}
        return written(self.graph, list(self.specs), autocast=self.autocast, **more)

    @property
    def calls(self) -> list[torch.fx.Node]:
        return [node for node in self.graph.nodes if node.op.startswith("call_")]

    @property
    def results(self) -> tuple:
        out = self.graph.output_node().args[0]
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def values(self, exact: bool = False) -> Values:
        """Run it by eager: the spec of each node's value. Raises what the program raises."""
        with ExitStack() as regions:
            for device, dtype in self.autocast:
                regions.enter_context(torch.autocast(device, dtype))
            return self._values(exact)

    def _values(self, exact: bool) -> Values:
        made: dict[torch.fx.Node, Any] = {}
        out: Values = {}
        specs = iter(self.specs)
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        torch.manual_seed(0)
        runner = torch.fx.Interpreter(module)
        for node in self.graph.nodes:
            if is_output(node):
                continue
            if is_input(node):
                made[node] = next(specs).make()
            else:
                args, kwargs = (torch.fx.node.map_arg(a, made.__getitem__) for a in (node.args, node.kwargs))
                made[node] = getattr(runner, node.op)(node.target, args, kwargs)
            if isinstance(made[node], torch.Tensor):
                try:
                    out[node.name] = replace(
                        spec_of(node.name, made[node], statistics=True, exact=exact), requires_grad=False
                    )
                except ReproduceError:  # too large to be kept exactly
                    out[node.name] = replace(spec_of(node.name, made[node], statistics=True), requires_grad=False)
            elif isinstance(made[node], (bool, int, float, complex)):
                out[node.name] = spec_of(node.name, made[node])
        return out

    def with_results(self, results: Sequence[Any]) -> Candidate:
        """The same program with other results, less what these do not need."""
        graph = torch.fx.Graph()
        new: dict[torch.fx.Node, torch.fx.Node] = {}
        needed = _needed(self.graph, [result for result in results if isinstance(result, torch.fx.Node)])
        specs = []
        for node, spec in zip(self.graph.find_nodes(op="placeholder"), self.specs):
            if node in needed:
                specs.append(spec)
        for node in self.graph.nodes:
            if node in needed:
                new[node] = graph.node_copy(node, new.__getitem__)
        graph.output(tuple(new[result] if isinstance(result, torch.fx.Node) else result for result in results))
        return replace(self, graph=graph, specs=tuple(specs))

    def dropping(self, nodes: list[torch.fx.Node]) -> Candidate:
        """The program without calls whose values nobody reads."""
        graph = torch.fx.Graph()
        new: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.graph.nodes:
            if node not in nodes:
                new[node] = graph.node_copy(node, new.__getitem__)
        return replace(self, graph=graph)

    def replacing(self, swaps: dict[torch.fx.Node, InputSpec | torch.fx.Node]) -> Candidate:
        """The program where nodes are inputs of these specs, or other nodes in their place."""
        graph, new, specs = torch.fx.Graph(), {}, []
        kept = dict(zip(self.graph.find_nodes(op="placeholder"), self.specs))
        given: list[tuple[torch.fx.Node, InputSpec]] = [*kept.items()]
        given += [(key, swap) for key, swap in swaps.items() if isinstance(swap, InputSpec) and key not in kept]
        for node, spec in given:
            if node in swaps and not isinstance(swaps[node], InputSpec):
                continue
            new[node] = graph.placeholder(node.name)
            specs.append(swaps[node] if isinstance(swaps.get(node), InputSpec) else spec)
        for node in self.graph.nodes:
            if node in new:
                continue
            swap = swaps.get(node)
            new[node] = new[swap] if isinstance(swap, torch.fx.Node) else graph.node_copy(node, new.__getitem__)
        made = replace(self, graph=graph, specs=tuple(spec for spec in specs if isinstance(spec, InputSpec)))
        return made.with_results(made.results)


def _needed(graph: torch.fx.Graph, results: list[torch.fx.Node]) -> set[torch.fx.Node]:
    """What the results come from, and what writes to any of it in place."""
    nodes = list(graph.nodes)
    needed = set(results)
    while True:
        before = len(needed)
        for node in reversed(nodes):
            first = node.args[0] if node.args else None
            if node in needed or _writes(node) and (not isinstance(first, torch.fx.Node) or first in needed):
                needed.add(node)
                needed.update(node.all_input_nodes)
        if len(needed) == before:
            return needed


def _writes(node: torch.fx.Node) -> bool:
    """Whether it is called for what it does: `add_`, `iadd`, `setitem`, a switch of a mode, `out=`."""
    if not (is_call(node) or is_method(node)):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and name != "and_" and name != "or_"
    operators = getattr(node.target, "__module__", "") == "_operator" and name.startswith("i") and name[1:] in _BINARY
    return in_place or operators or name in _IN_PLACE or name.startswith(_SWITCHES) or "out" in node.kwargs


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
