"""On a GPU, element-wise kernels that read the graph's inputs alone share a launch where they lie near each other
(horizontal fusion).

Autocast's conversions of a layer's weights are such: a few microseconds each, too short to reach the rate of a long
copy, and a launch each. So are the bits that dropout draws (they read the generator's state alone), which keep
multipliers busy where conversions keep memory busy. In the common kernel each is a stage over axes of its own; their
elements are divided among the programs. It runs where the first of them did, so that the results of the others wait in
memory for their readers: MOST_BYTES of them at most, which a large GPU's cache holds, and only where the graph's peak
of memory stays as it is. On an H200 the 76 MB that the weights of a transformer's layer and their conversions are take
19.4 us, where they took 27.0 one by one.
"""

from __future__ import annotations

from typing import Any, Container, Sequence


from ..lowering.ir import Axis, Buffer, Kernel, Stage, Store, walk
from ..lowering.lowered import Extern, LoweredGraph, View
from ..lowering.rewrite import Rewriter
from ..ops.philox import STATE
from ..symbolic.expr import ONE, ZERO, Expr, symbol
from .domain import size_hint
from .parameter_names import FormalNames
from .memory.liveness import Liveness, nbytes, sizes
from .schedule import Launch
from .forced_fusion import NOTHING_FORCED, ForcedFusion

__all__ = ["horizontal"]

MOST_BYTES = 32 << 20  # of results of a launch
MOST = 16  # kernels of a launch
MOST_BUFFERS = 64  # that these read and write
SLACK = 64  # results that wait may raise the peak, inputs included, by this part of it, or by SMALL_BYTES
SMALL_BYTES = 1 << 20


def horizontal(
    steps: Sequence[Any],
    lowered: LoweredGraph,
    hints: dict[str, int],
    forced: ForcedFusion = NOTHING_FORCED,
    most: int = 4096,
) -> list[Any]:
    """The steps with such kernels joined: each goes to the latest group, or begins one. `most`: operators in a
    kernel.
    """
    if not any(_on_gpu(step) for step in steps if isinstance(step, Launch)):
        return list(steps)
    alive = Liveness(steps, lowered).bytes_alive(sizes(hints))
    inputs = sum(size_hint(nbytes(b), hints) for b in lowered.inputs if isinstance(b, Buffer))
    peak = max(alive, default=0)
    peak += max(SMALL_BYTES, (peak + inputs) // SLACK)
    # buffer -> the place of the step that makes it
    there = dict.fromkeys((b for b in lowered.inputs if isinstance(b, Buffer)), -1)
    apart = {buffer for _, buffer in lowered.mutations} | {step.buffer for step in steps if isinstance(step, View)}
    written: dict[Buffer, int] = {}
    for step in steps:
        for b in step.outputs if isinstance(step, Launch) else ():
            written[b] = written.get(b, 0) + 1
    groups: list[list[Launch]] = []
    first: dict[int, list[Launch]] = {}  # id of a launch -> the group that begins there
    room = begin = 0
    for at, step in enumerate(steps):
        if isinstance(step, Extern) and step.op._schema.is_mutable and step.out_variant is None:
            room = 0  # (it may write what those behind it read)
        if isinstance(step, Extern) and step.op is STATE:
            there.update((output, at) for output in step.outputs if output is not None)
        elif isinstance(step, View) and step.base in there:
            there[step.buffer] = max(at, there[step.base])
        if (
            not isinstance(step, Launch)
            or not _is_free(step, there)
            or any(output in apart or written[output] > 1 for output in step.outputs)
        ):
            continue
        size = sum(int(nbytes(output).value) for output in step.outputs)
        if (
            groups
            and size <= room
            and all(there.get(b, -1) < begin for b in step.inputs)
            and max(alive[begin:at]) + size <= peak
            and _may_join(groups[-1], step, forced, most)
        ):
            groups[-1].append(step)
            room -= size
            alive[begin:at] = [n + size for n in alive[begin:at]]
        else:
            groups.append([step])
            first[id(step)] = groups[-1]
            room, begin = MOST_BYTES - size, at
    joined = {id(s) for group in groups for s in group[1:]}
    return [
        _join(first[id(step)]) if len(first.get(id(step), ())) > 1 else step for step in steps if id(step) not in joined
    ]


def _may_join(group: list[Launch], s: Launch, forced: ForcedFusion, most: int) -> bool:
    together = (*group, s)
    return (
        len(group) < MOST
        and sum(len(x.inputs) + len(x.outputs) for x in together) <= MOST_BUFFERS
        and sum(len(x.kernel.origins) for x in together) <= most
        and not any(forced.apart(x.kernel.origins, s.kernel.origins) for x in group)
    )


def _on_gpu(launch: Launch) -> bool:
    return all(output.on_gpu for output in launch.outputs)


def _is_free(s: Launch, there: Container[Buffer]) -> bool:
    """Whether a kernel may run once what is `there` is made, and goes through memory in one run: element-wise, of
    static size.
    """
    kernel = s.kernel
    if (
        len(kernel.outer) != 1
        or len(kernel.stages) != 1
        or kernel.stages[0].axes
        or kernel.template is not None
        or kernel.checks
        or kernel.params
        or kernel.sizes
        or kernel.locals
    ):
        return False
    if not _on_gpu(s) or not all(b in there or b.kind == "constant" for b in s.inputs):
        return False
    stores, axis = kernel.stages[0].stores, kernel.outer[0].symbol.name
    return all(
        store.mode == "set" and not store.positions and store.index.coeff(axis) is ONE for store in stores
    ) and all(
        value.op != "philox" and (not value.is_load or not value.args and value.attr[1].coeff(axis) in (ONE, ZERO))
        for value in walk([store.value for store in stores])
    )


def _join(launches: Sequence[Launch]) -> Launch:
    """One launch that does what these do, in any order."""
    # (a name for each: no element of one is known to be one of another)
    axes = [symbol(f"r{n}") for n in range(len(launches))]
    formal = FormalNames({axis.name for axis in axes})
    stages = []
    for axis, launch in zip(axes, launches):
        k = launch.kernel
        given = dict(zip((*k.inputs, *k.outputs), (*launch.inputs, *launch.outputs)))

        def at(expr: Expr, old: str = k.outer[0].symbol.name, new: Expr = axis) -> Expr:
            return expr.subs({old: new})

        rw = Rewriter(at, lambda b, e, given=given: formal.load(given[b], e))  # type: ignore[misc]
        stages.append(
            Stage(
                (Axis(axis, k.outer[0].size),),
                [],
                [
                    Store(formal.output(given[store.buffer]), at(store.index), rw(store.value))
                    for store in k.stages[0].stores
                ],
            )
        )
    kernels = [x.kernel for x in launches]
    why = [f"{len(launches)} kernels: they read inputs or random numbers' state alone, and are short"]
    kernel = Kernel(
        kernels[0].name,
        (),
        stages,
        list(formal.inputs.values()),
        list(formal.outputs.values()),
        origins=[origin for kernel in kernels for origin in kernel.origins],
        lines=list(dict.fromkeys(line for kernel in kernels for line in kernel.lines)),
        fused_because=[*dict.fromkeys(w for kernel in kernels for w in kernel.fused_because), *why],
    )
    return Launch(kernel, list(formal.inputs), list(formal.outputs))
