"""Gradients of every operator of op_db that has them, through compiled code: against eager, and against float64 where
they differ.

    python -m tests.ops.gradients [--names add,mul] [--backend tcompile] [--limit 2] [--part 0/4]

Prints a line for each operator that is wrong or not compiled, and a summary; the exit status tells whether any is
wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from typing import Any

import torch

import tcompile

from ..oracles.opdb import op_infos, samples
from .test_gradients import gradients

TOLERANCE = {"rtol": 1e-3, "atol": 1e-4}


def close(a: Any, b: Any) -> bool:
    return (a is None) == (b is None) and (
        a is None or a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True, **TOLERANCE)
    )


def exact(s: Any) -> list | None:
    """The gradients in float64, None where eager has none there."""
    try:
        return gradients(s.fn, [t.double() if t.is_floating_point() else t for t in s.tensors], True)[1]
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return None


def error(got: list, true: list) -> float:
    return max(
        (
            float((g.double() - t).abs().nan_to_num(0).max())
            for g, t in zip(got, true)
            if g is not None and t is not None and g.numel()
        ),
        default=0.0,
    )


def operator(info: Any, backend: str, limit: int) -> tuple[str, str]:
    """(right | refused | wrong | none, why)"""
    n = 0
    for s in samples(info, torch.float32, spread=True):
        try:
            want = gradients(s.fn, s.tensors, True)[1]
        except (RuntimeError, ValueError, TypeError, NotImplementedError):  # samples that eager has no gradient for
            continue
        if all(g is None for g in want):
            continue
        tcompile.reset()
        try:
            got = gradients(tcompile.compile(s.fn, backend=backend), s.tensors, True)[1]
        except Exception as e:
            return "wrong", f"{s.text}: {type(e).__name__}: {str(e)[:200]}"
        if not all(close(g, w) for g, w in zip(got, want)):
            true = exact(s)
            if true is None or error(got, true) > 2 * error(want, true) + 1e-4:
                return "wrong", f"{s.text}: gradients differ"
        n += 1
        if n == limit:
            break
    return ("right", "") if n else ("none", "")


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("--names", default="")
    p.add_argument("--backend", default="tcompile")
    p.add_argument("--limit", type=int, default=2)
    p.add_argument("--part", default="0/1")
    p.add_argument("--seconds", type=float, default=1e9, help="stop after these")
    options = p.parse_args()
    warnings.simplefilter("ignore")
    k, of = map(int, options.part.split("/"))
    infos = op_infos()
    names = (
        options.names.split(",")
        if options.names
        else [n for n, i in sorted(infos.items()) if i.supports_autograd][k::of]
    )
    results: Counter = Counter()
    end = time.monotonic() + options.seconds
    for name in names:
        if time.monotonic() > end:
            results["not reached"] += 1
            continue
        result, why = operator(infos[name], options.backend, options.limit)
        results[result] += 1
        if result == "wrong":
            print(f"{name}: {why}", flush=True)
    print(f"{len(names)} operators: {dict(results)}")
    return int(results["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
