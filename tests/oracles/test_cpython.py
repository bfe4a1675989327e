"""A slice of CPython's own tests under the compiler; `make cpython` runs them all."""

from __future__ import annotations

import importlib.util

import pytest

from tcompile.compiler.runtime import frame_hook

from .cpython import Run, compare, run


def has_tests() -> bool:
    """Whether this Python came with its `test` package: some distributions leave it out."""
    try:
        return importlib.util.find_spec("test.test_grammar") is not None
    except ImportError:
        return False


pytestmark = [
    pytest.mark.skipif(not frame_hook.available(), reason="the C extension is not built"),
    pytest.mark.skipif(not has_tests(), reason="this Python comes without its tests"),
]


@pytest.mark.parametrize("mode,module", [("enabled", "test_with"), ("forced", "test_grammar")])
def test_slice(mode, module):
    plain = run(module, "plain", 120)
    assert plain.outcomes and not plain.end
    compiled = run(module, mode, 240)
    assert compare(plain, compiled) == []
    assert mode == "enabled" or compiled.counts["entry"] > 50


def test_a_difference_is_told():
    plain = Run("m", "plain", outcomes={"a": "ok", "b": "skipped"})
    assert compare(plain, Run("m", "forced", outcomes={"a": "FAIL", "b": "skipped"}, words={"a": "why"})) == [
        "a (forced): ok plain, FAIL compiled\nwhy"
    ]
    assert (
        "exit status -11, in b"
        in compare(plain, Run("m", "forced", outcomes={"a": "ok"}, end="exit status -11, in b"))[0]
    )
    assert compare(Run("m", "plain", end="no such module"), Run("m", "forced", end="no such module")) == []


def test_a_module_that_is_not_there_is_told():
    assert "exit status 3" in run("test_that_does_not_exist", "plain", 60).end
