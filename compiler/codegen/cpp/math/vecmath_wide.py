"""Functions over `vf32` that are computed in double, and functions over `vf64`: within about 1 ulp.

The double vectors of a float function have as many lanes as its float vectors; GCC splits them over registers. Nothing
in them needs an instruction without an operator; polynomials take `madd(a, b, c)`, fused where the machine can: it
saves time, the bits don't matter here.
"""

from __future__ import annotations

__all__ = ["WIDE_F32", "F64", "madd_text"]

_MADD = "INLINE vf64 madd(vf64 a, vf64 b, double c) {{ {} }}"
_FUSED = {
    64: "__builtin_ia32_vfmaddpd512_mask({0}, {1}, {2}, (u8)-1, 4)",
    32: "__builtin_ia32_vfmaddpd256({0}, {1}, {2})",
}


def madd_text(register: int, lanes: int, fused: bool) -> str:
    """a * b + c over double vectors that fill two registers of so many bytes."""
    if not fused or register not in _FUSED or lanes * 8 != 2 * register:
        return _MADD.format("return a * b + c;")
    parts = [", ".join(str(k) for k in range(h * lanes // 2, (h + 1) * lanes // 2)) for h in (0, 1)]
    halves = [
        _FUSED[register].format(*(f"__builtin_shufflevector({x}, {x}, {at})" for x in "ab"), "half{} + c")
        for at in parts
    ]
    whole = ", ".join(str(k) for k in range(lanes))
    return "\n".join(
        [
            "#if __GNUC__ >= 12",
            f"typedef double half __attribute__((vector_size({register})));",
            _MADD.format(f"return __builtin_shufflevector({halves[0]},\n        {halves[1]}, {whole});"),
            "#else",
            _MADD.format("return a * b + c;"),
            "#endif",
        ]
    )


# name -> (instructions, what it needs, text)
WIDE_F32: dict[str, tuple] = {
    "wide": (
        (),
        ("i32", "f64", "i64", "madd"),
        """\
// Double precision under float functions: arguments are finite and, for the logarithm, positive.
INLINE vf64 wide(vf32 x) { return __builtin_convertvector(x, vf64); }
INLINE vf32 narrow(vf64 x) { return __builtin_convertvector(x, vf32); }
// m ? x : y with a mask that is made of floats: of vectors of two registers GCC takes comparisons and choices apart
// lane by lane.
INLINE vf64 choose(vi32 m, vf64 x, vf64 y) {
    vi64 w = __builtin_convertvector(m, vi64);
    return (vf64)(((vi64)x & w) | ((vi64)y & ~w));
}
// log(2^e * (1 + f)) = e * log(2) + f * polynomial(f), within 2e-11; sqrt(1/2) <= 1 + f < sqrt(2).
INLINE vf64 wide_log(vf64 x) {
    vi64 b = (vi64)x, e = (b - 0x3fe6a09e667f3bcdLL) >> 52;
    vf64 f = (vf64)(b - (e << 52)) - 1.0;
    vf64 p = madd(f, vf64{} + 0.05235888516923783, -0.09804420067786203);
    p = madd(p, f, 0.1004720511888933), p = madd(p, f, -0.09945996186719662), p = madd(p, f, 0.11006038270379548);
    p = madd(p, f, -0.12495435324992145), p = madd(p, f, 0.1429081173942899), p = madd(p, f, -0.16667024572009081);
    p = madd(p, f, 0.19999888139973632), p = madd(p, f, -0.24999992728449305), p = madd(p, f, 0.3333333424920659);
    p = madd(p, f, -0.5000000003595171), p = madd(p, f, 0.9999999999874651);
    vf64 k = (vf64)(e + 0x4338000000000000LL) - 6755399441055744.0;
    return k * 0.6931471805599453 + f * p;
}
INLINE vf64 wide_exp2(vf64 x) {          // |x| < 1000
    vf64 t = x + 6755399441055744.0, n = t - 6755399441055744.0;   // rounds to an integer, which t's lowest bits hold
    vf64 r = (x - n) * 0.6931471805599453;
    vf64 p = r * (1.0 / 3628800) + 1.0 / 362880;
    p = madd(p, r, 1.0 / 40320), p = madd(p, r, 1.0 / 5040), p = madd(p, r, 1.0 / 720);
    p = madd(p, r, 1.0 / 120), p = madd(p, r, 1.0 / 24);
    p = madd(p, r, 1.0 / 6), p = madd(p, r, 0.5), p = madd(p, r, 1.0), p = madd(p, r, 1.0);
    return (vf64)((vi64)p + ((vi64)t << 52));
}
INLINE vf64 wide_exp(vf64 x) { return wide_exp2(x * 1.4426950408889634); }
INLINE vf32 clamp(vf32 x, float lo, float hi) { x = x < lo ? lo - vf32{} : x; return x > hi ? hi - vf32{} : x; }
INLINE vf32 magnitude(vf32 x) { return (vf32)((vi32)x & 0x7fffffff); }
INLINE vf32 with_sign(vf32 x, vf32 y) { return (vf32)(((vi32)x & 0x7fffffff) | ((vi32)y & (int)0x80000000)); }
INLINE vf32 log_result(vf32 x, vf64 y) { // 0, negative numbers, infinity and NaN
    vf32 r = x == 0.0f ? -__builtin_inff() - vf32{} : narrow(y);
    r = x < 0.0f ? __builtin_nanf("") - vf32{} : r;
    return (x == __builtin_inff()) | (x != x) ? x : r;
}""",
    ),
    "log10": (
        (),
        ("wide",),
        "INLINE vf32 log10(vf32 x) { return log_result(x, wide_log(wide(x)) * 0.4342944819032518); }",
    ),
    "log1p": (
        (),
        ("log",),
        """\
INLINE vf32 log1p(vf32 x) {              // log(u) and what 1 + x lost in rounding to u
    vf32 u = 1.0f + x, y = log(u) + (x - (u - 1.0f)) / u;
    y = x == -1.0f ? -__builtin_inff() - vf32{} : y;
    return (x == __builtin_inff()) | (x != x) | (x == 0.0f) ? x : y;
}""",
    ),
    "exp2": (
        ("round",),
        ("exp_parts", "scale"),
        """\
INLINE vf32 exp2(vf32 x) {
    x = x > 129.0f ? vf32{} + 129.0f : x;
    x = x < -151.0f ? vf32{} - 151.0f : x;
    vf32 n = round(x);
    return scale(exp_less_1((x - n) * 0.693147182f) + 1.0f, n);
}""",
    ),
    "expm1": (
        ("round",),
        ("exp_parts", "scale"),
        """\
INLINE vf32 expm1(vf32 x) {              // 2^n * ((e^r - 1) + (1 - 2^-n)), |r| <= ln(2)/2
    vf32 c = x > 89.0f ? vf32{} + 89.0f : x;
    c = c < -20.0f ? vf32{} - 20.0f : c;
    vf32 n = round(c * 1.44269504f);
    vf32 y = scale(exp_less_1(less_ln2(c, n)) + (1.0f - scale(vf32{} + 1.0f, -n)), n);
    return (x == 0.0f) | (x != x) ? x : y;
}""",
    ),
    "sinh": (
        (),
        ("wide",),
        """\
INLINE vf32 sinh(vf32 x) {
    vf64 e = wide_exp(wide(clamp(magnitude(x), 0.0f, 200.0f)));
    vf32 y = with_sign(narrow((e - 1.0 / e) * 0.5), x);
    y = magnitude(x) < 1e-2f ? x + x * x * x * 0.166666672f : y;
    return (x == 0.0f) | (x != x) ? x : y;
}""",
    ),
    "cosh": (
        (),
        ("wide",),
        """\
INLINE vf32 cosh(vf32 x) {
    vf64 e = wide_exp(wide(clamp(magnitude(x), 0.0f, 200.0f)));
    vf32 y = narrow((e + 1.0 / e) * 0.5);
    return x == x ? y : x;
}""",
    ),
    "asin_rest": (
        ("fma", "sqrt"),
        ("wide",),
        """\
INLINE vf32 asin_rest(vf32 x, vf32 z) {  // asin(x) - x for z = x * x <= 1/4
    vf32 p = fma(vf32{} + 0.0338057483f, z, vf32{} + 0.0170778594f);
    p = fma(p, z, vf32{} + 0.0311161564f);
    p = fma(p, z, vf32{} + 0.0445980322f);
    p = fma(p, z, vf32{} + 0.0750009876f);
    p = fma(p, z, vf32{} + 0.166666663f);
    return p * z * x;
}""",
    ),
    "asin": (
        (),
        ("asin_rest",),
        """\
INLINE vf32 asin(vf32 x) {               // pi/2 - 2 * asin(sqrt((1 - a) / 2)) for a > 1/2
    vf32 a = magnitude(x), z = a > 0.5f ? 0.5f - 0.5f * a : a * a, s = a > 0.5f ? sqrt(z) : a, p = asin_rest(s, z);
    vf32 y = with_sign(a > 0.5f ? fma(vf32{} - 2.0f, s, vf32{} + 1.57079637f)
                                  + fma(vf32{} - 2.0f, p, vf32{} - 4.37113883e-8f) : s + p, x);
    y = a > 1.0f ? __builtin_nanf("") - vf32{} : y;
    return (x == 0.0f) | (x != x) ? x : y;
}""",
    ),
    "acos": (
        (),
        ("asin_rest",),
        """\
INLINE vf32 acos(vf32 x) {
    vf32 a = magnitude(x), z = a > 0.5f ? 0.5f - 0.5f * a : a * a, s = a > 0.5f ? sqrt(z) : a, p = asin_rest(s, z);
    vf32 negative = fma(vf32{} - 2.0f, s, vf32{} + 3.14159274f) + fma(vf32{} - 2.0f, p, vf32{} - 8.74227766e-8f);
    vf32 big = x < 0.0f ? negative : 2.0f * (s + p);
    vf32 y = a > 0.5f ? big : (1.57079637f - x) - (with_sign(p, x) + 4.37113883e-8f);
    y = a > 1.0f ? __builtin_nanf("") - vf32{} : y;
    return x == x ? y : x;
}""",
    ),
    "erfc": (
        (),
        ("wide",),
        """\
INLINE vf32 erfc(vf32 x) {               // t * exp(polynomial(t) - a * a), t = 2 / (2 + a)
    vf64 a = wide(clamp(magnitude(x), 0.0f, 10.1f)), t = 2.0 / (2.0 + a);
    vf64 u = t * 2.3960396039603960396 - 1.3960396039603960396;
    vf64 p = madd(u, vf64{} - 0.0000230974099250821645, 0.0000559946361085538095);
    p = madd(p, u, 0.000130454010046637602), p = madd(p, u, -0.000542124662051129332);
    p = madd(p, u, -0.000272213917025101927), p = madd(p, u, 0.00374085504329104579);
    p = madd(p, u, -0.00108341166290079325), p = madd(p, u, -0.0296096417079819325);
    p = madd(p, u, 0.015943774980004603), p = madd(p, u, 0.571197380196635831), p = madd(p, u, -0.559537967080498319);
    vf64 y = t * wide_exp(p - a * a);
    vf32 r = x < 0.0f ? narrow(2.0 - y) : narrow(y);
    return x == x ? r : x;
}""",
    ),
    "lgamma": (
        (),
        ("wide", "any"),
        """\
// Stirling's series from 8 on, log(x (x + 1) ... (x + 7)) below, series about the zeros 1 and 2.
INLINE vf32 lgamma(vf32 x) {
    vf32 finite = clamp(x, -8388608.0f, 3.4028234e38f);
    vi32 negative = finite < 0.0f, low = (finite < 8.0f) & (finite > -7.0f);
    vf64 d = wide(finite), z = choose(negative, 1.0 - d, d), w = choose(low, z + 8.0, z), r = 1.0 / w, q = r * r;
    vf64 product = z * (z + 1.0) * ((z + 2.0) * (z + 3.0)) * ((z + 4.0) * (z + 5.0) * ((z + 6.0) * (z + 7.0)));
    vf64 y = (w - 0.5) * wide_log(w) - w + 0.91893853320467274178
        + r * madd(madd(madd(q, vf64{} - 1.0 / 1680, 1.0 / 1260), q, -1.0 / 360), q, 1.0 / 12);
    vf64 inner = choose(low, product, vf64{} + 1.0);
    vi32 pole = vi32{};
    if (any(negative)) {                 // log(pi / |sin(pi x)|) - lgamma(1 - x)
        vf64 n = (d + 6755399441055744.0) - 6755399441055744.0, t = (d - n) * 3.14159265358979323846, h = t * t;
        pole = negative & (narrow(t) == 0.0f);
        vf64 c = madd(h, vf64{} - 1.0 / 1307674368000, 1.0 / 6227020800);
        c = madd(c, h, -1.0 / 39916800), c = madd(c, h, 1.0 / 362880), c = madd(c, h, -1.0 / 5040);
        c = madd(c, h, 1.0 / 120), c = madd(c, h, -1.0 / 6);
        vf64 s = (vf64)((vi64)(t * madd(c, h, 1.0)) & 0x7fffffffffffffffLL) * 0.31830988618379067154;
        inner /= choose(negative & ~pole, s, vf64{} + 1.0);
    }
    vf64 rest = wide_log(inner);
    y = choose(negative, rest - y, y - rest);
    vi32 first = (x > 0.96875f) & (x < 1.03125f), second = (x > 1.96875f) & (x < 2.03125f);
    if (any(first | second)) {
        vf64 e = d - 1.0, f = d - 2.0;
        vf64 one = madd(e, vf64{} + 0.16955717699740819, -0.20738555102867398);
        one = madd(one, e, 0.27058080842778455), one = madd(one, e, -0.40068563438653143);
        one = madd(one, e, 0.82246703342411322), one = madd(one, e, -0.57721566490153286);
        vf64 two = madd(f, vf64{} + 0.0028905103307415234, -0.0073855510286739853);
        two = madd(two, f, 0.020580808427784548), two = madd(two, f, -0.067352301053198095);
        two = madd(two, f, 0.32246703342411322), two = madd(two, f, 0.42278433509846714);
        y = choose(first, e * one, y), y = choose(second, f * two, y);
    }
    vf32 result = pole | (x == 0.0f) | (magnitude(x) == __builtin_inff()) ? __builtin_inff() - vf32{}
        : narrow(y) + 0.0f;              // (+ 0: the zeros at 1 and 2 have no sign)
    return x == x ? result : x;
}""",
    ),
    "hypot": (
        ("fma", "sqrt"),
        ("wide",),
        """\
// Scaled by a power of two; the root of the rounded sum, then what rounding left out.
INLINE vf32 hypot(vf32 x, vf32 y) {
    vf32 a = magnitude(x), b = magnitude(y), hi = a > b ? a : b, lo = a > b ? b : a;
    vi32 e = 0x7f000000 - ((vi32)hi & 0x7f800000);
    e = e < 0x00800000 ? vi32{} + 0x00800000 : e, e = e > 0x7e800000 ? vi32{} + 0x7e800000 : e;
    vf32 p = hi * (vf32)e, q = lo * (vf32)e;
    vf32 h = p * p, l = q * q, s = h + l, rest = ((h - s) + l) + fma(p, p, -h) + fma(q, q, -l);
    vf32 r = sqrt(s), better = r + (fma(-r, r, s) + rest) * 0.5f / r;
    r = (hi == 0.0f ? hi : better) * (vf32)(0x7f000000 - e);
    r = (x != x) | (y != y) ? x + y : r;
    return (a == __builtin_inff()) | (b == __builtin_inff()) ? __builtin_inff() - vf32{} : r;
}""",
    ),
    "erf_rough": (
        ("fma",),
        (),
        """\
INLINE vf32 erf_rough(vf32 x) {          // a rational function, within 3.4e-7
    x = x > 3.83250689f ? vf32{} + 3.83250689f : x;
    x = x < -3.83250689f ? vf32{} - 3.83250689f : x;
    vf32 z = x * x, p = fma(vf32{} + 2.2905065861350646e-4f, z, vf32{} + 3.4082910107109506e-3f);
    p = fma(p, z, vf32{} + 5.0955695062380861e-2f);
    p = fma(p, z, vf32{} + 1.8520832239976145e-1f);
    p = fma(p, z, vf32{} + 1.128379143519084f);
    vf32 q = fma(vf32{} - 1.1791602954361697e-7f, z, vf32{} + 2.3547966471313185e-5f);
    q = fma(q, z, vf32{} + 1.0179625278914885e-3f);
    q = fma(q, z, vf32{} + 1.4070470171167667e-2f);
    q = fma(q, z, vf32{} + 1.1098505178285362e-1f);
    q = fma(q, z, vf32{} + 4.9746925110067538e-1f);
    q = fma(q, z, vf32{} + 1.0f);
    return x * p / q;
}""",
    ),
    "atan_unit": (
        ("fma",),
        ("wide",),
        """\
INLINE vf32 atan_unit(vf32 t) {          // 0 <= t <= 1
    vf32 s = t * t;
    vf32 p = fma(vf32{} - 0.00250856777f, s, vf32{} + 0.0139964473f);
    p = fma(p, s, vf32{} - 0.0366702209f);
    p = fma(p, s, vf32{} + 0.0631821415f);
    p = fma(p, s, vf32{} - 0.086890413f);
    p = fma(p, s, vf32{} + 0.110420345f);
    p = fma(p, s, vf32{} - 0.14279616f);
    p = fma(p, s, vf32{} + 0.199997901f);
    p = fma(p, s, vf32{} - 0.333333321f);
    return fma(p * s, t, t);
}""",
    ),
    "atan": (
        (),
        ("atan_unit",),
        """\
INLINE vf32 atan(vf32 x) {
    vf32 a = magnitude(x), p = atan_unit(a > 1.0f ? 1.0f / a : a);
    vf32 y = with_sign(a > 1.0f ? (1.57079637f - p) - 4.37113883e-8f : p, x);
    return (x == 0.0f) | (x != x) ? x : y;
}""",
    ),
    "atan2": (
        (),
        ("atan_unit",),
        """\
INLINE vf32 atan2(vf32 y, vf32 x) {
    vf32 a = magnitude(x), b = magnitude(y), hi = a > b ? a : b, lo = a > b ? b : a;
    vf32 t = lo / hi;
    t = hi == 0.0f ? vf32{} : t;
    t = lo == __builtin_inff() ? 1.0f - vf32{} : t;
    vf32 r = atan_unit(t);
    r = b > a ? (1.57079637f - r) - 4.37113883e-8f : r;
    r = (vi32)x < 0 ? (3.14159274f - r) - 8.74227766e-8f : r;
    return (x != x) | (y != y) ? x + y : with_sign(r, y);
}""",
    ),
    "tan": (
        (),
        ("wide", "any"),
        """\
INLINE vf32 tan(vf32 x) {                // x = n * pi/2 + r in double; sine and cosine of r
    vf32 large = magnitude(x);
    vf64 d = wide(clamp(x, -1e6f, 1e6f));
    vf64 n = (d * 0.6366197723675814 + 6755399441055744.0) - 6755399441055744.0;
    vf64 r = (d - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11, z = r * r;
    vf64 s = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z * (1.0 / 39916800)))));
    vf64 c = 1.0 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 - z * (1.0 / 3628800)))));
    vi32 odd = __builtin_convertvector(n, vi32) & 1;
    vf32 y = odd != 0 ? narrow(-c / s) : narrow(s / c);
    vi32 far = !(large <= 1e6f);
    if (__builtin_expect(any(far), 0)) for (int k = 0; k < L; k++) if (far[k]) y[k] = __builtin_tanf(x[k]);
    return x == 0.0f ? x : y;
}""",
    ),
    "asinh": (
        (),
        ("wide",),
        """\
INLINE vf32 asinh(vf32 x) {
    vf64 a = wide(clamp(magnitude(x), 0.0f, 3.4028234e38f)), r;
    UNROLL for (int k = 0; k < L; k++) r[k] = __builtin_sqrt(a[k] * a[k] + 1.0);
    vf32 y = with_sign(narrow(wide_log(a + r)), x);
    y = magnitude(x) < 1e-2f ? x - x * x * x * (0.166666672f - x * x * 0.075f) : y;
    return (x == 0.0f) | (x != x) | (magnitude(x) == __builtin_inff()) ? x : y;
}""",
    ),
    "acosh": (
        (),
        ("wide",),
        """\
INLINE vf32 acosh(vf32 x) {              // log(1 + (t + sqrt(2t + t*t))), t = x - 1
    vf64 t = wide(clamp(x, 1.0f, 3.4028234e38f)) - 1.0, r;
    UNROLL for (int k = 0; k < L; k++) r[k] = __builtin_sqrt(t[k] * (t[k] + 2.0));
    vf64 u = t + r;
    vf32 small = narrow(u * (1.0 - u * (0.5 - u * (1.0 / 3 - u * 0.25))));
    vf32 y = x < 1.00000012f ? small : narrow(wide_log(1.0 + u));
    y = x < 1.0f ? __builtin_nanf("") - vf32{} : y;
    return (x != x) | (x == __builtin_inff()) ? x : y;
}""",
    ),
    "atanh": (
        (),
        ("wide",),
        """\
INLINE vf32 atanh(vf32 x) {
    vf32 a = magnitude(x);
    vf64 d = wide(clamp(a, 0.0f, 0.99999994f));
    vf32 y = with_sign(narrow(0.5 * wide_log((1.0 + d) / (1.0 - d))), x);
    y = a < 1e-2f ? x + x * x * x * (0.333333343f + x * x * 0.2f) : y;
    y = a == 1.0f ? with_sign(__builtin_inff() - vf32{}, x) : y;
    y = a > 1.0f ? __builtin_nanf("") - vf32{} : y;
    return (x == 0.0f) | (x != x) ? x : y;
}""",
    ),
    "pow": (
        (),
        ("wide", "any"),
        """\
__attribute__((noinline, cold)) static vf32 pow_rest(vf32 x, vf32 y, vi32 odd, vf32 r) {
    for (int k = 0; k < L; k++) if (odd[k]) r[k] = __builtin_powf(x[k], y[k]);
    return r;
}
// 2^(y * log2(|x|)), with x's sign for odd y; zeros, infinities and NaN go to libm.
INLINE vf32 pow(vf32 x, vf32 y) {
    vf32 a = magnitude(x), b = magnitude(y);
    vi32 odd = ~((a > 0.0f) & (a <= 3.4028234e38f) & (b <= 3.4028234e38f));
    vf64 t = wide_log(wide(odd ? 1.0f - vf32{} : a)) * 1.4426950408889634 * wide(odd ? vf32{} : y);
    vf32 u = narrow(t), over = clamp(u, -300.0f, 300.0f);
    vf32 r = narrow(wide_exp2(choose(u == over, t, wide(over))));
    // (from 2^24 on all numbers are even; below, adding 2^23 leaves whole numbers as they are)
    if (any(x < 0.0f)) {
        vf32 n = b < 8388608.0f ? b + 8388608.0f : b;
        vi32 whole = (b >= 8388608.0f) | (n - 8388608.0f == b), sign = (b < 16777216.0f) & whole & ((vi32)n << 31);
        r = x < 0.0f ? (whole ? (vf32)((vi32)r ^ sign) : __builtin_nanf("") - vf32{}) : r;
    }
    return __builtin_expect(any(odd), 0) ? pow_rest(x, y, odd, r) : r;
}""",
    ),
    "power": (
        (),
        ("wide",),
        """\
template <int N> INLINE vf32 power(vf32 x) {                       // x^(N / 2) by products, rounded once
    constexpr int n = N < 0 ? -N : N;
    vf64 b = wide(x), r = vf64{} + 1.0;
    if (n & 1) for (int k = 0; k < L; k++) r[k] = __builtin_sqrt(b[k]);
    UNROLL for (int bit = 2; bit <= n; bit *= 2) {
        if (n & bit) r *= b;
        b *= b;
    }
    if (n & 1) {                         // never below zero: -0.0 and -infinity, too
        r = choose(x == -__builtin_inff(), vf64{} + __builtin_inf(), r);
        r = (vf64)((vi64)r & 0x7fffffffffffffffLL);
    }
    return narrow(N < 0 ? 1.0 / r : r);
}""",
    ),
}

F64: dict[str, tuple] = {
    "quadrant": (
        ("fma", "round"),
        ("i64",),
        """\
struct Reduced64 { vf64 r; vi64 q; };    // x = q * pi/2 + r
INLINE Reduced64 quadrant(vf64 x) {
    vf64 n = round(x * 0.6366197723675814);
    vf64 r = fma(n, vf64{} - 1.5707963267948966, x);
    r = fma(n, vf64{} - 6.123233995736766e-17, r);
    r = fma(n, vf64{} + 1.4973849048591833e-33, r);
    return {r, __builtin_convertvector(n, vi64)};
}
INLINE vf64 sin_part(vf64 r) {
    vf64 z = r * r;
    vf64 p = fma(vf64{} + 1.58969099521155010221e-10, z, vf64{} - 2.50507602534068634195e-08);
    p = fma(p, z, vf64{} + 2.75573137070700676789e-06);
    p = fma(p, z, vf64{} - 1.98412698298579493134e-04);
    p = fma(p, z, vf64{} + 8.33333333332248946124e-03);
    p = fma(p, z, vf64{} - 1.66666666666666324348e-01);
    return fma(p * z, r, r);
}
INLINE vf64 cos_part(vf64 r) {
    vf64 z = r * r;
    vf64 p = fma(vf64{} - 1.13596475577881948265e-11, z, vf64{} + 2.08757232129817482790e-09);
    p = fma(p, z, vf64{} - 2.75573143513906633035e-07);
    p = fma(p, z, vf64{} + 2.48015872894767294178e-05);
    p = fma(p, z, vf64{} - 1.38888888888741095749e-03);
    p = fma(p, z, vf64{} + 4.16666666666666019037e-02);
    vf64 h = 0.5 * z, w = 1.0 - h;
    return w + (((1.0 - w) - h) + z * z * p);
}""",
    ),
    "sin": (
        (),
        ("quadrant", "any"),
        """\
INLINE vf64 sin(vf64 x) {
    Reduced64 t = quadrant(x);
    vf64 y = (t.q & 1) != 0 ? cos_part(t.r) : sin_part(t.r);
    y = (vf64)((vi64)y ^ ((t.q & 2) << 62));
    vi64 large = (vf64)((vi64)x & 0x7fffffffffffffffLL) > 1e5;
    if (__builtin_expect(any(large), 0)) for (int k = 0; k < L; k++) if (large[k]) y[k] = __builtin_sin(x[k]);
    return x == 0.0 ? x : y;
}""",
    ),
    "cos": (
        (),
        ("quadrant", "any"),
        """\
INLINE vf64 cos(vf64 x) {
    Reduced64 t = quadrant(x);
    vf64 y = (t.q & 1) != 0 ? sin_part(t.r) : cos_part(t.r);
    y = (vf64)((vi64)y ^ (((t.q + 1) & 2) << 62));
    vi64 large = (vf64)((vi64)x & 0x7fffffffffffffffLL) > 1e5;
    if (__builtin_expect(any(large), 0)) for (int k = 0; k < L; k++) if (large[k]) y[k] = __builtin_cos(x[k]);
    return y;
}""",
    ),
    "tanh": (
        (),
        ("exp",),
        """\
INLINE vf64 tanh(vf64 x) {               // Cephes
    vf64 a = (vf64)((vi64)x & 0x7fffffffffffffffLL), s = x * x, c = a > 25.0 ? 25.0 - vf64{} : a;
    vf64 big = 1.0 - 2.0 / (exp(c + c) + 1.0);
    s = a < 0.625 ? s : vf64{};
    vf64 p = (-9.64399179425052238628e-1 * s - 9.92877231001918586564e1) * s - 1.61468768441708447952e3;
    vf64 q = ((s + 1.12811678491632931402e2) * s + 2.23548839060100448583e3) * s + 4.84406305325125486048e3;
    vf64 r = a < 0.625 ? x + x * s * (p / q) : big;
    r = (vf64)(((vi64)r & 0x7fffffffffffffffLL) | ((vi64)x & (-0x7fffffffffffffffLL - 1)));
    return x == x ? r : x;
}""",
    ),
}


_REMAINDERS = {
    "fmod": (
        ("fma", "trunc"),
        ("any", "abs", "copysign"),
        """\
// a - trunc(a / b) * b, exact; quotients beyond the digits of the type go to libm.
INLINE {V} fmod({V} a, {V} b) {{
    {V} quotient = a / b, q = trunc(quotient), size = abs(b);
    {V} r = fma(-q, b, a);                                         // q may be off by one after rounding
    {V} signed_size = copysign(size, a);
    r = ((r < 0) != (a < 0)) & (r != 0) ? r + signed_size : r;
    r = abs(r) >= size ? r - signed_size : r;
    r = copysign(r, a);
    {M} far = !(abs(quotient) < {LIMIT}) | ((abs(a) < {LEAST}) & (a != 0)) | (size == __builtin_inf{F}());
    if (__builtin_expect(any(far), 0)) for (int k = 0; k < L; k++) if (far[k]) r[k] = __builtin_fmod{F}(a[k], b[k]);
    return r;
}}""",
    ),
    "remainder": (
        (),
        ("fmod",),
        """\
INLINE {V} remainder({V} a, {V} b) {{    // the sign of the divisor, as Python's %
    {V} r = fmod(a, b);
    return (r != 0) & ((b < 0) != (r < 0)) ? r + b : r;
}}""",
    ),
    "div_floor": (
        ("floor",),
        ("fmod", "copysign"),
        """\
INLINE {V} div_floor({V} a, {V} b) {{    // as Python's //
    {V} r = fmod(a, b), q = (a - r) / b;
    q = (r != 0) & ((b < 0) != (r < 0)) ? q - 1 : q;
    {V} w = floor(q);
    w = q - w > {HALF} ? w + 1 : w;
    w = q == 0 ? copysign({V}{{}}, a / b) : w;
    return b == 0 ? a / b : w;
}}""",
    ),
}
_NEXT = """\
INLINE {V} nextafter({V} x, {V} y) {{
    {M} up = (x < y) == (x > 0);
    {M} least = ({M}{{}} + 1) | (({M})y & ({M})(-{V}{{}}));       // from 0: the smallest number, with y's sign
    {V} r = x == 0 ? ({V})least : ({V})(({M})x - up + ~up);
    r = x == y ? y : r;
    return (x != x) | (y != y) ? x + y : r;
}}"""
WIDE_F32["nextafter"] = ((), ("i32",), _NEXT.format(V="vf32", M="vi32"))
F64["nextafter"] = ((), ("i64",), _NEXT.format(V="vf64", M="vi64"))
for _name, (_instructions, _needs, _text) in _REMAINDERS.items():
    WIDE_F32[_name] = (
        _instructions,
        (*_needs, "i32"),
        _text.format(V="vf32", M="vi32", F="f", LIMIT="4194304.0f", LEAST="1e-30f", HALF="0.5f"),
    )
    F64[_name] = (
        _instructions,
        (*_needs, "i64"),
        _text.format(V="vf64", M="vi64", F="", LIMIT="2251799813685248.0", LEAST="1e-280", HALF="0.5"),
    )
