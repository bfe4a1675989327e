"""Breaks that the options refuse: fullgraph=True and error_on_graph_break."""

from __future__ import annotations

from typing import Any, Sequence

from ..base.labels import label
from ..capture.breaks.causes import ALLOWED_BY_FULLGRAPH
from ..config import Options

__all__ = ["break_message", "refused_breaks"]


def refused_breaks(breaks: Sequence[Any], opts: Options) -> list[Any]:
    """The breaks that fullgraph, or error_on_graph_break, does not allow.

    Those of `ALLOWED_BY_FULLGRAPH` always pass. Options let two others pass: a number that is read from a tensor, and
    an operator whose values decide the size of its result. What follows takes either as an input of the next graph."""
    return [
        b
        for b in breaks
        if (opts.fullgraph or b.is_error)
        and not (
            b.kind in ALLOWED_BY_FULLGRAPH
            or b.kind in ("item", "tolist")
            and opts.get("capture_scalar_outputs")
            or b.kind == "data_dependent_shape"
            and opts.get("capture_dynamic_output_shape_ops")
        )
    ]


def break_message(b: Any, fullgraph: bool) -> str:
    where = f"{label(b.file)}:{b.line}" + ("" if b.function == "<module>" else f", in {b.function}")
    asked, without = (
        ("fullgraph=True", "Without fullgraph=True")
        if fullgraph
        else ("error_on_graph_break is True here", "Under tcompile.error_on_graph_break(False)")
    )
    return (
        f"{asked}, but the graph breaks at {where}:\n    {b.code.strip()}\n{b.reason}\n"
        + (f"What to do: {b.remedy}\n" if b.remedy else "")
        + f"{without} the code before and after the break is compiled apart."
    )
