"""Packages in C++: the same programs, called by a program of C++ alone, give what eager gives."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import tcompile
import torch
import torch.nn as nn

from .packaged import PROGRAMS, leaves, mlp
from .test_package import rewrite, same

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]


def compiled(source: Path, out: Path, *more: str) -> Path:
    """One C++ source as an object file, against the headers of this Python's torch; no warnings of ours."""
    folders = (tcompile.cpp_path(), TORCH / "include", TORCH / "include/torch/csrc/api/include")
    flags = ("-std=c++20", "-O0", "-fopenmp", "-Wall", "-Wextra", "-Wno-unused-parameter", *more)
    run("g++", *flags, f"-I{folders[0]}", *(f"-isystem{f}" for f in folders[1:]), "-c", str(source), "-o", str(out))
    return out


def linked(out: Path, *objects: Path, gpu: bool = False) -> Path:
    libraries = ("-ltorch", "-ltorch_cpu", *(("-ltorch_cuda", "-lc10_cuda") if gpu else ()), "-lc10", "-ldl")
    where = (f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-Wl,--no-as-needed")
    run("g++", "-fopenmp", *map(str, objects), "-o", str(out), *where, *libraries)
    return out


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0 and "export/cpp" not in done.stderr, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The library of packages, compiled once."""
    out = tmp_path_factory.mktemp("library") / "tcompile_package.o"
    return compiled(Path(tcompile.cpp_path()) / "tcompile_package.cpp", out)


@pytest.fixture(scope="session")
def runner(library, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runner")
    main = compiled(HERE / "runner.cpp", folder / "runner.o")
    return linked(folder / "runner", library, main, gpu=torch.cuda.is_available())


def test_the_guides_example_runs(library, tmp_path):
    text = (HERE.parents[1] / "docs" / "guide" / "it-must-ship.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```cpp\n(.*?)^```", text, re.S | re.M)
    (tmp_path / "app.cpp").write_text(example)
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 2)).eval()
    tcompile.export(net, (torch.randn(4, 8),), dynamic={"input": [0]}).package(tmp_path / "net.package")
    app = linked(tmp_path / "app", library, compiled(tmp_path / "app.cpp", tmp_path / "app.o"))
    done = subprocess.run([str(app)], capture_output=True, text=True, timeout=300, cwd=tmp_path, env={"PATH": ""})
    assert (done.returncode, done.stdout, done.stderr) == (0, "[9, 2]\n", "")


def call(runner, package, calls, tmp_path, seed=3):
    torch.save([[x.clone() if isinstance(x, torch.Tensor) else x for x in args] for args in calls], tmp_path / "in.pt")
    command = [str(runner), str(package), str(tmp_path / "in.pt"), str(tmp_path / "out.pt"), str(seed)]
    env = {**os.environ, "PATH": "", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return torch.load(tmp_path / "out.pt", weights_only=False)


@pytest.mark.parametrize("name", [name for name, p in PROGRAMS.items() if p.flat])
def test_as_eager(name, runner, tmp_path):
    p = PROGRAMS[name]
    torch.manual_seed(0)
    made = p.make()
    eager, first = copy.deepcopy(made), p.args()
    tcompile.export(made, copy.deepcopy(first), dynamic=p.dynamic).package(tmp_path / "p", options=p.options)
    calls = [first, first, *p.others()]
    answers, state = call(runner, tmp_path / "p", calls, tmp_path)
    for args, (results, arguments) in zip(calls, answers, strict=True):
        mine = copy.deepcopy(args)
        torch.manual_seed(3)
        with torch.no_grad():
            want = eager(*mine)
        same(results, want)
        same(arguments, leaves(mine))
    if isinstance(eager, nn.Module):
        states = {k: v for k, v in state}
        for key, value in eager.state_dict().items():
            same(states[key], value)


def test_leaves_of_nested_arguments_are_its_arguments(runner, tmp_path):
    p = PROGRAMS["nested"]
    args = p.args()
    tcompile.export(p.make(), args).package(tmp_path / "p")
    manifest = json.loads((tmp_path / "p" / "manifest.json").read_text())
    assert [a["name"] for a in manifest["arguments"]] == ["pair['a']", "pair['b'][0]"]
    assert [r[0] for r in manifest["results"]] == ["result['first']", "result['second']"]
    answers, _ = call(runner, tmp_path / "p", [leaves(args[0])], tmp_path)
    same(answers[0][0], p.make()(*args))


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.randn(4, 17), "argument `input`: expected size 16 in dimension 1, got 17"),
        (torch.randn(4, 16).double(), "argument `input`: expected Float, got Double"),
        (torch.randn(16), "argument `input`: expected 2 dimensions, got 1"),
        (torch.randn(1, 16), "argument `input`: expected a size of 2 or more, got 1"),
        (3, "argument `input`: expected a tensor, got Int"),
    ],
)
def test_arguments_that_do_not_fit(runner, tmp_path, x, words):
    tcompile.export(mlp(), (torch.randn(4, 16),), dynamic={"input": [0]}).package(tmp_path / "p")
    with pytest.raises(RuntimeError, match=words):
        call(runner, tmp_path / "p", [(x,)], tmp_path)


def test_other_strides(runner, tmp_path):
    net, x = mlp(), torch.randn(16, 4).t()
    tcompile.export(net, (torch.randn(4, 16),)).package(tmp_path / "p")
    answers, _ = call(runner, tmp_path / "p", [(x,)], tmp_path)
    same(answers[0][0], [net(x)])


def test_what_is_no_whole_package_is_refused(runner, tmp_path):
    x = torch.randn(4, 16)
    tcompile.export(mlp(), (x,)).package(tmp_path / "p")
    manifest = json.loads((tmp_path / "p" / "manifest.json").read_text())

    def refused(words):
        with pytest.raises(RuntimeError, match=words):
            call(runner, tmp_path / "p", [(x,)], tmp_path)

    rewrite(tmp_path / "p", {**manifest, "format": 0})
    refused("has format 0; this program reads format 1")
    rewrite(tmp_path / "p", {**manifest, "needs": {**manifest["needs"], "features": ["no_such_instruction"]}})
    refused("made for a processor with no_such_instruction, which this one lacks")
    rewrite(tmp_path / "p", manifest)
    assert call(runner, tmp_path / "p", [(x,)], tmp_path)
    weights = tmp_path / "p" / "weights.bin"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused("weights.bin is damaged, or of another package: its checksum does not match")
    weights.write_bytes(whole)
    kernel = next((tmp_path / "p" / "kernels").iterdir())
    kernel.write_bytes(kernel.read_bytes()[:-1])
    refused(f"is damaged: the checksum of kernels/{kernel.name} does not match")
    (tmp_path / "p" / "checksum").write_text("0" * 64)
    refused("is damaged: the checksum of its manifest does not match")
    shutil.rmtree(tmp_path / "p")
    refused("manifest.json is not there")


def test_a_transformer(runner, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=100
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    ids, mask = torch.randint(0, 100, (3, 12)), torch.ones(3, 12, dtype=torch.int64)
    mask[0, -2:] = 0
    dynamic = {"input_ids": [0], "attention_mask": [0]}
    program = tcompile.export(model, (), {"input_ids": ids, "attention_mask": mask}, dynamic=dynamic)
    program.package(tmp_path / "p")
    m = json.loads((tmp_path / "p" / "manifest.json").read_text())
    given = {"input_ids": ids, "attention_mask": mask}
    calls = [[given[a["name"]][:n] for a in m["arguments"]] for n in (3, 2)]
    answers, _ = call(runner, tmp_path / "p", calls, tmp_path)
    names = [r[0] for r in m["results"]]
    assert names[:2] == ["result['last_hidden_state']", "result['pooler_output']"]
    for n, (results, _) in zip((3, 2), answers):
        with torch.no_grad():
            want = model(input_ids=ids[:n], attention_mask=mask[:n])
        torch.testing.assert_close(results[0], want.last_hidden_state, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(results[1], want.pooler_output, rtol=1e-3, atol=1e-4)
