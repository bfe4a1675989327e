"""Plans that need no Python while they run: a `native.Program` of allocations, kernels, products and calls of torch's
other kernels.

Small temporaries are no tensors: they are places in one block of scratch memory, planned here by when each is alive.
What is larger than SCRATCH_MOST on a GPU, what a call of Python is handed, and what the plan returns are tensors of
their own, freed after their last use. A plan that C can't run (a size that 64 bits don't hold, a result that lies in an
input's memory) stays Python text.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

import torch

from ..base import unseen_writes
from ..codegen.generated import Generated
from ..codegen.host import is_whole
from ..codegen.plan_functions import as_planned, changed, direct_function, view_of
from ..fusion.memory.liveness import nbytes
from ..fusion.schedule import Alloc, Extern, Free, Launch, OutputSpec, View
from ..lowering.ir import Buffer
from ..lowering.lowered import Param
from ..native import native
from ..symbolic.expr import ZERO, Expr, as_expr, ceildiv
from . import output_pool
from .plan_parts import (
    ARG_INPUT,
    ARG_LIST,
    ARG_OBJECT,
    ARG_SLOT,
    ARG_TUPLE,
    ARG_VALUE,
    DTYPE_CODES,
    OUT_CALL,
    OUT_CONSTANT,
    OUT_INPUT,
    OUT_SLOT,
    OUT_VALUE,
    SLOT_ALIAS,
    SLOT_CONSTANT,
    SLOT_INPUT,
    SLOT_OWN,
    SLOT_RESULT,
    SLOT_SCRATCH,
    STEP_CALL,
    STEP_FREE,
    STEP_GONE,
    STEP_KERNEL,
    STEP_MAKE,
    STEP_PRODUCT,
    STEP_TORCH,
    STEP_WRITING,
    SYMBOL_KINDS,
    WORD_ADDRESS,
    WORD_LIST,
    WORD_NUMBER,
    WORD_OPTIONAL,
    WORD_RESULT,
    WORD_TENSOR,
    WORD_UNDEFINED,
    WORD_VALUE,
    PlanParts,
    native_program,
)
from .torch_calls import TorchCall, numbers_of, torch_call
from .trace import WRITE_BACK, label_steps

__all__ = [
    "make_program",
    "ProgramBuilder",
    "detached_view",
    "NotInC",
    "one_product",
    "gemm_of",
    "operands_of",
    "fast_empty",
    "DTYPE_CODES",
]

# (four more: a result in float32 of operands of 16 bits)
_PRODUCTS = {
    "aten.mm.default": 0,
    "aten.bmm.default": 1,
    "aten.addmm.default": 2,
    "aten.baddbmm.default": 3,
    "aten.mm.dtype": 4,
}

# cudaDataType
_LIBRARY_DTYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}

# bytes of a temporary in the scratch block, which is held until the plan's end: on a GPU; on a CPU where inputs are
# given away: what these free in the course of the plan would not serve for a block that is there from the beginning
SCRATCH_MOST, GIVEN_SCRATCH_MOST = 1 << 20, 1 << 16
_ALIGN = {True: 256, False: 64}  # of places in the block; on a GPU, on the CPU


def fast_empty() -> Callable[..., torch.Tensor]:
    """torch.empty_strided for the CPU, at less than half its overhead."""
    make, codes = native.empty_strided, DTYPE_CODES

    def empty_strided(shape: tuple, stride: tuple, dtype: torch.dtype) -> torch.Tensor:
        return make(shape, stride, codes[dtype])

    return empty_strided


def make_program(
    generated: Generated,
    kernels: dict[str, Callable],
    opts: Any,
    algorithms: dict[tuple, tuple[bytes, int]] | None = None,
) -> Callable[..., tuple] | None:
    """The plan as a native.Program; None where it needs Python. `algorithms`: of products (`gemm_of`), where one was
    chosen by measuring, and its workspace.
    """
    try:
        return ProgramBuilder(generated, kernels, opts, algorithms).build()
    except NotInC:
        return None


def one_product(step: Extern, index: int, algorithm: tuple[bytes, int] | tuple[()] = ()) -> Callable[..., tuple]:
    """A program of nothing but a product of static sizes on device `index`: program(out, *operands) -> (); `algorithm`:
    as in `make_program`.
    """
    slots, values = [], []
    for i, buffer in enumerate((*step.outputs, *operands_of(step))):
        slots.append(
            (SLOT_INPUT, i, DTYPE_CODES[buffer.dtype], buffer.dtype.itemsize, len(buffer.shape), len(values), 0)
        )
        values += [as_expr(size).value for size in (*buffer.shape, *buffer.stride)]
    at = tuple(range(len(slots)))
    operands = (*((ARG_INPUT, i) for i in at[1:]), *((ARG_OBJECT, arg) for arg in step.args[len(at) - 1 :]))
    call = (direct_function(step.out_variant), (*operands, (ARG_INPUT, 0)), step.out_names or ("out",), (), False)
    return native.Program(
        len(slots),
        index,
        (),
        tuple(values),
        (),
        (-1,) * len(values),
        tuple(slots),
        ((STEP_PRODUCT, _PRODUCTS[str(step.op)], at, 1.0, 1.0, call, gemm_of(step), algorithm),),
        (),
        (),
        -1,
        as_planned,
    )


class NotInC(Exception):
    """The plan holds what a Program has no form for."""


class _Pooled:
    """A program whose large results lie in memory of the pool."""

    __slots__ = ("program", "wanted")

    def __init__(self, program: Any, wanted: list[output_pool.Wanted]) -> None:
        self.program, self.wanted = program, wanted

    def __call__(self, *inputs: Any) -> tuple:
        return self.program(*inputs, *map(output_pool.take, self.wanted))

    def consume(self, given: list) -> tuple:
        """A call with the items as inputs, which leave the list; each is let go after its last use."""
        given.extend(map(output_pool.take, self.wanted))
        return self.program.consume(given)


class _Block:
    """Places in scratch memory. Those of static size share memory when their times don't overlap; the others lie behind
    them.
    """

    def __init__(self, align: int) -> None:
        self.align = align
        self.taken: list[tuple[int, int, int]] = []  # (begin, end, step after which it is free), by begin
        self.static = 0
        self.varying: Expr = ZERO

    def place(self, size: int, first: int, last: int) -> int:
        """The lowest place that is free from step `first` to step `last`. Calls come in the order of `first`."""
        size = -(-size // self.align) * self.align
        self.taken = [other for other in self.taken if other[2] >= first]
        at = 0
        for begin, end, _ in self.taken:
            if begin - at >= size:
                break
            at = max(at, end)
        self.taken = sorted([*self.taken, (at, at + size, last)])
        self.static = max(self.static, at + size)
        return at

    def place_varying(self, size: Expr) -> Expr:
        at, self.varying = self.varying, self.varying + ceildiv(size, self.align) * self.align
        return at


class ProgramBuilder:
    def __init__(
        self,
        generated: Generated,
        kernels: dict[str, Callable],
        opts: Any,
        algorithms: dict[tuple, tuple[bytes, int]] | None = None,
    ):
        self.g, self.s, self.kernels, self.opts = generated, generated.schedule, kernels, opts
        self.function: Callable[[Any], Any] = direct_function  # what stands in the plan for an operator
        self.algorithms = algorithms or {}
        self.values: list[Expr] = []
        self.value_at: dict[tuple[Expr, ...], int] = {}
        self.slots: list[list[Any]] = []  # kind, index, dtype, itemsize, ndim, dims, offset
        self.slot_of: dict[int, int] = {}  # id(Buffer) -> slot
        self.constants: list[Any] = []
        on_gpu = generated.cuda is not None
        self.block = _Block(_ALIGN[on_gpu])
        self.scratch_most = SCRATCH_MOST if on_gpu else GIVEN_SCRATCH_MOST if self.s.given else None
        self.late: list[
            tuple[int, Expr]
        ] = []  # (slot, place among the varying ones): their offsets, once the static part is known
        self.pooled: list[
            output_pool.Wanted
        ] = []  # large results: made by the pool, handed to the program as further inputs
        device = "cuda" if on_gpu else "cpu"
        calls = ((id(step), torch_call(step, device)) for step in self.s.steps if isinstance(step, Extern))
        self.torch_calls = {at: call for at, call in calls if call is not None}
        self.survey()

    # ---- what is known before the first step
    def survey(self) -> None:
        """Whose memory each buffer lies in, until which step each memory is used, and what must be a tensor that owns
        it.
        """
        schedule = self.s
        self.root: dict[int, Buffer] = {}  # id(Buffer) -> the buffer that was made for it
        self.last: dict[int, int] = {}  # id of a root -> the last step that uses it
        self.tensors: set[int] = set()  # ids of roots that Python sees
        self.pinned: set[int] = set()  # ids of roots that outlive the plan
        self.addressed: set[int] = set()  # ids of buffers that kernels or products use, or that others lie in
        self.fresh: set[int] = set()  # ids of buffers that are not made in the memory that was meant for them
        self.inputs_until: dict[
            int, list[Buffer]
        ] = {}  # step -> inputs that it is the last to use: a caller may give them away
        self.views_of: dict[
            int, list[int]
        ] = {}  # slot -> slots of places inside of it that Python is handed, as tensors that hold the memory
        seen = self.seen = self._seen()
        for at, step in enumerate(schedule.steps):
            if isinstance(step, Alloc) and step.reuse is not None:
                root = self._root(step.reuse)
                # a tensor that Python sees is of one dtype, and so is its memory; one that was made for that reason is
                # no larger than itself
                if (
                    id(step.buffer) in seen
                    and root.dtype != step.buffer.dtype
                    or id(root) in self.fresh
                    and nbytes(root) is not nbytes(step.buffer)
                ):
                    self.fresh.add(id(step.buffer))
                else:
                    self.addressed.add(id(step.reuse))
                    self.root[id(step.buffer)] = self._root(step.reuse)
            elif isinstance(step, View):
                if id(step.buffer) in seen and step.buffer.dtype != step.base.dtype:
                    raise NotInC
                self.root[id(step.buffer)] = self._root(step.base)
                self.addressed.add(id(step.base))
            used = (
                _buffers((step.args, step.kwargs, step.outputs))
                if isinstance(step, Extern)
                else [*step.inputs, *step.outputs]
                if isinstance(step, Launch)
                else []
            )
            if isinstance(step, Extern) and not self._in_c(step):
                self.tensors.update(id(self._root(buffer)) for buffer in used)
            if not isinstance(step, Extern) or self._in_c(step):
                self.addressed.update(id(buffer) for buffer in used)
            for buffer in used:
                self.last[id(self._root(buffer))] = at
        for buffer in (*_buffers(schedule.mutations), *_buffers([output.value for output in schedule.outputs])):
            self.tensors.add(id(self._root(buffer)))
            self.pinned.add(id(self._root(buffer)))
        stay = {i for i, _ in schedule.mutations} | set(schedule.written) | _input_numbers(schedule.outputs)
        for i, given in enumerate(schedule.inputs):
            if isinstance(given, Buffer) and i not in stay and id(given) not in self.pinned and id(given) in self.last:
                self.inputs_until.setdefault(self.last[id(given)], []).append(given)

    def _seen(self) -> set[int]:
        """ids of the buffers that Python sees as tensors, and of those that these are views of."""
        schedule = self.s
        seen = {
            id(buffer)
            for buffer in (*_buffers(schedule.mutations), *_buffers([output.value for output in schedule.outputs]))
        }
        for step in reversed(schedule.steps):
            if isinstance(step, Extern) and not self._in_c(step):
                seen.update(id(buffer) for buffer in _buffers((step.args, step.kwargs, step.outputs)))
            elif isinstance(step, View) and id(step.buffer) in seen:
                seen.add(id(step.base))
        return seen

    def _root(self, buffer: Buffer) -> Buffer:
        return self.root.get(id(buffer), buffer)

    def _in_c(self, step: Extern) -> bool:
        """Whether one of torch's C functions runs it, which sees memory by its address."""
        return id(step) in self.torch_calls or self._is_product(step)

    def _is_product(self, step: Extern) -> bool:
        """Whether it is a product into memory of the plan's that C runs."""
        if step.out_variant is None or str(step.op) not in _PRODUCTS or set(step.kwargs) - {"beta", "alpha"}:
            return False
        return all(
            isinstance(operand, Buffer) and not operand.dtype.is_complex for operand in operands_of(step)
        ) and all(type(number) in (int, float) for number in step.kwargs.values())

    # ---- the program
    def build(self) -> Callable[..., tuple]:
        parts, places = self.parts()
        program = native_program(parts, as_planned)
        if program is None:
            raise NotInC
        label_steps(program, self.g, places)
        return _Pooled(program, self.pooled) if self.pooled else program

    def parts(self) -> tuple[PlanParts, list[int]]:
        """The plan as data; and of each step, where it stands in the schedule."""
        schedule = self.s
        steps: list[tuple] = []
        places: list[int] = []  # of each step, where it stands in the schedule
        self.input_at = {id(given): i for i, given in enumerate(schedule.inputs) if isinstance(given, Buffer)}
        free_after: dict[int, list[int]] = {}
        first_lasting = schedule.first_lasting()
        for at, step in enumerate(schedule.steps):
            places += [-1] * (len(steps) - len(places))
            if step is first_lasting:
                steps.append((STEP_WRITING,))
            if isinstance(step, Alloc):
                if self._alloc(step, at):
                    steps.append((STEP_MAKE, self.slot_of[id(step.buffer)]))
                    self._release(step.buffer, free_after)
            elif isinstance(step, View):
                self._alias(step.buffer, step.base, as_expr(step.offset) * step.buffer.dtype.itemsize)
            elif isinstance(step, Launch):
                slots = tuple(self._slot(buffer) for buffer in (*step.inputs, *step.outputs))
                steps.append(
                    (
                        STEP_KERNEL,
                        self.kernels[self.g.of(step).name],
                        slots,
                        tuple(self._value(as_expr(size)) for size in step.sizes),
                        tuple(self._param(param) for param in step.params),
                    )
                )
            elif isinstance(step, Extern):
                steps.append(self._extern(step, free_after))
            elif not isinstance(step, Free):
                raise NotInC
            if isinstance(step, (Launch, Extern)):
                places += [-1] * (len(steps) - len(places) - 1) + [at]
            for slot in free_after.pop(at, ()):
                steps += [(STEP_FREE, part) for part in (*self.views_of.get(slot, ()), slot)]
            for buffer in self.inputs_until.get(at, ()):
                steps += [(STEP_FREE, part) for part in self.views_of.get(self.slot_of.get(id(buffer), -1), ())]
                steps.append((STEP_GONE, self.input_at[id(buffer)]))
        for n, (i, buffer) in enumerate(schedule.mutations):
            if n == 1:
                steps.append((STEP_WRITING,))
            places += [-1] * (len(steps) - len(places)) + [WRITE_BACK]
            copy = unseen_writes.copy_unseen if i in schedule.uncounted else torch.Tensor.copy_
            steps.append((STEP_CALL, (copy, ((ARG_INPUT, i), self._arg(buffer)), (), (), False)))
        if schedule.counted:
            counted = tuple((ARG_INPUT, i) for i in schedule.counted)
            steps.append((STEP_CALL, (torch.autograd.graph.increment_version, ((ARG_TUPLE, counted),), (), (), False)))
        if schedule.uncounted:
            steps.append((STEP_CALL, (unseen_writes.note, (), (), (), False)))
        raised = schedule.changed_results()
        outputs = [self._output(output, raised.get(k, 0)) for k, output in enumerate(schedule.outputs)]
        scratch = self._place_the_varying()
        names = sorted({name for value in self.values for name in value.symbol_names()})
        if any(name not in schedule.symbols for name in names):
            raise NotInC
        symbols = {
            name: (schedule.symbols[name][0], SYMBOL_KINDS[schedule.symbols[name][1]], schedule.symbols[name][2])
            for name in names
        }
        parts = PlanParts(
            len(schedule.inputs) + len(self.pooled),
            -1 if self.g.cuda is None else self.g.cuda,
            symbols,
            self.values,
            list(map(tuple, self.slots)),
            steps,
            outputs,
            self.constants,
            scratch,
        )
        return parts, places

    # ---- values, slots, constants
    def _value(self, *es: Expr) -> int:
        at = self.value_at.get(es)
        if at is None:
            at = self.value_at[es] = len(self.values)
            self.values += es
        return at

    def _new(self, kind: int, index: int, buffer: Buffer, offset: int = 0) -> int:
        code = DTYPE_CODES.get(buffer.dtype)
        if code is None:
            raise NotInC
        dims = tuple(as_expr(size) for size in (*buffer.shape, *buffer.stride))
        self.slots.append(
            [kind, index, code, buffer.dtype.itemsize, len(buffer.shape), self._value(*dims) if dims else 0, offset]
        )
        return len(self.slots) - 1

    def _constant(self, value: Any) -> int:
        self.constants.append(value)
        return len(self.constants) - 1

    def _slot(self, buffer: Buffer) -> int:
        at = self.slot_of.get(id(buffer))
        if at is None:
            if id(buffer) in self.input_at:
                at = self._new(SLOT_INPUT, self.input_at[id(buffer)], buffer)
            elif buffer.name in self.s.constants:
                at = self._new(SLOT_CONSTANT, self._constant(self.s.constants[buffer.name]), buffer)
            else:
                raise NotInC
            self.slot_of[id(buffer)] = at
        return at

    def _param(self, param: Any) -> int:
        name = param.name if isinstance(param, Param) else param
        return next(i for i, given in enumerate(self.s.inputs) if isinstance(given, tuple) and given[1] == name)

    # ---- memory
    def _alias(self, buffer: Buffer, base: Buffer, n_bytes: Expr) -> None:
        """`buffer` is a place inside of what `base` is."""
        slot = self._slot(base)
        if self.slots[slot][0] == SLOT_ALIAS:
            n_bytes, slot = self.values[self.slots[slot][6]] + n_bytes, self.slots[slot][1]
        self.slot_of[id(buffer)] = self._new(SLOT_ALIAS, slot, buffer, self._value(n_bytes))
        if id(buffer) in self.seen:
            self.views_of.setdefault(slot, []).append(self.slot_of[id(buffer)])

    def _release(self, buffer: Buffer, free_after: dict[int, list[int]]) -> None:
        root = self._root(buffer)
        if id(root) not in self.pinned:
            free_after.setdefault(self.last.get(id(root), -1), []).append(self.slot_of[id(root)])

    def _alloc(self, step: Alloc, at: int) -> bool:
        """Decide where a buffer lies; whether a step has to make it."""
        buffer = step.buffer
        if step.reuse is not None and id(buffer) not in self.fresh:
            self._alias(buffer, step.reuse, ZERO)
            return False
        if id(buffer) in self.tensors:
            wanted = (
                self._from_pool(buffer)
                if any(output.kind == "buffer" and output.value is buffer for output in self.s.outputs)
                else None
            )
            if wanted is not None:
                self.slot_of[id(buffer)] = self._new(SLOT_INPUT, len(self.s.inputs) + len(self.pooled), buffer)
                self.pooled.append(wanted)
                return False
        else:
            size = nbytes(buffer)
            if size.is_const and (self.scratch_most is None or size.value <= self.scratch_most):
                place = self.block.place(size.value, at, max(at, self.last.get(id(buffer), at)))
                self.slot_of[id(buffer)] = self._new(SLOT_SCRATCH, 0, buffer, self._value(as_expr(place)))
                return False
            if self.scratch_most is None:
                self.slot_of[id(buffer)] = self._new(SLOT_SCRATCH, 0, buffer)
                self.late.append((self.slot_of[id(buffer)], self.block.place_varying(size)))
                return False
        self.slot_of[id(buffer)] = self._new(SLOT_OWN, 0, buffer)
        return True

    def _place_the_varying(self) -> int:
        """The value that holds the bytes of scratch memory, -1 for none."""
        static = as_expr(self.block.static)
        for slot, place in self.late:
            self.slots[slot][6] = self._value(static + place)
        total = static + self.block.varying
        return -1 if total is ZERO else self._value(total)

    def _from_pool(self, buffer: Buffer) -> output_pool.Wanted | None:
        limit = int(self.opts.get("output_pool_mb", 0)) << 20
        dims = [as_expr(size) for size in (*buffer.shape, *buffer.stride)]
        if not limit or self.g.cuda is not None or any(not dim.is_const for dim in dims):
            return None
        shape, stride = (
            tuple(expr.value for expr in part) for part in (dims[: len(buffer.shape)], dims[len(buffer.shape) :])
        )
        n_bytes = output_pool.strides_reach(shape, stride, buffer.dtype.itemsize)
        return (
            output_pool.Wanted(shape, stride, buffer.dtype, n_bytes, limit)
            if output_pool.LEAST_BYTES <= n_bytes <= limit
            else None
        )

    # ---- calls of torch
    def _extern(self, step: Extern, free_after: dict[int, list[int]]) -> tuple:
        op = step.out_variant if step.out_variant is not None else step.op
        args = [*map(self._arg, step.args), *map(self._arg, step.kwargs.values())]
        names = [*step.kwargs]
        if step.out_variant is not None:
            slots = [self._slot(buffer) for buffer in step.outputs if buffer is not None]
            names += step.out_names or ("out",)
            args += [(ARG_SLOT, slot) for slot in slots]
            call = (self.function(op), tuple(args), tuple(names), (), False)
            if self._is_product(step):
                beta, alpha = (float(step.kwargs.get(k, 1)) for k in ("beta", "alpha"))
                gemm = gemm_of(step) if self.g.cuda is not None else ()
                return (
                    STEP_PRODUCT,
                    _PRODUCTS[str(step.op)],
                    (slots[0], *map(self._slot, operands_of(step))),
                    beta,
                    alpha,
                    call,
                    gemm,
                    self.algorithms.get(gemm, ()),
                )
            return (STEP_CALL, call)
        outs = []
        for output in step.outputs:
            outs.append(-1 if output is None else self._new(SLOT_RESULT, int(id(output) in self.addressed), output))
            if output is not None:
                self.slot_of[id(output)] = outs[-1]
                self._release(output, free_after)
        returns = step.op._schema.returns
        single = len(returns) == 1 and len(outs) == 1 and not str(returns[0].type).startswith("List")
        call = (self.function(op), tuple(args), tuple(names), tuple(outs), single)
        return (
            (STEP_CALL, call) if id(step) not in self.torch_calls else self._by_torch(self.torch_calls[id(step)], call)
        )

    def _by_torch(self, torch_call: TorchCall, call: tuple) -> tuple:
        words: list[tuple[int, int]] = []
        reals: list[int] = []
        for kind, value in torch_call.arguments:
            if kind[0] == "T":
                words.append(
                    (WORD_OPTIONAL if kind == "T?" else WORD_TENSOR, self._slot(value))
                    if value is not None
                    else (WORD_VALUE, self._value(ZERO))
                    if kind == "T?"
                    else (WORD_UNDEFINED, 0)
                )
                continue
            numbers = () if value is None else numbers_of(kind, value)
            at = self._value(*numbers or (ZERO,))
            if kind == "f":
                reals.append(at)
                continue
            words.append(
                (WORD_VALUE if value is None or kind in "ib" else WORD_LIST if kind == "I?" else WORD_ADDRESS, at)
            )
            if kind[0] in "IB":
                words.append((WORD_VALUE, self._value(as_expr(len(value or ())))))
        words += [(WORD_RESULT if kind == "T" else WORD_NUMBER, i) for i, kind in enumerate(torch_call.results)]
        return STEP_TORCH, torch_call.address, tuple(words), tuple(reals), call

    def _arg(self, x: Any) -> tuple[int, Any]:
        if isinstance(x, Buffer):  # (what only Python sees may be without an address, as sparse tensors are)
            if id(x) in self.input_at:
                return ARG_INPUT, self.input_at[id(x)]
            if id(x) not in self.slot_of and x.name in self.s.constants:
                return ARG_OBJECT, self.s.constants[x.name]
            return ARG_SLOT, self._slot(x)
        if isinstance(x, Expr):
            return ARG_VALUE, self._value(x)
        if isinstance(x, Param):
            return ARG_INPUT, self._param(x)
        if isinstance(x, (list, tuple)):
            return ARG_LIST if isinstance(x, list) else ARG_TUPLE, tuple(map(self._arg, x))
        if isinstance(x, dict):
            raise NotInC
        return ARG_OBJECT, x

    # ---- results
    def _output(self, spec: OutputSpec, changes: int) -> tuple[int, Any]:
        kind, what = self._unchanged_output(spec)
        if not changes:
            return kind, what
        if kind == OUT_CALL:
            return OUT_CALL, (partial(_changed, changes, what[0]), *what[1:])
        made = (ARG_SLOT if kind == OUT_SLOT else ARG_INPUT, what)
        return OUT_CALL, (changed, (made, (ARG_OBJECT, changes)), (), (), False)

    def _unchanged_output(self, spec: OutputSpec) -> tuple[int, Any]:
        if spec.kind == "buffer":
            if id(spec.value) in self.input_at:
                return OUT_INPUT, self.input_at[id(spec.value)]
            slot = self._slot(spec.value)
            kind, index = self.slots[slot][:2]
            if kind == SLOT_ALIAS and self.slots[index][0] in (SLOT_INPUT, SLOT_CONSTANT):
                raise NotInC  # a view of what came in: not for C to say what autograd is to make of it
            return (OUT_INPUT, index) if kind == SLOT_INPUT else (OUT_SLOT, slot)  # (memory of the pool's came in)
        if spec.kind == "input":
            return OUT_INPUT, spec.value
        if spec.kind == "int":
            return OUT_VALUE, self._value(as_expr(spec.value))
        if spec.kind == "const":
            return OUT_CONSTANT, self._constant(spec.value)
        if spec.kind != "view":
            raise NotInC
        base, shape, stride, offset = spec.value
        seen = (ARG_INPUT, base) if isinstance(base, int) else self._arg(base)
        if seen[0] == ARG_SLOT and is_whole(self.s, spec) and self.slots[seen[1]][0] in (SLOT_OWN, SLOT_RESULT):
            return OUT_SLOT, seen[1]
        dims = (self._arg(tuple(map(as_expr, part))) for part in (shape, stride))
        function = detached_view if spec.detached else view_of
        return OUT_CALL, (function, (seen, *dims, self._arg(as_expr(offset)), (ARG_OBJECT, spec.dtype)), (), (), False)


def _changed(changes: int, view: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
    return changed(view(*args), changes)


def detached_view(*args: Any) -> torch.Tensor:
    return view_of(*args).detach()


def operands_of(step: Extern) -> tuple:
    """The tensors of a product: its arguments, without the dtype that one may be asked for in the end."""
    return step.args[:-1] if step.args and isinstance(step.args[-1], torch.dtype) else step.args


def gemm_of(step: Extern) -> tuple:
    """A product on a GPU as cuBLASLt is asked for it (the fields of gemm.c's GemmSpec); () where it is torch's to run:
    deterministic algorithms (torch has checks of its own), sizes that vary, a sum that is no bias, layouts that the
    library has no name for.
    """
    if (
        str(step.op) not in _PRODUCTS
        or any(step.kwargs.get(k, 1) != 1 for k in ("beta", "alpha"))
        or len(step.outputs) != 1
    ):
        return ()
    out, *_, a, b = (*step.outputs, *operands_of(step))
    bias = step.args[0] if str(step.op) == "aten.addmm.default" else None
    kind, out_kind = (_LIBRARY_DTYPES.get(tensor.dtype) for tensor in (a, out))
    dims = [as_expr(size) for tensor in (out, *operands_of(step)) for size in (*tensor.shape, *tensor.stride)]
    if (
        torch.are_deterministic_algorithms_enabled()
        or kind is None
        or out_kind is None
        or len(a.shape) != 2
        or any(not dim.is_const for dim in dims)
        or any(tensor.dtype != a.dtype for tensor in operands_of(step))
    ):
        return ()
    m, k, n = (as_expr(size).value for size in (*a.shape, b.shape[1]))
    if min(m, n, k) < 2 or bias is not None and [as_expr(size).value for size in (*bias.shape, *bias.stride)] != [n, 1]:
        return ()
    leads = [_leading(tensor) for tensor in (a, b, out)]
    if None in leads or leads[2][1]:
        return ()
    (lda, ta), (ldb, tb), (ldd, _) = leads
    return kind, int(bias is not None), ta, tb, m, n, k, lda, ldb, ldd, out_kind


def _leading(buffer: Buffer) -> tuple[int, int] | None:
    """(stride of the rows, 0) of a matrix of static sizes that lies by rows, (stride of the columns, 1) by columns;
    None otherwise.
    """
    (rows, columns), (r, c) = (tuple(as_expr(size).value for size in part) for part in (buffer.shape, buffer.stride))
    return (r, 0) if c == 1 and r >= columns else (c, 1) if r == 1 and c >= rows else None


def _input_numbers(outputs: list[OutputSpec]) -> set[int]:
    """The inputs that results are, or are views of."""
    firsts = (
        output.value[0] if output.kind == "view" else output.value
        for output in outputs
        if output.kind in ("input", "view")
    )
    return {first for first in firsts if type(first) is int}


def _buffers(x: Any) -> list[Buffer]:
    """The buffers anywhere in lists, tuples and dicts."""
    if isinstance(x, Buffer):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [buffer for item in x for buffer in _buffers(item)] if isinstance(x, (list, tuple)) else []
