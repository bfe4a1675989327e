"""The comm between frontend and kernel: state, switches, and the controls of a report, in a real shell."""

from __future__ import annotations

from typing import Any

import pytest

CELL = """%%tcompile time=50ms
def scale(x, k):
    return torch.relu(x * 2 + k).sum(-1)
def run(x, k):
    return [scale(x, k)]
exec("out = run(x, k)")
"""
TOP = """%%tcompile time=50ms
y = torch.relu(x * 2 + k).sum(-1)
"""


class Comm:
    comm_id = "one"

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.handler: Any = None

    def send(self, data: dict[str, Any]) -> None:
        self.sent.append(data)

    def on_msg(self, f: Any) -> None:
        self.handler = f

    def on_close(self, f: Any) -> None:
        self.closed = f

    def close(self) -> None:
        return None

    def ask(self, what: str, **facts: Any) -> dict[str, Any]:
        number = len(self.sent)
        self.handler({"content": {"data": {"id": number, "ask": what, **facts}}})
        return next(m for m in self.sent[number:] if m.get("id") == number and "progress" not in m)


@pytest.fixture
def real():
    """A shell with the real compiler behind the magics."""
    from IPython.core.interactiveshell import InteractiveShell
    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(colors="nocolor")
    shell.history_manager.enabled = False
    session = magics.load(shell).session
    shell.run_cell("import torch\nx = torch.randn(8, 16)\nk = torch.ones(16)")
    comm = Comm()
    session.live._opened(comm, {})
    yield shell, session, comm
    magics.unload(shell)
    session.engine.reset()
    InteractiveShell.clear_instance()


def test_state_comes_unasked_after_every_cell(real) -> None:
    shell, session, comm = real
    assert comm.sent[0]["event"] == "state" and comm.sent[0]["state"]["on"] is None
    assert shell.run_cell(CELL).success
    state = comm.sent[-1]["state"]
    row = next(f for f in state["functions"] if f["name"] == "run")
    assert row["entries"] == 1 and row["status"] == "compiled" and row["report"] == session.last.id
    assert row["calls"] == 1, "timing's own calls are not the user's"
    assert row["ratio"] > 0 and row["line"] == 4 and state["cache"]["bytes"] > 0


def test_runs_of_a_cells_own_lines_count_as_calls(real) -> None:
    shell, session, comm = real
    for run in (1, 2):
        assert shell.run_cell("%%tcompile time=50ms switch_off_slower=False\nout = torch.randn(64).exp().sum()").success
        (row,) = (f for f in comm.sent[-1]["state"]["functions"] if f["name"] == "the cell's top level")
        assert row["calls"] == run and row["entries"] == 1


def test_switches(real) -> None:
    shell, session, comm = real
    assert comm.ask("on", line="mode=max-autotune")["ok"]["on"]["mode"] == "max-autotune"
    assert session.always is not None
    assert "mode" in comm.ask("on", line="mod=x")["error"]
    assert comm.ask("off")["ok"]["on"] is None
    assert "unknown question" in comm.ask("nonsense")["error"]
    assert {o["name"] for o in comm.ask("catalogue")["ok"]} >= {"mode", "compare", "recompile_limit"}


def test_controls_of_a_report(real) -> None:
    shell, session, comm = real
    assert shell.run_cell(CELL).success
    report = session.last.id
    known = comm.ask("controls", report=report)["ok"]
    assert known["arguments"][0]["name"] == "x" and known["arguments"][0]["shape"] == (8, 16)

    again = comm.ask("retime", report=report, seconds=0.05)["ok"]["report"]
    assert again["schema"] == "tcompile.report" and session.last.speedups.calls

    tried = comm.ask("try", report=report, settings={"disable_fusion": True}, seconds=0.05)["ok"]
    call = next(c for c in tried["calls"] if c["name"] == "run")
    assert {e["engine"] for e in call["engines"]} == {"eager", "as it was", "tried"} and call["ratios"]["tried"][0] > 0
    assert "unknown option" in comm.ask("try", report=report, settings={"disable_fusio": True})["error"]
    apart = comm.ask("try", report=report, settings={"force_split": "relu:sum_1"}, seconds=0.05)["ok"]
    assert apart["kernels"] and not any({"relu", "sum_1"} <= set(origins) for _, origins in apart["kernels"])
    again = comm.ask("try", report=report, settings={"force_split": "relu:sum_1"}, seconds=0.05)["ok"]
    assert again["kernels"] == apart["kernels"], "tried before: what was compiled then is told again"
    assert (
        "pairs of operators" in comm.ask("try", report=report, settings={"force_split": "relu"}, seconds=0.05)["error"]
    )

    points = comm.ask("sweep", report=report, call="run", argument=0, dim=0, sizes=[4, 8, 9, 1])["ok"]["points"]
    assert [p["size"] for p in points] == [4, 8, 9, 1] and not any(p["error"] for p in points)
    assert points[0]["compiled"] and points[1]["compiled"], "static first, then the size becomes a symbol"
    assert not points[2]["compiled"] and points[2]["entry"] == points[1]["entry"]
    assert "expected" in points[1]["reason"] and all(p["seconds"] > 0 and p["eager_seconds"] > 0 for p in points)
    assert "with a dimension 5" in comm.ask("sweep", report=report, call="run", argument=0, dim=5, sizes=[4])["error"]
    assert "not in the kernel" in comm.ask("retime", report="gone")["error"]

    values = comm.ask("values", report=report, graph=0)["ok"]["values"]
    assert values and all(not v["nan"] for v in values)
    accesses = comm.ask("memory", report=report, graph=0)["ok"]["accesses"]
    assert accesses and {a["how"] for a in accesses} == {"proved"}
    texts = comm.ask("text", report=report, kernel=0)["ok"]
    assert texts["source"] == session.last.kernels[0].source and texts["ir"]
    assert "kernels" in comm.ask("text", report=report, kernel=99)["error"]


def test_a_cells_top_level_runs_again_and_its_names_are_put_back(real) -> None:
    shell, session, comm = real
    assert shell.run_cell(TOP).success
    y = shell.user_ns["y"]
    call = session.last.speedups.calls[0]
    assert call.measured == "call" and call.safe
    assert session.last.kernels[0].seconds is not None, "each kernel was timed on its own"
    ours = next(e.median for e in call.engines if e.engine == "tcompile")
    assert session.last.kernels[0].seconds < 3 * ours
    assert shell.user_ns["y"] is y
    report = session.last.id
    known = comm.ask("controls", report=report)["ok"]
    assert {a["name"] for a in known["arguments"]} == {"x", "k"}
    points = comm.ask("sweep", report=report, call=known["calls"][0], argument="x", dim=0, sizes=[3, 5, 6])["ok"][
        "points"
    ]
    assert [p["compiled"] for p in points] == [True, True, False] and not any(p["error"] for p in points)
    assert shell.user_ns["x"].shape == (8, 16) and shell.user_ns["y"] is y


def test_a_cell_that_reads_what_it_sets_begins_each_run_alike(real) -> None:
    shell, session, comm = real
    assert shell.run_cell("%%tcompile time=50ms\nx = torch.cat([x, x * 2])").success
    assert shell.user_ns["x"].shape == (16, 16)
    assert session.last.speedups.calls[0].measured == "call", "what it sets is put back before each run"


def test_would_it_recompile(real) -> None:
    shell, session, comm = real
    assert shell.run_cell(TOP).success
    report = session.last.id
    known = comm.ask("forecast", report=report)["ok"]
    rows = {r["name"]: r for r in known["functions"][0]["rows"]}
    assert rows["x"]["shape"] == ["8", "16"] and rows["x"]["dtype"] == "float32"
    same = comm.ask("forecast", report=report, given={"x": {"shape": [8, 16], "dtype": "float32"}})["ok"]
    assert not same["recompiles"] and same["entry"] == 0
    other = comm.ask("forecast", report=report, given={"x": {"shape": [9, 16], "dtype": "float32"}})["ok"]
    assert other["recompiles"] and "8" in other["failures"][0]["expected"] and "9" in other["failures"][0]["got"]
    assert "dtype is one of" in comm.ask("forecast", report=report, given={"x": {"dtype": "float31"}})["error"]
    assert "written as in Python" in comm.ask("forecast", report=report, given={"n": "torch.ones(3"})["error"]


def test_it_asks_for_what_a_call_is_given_before_what_lies_within_objects(real) -> None:
    shell, session, comm = real
    cell = "class Net(torch.nn.Module):\n    scale, size = 2.0, 3\n    def forward(self, batch):\n"
    cell += "        return batch['x.y'] * self.scale + self.size\nnet, batch = Net(), {'x.y': torch.ones(4)}"
    assert shell.run_cell(cell).success
    assert shell.run_cell("%%tcompile time=off\nout = net(batch)").success
    (function,) = comm.ask("forecast", report=session.last.id)["ok"]["functions"]
    inner = [r["inner"] for r in function["rows"]]
    assert function["rows"][0]["name"] == "batch['x.y']" and not inner[0]
    assert inner == sorted(inner), [(r["name"], r["inner"]) for r in function["rows"]]
