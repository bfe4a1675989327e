"""First calls of convolutions, made while kernels compile.

cuDNN builds a kernel when a thread first meets a kind of convolution: for depthwise ones on an H200 0.2 s forward and
0.45 s backward, of the host's time. The thread that will run a plan has nothing to do while other processes compile
that plan's kernels, so it calls each kind once by then, with memory that nobody reads.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from ... import events
from ...fusion.schedule import Extern
from ...lowering.ir import Buffer
from ...symbolic.expr import as_expr

__all__ = ["FirstCalls"]

aten = torch.ops.aten
SLOW_AT_FIRST = frozenset((aten.convolution.default, aten.convolution_backward.default))
MOST_SHARE = 0.1  # of free memory, for one call's operands and results


class FirstCalls:
    """The kinds of convolutions among a plan's steps, in its order. It is `meanwhile.Work`: one at a time."""

    def __init__(self, steps: Iterable[Any], index: int):
        self.index = index
        kinds = {
            _kind(step): step
            for step in steps
            if isinstance(step, Extern) and step.op in SLOW_AT_FIRST and _is_fixed(step)
        }
        self.left = list(reversed(kinds.values()))

    def __call__(self, done: Callable[[], bool]) -> None:
        if not self.left or torch.cuda.is_current_stream_capturing():
            return
        with torch.cuda.device(self.index), torch.no_grad(), torch.autocast("cuda", enabled=False):
            free = torch.cuda.mem_get_info(self.index)[0]
            while self.left and not done():
                step = self.left.pop()
                if 2 * sum(map(_bytes, _buffers(step))) > MOST_SHARE * free:
                    continue
                try:
                    step.op(*(self._made_up(arg) for arg in step.args))
                except RuntimeError as e:  # memory above all: the call that counts will say so
                    events.emit("progress", text=f"no first call ahead of its time: {e}", done=1, total=1)
                    return

    def _made_up(self, a: Any) -> Any:
        if not isinstance(a, Buffer):
            return a
        shape, stride = ([as_expr(n).value for n in dims] for dims in (a.shape, a.stride))
        return torch.empty_strided(shape, stride, dtype=a.dtype, device=torch.device("cuda", self.index))


def _buffers(step: Extern) -> list[Buffer]:
    return [arg for arg in step.args if isinstance(arg, Buffer)]


def _is_fixed(step: Extern) -> bool:
    return all(as_expr(n).is_const for buffer in _buffers(step) for n in (*buffer.shape, *buffer.stride))


def _kind(step: Extern) -> str:
    """What the library tells convolutions apart by."""
    words = [(arg.dtype, arg.shape, arg.stride) if isinstance(arg, Buffer) else arg for arg in step.args]
    return repr((step.op, words))


def _bytes(buffer: Buffer) -> int:
    n = buffer.dtype.itemsize
    for size in buffer.shape:
        n *= as_expr(size).value
    return n
