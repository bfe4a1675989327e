"""How exact is a compiled graph? Every node's value as our kernels compute it, as eager's do, and in float64.

The graph is compiled once more with all its nodes as results, so that values inside of fused kernels can be seen;
eager's values come from torch's kernels node by node; the reference is the same graph in float64. What diverges first
is where to look.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Any, Container, Sequence

import torch
import torch.fx

from .. import stages
from ..base.fx_nodes import is_call, is_input, is_output
from ..config import Options
from ..graph.aten import AtenGraph, GraphOutput
from ..graph.aten_interpreter import node_values
from ..graph.meta.core import TensorMeta
from .finish import numerics_findings
from .graph_nodes import op_name
from .schema import NumericError

__all__ = ["check_calls", "check_graph", "visible_nodes", "with_all_results"]

_MOST_NODES = 400
_MOST_BYTES = 1 << 30  # of values that are looked at, all at once
_DRAWN = "these are random numbers: what follows is computed from the same ones"
_FOLLOWS = "it follows from random numbers that are too large to be kept"
_UNROUNDED = "its kernel computes it in float32, and never rounds it"
_RANDOM = tuple("rand dropout bernoulli normal multinomial philox keep_bits uniform exponential poisson".split())


def check_graph(
    aten: AtenGraph,
    inputs: Sequence[Any],
    opts: Options,
    number: int | None = None,
    stored: Container[str] | None = None,
) -> list[NumericError]:
    """Errors of the graph's nodes on `inputs`, in the graph's order. Inputs are read, never written. Random numbers are
    drawn once, by our kernels: eager and float64 compute with the same ones, so that what follows from them is
    compared. The numbers themselves are listed as not compared. `stored`: the nodes that the graph's own kernels put
    into memory, where that is known; others are rounded to 16 bits only to be looked at.
    """
    aten = aten.whole or aten
    nodes = visible_nodes(aten)
    with torch.no_grad():
        probe, kept = with_all_results(aten, nodes)
        ours = dict(zip(nodes, stages.compile_aten(probe, opts)(*inputs)))
        drawn = _drawn(aten)
        given = {n: ours[n].detach() for n in drawn if n in ours}
        eager = node_values(aten, inputs, given=given)
        exact = node_values(aten, inputs, double=True, given=given)
    unknown: set[torch.fx.Node] = set()  # random, and ours were not looked at: what follows has other numbers
    rows = []
    lost: set[torch.fx.Node] = set()  # with digits that an operation of this dtype has lost, and what follows
    for n in aten.graph.nodes:
        if n in drawn and n not in given and not _is_tuple(n) or n not in given and _reads(n, unknown):
            unknown.add(n)
        if n in ours:
            random = _DRAWN if n in drawn else _FOLLOWS if n in unknown else ""
            row = _row(n, ours[n].detach(), eager[n].detach(), exact[n].detach(), random, number)
            if not random:
                _blame(row, n, ours[n].detach(), exact, lost)
                if stored is not None and n.name not in stored and not opts.get("emulate_precision"):
                    _forgive(row)
            rows.append(row)
    return rows


def _drawn(aten: AtenGraph) -> set[torch.fx.Node]:
    """The nodes that draw random numbers, and the parts of their results where these are several."""
    out: set[torch.fx.Node] = set()
    for n in aten.graph.nodes:
        if is_call(n) and any(w in op_name(n.target) for w in _RANDOM):
            out.add(n)
            out.update(user for user in n.users if user.target is operator.getitem)
    return out


def _is_tuple(n: torch.fx.Node) -> bool:
    return isinstance(n.meta.get("val"), (tuple, list))


def _reads(n: torch.fx.Node, values: set[torch.fx.Node]) -> bool:
    return any(i in values for i in n.all_input_nodes)


def check_calls(calls: Sequence[Any], report: Any, opts: Options) -> None:
    """Fill `report.numerics` from the graphs of the calls that it tells of, on the calls' own inputs; what diverges
    becomes a finding. Inputs that something has written to since (an optimizer's step) are taken as they are now: the
    three ways to compute still see the same values.
    """
    rows: list[NumericError] = []
    done: set[int] = set()
    for g in (g for c in calls for g in c.graphs):
        if g.number is None or g.number in done:
            continue
        done.add(g.number)
        aten = report.graphs[g.number].aten
        why = "" if aten is not None else "it ran with torch's own kernels"
        if aten is not None:
            try:
                rows += check_graph(aten, g.inputs, opts, g.number, _stored(report, g.number))
            except (
                Exception
            ) as e:  # an index that an update has moved out of bounds, memory: the other graphs still tell
                why = f"it could not be run again: {type(e).__name__}: {e}".splitlines()[0]
        if why:
            rows.append(NumericError(report.graphs[g.number].name, graph=g.number, verdict="random", why=why))
    # (of a graph that an earlier run compiled, that run's comparison stands)
    report.numerics = [*(n for n in report.numerics if n.graph not in done), *rows]
    report.findings = [*numerics_findings(report), *(f for f in report.findings if f.ref != "numerics")]


def _stored(report: Any, graph: int) -> set[str] | None:
    """The nodes of a graph that have memory, by its plan: a buffer is called after its node (`addmm_product`)."""
    names = [b.name for m in report.memory if m.graph == graph for b in m.buffers]
    return {*names, *(re.sub(r"_[a-z]\w*$", "", name) for name in names)} if names else None


def visible_nodes(aten: AtenGraph) -> list[torch.fx.Node]:
    """The tensors worth looking at: those that an operator makes, within bounds."""
    nodes: list[torch.fx.Node] = []
    total = 0
    for n in aten.calls():
        m = n.meta.get("val")
        if not isinstance(m, TensorMeta):
            continue
        sizes = aten.env.hints if aten.env is not None else {}
        count = math.prod(int(s.eval(sizes)) if hasattr(s, "eval") else int(s) for s in m.shape)
        total += count * m.dtype.itemsize
        if len(nodes) == _MOST_NODES or total > _MOST_BYTES:
            break
        nodes.append(n)
    return nodes


def with_all_results(aten: AtenGraph, nodes: list[torch.fx.Node]) -> tuple[AtenGraph, dict]:
    """A copy of the graph whose results are `nodes`."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for n in aten.graph.nodes:
        if not is_output(n):
            copies[n] = graph.node_copy(n, copies.__getitem__)
            copies[n].meta = dict(n.meta)
    graph.output(tuple(copies[n] for n in nodes))
    used = {n for n in graph.nodes if is_input(n) or n.users or is_output(n)}
    for n in reversed(list(graph.nodes)):
        if n not in used and not n.users:
            graph.erase_node(n)
    plan = [GraphOutput("buffer", i, n.meta["val"]) for i, n in enumerate(nodes)]
    return (
        AtenGraph(graph, aten.inputs, plan, [], aten.env, aten.constants, aten.no_overlap, f"{aten.name}_checked"),
        copies,
    )


def _row(
    n: torch.fx.Node, ours: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, random: str, number: int | None
) -> NumericError:
    op = op_name(n.target)
    file, line = _where(n)
    row = NumericError(
        n.name, node=n.name, graph=number, op=op, dtype=str(ours.dtype).removeprefix("torch."), file=file, line=line
    )
    row.count = ours.numel()
    if ours.is_floating_point():
        row.nan, row.inf = int(ours.isnan().sum()), int(ours.isinf().sum())
    if random:
        row.verdict, row.why = "random", random
        return row
    if not ours.is_floating_point():
        same = (
            torch.equal(ours, eager)
            if not ours.is_complex()
            else bool(torch.isclose(ours, eager, equal_nan=True).all())
        )
        if not same:
            row.verdict, row.why = (
                "diverges",
                f"{int((ours != eager).sum())} of {ours.numel()} values differ from eager's",
            )
            row.max_abs = float((ours.double() - eager.double()).abs().max()) if not ours.is_complex() else None
        return row
    a, b, ref = ours.double(), eager.double(), exact.double()
    strange = ~(a.isfinite() & b.isfinite())
    if not torch.equal(torch.nan_to_num(a[strange], 0.5), torch.nan_to_num(b[strange], 0.5)):
        row.verdict, row.why = "diverges", "NaN or infinity where eager has none, or the other way round"
        return row
    plain = ~strange & ref.isfinite()
    a, b, ref = a[plain], b[plain], ref[plain]
    if not a.numel():
        return row
    scale = float(ref.square().mean().sqrt()) or 1.0
    row.max_abs = float((a - b).abs().max())
    row.rms_vs_float64 = float((a - ref).square().mean().sqrt()) / scale
    row.eager_rms_vs_float64 = float((b - ref).square().mean().sqrt()) / scale
    if row.max_abs:
        allowed = 2 * row.eager_rms_vs_float64 + 4 * torch.finfo(ours.dtype).eps
        row.verdict = "diverges" if row.rms_vs_float64 > allowed else "close"
        if row.verdict == "diverges":
            row.why = "further from float64 than twice eager's error"
    return row


_GONE = 0.5  # relative error from which on little of a value is left
_LOSES = 1e3  # times as large as their difference: so much larger operands cost three digits


def _blame(row: NumericError, n: torch.fx.Node, ours: torch.Tensor, exact: dict, lost: set[torch.fx.Node]) -> None:
    """Whether this operation loses what float64 keeps: values beyond the dtype's range, above or below, or a difference
    of values that are nearly equal. `lost` collects what has lost its values to 0, and what follows from it."""
    if not ours.is_floating_point():
        return
    ref = exact[n].detach().double()
    under = ref[(ours == 0) & (ref != 0) & (ref.abs() < torch.finfo(ours.dtype).smallest_normal)].abs()
    if under.numel() and (row.rms_vs_float64 or 0) > _GONE:
        if not lost.intersection(n.all_input_nodes):
            words = f"{under.numel()} of {row.count} values become 0 in {row.dtype}, up to {float(under.max()):.1e}"
            row.cause, row.why = "underflow", words
        lost.add(n)
        return
    over = int((ours.isinf() & ref.isfinite()).sum())
    if over and not any(_infinite(i, exact, row.dtype) for i in n.all_input_nodes):
        most = float(ref[ours.isinf() & ref.isfinite()].abs().max())
        row.cause, row.why = "overflow", f"{over} values are beyond {row.dtype}'s range, the largest {most:.1e}"
    elif row.op in ("aten.sub.Tensor", "aten.add.Tensor") and (row.rms_vs_float64 or 0) > _LOSES * _eps(row.dtype):
        sizes = [_rms(exact[i]) for i in n.all_input_nodes if isinstance(exact.get(i), torch.Tensor)]
        lost = min(sizes) / _rms(ref) if len(sizes) == 2 and _rms(ref) else 0.0
        if lost > _LOSES:
            words = f"the operands are {lost:.0e} times as large as the result, which keeps few of their digits"
            row.cause, row.why = "cancellation", words


def _forgive(row: NumericError) -> None:
    """A value in 16 bits that no memory holds: its kernel goes on with float32, but for a cast that the program asks
    for. What was looked at has an error of its own; eager's is real."""
    if row.dtype in ("float16", "bfloat16") and row.op != "aten._to_copy.default" and row.verdict in ("same", "close"):
        row.max_abs = row.rms_vs_float64 = None
        row.why = f"in eager {row.why}; {_UNROUNDED}" if row.cause else _UNROUNDED


def _infinite(n: torch.fx.Node, exact: dict, dtype: str) -> bool:
    """Whether an operand was too large for the dtype before."""
    x = exact.get(n)
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or not x.numel():
        return False
    return float(x.detach().abs().max()) > torch.finfo(getattr(torch, dtype)).max


def _eps(dtype: str) -> float:
    return torch.finfo(getattr(torch, dtype)).eps


def _rms(x: torch.Tensor) -> float:
    return float(x.detach().double().square().mean().sqrt()) if x.numel() else 0.0


def _where(n: torch.fx.Node) -> tuple[str, int | None]:
    from ..base.labels import label

    stack = n.meta.get("stack") or ()
    last = stack[-1] if stack else None
    return (label(str(last[0])), int(last[1])) if isinstance(last, (tuple, list)) and len(last) >= 2 else ("", None)
