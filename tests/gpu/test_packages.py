"""Packages on a GPU: the programs of tests/export/packaged.py, in Python and in C++, give what eager gives."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
import torch.nn as nn

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

import tcompile  # noqa: E402

from ..export.packaged import PROGRAMS, leaves  # noqa: E402
from ..export.test_package import same  # noqa: E402
from ..export import test_package_cpp as cpp  # noqa: E402

pytestmark = pytest.mark.gpu
needs_cpp = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def on_gpu(x):
    if isinstance(x, (torch.Tensor, nn.Module)):
        return x.cuda()
    if isinstance(x, dict):
        return {k: on_gpu(v) for k, v in x.items()}
    return type(x)(on_gpu(v) for v in x) if isinstance(x, (list, tuple)) else x


def made(name):
    p = PROGRAMS[name]
    torch.manual_seed(0)
    program = p.make()
    if isinstance(program, nn.Module):
        program = program.cuda()
    return p, program, copy.deepcopy(program), [on_gpu(a) for a in (p.args(), *p.others())]


def options(p):
    return {k: v for k, v in p.options.items() if k != "cpu_products"}


call, library, runner = cpp.call, cpp.library, cpp.runner  # (the last two are fixtures)
NAMES = [n for n in PROGRAMS if n != "drawn"]  # (torch.rand without a device draws on the CPU)


@pytest.mark.parametrize("name", NAMES)
def test_in_python(name, tmp_path):
    p, program, eager, calls = made(name)
    exported = tcompile.export(program, copy.deepcopy(calls[0]), dynamic=p.dynamic)
    exported.package(tmp_path / "p", options=options(p))
    loaded = tcompile.load_package(tmp_path / "p", trusted=True)
    with torch.no_grad():
        for args in [calls[0], *calls]:
            mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
            want = eager(*theirs)
            close(loaded(*mine), want)
            close(mine, theirs)


def close(got, want):
    got, want = leaves(got), leaves(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        if isinstance(w, torch.Tensor):
            torch.testing.assert_close(g, w, rtol=1e-2, atol=1e-3)
        else:
            assert g == w


def test_random_numbers_are_eagers(tmp_path):
    def f(x):
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64, 33, device="cuda")
    tcompile.export(f, (x,)).package(tmp_path / "p")
    loaded = tcompile.load_package(tmp_path / "p", trusted=True)
    for seed in (0, 1):
        torch.manual_seed(seed)
        got = [loaded(x), loaded(x), torch.rand(3, device="cuda")]
        torch.manual_seed(seed)
        same(got, [f(x), f(x), torch.rand(3, device="cuda")])


def test_odd_addresses(tmp_path):
    def f(x):
        return torch.softmax(x, -1) * 2

    memory = torch.randn(1 + 16 * 40, device="cuda")
    x = memory[1:].view(16, 40)
    tcompile.export(f, (torch.randn(16, 40, device="cuda"),)).package(tmp_path / "p")
    loaded = tcompile.load_package(tmp_path / "p", trusted=True)
    close(loaded(x), f(x))
    close(loaded(x.clone()), f(x))


def test_a_tensor_on_the_cpu_is_refused(tmp_path):
    tcompile.export(lambda x: x + 1, (torch.randn(4, device="cuda"),)).package(tmp_path / "p")
    with pytest.raises(tcompile.ExportError, match="argument `x`: expected a tensor on cuda, got one on cpu"):
        tcompile.load_package(tmp_path / "p", trusted=True)(torch.randn(4))


@pytest.mark.parametrize("name", [n for n in NAMES if PROGRAMS[n].flat])
@needs_cpp
def test_in_cpp(name, runner, tmp_path):
    p, program, eager, calls = made(name)
    exported = tcompile.export(program, copy.deepcopy(calls[0]), dynamic=p.dynamic)
    exported.package(tmp_path / "p", options=options(p))
    answers, state = call(runner, tmp_path / "p", calls, tmp_path)
    with torch.no_grad():
        for args, (results, arguments) in zip(calls, answers, strict=True):
            mine = copy.deepcopy(args)
            want = eager(*mine)
            close(results, want)
            close(arguments, list(mine))
    if isinstance(eager, nn.Module):
        states = {k: v for k, v in state}
        for key, value in eager.state_dict().items():
            close(states[key], value)


@needs_cpp
def test_random_numbers_in_cpp(runner, tmp_path):
    def f(x):
        return nn.functional.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64, 33, device="cuda")
    tcompile.export(f, (x,)).package(tmp_path / "p")
    answers, _ = call(runner, tmp_path / "p", [(x,)], tmp_path, seed=5)
    torch.manual_seed(5)
    close(answers[0][0], [f(x)])
