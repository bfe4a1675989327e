"""Fuzzer 1: random programs give compiled what they give eager, call after call."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .checks import LAYOUTS, check_program
from .programs import programs

N = int(os.environ.get("TCOMPILE_FUZZ", "25"))
layouts = st.sampled_from(LAYOUTS)
grads = st.sampled_from([False, False, False, True])
common = dict(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    derandomize="TCOMPILE_FUZZ" not in os.environ,
)


@settings(max_examples=N, **common)
@given(programs(), layouts, grads)
def test_capture(source, layout, grad):
    """Capture alone: the captured graphs run by torch."""
    check_program(source, "eager", layout, grad)


@settings(max_examples=max(3, N // 3), **common)
@given(programs(), layouts, grads)
def test_whole_compiler(source, layout, grad):
    check_program(source, "tcompile", layout, grad)
