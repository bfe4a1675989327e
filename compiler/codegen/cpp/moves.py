"""Elements of 16 bits that are only moved, chosen between, negated or made absolute: as bits, twice as many to a
vector, and NaNs as they are.

Arithmetic on them is done in float32; what needs none is neither widened nor rounded back.
"""

from __future__ import annotations

from dataclasses import replace

from typing import Callable

import torch

from ...lowering.ir import Kernel, Stage, Store, Value, const, make, prim

__all__ = ["moved_as_bits", "BITS"]

BITS = torch.uint16  # what such a value is in the loop IR
_SHORT = (torch.bfloat16, torch.float16)


def moved_as_bits(kernel: Kernel) -> Kernel:
    """The same kernel with what is stored so as values of type `BITS`, where that takes no arithmetic."""
    stages = []
    for st in kernel.stages:
        made: dict[tuple[int, torch.dtype], Value | None] = {}
        stages.append(Stage(st.axes, st.accs, [_as_bits(store, made) for store in st.stores]))
    return replace(kernel, stages=stages)


def _as_bits(store: Store, made: dict) -> Store:
    if store.buffer.dtype not in _SHORT or store.mode != "set":
        return store
    value = _bits(store.value, store.buffer.dtype, made)
    return store if value is None else Store(store.buffer, store.index, value, store.mode)


def _bits(root: Value, dtype: torch.dtype, made: dict) -> Value | None:
    """The bits of a value as an element of `dtype`; None where it has to be computed."""
    stack = [(root, False)]
    while stack:
        value, ready = stack.pop()
        k = (value.id, dtype)
        if k in made:
            continue
        moved = _MOVED.get(value.op, ())
        if ready:
            args = [made[arg.id, dtype] if n in moved else arg for n, arg in enumerate(value.args)]
            made[k] = None if any(arg is None for arg in args) else _rebuilt(value, args)
        elif value.is_load and value.dtype == dtype:
            made[k] = make("load", BITS, value.args, value.attr)
        elif value.is_const:
            made[k] = const(
                int(torch.tensor(float(value.attr), dtype=torch.float64).to(dtype).view(torch.int16)) & 0xFFFF, BITS
            )
        elif moved and value.dtype in (dtype, torch.float32):
            stack += [(value, True), *((value.args[n], False) for n in moved)]
        else:
            made[k] = None
    return made[root.id, dtype]


# the arguments that are elements
_MOVED = {"cast": (0,), "neg": (0,), "abs": (0,), "copysign": (0, 1), "where": (1, 2), "masked": (1, 2)}


def _rebuilt(value: Value, args: list[Value]) -> Value:
    on_bits = _ON_BITS.get(value.op)
    return prim(value.op, *args) if on_bits is None else on_bits(*args)


_SIGN, _REST = 0x8000, 0x7FFF
_ON_BITS: dict[str, Callable[..., Value]] = {
    "cast": lambda x: x,
    "neg": lambda x: prim("bitwise_xor", x, const(_SIGN, BITS)),
    "abs": lambda x: prim("bitwise_and", x, const(_REST, BITS)),
    "copysign": lambda x, sign: prim(
        "bitwise_or", prim("bitwise_and", x, const(_REST, BITS)), prim("bitwise_and", sign, const(_SIGN, BITS))
    ),
}
