"""The pipeline: every stage in order, what goes in and what comes out.

This table is the compiler. `compile_captured` takes a captured graph through it from `graph` to `runtime`; capture
itself runs per frame in engine.py. Every stage is timed and stated as an event. Its output is verified where a verifier
is named and `verify` is on, and written out where `debug` is on. It can be replaced by name:

    with tcompile.stages.replace("fusion", my_schedule):      # a course lab's student-written stage
        ...

The report names the function that stood for a stage. A replacement that does not know what to do with its input raises
`Decline`: the compiler's own function does that one, and the report counts it. What was compiled while a stage is
replaced is not served without it (`replaced`); kernels on disk are keyed by their text, whoever wrote it.
"""

from __future__ import annotations

import difflib
import importlib
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from dataclasses import replace as replaced_options
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

from . import events
from .base import forks
from .config import Options
from .errors import OptionError, RejectedKernel, VerifyError

__all__ = [
    "Ahead",
    "Stage",
    "STAGES",
    "Decline",
    "run",
    "compile_captured",
    "compiling",
    "generate",
    "load",
    "replace",
    "names",
    "replaced",
    "kernels_made",
]


class Decline(Exception):
    """Raised by a function that stands for a stage: the compiler's own is to do this one. The text says why."""


@dataclass(frozen=True)
class Stage:
    name: str
    function: str  # "module:function", imported at first use
    takes: str
    gives: str
    verifier: str = ""  # "module:function" of the output
    about: str = ""  # what it does, for who writes one


STAGES: tuple[Stage, ...] = (
    Stage(
        "capture",
        "capture.entry.capture:capture_frame",
        takes="code, function, arguments",
        gives="CaptureResult",
        about="bytecode -> a graph of torch calls, guards, effects, breaks",
    ),
    Stage(
        "graph",
        "graph.to_aten:to_aten",
        takes="CapturedGraph",
        gives="AtenGraph",
        verifier="graph.verify_graph:verify",
        about="functional, of the closed operator set; common subexpressions, folding, patterns",
    ),
    Stage(
        "autograd",
        "autograd.joint:joint_graph",
        takes="CapturedGraph",
        gives="forward and backward AtenGraph",
        about="only where a gradient is asked for: one trace of forward and backward, then the partition",
    ),
    Stage(
        "lowering",
        "lowering.lower:lower",
        takes="AtenGraph",
        gives="LoweredGraph",
        verifier="lowering.verify_loops:verify_lowered",
        about="loop nests over named buffers, symbolic sizes",
    ),
    Stage(
        "fusion",
        "fusion.fuse:schedule",
        takes="LoweredGraph",
        gives="Schedule",
        verifier="fusion.verify_schedule:verify_schedule",
        about="kernel groups, their order, the memory plan",
    ),
    Stage(
        "codegen",
        "codegen.generate:generate",
        takes="Schedule",
        gives="Generated",
        about="the text of each kernel, C++ or Triton, and of the host plan that calls it",
    ),
    Stage(
        "runtime",
        "runtime.build_graph:build",
        takes="Generated",
        gives="CompiledGraph",
        about="compile in worker processes, cache by content, load, launch",
    ),
)
_lock = forks.lock()
_kernels = 0  # that were generated in this process
_by_name = {stage.name: stage for stage in STAGES}
_functions: dict[str, Callable] = {}
_replaced: dict[str, Callable] = {}


@contextmanager
def compiling() -> Iterator[None]:
    """Held by whoever compiles: the stages share tables of the process (hash-consed nodes above all). Calls that hit an
    entry never take it.

    The collector of cycles rests meanwhile: what compiling makes is mostly kept, so that passes over all of it, and
    over all of torch, took a fifth of the time and found nothing. The pass after it would take a twelfth. What it would
    find holds no tensor with data."""
    with _lock, forks.resting():
        try:
            yield
        finally:
            forks.pass_over()


def kernels_made() -> int:
    """Kernels that were generated in this process so far. Whoever holds `compiling()` may take a difference."""
    return _kernels


def names() -> list[str]:
    return [stage.name for stage in STAGES]


def _load(path: str) -> Callable:
    f = _functions.get(path)
    if f is None:
        module, _, attr = path.partition(":")
        f = _functions[path] = getattr(importlib.import_module("." + module, __package__), attr)
    return f


_BETWEEN_GRAPHS = ("lowering", "fusion", "codegen")
_KNOWN = tuple(
    """autograd.bridge codegen.kernel_sources fusion.print_schedule graph.aten_interpreter graph.own_writes
    guards.probe guards.watch_probe native.build rewrite runtime.kept_graphs""".split()
)


def load(known: bool = False) -> None:
    """Import every stage now: the first compilation need not. `known`: what it imports where an earlier session
    generated its graph."""
    for stage in STAGES:
        if not known or stage.name not in _BETWEEN_GRAPHS:
            _load(stage.function)
    if known:
        for name in _KNOWN:
            importlib.import_module(f".{name}", __package__)
        from .runtime.kept_graphs import same_for_all

        same_for_all()  # (a table that is made once)


def run(name: str, *args: Any, opts: Options, stage_opts: Any = None, **more: Any) -> Any:
    """Run one stage by name: its replacement if there is one, timed, verified, dumped. `stage_opts` is what the stage
    gets as `opts` where that is not the Options themselves."""
    stage = _by_name[name]
    mine = _replaced.get(name)
    with events.stage(name, **({"by": _name_of(mine)} if mine else {})):
        try:
            out = (mine or _load(stage.function))(*args, opts=stage_opts or opts, **more)
        except Decline as e:
            if mine is None:
                raise
            events.emit("declined", name=name, by=_name_of(mine), reason=str(e) or "no reason given")
            out = _load(stage.function)(*args, opts=stage_opts or opts, **more)
    if opts.get("verify") and stage.verifier:
        with events.stage("verify"):
            try:
                _load(stage.verifier)(out)
            except VerifyError:
                raise
            except AssertionError as e:
                raise VerifyError(f"output of stage {name!r}: {e}") from e
    if opts.get("debug"):
        _dump(name, out, opts)
    return out


def _name_of(function: Callable) -> str:
    """A replacement as the report names it."""
    plain = function.func if isinstance(function, partial) else function
    return getattr(plain, "__qualname__", None) or type(plain).__qualname__


def compile_captured(captured: Any, opts: Options) -> Callable[..., tuple]:
    """A captured graph through graph, lowering, fusion, codegen and runtime: `callable(*inputs) -> tuple`."""
    aten = run("graph", captured, opts=opts)
    events.emit("aten", graph_module=aten, name=captured.name)
    if opts.get("freezing"):
        from .graph.freeze import Frozen, part
        from .graph.prepack import pack_products

        aten.whole = aten.copy()
        pack_products(aten, opts)
        parts = part(aten)
        if parts is not None:
            return Frozen(parts[0], compile_aten(parts[1], opts))
    return compile_aten(aten, opts)


def compile_aten(aten: Any, opts: Options) -> Callable[..., tuple]:
    """The part of the pipeline behind the graph stage."""
    from .graph.own_writes import counted

    with compiling():
        generated = _generate(aten, opts)
        try:
            return counted(run("runtime", generated, opts=opts, eager=partial(_interpret, aten)), aten)
        except RejectedKernel as e:
            if not opts.get("suppress_errors") or opts.get("disable_fusion"):
                raise
            why = str(e).splitlines()[0][:200]
            events.fallback("kernel", f"a graph is compiled without fusion: {why}")
            return compile_aten(aten, replaced_options(opts, given={**opts.given, "disable_fusion": True}))


def generate(captured: Any, opts: Options) -> Any:
    """A captured graph as generated code, not compiled yet: for who puts it into a file."""
    with compiling():
        return _generate(run("graph", captured, opts=opts), opts)


def _generate(aten: Any, opts: Options) -> Any:
    ahead, aten.ahead = aten.ahead, None
    if ahead is not None and ahead.serves(opts):
        generated = ahead.whole()
    else:
        if opts.get("max_autotune") and not _replaced:
            from .runtime.gpu.tuned_products import choose

            aten = choose(aten, opts)
        *_, (generated, _) = _steps(aten, opts)
    global _kernels
    _kernels += len(generated.kernels)
    return generated


def _steps(aten: Any, opts: Options) -> Iterator[tuple[Any, bool]]:
    """From lowering to codegen, a stage at a time, with whether it is the last. Where an earlier session generated this
    graph, that is all."""
    from .runtime.kept_graphs import KeptGraph

    kept = None if _replaced else KeptGraph.of(aten, opts)
    generated = kept.find() if kept is not None else None
    if generated is not None:
        yield generated, True
        return
    made, told = aten, []
    for name in _BETWEEN_GRAPHS:
        heard: list[events.Event] = []
        with events.kept(heard, always=True):
            made = run(name, made, opts=opts)
        events.tell(heard)
        told += heard
        last = name == "codegen"
        if last and kept is not None:
            kept.keep(made, told)
        yield made, last


class Ahead:
    """A graph that will be asked for, generated while somebody waits for another one's kernels. Its own are compiled
    from then on. What its stages state is told when it is asked for.

    It is `meanwhile.Work`: a stage at a time, until what is waited for is there."""

    def __init__(self, aten: Any, opts: Options):
        self.opts, self.replaced, self.steps = opts, replaced(), _steps(aten, opts)
        self.told: list[events.Event] = []
        self.last: Any = None
        self.ended = False

    def __call__(self, done: Callable[[], bool]) -> None:
        with events.kept(self.told):
            while not self.ended and not done():
                self.last, self.ended = next(self.steps)
            if self.ended and self.last.cuda is not None:
                from .runtime.gpu.gpu_kernels import begin_kernels

                begin_kernels(self.last.kernels, self.last.target, self.opts)

    def serves(self, opts: Options) -> bool:
        return opts is self.opts and self.replaced == replaced()

    def whole(self) -> Any:
        """What is generated."""
        events.tell(self.told)
        for made, _ in self.steps:
            self.last = made
        return self.last


def _interpret(aten: Any, *inputs: Any) -> tuple:
    """The graph by torch's own kernels: where there is no C++ compiler."""
    from .graph.aten_interpreter import interpret

    return interpret(aten, inputs)


def replace(name: str, function: Callable) -> AbstractContextManager[None]:
    """Use `function` for stage `name` inside a with-block. It takes what the stage takes (and `opts=`) and gives what
    the stage gives; the verifier of the stage checks it. A function that was compiled before keeps its entries: compile
    it anew (`tcompile.compile`, `explain`); cells and `enable()` do so by themselves."""
    if name not in _by_name:
        near = difflib.get_close_matches(name, names(), 1, 0.5) if isinstance(name, str) else []
        raise OptionError(
            f"no stage {name!r}; stages are {', '.join(names())}" + (f". Did you mean {near[0]!r}?" if near else "")
        )
    if not callable(function):
        raise OptionError(f"a stage is replaced by a function, got {type(function).__name__}")
    return _use(name, function)


@contextmanager
def _use(name: str, function: Callable) -> Iterator[None]:
    old = _replaced.get(name)
    _replaced[name] = function
    try:
        yield
    finally:
        if old is None:
            _replaced.pop(name, None)
        else:
            _replaced[name] = old


def original(name: str) -> Callable:
    """The stage's own function, for a replacement that wraps it."""
    return _load(_by_name[name].function)


def replaced() -> tuple:
    """The functions that stand for stages now, and the table of graph passes where it is not the built-in one: part of
    what tells engines apart.
    """
    from . import rewrite

    return (*sorted(_replaced.items(), key=lambda item: item[0]), *rewrite.changes())


def _dump(name: str, out: Any, opts: Options) -> None:
    folder = Path(opts.get("debug_dir"))
    folder.mkdir(parents=True, exist_ok=True)
    n = len(list(folder.glob("*.txt")))
    (folder / f"{n:04d}_{name}.txt").write_text(f"{out}\n")
