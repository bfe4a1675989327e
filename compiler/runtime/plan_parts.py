"""A plan as data: what `native.Program` is made of, with sizes as expressions. native_program.py makes it from a
schedule; a package (export/package_plan.py) keeps it in a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

from ..native import native
from ..symbolic.expr import Expr
from ..symbolic.stack_code import stack_code

__all__ = ["PlanParts", "native_program"]

# numbers shared with compiler/native/plan_numbers.h
SLOT_INPUT, SLOT_CONSTANT, SLOT_OWN, SLOT_SCRATCH, SLOT_ALIAS, SLOT_RESULT = range(6)
STEP_KERNEL, STEP_MAKE, STEP_FREE, STEP_PRODUCT, STEP_CALL, STEP_TORCH, STEP_WRITING, STEP_GONE = range(8)
OUT_SLOT, OUT_INPUT, OUT_VALUE, OUT_CONSTANT, OUT_CALL = range(5)
ARG_OBJECT, ARG_SLOT, ARG_VALUE, ARG_INPUT, ARG_LIST, ARG_TUPLE = range(6)
WORD_VALUE, WORD_ADDRESS, WORD_LIST, WORD_TENSOR, WORD_OPTIONAL, WORD_UNDEFINED, WORD_RESULT, WORD_NUMBER = range(8)
SYMBOL_KINDS = {"size": 0, "stride": 1, "value": 2}


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
    varying = list(dict.fromkeys(e for e in parts.values if not e.is_const))
    place = {name: i for i, name in enumerate(parts.symbols)}
    computed = tuple(stack_code(e, place, native.OPCODES) for e in varying)
    if None in computed:
        return None
    at_value = {e: i for i, e in enumerate(varying)}
    return native.Program(
        parts.n_inputs,
        parts.device,
        tuple(parts.symbols.values()),
        tuple(e.value if e.is_const else 0 for e in parts.values),
        computed,
        tuple(at_value.get(e, -1) for e in parts.values),
        tuple(parts.slots),
        tuple(parts.steps),
        tuple(parts.outputs),
        tuple(parts.constants),
        parts.scratch,
        as_planned,
    )
