"""One name for one block of memory. Where a buffer is only ever needed under the shape of a view of it, the view's
shape is allocated in the first place. No view has to be made at run time, and a graph's output is a tensor of its own.
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
        wanted = [view for view in vs if view.buffer in results]
        if any(isinstance(maker, Extern) for maker in makers):
            if len(makers) != 1 or makers[0].out_variant is None or not wanted:
                continue
        elif not wanted and b not in called_with:
            wanted = [view for view in vs if view.buffer in called_with]
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
    for step in steps:
        if id(step) in gone:
            continue
        if id(step) in before:
            out.append(before[id(step)])
        if isinstance(step, Launch) and renamed:
            step = replace(
                step,
                inputs=[renamed.get(b, b) for b in step.inputs],
                outputs=[renamed.get(output, output) for output in step.outputs],
            )
        elif isinstance(step, View) and step.base in renamed:
            step = View(step.buffer, renamed[step.base], step.offset)
        out.append(step)
    return out


def _covers(view: View) -> bool:
    """Whether a view shows every element of its base once: the same dense block under another shape."""
    buffer, base = view.buffer, view.base
    n = mul_all(buffer.shape)
    dense = n * buffer.dtype.itemsize
    return (
        as_expr(view.offset).is_const
        and as_expr(view.offset).value == 0
        and buffer.dtype == base.dtype
        and n is mul_all(base.shape)
        and nbytes(buffer) is dense
        and nbytes(base) is dense
    )
