"""The JSON: round trip, payloads, size limit, damage."""

import dataclasses
import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_sample import sample

from tcompile.compiler.report.json import _SKIP
from tcompile.compiler.report import MIME, CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.json import pack, unpack
from tcompile.compiler.report.payload import encode, expand

HERE = os.path.dirname(os.path.abspath(__file__))


def test_round_trip():
    r = sample()
    q = CompileReport.from_json(r.to_json())
    assert q.to_dict() == r.to_dict()
    assert q.kernels[0].source == r.kernels[0].source and q.entries[0].source == r.entries[0].source
    assert isinstance(q.speedups, s.Speedups) and isinstance(q.speedups.calls[0].engines[0], s.EngineTime)
    assert isinstance(q.graph_breaks[0].call_chain[0], s.FrameRef) and isinstance(q.kernels[0].trials[0], s.Trial)
    assert q.speedups.over("eager").ratio == 2.9 and q.speedups.over("nothing") is None
    assert str(q) == str(r)


def test_sample_on_disk_is_current():
    with open(os.path.join(HERE, "sample_report.json"), encoding="utf-8") as f:
        data = json.load(f)
    assert data == json.loads(sample().to_json()), "run tests/report/make_sample.py again"


def test_every_class_of_the_schema_is_documented():
    with open(os.path.join(HERE, "..", "..", "docs", "report-schema.md"), encoding="utf-8") as f:
        text = f.read()
    for field in dataclasses.fields(CompileReport):
        if field.name not in _SKIP:
            assert f"`{field.name}`" in text, field.name
    assert MIME in text


def test_save_and_load(tmp_path):
    r = sample()
    path = r.save(tmp_path / "r.json")
    with open(path, encoding="utf-8") as f:
        assert CompileReport.from_json(f.read()).summary.line == r.summary.line
    with open(r.save(tmp_path / "r.txt"), encoding="utf-8") as f:
        assert "Graph breaks" in f.read()
    import tcompile.kernel_magics.render  # noqa: F401

    with open(r.save(tmp_path / "r.html"), encoding="utf-8") as f:
        page = f.read()
    assert page.startswith("<!doctype html>") and "<details>" in page  # what reads without scripts is there too


@pytest.mark.parametrize(
    "bad, words",
    [
        ("", "not JSON"),
        ("[]", "expected"),
        ('{"schema": "other"}', "expected"),
        ('{"schema": "tcompile.report", "version": 99}', "version 99"),
        ('{"schema": "tcompile.report", "version": 1, "guards": {"$z": "AAAA", "n": 3}}', "damaged"),
        ('{"schema": "tcompile.report", "version": 1, "summary": []}', "Summary"),
    ],
)
def test_what_is_no_report_is_refused_with_words(bad, words):
    with pytest.raises(ValueError, match=words):
        CompileReport.from_json(bad)


def test_unknown_fields_are_ignored_and_missing_ones_default():
    r = CompileReport.from_json(
        {"schema": "tcompile.report", "version": 1, "new_thing": 1, "summary": {"status": "compiled", "later": 2}}
    )
    assert r.summary.status == "compiled" and r.graphs == [] and not r.speedups


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text().filter(lambda k: k != "$z"), x),
        max_leaves=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_pack_unpack(value):
    assert unpack(json.loads(json.dumps(pack(value)))) == value
    assert unpack({"a": [pack([value, "x" * 1000])]}) == {"a": [[value, "x" * 1000]]}


def layered(layers, mask=True):
    """x -> layers of (weight, mm, add mask, relu), all reading one mask."""
    n = [s.Node(0, "x", "input", [], "", [4, 4], "float32"), s.Node(1, "mask", "input", [], "", [4], "float32")]
    w = []
    for k in range(layers):
        n.append(s.Node(len(n), f"w{k}", "parameter", [], "", [4, 4], "float32"))
        w.append(len(n) - 1)
    h = 0
    for k in range(layers):
        m = f"enc.layer.{k}.dense"
        n.append(s.Node(len(n), f"mm_{k}", "mm", [h, w[k]], "%0, %1", [4, 4], "float32", "a.py", 3, m))
        n.append(s.Node(len(n), f"add_{k}", "add", [len(n) - 1, 1], "%0, %1", [4, 4], "float32", "a.py", 4, m, k))
        n.append(s.Node(len(n), f"relu_{k}", "relu", [len(n) - 1], "%0", [4, 4], "float32", "a.py", 5, m + ".act"))
        h = len(n) - 1
    n.append(s.Node(len(n), "output", "output", [h], "%0"))
    return n


@pytest.mark.parametrize("layers", [0, 1, 2, 12, 300])
def test_repeated_layers_are_stored_once(layers):
    nodes = layered(layers)
    data = encode(nodes)
    back = expand(json_round_trip(data))
    by_name = {n.name: n for n in back}
    assert len(back) == len(nodes) == data.count
    for n in nodes:
        b = by_name[n.name]
        assert [back[i].name for i in b.inputs] == [nodes[i].name for i in n.inputs]
        assert (b.op, b.args, b.shape, b.dtype, b.line, b.kernel) == (n.op, n.args, n.shape, n.dtype, n.line, n.kernel)
        assert n.op == "parameter" or b.module == n.module
    assert data.named(("mm", "sum"), "float32") == {n.name: n.op for n in back if n.op == "mm"}
    assert data.named(("mm",), "int64") == {}
    if layers >= 12:
        assert len(data.columns["op"]) <= 3 + 3 * 4 and data.repeats[0]["times"] >= layers - 2


def json_round_trip(data):
    d = json.loads(json.dumps(dataclasses.asdict(data)))
    return s.GraphData(**d)


@st.composite
def random_nodes(draw):
    n = draw(st.integers(0, 30))
    out = []
    for i in range(n):
        op = draw(st.sampled_from(["input", "parameter", "mm", "add"]))
        ins = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i and op in ("mm", "add") else []
        out.append(
            s.Node(
                i,
                f"n{i}",
                op,
                ins,
                draw(st.sampled_from(["", "%0"])),
                draw(st.sampled_from([None, [1], [["s0"], [2]]])),
                "f",
                "",
                draw(st.sampled_from([None, 1])),
                draw(st.sampled_from(["", "l.0", "l.1", "l.2", "l.1.x", "m"])),
                draw(st.sampled_from([None, 0, 3])),
            )
        )
    return out


@given(random_nodes())
@settings(max_examples=150, deadline=None)
def test_payload_of_any_graph(nodes):
    data = json_round_trip(encode(nodes))
    back = expand(data)
    assert data.lines() == {
        (n.file, n.line) for n in nodes if n.line is not None and n.op not in ("input", "parameter", "output")
    }
    assert sorted(n.name for n in back) == sorted(n.name for n in nodes)
    by_name = {n.name: n for n in back}
    for n in nodes:
        b = by_name[n.name]
        assert [back[i].name for i in b.inputs] == [nodes[i].name for i in n.inputs] and all(
            i < b.index for i in b.inputs
        )
        assert (b.op, b.args, b.shape, b.line, b.kernel) == (n.op, n.args, n.shape, n.line, n.kernel)
        assert n.op == "parameter" or b.module == n.module


def test_damaged_payload_is_an_error():
    data = encode(layered(3))
    data.columns["name"] = data.columns["name"][:-1]
    with pytest.raises(ValueError, match="graph payload"):
        expand(data)


@pytest.mark.parametrize("limit", [200_000, 40_000, 16_000])
def test_size_limit_names_what_it_left_out(limit):
    import random

    rng = random.Random(0)
    r = sample()
    noise = ["".join(rng.choices("abcdefghij ();+*", k=4000)) for _ in range(120)]
    r.kernels = [dataclasses.replace(r.kernels[0], name=f"k{i}", source=t, ir=t[::-1]) for i, t in enumerate(noise)]
    r.guards = [
        s.GuardRow(0, "".join(rng.choices("abcdef", k=30)), "TENSOR", "".join(rng.choices("abcdef ", k=60)))
        for _ in range(3000)
    ]
    text = r.to_json(limit)
    assert len(text.encode()) <= limit
    q = CompileReport.from_json(text)
    assert q.omitted and all(o.count > 0 and o.what and o.why for o in q.omitted)
    if limit == 200_000:  # of many the longest keep their texts
        r.kernels[77].seconds, r.kernels[3].seconds = 9.0, 1.0
        kept = [k.name for k in CompileReport.from_json(r.to_json(limit)).kernels if k.source]
        assert 4 <= len(kept) <= 24 and "k77" in kept
        again = dataclasses.replace(r.kernels[77], name="again", seconds=1e-9)  # another version's kernel of one text
        r.kernels.append(again)
        assert CompileReport.from_json(r.to_json(limit)).kernels[-1].source == again.source
        r.kernels.pop()
    assert q.summary == r.summary and r.kernels[0].source == noise[0] and len(r.guards) == 3000 and not r.omitted


def test_values_that_json_does_not_know():
    import torch

    r = sample()
    r.options = {
        "dtype": torch.float16,
        "nan": float("nan"),
        "inf": float("-inf"),
        "n": {
            1,
        },
        "size": torch.Size([2]),
    }
    r.kernels[0].seconds = float("inf")
    data = json.loads(r.to_json())
    assert data["options"]["dtype"] == "torch.float16" and data["options"]["nan"] == "nan"
