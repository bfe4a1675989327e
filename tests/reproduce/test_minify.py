"""tcompile.minify: a program with an injected fault becomes a few nodes, and the file shows the fault by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tcompile
import torch
from tcompile.compiler import stages

from . import wrong_stage

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def setup(name):
    return (
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.reproduce import wrong_stage\n"
        f"held = wrong_stage.put({name!r})"
    )


def program(x, w, b):
    """30 operators and more; one of them is tanh."""
    y = x
    for _ in range(5):
        y = (y @ w + b).relu() * 0.5
    z = torch.tanh(y.softmax(-1) + x).abs()
    for _ in range(3):
        z = (z + y).exp().log() - 0.1
    return z.sum(0), y.mean()


@pytest.fixture
def args():
    torch.manual_seed(0)
    return torch.randn(24, 32), torch.randn(32, 32) / 6, torch.randn(32)


def test_a_wrong_number_in_thirty_operators_becomes_one_node_or_few(args, tmp_path):
    path = tmp_path / "bug.py"
    assert tcompile.reproduce(program, args).nodes >= 30
    made = tcompile.minify(program, args, setup=setup("tanh_as_sin"), path=path)
    assert made.nodes <= 3 and "torch.tanh" in made.text
    assert made.verdict.startswith("differs") and path.read_text() == made.text
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "differs" in done.stdout, done.stderr
    path.write_text(made.text.replace("held = wrong_stage.put", "held = str"))  # without the fault: nothing to show
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_fault_of_this_process_alone_is_found_in_it(args):
    with stages.replace("lowering", wrong_stage.tanh_as_sin):
        made = tcompile.minify(program, args)
    assert made.nodes <= 3 and "setup=" in made.title


def test_a_crash_is_made_smaller_in_another_process():
    def f(x):
        return torch.erf(x.cos()).sum()

    made = tcompile.minify(f, (torch.randn(2, 2),), setup=setup("dies_of_erf"))
    assert made.nodes == 1 and made.verdict.startswith("crash") and "SIGABRT" in made.verdict
    assert made.run().status < 0


def test_an_error_of_the_compiler_keeps_its_type_and_gradients_go():
    def f(x, w):
        return (x @ w).sigmoid().cumsum(-1).sin()

    made = tcompile.minify(f, (torch.randn(6, 5), torch.randn(5, 4, requires_grad=True)), setup=setup("refuses_cumsum"))
    assert made.nodes == 1 and "cumsum" in made.text and "requires_grad=True" not in made.text.split("# ----")[0]
    assert made.verdict.startswith("raises") and "no loop for this" in made.verdict


def test_a_training_step_loses_its_writes_and_switches():
    layer = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        torch.tanh(y.float()).sum().backward()
        optimizer.step()
        return y.detach()

    made = tcompile.minify(step, (torch.randn(2, 4),), setup=setup("tanh_as_sin"))
    assert made.nodes <= 3 and "tanh" in made.text


def test_a_predicate_says_what_failing_is(args):
    def has_a_product(fn, inputs):
        with tcompile.config.patch(cpu_products="library"):  # on some processors it is a generated kernel
            return any("mm" in e.op for e in tcompile.explain(fn)(*inputs).externs)

    made = tcompile.minify(program, args, predicate=has_a_product)
    assert made.nodes == 1 and "@" in made.text


def test_what_does_not_fail_is_said(args):
    with pytest.raises(tcompile.ReproduceError, match="does not appear in the one graph.*agrees with eager"):
        tcompile.minify(lambda x: x.sin() + 1, (torch.randn(3),))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"seconds": 0}, "seconds is a number of seconds above 0"),
        ({"predicate": 3}, "predicate is a function"),
        ({"setup": ["import x"]}, "setup is lines of Python"),
    ],
)
def test_arguments_are_named_where_they_are_wrong(wrong, words):
    with pytest.raises(tcompile.ReproduceError, match=words):
        tcompile.minify(torch.sin, (torch.randn(2),), **wrong)
    with pytest.raises(tcompile.ReproduceError, match="tuple"):
        tcompile.minify(torch.sin, torch.randn(2))
