"""Notebooks as they are saved after a run: what the browser tests open, without a kernel."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

MIME = "application/vnd.tcompile.report.v1+json"
SAMPLE = Path(__file__).resolve().parents[1] / "report" / "sample_report.json"


def sample_report() -> dict[str, Any]:
    return json.loads(SAMPLE.read_text())


def code_cell(source: str, count: int, outputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "id": f"cell{count}",
        "metadata": {},
        "execution_count": count,
        "source": source,
        "outputs": outputs or [],
    }


def report_output(report: dict[str, Any]) -> dict[str, Any]:
    line = report.get("summary", {}).get("line", "")
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {MIME: report, "text/plain": line, "text/html": "<p>the static report</p>"},
    }


def notebook(*cells: dict[str, Any]) -> dict[str, Any]:
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "cells": list(cells),
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
    }


def with_sample(change: Any = None) -> dict[str, Any]:
    """A notebook of two cells whose second was compiled; `change` edits the report first."""
    report = copy.deepcopy(sample_report())
    if change is not None:
        change(report)
    return notebook(
        code_cell("%load_ext tcompile", 1),
        code_cell(report["source"]["text"], report["source"]["cell"], [report_output(report)]),
    )


def column_graph(nodes: list[tuple[str, str, list[int], str, int | None]]) -> dict[str, Any]:
    """A graph payload from (name, op, inputs, module, kernel) rows, one row a node."""
    modules = sorted({n[3] for n in nodes})
    ops = sorted({n[1] for n in nodes})
    columns = {
        "op": [ops.index(n[1]) for n in nodes],
        "args": [0] * len(nodes),
        "shape": [0] * len(nodes),
        "dtype": [0] * len(nodes),
        "line": [0] * len(nodes),
        "module": [modules.index(n[3]) for n in nodes],
        "inputs": [[-1 - i for i in n[2]] for n in nodes],
        "name": [n[0] for n in nodes],
        "kernel": [-1 if n[4] is None else n[4] for n in nodes],
    }
    tables = {
        "ops": ops,
        "args": ["%0"],
        "shapes": [[8, 64]],
        "dtypes": ["float32"],
        "lines": [["In[4]", 5]],
        "modules": modules,
    }
    return {"count": len(nodes), "tables": tables, "columns": columns, "repeats": []}
