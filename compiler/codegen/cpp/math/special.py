"""Special functions in C++: Bessel, gamma and zeta functions, inverses of the error function, orthogonal polynomials.

The approximations are those of the Cephes library, which eager's kernels use as well; what is not a polynomial is
evaluated in double for every dtype. All of them run lane by lane; vecmath_special.py has those that run over vectors.
"""

from __future__ import annotations

from ....lowering.primitives import SPECIAL
from .special_tables import TABLES
from ..support import Support
from .vecmath import need_function

__all__ = ["need_special"]

_POLY = """\
// Horner's scheme, highest order first; and Clenshaw's for a Chebyshev series.
template <int N> INLINE double poly(double x, const double (&c)[N]) {
    double r = 0;
    for (int i = 0; i < N; i++) r = r * x + c[i];
    return r;
}
template <int N> INLINE double chebyshev(double x, const double (&c)[N]) {
    double a = 0, b = 0, p = 0;
    for (int i = 0; i < N; i++) p = b, b = a, a = x * b - p + c[i];
    return 0.5 * (a - p);
}
constexpr double INF = __builtin_inf(), NOT_A_NUMBER = __builtin_nan(""), PI = 3.14159265358979323846;
"""

# In double. Names in braces: tables; what a function calls stands in _USES.
_DOUBLE: dict[str, str] = {
    "zeta": (
        """\
double zeta_(double x, double q) {             // Hurwitz: sum over k >= 0 of (q + k)^-x
    const double tiny = 1.11022302462515654042e-16;
    if (x == 1) return INF;
    if (x < 1) return NOT_A_NUMBER;
    if (q <= 0) {
        if (q == __builtin_floor(q)) return INF;
        if (x != __builtin_floor(x)) return NOT_A_NUMBER;
    }
    double s = __builtin_pow(q, -x), a = q, b = 0;
    for (int i = 0; i < 9 || a <= 9; ) {
        i++, a += 1, b = __builtin_pow(a, -x), s += b;
        if (-tiny * s < b && b < tiny * s) return s;
    }
    double w = a, k = 0;
    s += b * w / (x - 1) - 0.5 * b;            // Euler and Maclaurin's remainder
    a = 1;
    for (int i = 0; i < 12; i++) {
        a *= x + k, b /= w;
        double t = a * b / {zeta}[i];
        s += t;
        if (__builtin_fabs(t / s) < tiny) return s;
        k += 1, a *= x + k, b /= w, k += 1;
    }
    return s;
}"""
    ),
    "erfcx": (
        """\
double erfcx_(double x) {                      // exp(x * x) * erfc(x)
    if (x != x) return x;
    if (x < 2) return x < -26.7 ? INF : __builtin_exp(x * x) * __builtin_erfc(x);
    if (x > 5e7) return 0.56418958354775628695 / x;
    double r = x;                              // a continued fraction, from its far end
    for (int k = x < 4 ? 120 : x < 10 ? 50 : 20; k > 0; k--) r = x + 0.5 * k / r;
    return 0.56418958354775628695 / r;
}"""
    ),
    "log_ndtr": (
        """\
double log_ndtr_(double x) {
    double t = x * 0.70710678118654752440;
    return x < -1 ? __builtin_log(erfcx_(-t) / 2) - t * t : __builtin_log1p(-__builtin_erfc(t) / 2);
}"""
    ),
    "scaled_modified_bessel_k0": (
        """\
double scaled_modified_bessel_k0_(double x) {
    if (!(x > 0)) return x == 0 ? INF : NOT_A_NUMBER;
    if (x <= 2) return (chebyshev(x * x - 2, {k0_a}) - __builtin_log(0.5 * x) * i0(x)) * __builtin_exp(x);
    return chebyshev(8 / x - 2, {k0_b}) / __builtin_sqrt(x);
}"""
    ),
    "modified_bessel_k0": (
        "double modified_bessel_k0_(double x) { return x > 0 ? __builtin_exp(-x) * scaled_modified_bessel_k0_(x) :"
        " scaled_modified_bessel_k0_(x); }"
    ),
    "scaled_modified_bessel_k1": (
        """\
double scaled_modified_bessel_k1_(double x) {
    if (!(x > 0)) return x == 0 ? INF : NOT_A_NUMBER;
    if (x <= 2) return (__builtin_log(0.5 * x) * i1(x) + chebyshev(x * x - 2, {k1_a}) / x) * __builtin_exp(x);
    return chebyshev(8 / x - 2, {k1_b}) / __builtin_sqrt(x);
}"""
    ),
    "modified_bessel_k1": (
        "double modified_bessel_k1_(double x) { return x > 0 ? __builtin_exp(-x) * scaled_modified_bessel_k1_(x) :"
        " scaled_modified_bessel_k1_(x); }"
    ),
    "bessel_y0": (
        """\
double bessel_y0_(double x) {
    if (!(x > 0)) return x == 0 ? -INF : NOT_A_NUMBER;
    double z = x * x, w = 25 / z, t = x - PI / 4;
    if (x <= 5) return poly(z, {y0_yp}) / poly(z, {y0_yq}) + 2 / PI * __builtin_log(x) * bessel_j0(x);
    return (poly(w, {j0_pp}) / poly(w, {j0_pq}) * __builtin_sin(t)
            + 5 / x * (poly(w, {j0_qp}) / poly(w, {j0_qq})) * __builtin_cos(t))
        * 0.79788456080286535588 / __builtin_sqrt(x);
}"""
    ),
    "bessel_y1": (
        """\
double bessel_y1_(double x) {
    if (!(x > 0)) return x == 0 ? -INF : NOT_A_NUMBER;
    double z = x * x, w = 25 / z, t = x - 0.75 * PI;
    if (x <= 5) return x * (poly(z, {y1_yp}) / poly(z, {y1_yq})) + 2 / PI * (bessel_j1(x) * __builtin_log(x) - 1 / x);
    return (poly(w, {j1_pp}) / poly(w, {j1_pq}) * __builtin_sin(t)
            + 5 / x * (poly(w, {j1_qp}) / poly(w, {j1_qq})) * __builtin_cos(t))
        * 0.79788456080286535588 / __builtin_sqrt(x);
}"""
    ),
    "spherical_bessel_j0": (
        """\
double spherical_bessel_j0_(double x) {
    double z = x * x;
    if (__builtin_isinf(x)) return 0;
    if (z < 0.25)
        return 1 + z * (-1. / 6 + z * (1. / 120 + z * (-1. / 5040
                   + z * (1. / 362880 + z * (-1. / 39916800 + z / 6227020800.)))));
    return __builtin_sin(x) / x;
}"""
    ),
    "airy_ai": (
        """\
double airy_ai_(double x) {
    if (__builtin_isinf(x)) return NOT_A_NUMBER;
    if (x > 103.892) return 0;
    const double scale = 5.64189583547756286948e-01;
    if (x < -2.09) {
        double u = -2 * x * __builtin_sqrt(-x) / 3, z = 1 / u, w = z * z, t = u + 0.25 * PI;
        return scale / __builtin_sqrt(__builtin_sqrt(-x))
            * (__builtin_sin(t) * (1 + w * poly(w, {airy_afn}) / poly(w, {airy_afd}))
               - __builtin_cos(t) * (z * poly(w, {airy_agn}) / poly(w, {airy_agd})));
    }
    if (x >= 2.09) {
        double u = 2 * x * __builtin_sqrt(x) / 3;
        return scale * (poly(1 / u, {airy_an}) / poly(1 / u, {airy_ad}))
            / (2 * __builtin_sqrt(__builtin_sqrt(x)) * __builtin_exp(u));
    }
    double f = 1, g = x, k = 1, m = 1, n = x, z = x * x * x;     // the power series
    for (double t = 1; t > 1e-17; ) {
        m *= z, k += 1, m /= k, n *= z, k += 1, n /= k, m /= k, f += m, k += 1, n /= k, g += n;
        t = __builtin_fabs(m / f);
    }
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g;
}"""
    ),
}
_USES = {
    "log_ndtr": ("erfcx",),
    "scaled_modified_bessel_k0": ("i0",),
    "modified_bessel_k0": ("scaled_modified_bessel_k0",),
    "scaled_modified_bessel_k1": ("i1",),
    "modified_bessel_k1": ("scaled_modified_bessel_k1",),
    "bessel_y0": ("bessel_j0",),
    "bessel_y1": ("bessel_j1",),
}

# In the operand's own type: {T}, {f} the suffix of libm's functions, {limit} the highest order of a Hermite polynomial.
_HEAD = "    i64 n = (i64)order;\n    if (n < 0) return 0;\n"
_STEPS = "    {T} p = 1, q = %s, r = 0;\n    for (i64 k = %s && q == q; k++) r = %s, p = q, q = r;\n    return r;\n}}"
_CHEBYSHEV = (
    """\
{T} chebyshev_polynomial_%(kind)s({T} x, {T} order) {{
"""
    + _HEAD
    + """\
    if (__builtin_fabs{f}(x) == 1) return %(edge)s;
    if (n > %(limit)s && __builtin_fabs{f}(x) < 1) {{ {T} a = __builtin_acos{f}(x); return %(angle)s; }}
    if (n == 0) return 1;
    if (n == 1) return %(first)s;
"""
    + _STEPS % ("%(first)s", "2; k <= n", "(x + x) * q - p")
)
_TYPED: dict[str, str] = {
    "chebyshev_polynomial_t": (
        _CHEBYSHEV
        % {
            "kind": "t",
            "edge": "x > 0 || n % 2 == 0 ? 1 : -1",
            "limit": 6,
            "angle": "__builtin_cos{f}(n * a)",
            "first": "x",
        }
    ),
    "chebyshev_polynomial_u": (
        _CHEBYSHEV
        % {
            "kind": "u",
            "edge": "x > 0 || n % 2 == 0 ? n + 1 : -(n + 1)",
            "limit": 8,
            "angle": "__builtin_sin{f}((n + 1) * a) / __builtin_sin{f}(a)",
            "first": "x + x",
        }
    ),
    "chebyshev_polynomial_v": (
        _CHEBYSHEV
        % {
            "kind": "v",
            "edge": "x > 0 ? 1 : n % 2 == 0 ? n + n + 1 : -(n + n + 1)",
            "limit": 8,
            "angle": "__builtin_cos{f}((n + {T}(0.5)) * a) / __builtin_cos{f}(a / 2)",
            "first": "x + x - 1",
        }
    ),
    "chebyshev_polynomial_w": (
        _CHEBYSHEV
        % {
            "kind": "w",
            "edge": "x > 0 ? n + n + 1 : n % 2 == 0 ? 1 : -1",
            "limit": 8,
            "angle": "__builtin_sin{f}((n + {T}(0.5)) * a) / __builtin_sin{f}(a / 2)",
            "first": "x + x + 1",
        }
    ),
    "hermite_polynomial_h": (
        '{T} hermite_polynomial_h({T} x, {T} order) {{\n    if (order - order != 0) return __builtin_nan{f}("");\n'
        + _HEAD
        + "    if (n == 0) return 1;\n    if (n == 1) return x + x;\n    if (n > {limit}) return"
        ' __builtin_nan{f}("");\n'
        + "    {T} p = 1, q = x + x, r = 0;\n    for (i64 k = 2; k < n + n; k += 2) r = __builtin_fma{f}(x + x, q, -(k"
        " * p)), p = q, q = r;\n    return r;\n}}"
    ),
    "hermite_polynomial_he": (
        "{T} hermite_polynomial_he({T} x, {T} order) {{\n"
        + _HEAD
        + '    if (n == 0) return 1;\n    if (n == 1) return x;\n    if (n > {limit}) return __builtin_nan{f}("");\n'
        + "    {T} p = 1, q = x, r = 0;\n    for (i64 k = 1; k < n; k++) r = __builtin_fma{f}(x, q, -(k * p)), p = q, q"
        " = r;\n    return r;\n}}"
    ),
    "laguerre_polynomial_l": (
        "{T} laguerre_polynomial_l({T} x, {T} order) {{\n"
        + _HEAD
        + "    if (x == 0 || n == 0) return 1;\n    if (n == 1) return 1 - x;\n"
        + _STEPS % ("1 - x", "1; k < n", "((k + k + (1 - x)) * q - k * p) / (k + 1)")
    ),
    "legendre_polynomial_p": (
        "{T} legendre_polynomial_p({T} x, {T} order) {{\n"
        + _HEAD
        + "    if (__builtin_fabs{f}(x) == 1) return x > 0 || n % 2 == 0 ? 1 : -1;\n    if (n == 0) return 1;\n    if"
        " (n == 1) return x;\n" + _STEPS % ("x", "1; k < n", "((k + k + 1) * x * q - k * p) / (k + 1)")
    ),
    "gcd": (
        "{T} gcd({T} a, {T} b) {{\n    a = a < 0 ? -a : a, b = b < 0 ? -b : b;\n    while (a != 0) {{ {T} c = a; a = b"
        " % a; b = c; }}\n    return b;\n}}"
    ),
    "frexp_mantissa": "{T} frexp_mantissa({T} x) {{ int e; return __builtin_frexp{f}(x, &e); }}",
    "frexp_exponent": "{T} frexp_exponent({T} x) {{ int e = 0; __builtin_frexp{f}(x, &e); return e; }}",
}


def need_special(support: Support, op: str, key: str, scalar: str, tag: str) -> None:
    """Have the scalar function `tc::op` for the C++ type `scalar` printed under `key`, with all that it uses."""
    if op in _TYPED:
        text = _TYPED[op].format(T=scalar, f="f" if tag == "f32" else "", limit=128 if tag == "f32" else 512)
        support.need(key, "static inline " + text)
        return
    if need_function(support, op, tag):  # one lane of the vector form
        support.need(key, f"INLINE {scalar} {op}({scalar} x) {{ return {op}(v{tag}{{}} + x)[0]; }}")
        return
    _need_double(support, op)
    used = "ab"[: SPECIAL[op].operands]
    names = ", ".join(f"{scalar} {a}" for a in used)
    support.need(key, f"INLINE {scalar} {op}({names}) {{ return ({scalar}){op}_({', '.join(used)}); }}")


def _need_double(support: Support, op: str) -> None:
    support.need("special.poly", _POLY)
    for other in _USES.get(op, ()):
        if other in _DOUBLE:
            _need_double(support, other)
        else:
            need_special(support, other, f"{other}.f64.scalar", "double", "f64")
    text = _DOUBLE[op]
    for name, numbers in TABLES.items():
        if "{" + name + "}" in text:
            support.need(
                f"special.table.{name}", f"static const double {name.upper()}_[] = {{{', '.join(map(repr, numbers))}}};"
            )
            text = text.replace("{" + name + "}", name.upper() + "_")
    # (one call per lane: nothing to gain from copies)
    support.need(f"special.{op}", "static __attribute__((noinline)) " + text)
