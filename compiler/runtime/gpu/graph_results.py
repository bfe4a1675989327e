"""How what a CUDA graph made is handed out: copied, lent, or as views of what was copied (cuda_graphs.py)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ...codegen.plan_functions import view_of
from ...fusion.schedule import Schedule
from ..plan_parts import DTYPE_CODES
from .step_memory import Held, Pool, common_pool, over, place_of, span

__all__ = ["Results", "with_views"]

# gradients of one dtype that are copied out by one call, at least (their versions are 1 then, which nobody asks)
TOGETHER = 4


def with_views(out: tuple, inputs: tuple, views: Sequence[tuple], n: int) -> tuple:
    """The results, with those that are views of inputs or of others."""
    results = list(out)
    for k, of_input, base, *how in views:
        results[k] = view_of(inputs[base] if of_input else out[base], *how)
    return tuple(results[:n])


class _Memory(NamedTuple):
    """Storages by address: of what was fed (where it is not empty), of constants, how many results lie in each, and a
    result in each."""

    fed: set[int]
    constants: set[int]
    results: Counter[int]
    own: dict[int, int]

    def is_given(self, output: torch.Tensor) -> bool:
        """Whether a result lies in memory that the plan does not make."""
        where = output.untyped_storage().data_ptr()
        return output.numel() > 0 and (where in self.fed or where in self.constants)

    def is_alone(self, output: torch.Tensor) -> bool:
        where = output.untyped_storage().data_ptr()
        return self.results[where] == 1 and where not in self.constants


def _storages(values: Iterable[Any], empty: bool = True) -> Iterator[int]:
    """Where the tensors among these lie. `empty`: those without elements, too."""
    return (
        value.untyped_storage().data_ptr()
        for value in values
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and (empty or value.numel())
    )


class Results:
    """How the results of a capture are handed out: copied, as the input that they are, as the object that they are, or
    (from `first` on, what a forward keeps for its backward) left where they are. Gradients need not alias: each is
    copied, or lent where its memory is its own.

    why             what is in the way
    kept, copied    those that stay, those that are copied
    lendable        of those that are copied: gradients that may stay
    views           (result, whether of an input, the input or the result that it is a view of, shape, stride, offset,
                    dtype); a base that is no
                    result itself is one more, behind them
    """

    def __init__(
        self,
        schedule: Schedule,
        outs: tuple,
        fed: Sequence[Any],
        given: set[StorageWeakRef],
        first: int,
        gradients: bool,
        read: set[int],
        pool: Pool,
    ):
        """`given`: memory of what was fed, which may be gone."""
        self.why, self.bytes, self.gradients, self.pool = "", 0, gradients, pool
        self.kept: list[torch.Tensor] = []
        self.copied: list[Any] = []  # the results, or over them in the pool's memory
        self.lendable: list[torch.Tensor] = []
        self.parts: list[tuple] = []  # per result: its row, and what the row is about
        self.views: list[tuple] = []
        memory = _Memory(
            set(_storages(fed, empty=False)), set(_storages(schedule.constants.values())), Counter(_storages(outs)), {}
        )
        later = []
        for k, (spec, output) in enumerate(zip(schedule.outputs, outs)):
            same = (
                next((i for i, fed_tensor in enumerate(fed) if fed_tensor is output), None)
                if isinstance(output, torch.Tensor)
                else None
            )
            if not isinstance(output, torch.Tensor):
                self.parts.append((2, output))
            elif same is not None and same not in read:
                self.parts.append((1, same))
            elif (
                output.layout is not torch.strided
                or output.dtype not in DTYPE_CODES
                or not _lies_on(output, pool.index)
            ):
                self.why = f"a result is of {output.dtype} on {output.device}, {output.layout}"
                return
            elif spec.kind == "view" and not gradients:
                if type(spec.value[0]) is not int and memory.is_given(output):
                    self.why = "a result is a view of what the plan does not make"
                self.parts.append((2, None))
                later.append(k)
            else:
                self._in_memory(k, output, memory, given, k >= first)
        for k in later:
            self._view(k, schedule.outputs[k].value[0], outs[k], fed, memory.own)

    def _in_memory(
        self, k: int, output: torch.Tensor, memory: _Memory, given: set[StorageWeakRef], stays: bool
    ) -> None:
        """Result k, which is no view, as a row. `stays`: it is kept for a backward, unless it is empty."""
        where = output.untyped_storage().data_ptr()
        if output.numel() and not self.gradients and (where in memory.fed or where in memory.own and not stays):
            self.why = "a result shares its memory with an input or another result"
        memory.own.setdefault(where, k)
        if stays and output.numel():
            self.parts.append((3, output))
            self.kept.append(output)
            return
        alone = memory.is_alone(output) and StorageWeakRef(output.untyped_storage()) not in given
        lends = self.gradients and self.pool is not common_pool(self.pool.index)
        self._copy(output, lends and alone and output.numel() > 0)

    def _copy(self, output: torch.Tensor, lendable: bool = False) -> None:
        self.bytes += span(output) * output.element_size()
        self.copied.append(
            output
            if lendable or self.pool is common_pool(self.pool.index) or not output.numel()
            else over(output, self.pool)
        )
        self.parts.append((0, self.copied[-1]))
        if lendable:
            self.lendable.append(output)

    def _view(self, k: int, base: Any, output: torch.Tensor, fed: Sequence[Any], own: dict[int, int]) -> None:
        storage = output.untyped_storage()
        if type(base) is int:
            of, begin, dtype = base, fed[base].data_ptr(), fed[base].dtype
        else:
            n = own.get(storage.data_ptr(), -1)
            if (
                n < 0
                or self.parts[n][0] != 0
                or span(self.parts[n][1]) * self.parts[n][1].element_size() != storage.nbytes()
            ):
                n = own[storage.data_ptr()] = len(self.parts)
                self._copy(
                    torch.empty(0, dtype=output.dtype, device=output.device).set_(
                        storage, 0, (storage.nbytes() // output.element_size(),), (1,)
                    )
                )
            of, begin, dtype = n, storage.data_ptr(), self.parts[n][1].dtype
        self.views.append(
            (
                k,
                type(base) is int,
                of,
                tuple(output.shape),
                output.stride(),
                (output.data_ptr() - begin) // output.element_size() if output.numel() else 0,
                None if dtype == output.dtype else output.dtype,
            )
        )

    def rows(
        self, held: Held | None, lent: Held | None
    ) -> tuple[tuple, tuple, list[tuple[list[int], list[torch.Tensor]]]]:
        """Rows for native.CudaStatic, the objects they name, and the results that are copied by one call: positions,
        and where they are.
        """
        rows: list[tuple] = []
        objects: list[Any] = []
        dense: dict[torch.dtype, list[int]] = {}
        stay = {**(held.views if held is not None else {}), **(lent.views if lent is not None else {})}
        parts = [
            (3, x) if kind == 0 and lent is not None and place_of(x) in stay else (kind, x) for kind, x in self.parts
        ]
        for k, (kind, x) in enumerate(parts):
            if kind == 0 and self.gradients and x.numel() and torch.ops.aten.is_non_overlapping_and_dense(x):
                dense.setdefault(x.dtype, []).append(k)
        together = [(at, [self.parts[k][1] for k in at]) for at in dense.values() if len(at) >= TOGETHER]
        later = {k for at, _ in together for k in at}
        for k, (kind, x) in enumerate(parts):
            if kind == 0:
                rows.append(
                    (
                        0,
                        0 if k in later else span(x) * x.element_size(),
                        x.data_ptr(),
                        tuple(x.shape),
                        tuple(x.stride()),
                        DTYPE_CODES[x.dtype],
                    )
                )
            elif kind == 1:
                rows.append((1, x, 0, (), (), 0))
            else:
                rows.append((kind, len(objects), 0, (), (), 0))
                objects.append(stay[place_of(x)] if kind == 3 else x)
        return tuple(rows), tuple(objects), together


def _lies_on(tensor: torch.Tensor, index: int) -> bool:
    return tensor.is_cuda and tensor.device.index == index
