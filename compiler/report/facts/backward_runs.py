"""How often each backward graph ran while a report listened, and from which line of the cell.

Entries count the calls of forward graphs. Autograd's engine calls these, after some of the forward calls alone.
"""

from __future__ import annotations

from typing import Any

from ..cell_source import line_on_stack

__all__ = ["BackwardRuns"]


class BackwardRuns:
    def __init__(self, cell: str) -> None:
        self._cell = cell
        self._runs: dict[int, tuple[Any, int, int | None]] = {}  # by id: the graph, its runs, the line of the first

    def heard(self, graph: Any) -> None:
        """A backward graph begins to run."""
        _, runs, line = self._runs.get(id(graph), (graph, 0, None))
        self._runs[id(graph)] = graph, runs + 1, line if runs else line_on_stack(self._cell)

    def tell(self, report: Any) -> None:
        """Give the report's backward graphs their runs, and the place that called them: the line seen, or that of the
        break at which backward() ended a graph."""
        called = [brk for brk in report.graph_breaks if brk.kind == "backward"]
        at = [called[-1].file, called[-1].line] if called else []
        for number in {brk for partition in report.partitions for brk in partition.backward}:
            graph = report.graphs[number]
            _, graph.runs, line = self._runs.get(id(graph.aten), (None, 0, None))
            graph.called_at = [] if not graph.runs else at if line is None else [self._cell, line]
