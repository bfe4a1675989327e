"""Report data against the schema: every field of its type, or a ValueError that names the field.

The types are those of the dataclasses in `schema.py`. Beside them stand what hints cannot say: rows of a fixed form,
fields that are positions in another list, and graphs in columns.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from functools import lru_cache
from typing import Any, NamedTuple

from . import schema as s
from .payload import expand

__all__ = ["build", "check_graphs", "check_profiles", "mend_references"]

_LARGEST = 1 << 63
_MOST_NODES = 1_000_000  # of all graphs

# Rows of a fixed form, in lists of them.
_LINE = (str, (int, type(None)))
_ROWS: dict[tuple[str, str], tuple] = {
    ("Graph", "lines"): _LINE,
    ("Kernel", "lines"): _LINE,
    ("Extern", "lines"): _LINE,
    ("Graph", "unfused"): (str, str, str),
    ("RunDiff", "source"): (str, str),
}
# Fields that are positions: of a class's field, the report's list.
_REFERENCES: dict[str, dict[str, str]] = {
    "Frame": {"entries": "entries"},
    "Entry": {"frame": "frames", "graph": "graphs", "breaks": "graph_breaks"},
    "Graph": {"frame": "frames", "entry": "entries", "kernels": "kernels"},
    "Partition": {"graph": "graphs", "backward": "graphs"},
    "Break": {"frame": "frames", "entry": "entries"},
    "GuardRow": {"entry": "entries"},
    "Recompile": {"frame": "frames"},
    "Kernel": {"graph": "graphs"},
    "Extern": {"graph": "graphs"},
    "Memory": {"graph": "graphs"},
    "Fallback": {"frame": "frames"},
    "NumericError": {"graph": "graphs"},
    "TimelineEvent": {"frame": "frames", "entry": "entries"},
}
# Fields that are one of these words.
_CHOICES = {("Mark", "kind"): s.MARK_KINDS, ("Summary", "status"): s.STATUSES}
_FIX = {"file": str, "start": int, "end": int, "old": str, "new": str, "note": str}
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # as JSON has them
_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
    list: "a list",
    dict: "an object",
}


def _refuse(where: str, wanted: Any, got: Any) -> ValueError:
    words = wanted if isinstance(wanted, str) else _WORDS.get(wanted, getattr(wanted, "__name__", str(wanted)))
    shown = ascii(got)
    return ValueError(f"report: {where}: expected {words}, got {shown if len(shown) <= 60 else type(got).__name__}")


class _Form(NamedTuple):
    """A type as values are checked against it. Reports have a million values: a type is taken apart once."""

    plain: Any  # list, dict, a dataclass, or what the value's own type has to be
    item: Any  # the type of a list's items, of a dict's values; None: not checked
    optional: bool  # whether it may be null
    is_class: bool


@lru_cache(maxsize=None)
def _form(tp: Any) -> _Form:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin in (typing.Union, types.UnionType):
        inner = _form(next(a for a in args if a is not type(None)))
        return inner._replace(optional=inner.optional or type(None) in args)
    item = args[-1] if origin in (list, dict) and args[-1] is not Any else None
    is_class = isinstance(tp, type) and dataclasses.is_dataclass(tp)
    return _Form(origin or tp, item, tp is type(None), is_class)


@lru_cache(maxsize=None)
def _fields(cls: type) -> tuple[tuple[str, Any, bool], ...]:
    """Name and type of each field, and whether its type does not say all."""
    hints = typing.get_type_hints(cls, vars(s) | {"s": s})
    return tuple((f.name, hints[f.name], _has_form(cls.__name__, f.name)) for f in dataclasses.fields(cls))


@lru_cache(maxsize=None)
def _required(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING)


def build(tp: Any, value: Any, where: str, skip: frozenset[str] | set[str] = frozenset()) -> Any:
    """`value` as a value of the type. `skip`: fields of classes that no data has."""
    if tp is Any:
        return value
    plain, item, optional, is_class = _form(tp)
    if value is None:
        if not optional:
            raise _refuse(where, tp, value)
        return value
    if is_class:
        return _object(plain, value, where, skip)
    if plain is float:
        return _number(value, where)
    if type(value) is not plain:
        raise _refuse(where, plain, value)
    if plain is int and not -_LARGEST <= value < _LARGEST:
        raise _refuse(where, "a whole number of 64 bits", value)
    if item is None:
        return value
    if plain is list:
        return [build(item, v, f"{where}[{i}]", skip) for i, v in enumerate(value)]
    return {k: build(item, v, f"{where}.{k}", skip) for k, v in value.items()}


def _number(value: Any, where: str) -> float:
    if type(value) is str and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if type(value) not in (int, float) or type(value) is int and abs(value) >= _LARGEST:
        raise _refuse(where, float, value)
    return value


def _object(cls: Any, value: Any, where: str, skip: frozenset[str] | set[str]) -> Any:
    if type(value) is not dict:
        raise _refuse(where, f"an object ({cls.__name__})", value)
    found: dict[str, Any] = {}
    for name, hint, has_form in _fields(cls):
        if name in value and name not in skip:
            at = f"{where}.{name}" if where else name
            found[name] = build(hint, value[name], at, skip)
            if has_form:
                _check_form(cls.__name__, name, found[name], at)
    missing = [name for name in _required(cls) if name not in found]
    if missing:
        raise ValueError(f"report: {where}: {', '.join(missing)} is missing")
    return cls(**found)


def _has_form(cls: str, name: str) -> bool:
    named = (cls, name)
    return named in _ROWS or named in _CHOICES or named == ("Break", "fix") or name in _REFERENCES.get(cls, {})


def _check_form(cls: str, name: str, made: Any, at: str) -> None:
    """What the type of a field does not say: rows of a fixed form, positions, words of a list."""
    row = _ROWS.get((cls, name))
    for i, r in enumerate(made if row is not None else ()):
        assert row is not None
        if len(r) != len(row) or not all(isinstance(x, t) and not isinstance(x, bool) for x, t in zip(r, row)):
            raise _refuse(f"{at}[{i}]", "a file and a line" if row is _LINE else f"a row of {len(row)} texts", r)
    list_name = _REFERENCES.get(cls, {}).get(name)
    if list_name is not None:
        for i in made if isinstance(made, list) else [made]:
            if i is not None and i < 0:
                raise _refuse(at, f"a position in {list_name}", i)
    if (cls, name) == ("Break", "fix") and made is not None:
        if any(type(made.get(k)) is not t for k, t in _FIX.items()):
            raise _refuse(at, f"an object with {', '.join(_FIX)}", made)
    words = _CHOICES.get((cls, name))
    if words is not None and made not in words:
        raise _refuse(at, f"one of {', '.join(words)}", made)


def mend_references(report: Any) -> None:
    """A report that was made smaller refers to what was left out: such positions are taken away where a field can be
    without.
    """
    for rows in (v for v in vars(report).values() if isinstance(v, list)):
        for row in rows:
            for name, of in _REFERENCES.get(type(row).__name__, {}).items():
                value, n = getattr(row, name), len(getattr(report, of))
                if isinstance(value, list):
                    setattr(row, name, [i for i in value if i < n])
                elif (
                    value is not None
                    and value >= n
                    and any(f == name and _form(hint).optional for f, hint, _ in _fields(row.__class__))
                ):
                    setattr(row, name, None)


def check_graphs(report: Any) -> None:
    """That each graph's columns make nodes, and all of them not too many: a block that repeats is a few bytes."""
    room = _MOST_NODES
    for i, g in enumerate(report.graphs):
        for part in ("captured", "lowered"):
            data = getattr(g, part)
            try:
                _check_graph(data, room)
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as e:
                raise ValueError(f"report: graphs[{i}].{part} is damaged: {type(e).__name__}: {str(e)[:100]}") from None
            room -= data.count


def _check_graph(data: s.GraphData, room: int) -> None:
    if not data.count:
        return
    if any(type(r[k]) is not int or r[k] < 0 for r in data.repeats for k in ("start", "length", "times")) or any(
        r["length"] < 1 or r["times"] != len(r["modules"]) or not all(type(m) is str for m in r["modules"])
        for r in data.repeats
    ):
        raise ValueError("a repeated block without its length and modules")
    if not 0 < data.count <= room or sum(r["length"] * r["times"] for r in data.repeats) > room:
        raise ValueError("too many nodes")
    for name, column in data.columns.items():
        cells = (
            column if name not in ("name", "inputs") else [v for row in column for v in row] if name == "inputs" else []
        )
        if not all(type(v) is int for v in cells) or name not in ("kernel", "inputs") and any(v < 0 for v in cells):
            raise ValueError(f"the column {name} holds a value that is not a position")
    for n in expand(data):
        texts = (n.name, n.op, n.args, n.dtype, n.file, n.module)
        if (
            not all(type(t) is str for t in texts)
            or n.line is not None
            and type(n.line) is not int
            or n.shape is not None
            and type(n.shape) is not list
        ):
            raise ValueError(f"node {n.index} holds a value of a wrong type")
        if not all(0 <= v < data.count for v in n.inputs):
            raise ValueError(f"node {n.index} reads a node that is not there")


def check_profiles(report: Any) -> None:
    """That each profiled call's columns make spans, of graphs and kernels that are there."""
    for i, p in enumerate(report.profiles):
        try:
            for span in p.rows():
                texts = (span.kind, span.name, span.node, span.file, span.module, span.part)
                if not all(type(t) is str for t in texts) or span.line is not None and type(span.line) is not int:
                    raise ValueError("a name is not a text")
        except (ValueError, KeyError, IndexError, TypeError) as e:
            raise ValueError(f"report: profiles[{i}] is damaged: {type(e).__name__}: {str(e)[:100]}") from None
        for name, n in (("graph", len(report.graphs)), ("kernel", len(report.kernels))):  # cut to make the report small
            p.columns[name] = [k if k < n else -1 for k in p.columns.get(name, [])]
