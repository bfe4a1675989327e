"""The calls of a report that are still in this kernel: time them again, under other options, or over a range of
sizes.
"""

from __future__ import annotations

import functools
import time
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Callable, Iterator, Sequence

import torch

from ..compiler import config, events
from ..compiler.errors import OptionError
from ..compiler.frontend.entry_calls import EntryCall
from ..compiler.report.finish import finish
from .calls import read_before_written, worth_timing
from .timing import Say, compare_options, preserved

__all__ = ["Again", "SweepPoint", "TensorArgument"]

_APART: dict[str, Any] = {"tried": True}  # entries of its own: a cell that is set so compiles, and tells of it
_QUICK = 5  # calls per point of a sweep, of which the fastest counts
_MAX_SIZES = 64
_MOST_ELEMENTS = 1 << 28  # of a tensor of a sweep


@dataclass
class TensorArgument:
    """A tensor that a sweep can change: an argument of a function, or a global that a cell's top level reads."""

    call: str
    argument: int | str  # position, or the global's name
    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass
class SweepPoint:
    """One size of a sweep. `entry` counts entries in the order in which the sweep made them."""

    size: int
    entry: int | None = None
    compiled: bool = False
    compile_seconds: float | None = None
    seconds: float | None = None  # a call, by tcompile
    eager_seconds: float | None = None
    reason: str = ""  # why it was compiled again
    error: str = ""


@dataclass
class Again:
    """Runs a report's calls again. `time_again(seconds, compare)` is the session's: it changes the report in place."""

    report: Any
    builder: Any
    engine: Any
    options: Any  # config.Options of the cell
    time_again: Callable[[float | None, tuple[str, ...] | None], None]
    tried: dict[str, dict[str, Any]] = field(default_factory=dict)  # what was compiled under each set of options

    @functools.cached_property
    def _known(self) -> list[EntryCall]:
        return worth_timing(self.builder.calls, self.report)

    @functools.cached_property
    def calls(self) -> list[EntryCall]:
        """Those that can be made again."""
        return [call for call in self._known if call.safe]

    @functools.cached_property
    def timed(self) -> list[EntryCall]:
        """Those that can be timed, some by their graphs alone."""
        return self.calls or [call for call in self._known if call.latest]

    def __call__(self, seconds: float | None = None, compare: tuple[str, ...] | None = None) -> None:
        self.time_again(seconds, compare)

    # -- other options
    # -----------------------------------------------------------------------------------------------------
    def under(self, settings: dict[str, Any], seconds: float = 1.0, say: Say = lambda text: None) -> dict[str, Any]:
        """Time the calls as they are and under `settings` (mode, backend, fullgraph, dynamic, autocast and options of
        config), in turn. `kernels` of the answer are those compiled under them: (name, operators); `unfused` the
        refusals to fuse. Raises OptionError for settings that do not exist, ValueError where nothing can be run again.
        """
        if not self.timed:
            raise ValueError("no call of this report can be run again: each has effects (Speed says which)")
        other = self._options({k: v for k, v in settings.items() if k != "autocast"})
        dtype = {"tried": settings["autocast"]} if "autocast" in settings else {}
        key = repr(sorted(settings.items()))
        with _kernels_made() as made:
            both = {"as it was": self.options, "tried": other}
            answer = copy_context().run(compare_options, self.timed, self.engine, both, seconds, say, dtype)
        if made["kernels"] or key not in self.tried:  # tried before: the entries are there, and nothing was compiled
            self.tried[key] = made
        self._note(settings, answer)
        return {**answer, **self.tried[key]}

    def _note(self, settings: dict[str, Any], answer: dict[str, Any]) -> None:
        """The report's answer tells what was measured, of the call that takes longest."""
        rows = [row for row in answer["calls"] if "tried" in row["ratios"]]
        if rows:
            longest = max(
                rows, key=lambda row: max((engine["median"] or 0.0 for engine in row["engines"]), default=0.0)
            )
            words = " ".join(f"{name}={value}" for name, value in settings.items())
            self.report.tried[words] = {
                "settings": dict(settings),
                "ratio": list(longest["ratios"]["tried"]),
                "error": longest["error"],
                "of": f"the graphs of {longest['name']}" if longest["measured"] == "graphs" else "",
            }
            finish(self.report, self.builder.served)

    def _options(self, settings: dict[str, Any]) -> Any:
        own: dict[str, Any] = {k: settings[k] for k in ("mode", "backend", "fullgraph", "dynamic") if k in settings}
        options = self.options
        base: dict[str, Any] = {
            "mode": options.mode,
            "backend": options.backend,
            "fullgraph": options.fullgraph,
            "dynamic": options.dynamic,
        }
        made = config.Options.make(**{**base, **own})
        given: dict[str, Any] = dict(options.given) if "mode" not in own else {}
        for name, value in settings.items():
            if name not in base:
                if name not in config.OPTIONS:
                    raise OptionError(f"unknown option {name!r}: `tcompile.config` lists those that exist")
                given[name] = config.check(name, value)
        made.given.update(given, **_APART)
        return made

    # -- sizes
    # -------------------------------------------------------------------------------------------------------------
    def arguments(self) -> list[TensorArgument]:
        """The tensors among the calls' arguments that have a dimension."""
        out = []
        for call in self.calls:
            for key, name, tensor in _tensors(call):
                out.append(
                    TensorArgument(call.name, key, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
                )
        return out

    def sweep(
        self,
        call: str,
        argument: int | str,
        dim: int,
        sizes: Sequence[int],
        dynamic: bool | None = None,
        say: Say = lambda text: None,
    ) -> list[SweepPoint]:
        """Call one function with `argument` at each of `sizes` along `dim`: which sizes were compiled, which entry
        served each, and how long a call took. In an engine of its own: the cell's entries stay as they are. Values
        repeat the argument's own, so that indices stay valid. Raises ValueError for what cannot be swept."""
        found = next((c for c in self.calls if c.name == call), None)
        if found is None:
            raise ValueError(
                f"{call!r} cannot be called again; callable: {', '.join(c.name for c in self.calls) or 'none'}"
            )
        tensor = next((tensor for key, _, tensor in _tensors(found) if key == argument), None)
        if tensor is None or not -tensor.dim() <= dim < tensor.dim():
            raise ValueError(f"{call} has no tensor {argument!r} with a dimension {dim}")
        if not sizes or len(sizes) > _MAX_SIZES or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"sizes are 1 to {_MAX_SIZES} whole numbers from 0 up, got {list(sizes)!r}")
        most = tensor.numel() // max(1, tensor.shape[dim]) * max(sizes)
        if most > _MOST_ELEMENTS:
            raise ValueError(f"a size of {max(sizes)} makes a tensor of {most} elements, more than {_MOST_ELEMENTS}")
        from ..compiler.frontend.engine import Engine

        options, fn = self.options, found.fn
        if not isinstance(fn, FunctionType):
            raise ValueError(f"{call} is not a plain function: its sizes can't be swept")
        if isinstance(argument, str):
            fn = FunctionType(fn.__code__, dict(fn.__globals__), fn.__name__)
        compiled = Engine(
            config.Options.make(None, options.backend, False, dynamic, dict(options.given) or None)
        ).dispatcher(fn)
        points: list[SweepPoint] = []
        entries: list[Any] = []
        with preserved([fn, *found.args]), found.state.apply():
            for size in sizes:
                say(f"size {size}")
                args = list(found.args)
                if isinstance(argument, str):
                    fn.__globals__[argument] = _resized(tensor, dim, size)
                else:
                    args[argument] = _resized(tensor, dim, size)
                points.append(_point(size, fn, compiled, args, found.kwargs, entries))
        return points


def _tensors(call: EntryCall) -> Iterator[tuple[int | str, str, torch.Tensor]]:
    """The tensors with a dimension that a call takes: key, the user's name, the tensor."""
    code = getattr(call.fn, "__code__", None)
    names = getattr(code, "co_varnames", ())
    for i, value in enumerate(call.args):
        if isinstance(value, torch.Tensor) and value.dim():
            yield i, names[i] if i < len(names) else f"argument {i}", value
    if code is not None and code.co_name == "<module>":
        read = read_before_written(code)
        for name in (each for each in code.co_names if each in read):
            value = call.fn.__globals__.get(name)
            if isinstance(value, torch.Tensor) and value.dim():
                yield name, name, value


def _point(size: int, eager: Callable, compiled: Callable, args: list, kwargs: dict, entries: list[Any]) -> SweepPoint:
    point = SweepPoint(size)
    with _watching() as seen:
        t0 = time.perf_counter()
        try:
            compiled(*args, **kwargs)
        except Exception as e:
            point.error = f"{type(e).__name__}: {e}".splitlines()[0]
            return point
        first = time.perf_counter() - t0
    point.compiled = bool(seen["entry"])
    if point.compiled:
        entries += seen["entry"]
        point.compile_seconds, point.entry = first, len(entries) - 1
    else:
        point.entry = _served(entries, lambda: compiled(*args, **kwargs))
    point.reason = seen["reason"]
    point.seconds = min(_seconds(compiled, args, kwargs) for _ in range(_QUICK))
    point.eager_seconds = min(_seconds(eager, args, kwargs) for _ in range(_QUICK))
    return point


def _served(entries: list[Any], call: Callable[[], Any]) -> int | None:
    """Which entry a call goes to."""
    before = [entry.hits for entry in entries]
    call()
    return next((i for i, (entry, n) in enumerate(zip(entries, before)) if entry.hits > n), None)


def _seconds(function: Callable, args: list, kwargs: dict) -> float:
    t0 = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - t0


@contextmanager
def _kernels_made() -> Iterator[dict[str, Any]]:
    """The kernels that are compiled meanwhile, and what was not fused."""
    made: dict[str, Any] = {"kernels": [], "unfused": []}

    def listen(event: Any) -> None:
        if event.kind == "kernel":
            origins = event.facts.get("origins") or getattr(event.facts.get("kernel"), "origins", None) or ()
            made["kernels"].append([str(event.name), [str(o) for o in origins]])
        elif event.kind == "schedule" and event.facts.get("schedule") is not None:
            made["unfused"] += [list(map(str, unfused)) for unfused in event.facts["schedule"].unfused]

    with events.listen(listen):
        yield made


@contextmanager
def _watching() -> Iterator[dict[str, Any]]:
    seen: dict[str, Any] = {"entry": [], "reason": ""}

    def listen(event: Any) -> None:
        if event.kind == "entry":
            seen["entry"].append(event.facts["entry"])
        elif event.kind == "recompile" and not seen["reason"]:
            failure = event.facts["failures"][0]
            seen["reason"] = f"expected {failure.expected_text}, got {failure.got_text}"

    with events.listen(listen):
        yield seen


def _resized(tensor: torch.Tensor, dim: int, n: int) -> torch.Tensor:
    size = tensor.shape[dim]
    if n <= size:
        return tensor.narrow(dim, 0, n).clone(memory_format=torch.preserve_format)
    if not size:
        raise ValueError(f"dimension {dim} is empty: there are no values to repeat")
    index = torch.arange(n, device=tensor.device) % size
    return tensor.detach().index_select(dim, index).requires_grad_(tensor.requires_grad)
