"""Fusion: a LoweredGraph as a Schedule. Inline, group, build kernels, plan memory."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..lowering.ir import Buffer, LoopNest, has_op
from ..lowering.lowered import LoweredGraph
from .tiled.contractions import contractions
from .build_kernel import build_kernel
from .product_casts import without_casts
from .memory.placed_copies import without_copies
from .value_cost import is_function
from .tiled.match_dropout_attention import dropout_attention
from .groups import Limits, group_steps
from .shared_launches import horizontal
from .inline import buffers_read, checks_unread, inline
from .memory.liveness import output_buffers
from .memory.lower_peak import lower_peak
from .memory.memory_plan import plan_memory
from .memory.buffer_names import unify_names
from .order import sink
from .schedule import Schedule, Template
from .split_reductions import split_reductions
from .memory.updated_inputs import updated_inputs
from .forced_fusion import ForcedFusion

__all__ = ["schedule"]


def schedule(lowered: LoweredGraph, opts: Any) -> Schedule:
    """Options: disable_fusion, max_fusion_size, epilogue_fusion, emulate_precision, force_fuse, force_split."""
    fuse = not opts.get("disable_fusion", False)
    drop_rounding = not opts.get("emulate_precision", False)
    forced = ForcedFusion.of(opts)
    hints = lowered.hints
    needed = output_buffers(lowered)
    steps, updated = updated_inputs(lowered)
    if fuse:
        steps = contractions(steps, needed, hints, opts)
        steps = inline(steps, needed, hints, drop_rounding, forced=forced)
        steps = dropout_attention(without_copies(steps, needed), needed, hints)
        if drop_rounding and opts.get("epilogue_fusion", True):
            steps = without_casts(steps, needed, [buffer for _, buffer in lowered.mutations], forced)
        steps = sink(_sources_first(split_reductions(steps, hints)), hints)
    else:
        steps = inline(steps, needed, hints, drop_rounding, nothing=True)
    needed = [*needed, *checks_unread(steps, needed)]
    limits = Limits(
        nests=max(1, opts.get("max_fusion_size", 4096)), epilogue=bool(opts.get("epilogue_fusion", True)), forced=forced
    )
    groups, unfused = group_steps(steps, hints, limits, fuse, needed)
    outside = _needed_outside(groups, needed)
    launches: list[Any] = []
    for group in groups:
        if isinstance(group.extern, Template):
            kernel = replace(group.extern.launch.kernel, name=f"k{len(launches)}_{group.extern.launch.kernel.name}")
            launches.append(replace(group.extern.launch, kernel=kernel, inputs=list(group.extern.args)))
        elif group.extern is not None:
            launches.append(group.extern)
        else:
            launches.append(build_kernel(group, outside, hints, drop_rounding, kernel_name(len(launches), group.nests)))
    if fuse:
        launches = horizontal(launches, lowered, hints, forced, limits.nests)
        launches = lower_peak(launches, lowered, hints, updated)
    plan, peak, mutations, written = plan_memory(unify_names(launches, lowered), lowered, hints, updated)
    copied = {i for i, _ in mutations}
    changes = {i: lowered.writes.get(i, 1) for i in sorted({*written, *copied})}  # input -> how often it is written
    counted = [i for i, writes in changes.items() for _ in range(writes - (i in copied))]  # (a copy counts by itself)
    return Schedule(
        steps=plan,
        inputs=lowered.inputs,
        outputs=lowered.outputs,
        mutations=mutations,
        constants=lowered.constants,
        symbols=lowered.symbols,
        hints=lowered.hints,
        peak_bytes=peak,
        unfused=list(dict.fromkeys(unfused)),
        written=written,
        counted=counted,
        uncounted=[i for i, writes in changes.items() if writes == 0],
        given=lowered.given,
    )


def _sources_first(steps: list[Any]) -> list[Any]:
    """What is made of nothing but positions (masks, weights of an interpolation) comes first: between two nests that
    could share a kernel it would keep them apart."""

    def is_source(step: Any) -> bool:
        return isinstance(step, LoopNest) and step.mode == "set" and not has_op([step.value], "load")

    written: dict[Buffer, int] = {}
    for step in steps:
        if isinstance(step, LoopNest):
            written[step.buffer] = written.get(step.buffer, 0) + 1
    first = [step for step in steps if is_source(step) and written[step.buffer] == 1]
    ids = set(map(id, first))
    return [*first, *(step for step in steps if id(step) not in ids)]


def _needed_outside(groups: list, needed: list[Buffer]) -> set[Buffer]:
    """Buffers that are read outside the group that makes them."""
    out = set(needed)
    for group in groups:
        if group.extern is not None:
            out.update(buffers_read(group.extern))
        else:
            out.update(group.reads)  # reads hold only what the group does not make itself
            out.update(key for key, write in group.writes.items() if write is None)
    return out


def kernel_name(k: int, nests: list[LoopNest]) -> str:
    """k<number>_<first operators>: short and readable. Of what is computed inside of others, functions alone."""
    words: list[str] = []
    for nest in nests:
        *inside, own = (re.sub(r"_\d+$", "", o) for o in nest.origins or ("copy",))
        words += [*filter(is_function, inside), own]
    parts = list(dict.fromkeys(re.sub(r"\W", "_", word) for word in words))
    text = "_".join(parts[:4]) + ("_etc" if len(parts) > 4 else "")
    return f"k{k}_{text}"[:60]
