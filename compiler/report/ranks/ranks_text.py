"""The ranks of a run in words: lines that text, HTML and tests share."""

from __future__ import annotations

from typing import Callable

from ...base.figures import count, plural, seconds, size
from .ranks_schema import RankDifference, RankRow, Ranks, RankWait

__all__ = ["CLOCKS", "HEAD", "difference_words", "rank_cells", "ranks_lines", "wait_sentence"]

CLOCKS = {
    "call": "Communication lasts from a rank's call to its end. A rank waits until the last one has come.",
    "arrival": "This torch doesn't say when a collective on the CPU ends: it is shown until the last rank came.",
    "device": (
        "Communication is as long as its kernel on the GPU, from its launch on. The rank with the shortest came last."
    ),
}
HEAD = (
    *("rank", "device", "time", "compiling", "communicating", "of it waiting", "collectives"),
    *("calls", "graphs", "breaks", "recompiles", "peak memory", ""),
)


def wait_sentence(w: RankWait) -> str:
    longest = f", at most {seconds(w.longest)} ({w.name})" if w.count > 1 else f" ({w.name})"
    return f"rank {w.rank} was {seconds(w.seconds)} ahead of rank {w.other} at {plural(w.count, 'collective')}{longest}"


def rank_cells(row: RankRow) -> list[str]:
    """A rank in the columns of HEAD."""
    state = row.status + (f": {row.error}" if row.error else "")
    return [
        f"rank {row.rank}",
        row.device,
        seconds(row.seconds),
        seconds(row.compile_seconds),
        seconds(row.communication_seconds),
        seconds(row.early_seconds),
        count(row.collectives),
        count(row.calls),
        count(row.graphs),
        count(row.breaks),
        count(row.recompiles),
        size(row.peak_bytes),
        "" if row.status == "done" else state,
    ]


def difference_words(d: RankDifference) -> list[str]:
    """What ranks compiled differently: a line for it, and one for each group of ranks that agree."""
    nth = f"graph {d.graph + 1} of {d.function}" if d.graph else d.function
    where = f" ({d.file}{f':{d.line}' if d.line else ''})" if d.file else ""
    more = f", and so do {plural(d.more, 'further graph')} of it" if d.more else ""
    groups = [f"{_ranks(ranks)}: {text}" for ranks, text in zip(d.ranks, d.texts)]
    return [f"{nth}{where} differs between ranks{more}, first in", *groups]


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def ranks_lines(r: Ranks, table: Callable[..., list[str]]) -> list[str]:
    """All of it as plain text; `table` lays rows out."""
    if not r:
        return []
    cells = [rank_cells(row) for row in r.rows]
    out = table([c[:-1] for c in cells], list(HEAD[:-1]), tuple(range(2, 12)))
    out += [f"  {c[0]} {c[-1]}" for c in cells if c[-1]]
    out += [f"  {wait_sentence(w)}" for w in r.waits[:8]]
    for d in r.differences:
        first, *rest = difference_words(d)
        out += [f"  {first}", *(f"    {line}" for line in rest)]
    out += [f"  {note}" for note in (*r.remarks, CLOCKS.get(r.clock, "")) if note]
    return out
