"""One name for one block of memory. Where a buffer is only ever needed under the shape of a view of it, the view's
shape is allocated in the first place: no view has to be made at run time, and a graph's output is a tensor of its own,
not a view.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

from ...lowering.ir import Buffer
from ...lowering.lowered import Extern, LoweredGraph, View
from ...symbolic.expr import as_expr, mul_all
from ..inline import buffers_read
from .liveness import nbytes, outlive
from ..schedule import Launch

__all__ = ["unify_names"]


def unify_names(steps: Sequence[Any], lowered: LoweredGraph) -> list[Any]:
    """The steps with such buffers renamed. A library call that writes a result of the graph under another shape gets a
    View of it, which then stands before the call."""
    results = set(outlive(lowered))
    made_by: dict[Buffer, list[Any]] = {}
    called_with: set[Buffer] = set()
    views: dict[Buffer, list[View]] = {}
    for step in steps:
        if isinstance(step, Launch):
            for b in step.outputs:
                made_by.setdefault(b, []).append(step)
        elif isinstance(step, View):
            if _covers(step):
                views.setdefault(step.base, []).append(step)
        else:
            called_with.update(buffers_read(step))
            for b in step.outputs:
                if b is not None:
                    called_with.add(b)
                    made_by.setdefault(b, []).append(step)
    renamed: dict[Buffer, Buffer] = {}
    before: dict[int, View] = {}  # id of the step that makes a buffer first -> the View to put before it
    gone: set[int] = set()
    for b, vs in views.items():
        makers = made_by.get(b)
        if b.kind != "temp" or b in results or not makers:
            continue
        wanted = [v for v in vs if v.buffer in results]
        if any(isinstance(maker, Extern) for maker in makers):
            if len(makers) != 1 or makers[0].out_variant is None or not wanted:
                continue
        elif not wanted and b not in called_with:
            wanted = [v for v in vs if v.buffer in called_with]
        if not wanted:
            continue
        gone.add(id(wanted[0]))
        if b in called_with:
            before[id(makers[0])] = View(b, wanted[0].buffer, 0)
        else:
            renamed[b] = wanted[0].buffer
    return _renamed(steps, renamed, before, gone) if gone else list(steps)


def _renamed(steps: Sequence[Any], renamed: dict[Buffer, Buffer], before: dict[int, View], gone: set[int]) -> list[Any]:
    out: list[Any] = []
    for s in steps:
        if id(s) in gone:
            continue
        if id(s) in before:
            out.append(before[id(s)])
        if isinstance(s, Launch) and renamed:
            s = replace(
                s,
                inputs=[renamed.get(b, b) for b in s.inputs],
                outputs=[renamed.get(output, output) for output in s.outputs],
            )
        elif isinstance(s, View) and s.base in renamed:
            s = View(s.buffer, renamed[s.base], s.offset)
        out.append(s)
    return out


def _covers(v: View) -> bool:
    """Whether a view shows every element of its base once: the same dense block under another shape."""
    a, base = v.buffer, v.base
    n = mul_all(a.shape)
    dense = n * a.dtype.itemsize
    return (
        as_expr(v.offset).is_const
        and as_expr(v.offset).value == 0
        and a.dtype == base.dtype
        and n is mul_all(base.shape)
        and nbytes(a) is dense
        and nbytes(base) is dense
    )
