"""Who waits for whom, from what ranks recorded: by arrival on the CPU, by the length of kernels on a GPU."""

from __future__ import annotations

from types import SimpleNamespace as N

import pytest

from tcompile import CompileReport
from tcompile.compiler.report.plain_text import table
from tcompile.compiler.report.ranks.ranks_schema import RankRow
from tcompile.compiler.report.ranks.ranks_text import ranks_lines
from tcompile.compiler.report.ranks.side_by_side import side_by_side, wait_words

MS = 1_000_000


def call(number: int, begin: int, end: int | None = None, took: int | None = None, **more: object) -> dict:
    """An all_reduce of 4 numbers; times in milliseconds."""
    return {
        **{"name": "nccl:all_reduce", "group": "0", "number": number, "p2p": False, "sync": True},
        **{"begin": begin * MS, "end": None if end is None else end * MS},
        **{"took": None if took is None else took * MS, "sizes": [[4]], "dtypes": ["Float"]},
        **more,
    }


def facts(calls: list[dict], began: int = 0, ended: int = 100, compiling: tuple = ()) -> dict:
    spans = [[a * MS, b * MS] for a, b in compiling]
    times = {"began": began * MS, "ended": ended * MS}
    return {**times, "compiling": spans, "collectives": calls, "peak": 1000, "kept": 500}


def beside(*ranks: dict) -> object:
    return side_by_side([RankRow(i, "cpu") for i in range(len(ranks))], dict(enumerate(ranks)), {})


def test_by_arrival() -> None:
    r = beside(facts([call(1, 10, 42), call(2, 60, 65)], compiling=[(0, 5)]), facts([call(1, 40, 42), call(2, 61, 65)]))
    assert r.clock == "call" and [(w.rank, w.other, w.count) for w in r.waits] == [(0, 1, 2)]
    assert r.waits[0].seconds == pytest.approx(0.031) and r.waits[0].longest == pytest.approx(0.030)
    first = r.rows[0].spans[1]
    assert (first.name, first.last, first.bytes) == ("all_reduce", 1, 16)
    assert first.seconds == pytest.approx(0.032) and first.early == pytest.approx(0.030)
    assert r.rows[0].compile_seconds == pytest.approx(0.005)
    assert r.rows[0].communication_seconds == pytest.approx(0.037)
    assert r.rows[1].early_seconds == 0 and wait_words(r) == "rank 0 was 31 ms ahead of rank 1"


def test_without_ends_a_collective_lasts_until_the_last_came() -> None:
    r = beside(facts([call(1, 10)]), facts([call(1, 30)]), facts([call(1, 20)]))
    assert r.clock == "arrival" and {(w.rank, w.other) for w in r.waits} == {(0, 1), (2, 1)}
    assert [row.spans[0].seconds for row in r.rows] == pytest.approx([0.020, 0, 0.010])


def test_on_a_gpu_the_shortest_kernel_is_the_last_rank_s() -> None:
    """Launches run ahead: kernels follow each other, whenever they were launched."""
    r = beside(facts([call(1, 10, took=30), call(2, 11, took=5)]), facts([call(1, 12, took=4), call(2, 13, took=5)]))
    assert r.clock == "device" and [(w.rank, w.other) for w in r.waits] == [(0, 1)]
    assert r.waits[0].seconds == pytest.approx(0.026)
    a, b = r.rows[0].spans
    assert a.begin + a.seconds == pytest.approx(b.begin)


def test_overlapping_ones_count_once() -> None:
    r = beside(
        facts([call(1, 10, 50, sync=False), call(2, 20, 52, sync=False)]), facts([call(1, 45, 50), call(2, 46, 52)])
    )
    assert r.rows[0].communication_seconds == pytest.approx(0.042)
    assert r.waits[0].seconds == pytest.approx(0.036) and r.waits[0].count == 2


def test_point_to_point_and_groups_of_one_wait_for_nobody() -> None:
    r = beside(facts([call(1, 10, 12, p2p=True)]), facts([call(1, 50, 52, p2p=True), call(1, 60, 61, group="own")]))
    assert not r.waits and r.rows[1].collectives == 2


def test_a_rank_that_ended_has_a_row() -> None:
    rows = [RankRow(0, "cpu"), RankRow(1, "cpu", status="ended", error="signal 9 (SIGKILL)")]
    r = side_by_side(rows, {0: facts([call(1, 10)])}, {})
    assert len(r.rows) == 2 and not r.waits and "ended: signal 9 (SIGKILL)" in "\n".join(ranks_lines(r, table))


def test_a_report_with_ranks_is_saved_small_and_read_again() -> None:
    report = CompileReport(title="t")
    report.ranks = beside(*(facts([call(i, i, i + 1) for i in range(2000)], ended=3000) for _ in range(4)))
    assert all(len(row.spans) == 160 and row.more == 1840 for row in report.ranks.rows)
    again = CompileReport.from_json(report.to_json())
    assert [row.more for row in again.ranks.rows] == [1840] * 4 and not CompileReport(title="t").ranks
    small = CompileReport.from_json(report.to_json(limit=2_500))
    assert len(report.to_json(limit=2_500)) <= 2_500 and all(len(row.spans) <= 40 for row in small.ranks.rows)


def test_other_numbers_are_no_other_graph() -> None:
    def report(*nodes: tuple) -> N:
        rows = [N(op=op, args=args, shape=shape, dtype="f32", line=3) for op, args, shape in nodes]
        summary = N(graphs=1, breaks=0, recompiles=0)
        graph = N(name="f", frame=None, lowered=None, captured=N(nodes=lambda: rows))
        return N(entries=[], frames=[], summary=summary, graphs=[graph])

    def told(*reports: N) -> tuple:
        r = side_by_side([RankRow(i, "cpu") for i in range(len(reports))], {}, dict(enumerate(reports)))
        return [d.ranks for d in r.differences], r.remarks

    full, wide = ("full", "[4], 1.0", "[4]"), ("full", "[4], 2.5e-3", "[4]")
    assert told(report(full), report(full)) == ([], [])
    differences, (remark,) = told(report(full), report(wide), report(full))
    assert not differences and "full([4], 1.0) → f32[4] on rank 0" in remark and "2.5e-3) → f32[4] on rank 1" in remark
    for other in (("full", "[5], 1.0", "[5]"), ("fill", "[4], 1.0", "[4]"), ("full", "[4], %x1", "[4]")):
        assert told(report(full), report(other)) == ([[[0], [1]]], [])
    assert told(report(("sin", "%a1", "[4]")), report(("sin", "%a2", "[4]")))[0]  # (names hold digits)
