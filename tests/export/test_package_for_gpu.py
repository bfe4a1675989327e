"""Packages for a GPU, made without one: what is in them. tests/gpu/test_packages.py runs some."""

from __future__ import annotations

import json

import pytest
import tcompile
import torch

pytest.importorskip("triton")

from tcompile.compiler.codegen.triton import gpu_target  # noqa: E402
from tcompile.compiler.codegen.triton.layout import GpuTarget  # noqa: E402


def packed(monkeypatch, f, args, path, dynamic=None):
    """As on a machine with an H100, whose tensors are looked at nowhere."""
    monkeypatch.setattr(gpu_target, "_device", lambda index: GpuTarget("cuda", 90, 32, 132))
    program = tcompile.export(f, args, dynamic=dynamic)
    for c in program.checks:
        if c.kind == "tensor":
            c.expected["device"] = "cuda"
    program.package(path)
    return json.loads((path / "manifest.json").read_text())


def test_cubins_and_how_they_are_launched(monkeypatch, tmp_path):
    m = packed(monkeypatch, lambda x: torch.softmax(x * 2, -1) + 1, (torch.randn(8, 300),), tmp_path / "p")
    assert m["needs"]["device"] == "cuda" and m["needs"]["arch"] == 90
    (kernel,) = m["kernels"]
    assert kernel["buffers"] == 2 and kernel["sizes"] == [] and len(kernel["forms"]) == 2
    for form in kernel["forms"]:
        for part in form["parts"]:
            assert (tmp_path / "p" / part["file"]).read_bytes().startswith(b"\x7fELF")
            assert part["threads"] % 32 == 0 and part["grid"] > 0
    assert set(m["files"]) == {p["file"] for form in kernel["forms"] for p in form["parts"]}
    assert m["arguments"][0]["device"] == "cuda"


def test_sizes_that_vary(monkeypatch, tmp_path):
    m = packed(monkeypatch, lambda x: x.sum(0), (torch.randn(64, 300),), tmp_path / "p", {"x": [0]})
    for kernel in m["kernels"]:
        assert kernel["sizes"] and kernel["forms"][0]["limits"]
        assert all(isinstance(p["grid"], (list, int)) for p in kernel["forms"][0]["parts"])


def test_products_are_torchs_calls(monkeypatch, tmp_path):
    m = packed(monkeypatch, lambda x, y: torch.relu(x @ y), (torch.randn(64, 32), torch.randn(32, 64)), tmp_path / "p")
    assert [name for name, _ in m["plan"]["operators"]] == ["aten::mm.out"]


def test_random_numbers_ask_for_the_generators_state(monkeypatch, tmp_path):
    m = packed(monkeypatch, lambda x: torch.nn.functional.dropout(x, 0.5), (torch.randn(64, 32),), tmp_path / "p")
    assert ["draw", ""] in m["plan"]["operators"]


def test_a_machine_without_gpu_says_so(monkeypatch, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    packed(monkeypatch, lambda x: x + 1, (torch.randn(8),), tmp_path / "p")
    with pytest.raises(tcompile.CacheFileError, match="was made for a GPU, and here is none"):
        tcompile.load_package(tmp_path / "p", trusted=True)
