"""Special functions over vectors: what special.py has no need to evaluate lane by lane, since it is a few polynomials
and elementary functions.

The approximations are Cephes' (tables in special_tables.py), as in eager's kernels. `V` is the vector type. The Bessel
functions i0 and i1 and trigamma (at its poles: what is left of sin(pi x)) are evaluated in float32 for float32, as
eager does. The others are evaluated in double for every type: kernels that hold one of WIDE have as many lanes as a
register has doubles (layout.py).
"""

from __future__ import annotations

import re

from .special_tables import TABLES

__all__ = ["SPECIAL_F32", "SPECIAL_F64", "WIDE"]

_POLY = """\
// Horner's scheme, highest order first; and Clenshaw's for a Chebyshev series.
template <int N> INLINE V poly(V x, const double (&c)[N]) {
    V r = V{} + c[0];
    UNROLL for (int i = 1; i < N; i++) r = r * x + c[i];
    return r;
}
template <int N> INLINE V chebyshev(V x, const double (&c)[N]) {
    V a = {}, b = {}, p = {};
    UNROLL for (int i = 0; i < N; i++) p = b, b = a, a = x * b - p + c[i];
    return 0.5 * (a - p);
}"""

# name -> (instructions, what it needs, text with names of tables in braces)
_FUNCTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "i0e": (
        ("sqrt",),
        ("poly", "abs"),
        """\
INLINE V i0e(V v) {
    V x = abs(v), near = chebyshev(x * 0.5 - 2.0, {i0_a}), far = chebyshev(32.0 / x - 2.0, {i0_b}) / sqrt(x);
    return x <= 8.0 ? near : far;
}""",
    ),
    "i0": ((), ("i0e", "exp"), "INLINE V i0(V x) { return exp(abs(x)) * i0e(x); }"),
    "i1e": (
        ("sqrt",),
        ("poly", "abs"),
        """\
INLINE V i1e(V v) {
    V x = abs(v), near = chebyshev(x * 0.5 - 2.0, {i1_a}) * x, far = chebyshev(32.0 / x - 2.0, {i1_b}) / sqrt(x);
    V r = x <= 8.0 ? near : far;
    return v < 0.0 ? -r : r;
}""",
    ),
    "i1": ((), ("i1e", "exp"), "INLINE V i1(V x) { return exp(abs(x)) * i1e(x); }"),
    "bessel_j0": (
        ("sqrt",),
        ("poly", "abs", "sin", "cos"),
        """\
INLINE V bessel_j0(V v) {
    V x = abs(v), z = x * x;
    V near = x < 1e-5 ? 1.0 - z * 0.25
        : (z - 5.78318596294678452118) * (z - 30.4712623436620863991) * poly(z, {j0_rp}) / poly(z, {j0_rq});
    V w = 25.0 / z, t = x - 0.785398163397448309616;
    V far = (poly(w, {j0_pp}) / poly(w, {j0_pq}) * cos(t) - 5.0 / x * (poly(w, {j0_qp}) / poly(w, {j0_qq})) * sin(t))
        * 0.79788456080286535588 / sqrt(x);
    return x <= 5.0 ? near : far;
}""",
    ),
    "bessel_j1": (
        ("sqrt",),
        ("poly", "abs", "sin", "cos"),
        """\
INLINE V bessel_j1(V v) {
    V x = abs(v), z = x * x;
    V near = poly(z, {j1_rp}) / poly(z, {j1_rq}) * x * (z - 14.6819706421238932572) * (z - 49.2184563216946036703);
    V w = 25.0 / z, t = x - 2.35619449019234492885;
    V far = (poly(w, {j1_pp}) / poly(w, {j1_pq}) * cos(t) - 5.0 / x * (poly(w, {j1_qp}) / poly(w, {j1_qq})) * sin(t))
        * 0.79788456080286535588 / sqrt(x);
    V r = x <= 5.0 ? near : far;
    return v < 0.0 ? -r : r;
}""",
    ),
    "quantile": (
        ("sqrt",),
        ("poly", "log"),
        """\
// Of the normal distribution at 1/2 + q, where p <= 1/2 is what lies beyond: M. Wichura's AS 241.
INLINE V quantile(V q, V p) {
    static const double A[] = {2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4,
                               4.5921953931549871457e+4, 1.3731693765509461125e+4, 1.9715909503065514427e+3,
                               1.3314166789178437745e+2, 3.3871328727963666080e+0};
    static const double B[] = {5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4,
                               2.1213794301586595867e+4, 5.3941960214247511077e+3, 6.8718700749205790830e+2,
                               4.2313330701600911252e+1, 1.0};
    static const double C[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
                               1.27045825245236838258e+0, 3.64784832476320460504e+0, 5.76949722146069140550e+0,
                               4.63033784615654529590e+0, 1.42343711074968357734e+0};
    static const double D[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
                               1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e+0,
                               2.05319162663775882187e+0, 1.0};
    static const double E[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3,
                               2.65321895265761230930e-2, 2.96560571828504891230e-1, 1.78482653991729133580e+0,
                               5.46378491116411436990e+0, 6.65790464350110377720e+0};
    static const double F[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5,
                               7.86869131145613259100e-4, 1.48753612908506148525e-2, 1.36929880922735805310e-1,
                               5.99832206555887937690e-1, 1.0};
    V r = 0.180625 - q * q, middle = q * poly(r, A) / poly(r, B), s = sqrt(-log(p)), t = s - 1.6, u = s - 5.0;
    V far = s <= 5.0 ? poly(t, C) / poly(t, D) : poly(u, E) / poly(u, F);
    return r >= 0.0 ? middle : q < 0.0 ? -far : far;
}""",
    ),
    "ndtri": (
        (),
        ("quantile",),
        """\
INLINE V ndtri(V p) {
    V r = quantile(p - 0.5, p < 0.5 ? p : 1.0 - p);
    r = p == 0.0 ? -__builtin_inf() - V{} : r;
    r = p == 1.0 ? __builtin_inf() - V{} : r;
    return (p >= 0.0) & (p <= 1.0) ? r : __builtin_nan("") - V{};
}""",
    ),
    "erfinv": (
        (),
        ("quantile", "abs", "copysign"),
        """\
INLINE V erfinv(V y) {
    V m = abs(y), x = quantile(m * 0.5, 0.5 - m * 0.5) * 0.70710678118654752440;
    x = m == 1.0 ? __builtin_inf() - V{} : x;
    return m <= 1.0 ? copysign(x, y) : __builtin_nan("") - V{};
}""",
    ),
    "trigamma": (
        (),
        ("sin",),
        """\
INLINE V trigamma(V v) {
    auto low = v < 0.5;                                            // reflection
    V s = sin(3.14159265358979323846 * v), x = low ? 1.0 - v : v, r = low ? -9.86960440108935861883 / (s * s) : V{};
    UNROLL for (int i = 0; i < 6; i++) r += 1.0 / (x * x), x += 1.0;
    V z = 1.0 / (x * x);
    r += (1.0 + 0.5 / x + z * (0.166666666666666667 - z * (0.0333333333333333333 - z * 0.0238095238095238095))) / x;
    return low ? -r : r;
}""",
    ),
    "digamma": (
        (),
        ("poly", "log", "tan", "trunc"),
        """\
INLINE V digamma(V v) {
    static const double A[] = {8.33333333333333333333e-2, -2.10927960927960927961e-2, 7.57575757575757575758e-3,
                               -4.16666666666666666667e-3, 3.96825396825396825397e-3, -8.33333333333333333333e-3,
                               8.33333333333333333333e-2};
    const double pi = 3.14159265358979323846;
    auto negative = v < 0.0;
    V whole = trunc(v), r = negative ? -pi / tan(pi * (v - whole)) : V{}, x = negative ? 1.0 - v : v;
    UNROLL for (int i = 0; i < 10; i++) {                          // recurrence, then the asymptotic series
        auto small = x < 10.0;
        r -= small ? 1.0 / x : V{};
        x = small ? x + 1.0 : x;
    }
    V z = 1.0 / (x * x);
    r = r + log(x) - 0.5 / x - z * poly(z, A);
    r = negative & (v == whole) ? __builtin_nan("") - V{} : r;
    return v == 0.0 ? -1.0 / v : r;
}""",
    ),
}
_IN_FLOAT = ("i0e", "i0", "i1e", "i1", "trigamma")
WIDE = frozenset(_FUNCTIONS) - frozenset(_IN_FLOAT)


def _entries(names: tuple[str, ...], vector: str, number: str) -> dict[str, tuple]:
    def typed(text: str) -> str:
        text = re.sub(r"\bV\b", vector, text)
        if number == "float":
            text = re.sub(
                r"(?<![\w.])(\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)(?![\w.])", r"\1f", text.replace("double", "float")
            )
        return text

    out: dict[str, tuple] = {"poly": ((), (), typed(_POLY))}
    for name in names:
        instructions, needs, text = _FUNCTIONS[name]
        tables = [t for t in TABLES if "{" + t + "}" in text]
        for t in tables:
            table = t.upper() + ("_FLOAT" if number == "float" else "")
            text = text.replace("{" + t + "}", table)
            out[t] = ((), (), f"static const {number} {table}[] = {{{', '.join(map(repr, TABLES[t]))}}};")
        out[name] = (instructions, (*tables, *needs), typed(text))
    return out


SPECIAL_F32 = _entries(_IN_FLOAT, "vf32", "float")
SPECIAL_F64 = _entries(tuple(_FUNCTIONS), "vf64", "double")
