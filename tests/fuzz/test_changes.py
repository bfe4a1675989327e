"""Fuzzer 2: random changes between calls; results equal eager's and nothing stale is ever served."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .changes import CHANGES
from .checks import check_changes

N = int(os.environ.get("TCOMPILE_FUZZ", "20"))
common = dict(deadline=None, suppress_health_check=list(HealthCheck), derandomize="TCOMPILE_FUZZ" not in os.environ)
sequences = st.lists(st.integers(0, len(CHANGES) - 1), min_size=1, max_size=6)


@settings(max_examples=N, **common)
@given(sequences)
def test_capture(changes):
    check_changes(changes, "eager")


@settings(max_examples=max(3, N // 4), **common)
@given(sequences)
def test_whole_compiler(changes):
    check_changes(changes, "tcompile")


@pytest.mark.parametrize("i", range(len(CHANGES)), ids=[c.__name__[:40] for c in CHANGES])
def test_each_change_is_noticed(i):
    """Each change alone, after two calls that made the entry."""
    check_changes([i, i], "eager")
