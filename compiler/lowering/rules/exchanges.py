"""Collectives that give each process a tensor of its own tensor's size: called in place.

torch's functional form copies its operand and calls the form in place. Here the memory plan copies where it has to: an
operand that nobody reads again is what the collective writes to, a graph's input that is changed anyway among them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..buffer_strides import strides_of
from ..context import Lowering
from ..lowered import Extern
from ..ref import Ref, ref_of_buffer, shape_of
from ..rule_table import NoRule, rule

__all__: list[str] = []

REASON = "a collective"


@rule("_c10d_functional.all_reduce", "_c10d_functional.broadcast", any_dtype=True)
def exchanged_in_place(lo: Lowering, node: torch.fx.Node, tensor: Ref, how: Any, group_name: Any) -> Ref:
    op, meta = node.target, node.meta["val"]
    in_place = getattr(torch.ops._c10d_functional, f"{op._schema.name.partition('::')[2]}_").default  # type: ignore
    name, *others = [arg.name for arg in in_place._schema.arguments]
    if meta.dtype.is_complex:
        raise NoRule("complex numbers are exchanged as real ones")
    given = {name: lo.realise(tensor, strides_of(meta)), **dict(zip(others, (how, group_name)))}
    out = lo.new_buffer(shape_of(meta.shape), meta.dtype, strides_of(meta))
    lines = [tuple(x) for x in lo.lines()]
    lo.steps.append(Extern(op, (), given, [out], in_place, (name,), REASON, node.name, lines))
    lo.forget_drawing()
    return ref_of_buffer(out)
