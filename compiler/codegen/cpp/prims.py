"""What each primitive of the loop IR is in C++, for scalars and for vectors.

`expression` gives the text of one operation and has its helper functions printed into the kernel's prelude (`Support`).
Arithmetic and comparisons are operators of the language; the rest are functions `tc::name` overloaded for scalar and
vector types. A function without a vector form of its own is run lane by lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from ...errors import InternalError
from .dtypes import CType, literal, lowest, highest
from ...lowering.primitives import COMPARISONS, INFIX, PRIMS, REDUCTIONS, SPECIAL, form_on
from .math.special import need_special
from .support import Support, vector_type
from .math.vecmath import need_function

__all__ = ["Operand", "expression", "conversion", "splat", "reduce_identity", "reduce_update"]


@dataclass(frozen=True)
class Operand:
    """An operand as C++ text: a name or a literal. `is_vector`: one value per lane; `exact`: a float that fits its low
    precision storage type without rounding."""

    text: str
    ct: CType
    is_vector: bool
    exact: bool = False


# of masks, whose lanes are all ones or all zeros
_COMPARE_MASKS = {
    "eq": "~({x} ^ {y})",
    "ne": "{x} ^ {y}",
    "lt": "~{x} & {y}",
    "le": "~{x} | {y}",
    "gt": "{x} & ~{y}",
    "ge": "{x} | ~{y}",
}
_LOGICAL = {"logical_and": "&", "logical_or": "|", "logical_xor": "^"}
# Scalar forms; {T} the type, {f} the suffix of libm's functions, {bits} the width of an integer type.
_FLOAT = {
    "round": "{T} round({T} x) {{ return __builtin_nearbyint{f}(x); }}",
    "frac": "{T} frac({T} x) {{ return x - __builtin_trunc{f}(x); }}",
    "sign": "{T} sign({T} x) {{ return (x > 0) - (x < 0); }}",
    "abs": "{T} abs({T} x) {{ return __builtin_fabs{f}(x); }}",
    "rsqrt": "{T} rsqrt({T} x) {{ return 1 / __builtin_sqrt{f}(x); }}",
    "sigmoid": "{T} sigmoid({T} x) {{ return 1 / (1 + __builtin_exp{f}(-x)); }}",
    "relu": "{T} relu({T} x) {{ return x < 0 ? 0 : x; }}",
    "fma": "{T} fma({T} a, {T} b, {T} c) {{ return __builtin_fma{f}(a, b, c); }}",
    "maximum": "{T} maximum({T} a, {T} b) {{ return a > b || a != a ? a : b; }}",
    "minimum": "{T} minimum({T} a, {T} b) {{ return a < b || a != a ? a : b; }}",
    "fmax": "{T} fmax({T} a, {T} b) {{ return a >= b || b != b ? a : b; }}",
    "fmin": "{T} fmin({T} a, {T} b) {{ return a <= b || b != b ? a : b; }}",
    "pow": "{T} pow({T} a, {T} b) {{ return __builtin_pow{f}(a, b); }}",
    "remainder": (
        "{T} remainder({T} a, {T} b) {{          // the sign of the divisor, as Python's %\n"
        "    {T} r = __builtin_fmod{f}(a, b);\n    return r != 0 && (b < 0) != (r < 0) ? r + b : r;\n}}"
    ),
    "logaddexp": (
        "{T} logaddexp({T} a, {T} b) {{          // log(exp(a) + exp(b)); NaN wins\n    if (a != a || b != b) return a"
        " + b;\n    {T} lo = a < b ? a : b, hi = a < b ? b : a;\n    return lo != hi || __builtin_isfinite(lo) ?"
        " __builtin_log1p{f}(__builtin_exp{f}(lo - hi)) + hi : lo;\n}}"
    ),
    "div_trunc": "{T} div_trunc({T} a, {T} b) {{ return __builtin_trunc{f}(a / b); }}",
    "div_floor": (
        "{T} div_floor({T} a, {T} b) {{          // as Python's //\n    if (b == 0) return a / b;\n"
        "    {T} r = __builtin_fmod{f}(a, b), q = (a - r) / b;\n    if (r != 0 && (b < 0) != (r < 0)) q -= 1;\n"
        "    if (q == 0) return __builtin_copysign{f}(0, a / b);\n"
        "    {T} w = __builtin_floor{f}(q);\n    return q - w > {T}(0.5) ? w + 1 : w;\n}}"
    ),
}
_INT = {
    "sign": "{T} sign({T} x) {{ return (x > 0) - (x < 0); }}",
    "abs": "{T} abs({T} x) {{ return x < 0 ? -x : x; }}",
    "relu": "{T} relu({T} x) {{ return x < 0 ? 0 : x; }}",
    "maximum": "{T} maximum({T} a, {T} b) {{ return a > b ? a : b; }}",
    "minimum": "{T} minimum({T} a, {T} b) {{ return a < b ? a : b; }}",
    "fmax": "{T} fmax({T} a, {T} b) {{ return a > b ? a : b; }}",
    "fmin": "{T} fmin({T} a, {T} b) {{ return a < b ? a : b; }}",
    "div": "{T} div({T} a, {T} b) {{ return b == 0 ? 0 : {minus_one}a / b; }}",
    "div_trunc": "{T} div_trunc({T} a, {T} b) {{ return b == 0 ? 0 : {minus_one}a / b; }}",
    "fmod": "{T} fmod({T} a, {T} b) {{ return b == 0 {or_minus_one}? 0 : a % b; }}",
    "div_floor": (
        "{T} div_floor({T} a, {T} b) {{          // as Python's //\n    if (b == 0) return 0;\n{minus_one_line}"
        "    {T} q = a / b;\n    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;\n}}"
    ),
    "remainder": (
        "{T} remainder({T} a, {T} b) {{          // the sign of the divisor, as Python's %\n    if (b == 0"
        " {or_minus_one}) return 0;\n    {T} r = a % b;\n    return r != 0 && (r < 0) != (b < 0) ? r + b : r;\n}}"
    ),
    "pow": (
        "{T} pow({T} a, {T} b) {{\n    if (b < 0) return a == 1 ? 1 : a == ({T})-1 ? (b & 1 ? -1 : 1) : 0;\n    {T} r ="
        " 1;\n    for (; b; b = ({T})(b >> 1), a = ({T})(a * a)) if (b & 1) r = ({T})(r * a);\n    return r;\n}}"
    ),
    "bitwise_left_shift": (
        "{T} bitwise_left_shift({T} a, {T} b) {{ return b < 0 || b >= {bits} ? 0 : ({T})(({U})a << b); }}"
    ),
    "bitwise_right_shift": (
        "{T} bitwise_right_shift({T} a, {T} b) {{ return a >> (b < 0 || b >= {bits} ? {bits} - 1 : b); }}"
    ),
}
_UINT_SHIFT = "{T} bitwise_right_shift({T} a, {T} b) {{ return b >= {bits} ? 0 : a >> b; }}"

# Vector forms that need no instruction of their own: text over {V}, for every type of the kind.
_VECTOR = {
    "float": {
        "relu": "{V} relu({V} x) {{ return x < 0 ? {V}{{}} : x; }}",
        "sign": "{V} sign({V} x) {{ return __builtin_convertvector((x < 0) - (x > 0), {V}); }}",
        "maximum": "{V} maximum({V} a, {V} b) {{ return (a > b) | (a != a) ? a : b; }}",
        "minimum": "{V} minimum({V} a, {V} b) {{ return (a < b) | (a != a) ? a : b; }}",
        "fmax": "{V} fmax({V} a, {V} b) {{ return (a >= b) | (b != b) ? a : b; }}",
        "fmin": "{V} fmin({V} a, {V} b) {{ return (a <= b) | (b != b) ? a : b; }}",
    },
    "int": {
        "relu": "{V} relu({V} x) {{ return x < 0 ? {V}{{}} : x; }}",
        "abs": "{V} abs({V} x) {{ return x < 0 ? -x : x; }}",
        "sign": "{V} sign({V} x) {{ return (x < 0) - (x > 0); }}",
        "maximum": "{V} maximum({V} a, {V} b) {{ return a > b ? a : b; }}",
        "minimum": "{V} minimum({V} a, {V} b) {{ return a < b ? a : b; }}",
        "bitwise_left_shift": (
            "{V} bitwise_left_shift({V} a, {V} b) {{ return (b < 0) | (b >= {bits}) ? {V}{{}} : a << (b & ({bits} -"
            " 1)); }}"
        ),
        "bitwise_right_shift": (
            "{V} bitwise_right_shift({V} a, {V} b) {{ return a >> ((b < 0) | (b >= {bits}) ? {V}{{}} + ({bits} - 1) :"
            " b); }}"
        ),
    },
}
# Quotients of integers by way of double, which holds them exactly: the rounded quotient of numbers up to 2^52 cuts off
# to the right one.
_QUOTIENT = {
    "i32": (
        "vi32 quotient(vi32 a, vi32 b) { return b == 0 ? vi32{} : convert<vi32>(convert<vf64>(a) / convert<vf64>(b)); }"
    ),
    "i64": (
        """vi64 quotient(vi64 a, vi64 b) {
    const i64 most = 1LL << 52;
    vi64 far = (a > most) | (a < -most) | (b > most) | (b < -most);
    vi64 q = b == 0 ? vi64{} : convert<vi64>(convert<vf64>(a) / convert<vf64>(b));
    if (__builtin_expect(any(far), 0)) for (int k = 0; k < L; k++) if (far[k]) q[k] = div(a[k], b[k]);
    return q;
}"""
    ),
}
_DIVISIONS = {
    "div": "{V} div({V} a, {V} b) {{ return quotient(a, b); }}",
    "div_trunc": "{V} div_trunc({V} a, {V} b) {{ return quotient(a, b); }}",
    "fmod": "{V} fmod({V} a, {V} b) {{ return b == 0 ? {V}{{}} : a - quotient(a, b) * b; }}",
    "div_floor": (
        "{V} div_floor({V} a, {V} b) {{ {V} q = quotient(a, b); return q + ((a - q * b != 0) & (b != 0) & ((a < 0) !="
        " (b < 0))); }}"
    ),
    "remainder": (
        "{V} remainder({V} a, {V} b) {{ {V} r = a - quotient(a, b) * b; r = (r != 0) & ((r < 0) != (b < 0)) ? r + b :"
        " r; return b == 0 ? {V}{{}} : r; }}"
    ),
}
_DIVISION_NEEDS = {"i32": "avx2", "i64": "avx512dq"}  # instructions between these types and double
# The machine's maximum gives b where either is NaN, so that only a NaN in a needs a look of its own.
_EXTREME = """{V} {op}({V} a, {V} b) {{
    {V} m;
    asm("v{name} %2, %1, %0" : "=v"(m) : "v"(a), "vm"(b));
    return a == a ? m : a;
}}"""
_VECTOR["uint"] = {k: _VECTOR["int"][k] for k in ("maximum", "minimum")}


def splat(support: Support, x: Operand) -> str:
    """A scalar in every lane."""
    if x.is_vector:
        return x.text
    v = vector_type(support, x.ct)
    if x.ct.kind == "bool":
        support.need("splat.bool", "INLINE vmask splat(bool x) { return vmask{} - (lane_mask)x; }")
    else:
        sign = "-" if x.ct.is_float else "+"  # -0.0 + 0.0 would lose the sign
        support.need("splat." + x.ct.tag, f"INLINE {v} splat({x.ct.scalar} x) {{ return x {sign} {v}{{}}; }}")
    return f"tc::splat({x.text})"


def _function(support: Support, op: str, ct: CType, vector: bool) -> None:
    """Have `tc::op` printed for scalars of type `ct`, or for its vectors."""
    key = f"{op}.{ct.tag}.{'function' if vector else 'scalar'}"
    if key in support._order:
        return
    if not vector and op in SPECIAL:
        need_special(support, op, key, ct.scalar, ct.tag)
        return
    if not vector:
        support.need(key, "INLINE " + _scalar_text(op, ct))
        return
    if ct.tag in ("f32", "f64") and need_function(support, op, ct.tag):
        return
    v = vector_type(support, ct)
    text = _VECTOR.get(ct.kind, {}).get(op)
    if (
        op in ("maximum", "minimum")
        and ct.is_float
        and {32: "avx2", 64: "avx512f"}.get(support.bytes_of(ct.tag)) in support.target.features
    ):
        support.need(key, "INLINE " + _EXTREME.format(V=v, op=op, name=f"{op[:3]}p{'s' if ct.tag == 'f32' else 'd'}"))
        return
    if op in _DIVISIONS and _DIVISION_NEEDS.get(ct.tag) in support.target.features:
        support.vector("f64"), support.need("convert"), support.need("any")
        _function(support, "div", ct, False)
        support.need(f"quotient.{ct.tag}", "INLINE " + _QUOTIENT[ct.tag])
        text = _DIVISIONS[op]
    if text is not None:
        support.need(key, "INLINE " + text.format(V=v, bits=8 * ct.size))
        return
    _function(support, op, ct, False)
    names = "abc"[: PRIMS[op].operands]
    support.need(
        "lanes.memory",
        "// Lanes one by one go through memory: taking them out of a register costs more.\ntemplate <class V, class T>"
        ' INLINE void spill(V v, T (&a)[L]) { __builtin_memcpy(a, &v, sizeof a); asm("" : "+m"(a)); }\n',
    )
    spilled = " ".join(f"{ct.scalar} {name}_lanes[L]; spill({name}, {name}_lanes);" for name in names)
    support.need(
        key,
        f"INLINE {v} {op}({', '.join(f'{v} {name}' for name in names)}) {{\n    {spilled}\n    {ct.scalar} r[L]; "
        f"for (int k = 0; k < L; k++) r[k] = {op}({', '.join(f'{name}_lanes[k]' for name in names)});\n"
        f"    {v} out; __builtin_memcpy(&out, r, sizeof out); return out;\n}}",
    )


def _scalar_text(op: str, ct: CType) -> str:
    t = ct.scalar
    if ct.is_float:
        f = "f" if ct.tag == "f32" else ""
        if op in _FLOAT:
            return _FLOAT[op].format(T=t, f=f)
        if op == "erf_rough":
            return f"{t} erf_rough({t} x) {{ return __builtin_erf{f}(x); }}"
        if op == "erfc" and ct.tag == "f32":  # libm's erfcf is off by 3 units
            return "float erfc(float x) { return (float)__builtin_erfc((double)x); }"
        if PRIMS[op].libm:
            args = ("x", "y")[: PRIMS[op].operands]
            params = ", ".join(f"{t} {arg}" for arg in args)
            return f"{t} {op}({params}) {{ return __builtin_{op}{f}({', '.join(args)}); }}"
    elif op in _INT:
        text = _UINT_SHIFT if ct.kind == "uint" and op == "bitwise_right_shift" else _INT[op]
        signed = ct.kind == "int"  # the smallest number divided by -1 traps
        return text.format(
            T=t,
            bits=8 * ct.size,
            U="u" + t[1:] if signed else t,
            minus_one=f"b == -1 ? ({t})-(u64)a : " if signed else "",
            or_minus_one="|| b == -1 " if signed else "",
            minus_one_line=f"    if (b == -1) return ({t})-(u64)a;\n" if signed else "",
        )
    raise InternalError(f"C++ code generation: primitive {op!r} is not defined on {ct.scalar}")


def _call(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    _function(support, op, ct, vector)
    texts = [splat(support, arg) if vector else arg.text for arg in args]
    return f"tc::{op}({', '.join(texts)})"


def _mask(support: Support, text: str, ct: CType) -> str:
    """A comparison's result as the kernel's mask type."""
    support.need("masks")
    return f"tc::mask({text})" if ct.size != support.mask_bytes else text


def _as_bool(support: Support, x: Operand) -> Operand:
    if x.ct.kind == "bool":
        return x
    return Operand(
        f"({x.text} != 0)" if not x.is_vector else _mask(support, f"({x.text} != 0)", x.ct), BOOL, x.is_vector
    )


BOOL = CType("bool", "bool", 1, "bool", "bool")


def expression(support: Support, op: str, ct: CType, args: list[Operand]) -> str:
    """The text of `op` on operands; a vector where any operand is one. `ct` is the result's type."""
    vector = any(arg.is_vector for arg in args)
    a = args[0]
    op = form_on(op, a.ct.kind == "bool", a.ct.is_float)
    if op == "identity":
        return a.text
    written = _OPERATORS.get(op)
    text = written(support, op, ct, args, vector) if written is not None else None
    return text if text is not None else _call(support, op, ct, args, vector)


def _where(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    if not vector:
        return f"{args[0].text} ? {args[1].text} : {args[2].text}"
    support.need("masks")  # (not by ?: of a scalar, of which the compiler tries all combinations for minutes)
    return (
        f"tc::where({splat(support, _as_bool(support, args[0]))}, {splat(support, args[1])}, {splat(support, args[2])})"
    )


def _logical(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    x, y = (_as_bool(support, arg) for arg in args)
    return f"{splat(support, x) if vector else x.text} {_LOGICAL[op]} {splat(support, y) if vector else y.text}"


def _logical_not(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    return f"{'~' if vector else '!'}{_as_bool(support, args[0]).text}"


def _comparison(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    a, b = args
    if a.ct.kind == "bool" and vector:
        return _COMPARE_MASKS[op].format(x=splat(support, a), y=splat(support, b))
    text = f"{_raw(support, a, vector)} {COMPARISONS[op].infix} {_raw(support, b, vector)}"
    return _mask(support, f"({text})", a.ct) if vector else text


def _infix(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    return _wrap(f"{_raw(support, args[0], vector)} {INFIX[op]} {_raw(support, args[1], vector)}", ct, vector)


def _float_division(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str | None:
    return f"{_raw(support, args[0], vector)} / {_raw(support, args[1], vector)}" if ct.is_float else None


def _cut_off_division(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str | None:
    if not (ct.is_float and vector):
        return None
    quotient = Operand(f"({_raw(support, args[0], vector)} / {_raw(support, args[1], vector)})", ct, True)
    return _call(support, "trunc", ct, [quotient], True)


def _negative(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    return _wrap(f"-{args[0].text}", ct, vector)


def _bitwise_not(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    if ct.kind == "bool":
        return f"{'~' if vector else '!'}{args[0].text}"
    return _wrap(f"~{args[0].text}", ct, vector)


def _reciprocal(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    return f"{literal(1, ct)} / {args[0].text}"


def _raw(support: Support, x: Operand, vector: bool) -> str:
    """An operand of an operator: the language broadcasts scalars of four bytes and more."""
    return splat(support, x) if vector and not x.is_vector and (x.ct.size < 4 or x.ct.kind == "bool") else x.text


def _wrap(text: str, ct: CType, vector: bool) -> str:
    """Small integers are promoted to int by the language: bring the result back."""
    return f"({ct.scalar})({text})" if not vector and ct.size < 4 and ct.kind != "bool" else text


def _classify(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str:
    (a,) = args
    if not a.ct.is_float:
        yes = f"{a.text} < 0" if op == "signbit" and a.ct.kind == "int" else None
        if yes is None:
            return splat(support, Operand("false", BOOL, False)) if vector else "false"
        return _mask(support, f"({yes})", a.ct) if vector else yes
    f = "f" if a.ct.tag == "f32" else ""
    if not vector:
        return {
            "isnan": f"{a.text} != {a.text}",
            "isinf": f"__builtin_isinf({a.text}) != 0",
            "signbit": f"__builtin_signbit{f}({a.text}) != 0",
        }[op]
    i = "vi32" if a.ct.tag == "f32" else "vi64"
    support.vector(i[1:])
    text = {
        "isnan": f"({a.text} != {a.text})",
        "isinf": f"(({a.text} == __builtin_inf{f}()) | ({a.text} == -__builtin_inf{f}()))",
        "signbit": f"(({i}){a.text} < 0)",
    }[op]
    return _mask(support, text, a.ct)


def _power(support: Support, op: str, ct: CType, args: list[Operand], vector: bool) -> str | None:
    """Powers that eager computes without pow(), and of vectors those that products and a root make."""
    if not ct.is_float:
        return None
    a, b = args
    try:
        e = float(b.text.strip("()").rstrip("f"))
    except ValueError:
        return None
    x = a.text
    if e in (2.0, 3.0):
        return " * ".join([x] * int(e))
    if e == 1.0:
        return x
    if e == -1.0:
        return f"{literal(1, ct)} / {x}"
    if e == -2.0:
        return f"{literal(1, ct)} / ({x} * {x})"
    if e == 0.5:
        return _call(support, "sqrt", ct, [a], vector)
    if e == -0.5:
        return _call(support, "rsqrt", ct, [a], vector)
    if vector and ct.tag == "f32" and abs(e) <= 16 and (2 * e).is_integer():
        need_function(support, "power", "f32")
        return f"tc::power<{int(2 * e)}>({x})"
    return None


# primitives that operators of the language write: the text, or None where the function `tc::name` does. Operands and
# results are of the types that `expression` says; `vector`: whether any operand is one.
_OPERATORS: dict[str, Callable[[Support, str, CType, list[Operand], bool], str | None]] = {
    "where": _where,
    "masked": _where,
    **dict.fromkeys(_LOGICAL, _logical),
    "logical_not": _logical_not,
    **dict.fromkeys(COMPARISONS, _comparison),
    **dict.fromkeys(("isnan", "isinf", "signbit"), _classify),
    **dict.fromkeys(INFIX, _infix),
    "div": _float_division,
    "div_trunc": _cut_off_division,
    "neg": _negative,
    "bitwise_not": _bitwise_not,
    "reciprocal": _reciprocal,
    "pow": _power,
}


# Negative numbers wrap, as with eager's compiler, where the instructions of newer machines would give the largest
# number.
_UNSIGNED_OF = """\
template <class U, class I, class F> INLINE U unsigned_of(F x, F half) {
    bool high = x >= half;
    return (U)(I)(high ? x - half : x) ^ ((U)high << (8 * sizeof(U) - 1));
}
template <class U, class I, class F, class T> INLINE U unsigned_each(F x, T half) {
    auto high = x >= half;
    I above = convert<I>(high) << (8 * sizeof(I{}[0]) - 1);
    return (U)(convert<I>(high ? x - half : x) ^ above);
}
"""


def conversion(support: Support, x: Operand, to: CType) -> str:
    """`x` as another dtype, with eager's semantics: floats truncate towards zero, anything but 0 is True."""
    text = x.text
    if to.kind == "bool":
        return _as_bool(support, x).text
    if x.ct.kind == "bool":
        if not x.is_vector:
            return f"({to.scalar}){text}"
        v = vector_type(support, to)
        if to.is_float:
            support.need("masks")
            return f"tc::where({text}, {splat(support, Operand(literal(1, to), to, False))}, {v}{{}})"
        support.need("convert")
        return f"tc::convert<{v}>({text} & 1)"
    if x.ct.is_float and to.is_float:
        if x.ct.tag != to.tag:
            text = _converted(support, text, to) if x.is_vector else f"({to.scalar}){text}"
        if to.storage in ("bf16", "f16") and x.ct.storage != to.storage:
            support.need(f"{to.storage}.vector" if x.is_vector else to.storage)
            text = f"tc::round_{to.storage}({text})"
        return text
    if x.ct.is_float and to.size < 4:  # through a wider integer, so that large values wrap as eager's
        if not x.is_vector:
            return f"({to.scalar})(i32){text}"
        support.vector("i32"), support.need("convert")
        return _converted(support, f"tc::convert<vi32>({text})", to)
    if x.ct.is_float and to.kind == "uint":
        support.need("convert"), support.need("unsigned_of", _UNSIGNED_OF)
        signed, half = f"i{8 * to.size}", f"{float(1 << 8 * to.size - 1)!r}"
        if not x.is_vector:
            return f"tc::unsigned_of<{to.scalar}, {signed}>({text}, ({x.ct.scalar}){half})"
        support.vector(signed)
        return f"tc::unsigned_each<{vector_type(support, to)}, v{signed}>({text}, ({x.ct.scalar}){half})"
    if x.is_vector:
        text = _converted(support, text, to)
    else:
        text = f"({to.scalar}){text}"
    if to.storage in ("bf16", "f16"):
        support.need(f"{to.storage}.vector" if x.is_vector else to.storage)
        text = f"tc::round_{to.storage}({text})"
    return text


def _converted(support: Support, text: str, to: CType) -> str:
    support.need("convert")
    return f"tc::convert<{vector_type(support, to)}>({text})"


# ---- reductions
def reduce_identity(op: str, ct: CType) -> str:
    start = REDUCTIONS[op].start
    return lowest(ct) if start == "lowest" else highest(ct) if start == "highest" else literal(start == "one", ct)


def reduce_update(support: Support, op: str, old: Operand, x: Operand) -> str:
    """The accumulator with one more value."""
    return expression(support, REDUCTIONS[op].step, old.ct, [old, x])
