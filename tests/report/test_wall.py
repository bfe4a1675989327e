"""Where the wall time went: parts that add up, and the ranked answer made of them."""

from __future__ import annotations

import pytest
from make_sample import sample
from tcompile.compiler.report import schema as s
from tcompile.compiler.base.figures import share_bounds
from tcompile.compiler.report.conclusions.answers import answers_of, raise_peaks
from tcompile.compiler.report.finish import finish
from tcompile.compiler.report.profiles import encode_spans
from tcompile.compiler.report.conclusions.waits import recompile_seconds, tell_waits
from tcompile.compiler.report.conclusions.wall import IMPORTING, Seen, by_kind, split_compiled, wall_of

PYTHON, COMPILED = Seen("python", "train", "In[1]", 3), Seen("compiled", "compiled calls", "In[1]", 4)


def total(wall: s.Wall) -> float:
    return sum(p.seconds for p in wall.parts)


def test_parts_add_up_to_the_wall_time():
    looks = [(0.1 * i, 0.1, 1.0, PYTHON if i % 2 else COMPILED) for i in range(1, 11)]
    wall = wall_of(0.0, 1.0, [(0.0, 0.2), (0.35, 0.4)], looks)
    assert wall.how == "sampled" and total(wall) == pytest.approx(1.0)
    sums = {kind: t for kind, _, t in by_kind(wall)}
    assert sums["compiling"] == pytest.approx(0.25), "by the clock, not by looks"
    assert sums["python"] == pytest.approx(0.4) and sums["compiled"] == pytest.approx(0.35)


def test_a_run_too_short_to_be_looked_at_says_so():
    wall = wall_of(0.0, 0.01, [(0.0, 0.004)], [(0.005, 0.002, 1.0, PYTHON)])
    assert wall.how == "counted" and {p.kind for p in wall.parts} == {"compiling", "rest"} and total(wall) == 0.01


def test_many_small_parts_become_one():
    looks = [(0.01 * i, 0.01, 1.0, Seen("python", f"f{i}")) for i in range(1, 101)]
    wall = wall_of(0.0, 1.0, [], looks)
    assert len(wall.parts) <= 26 and total(wall) == pytest.approx(1.0)
    assert any(p.name.endswith("others") for p in wall.parts)


def report_with(*parts: s.WallPart):
    r = sample()
    r.tried, r.speedups, r.recompiles, r.graph_breaks, r.stages, r.profiles = {}, s.Speedups(), [], [], [], []
    r.waited = r.summary.compile_seconds = 0.0
    r.wall = s.Wall(sum(p.seconds for p in parts), "sampled", 100, list(parts))
    return r


def test_kernels_take_their_part_of_compiled_calls_and_never_more():
    for each, expected in ((1e-3, 0.3), (1.0, 0.5)):
        r = report_with(s.WallPart("compiled", "compiled calls", 0.5), s.WallPart("python", "f", 0.5))
        r.kernels, r.externs = [s.Kernel("k", graph=0, seconds=each)], []
        for e in r.entries:
            e.hits = 0 if e.graph == 0 else e.hits
        r.entries[0].graph, r.entries[0].hits = 0, 300
        for _ in range(2):  # a report is finished again after its timings
            split_compiled(r)
            sums = {kind: t for kind, _, t in by_kind(r.wall)}
            assert sums["kernels"] == pytest.approx(expected) and total(r.wall) == pytest.approx(1.0)


def test_kernels_without_a_time_are_told_and_no_advice_rests_on_them():
    """What backward's kernels took was called overhead, and the timed ones as fast as the machine."""
    r = report_with(s.WallPart("compiled", "compiled calls", 0.9), s.WallPart("python", "f", 0.1))
    r.kernels = [s.Kernel("k", graph=0, seconds=1e-3, bytes=10**7), s.Kernel("backward", graph=0)]
    r.externs, r.graphs[0].kernels, r.graphs[0].ran = [], [0, 1], "compiled"
    r.environment |= {"copy_bytes_per_second": 1e10, "matmul_flops_per_second": 1e11}
    for g in r.graphs[1:]:
        g.kernels = []
    for e in r.entries:
        e.hits = 0
    r.entries[0].graph, r.entries[0].hits = 0, 300
    split_compiled(r)
    (rest,) = [p for p in r.wall.parts if p.kind == "compiled"]
    assert rest.name.startswith("1 kernel without a time, guards")
    (kernels,) = [a for a in answers_of(r) if "compiled kernel" in a.text]
    (calls,) = [a for a in answers_of(r) if "compiled calls cost" in a.text]
    assert "is 1 compiled kernel, `k`" in kernels.text and kernels.text.endswith("; 1 more have no time")
    assert "1 kernel without a time" in calls.text and not calls.action and calls.gain is None


def test_answers_are_ranked_by_what_they_gain():
    r = report_with(
        s.WallPart("data", "loading data", 0.5, None, "In[4]", 2),
        s.WallPart("python", "train", 0.2, None, "In[4]", 3),
        s.WallPart("waiting", "time.sleep", 0.29, None, "In[4]", 4),
        s.WallPart("torch", "sort", 0.01, None, "In[4]", 5),
    )
    r.tried = {"mode=max-autotune": {"settings": {"mode": "max-autotune"}, "ratio": [3.0, 2.9, 3.1]}}
    answers = answers_of(r)
    assert [a.how for a in answers] == ["measured", "at most", "", ""]
    assert answers[0].settings == {"mode": "max-autotune"} and answers[0].gain == 3.0
    assert "loading data" in answers[1].text and answers[1].gain == pytest.approx(2.0)
    assert "num_workers" in answers[1].action and "`time.sleep` (line 4)" in answers[2].text
    assert not any("sort" in a.text for a in answers), "one hundredth is no answer"
    assert all(a.action for a in answers if a.how == "at most"), "a gain without a remedy tells nobody what to do"
    assert all(a.gain is None and a.share for a in answers if not a.how)


def test_an_option_that_measured_no_clear_gain_is_no_answer():
    r = report_with(s.WallPart("python", "f", 1.0))
    r.tried = {
        "mode=a": {"settings": {"mode": "a"}, "ratio": [1.1, 0.9, 1.3]},
        "mode=b": {"settings": {"mode": "b"}, "ratio": [5.0, 5.0, 5.0]},
        "mode=c": {"settings": {"mode": "c"}, "ratio": [0.5, 0.4, 0.6]},
    }
    assert all(not a.settings for a in answers_of(r))


def test_what_was_measured_takes_the_place_of_a_bound():
    r = report_with(s.WallPart("kernels", "k", 0.9, 1), s.WallPart("python", "f", 0.1))
    r.environment.pop("copy_bytes_per_second", None)
    assert all(not a.settings for a in answers_of(r)), "what it would win is not known: no advice"
    short = report_with(s.WallPart("kernels", "k", 9e-7, 1), s.WallPart("python", "f", 1e-7))
    assert all(not a.settings for a in answers_of(short)), "no search of minutes for a microsecond"
    r.tried = {"mode=max-autotune": {"settings": {"mode": "max-autotune"}, "ratio": [1.0, 0.9, 1.1]}}
    assert all(not a.settings and "max-autotune" not in a.action for a in answers_of(r))


def test_products_at_the_machines_peak_have_nothing_to_gain():
    r = report_with(s.WallPart("compiled", "compiled calls", 1.0))
    r.kernels.clear()
    finish(r)
    products = [x for x in r.externs if "mm" in x.op]
    assert products, "the sample has products that torch computes"
    for x in products:
        x.seconds = 1e-3
    r.wall.parts = [s.WallPart("library", products[0].op, 1.0, 3)]
    r.environment["matmul_flops_per_second"] = 1e-3
    (a,) = [a for a in answers_of(r) if "torch's own kernels" in a.text]
    assert a.gain is None and not a.action


def products_of(r, seconds: float) -> s.WallPart:
    """A part of the run that is a kernel with a product of the sample's in it."""
    g = r.graphs[0]
    n = next(n for n in g.lowered.nodes() if "mm" in n.op and n.dtype == "float32")
    r.kernels.append(s.Kernel("k_mm", graph=0, origins=[n.name]))
    return s.WallPart("kernels", "k_mm", seconds, 3, "In[4]", 5, f"kernels/{len(r.kernels) - 1}")


@pytest.mark.parametrize("faster", [5.0, 0.02])
def test_where_products_dominate_bfloat16_is_an_answer_if_the_machine_is_faster_in_it(faster):
    r = report_with(s.WallPart("python", "f", 0.2))
    r.wall.parts.append(products_of(r, 0.8))
    r.wall.seconds = 1.0
    r.environment.update(matmul_flops_per_second=1e11, bfloat16_flops_per_second=faster * 1e11)
    bits = [a for a in answers_of(r) if a.settings == {"autocast": "bfloat16"}]
    if faster > 1:
        (a,) = bits
        assert a.how == "at most" and a.gain == pytest.approx(1 / (0.2 + 0.8 / 5)) and "80 %" in a.text
        r.options["autocast"] = "bfloat16"
        assert not any(a.settings == {"autocast": "bfloat16"} for a in answers_of(r)), "it is set already"
    else:
        assert not bits, "a remedy that makes it slower is none"


def test_a_measured_precision_tells_its_error():
    r = report_with(s.WallPart("python", "f", 1.0))
    r.tried = {
        "autocast=bfloat16": {
            "settings": {"autocast": "bfloat16"},
            "ratio": [1.6, 1.5, 1.7],
            "error": 3.2e-3,
            "of": "the graphs of step",
        }
    }
    (a,) = [a for a in answers_of(r) if a.settings]
    assert a.how == "measured" and a.error == 3.2e-3 and a.settings == {"autocast": "bfloat16"}
    assert a.text == (
        "`autocast=bfloat16` makes the graphs of step 1.6 times as fast, at an error of 3e-3 of its results"
    )


def test_a_break_is_blamed_for_the_operators_behind_it_alone():
    """A cell imports a module and makes a model: the import does not keep the model's weights out of a graph."""
    r = report_with(s.WallPart("torch", "normal_", 0.8, None, "In[4]", 7), s.WallPart("python", "f", 0.2))
    asked = s.Break("item", "", "In[4]", 3, remedy="write it otherwise")
    once = s.Break("call", "", "In[4]", 6, remedy="no change is needed: it runs once", harmless=True)
    r.graph_breaks = [asked, once]
    (a,) = [a for a in answers_of(r) if "normal_" in a.text]
    assert not a.action and a.gain is None
    r.graph_breaks = [asked]
    (a,) = [a for a in answers_of(r) if "normal_" in a.text]
    assert a.action == "write it otherwise" and a.gain == pytest.approx(5.0) and "line 3" in a.text


def test_what_a_break_costs_a_call_is_an_answer():
    r = report_with(s.WallPart("python", "f", 1.0))
    costly = s.Break("item", "", "In[4]", 7, remedy="write it otherwise", seconds=12e-6, share=0.5)
    again = s.Break("item", "", "In[4]", 7, remedy="write it otherwise", seconds=1e-3, share=0.1)
    little = s.Break("item", "", "In[4]", 9, remedy="write it otherwise", seconds=1e-6, share=0.01)
    r.graph_breaks = [again, costly, little]
    (a,) = [a for a in answers_of(r) if "break at line" in a.text]
    assert "costs 12 µs a call, 50 % of it" in a.text and a.gain == pytest.approx(2.0) and a.ref == "breaks/1"
    costly.kind = "print"
    (a,) = [a for a in answers_of(r) if "break at line" in a.text]
    assert a.gain == pytest.approx(2.0) and a.action and "the text takes as long elsewhere" in a.text


def profiled(device: str, kernels: float, plain: float = 100e-6) -> s.CallProfile:
    p = s.CallProfile("step", "In[4]", 3, "call", device, 1.2 * plain, plain)
    spans = [
        s.ProfileSpan("call", "step", -1, 0.0, 1.2 * plain),
        s.ProfileSpan("guards", "guards of step", 0, 0.0, 15e-6),
        s.ProfileSpan("graph", "graph_0", 0, 20e-6, 80e-6, 0),
        s.ProfileSpan("kernel", "k", 2, 20e-6, kernels, 0, 0),
        s.ProfileSpan("plan", "the plan itself", 2, 20e-6 + kernels, 5e-6, 0),
    ]
    encode_spans(p, spans)
    return p


def test_on_a_gpu_the_share_of_launches_is_told_with_the_remedy_that_takes_them_away():
    """A launch's own length says nothing of the kernel's: the device works as long as the kernels take one by one."""
    r = report_with(s.WallPart("rest", "the rest", 1.0))
    r.externs, r.graphs[0].kernels = [], [0]
    r.kernels = [s.Kernel("k", "triton", graph=0, seconds=20e-6, launches=2)]
    r.profiles = [profiled("cuda", 4e-6)]
    (a,) = [a for a in answers_of(r) if "launches" in a.text]
    assert a.text == "60 % of a call of step (100 µs) is launches and other work of the host"
    assert a.settings == {"mode": "reduce-overhead"} and a.how == "at most" and a.gain == pytest.approx(2.5)
    tried = {"settings": {"mode": "reduce-overhead"}, "ratio": [1.3, 1.25, 1.35]}
    r.tried = {"mode=reduce-overhead": tried}
    first = answers_of(r)[0]
    assert first.how == "measured" and first.gain == 1.3
    assert first.text == (
        "`mode=reduce-overhead` makes the call 1.3 times as fast: 60 % of a call is launches and other work of the host"
    )
    r.kernels[0].seconds = None
    assert not any("launches" in a.text for a in answers_of(r) if a.how != "measured"), "not known"


def test_on_the_cpu_the_work_around_kernels_is_told_and_what_of_it_is_most():
    r = report_with(s.WallPart("rest", "the rest", 1.0))
    r.profiles, r.graph_breaks = [profiled("cpu", 75e-6)], []
    (a,) = [a for a in answers_of(r) if "around its kernels" in a.text]
    assert a.text == "25 % of a call of step (100 µs) is work around its kernels, most of it guards (15 µs)"
    assert not a.settings and "larger batch" in a.action and a.gain == pytest.approx(1 / 0.75)
    r.profiles = [profiled("cpu", 95e-6)]
    assert not any("around its kernels" in a.text for a in answers_of(r)), "a twentieth is no answer"
    r.profiles, r.graph_breaks = [profiled("cpu", 75e-6)], [s.Break("item", "", "In[4]", 7, seconds=24e-6, share=0.24)]
    assert not any("around its kernels" in a.text for a in answers_of(r)), "it is told of the break"
    r.graph_breaks, r.wall = [], s.Wall(1.0, "sampled", 99, [s.WallPart("data", "loading data", 1.0)])
    assert not any("around its kernels" in a.text for a in answers_of(r)), "the run has other worries"


def test_a_call_that_took_longer_without_a_clock_met_a_busy_machine():
    r = report_with(s.WallPart("rest", "the rest", 1.0))
    r.graph_breaks, r.profiles = [], [profiled("cpu", 115e-6)]
    r.profiles[0].plain_seconds = 10 * r.profiles[0].seconds
    assert not any("around its kernels" in a.text for a in answers_of(r)), "what was waited for is no work"


def test_sizes_that_change_are_set_free_by_a_button():
    r = report_with(s.WallPart("compiling", "compiling", 0.9), s.WallPart("python", "f", 0.1))
    r.waited = 0.9
    r.recompiles = [s.Recompile(0, "f", "x", detail="shape[0]", suggestion="compile with dynamic=True, or mark it")]
    r.timeline = [s.TimelineEvent(0.1, "recompile", 0, 1, "x"), s.TimelineEvent(0.5, "entry", 0, 1, "", 0.4)]
    r.entries[1].seconds = 0.4
    finish(r)
    (a,) = [a for a in r.answers if "compiling again" in a.text]
    assert a.settings == {"dynamic": "True"} and a.gain is None, "the next run may not pay it"
    assert "a run that meets no new size or value does not pay it" in a.text and r.answers[0] is a


def test_compiling_again_says_what_one_of_several_causes_took():
    r = report_with(s.WallPart("compiling", "compiling", 0.9), s.WallPart("python", "f", 0.1))
    r.waited = 0.9
    r.recompiles = [s.Recompile(0, "f", name, suggestion=f"leave {name} as it is") for name in ("x", "y")]
    r.timeline = [
        event
        for i, at in enumerate((0.3, 0.5))
        for event in (s.TimelineEvent(at, "recompile", 0, i, ""), s.TimelineEvent(at + 0.1, "entry", 0, i, "", 0.2))
    ]
    r.entries[0].seconds, r.entries[1].seconds = 0.5, 0.2
    finish(r)
    (a,) = [a for a in r.answers if "compiling again" in a.text]
    assert a.text.startswith("0.70 s") and "`x` and 1 other" in a.text and "(0.50 s because of `x`)" in a.text, a


def test_a_remedy_that_changes_nothing_is_never_told():
    r = report_with(s.WallPart("compiling", "compiling", 0.9), s.WallPart("python", "f", 0.1))
    r.waited = 0.9
    r.recompiles = [s.Recompile(0, "forward", "n", suggestion="no change is needed: the next makes it any number")]
    r.frames[0].seconds, r.frames[0].entries = 0.8, [0, 1]
    finish(r)
    told = [a for a in r.answers if "compiling again" in a.text]
    assert told and not told[0].action and told[0].gain is None


def test_small_parts_are_measured_by_the_programs_own_time_and_the_longest_keeps_its_name():
    """Compiling takes most of a first run: beside it all kernels are small, and none was named."""
    looks = [(9.0 + 0.01 * i, 0.01, 1.0, Seen("python", f"f{i % 4}")) for i in range(1, 101)]
    wall = wall_of(0.0, 10.0, [(0.0, 9.0)], looks)
    assert sorted(p.name for p in wall.parts if p.kind == "python") == ["f0", "f1", "f2", "f3"]
    r = report_with(s.WallPart("compiling", "compiling", 9.0), s.WallPart("compiled", "compiled calls", 1.0))
    r.kernels, r.externs = [s.Kernel(f"k{i}", graph=0, seconds=1e-7) for i in range(30)], []
    r.entries[0].graph, r.entries[0].hits = 0, 10
    split_compiled(r)
    rows = [p.name for p in r.wall.parts if p.kind == "kernels"]
    assert "k0" in rows and "29 others" in rows
    r.wall.parts = [s.WallPart("kernels", "29 others", 0.6), s.WallPart("kernels", "k0", 0.4, 3, "", None, "kernels/0")]
    r.wall.seconds, r.summary.compile_seconds = 1.0, 0.0
    (a,) = [a for a in answers_of(r) if "compiled kernel" in a.text]
    assert "the longest `k0`" in a.text and a.ref == "kernels/0"


def test_a_share_says_of_what_it_is():
    r = report_with(s.WallPart("compiling", "compiling", 9.0), s.WallPart("python", "train", 1.0, None, "In[4]", 3))
    (a,) = [a for a in answers_of(r) if "Python" in a.text]
    assert a.text.startswith("100 % of the program's own 1.0 s is Python")


def test_what_importing_took_is_told_and_promises_nothing():
    r = report_with(s.WallPart("python", IMPORTING, 0.8, None, "In[4]", 3), s.WallPart("python", "train", 0.2))
    told = [a for a in answers_of(r) if "importing modules" in a.text]
    assert len(told) == 1 and "(line 3)" in told[0].text and told[0].gain is None and not told[0].action
    assert any(a.text.startswith("100 % of the program's own 0.20 s is Python, most in `train`") for a in answers_of(r))


def test_a_decision_on_a_loop_names_the_loops_line():
    r = sample()
    i = next(i for i, f in enumerate(r.frames) if f.entries)
    r.frames[i].name, r.frames[i].line = "<module>.<loop at line 11>", 1
    finish(r)
    (d,) = [d for d in r.decisions if d.what == "the loop at line 11"]
    assert d.line == 11


def test_a_backward_graph_ran_as_often_as_its_forward_graph():
    r = report_with(s.WallPart("compiled", "compiled calls", 1.0))
    for e in r.entries:
        e.graph, e.hits = (0, 20) if e is r.entries[0] else (None, 0)
    r.partitions = [s.Partition(0, [1])]
    r.kernels, r.externs = [s.Kernel("k", graph=0, seconds=1e-2), s.Kernel("b", graph=1, seconds=2e-2)], []
    r.graphs[1].runs, r.graphs[1].called_at = 7, ["In[4]", 9]  # counted: some forward calls had no backward pass
    split_compiled(r)
    parts = {p.name: p for p in r.wall.parts if p.kind == "kernels"}
    assert {name: p.count for name, p in parts.items()} == {"b": 7, "k": 20}
    assert (parts["b"].file, parts["b"].line) == ("In[4]", 9)


def test_a_share_of_few_looks_has_bounds_and_gives_no_advice():
    lo, hi = share_bounds(11, 58)
    assert 0.10 < lo < 0.12 and 0.30 < hi < 0.32
    looks = [(0.1 * i, 0.1, 1.0, Seen("torch", "ones_like", "In[4]", 12)) for i in range(1, 12)]
    looks += [(0.1 * i, 0.1, 1.0, PYTHON) for i in range(12, 59)]
    r = report_with()
    r.wall = wall_of(0.0, 5.8, [], looks)
    assert r.wall.looks == 58 and [p.looks for p in r.wall.parts] == [47, 11]
    b = s.Break("item", ".item()", "In[4]", 8, remedy="write it in another way")
    r.graph_breaks = [b]
    (a,) = [a for a in answers_of(r) if "ones_like" in a.text]
    assert a.text.startswith("about 11 to 31 % of the program's own") and "11 of 58 looks saw it" in a.text
    assert not a.action and a.gain is None and a.share is None
    r.wall = wall_of(0.0, 58.0, [], [(at, 1.0, share, seen) for at, _, share, seen in looks * 10])
    (a,) = [a for a in answers_of(r) if "ones_like" in a.text]
    assert a.text.startswith("19 %") and a.action == b.remedy, "of many looks it is known"


def test_a_slow_kernel_beside_good_ones_is_not_nothing_to_gain():
    r = report_with(s.WallPart("kernels", "fast", 0.7, 1, ref="kernels/0"))
    r.wall.parts.append(s.WallPart("kernels", "slow", 0.3, 1, ref="kernels/1"))
    r.wall.seconds = 1.0
    for k, flops in zip(r.kernels, (99, 46, None)):
        k.seconds, k.flops, k.bytes, k.origins = 1.0, flops, 1, []
    r.environment.update(matmul_flops_per_second=100.0, copy_bytes_per_second=1e9)
    (a,) = [a for a in answers_of(r) if "compiled kernel" in a.text]
    assert "nothing to gain" not in a.text and "but `slow` at 46 %" in a.text
    assert a.gain == pytest.approx(1 / (1 - 0.3 * 0.54)) and "max-autotune" in a.action


def test_no_peak_is_below_what_a_product_of_the_report_reached():
    r = report_with(s.WallPart("python", "f", 1.0))
    products_of(r, 1.0)
    r.graphs[0].kernels.append(len(r.kernels) - 1)
    r.kernels[-1].flops, r.kernels[-1].seconds = 429, 1.0
    r.environment["matmul_flops_per_second"] = 204.0
    raise_peaks(r)
    assert r.environment["matmul_flops_per_second"] == 429


def test_what_needs_no_change_is_no_remedy():
    r = sample()
    for b in r.graph_breaks:
        b.harmless, b.remedy = True, "no change is needed: it runs once"
    for c in r.recompiles:
        c.suggestion = "no change is needed: the second iteration makes it any number"
    finish(r)
    told = [f for f in r.findings if "no change is needed" in f.text]
    assert told and not any(f.action.startswith("no change") for f in r.findings)


def test_a_wait_for_the_compiler_is_told_with_its_entry_and_a_backward_pass_as_that():
    r = sample()
    r.entries = [s.Entry(0, graph=0), s.Entry(0), s.Entry(1)]
    r.partitions = [s.Partition(0, [1])]
    r.timeline = [
        s.TimelineEvent(1.0, "entry", 0, 0),
        s.TimelineEvent(4.0, "recompile", 0, 1),
        s.TimelineEvent(4.5, "entry", 0, 1),
    ]
    for _ in range(2):  # a report is made again after its timings
        tell_waits(r, [(0.5, 1.0), (2.0, 3.0), (4.0, 4.6)])
        told = [(e.time, e.frame, e.seconds) for e in r.timeline if e.kind == "compile"]
        assert told == [(0.5, 0, 0.5), (2.0, 0, 1.0), (4.0, 0, 0.5)]
    assert "backward" in next(e.text for e in r.timeline if e.time == 2.0)
    r.partitions = []
    tell_waits(r, [(0.5, 1.0), (2.0, 3.0), (4.0, 4.6)])
    assert "backward" not in next(e.text for e in r.timeline if e.time == 2.0), "nothing here has a backward pass"
    r.recompiles = [s.Recompile(0, "f", "n", "EQUALS")]
    assert recompile_seconds(r) == [0.5], "what the other entries took is no recompile"


def test_versions_of_a_kernel_count_each_with_its_own_time():
    r = report_with(s.WallPart("kernels", "k", 1.0, 2, ref="kernels/0"))
    r.wall.seconds = 1.0
    r.kernels[2].seconds = None
    for i, (k, took) in enumerate(zip(r.kernels, (0.1, 0.9))):
        k.name, k.lines, k.graph, k.launches = "k", [("In[1]", 3)], i, 1
        k.seconds, k.flops, k.bytes, k.origins = took, 10, 1, []
    r.graphs[1].called_at = []
    r.entries = [s.Entry(0, graph=0, hits=1), s.Entry(0, graph=1, hits=1)]
    r.environment.update(matmul_flops_per_second=100.0, copy_bytes_per_second=1e9)
    (a,) = [a for a in answers_of(r) if "compiled kernel" in a.text]
    assert "at 20 % of what this machine can do" in a.text


def test_a_loop_that_was_left_to_python_is_told_with_what_is_quicker():
    r = report_with(s.WallPart("torch", "norm", 0.9, None, "In[1]", 4, looks=90))
    r.wall = s.Wall(1.0, "sampled", 100, r.wall.parts, 100)
    r.source.file, r.source.first_line = "In[1]", 1
    r.source.text = "out = 0\nfor i in range(9):\n    x = rows[i]\n    out += x.norm()\ny = out.norm()"
    r.graph_breaks = [s.Break("small_loop", "many turns", "In[1]", 2, harmless=True, remedy="no change is needed")]
    (a,) = [a for a in answers_of(r) if "norm" in a.text]
    assert "the loop at line 2 runs as plain Python" in a.text and "whole tensors" in a.action
    assert a.how == "at most" and a.gain == pytest.approx(10)
    r.wall.parts[0].line = 5
    (a,) = [a for a in answers_of(r) if "norm" in a.text]
    assert not a.action, "what stands behind the loop is not in it"
    r.wall = s.Wall(1.0, "counted", 0, [s.WallPart("rest", "the rest", 1.0)])
    r.entries = [s.Entry(0)]
    assert any("whole tensors" in a.action for a in answers_of(r))


def test_several_breaks_are_ranked_by_what_all_of_them_cost():
    r = sample()
    r.wall = s.Wall()
    r.graph_breaks = [
        s.Break("item", "read", "In[1]", n, remedy="use a mask", seconds=1e-5, share=0.35) for n in (3, 4)
    ]
    r.source.file = "In[1]"
    slower = s.Speedup("tcompile", "eager", 0.6, 0.59, 0.61)
    r.speedups.overall, r.tried = [slower], {}
    told = [a for a in answers_of(r) if a.gain]
    assert [a.ref for a in told[:2]] == ["breaks/0", "breaks/1"], "leaving the cell to eager gains less"
    assert "Without those at lines 3 and 4 it is about 3.3×" in told[0].text
