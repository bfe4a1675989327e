"""Which calls can be timed again: what they set is put back, so that bookkeeping does not make them unrepeatable."""

import pytest

pytest.importorskip("tcompile.compiler.api")

SETUP = """
import contextvars, torch
where = contextvars.ContextVar("where", default=0)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Linear(64, 64)
        self.calls, self.compiling = 0, False
    def forward(self, x):
        self.compiling = True
        self.calls += 1
        return torch.relu(self.l(x)).sin() + 1
class Box:
    count = 0
class Output:
    def __init__(self, x):
        self.x = x
def f(box, x):
    box.count += 1
    out = Output(torch.sin(x) * 2 + 1)
    out.y = torch.cos(out.x)
    return out.y
m, box, x, total, step = Model(), Box(), torch.ones(64, 64), torch.zeros(64, 64), 0
log = []
"""


@pytest.fixture
def shell(tmp_path):
    from IPython.core.interactiveshell import InteractiveShell
    from tcompile.compiler import config
    from tcompile.kernel_magics import magics

    InteractiveShell.clear_instance()
    sh = InteractiveShell.instance(colors="nocolor")
    sh.history_manager.enabled = False
    sh.tcompile = magics.load(sh)
    sh.run_cell(SETUP).raise_error()
    with config.patch(cache_dir=str(tmp_path)):
        yield sh
    sh.run_line_magic("tcompile", "reset")
    magics.unload(sh)
    InteractiveShell.clear_instance()


def timed(shell, body):
    shell.run_cell(f"%%tcompile -o r time=60ms\n{body}", store_history=True).raise_error()
    return {c.name: c for c in shell.user_ns["r"].speedups.calls}, shell.user_ns


def test_attributes_of_a_model_and_of_an_object_are_put_back(shell):
    calls, ns = timed(shell, "with torch.no_grad():\n    y = m(x)\n    z = f(box, x)")
    assert ns["m"].calls == 1 and ns["m"].compiling is True and ns["box"].count == 1
    assert calls and all(c.measured == "call" for c in calls.values()), calls
    assert ns["r"].speedups.over("eager") is not None


def test_a_cells_own_variables_are_put_back_before_each_run(shell):
    calls, ns = timed(shell, "step += 1\ntotal = total + torch.sin(x) * step")
    assert ns["step"] == 1 and ns["total"][0, 0] == pytest.approx(0.841471, abs=1e-5)
    assert [c.measured for c in calls.values()] == ["call"], calls


def test_a_context_variable_is_set_in_a_context_of_timings_own(shell):
    body = "def h(x):\n    where.set(where.get() + 1)\n    return torch.sin(x) * 2 + where.get()\ny = h(x)"
    calls, ns = timed(shell, body)
    assert ns["where"].get() == 1, "timing changed the cell's context"
    assert any(c.measured == "call" for c in calls.values()), calls


def test_what_cannot_be_undone_is_still_not_run_again(shell):
    calls, ns = timed(shell, "def g(x):\n    y = torch.sin(x) + 1\n    log.append(1)\n    return y * 2\ny = g(x)")
    assert ns["log"] == [1], "timing ran the call again"
    assert all(c.measured != "call" for c in calls.values()), calls
    assert ns["r"].speedups.over("eager") is None and "than eager" not in ns["r"].summary.line
