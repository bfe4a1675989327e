"""A plan as data: what `native.Program` is made of, with sizes as expressions. native_program.py makes it from a
schedule; a package (export/package_plan.py) keeps it in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch

from ..native import native
from ..symbolic.expr import Expr
from ..symbolic.stack_code import stack_code

__all__ = ["PlanParts", "native_program", "c_function", "C_FUNCTIONS", "DTYPE_CODES"]

# c10::ScalarType
DTYPE_CODES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
    torch.float8_e5m2: 23,
    torch.float8_e4m3fn: 24,
    torch.float8_e5m2fnuz: 25,
    torch.float8_e4m3fnuz: 26,
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}

# numbers shared with compiler/native/plan_numbers.h
SLOT_INPUT, SLOT_CONSTANT, SLOT_OWN, SLOT_SCRATCH, SLOT_ALIAS, SLOT_RESULT = range(6)
STEP_KERNEL, STEP_MAKE, STEP_FREE, STEP_PRODUCT, STEP_CALL, STEP_TORCH, STEP_WRITING, STEP_GONE = range(8)
OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT, OUT_CALL = range(5)
ARG_OBJECT, ARG_SLOT, ARG_VALUE, ARG_INPUT, ARG_LIST, ARG_TUPLE = range(6)
WORD_VALUE, WORD_ADDRESS, WORD_LIST, WORD_TENSOR, WORD_OPTIONAL, WORD_UNDEFINED, WORD_RESULT, WORD_NUMBER = range(8)
SYMBOL_KINDS = {"size": 0, "stride": 1, "value": 2}

C_FUNCTIONS = "aoti_torch_"  # how the names begin of what libtorch exports for code that is compiled ahead of time


def c_function(op: Any, device: str) -> str:
    """The name of torch's C function for an operator (torch_calls.py)."""
    return f"{C_FUNCTIONS}{device}_{str(op).removeprefix('aten.').removesuffix('.default')}"


@dataclass
class PlanParts:
    """Slots, steps and outputs are the tuples that plan_make.c reads.

    device     index of the GPU, -1: the CPU
    symbols    name of a size -> (input, kind, dimension): where it is read
    values     what slots and steps name by number: sizes, strides, bytes
    scratch    the value that holds the bytes of scratch memory, -1: none
    """

    n_inputs: int
    device: int
    symbols: dict[str, tuple[int, int, int]]
    values: list[Expr]
    slots: list[tuple]
    steps: list[tuple]
    outputs: list[tuple]
    constants: list[Any]
    scratch: int


def native_program(parts: PlanParts, as_planned: Callable) -> Any:
    """The plan as C runs it; None where its sizes are beyond 64 bits."""
    varying = list(dict.fromkeys(value for value in parts.values if not value.is_const))
    place = {name: i for i, name in enumerate(parts.symbols)}
    computed = tuple(stack_code(e, place, native.OPCODES) for e in varying)
    if None in computed:
        return None
    at_value = {e: i for i, e in enumerate(varying)}
    return native.Program(
        parts.n_inputs,
        parts.device,
        tuple(parts.symbols.values()),
        tuple(value.value if value.is_const else 0 for value in parts.values),
        computed,
        tuple(at_value.get(value, -1) for value in parts.values),
        tuple(parts.slots),
        tuple(parts.steps),
        tuple(parts.outputs),
        tuple(parts.constants),
        parts.scratch,
        as_planned,
    )
