"""A cell's loops of a few operators a turn are not unrolled into one graph, which would take far longer to compile than
the loop runs; what the program names is."""

from __future__ import annotations

import contextlib
import operator

import pytest
import torch

import tcompile
from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.runtime import frame_hook

pytestmark = pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built")
N = 250
MOST = 420  # operators that capture may have met before it ends a loop; whole, each of these cells has more

CELLS = {
    "elements": "s = 0.0\nfor v in x: s = s + v * v + v.abs()\nu = s * 2",
    "stores": f"u = torch.zeros({N})\nfor i in range({N}): u[i] = f(x[i])\nu = u + 1",
    "while": f"n, u = 0, x\nwhile n < {N}:\n    u = u * 0.99 + 0.01\n    n += 1\nu = u * 2",
    "while with continue": f"n, u = 0, x\nwhile n < {N}:\n    n += 1\n    if n % 2: continue"
    "\n    u = (u * 0.9 + 1).abs() * 2 - 1\nu = u * 2",
    "comprehension": "u = torch.stack([v * 2 + v.abs() for v in x]) + 1",
    "dict": f"d = {{i: x[i] * 2 + i for i in range({N})}}\nu = d[3] + d[{N - 1}]",
    "generator": "u = sum(v * 2 + v.abs() for v in x) * 2",
    "map": "u = torch.stack(list(map(f, x))) + 1",
    "nested": "u = torch.zeros(5)\nfor i in range(5):\n    for v in x: u[i] += v * i + 1\nu = u * 2",
    "function": "def g(x):\n    s = 0.0\n    for v in x: s = s * 0.9 + v.abs()\n    return s\nu = g(x) * 2",
    "left by break": f"n, u = 0, x\nfor i in range({N}):\n    u = u * 0.99 + 0.01"
    f"\n    if i > {N - 9}: break\nu = u * i",
}


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    hook.reset()


def _names():
    return {"torch": torch, "x": torch.linspace(-1, 1, N), "f": lambda v: v * 2 + v.sin()}


def _operators(graph):
    """Those of a graph, without the taking apart of a tensor that is iterated over."""
    nodes = list(graph.graph_module.graph.nodes)
    assert len(nodes) < 2 * MOST
    return sum(n.op.startswith("call") and n.target not in (operator.getitem, "unbind") for n in nodes)


@contextlib.contextmanager
def _heard():
    """The numbers of operators in the graphs that are captured meanwhile, and the kinds of breaks."""
    graphs, breaks = [], []

    def note(e):
        if e.kind == "graph":
            graphs.append(_operators(e.graph))
        elif e.kind == "break":
            breaks.append(e.brk.kind)

    with events.listen(note):
        yield graphs, breaks


def _run(text, runs=3):
    """Run a cell; gives the numbers of operators in its graphs, and the kinds of its breaks."""
    names = _names()
    code = compile(text, "<cell 1>", "exec")
    exec(code, names)
    want = names["u"]
    with _heard() as (graphs, breaks):
        for _ in range(runs):
            names["u"] = None
            hook.run_code(code, names, Options.make(None, "eager"))
            torch.testing.assert_close(names["u"], want)
    return graphs, breaks


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_does_not_unroll_a_loop_of_little_work(name):
    graphs, breaks = _run(CELLS[name])
    assert {"small_loop", "long_loop"} & set(breaks)
    assert sum(graphs) < MOST, graphs


def test_a_loop_of_little_work_runs_as_it_is():
    graphs, breaks = _run("t = x * 2\nfor v in x: t = t + v\nu = t * 2 + 1")
    assert breaks == ["small_loop"] and sorted(graphs) == [1, 2]  # before the loop, and after it


def test_a_turn_of_few_operators_on_large_tensors_is_compiled():
    graphs, breaks = _run(f"u = torch.linspace(-1, 1, 1 << 17)\nfor i in range({N}): u = (u * 0.9 + 1).sin()")
    assert set(breaks) == {"long_loop"} and 3 in graphs and sum(graphs) < MOST


@pytest.mark.parametrize("items", ["big", "zip(big, big)", "list(big)", "enumerate(big)"])
def test_a_long_tensor_is_not_taken_apart_in_a_graph(items):
    value = "v[1]" if "(" in items and "list" not in items else "v"
    graphs, breaks = _run(f"big = (x * 2).repeat(20)\nu = 0.0\nfor v in {items}: u = u + {value}\nu = u * 2 + 1")
    assert "small_loop" in breaks and sum(graphs) < MOST


def test_a_turn_that_pays_is_compiled_once():
    turn = "; ".join("u = u.sin() * 1.1" for _ in range(6))
    graphs, breaks = _run(f"u = x\nfor _ in range({N}): {turn}\nu = u + 1")
    assert breaks == ["long_loop"] and graphs.count(12) == 1 and sum(graphs) == 13


def test_short_loops_and_layers_are_unrolled():
    graphs, breaks = _run("u = x\nfor i in range(20): u = u * 1.01 + i")
    assert not breaks and graphs == [40]
    layers = "m = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(120))"
    body = "u = torch.ones(2)\nfor layer in m: u = torch.relu(layer(u) + 1)\nu = u.detach()"
    names = _names()
    exec(f"torch.manual_seed(0)\n{layers}\n{body}", names)
    want, seen, names["u"] = names["u"], [], None
    with events.listen(lambda e: seen.append(e.kind)):
        hook.run_code(compile(body, "<cell 2>", "exec"), names, Options.make(None, "eager"))
    torch.testing.assert_close(names["u"], want)
    assert "break" not in seen and seen.count("graph") == 1


def test_a_long_recurrence_in_a_module_is_compiled_turn_by_turn():
    class Recurrence(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Linear(4, 4)

        def forward(self, x):
            h, out = torch.zeros(4), []
            for v in x:
                h = torch.tanh(self.w(h) + v) * torch.sigmoid(self.w(h) - v) + h * 0.5 - v * 0.1
                out.append(h)
            return torch.stack(out)

    names = {"m": Recurrence(), "x": torch.linspace(-1, 1, N)}
    want = names["m"](names["x"])
    want.sum().backward()
    gradient = names["m"].w.weight.grad.clone()
    names["m"].zero_grad()

    with _heard() as (graphs, breaks):
        hook.run_code(compile("u = m(x)\nu.sum().backward()", "<cell 3>", "exec"), names, Options.make(None, "eager"))
    torch.testing.assert_close(names["u"], want)
    torch.testing.assert_close(names["m"].w.weight.grad, gradient)
    assert "long_loop" in breaks and max(graphs) < 100


def test_what_the_program_names_is_unrolled():
    seen = []

    @tcompile.compile(backend="eager")
    def g(x):
        s = 0.0
        for v in x:
            s = s * 0.9 + v.abs()
        return s

    x = torch.linspace(-1, 1, N)
    with events.listen(lambda e: seen.append(e.kind)):
        torch.testing.assert_close(g(x), g.__wrapped__(x))
    assert "break" not in seen and seen.count("graph") == 1
