"""Figures as SVG in `<img>` data URIs: the one form of picture that survives an untrusted notebook, nbconvert and
GitHub.

They hold shapes only, in mid-tones that read on white and on black; all words stand beside them as HTML in the page's
own colour.
"""

from __future__ import annotations

import base64
from typing import Any, Sequence

from ...compiler.base.figures import plural
from ...compiler.base.quoting import html_text

__all__ = [
    "image",
    "ENGINE_COLOURS",
    "STAGE_COLOURS",
    "MARK_COLOURS",
    "time_bar",
    "stacked_bar",
    "share_bar",
    "lifetimes",
    "dots",
    "curves",
    "flame",
]

ENGINE_COLOURS = {"eager": "#8b9099", "tcompile": "#2f7de1", "torch": "#bd7c25"}
STAGE_COLOURS = ("#2f7de1", "#2aa198", "#6f9d3c", "#b5851f", "#d0703a", "#c4547c", "#8a63c9", "#8b9099")
MARK_COLOURS = {"captured": "#2f7de1", "eager": "#8b9099", "break": "#d0703a", "guard": "#8a63c9"}


def image(width: float, height: float, shapes: Sequence[str], alt: str) -> str:
    """An `<img>` of the given size in CSS pixels; it shrinks with the page. `alt` says what it shows."""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' height="{height:g}">{"".join(shapes)}</svg>'
    )
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{html_text(alt)}" width="{width:g}" height="{height:g}" style="max-width:100%"'
        f' src="data:image/svg+xml;base64,{data}">'
    )


def _rect(x: float, y: float, w: float, h: float, fill: str, extra: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(w, 0.5):.1f}" height="{h:.1f}" fill="{fill}" {extra}/>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1.5) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def time_bar(
    median: float, lo: float, hi: float, longest: float, engine: str, samples: Sequence[float] = (), width: float = 240
) -> str:
    """A bar to the median with a whisker over the interval, and the single samples as dots under it."""
    scale = (width - 8) / longest if longest > 0 else 0
    colour = ENGINE_COLOURS.get(engine, "#8a63c9")
    a, b = lo * scale, min(hi * scale, width - 2)
    shapes = [
        _rect(0, 3, median * scale, 9, colour, 'opacity="0.75" rx="1"'),
        _line(a, 7.5, b, 7.5, "#777b83"),
        _line(a, 4.5, a, 10.5, "#777b83"),
        _line(b, 4.5, b, 10.5, "#777b83"),
    ]
    dots = "".join(f"M{min(x * scale, width - 2):.0f} 16h.1" for x in samples[:60])
    if dots:
        shapes.append(
            f'<path d="{dots}" stroke="{colour}" stroke-width="2.8" stroke-linecap="round" opacity="0.55" fill="none"/>'
        )
    return image(width, 19 if samples else 15, shapes, f"{engine}: bar to the median, whisker over its interval")


def stacked_bar(parts: Sequence[tuple[str, float]], width: float = 420) -> str:
    """One bar cut into parts (name, value), in STAGE_COLOURS in turn."""
    total = sum(v for _, v in parts) or 1.0
    x, shapes = 0.0, []
    for i, (_, v) in enumerate(parts):
        w = width * v / total
        shapes.append(_rect(x, 0, w - 1, 14, STAGE_COLOURS[i % len(STAGE_COLOURS)]))
        x += w
    return image(width, 14, shapes, "shares: " + ", ".join(f"{n} {100 * v / total:.0f} %" for n, v in parts))


def share_bar(share: float, colour: str = "#2f7de1", width: float = 90) -> str:
    share = max(0.0, min(1.0, share))
    return image(
        width,
        8,
        [_rect(0, 0, width, 8, "#8b9099", 'opacity="0.25"'), _rect(0, 0, width * share, 8, colour)],
        f"{100 * share:.0f} %",
    )


def lifetimes(rows: Sequence[tuple[str, int, int, int, bool]], steps: int, width: float = 420) -> str:
    """Buffers (name, lane, start step, end step, is output) as blocks over the steps of a plan; a lane is one piece of
    memory.
    """
    lanes = 1 + max((r[1] for r in rows), default=0)
    scale = width / max(1, steps)
    shapes = [_rect(0, 10 * i, width, 8, "#8b9099", 'opacity="0.15"') for i in range(lanes)]
    shapes += [
        _rect(start * scale, 10 * lane, (end - start) * scale - 1, 8, "#2aa198" if out else "#2f7de1")
        for _, lane, start, end, out in rows
    ]
    text = f"{plural(len(rows), 'buffer')} in {plural(lanes, 'piece')} of memory over {plural(steps, 'step')}"
    return image(width, 10 * lanes, shapes, text)


def dots(values: Sequence[tuple[float, bool]], width: float = 240) -> str:
    """Autotune trials as dots on a line from 0 to the slowest; the chosen one is filled."""
    longest = max((v for v, _ in values), default=1.0) or 1.0
    shapes = [_line(0, 7, width, 7, "#8b9099", 0.7)]
    for v, chosen in sorted(values, key=lambda p: p[1]):
        x = 4 + (width - 8) * v / longest
        shapes.append(
            f'<circle cx="{x:.1f}" cy="7" r="{4 if chosen else 3}" fill="{"#2f7de1" if chosen else "none"}"'
            f' stroke="{"#2f7de1" if chosen else "#8b9099"}"/>'
        )
    return image(width, 14, shapes, f"{len(values)} candidates, from 0 to {longest:.3g} s; the filled one was chosen")


def curves(lines: Sequence[tuple[str, Sequence[float]]], width: float = 260, height: float = 56) -> str:
    """Lines of engines over the same stretch, from 0 to the largest value."""
    top = max((max(v) for _, v in lines), default=1.0) or 1.0
    shapes = [_line(0, height - 1, width, height - 1, "#8b9099", 0.7)]
    for engine, values in lines:
        step = width / max(1, len(values) - 1)
        points = " ".join(f"{i * step:.1f},{height - 2 - (height - 6) * v / top:.1f}" for i, v in enumerate(values))
        shapes.append(
            f'<polyline points="{points}" fill="none" stroke="{ENGINE_COLOURS.get(engine, "#8a63c9")}"'
            ' stroke-width="1.5"/>'
        )
    words = ", ".join(f"{engine} at most {max(v, default=0):,.0f}" for engine, v in lines)
    return image(width, height, shapes, f"curves from 0 to {top:,.0f}: {words}")


_FLAME = {"kernel": "#2f7de1", "library": "#2aa198", "guards": "#8a63c9", "python": "#b5851f"}
_MOST_BARS = 120


def flame(spans: Sequence[Any], width: float = 640, row: float = 9) -> str:
    """A profiled call (`CallProfile.rows()`): time from left to right, steps below what holds them. Bars too short to
    be seen are left out.
    """
    if not spans or spans[0].seconds <= 0:
        return ""
    scale = width / spans[0].seconds
    depth = [0] * len(spans)
    for i, s in enumerate(spans[1:], 1):
        depth[i] = depth[s.parent] + 1
    below = max(depth) + 1
    for i, s in enumerate(spans):
        if s.kind in ("kernel", "library") and s.parent == 0:  # what a GPU does meanwhile
            depth[i] = below
    seen = [i for i, s in enumerate(spans) if s.seconds * scale >= 0.7]
    seen = sorted(seen, key=lambda i: -spans[i].seconds)[:_MOST_BARS]
    paths: dict[str, list[str]] = {}  # one a colour: small, for a notebook keeps it
    for i in sorted(seen):
        x, w = spans[i].begin * scale, max(0.5, spans[i].seconds * scale - 0.3)
        corner = f"M{x:.1f} {depth[i] * (row + 1):g}h{w:.1f}v{row:g}h{-w:.1f}z"
        paths.setdefault(_FLAME.get(spans[i].kind, "#8b909966"), []).append(corner)
    shapes = [f'<path fill="{colour}" d="{"".join(corners)}"/>' for colour, corners in paths.items()]
    height = (max(depth[i] for i in seen) + 1) * (row + 1)
    return image(
        width, height, shapes, f"The call of {spans[0].name} over time: kernels, library calls, guards, Python"
    )
