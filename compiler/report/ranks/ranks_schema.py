"""What a report holds of several ranks of one run: a part of the schema of its own (see schema.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["RankSpan", "RankRow", "RankWait", "RankDifference", "Ranks"]


@dataclass
class RankSpan:
    """A stretch of a rank's time. `begin`: seconds after the run's begin. What lies between spans is computing."""

    kind: str  # "compile" | "communication"
    name: str
    begin: float
    seconds: float
    early: float = 0.0  # of a collective: seconds until the last rank came
    last: int | None = None  # that rank
    bytes: int | None = None
    sync: bool | None = None  # the program waits at the call; None: not known


@dataclass
class RankRow:
    """One rank's run."""

    rank: int
    device: str = ""
    host: str = ""
    status: str = "done"  # "done" | "raised" | "interrupted" | "ended": its process
    error: str = ""
    begin: float = 0.0  # seconds after the first rank began
    seconds: float = 0.0
    compile_seconds: float = 0.0
    communication_seconds: float = 0.0  # in collectives, counted once where they overlap
    early_seconds: float = 0.0  # of these, before the last rank came
    collectives: int = 0
    calls: int = 0  # served by compiled code
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0
    peak_bytes: int | None = None  # of the GPU's memory, else of the process
    kept_bytes: int | None = None
    spans: list[RankSpan] = field(default_factory=list)
    more: int = 0  # spans that were left out, the shortest


@dataclass
class RankWait:
    """`rank` came to `count` collectives before `other`, which came last, by `seconds` in all."""

    rank: int
    other: int
    seconds: float
    count: int
    name: str = ""  # the one with the longest wait
    longest: float = 0.0


@dataclass
class RankDifference:
    """Ranks that compiled different graphs of one function, the first of them. `ranks`: those that agree, together."""

    function: str
    graph: int  # how manyth of the function's graphs
    ranks: list[list[int]]
    texts: list[str]  # what each of these has where they begin to differ
    file: str = ""
    line: int | None = None
    more: int = 0  # further graphs of the function that differ


@dataclass
class Ranks:
    """The ranks of a run beside each other. Empty where there was one process."""

    seconds: float = 0.0
    clock: str = ""  # what the times of collectives are
    rows: list[RankRow] = field(default_factory=list)
    waits: list[RankWait] = field(default_factory=list)  # the longest first
    differences: list[RankDifference] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    reports: Any = field(default=None, repr=False, compare=False)  # rank -> its own CompileReport; not in the JSON

    def __bool__(self) -> bool:
        return bool(self.rows)
