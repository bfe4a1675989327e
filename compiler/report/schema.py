"""The report as data: the dataclasses behind `CompileReport`, version 1 of the schema.

Everything that is shown anywhere (text, HTML, JupyterLab, widgets) is drawn from these classes, and tests and graders
assert on them. They hold plain values only: str, int, float, bool, None, lists and dicts of them. The few live objects
(`Graph.graph_module`, `Graph.aten`, `Graph.specs`, `Frame.call`, `Frame.cell_line`) are kept out of the JSON, and
absent in a report that was loaded again.
`docs/report-schema.md` describes the JSON; `compiler/report/json.py` writes and reads it.

Units: seconds, bytes, floating point operations. Lines count from 1, columns from 0. A file is a short label: `In[3]`
for a notebook cell, a path relative to site-packages or to the working directory for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .payload import GraphData, Node
from .ranks.ranks_schema import RankDifference, RankRow, Ranks, RankSpan, RankWait

__all__ = [
    "SCHEMA",
    "VERSION",
    "MIME",
    "Mark",
    "Frame",
    "Entry",
    "Node",
    "GraphData",
    "Symbol",
    "GraphPass",
    "Graph",
    "PartitionValue",
    "Partition",
    "Break",
    "GuardRow",
    "Recompile",
    "Trial",
    "Kernel",
    "Extern",
    "MemoryBuffer",
    "Memory",
    "Stage",
    "CacheLookup",
    "Fallback",
    "NumericError",
    "EngineTime",
    "Speedup",
    "CallTiming",
    "Speedups",
    "TimelineEvent",
    "Finding",
    "Omission",
    "Summary",
    "CellSource",
    "FrameRef",
    "AutotuneRun",
    "Change",
    "RunDiff",
    "Wall",
    "WallPart",
    "Decision",
    "Answer",
    "CallProfile",
    "ProfileSpan",
    "RankDifference",
    "RankRow",
    "RankSpan",
    "RankWait",
    "Ranks",
]

SCHEMA = "tcompile.report"
VERSION = 1
MIME = "application/vnd.tcompile.report.v1+json"

MARK_KINDS = ("captured", "eager", "break", "guard")
STATUSES = ("compiled", "partly", "eager", "nothing", "error")


@dataclass
class CellSource:
    """The code that the report is about."""

    text: str = ""
    file: str = ""
    first_line: int = 1
    cell: int | None = None  # execution count, for In[cell]


@dataclass
class Mark:
    """One mark beside a line of code. `ref` opens the place in the report: "breaks/0", "guards/3", "frames/1"."""

    line: int
    kind: str  # one of MARK_KINDS
    text: str
    file: str = ""
    cell: int | None = None
    end_line: int | None = None
    ref: str = ""


@dataclass
class FrameRef:
    """One step of a call chain."""

    function: str
    file: str
    line: int


@dataclass
class Frame:
    """One Python function (code object) that tcompile looked at."""

    name: str
    file: str = ""
    line: int = 0
    status: str = "compiled"  # "compiled" | "partly" | "skipped" | "limit" | "error"
    reason: str = ""
    entries: list[int] = field(default_factory=list)
    captures: int = 0
    seconds: float = 0.0  # spent on compiling it
    bytecode: str = ""  # of functions in the reported code: a row per instruction, source line first
    call: Any = field(default=None, repr=False, compare=False)  # its first call, without the tensors; not in the JSON
    # the cell's line of that call; not in the JSON
    cell_line: int | None = field(default=None, repr=False, compare=False)
    # the name that the code has, where a decorator's wrapper goes by the name of what it wraps; not in the JSON
    code_name: str = field(default="", repr=False, compare=False)


@dataclass
class Entry:
    """One compiled version of a frame: guards, at most one graph, and the Python text around it."""

    frame: int
    graph: int | None = None
    guards: int = 0
    breaks: list[int] = field(default_factory=list)
    effects: list[str] = field(default_factory=list)
    source: str = ""
    hits: int | None = None
    seconds: float = 0.0
    inlined: list[str] = field(default_factory=list)
    guard_seconds: float | None = None  # cost of checking the guards once
    switches: int | None = None  # calls on which it took over from another entry of the frame: many mean ping-pong
    goes_on: int | None = None  # the line at which it goes on after a break; null: it is of the function as a whole


@dataclass
class Symbol:
    """A symbolic size: its value at the first call, its range and the line that made or pinned it."""

    name: str
    hint: int | None = None
    lo: int | None = None
    hi: int | None = None
    source: str = ""
    why: str = ""
    file: str = ""
    line: int | None = None


@dataclass
class GraphPass:
    """What one graph pass changed, in the order in which they ran. Texts of nodes; `more` counts those left out."""

    name: str
    point: str = ""  # "recorded": before decomposition | "decomposed": after it
    seconds: float = 0.0
    before: int = 0  # operations
    after: int = 0
    removed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    more: int = 0


@dataclass
class Graph:
    """One captured graph: as captured (torch level) and as lowered (core aten)."""

    name: str
    frame: int | None = None
    entry: int | None = None
    inputs: list[str] = field(default_factory=list)
    outputs: int = 0
    ops: int = 0  # operations, placeholders and output not counted
    captured: GraphData = field(default_factory=GraphData)
    lowered: GraphData = field(default_factory=GraphData)
    symbols: list[Symbol] = field(default_factory=list)
    unfused: list[list[str]] = field(default_factory=list)  # [node, node, reason]
    kernels: list[int] = field(default_factory=list)
    lines: list[list] = field(default_factory=list)  # [file, line] of notebook cells on the way to its operations
    callers: list[list] = field(default_factory=list)  # [file, line, cell, its line that led there] of other code
    passes: list[GraphPass] = field(default_factory=list)
    # "compiled" | "eager": by torch's kernels one by one, `fallbacks` has the reason | "partial": up to the break that
    # ended it
    ran: str = "compiled"
    unused: float = 0.0  # share of its work whose results nobody reads: left out, and never counted as speed
    runs: int | None = None  # of a backward graph: how often it ran in this run
    called_at: list = field(default_factory=list)  # [file, line] that called it, of a backward graph
    graph_module: Any = field(default=None, repr=False, compare=False)  # live torch.fx.GraphModule, not in the JSON
    aten: Any = field(default=None, repr=False, compare=False)  # live torch.fx.GraphModule or Graph, not in the JSON
    specs: list = field(default_factory=list, repr=False, compare=False)  # layouts of its inputs, not in the JSON
    autocast: tuple = field(default=(), repr=False, compare=False)  # regions around it: device, dtype; not in the JSON


@dataclass
class PartitionValue:
    """A value of the forward graph that backward needs: kept, or computed again. `name` is its node in the lowered
    forward graph (of a kept one) or backward graph (of one computed again)."""

    name: str
    op: str
    # "activation": the rest is computed again from it | "dear": to be computed again | "result": the caller gets it too
    # | "random": drawn | "copy": of an input | "weight": converted
    kind: str = "activation"
    shape: list | None = None  # ints, and size expressions as text
    dtype: str = ""
    bytes: int = 0  # at the sizes of the first call
    module: str = ""
    file: str = ""
    line: int | None = None


@dataclass
class Partition:
    """What a forward graph keeps for its backward graph, and what backward computes again instead. Bytes are at the
    sizes of the first call and leave the graph's inputs out: parameters and arguments live anyway."""

    graph: int | None = None  # the forward graph, in report.graphs
    backward: list[int] = field(default_factory=list)  # backward graphs compiled so far, in report.graphs
    saved_bytes: int = 0
    read_bytes: int = 0  # what would be kept if nothing were computed again
    eager_bytes: int | None = None  # what eager autograd keeps
    budget: float = 1.0  # activation_memory_budget; below 1 dear operators are computed again as well
    saved: list[PartitionValue] = field(default_factory=list)  # largest first
    recomputed: list[PartitionValue] = field(default_factory=list)  # in the order of the graph
    inputs: list[str] = field(default_factory=list)  # inputs of the forward graph that backward reads as they are


@dataclass
class Break:
    """A graph break: what ended the graph, at which line, and what to write instead."""

    kind: str
    reason: str
    file: str = ""
    line: int = 0
    col: int | None = None
    end_line: int | None = None
    end_col: int | None = None
    code: str = ""
    function: str = ""
    remedy: str = ""
    frame: int | None = None
    entry: int | None = None
    count: int = 1
    call_chain: list[FrameRef] = field(default_factory=list)
    library: bool = False  # in the code of an installed package
    harmless: bool = False  # nothing to change: what stands around it is compiled, and it costs nothing or happens once
    fix: dict[str, Any] | None = (
        None  # a change of lines that removes it: file, start, end, old, new, note (capture/entry/result.py Fix)
    )
    seconds: float | None = None  # that it costs each time: from the end of one graph to the begin of the next
    share: float | None = None  # of the call in which that was measured


@dataclass
class GuardRow:
    """A guard in words. `cls` is "watched" (a flag), "checked" (each call), "once", or "dropped" (by guard_filter_fn:
    nothing checks it)."""

    entry: int
    source: str
    kind: str
    text: str
    expected: str = ""
    file: str = ""
    line: int | None = None
    why: str = ""
    cls: str = "checked"
    failed: int = 0  # times this guard was the first to fail
    count: int = 1  # > 1: this row stands for several guards that differ in their source alone
    ns: float | None = (
        None  # measured nanoseconds a call, of all that the row stands for; watched guards share one proof
    )
    fixed: str = ""  # of a value that a call is given: what of it may not change (`shape or dtype`)


@dataclass
class Recompile:
    """An entry's first failing guard: the reason why a frame was compiled again."""

    frame: int | None
    frame_name: str
    source: str = ""
    kind: str = ""
    detail: str = ""
    expected: str = ""
    got: str = ""
    file: str = ""
    line: int | None = None
    code: str = ""
    suggestion: str = ""
    why: str = ""
    others: int = 0  # further entries of the frame that failed as well
    time: float = 0.0
    at_call: int | None = None  # which compiled call of the function in this run it was, from 1
    called: int | None = None  # the line of the cell that made that call, where it is known


@dataclass
class Trial:
    """One candidate that autotuning measured."""

    config: dict[str, Any]
    seconds: float | None = None
    chosen: bool = False
    error: str = ""

    def words(self) -> str:
        """`xblock=2 warps=4`; `as planned` for what the rules chose without measuring."""
        return (
            "as planned" if self.config == {"default": True} else " ".join(f"{k}={v}" for k, v in self.config.items())
        )


@dataclass
class Kernel:
    """A generated kernel."""

    name: str
    language: str = "cpp"  # "cpp" | "triton" | "cuda" (C++)
    source: str = ""
    ir: str = ""
    graph: int | None = None
    bytes: int | None = None  # read and written by one launch, at the first call's sizes
    flops: int | None = None
    launches: int = 1  # per call of its graph
    seconds: float | None = None  # one launch, where measured
    compile_seconds: float | None = None
    registers: int | None = None  # a thread's, on a GPU
    spills: int | None = None  # bytes of a thread that did not fit into registers
    shared: int | None = None  # bytes of shared memory of a program
    occupancy: float | None = None  # share of a multiprocessor's threads that can be at work at once
    assembly: str = ""  # PTX; `// line N` stands before what line N of `source` became
    names: dict[str, str] = field(default_factory=dict)  # variable of `source` -> lowered node that it computes
    origins: list[str] = field(default_factory=list)  # names of the lowered nodes in it
    lines: list[list] = field(default_factory=list)  # [file, line]
    fused_because: list[str] = field(default_factory=list)
    choices: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)


@dataclass
class AutotuneRun:
    """A search whose kernel is not (or not only) in `kernels`."""

    kernel: str
    trials: list[Trial] = field(default_factory=list)


@dataclass
class Extern:
    """A call of torch's own kernel from the plan."""

    op: str
    count: int = 1
    reason: str = ""
    graph: int | None = None
    lines: list[list] = field(default_factory=list)
    seconds: float | None = None  # of all of them in one call of the graph, where measured


@dataclass
class MemoryBuffer:
    name: str
    bytes: int
    start: int  # step of the plan that allocates it
    end: int  # step that frees it
    reuse: str = ""  # the buffer whose memory it takes
    kind: str = "temp"


@dataclass
class Memory:
    """The memory plan of one graph."""

    graph: int | None = None
    peak_bytes: int | None = None
    without_reuse_bytes: int | None = None
    eager_peak_bytes: int | None = None
    steps: int = 0
    buffers: list[MemoryBuffer] = field(default_factory=list)
    # bytes alive over the steps of the plan, from the first to the last
    plan_live: list[int] = field(default_factory=list)
    # the same over eager's operators, as little as it can be; empty where unknown
    eager_live: list[int] = field(default_factory=list)
    peak_at: str = ""  # the kernel or library call that runs where most is alive
    peak_line: list = field(default_factory=list)  # [file, line], or empty


@dataclass
class Stage:
    """Time spent in one stage of the pipeline. `seconds` includes the stages inside it, `self_seconds` does not."""

    name: str
    seconds: float
    self_seconds: float
    count: int = 1
    parent: str = ""
    by: str = ""  # the function that stood for it, where it was replaced (`tcompile.stages.replace`)
    declined: int = 0  # how often that function left its input to the compiler's own


@dataclass
class CacheLookup:
    what: str
    key: str
    hit: bool
    reason: str = ""
    count: int = 1

    @property
    def result(self) -> str:
        new = self.reason.startswith("no kernel of this name was compiled before")
        return "hit" if self.hit else "new" if new else "miss"


@dataclass
class Fallback:
    """Work that ran as plain eager code, and why."""

    what: str
    reason: str
    count: int = 1
    frame: int | None = None


@dataclass
class NumericError:
    """Error of one node of a graph: this compiler's value and eager's, each against the same graph in float64. RMS
    errors are relative to the RMS of the float64 values; `max_abs` is the largest difference between the two values."""

    name: str
    max_abs: float | None = None
    rms_vs_float64: float | None = None
    eager_rms_vs_float64: float | None = None
    node: str = ""
    graph: int | None = None
    op: str = ""
    dtype: str = ""
    file: str = ""
    line: int | None = None
    verdict: str = "same"  # "same" | "close" | "diverges" | "random" (not compared)
    why: str = ""
    nan: int = 0  # of this compiler's values
    inf: int = 0
    count: int = 0  # of values
    cause: str = ""  # "overflow" | "underflow" | "cancellation": where digits are lost, by this operation itself


@dataclass
class EngineTime:
    """Seconds per call of one engine on one call. `status` other than "ok" says in `reason` why there is no figure."""

    engine: str
    status: str = "ok"  # "ok" | "skipped" | "failed" | "stopped" | "unavailable"
    reason: str = ""
    median: float | None = None
    lo: float | None = None  # 95 % bootstrap interval of the median
    hi: float | None = None
    n: int = 0  # samples
    inner: int = 1  # calls per sample
    cold: float | None = None  # the first call, compilation included
    warm: float | None = None  # the second call
    samples: list[float] = field(default_factory=list)
    detail: str = (
        ""  # what the engine says of itself: stock's graphs and breaks; tcompile's backend where it is another's
    )

    @property
    def label(self) -> str:
        return self.detail if self.engine == "tcompile" and self.detail else self.engine


@dataclass
class Speedup:
    """`engine` is `ratio` times as fast as `over`, with a 95 % interval."""

    engine: str
    over: str
    ratio: float
    lo: float
    hi: float


@dataclass
class CallTiming:
    """One call of the cell, timed again under each engine."""

    name: str
    line: int | None = None
    safe: bool = True
    why_not: str = ""
    measured: str = "call"  # "call" end to end | "graphs" the graphs alone | "cell" the whole cell | "" nothing
    engines: list[EngineTime] = field(default_factory=list)
    speedups: list[Speedup] = field(default_factory=list)
    compile_seconds: float | None = None
    break_even_calls: int | None = None
    break_even_reason: str = ""
    backward: bool = False  # the graphs' backward passes are in the times
    earlier: bool = False  # timed by the run that compiled it; entries of that run served this one

    def what(self, r: Any) -> str:
        """What its times are of, in words. `r`: the report, whose graphs may have backward passes of their own."""
        passes = ", forward and backward" if self.backward else ", forward" if r.partitions else ""
        graphs = f"its graphs alone{passes}"
        followed = any(p.name == self.name and p.how == "call" and p.backward for p in r.profiles)
        call = "the call, end to end" + ", without the backward pass that follows" * followed
        what = {"call": call, "graphs": graphs, "cell": "the whole cell"}.get(self.measured, "not measured")
        return what + ", as timed by the run that compiled it" * self.earlier


@dataclass
class Speedups:
    status: str = "off"  # "measured" | "partial" | "off" | "unavailable"
    reason: str = "timing was not asked for"
    budget_seconds: float | None = None
    spent_seconds: float = 0.0
    engines: list[str] = field(default_factory=list)
    calls: list[CallTiming] = field(default_factory=list)
    overall: list[Speedup] = field(default_factory=list)
    note: str = ""  # what makes the figures less certain: other programs at work meanwhile
    of: str = ""  # what `overall` is of, where it is not the whole cell: "f", "f and g"
    share: float | None = None  # of the cell's running time that the timed calls took in it

    def __bool__(self) -> bool:
        return bool(self.overall)

    def over(self, engine: str = "eager", of: str = "tcompile") -> Speedup | None:
        """The overall speedup of one engine over another, or None where it was not measured."""
        return next((s for s in self.overall if s.over == engine and s.engine == of), None)


@dataclass
class TimelineEvent:
    """Something that happened at `time` seconds after the report began, in the order of the events."""

    time: float
    # "capture" (its end) | "compile" (a call waits) | "entry" | "recompile" | "break" | "skip" | "limit" | "error"
    kind: str
    frame: int | None = None
    entry: int | None = None
    text: str = ""
    seconds: float = 0.0


@dataclass
class Finding:
    """Something worth doing, most costly first."""

    severity: str  # "warning" | "info"
    text: str
    action: str = ""
    ref: str = ""
    line: int | None = None
    cost_seconds: float | None = None


@dataclass
class WallPart:
    """A part of a run's wall time. `kind`: "kernels" (generated), "library" (torch's own, called from plans),
    "compiled" (the rest of compiled calls), "torch" (torch's operators outside of graphs, by name), "python", "data"
    (loading it), "waiting", "starved" (other programs had the cores), "compiling", "rest" (not told apart)."""

    kind: str
    name: str
    seconds: float
    count: int | None = None
    file: str = ""
    line: int | None = None
    ref: str = ""
    looks: int = 0  # at the stack that saw it; 0: known by a clock


@dataclass
class Wall:
    """Where the wall time of the run went; the parts add up to `seconds`."""

    seconds: float = 0.0  # 0: not known
    how: str = ""  # "sampled": from looks at the program's stack | "counted": compiling, and kernels by their calls
    samples: int = 0
    parts: list[WallPart] = field(default_factory=list)  # the longest first
    looks: int = 0  # of the samples those that saw the program at work: bounds of shares rest on them


@dataclass
class Decision:
    """What became of a function: compiled, and why that pays; or left alone, and why."""

    what: str
    decision: str  # "compiled" | "taken over" | "switched off" | "left alone" | "not followed" | "skipped" | "limit"
    why: str = ""
    seconds: float | None = None  # that compiling it took
    calls: int | None = None  # served by compiled code
    file: str = ""
    line: int | None = None
    ref: str = ""


@dataclass
class Answer:
    """Where time went, and what would change it. `gain`: how many times as fast the run would be."""

    text: str
    gain: float | None = None
    how: str = ""  # "measured" | "at most": a bound, the time would be gone altogether | "": no gain is told
    lo: float | None = None  # interval of a measured gain
    hi: float | None = None
    share: float | None = None  # of the run, without compiling
    action: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # options of the cell that do it
    error: float | None = None  # by how much results differ under them, relative to their RMS; measured with the gain
    ref: str = ""  # "breaks/0": its change of lines does it; else where the report tells more
    line: int | None = None


@dataclass
class ProfileSpan:
    """Something that ran during a profiled call, one of `CallProfile.rows()`. `parent` is a position in that list, -1
    for the call itself. `node` is the name of a node of the lowered graph: what a library call computes, or the last
    that a kernel computes."""

    kind: str  # "call" | "entry" | "guards" | "graph" | "kernel" | "library" | "launch" | "memory" | "plan" | "python"
    name: str
    parent: int
    begin: float  # seconds after the call's begin
    seconds: float
    graph: int | None = None
    kernel: int | None = None
    node: str = ""
    file: str = ""
    line: int | None = None
    module: str = ""
    part: str = ""  # "forward" | "backward" | "gradients" (between them and the optimizer) | "optimizer" | ""
    called: int | None = None  # where its line lies outside of the cell: the cell's line that led there


@dataclass
class CallProfile:
    """What one call did, from its guards to each kernel and library call. Spans lie in columns: those of `TABLED` are
    positions in the table of the same name, `begin` and `length` are nanoseconds, `parent`, `graph` and `kernel` are
    -1 where there is none."""

    name: str
    file: str = ""
    line: int | None = None
    how: str = "call"  # "call" end to end | "graphs" its graphs alone, one after the other
    device: str = "cpu"
    seconds: float = 0.0  # of the call that is shown
    plain_seconds: float | None = None  # median of calls without the clock
    backward: bool = False  # whether the call is followed by a backward pass from its result
    lost: int = 0  # spans that found no room
    earlier: bool = False  # whether an earlier run of the cell, or an earlier cell, made the call
    tables: dict[str, list] = field(default_factory=dict)
    columns: dict[str, list[int]] = field(default_factory=dict)

    TABLED = ("kind", "name", "node", "line", "module", "part")
    NUMBERS = ("parent", "begin", "length", "graph", "kernel")

    def rows(self) -> list[ProfileSpan]:
        """The spans, parents before what lies in them. Raises ValueError where the columns contradict each other."""
        columns = [self.columns.get(name, []) for name in (*self.TABLED, *self.NUMBERS)]
        columns.append(self.columns.get("called", [-1] * len(columns[0])))  # (earlier versions have none)
        if len({len(c) for c in columns}) > 1:
            raise ValueError("the columns of a call's spans differ in length")
        out = []
        for i, row in enumerate(zip(*columns)):
            kind, name, node, line, module, part, parent, begin, length, graph, kernel, called = row
            if not -1 <= parent < i or (parent < 0) != (i == 0):
                raise ValueError(f"span {i} of a call lies in none before it")
            at = {t: self.tables[t][k] for t, k in zip(self.TABLED, (kind, name, node, line, module, part)) if k >= 0}
            if len(at) < len(self.TABLED):
                raise ValueError(f"span {i} of a call has no name")
            file, number = at["line"]
            out.append(
                ProfileSpan(
                    at["kind"],
                    at["name"],
                    parent,
                    begin * 1e-9,
                    length * 1e-9,
                    graph if graph >= 0 else None,
                    kernel if kernel >= 0 else None,
                    at["node"],
                    file,
                    number,
                    at["module"],
                    at["part"],
                    called if called >= 0 else None,
                )
            )
        return out


@dataclass
class Omission:
    """What was left out of the report to keep it small."""

    what: str
    count: int
    why: str


@dataclass
class Summary:
    """The closed line of a report, as figures."""

    status: str = "nothing"  # one of STATUSES
    symbol: str = "○"
    graphs: int = 0
    breaks: int = 0
    kernels: int = 0
    externs: int = 0
    recompiles: int = 0
    compile_seconds: float = 0.0
    note: str = ""
    line: str = ""  # the whole closed line as text


@dataclass
class Change:
    """One figure that differs between two runs. `better` is None where neither is."""

    what: str
    before: str
    after: str
    better: bool | None = None
    why: str = ""  # where the report knows the cause


@dataclass
class RunDiff:
    """The run of the same cell before this one, against it; `report` is its id, empty where there was none."""

    report: str = ""
    created: str = ""
    changes: list[Change] = field(default_factory=list)
    source: list[list[str]] = field(default_factory=list)  # rows of [sign, line] as in a unified diff
