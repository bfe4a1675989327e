"""Vector mathematics: elementary functions over `vf32` and `vf64`, within about 1 ulp, for every input.

Each entry is C++ text and the keys it needs. Where a function has no entry, the scalar one (libm) runs lane by lane.
Methods (here, in vecmath_wide.py and, over doubles, vecmath_double.py): exp and sin/cos reduce the range by Cody and
Waite with fused multiply-adds; log is fdlibm's; erf follows N. Juffa's single-precision split at 475/512; tanh is
Cephes'. Arguments too large for the reduction fall back to libm, lane by lane.
"""

from __future__ import annotations

from ..support import Support
from .vecmath_double import DOUBLE
from .vecmath_special import SPECIAL_F32, SPECIAL_F64, WIDE
from .vecmath_wide import F64, WIDE_F32, madd_text

__all__ = ["VECTOR_MATH", "need_instruction"]

# ---- single instructions that GCC has no operator for: (name, bytes) -> (feature, text)
_X86 = {
    ("fma.f32", 64): (
        "avx512f",
        "INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4); }",
    ),
    ("fma.f32", 32): ("fma", "INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps256(a, b, c); }"),
    ("fma.f32", 16): ("fma", "INLINE vf32 fma(vf32 a, vf32 b, vf32 c) { return __builtin_ia32_vfmaddps(a, b, c); }"),
    ("fma.f64", 64): (
        "avx512f",
        "INLINE vf64 fma(vf64 a, vf64 b, vf64 c) { return __builtin_ia32_vfmaddpd512_mask(a, b, c, (u8)-1, 4); }",
    ),
    ("fma.f64", 32): ("fma", "INLINE vf64 fma(vf64 a, vf64 b, vf64 c) { return __builtin_ia32_vfmaddpd256(a, b, c); }"),
    ("fma.f64", 16): ("fma", "INLINE vf64 fma(vf64 a, vf64 b, vf64 c) { return __builtin_ia32_vfmaddpd(a, b, c); }"),
    ("sqrt.f32", 64): (
        "avx512f",
        "INLINE vf32 sqrt(vf32 a) { return __builtin_ia32_sqrtps512_mask(a, a, (u16)-1, 4); }",
    ),
    ("sqrt.f32", 32): ("avx", "INLINE vf32 sqrt(vf32 a) { return __builtin_ia32_sqrtps256(a); }"),
    ("sqrt.f32", 16): ("sse2", "INLINE vf32 sqrt(vf32 a) { return __builtin_ia32_sqrtps(a); }"),
    ("sqrt.f64", 64): (
        "avx512f",
        "INLINE vf64 sqrt(vf64 a) { return __builtin_ia32_sqrtpd512_mask(a, a, (u8)-1, 4); }",
    ),
    ("sqrt.f64", 32): ("avx", "INLINE vf64 sqrt(vf64 a) { return __builtin_ia32_sqrtpd256(a); }"),
    ("sqrt.f64", 16): ("sse2", "INLINE vf64 sqrt(vf64 a) { return __builtin_ia32_sqrtpd(a); }"),
}
for _name, _imm in (("round", 8), ("floor", 9), ("ceil", 10), ("trunc", 11)):
    _X86[(f"{_name}.f32", 64)] = (
        "avx512f",
        f"INLINE vf32 {_name}(vf32 a) {{ return __builtin_ia32_rndscaleps_mask(a, {_imm}, a, (u16)-1, 4); }}",
    )
    _X86[(f"{_name}.f64", 64)] = (
        "avx512f",
        f"INLINE vf64 {_name}(vf64 a) {{ return __builtin_ia32_rndscalepd_mask(a, {_imm}, a, (u8)-1, 4); }}",
    )
    _X86[(f"{_name}.f32", 32)] = (
        "avx",
        f"INLINE vf32 {_name}(vf32 a) {{ return __builtin_ia32_roundps256(a, {_imm}); }}",
    )
    _X86[(f"{_name}.f64", 32)] = (
        "avx",
        f"INLINE vf64 {_name}(vf64 a) {{ return __builtin_ia32_roundpd256(a, {_imm}); }}",
    )
    _X86[(f"{_name}.f32", 16)] = (
        "sse4_1",
        f"INLINE vf32 {_name}(vf32 a) {{ return __builtin_ia32_roundps(a, {_imm}); }}",
    )
    _X86[(f"{_name}.f64", 16)] = (
        "sse4_1",
        f"INLINE vf64 {_name}(vf64 a) {{ return __builtin_ia32_roundpd(a, {_imm}); }}",
    )
_LIBM = {"round": "nearbyint"}


def need_instruction(support: Support, name: str, tag: str) -> None:
    """fma, sqrt, round (half to even), floor, ceil or trunc over one vector: the machine's instruction, or lane by
    lane.
    """
    key = f"{name}.{tag}"
    support.vector(tag)
    special = _X86.get((key, support.bytes_of(tag)))
    if special and special[0] in support.target.features:
        support.need(key + ".vector", special[1])
        return
    v, f = "v" + tag, "f" if tag == "f32" else ""
    libm = "__builtin_" + _LIBM.get(name, name) + f
    if name == "fma":
        text = (
            f"INLINE {v} fma({v} a, {v} b, {v} c) {{ {v} r; UNROLL for (int k = 0; k < L; k++) r[k] = {libm}(a[k],"
            " b[k], c[k]); return r; }"
        )
    else:
        text = (
            f"INLINE {v} {name}({v} a) {{ {v} r; UNROLL for (int k = 0; k < L; k++) r[k] = {libm}(a[k]); return r; }}"
        )
    support.need(key + ".vector", text)


_F32 = {
    "exp_parts": (
        ("fma",),
        (),
        """\
INLINE vf32 less_ln2(vf32 x, vf32 n) {   // x - n * ln(2)
    return fma(n, vf32{} + 2.12194440e-4f, fma(n, vf32{} - 0.693359375f, x));
}
INLINE vf32 exp_less_1(vf32 r) {         // e^r - 1, |r| <= ln(2)/2
    vf32 p = vf32{} + 1.98756915e-4f;
    p = fma(p, r, vf32{} + 1.39819995e-3f);
    p = fma(p, r, vf32{} + 8.33345205e-3f);
    p = fma(p, r, vf32{} + 4.16657962e-2f);
    p = fma(p, r, vf32{} + 1.66666651e-1f);
    p = fma(p, r, vf32{} + 5.00000000e-1f);
    return fma(p, r * r, r);
}""",
    ),
    "exp": (
        ("round",),
        ("exp_parts", "scale"),
        """\
INLINE vf32 exp(vf32 x) {                // 2^n * e^r
    x = x > 89.0f ? vf32{} + 89.0f : x;
    x = x < -104.5f ? vf32{} - 104.5f : x;
    vf32 n = round(x * 1.44269504f);
    return scale(exp_less_1(less_ln2(x, n)) + 1.0f, n);
}""",
    ),
    "scale": (
        (),
        (),
        """\
INLINE vf32 scale(vf32 x, vf32 n) {      // x * 2^n in two steps, so that denormal results are right
    vi32 e = __builtin_convertvector(n, vi32), half = e >> 1;
    vf32 a = (vf32)((half + 127) << 23), b = (vf32)((e - half + 127) << 23);
    return x * a * b;
}""",
    ),
    "log_parts": (
        (),
        ("i32",),
        """\
// log(m) = f - (h - result) for x = 2^k * m, m = 1 + f, sqrt(1/2) <= m < sqrt(2).
INLINE vf32 log_parts(vf32 x, vf32 &k, vf32 &f, vf32 &h) {
    vi32 tiny = x < 1.17549435e-38f;
    vf32 y = tiny ? x * 33554432.0f : x;                          // denormals: times 2^25
    vi32 b = (vi32)y - 0x3f3504f3, e = (b >> 23) - (tiny & 25);
    k = __builtin_convertvector(e, vf32);
    f = (vf32)((b & 0x007fffff) + 0x3f3504f3) - 1.0f;
    vf32 s = f / (f + 2.0f), z = s * s, w = z * z;
    vf32 r = w * (w * 0.24279078841f + 0.40000972152f) + z * (w * 0.28498786688f + 0.66666662693f);
    h = 0.5f * f * f;
    return s * (h + r);
}
INLINE vf32 log_value(vf32 x, vf32 y) {  // 0, negative numbers, infinity and NaN
    y = x == 0.0f ? vf32{} - __builtin_inff() : y;
    y = x < 0.0f ? vf32{} + __builtin_nanf("") : y;
    return (x == __builtin_inff()) | (x != x) ? x : y;
}""",
    ),
    "log": (
        (),
        ("log_parts",),
        """\
INLINE vf32 log(vf32 x) {
    vf32 k, f, h, r = log_parts(x, k, f, h);
    return log_value(x, k * 0.69313812256f - ((h - (r + k * 9.0580006145e-6f)) - f));
}""",
    ),
    "log2": (
        ("fma",),
        ("log_parts",),
        """\
INLINE vf32 log2(vf32 x) {               // exact for powers of two
    vf32 k, f, h, r = log_parts(x, k, f, h), m = f - (h - r), lost = (f - m) - (h - r), hi = m * 1.44269502f;
    return log_value(x, k + (hi + fma(m, vf32{} + 1.925963033500e-8f,
                                      fma(lost, vf32{} + 1.44269502f, fma(m, vf32{} + 1.44269502f, -hi)))));
}""",
    ),
    "erf": (
        ("fma",),
        ("exp_small",),
        """\
INLINE vf32 erf(vf32 x) {
    vf32 t = (vf32)((vi32)x & 0x7fffffff), s = x * x;
    t = t > 4.0f ? vf32{} + 4.0f : t;
    vf32 r = fma(vf32{} - 1.72853470e-5f, t, vf32{} + 3.83197126e-4f);      // 475/512 < |x|: 1 - exp(polynomial)
    vf32 u = fma(vf32{} - 3.88396438e-3f, t, vf32{} + 2.42546219e-2f);
    r = fma(r, t * t, u);
    r = fma(r, t, vf32{} - 1.06777877e-1f);
    r = fma(r, t, vf32{} - 6.34846687e-1f);
    r = fma(r, t, vf32{} - 1.28717512e-1f);
    r = 1.0f - exp_small(fma(r, t, -t));
    r = (vf32)((vi32)r | ((vi32)x & (int)0x80000000));
    vf32 q = fma(vf32{} - 5.96761703e-4f, s, vf32{} + 4.99119423e-3f);
    q = fma(q, s, vf32{} - 2.67681349e-2f);
    q = fma(q, s, vf32{} + 1.12819925e-1f);
    q = fma(q, s, vf32{} - 3.76125336e-1f);
    q = fma(q, s, vf32{} + 1.28379166e-1f);
    q = fma(q, x, x);
    r = t > 0.927734375f ? r : q;
    return x == x ? r : x;
}""",
    ),
    "exp_small": (
        ("round",),
        ("exp_parts",),
        """\
INLINE vf32 exp_small(vf32 x) {          // -80 < x <= 0: no denormals, no infinities
    vf32 n = round(x * 1.44269504f), r = less_ln2(x, n);
    vf32 p = vf32{} + 1.39819995e-3f;
    p = fma(p, r, vf32{} + 8.33345205e-3f);
    p = fma(p, r, vf32{} + 4.16657962e-2f);
    p = fma(p, r, vf32{} + 1.66666651e-1f);
    p = fma(p, r, vf32{} + 5.00000000e-1f);
    p = fma(p, r * r, r) + 1.0f;
    return (vf32)((vi32)p + (__builtin_convertvector(n, vi32) << 23));
}""",
    ),
    "tanh": (
        ("fma", "round"),
        ("exp",),
        """\
INLINE vf32 tanh(vf32 x) {
    vf32 a = (vf32)((vi32)x & 0x7fffffff), s = x * x;
    vf32 c = a > 10.0f ? vf32{} + 10.0f : a;
    vf32 big = 1.0f - 2.0f / (exp(c + c) + 1.0f);
    vf32 p = fma(vf32{} - 5.70498872745e-3f, s, vf32{} + 2.06390887954e-2f);
    p = fma(p, s, vf32{} - 5.37397155531e-2f);
    p = fma(p, s, vf32{} + 1.33314422036e-1f);
    p = fma(p, s, vf32{} - 3.33332819422e-1f);
    p = fma(p * s, x, x);
    vf32 r = a < 0.625f ? p : big;
    r = (vf32)(((vi32)r & 0x7fffffff) | ((vi32)x & (int)0x80000000));
    return x == x ? r : x;
}""",
    ),
    "quadrant": (
        ("fma", "round"),
        ("i32",),
        """\
struct Reduced { vf32 r; vi32 q; };      // x = q * pi/2 + r
INLINE Reduced quadrant(vf32 x) {
    vf32 n = round(x * 0.636619772f);
    vf32 r = fma(n, vf32{} - 1.57079601e+0f, x);
    r = fma(n, vf32{} - 3.13916473e-7f, r);
    r = fma(n, vf32{} - 5.39030253e-15f, r);
    return {r, __builtin_convertvector(n, vi32)};
}
INLINE vf32 sin_part(vf32 r) {
    vf32 s = r * r;
    vf32 p = fma(vf32{} + 2.86567956e-6f, s, vf32{} - 1.98559923e-4f);
    p = fma(p, s, vf32{} + 8.33338592e-3f);
    p = fma(p, s, vf32{} - 1.66666672e-1f);
    return fma(p * s, r, r);
}
INLINE vf32 cos_part(vf32 r) {
    vf32 s = r * r;
    vf32 p = fma(vf32{} + 2.44677067e-5f, s, vf32{} - 1.38877297e-3f);
    p = fma(p, s, vf32{} + 4.16666567e-2f);
    p = fma(p, s, vf32{} - 5.00000000e-1f);
    return fma(p, s, vf32{} + 1.0f);
}""",
    ),
    "far": (
        (),
        ("quadrant", "any", "wide"),
        """\
static __attribute__((noinline)) Reduced quadrant_far(vf32 x) {          // in double: up to 1e6
    vf64 d = wide(clamp(x, -1e6f, 1e6f)), n = (d * 0.6366197723675814 + 6755399441055744.0) - 6755399441055744.0;
    return {narrow((d - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11),
            __builtin_convertvector(n, vi32)};
}
INLINE vf32 sin_far(vf32 x) {
    Reduced t = quadrant_far(x);
    vf32 y = (t.q & 1) != 0 ? cos_part(t.r) : sin_part(t.r);
    y = (vf32)((vi32)y ^ ((t.q & 2) << 30));
    vi32 beyond = !(magnitude(x) <= 1e6f);
    if (any(beyond)) for (int k = 0; k < L; k++) if (beyond[k]) y[k] = __builtin_sinf(x[k]);
    return y;
}
INLINE vf32 cos_far(vf32 x) {
    Reduced t = quadrant_far(x);
    vf32 y = (t.q & 1) != 0 ? sin_part(t.r) : cos_part(t.r);
    y = (vf32)((vi32)y ^ (((t.q + 1) & 2) << 30));
    vi32 beyond = !(magnitude(x) <= 1e6f);
    if (any(beyond)) for (int k = 0; k < L; k++) if (beyond[k]) y[k] = __builtin_cosf(x[k]);
    return y;
}""",
    ),
    "sin": (
        (),
        ("far",),
        """\
INLINE vf32 sin(vf32 x) {
    Reduced t = quadrant(x);
    vf32 y = (t.q & 1) != 0 ? cos_part(t.r) : sin_part(t.r);
    y = (vf32)((vi32)y ^ ((t.q & 2) << 30));
    vi32 large = (vf32)((vi32)x & 0x7fffffff) > 30000.0f;
    if (__builtin_expect(any(large), 0)) y = large ? sin_far(x) : y;
    return x == 0.0f ? x : y;
}""",
    ),
    "cos": (
        (),
        ("far",),
        """\
INLINE vf32 cos(vf32 x) {
    Reduced t = quadrant(x);
    vf32 y = (t.q & 1) != 0 ? sin_part(t.r) : cos_part(t.r);
    y = (vf32)((vi32)y ^ (((t.q + 1) & 2) << 30));
    vi32 large = (vf32)((vi32)x & 0x7fffffff) > 30000.0f;
    if (__builtin_expect(any(large), 0)) y = large ? cos_far(x) : y;
    return y;
}""",
    ),
    "sigmoid": ((), ("exp",), "INLINE vf32 sigmoid(vf32 x) { return 1.0f / (1.0f + exp(-x)); }"),
    "rsqrt": (("sqrt",), (), "INLINE vf32 rsqrt(vf32 x) { return 1.0f / sqrt(x); }"),
    "sqrt": (("sqrt",), (), ""),
    "floor": (("floor",), (), ""),
    "ceil": (("ceil",), (), ""),
    "trunc": (("trunc",), (), ""),
    "round": (("round",), (), ""),
    "fma": (("fma",), (), ""),
    "frac": (("trunc",), (), "INLINE vf32 frac(vf32 x) { return x - trunc(x); }"),
    "abs": ((), ("i32",), "INLINE vf32 abs(vf32 x) { return (vf32)((vi32)x & 0x7fffffff); }"),
    "copysign": (
        (),
        ("i32",),
        "INLINE vf32 copysign(vf32 x, vf32 y) { return (vf32)(((vi32)x & 0x7fffffff) | ((vi32)y & (int)0x80000000)); }",
    ),
}
_F64 = {
    "rsqrt": (("sqrt",), (), "INLINE vf64 rsqrt(vf64 x) { return 1.0 / sqrt(x); }"),
    "sqrt": (("sqrt",), (), ""),
    "floor": (("floor",), (), ""),
    "ceil": (("ceil",), (), ""),
    "trunc": (("trunc",), (), ""),
    "round": (("round",), (), ""),
    "fma": (("fma",), (), ""),
    "frac": (("trunc",), (), "INLINE vf64 frac(vf64 x) { return x - trunc(x); }"),
    "abs": ((), ("i64",), "INLINE vf64 abs(vf64 x) { return (vf64)((vi64)x & 0x7fffffffffffffffLL); }"),
    "copysign": (
        (),
        ("i64",),
        (
            "INLINE vf64 copysign(vf64 x, vf64 y) {\n"
            "    return (vf64)(((vi64)x & 0x7fffffffffffffffLL) | ((vi64)y & (-0x7fffffffffffffffLL - 1)));\n}"
        ),
    ),
    "sigmoid": ((), ("exp",), "INLINE vf64 sigmoid(vf64 x) { return 1.0 / (1.0 + exp(-x)); }"),
}
VECTOR_MATH: dict[str, dict[str, tuple]] = {
    "f32": {**_F32, **WIDE_F32, **SPECIAL_F32},
    "f64": {**_F64, **F64, **DOUBLE, **SPECIAL_F64},
}
_SCALE_AVX512 = (
    "INLINE vf32 scale(vf32 x, vf32 n) { return __builtin_ia32_scalefps512_mask(x, n, x, (u16)-1, 4); }   // x * 2^n"
)


def need_function(support: Support, name: str, tag: str) -> bool:
    """Have the vector function printed; False where there is none."""
    entry = VECTOR_MATH.get(tag, {}).get(name)
    key = f"{name}.{tag}.function"
    if key in support._order:
        return True
    if entry is None and tag == "f32" and name in WIDE:
        need_function(support, name, "f64")
        support.vector("f32"), support.need("convert")
        support.need(key, f"INLINE vf32 {name}(vf32 x) {{ return convert<vf32>({name}(convert<vf64>(x))); }}")
        return True
    if entry is None:
        return False
    instructions, needs, text = entry
    support.long.add(key)
    support.vector(tag, "i32" if tag == "f32" else "i64")
    for instr in instructions:
        need_instruction(support, instr, tag)
    for need in needs:
        if need in ("i32", "i64", "f64", "f32"):
            support.vector(need)
        elif need == "any":
            support.need("any")
        elif need == "madd":
            support.need("madd", madd_text(support.target.width, support.lanes, support.target.fma))
        else:
            need_function(support, need, tag)
    if name == "scale" and support.bytes_of("f32") == 64 and "avx512f" in support.target.features:
        text = _SCALE_AVX512
    if text:
        support.need(key, text)
    return True
