"""`from package import part` inside of what is compiled: a part that nobody imported yet is a module to import."""

import importlib
import sys

import pytest
import torch

import tcompile


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of which nothing but itself is imported."""
    folder = tmp_path / "tc_parts"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "__all__ = ['listed']\ndef __getattr__(name):\n    if name == 'lazy':\n        return 7\n    raise AttributeError(name)\n"
    )
    for name in ("one", "two", "listed"):
        (folder / f"{name}.py").write_text("v = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] == "tc_parts"]:
        monkeypatch.delitem(sys.modules, name)
    tcompile.reset()
    yield importlib.import_module("tc_parts")
    for name in [n for n in sys.modules if n.partition(".")[0] == "tc_parts"]:
        del sys.modules[name]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_parts_are_imported(package, fullgraph):
    def f(x):
        y = x + 1
        from tc_parts import one, lazy
        from tc_parts import two as other

        return y * one.v * lazy * other.v

    compiled = tcompile.compile(f, fullgraph=fullgraph, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)).tolist() == [126, 126]
    assert package.one.v == 3
    package.one.v = 4
    assert compiled(torch.ones(2)).tolist() == [168, 168]


def test_what_is_no_part_is_an_import_error(package):
    def f(x):
        try:
            from tc_parts import nothing
        except ImportError as e:
            return x + 1, str(e), e.name, e.path
        return nothing

    compiled = tcompile.compile(f, backend="eager")
    for _ in range(2):
        got, want = compiled(torch.ones(2)), f(torch.ones(2))
        assert got[0].equal(want[0]) and got[1:] == want[1:]


def test_a_star_imports_what_the_package_lists(package):
    from tcompile.compiler import api
    from tcompile.compiler.config import Options

    space = {"x": torch.ones(2)}
    api.run_code(compile("from tc_parts import *\ny = x * listed.v", "<cell>", "exec"), space, Options.make())
    assert space["y"].tolist() == [3, 3]
