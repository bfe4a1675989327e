"""A report as JSON and back: dataclasses to dicts, large values deflated, a size limit with the omissions named.

A packed value is `{"$z": "<base64 of zlib(UTF-8 JSON)>", "n": <bytes of that JSON>}` and may stand anywhere in the
document; readers replace it by the JSON value inside. Long texts (kernel sources, loop IR, entry sources) are stored
once in the packed list `texts`, and their fields hold the index.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import zlib
from functools import lru_cache
from typing import Any, Callable, Iterator

from ..base.quoting import well_formed
from . import schema as s
from .validate import build, check_graphs, check_profiles, mend_references

__all__ = ["dump", "load", "pack", "unpack", "DEFAULT_LIMIT"]

DEFAULT_LIMIT = 200_000
_PACK_FROM = 600  # JSON text shorter than this stays readable
_UNPACK_LIMIT = 64 << 20  # bytes of all packed values of a report
_SKIP = {
    "live",
    "stock",
    "result",
    "raised",
    "raised_words",
    "waited",
    "reran",
    "met_tensors",
    "changed_itself",
    "notes",
    "decided",
    "tried",
}
_SKIP |= {
    "reports",
    "why_nothing",
    "named_places",
    "graph_module",
    "aten",
    "specs",
    "autocast",
    "call",
    "cell_line",
    "code_name",
    "compile_args",
}
_ATOMS = frozenset((type(None), bool, int))  # are JSON as they are, and texts of ASCII
_TEXT_FIELDS = {"kernels": ("source", "ir", "assembly"), "entries": ("source",), "frames": ("bytecode",)}


def pack(value: Any) -> Any:
    """`value` deflated, or itself where that would not help."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) < _PACK_FROM:
        return value
    return {"$z": base64.b64encode(zlib.compress(text, 6)).decode(), "n": len(text)}


def unpack(value: Any, room: list[int] | None = None) -> Any:
    """`value` with every packed value inside it expanded. Raises ValueError for one that does not inflate. `room`:
    bytes that all of them may take."""
    room = [_UNPACK_LIMIT] if room is None else room
    if isinstance(value, list):
        return [unpack(v, room) for v in value]
    if not isinstance(value, dict):
        return value
    if "$z" not in value:
        return {k: unpack(v, room) for k, v in value.items()}
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(base64.b64decode(value["$z"], validate=True), max(1, room[0]))
        room[0] -= len(raw)
        return unpack(json.loads(raw), room)
    except (ValueError, TypeError, zlib.error) as e:
        raise ValueError(f"report: a packed value is damaged ({e})") from None


def plain(x: Any) -> Any:
    """Any value as JSON data: dataclasses as dicts, non-finite floats and foreign objects as text."""
    kind = type(x)
    if kind in _ATOMS:
        return x
    if kind is str:
        return well_formed(x)
    if kind is list or isinstance(x, (tuple, set, frozenset, list)):
        # a graph has tens of thousands of numbers in columns
        return [v if type(v) in _ATOMS or type(v) is str and v.isascii() else plain(v) for v in x]
    names = _saved_fields(kind)  # type: ignore[arg-type]  # a class is hashable
    if names is not None:
        return {name: plain(getattr(x, name)) for name in names}
    if isinstance(x, dict):
        return {well_formed(str(k)): plain(v) for k, v in x.items()}
    if isinstance(x, float):
        return float(f"{x:.6g}") if math.isfinite(x) else str(x)
    if isinstance(x, (int, str)):  # of a class of their own, such as an enum's
        return int(x) if isinstance(x, int) else well_formed(str.__str__(x))
    return well_formed(str(x))


@lru_cache(maxsize=None)
def _saved_fields(kind: type) -> tuple[str, ...] | None:
    """The names that a dataclass is saved with; None for any other class."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(f.name for f in dataclasses.fields(kind) if f.name not in _SKIP)


def dump(report: Any, limit: int = DEFAULT_LIMIT) -> dict[str, Any]:
    """JSON-ready data of at most `limit` bytes (as compact UTF-8 JSON); what does not fit is left out and named."""
    body = plain(report)
    omitted = body["omitted"]
    out = _assemble(body)
    for what, count, why, cut in _cuts(body):
        if _size(out) <= limit:
            break
        n = count()
        if n:
            cut()
            omitted.append({"what": what, "count": n, "why": why})
            out = _assemble(body)
    return out


def _size(x: Any) -> int:
    return len(json.dumps(x, ensure_ascii=False, separators=(",", ":")).encode())


def _assemble(body: dict[str, Any]) -> dict[str, Any]:
    texts: dict[str, int] = {}
    out: dict[str, Any] = {"schema": s.SCHEMA, "version": s.VERSION}
    for name, value in body.items():
        if name in _TEXT_FIELDS:
            value = [
                {**row, **{f: texts.setdefault(row[f], len(texts)) if row[f] else None for f in _TEXT_FIELDS[name]}}
                for row in value
            ]
        if name == "graphs":
            value = [
                {**g, **{part: pack(g[part]) for part in ("inputs", "captured", "lowered", "unfused", "passes")}}
                for g in value
            ]
        elif name not in (
            "summary",
            "environment",
            "options",
            "marks",
            "graph_breaks",
            "recompiles",
            "findings",
            "stages",
        ):
            value = pack(value)
        out[name] = value
    out["texts"] = pack(list(texts))
    return out


_Cut = tuple[Callable[[], int], Callable[[], None]]  # how much there is to leave out, and what does so


def _cuts(body: dict[str, Any]) -> Iterator[tuple[str, Callable[[], int], str, Callable[[], None]]]:
    """What may be left out, the least missed first."""

    def field_cut(rows: list[dict], field: str, empty: Any, keep: int = 0) -> _Cut:
        seen: dict[str, int] = {}  # rows of one value count as one: a text is stored once
        picked = [r for r in rows if seen.setdefault(repr(r[field]), len(seen)) >= keep]

        def cut() -> None:
            for r in picked:
                r[field] = empty

        return lambda: sum(bool(r[field]) for r in picked), cut

    def tail_cut(name: str, keep: int) -> _Cut:
        def cut() -> None:
            del body[name][keep:]

        return lambda: max(0, len(body[name]) - keep), cut

    why = "to keep the report small enough to save"
    empty_graph = plain(s.GraphData())
    kernels = sorted(body["kernels"], key=_time_of, reverse=True)  # the longest are read
    calls = body["speedups"]["calls"]
    engines = [e for c in calls for e in c["engines"]]
    yield "assembly of kernels", *_spread(field_cut(kernels, "assembly", "", 4), why)
    yield "assembly of kernels", *_spread(field_cut(kernels, "assembly", ""), why)
    yield "loop IR of kernels", *_spread(field_cut(kernels, "ir", "", 24), why)
    yield "kernel sources", *_spread(field_cut(kernels, "source", "", 24), why)
    yield "what single lines of kernels compute", *_spread(field_cut(kernels, "names", {}, 24), why)
    yield "loop IR of kernels", *_spread(field_cut(kernels, "ir", "", 4), why)
    yield "what single lines of kernels compute", *_spread(field_cut(kernels, "names", {}, 4), why)
    yield "loop IR of kernels", *_spread(field_cut(kernels, "ir", ""), why)
    yield "what single lines of kernels compute", *_spread(field_cut(kernels, "names", {}), why)
    yield "refusals to fuse", *_spread(field_cut(body["graphs"], "unfused", []), why)
    yield "what graph passes changed", *_spread(field_cut(body["graphs"], "passes", []), why)
    yield "bytecode", *_spread(field_cut(body["frames"], "bytecode", ""), why)
    yield "single timing samples", *_spread(field_cut(engines, "samples", []), why)
    yield "short spans of ranks", *_spread(_span_cut(body["ranks"]["rows"]), why)
    yield "values that backward computes again", *_spread(field_cut(body["partitions"], "recomputed", []), why)
    yield "memory plan buffers", *_spread(field_cut(body["memory"], "buffers", []), why)
    yield (
        "captured graphs (the lowered ones are kept)",
        *_spread(field_cut(body["graphs"], "captured", empty_graph, 1), why),
    )
    yield "guards", *_spread(tail_cut("guards", 400), why)
    yield "entry sources", *_spread(field_cut(body["entries"], "source", "", 4), why)
    yield "captured graphs", *_spread(field_cut(body["graphs"], "captured", empty_graph), why)
    yield "spans of profiled calls", *_spread(tail_cut("profiles", 1), why)
    yield "timeline events", *_spread(tail_cut("timeline", 200), why)
    yield "lowered graphs", *_spread(field_cut(body["graphs"], "lowered", empty_graph, 1), why)
    yield "kernel sources", *_spread(field_cut(kernels, "source", "", 4), why)
    yield "spans of profiled calls", *_spread(tail_cut("profiles", 0), why)
    yield "lowered graphs", *_spread(field_cut(body["graphs"], "lowered", empty_graph), why)
    yield "guards", *_spread(tail_cut("guards", 40), why)
    yield "names of graphs' inputs", *_spread(field_cut(body["graphs"], "inputs", []), why)
    for name in (
        "entries",
        "frames",
        "kernels",
        "graphs",
        "partitions",
        "externs",
        "cache",
        "marks",
        "recompiles",
        "graph_breaks",
        "autotune",
        "numerics",
        "fallbacks",
    ):
        yield name, *_spread(tail_cut(name, 40), why)
    yield "values kept for backward", *_spread(field_cut(body["partitions"], "saved", []), why)
    yield "kernel sources", *_spread(field_cut(kernels, "source", ""), why)
    yield "autotune trials", *_spread(field_cut([*body["kernels"], *body["autotune"]], "trials", []), why)
    yield (
        "the cell's code",
        lambda: int(len(body["source"]["text"]) > 10_000),
        why,
        lambda: body["source"].update(text=""),
    )


def _time_of(kernel: dict) -> float:
    seconds = kernel["seconds"]
    return seconds * kernel["launches"] if isinstance(seconds, (int, float)) else 0.0


def _span_cut(rows: list[dict], keep: int = 40) -> _Cut:
    """Of each rank's spans the longest stay, in their order."""

    def cut() -> None:
        for row in rows:
            least = sorted((x["seconds"] for x in row["spans"]), reverse=True)[keep - 1 : keep]
            kept = [x for x in row["spans"] if not least or x["seconds"] > least[0]]
            row["spans"], row["more"] = kept, row["more"] + len(row["spans"]) - len(kept)

    return lambda: sum(max(0, len(row["spans"]) - keep) for row in rows), cut


def _spread(pair: _Cut, why: str) -> tuple[Callable[[], int], str, Callable[[], None]]:
    count, cut = pair
    return count, why, cut


def load(cls: type, text: str | bytes | dict) -> Any:
    """A report from `dump`'s data. Unknown fields are ignored, missing ones take their defaults."""
    try:
        data = text if isinstance(text, dict) else json.loads(text)
    except (ValueError, TypeError, RecursionError) as e:
        raise ValueError(f"report: not JSON ({e})") from None
    if not isinstance(data, dict) or data.get("schema") != s.SCHEMA:
        raise ValueError(f'report: expected {{"schema": "{s.SCHEMA}", ...}}, got something else')
    if data.get("version") != s.VERSION:
        raise ValueError(
            f"report: version {data.get('version')!r} cannot be read, this tcompile reads version {s.VERSION}"
        )
    try:
        data = unpack(data)
        texts = build(list[str], data.get("texts", []), "texts")
        for name, fields in _TEXT_FIELDS.items():
            for row in build(list[dict], data.get(name, []), name):
                for f in fields:
                    i = row.get(f)
                    row[f] = texts[i] if type(i) is int and 0 <= i < len(texts) else ""
        report = build(cls, data, "", _SKIP)
    except RecursionError:
        raise ValueError("report: nested too deep") from None
    check_graphs(report)
    check_profiles(report)
    mend_references(report)
    return report
