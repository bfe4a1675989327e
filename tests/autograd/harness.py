"""Programs with gradients, run eager and compiled: what they return must be the same, autograd's own facts included.

A program is a function of `compiled`, the identity or tcompile.compile; it returns tensors, gradients and plain values
to compare.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import tcompile
from tcompile.compiler import events

Program = Callable[[Callable], Any]
FALLBACKS = ("fallback", "break", "skip")


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_()


def randn(*shape: int, **kwargs: Any) -> torch.Tensor:
    return torch.randn(*shape, **kwargs)


def outcome(program: Program, compiled: Callable) -> Any:
    """What a program returns, or the exception that it raises."""
    torch.manual_seed(0)
    try:
        return program(compiled)
    except Exception as e:
        return e


def check(program: Program, quiet: bool, allowed: Sequence[str] = FALLBACKS, **options: Any) -> None:
    """Eager and compiled agree. quiet: and nothing ran by a fallback or broke the graph; else it may have done what is
    `allowed`.
    """
    want = outcome(program, lambda fn: fn)
    tcompile.reset()
    said: list[str] = []

    def hear(e: events.Event) -> None:
        if e.kind in FALLBACKS and "metadata rule" not in str(e.facts) and "eager kernel" not in str(e.facts):
            said.append(f"{e.kind} {e.facts}")

    events.subscribe(hear)
    try:
        got = outcome(program, functools.partial(tcompile.compile, **options))
    finally:
        events.unsubscribe(hear)
    same(want, got, "result")
    unwanted = [what for what in said if quiet or not what.startswith(tuple(allowed))]
    assert not unwanted, unwanted


def same(want: Any, got: Any, at: str) -> None:
    if isinstance(want, Exception) or isinstance(got, Exception):
        if type(want) is not type(got):
            raise AssertionError(f"eager gave {want!r:.300}, compiled {got!r:.500}") from (
                got if isinstance(got, Exception) else None
            )
    elif isinstance(want, torch.Tensor):
        assert isinstance(got, torch.Tensor), f"{at}: eager a tensor, here {got!r}"
        facts = ("shape", "dtype", "requires_grad", "is_leaf")
        assert [getattr(got, f) for f in facts] == [getattr(want, f) for f in facts], f"{at}: {facts}"
        if want.layout is torch.strided:
            assert got.stride() == want.stride(), f"{at}: strides {got.stride()}, eager's {want.stride()}"
        torch.testing.assert_close(
            got.detach(), want.detach(), equal_nan=True, rtol=1e-4, atol=1e-5, msg=lambda m: f"{at}: {m}"
        )
    elif isinstance(want, (list, tuple)):
        assert len(want) == len(got), at
        for i, (w, g) in enumerate(zip(want, got)):
            same(w, g, f"{at}[{i}]")
    elif isinstance(want, dict):
        assert list(want) == list(got), at
        for k in want:
            same(want[k], got[k], f"{at}[{k!r}]")
    else:
        assert want == got, f"{at}: eager {want!r}, here {got!r}"


class Programs:
    """The programs of one file. `@program` adds one that compiles as a whole, `@program.breaks` one that may fall back
    in part.
    """

    def __init__(self) -> None:
        self.params: list[Any] = []

    def __call__(self, f: Program) -> Program:
        self.params.append(pytest.param(f, True, id=f.__name__))
        return f

    def breaks(self, f: Program) -> Program:
        self.params.append(pytest.param(f, False, id=f.__name__))
        return f


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
