"""Fuzzer 2: random changes between calls; results equal eager's and nothing stale is ever served."""
from __future__ import annotations

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcompile

from .changes import CHANGES, World
from .oracle import same

N = int(os.environ.get("TCOMPILE_FUZZ", "20"))


@pytest.fixture(autouse=True)
def _float32():
    yield
    torch.set_default_dtype(torch.float32)


def check(changes: list[int], backend: str) -> None:
    options = {"recompile_limit": 64}
    eager, compiled = World(lambda f: f), World(lambda f: tcompile.compile(f, backend=backend, options=options))
    done = []
    for seed, i in enumerate([None, *changes]):
        if i is not None:
            done.append(CHANGES[i].__name__)
            results = []
            for w in (eager, compiled):
                torch.manual_seed(seed)          # new layers get the same weights in both worlds
                try:
                    CHANGES[i](w)
                    results.append(None)
                except Exception as e:
                    results.append(type(e).__name__)
            assert results[0] == results[1], f"the change itself differs: {done}: {results}"
        want, got = eager.run(seed), compiled.run(seed)
        try:
            same(want, got)
        except AssertionError as e:
            raise AssertionError(f"after {done}: {e}") from None


common = dict(deadline=None, suppress_health_check=list(HealthCheck), derandomize="TCOMPILE_FUZZ" not in os.environ)
sequences = st.lists(st.integers(0, len(CHANGES) - 1), min_size=1, max_size=6)


@settings(max_examples=N, **common)
@given(sequences)
def test_capture(changes):
    try:
        check(changes, "eager")
    finally:
        torch.set_default_dtype(torch.float32)


@settings(max_examples=max(3, N // 4), **common)
@given(sequences)
def test_whole_compiler(changes):
    try:
        check(changes, "tcompile")
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("i", range(len(CHANGES)), ids=[c.__name__[:40] for c in CHANGES])
def test_each_change_is_noticed(i):
    """Each change alone, after two calls that made the entry."""
    check([i, i], "eager")
