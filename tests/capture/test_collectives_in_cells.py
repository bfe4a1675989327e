"""A collective in a cell's own lines waits for other processes: what was assigned before it is there when it begins."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tcompile.compiler import events
from tcompile.compiler.config import Options
from tcompile.compiler.frontend import hook
from tcompile.compiler.runtime import frame_hook

pytestmark = [
    pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built"),
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"),
]


@pytest.fixture(autouse=True)
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
    hook.reset()


def run(text, **names):
    space = {"torch": torch, "dist": dist, "__name__": "__main__", **names}
    breaks, graphs = [], []
    with events.listen(
        lambda e: breaks.append(e.brk.kind) if e.kind == "break" else graphs.append(e) if e.kind == "graph" else None
    ):
        hook.run_code(compile(text, "<cell>", "exec"), space, Options.make(options={"error_on_graph_break": False}))
    return space, breaks, len(graphs)


def test_names_are_assigned_before_it():
    space, breaks, graphs = run("kept = 7\ny = x * 2\ndist.all_reduce(y)\nz = y + 1", x=torch.ones(3))
    assert breaks == ["collective"] and graphs == 2
    assert space["kept"] == 7 and space["z"].tolist() == [3.0, 3.0, 3.0]


def test_inside_of_a_call():
    text = "def total(t):\n    dist.all_reduce(t)\n    return t + 1\n"
    space, breaks, _ = run(f"{text}kept = 7\nz = total(x * 2)", x=torch.ones(3))
    assert breaks == ["collective"] and space["kept"] == 7 and space["z"].tolist() == [3.0, 3.0, 3.0]


@pytest.mark.parametrize("text", ["dist.all_reduce(x)", "(x + dist.all_reduce(x, async_op=True).wait()).sum()"])
def test_without_names_it_is_in_the_graph(text):
    assert run(text, x=torch.ones(3))[1:] == ([], 1)


def test_a_function_that_is_called_is_one_graph():
    def total(t):
        y = t * 2
        dist.all_reduce(y)
        return y + 1

    assert run("z = [total(x)]", x=torch.ones(3), total=total)[1:] == ([], 1)
