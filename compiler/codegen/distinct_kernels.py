"""Each distinct kernel of a schedule once, in either language, what it costs, and the host plan that calls it."""

from __future__ import annotations

from typing import Any, Callable

from .. import events
from ..fusion.schedule import Launch, Schedule
from ..lowering.product_groups import in_groups
from ..lowering.ir import Kernel, walk
from ..base.quoting import identifier
from ..symbolic.expr import as_expr
from .cpp.extent import pass_numbers
from .cpp.layout import numel
from .generated import Generated, GeneratedKernel
from .host import host_plan
from .triton.open_numbers import is_number

__all__ = ["generate_kernels", "kernel_cost"]

_NOT_ARITHMETIC = frozenset(("load", "const", "param", "acc", "cast", "index", "where", "masked", "check_index"))


_printed: dict[tuple, Any] = {}  # kernels of earlier graphs in this process
_PRINTED_LIMIT = 2048


def generate_kernels(
    schedule: Schedule,
    language: str,
    target: Any,
    print_kernel: Callable[..., Any],
    cuda: int | None = None,
    **how: Any,
) -> Generated:
    """Every distinct kernel of the schedule by `print_kernel(kernel, target, name=, **how)`, and the host plan: the
    same for each language.
    """
    kernels: list[GeneratedKernel] = []
    position: dict[Any, int] = {}
    kernel_of: dict[int, int] = {}
    taken: set[str] = set()
    for step in schedule.steps:
        if not isinstance(step, Launch):
            continue
        key = step.kernel.key()
        at = position.get(key)
        if at is None:
            at = position[key] = len(kernels)
            name = _unique(identifier(step.kernel.name[:80], "kernel"), taken)
            n_bytes, flops = kernel_cost(step.kernel)
            k = step.kernel
            hints = tuple(sorted(k.hints.items()))
            known = (language, target, *how.items(), key, repr(k.lines), repr(k.origins), hints, name)
            source = _printed.get(known)
            if source is None:
                if len(_printed) >= _PRINTED_LIMIT:
                    _printed.clear()
                source = _printed[known] = print_kernel(k, target, name=name, **how)
            kernels.append(GeneratedKernel(name, step.kernel, source, n_bytes, flops))
            events.emit(
                "kernel",
                name=name,
                kernel=step.kernel,
                source=source.text,
                language=language,
                bytes=n_bytes,
                flops=flops,
                origins=list(step.kernel.origins),
                choices=dict(source.choices),
                names=source.names,
            )
        kernel_of[id(step)] = at
    for step in schedule.steps:
        if isinstance(step, Launch):
            k = kernels[kernel_of[id(step)]]
            if k.source.numbers or language == "triton" and any(is_number(str(s)) for s in step.kernel.sizes):
                pass_numbers(step, k.source.numbers)
                k.kernel = step.kernel
    names = {i: kernels[p].name for i, p in kernel_of.items()}
    return Generated(schedule, kernels, kernel_of, host_plan(schedule, names, cuda), target, cuda=cuda)


def _unique(name: str, taken: set[str]) -> str:
    n, out = 1, name
    while out in taken:
        n, out = n + 1, f"{name}_{n}"
    taken.add(out)
    return out


def _gathered(kernel: Kernel) -> dict[str, list[tuple]]:
    """Buffers that are read at computed positions alone: of each such read the axes that it is repeated over."""
    reads: dict[str, list[tuple]] = {}
    whole = {b.name for b in kernel.outputs}
    if kernel.template is not None:
        return {}
    for stage in kernel.stages:
        axes = (*kernel.outer, *stage.axes)
        for v in walk(stage.roots()):
            if v.op != "load":
                continue
            buffer, index = v.attr
            if not v.args:  # at positions that the axes give
                whole.add(buffer.name)
                continue
            names = index.symbol_names() | _names_of(v.args)
            reads.setdefault(buffer.name, []).append(tuple(a for a in axes if a.symbol.symbol_names() & names))
    return {name: rows for name, rows in reads.items() if name not in whole}


def _names_of(values: Any) -> set[str]:
    """Symbols that values depend on, by what they load and where they stand."""
    out: set[str] = set()
    for v in walk(values):
        if v.op == "load":
            out |= v.attr[1].symbol_names()
        elif v.op == "index":
            out |= v.attr.symbol_names()
    return out


def kernel_cost(kernel: Kernel) -> tuple[int, int]:
    """(bytes moved, floating point operations) of one launch at the size hints: every buffer once, of a buffer that is
    read at computed positions alone as many elements as are read; sums over a group each element of one.
    """

    def at_hints(e: Any) -> int:
        try:
            return int(as_expr(e).eval(kernel.hints))
        except KeyError:
            return 0

    n_bytes, gathered = 0, _gathered(kernel)
    for b in (*kernel.inputs, *kernel.outputs):
        n = b.dtype.itemsize
        for size, stride in zip(b.shape, b.stride):
            if as_expr(stride) is not as_expr(0):  # a broadcast dimension is read once
                n *= at_hints(size)
        if b.name in gathered:
            n = min(n, sum(at_hints(numel(axes)) for axes in gathered[b.name]) * b.dtype.itemsize)
        n_bytes += n
    outer = at_hints(numel(kernel.outer))
    flops = 0
    if kernel.template is not None:
        flops = at_hints(kernel.template.flops)
    for stage in kernel.stages:
        roots = [a.value for a in stage.accs] + [s.value for s in stage.stores]
        ops = sum(v.op not in _NOT_ARITHMETIC and v.dtype.is_floating_point for v in walk(roots)) + len(stage.accs)
        flops += (
            ops
            * outer
            * at_hints(numel(stage.axes))
            // max(
                (
                    found[1].count
                    for a in stage.accs
                    for v in walk([a.value])
                    if (found := in_groups(v)) is not None and found[3] is not None
                ),
                default=1,
            )
        )
    return n_bytes, flops
