"""How each torch dtype is held: in memory, in a scalar variable, and in a vector register."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch

from ...errors import InternalError

__all__ = ["CType", "ctype", "literal", "lowest", "highest"]


@dataclass(frozen=True)
class CType:
    """`tag` names the type in the generated source (`f32` gives `vf32`, `to_f32`); `scalar` is its C++ type;
    `size` its bytes in a register. bfloat16 and float16 are computed in float: `storage` differs from `scalar` there.
    """

    tag: str
    scalar: str
    size: int
    kind: str  # "float" | "int" | "uint" | "bool"
    storage: str  # tag of the type in memory: "bf16", "f16", "bool" or the same tag

    @property
    def vector(self) -> str:
        return "vmask" if self.kind == "bool" else "v" + self.tag

    @property
    def is_float(self) -> bool:
        return self.kind == "float"


def _t(tag: str, scalar: str, size: int, kind: str, storage: str | None = None) -> CType:
    return CType(tag, scalar, size, kind, storage or tag)


_TABLE: dict[torch.dtype, CType] = {
    torch.float32: _t("f32", "float", 4, "float"),
    torch.float64: _t("f64", "double", 8, "float"),
    torch.bfloat16: _t("f32", "float", 4, "float", "bf16"),
    torch.float16: _t("f32", "float", 4, "float", "f16"),
    torch.int64: _t("i64", "i64", 8, "int"),
    torch.int32: _t("i32", "i32", 4, "int"),
    torch.int16: _t("i16", "i16", 2, "int"),
    torch.int8: _t("i8", "i8", 1, "int"),
    torch.uint8: _t("u8", "u8", 1, "uint"),
    torch.uint16: _t("u16", "u16", 2, "uint"),
    torch.uint32: _t("u32", "u32", 4, "uint"),
    torch.uint64: _t("u64", "u64", 8, "uint"),
    torch.bool: _t("bool", "bool", 1, "bool"),
}
STORAGE_BYTES = {"bf16": 2, "f16": 2, "bool": 1}


def ctype(dtype: torch.dtype) -> CType:
    """Raises InternalError for a dtype that lowering must not hand to generated code (complex, quantized)."""
    try:
        return _TABLE[dtype]
    except KeyError:
        raise InternalError(f"C++ code generation has no representation of {dtype}") from None


def storage_size(ct: CType) -> int:
    """Bytes of one element in memory."""
    return STORAGE_BYTES.get(ct.storage, ct.size)


def literal(x: bool | int | float, ct: CType) -> str:
    """A C++ constant of exactly this type and value."""
    if ct.kind == "bool":
        return "true" if x else "false"
    if ct.kind == "float":
        x = float(x)
        f = "f" if ct.tag == "f32" else ""
        if x != x:
            return f'__builtin_nan{f}("")'
        if math.isinf(x):
            return f"{'-' if x < 0 else ''}__builtin_inf{f}()"
        if ct.tag == "f32":
            x = _round_f32(x)
            if math.isinf(x):
                return f"{'-' if x < 0 else ''}__builtin_inff()"
            return _short_float(x)
        return repr(x)
    bits = 8 * ct.size
    n = int(x) & ((1 << bits) - 1)
    if ct.kind == "int" and n >> (bits - 1):
        n -= 1 << bits
    if ct.tag == "i64":
        return "(-9223372036854775807LL - 1)" if n == -(2**63) else f"{n}LL"
    if ct.tag == "i32":
        return "(-2147483647 - 1)" if n == -(2**31) else str(n)
    return f"{n}ULL" if ct.tag == "u64" else f"{n}U" if ct.tag == "u32" else f"({ct.scalar}){n}"


def _round_f32(x: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def _short_float(x: float) -> str:
    """The shortest decimal text that reads back as the same float32."""
    for digits in range(6, 10):
        text = f"{x:.{digits}g}"
        if _round_f32(float(text)) == x:
            break
    if not any(c in text for c in ".e"):
        text += ".0"
    return text + "f"


def lowest(ct: CType) -> str:
    """Identity of max."""
    if ct.kind == "float":
        return literal(-math.inf, ct)
    return {
        "int": lambda: literal(-(1 << (8 * ct.size - 1)), ct),
        "uint": lambda: literal(0, ct),
        "bool": lambda: "false",
    }[ct.kind]()


def highest(ct: CType) -> str:
    """Identity of min."""
    if ct.kind == "float":
        return literal(math.inf, ct)
    return {
        "int": lambda: literal((1 << (8 * ct.size - 1)) - 1, ct),
        "uint": lambda: literal((1 << (8 * ct.size)) - 1, ct),
        "bool": lambda: "true",
    }[ct.kind]()
