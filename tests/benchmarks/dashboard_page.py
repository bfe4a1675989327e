"""What the dashboard's rows say: whether one passes, one line of text, and the page over commits."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["page", "passes", "failures", "ratio", "summary"]

Row = dict[str, Any]
# Relative errors that rounding explains: of results, and of gradients, whose sums are longer. In 16 bits on a GPU.
TOLERANCE = {"cpu": (1e-4, 1e-3), "cuda": (3e-2, 6e-2)}


def failures(row: Row, engine: str = "tcompile") -> list[str]:
    """Why the engine fails the row, in words; nothing where it passes."""
    facts = row["engines"].get(engine)
    if facts is None:
        return [row.get("error", "not measured")]
    if "error" in facts:
        return [facts["error"]]
    if "error_of_result" not in facts:
        return ["not compared with eager, which failed"]
    results, gradients = TOLERANCE[row["device"]]
    said = []
    judged = engine == "tcompile" or not row.get("random")  # stock draws other random numbers than eager
    if judged and facts["error_of_result"] > results:
        said.append(f"the result differs from eager's by {facts['error_of_result']:.1e}")
    if judged and (facts["error_of_gradients"] or 0.0) > gradients:
        said.append(f"gradients differ from eager's by {facts['error_of_gradients']:.1e}")
    if facts["gradients_missing"]:
        said.append(f"{facts['gradients_missing']} parameters have a gradient in one of eager and {engine} alone")
    if engine == "tcompile":
        if not facts["graphs"]:
            said.append("nothing was compiled")
        if facts["graphs_run_by_eager"]:
            said.append(f"{facts['graphs_run_by_eager']} graphs ran with torch's own kernels")
        said += facts["fallbacks"]
    return said


def passes(row: Row, engine: str = "tcompile") -> bool:
    return not failures(row, engine)


def ratio(row: Row, other: str, of: Callable[[Row], float | None]) -> float | None:
    """A figure of another engine over tcompile's; None where one of them has none."""
    engines = row["engines"]
    theirs, ours = (of(engines.get(engine, {})) for engine in (other, "tcompile"))
    return theirs / ours if theirs and ours else None


def median(facts: Row) -> float | None:
    return facts["quartiles"][1] if "quartiles" in facts else None


def first(facts: Row) -> float | None:
    return facts.get("first_seconds")


def memory(facts: Row) -> float | None:
    return facts.get("memory_bytes")


def mean(values: Iterable[float | None]) -> float | None:
    """Geometric, of what is known."""
    known = [v for v in values if v]
    return statistics.geometric_mean(known) if known else None


def number(value: float | None, text: str = "{:.2f}", scale: float = 1.0) -> str:
    return "" if value is None else text.format(value * scale)


def summary(row: Row) -> str:
    """One line for a terminal."""
    ours = row["engines"].get("tcompile", {})
    said = failures(row)
    return (
        f"{row['model']:34s} {row['mode']:10s} {'passes' if not said else 'FAILS'}"
        f"  {number(median(ours), '{:.2f} ms', 1e3)}"
        f"  over eager {number(ratio(row, 'eager', median)) or '-'}, stock {number(ratio(row, 'stock', median)) or '-'}"
        f"  first call {number(first(ours), '{:.1f} s') or '-'}" + "".join(f"\n    {why}" for why in said)
    )


STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1d2530; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; width: 100% }
th, td { padding: .25rem .55rem; border-bottom: 1px solid #d8dee6; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.words { text-align: left }
thead th { position: sticky; top: 0; background: #f2f5f8 }
.bad { color: #b3261e; font-weight: 600 } .good { color: #1a7f37 } .facts { color: #5b6675 }
svg { vertical-align: middle } polyline { fill: none; stroke: #2f6fdb; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  body { background: #14181d; color: #dde3ea } thead th { background: #1d232b } th, td { border-color: #333c47 }
  .bad { color: #ff8a80 } .good { color: #6fdc8c } .facts { color: #98a4b3 } polyline { stroke: #7fb0ff }
}
"""
HEAD = ["passes", "over stock", "over eager", "memory, of stock's", "memory, of eager's", "first call, of stock's"]
ROW_HEAD = [
    *("model", "", "eager ms", "stock ms", "ours ms", "reached", "over stock", "over eager", "first s", "of stock's"),
    *("memory MB", "of stock's", "of eager's", "graphs", "breaks", "says"),
]


def reached(row: Row) -> float | None:
    """How near ours comes to the machine's limit: the least time for the products' operations and the bytes of our
    kernels, over the time that was measured.
    """
    work, ours = row.get("work"), row["engines"].get("tcompile", {})
    took = median(ours)
    if not work or not took or ours.get("bytes_of_kernels") is None:
        return None
    return (work["flops"] / work["flops_per_second"] + ours["bytes_of_kernels"] / work["bytes_per_second"]) / took


def inverse(value: float | None) -> float | None:
    return 1 / value if value else None


def figures(rows: list[Row]) -> list[float | None]:
    """Of a commit: the share that passes, then geometric means of speed (more is better), memory and first calls."""
    return [
        sum(map(passes, rows)) / len(rows),
        mean(ratio(r, "stock", median) for r in rows),
        mean(ratio(r, "eager", median) for r in rows),
        inverse(mean(ratio(r, "stock", memory) for r in rows)),
        inverse(mean(ratio(r, "eager", memory) for r in rows)),
        inverse(mean(ratio(r, "stock", first) for r in rows)),
    ]


def cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{html.escape(text)}</td>' if kind else f"<td>{html.escape(text)}</td>"


def table(head: list[str], rows: Iterable[str]) -> str:
    heads = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def speed(value: float | None) -> str:
    return cell(number(value), "" if value is None else "bad" if value < 0.97 else "good" if value > 1.03 else "")


def share(value: float | None) -> str:
    return cell(number(value), "bad" if value is not None and value > 1.02 else "")


def row_of(row: Row) -> str:
    engines, said = row["engines"], failures(row)
    ours = engines.get("tcompile", {})
    return (
        f"<tr>{cell(row['model'], 'words')}{cell('passes' if not said else 'fails', 'bad' if said else 'good')}"
        + "".join(cell(number(median(engines.get(e, {})), "{:.2f}", 1e3)) for e in ("eager", "stock", "tcompile"))
        + cell(number(reached(row), "{:.0f} %", 1e2))
        + speed(ratio(row, "stock", median))
        + speed(ratio(row, "eager", median))
        + cell(number(first(ours), "{:.1f}"))
        + share(inverse(ratio(row, "stock", first)))
        + cell(number(memory(ours), "{:.1f}", 2**-20))
        + share(inverse(ratio(row, "stock", memory)))
        + share(inverse(ratio(row, "eager", memory)))
        + cell(str(ours.get("graphs", "")))
        + cell(str(ours.get("breaks", "")), "bad" if ours.get("breaks") else "")
        + cell("; ".join(said + [f"stock: {why}" for why in failures(row, "stock") if "stock" in engines]), "words")
        + "</tr>"
    )


def line(values: list[float | None]) -> str:
    """A small chart of a figure over commits; nothing where there is one point alone."""
    known = [(i, v) for i, v in enumerate(values) if v is not None]
    if len(known) < 2:
        return ""
    low, high = min(v for _, v in known), max(v for _, v in known)
    points = " ".join(
        f"{2 + 116 * i / (len(values) - 1):.1f},{22 - 18 * ((v - low) / (high - low) if high > low else 0.5):.1f}"
        for i, v in known
    )
    return f'<svg width="120" height="24" role="img"><polyline points="{points}"/></svg>'


def page(runs: list[Row]) -> str:
    """One page that needs nothing else: for each device, mode and size the commits beside each other, then the rows of
    the newest. Where commits have other models, the means are of different rows, and the number of rows says so."""
    groups: dict[tuple[str, str, str], list[tuple[Row, list[Row]]]] = {}
    for run in runs:
        by: dict[tuple[str, str, str], list[Row]] = {}
        for row in run["rows"]:
            by.setdefault((run["facts"]["device"], row["mode"], row["size"]), []).append(row)
        for key, rows in by.items():
            groups.setdefault(key, []).append((run["facts"], rows))
    parts = []
    for (device, mode, size), commits in sorted(groups.items()):
        parts.append(f"<h2>{html.escape(f'{mode}, {device}' + (', tiny models' if size == 'tiny' else ''))}</h2>")
        history = [figures(rows) for _, rows in commits]
        lines = "".join(f"<td>{line([f[i] for f in history])}</td>" for i in range(len(HEAD)))
        over = [
            f"<tr>{cell(facts['commit'], 'words')}{cell(facts['date'])}{cell(str(len(rows)))}"
            + cell(f"{sum(map(passes, rows))} of {len(rows)}", "good" if all(map(passes, rows)) else "bad")
            + "".join(speed(v) for v in found[1:3])
            + "".join(share(v) for v in found[3:])
            + "</tr>"
            for (facts, rows), found in reversed(list(zip(commits, history)))
        ]
        parts.append(table(["commit", "date", "rows", *HEAD], [*over, f"<tr><td></td><td></td><td></td>{lines}</tr>"]))
        facts, rows = commits[-1]
        said = ", ".join(f"{k} {v}" for k, v in facts.items())
        parts.append(f'<p class="facts">{html.escape(said)}</p>')
        parts.append(table(ROW_HEAD, [row_of(r) for r in sorted(rows, key=lambda r: r["model"])]))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tcompile: models</title>'
        f"<style>{STYLE}</style></head><body><h1>Public models: eager, stock and tcompile</h1>"
        "<p>Speed is another engine's time over ours: above 1 ours is faster. Memory and first calls are ours over "
        "theirs: below 1 is better. Means are geometric. First calls have empty caches. Reached is the least time for "
        "the products' operations and the bytes of our kernels, at the machine's measured peak and copy bandwidth, "
        "over ours.</p>"
        f"{''.join(parts)}</body></html>\n"
    )
