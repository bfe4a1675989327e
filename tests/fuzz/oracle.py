"""Run a program eager and compiled on equal inputs and compare everything a user could see."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import linecache
import math
import sys
import traceback
from typing import Any, Callable

import torch

from tcompile.compiler.graph.torch_modes import autocast_nesting

from .prelude import namespace

_ids = itertools.count()


def load(source: str) -> dict[str, Any]:
    """Execute a program's text in a fresh namespace, with its lines known to tracebacks."""
    name = f"<fuzz {next(_ids)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    ns = namespace()
    exec(compile(source, name, "exec"), ns)
    return ns


def observe(f: Callable, args: tuple, ns: dict[str, Any]) -> dict[str, Any]:
    """What a call does: value or exception, printed text, arguments, globals and torch's modes afterwards."""
    out: dict[str, Any] = {}
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            out["value"] = f(*args)
        except Exception as e:
            kind, words = type(e).__name__, str(e).splitlines()[0][:60] if str(e) else ""
            out["error"] = (kind, words, type(e.__cause__).__name__, _line(e))
    out["printed"], out["args"], out["state"] = (
        text.getvalue(),
        args,
        [ns.get(name) for name in ("STATE", "COUNT", "COUNTS")],
    )
    out["modes"] = {
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast nesting": autocast_nesting(),
    }
    return out


def _line(e: BaseException) -> int | None:
    """The innermost line of the program in the traceback: where the user reads that it failed. CPython 3.11 itself is
    not sure about it for unbound locals (tests/capture/test_bytecode_fuzz.py)."""
    if sys.version_info < (3, 12) and isinstance(e, NameError) and str(e).startswith("cannot access "):
        return None
    lines = [at for frame, at in traceback.walk_tb(e.__traceback__) if frame.f_code.co_filename.startswith("<fuzz")]
    return lines[-1] if lines else None


def same(x: Any, y: Any, where: str = "result", rtol: float = 1e-4, atol: float = 1e-5, scaled: bool = False) -> None:
    """Raise AssertionError naming the first place where two observations differ. `scaled`: `rtol` is of a tensor's
    largest finite number, for results of sums that cancel; otherwise of each number."""
    if isinstance(x, torch.Tensor) or isinstance(y, torch.Tensor):
        assert isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor), (
            f"{where}: {type(x).__name__} and {type(y).__name__}"
        )
        assert x.dtype == y.dtype and x.shape == y.shape, (
            f"{where}: {x.dtype} {tuple(x.shape)} and {y.dtype} {tuple(y.shape)}"
        )
        assert x.requires_grad == y.requires_grad, f"{where}: requires_grad {x.requires_grad} and {y.requires_grad}"
        if not (x.layout is y.layout is torch.strided and torch.equal(x.detach(), y.detach())):
            # many times faster where all is well
            size = (
                x.detach().abs().nan_to_num(0, 0, 0).max().item()
                if scaled and x.is_floating_point() and x.numel()
                else 0.0
            )
            torch.testing.assert_close(
                y, x, rtol=rtol, atol=max(atol, rtol * size), equal_nan=True, msg=lambda m: f"{where}: {m}"
            )
    elif isinstance(x, float) and isinstance(y, float):
        assert math.isclose(x, y, rel_tol=rtol, abs_tol=atol) or (x != x and y != y), f"{where}: {x} and {y}"
    elif isinstance(x, dict):
        assert type(x) is type(y) and list(x) == list(y), f"{where}: keys {list(x)} and {list(y)}"
        for k in x:
            same(x[k], y[k], f"{where}[{k!r}]", rtol, atol, scaled)
    elif isinstance(x, (list, tuple)):
        assert type(x).__name__ == type(y).__name__ and len(x) == len(y), (
            f"{where}: {type(x).__name__}[{len(x)}] and {type(y).__name__}[{len(y)}]"
        )
        for i, (p, q) in enumerate(zip(x, y)):
            same(p, q, f"{where}[{i}]", rtol, atol, scaled)
    elif dataclasses.is_dataclass(x) and not isinstance(x, type):
        assert type(x).__name__ == type(y).__name__, f"{where}: {x!r} and {y!r}"
        same(vars(x), vars(y), where, rtol, atol, scaled)
    else:
        assert type(x) is type(y) and x == y, f"{where}: {x!r} and {y!r}"
    # identity among the parts is visible too: the same tensor twice must stay one object


def tensors(o: Any) -> list[torch.Tensor]:
    """The tensors in nested containers, in reading order."""
    if isinstance(o, torch.Tensor):
        return [o]
    if isinstance(o, dict):
        o = list(o.values())
    elif dataclasses.is_dataclass(o) and not isinstance(o, type):
        o = list(vars(o).values())
    return [t for v in o for t in tensors(v)] if isinstance(o, (list, tuple)) else []


def identities(o: Any) -> list[int]:
    """For each tensor in reading order, the position where the same object was first seen."""
    seen: dict[int, int] = {}
    order: list[int] = []

    def go(v: Any) -> None:
        if isinstance(v, torch.Tensor):
            order.append(seen.setdefault(id(v), len(seen)))
        elif isinstance(v, dict):
            for w in v.values():
                go(w)
        elif isinstance(v, (list, tuple)):
            for w in v:
                go(w)

    go(o)
    return order
