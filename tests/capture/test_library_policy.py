"""What library code of a cell is compiled (policy.py): roots that pay, and nothing of the code around them."""

from __future__ import annotations

import sysconfig
import types

import pytest
import torch
import torch.nn as nn

import tcompile
from tcompile.compiler import events
from tcompile.compiler.frontend import hook, policy
from tcompile.compiler.capture.library import optimizers
from tcompile.compiler.config import Options
from tcompile.compiler.runtime import frame_hook as runtime_hook

pytestmark = pytest.mark.skipif(not runtime_hook.available(), reason="the C extension is not built")

LIBRARY = '''
import time
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.name = f"net-{time.perf_counter_ns()}"
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.linspace(-1, 1, p.numel()).reshape(p.shape))

    def forward(self, x):
        return F.gelu(self.b(F.relu(self.a(x)) * 2))


class Broken(Net):
    def forward(self, x):
        h = self.a(x) + 1
        return self.b(h) * (2 if h.sum() > 0 else 3)


def drive(model, x, steps=3):
    """Glue: a clock, a branch on a tensor, an own format."""
    began = time.perf_counter()
    for i in range(steps):
        y = model(x)
        if y.abs().max() > 1e6:
            break
        x = x + y / (len(f"{began}-{i}") > 0)
    return x * 0 + y


def polynomial(x):
    return ((x * 3 + 1) * x - 2) * x + 0.5


def small(x):
    return x * 2


def build(width=8):
    return Net(width)


def repeat(f, x):
    for _ in range(6):
        out = f(x)
        if out.abs().max() > 1e30:
            break
    return out


def broken_function(x):
    h = polynomial(x)
    return h if float(h.sum()) > 0 else -h
'''


def installed():
    """The library as an installed package."""
    module = types.ModuleType("some_library")
    file = sysconfig.get_paths()["purelib"] + "/some_library/__init__.py"
    exec(compile(LIBRARY, file, "exec"), module.__dict__)
    import sys

    sys.modules["some_library"] = module
    yield module
    del sys.modules["some_library"]
    hook.reset()


@pytest.fixture
def library():
    yield from installed()


class Cells:
    """Cells of one notebook: each run tells which frames were captured and what was decided."""

    def __init__(self, **names):
        self.names = {"__name__": "__main__", "torch": torch, "nn": nn, **names}
        self.opts = Options.make(None, "eager", False, None, None)

    def run(self, text):
        captured, decided = [], {}

        def note(e):
            if e.kind == "capture_end":
                captured.append(e.result.code.co_qualname)
            elif e.kind == "library":
                decided[e.frame] = e.decision

        with events.listen(note):
            hook.run_code(compile(text, "<cell 1>", "exec"), self.names, self.opts)
        return captured, decided


def test_glue_is_left_alone_and_the_forward_below_is_compiled(library):
    x = torch.randn(4, 8)
    want = library.drive(library.build(), x)
    cells = Cells(lib=library, x=x, model=library.build())
    captured, decided = cells.run("out = lib.drive(model, x)")
    assert "Net.forward" in captured and not any("drive" in name for name in captured)
    assert decided["drive"] == "not followed"
    torch.testing.assert_close(cells.names["out"], want)
    cells.run("out = lib.drive(model, x)")  # its first x needs no gradient: the forward ran plain for it, so far
    for _ in range(2):
        captured, _ = cells.run("out = lib.drive(model, x)")
        assert captured == []
        torch.testing.assert_close(cells.names["out"], want)


def test_a_cell_that_builds_its_model_anew_compiles_nothing_again(library):
    x = torch.randn(4, 8)
    cells = Cells(lib=library, x=x)
    text = "model = lib.build()\nout = lib.drive(model, x)"
    cells.run(text)
    cells.run(text)
    for _ in range(2):
        captured, _ = cells.run(text)
        assert "Net.forward" not in captured and "Net.__init__" not in captured
    torch.testing.assert_close(cells.names["out"], library.drive(library.build(), x))


def test_what_comes_once_in_each_run_is_not_compiled_in_the_second(library):
    long, short = torch.randn(6, 8), torch.randn(4, 8)
    cells = Cells(lib=library, long=long, short=short)
    text = "model = lib.build()\na = lib.drive(model, long, 1)\nb = lib.drive(model, short, 4)"
    captured, _ = cells.run(text)
    assert "Net.forward" in captured
    with torch.no_grad():
        model = library.build()
    for _ in range(3):
        captured, _ = cells.run(text)
        assert "Net.forward" not in captured
        torch.testing.assert_close(cells.names["a"], library.drive(model, long, 1))
        torch.testing.assert_close(cells.names["b"], library.drive(model, short, 4))
    captured, _ = cells.run("a = lib.drive(model, long, 4)")  # now it comes often
    assert "Net.forward" in captured
    torch.testing.assert_close(cells.names["a"], library.drive(model, long, 4))


def test_a_forward_that_comes_once_in_a_run_is_compiled_late(library):
    """A second run should meet no compilation; what is called again and again is worth one at last."""
    x = torch.randn(4, 8)
    cells = Cells(lib=library, x=x, model=library.build())
    want = library.drive(cells.names["model"], x, 1)
    runs = []
    for _ in range(policy.FORWARD_CALLS_IN_ALL):
        runs.append("Net.forward" in cells.run("out = lib.drive(model, x, 1)")[0])
        torch.testing.assert_close(cells.names["out"], want)
    assert runs == [False] * (len(runs) - 1) + [True]


def test_what_a_cell_calls_itself_is_followed_at_first_sight(library):
    cells = Cells(lib=library, x=torch.randn(4, 8), model=library.build())
    captured, decided = cells.run("out = lib.polynomial(x) + model(x)")
    assert captured == ["<module>"] and not decided


def test_a_forward_that_breaks_is_compiled_when_the_cell_calls_it(library):
    x = torch.randn(4, 8)
    cells = Cells(lib=library, x=x, model=library.Broken())
    captured, decided = cells.run("y = x * 2 + 1\nout = model(y)")
    assert decided["Broken.forward"] == "not followed"
    assert "Broken.forward" in captured
    torch.testing.assert_close(cells.names["out"], cells.names["model"](x * 2 + 1))


def test_functions_of_tensors_are_roots_once_they_did_some_work(library, monkeypatch):
    from tcompile.compiler.frontend import policy

    x = torch.randn(64)
    cells = Cells(lib=library, x=x)
    text = "out = lib.repeat(lib.polynomial, x)"
    assert "polynomial" not in cells.run(text)[0]
    monkeypatch.setattr(policy, "FUNCTION_WORK", 3 * policy.CALL_WORK)
    captured, _ = cells.run(text)
    assert captured.count("polynomial") == 1
    torch.testing.assert_close(cells.names["out"], library.polynomial(x))
    captured, decided = cells.run("out = [lib.repeat(lib.small, x), lib.repeat(lib.broken_function, x)]")
    assert decided["small"] == decided["broken_function"] == "left alone"
    torch.testing.assert_close(cells.names["out"], [library.small(x), library.broken_function(x)])


def test_functions_on_a_gpu_are_roots_sooner(library, monkeypatch):
    from tcompile.compiler.frontend import policy

    x = torch.randn(64)
    cells = Cells(lib=library, x=x)
    text = "for _ in range(120):\n    out = lib.repeat(lib.polynomial, x)"
    assert "polynomial" not in cells.run(text)[0], "that few operators do not pay on a CPU"
    monkeypatch.setattr(policy, "_on_gpu", lambda args: True)
    assert cells.run(text)[0].count("polynomial") == 1
    torch.testing.assert_close(cells.names["out"], library.polynomial(x))


def test_what_the_program_names_is_followed_everywhere(library):
    x = torch.randn(4, 8)
    captured = []
    with events.listen(lambda e: captured.append(e.result.code.co_qualname) if e.kind == "capture_end" else None):
        fast = tcompile.compile(library.drive, backend="eager")
        torch.testing.assert_close(fast(library.build(), x), library.drive(library.build(), x))
    assert any("drive" in name for name in captured)


def test_reset_forgets_what_was_decided(library):
    cells = Cells(lib=library, x=torch.randn(4, 8), model=library.build())
    assert "drive" in cells.run("out = lib.drive(model, x)")[1]
    assert "drive" not in cells.run("out = lib.drive(model, x)")[1]
    hook.reset()
    assert "drive" in cells.run("out = lib.drive(model, x)")[1]


def test_training_below_glue_is_eager_s(library):
    def train(build):
        torch.manual_seed(1)
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            library.drive(model, torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    want = train(library.build)
    with tcompile.enable(backend="eager"):
        got = train(library.build)
    torch.testing.assert_close(got, want)


def test_packages_of_another_folder_of_the_path_are_library_code(tmp_path, monkeypatch):
    from tcompile.compiler.capture.entry.locations import is_library_file

    installed, own = tmp_path / "installed", tmp_path / "own"
    (installed / "thing-1.0.dist-info").mkdir(parents=True)
    own.mkdir()
    for folder in (installed, own):
        monkeypatch.syspath_prepend(str(folder))
    assert is_library_file(str(installed / "thing" / "core.py"))
    assert not is_library_file(str(own / "thing" / "core.py"))


def test_watching_a_function_asks_less_and_less_often(library, monkeypatch):
    x = torch.randn(4, 8)
    cells = Cells(lib=library, x=x)
    asked = []
    engine = hook.engine_for(cells.opts)
    is_root = engine.library.is_root
    monkeypatch.setattr(
        engine.library, "is_root", lambda code, *rest: asked.append(code.co_name) or is_root(code, *rest)
    )
    text = "for _ in range(600):\n    out = lib.repeat(lib.polynomial, x)"
    captured, _ = cells.run(text)  # 3600 calls, each of about 20 microseconds
    assert captured.count("polynomial") == 1 and asked.count("polynomial") < 60
    torch.testing.assert_close(cells.names["out"], library.polynomial(x))


_PLAIN_LOOP = """
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
for i in range(5):
    loss = (net(torch.randn(3, 4)) - 1).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
out = [p.detach().clone() for p in net.parameters()]
"""
# A scheduler puts a function of its own in the place of the optimizer's step.
_SCHEDULED_LOOP = """
def run():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=6)
    for i in range(6):
        for k in range(2):
            (net(torch.randn(3, 4)) - 1).square().mean().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()]
out = run()
"""
# The model's class is another in each run.
_REDEFINED_LOOP = """
def run():
    torch.manual_seed(1)
    words = ["a", "b"]
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.rnn = nn.Linear(len(words), 4), nn.GRU(4, 4)
        def forward(self, x, h):
            return self.rnn(self.layer(x), h)
    net = Net()
    optimizer, h = torch.optim.RMSprop(net.parameters(), 1e-2), None
    for i in range(5):
        y, h = net(torch.randn(3, 2), h)
        h = h.detach()
        optimizer.zero_grad()
        y.square().mean().backward()
        optimizer.step()
    return [p.detach().clone() for p in net.parameters()]
out = run()
"""


@pytest.mark.parametrize(
    "text", [_PLAIN_LOOP, _SCHEDULED_LOOP, _REDEFINED_LOOP], ids=["plain", "scheduled", "redefined"]
)
def test_the_first_step_of_an_optimizer_made_anew_is_not_captured_again(monkeypatch, text):
    """Capture would go through all that lies before the step, and end there: the optimizer has its state then."""
    made, real = [], optimizers._make_state
    monkeypatch.setattr(optimizers, "_make_state", lambda *given: made.append(given[0]) or real(*given))
    plain = {"torch": torch, "nn": nn}
    exec(text, plain)
    state = torch.random.get_rng_state()
    cells, counts = Cells(), []
    for _ in range(5):
        made.clear()
        captured, _ = cells.run(text)
        torch.testing.assert_close(cells.names["out"], plain["out"])
        assert torch.equal(torch.random.get_rng_state(), state)
        counts.append((len(made), len(captured)))
    assert counts[0][0], counts
    assert counts[3:] == [(0, 0)] * 2, counts
    hook.reset()
