"""`backend=inductor`: what stock torch.compile makes of a cell's calls, as a report of its own, for who must ship with
it.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

from ..compiler.backends import stock
from ..compiler.report import CompileReport
from ..compiler.frontend.entry_calls import EntryCall
from .calls import as_called, worth_timing
from .timing import names_put_back, preserved, touched

__all__ = ["under_stock"]


def under_stock(calls: Sequence[EntryCall], report: CompileReport) -> CompileReport:
    """Stock's graphs, guards, breaks and recompiles over the same calls in the same order, those that can be run again:
    its own capture, where `report` tells of tcompile's. Raises RuntimeError where stock can't run or nothing can be run
    again."""
    safe = [c for c in worth_timing(calls, report) if c.safe]
    whole = [c for c in safe if getattr(getattr(c.fn, "__code__", None), "co_name", "") == "<module>"]
    again = whole or [c for c in calls if any(c.fn is s.fn for s in safe)]  # the cell's top level makes all other calls
    if not again:
        raise RuntimeError("no call of this cell can be run again without its effects")
    observer = stock.Observer()
    watched: dict[int, Callable[..., Any]] = {}
    with preserved(touched(again)), names_put_back(again):
        for c in again:
            args, kwargs = (c.args, c.kwargs) if c in whole or c.kwargs else as_called(c.fn, c.args)
            if id(c.fn) not in watched:
                watched[id(c.fn)] = observer.watch(c.fn)
            with c.state.apply():
                try:
                    watched[id(c.fn)](*args, **kwargs)
                except Exception as e:  # the report says so, beside what was seen before
                    observer.errors.append(
                        f"under torch.compile: {type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
                    )
    return observer.report(report.title, report.source)
