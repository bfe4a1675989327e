import pytest

import tcompile


@pytest.fixture(autouse=True)
def whole_searches(monkeypatch):
    """As long as users have them: what is tried and kept depends on it."""
    monkeypatch.setitem(tcompile.config._values, "autotune_seconds", 2.0)
