"""Would a call be compiled anew? What a form can ask of the entries that a report tells of, and the answer in words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from types import FunctionType
from typing import Any

import torch

from ..compiler.guards import TensorDescription, would_recompile
from ..compiler.frontend.inventory import CompiledFunction, compiled_functions
from ..compiler.base.labels import frame_line, frame_words, label
from ..compiler.base.source_text import source_line
from ..compiler.report.facts.own_words import users_words

__all__ = ["askable", "changed_itself", "forecast"]

_MOST_ROWS = 40
_MOST_ITEMS = 4  # of one list that are asked for at once
DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


def askable(report: Any) -> list[dict[str, Any]]:
    """The functions of a report with entries in this process, and for each what its latest entry checks of its
    arguments, first those that a call is given. `inner`: what lies within an object, which seldom changes, and further
    items of a list. `shown`: the name in the program's words.
    """
    out = []
    for f in _functions(report):
        rows: dict[str, dict[str, Any]] = {}
        for g in f.programs[0].guards:
            name = g.source.name() if g.source is not None else ""
            if not name or name in rows or name.startswith("__stack_"):  # what nobody gives: it has no name
                continue
            if g.kind == "TENSOR" and not _inside_a_module(g.source):
                spec = g.expected
                rows[name] = {
                    "name": name,
                    "kind": "tensor",
                    "shape": [str(n) for n in spec.shape],
                    "dtype": str(spec.dtype).removeprefix("torch."),
                }
            elif (
                g.kind == "EQUALS"
                and not _inside_a_module(g.source)
                and isinstance(g.expected, (int, float, str, bool, type(None)))
            ):
                rows[name] = {"name": name, "kind": "value", "value": repr(g.expected)}
        line = source_line(f.file, frame_line(f.name, f.line))
        items: Counter[str] = Counter()
        for name, row in rows.items():
            of = re.sub(r"\[\d+\]$", "", name)
            items[of] += of != name
            row["inner"] = _within_an_object(name) or items[of] > _MOST_ITEMS
            row["shown"] = users_words(name, line)
        ordered = sorted(rows.values(), key=lambda row: row["inner"])[:_MOST_ROWS]
        said = {"name": f.name, "function": frame_words(f.name), "line": f.line}
        out.append({**said, "entries": f.entries, "rows": ordered})
    return out


def forecast(report: Any, which: int, given: dict[str, Any]) -> dict[str, Any]:
    """`given` maps a name to {"shape": [...], "dtype": "float32"} or to the text of a Python literal. Raises ValueError
    with what to write for what cannot be read."""
    functions = _functions(report)
    if not 0 <= which < len(functions):
        raise ValueError("this function has no entries in the kernel any more: run the cell again")
    f = functions[which]
    answer = would_recompile(
        [program.guards for program in f.programs], {name: _description(name, value) for name, value in given.items()}
    )
    failures = [
        {
            "entry": i,
            "what": x.detail or x.guard.kind,
            "source": _name(x),
            "expected": x.expected_text,
            "got": x.got_text,
            "suggestion": x.suggestion,
        }
        for i, x in enumerate(answer.failures)
    ]
    return {
        "recompiles": answer.recompiles,
        "entry": answer.entry,
        "entries": f.entries,
        "assumed": answer.assumed,
        "failures": failures,
    }


def changed_itself(report: Any, namespace: dict[str, Any]) -> str:
    """What the run of a cell has changed of what its entries rely on, so that its next run compiles again; empty where
    one of them would serve."""
    told, cell = "", FunctionType(_at_top_level.__code__, namespace)
    for f in _functions(report, "<module>"):
        for program in f.programs:
            guards = program.guards
            if any(g.source is not None and g.source.root.kind == "local" for g in guards):
                continue  # what follows a break
            failed = program.check(cell, ())
            if failed == -1 or guards[failed].kind == "STATE":
                return ""
            source = guards[failed].source
            told = told or (source.name() if source is not None else "")
    return told


def _at_top_level() -> None:
    """Reads names where a cell does."""


def _functions(report: Any, name: str = "") -> list[CompiledFunction]:
    """Those of a report that have entries; of one `name`, where it is given."""
    known = {(f.name, f.file, f.line) for f in report.frames}
    return [f for f in compiled_functions(name) if f.programs and (f.name, label(f.file), f.line) in known]


def _inside_a_module(source: Any) -> bool:
    """What lies within a model: nobody asks what if a parameter had another shape."""
    return any(part in source.name() for part in ("._parameters", "._buffers", "._modules"))


def _within_an_object(name: str) -> bool:
    """Whether it is an attribute of something, such as `model.scale`; `batch['x']` is not."""
    return "." in re.sub(r"\[[^]]*]", "", name) or name.startswith("<")


def _name(failure: Any) -> str:
    return failure.guard.source.name() if failure.guard.source is not None else ""


def _description(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        shape, dtype = value.get("shape"), value.get("dtype")
        if shape is not None and not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"{name}: a shape is whole numbers from 0 up, such as 32, 128")
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"{name}: dtype is one of {', '.join(DTYPES)}, got {dtype!r}")
        return TensorDescription(
            None if shape is None else tuple(shape), None if dtype is None else getattr(torch, dtype)
        )
    try:
        return ast.literal_eval(str(value))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise ValueError(
            f"{name}: a value is written as in Python: 4, 0.5, True, 'mean' or None; got {value!r}"
        ) from None
