"""`minify` and `reproduce`: from a function and its arguments to a file, shrunk or as it is."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

import torch

from .. import stages
from ..errors import ReproduceError
from ..reproduce.from_report import strict
from ..reproduce.reproducer import Reproducer
from ..reproduce.specs import autocast_now, spec_of
from ..reproduce.subgraph import captured_part
from .candidate import Candidate
from .smaller import reduce
from .trials import Trials, Verdict

__all__ = ["minify", "reproduce"]

_CHECK = "compare_with_eager"
_MOST_VALUES = 1 << 20  # bytes of a graph's inputs that a file holds


class _TimeIsUp(Exception):
    pass


def reproduce(fn: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **how: Any) -> Reproducer:
    """`fn(*args, **kwargs)` as one Python file that compares its first graph, compiled, with eager: nothing is made
    smaller. `how` are keywords of `compile`. ReproduceError where nothing was captured, or a value can't be written."""
    plain, _ = _captured(fn, args, kwargs, how, "")
    return plain[0].reproducer()


def minify(
    fn: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    predicate: Callable[[Callable, list], bool] | None = None,
    path: str | os.PathLike | None = None,
    seconds: float = 300.0,
    limit: float = 60.0,
    setup: str = "",
    **how: Any,
) -> Reproducer:
    """The smallest program that was found which fails as `fn(*args, **kwargs)` does: whose compiling raises, ends the
    process or does not end, or whose result differs from eager's by more than rounding.

    predicate  takes a program and its arguments, and says whether it fails: another kind of failure. It is called in
               this process; without it, programs are tried in another process, which may crash
    path       where the file is written as well
    seconds    for all of it: what was found by then is the result
    limit      seconds for one program; one that takes longer fails by that
    setup      lines of Python to run first, in the file too: importing what registers operators, a backend, a stage
    how        keywords of `compile`: mode, dynamic, options, backend

    Raises ReproduceError where the failure does not appear in any graph of the program."""
    for name, value in (("seconds", seconds), ("limit", limit)):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise ReproduceError(f"minify: {name} is a number of seconds above 0, got {value!r}")
    if predicate is not None and not callable(predicate):
        raise ReproduceError(f"minify: predicate is a function (program, args) -> bool, got {type(predicate).__name__}")
    if not isinstance(setup, str):
        raise ReproduceError(f"minify: setup is lines of Python as text, got {type(setup).__name__}")
    end = time.monotonic() + seconds
    plain, valued = _captured(fn, args, kwargs, how, setup)
    trials = Trials(_CHECK, limit, apart=predicate is None, predicate=predicate)
    try:
        start, verdict, exact = _failing(plain, valued, trials)
        best = [start]

        def fails(candidate: Candidate) -> bool:
            if time.monotonic() > end:
                raise _TimeIsUp
            try:
                text = candidate.reproducer().text
            except ReproduceError:
                return False
            if not _alike(trials(text), verdict):
                return False
            best[0] = candidate
            return True

        try:
            reduce(start, fails, exact)
        except _TimeIsUp:
            pass  # the best so far is the result
        kind, words = trials(best[0].reproducer().text)
    finally:
        trials.close()
    titled = replace(best[0], title=_title(kind, words, trials)).reproducer()
    made = replace(titled, verdict=f"{kind}: {words}", tests=trials.count)
    if path is not None:
        made.save(path)
    return made


def _title(kind: str, words: str, trials: Trials) -> str:
    note = ""
    if not trials.apart and trials.predicate is None and stages.replaced():
        by = ", ".join(str(item[0]) for item in stages.replaced())
        note = (
            f"\nIt failed where a stage was replaced ({by}), which this file does not do: minify takes setup= for that."
        )
    return f"Minified: {kind}. {words}{note}"


def _alike(found: Verdict, wanted: Verdict) -> bool:
    """Whether it is the same failure: of one kind, and one exception."""
    if found[0] != wanted[0]:
        return False
    return found[0] != "raises" or found[1].partition(":")[0] == wanted[1].partition(":")[0]


def _captured(
    fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, how: dict[str, Any], setup: str
) -> tuple[list[Candidate], list[Candidate]]:
    """The graphs of the call, each as a program of its own: with random inputs like those that it got, and with the
    very values where these are small enough for a file."""
    from ..api import compile

    if not callable(fn):
        raise ReproduceError(f"minify takes a function or a module, got {type(fn).__name__}")
    if isinstance(args, torch.Tensor) or not isinstance(args, (tuple, list)):
        raise ReproduceError(f"minify takes the arguments as a tuple: (fn, (x,)), got {type(args).__name__}")
    found: list[Candidate] = []
    valued: list[Candidate] = []
    name = getattr(fn, "__qualname__", type(fn).__name__)
    why: list[str] = []

    def keep(module: Any, inputs: list, **_: Any) -> Any:
        names = [node.name for node in module.graph.find_nodes(op="placeholder")]
        try:
            given = [(name, int(v) if isinstance(v, torch.SymInt) else v) for name, v in zip(names, inputs)]
            graph, specs = captured_part(module, [spec_of(n, v, statistics=True) for n, v in given])
            made = Candidate(
                graph, tuple(specs), strict(how), f"A graph of {name}, as it was captured.", setup, autocast_now()
            )
            found.append(made)
            if sum(v.nbytes for _, v in given if isinstance(v, torch.Tensor)) <= _MOST_VALUES:
                values = [spec_of(n, v, exact=True) for n, v in given]
                valued.append(replace(made, specs=(*values, *specs[len(values) :])))
        except ReproduceError as e:
            why.append(str(e))
        return module.forward

    capture = {key: value for key, value in how.items() if key in ("dynamic", "fullgraph")}
    compile(getattr(fn, "__wrapped__", fn), backend=keep, **capture)(*args, **(kwargs or {}))
    if not found:
        raise ReproduceError(f"no graph of {name} can be written: {why[0] if why else 'nothing was captured'}")
    return found, valued


def _failing(plain: list[Candidate], valued: list[Candidate], trials: Trials) -> tuple[Candidate, Verdict, bool]:
    """The first graph that fails, how, and whether it needs its very values."""
    words = ""
    for apart in (True, False) if trials.apart else (False,):
        trials.use(apart)
        for candidates in (plain, valued):
            for candidate in candidates:
                verdict = trials(candidate.reproducer().text)
                if verdict[0] not in ("same", "invalid"):
                    return candidate, verdict, candidates is valued
                words = f"it can't be run by itself ({verdict[1]})" if verdict[0] == "invalid" else ""
    graphs = f"the {len(plain)} graphs" if len(plain) > 1 else "the one graph"
    raise ReproduceError(f"the failure does not appear in {graphs} of the program: {words or 'it agrees with eager'}")
