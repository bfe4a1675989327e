"""Damaged reports: each field of a real report with another type, without, huge, negative, NaN. A refusal names the
field; what is not refused is drawn."""

import copy
import json
import os

import pytest
import tcompile.kernel_magics.render  # noqa: F401  (draws reports)
from tcompile.compiler.report import CompileReport
from tcompile.compiler.report.json import pack, unpack
from tcompile.kernel_magics.render import html

HERE = os.path.dirname(os.path.abspath(__file__))
JUNK = {
    "null": None, "text": "x", "empty": "", "number": 3, "negative": -7, "huge": 10**400, "large": 2**62, "fraction": 0.5, "NaN": "nan", "infinite": "-inf",
    "flag": True, "list": [], "list of null": [None], "list of lists": [[]], "object": {}, "object of one": {"a": 1}, "list of object": [{"b": [1]}],
    "surrogate": "\ud800\x00</script>",
}  # fmt: skip
MISSING = object()


def sample(name="sample_report"):
    with open(os.path.join(HERE, f"{name}.json"), encoding="utf-8") as f:
        return unpack(json.load(f))


def places(value, at=()):
    """One place of each field: the first row of a list stands for all."""
    if isinstance(value, dict):
        for k, v in value.items():
            yield (*at, k)
            yield from places(v, (*at, k))
    elif isinstance(value, list) and value:
        full = next((i for i, v in enumerate(value) if isinstance(v, (dict, list)) and v), 0)
        yield (*at, full)
        yield from places(value[full], (*at, full))


def put(data, at, value):
    for k in at[:-1]:
        data = data[k]
    if value is MISSING:
        del data[at[-1]]
    else:
        data[at[-1]] = value


def draw(report):
    assert str(report) and html.render_html(report)


def draw_all(report):
    """As text, as HTML of all sizes, against itself, as JSON and as figures."""
    draw(report)
    assert html.render_html(report, 3000)
    report.diff(report)
    CompileReport.from_json(report.to_json())
    for plot in ("speedup_plot", "break_even_plot"):
        try:
            getattr(report, plot)()
        except ValueError:
            pass  # nothing was timed


def damaged(whole, at, value):
    """A copy with one place changed; what is not on the way to it is shared."""
    data = inner = copy.copy(whole)
    for k in at[:-1]:
        inner[k] = copy.copy(inner[k])
        inner = inner[k]
    put(data, at, value)
    return data


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_every_field(turn):
    """Each field with a third of the junk: neighbours have the others."""
    whole = sample()
    fields = [p for p in places(whole) if p[0] not in ("schema", "version")]
    assert len({tuple(k for k in p if isinstance(k, str)) for p in fields}) > 170
    junk = [*JUNK.items(), ("missing", MISSING)]
    refused = drawn = 0
    for n, at in enumerate(fields):
        for kind, value in junk[(turn + n) % 3 :: 3][(turn + n) % 2 :: 2]:
            try:
                report = CompileReport.from_json(damaged(whole, at, value))
            except ValueError as e:
                words, refused = str(e), refused + 1
                assert words.startswith("report: ") and at[0] in words and len(words) < 400 and "\n" not in words, (
                    at,
                    kind,
                    words,
                )
                continue
            try:
                draw(report)
                drawn += 1
            except Exception as e:
                raise AssertionError(f"{at} as {kind}: {type(e).__name__}: {e}") from e
    assert refused > 600 and drawn > 200, (refused, drawn)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["graph_breaks"][0].update(col=2**62, end_col=2**62 + 9),
        lambda d: d["kernels"][0].update(occupancy="inf"),
        lambda d: d["graph_breaks"][0].update(code="\ud800\x00</script>"),
        lambda d: d["frames"][0].update(entries=[10**6]),
        lambda d: [e.update(lo=None, hi=None) for c in d["speedups"]["calls"] for e in c["engines"]],
    ],
)
def test_what_was_drawn_wrongly(change):
    data = copy.deepcopy(sample())
    change(data)
    draw_all(CompileReport.from_json(data))


@pytest.mark.parametrize("name", ["sample_report", "gpu_report", "h200_report"])
def test_whole_reports_are_read(name):
    with open(os.path.join(HERE, f"{name}.json"), encoding="utf-8") as f:
        text = f.read()
    report = CompileReport.from_json(text)
    assert report.to_dict() == CompileReport.from_json(report.to_json()).to_dict()
    draw_all(report)


def test_a_report_made_smaller_is_drawn():
    """What was left out is still referred to."""
    report = CompileReport.from_json(sample("h200_report"))
    for limit in (60_000, 20_000, 6_000, 1_000):
        draw_all(CompileReport.from_json(report.to_json(limit)))


@pytest.mark.parametrize("change, words", [
    (lambda d: d["kernels"][0].update(bytes="many"), "kernels[0].bytes: expected a whole number, got 'many'"),
    (lambda d: d["frames"][0].update(entries=[-1]), "frames[0].entries: expected a position in entries, got -1"),
    (lambda d: d["graphs"][0]["captured"]["columns"]["op"].__setitem__(0, "x"), "graphs[0].captured is damaged"),
    (lambda d: d["graphs"][0]["captured"]["columns"]["inputs"].__setitem__(0, [10**9]), "graphs[0].captured is damaged"),
    (lambda d: d["graphs"][0]["captured"].update(count=10**9), "graphs[0].captured is damaged"),
    (lambda d: d["graphs"][0]["captured"]["repeats"].append({"start": 0, "length": 10**9, "modules": ["x"] * 10}), "graphs[0].captured is damaged"),
    (lambda d: d["marks"][0].update(kind="other"), "marks[0].kind: expected one of captured"),
    (lambda d: d["summary"].update(status="fine"), "summary.status: expected one of compiled"),
    (lambda d: d["stages"][0].pop("name"), "stages[0]: name is missing"),
    (lambda d: d["graphs"][0].update(lines=[["f"]]), "graphs[0].lines[0]: expected a file and a line"),
])  # fmt: skip
def test_refusals_name_the_field(change, words):
    data = sample()
    change(data)
    with pytest.raises(ValueError) as info:
        CompileReport.from_json(data)
    assert words in str(info.value)


def test_small_files_of_many_nodes():
    """A block that repeats takes a few bytes, and as many graphs as one likes may have one."""
    data = sample()
    graph = next(g for g in data["graphs"] if g["captured"]["count"])
    times, columns = 100_000, graph["captured"]["columns"]
    columns = {
        name: column * times if name in ("name", "kernel") else column
        for name, column in ((name, column[:1]) for name, column in columns.items())
    }
    block = {"start": 0, "length": 1, "times": times, "modules": ["m"] * times}
    graph["captured"].update(count=times, columns={**columns, "inputs": [[]]}, repeats=[block])
    data["graphs"] = [graph] * 20
    with pytest.raises(ValueError, match="too many nodes"):
        CompileReport.from_json(data)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"schema": "tcompile.report", "version": 1, "frames": ' + "[" * 900 + "]" * 900 + "}",
    ],
)
def test_depth(text):
    with pytest.raises(ValueError, match="report: "):
        CompileReport.from_json(text)


def test_packed_values_that_grow():
    bomb = pack("x" * (20 << 20))
    data = {"schema": "tcompile.report", "version": 1, "errors": [bomb] * 100}
    with pytest.raises(ValueError, match="damaged"):
        CompileReport.from_json(data)
