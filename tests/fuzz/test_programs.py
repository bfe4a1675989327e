"""Fuzzer 1: random programs give compiled what they give eager, call after call."""
from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, given, settings

import tcompile

from .oracle import identities, load, observe, same
from .programs import programs

N = int(os.environ.get("TCOMPILE_FUZZ", "25"))


def inputs(seed: int) -> tuple:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, generator=g), torch.randn(4, 3, generator=g)


def check(source: str, backend: str) -> None:
    eager, other = load(source), load(source)
    compiled = tcompile.compile(other["f"], backend=backend)
    for call, n in enumerate((3, 3, 0, 1, 4, 3)):
        a, b = inputs(call)
        want = observe(eager["f"], (a.clone(), b.clone(), n), eager)
        got = observe(compiled, (a.clone(), b.clone(), n), other)
        try:
            same(want, got, f"call {call}")
            assert identities([want.get("value"), want["args"]]) == identities([got.get("value"), got["args"]]), f"call {call}: identities differ"
        except AssertionError as e:
            raise AssertionError(f"{e}\n{source}") from None


common = dict(deadline=None, suppress_health_check=list(HealthCheck), print_blob=False, derandomize="TCOMPILE_FUZZ" not in os.environ)


@settings(max_examples=N, **common)
@given(programs())
def test_capture(source):
    """Capture alone: the captured graphs run by torch."""
    check(source, "eager")


@settings(max_examples=max(3, N // 3), **common)
@given(programs())
def test_whole_compiler(source):
    check(source, "tcompile")
