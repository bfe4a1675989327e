"""Ranks beside each other: from what each rank recorded of a run and reported of it, who waits for whom, and where they
compiled different graphs.

A collective is one by its group and its number in it. Its last rank is waited for by all others. On the CPU a rank's
time of arrival is known; on a GPU the length of each rank's kernel is, and the last rank's is the shortest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any, Iterable, Mapping

from ...base.labels import frame_words
from .ranks_schema import RankDifference, RankRow, Ranks, RankSpan, RankWait

__all__ = ["differ_words", "side_by_side", "wait_words"]

_SPANS = 160  # of a rank, the longest
_LEAST = 1e-4  # seconds: shorter waits are nobody's
_SIZES = {"Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Short": 2, "Byte": 1, "Char": 1}
_SIZES |= {"Bool": 1, "ComplexFloat": 8, "ComplexDouble": 16}
_NUMBER = re.compile(r"(?<![\w.])-?\d[\w.]*(?:(?<=e)-\d+)?")  # in the text of an argument
Call = dict[str, Any]  # a collective as rank_recorder.py gives it


def side_by_side(rows: list[RankRow], facts: Mapping[int, dict[str, Any]], reports: Mapping[int, Any]) -> Ranks:
    """`rows`: what is known of each rank beside its facts, which are missing for a rank that ended."""
    out = Ranks(rows=rows, reports=dict(reports))
    if facts:
        first = min(fact["began"] for fact in facts.values())
        out.seconds = (max(fact["ended"] for fact in facts.values()) - first) * 1e-9
        calls = {rank: fact["collectives"] for rank, fact in facts.items()}
        early = _early(calls)
        for row in rows:
            if row.rank in facts:
                _fill(row, facts[row.rank], first, early)
        out.waits = _waits(calls, first, early)
        timed = any(call["took"] is not None for cs in calls.values() for call in cs)
        ended = any(call["end"] is not None for cs in calls.values() for call in cs)
        if any(calls.values()):
            out.clock = "device" if timed else "call" if ended else "arrival"
    for row in rows:
        if row.rank in reports:
            _fill_compiled(row, reports[row.rank])
    out.differences = _differences(reports, out.remarks)
    return out


def _key(c: Call) -> tuple[str, int]:
    return c["group"], c["number"]


def _early(calls: Mapping[int, list[Call]]) -> dict[tuple[int, tuple[str, int]], tuple[float, int | None, int]]:
    """(rank, collective) -> seconds until the last rank came, that rank, and the time at which it came."""
    met: dict[tuple[str, int], list[tuple[int, Call]]] = defaultdict(list)
    for rank, its in calls.items():
        for call in its:
            if not call["p2p"]:
                met[_key(call)].append((rank, call))
    out = {}
    for key, both in met.items():
        if len(both) < 2:
            continue
        if all(call["took"] is not None for _, call in both):
            last, shortest = min(((rank, call["took"]) for rank, call in both), key=lambda timed: timed[1])
            for rank, call in both:
                out[rank, key] = ((call["took"] - shortest) * 1e-9, last if rank != last else None, call["begin"])
        else:
            last, came = max(((rank, call["begin"]) for rank, call in both), key=lambda timed: timed[1])
            for rank, call in both:
                out[rank, key] = ((came - call["begin"]) * 1e-9, last if rank != last else None, came)
    return out


def _fill(row: RankRow, facts: dict[str, Any], first: int, early: Mapping[Any, Any]) -> None:
    row.begin, row.seconds = (facts["began"] - first) * 1e-9, (facts["ended"] - facts["began"]) * 1e-9
    row.peak_bytes, row.kept_bytes, row.collectives = facts["peak"], facts["kept"], len(facts["collectives"])
    spans = [
        RankSpan("compile", "compiling", (begin - first) * 1e-9, (end - begin) * 1e-9)
        for begin, end in facts["compiling"]
    ]
    row.compile_seconds = sum(span.seconds for span in spans)
    free: dict[str, int] = {}  # when the collective of a group before this one was over: they follow each other
    for call in facts["collectives"]:
        before, last, came = early.get((row.rank, _key(call)), (0.0, None, call["begin"]))
        begin = call["begin"] if call["took"] is None else max(call["begin"], free.get(call["group"], 0))
        end = begin + call["took"] if call["took"] is not None else call["end"] or came
        end = free[call["group"]] = max(begin, min(end, facts["ended"]))
        span = RankSpan("communication", _name(call), (begin - first) * 1e-9, (end - begin) * 1e-9)
        span.early, span.last, span.bytes, span.sync = min(before, span.seconds), last, _bytes(call), call["sync"]
        spans.append(span)
    talks = [span for span in spans if span.kind == "communication"]
    row.communication_seconds = _union((talk.begin, talk.begin + talk.seconds) for talk in talks)
    row.early_seconds = _union((talk.begin, talk.begin + talk.early) for talk in talks)
    longest = sorted(spans, key=lambda span: -span.seconds)[:_SPANS]
    row.more = len(spans) - len(longest)
    row.spans = sorted(longest, key=lambda span: span.begin)


def _name(c: Call) -> str:
    return c["name"].partition(":")[2] or c["name"]


def _bytes(c: Call) -> int | None:
    total = 0
    for sizes, dtype in zip(c["sizes"], c["dtypes"]):
        n = _SIZES.get(dtype)
        if n is None:
            return None
        for size in sizes:
            n *= size
        total += n
    return total


def _union(stretches: Iterable[tuple[float, float]]) -> float:
    total, until = 0.0, float("-inf")
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _waits(calls: Mapping[int, list[Call]], first: int, early: Mapping[Any, Any]) -> list[RankWait]:
    found: dict[tuple[int, int], RankWait] = {}
    stretches: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for rank, its in calls.items():
        for call in its:
            seconds, last, _ = early.get((rank, _key(call)), (0.0, None, 0))
            if last is None or seconds < _LEAST:
                continue
            wait = found.setdefault((rank, last), RankWait(rank, last, 0.0, 0))
            begin = (call["begin"] - first) * 1e-9
            stretches[rank, last].append((begin, begin + seconds))  # asynchronous ones overlap
            wait.count += 1
            if seconds > wait.longest:
                wait.name, wait.longest = _name(call), seconds
    for pair, wait in found.items():
        wait.seconds = _union(stretches[pair])
    return sorted(found.values(), key=lambda wait: -wait.seconds)


def _fill_compiled(row: RankRow, report: Any) -> None:
    row.calls = sum(entry.hits or 0 for entry in report.entries)
    row.graphs, row.breaks = report.summary.graphs, report.summary.breaks
    row.recompiles = report.summary.recompiles


# -- graphs
Place = tuple[str, str, int]  # function, file, how manyth graph of it


def _differences(reports: Mapping[int, Any], remarks: list[str]) -> list[RankDifference]:
    """Graphs of a function that ranks don't have alike, in the order of the first rank's. That they compute alike with
    other numbers (`rank + 1.0`) is a remark."""
    found: dict[Place, dict[int, list[tuple]]] = defaultdict(dict)
    for rank, report in reports.items():
        seen: dict[tuple[str, str], int] = defaultdict(int)
        for graph in report.graphs:
            frame = report.frames[graph.frame] if graph.frame is not None and graph.frame < len(report.frames) else None
            name = (frame_words(frame.name), frame.file) if frame is not None else (graph.name, "")
            place = (*name, seen[name])
            seen[name] += 1
            found[place][rank] = _rows(graph)
    out: list[RankDifference] = []
    for (function, file, number), by_rank in found.items():
        alike: list[tuple[list[tuple] | None, list[int]]] = []
        for rank in reports:
            rows = by_rank.get(rank)
            group = next((ranks for have, ranks in alike if have == rows), None)
            if group is None:
                alike.append((rows, [rank]))
            else:
                group.append(rank)
        if len(alike) > 1:
            known = next(
                (difference for difference in out if (difference.function, difference.file) == (function, file)), None
            )
            if known is not None:
                known.more += 1
                continue
            texts, line = _first_difference([rows for rows, _ in alike])
            if len({str(_without_numbers(rows)) for rows, _ in alike}) == 1:
                own = ", ".join(f"{text} on rank {ranks[0]}" for text, (_, ranks) in zip(texts, alike))
                remarks.append(f"ranks compute {function} alike, with numbers of their own: {own}")
                continue
            out.append(RankDifference(function, number, [ranks for _, ranks in alike], texts, file, line))
    return out


def _rows(graph: Any) -> list[tuple]:
    data = graph.lowered or graph.captured
    return [(node.op, node.args, node.shape, node.dtype, node.line) for node in data.nodes()]


def _without_numbers(rows: list[tuple] | None) -> list[tuple] | None:
    return rows and [(op, _NUMBER.sub("0", args), *rest) for op, args, *rest in rows]


def _first_difference(graphs: list[list[tuple] | None]) -> tuple[list[str], int | None]:
    """What each graph has where they begin to differ, and the line of the first that has one there."""
    there = [graph for graph in graphs if graph is not None]
    at = 0
    if len(there) > 1:
        while len({str(graph[at : at + 1]) for graph in there}) == 1 and at < max(map(len, there)):
            at += 1
    texts, line = [], None
    for graph in graphs:
        if graph is None:
            texts.append("no such graph")
        elif len(there) == 1:
            texts.append(f"a graph of {len(graph)} nodes")
        elif at >= len(graph):
            texts.append("ends here")
        else:
            op, args, shape, dtype, where = graph[at]
            line = where if line is None else line
            texts.append(f"{op}({args}) → {dtype}{shape}" if shape is not None else f"{op}({args})")
    return texts, line


def differ_words(ranks: Ranks) -> str:
    """That ranks compiled different graphs, as one phrase; empty where they did not."""
    names = list(dict.fromkeys(difference.function for difference in ranks.differences))
    return f"ranks compiled different graphs of {', '.join(names)}" if names else ""


def wait_words(ranks: Ranks) -> str:
    """Who waits for whom, as one phrase; empty where nobody waits long."""
    from ...base.figures import seconds

    if not ranks.waits:
        return ""
    wait = ranks.waits[0]
    return (
        f"rank {wait.rank} was {seconds(wait.seconds)} ahead of rank {wait.other}"
        if wait.seconds > 0.01 * ranks.seconds
        else ""
    )
