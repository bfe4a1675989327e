"""Plans that need no Python while they run: kernels and allocations become a `native.Program`.

A plan qualifies when its steps are kernels, allocations and views, its outputs are new tensors, inputs, ints or constants,
and no input is written. Temporaries then are not tensors at all: they are offsets in one block of scratch memory.
"""
from __future__ import annotations

from typing import Any, Callable

import torch

from ..codegen.generated import Generated
from ..fusion.memory import nbytes
from ..fusion.schedule import Alloc, Free, Launch, View
from ..lowering.ir import Buffer
from ..lowering.lowered import Param
from ..native import native
from ..symbolic.expr import ZERO, Expr, as_expr, ceildiv
from ..symbolic.stack_code import stack_code
from . import output_pool

__all__ = ["make_program", "fast_empty", "DTYPE_CODES"]

# c10::ScalarType
DTYPE_CODES: dict[torch.dtype, int] = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5, torch.float32: 6, torch.float64: 7,
    torch.complex64: 9, torch.complex128: 10, torch.bool: 11, torch.bfloat16: 15, torch.uint16: 27, torch.uint32: 28, torch.uint64: 29}

# numbers shared with compiler/native/launcher.c
SLOT_INPUT, SLOT_CONSTANT, SLOT_TENSOR, SLOT_SCRATCH, SLOT_VIEW = range(5)
OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT = range(4)
_SYMBOL_KINDS = {"size": 0, "stride": 1, "value": 2}


def fast_empty() -> Callable[..., torch.Tensor]:
    """torch.empty_strided for the CPU, at less than half its overhead."""
    make, codes = native.empty_strided, DTYPE_CODES

    def empty_strided(shape: tuple, stride: tuple, dtype: torch.dtype) -> torch.Tensor:
        return make(shape, stride, codes[dtype])
    return empty_strided


def make_program(generated: Generated, kernels: dict[str, Callable], opts: Any) -> Callable[..., tuple] | None:
    """The plan as a native.Program; None where it needs Python."""
    s = generated.schedule
    if s.mutations or s.written or any(not isinstance(x, (Alloc, Free, Launch, View)) for x in s.steps):
        return None
    if any(o.kind not in ("buffer", "input", "int", "const") for o in s.outputs):
        return None
    return _ProgramBuilder(generated, kernels, opts).build()


def _with_pool(program: Callable[..., tuple], wanted: list[output_pool.Wanted]) -> Callable[..., tuple]:
    take = output_pool.take
    if len(wanted) == 1:
        only, = wanted
        return lambda *inputs: program(*inputs, take(only))
    return lambda *inputs: program(*inputs, *[take(w) for w in wanted])


class _ProgramBuilder:
    def __init__(self, generated: Generated, kernels: dict[str, Callable], opts: Any):
        self.g, self.s, self.kernels, self.opts = generated, generated.schedule, kernels, opts
        self.values: list[Expr] = []
        self.value_at: dict[tuple[Expr, ...], int] = {}
        self.slots: list[tuple[int, int, int, int, int]] = []
        self.slot_of: dict[int, int] = {}            # id(Buffer) -> slot
        self.constants: list[Any] = []
        self.scratch: Expr = ZERO
        self.returned = {id(o.value) for o in self.s.outputs if o.kind == "buffer"}
        self.views: set[int] = set()
        self.pooled: list[output_pool.Wanted] = []   # large results: made by the pool, handed to the program as further inputs

    def build(self) -> Callable[..., tuple] | None:
        s = self.s
        steps = []
        for step in s.steps:
            if isinstance(step, Alloc):
                if not self._alloc(step):
                    return None
            elif isinstance(step, View):
                if id(step.buffer) in self.returned:
                    return None
                base, n_bytes = self._slot(step.base), as_expr(step.offset) * step.buffer.dtype.itemsize
                if base is None:
                    return None
                self.slot_of[id(step.buffer)] = base if n_bytes is ZERO else self._new((SLOT_VIEW, base, 0, 0, self._value(n_bytes)))
            elif isinstance(step, Launch):
                slots = [self._slot(b) for b in (*step.inputs, *step.outputs)]
                if None in slots:
                    return None
                sizes = [self._value(as_expr(e)) for e in step.sizes]
                steps.append((self.kernels[self.g.of(step).name], slots, sizes, [self._param(p) for p in step.params]))
        outputs = []
        for o in s.outputs:
            if o.kind == "buffer":
                slot = self._slot(o.value)
                if slot is None:
                    return None
                kind, at = self.slots[slot][:2]
                if kind == SLOT_INPUT and at >= len(s.inputs):
                    outputs.append((OUT_INPUT, at))
                elif kind == SLOT_TENSOR:
                    outputs.append((OUT_SLOT, slot))
                else:
                    return None
            elif o.kind == "input":
                outputs.append((OUT_INPUT, o.value))
            elif o.kind == "int":
                outputs.append((OUT_VALUE, self._value(as_expr(o.value))))
            else:
                outputs.append((OUT_CONSTANT, self._constant(o.value)))
        scratch = self._value(self.scratch) if self.scratch is not ZERO else -1
        names = sorted({n for e in self.values for n in e.symbol_names()})
        if any(n not in s.symbols for n in names):
            return None
        symbols = tuple((s.symbols[n][0], _SYMBOL_KINDS[s.symbols[n][1]], s.symbols[n][2]) for n in names)
        varying = list(dict.fromkeys(e for e in self.values if not e.is_const))
        place = {n: i for i, n in enumerate(names)}
        computed = tuple(stack_code(e, place, native.OPCODES) for e in varying)
        if None in computed:
            return None
        at = {e: i for i, e in enumerate(varying)}
        program = native.Program(len(s.inputs) + len(self.pooled), symbols, tuple(e.value if e.is_const else 0 for e in self.values), computed,
                                 tuple(at.get(e, -1) for e in self.values), tuple(self.slots), tuple(steps), tuple(outputs), tuple(self.constants),
                                 scratch)
        return _with_pool(program, self.pooled) if self.pooled else program

    def _value(self, *es: Expr) -> int:
        at = self.value_at.get(es)
        if at is None:
            at = self.value_at[es] = len(self.values)
            self.values += es
        return at

    def _new(self, slot: tuple[int, int, int, int, int]) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def _constant(self, x: Any) -> int:
        self.constants.append(x)
        return len(self.constants) - 1

    def _alloc(self, step: Alloc) -> bool:
        b = step.buffer
        if id(b) in self.returned:
            wanted = self._from_pool(b)
            if wanted is not None:
                self.slot_of[id(b)] = self._new((SLOT_INPUT, len(self.s.inputs) + len(self.pooled), 0, 0, 0))
                self.pooled.append(wanted)
                return True
            dims = tuple(as_expr(x) for x in (*b.shape, *b.stride))
            self.slot_of[id(b)] = self._new((SLOT_TENSOR, 0, DTYPE_CODES[b.dtype], len(b.shape), self._value(*dims) if dims else 0))
            return True
        if step.reuse is not None:
            old = self.slot_of.get(id(step.reuse))
            if old is None or id(step.reuse) in self.returned:
                return False
            self.slot_of[id(b)] = old
            return True
        self.slot_of[id(b)] = self._new((SLOT_SCRATCH, 0, 0, 0, self._value(self.scratch)))
        self.scratch = self.scratch + ceildiv(nbytes(b), 64) * 64
        return True

    def _from_pool(self, b: Buffer) -> output_pool.Wanted | None:
        limit = int(self.opts.get("output_pool_mb", 0)) << 20
        dims = [as_expr(x) for x in (*b.shape, *b.stride)]
        if not limit or any(not e.is_const for e in dims):
            return None
        shape, stride = (tuple(e.value for e in part) for part in (dims[:len(b.shape)], dims[len(b.shape):]))
        n_bytes = output_pool.strides_reach(shape, stride, b.dtype.itemsize)
        return output_pool.Wanted(shape, stride, b.dtype, n_bytes, limit) if output_pool.LEAST_BYTES <= n_bytes <= limit else None

    def _slot(self, b: Buffer) -> int | None:
        at = self.slot_of.get(id(b))
        if at is None:
            for i, x in enumerate(self.s.inputs):
                if x is b:
                    at = self._new((SLOT_INPUT, i, 0, 0, 0))
            if at is None and b.name in self.s.constants:
                at = self._new((SLOT_CONSTANT, self._constant(self.s.constants[b.name]), 0, 0, 0))
            if at is not None:
                self.slot_of[id(b)] = at
        return at

    def _param(self, p: Any) -> int:
        name = p.name if isinstance(p, Param) else p
        return next(i for i, x in enumerate(self.s.inputs) if isinstance(x, tuple) and x[1] == name)
