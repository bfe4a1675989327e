"""Fuzzer 1: random programs give compiled what they give eager, call after call."""
from __future__ import annotations

import os

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tcompile

from .oracle import identities, load, observe, same, tensors
from .programs import programs

N = int(os.environ.get("TCOMPILE_FUZZ", "25"))


def inputs(seed: int, layout: str) -> tuple:
    """Three tensors: apart, the first twice, or the third a view that shares the first one's memory."""
    g = torch.Generator().manual_seed(seed)
    a, b, c = (torch.randn(4, 3, generator=g) for _ in range(3))
    if layout == "same":
        return a, b, a
    if layout == "overlap":
        base = torch.randn(7, 3, generator=g)
        return base[:4], b, base[2:6]
    if layout == "strided":
        return a.t().contiguous().t(), torch.cat([b, c], 1)[:, ::2], c
    return a, b, c


def check(source: str, backend: str, layout: str = "apart", grad: bool = False) -> None:
    """The same calls eager and compiled: values, exceptions, prints, arguments and globals afterwards, identities, gradients."""
    eager, other = load(source), load(source)
    compiled = tcompile.compile(other["f"], backend=backend)
    for call, n in enumerate((3, 3, 0, 1, 4, 3)):
        at = "apart" if call % 3 == 2 else layout          # entries for one layout must not serve the other
        seen = []
        for f, ns in ((eager["f"], eager), (compiled, other)):
            roots = [t.detach().clone() for t in inputs(call, "apart")]
            args = inputs(call, at)
            if grad:
                for r in roots:
                    r.requires_grad_()
                args = tuple(r * 1 for r in roots)
            box = {"list": [0]}
            out = observe(f, (*args, n, box), ns)
            out["count"] = ns.get("COUNT")
            if grad:
                total = sum((t.float().clamp(-50, 50).sum() for t in tensors(out.get("value")) if t.requires_grad), torch.zeros(()))
                if total.requires_grad:
                    total.backward()
                out["grad"] = [r.grad for r in roots]
            seen.append(out)
        want, got = seen
        try:
            same(want, got, f"call {call}")
            parts = ("value", "args")
            assert identities([want.get(p) for p in parts]) == identities([got.get(p) for p in parts]), f"call {call}: identities differ"
        except AssertionError as e:
            raise AssertionError(f"{layout} grad={grad} {e}\n{source}") from None


layouts = st.sampled_from(["apart", "apart", "same", "overlap", "strided"])
grads = st.sampled_from([False, False, False, True])
common = dict(deadline=None, suppress_health_check=list(HealthCheck), print_blob=False, derandomize="TCOMPILE_FUZZ" not in os.environ)


@settings(max_examples=N, **common)
@given(programs(), layouts, grads)
def test_capture(source, layout, grad):
    """Capture alone: the captured graphs run by torch."""
    check(source, "eager", layout, grad)


@settings(max_examples=max(3, N // 3), **common)
@given(programs(), layouts, grads)
def test_whole_compiler(source, layout, grad):
    check(source, "tcompile", layout, grad)
