"""Module-level code, as a notebook cell is: names are globals, top-level loops become regions; and training loops."""

import types

import torch

from tcompile.compiler.capture.entry.capture import CaptureOptions, capture_frame
from tcompile.compiler.capture.entry.result import SkipFrame

from .runner import Entry, Runner, same


class Holder:
    """What the hook hands over as the function of a module-level frame."""

    def __init__(self, namespace):
        self.__globals__ = namespace


def run_cell(source, namespace, run):
    code = compile(source, "<cell>", "exec")
    namespace.setdefault("__builtins__", __builtins__)  # as `exec` does: torch may import something on the way
    holder = Holder(namespace)
    try:
        result = capture_frame(code, holder, (), globals=namespace, opts=CaptureOptions(dispatch=run.run))
    except SkipFrame as skip:
        run.skips.append(skip)
        exec(code, namespace)
        return
    run.captures.append(result)
    entry = Entry(result, 0)
    assert entry.guards.check(holder, ()) == -1
    entry.fn(holder)


def both(source, make):
    run = Runner()
    a, b = make(), make()
    torch.manual_seed(0)
    run_cell(source, a, run)
    torch.manual_seed(0)
    exec(compile(source, "<cell>", "exec"), b)
    for k, v in b.items():
        if isinstance(v, (torch.Tensor, int, float, str, list, dict)) and k != "__builtins__":
            same(a[k], v)
        elif isinstance(v, torch.nn.Module):
            same(dict(a[k].state_dict()), dict(v.state_dict()))
    return run


def space():
    return {"__name__": "__main__", "torch": torch, "x": torch.linspace(0, 1, 6).reshape(2, 3), "n": 3}


def test_straight_cell():
    run = both(
        "y = torch.sin(x) * n\nz = [y, y + 1]\ndef f(v):\n    return v * 2\nw = f(y).sum()\nn += 1\ndel z[0]\n", space
    )
    assert not run.breaks and len(run.graphs) == 1


def test_cell_with_breaks():
    run = both(
        "y = torch.sin(x)\ns = int(y.sum())\nif y.mean() > 0:\n    y = y + s\nelse:\n    y = y - s\nz = y * 2\n", space
    )
    assert [b.kind for b in run.breaks] == ["item", "data_dependent_branch"]
    assert [b.line for b in run.breaks] == [2, 3]
    assert len(run.graphs) >= 2


def test_top_level_loop():
    run = both(
        "total = 0.0\nfor i in range(5):\n    x = torch.tanh(x) + i\n    total += x.sum().item()\ny = x * 2\n", space
    )
    assert run.breaks[0].line == 4 and run.graphs


TRAIN = """
losses = []
for epoch in range(2):
    for batch, target in data:
        optimizer.zero_grad()
        out = model(batch)
        loss = torch.nn.functional.mse_loss(out, target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


def training_space():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    data = [(torch.randn(5, 3), torch.randn(5, 1)) for _ in range(3)]
    return {
        **space(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5),
        "data": data,
    }


def test_training_loop_in_a_cell():
    run = both(TRAIN, training_space)
    forward = [g for g in run.graphs if any("mse_loss" in str(n.target) for n in g.graph_module.graph.nodes)]
    assert forward, "forward and loss are captured"
    assert len(run.captures) < 40
    assert any("backward" in str(n.target) for g in forward for n in g.graph_module.graph.nodes), (
        "and the step with them, once an iteration"
    )
    assert {b.kind for b in run.breaks} == {"optimizer"}  # each iteration reads its loss after its graph


def test_training_with_a_data_loader():
    def make():
        ns = training_space()
        xs, ys = torch.arange(24.0).reshape(8, 3) / 24, torch.arange(8.0).reshape(8, 1)
        ns["data"] = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(xs, ys), batch_size=4)
        return ns

    run = both(TRAIN, make)
    assert any("mse_loss" in str(n.target) for g in run.graphs for n in g.graph_module.graph.nodes)


def library_train(model, optimizer, data):
    model.train()
    history = []
    for batch, target in data:
        optimizer.zero_grad(set_to_none=True)
        loss = (model(batch) - target).square().mean()
        loss.backward()
        optimizer.step()
        history.append(float(loss.detach()))
    return history


def test_training_function():
    a, b = training_space(), training_space()
    run = Runner()
    for _ in range(2):
        same(
            run(library_train, a["model"], a["optimizer"], a["data"]),
            library_train(b["model"], b["optimizer"], b["data"]),
        )
    assert run.graphs
    assert isinstance(library_train, types.FunctionType)
