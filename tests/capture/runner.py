"""A small stand-in for the runtime: entries run their captured graph as it is, guards are checked in Python."""

from __future__ import annotations

import dataclasses
import inspect
import types
from typing import Any, Callable

import torch

from tcompile.compiler.capture.entry.capture import CaptureOptions, capture_frame
from tcompile.compiler.capture.breaks.failing import call_original
from tcompile.compiler.capture.entry.result import CaptureResult, SkipFrame
from tcompile.compiler.guards.guard_program import compile_guards


class Entry:
    def __init__(self, result: CaptureResult, n_args: int):
        self.result = result
        self.guards = compile_guards(result.guards, n_args, force_python=True)
        namespace = dict(result.namespace)
        if result.graph is not None:
            namespace["graph_0"] = result.graph.graph_module.forward  # past hooks: it is no module of the program
        exec(compile(result.source, "<entry>", "exec"), namespace)
        self.fn = namespace["entry"]


class Runner:
    """Calls functions through capture; counts what happened. `captures` lists every CaptureResult, resume functions
    included.
    """

    def __init__(self, **options: Any):
        self.options = options
        self.entries: dict[types.CodeType, list[Entry]] = {}
        self.captures: list[CaptureResult] = []
        self.skips: list[SkipFrame] = []
        self.skipped: set[types.CodeType] = set()

    @property
    def breaks(self) -> list:
        return [b for r in self.captures for b in r.breaks]

    @property
    def graphs(self) -> list:
        return [r.graph for r in self.captures if r.graph is not None]

    def run(self, fn: Callable, *params: Any) -> Any:
        """fn(*params) where params are in co_varnames order."""
        code = fn.__code__
        if code in self.skipped:
            return call_original(fn, params)
        for entry in self.entries.setdefault(code, []):
            if entry.guards.check(fn, params) == -1:
                return entry.fn(fn, *params)
        try:
            opts = CaptureOptions(dispatch=self.run, **self.options)
            result = capture_frame(code, fn, params, opts=opts)
        except SkipFrame as skip:
            self.skips.append(skip)
            self.skipped.add(code)
            return call_original(fn, params)
        self.captures.append(result)
        entry = Entry(result, len(params))
        failing = entry.guards.check(fn, params)
        assert failing == -1, f"a fresh entry fails its own guard {result.guards[failing]}"
        self.entries[code].append(entry)
        return entry.fn(fn, *params)

    def __call__(self, fn: Callable, *args: Any, **kwargs: Any) -> Any:
        """fn(*args, **kwargs) of a Python function."""
        return self.run(fn, *params_of(fn, args, kwargs))


def params_of(fn: Callable, args: tuple, kwargs: dict) -> tuple:
    """The call's parameters in co_varnames order (*args, **kwargs last)."""
    code = fn.__code__
    bound = inspect.signature(fn).bind(*args, **kwargs)
    bound.apply_defaults()
    n = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return tuple(bound.arguments[name] for name in code.co_varnames[:n])


def same(a: Any, b: Any) -> None:
    """Equal values of equal types, tensors within rounding."""
    assert type(a) is type(b), (type(a), type(b))
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
        torch.testing.assert_close(a, b, equal_nan=True)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for k in a:
            same(a[k], b[k])
    elif dataclasses.is_dataclass(a) and not isinstance(a, type):
        same(vars(a), vars(b))
    else:
        assert a == b


def check_one_graph(fn: Callable, x: torch.Tensor) -> None:
    """fn(x) is captured whole, once, and gives what it gives without capture."""
    run = Runner()
    expected = fn(x.clone())
    for _ in range(2):
        same(run(fn, x.clone()), expected)
    assert not run.skips and not run.breaks, [str(s) for s in run.skips] + run.breaks
    assert len(run.captures) == 1, "the second call must hit"
