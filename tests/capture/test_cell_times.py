"""Cells that compiling makes slower run plain (frontend/cell_times.py), and cells that only set up are not captured
(frontend/set_up.py)."""

from __future__ import annotations

import linecache

import pytest
import torch

from tcompile.compiler import config, events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import cell_times, hook
from tcompile.compiler.frontend.set_up import only_sets_up
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")


class Cell:
    """A cell whose runs take what a test says, compiled and plain."""

    def __init__(self, monkeypatch, compiled, plain):
        self.now, self.seconds, self.names = 0.0, {"compiled": compiled, "plain": plain}, {"torch": torch}
        self.names["tick"] = self.tick
        self.code = compile("x = torch.ones(4)\ny = torch.relu(x) * 2 + 1\ntick(y)", "<cell of times>", "exec")
        self.opts = Options.make(None, "eager", False, None, None)
        monkeypatch.setattr(cell_times, "_now", lambda: self.now)

    def tick(self, y):
        self.now += self.seconds[self.kind()]

    @staticmethod
    def kind():
        from tcompile.compiler.runtime.dispatch import is_disabled

        return "plain" if is_disabled() else "compiled"

    def run(self):
        """What the run was, and the fallback that it stated."""
        seen, fallbacks, before = [], [], self.now
        tick, self.names["tick"] = self.tick, lambda y: (seen.append(self.kind()), self.tick(y))

        def note(e):
            if e.kind == "fallback" and e.what == "the cell":
                fallbacks.append(e.reason)

        with events.listen(note):
            hook.run_code(self.code, self.names, self.opts)
        self.names["tick"] = tick
        assert self.now > before and torch.equal(self.names["y"], torch.full((4,), 3.0))
        return seen[0], fallbacks


@pytest.fixture(autouse=True)
def clean(tmp_path):
    with config.patch(switch_off_slower=True, cache_dir=str(tmp_path)):
        hook.reset()
        yield
        hook.reset()


def test_a_cell_that_compiling_makes_slower_runs_plain(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.2, plain=0.1)
    runs = [cell.run() for _ in range(8)]
    assert [kind for kind, _ in runs] == ["compiled", "compiled", *["plain"] * 6]
    assert "to know whether" in runs[2][1][0]
    assert all("took 200 ms compiled, and 100 ms as plain Python" in said[0] for _, said in runs[3:])


def test_where_the_difference_is_small_another_pair_decides(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.11, plain=0.1)
    runs = [cell.run() for _ in range(8)]
    assert [kind for kind, _ in runs] == ["compiled", "compiled", "plain", "compiled", *["plain"] * 4]
    assert "to know whether" in runs[2][1][0] and not runs[3][1]
    assert all("took 110 ms compiled, and 100 ms as plain Python" in said[0] for _, said in runs[5:])


CRUMBS = """
found = []
for x in data:
    y = x + 1
    if y.sum().item() > 1e9:
        break
    found.append(y)
out = torch.stack(found)
"""


@pytest.mark.parametrize("size, off", [(4, True), (400_000, False)])
def test_a_loop_of_crumbs_is_switched_off_by_counts(size, off):
    """After the first run, whatever the machine did in it; not where an operator has much to do."""
    names = {"torch": torch, "data": [torch.full((size,), float(i)) for i in range(60)]}
    code, said = compile(CRUMBS, "<cell of crumbs>", "exec"), []
    opts = Options.make(None, "eager", False, None, None)
    for _ in range(2):
        said.clear()
        with events.listen(lambda e: said.append(e.reason) if e.kind == "fallback" else None):
            hook.run_code(code, names, opts)
        assert torch.equal(names["out"], torch.stack(names["data"]) + 1)
    assert any("too few operators" in words for words in said) == off, said


def test_a_cell_whose_entries_are_said_of_new_classes_is_timed(monkeypatch):
    """Such an entry takes another's place in each run, where it serves no second call: nothing counts as served."""
    plain, names = [], {"torch": torch}
    clock = iter(range(10**6))
    monkeypatch.setattr(cell_times, "_now", lambda: next(clock) * (0.1 if plain[-1] else 0.2))
    code, opts = (
        compile("y = d(torch.ones(4)) + 1", "<cell of calls>", "exec"),
        Options.make(None, "eager", False, None, None),
    )
    enter = cell_times.CellRun.__enter__

    def entered(run):
        nonlocal clock
        plain.append(run.plain)
        clock = iter(range(10**6))
        return enter(run)

    monkeypatch.setattr(cell_times.CellRun, "__enter__", entered)
    for _ in range(7):
        exec("class D:\n    def __call__(self, x):\n        return torch.relu(x) * 2\nd = D()", names)
        hook.run_code(code, names, opts)
        assert torch.equal(names["y"], torch.full((4,), 3.0))
    assert plain == [False, False, True, True, True, True, True]


def test_a_cell_that_is_a_little_slower_runs_plain(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.105, plain=0.1)
    assert [cell.run()[0] for _ in range(7)] == ["compiled", "compiled", "plain", "compiled", *["plain"] * 3]


def test_one_slow_plain_run_decides_nothing(monkeypatch):
    """The machine may have been busy in it: where compiling gains little, one more run of each is timed."""
    cell = Cell(monkeypatch, compiled=0.12, plain=0.1)
    kinds = []
    for plain in (0.1, 0.1, 0.13, 0.1, 0.1, 0.1, 0.1):
        cell.seconds["plain"] = plain
        kinds.append(cell.run()[0])
    assert kinds == ["compiled", "compiled", "plain", "compiled", *["plain"] * 3]


def test_a_cell_that_gains_is_run_plain_once(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.1, plain=0.2)
    kinds = [cell.run()[0] for _ in range(8)]
    assert kinds == ["compiled", "compiled", "plain", *["compiled"] * 5]


@pytest.mark.parametrize("saved, third", [(0.04, "plain"), (0.08, "compiled")])
def test_library_code_has_to_save_much_for_no_plain_run(monkeypatch, saved, third):
    """Its plain calls were measured as they ran for the first time: what it saves looks larger than it is."""
    cell = Cell(monkeypatch, compiled=0.1, plain=0.05)
    monkeypatch.setattr(cell_times.CellTimes, "saved", lambda self, before: saved)
    assert [cell.run()[0] for _ in range(3)] == ["compiled", "compiled", third]


def test_other_data_are_another_question(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.2, plain=0.1)
    for _ in range(6):
        cell.run()
    cell.seconds = {"compiled": 1.0, "plain": 5.0}
    kinds = [cell.run()[0] for _ in range(5)]
    assert kinds == ["plain", "compiled", "compiled", "plain", "compiled"]  # (it pays, with other data)


def test_time_decides_nothing_under_deterministic_algorithms(monkeypatch):
    cell = Cell(monkeypatch, compiled=0.2, plain=0.1)
    torch.use_deterministic_algorithms(True)
    try:
        assert [cell.run()[0] for _ in range(6)] == ["compiled"] * 6
    finally:
        torch.use_deterministic_algorithms(False)


def test_long_runs_are_not_run_plain(monkeypatch):
    cell = Cell(monkeypatch, compiled=2 * cell_times.LONGEST, plain=0.1)
    assert [cell.run()[0] for _ in range(5)] == ["compiled"] * 5


# ---- cells that only set up
class Fitter:
    def train(self):
        return torch.ones(2) @ torch.ones(2)

    def keep(self):
        self.kept = 1


SET_UP = {
    "letters": "text = 'some letters ' * 4\nletters = sorted(set(text))\nnumbers = {c: i for i, c in enumerate(letters)}\n"
    "data = torch.tensor([numbers[c] for c in text])",
    "words": "words = ['[PAD]', '[UNK]'] + [chr(97 + i) + chr(97 + j) for i in range(3) for j in range(3)] + 'a b'.split()\n"
    "rest = words[2:]\ntexts = [' '.join(rest[(i * 7 + j) % 8] for j in range(3)) for i in range(4)]",
    "numpy's data": "import numpy as np\ndef f(): pass\nrng = np.random.default_rng(0)\n"
    "a = rng.normal(size=(300, 10)).astype('float32')\nb = (a[:, 0] * a[:, 1] > 0).astype('int64')\n"
    "t = np.linspace(0, 5, 200)\nu = 2.5 * np.exp(-1.3 * t) + 0.05 * rng.normal(size=200)\nv = torch.from_numpy(u)",
    "draws": "import torch\ntorch.manual_seed(0)\nx = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))",
    "a model": "net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()).to('cpu')\nnet.eval()",
    "definitions": "class Net(torch.nn.Module):\n    def forward(self, x): return x + 1\ndef f(x): return x * 2\nn = Net()",
    "a function that makes": "def make(n):\n    return [torch.nn.Linear(n, n) for _ in range(3)]\nmodels = make(4)",
    "a closure": "def outer():\n    def run(): return net(x)\n    return run\nrun = outer()",
    "an optimizer": "o = torch.optim.SGD(net.parameters(), lr=0.1)\nprint('ready')",
    "an object": "fitter.keep()",
    "to a GPU": "def make(): return torch.nn.Linear(2, 2).eval().cuda()\nnet = make()\nx = torch.randn(2).cuda()",
    "a precision": "net = torch.nn.Linear(2, 2).half().to('cpu')\nnet.float()",
    "how many parameters": "print(f'{sum(p.numel() for p in net.parameters() if p.requires_grad) / 1e6:.1f}M')",
    "numbers": "B, T = 4, 8\nn = B * T\nn += 1\nx = torch.randn(n * 2, len('ab') * B)",
    "layers in a list": "layers = []\nfor i in range(2):\n    layers += [torch.nn.Linear(2, 2)]\nnet = "
    "torch.nn.Sequential(*layers)",
    "seeds": "import random, numpy as np\nrandom.seed(0)\nnp.random.seed(0)\nx = np.random.default_rng(0).normal(size=3)",
    "labels of what it draws": "N = 64\nx = torch.randn(N, 4)\ny = (x[:, :2].sum(1) * 2 > 0).long()\nx[0, :3] = 0"
    "\ndef run(): return net(x)",
    "labels in a function": "def build():\n    x = torch.randn(64, 4)"
    "\n    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(64)"
    "\n    def run(): return net(x)\n    return run\nrun = build()",
    "lists that are joined": "words = ['a', 'b'] + list('cd')\nn = len([0] * 3)",
    "a lambda": "make = lambda n: torch.utils.data.TensorDataset(torch.randn(n, 2))\na, b = make(4), make(8)",
    "a state": "net.load_state_dict(net.state_dict())\nnet.apply(print)\nnet = torch.compile(net)",
}
WORK = {
    "an operator": "y = x + 1",
    "a function of torch": "y = torch.relu(x)",
    "a method": "y = x.sum()",
    "a model's call": "y = net(x)",
    "a model that the cell makes": "m = torch.nn.Linear(2, 2)\ny = m(x)",
    "operators alone": "x = torch.rand(4, 4) * 2 - 1",
    "a value that is shown": "def f(x): return x\nx = torch.rand(4, 4)\ny = x.softmax(0)\ny.sum()",
    "a function's body": "def f(): return torch.randn(3) @ torch.randn(3)\ny = f()",
    "a method that the program defines": "fitter.train()",
    "a class of the cell": "class A:\n    def train(self): return x + 1\na = A()\na.train()",
    "in a loop": "for i in range(3):\n    x = x @ x",
    "backward": "loss.backward()",
    "a cast and more": "y = x.float() * 2",
    "a sum of tensors": "y = sum(p for p in x)",
    "a name that is bound anew": "n = 2\nn = torch.randn(3)\ny = n * 2",
    "names at once": "a, b = 2, x @ x",
    "a list of work": "ys = []\nys += [x @ x]",
    "in place": "x += 1",
    "a bound method": "step = fitter.train\nfitter.step()\nstep()",
    "labels without a definition": "x = torch.randn(64, 4)\ny = (x[:, :2].sum(1) > 0).long()",
    "much on data that it draws": "def f(): pass\nx = torch.randn(4)\ny = " + " + ".join(["x.sin()"] * 9),
    "large data": "def f(): pass\nx = torch.rand(1000, 1000)\ny = x * 2",
    "data of any size": "def f(n): return (torch.rand(n, 2) ** 2).sum(1)\ny = f(10)",
    "a product of what it draws": "def f(): pass\nx = torch.randn(4, 4)\ny = x @ x",
    "data in a loop": "def f(): pass\nx = torch.randn(4)\nfor i in range(3): x = x * 2",
    "a lambda's body": "f = lambda v: v * 2\ny = f(x)",
    "items of tensors": "y = [v[0] for v in x]",
    "a list of tensors": "xs = [x, x]\ny = xs[0] @ xs[1]",
    "numpy's product": "def f(): pass\nimport numpy as np\na = np.ones((4, 4))\nb = a @ a",
    "much of numpy's": "def f(): pass\nimport numpy as np\na = np.ones(4)\nb = " + " + ".join(["np.sin(a)"] * 9),
    "a name of a text and of a tensor": "c = 'a'\nc = x\ny = c * 2",
    "numbers of a tensor": "y = [n * 2 for n in x]",
    "recursion": "def f(n): return f(n)\nf(1)",
}


def read(text):
    file = "<cell that is read>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    names = {"torch": torch, "net": torch.nn.Linear(2, 2), "x": torch.ones(2, 2), "fitter": Fitter()}
    try:
        return only_sets_up(compile(text, file, "exec"), names)
    finally:
        del linecache.cache[file]


@pytest.mark.parametrize("what", SET_UP)
def test_cells_that_only_set_up(what):
    assert read(SET_UP[what])


@pytest.mark.parametrize("what", WORK)
def test_cells_with_work_of_their_own(what):
    assert not read(WORK[what])
