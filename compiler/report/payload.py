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
        number, c = self.tables["dtypes"].index(dtype), self.columns
        rows = {i for i, (op, d) in enumerate(zip(c["op"], c["dtype"])) if op in wanted and d == number}
        if not rows:
            return {}
        order = (row for row, _, _ in _order(self)) if self.repeats else range(self.count)
        return {name: self.tables["ops"][c["op"][row]] for name, row in zip(c["name"], order) if row in rows}

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
    tables: dict[str, dict[Any, int]] = {k: {} for k in _TABLES}
    columns: dict[str, list] = {k: [] for k in (*_ROW, "inputs")}
    blocks = _find_repeats(nodes)
    repeats: list[dict] = []
    i = 0
    while i < len(nodes):
        block = blocks.get(i)
        length, times = (block["length"], block["times"]) if block else (1, 1)
        if block:
            repeats.append({"start": len(columns["op"]), "length": length, "times": times, "modules": block["modules"]})
        for k in range(i, i + length):
            n = nodes[k]
            cells = (n.op, n.args, _freeze(n.shape), n.dtype, (n.file, n.line), n.module, _freeze(n.stride))
            for column, table, cell in zip(_ROW, _TABLES, cells):
                columns[column].append(tables[table].setdefault(cell, len(tables[table])))
            columns["inputs"].append(block["refs"][k - i] if block else [_near(k, j) for j in n.inputs])
        i += length * times
    if list(tables["strides"]) in ([], [None]):  # all in rows one after the other
        del tables["strides"], columns["stride"]
    columns["name"] = [n.name for n in nodes]
    columns["kernel"] = [-1 if n.kernel is None else n.kernel for n in nodes]
    return GraphData(len(nodes), {k: [_thaw(x) for x in t] for k, t in tables.items()}, columns, repeats)


def expand(data: GraphData) -> list[Node]:
    """The nodes of a GraphData, in order. Raises ValueError where the columns contradict each other."""
    if not data.count:
        return []
    c, t, order = data.columns, data.tables, _order(data)
    if not len(order) == data.count == len(c["name"]) == len(c["kernel"]):
        raise ValueError(f"graph payload: {len(order)} rows and {len(c['name'])} names for {data.count} nodes")
    out = []
    for i, (row, old, new) in enumerate(order):
        file, line = t["lines"][c["line"][row]]
        module = t["modules"][c["module"][row]]
        if old != new:
            module = new + module[len(old) :]
        kernel = c["kernel"][i]
        out.append(
            Node(
                index=i,
                name=c["name"][i],
                op=t["ops"][c["op"][row]],
                inputs=[i - v if v > 0 else -1 - v for v in c["inputs"][row]],
                args=t["args"][c["args"][row]],
                shape=t["shapes"][c["shape"][row]],
                dtype=t["dtypes"][c["dtype"][row]],
                file=file,
                line=line,
                module=module,
                kernel=None if kernel < 0 else kernel,
                stride=t["strides"][c["stride"][row]] if "stride" in c else None,
            )
        )
    return out


def _order(data: GraphData) -> list[tuple[int, str, str]]:
    """For each node the stored row, a module prefix in it, and the prefix to show instead."""
    order: list[tuple[int, str, str]] = []
    blocks = {r["start"]: r for r in data.repeats}
    row = 0
    while row < len(data.columns["op"]):
        r = blocks.get(row)
        if r is None:
            order.append((row, "", ""))
            row += 1
            continue
        for prefix in r["modules"]:
            order.extend((row + k, r["modules"][0], prefix) for k in range(r["length"]))
        row += r["length"]
    return order


def renumber(data: GraphData, kernels: dict[int, int]) -> GraphData:
    """The same graph in a report where kernels have other numbers."""
    if not data.count:
        return data
    return replace(data, columns={**data.columns, "kernel": [kernels.get(k, -1) for k in data.columns["kernel"]]})


def _near(at: int, ref: int, reach: int = 64) -> int:
    return at - ref if 0 < at - ref <= reach else -1 - ref


def _freeze(x: Any) -> Any:
    return tuple(map(_freeze, x)) if isinstance(x, (list, tuple)) else x


def _thaw(x: Any) -> Any:
    return [_thaw(y) for y in x] if isinstance(x, tuple) else x


def _sink_parameters(nodes: list[Node]) -> list[Node]:
    """Move each parameter to just before its first reader and into that reader's module: a layer becomes one run of
    nodes, and a weight is drawn beside the operation that reads it."""
    first: dict[int, int] = {}
    for n in nodes:
        for j in n.inputs:
            first.setdefault(j, n.index)
    before: dict[int, list[Node]] = {}
    rest = []
    for n in nodes:
        if n.op == "parameter" and n.index in first:
            reader = nodes[first[n.index]]
            before.setdefault(reader.index, []).append(n)
        else:
            rest.append(n)
    out: list[Node] = []
    for n in rest:
        out += before.get(n.index, [])
        out.append(n)
    position = [0] * len(out)
    for i, n in enumerate(out):
        position[n.index] = i
    return [
        Node(
            index=i,
            name=n.name,
            op=n.op,
            inputs=[position[j] for j in n.inputs],
            args=n.args,
            shape=n.shape,
            dtype=n.dtype,
            file=n.file,
            line=n.line,
            module=n.module or (nodes[first[n.index]].module if n.op == "parameter" and n.index in first else ""),
            kernel=n.kernel,
            stride=n.stride,
        )
        for i, n in enumerate(out)
    ]


@lru_cache(maxsize=4096)
def _layer(module: str) -> tuple[str, int, str] | None:
    """`encoder.layer.3.output` -> ("encoder.layer.", 3, ".output"): the outermost numbered container."""
    parts = module.split(".")
    for i, p in enumerate(parts):
        if p.isdigit():
            head = ".".join(parts[:i])
            tail = ".".join(parts[i + 1 :])
            return (head + "." if head else ""), int(p), ("." + tail if tail else "")
    return None


def _find_repeats(nodes: list[Node]) -> dict[int, dict]:
    """Consecutive runs of nodes in numbered siblings (`layer.0`, `layer.1`, ...) whose rows are equal."""
    runs: list[tuple[int, int, str, int]] = []  # start, end, container, number
    for n in nodes:
        where = _layer(n.module)
        if where is None:
            continue
        if runs and runs[-1][1] == n.index and runs[-1][2:] == where[:2]:
            runs[-1] = (runs[-1][0], n.index + 1, *where[:2])
        else:
            runs.append((n.index, n.index + 1, *where[:2]))
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
                "refs": [[max(o) for o in row] for row in options],
                "modules": [f"{container}{runs[i + t][3]}" for t in range(times)],
            }
        i += times
    return out


def _same_layer(
    nodes: list[Node], a: int, b: int, length: int, options: list[list[set[int]]]
) -> list[list[set[int]]] | None:
    out = []
    for k in range(length):
        x, y = nodes[a + k], nodes[b + k]
        if (x.op, x.args, x.shape, x.dtype, x.file, x.line, x.stride, len(x.inputs)) != (
            y.op,
            y.args,
            y.shape,
            y.dtype,
            y.file,
            y.line,
            y.stride,
            len(y.inputs),
        ):
            return None
        if _layer(x.module)[2] != _layer(y.module)[2]:  # type: ignore[index]  # both are inside a numbered container
            return None
        row = [o & {b + k - j, -1 - j} for o, j in zip(options[k], y.inputs)]
        if not all(row):
            return None
        out.append(row)
    return out
