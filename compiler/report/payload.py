"""Graphs in columns: small when deflated, repeated layers once. docs/report-schema.md describes the format.

`encode(nodes)` makes a GraphData from nodes in topological order; `expand(data)` gives the nodes back. References are
relative where they stay near, so that the rows of a second layer equal those of the first, and a run of equal layers
becomes one block of rows with a `repeats` record.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Collection

__all__ = ["GraphData", "Node", "encode", "expand", "renumber"]

MIN_BLOCK = 3  # a repeated block must have that many nodes to be worth a record
_TABLES = ("ops", "args", "shapes", "dtypes", "lines", "modules", "strides")
_ROW = ("op", "args", "shape", "dtype", "line", "module", "stride")


@dataclass
class Node:
    """One operation of a graph, as decoded from GraphData."""

    index: int
    name: str
    op: str
    inputs: list[int]
    args: str  # argument text with %0, %1, ... for the inputs
    shape: list | None = None
    dtype: str = ""
    file: str = ""
    line: int | None = None
    module: str = ""
    kernel: int | None = None  # index into report.kernels
    stride: list | None = None  # of one tensor whose elements do not lie in rows one after the other


@dataclass
class GraphData:
    """A graph in columns (see docs/report-schema.md, "Graph payload"). `nodes()` expands it."""

    count: int = 0
    tables: dict[str, list] = field(default_factory=dict)
    columns: dict[str, list] = field(default_factory=dict)
    repeats: list[dict] = field(default_factory=list)

    def nodes(self) -> list[Node]:
        return expand(self)

    def named(self, ops: Collection[str], dtype: str) -> dict[str, str]:
        """Names of the nodes of these operators with results of a dtype, and the operators, without making the
        nodes."""
        if not self.count or dtype not in self.tables["dtypes"]:
            return {}
        wanted = {k for k, op in enumerate(self.tables["ops"]) if op.removeprefix("aten.").split(".")[0] in ops}
        number, columns = self.tables["dtypes"].index(dtype), self.columns
        rows = {
            i for i, (op, dtype) in enumerate(zip(columns["op"], columns["dtype"])) if op in wanted and dtype == number
        }
        if not rows:
            return {}
        order = (row for row, _, _ in _order(self)) if self.repeats else range(self.count)
        return {
            name: self.tables["ops"][columns["op"][row]] for name, row in zip(columns["name"], order) if row in rows
        }

    def lines(self) -> set[tuple[str, int]]:
        """File and line of its operations, without making the nodes."""
        if not self.count:
            return set()
        ops, lines = self.tables["ops"], self.tables["lines"]
        places = set(zip(self.columns["op"], self.columns["line"]))
        return {
            tuple(lines[k])
            for op, k in places
            if lines[k][1] is not None and ops[op] not in ("input", "parameter", "output")
        }

    def __bool__(self) -> bool:
        return self.count > 0


def encode(nodes: list[Node]) -> GraphData:
    """Columns of `nodes`, which must be in topological order; their inputs are indices into the list."""
    nodes = _sink_parameters(nodes)
    tables: dict[str, dict[Any, int]] = {name: {} for name in _TABLES}
    columns: dict[str, list] = {name: [] for name in (*_ROW, "inputs")}
    blocks = _find_repeats(nodes)
    repeats: list[dict] = []
    i = 0
    while i < len(nodes):
        block = blocks.get(i)
        length, times = (block["length"], block["times"]) if block else (1, 1)
        if block:
            repeats.append({"start": len(columns["op"]), "length": length, "times": times, "modules": block["modules"]})
        for k in range(i, i + length):
            node = nodes[k]
            cells = (
                node.op,
                node.args,
                _freeze(node.shape),
                node.dtype,
                (node.file, node.line),
                node.module,
                _freeze(node.stride),
            )
            for column, table, cell in zip(_ROW, _TABLES, cells):
                columns[column].append(tables[table].setdefault(cell, len(tables[table])))
            columns["inputs"].append(block["refs"][k - i] if block else [_near(k, j) for j in node.inputs])
        i += length * times
    if list(tables["strides"]) in ([], [None]):  # all in rows one after the other
        del tables["strides"], columns["stride"]
    columns["name"] = [node.name for node in nodes]
    columns["kernel"] = [-1 if node.kernel is None else node.kernel for node in nodes]
    return GraphData(
        len(nodes), {name: [_thaw(row) for row in table] for name, table in tables.items()}, columns, repeats
    )


def expand(data: GraphData) -> list[Node]:
    """The nodes of a GraphData, in order. Raises ValueError where the columns contradict each other."""
    if not data.count:
        return []
    columns, tables, order = data.columns, data.tables, _order(data)
    if not len(order) == data.count == len(columns["name"]) == len(columns["kernel"]):
        raise ValueError(f"graph payload: {len(order)} rows and {len(columns['name'])} names for {data.count} nodes")
    out = []
    for i, (row, old, new) in enumerate(order):
        file, line = tables["lines"][columns["line"][row]]
        module = tables["modules"][columns["module"][row]]
        if old != new:
            module = new + module[len(old) :]
        kernel = columns["kernel"][i]
        out.append(
            Node(
                index=i,
                name=columns["name"][i],
                op=tables["ops"][columns["op"][row]],
                inputs=[i - v if v > 0 else -1 - v for v in columns["inputs"][row]],
                args=tables["args"][columns["args"][row]],
                shape=tables["shapes"][columns["shape"][row]],
                dtype=tables["dtypes"][columns["dtype"][row]],
                file=file,
                line=line,
                module=module,
                kernel=None if kernel < 0 else kernel,
                stride=tables["strides"][columns["stride"][row]] if "stride" in columns else None,
            )
        )
    return out


def _order(data: GraphData) -> list[tuple[int, str, str]]:
    """For each node the stored row, a module prefix in it, and the prefix to show instead."""
    order: list[tuple[int, str, str]] = []
    blocks = {repeat["start"]: repeat for repeat in data.repeats}
    row = 0
    while row < len(data.columns["op"]):
        repeat = blocks.get(row)
        if repeat is None:
            order.append((row, "", ""))
            row += 1
            continue
        for prefix in repeat["modules"]:
            order.extend((row + k, repeat["modules"][0], prefix) for k in range(repeat["length"]))
        row += repeat["length"]
    return order


def renumber(data: GraphData, kernels: dict[int, int]) -> GraphData:
    """The same graph in a report where kernels have other numbers."""
    if not data.count:
        return data
    return replace(
        data, columns={**data.columns, "kernel": [kernels.get(column, -1) for column in data.columns["kernel"]]}
    )


def _near(at: int, ref: int, reach: int = 64) -> int:
    return at - ref if 0 < at - ref <= reach else -1 - ref


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _thaw(value: Any) -> Any:
    return [_thaw(item) for item in value] if isinstance(value, tuple) else value


def _sink_parameters(nodes: list[Node]) -> list[Node]:
    """Move each parameter to just before its first reader and into that reader's module: a layer becomes one run of
    nodes, and a weight is drawn beside the operation that reads it."""
    first: dict[int, int] = {}
    for node in nodes:
        for j in node.inputs:
            first.setdefault(j, node.index)
    before: dict[int, list[Node]] = {}
    rest = []
    for node in nodes:
        if node.op == "parameter" and node.index in first:
            reader = nodes[first[node.index]]
            before.setdefault(reader.index, []).append(node)
        else:
            rest.append(node)
    out: list[Node] = []
    for node in rest:
        out += before.get(node.index, [])
        out.append(node)
    position = [0] * len(out)
    for i, node in enumerate(out):
        position[node.index] = i
    return [
        Node(
            index=i,
            name=node.name,
            op=node.op,
            inputs=[position[j] for j in node.inputs],
            args=node.args,
            shape=node.shape,
            dtype=node.dtype,
            file=node.file,
            line=node.line,
            module=node.module
            or (nodes[first[node.index]].module if node.op == "parameter" and node.index in first else ""),
            kernel=node.kernel,
            stride=node.stride,
        )
        for i, node in enumerate(out)
    ]


@lru_cache(maxsize=4096)
def _layer(module: str) -> tuple[str, int, str] | None:
    """`encoder.layer.3.output` -> ("encoder.layer.", 3, ".output"): the outermost numbered container."""
    parts = module.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            head = ".".join(parts[:i])
            tail = ".".join(parts[i + 1 :])
            return (head + "." if head else ""), int(part), ("." + tail if tail else "")
    return None


def _find_repeats(nodes: list[Node]) -> dict[int, dict]:
    """Consecutive runs of nodes in numbered siblings (`layer.0`, `layer.1`, ...) whose rows are equal."""
    runs: list[tuple[int, int, str, int]] = []  # start, end, container, number
    for node in nodes:
        where = _layer(node.module)
        if where is None:
            continue
        if runs and runs[-1][1] == node.index and runs[-1][2:] == where[:2]:
            runs[-1] = (runs[-1][0], node.index + 1, *where[:2])
        else:
            runs.append((node.index, node.index + 1, *where[:2]))
    out: dict[int, dict] = {}
    i = 0
    while i < len(runs):
        start, end, container, number = runs[i]
        length, times = end - start, 1
        options: list[list[set[int]]] = [[{k - j, -1 - j} for j in nodes[k].inputs] for k in range(start, end)]
        while i + times < len(runs) and length >= MIN_BLOCK:
            s2, e2, c2, _ = runs[i + times]
            if c2 != container or s2 != start + times * length or e2 - s2 != length:
                break
            narrowed = _same_layer(nodes, start, s2, length, options)
            if narrowed is None:
                break
            options, times = narrowed, times + 1
        if times > 1:
            out[start] = {
                "length": length,
                "times": times,
                "refs": [[max(reach) for reach in row] for row in options],
                "modules": [f"{container}{runs[i + t][3]}" for t in range(times)],
            }
        i += times
    return out


def _same_layer(
    nodes: list[Node], a: int, b: int, length: int, options: list[list[set[int]]]
) -> list[list[set[int]]] | None:
    out = []
    for k in range(length):
        first, second = nodes[a + k], nodes[b + k]
        if (
            first.op,
            first.args,
            first.shape,
            first.dtype,
            first.file,
            first.line,
            first.stride,
            len(first.inputs),
        ) != (
            second.op,
            second.args,
            second.shape,
            second.dtype,
            second.file,
            second.line,
            second.stride,
            len(second.inputs),
        ):
            return None
        # (both are inside of a numbered container)
        if _layer(first.module)[2] != _layer(second.module)[2]:  # type: ignore[index]
            return None
        row = [option & {b + k - j, -1 - j} for option, j in zip(options[k], second.inputs)]
        if not all(row):
            return None
        out.append(row)
    return out
