"""`importlib.util.find_spec` in captured code: a guard, asked again where what Python finds may be another."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest
import torch

import tcompile

NAME = "tcompile_some_package"
X = torch.ones(3)


def fn(x):
    known = importlib.util.find_spec("json") is not None
    return x * (2 if known and importlib.util.find_spec(NAME) is not None else 3)


def test_a_package_that_comes_and_goes(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    compiled, captured = tcompile.compile(fn, fullgraph=True), []
    with tcompile.compiler.events.listen(lambda e: captured.append(e) if e.kind == "graph" else None):
        for _ in range(2):
            torch.testing.assert_close(compiled(X), X * 3)
        assert len(captured) == 1
        (tmp_path / f"{NAME}.py").write_text("")
        torch.testing.assert_close(compiled(X), X * 2)
        (tmp_path / f"{NAME}.py").unlink()
        torch.testing.assert_close(compiled(X), X * 3)


def test_a_module_without_a_spec_raises_as_in_eager(monkeypatch):
    compiled = tcompile.compile(fn)
    torch.testing.assert_close(compiled(X), X * 3)
    monkeypatch.setitem(sys.modules, NAME, types.ModuleType(NAME))
    for call in (fn, compiled):
        with pytest.raises(ValueError, match="__spec__ is None"):
            call(X)
    monkeypatch.delitem(sys.modules, NAME)
    torch.testing.assert_close(compiled(X), X * 3)
