"""report.reproducer: files of graphs, kernels, wrong numbers and breaks that run by themselves."""

from __future__ import annotations

import operator

import pytest
import tcompile
import torch
import torch.nn as nn
from tcompile.compiler.reproduce import in_file
from tcompile.compiler.reproduce.literals import literal
from tcompile.compiler.reproduce.program_text import function_name
from tcompile.compiler.reproduce.specs import spec_of

from . import wrong_stage

BLOCK = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
FACTOR = 3.0


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        y = self.inner(x).relu()
        if y.sum() > 0:
            y = y * FACTOR
        return y.sin()


def run_here(text):
    """The program and inputs of a reproducer's text."""
    space = {"__name__": "reproducer"}
    exec(compile(text, "<reproducer>", "exec"), space)
    return space


@pytest.mark.slow
def test_a_graph_runs_by_itself_and_computes_what_it_computed():
    def f(x, i):
        return torch.softmax(BLOCK(x), -1)[:, i] * 2

    report = tcompile.explain(f)(torch.randn(5, 8), torch.tensor([0, 2]))
    made = report.reproducer(report.graphs[0])
    assert made.text == report.reproducer("graphs/0").text and made.kind == "graph"
    space = run_here(made.text)
    args = space["inputs"]()
    assert [(tuple(a.shape), a.dtype, a.requires_grad) for a in args[:2]] == [
        ((5, 8), torch.float32, False),
        ((16, 8), torch.float32, True),
    ]
    assert args[-1].tolist() == [0, 2]  # few whole numbers are kept: they may be indices
    with torch.no_grad():
        for mine, weight in zip(args[1:7], BLOCK.parameters()):
            weight.copy_(mine)
    torch.testing.assert_close(space["program"](*args)[0], f(args[0], args[-1]))
    done = made.run()
    assert done.status == 0 and "does not appear" in done.output


def test_every_kernel_has_its_operations():
    report = tcompile.explain(BLOCK)(torch.randn(5, 8))
    for k, kernel in enumerate(report.kernels):
        made = report.reproducer(f"kernels/{k}")
        assert made.nodes >= len(kernel.origins) and made.kind == "kernel"
        space = run_here(made.text)
        with torch.no_grad():
            assert all(isinstance(o, torch.Tensor) for o in space["program"](*space["inputs"]()))


def test_writes_sizes_that_vary_and_several_results():
    def f(x, n):
        y = x.view(-1, 2)
        y.add_(1)
        x[0] = 3
        return y[:n], torch.topk(x, 2)

    report = tcompile.explain(f, dynamic=True)(torch.randn(6), 2)
    space = run_here(report.reproducer("graphs/0").text)
    kind, words = in_file.compare_with_eager(tcompile, space["program"], space["inputs"], space["HOW"], space["SEED"])
    assert (kind, words) == ("same", "") and "dynamic" in space["HOW"]


def same_as_eager(made):
    space = run_here(made.text)
    return in_file.compare_with_eager(tcompile, space["program"], space["inputs"], space["HOW"], space["SEED"])


def test_a_training_step_with_its_optimizer():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    x, y = torch.randn(4, 8), torch.tensor([0, 1, 2, 1])
    step(x, y)
    report = tcompile.explain(step)(x, y)
    made = report.reproducer("graphs/0")
    assert "torch.autograd.grad(" in made.text and same_as_eager(made) == ("same", "")
    squares = [s for s in report.graphs[0].specs if "exp_avg_sq" in s.name]
    assert squares and all(s.make().min() >= 0 for s in squares)  # else their roots would be NaN


def test_checkpoint_and_cond_have_functions_of_their_own():
    def f(x):
        y = torch.utils.checkpoint.checkpoint(lambda z: z.sin().exp(), x, use_reentrant=False)
        return y.sum()

    def g(x):
        return torch.cond(x.sum() > 0, lambda z: z.sin(), lambda z: z.cos() + 1, (x,)) * 2

    for fn, x, words in (
        (f, torch.randn(4, requires_grad=True), "checkpoint_body_0"),
        (g, torch.randn(4), "cond_true_0"),
    ):
        made = tcompile.explain(fn)(x).reproducer("graphs/0")
        assert f"def {words}(" in made.text and same_as_eager(made) == ("same", "")


def test_autocast_around_a_call_and_inside_of_it():
    layer = nn.Linear(8, 8)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    with torch.autocast("cpu", torch.bfloat16):
        around = tcompile.explain(layer)(torch.randn(2, 8)).reproducer("graphs/0")
    for made in (around, tcompile.explain(f)(torch.randn(2, 8)).reproducer("graphs/0")):
        space = run_here(made.text)
        assert space["program"](*space["inputs"]())[0].dtype is torch.bfloat16
        assert same_as_eager(made) == ("same", "")


def test_a_wrong_number_leads_to_its_cone():
    def f(x):
        return torch.tanh(x * 3).exp() + 1

    with tcompile.stages.replace("lowering", wrong_stage.tanh_as_sin):
        report = tcompile.explain(f, check=True)(torch.randn(50))
        first = next(row for row in report.numerics if row.verdict == "diverges")
        made = report.reproducer(first)
        space = run_here(made.text)
        kind, _ = in_file.compare_with_eager(tcompile, space["program"], space["inputs"], space["HOW"], space["SEED"])
    assert made.nodes == 2 and "aten.tanh" in made.text and kind == "differs"


def test_a_break_comes_with_all_that_the_function_refers_to():
    model = Branching()

    def f(x):
        return model(x) + FACTOR

    report = tcompile.explain(f)(torch.randn(3, 4))
    made = report.reproducer(report.graph_breaks[0])
    assert "class Branching" in made.text and "FACTOR = 3.0" in made.text
    done = made.run()
    assert done.status == 1 and "branch depends on the value" in done.output, done.output


def test_what_has_no_text_is_refused_by_name(tmp_path):
    report = tcompile.explain(torch.sin)(torch.randn(3))
    for what, words in ((3, "got int"), ("kernels/9", "no 'kernels/9'"), ("lines/0", "a reference is")):
        with pytest.raises(tcompile.ReproduceError, match=words):
            report.reproducer(what)
    path = report.save(str(tmp_path / "r.json"))
    loaded = tcompile.CompileReport.from_json(open(path).read())
    with pytest.raises(tcompile.ReproduceError, match="loaded from a file"):
        loaded.reproducer("graphs/0")
    with pytest.raises(tcompile.ReproduceError, match="plain tensors only"):
        spec_of("x", torch.eye(2).to_sparse()).text()


@pytest.mark.parametrize(
    "value",
    [
        *(torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(1, 4).expand(3, 4), torch.zeros(0, 2)),
        *(torch.randn(4, dtype=torch.bfloat16), torch.randn(3, dtype=torch.complex64), torch.arange(70)),
        *(torch.tensor(5), torch.ones(3, dtype=torch.bool), torch.randn(6)[::2]),
    ],
    ids=lambda v: f"{v.dtype}{list(v.shape)}{v.stride()}",
)
def test_inputs_have_their_layout_and_where_asked_their_values(value):
    made = spec_of("x", value, statistics=True).make()
    assert (made.shape, made.stride(), made.dtype) == (value.shape, value.stride(), value.dtype)
    assert torch.equal(spec_of("x", value, exact=True).make(), value)


@pytest.mark.parametrize(
    "value", [1.5, float("inf"), (1,), [slice(None, 2), ...], {"a": {1}}, torch.float16, torch.Size([2]), 1 - 2j, b"x"]
)
def test_literals_mean_the_value_again(value):
    assert eval(literal(value), {"torch": torch}) == value


@pytest.mark.parametrize(
    "target",
    [torch.relu, torch.nn.functional.gelu, operator.add, torch.ops.aten.add.Tensor, torch.Tensor.add_, getattr, len],
)
def test_names_of_functions_lead_to_them(target):
    imports: set[str] = set()
    text = function_name(target, imports)
    assert eval(text, {"torch": torch, "operator": operator}) is target


def test_a_difference_is_more_than_rounding():
    x = torch.randn(1000)
    plain, off = [x.exp()], [x.exp() * (1 + 1e-4)]
    exact = [x.double().exp()]
    assert in_file.difference_in_words([x.double().exp().float()], plain, exact) == ""
    assert "largest difference" in in_file.difference_in_words(off, plain, exact)
    assert "NaN" in in_file.difference_in_words([x.log()], plain, exact)
    assert "values differ" in in_file.difference_in_words([x > 1], [x > 0], [x > 0])
