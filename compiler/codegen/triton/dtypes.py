"""How each torch dtype is held by Triton code: in memory and in registers. bfloat16 and float16 are computed in
float32, and so are floats of eight bits, which are bytes to Triton (eight_bits.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...errors import InternalError

__all__ = ["TType", "ttype", "literal", "typed", "lowest", "highest"]


@dataclass(frozen=True)
class TType:
    """`pointer`: the element type in a kernel's signature; `held`: Triton's name of the type in registers; `size`:
    bytes in memory.
    """

    pointer: str
    held: str
    stored: str
    size: int
    kind: str  # "float" | "int" | "uint" | "bool"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def eight_bits(self) -> bool:
        return self.kind == "float" and self.size == 1

    @property
    def low_precision(self) -> bool:
        return self.held != self.stored


def _t(pointer: str, held: str, size: int, kind: str, stored: str | None = None) -> TType:
    return TType(pointer, "tl." + held, "tl." + (stored or held), size, kind)


_TABLE: dict[torch.dtype, TType] = {
    torch.float32: _t("fp32", "float32", 4, "float"),
    torch.float64: _t("fp64", "float64", 8, "float"),
    torch.bfloat16: _t("bf16", "float32", 2, "float", "bfloat16"),
    torch.float16: _t("fp16", "float32", 2, "float", "float16"),
    torch.float8_e4m3fn: TType("u8", "tl.float32", "e4m3", 1, "float"),
    torch.float8_e5m2: TType("u8", "tl.float32", "e5m2", 1, "float"),
    torch.int64: _t("i64", "int64", 8, "int"),
    torch.int32: _t("i32", "int32", 4, "int"),
    torch.int16: _t("i16", "int16", 2, "int"),
    torch.int8: _t("i8", "int8", 1, "int"),
    torch.uint8: _t("u8", "uint8", 1, "uint"),
    torch.uint16: _t("u16", "uint16", 2, "uint"),
    torch.uint32: _t("u32", "uint32", 4, "uint"),
    torch.uint64: _t("u64", "uint64", 8, "uint"),
    torch.bool: _t("i1", "int1", 1, "bool"),
}


def ttype(dtype: torch.dtype) -> TType:
    """Raises InternalError for a dtype that lowering must not hand to generated code (complex, quantized)."""
    try:
        return _TABLE[dtype]
    except KeyError:
        raise InternalError(f"Triton code generation has no representation of {dtype}") from None


def literal(x: bool | int | float, t: TType) -> str:
    """A number as text; Triton gives it the type of what it meets."""
    if t.kind == "bool":
        return str(bool(x))
    if not t.is_float:
        return str(int(x))
    x = float(x)
    if math.isnan(x):
        return 'float("nan")'
    if math.isinf(x):
        return 'float("inf")' if x > 0 else '-float("inf")'
    return repr(x)


def typed(text: str, t: TType) -> str:
    """A literal as a scalar of exactly this type."""
    return f"tl.full([], {text}, {t.held})"


def lowest(t: TType) -> str:
    """What is below every value: the identity of max."""
    return _limit(t, -1)


def highest(t: TType) -> str:
    return _limit(t, 1)


def _limit(t: TType, sign: int) -> str:
    if t.is_float:
        return literal(sign * math.inf, t)
    if t.kind == "bool":
        return str(sign > 0)
    bits = 8 * t.size
    if t.kind == "uint":
        return str(0 if sign < 0 else 2**bits - 1)
    return str(-(2 ** (bits - 1)) if sign < 0 else 2 ** (bits - 1) - 1)
