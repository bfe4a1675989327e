"""How much is compiled in one run of a cell (frontend/cell_work.py): past a limit the rest runs plain, until later."""

from __future__ import annotations

import pytest
import torch

import tcompile
from tcompile.compiler import config, events
from tcompile.compiler.config import Options
from tcompile.compiler.errors import OptionError
from tcompile.compiler.frontend import hook
from tcompile.compiler.report.builder import ReportBuilder
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")

# Each function breaks its caller's graph, so that it is captured by itself.
DEFINITIONS = "import os\n" + "\n".join(
    f"def f{i}(x):\n    y = torch.sin(x) * {i}\n    os.getpid()\n    return torch.cos(y) + {i}" for i in range(1, 5)
)
RUN = "out = []\nfor f in (f1, f2, f3, f4, f1):\n    out.append(f(x))\n    os.getppid()"


@pytest.fixture
def cells():
    yield Cells()
    hook.reset()


class Cells:
    def __init__(self):
        self.names = {"torch": torch, "x": torch.linspace(-1, 1, 7)}
        exec(compile(DEFINITIONS, "<cell 1>", "exec"), self.names)
        self.want = self.eager()

    def eager(self):
        names = dict(self.names)
        exec(RUN, names)
        return names["out"]

    def run(self, **given):
        """(how many graphs were captured, fallbacks, the report) of a run that equals eager."""
        graphs, fallbacks = [], []

        def note(e):
            if e.kind == "graph":
                graphs.append(e.frame)
            elif e.kind == "fallback":
                fallbacks.append(e)

        builder = ReportBuilder("cell", {}, None)
        with events.listen(note), events.listen(builder):
            hook.run_code(compile(RUN, "<cell 2>", "exec"), self.names, Options.make(None, "tcompile", options=given))
        torch.testing.assert_close(self.names["out"], self.want)
        return len(graphs), fallbacks, builder.report()


def test_without_a_limit_one_run_compiles_all(cells):
    graphs, fallbacks, _ = cells.run()
    assert graphs == 8 and not fallbacks


@pytest.mark.parametrize("option, limit", [("cell_instruction_limit", 60), ("cell_kernel_limit", 2)])
def test_past_a_limit_the_rest_runs_plain_and_is_compiled_in_later_runs(cells, option, limit):
    made = []
    for _ in range(10):
        graphs, fallbacks, report = cells.run(**{option: limit})
        made.append(graphs)
        if not fallbacks:
            break
        assert {f.what for f in fallbacks} == {"the rest of the cell"} and option in fallbacks[0].reason
        told = [f for f in report.fallbacks if f.what == "the rest of the cell"]
        assert sum(f.count for f in told) == len(fallbacks) and "runs plain" in told[0].reason
        assert report.summary.status != "compiled"
    assert sum(made) == 8 and 2 <= len(made) < 10 and all(made), made
    graphs, fallbacks, _ = cells.run(**{option: limit})
    assert not graphs and not fallbacks


def test_entries_serve_past_the_limit(cells):
    cells.run()
    assert not cells.run()[0]
    with config.patch(cell_instruction_limit=1):
        cells.names["x"] = torch.ones(7, dtype=torch.float64)
        cells.want = cells.eager()
        _, fallbacks, _ = cells.run()
        assert fallbacks
        cells.names["x"] = torch.linspace(-1, 1, 7)
        cells.want = cells.eager()
        graphs, fallbacks, _ = cells.run()
        assert not graphs and not fallbacks


def test_what_the_program_names_is_not_bounded():
    with config.patch(cell_instruction_limit=1, cell_kernel_limit=1):
        fast = tcompile.compile(lambda x: (x.sin() * 2).relu(), backend="eager")
        heard = []
        with events.listen(lambda e: heard.append(e.kind)):
            fast(torch.ones(3))
            fast(torch.ones(3).double())
    assert heard.count("capture_end") == 2 and "fallback" not in heard


def test_limits_are_checked():
    with pytest.raises(OptionError, match="cell_kernel_limit.*at least 0"):
        Options.make(options={"cell_kernel_limit": -1})
    with pytest.raises(OptionError, match="cell_instruction_limit.*whole number"):
        Options.make(options={"cell_instruction_limit": "many"})
