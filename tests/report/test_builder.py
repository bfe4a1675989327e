"""Events in, report out."""

import _thread
import functools
import threading

import pytest
import torch
import tcompile
from standin import spec, state_compilation

from tcompile.compiler import events
from tcompile.compiler.errors import InternalError
from tcompile.compiler.guards import source as src
from tcompile.compiler.guards.guard import KINDS, FunctionSpec, Guard
from tcompile.compiler.report import CompileReport
from tcompile.compiler.report import schema as s
from tcompile.compiler.report.builder import ReportBuilder, record
from tcompile.compiler.report.plan_facts import kernels_of_nodes
from tcompile.compiler.report.words import expected_text, guard_class, guard_text


def f(x):
    return torch.sin(x) * x


def test_facts_become_fields():
    with record(title="t") as b:
        state_compilation(f, torch.ones(4), brk=True, recompile=True)
    r = b.report()
    assert [x.name for x in r.frames] == ["f"] and r.frames[0].entries == [0] and r.frames[0].status == "partly"
    assert (
        r.entries[0].graph == 0
        and r.entries[0].guards == 3
        and r.entries[0].breaks == [0]
        and "graph_0" in r.entries[0].source
    )
    assert (
        r.graphs[0].inputs == ["x"] and r.graphs[0].ops == 2 and r.graphs[0].kernels == [0] and r.graphs[0].entry == 0
    )
    names = {n.name: n for n in r.graphs[0].captured.nodes()}
    assert (
        names["mul"].shape == [4] and names["mul"].line and names["mul"].kernel == 0 and names["sin"].op == "torch.sin"
    )
    assert (
        r.graph_breaks[0].kind == "item"
        and r.graph_breaks[0].entry == 0
        and r.graph_breaks[0].code.strip().startswith("return")
    )
    assert (
        [e.op for e in r.externs] == ["aten.mm.default"]
        and r.memory[0].peak_bytes == 4096
        and r.memory[0].buffers[0].kind == "output"
    )
    assert r.kernels[0].trials[0].chosen and r.kernels[0].compile_seconds == 0.05 and r.cache[0].hit is False
    stages = {"capture", "graph", "lowering", "fusion", "codegen", "runtime"}
    assert stages <= {st.name for st in r.stages} <= {*stages, "other"}
    assert r.compile_seconds == pytest.approx(sum(st.seconds for st in r.stages if not st.parent))
    assert r.recompiles[0].source == "x" and r.recompiles[0].detail == "shape[0]" and r.summary.recompiles == 1
    assert [t.kind for t in r.timeline if t.kind != "compile"] == ["recompile", "capture", "break", "entry"]
    assert [t.entry for t in r.timeline if t.kind == "compile"] == [0] and r.entries[0].seconds > 0
    assert not r.errors and CompileReport.from_json(r.to_json()).summary.line == r.summary.line


def test_report_can_be_made_while_it_goes_on():
    with record() as b:
        assert b.report().summary.status == "nothing"
        state_compilation(f, torch.ones(4))
        first = b.report()
        assert first.summary.graphs == 1 and len(first.marks) == len(b.report().marks)
        state_compilation(f, torch.ones(5))
    assert (
        b.report() is first
        and first.summary.graphs == 2
        and len(first.frames) == 1
        and first.frames[0].entries == [0, 1]
    )


def test_stages_nest():
    with record() as b:
        with events.stage("capture"):
            with events.stage("graph"):
                pass
        with pytest.raises(ValueError), events.stage("graph"):
            raise ValueError
    stages = {(st.name, st.parent): st for st in b.report().stages}
    assert set(stages) == {("capture", ""), ("graph", "capture"), ("graph", "")}
    assert stages["capture", ""].self_seconds <= stages["capture", ""].seconds
    assert b.report().compile_seconds == pytest.approx(stages["capture", ""].seconds + stages["graph", ""].seconds)


def test_skip_limit_and_errors():
    with record() as b:
        events.emit("capture_begin", frame="g", file="a.py", line=3)
        events.emit("skip", frame="g", reason="a generator")
    r = b.report()
    assert (
        r.summary.status == "eager"
        and r.frames[0].status == "skipped"
        and "a generator" in r.summary.line
        and r.fallbacks[0].what == "g"
    )
    with record() as b:
        events.emit("limit", frame="h", limit=8)
        events.emit("fallback", what="h", reason="recompile limit", count=1)
    r = b.report()
    assert r.summary.status == "eager" and "recompile limit reached" in r.summary.line and r.findings
    with record() as b:
        events.emit("error", where="lowering", error=InternalError("a bug"))
    assert b.report().summary.status == "error" and "lowering: InternalError: a bug" in b.report().errors


def test_an_unreadable_event_is_a_note_not_an_error():
    with record() as b:
        events.emit("kernel")
        events.emit("break", brk=None)
        events.emit("something new", x=1)
    assert len(b.report().errors) == 2 and str(b.report())


def test_threads_do_not_mix():
    heard = {}

    def work(n):
        with record() as b:
            for _ in range(n):
                state_compilation(f, torch.ones(4))
            heard[n] = len(b.report().entries)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert heard == {1: 1, 2: 2, 3: 3}


def test_a_thread_that_works_for_the_one_that_listens_is_heard():
    """As autograd's own are, which run backward on a GPU: Python did not start them."""

    def foreign():
        done = threading.Event()

        def say():
            events.emit("fallback", what="backward", reason="a reason", count=1)
            done.set()

        _thread.start_new_thread(say, ())
        assert done.wait(10)

    with record() as b:
        foreign()
    foreign()
    assert [x.reason for x in b.report().fallbacks] == ["a reason"]
    one, two = threading.Event(), threading.Event()

    def other():
        with record():
            one.set()
            two.wait(10)

    t = threading.Thread(target=other)
    t.start()
    one.wait(10)
    with record() as b:
        foreign()  # whose is it?
    two.set()
    t.join()
    assert not b.report().fallbacks


def test_nothing_of_a_tensor_is_kept_by_the_data():
    with record() as b:
        state_compilation(f, torch.ones(4))
    r = b.report()
    assert "tensor(" not in r.to_json()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_guard_has_words(kind):
    x = src.local(0, "x")
    expected = {
        "TENSOR": spec(torch.ones(2, 3)),
        "STATE": {"grad_mode": True},
        "HASATTR": ("bias", False),
        "ALIAS": src.local(1, "y"),
        "NO_ALIAS": (x, src.local(1, "y")),
        "NO_OVERLAP": (x, src.local(1, "y")),
        "LEN": 3,
        "DICT_KEYS": ("a", "b"),
        "TYPE": dict,
        "ID": torch,
        "CODE": f.__code__,
        "FUNCTION": FunctionSpec(f.__code__),
        "CLASS": (("forward", None),),
        "WEAK_ID": lambda: 5,
    }.get(kind, 4)
    g = Guard(None if kind == "STATE" else x, kind, expected)
    assert (
        guard_text(g)
        and expected_text(g)
        and guard_class(g) in ("watched", "checked", "once")
        and "0x" not in guard_text(g)
    )


def test_words_never_run_a_failing_repr():
    class Bad:
        def __repr__(self):
            raise RuntimeError("no")

    assert "Bad" in guard_text(Guard(src.local(0, "x"), "EQUALS", Bad()))


def test_many_parameter_guards_become_one_row():
    with record() as b:
        result = state_compilation(f, torch.ones(4))
        me = src.local(0, "self")
        result.guards += [
            Guard(
                src.attr(src.item(src.attr(me, "layers"), i), "weight"),
                "TENSOR",
                spec(torch.nn.Parameter(torch.ones(2))),
            )
            for i in range(50)
        ]
        events.emit("entry", frame="f", entry=type("E", (), {"meta": result})())
    rows = b.report().guards
    assert any(g.count == 50 for g in rows) and len(rows) < 12


def test_a_global_listener_hears_too():
    b = ReportBuilder()
    events.subscribe(b)
    try:
        state_compilation(f, torch.ones(4))
    finally:
        events.unsubscribe(b)
    assert len(b.report().graphs) == 1


def test_no_stock_compiler_is_imported():
    import subprocess
    import sys

    code = (
        "import sys; from tcompile.compiler.report.builder import record; import tcompile.kernel_magics.timing, tcompile.kernel_magics.render; "
        "from tcompile.compiler.report.environment import environment; environment(); assert not [m for m in sys.modules if m.startswith(('torch._dynamo', 'torch._inductor', 'plotly', 'ipywidgets', 'IPython'))]"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_trials_of_autotuning_keep_their_times() -> None:
    from tcompile.compiler.report.facts.stated_rows import trial

    t = trial({"choices": {"unroll": 4}, "threads": 2, "us": 12.5, "kept": True})
    assert t.config == {"unroll": 4, "threads": 2} and abs(t.seconds - 12.5e-6) < 1e-12 and t.chosen and not t.error
    assert trial({"config": {"BLOCK": 64}, "seconds": 1e-5, "chosen": False, "error": ""}).config == {"BLOCK": 64}
    assert trial({"choices": {"default": True}, "threads": 0, "us": 3.0, "kept": False}).config == {"default": True}
    assert trial({"choices": {}, "us": None, "error": "out of registers"}).seconds is None


def test_memory_over_the_call_against_eager() -> None:
    import tcompile
    import torch

    def f(x):
        y = torch.nn.functional.gelu(x * 2)
        return y.view(-1).sum() + (x + 1).relu().mean()

    with torch.no_grad():
        r = tcompile.explain(f)(torch.randn(64, 64))
    m = r.memory[0]
    one = 64 * 64 * 4
    assert m.eager_peak_bytes == max(m.eager_live) and 2 * one <= m.eager_peak_bytes < 3 * one, (
        "the product is freed after gelu has read it"
    )
    assert m.peak_bytes is not None and max(m.plan_live, default=0) < one, "nothing between the operators is stored"
    x = torch.randn(8, 8, requires_grad=True)
    trained = tcompile.explain(f)(x)
    kept = trained.partitions[0].eager_bytes
    assert kept == 2 * 8 * 8 * 4, "gelu keeps the product, relu its result"
    assert trained.memory[0].eager_live[-1] >= kept, "what autograd keeps is alive when forward has run"


def test_the_peak_of_memory_says_what_runs_there() -> None:
    import tcompile
    import torch

    def f(x, w):
        h = x @ w
        wide = h.repeat(1, 16).sort(-1).values  # the most that is alive at once: sort's two results
        return wide.sum(-1)

    r = tcompile.explain(f)(torch.randn(64, 64), torch.randn(64, 64))
    m = r.memory[0]
    assert m.peak_at and "sort" in m.peak_at, m
    assert m.peak_line[1] == f.__code__.co_firstlineno + 2
    again = tcompile.CompileReport.from_json(r.to_json()).memory[0]
    assert (again.peak_at, again.peak_line) == (m.peak_at, m.peak_line)


def test_curves_are_thinned_and_keep_their_peaks() -> None:
    from tcompile.compiler.report.memory_timeline import plan_live, thinned
    from tcompile.compiler.report.schema import MemoryBuffer

    curve = [0] * 1000
    curve[777] = 5
    assert len(thinned(curve)) == 160 and max(thinned(curve)) == 5 and thinned([1, 2]) == [1, 2]
    rows = [MemoryBuffer("a", 8, 0, 2), MemoryBuffer("b", 4, 1, 3), MemoryBuffer("c", 2, 2, 2)]
    assert plan_live(rows, 3) == [8, 12, 6]


def test_a_graph_that_a_break_ended_is_shown_as_far_as_it_came() -> None:
    import tcompile
    from tcompile.compiler.errors import FullGraphError

    def f(x):
        h = torch.relu(x * 2)
        if h.sum() > 0:
            return h + 1
        return h

    with record() as builder, pytest.raises(FullGraphError):
        tcompile.compile(f, fullgraph=True)(torch.ones(3))
    r = builder.report()
    assert [g.ran for g in r.graphs] == ["partial"] and {"operator.mul", "torch.relu"} <= {
        n.op for n in r.graphs[0].captured.nodes()
    }
    assert not r.kernels and not r.errors


def test_a_kernel_of_equal_layers_is_launched_for_each_and_computes_their_operations():
    import tcompile

    layers = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Conv1d(8, 8, 3), torch.nn.GELU()) for _ in range(3)]
    ).eval()
    with torch.no_grad():
        r = tcompile.explain(layers)(torch.randn(4, 8, 64))  # torch's convolutions part the kernels
    gelu = [n for n in r.graphs[0].lowered.nodes() if n.module.endswith(".1")]
    kernels = [k for k in r.kernels if "erf" in "".join(k.origins)]
    assert sum(k.launches for k in kernels) == 3 and len(gelu) >= 12 and all(n.kernel is not None for n in gelu)


def test_what_a_kernel_uses_of_a_gpu_is_kept_with_it():
    with record(title="t") as b:
        state_compilation(f, torch.ones(4))
        name = b.r.kernels[-1].name
        events.emit(
            "binary",
            name=name,
            registers=40,
            spills=8,
            shared=1024,
            occupancy=0.75,
            assembly="\t// line 3\n\tadd.f32 %r1, %r2, %r3;\n",
            source="tuned",
            names={"add_0": "add"},
            choices={"xblock": 4},
            lines=[],
        )
    k = CompileReport.from_json(b.report().to_json()).kernels[-1]
    assert (k.name, k.registers, k.spills, k.shared, k.occupancy) == (
        name,
        40,
        8,
        1024,
        0.75,
    ) and "add.f32" in k.assembly
    assert k.source == "tuned" and k.names == {"add_0": "add"} and k.choices == {"xblock": 4} and not b.r.errors


def test_lines_of_a_kernel_name_the_operations_that_they_compute():
    import tcompile

    def g(x, w, b):
        return torch.nn.functional.layer_norm(x, (256,), w, b).tanh() + torch.softmax(x, -1)

    k = tcompile.explain(g)(torch.randn(8, 256), torch.ones(256), torch.ones(256)).kernels[0]
    assert {"var_mean", "tanh", "amax", "sum_1", "exp", "div"} <= set(k.names.values()) <= {*k.origins, "x", "w", "b"}
    assert {"acc0", "acc1"} <= set(k.names) and all(name in k.source for name in k.names)
    told = {part for line in k.ir.split("\n") if "  # " in line for part in line.split("  # ")[1].split(", ")}
    assert {"var_mean", "tanh", "amax", "sum_1", "exp", "div"} <= told
    assert next(name for name, node in k.names.items() if node == "tanh").startswith("tanh")


def test_what_record_heard_keeps_the_code_and_the_time() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) * 2

    compiled = tcompile.compile(scaled)
    with tcompile.record() as r:
        compiled(torch.randn(8))
        compiled(torch.randn(8).double())
    report = r.report()
    assert report.source.text.lstrip().startswith("def scaled(") and "tanh(x) * 2" in report.source.text
    assert report.source.first_line == scaled.__code__.co_firstlineno and report.source.cell is None
    assert report.wall.seconds > report.summary.compile_seconds > 0
    assert any("compiling again because `x.dtype` changed" in a.text for a in report.answers), report.answers
    with tcompile.record() as nothing:
        pass
    assert not nothing.report().source.text and not nothing.report().answers


def _noted(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@_noted
def _double(x):
    return x.sin() * 2


@_noted
def _triple(x):
    y = x.cos() * 3
    return y if y.sum() > 0 else -y


def test_a_decorators_wrapper_goes_by_the_names_of_what_it_wraps():
    """It is one code object for all of them."""
    tcompile.reset()
    with tcompile.record() as kept:
        for f in (_double, _triple):
            fast = tcompile.compile(f, backend="eager")
            torch.testing.assert_close(fast(torch.ones(4)), f(torch.ones(4)))
            fast(torch.ones(4, dtype=torch.float64))
    r = kept.report()
    assert {x.name for x in r.frames if x.entries} >= {"_double", "_triple"}
    assert not any("wrapper" in text for text in [x.name for x in r.frames] + [t.text for t in r.timeline])
    assert r.recompiles and not any("wrapper" in c.frame_name for c in r.recompiles)
    named = {x.name: x for x in r.frames}
    assert named["_double"].entries and not set(named["_double"].entries) & set(named["_triple"].entries)
    assert CompileReport.from_json(r.to_json()).frames[0].name == r.frames[0].name


def test_a_product_belongs_to_the_kernel_that_multiplies():
    """A copy of its operand, which has its name, comes first."""
    kernels = [s.Kernel("k0_mm", flops=0), s.Kernel("k1_mm_add", flops=10**9), s.Kernel("k2_add_relu", flops=100)]
    launches = [(0, ["mm"]), (1, ["mm", "add"]), (2, ["add", "relu"])]
    assert kernels_of_nodes(launches, kernels) == {"mm": 1, "add": 1, "relu": 2}
