"""What capture hands to the rest of the compiler: one CaptureResult per frame, with at most one graph in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ...graph.captured import CapturedGraph
from ...guards.guard import Guard

__all__ = ["GraphBreak", "Fix", "CaptureResult", "SkipFrame"]


@dataclass
class Fix:
    """A change of the source that removes a break: `new` in place of the lines start..end (from 1, both included),
    which read `old`. `note` says what else changes by it."""

    file: str
    start: int
    end: int
    old: str
    new: str
    note: str = ""

    def diff(self) -> str:
        """The old lines with -, the new ones with +."""
        return "\n".join(
            [*(f"- {line}" for line in self.old.split("\n")), *(f"+ {line}" for line in self.new.split("\n"))]
        )


@dataclass
class GraphBreak:
    """Why a graph ended before the function did."""

    kind: str  # short machine name: "data_dependent_branch", "item", "print", "c_call", ...
    reason: str  # one sentence for the user
    file: str
    line: int
    col: int | None = None
    end_line: int | None = None
    end_col: int | None = None
    code: str = ""  # the source line
    function: str = ""
    call_chain: list = field(default_factory=list)  # [(function, file, line), ...] outermost first
    remedy: str = ""  # what to write instead, concretely
    fix: Fix | None = None  # the same as a change of lines, where that is mechanical
    is_error: bool | None = None  # error_on_graph_break held there; None: not known yet


@dataclass
class CaptureResult:
    """Everything needed to build an Entry for one frame.

    `source` is Python text that defines `def entry(__fn, <parameters of the frame>)`. The entry calls `graph_0(...)`,
    which the pipeline puts into `namespace` once the graph is compiled, and replays the effects. Then it returns the
    frame's value, or calls `break_k`/`resume_k` functions that are in `namespace` already."""

    code: CodeType | None  # None once the entry is built: the entry must not keep its own code alive
    guards: list[Guard]
    source: str
    namespace: dict[str, Any]
    graph: CapturedGraph | None = None
    breaks: list[GraphBreak] = field(default_factory=list)
    inlined: list[str] = field(default_factory=list)  # qualified names of the functions that were inlined
    effects: list[str] = field(default_factory=list)  # plain words: "print", "global counter", ...
    lasting: list[str] | None = None  # of these what no one can undo; None: all
    attributes: list[Any] = field(default_factory=list)  # what can be put back: (weak reference to the object, name)
    break_errors: bool | None = None  # what the options of the function say of breaks, while the entry runs
    dropped: list[Guard] = field(default_factory=list)  # what holds by the program's word (guard_filter_fn)
    held_places: Any = None  # what the guards hold and where, kept where a cell may define its classes again
    placed: list[Any] = field(default_factory=list)  # parameters that are DTensors, until there is an entry
    gain: float = 0.0  # seconds that a call saves, where that was measured (frontend/slow_entries.py)
    counted: float | None = None  # the same by counts (frontend/policy.py), below zero where it loses
    text: CodeType | None = None  # `source`, compiled
    named: dict[str, bool] = field(default_factory=dict)  # names that the frame has set: whether what they hold varies
    needs_hook: bool = False  # runs native calls whose frames are to be compiled as well


class SkipFrame(Exception):
    """This frame is not worth or not able to be captured: run it as it is. `reason` is shown in the report unless
    `quiet` (nothing to compile: no tensor work at all). `final`: later calls need not be looked at. `tensors`: capture
    met some."""

    def __init__(
        self, reason: str, quiet: bool = False, breaks: list | None = None, final: bool = False, tensors: bool = False
    ):
        super().__init__(reason)
        self.reason, self.quiet, self.breaks, self.final = reason, quiet, breaks or [], final
        self.tensors = tensors
