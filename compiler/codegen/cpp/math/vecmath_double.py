"""Functions over `vf64`, within about 2 ulp (erfc: 4), for every input; see vecmath.py.

Polynomials are fits close to the minimax ones: erf(x) / x over x * x; (1 + 2a) * exp(a * a) * erfc(a) over (a - c) / (a
+ c), as S. Johnson's and M. Shepherd's erfc have it; atan after one step of argument halving at tan(pi/8); the
logarithm in pow is carried in two doubles. asin and acos are fdlibm's.
"""

from __future__ import annotations

__all__ = ["DOUBLE"]

# name -> (instructions, what it needs, text)
DOUBLE: dict[str, tuple] = {
    "horner": (
        ("fma",),
        ("i64",),
        """\
// A polynomial, highest order first.
template <int N> INLINE vf64 horner(vf64 x, const double (&c)[N]) {
    vf64 p = vf64{} + c[0];
    UNROLL for (int k = 1; k < N; k++) p = fma(p, x, vf64{} + c[k]);
    return p;
}
constexpr i64 NOT_SIGN = 0x7fffffffffffffffLL;
INLINE vf64 magnitude(vf64 x) { return (vf64)((vi64)x & NOT_SIGN); }
INLINE vf64 with_sign(vf64 x, vf64 y) { return (vf64)(((vi64)x & NOT_SIGN) | ((vi64)y & ~NOT_SIGN)); }
INLINE vf64 scale(vf64 x, vf64 n) {      // x * 2^n in two steps, so that denormal results are right
    vi64 e = __builtin_convertvector(n, vi64), half = e >> 1;
    return x * (vf64)((half + 1023) << 52) * (vf64)((e - half + 1023) << 52);
}
INLINE vf64 exp_less_1(vf64 r) {         // e^r - 1, |r| <= ln(2)/2
    static constexpr double C[] = {2.08860621107283687536341e-09, 2.51112930892876518610661e-08, \
2.75573911234900471893338e-07, 2.75572362911928827629423e-06,
            2.4801587159235472998791e-05, 0.000198412698960509205564975, 0.00138888888889774492207962, \
0.00833333333331652721664984,
            0.0416666666666665047591422, 0.166666666666666851703837, 0.5};
    return fma(horner(r, C), r * r, r);
}
INLINE vf64 less_ln2(vf64 x, vf64 n) {   // x - n * ln(2)
    return fma(n, vf64{} - 2.8235290563031577122588448175013436025525412068e-13,
               fma(n, vf64{} - 0.69314718055966295651160180568695068359375, x));
}""",
    ),
    "exp": (
        ("round",),
        ("horner",),
        """\
INLINE vf64 exp(vf64 x) {                // 2^n * e^r
    x = x > 710.0 ? vf64{} + 710.0 : x;
    x = x < -746.0 ? vf64{} - 746.0 : x;
    vf64 n = round(x * 1.4426950408889634);
    return scale(exp_less_1(less_ln2(x, n)) + 1.0, n);
}""",
    ),
    "exp2": (
        ("round",),
        ("horner",),
        """\
INLINE vf64 exp2(vf64 x) {
    vf64 c = x > 1025.0 ? vf64{} + 1025.0 : x;
    c = c < -1080.0 ? vf64{} - 1080.0 : c;
    vf64 n = round(c);
    return scale(exp_less_1((c - n) * 0.69314718055994530942) + 1.0, n);
}""",
    ),
    "expm1": (
        ("round",),
        ("horner",),
        """\
INLINE vf64 expm1(vf64 x) {              // 2^n * ((e^r - 1) + (1 - 2^-n)), |r| <= ln(2)/2
    vf64 c = x > 711.0 ? vf64{} + 711.0 : x;
    c = c < -40.0 ? vf64{} - 40.0 : c;
    vf64 n = round(c * 1.4426950408889634);
    vf64 y = scale(exp_less_1(less_ln2(c, n)) + (1.0 - scale(vf64{} + 1.0, -n)), n);
    return (x == 0.0) | (x != x) ? x : y;
}""",
    ),
    "sinh": (
        (),
        ("expm1", "exp"),
        """\
INLINE vf64 sinh(vf64 x) {
    vf64 a = magnitude(x), e = expm1(a > 700.0 ? vf64{} + 700.0 : a), h = exp(a * 0.5);
    vf64 y = a > 40.0 ? (0.5 * h) * h : 0.5 * (e + e / (e + 1.0));
    return (x == 0.0) | (x != x) ? x : with_sign(y, x);
}""",
    ),
    "cosh": (
        (),
        ("horner", "exp"),
        """\
INLINE vf64 cosh(vf64 x) {
    vf64 h = exp(magnitude(x) * 0.5), e = h * h;
    return magnitude(x) > 40.0 ? (0.5 * h) * h : x == x ? 0.5 * (e + 1.0 / e) : x;
}""",
    ),
    "log1p": (
        (),
        ("log",),
        """\
INLINE vf64 log1p(vf64 x) {              // log(u) and what 1 + x lost in rounding to u
    vf64 u = 1.0 + x, y = log(u) + (x - (u - 1.0)) / u;
    y = x == -1.0 ? -__builtin_inf() - vf64{} : y;
    return (x == __builtin_inf()) | (x != x) | (x == 0.0) ? x : y;
}""",
    ),
    "log_parts": (
        (),
        ("i64",),
        """\
INLINE vf64 log_parts(vf64 x, vf64 &k) { // log(m) for x = 2^k * m, sqrt(1/2) <= m < sqrt(2): fdlibm
    vi64 tiny = x < 2.2250738585072014e-308;
    vi64 b = (vi64)(tiny ? x * 18014398509481984.0 : x), e = (b - 0x3fe6a09e667f3bcdLL) >> 52;
    vf64 f = (vf64)(b - (e << 52)) - 1.0;
    k = __builtin_convertvector(e - (tiny & 54), vf64);
    vf64 s = f / (2.0 + f), z = s * s, w = z * z, h = 0.5 * f * f;
    vf64 t1 = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
    vf64 t2 = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01
                   + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
    return f - (h - s * (h + (t1 + t2)));
}
INLINE vf64 log_result(vf64 x, vf64 y) { // 0, negative numbers, infinity and NaN
    vf64 r = x == 0.0 ? -__builtin_inf() - vf64{} : y;
    r = x < 0.0 ? __builtin_nan("") - vf64{} : r;
    return (x == __builtin_inf()) | (x != x) ? x : r;
}""",
    ),
    "log": (
        (),
        ("log_parts",),
        """\
INLINE vf64 log(vf64 x) {
    vf64 k, m = log_parts(x, k);
    return log_result(x, k * 6.93147180369123816490e-01 + (m + k * 1.90821492927058770002e-10));
}""",
    ),
    "log2": (
        ("fma",),
        ("log_parts",),
        """\
INLINE vf64 log2(vf64 x) {               // exact for powers of two
    vf64 k, m = log_parts(x, k), hi = m * 1.4426950408889634;
    return log_result(x, k + (hi + fma(m, vf64{} + 2.0355273740931033e-17, fma(m, vf64{} + 1.4426950408889634, -hi))));
}""",
    ),
    "log10": (
        ("fma",),
        ("log_parts",),
        """\
INLINE vf64 log10(vf64 x) {
    vf64 k, m = log_parts(x, k);
    return log_result(x, fma(k, vf64{} + 3.01029995663611771306e-01,
                             fma(k, vf64{} + 3.69423907715893078616e-13, m * 0.43429448190325182765)));
}""",
    ),
    "atanh": (
        (),
        ("horner", "log1p"),
        """\
INLINE vf64 atanh(vf64 x) {
    vf64 a = magnitude(x), y = with_sign(0.5 * log1p((a + a) / (1.0 - a)), x);
    y = a > 1.0 ? __builtin_nan("") - vf64{} : y;
    return (x == 0.0) | (x != x) ? x : y;
}""",
    ),
    "erf": (
        (),
        ("horner", "exp"),
        """\
INLINE vf64 erf(vf64 x) {
    static constexpr double SMALL[] = {5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08, \
-1.6350312701054695e-07, 1.6461000484121368e-06,
            -1.4925595266831182e-05, 0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145, \
-0.026866170645076792,
            0.11283791670954879, -0.3761263890318375, 1.1283791670955126};
    static constexpr double LARGE[] = {2.284982547947005e-06, -1.0474106479832425e-06, -1.9724332775436143e-05, \
5.111019944653237e-06, 0.0001250512141750135,
            -0.00010518763242323468, -0.0007798294517483084, 0.0018886926936596247, 0.0025293917508951618, \
-0.02377051501976663,
            0.06830802734390644, -0.1192736634131923, 0.12964515870277799, -0.04756229435346764, \
-0.13562110612458128, 1.2530080582697296};
    vf64 a = magnitude(x), z = x * x, c = a > 6.0 ? vf64{} + 6.0 : a;
    vf64 w = 1.0 + 2.0 * c, inverse = 1.0 / ((c + 3.0) * w);
    vf64 large = 1.0 - exp(-c * c) * (horner((c - 3.0) * w * inverse, LARGE) * ((c + 3.0) * inverse));
    vf64 y = a < 1.0 ? x * horner(a < 1.0 ? z : vf64{}, SMALL) : with_sign(large, x);
    return x == x ? y : x;
}""",
    ),
    "erfc": (
        ("fma",),
        ("horner", "exp"),
        """\
INLINE vf64 erfc(vf64 x) {
    static constexpr double C[] = {-8.85115922344989e-09, -9.297814102078907e-09, 1.0181275012136232e-07, \
5.845493461944841e-08, -8.189831956867985e-07,
            3.103102566197293e-07, 5.707145040289054e-06, -1.1232269801279568e-05, -2.4398824898573882e-05, \
0.00015062572040252812,
            -0.00019925661348791846, -0.000757774311953688, 0.0050319699333652435, -0.016197733896081708, \
0.03716751554495891,
            -0.06633036582719405, 0.09373283499780011, -0.10103906603558883, 0.06809705425470826, 0.015379652102606335,
            -0.1396211168405626, 1.2329951186255526};
    vf64 a = magnitude(x), c = a > 27.5 ? vf64{} + 27.5 : a, s = c * c, e = exp(-s);
    e = fma(e, -fma(c, c, -s), e);       // what rounding left out of the square
    vf64 y = horner((c - 4.0) / (c + 4.0), C) * e / (1.0 + 2.0 * c);
    y = x < 0.0 ? 2.0 - y : y;
    return x == x ? y : x;
}""",
    ),
    "atan_unit": (
        (),
        ("horner",),
        """\
INLINE vf64 atan_unit(vf64 lo, vf64 hi) {                          // atan(lo / hi), 0 <= lo <= hi, hi > 0
    static constexpr double C[] = {-0.013908703447288225, 0.030626287828475894, -0.04104029750501821, \
0.04719294405473837, -0.052580257920073425,
            0.05881923626133301, -0.06666641908302051, 0.07692306730961795, -0.09090909066866446, 0.11111111110752325,
            -0.14285714285711498, 0.19999999999999993, -0.3333333333333333};
    vi64 far = lo > hi * 0.41421356237309503;
    vf64 t = (far ? lo - hi : lo) / (far ? lo + hi : hi), z = t * t, p = fma(horner(z, C) * z, t, t);
    return far ? 0.78539816339744828 + (p + 3.061616997868383e-17) : p;
}""",
    ),
    "atan": (
        (),
        ("atan_unit",),
        """\
INLINE vf64 atan(vf64 x) {
    vf64 a = magnitude(x), one = vf64{} + 1.0;
    vi64 big = a > 1.0;
    vf64 c = a > 1e300 ? vf64{} + 1e300 : a, p = atan_unit(big ? one : c, big ? c : one);
    vf64 y = with_sign(big ? (1.5707963267948966 - p) + 6.123233995736766e-17 : p, x);
    return (x == 0.0) | (x != x) ? x : y;
}""",
    ),
    "atan2": (
        (),
        ("atan_unit",),
        """\
INLINE vf64 atan2(vf64 y, vf64 x) {
    vf64 a = magnitude(x), b = magnitude(y), hi = a > b ? a : b, lo = a > b ? b : a;
    vi64 huge = hi > 1e300, tiny = hi < 1e-300;                    // sums of the two stay numbers
    vf64 by = huge ? vf64{} + 0x1p-60 : tiny ? vf64{} + 0x1p60 : vf64{} + 1.0;
    hi *= by, lo *= by;
    vi64 both = lo == __builtin_inf();
    hi = both | (hi == 0.0) ? vf64{} + 1.0 : hi, lo = both ? vf64{} + 1.0 : lo;
    vi64 endless = hi == __builtin_inf();
    vf64 r = atan_unit(endless ? vf64{} : lo, endless ? vf64{} + 1.0 : hi);
    r = b > a ? (1.5707963267948966 - r) + 6.123233995736766e-17 : r;
    r = (vi64)x < 0 ? (3.141592653589793 - r) + 1.2246467991473532e-16 : r;
    return (x != x) | (y != y) ? x + y : with_sign(r, y);
}""",
    ),
    "asin_rest": (
        ("sqrt",),
        ("horner",),
        """\
INLINE vf64 asin_rest(vf64 x, vf64 z) {  // asin(x) - x for z = x * x <= 1/4
    static constexpr double P[] = {3.47933107596021167570e-05, 7.91534994289814532176e-04, \
-4.00555345006794114027e-02, 2.01212532134862925881e-01,
            -3.25565818622400915405e-01, 1.66666666666666657415e-01};
    static constexpr double Q[] = {7.70381505559019352791e-02, -6.88283971605453293030e-01, \
2.02094576023350569471e+00, -2.40339491173441421878e+00, 1.0};
    return x * (z * horner(z, P) / horner(z, Q));
}""",
    ),
    "asin": (
        (),
        ("asin_rest",),
        """\
INLINE vf64 asin(vf64 x) {               // pi/2 - 2 * asin(sqrt((1 - a) / 2)) for a > 1/2
    vf64 a = magnitude(x), z = a > 0.5 ? 0.5 - 0.5 * a : a * a, s = a > 0.5 ? sqrt(z) : a, p = asin_rest(s, z);
    vf64 left = fma(-s, s, z) / (s + s); // of the root
    vf64 big = fma(vf64{} - 2.0, s, vf64{} + 1.5707963267948966)
        + (6.123233995736766e-17 - 2.0 * (p + (s == 0.0 ? vf64{} : left)));
    vf64 y = with_sign(a > 0.5 ? big : s + p, x);
    y = a > 1.0 ? __builtin_nan("") - vf64{} : y;
    return (x == 0.0) | (x != x) ? x : y;
}""",
    ),
    "acos": (
        (),
        ("asin_rest",),
        """\
INLINE vf64 acos(vf64 x) {
    vf64 a = magnitude(x), z = a > 0.5 ? 0.5 - 0.5 * a : a * a, s = a > 0.5 ? sqrt(z) : a, p = asin_rest(s, z);
    vf64 negative = fma(vf64{} - 2.0, s, vf64{} + 3.141592653589793) + (1.2246467991473532e-16 - 2.0 * p);
    vf64 left = s == 0.0 ? vf64{} : fma(-s, s, z) / (s + s);
    vf64 big = x < 0.0 ? negative : 2.0 * (s + (p + left));
    vf64 y = a > 0.5 ? big : 1.5707963267948966 - (x - (6.123233995736766e-17 - with_sign(p, x)));
    y = a > 1.0 ? __builtin_nan("") - vf64{} : y;
    return x == x ? y : x;
}""",
    ),
    "tan": (
        (),
        ("quadrant", "any"),
        """\
INLINE vf64 tan(vf64 x) {
    Reduced64 t = quadrant(x);
    vf64 s = sin_part(t.r), c = cos_part(t.r);
    vi64 odd = (t.q & 1) != 0, large = (vf64)((vi64)x & 0x7fffffffffffffffLL) > 1e5;
    vf64 y = (odd ? -c : s) / (odd ? s : c);
    if (__builtin_expect(any(large), 0)) for (int k = 0; k < L; k++) if (large[k]) y[k] = __builtin_tan(x[k]);
    return x == 0.0 ? x : y;
}""",
    ),
    "lgamma": (
        ("round",),
        ("horner", "log", "sin", "any"),
        """\
// Stirling's series from 8 on; below, a series about 2 that argument and result are brought to by products.
INLINE vf64 lgamma(vf64 x) {
    static constexpr double C[] = {6.394287142009835e-08, -1.3444709725427913e-07, 2.0288563910901753e-07, \
-4.300159824444009e-07, 9.579382101069666e-07,
            -2.045070554635358e-06, 4.374357834156144e-06, -9.438422969001998e-06, 2.0507269771402573e-05, \
-4.492635603263264e-05,
            9.945750890913978e-05, -0.00022315475034812154, 0.000509669524893844, -0.001192753912018882, \
0.002890510330738546,
            -0.0073855510286677546, 0.02058080842778457, -0.06735230105319814, 0.3224670334241132, 0.42278433509846713};
    static constexpr double STIRLING[] = {0.1796443723688307, -0.029550653594771242, 0.0064102564102564105, \
-0.0019175269175269176, 0.0008417508417508417,
            -0.0005952380952380953, 0.0007936507936507937, -0.002777777777777778, 0.08333333333333333};
    vi64 negative = x < 0.0;
    vf64 z = negative ? 1.0 - x : x, least = z < 8.0 ? z : vf64{} + 8.0, n = round(least), k = n - 2.0, y = least - n;
    vf64 above = vf64{} + 1.0, below = above;
    UNROLL for (int j = 1; j <= 6; j++) above *= k >= (double)j ? least - (double)j : vf64{} + 1.0;
    UNROLL for (int j = 0; j < 2; j++) below *= k < -(double)j ? least + (double)j : vf64{} + 1.0;
    vf64 products = log(k > 0.0 ? above : below), low = y * horner(y, C) + (k > 0.0 ? products : -products);
    vf64 large = z < 8.0 ? vf64{} + 8.0 : z, r = 1.0 / large;
    vf64 high = (large - 0.5) * log(large) - large + 0.91893853320467274178 + r * horner(r * r, STIRLING);
    vf64 g = z < 8.0 ? low : high;
    if (any(negative)) {                 // -log(|sin(pi x)| / pi) - lgamma(1 - x)
        vf64 t = x - round(x), s = sin(t * 3.14159265358979323846) * 0.31830988618379067154;
        g = negative ? -log(magnitude(magnitude(t) < 1e-9 ? t : s)) - g : g;
        g = negative & (t == 0.0) ? __builtin_inf() - vf64{} : g;
    }
    g = (z > 2.5e305) | (x == 0.0) ? __builtin_inf() - vf64{} : g;
    return x == x ? g : x;
}""",
    ),
    "hypot": (
        ("fma", "sqrt"),
        ("horner",),
        """\
// Scaled by a power of two; the root of the rounded sum, then what rounding left out.
INLINE vf64 hypot(vf64 x, vf64 y) {
    vf64 a = magnitude(x), b = magnitude(y), hi = a > b ? a : b, lo = a > b ? b : a;
    vi64 e = 0x7fe0000000000000LL - ((vi64)hi & 0x7ff0000000000000LL);
    e = e < 0x0010000000000000LL ? vi64{} + 0x0010000000000000LL : e;
    e = e > 0x7fd0000000000000LL ? vi64{} + 0x7fd0000000000000LL : e;
    vf64 p = hi * (vf64)e, q = lo * (vf64)e;
    vf64 h = p * p, l = q * q, s = h + l, rest = ((h - s) + l) + fma(p, p, -h) + fma(q, q, -l);
    vf64 r = sqrt(s), better = r + (fma(-r, r, s) + rest) * 0.5 / r;
    r = (hi == 0.0 ? hi : better) * (vf64)(0x7fe0000000000000LL - e);
    r = (x != x) | (y != y) ? x + y : r;
    return (a == __builtin_inf()) | (b == __builtin_inf()) ? __builtin_inf() - vf64{} : r;
}""",
    ),
    "pow": (
        ("round",),
        ("horner", "any"),
        """\
__attribute__((noinline, cold)) static vf64 pow_rest(vf64 x, vf64 y, vi64 odd, vf64 r) {
    for (int k = 0; k < L; k++) if (odd[k]) r[k] = __builtin_pow(x[k], y[k]);
    return r;
}
// e^(y * log|x|), the logarithm in two doubles, with x's sign for odd y; zeros, infinities and NaN go to libm.
INLINE vf64 pow(vf64 x, vf64 y) {
    static constexpr double Q[] = {0.11725771221811145, 0.11705988156500907, 0.13334813971292003, \
0.15384594791762352, 0.1818181833699257, 0.2222222222164882,
            0.2857142857142938, 0.4};
    vf64 a = magnitude(x), b = magnitude(y), one = vf64{} + 1.0;
    vi64 odd = ~((a > 0.0) & (a <= 1.7976931348623157e308) & (b <= 1.7976931348623157e308));
    a = odd ? one : a;
    vi64 tiny = a < 2.2250738585072014e-308, bits = (vi64)(tiny ? a * 18014398509481984.0 : a);
    vi64 e = (bits - 0x3fe6a09e667f3bcdLL) >> 52;
    vf64 m = (vf64)(bits - (e << 52)), k = __builtin_convertvector(e - (tiny & 54), vf64);
    // log(m) = 2 * (s + s^3 / 3 + ...), s = f / d
    vf64 d = m + 1.0, dl = m - (d - 1.0), f = m - 1.0, inverse = 1.0 / d;
    vf64 s = f * inverse, sl = (fma(-s, d, f) - s * dl) * inverse, z = s * s, zl = fma(s, s, -z) + 2.0 * s * sl;
    vf64 u = z * horner(z, Q), p = u + 0.66666666666666663;
    vf64 pl = (u - (p - 0.66666666666666663)) + 3.7007434154171886e-17;
    vf64 c = s * z, cl = fma(s, z, -c) + s * zl + sl * z, t = c * p, tl = fma(c, p, -t) + c * pl + cl * p;
    vf64 far = k * 6.93147180369123816490e-01, two = 2.0 * s, h = far + two, v = h - far;
    vf64 l = ((far - (h - v)) + (two - v)) + (2.0 * sl + tl + k * 1.90821492927058770002e-10);
    vf64 g = h + t;
    v = g - h, l += (h - (g - v)) + (t - v), h = g + l, l += g - h;
    vf64 w = h * (odd ? vf64{} : y), wl = fma(h, odd ? vf64{} : y, -w) + l * (odd ? vf64{} : y);
    vi64 out = magnitude(w) > 800.0;
    w = out ? with_sign(vf64{} + 800.0, w) : w, wl = out ? vf64{} : wl;
    vf64 n = round(w * 1.4426950408889634), r = scale(exp_less_1(less_ln2(w, n) + wl) + 1.0, n);
    r = out ? (w > 0.0 ? vf64{} + __builtin_inf() : vf64{}) : r;
    // (from 2^53 on all numbers are even; below, adding 2^52 leaves whole numbers as they are)
    if (any(x < 0.0)) {
        vf64 q = b < 4503599627370496.0 ? b + 4503599627370496.0 : b;
        vi64 whole = (b >= 4503599627370496.0) | (q - 4503599627370496.0 == b);
        vi64 sign = (b < 9007199254740992.0) & whole & ((vi64)q << 63);
        r = x < 0.0 ? (whole ? (vf64)((vi64)r ^ sign) : __builtin_nan("") - vf64{}) : r;
    }
    return __builtin_expect(any(odd), 0) ? pow_rest(x, y, odd, r) : r;
}""",
    ),
}
