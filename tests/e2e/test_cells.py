"""What the main job asks of cells, each through IPython's own way of running one, and equal to eager."""

import os
import re
import sys
import threading

import pytest
import torch

pytest.importorskip("IPython")
HERE = os.path.dirname(os.path.abspath(__file__))
ANSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module")
def shell():
    from IPython.core.interactiveshell import InteractiveShell

    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    magics.load(sh)
    sh.run_cell("import torch, torch.nn as nn")
    yield sh
    sh.run_line_magic("tcompile", "reset")
    magics.unload(sh)
    InteractiveShell.clear_instance()


def run(shell, body, line="time=off"):
    """Run a cell; (its value, its report)."""
    result = shell.run_cell(f"%%tcompile -o report {line}\n{body}", store_history=True)
    result.raise_error()
    report = shell.user_ns["report"]
    assert not report.errors
    return result.result, report


def eager(shell, body):
    result = shell.run_cell(body)
    result.raise_error()
    return result.result


BREAKS = {
    "branch": (
        "def f(x):\n    h = x * 2\n    if h.sum() > 0:\n        return h + 1\n    return h - 1\n"
        "[f(x), f(-x), f(x), f(-x)]",
        4,
        "torch.where",
    ),
    "print": ("def f(x):\n    h = x * 2\n    print('sum', h.sum())\n    return h + 1\n[f(x)]", 4, "print"),
    "item": ("def f(x):\n    h = x * 2\n    n = int(h.sum())\n    return h + n\n[f(x)]", 4, "item"),
    "C library": (
        "import ctypes\nlibm = ctypes.CDLL(None)\n"
        "def f(x):\n    h = x * 2\n    k = libm.abs(-3)\n    return h * k\n[f(x)]",
        6,
        "",
    ),
    "loop": (
        "def f(x):\n    n = 0\n    while x.norm() < 100:\n        x = x * 2\n        n += 1\n    return x + n\n[f(x)]",
        4,
        "torch",
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_break_is_named_at_its_line(shell, name):
    body, line, remedy = BREAKS[name]
    shell.user_ns["x"] = torch.linspace(0.5, 2, 12)
    expected = eager(shell, body)
    value, report = run(shell, body)
    torch.testing.assert_close(value, expected)
    assert line in [b.line for b in report.graph_breaks], report.graph_breaks
    b = next(b for b in report.graph_breaks if b.line == line)
    assert remedy in b.remedy and b.reason and re.fullmatch(r"In\[\d+\]", b.file)
    assert any(m.kind == "break" and m.line == line for m in report.marks)
    assert report.summary.status == "partly" and f"line {line}" in str(report) + report.summary.line


def test_an_append_need_not_break(shell):
    value, report = run(
        shell, "kept = []\ndef f(x):\n    h = x * 2\n    kept.append(h)\n    return h + 1\nf(torch.ones(4)), len(kept)"
    )
    torch.testing.assert_close(value[0], torch.full((4,), 3.0))
    assert value[1] == 1 and not report.graph_breaks


CHANGES = {
    "shape": ("x = torch.ones(3, 4)", "x = torch.ones(5, 4)", "shape[0]"),
    "dtype": ("x = torch.ones(3)", "x = torch.ones(3).double()", "dtype"),
    "int": ("x, n = torch.ones(3), 3", "n = 4", "n"),
    "global": ("x = torch.ones(3); scale = 2.0", "scale = 3.0", "scale"),
    "attribute": ("x = torch.ones(3); m.factor = 2.0", "m.factor = 5.0", "factor"),
    "train": ("x = torch.ones(3); m.train()", "m.eval()", "training"),
    "requires_grad": ("x = torch.ones(3)", "x = torch.ones(3, requires_grad=True)", "requires_grad"),
    "grad mode": ("x = torch.ones(3, requires_grad=True)", "torch.set_grad_enabled(False)", "grad"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_matters_recompiles_with_its_reason(shell, what):
    before, after, words = CHANGES[what]
    shell.run_line_magic("tcompile", "reset")
    eager(
        shell,
        "class M(nn.Module):\n    factor = 1.5\n    def forward(self, x, n):\n        return x * self.factor * n * scale + self.training\n"
        "m, n, scale = M(), 3, 2.0",
    )
    try:
        eager(shell, before)
        _, first = run(shell, "m(x, n)")
        _, same = run(shell, "m(x, n)")
        assert not same.recompiles and first.entries
        eager(shell, "unrelated = 7; x = x.detach().clone().requires_grad_(x.requires_grad)")
        value, same = run(shell, "m(x, n)")
        assert not same.recompiles, "a change that does not matter"
        eager(shell, after)
        value, report = run(shell, "m(x, n)")
        torch.testing.assert_close(value, eager(shell, "m(x, n)"))
        assert report.recompiles, report.summary.line
        told = report.recompiles[0]
        assert words in f"{told.source} {told.detail} {told.expected} {told.got}" and told.expected != told.got
    finally:
        torch.set_grad_enabled(True)


def test_fullgraph_is_a_short_error(shell, capsys):
    result = shell.run_cell(
        "%%tcompile --fullgraph\ndef f(x):\n    h = x * 2\n    if h.sum() > 0:\n        return h\n    return -h\nf(torch.randn(3))"
    )
    shown = ANSI.sub("", "".join(capsys.readouterr()))
    assert type(result.error_in_exec).__name__ == "FullGraphError"
    assert ":4, in f" in shown and "if h.sum() > 0" in shown and "torch.where" in shown
    assert "engine.py" not in shown and "session.py" not in shown and "Traceback" not in shown
    assert "✕" in shown and eager(shell, "1 + 1") == 2


def test_dynamic_serves_every_batch_size_with_one_entry(shell):
    eager(shell, "import tcompile\nlinear = nn.Linear(8, 4).eval()")
    eager(shell, "def forward(x):\n    return torch.softmax(linear(x), -1)")
    compiled = "step = tcompile.compile(forward, dynamic=True)\n"
    body = compiled + "out = [step(torch.ones(n, 8)) for n in (4, 9, 17, 33, 64)]\n[o.shape[0] for o in out]"
    import tcompile

    with tcompile.record() as builder, torch.no_grad():
        assert eager(shell, body) == [4, 9, 17, 33, 64]
    report = builder.report()
    assert len(report.entries) == 1 and not report.recompiles
    value, report = run(
        shell, "with torch.no_grad():\n    y = forward(torch.ones(7, 8))\ny.shape", "--dynamic time=off"
    )
    assert value == (7, 4) and len(report.graphs) == 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode(shell, mode):
    shell.user_ns["x"] = torch.randn(33, 65)
    value, report = run(shell, "torch.softmax(x * 2 + 1, -1)", f"mode={mode} time=off")
    torch.testing.assert_close(value, torch.softmax(shell.user_ns["x"] * 2 + 1, -1))
    assert report.options["mode"] == mode and report.kernels
    assert bool(report.autotune) == mode.startswith("max-autotune"), "autotuning searches"


def test_a_training_loop_in_a_library(shell):
    sys.path.insert(0, HERE)
    try:
        setup = (
            "import cell_library\ntorch.manual_seed(3)\n"
            "net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 1))\n"
            "data = [(torch.randn(5, 6), torch.randn(5, 1)) for _ in range(4)]\n"
            "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        )
        expected = eager(shell, setup + "cell_library.train(net, optimizer, data)")
        weights = [p.detach().clone() for p in shell.user_ns["net"].parameters()]
        eager(shell, setup)
        value, report = run(shell, "cell_library.train(net, optimizer, data)")
    finally:
        sys.path.remove(HERE)
    torch.testing.assert_close(value, expected)
    for p, w in zip(shell.user_ns["net"].parameters(), weights):
        torch.testing.assert_close(p.detach(), w)
    assert report.graphs and any("gelu" in n.op for g in report.graphs for n in (g.captured or g.lowered).nodes())


@pytest.mark.parametrize(
    "line, words",
    [
        ("fulgraph=1", "Did you mean fullgraph"),
        ("mode=fast", "'reduce-overhead'"),
        ("backend=nosuch", "unknown backend 'nosuch'"),
        ("time=soon", "time"),
        ("recompile_limit=many", "recompile_limit"),
    ],
)
def test_a_mistake_in_the_options(shell, capsys, line, words):
    eager(shell, "kept = 41")
    result = shell.run_cell(f"%%tcompile {line}\nkept = 42")
    shown = "".join(capsys.readouterr())
    assert not result.success and words in shown and "Traceback" not in shown
    assert shell.user_ns["kept"] == 41


def test_a_model_that_raises(shell, capsys):
    result = shell.run_cell(
        "%%tcompile time=off\ndef outer(x):\n    h = x.sin()\n    return inner(h)\ndef inner(h):\n"
        "    if h.shape[0] == 3:\n        raise ValueError('three is not allowed')\n    return h\nouter(torch.ones(3, 5))"
    )
    shown = ANSI.sub("", "".join(capsys.readouterr()))
    assert type(result.error_in_exec) is ValueError and str(result.error_in_exec) == "three is not allowed"
    trace = shown[shown.index("Traceback") :]
    assert "File" not in trace and "<tcompile" not in trace and "failed resolving" not in trace
    assert all(f"----> {n} " in trace for n in (9, 4, 7)), trace


def test_a_syntax_error(shell, capsys):
    result = shell.run_cell("%%tcompile\nok = 1\ndef f(:\n    pass")
    shown = "".join(capsys.readouterr())
    assert not result.success and "line 3" in shown and "def f(:" in shown and "session.py" not in shown
    assert "ok" not in shell.user_ns


def test_the_same_cell_again_and_again(shell):
    """A cell that defines what it calls meets its own entries, not the recompile limit."""
    shell.user_ns["x"] = torch.randn(100)
    body = "def again(x):\n    return torch.sin(x) * 2\ny = again(x)\nfor i in range(3):\n    y = y + again(y) * i\ny"
    expected = eager(shell, body)
    made = []
    for _ in range(20):
        value, report = run(shell, body)
        torch.testing.assert_close(value, expected)
        made.append(report.compile_seconds)
        assert report.summary.status == "compiled" and "limit" not in report.summary.line and report.graphs
    assert not any(made[2:]), "compiled again"


def test_threads_run_as_without_tcompile(shell):
    shell.user_ns.update(threading=threading, x=torch.randn(50))
    body = (
        "out = {}\ndef work(i):\n    out[i] = torch.sin(x) + i\nts = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
        "for t in ts:\n    t.start()\nfor t in ts:\n    t.join()\n[out[i] for i in range(4)]"
    )
    expected = eager(shell, body)
    torch.testing.assert_close(run(shell, body)[0], expected)


def test_await_at_top_level(shell):
    shell.user_ns["x"] = torch.ones(6)
    result = shell.run_cell(
        "%%tcompile -o report time=off\nimport asyncio\nasync def later(x):\n    await asyncio.sleep(0)\n    return torch.sin(x) * 2\n"
        "y = await later(x)\nz = await later(y)\ny + z"
    )
    result.raise_error()
    y = torch.sin(torch.ones(6)) * 2
    torch.testing.assert_close(result.result, y + torch.sin(y) * 2)


def test_on_comment_off_and_the_other_commands(shell, capsys):
    try:
        shell.run_cell("%tcompile on time=off").raise_error()
        shell.run_cell("# tcompile: mode=max-autotune -o report\ntorch.relu(torch.ones(5) * 2)").raise_error()
        assert shell.user_ns["report"].options["mode"] == "max-autotune" and shell.user_ns["report"].kernels
    finally:
        shell.run_cell("%tcompile off").raise_error()
    for command in ("last", "status", "cache", "help", "reset"):
        shell.run_cell(f"%tcompile {command}").raise_error()
    shown = capsys.readouterr().out
    assert (
        "tcompile is on" in shown
        and "tcompile is off" in shown
        and "disk cache" in shown
        and "%%tcompile [options]" in shown
    )
    assert not shell.run_cell("%tcompile stat").success and "'status'" in "".join(capsys.readouterr())


def test_repeat_runs_the_whole_cell_and_says_so(shell):
    _, report = run(shell, "count = globals().get('count', 0) + 1\nw = torch.sin(torch.ones(64)) * 2", "repeat=3")
    assert report.speedups.calls[0].measured == "cell" and report.speedups.over("eager") is not None
    assert shell.user_ns["count"] == 1 + 2 * 3, "three times under each engine"
    assert report.speedups.calls[0].engines[0].n == 3


def test_timing_leaves_everything_as_the_cell_left_it(shell):
    """Graphs that write to their inputs are timed too: what they wrote to is put back, versions included."""
    eager(
        shell,
        "z, bn, xb = torch.zeros(3), nn.BatchNorm1d(4), torch.randn(8, 4)\nw = torch.ones(3, requires_grad=True)\nloss = (w * z).sum()",
    )
    _, report = run(shell, "z.add_(0)\nv = z * 2\nu = bn(xb)", "time=50ms")
    assert report.speedups.over("eager") is not None, report.speedups.reason
    z, bn, xb = (shell.user_ns[n] for n in ("z", "bn", "xb"))
    assert z._version == 1 and bn.num_batches_tracked == 1
    torch.testing.assert_close(bn.running_mean, 0.1 * xb.mean(0))
    _, report = run(shell, "z.add_(1)\nv = z * 2", "time=50ms")
    assert report.speedups.over("eager") is not None
    torch.testing.assert_close(z, torch.ones(3))
    torch.manual_seed(5)
    expected = [torch.rand(2), torch.rand(2)]
    torch.manual_seed(5)
    value, _ = run(shell, "torch.rand(2)", "time=50ms")
    torch.testing.assert_close([value, torch.rand(2)], expected)


@pytest.mark.parametrize("backend", ["tcompile", "eager", "aot_eager"])
def test_timing_puts_back_what_moves_no_version(shell, backend):
    """Running statistics, and what is written through `data`: also where an attribute leads to the module."""
    eager(
        shell,
        "from types import SimpleNamespace\n"
        "net, xb = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)\n"
        "held, p = SimpleNamespace(net=net), torch.ones(3, requires_grad=True)",
    )
    _, report = run(shell, "v = held.net(xb)\np.data.mul_(2.0)", f"time=50ms backend={backend}")
    assert report.speedups.over("eager") is not None, report.speedups.reason
    net, xb, p = (shell.user_ns[n] for n in ("net", "xb", "p"))
    torch.testing.assert_close(net[1].running_mean, 0.1 * net[0](xb).detach().mean(0))
    assert net[1].num_batches_tracked == 1 and p.tolist() == [2.0, 2.0, 2.0]


def test_a_cell_run_again_with_another_engine_to_compare_is_timed(shell):
    shell.user_ns["x"] = torch.randn(64)
    _, first = run(shell, "v = torch.cos(x) * 3 - 1", "time=50ms")
    _, second = run(shell, "v = torch.cos(x) * 3 - 1", "time=50ms compare=eager,torch")
    assert second.speedups.over("torch") is not None or "torch" in second.speedups.reason, second.speedups
    assert not second.compile_seconds and second.speedups.over("eager") is not None


def test_huggingface_models_in_one_graph(shell):
    pytest.importorskip("transformers")
    eager(
        shell,
        "from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel\ntorch.manual_seed(0)\n"
        "bert = BertModel(BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, vocab_size=100)).eval()\n"
        "resnet = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])).eval()\n"
        "ids, pixels = torch.randint(0, 100, (2, 16)), torch.randn(2, 3, 32, 32)",
    )
    for body in (
        "with torch.no_grad():\n    out = bert(input_ids=ids, attention_mask=torch.ones_like(ids))\nout.last_hidden_state",
        "with torch.no_grad():\n    out = resnet(pixels)\nout.last_hidden_state",
    ):
        expected = eager(shell, body)
        value, report = run(shell, body)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)
        assert not report.graph_breaks and len(report.graphs) == 1 and report.summary.status == "compiled"
        assert len(report.to_json()) <= 200_000


def test_another_way_on_after_a_break_is_no_function_that_was_defined_again(shell):
    """What follows the break was told as a function whose body changed, with the advice to define it once."""
    eager(
        shell,
        "def energy(x):\n    h = torch.tanh(x)\n    if h.sum() > 0:\n        h = h + 1\n"
        "    print('mean', float(h.mean()))\n    return (h * h).sum()",
    )
    _, r = run(shell, "for n in (1, 20, 30, 40):\n    e = energy(torch.randn(n, 300) - (n - 15))")
    told = [c for c in r.recompiles if c.kind == "FUNCTION"]
    assert [c.source for c in told] == ["what follows a break in energy"]
    assert told[0].suggestion.startswith("no change is needed: each way on")
    assert "rest_of" not in str(r) and not any("rest_of" in g.text for g in r.guards)
    assert not [a for a in r.answers if "define" in a.action]


def test_compiling_is_no_part_of_the_time_of_what_is_tried(shell):
    """A call that was compiled to be tried, and took longer than the budget, was timed with its compilation."""
    cell = "def f(x):\n    return torch.tanh(x * 3).softmax(-1) + x.cos()\ny = f(torch.ones(8, 8))"
    _, r = run(shell, cell, "time=20ms")
    (row,) = r.live.under({"disable_fusion": True}, 0.02)["calls"]
    times = {e["engine"]: e for e in row["engines"]}
    assert times["tried"]["median"] < times["tried"]["cold"] / 3, times["tried"]
