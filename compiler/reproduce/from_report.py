"""From a graph, a kernel, a wrong number or a break of a report to its reproducer."""

from __future__ import annotations

import re
from typing import Any

import torch.fx

from ..base.installed_version import version
from ..config import MODES, OPTIONS
from ..errors import ReproduceError
from .definitions import Definitions
from .program_text import program_text
from .reproducer import Reproducer, file_text
from .specs import Autocast, InputSpec
from .subgraph import ancestors, aten_part, captured_part

__all__ = ["from_report", "written"]

_LISTS = ("graphs", "kernels", "graph_breaks", "numerics")
_REF = re.compile(r"^(graphs|kernels|breaks|graph_breaks|numerics)/(\d+)$")


def from_report(report: Any, what: Any) -> Reproducer:
    """The file for `what`: an item of the report's graphs, kernels, graph_breaks or numerics, or "kernels/0"."""
    where, index = _place(report, what)
    item = getattr(report, where)[index]
    if where == "graph_breaks":
        return _of_break(report, item)
    number = index if where == "graphs" else item.graph
    if number is None or not 0 <= number < len(report.graphs):
        raise ReproduceError(f"{where}/{index} belongs to no graph of this report")
    graph = report.graphs[number]
    if where == "graphs":
        return _of_graph(report, graph)
    return _of_kernel(report, graph, item) if where == "kernels" else _of_number(report, graph, item)


def _place(report: Any, what: Any) -> tuple[str, int]:
    if isinstance(what, str):
        found = _REF.match(what)
        if found is None:
            raise ReproduceError(f"a reference is 'graphs/0', 'kernels/0', 'breaks/0' or 'numerics/0', got {what!r}")
        where, index = found[1].replace("graph_breaks", "breaks").replace("breaks", "graph_breaks"), int(found[2])
        if index >= len(getattr(report, where)):
            raise ReproduceError(f"the report has {len(getattr(report, where))} {where}, so no {what!r}")
        return where, index
    for where in _LISTS:
        for i, item in enumerate(getattr(report, where)):
            if item is what:
                return where, i
    raise ReproduceError(
        "reproducer takes a graph, kernel, break or numeric error of this report, or text such as 'kernels/0', got"
        f" {type(what).__name__}"
    )


def _how(report: Any) -> dict[str, Any]:
    """The arguments of compile that the report's run had, as far as they matter to the code that is made."""
    if report.compile_args is not None:
        given = dict(report.compile_args)
    else:  # a cell's, where options stand beside the arguments
        given = {
            name: option
            for name, option in report.options.items()
            if name in ("mode", "dynamic", "backend") and option is not None
        }
        given["options"] = {name: option for name, option in report.options.items() if name in OPTIONS}
    how = {key: value for key, value in given.items() if key in ("mode", "dynamic") and value is not None}
    # a file holds no functions
    options = {key: value for key, value in (given.get("options") or {}).items() if not callable(value)}
    if how.get("mode") not in MODES:
        how.pop("mode", None)
    if isinstance(given.get("backend"), str) and given["backend"] != "tcompile":
        how["backend"] = given["backend"]
    return {**how, **({"options": options} if options else {})}


def strict(how: dict[str, Any]) -> dict[str, Any]:
    """The same, but an internal error is raised: the default takes eager's result, and hides it. A mode excludes
    options, and stands."""
    if how.get("mode"):
        return how
    return {**how, "options": {**how.get("options", {}), "suppress_errors": False}}


def _live(graph: Any) -> None:
    if graph.graph_module is None and graph.aten is None:
        raise ReproduceError(
            f"{graph.name} has no live graph: the report was loaded from a file, or the graph ran with torch's"
            " kernels. Run the code again and ask the new report"
        )


def written(
    graph: torch.fx.Graph,
    specs: list[InputSpec],
    *,
    kind: str,
    title: str,
    how: dict[str, Any],
    setup: str = "",
    autocast: Autocast = (),
) -> Reproducer:
    """A graph and its inputs as a reproducer."""
    modules: set[str] = set()
    text = program_text(graph, modules=modules, autocast=autocast)
    whole = file_text(
        text, specs, title=title, how=strict(how), modules=sorted(modules), setup=setup, version=version()
    )
    return Reproducer(whole, kind, title, sum(node.op.startswith("call_") for node in graph.nodes))


def _of_graph(report: Any, graph: Any) -> Reproducer:
    _live(graph)
    title = f"{graph.name} of {report.title or 'a report'}: compiled against eager."
    if graph.graph_module is None:  # a backward graph
        whole = graph.aten.whole or graph.aten
        part = aten_part(whole, set(whole.calls()), _tensors(whole.results), {})
        return written(*part, kind="graph", title=title, how=_how(report))
    if len(graph.specs) != len(graph.graph_module.graph.find_nodes(op="placeholder")):
        raise ReproduceError(f"nothing is known of the inputs of {graph.name}")
    part = captured_part(graph.graph_module, graph.specs)
    return written(*part, kind="graph", title=title, how=_how(report), autocast=graph.autocast)


def _tensors(nodes: Any) -> list[torch.fx.Node]:
    return [node for node in dict.fromkeys(nodes) if isinstance(node, torch.fx.Node)]


def _known(graph: Any) -> dict[int, InputSpec]:
    """What is known of a lowered graph's inputs: those of the captured graph, where it has the same."""
    whole = graph.aten.whole or graph.aten
    return dict(enumerate(graph.specs)) if len(graph.specs) == len(whole.placeholders) else {}


def _of_kernel(report: Any, graph: Any, kernel: Any) -> Reproducer:
    _live(graph)
    if graph.aten is None:
        raise ReproduceError(f"{graph.name} was not lowered, so that {kernel.name} can't be taken out of it")
    whole = graph.aten
    inside = {node for node in whole.calls() if node.name in set(kernel.origins)}
    if not inside:
        raise ReproduceError(f"it is not known which operations {kernel.name} computes")
    results = set(_tensors(whole.results))
    ends = [
        node
        for node in whole.calls()
        if node in inside and (node in results or any(user not in inside for user in node.users))
    ]
    ends = [end for end in ends if not isinstance(end.meta.get("val"), (tuple, list))]
    part = aten_part(whole, inside, ends or sorted(inside, key=lambda n: n.name)[-1:], _known(graph))
    title = f"The operations of kernel {kernel.name} in {graph.name} of {report.title or 'a report'}, against eager."
    return written(*part, kind="kernel", title=title, how=_how(report))


def _of_number(report: Any, graph: Any, row: Any) -> Reproducer:
    _live(graph)
    whole = (graph.aten.whole or graph.aten) if graph.aten is not None else None
    node = next((node for node in whole.calls() if node.name == row.node), None) if whole is not None else None
    if node is None or whole is None:
        raise ReproduceError(f"{row.name} is not a value of {graph.name}" + (f": {row.why}" if row.why else ""))
    part = aten_part(whole, ancestors([node]), [node], _known(graph))
    title = f"{row.name} ({row.op}) in {graph.name}: {row.verdict}. {row.why}".strip()
    return written(*part, kind="number", title=title, how=_how(report))


def _of_break(report: Any, brk: Any) -> Reproducer:
    frame = report.frames[brk.frame] if brk.frame is not None and brk.frame < len(report.frames) else None
    call = frame.call if frame is not None else None
    if call is None:
        raise ReproduceError(
            f"the call with the break at {brk.file}:{brk.line} is no longer at hand: the report was loaded from a "
            "file, or fullgraph=True ended the call. Run the code again without it"
        )
    made = Definitions()
    program, inputs = made.call(call)
    title = f"A graph break at {brk.file}:{brk.line}, `{brk.code.strip()}`. {brk.reason}"
    how = {key: value for key, value in _how(report).items() if key != "backend"}
    text = file_text(program, inputs, title=title, how=how, check="list_breaks", setup=made.text(), version=version())
    return Reproducer(text, "break", title)
