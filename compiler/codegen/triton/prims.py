"""What each primitive of the loop IR is in Triton.

Functions are the accurate ones that eager uses on CUDA (libdevice, round-to-nearest division and square root), not
Triton's fast
approximations: kernels that move memory have the time for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable

from ...errors import InternalError
from ...lowering.primitives import COMPARISONS, INFIX, PRIMS, REDUCTIONS, form_on
from .dtypes import TType, highest, literal, lowest, typed

__all__ = [
    "Operand",
    "BOOL",
    "expression",
    "conversion",
    "rounded",
    "materialised",
    "reduce_identity",
    "reduce_update",
    "HELPERS",
    "OLDER",
]

Need = Callable[[str], None]


@dataclass(frozen=True)
class Operand:
    """Text of a value, its type, the tile dimensions it varies over ("x", "y", "r"), and whether it is a bare
    literal.
    """

    text: str
    t: TType
    dims: frozenset[str] = frozenset()
    is_literal: bool = False
    narrow: str = ""  # of a position or a random word: its text in 32 bits, which hold it
    unsigned: bool = False  # of these


BOOL = TType("i1", "tl.int1", "tl.int1", 1, "bool")

# Printed into the source where they are used. A kernel that waits itself until the one before it is done, and what that
# wrote can be read, may be launched before: its launch and its first instructions take place while the other one ends
# (programmatic dependent launch). What it reads and writes comes after.
WAIT = "griddepcontrol.wait"
MOST_SUMS = 4  # that are folded together
_ROUND = "    return x.to(tl.bfloat16).to(tl.float32)"


def _sums(n: int) -> dict[str, str]:
    a, b = ([f"{side}{i}" for i in range(n)] for side in "ab")
    total = ", ".join(f"{x} + {y}" for x, y in zip(a, b))
    return {
        f"_add_{n}": f"@triton.jit\ndef _add_{n}({', '.join(a + b)}):\n    return {total}\n",
        f"_sum_{n}": (
            f"@triton.jit\ndef _sum_{n}({', '.join(a)}):  # of rows, as columns\n    {', '.join(a)} ="
            f" tl.reduce(({', '.join(a)}), 1, _add_{n})\n    return {', '.join(f'{x}[:, None]' for x in a)}\n"
        ),
    }


HELPERS = {
    "_wait": (
        "@triton.jit\ndef _wait():  # until the kernel before is done: this one is launched while that one ends\n"
        f'    tl.inline_asm_elementwise("{WAIT}; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1)\n'
    ),
    "_max": (
        "@triton.jit\ndef _max(a, b):  # NaN wins, as in eager\n    return tl.maximum(a, b,"
        " propagate_nan=tl.PropagateNan.ALL)\n"
    ),
    "_min": (
        "@triton.jit\ndef _min(a, b):  # NaN wins, as in eager\n    return tl.minimum(a, b,"
        " propagate_nan=tl.PropagateNan.ALL)\n"
    ),
    "_max64": (
        "@triton.jit\ndef _max64(a, b):  # NaN wins, as in eager\n    return tl.where((a > b) | (a != a), a, b)\n"
    ),
    "_min64": (
        "@triton.jit\ndef _min64(a, b):  # NaN wins, as in eager\n    return tl.where((a < b) | (a != a), a, b)\n"
    ),
    "_round_bfloat16": (
        "@triton.jit\ndef _round_bfloat16(x):  # two at a time: the conversion of one is an instruction of the slow"
        " unit\n"
        f'    if x.numel == 1:\n    {_ROUND}\n    else:\n        return tl.inline_asm_elementwise("{{.reg .b32 w;'
        " cvt.rn.bf16x2.f32 w, $3, $2; "
        'shl.b32 $0, w, 16; and.b32 $1, w, 0xffff0000;}", "=f,=f,f,f", [x], dtype=tl.float32, is_pure=True, pack=2)\n'
    ),
    **{name: text for n in range(2, MOST_SUMS + 1) for name, text in _sums(n).items()},
    "_mul": "@triton.jit\ndef _mul(a, b):\n    return a * b\n",
    "_argmax": (
        "@triton.jit\ndef _argmax(a, i, b, j):  # the first of equal values; NaN is the largest\n"
        "    equal = (a == b) | ((a != a) & (b != b))\n    left = (a > b) | ((a != a) & (b == b)) | (equal & (i < j))\n"
        "    return tl.where(left, a, b), tl.where(left, i, j)\n"
    ),
    "_argmin": (
        "@triton.jit\ndef _argmin(a, i, b, j):  # the first of equal values; NaN is the smallest\n"
        "    equal = (a == b) | ((a != a) & (b != b))\n    left = (a < b) | ((a != a) & (b == b)) | (equal & (i < j))\n"
        "    return tl.where(left, a, b), tl.where(left, i, j)\n"
    ),
    "_int_floordiv": (
        "@triton.jit\ndef _int_floordiv(a, b):  # as Python's //\n    q = a // b\n"
        "    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), q - 1, q)\n"
    ),
    "_int_remainder": (
        "@triton.jit\ndef _int_remainder(a, b):  # the sign of the divisor, as Python's %\n    r = a % b\n"
        "    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)\n"
    ),
    "_float_remainder": (
        "@triton.jit\ndef _float_remainder(a, b):  # the sign of the divisor, as Python's %\n    r = libdevice.fmod(a,"
        " b)\n    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)\n"
    ),
    "_float_floordiv": (
        "@triton.jit\ndef _float_floordiv(a, b):  # as Python's //\n    r = libdevice.fmod(a, b)\n    q = (a - r) / b\n"
        "    q = tl.where((r != 0) & ((b < 0) != (r < 0)), q - 1, q)\n    w = libdevice.floor(q)\n"
        "    w = tl.where(q - w > 0.5, w + 1, w)\n    w = tl.where(q == 0, libdevice.copysign(q * 0, a / b), w)\n"
        "    return tl.where(b == 0, a / b, w)\n"
    ),
    "_int_pow": (
        "@triton.jit\ndef _int_pow(a, b):\n    negative = b < 0\n    odd = (b & 1) != 0\n    n = tl.where(negative, b *"
        " 0, b)\n    x = a\n    r = a * 0 + 1\n    for _ in range(63):\n        r = tl.where((n & 1) != 0, r * x, r)\n "
        "       n = n >> 1\n        x = x * x\n    small = tl.where(a == 1, a, tl.where(a == -1, tl.where(odd, a, -a),"
        " a * 0))\n    return tl.where(negative, small, r)\n"
    ),
}

# For machines without that instruction.
OLDER = {"_round_bfloat16": f"@triton.jit\ndef _round_bfloat16(x):\n{_ROUND}\n"}


def materialised(x: Operand) -> str:
    """The operand as a tensor or scalar of exactly its type, for functions that take no bare numbers."""
    return typed(x.text, x.t) if x.is_literal else x.text


def _as_bool(operand: Operand) -> str:
    return operand.text if operand.t.kind == "bool" else f"({operand.text} != 0)"


def by_power_of_two(a: Operand, b: Operand) -> str | None:
    """a / b as a product, which is as exact, where b is a power of two."""
    if not b.is_literal or a.is_literal or not b.t.is_float or "float" in b.text:
        return None
    divisor = float(b.text.strip("()"))
    return f"{a.text} * {1 / divisor!r}" if math.frexp(divisor)[0] == 0.5 and 2.0**-100 < divisor < 2.0**100 else None


def _float_div(a: Operand, b: Operand) -> str:
    product = by_power_of_two(a, b)
    if product is not None:
        return product
    if a.t.held == "tl.float32":
        return f"tl.div_rn({materialised(a)}, {materialised(b)})"
    return f"{a.text} / {b.text}"


def expression(op: str, ttype: TType, args: list[Operand], need: Need) -> str:
    """The text of `op` on operands; `ttype` is the result's type; `need(name)` is called for each of HELPERS that it
    calls.
    """
    if all(arg.is_literal for arg in args):  # arithmetic is left to the device: no folding of literals
        args = [Operand(materialised(arg), arg.t, arg.dims) for arg in args]
    a = args[0]
    op = form_on(op, a.t.kind == "bool", a.t.is_float)
    if op == "identity":
        return a.text
    if op in COMPARISONS:
        return _comparison(op, *args)
    written = _OPERATORS.get(op)
    return written(ttype, *args) if written is not None else _function(op, ttype, args, need)


def _comparison(op: str, a: Operand, b: Operand) -> str:
    if _in_32_bits([a, b]):
        return f"{a.narrow or a.text} {COMPARISONS[op].infix} {b.narrow or b.text}"
    return f"{a.text} {COMPARISONS[op].infix} {b.text}"


def _infix(sign: str) -> Callable[..., str]:
    return lambda ttype, a, b: _narrowed(f"{a.text} {sign} {b.text}", ttype)


def _logical(sign: str) -> Callable[..., str]:
    return lambda ttype, a, b: f"{_as_bool(a)} {sign} {_as_bool(b)}"


def _signbit(ttype: TType, a: Operand) -> str:
    if a.t.is_float:
        return f"libdevice.signbit({a.text}) != 0"
    return f"{a.text} < 0" if a.t.kind == "int" else _never(a)


def _negative(ttype: TType, a: Operand) -> str:
    """Triton's -x is 0 - x, which of 0.0 is 0.0."""
    return _narrowed(f"{a.text} * -1.0" if a.t.is_float else f"-{a.text}", ttype)


def _in_32_bits(args: list[Operand]) -> bool:
    """Whether operands are compared as well in 32 bits, which hold one of them."""
    narrow = [arg for arg in args if arg.narrow]
    if (
        not narrow
        or len({operand.unsigned for operand in narrow}) > 1
        or not all(arg.narrow or arg.is_literal for arg in args)
    ):
        return False
    least, end = (0, 1 << 32) if narrow[0].unsigned else (1 - (1 << 31), 1 << 31)
    return all(arg.narrow or least <= int(arg.text.strip("()")) < end for arg in args)


def _never(a: Operand) -> str:
    return f"({a.text} != {a.text})"


def _narrowed(text: str, ttype: TType) -> str:
    """Triton promotes no further than the operands' common type; literals may widen small integers."""
    return f"({text}).to({ttype.held})" if not ttype.is_float and ttype.kind != "bool" and ttype.size < 4 else text


# primitives that operators of the language write -> the text, of the result's type and the operands
_OPERATORS: dict[str, Callable[..., str]] = {
    **{op: _infix(sign) for op, sign in INFIX.items()},
    **dict.fromkeys(
        ("where", "masked"),
        lambda ttype, cond, a, b: f"tl.where({_as_bool(cond)}, {materialised(a)}, {materialised(b)})",
    ),
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "logical_not": lambda ttype, a: f"{a.text} == 0",
    "isnan": lambda ttype, a: f"{a.text} != {a.text}" if a.t.is_float else _never(a),
    "isinf": lambda ttype, a: f'tl.abs({a.text}) == float("inf")' if a.t.is_float else _never(a),
    "signbit": _signbit,
    "neg": _negative,
    "bitwise_not": lambda ttype, a: f"{a.text} == 0" if a.t.kind == "bool" else _narrowed(f"~{a.text}", ttype),
    "relu": lambda ttype, a: f"tl.where({a.text} < 0, {typed(literal(0, ttype), ttype)}, {a.text})",
}


Written = Callable[[TType, list[Operand], list[str], Need], str]


def _function(op: str, ttype: TType, args: list[Operand], need: Need) -> str:
    a = args[0]
    texts = [materialised(arg) for arg in args]
    if (
        op in ("bitwise_left_shift", "bitwise_right_shift")
        and args[1].is_literal
        and args[1].text.isdigit()
        and int(args[1].text) < 8 * ttype.size
    ):
        return f"({texts[0]} {'<<' if op == 'bitwise_left_shift' else '>>'} {args[1].text}).to({ttype.held})"
    if not ttype.is_float and not (op in ("fmod",) and a.t.is_float):
        return _int_function(op, ttype, texts, need)
    if op in _ON_FLOATS:
        return _ON_FLOATS[op](ttype, args, texts, need)
    if PRIMS[op].libm:
        return f"libdevice.{op}({', '.join(texts)})"
    raise InternalError(f"Triton code generation: primitive {op!r} is not defined on {ttype.held}")


def _one(ttype: TType) -> Operand:
    return Operand("1.0", ttype, is_literal=True)


def _extreme(op: str, helper: str) -> Written:
    """The larger, or the smaller, of two; NaN where either is."""

    def written(ttype: TType, args: list[Operand], texts: list[str], need: Need) -> str:
        if ttype.held == "tl.float32":
            return f"tl.{op}({texts[0]}, {texts[1]}, propagate_nan=tl.PropagateNan.ALL)"
        need(helper)
        return f"{helper}({texts[0]}, {texts[1]})"

    return written


def _by_helper(name: str) -> Written:
    def written(ttype: TType, args: list[Operand], texts: list[str], need: Need) -> str:
        need(name)
        return f"{name}({', '.join(texts)})"

    return written


def _number(sign: str) -> Written:
    """The larger (`>`), or the smaller, of two; the number where one is NaN."""
    return lambda ttype, args, texts, need: (
        f"tl.where(({texts[0]} {sign} {texts[1]}) | ({texts[1]} != {texts[1]}), {texts[0]}, {texts[1]})"
    )


# primitive on floating-point numbers -> its text, of the result's type, the operands, their texts
_ON_FLOATS: dict[str, Written] = {
    "abs": lambda ttype, args, texts, need: f"tl.abs({texts[0]})",
    "sqrt": lambda ttype, args, texts, need: (
        f"tl.sqrt_rn({texts[0]})" if ttype.held == "tl.float32" else f"tl.sqrt({texts[0]})"
    ),
    "rsqrt": lambda ttype, args, texts, need: f"libdevice.rsqrt({texts[0]})",
    "reciprocal": lambda ttype, args, texts, need: _float_div(_one(ttype), args[0]),
    "div": lambda ttype, args, texts, need: _float_div(*args),
    "sigmoid": lambda ttype, args, texts, need: _float_div(
        _one(ttype), Operand(f"(1.0 + libdevice.exp(-{texts[0]}))", ttype)
    ),
    "sign": lambda ttype, args, texts, need: f"({texts[0]} > 0).to({ttype.held}) - ({texts[0]} < 0).to({ttype.held})",
    "round": lambda ttype, args, texts, need: f"libdevice.nearbyint({texts[0]})",
    "frac": lambda ttype, args, texts, need: f"{texts[0]} - libdevice.trunc({texts[0]})",
    "fma": lambda ttype, args, texts, need: f"tl.fma({', '.join(texts)})",
    "maximum": _extreme("maximum", "_max64"),
    "minimum": _extreme("minimum", "_min64"),
    "fmax": _number(">"),
    "fmin": _number("<"),
    "div_trunc": lambda ttype, args, texts, need: f"libdevice.trunc({_float_div(*args)})",
    "div_floor": _by_helper("_float_floordiv"),
    "remainder": _by_helper("_float_remainder"),
    "pow": lambda ttype, args, texts, need: _power(args[0], args[1], ttype, texts),
}


def _power(a: Operand, b: Operand, ttype: TType, texts: list[str]) -> str:
    """Powers that eager computes without pow()."""
    x = texts[0]
    known = {"2.0": f"{x} * {x}", "3.0": f"{x} * {x} * {x}", "1.0": x}
    if b.is_literal and b.text in known:
        return known[b.text]
    one = Operand("1.0", ttype, is_literal=True)
    if b.is_literal and b.text == "-1.0":
        return _float_div(one, a)
    if b.is_literal and b.text == "-2.0":
        return _float_div(one, Operand(f"({x} * {x})", ttype))
    if b.is_literal and b.text in ("0.5", "-0.5"):
        return _function("sqrt" if b.text == "0.5" else "rsqrt", ttype, [a], lambda helper: None)
    return f"libdevice.pow({texts[0]}, {texts[1]})"


# of integers; {t} their type, {bits} its bits, {last} the last of these
_INT_TEXTS = {
    **dict.fromkeys(("maximum", "fmax"), "tl.maximum({0}, {1})"),
    **dict.fromkeys(("minimum", "fmin"), "tl.minimum({0}, {1})"),
    "abs": "tl.where({0} < 0, -{0}, {0}).to({t})",
    "sign": "({0} > 0).to({t}) - ({0} < 0).to({t})",
    **dict.fromkeys(("div", "div_trunc"), "{0} // {1}"),
    "div_floor": "_int_floordiv({0}, {1})",
    "fmod": "{0} % {1}",
    "remainder": "_int_remainder({0}, {1})",
    "pow": "_int_pow({0}, {1}).to({t})",
    "bitwise_left_shift": ("tl.where(({1} < 0) | ({1} >= {bits}), ({0} * 0).to({t}), ({0} << {1}).to({t}))"),
    "bitwise_right_shift": ("({0} >> tl.where(({1} < 0) | ({1} >= {bits}), ({1} * 0 + {last}).to({t}), {1})).to({t})"),
}
_UNSIGNED_TEXTS = {"abs": "{0}", "div_floor": "{0} // {1}", "remainder": "{0} % {1}"}  # where that is another


def _int_function(op: str, ttype: TType, texts: list[str], need: Need) -> str:
    text = _INT_TEXTS.get(op) if ttype.kind == "int" else _UNSIGNED_TEXTS.get(op, _INT_TEXTS.get(op))
    if text is None:
        raise InternalError(f"Triton code generation: primitive {op!r} is not defined on {ttype.held}")
    if text.startswith("_int_"):
        need(text.partition("(")[0])
    return text.format(*texts, t=ttype.held, bits=8 * ttype.size, last=8 * ttype.size - 1)


def rounded(text: str, to: TType) -> str:
    """float32 as a low precision type holds it, in float32 again."""
    if to.eight_bits:
        return f"_from_{to.stored}(_to_{to.stored}({text}))"
    return f"_round_bfloat16({text})" if to.stored == "tl.bfloat16" else f"{text}.to({to.stored}).to(tl.float32)"


def conversion(x: Operand, to: TType) -> str:
    """An operand as another dtype, with eager's semantics: floats truncate towards zero, anything but 0 is True."""
    text = x.narrow or materialised(x)
    if to.kind == "bool":
        return _as_bool(Operand(text, x.t))
    if x.t == to:
        return text
    if x.t.is_float and to.is_float:
        if to.low_precision:
            return rounded(f"{text}.to(tl.float32)" if x.t.held != "tl.float32" else text, to)
        return text if x.t.held == to.held else f"{text}.to({to.held})"
    if x.t.is_float and to.size < 4 and not to.is_float:
        # through a wider integer, so that large values wrap as eager's
        return f"{text}.to(tl.int64).to({to.held})"
    if to.low_precision and (to.eight_bits or x.t.size > 1):  # (integers of eight bits are exact in sixteen)
        return rounded(f"{text}.to(tl.float32)", to)
    return f"{text}.to({to.held})"


# ---- reductions
def reduce_identity(op: str, ttype: TType) -> str:
    start = REDUCTIONS[op].start
    return (
        lowest(ttype) if start == "lowest" else highest(ttype) if start == "highest" else literal(start == "one", ttype)
    )


def reduce_update(op: str, ttype: TType, old: Operand, x: Operand, need: Need) -> str:
    """The accumulator with one more value."""
    return expression(REDUCTIONS[op].step, ttype, [old, x], need)


def reduce_tile(op: str, ttype: TType, text: str, axis: int, need: Need) -> str:
    """A tile folded along `axis`."""
    if op == "sum":
        out = f"tl.sum({text}, {axis})"
        return out if ttype.is_float or ttype.size >= 4 else f"{out}.to({ttype.held})"
    if op == "any":
        return f"tl.max({text}.to(tl.int32), {axis}) != 0"
    if op == "all":
        return f"tl.min({text}.to(tl.int32), {axis}) != 0"
    if op == "xor_sum":
        return f"tl.xor_sum({text}, {axis})"
    if op in ("max", "min"):
        if ttype.is_float:
            name = f"_{op}" + ("64" if ttype.held == "tl.float64" else "")
            need(name)
            return f"tl.reduce({text}, {axis}, {name})"
        if ttype.kind == "bool":
            return f"tl.{op}({text}.to(tl.int32), {axis}) != 0"
        return f"tl.{op}({text}, {axis}).to({ttype.held})"
    if op == "prod":
        need("_mul")
        return f"tl.reduce({text}, {axis}, _mul)"
    raise InternalError(f"Triton code generation: unknown reduction {op!r}")
