"""Pictures of a lab as static SVG: in a notebook, on a code host, on paper. Colours read on white and on black."""

from __future__ import annotations

import base64
import unicodedata
from html import escape
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from .words import say

__all__ = ["Picture", "bars", "graph", "kernels", "stages", "timeline"]

COLOURS = ("#2f7de1", "#d0703a", "#2aa198", "#8a63c9", "#6f9d3c", "#c4547c")
GREY = "#808690"
FONT = "font-family='ui-sans-serif,system-ui,sans-serif' font-size='12'"


class Picture:
    """An SVG with the same facts as text. Notebooks show it; `save` writes it."""

    def __init__(self, svg: str, text: str):
        self.svg, self.text = svg, text

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg.encode()).decode()
        return f'<img alt="{escape(self.text)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'

    def save(self, path: str | Path) -> Path:
        path = Path(path)
        path.write_text(self.svg, encoding="utf-8")
        return path


def svg(width: float, height: float, shapes: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' width='{width:g}'"
        f" height='{height:g}' {FONT}>{''.join(shapes)}</svg>"
    )


def text(x: float, y: float, words: Any, fill: str = GREY, anchor: str = "start", extra: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' fill='{fill}' text-anchor='{anchor}' {extra}>{escape(str(words))}</text>"


def rect(x: float, y: float, w: float, h: float, fill: str, title: str = "", extra: str = "") -> str:
    tip = f"<title>{escape(title)}</title>" if title else ""
    return f"<rect x='{x:g}' y='{y:g}' width='{max(w, 1):g}' height='{h:g}' fill='{fill}' {extra}>{tip}</rect>"


def wide(words: Any) -> float:
    """About how wide a text is: a Chinese character takes twice the room of a Latin one."""
    return sum(12.0 if unicodedata.east_asian_width(c) in "WF" else 7.0 for c in str(words))


def widest(words: Iterable[Any]) -> float:
    return max(map(wide, words), default=0.0)


def short(value: float) -> str:
    """A count of bytes or operations in few characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.4g}"


def bars(rows: Mapping[str, Mapping[str, float]], unit: str = "") -> Picture:
    """For each row a bar a series: bars({"softmax": {"fused": 65536, "apart": 262144}}, "bytes")."""
    series = list(dict.fromkeys(name for values in rows.values() for name in values))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(series)}
    most = max((v for values in rows.values() for v in values.values()), default=0) or 1
    left = 16 + widest(rows)
    y, shapes, words = 24.0, [], []
    x = left
    for name in series:
        shapes += [rect(x, 6, 10, 10, colours[name]), text(x + 14, 15, name)]
        x += 30 + wide(name)
    width = max(left + 340 + wide(unit), x)
    for label, values in rows.items():
        shapes.append(text(left - 8, y + 8 * len(values) + 4, label, anchor="end"))
        for name, value in values.items():
            shapes.append(rect(left, y, 300 * value / most, 13, colours[name], f"{label}, {name}: {value:g} {unit}"))
            shapes.append(text(left + 300 * value / most + 6, y + 11, f"{short(value)} {unit}".rstrip()))
            y += 16
        words.append(f"{label}: " + ", ".join(f"{name} {value:g} {unit}".rstrip() for name, value in values.items()))
        y += 8
    return Picture(svg(width, y, shapes), "\n".join(words))


def kernels(report: Any) -> Picture:
    """The kernels of a report in order: a block each, as wide as what it moves, with the operators in it."""
    rows = [(k.name, (k.bytes or 0) * k.launches, k.origins) for k in report.kernels]
    total = sum(size for _, size, _ in rows) or 1
    shapes, y, words = [], 22.0, []
    head = say("one_kernel" if len(rows) == 1 else "kernels", n=len(rows), bytes=short(total))
    shapes.append(text(4, 14, head))
    width = wide(head)
    for i, (name, size, origins) in enumerate(rows):
        block = 380 * size / total
        shapes.append(rect(4, y, block, 20, COLOURS[i % len(COLOURS)], say("moves", name=name, bytes=size)))
        label = say("kernel_row", bytes=short(size), operators=", ".join(origins))
        shapes.append(text(block + 12, y + 14, label))
        words.append(say("moves", name=name, bytes=size) + ", " + ", ".join(origins))
        width = max(width, block + 12 + wide(label))
        y += 26
    return Picture(svg(width + 8, y + 4, shapes), "\n".join(words))


def stages(report: Any) -> Picture:
    """The stages of a report from left to right: the student's in colour, with how often they ran and declined."""
    known = [st for st in report.stages if not st.parent and st.name != "other"]
    rows: dict[str, list[Any]] = {}
    for st in known:
        rows.setdefault(st.name, []).append(st)
    shapes: list[Any] = []
    words: list[Any] = []
    x = 4.0
    for name, of in rows.items():
        mine = [st for st in of if st.by]
        by = ", ".join(dict.fromkeys(st.by.rpartition(".")[2] for st in mine)) or "tcompile"
        note = ""
        if mine:
            note = say("stage_ran", n=sum(st.count for st in mine), declined=sum(st.declined for st in mine))
        block = 20 + widest((name, by, note))
        colour = COLOURS[0] if mine else "none"
        if shapes:
            shapes.append(f"<path d='M{x} 26 h16 m-5 -4 l5 4 l-5 4' fill='none' stroke='{GREY}'/>")
            x += 20
        shapes.append(rect(x, 4, block, 44, colour, f"{name}: {by}", f"rx='4' stroke='{COLOURS[0] if mine else GREY}'"))
        ink = "white" if mine else GREY
        shapes.append(text(x + block / 2, 22, name, ink, "middle", "font-weight='bold'" if mine else ""))
        shapes.append(text(x + block / 2, 39, by, ink, "middle"))
        shapes.append(text(x + block / 2, 64, note, anchor="middle"))
        words.append(f"{name}: {by}" + (f" ({note})" if note else ""))
        x += block + 4
    return Picture(svg(x + 4, 72, shapes), "\n".join(words))


def graph(fx_graph: Any) -> Picture:
    """The nodes of an fx graph, a row each; arcs at the left lead from what a node reads."""
    nodes = list(fx_graph.nodes)
    row = {n: i for i, n in enumerate(nodes)}
    shapes, words = [], []
    for n, i in row.items():
        y = 20 + 24 * i
        for read in n.all_input_nodes:
            top, bend = 20 + 24 * row[read], 96 - min(80, 10 * (i - row[read]))
            shapes.append(f"<path d='M100 {top} C{bend} {top} {bend} {y} 100 {y}' fill='none' stroke='{GREY}'/>")
    for n, i in row.items():
        y, colour = 20 + 24 * i, COLOURS[{"placeholder": 2, "output": 1}.get(n.op, 0)]
        target = getattr(n.target, "__name__", str(n.target))
        reads = ", ".join(r.name for r in n.all_input_nodes)
        shapes.append(f"<circle cx='100' cy='{y}' r='6' fill='{colour}'/>")
        shapes.append(text(114, y + 4, f"{n.name} = {target}({reads})" if n.op != "placeholder" else n.name))
        words.append(f"{n.name}: {n.op} {target}({reads})")
    return Picture(svg(560, 20 + 24 * len(nodes), shapes), "\n".join(words))


def timeline(rows: Mapping[str, Sequence[bool]], calls: Sequence[Any]) -> Picture:
    """A row a function, a block a call: whether it compiled, or was served by what is there. `calls` labels them."""
    left = 16 + widest(rows)
    shapes, words = [], []
    x = left
    for name, colour in ((say("compiled"), COLOURS[1]), (say("served"), COLOURS[0])):
        shapes += [rect(x, 6, 10, 10, colour), text(x + 14, 15, name)]
        x += 30 + wide(name)
    x = max(x, left + 44 * len(calls))
    for i, call in enumerate(calls):
        shapes.append(text(left + 44 * i + 20, 36, call, anchor="middle"))
    for j, (label, compiled) in enumerate(rows.items()):
        y = 44 + 30 * j
        shapes.append(text(left - 8, y + 15, label, anchor="end"))
        for i, new in enumerate(compiled):
            state = say("compiled" if new else "served")
            shapes.append(rect(left + 44 * i, y, 40, 22, COLOURS[1 if new else 0], f"{label}, {calls[i]}: {state}"))
        new_ones = ", ".join(str(call) for call, new in zip(calls, compiled) if new)
        words.append(f"{label}: " + say("compilations", n=sum(map(bool, compiled)), calls=new_ones))
    return Picture(svg(x + 8, 48 + 30 * len(rows), shapes), "\n".join(words))
