"""Cells through the real compiler: what the report says, beside what eager computes."""

import pytest
import torch

pytest.importorskip("tcompile.compiler.api")


@pytest.fixture
def shell(tmp_path):
    from IPython.core.interactiveshell import InteractiveShell

    from tcompile.compiler import config
    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    sh.tcompile = magics.load(sh)
    with config.patch(cache_dir=str(tmp_path)):
        yield sh
    sh.run_line_magic("tcompile", "reset")
    magics.unload(sh)
    InteractiveShell.clear_instance()


def run(shell, cell):
    r = shell.run_cell(cell, store_history=True)
    r.raise_error()
    return r


def test_one_kernel(shell, capsys):
    run(
        shell,
        "import torch\ntorch.manual_seed(0)\nx = torch.randn(1000)\ndef f(x):\n    return torch.sin(x) + torch.cos(x)",
    )
    value = run(shell, "%%tcompile -o r time=100ms\nf(x)").result
    x = shell.user_ns["x"]
    torch.testing.assert_close(value, torch.sin(x) + torch.cos(x))
    r = shell.user_ns["r"]
    assert not r.graph_breaks and not r.errors and len(r.graphs) == 1 and len(r.kernels) == 1
    assert "sin" in r.kernels[0].source and r.kernels[0].language == "cpp" and r.graphs[0].graph_module is not None
    assert {n.op for n in r.graphs[0].lowered.nodes()} >= {"aten.sin.default", "aten.cos.default", "aten.add.Tensor"}
    assert r.guards and r.entries and r.stages and r.summary.status == "compiled"
    assert r.speedups and r.speedups.over("eager").ratio > 0
    assert "● compiled" in capsys.readouterr().out


def test_break_at_its_line(shell):
    run(shell, "import torch\nx = torch.ones(8)")
    value = run(
        shell,
        "%%tcompile -o r time=off\ndef g(x):\n    h = x * 2\n    if h.sum() > 0:\n        h = h + 1\n    return h * h\ng(x)",
    ).result
    torch.testing.assert_close(value, torch.full((8,), 9.0))
    r = shell.user_ns["r"]
    b = next(b for b in r.graph_breaks if b.kind == "data_dependent_branch")
    assert b.line == 4 and b.file == "In[2]" and "if h.sum() > 0" in b.code and "torch.where" in b.remedy
    assert b.code.encode()[b.col : b.end_col].decode() == "h.sum() > 0"
    assert any(m.line == 4 and m.kind == "break" for m in r.marks) and r.summary.status == "partly"


def test_a_changed_size_is_a_recompile_with_expected_and_got(shell):
    run(shell, "import torch\ndef f(x):\n    return x * 2 + 1")
    run(shell, "%%tcompile time=off\nfor n in (4,):\n    y = f(torch.ones(n, 3))")
    run(shell, "%%tcompile -o r time=off\ny = [f(torch.ones(n, 3)).shape[0] for n in (4, 5, 6)]")
    assert shell.user_ns["y"] == [4, 5, 6]
    r = shell.user_ns["r"]
    assert all(c.at_call is not None and c.at_call >= 1 for c in r.recompiles)
    sizes = [(c.expected, c.got) for c in r.recompiles if c.source == "x" and c.detail == "shape[0]"]
    assert len(sizes) <= 1 and all(c.suggestion for c in r.recompiles)


def test_running_a_cell_again_tells_what_served_it(shell):
    run(shell, "import torch\nx = torch.ones(100)\ndef f(x):\n    return torch.sin(x) + 1")
    run(shell, "%%tcompile -o r1 time=50ms\ny = f(x)")
    run(shell, "%%tcompile -o r2 time=50ms\ny = f(x)")
    r1, r2 = shell.user_ns["r1"], shell.user_ns["r2"]
    assert r1.summary.status == "compiled" and r2.summary.status == "compiled"
    assert len(r2.graphs) == len(r1.graphs) and r2.entries


def test_lines_are_those_of_the_cell_where_its_code_begins_with_empty_ones(shell):
    run(
        shell,
        "%%tcompile time=off -o r\n\n  \nimport torch\ndef f(x):\n    return torch.sin(x) + 1\ny = f(torch.ones(5))",
    )
    r = shell.user_ns["r"]
    assert [line for _, line in r.kernels[0].lines] == [6] and "sin" in r.source.text.splitlines()[5]


def test_a_served_run_has_the_profile_of_the_call_that_was_compiled(shell):
    body = "y = f(x, w)"
    run(
        shell,
        "import torch\nx, w = torch.ones(100, 8), torch.ones(8, 4)\ndef f(x, w):\n    return torch.sin(x @ w) + 1",
    )
    run(shell, f"%%tcompile -o r1 time=100ms\n{body}")
    run(shell, f"%%tcompile -o r2 time=100ms\n{body}")
    first, again = shell.user_ns["r1"].profiles, shell.user_ns["r2"].profiles
    if not first:
        pytest.skip("the C extension is not built: no call is profiled")
    assert not first[0].earlier and [p.name for p in again] == [p.name for p in first] and again[0].earlier
    kernels = {row.kernel for row in again[0].rows() if row.kind == "kernel"}
    assert kernels and all(shell.user_ns["r2"].kernels[k].graph is not None for k in kernels)


def test_errors_of_the_model_show_the_cells_lines(shell, capsys):
    r = shell.run_cell(
        "%%tcompile time=off\nimport torch\ndef f(x):\n    return x @ torch.ones(7)\nf(torch.ones(3, 5))"
    )
    assert isinstance(r.error_in_exec, RuntimeError)
    assert "return x @ torch.ones(7)" in capsys.readouterr().out
    assert run(shell, "1 + 1").result == 2


def test_fullgraph_names_line_and_remedy(shell, capsys):
    from tcompile.compiler.errors import FullGraphError

    shell.run_cell("import torch\nx = torch.ones(3)\ndef f(x):\n    if x.sum() > 0:\n        return x\n    return -x")
    r = shell.run_cell("%%tcompile --fullgraph time=off\nf(x)")
    assert isinstance(r.error_in_exec, FullGraphError), r
    assert "torch.where" in str(r.error_in_exec)


def test_explain():
    import tcompile

    def f(x):
        return torch.relu(x * 2 + 1)

    r = tcompile.explain(f)(torch.ones(10))
    assert len(r.graphs) == 1 and not r.graph_breaks and r.title.endswith("f")
    torch.testing.assert_close(r.result, torch.full((10,), 3.0))
    assert "1 graph · 0 breaks" in str(r)
    again = tcompile.CompileReport.from_json(r.to_json())
    assert again.kernels[0].source == r.kernels[0].source


def test_what_a_stranger_meets_is_explained(shell):
    """Errors and cells that have little to do with compiling: one plain sentence, and what to write."""
    run(shell, "import torch")

    def report(text):
        shell.run_cell(text)
        return shell.user_ns["r"]

    if not torch.cuda.is_available():
        r = report("%%tcompile -o r time=off suppress_errors=True\nz = torch.randn(4, device='cuda') + 1")
        assert r.summary.status == "error" and "internal error" not in str(r) and "cell raised" in r.summary.line
        assert "uses a GPU" in r.findings[0].text and "is_available" in r.findings[0].action
    r = report("%%tcompile -o r time=off\n%%time\nz = torch.ones(3) + 1")
    assert (
        not r.graph_breaks
        and "`%%time` runs the rest of the cell by itself" in r.findings[0].text
        and "%%time" in r.summary.line
    )
    r = report("%%tcompile -o r time=off\nimport asyncio\nawait asyncio.sleep(0)\nz = torch.ones(3) + 1")
    assert "awaits" in r.summary.line and "no tensor code to speak of" not in str(r)
    r = report("%%tcompile -o r time=off\nx = 1")
    assert r.summary.line.endswith("nothing to compile: no tensor code to speak of") and not r.findings


def test_the_magic_costs_little_beside_the_cell(shell):
    """What `%%tcompile` adds to a cell whose functions are compiled already: report and display included, at most 50
    ms.
    """
    import time

    run(shell, "import torch\nx = torch.randn(64)\ndef f(x):\n    return torch.sin(x) * 2")
    plain, magic = "y = f(x)", "%%tcompile time=off\ny = f(x)"
    run(shell, magic)

    def best(cell):
        spent = []
        for _ in range(8):
            t0 = time.perf_counter()
            run(shell, cell)
            spent.append(time.perf_counter() - t0)
        return min(spent)

    assert best(magic) - best(plain) < 0.05


def test_what_a_function_prints_after_a_break_is_printed_once(shell, capsys):
    """The cell's top level leaves its graph inside `g`; what follows there is a frame of `g`, whose effects are the top
    level's as well.
    """
    run(shell, "import torch\nx = torch.ones(300)")
    run(
        shell,
        "%%tcompile -o r time=200ms\ndef g(x):\n    print('max', int(x.max()))\n    return x.relu()\ny = g(x).mean()",
    )
    assert capsys.readouterr().out.count("max 1\n") == 1
    top = next(c for c in shell.user_ns["r"].speedups.calls if c.name == "the cell's top level")
    assert not top.safe and "print" in top.why_not and top.measured == "graphs"
    run(shell, "%%tcompile -o r time=200ms\nz = g(x).sum()")  # entries of the run before serve what follows the break
    assert capsys.readouterr().out.count("max 1\n") == 1


@pytest.mark.parametrize(
    "cell, times",
    [
        ("def h(x):\n    y = x.sin()\n    if y.sum() > -1e9: print('seen')\n    return y\nh(x)", 1),
        (
            "def h(x):\n    for k in range(3):\n        x = x * k\n        if x.sum() > -1e9: print('seen')\n    return x\nh(x)",
            3,
        ),
        (
            "def h(x):\n    return x.sin()\nfor k in range(3):\n    y = h(x + k)\n    if y.sum() > -1e9:\n        print('seen')",
            3,
        ),
        ("def h(x):\n    y = x.sin()\n    if y.sum() > -1e9: told.append(1)\n    return y\nh(x)", 0),
    ],
)
def test_what_runs_as_plain_python_after_a_break_runs_once(shell, capsys, cell, times):
    """What follows a break and has no tensor work is no frame of the report, but timing would run it again."""
    run(shell, "import torch\nx = torch.ones(300)\ntold = []")
    for _ in range(2):
        run(shell, "%%tcompile -o r time=200ms\n" + cell)
        assert capsys.readouterr().out.count("seen") == times
        assert any("plain Python" in c.why_not for c in shell.user_ns["r"].speedups.calls)
    assert len(shell.user_ns["told"]) == (0 if times else 2)


def test_a_cell_with_a_loop_that_breaks_runs_again_with_its_names_put_back(shell):
    run(shell, "import torch\nx = torch.randn(300)")
    cell = "%%tcompile -o r time=200ms\nfor i in range(3):\n    y = x * i\n    if y.sum() > 1e9:\n        y = y + 1\n"
    run(shell, cell)
    top = next(c for c in shell.user_ns["r"].speedups.calls if c.name == "the cell's top level")
    assert top.safe and top.measured == "call", top.why_not
    assert shell.user_ns["i"] == 2 and torch.equal(shell.user_ns["y"], shell.user_ns["x"] * 2)


def test_a_loop_around_a_loop_that_breaks_is_not_run_again_for_its_time(shell):
    """What a turn of the inner loop does, the outer one does, too, though its own entry says nothing of it."""
    run(shell, "import torch, random\nx = torch.ones(8)\nseen = []\nrandom.seed(1)")
    turn = "        y = x.flip(-1) if random.random() < 0.5 else x\n        seen.append(float((y.sin() * 2).sum()))\n"
    loops = f"for epoch in range(2):\n    for i in range(4):\n{turn}"
    run(shell, f"%%tcompile -o r time=200ms\n{loops}")
    assert len(shell.user_ns["seen"]) == 8
    run(shell, "def train():\n" + "".join(f"    {line}\n" for line in loops.splitlines()))
    run(shell, "%%tcompile time=200ms\ntrain()")
    assert len(shell.user_ns["seen"]) == 16


def test_a_break_of_several_entries_is_one_in_a_later_run(shell):
    run(shell, "import torch, random\nx = torch.ones(8)")
    loop = "for i in range(8):\n    y = x.flip(-1) if random.random() < 0.5 else x\n    z = y.sin() * i"
    cell = f"%%tcompile -o r time=off\n{loop}"
    counts = []
    for _ in range(2):
        run(shell, cell)
        counts.append([(b.kind, b.line) for b in shell.user_ns["r"].graph_breaks])
    assert counts[1] and len(counts[1]) == len(set(counts[1])) and set(counts[1]) <= set(counts[0])


def test_a_hook_is_registered_once(shell):
    run(shell, "import torch\nx = torch.ones(300, requires_grad=True)\nseen = []")
    run(
        shell,
        "%%tcompile time=200ms\ndef f(x):\n    h = x * 2\n    h.register_hook(seen.append)\n    return h.sum()\nf(x).backward()",
    )
    assert len(shell.user_ns["seen"]) == 1


def test_a_class_and_a_module_made_in_the_cell_are_no_findings(shell):
    """Setup runs once: the model that it makes is compiled as a whole, and the reader has nothing to change."""
    run(shell, "import torch")
    run(
        shell,
        "%%tcompile -o r time=off\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Linear(8, 8)\n\n    def forward(self, x):\n        return self.a(x).relu()\n\nnet = Net()\ny = net(torch.ones(2, 8))",
    )
    r = shell.user_ns["r"]
    assert r.graph_breaks and all(b.harmless for b in r.graph_breaks) and r.summary.status == "compiled"
    assert "no change needed" in r.summary.line and [f.severity for f in r.findings] == ["info"]
    assert not [m for m in r.marks if m.kind == "break"] and {m.line for m in r.marks if m.kind == "eager"} <= {2, 5}


def test_seeds_and_settings_at_the_top_are_no_findings(shell):
    run(shell, "import torch, random\nimport numpy as np")
    before = torch.get_num_threads()
    run(
        shell,
        f"%%tcompile -o r time=off\nrandom.seed(0); np.random.seed(0)\ntorch.manual_seed(0)\ntorch.set_num_threads({before})\n"
        "def f(x):\n    y = x.sin()\n    if y.sum() > 0:\n        y = y + 1\n    return y.cos()\nz = f(torch.rand(8))",
    )
    r = shell.user_ns["r"]
    assert r.summary.status == "partly" and [b.line for b in r.graph_breaks if not b.harmless] == [7]
    assert (
        "1 break (line 7: y.sum() > 0)" in r.summary.line and f"+ {len(r.graph_breaks) - 1} harmless" in r.summary.line
    )
    assert {b.line for b in r.graph_breaks if b.harmless} == {2, 3, 4}
    torch.manual_seed(0)
    assert torch.allclose(shell.user_ns["z"], (torch.rand(8).sin() + 1).cos())


def test_a_module_made_at_each_call_is_a_finding(shell):
    run(shell, "import torch\nx = torch.ones(2, 8)")
    run(shell, "%%tcompile -o r time=off\ndef f(x):\n    return torch.nn.Linear(8, 8)(x * 2).relu()\ny = f(x)")
    r = shell.user_ns["r"]
    assert not r.graph_breaks[0].harmless and r.summary.status == "partly" and r.findings[0].severity == "warning"


def test_a_message_of_any_length_leaves_the_report_small(shell):
    run(shell, "import torch\nx = torch.ones(4)")
    r = shell.run_cell(
        "%%tcompile -o r\ndef f(x):\n    raise ValueError('C' * 200_000 + '<script>')\nf(x * 2)", store_history=True
    )
    assert isinstance(r.error_in_exec, ValueError)
    report = shell.user_ns["r"]
    assert len(report.to_json()) < 30_000 and len(report._repr_mimebundle_()["text/html"]) < 60_000
    assert "characters)" in report.graph_breaks[0].reason


def test_a_kernel_s_text_names_the_cell_as_people_do(shell):
    run(shell, "import torch\nx = torch.randn(64)")
    run(shell, "%%tcompile -o r time=off\ny = torch.relu(x * 2 + 1)")
    r = shell.user_ns["r"]
    cell = f"In[{r.source.cell}]"
    assert f"// from {cell}:" in r.kernels[0].source and r.source.file == cell


@pytest.mark.slow
def test_backend_inductor_shows_what_stock_makes_of_the_cell(shell, capsys):
    run(shell, "import torch\ndef f(x):\n    y = x.sin()\n    if y.sum() > 0:\n        y = y + 1\n    return y * 2")
    run(shell, "%%tcompile -o r time=off backend=inductor\nfor n in (4, 8):\n    z = f(torch.ones(n))\nkept = z")
    r = shell.user_ns["r"]
    s = r.stock
    assert s.options["engine"] == "torch.compile" and s.source == r.source and "stock" not in r.to_dict()
    assert [f.name for f in s.frames] == ["f", "f after line 4"] and [
        (c.source, c.expected, c.got) for c in s.recompiles
    ][0] == ("x", "4", "8")
    assert (
        [(b.file, b.line) for b in s.graph_breaks] == [("In[1]", 4)]
        and s.guards
        and all(n.op for g in s.graphs for n in g.captured.nodes())
    )
    assert shell.user_ns["kept"] is shell.user_ns["z"], "names are as the cell left them"
    assert "under torch.compile: 4 graphs · 1 break (line 4" in capsys.readouterr().out
    run(shell, "%%tcompile -o r time=off\nz = f(torch.ones(5))")
    assert shell.user_ns["r"].stock is None


def test_names_set_after_a_break_are_put_back_by_timing(shell):
    run(shell, "import torch\ndef f(x):\n    if x.sum() > 0:\n        return x + 1\n    return x")
    run(shell, "%%tcompile -o r time=100ms\nz = f(torch.ones(4))\nkept = z")
    assert shell.user_ns["r"].speedups.calls[0].measured == "call"
    assert shell.user_ns["kept"] is shell.user_ns["z"]


RAISES = "try:\n    if x.min() < 0:\n        raise ValueError('neg')\n    y = x.sqrt()\nexcept ValueError:\n    y = x.abs().sqrt()\ny"


@pytest.mark.parametrize("line", ["-o r time=100ms", "-o r time=off", "-o r time=100ms --check"])
def test_a_graph_that_raises_and_is_handled(shell, capsys, line):
    run(shell, "import torch\nx = torch.tensor([-1., 4.])")
    assert run(shell, f"%%tcompile {line}\n{RAISES}").result.tolist() == [1, 2]
    r, shown = shell.user_ns["r"], capsys.readouterr()
    assert r.summary.status == "partly" and "a graph raised" in r.summary.line and r.frames[0].status == "partly"
    assert "Traceback" not in shown.out + shown.err and shown.out.count(r.summary.line) == 1
    run(shell, f"%%tcompile {line}\n{RAISES}")  # by the entry of before
    assert shell.user_ns["r"].summary.status == "partly"
    run(shell, "x.abs_()")
    run(shell, f"%%tcompile {line}\n{RAISES}")
    assert shell.user_ns["r"].summary.status == "compiled" and shell.user_ns["r"].frames[0].status == "compiled"


def test_an_error_that_cannot_say_itself_is_raised_as_it_is(shell):
    """The report asked it for its words, and what that raised took its place."""
    bad = "class Bad(Exception):\n    def __str__(self): raise RuntimeError"
    cell = f"import torch\n{bad}\ny = torch.ones(2) + 1\nraise Bad"
    result = shell.run_cell(f"%%tcompile\n{cell}")
    assert type(result.error_in_exec).__name__ == "Bad" and shell.user_ns["y"].tolist() == [2, 2]


def test_groups_of_exceptions_show_the_cells_lines(shell, capsys):
    """IPython asks no exception how it is shown where one is a group."""
    cell = (
        "import torch\ndef f(x): raise KeyError('k')\nx, found = torch.ones(2), []\ntry: f(x + 1)\n"
        "except KeyError as e: found.append(e)\nraise ExceptionGroup('several', found)"
    )
    shell.run_cell(f"%%tcompile\n{cell}")
    shown = "".join(capsys.readouterr())
    assert "several (1 sub-exception)" in shown and "KeyError: 'k'" in shown
    assert "compiler/frontend" not in shown and "<tcompile entry" not in shown and "cell.py" not in shown


def test_a_cell_that_raises_shows_its_own_lines_however_often_it_runs(shell, capsys):
    """Plain IPython numbers its cells: the second run is by the code, and the name, of the first."""
    run(shell, "import torch\nx = torch.tensor([-1., 4.])")
    shown = []
    for _ in range(3):
        cell = "%%tcompile -o r time=off\ny = x * 2\nif y.min() < 0:\n    raise ValueError('neg')"
        r = shell.run_cell(cell, store_history=True)
        assert isinstance(r.error_in_exec, ValueError)
        said, _, traceback = capsys.readouterr().out.partition("Traceback")
        assert shell.user_ns["r"].summary.status == "partly" and "the cell raised ValueError" in said
        shown.append(traceback)
    assert shown[0] == shown[1] == shown[2] and "tcompile" not in shown[0] and "line 4" in shown[0]


def test_what_a_handler_prints_is_printed_once(shell, capsys):
    """Timing ran such a cell again, handlers and all."""
    run(
        shell,
        "import torch\ndef f(x):\n    if (x < 0).any():\n        raise ValueError('neg')\n    return x.sqrt()",
    )
    run(
        shell,
        "%%tcompile -o r time=100ms\ntry:\n    y = f(torch.tensor([-1.]))\nexcept ValueError:\n    print('caught')",
    )
    assert capsys.readouterr().out.count("caught") == 1


@pytest.mark.parametrize(
    "broken",
    [
        "kernel_magics.timing.measure",
        "kernel_magics.kernels.time_kernels",
        "compiler.report.numerics.check_calls",
        "kernel_magics.render.bundle",
    ],
)
def test_whatever_fails_in_timing_ends_as_text(shell, capsys, monkeypatch, broken):
    run(shell, "import torch\nx = torch.ones(3)")

    def fails(*args, **kwargs):
        raise RuntimeError("of the\ntest's own")

    monkeypatch.setattr(f"tcompile.{broken}", fails)
    assert run(shell, "%%tcompile -o r time=100ms --check\nx.sin() + 1").result is not None
    r, shown = shell.user_ns["r"], capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err and "RuntimeError: of the" in shown.out + shown.err
    assert r.summary.status == "compiled"
    if "measure" in broken:
        assert r.speedups.status == "unavailable" and "timing failed: RuntimeError" in r.speedups.reason
    elif "bundle" not in broken:
        assert r.speedups and any("failed: RuntimeError" in f.text for f in r.findings)


def test_a_cell_has_a_profile_of_its_call(shell):
    from tcompile.compiler import config

    run(shell, "import torch\nx = torch.randn(64, 64)\ndef f(x):\n    return torch.softmax(x @ x, -1)")
    with config.patch(cpu_products="library"):  # on some processors it is a generated kernel
        run(shell, "%%tcompile -o r time=200ms\nf(x)")
    r = shell.user_ns["r"]
    (p,) = r.profiles
    rows = p.rows()
    assert p.how == "call" and rows[0].kind == "call" and p.plain_seconds > 0
    assert {"guards", "entry", "graph", "kernel", "library"} <= {x.kind for x in rows}
    product = next(x for x in rows if x.name == "mm")
    kernel = next(x for x in rows if x.kind == "kernel")
    assert product.line == 4 and product.node == "mm" and r.kernels[kernel.kernel].name == kernel.name
    assert sum(x.seconds for x in rows if x.parent == 0) <= p.seconds * 1.01


def test_a_training_step_is_profiled_by_its_graph_and_leaves_no_trace(shell):
    run(
        shell,
        "import torch\nm = torch.nn.Linear(8, 8)\nopt = torch.optim.Adam(m.parameters())\nx = torch.randn(4, 8)\n"
        "def step(x):\n    opt.zero_grad()\n    m(x).square().mean().backward()\n    opt.step()",
    )
    run(shell, "%%tcompile -o r time=100ms\nstep(x)\nstep(x)\nafter = m.weight.detach().clone()")
    m, r = shell.user_ns["m"], shell.user_ns["r"]
    assert torch.equal(m.weight, shell.user_ns["after"])
    assert {"forward", "backward", "optimizer"} <= {x.part for p in r.profiles for x in p.rows()}


def test_a_training_step_with_a_break_is_profiled_forth_and_back_with_its_update(shell):
    run(
        shell,
        "import torch\nm = torch.nn.Linear(8, 8)\nopt = torch.optim.Adam(m.parameters())\nx = torch.randn(4, 8)\n"
        "def step(x):\n    opt.zero_grad()\n    loss = m(x).square().mean()\n    if loss.item() > 1e9:\n"
        "        print('diverged')\n    loss.backward()\n    opt.step()",
    )
    run(shell, "%%tcompile -o r time=100ms\nfor i in range(4):\n    step(x)\nafter = m.weight.detach().clone()")
    m, r = shell.user_ns["m"], shell.user_ns["r"]
    assert torch.equal(m.weight, shell.user_ns["after"])
    profile = next(p for p in r.profiles if "loop" in p.name)
    rows = profile.rows()
    backward = {b for p in r.partitions for b in p.backward}
    assert profile.backward and {"forward", "backward"} <= {x.part for x in rows}
    assert {x.graph for x in rows if x.kind == "graph"} & backward
    assert len({x.graph for x in rows if x.kind == "graph"}) == 3, "forward, backward and the update, each once"
    assert all(r.kernels[k].seconds for b in {x.graph for x in rows} & backward for k in r.graphs[b].kernels)


def test_the_values_of_a_graphs_nodes_can_be_asked(shell):
    from tcompile.kernel_magics.controls import CONTROLS
    from tcompile.kernel_magics.questions import AskError

    run(shell, "import torch\nx = torch.tensor([4.0, -1.0])\ndef f(x):\n    return torch.sqrt(x) + 1")
    run(shell, "%%tcompile -o r time=50ms\nf(x)")
    r = shell.user_ns["r"]
    answer = CONTROLS["values"](r, {"graph": 0, "say": lambda text: None})
    assert [(v["node"], v["mark"], v["max"]) for v in answer["values"]] == [("sqrt", "nan", 2.0), ("add", "nan", 3.0)]
    with pytest.raises(AskError, match="does not keep this graph.s inputs"):
        CONTROLS["values"](r, {"graph": 7, "say": lambda text: None})
    checked = CONTROLS["memory"](r, {"graph": 0})
    assert {a["how"] for a in checked["accesses"]} == {"proved"} and {a["way"] for a in checked["accesses"]} == {
        "reads",
        "writes",
    }
    with pytest.raises(AskError, match="plan is not in the kernel"):
        CONTROLS["memory"](r, {"graph": 7})


PRODUCTS = """{}
def f(x):
    return torch.relu(x @ w) @ w
y = f(x)
"""


def test_autocast_as_an_option_is_what_it_is_as_a_with_block(shell):
    run(shell, "import torch\ntorch.manual_seed(0)\nx, w = torch.randn(8, 16), torch.randn(16, 16)")
    run(shell, PRODUCTS.format("%%tcompile -o r time=off autocast=bfloat16"))
    y, r, f, x = (shell.user_ns[name] for name in ("y", "r", "f", "x"))
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(y, f(x), atol=2e-2, rtol=2e-2)
    assert y.dtype == torch.bfloat16 and r.options["autocast"] == "bfloat16" and r.summary.status == "compiled"
    run(shell, PRODUCTS.format("%%tcompile -o r time=off"))
    assert shell.user_ns["y"].dtype == torch.float32 and not shell.user_ns["r"].recompiles, "entries of its own"
    assert not torch.is_autocast_enabled("cpu")


def test_what_bfloat16_wins_is_measured_with_its_error_and_the_cell_then_tells_of_it(shell):
    run(shell, "import torch\ntorch.manual_seed(0)\nx, w = torch.randn(8, 16), torch.randn(16, 16)")
    run(shell, PRODUCTS.format("%%tcompile -o r time=50ms"))
    r = shell.user_ns["r"]
    (row,) = r.live.under({"autocast": "bfloat16"}, 0.1)["calls"]
    assert {e["engine"] for e in row["engines"]} == {"eager", "as it was", "tried"} and "tried" in row["ratios"]
    assert 1e-4 < row["error"] < 5e-2 and r.tried["autocast=bfloat16"]["error"] == row["error"]
    run(shell, PRODUCTS.format("%%tcompile -o r time=50ms autocast=bfloat16"))
    assert shell.user_ns["r"].graphs and not shell.user_ns["r"].recompiles, "what was tried does not serve it"


def test_where_compiling_is_short_a_bound_is_measured_unasked(shell, monkeypatch):
    from tcompile.kernel_magics import kernels

    limits = {"copy_bytes_per_second": 1e10, "matmul_flops_per_second": 1e10, "bfloat16_flops_per_second": 1e14}
    monkeypatch.setattr(kernels, "machine_limits", lambda device, busy: limits)
    run(shell, "import torch\ntorch.manual_seed(0)\nx, w = torch.randn(600, 600), torch.randn(600, 600)")
    cell = "%%tcompile -o r time=20s\ndef f(x):\n    for i in range(30):\n        x = torch.tanh(x @ w)\n    return x\ny = f(x)"
    monkeypatch.setattr("tcompile.kernel_magics.timing._MAX_ROUNDS", 6)
    run(shell, cell)
    r = shell.user_ns["r"]
    assert r.tried["autocast=bfloat16"]["ratio"] and r.tried["autocast=bfloat16"]["error"] > 0
    assert not any(a.how == "at most" and "autocast" in a.settings for a in r.answers)


def test_a_call_with_effects_is_tried_by_its_graphs_and_leaves_no_trace(shell):
    run(shell, "import torch\ntorch.manual_seed(0)\nx, w, seen = torch.randn(8, 16), torch.randn(16, 16), []")
    cell = "%%tcompile -o r time=50ms\ndef f(x):\n    seen.append(1)\n    return torch.relu(x @ w)\ny = f(x)"
    run(shell, cell)
    r, seen = shell.user_ns["r"], list(shell.user_ns["seen"])
    assert not r.live.calls and r.live.timed
    (row,) = r.live.under({"autocast": "bfloat16"}, 0.1)["calls"]
    assert row["measured"] == "graphs" and row["error"] > 0 and shell.user_ns["seen"] == seen
    assert r.tried["autocast=bfloat16"]["of"].startswith("the graphs of")


def test_a_break_has_its_cost_a_call(shell):
    run(shell, "import torch\nx = torch.ones(8)")
    cell = "def g(x):\n    h = x * 2\n    if h.sum() > 0:\n        h = h + 1\n    return h * h\ny = g(x)"
    run(shell, "%%tcompile -o r time=50ms\n" + cell)
    r = shell.user_ns["r"]
    b = max(r.graph_breaks, key=lambda b: b.share or 0.0)
    assert b.kind == "data_dependent_branch" and 0 < b.seconds < 0.1 and 0 < b.share <= 1
    assert any("a call, " in a.text and a.ref.startswith("breaks/") for a in r.answers)


def test_an_import_at_the_top_of_a_cell_is_no_finding(shell):
    run(shell, "import torch, sys\nsys.modules.pop('colorsys', None)\nx = torch.ones(8)")
    run(shell, "%%tcompile -o r time=off\nimport colorsys\ny = (x * 2).sum()")
    r = shell.user_ns["r"]
    assert [b.kind for b in r.graph_breaks] == ["import"] and r.graph_breaks[0].harmless
    assert r.summary.status == "compiled"


def test_a_cell_run_again_as_it_was_has_its_lines_in_its_own_name(shell):
    run(shell, "import torch\nx = torch.ones(8)")
    cell = "%%tcompile -o r time=off\ndef g(x):\n    h = x * 2\n    if h.sum() > 0:\n        h = h + 1\n    return h * h\ny = g(x)"
    run(shell, cell)
    first = shell.user_ns["r"]
    run(shell, cell)
    r = shell.user_ns["r"]
    assert r.source.file != first.source.file and r.graphs and r.graph_breaks
    assert {m.file for m in r.marks} == {b.file for b in r.graph_breaks} == {r.source.file}
    assert {file for g in r.graphs for file, _ in g.lowered.lines()} == {r.source.file}
    assert first.source.file in {b.file for b in first.graph_breaks}, "the report of the run before is as it was"
    (told,) = [c for c in r.previous.changes if c.what == "compile time"]
    assert "earlier entries served" in told.after and not any(c.what == "graphs" for c in r.previous.changes)


def test_a_cell_that_defines_its_classes_again_still_tells_what_served_it(shell):
    classes = """import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
    def forward(self, x):
        return torch.relu(self.inner(x)).sum()
net = Net()"""
    cell = "%%tcompile -o {} time=off\nfor i in range(3):\n    y = net(torch.ones(2, 4))"
    for name in ("r1", "r2", "r3"):
        run(shell, classes)
        run(shell, cell.format(name))
    first, again, third = (shell.user_ns[name] for name in ("r1", "r2", "r3"))
    for r in (again, third):
        assert [g.name for g in r.graphs] == [g.name for g in first.graphs], "the same graphs, compiled before"
        assert not any("graph" in c.what or "kernel" in c.what for c in r.previous.changes), r.previous.changes
        assert len({(f.name, f.file, f.line) for f in r.frames}) == len(r.frames)


def test_what_a_loop_does_in_its_first_turn_is_no_advice(shell):
    """The first turn has no gradients, and sets the locals. That an item begins at 0 is no recompilation at all."""
    run(shell, "import torch\nX = torch.randn(64, 8)\nw = torch.randn(8, 8, requires_grad=True)")
    body = "for epoch in range(2):\n    for i in range(0, 64, 16):\n        y = torch.relu(X[i:i+16] @ w).sum()\n"
    body += "        y.backward()\n    print(epoch, y.item())"
    inside = "".join(f"    {line}\n" for line in body.split("\n"))
    run(shell, f"%%tcompile -o a time=off\n{body}")
    run(shell, f"%%tcompile -o b time=off\ndef train():\n{inside}train()")
    a, b = shell.user_ns["a"], shell.user_ns["b"]
    assert {c.source for c in a.recompiles} == {"w.grad"} and {c.source for c in b.recompiles} >= {"y"}
    assert not {"i", "epoch"} & {c.source for c in (*a.recompiles, *b.recompiles)}  # (they vary from the start)
    for c in (*a.recompiles, *b.recompiles):
        assert c.suggestion.startswith("no change is needed"), c
        assert "__value" not in c.source and "_Unbound" not in c.expected + c.got
    words = next(f.text for f in b.findings if "because y changed" in f.text)
    assert words.startswith("the loop at line 3 in train was compiled again") and "`y` was not set" in words
    assert not any(f.action for f in (*a.findings, *b.findings))


def test_classes_and_prints_of_a_cell_are_no_warnings(shell):
    run(shell, "import torch\nx = torch.ones(8)")
    run(shell, "%%tcompile -o a time=off\nclass Scale:\n    k = 3.0\ny = x * Scale().k")
    run(shell, "%%tcompile -o b time=off\ny = x * 3\nprint(y.sum())")
    for name, reason in (("a", "The class Scale is defined."), ("b", "A tensor is printed.")):
        r = shell.user_ns[name]
        assert [(b.reason, b.harmless) for b in r.graph_breaks] == [(reason, True)] and r.summary.status == "compiled"
    run(shell, "%%tcompile -o r time=off\nfor i in range(3):\n    z = x.sin() * i\n    print(z.sum())")
    r = shell.user_ns["r"]
    assert [b.harmless for b in r.graph_breaks] == [False], "in a loop printing parts it each time"
    assert any("a change wins the guards of what follows" in f.text and f.action for f in r.findings)


def test_lines_that_call_a_library_are_charged_with_it(shell, tmp_path, monkeypatch):
    (tmp_path / "some_library.py").write_text("def call(f, x):\n    return f(x)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run(shell, "import torch, some_library\nlayer = torch.nn.Linear(64, 64)\nx = torch.ones(64, 64)")
    run(shell, "%%tcompile -o r time=200ms\nn = 1\ny = some_library.call(layer, x)\nn += 1")
    r = shell.user_ns["r"]
    assert r.profiles and {row.called for row in r.profiles[0].rows() if row.kind in ("kernel", "library")} == {3}


def test_a_cell_without_tensors_is_told_nothing_to_change(shell):
    run(shell, "import re, time, torch")
    run(
        shell,
        "%%tcompile -o r time=off\nend = time.time() + 0.5\nwhile time.time() < end:\n    d = re.findall('a', 'ba' * 999)",
    )
    r = shell.user_ns["r"]
    assert r.summary.status == "nothing" and "no tensor" in r.summary.note
    assert not any(f.action or f.severity == "warning" for f in r.findings)


def test_no_remedy_that_changes_nothing(shell):
    """Each of these was told a change that gains nothing, or can't be made."""
    run(shell, "import torch, torch.nn as nn\nx = torch.ones(8)\ndata = [x, x + 1, x + 2]")

    def report(cell):
        run(shell, "%%tcompile -o r time=off\n" + cell)
        return shell.user_ns["r"]

    r = report("net = nn.Linear(8, 8).to(torch.float64)\ny = net(x.double())")  # Module.to replaces .data
    assert {b.kind for b in r.graph_breaks} >= {"tensor_data"} and all(b.harmless for b in r.graph_breaks)
    r = report("def f(h):\n    if h.abs().max() > 1e4:\n        print('large')\n    return h * 2\nz = f(x)")
    (told,) = r.findings
    assert "`h.abs().max()`" in told.action and "torch.where" not in told.action and "torch.cond" not in told.action
    r = report(
        "right = 0\nfor t in iter(data):\n    right += (t > 0).sum()\n    if t.sum() > 100:\n        print('large')"
    )
    (again,) = [c for c in r.recompiles if c.source == "right"]
    assert again.got == "a Tensor" and "torch.tensor(0)" in again.suggestion
    assert not any("iterator" in b.kind and not b.harmless for b in r.graph_breaks)
    r = report("import sys\ny = x * 2 + 1\nn = sys.getrefcount(y)")
    assert "no tensor code to speak of" not in str(r) and r.summary.status != "nothing"


def test_names_of_a_loop_over_pairs_are_the_programs():
    from tcompile.compiler.report.facts.own_words import part_of_no_name, users_words

    line = "for user, rows in df.groupby('user'):"
    assert users_words("`__value[0]` is any whole number", line) == "`user` is any whole number"
    assert users_words("`__value[1].shape` and `__value`", line) == "`rows.shape` and `user, rows`"
    assert users_words("`__value[1]`", "for pair in pairs:") == "`pair[1]`"
    nested = "for step, (ids, [mask, *rest]) in enumerate(data):"
    told = users_words("`__value[1][0].shape`, `__value_[1][1][0]`, `__value[1][1][1]`, `__value[0]`", nested)
    assert told == "`ids.shape`, `mask`, `(mask, *rest)[1]`, `step`"
    assert users_words("`__value[1]`", "while True:") == "`item[1]`"
    assert part_of_no_name("__stack_2.shape[0]") == "shape[0] of __stack_2"


def test_the_second_run_of_a_training_loop_that_breaks_has_its_backward_pass(shell):
    run(shell, "import torch, torch.nn as nn\nnet = nn.Linear(8, 8)\ndata = [torch.ones(4, 8)] * 8")
    run(shell, "opt = torch.optim.AdamW(net.parameters())")
    cell = (
        "%%tcompile -o r time=100ms\nfor x in data:\n    opt.zero_grad()\n    h = net(x)\n    if h.abs().max() > 1e9:\n"
        "        print('large')\n    h.square().sum().backward()\n    opt.step()"
    )
    for _ in range(2):
        run(shell, cell)
        r = shell.user_ns["r"]
        assert any(p.backward for p in r.partitions) and "backward has not been" not in str(r)
        assert not any("failed" in f.text for f in r.findings)
        passes = [r.graphs[b] for p in r.partitions for b in p.backward]  # of the net, and of the loss: one a turn
        assert passes and all((g.runs, g.called_at) == (8, [r.source.file, 7]) for g in passes)
        times = {c.name: c for c in r.speedups.calls if c.measured == "graphs"}
        assert any(c.backward and "forward and backward" in c.what(r) for c in times.values())
        assert {p.name for p in r.profiles if p.backward} <= times.keys(), "the same name, the same work"
    assert not r.summary.compile_seconds


def test_a_step_that_was_compiled_in_three_graphs_is_timed_and_profiled(shell):
    """The optimizer's graph writes to what backward of the model's graph needs: the program had run that before."""
    run(shell, "import torch, torch.nn as nn\nnet = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))")
    run(shell, "opt = torch.optim.AdamW(net.parameters())\nx = torch.ones(4, 8)")
    run(
        shell,
        "%%tcompile -o r time=100ms\ndef step(x):\n    loss = net(x).square().sum()\n    if loss.item() > 1e9:\n"
        "        print('large')\n    loss = loss + 1\n    loss.backward()\n    opt.step(); opt.zero_grad()\n"
        "    return loss.detach()\nlosses = [step(x) for _ in range(3)]",
    )
    r = shell.user_ns["r"]
    (step,) = [c for c in r.speedups.calls if c.name == "step"]
    assert step.backward and all(e.median is not None for e in step.engines)
    assert any(p.name == "step" and p.backward for p in r.profiles)
    assert "raised" not in str(r) and not any(p.grad is not None for p in shell.user_ns["net"].parameters())


def test_calls_are_counted_in_each_run_and_lines_keep_both_marks(shell):
    run(shell, "import torch\nbatches = [torch.ones(8, n) for n in (4, 4, 6)]")
    text = (
        "%%tcompile -o r time=off\ndef f(x, k):\n    y = torch.sin(x) * k\n    if y.sum() > 1000:\n        y = -y\n"
        "    return y.sum()\nsums = [f(x, 2.0) for x in batches]"
    )
    run(shell, text)
    first = shell.user_ns["r"]
    assert {(c.frame_name, c.at_call) for c in first.recompiles} == {("f", 3)}
    kinds = {}
    for m in first.marks:
        kinds.setdefault(m.line, []).append(m.kind)
    assert kinds[3] == ["captured", "guard"], "compiled, and a guard relies on what `k` is"
    fixed = {
        (g.source, g.fixed) for g in first.guards if g.fixed and first.frames[first.entries[g.entry].frame].name == "f"
    }
    assert {("x", "shape or dtype"), ("x", "first size or dtype"), ("k", "value")} <= fixed
    run(shell, "batches = [*batches[:2], torch.ones(6, 6), torch.ones(6, 7)]")
    run(shell, text)
    second = shell.user_ns["r"]
    told = [(c.source, c.detail, c.at_call) for c in second.recompiles if c.source == "x"]
    assert told == [("x", "shape[0]", 3)], "of the entry that takes any second size, at the third call of this run"
    assert any(c.source == "len(batches)" for c in second.recompiles)


def test_a_cell_that_runs_again_keeps_its_comparison_and_has_one_number(shell):
    run(shell, "import torch\nx = torch.randn(64)\nscales = [1.0, 2.0]")
    text = (
        "%%tcompile --check -o r\ndef f(x, k):\n    y = torch.sin(x)\n    if y.sum() > 1000:\n        y = -y"
        "\n    return y * k"
        "\nfor k in scales:\n    y = f(x, k)"
    )
    run(shell, text)
    assert shell.user_ns["r"].numerics
    run(shell, "scales = [1.0, 2.0, 3.0]")  # the cell's top level is compiled again, and the loop's entry serves
    run(shell, text)
    r = shell.user_ns["r"]
    assert r.numerics and all(n.graph is not None and n.graph < len(r.graphs) for n in r.numerics)
    assert any(c.measured and c.earlier for c in r.speedups.calls), "what was timed before is not lost"
    (again,) = [c for c in r.previous.changes if c.what == "compile time"]
    assert "entries compiled" in again.why or "entry compiled" in again.why
    assert "`len(scales)` changed (2 → 3)" in [c.why for c in r.previous.changes if c.what == "recompiles"]
    files = {f.file for f in r.frames} | {c.file for c in r.recompiles} | {b.file for b in r.graph_breaks}
    assert files == {r.source.file} and len(r.entries) > 1
    assert any(f.status == "partly" for f in r.frames)
