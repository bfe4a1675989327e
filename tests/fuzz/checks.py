"""The two oracles: one random program called eager and compiled, and one sequence of changes to two equal worlds."""

from __future__ import annotations

import torch

import tcompile

from . import objects
from .changes import CHANGES, World
from .oracle import identities, load, observe, same, tensors

__all__ = ["check_program", "check_changes", "LAYOUTS"]

LAYOUTS = ("apart", "apart", "same", "overlap", "strided")
WRITTEN_OVER = "one of the variables needed for gradient computation"
CALLS = ((3, 0.5), (3, 0.5), (0, -1.0), (1, 2.0), (4, 0.5), (3, 1.5))


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


def check_program(
    source: str,
    backend: str,
    layout: str = "apart",
    grad: bool = False,
    calls: tuple[int, ...] = tuple(range(len(CALLS))),
) -> None:
    """The same calls (numbers of CALLS, in turn) eager and compiled: values, exceptions and their lines, prints,
    arguments and globals afterwards, identities, gradients.
    """
    eager, other = load(source), load(source)
    compiled = tcompile.compile(other["f"], backend=backend)
    for call in calls:
        n, s = CALLS[call]
        at = "apart" if call % 3 == 2 else layout  # entries for one layout must not serve the other
        seen = []
        for f, ns in ((eager["f"], eager), (compiled, other)):
            roots = [t.detach().clone() for t in inputs(call, "apart")]
            args = inputs(call, at)
            if grad:
                for r in roots:
                    r.requires_grad_()
                args = tuple(r * 1 for r in roots)
            out = observe(f, (*args, n, s, {"list": [0]}), ns)
            if grad:
                try:
                    total = sum(
                        (t.float().clamp(-50, 50).sum() for t in tensors(out.get("value")) if t.requires_grad),
                        torch.zeros(()),
                    )
                    if total.requires_grad:
                        total.backward()
                except RuntimeError as e:  # a saved tensor, or the base of a view made under no_grad, was written over
                    out["backward"] = str(e)[:60]
                out["grad"] = [r.grad for r in roots]
            seen.append(out)
        want, got = seen
        if backend != "eager" and WRITTEN_OVER in want.get("backward", "") and "backward" not in got:
            for out in seen:  # of what the passes read, compiled code kept something that was not written over
                out.pop("backward", None), out.pop("grad")
        try:
            same(want, got, f"call {call}")
            parts = ("value", "args")
            assert identities([want.get(p) for p in parts]) == identities([got.get(p) for p in parts]), (
                f"call {call}: identities differ"
            )
        except AssertionError as e:
            raise AssertionError(f"{layout} grad={grad} {e}\n{source}") from None


def check_changes(changes: list[int], backend: str) -> None:
    """`changes` are numbers of CHANGES, done in turn between calls."""
    options = {"recompile_limit": 64}
    eager, compiled = World(lambda f: f), World(lambda f: tcompile.compile(f, backend=backend, options=options))
    done = []
    try:
        for seed, i in enumerate([None, *changes]):
            if i is not None:
                done.append(CHANGES[i].__name__)
                results = []
                for w in (eager, compiled):
                    torch.manual_seed(seed)  # new layers get the same weights in both worlds
                    try:
                        CHANGES[i](w)
                        results.append(None)
                    except Exception as e:
                        results.append(type(e).__name__)
                assert results[0] == results[1], f"the change itself differs: {done}: {results}"
            want, got = eager.run(seed), compiled.run(seed)
            try:
                same(want, got, rtol=eager.rounding(), scaled=True)
            except AssertionError as e:
                raise AssertionError(f"after {done}: {e}") from None
    finally:
        objects.restore()
