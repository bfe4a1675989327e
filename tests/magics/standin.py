"""An engine without a compiler: runs cells as they are and states the events that a compiler would, so that the
notebook's side can be tested by itself. A function in the namespace named `f` is "captured" with torch.fx's own
tracer."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable

import torch
import torch.fx

from tcompile.compiler import events
from tcompile.compiler.capture.entry.result import CaptureResult, GraphBreak
from tcompile.compiler.graph.captured import CapturedGraph, GraphInput
from tcompile.compiler.guards import source as src
from tcompile.compiler.guards.guard import Guard, GuardFailure, TensorSpec
from tcompile.compiler.frontend.entry_calls import EntryCall, GraphCall


_tracing = threading.Lock()  # torch.fx traces in one thread at a time


def spec(x: torch.Tensor) -> TensorSpec:
    return TensorSpec(type(x), x.dtype, x.device, x.requires_grad, tuple(x.shape), tuple(x.stride()))


def state_compilation(
    fn: Callable, *args: torch.Tensor, safe: bool = True, brk: bool = False, delay: float = 0.0, recompile: bool = False
) -> CaptureResult:
    """The events of compiling `fn` for `args`."""
    code = fn.__code__
    name, file, line = code.co_qualname, code.co_filename, code.co_firstlineno
    sources = [src.local(i, code.co_varnames[i]) for i in range(len(args))]
    guards = [Guard(s, "TENSOR", spec(a), file, line + 1, "multiplied") for s, a in zip(sources, args)]
    guards.append(Guard(src.glob("torch"), "ID", torch, file, line + 1, "attribute read"))
    guards.append(Guard(None, "STATE", {"grad_mode": True}))
    if recompile:
        old = Guard(
            sources[0],
            "TENSOR",
            spec(args[0].new_zeros(args[0].shape[0] + 1, *args[0].shape[1:])),
            file,
            line + 1,
            "multiplied",
        )
        events.emit(
            "recompile",
            frame=name,
            failures=[
                GuardFailure(
                    old,
                    args[0].shape[0],
                    "shape[0]",
                    str(args[0].shape[0] + 1),
                    str(args[0].shape[0]),
                    "pass dynamic=True",
                )
            ],
        )
    events.emit("capture_begin", frame=name, file=file, line=line)
    with events.stage("capture"):
        with _tracing:
            gm = torch.fx.symbolic_trace(fn)
        env = dict(zip((n for n in gm.graph.nodes if n.op == "placeholder"), args))
        for n in gm.graph.nodes:
            n.meta["stack"] = [(file, line + 1, 4, line + 1, 10, name)]
            n.meta["val"] = env.get(n, args[0])
    breaks = (
        [
            GraphBreak(
                "item",
                "x.item() needs a value",
                file,
                line + 1,
                4,
                line + 1,
                12,
                "",
                name,
                [(name, file, line)],
                "use torch.where",
            )
        ]
        if brk
        else []
    )
    graph = CapturedGraph(
        gm, [GraphInput(s.key[1], s, "tensor", False, spec(a)) for s, a in zip(sources, args)], None, name, list(args)
    )
    result = CaptureResult(code, guards, "def entry(__fn, x):\n    return graph_0(x)\n", {}, graph, breaks)
    events.emit("capture_end", result=result)
    for b in breaks:
        events.emit("break", brk=b)
    events.emit("graph", graph=graph, frame=name)
    for stage in ("graph", "lowering", "fusion", "codegen", "runtime"):
        with events.stage(stage):
            time.sleep(delay)
            if stage == "graph":
                events.emit("aten", graph_module=gm, name=name)
            if stage == "fusion":
                events.emit(
                    "schedule",
                    kernels=1,
                    extern=["aten.mm.default"],
                    memory={
                        "peak_bytes": 4096,
                        "steps": 2,
                        "buffers": [{"name": "buf0", "bytes": 4096, "start": 0, "end": 2, "kind": "output"}],
                    },
                    unfused=[("a", "b", "shapes differ")],
                )
            if stage == "codegen":
                origins = [n.name for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
                events.emit(
                    "kernel",
                    name="kernel_0",
                    kernel=None,
                    source="void kernel_0() { /* <b>&</b> */ }",
                    language="cpp",
                    bytes=8192,
                    flops=4096,
                    origins=origins,
                    choices={"vector": 8},
                )
                events.emit(
                    "autotune",
                    kernel="kernel_0",
                    trials=[
                        {"config": {"tile": 8}, "seconds": 1e-6, "chosen": True},
                        {"config": {"tile": 16}, "seconds": 2e-6},
                    ],
                )
                events.emit("cache", key="0123456789abcdef0", hit=False, reason="new", what="kernel")
                events.emit("compile_c", seconds=0.05, flags="-O3", units=("kernel_0",))
    entry = type("Entry", (), {"meta": result, "fn": fn, "program": None})()
    events.emit("entry", frame=name, entry=entry)
    graphs = [GraphCall("graph_0", gm, gm.forward, tuple(args))]
    events.emit(
        "call",
        frame=name,
        cached=False,
        call=EntryCall(name, fn, args, {}, file, line, safe, "" if safe else "it changes `counter`", graphs, 0.05, fn),
    )
    return result


class StandIn:
    """Runs code with eval. After a cell that leaves `f` and `x` in the namespace it states a compilation of `f(x)`; the
    names SAFE, BREAK, RECOMPILE and DELAY in the namespace say how."""

    def __init__(self) -> None:
        self.resets = 0
        self.active = 0

    @contextlib.contextmanager
    def enable(self, options: Any) -> Any:
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    def runner(self, options: Any) -> Any:
        return self._run

    def _run(self, code: Any, ns: dict) -> Any:
        __tracebackhide__ = True
        try:
            return eval(code, ns)
        finally:
            self._compiled(ns)

    def _compiled(self, ns: dict) -> None:
        fresh = ns.pop("compile_now", None)
        if fresh is not None:
            f, x = fresh
            state_compilation(
                f,
                x,
                safe=ns.get("SAFE", True),
                brk=ns.get("BREAK", False),
                delay=ns.get("DELAY", 0.0),
                recompile=ns.get("RECOMPILE", False),
            )

    def again(self, fn: Callable, options: Any) -> tuple:
        return fn, contextlib.nullcontext

    def compiled(self, fn: Callable, options: Any) -> Callable:
        return fn

    def entries(self, options: Any) -> list:
        return []

    def reset(self) -> None:
        self.resets += 1
