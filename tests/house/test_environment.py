"""What tools/environment.py decides: which torch, which Triton beside it, which constraints for the rest."""

import re
import sys
from pathlib import Path

import pytest
import torch

from ..scripts import script

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment(monkeypatch, tmp_path):
    module = script("tools/environment.py")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return module


def test_the_constraints_of_packages_keep_the_torch_that_is_installed(environment, monkeypatch):
    monkeypatch.setattr(environment, "installed_torch", lambda: "2.11.0")
    pins = environment.constraints().read_text().splitlines()
    assert pins.count("torch==2.11.0") == 1 and not any(pin == f"torch=={environment.pinned_torch()}" for pin in pins)
    assert len(pins) == len((ROOT / "constraints.txt").read_text().splitlines())


def test_the_installed_torch_is_named_without_its_build(environment):
    assert re.fullmatch(r"[\d.]+", environment.installed_torch()) and torch.__version__.startswith(
        environment.installed_torch()
    )


@pytest.mark.parametrize(
    "release, triton",
    [
        ("2.11.0", "3.6.0"),
        ("2.12.1", "3.7.1"),
        ("2.13.0", "3.7.1"),
        ("2.14.1", "3.8.0"),
        ("2.15.0", "3.9.0"),
        ("2.99.0", "3.9.0"),
    ],
)
def test_triton_fits_torch(environment, release, triton):
    assert environment.triton_for(release) == f"triton=={triton}"


@pytest.mark.parametrize("version, wanted", [("", None), ("2.11.0", "torch==2.11.0")])
def test_the_torch_that_is_asked_for_is_installed(environment, monkeypatch, version, wanted):
    asked = []
    monkeypatch.setattr(environment, "pip", lambda *args: asked.append(args) or 0)
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    assert environment.main(["torch", f"--version={version}"]) == 0
    assert asked == [(wanted or f"torch=={environment.pinned_torch()}",)]


def test_where_pip_may_not_have_the_pinned_torch_the_newest_that_it_may_have_comes(environment, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(environment, "pip", lambda *args: asked.append(args) or "==" in args[-1])
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    assert environment.torch() == 0
    assert asked == [(f"torch=={environment.pinned_torch()}",), ("torch>=2.11",)]
    assert "the newest release that it has" in capsys.readouterr().out


def test_a_torch_that_cannot_be_had_is_said(environment, monkeypatch, capsys):
    monkeypatch.setattr(environment, "pip", lambda *args: 1)
    monkeypatch.setattr(environment, "reachable", lambda url: False)
    assert environment.torch("9.9.9") == 1
    assert "torch==9.9.9 cannot be installed" in capsys.readouterr().out
