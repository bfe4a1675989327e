"""Packages in C++: the same programs, called by a program of C++ alone, give what eager gives."""

from __future__ import annotations

import copy
import json
import os
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

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def build(folder: Path, *more: str) -> Path:
    """runner.cpp with the package's library, against the libtorch in this Python's torch."""
    out = folder / "runner"
    libraries = ["-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    command = [
        *("g++", "-std=c++20", "-O0", "-fopenmp", "-Wall", "-Werror=return-type"),
        *(f"-I{p}" for p in (tcompile.cpp_path(), TORCH / "include", TORCH / "include/torch/csrc/api/include")),
        *(str(Path(tcompile.cpp_path()) / "tcompile_package.cpp"), str(HERE / "runner.cpp"), "-o", str(out)),
        *(f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", *more, *libraries),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    ours = [line for line in done.stderr.splitlines() if "export/cpp" in line and "warning" in line]
    assert not ours, "\n".join(ours)
    return out


@pytest.fixture(scope="session")
def runner(tmp_path_factory):
    return build(tmp_path_factory.mktemp("cpp"))


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
