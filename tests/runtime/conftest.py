import pytest

import tcompile

from tcompile.compiler.runtime import cpu_kernels, toolchain


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty disk cache, and nothing loaded yet: for tests of what is compiled and kept."""
    monkeypatch.setitem(tcompile.config._values, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setenv("TCOMPILE_CACHE_DIR", str(tmp_path / "cache"))  # of processes that it starts
    monkeypatch.setattr(cpu_kernels, "_libraries", {})
    monkeypatch.setattr(toolchain, "_found", {})
    return tmp_path / "cache"
